"""HTTP to the servers of models: answers of bounded size and time, and waits while a server is busy."""

from __future__ import annotations

import math
import time
import zlib
from email.utils import parsedate_to_datetime
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any, Final

import httpx
import tenacity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from llama_index_contextual.errors import ContextualError

TIMEOUT: Final = 60.0  # seconds that a server may be silent, where no setting says otherwise
ANSWER_BYTES: Final = 10_000_000  # of an answer, unpacked
VECTOR_BYTES: Final = 100_000_000  # of an answer with vectors
LONGEST_WAIT: Final = 60.0  # seconds before the next attempt, whatever a server asks for
ATTEMPTS: Final = 4  # three waits
_CONNECT_SECONDS: Final = 10.0
_LONGEST_ANSWER: Final = 10  # times the seconds of silence, so that an answer in drops ends too
_NOT_OFFERED: Final = 501  # what llama.cpp answers where it was not started for this
_SHOWN: Final = 200  # characters of an answer that an error shows
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
    """An answer larger than its bound, or packed in a way that was not asked for."""


class _BoundedStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body of an answer, unpacked piece by piece, which ends at its bounds of bytes and of time."""

    def __init__(self, response: httpx.Response, most_bytes: int, seconds: float) -> None:
        self._stream: Any = response.stream
        self._host, self._most, self._left = response.request.url.host, most_bytes, most_bytes
        self._seconds, self._end = seconds, time.monotonic() + seconds
        encoding = response.headers.pop("Content-Encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip", "deflate", ""):
            raise AnswerTooLargeError(f"{self._host} packs its answer as {encoding[:20]!r}, which was not asked for")
        self._unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32) if encoding in ("gzip", "deflate") else None

    def _bounded(self, piece: bytes) -> bytes:
        if time.monotonic() > self._end:
            raise httpx.ReadTimeout(f"{self._host} has not ended its answer within {self._seconds:g} seconds")
        if self._unpacker is not None:
            try:
                piece = self._unpacker.decompress(piece, self._left + 1)
            except zlib.error as error:
                raise httpx.DecodingError(f"{self._host} packs its answer wrongly ({error})") from error
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


def client_options(
    timeout: float = TIMEOUT, most_bytes: int = ANSWER_BYTES, *, total: float | None = None, is_async: bool = False
) -> Any:
    """Keyword arguments of an ``httpx.Client`` (or ``AsyncClient``) whose answers are bounded.

    Args:
        timeout: Seconds of silence, after which an answer is given up.
        most_bytes: Of an answer, unpacked.
        total: Seconds of a whole answer, which may come in drops. Default: ten times the seconds of silence.
        is_async: Whether they are for an ``AsyncClient``.
    """

    def bound(response: httpx.Response) -> None:
        response.stream = _BoundedStream(response, most_bytes, total or timeout * _LONGEST_ANSWER)

    async def abound(response: httpx.Response) -> None:
        bound(response)

    return {
        "timeout": httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
        "headers": {"Accept-Encoding": "gzip"},
        "event_hooks": {"response": [abound if is_async else bound]},
    }


def post(
    url: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    *,
    failure: type[ContextualError],
    timeout: float = TIMEOUT,
    most_bytes: int = ANSWER_BYTES,
) -> Any:
    """The JSON of an answer to a POST; it is sent up to four times while the server is busy, away or out of order.

    Args:
        url: The address.
        body: What is sent.
        headers: More headers, such as a key.
        failure: The class of the error.
        timeout: Seconds of silence, after which the server is given up.
        most_bytes: Of the answer.

    Raises:
        ContextualError: Of the class ``failure``: the server refuses, or failed each time.
    """
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        retry=tenacity.retry_if_exception(may_pass),
        wait=pause,
        reraise=True,
    )

    def attempt() -> Any:
        answer = client.post(url, json=body, headers=headers)
        if answer.is_error:
            reason = f"HTTP {answer.status_code} {answer.text[:_SHOWN]!r}"
            raise httpx.HTTPStatusError(reason, request=answer.request, response=answer)
        return answer.json()

    try:
        with httpx.Client(**client_options(timeout, most_bytes)) as client:
            return retrying(attempt)
    except (httpx.HTTPError, ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, httpx.HTTPStatusError) else f"{type(error).__name__}: {error}"
        if may_pass(error):
            raise failure(f"{url} failed {ATTEMPTS} times: {reason}. Cure: try again later.") from error
        cure = "see that key, model and settings are right" if status_of(error) else "see to the server"
        raise failure(f"{url} failed: {reason}. Cure: {cure}.") from error


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
        return status in (408, 409, 425, 429) or (status >= 500 and status != _NOT_OFFERED)  # noqa: PLR2004
    if is_timeout(error) or is_too_large(error):
        return False
    return _any_cause(error, lambda cause: isinstance(cause, _PASSING))


def retry_after(error: BaseException | None) -> float | None:
    """The seconds that a server asks to wait in a ``Retry-After`` header; None where it does not."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    value = headers.get("retry-after") or ""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
        except (TypeError, ValueError):
            return None
    return seconds if 0 <= seconds < math.inf else None


def pause(state: tenacity.RetryCallState) -> float:
    """Seconds before tenacity's next attempt: as the server asks, else exponentially more with jitter."""
    error = state.outcome.exception() if state.outcome else None
    wait = getattr(error, "wait", None) or retry_after(error)
    return min(_BACKOFF(state) if wait is None else float(wait), LONGEST_WAIT)
