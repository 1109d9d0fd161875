"""Language models: from a string to a LlamaIndex LLM, what an LLM says of itself, and the event loop that calls run on.

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
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import anyio
import httpx
from anyio.from_thread import BlockingPortal
from llama_index.core import Settings
from llama_index.core.llms import LLM, ChatResponse, CustomLLM

from llama_index_contextual.context.cache import OBJECT
from llama_index_contextual.errors import ContextError, SettingError, needs, without_credentials

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from llama_index.core.llms import ChatMessage


CREDENTIALS: Final = "LLAMA_INDEX_CONTEXTUAL_LLM_CREDENTIALS"  # user:password, for a server given by its URL
OLLAMA_URL: Final = "http://localhost:11434"
DEFAULT_WINDOW: Final = 8192  # tokens; for servers that do not say
_OLLAMA_WINDOW: Final = 16384  # Ollama reserves memory for all of it, and qwen3's own 40,960 is gigabytes
_CLIENT_TIMEOUT: Final = 3600.0  # ours is shorter, and cancels the request
_PROBE_SECONDS: Final = 5.0  # to wait for a server's sign of life
_CLOSED: Final = frozenset({401, 403})
_TAKE_MAX_TOKENS: Final = ("openai", "anthropic", "openailike", "mistral", "groq", "together", "openrouter")
_MARK_CACHE: Final = ("anthropic", "bedrock_converse")


def read_spec(spec: str) -> tuple[str, str, str]:
    """Return provider, model and address ("" for the provider's own) of ``openai:MODEL@http://127.0.0.1:8080/v1``.

    Raises:
        SettingError: It names no model.
    """
    provider, _, rest = spec.partition(":")
    model, _, url = rest.partition("@http")
    if provider not in ("ollama", "openai") or not model:
        raise SettingError(
            "names no model. Cure: 'ollama:MODEL', 'openai:MODEL', 'openai:MODEL@http://HOST/v1', or any "
            "LlamaIndex LLM object.",
            llm=without_credentials(spec),
        )
    return provider, model, f"http{url}" if url else ""


def make_llm(
    spec: str, *, max_tokens: int, seconds: float | None = None, api_key: str | None = None, window: int | None = None
) -> LLM:
    """Return the LLM of a name. Its client does not try again by itself: that is done here, for every kind of model.

    Args:
        spec: As :func:`read_spec` reads it.
        max_tokens: What it writes at most.
        seconds: Of silence, after which it is given up; None where each request has limits of its own.
        api_key: By default the provider's environment variable.
        window: Tokens that it takes.

    Raises:
        MissingExtraError: The integration is not installed.
        SettingError: It names no model, or none that OpenAI has.
    """
    provider, model, url = read_spec(spec)
    options: dict[str, Any] = {"model": model, "temperature": 0.0}
    if provider == "ollama":
        return _integration("ollama", "Ollama")(
            **options,
            base_url=_with_credentials(url) if url else OLLAMA_URL,
            context_window=window or _OLLAMA_WINDOW,
            request_timeout=seconds or _CLIENT_TIMEOUT,
            thinking=False,  # two sentences need no thoughts, which a small model does not end
            additional_kwargs={"num_predict": max_tokens},
        )
    options |= {"max_retries": 0, "timeout": seconds or _CLIENT_TIMEOUT}
    if url:
        return _integration("openai_like", "OpenAILike")(
            **options,
            api_base=_with_credentials(url),
            api_key=api_key or "none",  # the client insists on one
            is_chat_model=True,
            context_window=window or DEFAULT_WINDOW,
            max_tokens=max_tokens if seconds else None,  # OpenAI's own count what they think, too, and do end
        )
    llm = _integration("openai", "OpenAI")(**options, api_key=api_key)
    try:
        llm.metadata  # noqa: B018  looks the model up
    except ValueError as error:
        raise SettingError(
            f"llm='openai:{model}': OpenAI's integration does not know this model. "
            f"Cure: for another server say 'openai:{model}@http://HOST/v1'."
        ) from error
    return llm


def _integration(package: str, name: str) -> Callable[..., LLM]:
    """Return the class of one of LlamaIndex's integrations."""
    with needs(f"llama-index-llms-{package.replace('_', '-')}", "llm"):
        integration: Callable[..., LLM] = getattr(import_module(f"llama_index.llms.{package}"), name)
    return integration


def _with_credentials(url: str) -> str:
    """Return a URL with the user and password of the environment, where it has none of its own."""
    login = os.environ.get(CREDENTIALS)
    return url if not login or without_credentials(url) != url else url.replace("://", f"://{login}@", 1)


def model_name(llm: str | LLM) -> str:
    """Return a model's name, without asking its server."""
    if isinstance(llm, str):
        return read_spec(llm)[1]
    for field in ("model", "model_name", "model_id"):
        name = getattr(llm, field, None)
        if isinstance(name, str) and name:
            return name
    return str(llm.class_name())


def context_window(llm: LLM) -> int:
    """Return how many tokens a model takes; this may ask its server, so never call it on an event loop."""
    try:
        window = int(llm.metadata.context_window)
    except Exception:  # noqa: BLE001  any integration's own error, when its server does not answer
        return DEFAULT_WINDOW
    return window if window > 0 else DEFAULT_WINDOW


def endpoint(llm: LLM) -> str | None:
    """Return the URL of a model's server, where the LLM names one."""
    for field in ("api_base", "base_url"):
        url = getattr(llm, field, None)
        if isinstance(url, str) and url.startswith("http"):
            return url.rstrip("/")
    return None


def is_local(llm: LLM) -> bool:
    """Return whether a model's server is this machine, which reads one prompt at a time."""
    url = endpoint(llm)
    return url is not None and urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104


def retries_by_itself(llm: LLM) -> bool:
    """Return whether the LLM's client sends failed requests again; then nobody else must."""
    return int(getattr(llm, "max_retries", 0) or 0) > 0


def marks_cache(llm: LLM) -> bool:
    """Return whether the provider caches only what a cache point in the prompt marks."""
    return llm.class_name().casefold().startswith(_MARK_CACHE)


def probe(llm: LLM) -> str | None:  # noqa: PLR0911  one return per reason
    """Ask a model's server whether it is there; return why it cannot be used, or None where it answers in time.

    A model that names no server is taken to be there. Any answer will do except 401, 403 and 5xx: servers differ in
    what they list.
    """
    url = endpoint(llm)
    if url is None:
        return None
    name, headers, ollama = model_name(llm), {}, "ollama" in llm.class_name().casefold()
    server = urlsplit(url).netloc.rpartition("@")[2]  # a password in a URL stays there
    if not ollama:
        key = getattr(llm, "api_key", None)
        if not key and urlsplit(url).hostname == "api.openai.com":
            return "no OPENAI_API_KEY"
        headers = {"Authorization": f"Bearer {key}"}
    try:
        answer = httpx.get(f"{url}/api/tags" if ollama else f"{url}/models", headers=headers, timeout=_PROBE_SECONDS)
    except httpx.HTTPError as error:
        return f"no answer from {server} ({type(error).__name__})"
    if answer.status_code in _CLOSED:
        return f"{server} refuses the API key ({answer.status_code})"
    if answer.is_server_error:
        return f"{server} answers {answer.status_code}"
    if ollama and answer.is_success and not _has_model(answer, name):
        return f"Ollama has no model {name!r} (cure: ollama pull {name})"
    return None


def require_key(llm: LLM, consequence: str) -> None:
    """Raise a ContextError with its consequence where no call can succeed, as the key is missing or refused."""
    reason = probe(llm) or ""
    if any(word in reason for word in ("API_KEY", "API key")):
        raise ContextError(
            f"{reason}: {consequence}. Cure: for OpenAI set OPENAI_API_KEY; for another server give the LlamaIndex LLM "
            "with its key, in Python; or choose another llm."
        )


async def chat(llm: LLM, messages: Sequence[ChatMessage], max_tokens: int) -> ChatResponse:
    """Ask a model once, without blocking the event loop."""
    limit: dict[str, Any] = {}
    if llm.class_name().casefold().startswith(_TAKE_MAX_TOKENS):
        limit = {"max_tokens": max_tokens}
    if isinstance(llm, CustomLLM) and type(llm).achat is CustomLLM.achat:  # its achat would block
        return await asyncio.to_thread(llm.chat, messages, **limit)
    return await llm.achat(messages, **limit)


def _has_model(answer: httpx.Response, name: str) -> bool:
    try:
        names = {str(model.get("name", "")) for model in answer.json().get("models", [])}
    except (ValueError, AttributeError):
        return True
    return name in names or f"{name}:latest" in names


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
            read_spec(model)  # raises now and not in the middle of a run
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
                    self._llm = make_llm(model, api_key=self._api_key, window=window, max_tokens=max_tokens)
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
    packages = {type(part).__module__.partition(".")[0] for part in (connections, client)}
    return client.copy(http_client=type(connections)()) if len(packages) == 1 else client
