"""Retrievers and contexts that answer the same questions: recall, ranks, paired differences, as a table and a page."""

from __future__ import annotations

import tempfile
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from inspect import signature
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

import numpy as np
from llama_index.core.storage.kvstore import SimpleKVStore

from llama_index_contextual.app.index import ContextualIndex
from llama_index_contextual.app.serve.html import render
from llama_index_contextual.app.settings.models import NoEmbedding
from llama_index_contextual.context import ChunkContext, ContextGenerator, context_name
from llama_index_contextual.errors import ContextualWarning, SettingError, whole
from llama_index_contextual.metadata import EVERY_KEY
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import numpy.typing as npt
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.app.evaluation.questions import Question
    from llama_index_contextual.context import SourceDocument

Recalls: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Interval: TypeAlias = tuple[float, float, float]

TOP_K: Final = (5, 10, 20)
RANK_DEPTH: Final = 10  # the same for all, so that MRR does not grow with top_k
CONTEXTS: Final = ("off", "headings", "pattern")  # those that cost nothing
BASELINE: Final = "text alone"
_METADATA: Final = "LlamaIndex metadata"  # what is embedded where no context is written
_NAMED: Final = 3  # questions that a warning names
_RESAMPLES: Final = 2000  # of the bootstrap
_FEW: Final = 30  # with fewer questions an interval says little
_BRACKETS: Final = "In brackets: the 95 % interval of a paired bootstrap. If it contains 0, it shows no difference."


class RetrieverScores(NamedTuple):
    """The results of one retriever.

    Args:
        name: Its name, as the table shows it.
        recalls: Share of each question's passages in the first k hits, shape ``(questions, len(top_k))``, 0 to 1.
        mrr: Mean reciprocal rank of the first hit that holds a passage, 0 to 1; hits after the 10th count as none.
    """

    name: str
    recalls: Recalls
    mrr: float


@dataclass(frozen=True, repr=False)
class Comparison:
    """Retrievers side by side. It prints itself, also in a notebook.

    Attributes:
        questions: The questions.
        top_k: The numbers of hits that were counted, smallest first.
        rows: The retrievers; the others are compared with the first.
    """

    questions: tuple[Question, ...]
    top_k: tuple[int, ...]
    rows: tuple[RetrieverScores, ...]

    def gained(self, name: str) -> list[Question]:
        """The questions of which a row found more than the first one, in the smallest number of hits.

        Raises:
            SettingError: There is no such row.
        """
        return list(compress(self.questions, self._differences(name)[:, 0] > 0))

    def lost(self, name: str) -> list[Question]:
        """The questions of which a row found less. See :meth:`gained`."""
        return list(compress(self.questions, self._differences(name)[:, 0] < 0))

    def difference(self, name: str) -> list[Interval]:
        """The mean difference in recall to the first row at each k, in points, with its 95 % paired bootstrap interval.

        An interval that contains 0 means that these questions cannot tell the two rows apart.
        """
        return interval(100 * self._differences(name))

    def _differences(self, name: str) -> Recalls:
        recalls = {row.name: row.recalls for row in self.rows}
        if name not in recalls:
            raise SettingError(f"there is no row {name!r}. Cure: use one of {list(recalls)}")
        return recalls[name] - self.rows[0].recalls

    def changes(self) -> dict[str, dict[str, list[Question]]]:
        """The questions that each other row gained and lost, by its name."""
        return {row.name: {"gained": self.gained(row.name), "lost": self.lost(row.name)} for row in self.rows[1:]}

    def to_dict(self) -> dict[str, Any]:
        """Plain data. All shares are from 0 to 1, differences too; questions are those of the smallest k."""
        rows, changes, ks = list[dict[str, Any]](), self.changes(), [*map(str, self.top_k)]
        for row in self.rows:
            recall = dict(zip(ks, row.recalls.mean(axis=0).tolist(), strict=True))
            rows.append({"name": row.name, "recall": recall, "mrr": row.mrr})
            if row.name in changes:
                ends = ([point / 100 for point in ends] for ends in self.difference(row.name))
                rows[-1]["difference"] = dict(zip(ks, ends, strict=True))
                rows[-1] |= {kind: [each.text for each in changed] for kind, changed in changes[row.name].items()}
        return {"baseline": self.rows[0].name, "questions": len(self.questions), "rows": rows}

    def table(self) -> list[list[str]]:
        """The figures as texts, under a row of headings."""
        rows = [["recall, %", *(f"@{k}" for k in self.top_k), f"MRR@{RANK_DEPTH}"]]
        rows += [[row.name, *(f"{100 * share:.1f}" for share in (*row.recalls.mean(0), row.mrr))] for row in self.rows]
        return rows

    def remarks(self) -> list[str]:
        """The differences with their intervals, and how much they tell."""
        remarks = list[str]()
        for row in self.rows[1:]:
            ends = zip(self.top_k, self.difference(row.name), strict=True)
            differences = ", ".join(f"@{k} {mean:+.1f} [{low:+.1f}, {high:+.1f}]" for k, (mean, low, high) in ends)
            remarks.append(f"{row.name} less {self.rows[0].name}: {differences}")
        remarks += [_BRACKETS] if remarks else []
        if (count := len(self.questions)) < _FEW:
            are = "is" if count == 1 else "are"
            remarks.append(f"{counted(count, 'question')} {are} few. Cure: ask {_FEW} or more before you decide.")
        return remarks

    def __str__(self) -> str:
        table = self.table()
        first, *widths = (max(map(len, column)) for column in zip(*table, strict=True))
        lines = ("  ".join([row[0].ljust(first), *map(str.rjust, row[1:], widths)]).rstrip() for row in table)
        return "\n".join([*lines, *self.remarks()])

    __repr__ = __str__  # hundreds of questions would fill the screen

    def _repr_html_(self) -> str:
        return render("table.html", comparison=self)


