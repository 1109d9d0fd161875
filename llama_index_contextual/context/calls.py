"""Requests to a language model: retried, paused after failures, counted and limited."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt

from llama_index_contextual.context.base import ContextUsage, Tokens
from llama_index_contextual.context.prompts import FilledPrompt, count_tokens
from llama_index_contextual.utils import errors
from llama_index_contextual.utils.tracing import in_thread

if TYPE_CHECKING:
    from llama_index.core.base.llms.types import ChatResponse
    from llama_index.core.llms import LLM, ChatMessage

OUTPUT_TOKENS: Final = 100  # that a model may write for a chunk
DEFAULT_WINDOW: Final = 8192  # tokens of a model whose server does not tell
ATTEMPTS: Final = 3  # of a request while its server is busy or away
_FAILURES: Final = 3  # calls in a row, after which none is sent for a while
_PAUSE: Final = 30.0  # seconds of that while
_THIS_MACHINE: Final = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104
# Names of LlamaIndex's integrations as they begin: those that take "max_tokens", and those whose
# servers cache a prompt only up to a mark in it.
_TAKE_MAX_TOKENS: Final = (
    "openai",
    "anthropic",
    "openailike",
    "mistral",
    "groq",
    "together",
    "openrouter",
)
_MARK_CACHE: Final = ("anthropic", "bedrock_converse")


class ModelCalls:
    """The requests of one generator.

    Args:
        usage: Counts requests and tokens.
        max_calls: The most requests, or None.

    Attributes:
        failed_run: A mark of the last run in which the model did not answer.
    """

    def __init__(self, usage: ContextUsage, max_calls: int | None) -> None:
        self._usage = usage
        self._max_calls = max_calls
        self._failures = 0
        self._paused_until = 0.0
        self.failed_run = ""

    @property
    def is_paused(self) -> bool:
        """Return whether the server has just failed several times in a row."""
        return time.monotonic() < self._paused_until

    def note_failed_run(self) -> None:
        """Remember that the model did not answer in this run."""
        self.failed_run = uuid4().hex

    async def answer(self, llm: LLM, prompt: FilledPrompt, chunks: int) -> str:
        """Return a model's answer to a prompt about some chunks.

        Raises:
            ContextError: There is none.
        """
        integration = llm.class_name().casefold()
        messages = prompt.messages(cache_point=integration.startswith(_MARK_CACHE))
        limits = {}
        if integration.startswith(_TAKE_MAX_TOKENS):
            limits["max_tokens"] = OUTPUT_TOKENS * chunks
        attempts = 1 if getattr(llm, "max_retries", 0) else ATTEMPTS  # its client retries
        retrying = AsyncRetrying(
            stop=stop_after_attempt(attempts),
            wait=errors.pause,
            retry=retry_if_exception(errors.may_pass),
            reraise=True,
        )
        try:
            response: ChatResponse = await retrying(self._send, llm, messages, limits)
        except errors.ContextError:
            raise
        except Exception as error:  # each integration has errors of its own
            self._note_failure(error)
            raise errors.ContextError(errors.reason_of(error)) from error
        self._failures = 0
        answer = response.message.content or ""
        tokens = _tokens_of(response)
        if not tokens.prompt:
            tokens = Tokens(prompt.tokens, 0, count_tokens(answer))
        self._usage.tokens += tokens
        return answer

    async def _send(
        self, llm: LLM, messages: Sequence[ChatMessage], limits: dict[str, int]
    ) -> ChatResponse:
        """Send one request.

        Raises:
            ContextError: It would be one too many, or the server has just failed several times in a
                row.
        """
        if self._max_calls is not None and self._usage.calls >= self._max_calls:
            raise errors.ContextError(f"max_calls={self._max_calls} reached")
        if self.is_paused:
            raise errors.ContextError("server does not answer")
        self._usage.calls += 1
        try:
            return await asyncio.wrap_future(in_thread(partial(llm.chat, messages, **limits)))
        except NotImplementedError:  # it has asynchronous methods alone
            return await llm.achat(messages, **limits)

    def _note_failure(self, error: Exception) -> None:
        is_about_prompt = errors.status_of(error) in errors.ABOUT_PROMPT
        if not is_about_prompt:
            self._failures += 1
        is_away = self._failures >= _FAILURES
        self._paused_until = time.monotonic() + _PAUSE if is_away else 0.0


def context_window(llm: LLM) -> int:
    """Return the tokens that a model takes.

    This may call its server: do not use it on an event loop.
    """
    with contextlib.suppress(Exception):  # any integration's own error
        window = int(llm.metadata.context_window)
        if window > 0:
            return window
    return DEFAULT_WINDOW


def is_local(llm: LLM) -> bool:
    """Return whether a model's server is on this machine, which reads one prompt at a time."""
    url = getattr(llm, "api_base", None) or getattr(llm, "base_url", None)
    return urlsplit(str(url)).hostname in _THIS_MACHINE


def _tokens_of(response: ChatResponse) -> Tokens:
    """Return the token counts of a response, in the forms of OpenAI, Anthropic and Ollama."""
    usage = _field(getattr(response, "raw", None), "usage")
    details = _field(usage, "prompt_tokens_details")
    counts = [
        _field(usage, "prompt_tokens", "input_tokens"),
        _field(details, "cached_tokens") or _field(usage, "cache_read_input_tokens"),
        _field(usage, "completion_tokens", "output_tokens"),
    ]
    return Tokens(*(count if isinstance(count, int) else 0 for count in counts))


def _field(source: object, *names: str) -> Any:
    """Return the first of some fields that a mapping or an object has, or None."""
    for name in names:
        value = source.get(name) if isinstance(source, dict) else getattr(source, name, None)
        if value is not None:
            return value
    return None
