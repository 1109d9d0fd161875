"""Language models: from a string to a LlamaIndex LLM, what an LLM says of itself, and whether its server is there."""

from __future__ import annotations

import asyncio
import os
import re
import time
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import httpx
from llama_index.core.llms import LLM, ChatResponse, CustomLLM

from llama_index_contextual.errors import MissingExtraError, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.llms import ChatMessage

CREDENTIALS: Final = "LLAMA_INDEX_CONTEXTUAL_LLM_CREDENTIALS"  # user:password, for a server given by its URL
NO_ANSWER: Final = "server does not answer"
OLLAMA_URL: Final = "http://localhost:11434"
DEFAULT_WINDOW: Final = 8192  # tokens; for servers that do not say
_OLLAMA_WINDOW: Final = 16384  # Ollama reserves memory for all of it, and qwen3's own 40,960 is gigabytes
_CLIENT_TIMEOUT: Final = 3600.0  # ours is shorter, and cancels the request
_BELIEVED_ALIVE: Final = 60.0  # seconds that an answer of the server is believed
_BELIEVED_ABSENT: Final = 5.0  # few: somebody may be starting it
_LEFT_ALONE: Final = 30.0  # seconds, after so many failed calls in a row
_FAILURES: Final = 3
_CREDENTIALS: Final = re.compile(r"(https?://)[^/\s]*@")
_CLOSED: Final = frozenset({401, 403})
_TAKE_MAX_TOKENS: Final = ("openai", "anthropic", "openailike", "mistral", "groq", "together", "openrouter")
_MARK_CACHE: Final = ("anthropic", "bedrock_converse")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model by name: ``provider:model`` or ``provider:model@base_url``."""

    provider: str
    model: str
    base_url: str | None = None

    @classmethod
    def parse(cls, spec: str) -> ModelSpec:
        """Read ``ollama:qwen3:0.6b``, ``openai:gpt-4.1-mini`` or ``openai:MODEL@http://127.0.0.1:8080/v1``."""
        provider, _, rest = spec.partition(":")
        model, _, url = rest.partition("@http")
        if provider not in ("ollama", "openai") or not model:
            raise SettingError(
                "names no model. Cure: 'ollama:MODEL', 'openai:MODEL', 'openai:MODEL@http://HOST/v1', or any "
                "LlamaIndex LLM object.",
                llm=without_credentials(spec),
            )
        return cls(provider, model, f"http{url}" if url else None)

    def make(self, *, api_key: str | None, window: int | None, max_tokens: int) -> LLM:
        """Make the LLM. Its client does not try again by itself: that is done here, for every kind of model.

        Raises:
            MissingExtraError: The integration is not installed.
            SettingError: OpenAI has no model of this name.
        """
        options: dict[str, Any] = {"model": self.model, "temperature": 0.0}
        if self.provider == "ollama":
            return _integration("ollama", "Ollama")(
                **options,
                base_url=_with_credentials(self.base_url) if self.base_url else OLLAMA_URL,
                context_window=window or _OLLAMA_WINDOW,
                request_timeout=_CLIENT_TIMEOUT,
                thinking=False,  # two sentences need no thoughts, which a small model does not end
                additional_kwargs={"num_predict": max_tokens},
            )
        options |= {"max_retries": 0, "timeout": _CLIENT_TIMEOUT}
        if self.base_url is not None:
            return _integration("openai_like", "OpenAILike")(
                **options,
                api_base=_with_credentials(self.base_url),
                api_key=api_key or "none",  # the client insists on one
                is_chat_model=True,
                context_window=window or DEFAULT_WINDOW,
            )
        llm = _integration("openai", "OpenAI")(**options, api_key=api_key)
        try:
            llm.metadata  # noqa: B018  looks the model up
        except ValueError as error:
            raise SettingError(
                f"llm='openai:{self.model}': OpenAI's integration does not know this model. "
                f"Cure: for another server say 'openai:{self.model}@http://HOST/v1'."
            ) from error
        return llm

    def limited(self, *, max_tokens: int, seconds: float) -> LLM:
        """Make an LLM that writes so many tokens at most, and that is given up after so many seconds of silence."""
        llm = self.make(api_key=None, window=None, max_tokens=max_tokens)
        limits: dict[str, Any] = {"timeout": seconds, "request_timeout": seconds}
        if self.base_url is not None:  # OpenAI's own count what they think, too, and do end
            limits["max_tokens"] = max_tokens
        for name in limits.keys() & type(llm).model_fields.keys():
            setattr(llm, name, limits[name])
        return llm