def html_report(comparison: Comparison, title: str = "What contexts find") -> str:
    """A self-contained page: the table, the differences with intervals, gained and lost questions."""
    depths, count = ", ".join(map(str, comparison.top_k)), counted(len(comparison.questions), "question")
    summary = f"How much of the answers to {count} each row finds in the first {depths} hits (recall)."
    return render("comparison.html", title=title, summary=summary, comparison=comparison)


def compare(
    retrievers: Mapping[str, BaseRetriever], questions: Sequence[Question], *, top_k: Iterable[int] = TOP_K
) -> Comparison:
    """Ask several retrievers, of any kind, the same questions.

    Args:
        retrievers: Retrievers by name. The first is the one that the others are compared with.
        questions: Questions with known answers. See :func:`~llama_index_contextual.app.evaluation.load_questions`.
        top_k: Numbers of hits to count. Each retriever must return as many hits as the largest of them.

    Raises:
        SettingError: There are no retrievers or no questions, or a retriever returns fewer hits than are counted.
    """
    depths = check_asking(questions, top_k)
    if not retrievers:
        raise SettingError("retrievers is empty. Cure: name at least one, as in {'mine': retriever}.")
    rows = (measure(name, retriever, questions, depths) for name, retriever in retrievers.items())
    return Comparison(tuple(questions), depths, tuple(rows))


def check_asking(questions: Sequence[Question], top_k: Iterable[int]) -> tuple[int, ...]:
    """The numbers of hits to count, smallest first. It is called before anything is indexed.

    Raises:
        SettingError: There are no questions, no numbers, or one is not a positive whole number.
    """
    depths = sorted({whole("top_k", k) for k in top_k})
    if not depths:
        raise SettingError(f"top_k=[] counts nothing. Cure: give numbers of hits, such as {list(TOP_K)}")
    if not questions:
        raise SettingError("there are no questions. Cure: give load_questions(file), or a list of Question.")
    return tuple(depths)


