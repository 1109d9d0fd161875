"""Generators of chunk contexts: from headings, from patterns, from an LLM; and the names that stand for them."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.context.base import (
    ChunkContext,
    ContextEstimate,
    ContextGenerator,
    ContextProgress,
    ContextUsage,
    DocumentChunks,
    Progress,
    SourceDocument,
    Tokens,
)
from llama_index_contextual.context.documents import group_by_document
from llama_index_contextual.context.free import FREE, HeadingContextGenerator, PatternContextGenerator
from llama_index_contextual.errors import SettingError, refuse_unknown
from llama_index_contextual.sqlite_store import SQLiteKVStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from llama_index_contextual.context.llm import LLMContextGenerator
    from llama_index_contextual.context.models import LLMOptions

__all__ = [  # what users import
    "ChunkContext",
    "ContextEstimate",
    "ContextGenerator",
    "ContextProgress",
    "ContextUsage",
    "DocumentChunks",
    "HeadingContextGenerator",
    "LLMContextGenerator",
    "LLMOptions",
    "PatternContextGenerator",
    "SQLiteKVStore",
    "SourceDocument",
    "Tokens",
    "resolve_generator",
]

OFF: Final = "off"
LLM: Final = "llm"
CONTEXTS: Final = (OFF, *sorted(FREE), LLM)
_LATE: Final = {"LLMContextGenerator": "llm", "LLMOptions": "models"}  # a tenth of a question's start
_ALIASES: Final = {None: OFF, False: OFF, "headers": "headings"}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)


def context_name(name: object) -> str:
    """The name of a kind of contexts, of those in :data:`CONTEXTS`: ``None`` and ``False`` are ``"off"``.

    Raises:
        SettingError: There is no such kind.
    """
    if name is None or isinstance(name, str | bool):
        name = _ALIASES.get(name, name)
    if not isinstance(name, str) or name not in CONTEXTS:
        names = ", ".join(map(repr, CONTEXTS))
        raise SettingError(f"is not known. Cure: use one of {names}, or a ContextGenerator.", context=name)
    return name


def resolve_generator(
    spec: str | ContextGenerator | bool | None = "headings", **options: Any
) -> ContextGenerator | None:
    """The generator of a setting; None where contexts are off.

    Args:
        spec: ``"off"``, ``"headings"`` (or ``"headers"``), ``"pattern"``, ``"llm"``, or a generator, which is returned
            as it is.
        **options: Settings of that kind, as its class names them, for ``"llm"`` those of ``LLMOptions`` too. Where a
            language model gives a chunk no context, ``"pattern"`` stands in unless ``fallback`` says otherwise.

    Raises:
        SettingError: The kind or an option is unknown; the message lists those that exist.
    """
    if isinstance(spec, ContextGenerator):
        _refuse(options, "a generator that is already made", ())
        return spec
    name = context_name(spec)
    if name == OFF:
        _refuse(options, f"context={OFF!r}", ())
        return None
    if name == LLM:
        from llama_index_contextual.context.llm import LLMContextGenerator
        from llama_index_contextual.context.models import LLMOptions

        more = [field.name for field in fields(LLMOptions)]
        _refuse(options, f"context={LLM!r}", {*signature(LLMContextGenerator).parameters, *more} - {"options"})
        chosen = LLMOptions(**{key: options.pop(key) for key in more if key in options})
        return LLMContextGenerator(**{"fallback": "pattern", **options}, options=chosen)
    make: Callable[..., ContextGenerator] = FREE[name]
    _refuse(options, f"context={name!r}", signature(make).parameters)
    return make(**options)


def _refuse(options: dict[str, Any], what: str, known: Iterable[str]) -> None:
    """Raise a SettingError for options that a kind does not take."""
    is_for_model = "llm" in options and "llm" not in known
    refuse_unknown(what, options, known, "context='llm' (--context llm), or leave it out" if is_for_model else "")
