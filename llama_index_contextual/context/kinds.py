"""Choose a context generator by its name."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.app.config import SETTINGS
from llama_index_contextual.context.base import ContextGenerator
from llama_index_contextual.context.free import FREE
from llama_index_contextual.errors import SettingError, refuse_unknown

if TYPE_CHECKING:
    from collections.abc import Callable


OFF: Final = "off"
LLM: Final = "llm"
_FALLBACK: Final = "pattern"


def resolve_generator(spec: str | ContextGenerator | None = "headings", **options: Any) -> ContextGenerator | None:
    """Return the generator that a setting names.

    Args:
        spec: ``"off"`` or None for none, the name of a kind, or a generator, which is returned as it is.
        **options: Settings of that kind, as its class names them. Where a language model gives a chunk no context,
            ``"pattern"`` stands in unless ``fallback`` says otherwise.

    Raises:
        SettingError: The kind or an option is unknown; the message lists those that exist.
    """
    if isinstance(spec, ContextGenerator):
        _refuse(options, "a generator that is already made", ())
        return spec
    if spec is None or spec == OFF:
        _refuse(options, f"context={OFF!r}", ())
        return None
    if spec not in (*FREE, LLM):
        names = ", ".join(map(repr, (OFF, *FREE, LLM)))
        raise SettingError(f"is not known. Cure: use one of {names}, or a ContextGenerator.", context=spec)
    make: Callable[..., ContextGenerator] | None = FREE.get(spec)
    if make is None:
        # Imported where a model is asked: that takes a tenth of a question's start.
        from llama_index_contextual.context.llm import LLMContextGenerator
        from llama_index_contextual.context.run import LLMSettings

        _refuse(options, f"context={spec!r}", (*LLMSettings.model_fields, "cache", "api_key"))
        return LLMContextGenerator(**{"fallback": _FALLBACK, **options})
    _refuse(options, f"context={spec!r}", tuple(signature(make).parameters))
    return make(**options)


def _refuse(options: dict[str, Any], what: str, known: tuple[str, ...]) -> None:
    """Raise a SettingError for options that a kind does not take; it says where else one of that name is set."""
    cure, elsewhere = "", {one.table for one in SETTINGS.values() if one.name in set(options) - set(known)} - {""}
    if "llm" in options and "llm" not in known and what.startswith("context="):
        cure = "context='llm' (--context llm), or leave it out"
    elif elsewhere:
        cure = f"contextual.toml, under [{'], ['.join(sorted(elsewhere))}]"
    refuse_unknown(what, options, known, cure)