def measure(
    name: str, retriever: BaseRetriever, questions: Sequence[Question], top_k: tuple[int, ...]
) -> RetrieverScores:
    """The results of one retriever for all questions. See :func:`compare`."""
    most, limit = max(top_k), getattr(retriever, "similarity_top_k", None)
    if isinstance(limit, int) and limit < most:
        raise SettingError(
            f"the retriever {name!r} returns {counted(limit, 'hit')}, but {most} are counted. "
            f"Cure: similarity_top_k={most}, or a smaller top_k"
        )
    answers = [[one.covered_by(hit.node) for hit in retriever.retrieve(one.text)] for one in questions]
    golds = [frozenset(question.gold) for question in questions]
    recalls = [[recall_at(k, hits, gold) for k in top_k] for hits, gold in zip(answers, golds, strict=True)]
    mrr = mean_reciprocal_rank([hits[:RANK_DEPTH] for hits in answers], golds)
    return RetrieverScores(name, np.array(recalls), mrr)


# Measures


def interval(values: npt.ArrayLike) -> list[Interval]:
    """Mean and 95 % bootstrap interval of each column, as ``(mean, low, high)``.

    Args:
        values: Shape ``(questions, k)``, at least one question. For a paired interval give differences.
    """
    points = np.asarray(values, float)
    sample = np.random.default_rng(0).integers(len(points), size=(_RESAMPLES, len(points)))
    low, high = np.percentile(points[sample].mean(axis=1), [2.5, 97.5], axis=0)
    return list(zip(points.mean(axis=0).tolist(), low.tolist(), high.tolist(), strict=True))


def recall_at(k: int, hits: Sequence[Collection[object]], gold: Collection[object]) -> float:
    """The share of the gold items that the first k hits cover, 0 to 1.

    Anthropic's contextual retrieval evaluation calls the mean of this over all queries *pass@k*.

    Args:
        k: How many hits count, at least 1.
        hits: For each hit, best first, the gold items that it covers. Other items are ignored.
        gold: The items to find, at least one.
    """
    return len(set(gold) & set[object]().union(*hits[:k])) / len(set(gold))


def mean_reciprocal_rank(
    hits_of_queries: Sequence[Sequence[Collection[object]]], golds: Sequence[Collection[object]]
) -> float:
    """The mean over queries of 1 / rank of the first hit that covers a gold item, or 0 where none does.

    Args:
        hits_of_queries: For each query its hits, as :func:`recall_at` takes them.
        golds: For each query its gold items.
    """
    firsts = (
        next((1 / rank for rank, hit in enumerate(hits, 1) if set(gold) & set(hit)), 0.0)
        for hits, gold in zip(hits_of_queries, golds, strict=True)
    )
    return sum(firsts) / len(golds)


# Contexts on a folder


