"""Names of contexts, and the generators that they stand for."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.context.base import ContextGenerator
from llama_index_contextual.context.free import FREE
from llama_index_contextual.errors import SettingError, refuse_unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

OFF: Final = "off"
LLM: Final = "llm"
HEADINGS: Final = "headings"
HEADERS: Final = "headers"  # another name of the same
CONTEXTS: Final = (OFF, *sorted(FREE), LLM)
_FALLBACK: Final = "pattern"


def context_name(name: object) -> str:
    """The name of a kind of contexts, of those in :data:`CONTEXTS`: ``None`` and ``False`` are ``"off"``.

    Raises:
        SettingError: There is no such kind.
    """
    if name is None or name is False:
        return OFF
    name = HEADINGS if name == HEADERS else name
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
        # Imported where a model is asked: that takes a tenth of a question's start.
        from llama_index_contextual.context.llm import LLMContextGenerator
        from llama_index_contextual.context.requests import LLMOptions

        more = [field.name for field in fields(LLMOptions)]
        of_generator = signature(LLMContextGenerator).parameters.keys() - {"options"}
        _refuse(options, f"context={LLM!r}", (*of_generator, *more))
        chosen = LLMOptions(**{key: options.pop(key) for key in more if key in options})
        return LLMContextGenerator(**{"fallback": _FALLBACK, **options}, options=chosen)
    make: Callable[..., ContextGenerator] = FREE[name]
    _refuse(options, f"context={name!r}", signature(make).parameters)
    return make(**options)


def _refuse(options: dict[str, Any], what: str, known: Iterable[str]) -> None:
    """Raise a SettingError for options that a kind does not take."""
    is_for_model = "llm" in options and "llm" not in known
    refuse_unknown(what, options, known, "context='llm' (--context llm), or leave it out" if is_for_model else "")
