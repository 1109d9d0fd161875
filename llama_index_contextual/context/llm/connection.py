"""The connection to a model: its LLM, with clients of its own, and one event loop that all calls run on.

The connections of an HTTP client belong to the event loop that opened them: on another loop they fail or hang. So the
calls of a generator share one loop in a thread of its own, whichever thread or loop they come from.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import httpx
from anyio.from_thread import BlockingPortal
from llama_index.core import Settings
from llama_index.core.llms import LLM

from llama_index_contextual.context.cache import OBJECT
from llama_index_contextual.context.llm.model import ModelSpec, model_name, without_credentials
from llama_index_contextual.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

DEFAULT_MODEL: Final = "ollama:qwen3:0.6b"
# Where integrations keep their asynchronous clients, and what makes another one: OpenAI and Anthropic, Ollama.
_CLIENTS: Final = {"_aclient": "_get_aclient", "_async_client": "async_client"}

T = TypeVar("T")


class Connection:
    """A model, made when it is first needed, and the loop that it is called on.

    A pickled or copied connection has a client and a loop of its own.

    Args:
        model: A model's name or object; None takes ``Settings.llm`` where that has been set, else the default.
        api_key: For a model by name; by default the provider's environment variable.

    Attributes:
        model: As it was passed.

    Raises:
        SettingError: It is no model, or names none.
    """

    def __init__(self, model: str | LLM | None, api_key: str | None) -> None:
        if isinstance(model, str):
            if model.startswith(OBJECT):
                raise SettingError(
                    f"{model[len(OBJECT) :]} was an LLM object, which is never written down. Cure: pass it again, "
                    "ContextualNodePostprocessor.from_dict(data, generator=resolve_generator('llm', llm=...))."
                )
            ModelSpec.parse(model)  # raises now and not in the middle of a run
        elif model is not None and not isinstance(model, LLM):
            raise SettingError(f"llm={type(model).__name__} is no LlamaIndex LLM. Cure: give one, or a name.")
        self.model, self._api_key = model, api_key
        self._llm = with_own_client(model) if isinstance(model, LLM) else None
        self._reset()

    def _reset(self) -> None:
        self._llm_lock, self._portal_lock = threading.Lock(), threading.Lock()  # the loop asks for the model, too
        self._portal: BlockingPortal | None = None
        self._process = 0

    def __getstate__(self) -> dict[str, Any]:
        # Pickling a LlamaIndex component deletes its clients from the live object: give it a copy to do that to.
        llm = None if self._llm is None or isinstance(self.model, str) else self._llm.model_copy()
        return {"model": llm if isinstance(self.model, LLM) else self.model, "_api_key": self._api_key, "_llm": llm}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def llm(self, window: int | None, max_tokens: int) -> LLM:
        """Return the model; where it is not made yet, it takes and writes so many tokens."""
        with self._llm_lock:
            if self._llm is None:
                model = self._chosen()
                if isinstance(model, LLM):
                    self._llm = with_own_client(model)
                else:
                    spec = ModelSpec.parse(model)
                    self._llm = spec.make(api_key=self._api_key, window=window, max_tokens=max_tokens)
            return self._llm

    def _chosen(self) -> str | LLM:
        return self.model or Settings._llm or DEFAULT_MODEL  # noqa: SLF001  Settings.llm would insist on an OpenAI key

    def by_name(self) -> str | None:
        """Return the model's name, without a password; None where it is an object."""
        model = self._chosen()
        return without_credentials(model) if isinstance(model, str) else None

    def config(self) -> str | None:
        """Return the model as plain data: an object's name, marked as one; a URL without its password."""
        if isinstance(self.model, LLM):
            return f"{OBJECT}{model_name(self.model)}"
        return None if self.model is None else without_credentials(self.model)

    def start(self, llm: LLM, work: Callable[..., Awaitable[T]], *arguments: Any) -> Future[T]:
        """Begin a coroutine on the loop, from any thread; cancelling the future cancels it.

        When the loop ends, the connections of ``llm`` are closed.
        """
        with self._portal_lock:  # so that nothing is given to a loop that has been told to end
            if self._portal is None or self._process != os.getpid():  # a forked child has no thread
                started: Future[tuple[BlockingPortal, Callable[[], object]]] = Future()
                threading.Thread(target=anyio.run, args=(_serve, started, llm), name="contexts", daemon=True).start()
                self._portal, stop = started.result()
                self._process = os.getpid()
                self._stop = weakref.finalize(self, stop)
                self._stop.atexit = False
            return self._portal.start_task_soon(work, *arguments)

    def close(self) -> None:
        """End the loop, and cancel what runs on it; the next call starts another."""
        with self._portal_lock:
            portal, self._portal = self._portal, None
            if portal is not None and self._process == os.getpid():
                self._stop()


async def _serve(started: Future[tuple[BlockingPortal, Callable[[], object]]], llm: LLM) -> None:
    """Run what other threads begin until the loop is told to end; then cancel it and close the connections."""
    stopped = anyio.Event()
    async with BlockingPortal() as portal:
        # A finalizer may run in any thread, this one included, so it only leaves a message.
        started.set_result((portal, partial(asyncio.get_running_loop().call_soon_threadsafe, stopped.set)))
        await stopped.wait()
        await portal.stop(cancel_remaining=True)
    with contextlib.suppress(Exception):  # an integration's own error: there is nobody left to tell
        await close_client(llm)


def with_own_client(llm: LLM) -> LLM:
    """Return an LLM whose asynchronous client has not been used on another event loop."""
    clients = {name: _another_client(llm, name, client) for name, client in _clients(llm)}
    if not clients:
        return llm
    copy = llm.model_copy()
    for name, client in clients.items():
        setattr(copy, name, client)
    return copy


async def close_client(llm: LLM) -> None:
    """Close the connections of an LLM's asynchronous client; the LLM has another one when it is used again."""
    for name, client in _clients(llm):
        another = _another_client(llm, name, client)
        if another is client:  # what the user has made is not ours to close
            continue
        setattr(llm, name, another)
        close = getattr(client, "close", None) or getattr(getattr(client, "_client", None), "aclose", None)
        if close is not None:
            await close()


def _clients(llm: LLM) -> list[tuple[str, Any]]:
    return [(name, client) for name in _CLIENTS if (client := getattr(llm, name, None)) is not None]


def _another_client(llm: LLM, name: str, client: Any) -> Any:
    """Return another client like one: None where the LLM makes it when needed, the same where none can be made.

    Anthropic's integration makes its client once. It can be copied, with connections of its own unless the user has
    passed some (a proxy, say).
    """
    if hasattr(type(llm), _CLIENTS[name]):
        return None
    connections = getattr(client, "_client", None)
    if not (hasattr(client, "copy") and isinstance(connections, httpx.AsyncClient)):
        return client
    packages = {type(one).__module__.partition(".")[0] for one in (connections, client)}
    return client.copy(http_client=type(connections)()) if len(packages) == 1 else client