def evaluate(
    folder: str | Path,
    questions: Sequence[Question],
    *,
    contexts: Iterable[str] = CONTEXTS,
    storage: str | Path | None = None,
    top_k: Iterable[int] = TOP_K,
    say: Callable[[str], object] = lambda _: None,
    show_progress: bool = False,
    **options: Any,
) -> Comparison:
    """Index a folder with its text alone and with contexts, and ask every index the same questions.

    The rows have the same files, chunks and embedding, and all use the retriever of :class:`ContextualIndex`.
    Differences are to "text alone". ``"off"`` is the row "LlamaIndex metadata": what LlamaIndex embeds by itself, here
    path and header path. Every different text is embedded once.

    Args:
        folder: The documents.
        questions: Questions and the places of their answers. See :func:`load_questions`.
        contexts: Some of ``"off"``, ``"headings"`` (or ``"headers"``), ``"pattern"``, ``"llm"``. The contexts of
            ``"llm"`` are kept in the folder's own ``.contextual``, where its index finds them again.
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
    # Beside an empty context all metadata can be left out of what is embedded.
    rows: dict[str, dict[str, Any]] = {BASELINE: {"context": _EmptyContexts(), "leave_out_keys": [EVERY_KEY]}}
    for kind in dict.fromkeys(map(context_name, contexts)):
        rows[_METADATA if kind == "off" else kind] = {"context": kind, **(options if kind == "llm" else {})}
    shared, scores = _shared_options(folder, options), list[RetrieverScores]()
    with ExitStack() as stack:
        root = Path(storage or stack.enter_context(tempfile.TemporaryDirectory(prefix="contextual-evaluation-")))
        # All are opened before any is filled: a wrong setting must not cost the work of those before it.
        indexes = {
            name: stack.enter_context(_opened(folder, root.expanduser() / quote(name, safe=" "), shared, changes))
            for name, changes in rows.items()
        }
        say(_work(indexes))
        for name, index in indexes.items():
            say(f"Indexing {folder}: {name}")
            report = index.refresh(show_progress=show_progress, confirm=True)  # it is chosen on purpose
            if name == BASELINE:
                for failure in report.failed:
                    warnings.warn(f"could not be read: {failure}", ContextualWarning, stacklevel=2)
                _check_answers(index.nodes(), questions, folder)
            scores.append(measure(name, index.as_retriever(max(*depths, RANK_DEPTH)), questions, depths))
    return Comparison(tuple(questions), depths, tuple(scores))


class _EmptyContexts(ContextGenerator):
    """Contexts without a word."""

    name, version = "empty", "1"

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:  # noqa: ARG002
        return [ChunkContext("", self.name, version=self.version) for _ in nodes]


def _shared_options(folder: str | Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of all rows: each kind of context has default files of its own, but rows must not differ by these."""
    general = {key: options[key] for key in ("files", "config", "embed_model") if key in options}
    settings = ContextualIndex.open(folder, **general, reindex=True).settings
    embedding = settings.embedding
    if not isinstance(embedding, NoEmbedding):
        embedding = embedding.model_copy(update={"embeddings_cache": SimpleKVStore()})
    return {**_known(options), "files": settings.reading.rules, "embed_model": embedding}


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not a context's."""
    known = {*signature(ContextualIndex.open).parameters, "files", "keep_keys", "leave_out_keys"}
    return {key: value for key, value in options.items() if key in known}


def _opened(
    folder: str | Path, storage: Path, shared: Mapping[str, Any], changes: Mapping[str, Any]
) -> ContextualIndex:
    """An index with the settings of the folder's own one but for some; paid contexts are kept with that."""
    target = ContextualIndex.open(folder, **{**shared, **changes, "reindex": True}).settings
    if target.model is not None:
        target.model.require_key()
    settings = {
        **shared,
        **_known(changes),
        "storage": storage,
        "context": target.contexts.generator or "off",
        "node_parser": target.parser,
        "embed_model": shared["embed_model"],
        "config": target.configuration,
    }
    return ContextualIndex.open(folder, **settings)


def _work(indexes: Mapping[str, ContextualIndex]) -> str:
    """The work of a run: documents, and calls of a language model."""
    paid = [index.estimate() for index in indexes.values() if index.settings.paid_source]
    calls = "".join(f"; {counted(cost.calls, 'call')}, about {cost.tokens.prompt:,} tokens in" for cost in paid)
    return f"{counted(len(indexes[BASELINE].files()), 'document')} in {len(indexes)} indexes{calls}"


def _check_answers(nodes: Sequence[BaseNode], questions: Sequence[Question], folder: str | Path) -> None:
    """Warn of answers that no chunk holds: the path or the quotation is wrong, or the text is in two chunks.

    Raises:
        SettingError: That is so of all of them, or there are no chunks, and nothing can be measured.
    """
    if not nodes:
        raise SettingError(f"{folder} holds no files to index. Cure: choose a folder of Markdown files.")
    lost = []
    for question in questions:
        found = {passage for node in nodes for passage in question.covered_by(node)}
        lost += [f"{question.text!r} ({passage})" for passage in question.gold if passage not in found]
    named = f"{'; '.join(lost[:_NAMED])}{' …' if len(lost) > _NAMED else ''}"
    message = (
        f"{counted(len(lost), 'answer')} in no chunk: {named}. Cure: paths relative to the folder, few words as text"
    )
    if len(lost) == sum(len(question.gold) for question in questions):
        raise SettingError(message)
    if lost:
        warnings.warn(message, ContextualWarning, stacklevel=3)
