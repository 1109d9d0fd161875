"""One request to a model: timed, tried again where that helps, and not sent at all where nobody will answer."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from tenacity import AsyncRetrying, retry_if_exception
from tenacity.wait import wait_exponential, wait_random

from llama_index_contextual.context import models
from llama_index_contextual.context.usage import Tokens, read_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.llms import LLM, ChatMessage
    from tenacity import RetryCallState

TRANSIENT: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_CONNECTION: Final = re.compile(r"connect|network|protocol|remote|transport|RateLimit|Decode", re.IGNORECASE)
_OVERFLOW: Final = re.compile(
    r"exceed_context_size|context_length_exceeded|maximum context length|context (?:window|size|length)"
    r"|prompt is too long|too many tokens|input length",
    re.IGNORECASE,
)
_WINDOW: Final = re.compile(r"n_ctx['\"]?\s*[:=]\s*(\d+)|maximum context length (?:is|of) (\d+)", re.IGNORECASE)


class CallFailedError(Exception):
    """A model did not answer; ``reason`` says in a few words why, and is the same for the same cause."""

    def __init__(self, reason: str, *, fatal: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.fatal = fatal
        """Whether the server seems to be the cause, so that other calls would fare no better."""


class ContextOverflowError(CallFailedError):
    """The prompt was longer than the model takes; ``window`` is how long it may be, where the server says it."""

    def __init__(self, window: int | None) -> None:
        super().__init__("context overflow", fatal=False)
        self.window = window


class CircuitBreaker:
    """Keeps calls from a server that does not answer, so that a dead one costs seconds and not hours.

    Args:
        threshold: So many failures in a row open it.
        cooldown: Seconds after which it lets one call through again, to see.
        clock: Where the time comes from.
    """

    def __init__(self, threshold: int, cooldown: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.threshold, self.cooldown, self._clock = threshold, cooldown, clock
        self._failures = 0
        self._opened = 0.0

    def allows(self) -> bool:
        """Whether a call may be sent now."""
        if self._failures < self.threshold:
            return True
        if self._clock() - self._opened < self.cooldown:
            return False
        self._opened = self._clock()  # the next one waits for what this one finds
        return True

    def record(self, *, failed: bool) -> None:
        """Count how a call ended."""
        self._failures = self._failures + 1 if failed else 0
        if failed:
            self._opened = self._clock()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said, and what that took."""

    text: str
    tokens: Tokens
    seconds: float


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, and how often to try.

    Attributes:
        attempts: How often a request is sent at most; 1 where the LLM's client tries again by itself.
        wait: Seconds before the second attempt; it doubles, and is blurred.
        max_wait: Longest wait, and the longest ``Retry-After`` that is honoured: with a longer one a call fails.
    """

    attempts: int = 3
    wait: float = 0.5
    max_wait: float = 60.0


async def ask(
    llm: LLM,
    messages: Sequence[ChatMessage],
    *,
    timeout: float,
    max_tokens: int,
    patience: Patience,
    another: Callable[[], bool] = lambda: True,
) -> Answer:
    """Send a request, again after an error that may pass; a request that takes too long is cancelled.

    Args:
        llm: The model.
        messages: The prompt.
        timeout: Seconds that an attempt may take.
        max_tokens: Tokens that the model may write.
        patience: How often, and after which waits.
        another: Asked before each attempt but the first whether it may be made.

    Raises:
        CallFailedError: It never was answered.
    """
    attempts = 1 if models.retries_by_itself(llm) else patience.attempts
    started = time.monotonic()
    retrying = AsyncRetrying(
        stop=lambda state: state.attempt_number >= attempts or not another(),
        wait=_Wait(patience),
        retry=retry_if_exception(lambda error: _is_transient(error, patience)),
        reraise=True,
    )
    try:
        async for attempt in retrying:
            with attempt:
                response = await asyncio.wait_for(models.chat(llm, messages, max_tokens), timeout)
                text = response.message.content or ""
                return Answer(text, read_tokens(response), time.monotonic() - started)
    except Exception as error:  # each integration has errors of its own
        raise _explained(error) from error
    raise AssertionError("tenacity gives a result or raises")


class _Wait:
    """As long as the server asks for, else exponentially longer with jitter."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        longer = wait_exponential(multiplier=patience.wait, max=patience.max_wait)
        self._backoff = longer + wait_random(0, patience.wait)

    def __call__(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked_for = retry_after(error) if error is not None else None
        return self._backoff(state) if asked_for is None else asked_for


def status_of(error: BaseException) -> int | None:
    """HTTP status behind an integration's error, if any."""
    for source in (error, getattr(error, "response", None)):
        status = getattr(source, "status_code", None)
        if isinstance(status, int) and status >= 100:  # noqa: PLR2004  ollama says -1 where there was no answer
            return status
    return None


def retry_after(error: BaseException) -> float | None:
    """Seconds that a server asked to wait: ``Retry-After`` in either of its forms."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    value = headers.get("retry-after")
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _is_transient(error: BaseException, patience: Patience) -> bool:
    if isinstance(error, TimeoutError | asyncio.TimeoutError):  # waited long enough already
        return False
    if (retry_after(error) or 0.0) > patience.max_wait:
        return False
    status = status_of(error)
    return status in TRANSIENT if status is not None else _is_connection(error)


def _is_connection(error: BaseException) -> bool:
    names = [type(cause).__name__ for cause in _causes(error)]
    return any(_CONNECTION.search(name) for name in names) or isinstance(error, OSError)


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__
    return found


def _explained(error: Exception) -> CallFailedError:
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return CallFailedError("timeout")
    status = status_of(error)
    text = str(error)
    if status in (400, 413, 422, None) and _OVERFLOW.search(text):
        window: Any = _WINDOW.search(text)
        return ContextOverflowError(int(window[1] or window[2]) if window else None)
    if status is not None:
        return CallFailedError(f"HTTP {status}", fatal=status != 400)  # noqa: PLR2004
    if _is_connection(error):
        return CallFailedError("no connection")
    return CallFailedError(type(error).__name__, fatal=False)
