"""One request to a model: sent within a time, explained where it fails, sent again where that helps, and counted."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, get_args

import anyio
from llama_index.core.llms import CustomLLM

from llama_index_contextual.context.base import ContextProgress
from llama_index_contextual.context.cache import Reuse
from llama_index_contextual.context.usage import ContextCallEvent, Tokens, dispatcher
from llama_index_contextual.errors import amount, one_of, whole
from llama_index_contextual.service import LONGEST_WAIT, AnswerTooLargeError, is_busy, retry_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from llama_index.core.llms import LLM, ChatMessage

    from llama_index_contextual.context.base import Progress, SourceDocument
    from llama_index_contextual.context.usage import ContextUsage


_MOST: Final = 10**15  # no budget is larger
_WHOLE: Final = {  # least and most
    "batch_size": (1, 1000), "num_workers": (1, 1000), "max_calls": (0, _MOST), "max_tokens": (0, _MOST),
    "context_window": (1, 10**9), "max_output_tokens": (1, 10**9),
}  # fmt: skip
_CONNECTION: Final = re.compile(r"connect|network|protocol|remote|transport|RateLimit|Decode", re.IGNORECASE)
_OVERFLOW: Final = re.compile(
    r"exceed_context_size|context_length_exceeded|maximum context length|context (?:window|size|length)"
    r"|prompt is too long|too many tokens|input length",
    re.IGNORECASE,
)
_WINDOW: Final = re.compile(r"n_ctx['\"]?\s*[:=]\s*(\d{1,9})|maximum context length (?:is|of) (\d{1,9})", re.IGNORECASE)
_TAKE_MAX_TOKENS: Final = ("openai", "anthropic", "openailike", "mistral", "groq", "together", "openrouter")
NO_ANSWER: Final = "server does not answer"
_BELIEVED_ALIVE: Final = 60.0  # seconds that an answer of the server is believed
_BELIEVED_ABSENT: Final = 5.0  # few: somebody may be starting it
_PAUSE: Final = 30.0  # seconds without calls, after so many failed ones in a row
_FAILURES: Final = 3


@dataclass(frozen=True, slots=True)
class LLMOptions:
    """How a language model is asked for contexts.

    Attributes:
        batch_size: Chunks per call.
        num_workers: Calls at a time. Default: 1 for a server on this machine, else 4.
        chunk_timeout: Seconds that a call may take for each of its chunks, beside the time in which the prompt is read.
            Where several calls wait for a server on this machine, each may take longer.
        max_calls: Over all runs, further attempts included (not those that an LLM's client makes by itself); the
            remaining chunks then fail, and a later run goes on with them. Each process counts its own.
        max_tokens: In and out, likewise.
        context_window: Tokens that the model takes. A longer document is shown as its outline and what surrounds the
            chunks. Default: what the LLM says.
        max_output_tokens: Tokens per context.
        reuse: Whether a context outlives edits elsewhere in its document (``"chunk"``) or not (``"document"``).
        retry: Ask again about chunks that got no context three times. Otherwise they are left alone until their text,
            the model or the prompt changes.
        fallback_only: Use the contexts in the cache and never call the model.

    Raises:
        SettingError: A value cannot work.
    """

    batch_size: int = 8
    num_workers: int | None = None
    chunk_timeout: float = 5.0
    max_calls: int | None = None
    max_tokens: int | None = None
    context_window: int | None = None
    max_output_tokens: int = 100
    reuse: Reuse = "chunk"
    retry: bool = False
    fallback_only: bool = False

    def __post_init__(self) -> None:
        one_of("reuse", self.reuse, get_args(Reuse))
        amount("chunk_timeout", self.chunk_timeout)
        for name in ("retry", "fallback_only"):
            one_of(name, getattr(self, name), (True, False))
        for name, (least, most) in _WHOLE.items():
            value = getattr(self, name)
            if value is not None or name in ("batch_size", "max_output_tokens"):
                object.__setattr__(self, name, whole(name, value, least=least, most=most))


class CallFailedError(Exception):
    """A model did not answer.

    Attributes:
        reason: Why, in a few words; the same for the same cause.
        fatal: Whether the server seems to be the cause, so that other calls would fare no better.
        transient: Whether it may pass.
        wait: Seconds that the server asks to wait; None where it does not say.
    """

    def __init__(self, reason: str, *, fatal: bool = True, transient: bool = False, wait: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.fatal, self.transient, self.wait = reason, fatal, transient, wait


class ContextOverflowError(CallFailedError):
    """The prompt was longer than the model takes; ``window`` is how long it may be, where the server says it."""

    def __init__(self, window: int | None) -> None:
        super().__init__("context overflow", fatal=False)
        self.window = window


@dataclass(frozen=True, slots=True)
class Answer:
    """The text of an answer, and its costs, waiting and further attempts included.

    Attributes:
        tokens: As its server counted them.
        uncounted: Where it does not count: by LlamaIndex's tokenizer.
    """

    text: str = ""
    tokens: Tokens = field(default_factory=Tokens)
    uncounted: int = 0
    seconds: float = 0.0


async def send(llm: LLM, messages: Sequence[ChatMessage], timeout: float, max_tokens: int) -> Answer:  # noqa: ASYNC109
    """The answer to a request that is sent once, and cancelled after ``timeout`` seconds.

    Raises:
        CallFailedError: There is none.
    """
    takes_limit = llm.class_name().casefold().startswith(_TAKE_MAX_TOKENS)
    limit: dict[str, Any] = {"max_tokens": max_tokens} if takes_limit else {}
    try:
        with anyio.fail_after(timeout):
            if isinstance(llm, CustomLLM) and type(llm).achat is CustomLLM.achat:  # its achat would block
                response = await asyncio.to_thread(llm.chat, messages, **limit)
            else:
                response = await llm.achat(messages, **limit)
        return Answer(response.message.content or "", read_tokens(response))
    except Exception as error:  # each integration has errors of its own
        raise _explained(error) from error


def may_pass(error: BaseException) -> bool:
    """Whether a request may be answered soon, as its server is busy or away and asks to wait no longer."""
    return isinstance(error, CallFailedError) and error.transient and (error.wait or 0.0) <= LONGEST_WAIT


def _explained(error: Exception) -> CallFailedError:
    """An integration's error in our words: a timeout, an HTTP status, no connection, a prompt too long."""
    causes = [error]
    while isinstance(cause := causes[-1].__cause__, Exception):
        causes.append(cause)
    if any(isinstance(cause, AnswerTooLargeError) for cause in causes):
        return CallFailedError("answer too large")
    if any(isinstance(cause, TimeoutError) or "Timeout" in type(cause).__name__ for cause in causes):
        return CallFailedError("timeout")  # it waited long enough already
    response, text = getattr(error, "response", None), str(error)
    codes = (getattr(source, "status_code", None) for source in (error, response))
    # Ollama's client says -1 where there was no answer.
    status = next((code for code in codes if isinstance(code, int) and code >= 100), None)  # noqa: PLR2004
    wait = retry_after(getattr(response, "headers", None) or {})
    if status in (400, 413, 422, None) and _OVERFLOW.search(text):
        window = _WINDOW.search(text)
        return ContextOverflowError(int(window[1] or window[2]) if window else None)
    if status is not None:
        return CallFailedError(f"HTTP {status}", fatal=status != 400, transient=is_busy(status), wait=wait)  # noqa: PLR2004
    if any(isinstance(cause, OSError) or _CONNECTION.search(type(cause).__name__) for cause in causes):
        return CallFailedError("no connection", transient=True, wait=wait)
    return CallFailedError(type(error).__name__, fatal=False)


def read_tokens(response: Any) -> Tokens:
    """The token counts of a LlamaIndex chat response, in OpenAI's, Anthropic's and Ollama's forms."""
    usage = _get(getattr(response, "raw", None), "usage")
    if _get(usage, "input_tokens") is not None:  # Anthropic counts what it read from its cache beside, not among
        cached = _int(usage, "cache_read_input_tokens")
        written = _int(usage, "cache_creation_input_tokens")
        return Tokens(_int(usage, "input_tokens") + cached + written, cached, _int(usage, "output_tokens"))
    cached = _int(_get(usage, "prompt_tokens_details"), "cached_tokens")
    return Tokens(_int(usage, "prompt_tokens"), cached, _int(usage, "completion_tokens"))


def _get(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, dict) else getattr(source, name, None)


def _int(source: Any, name: str) -> int:
    value = _get(source, name)
    return value if isinstance(value, int) else 0


class CircuitBreaker:
    """Whether a model's server is there: known from a probe before a run, and from how its calls end.

    One serves all runs of a generator, because an index asks for contexts file by file. A server that has failed
    several calls in a row is not called for a while, so that a dead server costs seconds and not hours.
    """

    def __init__(self) -> None:
        self._reason: str | None = None  # why the server cannot be used
        self._until = float("-inf")  # when what is known becomes too old
        self._failures = 0

    def why_not(self, probe: Callable[[], str | None]) -> str | None:
        """Why a run need not begin, or None; ``probe`` may block."""
        if time.monotonic() >= self._until:
            self._failures = 0
            self._believe(reason := probe(), _BELIEVED_ALIVE if reason is None else _BELIEVED_ABSENT)
        return self._reason

    def allows_call(self) -> bool:
        """Whether a call may be sent now. After the pause one call is sent as a trial."""
        if self._failures < _FAILURES:
            return True
        if time.monotonic() < self._until:
            return False
        self._believe(NO_ANSWER, _PAUSE)  # other calls wait for how this one ends
        return True

    def call_ended(self, *, failed: bool) -> None:
        """Note how a call ended; ``failed`` means that the server seems to be the cause."""
        self._failures = self._failures + 1 if failed else 0
        if self._failures >= _FAILURES:
            self._believe(NO_ANSWER, _PAUSE)
        elif not failed:
            self._believe(None, _BELIEVED_ALIVE)

    def _believe(self, reason: str | None, seconds: float) -> None:
        self._reason, self._until = reason, time.monotonic() + seconds


class RunRecord:
    """Progress and costs of one run.

    Args:
        source: The generator's name.
        usage: Of all runs of the generator.
        progress: Called whenever chunks are done.
        most: Calls and tokens at most, over all runs; None for no limit.

    Attributes:
        failed: Chunks that got no context, by reason.
        may_change: Whether another run asks about some of them again.
    """

    def __init__(
        self, source: str, usage: ContextUsage, progress: Progress | None, most: tuple[int | None, int | None]
    ) -> None:
        self._source, self._usage, self._progress = source, usage, progress
        self._max_calls, self._max_tokens = most
        self.failed: Counter[str] = Counter()
        self.may_change = False
        self._done = self._total = self._cached = 0
        self._reserved = 0  # tokens of the prompts that are being read

    def start(self, *, chunks: int, cached: int) -> None:
        """Note that a run begins, and how many of its chunks have a context in the cache."""
        self._total, self._cached = chunks, cached
        self._usage.chunks += chunks
        self._usage.from_cache += cached
        self.done(0)

    def done(self, chunks: int) -> None:
        """Note that so many more chunks are done, with a context or without."""
        self._done += chunks
        if self._progress is not None:
            done = self._done + self._cached
            self._progress(ContextProgress(done, self._total, self._cached, self.failed.total()))

    def fail(self, reason: str, chunks: int, *, again: bool = True) -> None:
        """Note that chunks got no context; ``again`` means that the next run asks about them."""
        self.failed[reason] += chunks
        self._usage.failed[reason] += chunks
        self.may_change |= again
        self.done(chunks)

    @contextlib.contextmanager
    def request(self, prompt_tokens: int) -> Iterator[None]:
        """Count a request; its prompt counts against the limit until its server says how long it was.

        Raises:
            CallFailedError: Calls or tokens are used up, those of requests under way included.
        """
        usage = self._usage
        if not self._may_call():
            raise CallFailedError(f"max_calls={self._max_calls} reached", fatal=False)
        tokens = usage.tokens.prompt + usage.tokens.completion + usage.uncounted + self._reserved + prompt_tokens
        if self._max_tokens is not None and tokens > self._max_tokens:
            raise CallFailedError(f"max_tokens={self._max_tokens} reached", fatal=False)
        usage.calls += 1
        self._reserved += prompt_tokens
        try:
            yield
        finally:
            self._reserved -= prompt_tokens

    def another_attempt(self) -> bool:
        """Count one more attempt at a request that failed; False where the limit does not cover it."""
        is_allowed = self._may_call()
        self._usage.calls += is_allowed
        self._usage.retries += is_allowed
        return is_allowed

    def _may_call(self) -> bool:
        return self._max_calls is None or self._usage.calls < self._max_calls

    def call(self, document: SourceDocument, chunks: int, answer: Answer, accepted: int = 0, error: str = "") -> None:
        """Count and report the costs of a call, and how many contexts its answer gave or why there was no answer."""
        usage, tokens = self._usage, answer.tokens
        usage.generated += accepted
        usage.tokens += tokens
        usage.uncounted += answer.uncounted
        usage.seconds += answer.seconds
        counts = {"chunks": chunks, "accepted": accepted, "seconds": answer.seconds, "error": error}
        counts |= {f"{kind}_tokens": getattr(tokens, kind) for kind in ("prompt", "cached", "completion")}
        dispatcher.event(ContextCallEvent(source=self._source, document=document.path or document.id, **counts))
