"""HTTP to the servers of models: answers of bounded size and time, and waits while a server is busy."""

from __future__ import annotations

import re
import time
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any, Final

import httpx
import tenacity

from llama_index_contextual.errors import EmbeddingError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

TIMEOUT: Final = 60.0  # seconds that a server may be silent, where no setting says otherwise
ANSWER_BYTES: Final = 10_000_000  # of an answer
VECTOR_BYTES: Final = 100_000_000  # of an answer with vectors
LONGEST_WAIT: Final = 60.0  # seconds before the next attempt, whatever a server asks for
ATTEMPTS: Final = 4  # three waits
_CONNECT_SECONDS: Final = 10.0
_LONGEST_ANSWER: Final = 10  # times the seconds of silence, so that an answer in drops ends too
_NOT_OFFERED: Final = 501  # what llama.cpp answers where it was not started for this
_SHOWN: Final = 200  # characters of an answer that an error shows, or of an error without a known reason
ABOUT_PROMPT: Final = (400, 413, 422)  # statuses of a request that the server will refuse again
_CURES: Final = {
    **dict.fromkeys((401, 403), "the API key"),
    404: "the name of the model, or the address of its server",
    429: "fewer num_workers, or later",
}
_OVERFLOW: Final = re.compile(
    r"exceed_context_size|context_length_exceeded|maximum context length|context (?:window|size|length)"
    r"|prompt is too long|too many tokens|input length",
    re.IGNORECASE,
)
_PASSING: Final = (
    httpx.TransportError,
    httpx.DecodingError,
    OSError,
    JSONDecodeError,
    UnicodeDecodeError,
    RecursionError,
)
_BACKOFF: Final = tenacity.wait_random_exponential(multiplier=1, max=LONGEST_WAIT)


class AnswerTooLargeError(httpx.TransportError):
    """An answer larger than its bound, or packed although that was not asked for."""


class _BoundedStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body of an answer, which ends at its bounds of bytes and of time."""

    def __init__(self, response: httpx.Response, most_bytes: int, seconds: float) -> None:
        self._stream: Any = response.stream
        self._host, self._most, self._left = response.request.url.host, most_bytes, most_bytes
        self._seconds, self._end = seconds, time.monotonic() + seconds
        if response.headers.get("Content-Encoding", "identity") != "identity":  # a few bytes may become gigabytes
            raise AnswerTooLargeError(f"{self._host} packs its answer, which was not asked for")

    def _bounded(self, piece: bytes) -> bytes:
        if time.monotonic() > self._end:
            raise httpx.ReadTimeout(f"{self._host} has not ended its answer within {self._seconds:g} seconds")
        self._left -= len(piece)
        if self._left < 0:
            raise AnswerTooLargeError(f"{self._host} answers with more than {self._most:,} bytes")
        return piece

    def __iter__(self) -> Iterator[bytes]:
        return map(self._bounded, self._stream)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            yield self._bounded(piece)

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()


def client_options(timeout: float = TIMEOUT, most_bytes: int = ANSWER_BYTES, *, is_async: bool = False) -> Any:
    """Keyword arguments of an ``httpx.Client`` (or ``AsyncClient``) whose answers are bounded.

    Args:
        timeout: Seconds of silence, after which an answer is given up. All of it, in drops, may take ten times as long.
        most_bytes: Of an answer.
        is_async: Whether they are for an ``AsyncClient``.
    """

    def bound(response: httpx.Response) -> None:
        response.stream = _BoundedStream(response, most_bytes, timeout * _LONGEST_ANSWER)

    async def abound(response: httpx.Response) -> None:
        bound(response)

    return {
        "timeout": httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
        "headers": {"Accept-Encoding": "identity"},
        "event_hooks": {"response": [abound if is_async else bound]},
    }


def vectors_from(url: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout: float) -> Any:
    """The JSON of an answer with vectors to a POST, which is sent up to four times while the server is busy or away.

    Args:
        url: The address.
        body: What is sent.
        headers: More headers, such as a key.
        timeout: Seconds of silence, after which the server is given up.

    Raises:
        EmbeddingError: The server refuses, or failed each time.
    """
    stop, retry = tenacity.stop_after_attempt(ATTEMPTS), tenacity.retry_if_exception(may_pass)

    def attempt() -> Any:
        answer = client.post(url, json=body, headers=headers)
        if answer.is_error:
            reason = f"HTTP {answer.status_code} {answer.text[:_SHOWN]!r}"
            raise httpx.HTTPStatusError(reason, request=answer.request, response=answer)
        return answer.json()

    try:
        with httpx.Client(**client_options(timeout, VECTOR_BYTES)) as client:
            return tenacity.Retrying(stop=stop, retry=retry, wait=pause, reraise=True)(attempt)
    except (httpx.HTTPError, ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, httpx.HTTPStatusError) else f"{type(error).__name__}: {error}"
        cure = "see that key, model, settings and server are right, or try again later"
        raise EmbeddingError(f"{url} failed: {reason}. Cure: {cure}.") from error


def _any_cause(error: BaseException, holds: Callable[[BaseException], bool]) -> bool:
    """Whether something is true of a client's error, or of one that it was raised from."""
    return holds(error) or (error.__cause__ is not None and _any_cause(error.__cause__, holds))