def _integration(package: str, name: str) -> Callable[..., LLM]:
    """Return the class of one of LlamaIndex's integrations."""
    try:
        integration: Callable[..., LLM] = getattr(import_module(f"llama_index.llms.{package}"), name)
    except ImportError as error:
        raise MissingExtraError(f"llama-index-llms-{package.replace('_', '-')}", "llm") from error
    return integration


def without_credentials(spec: str) -> str:
    """Return the name of a model or of an embedding without the user and password of its URL, to be written down."""
    return _CREDENTIALS.sub(r"\1", spec)


def _with_credentials(url: str) -> str:
    """Return a URL with the user and password of the environment, where it has none of its own."""
    login = os.environ.get(CREDENTIALS)
    return url if not login or _CREDENTIALS.search(url) else url.replace("://", f"://{login}@", 1)


def model_name(llm: LLM) -> str:
    """Return a model's name, without asking its server."""
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


def probe(llm: LLM, seconds: float) -> str | None:  # noqa: PLR0911  one return per reason
    """Ask a model's server whether it is there; return why it cannot be used, or None.

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
        answer = httpx.get(f"{url}/api/tags" if ollama else f"{url}/models", headers=headers, timeout=seconds)
    except httpx.HTTPError as error:
        return f"no answer from {server} ({type(error).__name__})"
    if answer.status_code in _CLOSED:
        return f"{server} refuses the API key ({answer.status_code})"
    if answer.is_server_error:
        return f"{server} answers {answer.status_code}"
    if ollama and answer.is_success and not _has_model(answer, name):
        return f"Ollama has no model {name!r} (cure: ollama pull {name})"
    return None


class ServerWatch:
    """Whether a model's server is there: known from a probe before a run, and from how its calls end.

    One watch serves all runs of a generator, because an index asks for contexts file by file. A server that has failed
    several calls in a row is left alone for a while, so that a dead server costs seconds and not hours.
    """

    def __init__(self) -> None:
        self._reason: str | None = None  # why the server cannot be used
        self._until = float("-inf")  # when what is known becomes too old
        self._failures = 0

    def why_not(self, look: Callable[[], str | None]) -> str | None:
        """Return why a run need not begin, or None; ``look`` does as :func:`probe`, and may block."""
        if time.monotonic() >= self._until:
            self._failures = 0
            self._believe(reason := look(), _BELIEVED_ALIVE if reason is None else _BELIEVED_ABSENT)
        return self._reason

    def allows_call(self) -> bool:
        """Return whether a call may be sent now. A server that was left alone long enough gets one, to see."""
        if self._failures < _FAILURES:
            return True
        if time.monotonic() < self._until:
            return False
        self._believe(NO_ANSWER, _LEFT_ALONE)  # other calls wait for how this one ends
        return True

    def call_ended(self, *, failed: bool) -> None:
        """Note how a call ended; ``failed`` means that the server seems to be the cause."""
        self._failures = self._failures + 1 if failed else 0
        if self._failures >= _FAILURES:
            self._believe(NO_ANSWER, _LEFT_ALONE)
        elif not failed:
            self._believe(None, _BELIEVED_ALIVE)

    def _believe(self, reason: str | None, seconds: float) -> None:
        self._reason, self._until = reason, time.monotonic() + seconds


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
