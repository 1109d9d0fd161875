"""A language model as LlamaIndex has it: its name, its window, its server, its client, and one request to it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from concurrent.futures import wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit
from weakref import finalize

import anyio
import httpx
from anyio.from_thread import start_blocking_portal
from llama_index.core import Settings
from llama_index.core.llms import LLM

from llama_index_contextual import service
from llama_index_contextual.context.base import Tokens
from llama_index_contextual.errors import ContextError, SettingError, amount, optional_whole, whole
from llama_index_contextual.text import short_hash

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence

    from llama_index.core.llms import ChatMessage

OBJECT: Final = "object:"  # before the class of an object in plain data
ModelSource: TypeAlias = "LLM | Callable[[], LLM] | None"

DEFAULT_WINDOW: Final = 8192  # tokens; for servers that do not say
TOO_LONG: Final = "prompt too long (cure: context_window)"
NO_ANSWER: Final = "server does not answer"
_PROBE_SECONDS: Final = 5.0  # for a server's sign of life
_REFUSALS: Final = frozenset({401, 403})
_CURES: Final = {
    **dict.fromkeys(_REFUSALS, "the API key"),
    404: "the name of the model, or the address of its server",
    429: "fewer num_workers, or later",
}
_TAKE_MAX_TOKENS: Final = ("openai", "anthropic", "openailike", "mistral", "groq", "together", "openrouter")
_CLIENTS: Final = {"_get_aclient": "_aclient", "async_client": "_async_client"}  # OpenAI, Ollama: maker and client
_OVERFLOW: Final = re.compile(
    r"exceed_context_size|context_length_exceeded|maximum context length|context (?:window|size|length)"
    r"|prompt is too long|too many tokens|input length",
    re.IGNORECASE,
)
_BELIEVED: Final = 30.0  # seconds that an answer of the server, or its absence, is believed
_NOTICE_SECONDS: Final = 0.2  # between two looks whether a run was interrupted
_FAILURES: Final = 3  # calls in a row, after which no other is sent for a while


@dataclass(frozen=True, slots=True)
class LLMOptions:
    """Settings of the calls of a language model for contexts.

    Attributes:
        batch_size: Chunks per call.
        num_workers: Calls at a time. Default: 1 for a server on this machine, else 4.
        timeout: Seconds after which a call without an answer is given up; for a prompt of more than 6,000 tokens more.
        max_calls: Over all runs, further attempts included (not those that an LLM's client makes by itself); the
            remaining chunks then fail, and a later run goes on with them. Each process counts its own.
        context_window: Tokens that the model takes. A longer document is shown as its outline and what surrounds the
            chunks. Default: what the LLM says.
        max_output_tokens: Tokens per context.

    Raises:
        SettingError: A value cannot work.
    """

    batch_size: int = 8
    num_workers: int | None = None
    timeout: float = service.TIMEOUT
    max_calls: int | None = None
    context_window: int | None = None
    max_output_tokens: int = 100

    def __post_init__(self) -> None:
        amount("timeout", self.timeout)
        for name in ("batch_size", "max_output_tokens"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        for name in ("num_workers", "max_calls", "context_window"):
            least = 0 if name == "max_calls" else 1
            object.__setattr__(self, name, optional_whole(name, getattr(self, name), least=least))


def model_name(llm: LLM) -> str:
    """The name of a model, without a question to its server; of one without a name its class, and a mark.

    Raises:
        SettingError: It has no name, and holds what is no plain data, so that two such models could not be told apart.
    """
    names = (getattr(llm, field, None) for field in ("model", "model_name", "model_id"))
    name: str = next((name for name in names if isinstance(name, str) and name), "")
    with contextlib.suppress(Exception):  # any integration's own error
        name = name or str(llm.metadata.model_name)
    if name and name != "unknown":
        return name
    if id(llm) not in _unnamed:  # at first sight: a field may count what the model does later
        state = {**llm.__dict__, **(llm.__pydantic_private__ or {})}
        plain = {key: value for key, value in state.items() if key not in LLM.model_fields and "key" not in key}
        _unnamed[id(llm)] = f"{llm.class_name()}#{short_hash(_plain(plain))[:8]}"
        finalize(llm, _unnamed.pop, id(llm), None)
    return _unnamed[id(llm)]


_unnamed: Final[dict[int, str]] = {}  # names of models without one, by id


def _plain(value: Any) -> Any:
    """A value of lists, mappings, text and numbers."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    raise SettingError(
        "has no name, so contexts of two such models could not be told apart. Cure: give it a model_name in its "
        "metadata, or a field model.",
        llm=type(value).__qualname__,
    )


