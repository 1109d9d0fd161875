"""A language model as LlamaIndex has it: its name, its window, its server, and the event loop that calls run on.

The connections of an HTTP client belong to the event loop that opened them: on another loop they fail or hang. So the
calls of a generator share one loop in a thread of its own, whichever thread or loop they come from.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

import httpx
from llama_index.core import Settings
from llama_index.core.llms import LLM

from llama_index_contextual.context.cache import OBJECT
from llama_index_contextual.errors import ContextError, SettingError
from llama_index_contextual.service import client_options
from llama_index_contextual.text import short_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from concurrent.futures import Future

ModelSource: TypeAlias = "LLM | Callable[[], LLM] | None"

DEFAULT_WINDOW: Final = 8192  # tokens; for servers that do not say
_PROBE_SECONDS: Final = 5.0  # for a server's sign of life
_REFUSALS: Final = frozenset({401, 403})
_MARK_CACHE: Final = ("anthropic", "bedrock_converse")
# Where integrations keep their asynchronous clients, and what makes another one: OpenAI and Anthropic, Ollama.
_CLIENTS: Final = {"_aclient": "_get_aclient", "_async_client": "async_client"}


def model_name(llm: LLM) -> str:
    """The name of a model, without a question to its server; of one without a name its class and its settings."""
    names = (getattr(llm, field, None) for field in ("model", "model_name", "model_id"))
    for name in names:
        if isinstance(name, str) and name:
            return name
    with contextlib.suppress(Exception):  # any integration's own error
        name = llm.metadata.model_name
        if name and name != "unknown":
            return name
    settings = {field: info for field, info in type(llm).model_fields.items() if field not in LLM.model_fields}
    values = {field: getattr(llm, field) for field in settings if "key" not in field}
    chosen = {
        field: value
        for field, value in sorted(values.items())
        if isinstance(value, str | int | float) and value != settings[field].default
    }
    return f"{llm.class_name()}#{short_hash(chosen)[:8]}" if chosen else str(llm.class_name())


def context_window(llm: LLM) -> int:
    """The tokens that a model takes; this may ask its server, so never call it on an event loop."""
    try:
        window = int(llm.metadata.context_window)
    except Exception:  # noqa: BLE001  any integration's own error, when its server does not answer
        return DEFAULT_WINDOW
    return window if window > 0 else DEFAULT_WINDOW


def server_url(llm: LLM) -> str | None:
    """The URL of a model's server, where the LLM names one."""
    for field in ("api_base", "base_url"):
        url = getattr(llm, field, None)
        if isinstance(url, str) and url.startswith("http"):
            return url.rstrip("/")
    return None


def is_local(llm: LLM) -> bool:
    """Whether a model's server is this machine, which reads one prompt at a time."""
    url = server_url(llm)
    return url is not None and urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104


def retries_by_itself(llm: LLM) -> bool:
    """Whether the LLM's client sends failed requests again; then nobody else must."""
    return int(getattr(llm, "max_retries", 0) or 0) > 0


def marks_cache(llm: LLM) -> bool:
    """Whether the provider caches only what a cache point in the prompt marks."""
    return llm.class_name().casefold().startswith(_MARK_CACHE)


def probe(llm: LLM) -> str | None:  # noqa: PLR0911  one return per reason
    """Why a model cannot be used, or None: a question to its server that costs nothing.

    A model without a server's URL is taken to be there. Any answer will do except 401, 403 and 5xx: servers differ in
    what they list.
    """
    url = server_url(llm)
    if url is None:
        return None
    name, headers, is_ollama = model_name(llm), {}, "ollama" in llm.class_name().casefold()
    server = urlsplit(url).netloc.rpartition("@")[2]  # a password in a URL stays there
    if not is_ollama:
        key = getattr(llm, "api_key", None)
        if not key and urlsplit(url).hostname == "api.openai.com":
            return "no OPENAI_API_KEY"
        headers = {"Authorization": f"Bearer {key}"}
    try:
        with httpx.Client(**client_options(_PROBE_SECONDS, total=_PROBE_SECONDS)) as client:
            answer = client.get(f"{url}/api/tags" if is_ollama else f"{url}/models", headers=headers)
    except httpx.HTTPError as error:
        return f"no answer from {server} ({type(error).__name__})"
    if answer.status_code in _REFUSALS:
        return f"{server} refuses the API key ({answer.status_code})"
    if answer.is_server_error:
        return f"{server} answers {answer.status_code}"
    if is_ollama and answer.is_success and not _has_model(answer, name):
        return f"Ollama has no model {name!r} (cure: ollama pull {name})"
    return None


def _has_model(answer: httpx.Response, name: str) -> bool:
    try:
        names = {str(model.get("name", "")) for model in answer.json().get("models", [])}
    except (ValueError, AttributeError, TypeError, RecursionError):
        return True
    return name in names or f"{name}:latest" in names


def require_key(llm: LLM, consequence: str) -> None:
    """Raise a ContextError with its consequence where no call can succeed, as the key is missing or refused."""
    reason = probe(llm) or ""
    if any(word in reason for word in ("API_KEY", "API key")):
        raise ContextError(
            f"{reason}: {consequence}. Cure: for OpenAI set OPENAI_API_KEY; for another server give the LlamaIndex LLM "
            "with its key, in Python; or choose another llm."
        )


