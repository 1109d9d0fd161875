"""Choose a generator by its name, and let others stand in where it has no context for a chunk."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, TypedDict

from llama_index.core.prompts.mixin import PromptMixin

from llama_index_contextual.checks import refuse_unknown
from llama_index_contextual.context.base import ContextGenerator, DocumentChunks
from llama_index_contextual.context.free import FREE
from llama_index_contextual.errors import ContextualWarning, SettingError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from llama_index.core.llms import LLM
    from llama_index.core.prompts import BasePromptTemplate
    from llama_index.core.prompts.mixin import PromptDictType, PromptMixinType
    from llama_index.core.schema import BaseNode
    from llama_index.core.storage.kvstore.types import BaseKVStore

    from llama_index_contextual.context.base import ChunkContext, Contexts, Progress, SourceDocument
    from llama_index_contextual.context.cache import Reuse
    from llama_index_contextual.context.llm.generator import LLMContextGenerator
    from llama_index_contextual.context.llm.request import Patience
    from llama_index_contextual.context.usage import ContextEstimate, ContextUsage, Prices

OFF: Final = "off"

_NEXT: Final = " The next run asks for them again."
_NEXT_OF_THIS: Final = (
    " The next run of this object asks for them again. Another process does not know of them: if it loads this "
    "IngestionPipeline's own cache, it takes them for final. Cure: cache= for the contexts, too, or fallback=None."
)


class FallbackContextGenerator(ContextGenerator, PromptMixin):
    """Asks one generator, then the next about the chunks that got no context from it, and so on.

    Each context says who made it, so a later run asks the first generator again about exactly those that fell back.
    One :class:`ContextualWarning` at the end of a run says how many did, and why.

    Args:
        generators: Best first. All but the first should be free. Name, version, usage, estimate and settings are those
            of the first.

    Raises:
        SettingError: There are none.
    """

    def __init__(self, generators: Sequence[ContextGenerator]) -> None:
        if not generators:
            raise SettingError("A FallbackContextGenerator without generators has none to ask. Cure: give some.")
        self.generators = tuple(generators)
        self.first = self.generators[0]

    def __repr__(self) -> str:
        return f"FallbackContextGenerator({list(self.generators)!r})"

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the first."""
        return self.first.name

    @property
    def version(self) -> str:
        """Version of the first: contexts of the others are replaced by a later run."""
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
        """Return the estimate of the first."""
        return self.first.estimate(batches, prices)

    def at_query_time(self) -> ContextGenerator | None:
        """Return the first generator that may run while a query waits."""
        return next((generator for generator in self.generators if generator.free), None)

    def config(self) -> dict[str, Any]:
        """Return the settings of the first, and the names of the others."""
        return {**self.first.config(), "fallback": [generator.name for generator in self.generators[1:]]}

    def state(self) -> str:
        """Return the state of the first."""
        return self.first.state()

    def close(self) -> None:
        """Close all."""
        for generator in self.generators:
            generator.close()

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:
        """Return one context per node of a document."""
        return self.generate_all([DocumentChunks(document, tuple(nodes))])[0]

    def generate_all(self, batches: Sequence[DocumentChunks], progress: Progress | None = None) -> Contexts:
        """Return the contexts of several documents."""
        results = self.first.generate_all(batches, progress)
        for generator in self.generators[1:]:
            if missing := _missing(batches, results):
                _fill_in(results, generator.generate_all(missing))
        self._warn(results)
        return results

    async def agenerate_all(self, batches: Sequence[DocumentChunks], progress: Progress | None = None) -> Contexts:
        """Do the same without blocking the event loop."""
        results = await self.first.agenerate_all(batches, progress)
        for generator in self.generators[1:]:
            if missing := _missing(batches, results):
                _fill_in(results, await generator.agenerate_all(missing))
        self._warn(results)
        return results

    def _get_prompts(self) -> PromptDictType:
        return {key: prompt for part in self._with_prompts() for key, prompt in part.get_prompts().items()}

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        for part in self._with_prompts():
            part.update_prompts(prompts)

    def _with_prompts(self) -> list[PromptMixin]:
        return [part for part in self.generators if isinstance(part, PromptMixin)]

    def _warn(self, results: Contexts) -> None:
        """Warn once of all chunks that fell back, and of contexts that could not be stored."""
        first = self.first
        sources = Counter("no context" if context is None else context.source for row in results for context in row)
        total, ours = sum(sources.values()), sources.pop(first.name, 0)
        if ours < total:
            others = ", ".join(f"{count} {source}" for source, count in sources.most_common())
            reasons = ", ".join(f"{count} {reason}" for reason, count in Counter(first.last_failures).most_common())
            warnings.warn(
                f"{total - ours} of {total} chunks {'has' if total - ours == 1 else 'have'} no context from "
                f"{first.name} but fell back ({others}){f', because: {reasons}' if reasons else ''}."
                f"{_NEXT if first.remembers_failures else _NEXT_OF_THIS}",
                ContextualWarning,
                stacklevel=2,
            )
        if first.cache_error is not None:
            message = f"What was generated is used, and could not be kept everywhere: {first.cache_error}"
            warnings.warn(message, ContextualWarning, stacklevel=2)


def _missing(batches: Sequence[DocumentChunks], results: Contexts) -> list[DocumentChunks]:
    """Return the chunks that have no context yet."""
    rows = [
        (batch.document, tuple(node for node, context in zip(batch.nodes, contexts, strict=True) if context is None))
        for batch, contexts in zip(batches, results, strict=True)
    ]
    return [DocumentChunks(document, nodes) for document, nodes in rows if nodes]


def _fill_in(results: Contexts, answers: Contexts) -> None:
    """Put the contexts of those chunks in their places."""
    for contexts, answer in zip([row for row in results if None in row], answers, strict=True):
        gaps = [index for index, context in enumerate(contexts) if context is None]
        for index, context in zip(gaps, answer, strict=True):
            contexts[index] = context


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
    """Return the generator that a setting names.

    Args:
        spec: ``"off"`` or None for none, the name of a kind, or a generator, which is returned as it is.
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
        raise SettingError(f"is not known. Cure: use one of {names}, or a ContextGenerator.", context=spec)
    known = {*signature(make).parameters, *(signature(_class_for_models()).parameters if make is _llm else ())}
    _refuse(options, f"context={spec!r}", tuple(sorted(known - {"options"})))
    return make(**options)


def _refuse(options: dict[str, Any], what: str, known: tuple[str, ...]) -> None:
    """Raise a SettingError for options that a kind does not take; a model that nobody would ask has its own cure."""
    unused = "llm" in options and "llm" not in known and what.startswith("context=")
    refuse_unknown(what, options, known, "context='llm' (--context llm), or leave it out" if unused else "")


def _llm(*, fallback: str | Sequence[str] | None = ("pattern", "headings"), **options: Any) -> ContextGenerator:
    names = [fallback] if isinstance(fallback, str) else fallback or ()
    if not isinstance(names, Sequence) or any(name not in tuple(FREE) for name in names):
        raise SettingError(f"fallback={fallback!r} is not known. Cure: use some of {', '.join(FREE)}, or None.")
    first = _class_for_models()(**options)
    return FallbackContextGenerator([first, *(FREE[name]() for name in names)]) if names else first


def _class_for_models() -> type[LLMContextGenerator]:
    """Import what asks language models only where one is asked: that takes a tenth of a question's start."""
    from llama_index_contextual.context.llm.generator import LLMContextGenerator

    return LLMContextGenerator


_KINDS: Final[dict[str, Callable[..., ContextGenerator]]] = {**FREE, "llm": _llm}
