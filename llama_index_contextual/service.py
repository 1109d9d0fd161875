"""HTTP to the servers of models: answers of bounded size and time, and waits while a server is busy."""

from __future__ import annotations

import math
import time
import zlib
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import httpx
import tenacity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

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
_BACKOFF: Final = tenacity.wait_random_exponential(multiplier=1, max=LONGEST_WAIT)


class AnswerTooLargeError(httpx.TransportError):
    """An answer larger than its bound, or packed in a way that was not asked for."""


class _Bound:
    """Unpacks an answer piece by piece, and ends it at its bounds of bytes and of time."""

    def __init__(self, response: httpx.Response, most_bytes: int, seconds: float) -> None:
        self._host, self._most, self._left = response.request.url.host, most_bytes, most_bytes
        self._seconds, self._end = seconds, time.monotonic() + seconds
        encoding = response.headers.pop("Content-Encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip", "deflate", ""):
            raise AnswerTooLargeError(f"{self._host} packs its answer as {encoding[:20]!r}, which was not asked for")
        self._unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32) if encoding in ("gzip", "deflate") else None

    def __call__(self, piece: bytes) -> bytes:
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


class _SyncStream(httpx.SyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream, bound: _Bound) -> None:
        self._stream, self._bound = stream, bound

    def __iter__(self) -> Iterator[bytes]:
        return map(self._bound, self._stream)

    def close(self) -> None:
        self._stream.close()


class _AsyncStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, bound: _Bound) -> None:
        self._stream, self._bound = stream, bound

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            yield self._bound(piece)

    async def aclose(self) -> None:
        await self._stream.aclose()


def client_options(
    seconds: float = TIMEOUT, most_bytes: int = ANSWER_BYTES, *, total: float | None = None, is_async: bool = False
) -> Any:
    """Keyword arguments of an ``httpx.Client`` (or ``AsyncClient``) whose answers are bounded.

    Args:
        seconds: Of silence, after which an answer is given up.
        most_bytes: Of an answer, unpacked.
        total: Seconds of a whole answer, which may come in drops. Default: ten times the seconds of silence.
        is_async: Whether they are for an ``AsyncClient``.
    """

    def bound(response: httpx.Response) -> None:
        bound = _Bound(response, most_bytes, total or seconds * _LONGEST_ANSWER)
        stream = response.stream
        if isinstance(stream, httpx.AsyncByteStream) and is_async:
            response.stream = _AsyncStream(stream, bound)
        elif isinstance(stream, httpx.SyncByteStream):
            response.stream = _SyncStream(stream, bound)

    async def abound(response: httpx.Response) -> None:
        bound(response)

    return {
        "timeout": httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS)),
        "headers": {"Accept-Encoding": "gzip"},
        "event_hooks": {"response": [abound if is_async else bound]},
    }


class _BusyError(Exception):
    """The server may answer later; ``wait`` is the seconds that it asks for."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


def post(
    url: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    *,
    failure: type[ContextualError],
    seconds: float = TIMEOUT,
    most_bytes: int = ANSWER_BYTES,
) -> Any:
    """The JSON of an answer to a POST; it is sent up to four times while the server is busy, away or out of order.

    Args:
        url: The address.
        body: What is sent.
        headers: More headers, such as a key.
        failure: The class of the error.
        seconds: Of silence, after which an attempt is given up.
        most_bytes: Of the answer.

    Raises:
        ContextualError: Of the class ``failure``: the server refuses, or failed each time.
    """
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        retry=tenacity.retry_if_exception_type(_BusyError),
        wait=pause,
        reraise=True,
    )
    try:
        with httpx.Client(**client_options(seconds, most_bytes)) as client:
            return retrying(_post_once, client, url, body, headers, failure)
    except _BusyError as error:
        raise failure(f"{url} failed {ATTEMPTS} times: {error}. Cure: try again later.") from error


def _post_once(
    client: httpx.Client,
    url: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None,
    failure: type[ContextualError],
) -> Any:
    try:
        answer = client.post(url, json=body, headers=headers)
    except (AnswerTooLargeError, httpx.TimeoutException) as error:  # another attempt would take as much
        raise failure(f"{url} failed: {error or type(error).__name__}. Cure: see to the server.") from error
    except (httpx.TransportError, httpx.DecodingError) as error:
        raise _BusyError(f"{type(error).__name__}: {error}") from error
    if is_busy(answer.status_code):
        raise _BusyError(f"HTTP {answer.status_code} {answer.text[:_SHOWN]!r}", retry_after(answer.headers))
    if answer.is_error:
        raise failure(
            f"{url} refused the request: HTTP {answer.status_code} {answer.text[:_SHOWN]!r}. "
            "Cure: see that key, model and settings are right."
        )
    try:
        return answer.json()
    except (ValueError, RecursionError) as error:  # an answer cut short, a proxy's page, brackets without an end
        raise _BusyError(f"the answer is no JSON ({type(error).__name__}: {error})") from error


def is_busy(status: int) -> bool:
    """Whether a server that answers with this HTTP status may answer otherwise later."""
    return status in (408, 409, 425, 429) or (status >= 500 and status != _NOT_OFFERED)  # noqa: PLR2004


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds of a ``Retry-After`` header, a number or a date; None where there is none."""
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
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    wait = getattr(error, "wait", None) or retry_after(headers)
    return min(_BACKOFF(state) if wait is None else float(wait), LONGEST_WAIT)