def context_window(llm: LLM) -> int:
    """The tokens that a model takes; this may ask its server, so never call it on an event loop."""
    with contextlib.suppress(Exception):  # any integration's own error, when its server does not answer
        if (window := int(llm.metadata.context_window)) > 0:
            return window
    return DEFAULT_WINDOW


def server_url(llm: LLM) -> str | None:
    """The URL of a model's server, where the LLM names one."""
    urls = (getattr(llm, field, None) for field in ("api_base", "base_url"))
    return next((url.rstrip("/") for url in urls if isinstance(url, str) and url.startswith("http")), None)


def is_local(llm: LLM) -> bool:
    """Whether a model's server is this machine, which reads one prompt at a time."""
    return urlsplit(server_url(llm) or "").hostname in ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104


def probe(llm: LLM, timeout: float = _PROBE_SECONDS) -> str | None:
    """Why a model cannot be used, or None: a question to its server that costs nothing.

    A model without a server's URL is taken to be there. Any answer will do except 401, 403 and 5xx: servers differ in
    what they list.
    """
    url = server_url(llm)
    if url is None:
        return None
    is_ollama, key = "ollama" in llm.class_name().casefold(), getattr(llm, "api_key", None)
    server = urlsplit(url).netloc.rpartition("@")[2]  # a password in a URL stays there
    if not is_ollama and not key and urlsplit(url).hostname == "api.openai.com":
        return "no OPENAI_API_KEY"
    headers = {} if is_ollama else {"Authorization": f"Bearer {key}"}
    try:
        seconds = min(timeout, _PROBE_SECONDS)
        with httpx.Client(**service.client_options(seconds, total=seconds)) as client:
            answer = client.get(f"{url}/api/tags" if is_ollama else f"{url}/models", headers=headers)
    except httpx.HTTPError as error:
        cure = "ollama serve" if is_ollama else "start it, or correct its address"
        return f"no answer from {server} ({type(error).__name__}; cure: {cure})"
    if answer.status_code in _REFUSALS:
        return f"{server} refuses the API key ({answer.status_code})"
    if answer.is_server_error:
        return f"{server} answers {answer.status_code}"
    return _not_pulled(llm, answer) if is_ollama and answer.is_success else None


def _not_pulled(llm: LLM, answer: httpx.Response) -> str | None:
    """Why Ollama cannot use a model: it has none of this name in its list."""
    name = model_name(llm)
    with contextlib.suppress(ValueError, AttributeError, TypeError, RecursionError):  # no list at all
        if not {name, f"{name}:latest"} & {str(model.get("name", "")) for model in answer.json().get("models", [])}:
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


def make_model(source: ModelSource) -> LLM:
    """The model of a setting: an LLM, what makes one, or LlamaIndex's ``Settings.llm`` where that has been set."""
    made = source if source is None or isinstance(source, LLM) else source()
    if llm := made or Settings._llm:  # noqa: SLF001  Settings.llm would take OpenAI's paid default
        return llm
    cure = "names no model. Cure: an LLM of LlamaIndex, such as llm=Ollama(model='qwen3:0.6b'), or Settings.llm = …"
    raise SettingError(cure, llm=None)


def _client_of(llm: LLM) -> str:
    """The attribute with the asynchronous client that an LLM makes when it needs one; empty where it makes none."""
    return next((client for maker, client in _CLIENTS.items() if hasattr(type(llm), maker)), "")


@contextlib.asynccontextmanager
async def connected(source: ModelSource) -> AsyncIterator[LLM]:
    """A model with an asynchronous client that no other event loop has used; its connections are closed at the end.

    The connections of an HTTP client belong to the event loop that opened them: on another one they fail or hang.
    """
    llm, is_made_here = make_model(source), source is not None and not isinstance(source, LLM)
    name = _client_of(llm)
    if name and not is_made_here:
        llm = llm.model_copy()
        setattr(llm, name, None)
    try:
        yield llm
    finally:
        client = getattr(llm, name, None)
        is_users = not is_made_here and getattr(llm, "_async_http_client", None) is not None
        close = getattr(client, "close", None) or getattr(getattr(client, "_client", None), "aclose", None)
        if close is not None and not is_users:
            with contextlib.suppress(Exception):  # an integration's own error, after all is done
                await close()