def is_too_large(error: BaseException) -> bool:
    """Whether an answer exceeded its bound."""
    return _any_cause(error, lambda cause: isinstance(cause, AnswerTooLargeError))


def is_timeout(error: BaseException) -> bool:
    """Whether a client gave up a server: another attempt would take as much."""
    return _any_cause(error, lambda one: isinstance(one, TimeoutError) or "Timeout" in type(one).__name__)


def status_of(error: BaseException) -> int | None:
    """The HTTP status in an error of a client; None where there was no answer."""
    codes = (getattr(source, "status_code", None) for source in (error, getattr(error, "response", None)))
    # Ollama's client says -1 where there was no answer.
    return next((code for code in codes if isinstance(code, int) and code >= 100), None)  # noqa: PLR2004


def may_pass(error: BaseException) -> bool:
    """Whether a request that failed may succeed soon: its server is busy, away, or answered what is no JSON."""
    status = status_of(error)
    if status is not None:
        is_busy = status in (408, 409, 425, 429) or (status >= 500 and status != _NOT_OFFERED)  # noqa: PLR2004
        return is_busy and (retry_after(error) or 0) <= LONGEST_WAIT
    if is_timeout(error) or is_too_large(error):
        return False
    return _any_cause(error, lambda cause: isinstance(cause, _PASSING))


def retry_after(error: BaseException | None) -> float | None:
    """The seconds that a server asks to wait in a ``Retry-After`` header; None where it does not."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    value = headers.get("retry-after", "")
    return float(value) if value.isdecimal() else None


def pause(state: tenacity.RetryCallState) -> float:
    """Seconds before tenacity's next attempt: as the server asks, else exponentially more with jitter."""
    wait = retry_after(state.outcome.exception() if state.outcome else None)
    return _BACKOFF(state) if wait is None else wait


def reason_of(error: Exception) -> str:
    """Why a model did not answer, in the same few words for the same cause: a status, a timeout, a prompt too long."""
    status = status_of(error)
    if is_too_large(error):
        return "answer too large"
    if is_timeout(error):
        return "timeout (cure: a longer timeout, or a smaller batch_size)"
    if status in (*ABOUT_PROMPT, None) and _OVERFLOW.search(str(error)):
        return "prompt too long (cure: the model's context_window)"
    if status:
        return f"HTTP {status}" + (f" (cure: {_CURES[status]})" if status in _CURES else "")
    if may_pass(error):
        return "no connection (cure: start the server, or correct its address)"
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:_SHOWN]}"
