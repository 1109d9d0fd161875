"""Compare settings on a folder: each is indexed, and all indexes are asked the same questions."""

from __future__ import annotations

import re
import tempfile
import time
import warnings
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import MetadataMode

from llama_index_contextual.config import load_configuration
from llama_index_contextual.context import ChunkContext, ContextGenerator, LLMContextGenerator
from llama_index_contextual.embedding import NoEmbedding, estimate_embedding, model_id
from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.evaluation.comparison import (
    ALIKE,
    CHARACTERS,
    RANK_DEPTH,
    SHARED,
    TOP_K,
    Comparison,
    Measured,
    check_questions,
    check_top_k,
    measure,
)
from llama_index_contextual.evaluation.need import parts_of
from llama_index_contextual.evaluation.questions import answers_of
from llama_index_contextual.index import ContextualIndex
from llama_index_contextual.metadata import EVERY_KEY
from llama_index_contextual.postprocessor.rerank import reranker
from llama_index_contextual.retrievers import POOL, ContextualVectorRetriever
from llama_index_contextual.sqlite_store import SQLiteKVStore
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.config import Configuration
    from llama_index_contextual.context.base import SourceDocument
    from llama_index_contextual.context.usage import ContextEstimate
    from llama_index_contextual.evaluation.questions import Question

CONTEXTS: Final = ("off", "headings", "pattern")  # those that cost nothing
BASELINE: Final = "text alone"
_ROWS: Final = {"off": "LlamaIndex metadata"}  # what is embedded where no context is written
_NAMED: Final = 3  # questions that a warning names
_SAMPLE: Final = 8  # texts that are embedded to see how fast it goes


def evaluate(
    folder: str | Path,
    questions: Sequence[Question],
    *,
    contexts: Iterable[str] = CONTEXTS,
    variants: Mapping[str, str | Path] | None = None,
    rerank: Iterable[str | BaseNodePostprocessor] = (),
    embed_model: str | BaseEmbedding | None = None,
    storage: str | Path | None = None,
    top_k: Iterable[int] = TOP_K,
    made: str = "",
    say: Callable[[str], object] | None = None,
    show_progress: bool = False,
    **options: Any,
) -> Comparison:
    """Index a folder with its text alone and with other settings, and ask every index the same questions.

    The rows of contexts have the same chunks and the same embedding. All rows but "vectors alone" use the hybrid
    retriever of :class:`ContextualIndex`. Differences are to "text alone". ``"off"`` is the row "LlamaIndex
    metadata": what LlamaIndex embeds by itself, here path and header path. The files are those of the folder's own
    index. Every different text is embedded once. Without an embedding all rows are of keywords alone, and have no
    cosine.

    Args:
        folder: The documents.
        questions: Questions and the places of their answers. See :func:`load_questions`.
        contexts: Some of ``"off"``, ``"headings"``, ``"pattern"``, ``"llm"``. The contexts of ``"llm"`` are kept in the
            folder's own ``.contextual``, where its index finds them again.
        variants: More rows by name: each a file like ``contextual.toml``, which comes before the folder's own. It may
            set anything: chunk sizes, the embedding, contexts, fusion, weights, a reranker. It sets no files, so that
            all rows have the same.
        rerank: Rerankers, as :meth:`ContextualIndex.as_retriever` takes them. Each adds a row: the last of ``contexts``
            with it.
        embed_model: As for :meth:`ContextualIndex.open`.
        storage: A folder that keeps the indexes, so that a second run embeds only what changed. By default they are
            made in a temporary folder and deleted.
        top_k: Numbers of hits to count.
        made: What made the questions, where nobody asked them; the result says so.
        say: Called with an estimate first, and with a line before each index is made.
        show_progress: Whether to draw progress bars on stderr.
        **options: More of :meth:`ContextualIndex.open`. Those of a context, such as ``llm=``, are for ``"llm"``.

    Raises:
        SettingError: A setting is wrong, or there are no documents or questions.
        ContextError: The key of the language model is missing or refused.
    """
    counted = check_top_k(top_k)
    check_questions(questions)
    told = say or (lambda _: None)
    kinds = list(dict.fromkeys([BASELINE, *contexts]))
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="contextual-evaluation-")))
        root = temporary if storage is None else Path(storage).expanduser()
        workshop = Workshop(folder, root, temporary, {"embed_model": embed_model, **options}, stack)
        # All are opened before any is filled: a wrong setting must not cost the work of those before it.
        for kind in kinds:
            workshop.open_context(kind)
        for name, file in (variants or {}).items():
            workshop.open_variant(name, file)
        rerankers = {_name_of(one): workshop.reranker(one) for one in rerank}
        costs = workshop.estimates()
        if say is not None:
            say(workshop.work(costs))
        rows: list[Measured] = []
        parts: dict[str, tuple[bool, ...]] = {}
        depth = max(*counted, RANK_DEPTH)
        for name, index in workshop.indexes.items():
            told(f"Indexing {folder}: {name}")
            fill(index, show_progress=show_progress)
            nodes = index.nodes()
            notes = workshop.notes(index, nodes, costs.get(name))
            hybrid = index.as_retriever(depth)
            vectors = next((arm for arm in hybrid.retrievers if isinstance(arm, ContextualVectorRetriever)), None)
            if name == BASELINE:
                _warn_of_lost_gold(nodes, questions)
                parts = parts_of(questions, nodes)
            if vectors is not None:
                _embed_questions(index, questions)
            if name == BASELINE and vectors is not None:
                rows.append(measure(f"{BASELINE}, vectors alone", vectors, questions, counted))
            rows.append(measure(name, hybrid, questions, counted, notes=notes))
            for title, one in rerankers.items() if name == _ROWS.get(kinds[-1], kinds[-1]) else ():
                told(f"Asking {name}, {title}")
                reranked = index.as_retriever(depth, rerank=one)
                rows.append(measure(f"{name}, {title}", reranked, questions, counted, notes=notes))
    return Comparison(tuple(questions), counted, tuple(rows), BASELINE, parts, made)


