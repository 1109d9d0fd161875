"""A model's connections: one event loop for all of a generator's calls, and the clients that belong to that loop.

An HTTP client keeps connections that belong to the event loop that opened them, and fails or hangs on another one.
So all requests of a generator run on one loop in a thread of its own, with a client that no other loop uses.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import httpx
from llama_index.core import Settings
from llama_index.core.llms import LLM

from llama_index_contextual.context.cache import OBJECT
from llama_index_contextual.context.llm.model import ModelSpec, model_name, without_credentials
from llama_index_contextual.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from concurrent.futures import Future

DEFAULT_MODEL: Final = "ollama:qwen3:0.6b"
# Where integrations keep their asynchronous clients, and what makes another one: OpenAI and Anthropic, Ollama.
_CLIENTS: Final = {"_aclient": "_get_aclient", "_async_client": "async_client"}

T = TypeVar("T")


class Connection:
    """A model that is made when it is first needed, and called on one loop, where its client is closed too.

    A pickled or copied one has a client and a loop of its own.

    Args:
        given: A model's name or object; None takes ``Settings.llm`` where that has been set, else the default.
        api_key: For a model given by name; by default the provider's environment variable.

    Attributes:
        given: As it was given.
        loop: Where requests are sent from.

    Raises:
        SettingError: What is given is no model, or names none.
    """

    def __init__(self, given: str | LLM | None, api_key: str | None) -> None:
        _check(given)
        self.given, self._api_key = given, api_key
        self._llm = with_own_client(given) if isinstance(given, LLM) else None
        self._reset()

    def _reset(self) -> None:
        self._lock, self.loop, self._connected = threading.Lock(), LoopThread(), False

    def __getstate__(self) -> dict[str, Any]:
        # Pickling a LlamaIndex component deletes its clients from the live object: give it a copy to do that to.
        llm = None if self._llm is None or isinstance(self.given, str) else self._llm.model_copy()
        return {"given": llm if isinstance(self.given, LLM) else self.given, "_api_key": self._api_key, "_llm": llm}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def llm(self, window: int | None, max_tokens: int) -> LLM:
        """Give the model; where it is not made yet, to take and to write so many tokens."""
        with self._lock:
            if self._llm is None:
                given = self._chosen()
                if isinstance(given, LLM):
                    self._llm = with_own_client(given)
                else:
                    spec = ModelSpec.parse(given)
                    self._llm = spec.make(api_key=self._api_key, window=window, max_tokens=max_tokens)
            if not self._connected:
                self._connected = True
                self.loop.before_close(partial(close_client, self._llm))
            return self._llm

    def _chosen(self) -> str | LLM:
        return self.given or Settings._llm or DEFAULT_MODEL  # noqa: SLF001  Settings.llm would insist on an OpenAI key

    def by_name(self) -> str | None:
        """Return the model's name, without a password; None where it is an object."""
        chosen = self._chosen()
        return without_credentials(chosen) if isinstance(chosen, str) else None

    def config(self) -> str | None:
        """Return what was given as plain data: an object's name, marked as one; a URL without its password."""
        if isinstance(self.given, LLM):
            return f"{OBJECT}{model_name(self.given)}"
        return None if self.given is None else without_credentials(self.given)


def _check(given: object) -> None:
    if isinstance(given, str):
        if given.startswith(OBJECT):
            raise SettingError(
                f"{given[len(OBJECT) :]} was an LLM object, which is never written down. Cure: pass it again, "
                "ContextualNodePostprocessor.from_dict(data, generator=resolve_generator('llm', llm=...))."
            )
        ModelSpec.parse(given)  # raises now and not in the middle of a run
    elif given is not None and not isinstance(given, LLM):
        raise SettingError(f"llm={type(given).__name__} is no LlamaIndex LLM. Cure: give one, or a name.")


def with_own_client(llm: LLM) -> LLM:
    """Give an LLM whose asynchronous client has not been used on another event loop."""
    fresh = {name: _like(llm, name, client) for name, client in _clients(llm)}
    if not fresh:
        return llm
    copy = llm.model_copy()
    for name, client in fresh.items():
        setattr(copy, name, client)
    return copy


async def close_client(llm: LLM) -> None:
    """Close the connections of an LLM's asynchronous client; the LLM has another one when it is used again."""
    for name, client in _clients(llm):
        fresh = _like(llm, name, client)
        if fresh is client:  # what the user has made is not ours to close
            continue
        setattr(llm, name, fresh)
        close = getattr(client, "close", None) or getattr(getattr(client, "_client", None), "aclose", None)
        if close is not None:
            await close()


def _clients(llm: LLM) -> list[tuple[str, Any]]:
    return [(name, client) for name in _CLIENTS if (client := getattr(llm, name, None)) is not None]


def _like(llm: LLM, name: str, client: Any) -> Any:
    """Another client like one: None where the LLM makes itself one, and the same where there is no way to make one.

    Anthropic's integration makes its client once. It can be copied, with connections of its own unless they were given
    (a proxy, say).
    """
    if hasattr(type(llm), _CLIENTS[name]):
        return None
    connections = getattr(client, "_client", None)
    if not (hasattr(client, "copy") and isinstance(connections, httpx.AsyncClient)):
        return client
    own = _package(connections) == _package(client)
    return client.copy(http_client=type(connections)()) if own else client


def _package(thing: object) -> str:
    return type(thing).__module__.partition(".")[0]


class LoopThread:
    """Runs coroutines for synchronous callers, Jupyter's included, and for those of any event loop.

    One loop for all of them, because HTTP clients keep connections that belong to the loop that opened them, and fail
    or hang on another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._cleanups: list[Callable[[], Awaitable[None]]] = []

    def before_close(self, cleanup: Callable[[], Awaitable[None]]) -> None:
        """Have something done on the loop before it ends: connections must be closed where they were opened."""
        self._cleanups.append(cleanup)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine's result; when the wait is interrupted, it is cancelled."""
        future = self._submitted(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def arun(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Do the same without blocking the caller's event loop."""
        return await asyncio.wrap_future(self._submitted(coroutine))

    def close(self) -> None:
        """End the thread, and cancel what it is doing; the next call starts another."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None and self._process == os.getpid():
                self._stop()

    def _submitted(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        # Under the lock, so that a call is begun before the loop is told to stop, which then cancels it, or on the next
        # loop: given to a loop that has stopped, it would never end.
        with self._lock:
            return asyncio.run_coroutine_threadsafe(coroutine, self._started())

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._process != os.getpid():  # a forked child has the loop but not the thread
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_serve, args=(loop, self._cleanups), name="contexts", daemon=True)
            thread.start()
            self._loop, self._process = loop, os.getpid()
            # It stops the loop once: a second stop would end the cleanups.
            self._stop = weakref.finalize(self, loop.call_soon_threadsafe, loop.stop)
            self._stop.atexit = False
        return self._loop


def _serve(loop: asyncio.AbstractEventLoop, cleanups: list[Callable[[], Awaitable[None]]]) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    running = asyncio.all_tasks(loop)
    for task in running:  # their callers would wait for ever
        task.cancel()
    loop.run_until_complete(asyncio.gather(*running, return_exceptions=True))
    loop.run_until_complete(asyncio.gather(*(cleanup() for cleanup in cleanups), return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
