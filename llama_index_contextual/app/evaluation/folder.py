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

from llama_index_contextual.app.evaluation.comparison import (
    ALIKE,
    CHARACTERS,
    RANK_DEPTH,
    SHARED,
    TOP_K,
    Comparison,
    RetrieverScores,
    check_asking,
    measure,
)
from llama_index_contextual.app.evaluation.metrics import parts_of
from llama_index_contextual.app.evaluation.questions import answers_of
from llama_index_contextual.app.index import ContextualIndex
from llama_index_contextual.app.settings.embeddings import NoEmbedding, estimate_embedding, model_id
from llama_index_contextual.app.settings.loading import load_configuration
from llama_index_contextual.app.settings.rerankers import resolve_reranker
from llama_index_contextual.context import HeadingContextGenerator, context_name
from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.metadata import EVERY_KEY
from llama_index_contextual.retrieval import POOL, ContextualVectorRetriever
from llama_index_contextual.sqlite_store import SQLiteKVStore
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.app.evaluation.questions import Question
    from llama_index_contextual.context import ContextEstimate

CONTEXTS: Final = ("off", "headings", "pattern")  # those that cost nothing
BASELINE: Final = "text alone"
_METADATA: Final = "LlamaIndex metadata"  # what is embedded where no context is written
_NAMED: Final = 3  # questions that a warning names
_SAMPLE: Final = [f"{number} {'How long does the gateway wait? ' * 20}" for number in range(8)]


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
    say: Callable[[str], object] | None = None,
    show_progress: bool = False,
    **options: Any,
) -> Comparison:
    """Index a folder with its text alone and with other settings, and ask every index the same questions.

    The rows of contexts have the same chunks and the same embedding. All rows but "vectors alone" use the hybrid
    retriever of :class:`ContextualIndex`. Differences are to "text alone". ``"off"`` is the row "LlamaIndex
    metadata": what LlamaIndex embeds by itself, here path and header path. Files and chunks are those of the folder's
    own index. Every different text is embedded once. Without an embedding all rows are of keywords alone, and have no
    cosine.

    Args:
        folder: The documents.
        questions: Questions and the places of their answers. See :func:`load_questions`.
        contexts: Some of ``"off"``, ``"headings"`` (or ``"headers"``), ``"pattern"``, ``"llm"``. The contexts of
            ``"llm"`` are kept in the folder's own ``.contextual``, where its index finds them again.
        variants: More rows by name: each a file like ``contextual.toml``, which comes before the folder's own. It may
            set anything: chunk sizes, the embedding, contexts, fusion, weights, a reranker. It sets no files, so that
            all rows have the same.
        rerank: Rerankers, as :meth:`ContextualIndex.as_retriever` takes them. Each adds a row: the last of ``contexts``
            with it.
        embed_model: As for :meth:`ContextualIndex.open`.
        storage: A folder that keeps the indexes, so that a second run embeds only what changed. By default they are
            made in a temporary folder and deleted.
        top_k: Numbers of hits to count.
        say: Called with an estimate first, and with a line before each index is made.
        show_progress: Whether to draw progress bars on stderr.
        **options: More of :meth:`ContextualIndex.open`. Those of a context, such as ``llm=``, are for ``"llm"``.

    Raises:
        SettingError: A setting is wrong, or there are no documents or questions.
        ContextError: The key of the language model is missing or refused.
    """
    depths = check_asking(questions, top_k)
    announce = say or (lambda _: None)
    with ExitStack() as stack:
        experiment = Experiment(folder, storage, {"embed_model": embed_model, **options}, stack)
        # All are opened before any is filled: a wrong setting must not cost the work of those before it.
        # Beside an empty context all metadata can be left out of what is embedded.
        experiment.open(BASELINE, context=HeadingContextGenerator(template=""), leave_out_keys=[EVERY_KEY])
        *_, last = [BASELINE, *(experiment.open_context(kind) for kind in dict.fromkeys(map(context_name, contexts)))]
        for name, file in (variants or {}).items():
            experiment.open_variant(name, file)
        rerankers = dict(map(experiment.reranker, rerank))
        costs = {name: index.estimate() for name, index in experiment.indexes.items()}
        if say is not None:
            say(experiment.work(costs))
        rows: list[RetrieverScores] = []
        parts: dict[str, tuple[bool, ...]] = {}
        for name, cost in costs.items():
            announce(f"Indexing {folder}: {name}")
            index = experiment.fill(name, show_progress=show_progress)
            nodes = index.nodes()
            notes = experiment.notes(name, nodes, cost)
            hybrid = index.as_retriever(max(*depths, RANK_DEPTH))
            vectors = next((arm for arm in hybrid.retrievers if isinstance(arm, ContextualVectorRetriever)), None)
            for question in questions if vectors else ():  # else the times would tell which row came first
                index.settings.embedding.get_query_embedding(question.text)
            if name == BASELINE:
                _warn_of_lost_answers(nodes, questions)
                parts = parts_of(questions, nodes)
                rows += [measure(f"{BASELINE}, vectors alone", vectors, questions, depths)] if vectors else []
            rows.append(measure(name, hybrid, questions, depths, notes))
            for title, step in rerankers.items() if name == last else ():
                announce(f"Asking {name}, {title}")
                retriever = index.as_retriever(max(*depths, RANK_DEPTH), rerank=step)
                rows.append(measure(f"{name}, {title}", retriever, questions, depths, notes))
    return Comparison(tuple(questions), depths, tuple(rows), BASELINE, parts)