class Workshop:
    """The indexes of a comparison: opened by their settings, with embeddings that embed each text once.

    Args:
        folder: The documents.
        root: Where the indexes are made.
        temporary: Where the vectors of texts are remembered.
        options: Of :meth:`ContextualIndex.open`.
        stack: Closes what is opened.
    """

    def __init__(
        self, folder: str | Path, root: Path, temporary: Path, options: dict[str, Any], stack: ExitStack
    ) -> None:
        self.indexes: dict[str, ContextualIndex] = {}
        self._folder, self._root, self._temporary, self._stack = Path(folder), root, temporary, stack
        self._remembering: dict[str, BaseEmbedding] = {}
        self._rates: dict[str, float | None] = {}
        shown = {key: options[key] for key in ("files", "config", "embed_model") if key in options}
        settings = ContextualIndex.open(folder, reindex="ignore", **shown).settings
        # Each kind of context has default files of its own, but rows must not differ by their files.
        shared = {"files": settings.files, "embed_model": self._remembered(settings.embedding)}
        self._options = {**options, **shared}
        self._llm = options.get("llm") or settings.configuration.context.llm.model

    def open_context(self, kind: str) -> None:
        """Open the index of a kind of context."""
        common = {*signature(ContextualIndex.open).parameters, "keep_keys", "leave_out_keys"}
        rest = {key: value for key, value in self._options.items() if key in common}
        if kind == BASELINE:
            self._open(kind, **{**rest, "context": _TextAlone(), "leave_out_keys": [EVERY_KEY]})
            return
        if kind != "llm":
            self._open(_ROWS.get(kind, kind), context=kind, **rest)
            return
        own = ContextualIndex.open(self._folder, context=kind, **{**self._options, "reindex": "ignore"})
        self._open(kind, **{**rest, "context": _paid(own)})

    def open_present(self, name: str) -> None:
        """Open an index with the folder's own settings."""
        self._open_with(name, load_configuration(self._folder, file=self._file()), self._options["embed_model"])

    def open_variant(self, name: str, file: str | Path) -> None:
        """Open the index of the folder's settings with those of a file before them."""
        if name in self.indexes or not name.strip():
            raise SettingError(f"the variant {name!r} has no name of its own. Cure: one besides {list(self.indexes)}.")
        said = load_configuration(self._folder, file=self._file(), over=file)
        own = said.origins.get("embedding.model", "").startswith(f"{Path(file).expanduser()}:")
        self._open_with(name, said, None if own else self._options["embed_model"])

    def _file(self) -> str | Path | None:
        config = self._options.get("config")
        if config is not None and not isinstance(config, str | Path):
            raise SettingError("config= must be a file here. Cure: config='FILE', or none.")
        return config

    def _open_with(self, name: str, said: Configuration, embed_model: BaseEmbedding | None) -> None:
        own = ContextualIndex.open(self._folder, config=said, reindex="ignore", embed_model=embed_model)
        self._open(
            name,
            context=_paid(own) or "off",
            node_parser=own.settings.pipeline.parser,
            embed_model=self._remembered(own.settings.embedding),
            files=self._options["files"],
            config=said,
        )

    def reranker(self, spec: str | BaseNodePostprocessor) -> BaseNodePostprocessor:
        """Return a reranker, by name or as it is."""
        return reranker(spec, POOL, self._llm) if isinstance(spec, str) else spec

    def estimates(self) -> dict[str, ContextEstimate]:
        """Return what the contexts of each index will cost."""
        return {name: index.estimate() for name, index in self.indexes.items()}

    def work(self, costs: Mapping[str, ContextEstimate]) -> str:
        """Return what a run will take: chunks, minutes of embedding, calls. Embeds a few texts."""
        chunks = costs[BASELINE].chunks
        sample = [f"{number} {'How long does the gateway wait? ' * 20}" for number in range(_SAMPLE)]
        model = self.indexes[BASELINE].settings.embedding
        started = time.monotonic()
        if not isinstance(model, NoEmbedding):
            model.get_text_embedding_batch(sample)
        minutes = (time.monotonic() - started) / _SAMPLE * chunks * len(costs) / 60
        calls = [
            f"; {name}: {counted(found.calls, 'call')}, at most {found.tokens.prompt:,} tokens in and "
            f"{found.tokens.completion:,} out"
            for name, found in costs.items()
            if found.calls
        ]
        embedding = f"about {minutes:.0f} min" if minutes > 1 else "less than a minute"
        places = "1 index" if len(costs) == 1 else f"{len(costs)} indexes"
        return f"{counted(chunks, 'chunk')} in {places}: {embedding} of embedding at most{''.join(calls)}"

    def notes(
        self, index: ContextualIndex, nodes: Sequence[BaseNode], cost: ContextEstimate | None
    ) -> dict[str, float]:
        """Return what a setting costs, and how alike its chunks are."""
        texts = {node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes}
        model = index.settings.embedding
        if isinstance(model, NoEmbedding):
            return {"chunks": len(nodes)}
        notes: dict[str, float] = {"chunks": len(nodes), CHARACTERS: sum(map(len, texts))}
        if (rate := self._rate(model, sorted(texts))) is not None:
            notes["embedding, s"] = rate * notes[CHARACTERS]
        if cost is not None and cost.calls:
            notes |= {"LLM calls": cost.calls, "LLM tokens": cost.tokens.prompt + cost.tokens.completion}
            notes |= {} if cost.price is None else {"LLM price": cost.price}
        alike = index.likeness()
        return notes | {ALIKE: alike.mean, "spread": alike.spread, SHARED: 100 * alike.shared}

    def _rate(self, model: BaseEmbedding, texts: Sequence[str]) -> float | None:
        """Return the seconds that a local model takes for a character; None for a server's."""
        key = model_id(model)
        if key not in self._rates and texts:
            seconds = estimate_embedding(model, texts).seconds
            self._rates[key] = None if seconds is None else seconds / max(1, sum(map(len, texts)))
        return self._rates.get(key)

    def _open(self, name: str, **chosen: Any) -> None:
        slug, taken = re.sub(r"[^\w.-]+", "-", name), {index.storage.name for index in self.indexes.values()}
        storage = self._root / (slug if slug not in taken else f"{slug}-{len(taken)}")
        index = ContextualIndex.open(self._folder, storage=storage, **chosen)
        same = (one for one in self.indexes.values() if one.settings.fingerprint == index.settings.fingerprint)
        if (twin := next(same, None)) is not None:  # what differs is asked otherwise, and indexed alike
            index = ContextualIndex.open(self._folder, storage=twin.storage, **chosen)
        self.indexes[name] = self._stack.enter_context(index)

    def _remembered(self, embedding: BaseEmbedding) -> BaseEmbedding:
        """Return an embedding that embeds each text once; each model has a cache of its own, whose keys are texts."""
        if isinstance(embedding, NoEmbedding):
            return embedding
        key = model_id(embedding)
        if key not in self._remembering:
            cache = SQLiteKVStore(self._temporary / f"embeddings-{len(self._remembering)}.sqlite3")
            self._stack.callback(cache.close)
            self._remembering[key] = embedding.model_copy(update={"embeddings_cache": cache})
        return self._remembering[key]


