"""Context generators by name: headings, patterns, a language model."""

from __future__ import annotations

from inspect import signature
from typing import Any, Final

from llama_index_contextual.context.base import ContextGenerator
from llama_index_contextual.context.headings import FREE
from llama_index_contextual.utils.errors import one_of, refuse_unknown

OFF: Final = "off"
LLM: Final = "llm"
CONTEXTS: Final = (OFF, *sorted(FREE), LLM)
_ALIASES: Final = {None: OFF, False: OFF, "headers": "headings"}


def context_name(name: object) -> str:
    """The name of a kind of contexts, of those in :data:`CONTEXTS`: ``None`` and ``False`` are ``"off"``.

    Raises:
        SettingError: There is no such kind.
    """
    if name is None or isinstance(name, str | bool):
        name = _ALIASES.get(name, name)
    one_of("context", name, CONTEXTS)
    return str(name)


def resolve_generator(
    spec: str | ContextGenerator | bool | None = "headings", **options: Any
) -> ContextGenerator | None:
    """The generator of a setting; None where contexts are off.

    Args:
        spec: ``"off"``, ``"headings"`` (or ``"headers"``), ``"pattern"``, ``"llm"``, or a generator, which is returned
            as it is.
        **options: Those of ``LLMContextGenerator``, for ``"llm"`` alone.

    Raises:
        SettingError: The kind or an option is unknown; the message lists those that exist.
    """
    if isinstance(spec, ContextGenerator):
        refuse_unknown("a generator that is already made", options, ())
        return spec
    name = context_name(spec)
    if name == LLM:
        from llama_index_contextual.context.llm import LLMContextGenerator

        refuse_unknown("context='llm'", options, signature(LLMContextGenerator).parameters)
        return LLMContextGenerator(**options)
    hint = "Use context='llm' (--context llm), or leave it out." if "llm" in options else ""
    refuse_unknown(f"context={name!r}", options, (), hint)
    return FREE[name]() if name in FREE else None
