"""Requests to a language model, with retries, pauses after failures, counts and a limit."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
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

OUTPUT_TOKENS = 100  # that a model can write per chunk
DEFAULT_WINDOW = 8192  # tokens, if the server does not report the model's window
ATTEMPTS = 3  # per request, while its server is busy or unreachable
_FAILURES = 3  # in a row, before requests are paused
_PAUSE = 30.0  # seconds
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104
# Prefixes of the names of LlamaIndex integrations: those that accept "max_tokens", and those whose
# servers cache a prompt only up to a marker in it.
_TAKE_MAX_TOKENS = (
    "openai",
    "anthropic",
    "mistral",
    "groq",
    "together",
    "openrouter",
)
_MARK_CACHE = ("anthropic", "bedrock_converse")


class ModelCalls:
    """The requests of one generator.

    Args:
        usage: The counter of requests and tokens.
        max_calls: The maximum number of requests, or None.

    Attributes:
        failed_run: An id of the last run in which the model failed to answer, or "".
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
        """Record that the model failed to answer in this run."""
        self.failed_run = uuid4().hex

    async def answer(self, llm: LLM, prompt: FilledPrompt, chunks: int) -> str:
        """Return a model's answer to a prompt about some chunks.

        Raises:
            ContextError: The model did not answer.
        """
        integration = llm.class_name().casefold()
        messages = prompt.messages(cache_point=integration.startswith(_MARK_CACHE))
        limits = {}
        if integration.startswith(_TAKE_MAX_TOKENS):
            limits["max_tokens"] = OUTPUT_TOKENS * chunks
        # A client with max_retries retries by itself.
        attempts = 1 if getattr(llm, "max_retries", 0) else ATTEMPTS
        retrying = AsyncRetrying(
            stop=stop_after_attempt(attempts),
            wait=errors.pause,
            retry=retry_if_exception(errors.is_temporary),
            reraise=True,
        )
        try:
            response: ChatResponse = await retrying(self._send, llm, messages, limits)
        except errors.ContextError:
            raise
        except Exception as error:  # each integration has its own exceptions
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
            ContextError: ``max_calls`` is reached, or requests are paused because the server has
                just failed several times in a row.
        """
        if self._max_calls is not None and self._usage.calls >= self._max_calls:
            raise errors.ContextError(f"max_calls={self._max_calls} reached")
        if self.is_paused:
            raise errors.ContextError("server does not answer")
        self._usage.calls += 1
        try:
            return await asyncio.wrap_future(in_thread(partial(llm.chat, messages, **limits)))
        except NotImplementedError:  # the model has only asynchronous methods
            return await llm.achat(messages, **limits)

    def _note_failure(self, error: Exception) -> None:
        if errors.status_of(error) in errors.ABOUT_PROMPT:
            return
        self._failures += 1
        if self._failures >= _FAILURES:
            self._paused_until = time.monotonic() + _PAUSE


def context_window(llm: LLM) -> int:
    """Return the number of tokens that fit into a model's context window.

    Do not call this on an event loop, because it may send a request to the model's server.
    """
    with contextlib.suppress(Exception):  # each integration has its own exceptions
        window = int(llm.metadata.context_window)
        if window > 0:
            return window
    return DEFAULT_WINDOW


def is_local(llm: LLM) -> bool:
    """Return whether a model's server is on this machine, where it processes one call at a time."""
    url = getattr(llm, "api_base", None) or getattr(llm, "base_url", None)
    return urlsplit(str(url)).hostname in _THIS_MACHINE


def _tokens_of(response: ChatResponse) -> Tokens:
    """Return the token counts of a response from OpenAI, Anthropic or Ollama."""
    usage = _field(response.raw, "usage")
    details = _field(usage, "prompt_tokens_details")
    counts = [
        _field(usage, "prompt_tokens", "input_tokens"),
        _field(details, "cached_tokens") or _field(usage, "cache_read_input_tokens"),
        _field(usage, "completion_tokens", "output_tokens"),
    ]
    return Tokens(*(count if isinstance(count, int) else 0 for count in counts))


def _field(source: object, *names: str) -> Any:
    """Return the first of the named fields that a mapping or an object has, or None."""
    for name in names:
        value = source.get(name) if isinstance(source, dict) else getattr(source, name, None)
        if value is not None:
            return value
    return None