def run_sync(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on a loop of its own; in another thread where this one has a loop, as in a notebook.

    An interruption of this thread cancels the coroutine.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work)
        return
    waiting = asyncio.current_task()
    with start_blocking_portal() as portal:
        future = portal.start_task_soon(lambda: work)
        try:
            while wait([future], _NOTICE_SECONDS).not_done:
                if getattr(waiting, "cancelling", int)():  # from Python 3.11 on Ctrl-C cancels the task of a script
                    raise asyncio.CancelledError
            future.result()
        finally:
            future.cancel()


async def gather(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run several coroutines at once. When one fails, cancel the others with their requests, and raise its error."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class Server:
    """Whether a model's server is there: known from a probe before a run, and from how its calls end.

    One serves all runs of a generator, because an index asks for contexts file by file. A server that has failed
    several calls in a row is not called for a while, so that a dead server costs seconds and not hours.
    """

    def __init__(self) -> None:
        self._reason: str | None = None  # why it cannot be used
        self._until = float("-inf")  # when to probe again
        self._failures = 0

    def problem(self, llm: LLM, timeout: float) -> str | None:
        """Why a run need not begin, or None; this may ask the server."""
        if time.monotonic() >= self._until:
            self._reason, self._failures = probe(llm, timeout), 0
            self._until = time.monotonic() + _BELIEVED
        return self._reason

    @property
    def is_down(self) -> bool:
        """Whether no call need be sent now."""
        return self._failures >= _FAILURES

    def call_ended(self, *, failed: bool) -> None:
        """Count how a call ended; ``failed`` means that the server seems to be the cause."""
        self._failures = self._failures + 1 if failed else 0
        if self.is_down:
            self._reason, self._until = NO_ANSWER, time.monotonic() + _BELIEVED


class CallFailedError(Exception):
    """A model did not answer: why, in the same few words for the same cause."""

    def __init__(self, reason: str, *, fatal: bool = True, transient: bool = False, wait: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.fatal = fatal  # the server seems to be the cause, so that other calls would fare no better
        self.transient = transient  # the request may be answered soon
        self.wait = wait  # seconds that the server asks to wait


async def send(llm: LLM, messages: Sequence[ChatMessage], seconds: float, max_tokens: int) -> tuple[str, Tokens]:
    """The answer to a request that is sent once, and cancelled after so many seconds, and its tokens.

    Raises:
        CallFailedError: There is none.
    """
    takes_limit = llm.class_name().casefold().startswith(_TAKE_MAX_TOKENS)
    limit: dict[str, Any] = {"max_tokens": max_tokens} if takes_limit else {}
    try:
        with anyio.fail_after(seconds):
            if _client_of(llm):
                response = await llm.achat(messages, **limit)
            else:  # its asynchronous client may be of another loop, or there is none
                response = await asyncio.to_thread(llm.chat, messages, **limit)
        return response.message.content or "", read_tokens(response)
    except Exception as error:  # each integration has errors of its own
        raise _explained(error) from error


def _explained(error: Exception) -> CallFailedError:
    """An integration's error in our words: a timeout, an HTTP status, no connection, a prompt too long."""
    if service.is_too_large(error):
        return CallFailedError("answer too large")
    if service.is_timeout(error):
        return CallFailedError("timeout (cure: a longer timeout, or a smaller batch_size)")
    status, passes, wait = service.status_of(error), service.may_pass(error), service.retry_after(error)
    if status in (400, 413, 422, None) and _OVERFLOW.search(str(error)):
        return CallFailedError(TOO_LONG, fatal=False)
    cure = f" (cure: {_CURES[status]})" if status in _CURES else ""
    reason = f"HTTP {status}{cure}" if status else "no connection" if passes else type(error).__name__
    is_fatal = passes if status is None else status != 400  # noqa: PLR2004
    return CallFailedError(reason, fatal=is_fatal, transient=passes and (wait or 0) <= service.LONGEST_WAIT, wait=wait)


def read_tokens(response: Any) -> Tokens:
    """The token counts of a LlamaIndex chat response, in OpenAI's, Anthropic's and Ollama's forms."""

    def get(source: Any, *names: str) -> Any:
        values = (source.get(name) if isinstance(source, dict) else getattr(source, name, None) for name in names)
        return next((value for value in values if value is not None), None)

    usage = get(getattr(response, "raw", None), "usage")
    cached = get(get(usage, "prompt_tokens_details"), "cached_tokens") or get(usage, "cache_read_input_tokens")
    counts = (get(usage, "prompt_tokens", "input_tokens"), cached, get(usage, "completion_tokens", "output_tokens"))
    return Tokens(*(count if isinstance(count, int) else 0 for count in counts))
