"""Which generator makes a chunk's context: the one that a setting names, and those that stand in for it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, TypedDict

from llama_index.core.prompts.mixin import PromptMixin

from llama_index_contextual.checks import refuse_unknown
from llama_index_contextual.context.base import BulkContextGenerator, ContextGenerator, DocumentChunks
from llama_index_contextual.context.headings import HeadingContextGenerator
from llama_index_contextual.context.llm.generator import LLMContextGenerator
from llama_index_contextual.context.pattern import PatternContextGenerator
from llama_index_contextual.errors import ContextualWarning, SettingError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from llama_index.core.llms import LLM
    from llama_index.core.prompts import BasePromptTemplate
    from llama_index.core.prompts.mixin import PromptDictType, PromptMixinType
    from llama_index.core.storage.kvstore.types import BaseKVStore

    from llama_index_contextual.context.base import ChunkContext, Progress
    from llama_index_contextual.context.cache import Reuse
    from llama_index_contextual.context.llm.request import Patience
    from llama_index_contextual.context.usage import ContextEstimate, ContextUsage, Prices

OFF: Final = "off"

_NEXT: Final = " The next run asks for them again."
_NEXT_OF_THIS: Final = (
    " The next run of this object asks for them again. Another process does not know of them: if it loads this "
    "IngestionPipeline's own cache, it takes them for final. Cure: cache= for the contexts, too, or fallback=None."
)


class FallbackContextGenerator(BulkContextGenerator, PromptMixin):
    """Asks one generator, then the next about the chunks that got no context from it, and so on.

    Each context says who made it, so a later run asks the first generator again about exactly those that fell back.
    How many did, and why, is said in one :class:`ContextualWarning` at the end of a run.

    Args:
        generators: Best first. All but the first should be free.

    Raises:
        SettingError: There are none.
    """

    def __init__(self, generators: Sequence[ContextGenerator]) -> None:
        if not generators:
            raise SettingError("A FallbackContextGenerator without generators has none to ask. Cure: give some.")
        self.generators = tuple(generators)

    def __repr__(self) -> str:
        return f"FallbackContextGenerator({list(self.generators)!r})"

    @property
    def first(self) -> ContextGenerator:
        """The one whose contexts are wanted."""
        return self.generators[0]

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the first."""
        return self.first.name

    @property
    def version(self) -> str:
        """Version of the first: contexts of the others are upgraded anyway."""
        return self.first.version

    @property
    def free(self) -> bool:  # type: ignore[override]
        """Whether none costs anything."""
        return all(generator.free for generator in self.generators)

    @property
    def usage(self) -> ContextUsage:
        """Usage of the first."""
        return self.first.usage

    def estimate(self, batches: Sequence[DocumentChunks], prices: Prices | None = None) -> ContextEstimate:
        """Estimate of the first."""
        return self.first.estimate(batches, prices)

    def at_query_time(self) -> ContextGenerator | None:
        """Give the first that may run while a query waits."""
        return next((generator for generator in self.generators if generator.free), None)

    def config(self) -> dict[str, Any]:
        """Settings of the first, and the names of the others."""
        return {**self.first.config(), "fallback": [generator.name for generator in self.generators[1:]]}

    def state(self) -> str:
        """State of the first."""
        return self.first.state()

    def close(self) -> None:
        """Close all."""
        for generator in self.generators:
            generator.close()

    def _get_prompts(self) -> PromptDictType:
        return {key: prompt for part in self._with_prompts() for key, prompt in part.get_prompts().items()}

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        for part in self._with_prompts():
            part.update_prompts(prompts)

    def _with_prompts(self) -> list[PromptMixin]:
        return [part for part in self.generators if isinstance(part, PromptMixin)]

    def generate_all(
        self, batches: Sequence[DocumentChunks], progress: Progress | None = None
    ) -> list[list[ChunkContext | None]]:
        """Do several documents."""
        results = self.first.generate_all(batches, progress)
        for generator in self.generators[1:]:
            missing, places = _missing(batches, results)
            if missing:
                _fill_in(results, places, generator.generate_all(missing))
        self._report(results)
        return results

    async def agenerate_all(
        self, batches: Sequence[DocumentChunks], progress: Progress | None = None
    ) -> list[list[ChunkContext | None]]:
        """Do several documents without blocking the event loop."""
        results = await self.first.agenerate_all(batches, progress)
        for generator in self.generators[1:]:
            missing, places = _missing(batches, results)
            if missing:
                _fill_in(results, places, await generator.agenerate_all(missing))
        self._report(results)
        return results

    def _report(self, results: list[list[ChunkContext | None]]) -> None:
        sources = Counter("no context" if context is None else context.source for found in results for context in found)
        total, ours = sum(sources.values()), sources.pop(self.first.name, 0)
        messages = []
        if ours < total:
            whose = ", ".join(f"{count} {source}" for source, count in sources.most_common())
            failures = Counter(getattr(self.first, "last_failures", {}))
            why = ", ".join(f"{count} {reason}" for reason, count in failures.most_common())
            messages.append(
                f"{total - ours} of {total} chunks {'has' if total - ours == 1 else 'have'} no context from "
                f"{self.first.name} but fell back ({whose})"
                + (f", because: {why}." if why else ".")
                + (_NEXT if getattr(self.first, "remembers_failures", True) else _NEXT_OF_THIS)
            )
        if (error := getattr(self.first, "cache_error", None)) is not None:
            messages.append(f"What was generated is used, and could not be kept everywhere: {error}")
        for message in messages:
            warnings.warn(message, ContextualWarning, stacklevel=2)


def _missing(
    batches: Sequence[DocumentChunks], results: list[list[ChunkContext | None]]
) -> tuple[list[DocumentChunks], list[tuple[int, list[int]]]]:
    todo, places = [], []
    for number, (batch, found) in enumerate(zip(batches, results, strict=True)):
        indexes = [index for index, context in enumerate(found) if context is None]
        if indexes:
            todo.append(DocumentChunks(batch.document, tuple(batch.nodes[index] for index in indexes)))
            places.append((number, indexes))
    return todo, places


def _fill_in(
    results: list[list[ChunkContext | None]],
    places: list[tuple[int, list[int]]],
    contexts: list[list[ChunkContext | None]],
) -> None:
    for (number, indexes), found in zip(places, contexts, strict=True):
        for index, context in zip(indexes, found, strict=True):
            results[number][index] = context


class ContextOptions(TypedDict, total=False):
    """Settings of the kinds of contexts, as their classes name and describe them, for type checkers."""

    template: str
    max_chars: int
    max_symbols: int
    max_lexical_chars: int
    llm: str | LLM | None
    fallback: str | Sequence[str] | None
    cache: str | os.PathLike[str] | BaseKVStore | bool | None
    reuse: Reuse
    prompt: str | BasePromptTemplate | None
    beside: str | None
    batch_size: int
    num_workers: int | None
    patience: Patience | Mapping[str, Any] | None
    max_calls: int | None
    max_tokens: int | None
    max_output_tokens: int
    context_window: int | None
    fallback_only: bool
    retry: bool
    api_key: str | None


class StepOptions(ContextOptions, total=False):
    """The same, and what an index passes on to the step that writes contexts."""

    keep_keys: Sequence[str]
    leave_out_keys: Sequence[str]


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
