"""From one setting to a generator: ``"off"``, ``"headings"``, ``"pattern"``, ``"llm"``, or one of your own."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.checks import refuse_unknown
from llama_index_contextual.context.base import ContextGenerator
from llama_index_contextual.context.fallback import FallbackContextGenerator
from llama_index_contextual.context.headings import HeadingContextGenerator
from llama_index_contextual.context.llm import LLMContextGenerator
from llama_index_contextual.context.pattern import PatternContextGenerator
from llama_index_contextual.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable

OFF: Final = "off"


def resolve_generator(spec: str | ContextGenerator | None = "headings", **options: Any) -> ContextGenerator | None:
    """Give the generator that a setting names.

    Args:
        spec: ``"off"`` or None for none, a kind by name, or a generator, which is returned as it is.
        **options: Settings of that kind, as its class names them. ``"llm"`` also takes ``fallback``: which free kinds
            stand in for it, best first; None for none.

    Raises:
        SettingError: The kind or an option is unknown; the message lists those that exist.
    """
    if isinstance(spec, ContextGenerator):
        _refuse(options, "a generator that is already made", ())
        return spec
    if spec is None or spec == OFF:
        _refuse(options, f"context={OFF!r}", ())
        return None
    make = _KINDS.get(spec) if isinstance(spec, str) else None
    if make is None:
        names = ", ".join(repr(name) for name in (OFF, *_KINDS))
        raise SettingError(f"context={spec!r} is not known. Cure: use one of {names}, or a ContextGenerator.")
    known = {*signature(make).parameters, *(signature(LLMContextGenerator).parameters if make is _llm else ())}
    _refuse(options, f"context={spec!r}", tuple(sorted(known - {"options"})))
    return make(**options)


def _refuse(options: dict[str, Any], what: str, known: tuple[str, ...]) -> None:
    unused = "llm" in options and "llm" not in known and what.startswith("context=")  # given, but not said to be used
    refuse_unknown(what, options, known, "context='llm' (--context llm), or leave it out" if unused else "")


def _llm(*, fallback: str | Sequence[str] | None = ("pattern", "headings"), **options: Any) -> ContextGenerator:
    names = [fallback] if isinstance(fallback, str) else fallback or ()
    if not isinstance(names, Sequence) or any(name not in tuple(_FREE) for name in names):
        raise SettingError(f"fallback={fallback!r} is not known. Cure: use some of {', '.join(_FREE)}, or None.")
    first = LLMContextGenerator(**options)
    return FallbackContextGenerator([first, *(_FREE[name]() for name in names)]) if names else first


_FREE: Final[dict[str, Callable[..., ContextGenerator]]] = {
    "pattern": PatternContextGenerator,
    "headings": HeadingContextGenerator,
}
_KINDS: Final[dict[str, Callable[..., ContextGenerator]]] = {**_FREE, "llm": _llm}