def _paid(own: ContextualIndex) -> ContextGenerator | None:
    """Return the generator of the folder's own index, whose cache keeps what was paid for."""
    generator: ContextGenerator | None = own.settings.pipeline.contexts.generator
    model = getattr(generator, "first", generator)
    if isinstance(model, LLMContextGenerator):
        model.require_key()
    return generator


def _name_of(rerank: str | BaseNodePostprocessor) -> str:
    return rerank if isinstance(rerank, str) else type(rerank).__name__


def _embed_questions(index: ContextualIndex, questions: Sequence[Question]) -> None:
    """Embed all questions, so that the times of the rows do not tell which of them came first."""
    for question in questions:
        index.settings.embedding.get_query_embedding(question.text)


class _TextAlone(ContextGenerator):
    """An empty context, beside which metadata can be left out of what is embedded."""

    name = "none"
    version = "1"

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:  # noqa: ARG002
        return [ChunkContext("", self.name, version=self.version) for _ in nodes]


def fill(index: ContextualIndex, *, show_progress: bool) -> None:
    """Bring an index up to date, warn of files that cannot be read, and refuse one without chunks."""
    report = index.refresh(show_progress=show_progress, confirm=True)  # what is evaluated is chosen on purpose
    if report.failed:
        warnings.warn(
            f"{counted(len(report.failed), 'file')} could not be read, e.g. {report.failed[0]}",
            ContextualWarning,
            stacklevel=3,
        )
    if not report.chunks:
        raise SettingError(f"{index.settings.folder} holds no files to index. Cure: choose a folder of Markdown files.")


def _warn_of_lost_gold(nodes: Sequence[BaseNode], questions: Sequence[Question]) -> None:
    """Warn of answers that no chunk holds: the path or the quotation is wrong, or the text is in two chunks."""
    answers = answers_of(questions, nodes)
    lost = [
        f"{question.text!r} ({next(passage for passage, held in found.items() if not held)})"
        for question, found in answers
        if not all(found.values())
    ]
    if lost:
        have = "1 question has" if len(lost) == 1 else f"{len(lost):,} questions have"
        warnings.warn(
            f"{have} an answer that no chunk holds; such an answer counts as not found: "
            f"{'; '.join(lost[:_NAMED])}{' …' if len(lost) > _NAMED else ''}. Cure: correct path and lines, and quote "
            "only a few words as text.",
            ContextualWarning,
            stacklevel=3,
        )
