"""A language model as LlamaIndex has it: its name, its window, its server, and what its errors and answers say."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

from llama_index.core import Settings
from llama_index.core.llms import LLM

from llama_index_contextual import service
from llama_index_contextual.context.base import DEFAULT_WINDOW, Tokens
from llama_index_contextual.errors import SettingError
from llama_index_contextual.text import short_hash

if TYPE_CHECKING:
    from collections.abc import Callable

ModelSource: TypeAlias = "LLM | Callable[[], LLM] | None"

TAKE_MAX_TOKENS: Final = ("openai", "anthropic", "openailike", "mistral", "groq", "together", "openrouter")
MARK_CACHE: Final = ("anthropic", "bedrock_converse")  # cache only what a cache point in the prompt marks
ABOUT_PROMPT: Final = (400, 413, 422)  # statuses of a request that the server will refuse again
_CURES: Final = {
    **dict.fromkeys((401, 403), "the API key"),
    404: "the name of the model, or the address of its server",
    429: "fewer num_workers, or later",
}
_OVERFLOW: Final = re.compile(
    r"exceed_context_size|context_length_exceeded|maximum context length|context (?:window|size|length)"
    r"|prompt is too long|too many tokens|input length",
    re.IGNORECASE,
)
_SHOWN: Final = 100  # characters of an error that has no reason known here


def is_one_of(llm: LLM, classes: tuple[str, ...]) -> bool:
    """Whether the name of a model's class begins with one of these."""
    return llm.class_name().casefold().startswith(classes)


def model_name(llm: LLM) -> str:
    """The name of a model, without a question to its server; of one without a name its class, and a mark.

    Raises:
        SettingError: It has no name, and holds what is no plain data, so that two such models could not be told apart.
    """
    name = getattr(llm, "model", None)
    with contextlib.suppress(Exception):  # any integration's own error
        name = name or llm.metadata.model_name
    if isinstance(name, str) and name not in ("", "unknown"):
        return name
    state = {**llm.__dict__, **(llm.__pydantic_private__ or {})}
    held = {key: value for key, value in state.items() if key not in LLM.model_fields and "key" not in key}
    if not all(isinstance(value, str | int | float | list | tuple | dict | None) for value in held.values()):
        raise SettingError(
            "has no name, so contexts of two such models could not be told apart. Cure: give it a model_name in its "
            "metadata, or a field model.",
            llm=type(llm).__qualname__,
        )
    return f"{llm.class_name()}#{short_hash(held)[:8]}"


def context_window(llm: LLM) -> int:
    """The tokens that a model takes; this may ask its server, so never call it on an event loop."""
    with contextlib.suppress(Exception):  # any integration's own error, when its server does not answer
        if (window := int(llm.metadata.context_window)) > 0:
            return window
    return DEFAULT_WINDOW


def is_local(llm: LLM) -> bool:
    """Whether a model's server is this machine, which reads one prompt at a time."""
    url = getattr(llm, "api_base", None) or getattr(llm, "base_url", None)
    return urlsplit(str(url)).hostname in ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104


def make_model(source: ModelSource) -> LLM:
    """The model of a setting: an LLM, what makes one, or LlamaIndex's ``Settings.llm`` where that has been set."""
    made = source if source is None or isinstance(source, LLM) else source()
    if llm := made or Settings._llm:  # noqa: SLF001  Settings.llm would take OpenAI's paid default
        return llm
    cure = "names no model. Cure: an LLM of LlamaIndex, such as llm=Ollama(model='qwen3:0.6b'), or Settings.llm = …"
    raise SettingError(cure, llm=None)


def reason_of(error: Exception) -> str:
    """Why a model did not answer, in the same few words for the same cause: a status, a timeout, a prompt too long."""
    status = service.status_of(error)
    if service.is_too_large(error):
        return "answer too large"
    if service.is_timeout(error):
        return "timeout (cure: a longer timeout, or a smaller batch_size)"
    if status in (*ABOUT_PROMPT, None) and _OVERFLOW.search(str(error)):
        return "prompt too long (cure: the model's context_window)"
    if status:
        return f"HTTP {status}" + (f" (cure: {_CURES[status]})" if status in _CURES else "")
    if service.may_pass(error):
        return "no connection (cure: start the server, or correct its address)"
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:_SHOWN]}"


def tokens_of(response: Any) -> Tokens:
    """The token counts of a LlamaIndex chat response, in OpenAI's, Anthropic's and Ollama's forms."""

    def get(source: Any, *names: str) -> Any:
        values = (source.get(name) if isinstance(source, dict) else getattr(source, name, None) for name in names)
        return next((value for value in values if value is not None), None)

    usage = get(getattr(response, "raw", None), "usage")
    cached = get(get(usage, "prompt_tokens_details"), "cached_tokens") or get(usage, "cache_read_input_tokens")
    counts = (get(usage, "prompt_tokens", "input_tokens"), cached, get(usage, "completion_tokens", "output_tokens"))
    return Tokens(*(count if isinstance(count, int) else 0 for count in counts))