def _check_source(source: object) -> None:
    if isinstance(source, str) and source.startswith(OBJECT):
        raise SettingError("was an object, which plain data cannot hold. Cure: pass it again.", llm=source)
    if source is not None and not isinstance(source, LLM) and not callable(source):
        raise SettingError(
            "is no LLM. Cure: one of LlamaIndex, such as llm=Ollama(model='qwen3:0.6b'); names of models are read by "
            "ContextualIndex and on the command line.",
            llm=source,
        )


def make_model(source: ModelSource) -> LLM:
    """The model of a setting: an LLM, what makes one, or LlamaIndex's ``Settings.llm`` where that has been set."""
    made = source if source is None or isinstance(source, LLM) else source()
    llm = made or Settings._llm  # noqa: SLF001  Settings.llm would take OpenAI's paid default
    if llm is None:
        raise SettingError(
            "is not named. Cure: an LLM of LlamaIndex, such as llm=Ollama(model='qwen3:0.6b'), or Settings.llm = …",
            llm=None,
        )
    return llm


class Connection:
    """A model, made when it is first needed, and the loop that it is called on.

    A pickled or copied connection has a client and a loop of its own.

    Args:
        source: An LLM, what makes one, or None for ``Settings.llm``.
    """

    def __init__(self, source: ModelSource) -> None:
        _check_source(source)
        self.source = source
        # Now: a field may count what the model does later.
        self._name = model_name(source) if isinstance(source, LLM) else getattr(source, "model_name", None)
        self._reset()

    def _reset(self) -> None:
        self._llm_lock, self._loop_lock = threading.Lock(), threading.Lock()  # the loop asks for the model, too
        self._llm: LLM | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    def __getstate__(self) -> dict[str, Any]:
        # Pickling a LlamaIndex component deletes its clients from the live object: give it a copy to do that to.
        return {
            "source": self.source.model_copy() if isinstance(self.source, LLM) else self.source,
            "_name": self._name,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def llm(self) -> LLM:
        """The model, with an asynchronous client that no other event loop has used."""
        with self._llm_lock:
            if self._llm is None:
                llm = make_model(self.source)
                self._llm = llm if self._is_made_here else with_own_client(llm)
            return self._llm

    @property
    def _is_made_here(self) -> bool:
        return self.source is not None and not isinstance(self.source, LLM)

    @property
    def model_name(self) -> str:
        """The model's name; a source that makes its model later may have the name before."""
        if self._name is None:
            self._name = model_name(self.llm)
        return self._name

    def start(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Future[Any]:
        """Begin a coroutine on the loop, from any thread; cancelling the future cancels it."""
        llm = self.llm
        with self._loop_lock:  # so that nothing is given to a loop that is about to end
            if self._loop is None or self._process != os.getpid():  # a forked child has no thread
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                threading.Thread(
                    target=_serve, args=(self._loop, llm, self._is_made_here), name="contexts", daemon=True
                ).start()
                self._stop = weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
                self._stop.atexit = False
            return asyncio.run_coroutine_threadsafe(work(*arguments), self._loop)

    def close(self) -> None:
        """End the loop, cancel its calls and close its connections; the next call starts another."""
        with self._loop_lock:
            loop, self._loop = self._loop, None
            if loop is not None and self._process == os.getpid():
                self._stop()
                with self._llm_lock:
                    self._llm = None


def _serve(loop: asyncio.AbstractEventLoop, llm: LLM, is_made_here: bool) -> None:
    """Run a loop until it is stopped; then cancel its tasks and close the connections of the model."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        with contextlib.suppress(Exception):  # an integration's own error: there is nobody left to tell
            loop.run_until_complete(close_client(llm, is_made_here=is_made_here))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def with_own_client(llm: LLM) -> LLM:
    """A model whose asynchronous client has not been used on another event loop."""
    clients = {name: _another_client(llm, name, client) for name, client in _clients(llm)}
    if not clients:
        return llm
    copy = llm.model_copy()
    for name, client in clients.items():
        setattr(copy, name, client)
    return copy


async def close_client(llm: LLM, *, is_made_here: bool = False) -> None:
    """Close the connections of a model's asynchronous client, unless the user has made them."""
    if not is_made_here and getattr(llm, "_async_http_client", None) is not None:
        return
    for name, client in _clients(llm):
        close = getattr(client, "close", None) or getattr(getattr(client, "_client", None), "aclose", None)
        if close is not None and (is_made_here or _another_client(llm, name, client) is not client):
            await close()


def _clients(llm: LLM) -> Iterator[tuple[str, Any]]:
    return ((name, client) for name in _CLIENTS if (client := getattr(llm, name, None)) is not None)


def _another_client(llm: LLM, name: str, client: Any) -> Any:
    """Another client like one: None where the LLM makes it when needed, the same where none can be made.

    Anthropic's integration makes its client once. It can be copied, with connections of its own unless the user has
    passed some (a proxy, say).
    """
    if hasattr(type(llm), _CLIENTS[name]):
        return None
    connections = getattr(client, "_client", None)
    if not (hasattr(client, "copy") and isinstance(connections, httpx.AsyncClient)):
        return client
    packages = {type(part).__module__.partition(".")[0] for part in (connections, client)}
    return client.copy(http_client=type(connections)()) if len(packages) == 1 else client
