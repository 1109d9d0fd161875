"""HTTP clients for model servers.

Answers are limited in size and time, and requests are not redirected to other servers.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from math import ceil
from typing import Any
from urllib.parse import urlsplit

import httpx
import tenacity

from llama_index_contextual.utils.errors import (
    ContextualError,
    SettingError,
    is_temporary,
    pause,
)

ANSWER_BYTES = 10_000_000  # of an answer
VECTOR_BYTES = 100_000_000  # of an answer with vectors
ATTEMPTS = tenacity.Retrying(
    stop=tenacity.stop_after_attempt(4),
    retry=tenacity.retry_if_exception(is_temporary),
    wait=pause,
    reraise=True,
)
_CONNECT_SECONDS = 10.0
_ANSWER_PER_SILENCE = 10  # a slow answer may take ten times the silence in total
_SHOWN = 200  # characters of an answer that an error shows
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


class AnswerTooLargeError(httpx.TransportError):
    """Raised for an answer that exceeds its limit, or that is compressed without a request."""


class RedirectError(httpx.TransportError):
    """Raised for a redirect, which would send the user's texts to another server."""


class _SecondsLeft:
    """The timeout of the next piece of an answer, computed each time it is read.

    Headers that arrive byte by byte, and endless interim answers, have no other limit. httpx passes
    this object to a socket, which converts it to an integer, and to an event loop, which adds it to
    its time.

    Args:
        host: The name of the server.
        silence: The seconds that one piece may take.
        total: The seconds that the whole answer may take.
    """

    def __init__(self, host: str, silence: float, total: float) -> None:
        self._host = host
        self._silence = ceil(silence)
        self._total = total
        self._end = time.monotonic() + total

    def __index__(self) -> int:
        if time.monotonic() > self._end:
            message = f"{self._host} did not complete its answer within {self._total:g} seconds"
            raise httpx.ReadTimeout(message)
        return self._silence

    def __radd__(self, now: float) -> float:
        return now + self.__index__()


class _BoundedStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body of an answer. Reading it fails beyond a number of bytes."""

    def __init__(self, response: httpx.Response, max_bytes: int) -> None:
        self._stream: Any = response.stream
        self._host = response.request.url.host
        self._max_bytes = max_bytes
        self._bytes_left = max_bytes

    def _bounded(self, piece: bytes) -> bytes:
        self._bytes_left -= len(piece)
        if self._bytes_left < 0:
            message = f"{self._host} answered with more than {self._max_bytes:,} bytes"
            raise AnswerTooLargeError(message)
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


class _Awaitable:
    """The result of an event hook, which an asynchronous client awaits and others ignore."""

    def __await__(self) -> Iterator[None]:
        return iter(())


def client_options(timeout: float, max_bytes: int = ANSWER_BYTES, url: str = "") -> dict[str, Any]:
    """Return keyword arguments for an ``httpx.Client`` or ``AsyncClient`` of a model server.

    Redirects are not followed, and requests to this machine use no proxy.

    Args:
        timeout: Seconds without a piece of the answer after which a request fails. The whole
            answer may take ten times as long.
        max_bytes: The largest size of an answer.
        url: The address of the server, if it is known.
    """

    def bound_time(request: httpx.Request) -> _Awaitable:
        seconds = _SecondsLeft(request.url.host, timeout, timeout * _ANSWER_PER_SILENCE)
        request.extensions["timeout"] |= {"read": seconds, "write": seconds}
        return _Awaitable()

    def check_answer(response: httpx.Response) -> _Awaitable:
        host = response.request.url.host
        if response.has_redirect_location:
            target = response.headers["Location"][:_SHOWN]
            message = (
                f"{host} redirects to {target!r}, which is not followed. Use the final address"
            )
            raise RedirectError(message)
        # A few compressed bytes may become gigabytes.
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise AnswerTooLargeError(f"{host} compressed its answer, which was not requested")
        response.stream = _BoundedStream(response, max_bytes)
        return _Awaitable()

    return {
        "timeout": httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
        "headers": {"Accept-Encoding": "identity"},
        "event_hooks": {"request": [bound_time], "response": [check_answer]},
        "follow_redirects": False,
        "mounts": {f"all://{host}": None for host in _hosts_without_proxy(url)},
    }


def _hosts_without_proxy(url: str) -> list[str]:
    """Return the names of this machine, and the host of the URL if it is this machine."""
    hosts = [*_LOOPBACK_NAMES]
    host = urlsplit(url).hostname or ""
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host.endswith(".localhost")
    if is_loopback:
        hosts.append(f"[{host}]" if ":" in host else host)
    return list(dict.fromkeys(hosts))


@contextmanager
def making_client() -> Iterator[None]:
    """Raise a SettingError if a client cannot be created, for example because of a proxy."""
    try:
        yield
    except (ValueError, ImportError, httpx.InvalidURL) as error:
        if isinstance(error, ContextualError | ModuleNotFoundError):
            raise
        raise SettingError(
            f"Cannot connect to a model server ({error}). Check its address, and HTTP_PROXY, "
            "HTTPS_PROXY, ALL_PROXY and NO_PROXY in the environment."
        ) from error


def http_clients(timeout: float, max_bytes: int = ANSWER_BYTES, url: str = "") -> dict[str, Any]:
    """Return clients with these limits, as keyword arguments for OpenAI's library."""
    options = client_options(timeout, max_bytes, url)
    with making_client():
        return {
            "http_client": httpx.Client(**options),
            "async_http_client": httpx.AsyncClient(**options),
        }
