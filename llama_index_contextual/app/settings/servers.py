"""HTTP to the servers of models: answers of bounded size and time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from operator import itemgetter
from typing import Any, Final

import httpx
import tenacity

from llama_index_contextual.utils.errors import (
    ContextualError,
    EmbeddingError,
    SettingError,
    may_pass,
    pause,
)

ANSWER_BYTES: Final = 10_000_000  # of an answer
VECTOR_BYTES: Final = 100_000_000  # of an answer with vectors
_STOP, _RETRY = tenacity.stop_after_attempt(4), tenacity.retry_if_exception(may_pass)  # three waits
ATTEMPTS: Final = tenacity.Retrying(stop=_STOP, retry=_RETRY, wait=pause, reraise=True)
_CONNECT_SECONDS: Final = 10.0
_LONGEST_ANSWER: Final = 10  # times the seconds of silence, so that an answer in drops ends too
_SHOWN: Final = 200  # characters of an answer that an error shows


class AnswerTooLargeError(httpx.TransportError):
    """An answer larger than its bound, or packed although that was not asked for."""


class _SecondsLeft:
    """How long the next piece of an answer may take, until all of the time is over: asked for before each piece.

    Headers in drops and interim answers without an end have no other bound. A socket takes it as a whole number of
    seconds, and an event loop adds it to its time.

    Args:
        host: It answers.
        silence: Seconds that a piece may take.
        most: Seconds that all of the answer may take.
    """

    def __init__(self, host: str, silence: float, most: float) -> None:
        self._host, self._silence, self._most, self._end = (
            host,
            ceil(silence),
            most,
            time.monotonic() + most,
        )

    def __index__(self) -> int:
        if time.monotonic() > self._end:
            raise httpx.ReadTimeout(
                f"{self._host} has not ended its answer within {self._most:g} seconds"
            )
        return self._silence

    def __radd__(self, now: float) -> float:
        return now + self.__index__()


class _BoundedStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body of an answer, which ends at its bound of bytes."""

    def __init__(self, response: httpx.Response, most_bytes: int) -> None:
        self._stream: Any = response.stream
        self._host, self._most, self._left = response.request.url.host, most_bytes, most_bytes
        if (
            response.headers.get("Content-Encoding", "identity") != "identity"
        ):  # a few bytes may become gigabytes
            raise AnswerTooLargeError(f"{self._host} packs its answer, which was not asked for")

    def _bounded(self, piece: bytes) -> bytes:
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


class _Done:
    """What a hook returns that a client calls, and an asynchronous client awaits."""

    def __await__(self) -> Iterator[None]:
        return iter(())


def client_options(timeout: float, most_bytes: int = ANSWER_BYTES) -> Any:
    """Keyword arguments of an ``httpx.Client``, and of an ``AsyncClient``, whose answers are bounded.

    Args:
        timeout: Seconds of silence, after which an answer is given up. All of it, in drops, may take ten times as long.
        most_bytes: Of an answer.
    """

    def bound_time(request: httpx.Request) -> _Done:
        left = _SecondsLeft(request.url.host, timeout, timeout * _LONGEST_ANSWER)
        request.extensions["timeout"] |= {"read": left, "write": left}
        return _Done()

    def bound_size(response: httpx.Response) -> _Done:
        response.stream = _BoundedStream(response, most_bytes)
        return _Done()

    return {
        "timeout": httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
        "headers": {"Accept-Encoding": "identity"},
        "event_hooks": {"request": [bound_time], "response": [bound_size]},
    }


@contextmanager
def making_client() -> Iterator[None]:
    """Raise a SettingError where no client can be made: of proxies in the environment that are none, or of SOCKS."""
    try:
        yield
    except (ValueError, ImportError, httpx.InvalidURL) as error:
        if isinstance(error, ContextualError | ModuleNotFoundError):
            raise
        cure = "Cure: correct the address, or HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY in the environment."
        raise SettingError(
            f"no client of a model's server can be made ({error}). {cure}"
        ) from error


def http_clients(timeout: float, most_bytes: int = ANSWER_BYTES) -> dict[str, Any]:
    """The bounded clients of OpenAI's library, as keyword arguments."""
    limits = client_options(timeout, most_bytes)
    with making_client():
        return {
            "http_client": httpx.Client(**limits),
            "async_http_client": httpx.AsyncClient(**limits),
        }


def vectors_from(
    url: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout: float
) -> list[list[float]]:
    """The vectors in the answer to a POST, which is sent up to four times while the server is busy or away.

    Args:
        url: The address.
        body: What is sent.
        headers: More headers, such as a key.
        timeout: Seconds of silence, after which the server is given up.

    Raises:
        EmbeddingError: The server refuses, failed each time, or answers something else.
    """
    with making_client():
        client = httpx.Client(**client_options(timeout, VECTOR_BYTES))

    def attempt() -> list[list[float]]:
        answer = client.post(url, json=body, headers=headers)
        if answer.is_error:
            reason = f"HTTP {answer.status_code} {answer.text[:_SHOWN]!r}"
            raise httpx.HTTPStatusError(reason, request=answer.request, response=answer)
        try:
            items = answer.json()["data"]
            items = items[0].get("data", items)  # Voyage's has a list for each document
            return [
                [*map(float, item["embedding"])] for item in sorted(items, key=itemgetter("index"))
            ]
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ValueError(f"no vectors are in its answer {answer.text[:_SHOWN]!r}") from error

    try:
        with client:
            return ATTEMPTS.copy()(attempt)
    except (httpx.HTTPError, ValueError) as error:
        reason = (
            f"{type(error).__name__}: {error}"
            if isinstance(error, httpx.TransportError)
            else str(error)
        )
        cure = "see that key, model, settings and server are right, or try again later"
        raise EmbeddingError(f"{url} failed: {reason}. Cure: {cure}.") from error