class Experiment:
    """Indexes of one folder by different settings, apart from its own index. Each text is embedded once.

    Args:
        folder: The documents.
        storage: Where the indexes are kept; None for a temporary folder.
        options: Of :meth:`ContextualIndex.open`.
        stack: Closes and deletes what is made.
    """

    def __init__(
        self, folder: str | Path, storage: str | Path | None, options: Mapping[str, Any], stack: ExitStack
    ) -> None:
        self.indexes: dict[str, ContextualIndex] = {}
        self._folder, self._stack = Path(folder), stack
        self._temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="contextual-evaluation-")))
        self._root = self._temporary if storage is None else Path(storage).expanduser()
        self._embeddings: dict[str, BaseEmbedding] = {}
        self._rates: dict[str, float | None] = {}
        general = {key: options[key] for key in ("files", "config", "embed_model") if key in options}
        settings = ContextualIndex.open(folder, **general, reindex="ignore").settings
        # Each kind of context has default files of its own, but rows must not differ by their files.
        self._options = {**options, "files": settings.reading.rules, "embed_model": settings.embedding}
        self._llm = options.get("llm") or settings.configuration["context_options.llm"]

    def open_context(self, kind: str) -> str:
        """Open the index of a kind of context, and return its name."""
        name = _METADATA if kind == "off" else kind
        self.open(name, context=kind, **(self._options if kind == "llm" else {}))
        return name

    def open_variant(self, name: str, file: str | Path) -> None:
        """Open the index of the folder's settings with those of a file before them."""
        if name in self.indexes or not name.strip():
            raise SettingError(f"the variant {name!r} has no name of its own. Cure: one besides {list(self.indexes)}.")
        base = self._options.get("config")
        if base is not None and not isinstance(base, str | Path):
            raise SettingError("config= must be a file here. Cure: config='FILE', or none.")
        config = load_configuration(self._folder, file=base, over=file)
        has_embedding = config.origins.get("embed_model") == str(Path(file).expanduser())
        self.open(name, config=config, node_parser=None, **({"embed_model": None} if has_embedding else {}))

    def open(self, name: str, **changes: Any) -> None:
        """Open an index with the settings of the folder's own index, but for some.

        Contexts that were paid for are kept with the folder's own index. Rows that are indexed alike share an index.
        """
        general = {*signature(ContextualIndex.open).parameters, "files", "keep_keys", "leave_out_keys"}
        options = {key: value for key, value in self._options.items() if key in general}
        target = ContextualIndex.open(self._folder, **{**options, **changes, "reindex": "ignore"}).settings
        if target.pipeline.model is not None:
            target.pipeline.model.require_key()
        slug, slugs = re.sub(r"[^\w.-]+", "-", name), {index.storage.name for index in self.indexes.values()}
        twins = (index.storage for index in self.indexes.values() if index.settings.fingerprint == target.fingerprint)
        settings = {
            **options,
            **{key: value for key, value in changes.items() if key in general},
            "storage": next(twins, self._root / (slug if slug not in slugs else f"{slug}-{len(slugs)}")),
            "context": target.pipeline.contexts.generator or "off",
            "node_parser": target.pipeline.parser,
            "embed_model": self._remembering(target.embedding),
            "config": target.configuration,
        }
        self.indexes[name] = self._stack.enter_context(ContextualIndex.open(self._folder, **settings))

    def _remembering(self, embedding: BaseEmbedding) -> BaseEmbedding:
        """An embedding that embeds each text once; each model has a cache of its own, whose keys are texts."""
        if isinstance(embedding, NoEmbedding):
            return embedding
        key = model_id(embedding)
        if key not in self._embeddings:
            cache = SQLiteKVStore(self._temporary / f"embeddings-{len(self._embeddings)}.sqlite3")
            self._stack.callback(cache.close)
            self._embeddings[key] = embedding.model_copy(update={"embeddings_cache": cache})
        return self._embeddings[key]

    def reranker(self, spec: str | BaseNodePostprocessor) -> tuple[str, BaseNodePostprocessor]:
        """Name and step of a reranker."""
        return (spec, resolve_reranker(spec, POOL, self._llm)) if isinstance(spec, str) else (type(spec).__name__, spec)

    def work(self, costs: Mapping[str, ContextEstimate]) -> str:
        """The work of a run: chunks, minutes of embedding, calls. Embeds a few texts."""
        chunks, model = costs[BASELINE].chunks, self.indexes[BASELINE].settings.embedding
        start = time.monotonic()
        if not isinstance(model, NoEmbedding):
            model.get_text_embedding_batch(_SAMPLE)
        minutes = (time.monotonic() - start) / len(_SAMPLE) * chunks * len(costs) / 60
        calls = [
            f"; {name}: {counted(cost.calls, 'call')}, at most {cost.tokens.prompt:,} tokens in and "
            f"{cost.tokens.completion:,} out"
            for name, cost in costs.items()
            if cost.calls
        ]
        embedding = f"about {minutes:.0f} min" if minutes > 1 else "less than a minute"
        places = "1 index" if len(costs) == 1 else f"{len(costs)} indexes"
        return f"{counted(chunks, 'chunk')} in {places}: {embedding} of embedding at most{''.join(calls)}"

    def fill(self, name: str, *, show_progress: bool) -> ContextualIndex:
        """Bring an index up to date and return it.

        Warns of files that cannot be read.

        Raises:
            SettingError: There are no chunks.
        """
        report = self.indexes[name].refresh(show_progress=show_progress, confirm=True)  # it is chosen on purpose
        if report.failed:
            message = f"{counted(len(report.failed), 'file')} could not be read, e.g. {report.failed[0]}"
            warnings.warn(message, ContextualWarning, stacklevel=3)
        if not report.chunks:
            raise SettingError(f"{self._folder} holds no files to index. Cure: choose a folder of Markdown files.")
        return self.indexes[name]

    def notes(self, name: str, nodes: Sequence[BaseNode], cost: ContextEstimate) -> dict[str, float]:
        """The costs of a setting, and how alike its chunks are."""
        model = self.indexes[name].settings.embedding
        notes: dict[str, float] = {"chunks": len(nodes)}
        if isinstance(model, NoEmbedding):
            return notes
        texts = sorted({node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes})
        notes[CHARACTERS] = sum(map(len, texts))
        key = model_id(model)
        if key not in self._rates:
            seconds = estimate_embedding(model, texts).seconds
            self._rates[key] = None if seconds is None else seconds / notes[CHARACTERS]
        if (rate := self._rates[key]) is not None:  # of a server it is not known
            notes["embedding, s"] = rate * notes[CHARACTERS]
        if cost.calls:
            notes |= {"LLM calls": cost.calls, "LLM tokens": cost.tokens.prompt + cost.tokens.completion}
            notes |= {} if cost.price is None else {"LLM price": cost.price}
        likeness = self.indexes[name].likeness()
        return notes | {ALIKE: likeness.mean, "spread": likeness.spread, SHARED: 100 * likeness.shared}


def _warn_of_lost_answers(nodes: Sequence[BaseNode], questions: Sequence[Question]) -> None:
    """Warn of answers that no chunk holds: the path or the quotation is wrong, or the text is in two chunks.

    Raises:
        SettingError: That is so of all of them, and nothing can be measured.
    """
    answers = answers_of(questions, nodes)
    lost = [
        f"{question.text!r} ({next(passage for passage, holders in passages.items() if not holders)})"
        for question, passages in answers
        if not all(passages.values())
    ]
    if not any(any(passages.values()) for _, passages in answers):
        raise SettingError(
            f"no chunk holds an answer to any of the {counted(len(questions), 'question')}, such as {lost[0]}. Cure: "
            "paths relative to the folder, and few words as text."
        )
    if lost:
        have = "1 question has" if len(lost) == 1 else f"{len(lost):,} questions have"
        warnings.warn(
            f"{have} an answer that no chunk holds; such an answer counts as not found: "
            f"{'; '.join(lost[:_NAMED])}{' …' if len(lost) > _NAMED else ''}. Cure: correct path and lines, and quote "
            "only a few words as text.",
            ContextualWarning,
            stacklevel=3,
        )
