"""Measure retrieval on one's own documents: retrievers and contexts that answer the same questions, side by side."""

from __future__ import annotations

import tempfile
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
from llama_index.core.storage.kvstore import SimpleKVStore

from llama_index_contextual.app.evaluation.questions import Passage, Question, load_questions
from llama_index_contextual.app.index.index import ContextualIndex
from llama_index_contextual.app.serve.html import render
from llama_index_contextual.app.settings.embeddings import NoEmbedding
from llama_index_contextual.context import registry
from llama_index_contextual.context.base import ContextGenerator, SourceDocument
from llama_index_contextual.utils.errors import ContextualWarning, SettingError, whole
from llama_index_contextual.utils.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import numpy.typing as npt
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.llms import LLM
    from llama_index.core.schema import BaseNode


__all__ = ["Comparison", "Passage", "Question", "compare", "evaluate", "load_questions"]

Recalls: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

TOP_K: Final = (5, 10, 20)
RANK_DEPTH: Final = 10  # the same for all, so that MRR does not grow with top_k
BASELINE: Final = "text alone"
_METADATA: Final = "LlamaIndex metadata"  # what is embedded where no context is written
_RESAMPLES: Final = 2000  # of the bootstrap
_FEW: Final = 30  # questions, of which a bootstrap's interval is too narrow
_NAMED: Final = 3  # questions that a warning names, and that are listed as gained or lost
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with shares from 0 to 1.

        Each row but the first has its ``difference`` to the first at each number of hits, as mean, low and high end of
        the 95 % interval by bootstrap, and the questions ``gained`` and ``lost`` at the smallest number.
        """
        ks, first, rows = [*map(str, self.top_k)], self.rows[0], list[dict[str, Any]]()
        for row in self.rows:
            recall = dict(zip(ks, row.recalls.mean(axis=0).tolist(), strict=True))
            rows.append({"name": row.name, "recall": recall, "mrr": row.mrr})
            if row is not first:
                less = row.recalls - first.recalls
                rows[-1]["difference"] = dict(zip(ks, interval(less), strict=True))
                for kind, changed in (("gained", less[:, 0] > 0), ("lost", less[:, 0] < 0)):
                    rows[-1][kind] = [
                        question.text for question in compress(self.questions, changed)
                    ]
        return {"baseline": first.name, "questions": len(self.questions), "rows": rows}

    def table(self) -> list[list[str]]:
        """The figures as texts, under a row of headings."""
        rows = [["recall, %", *(f"@{k}" for k in self.top_k), f"MRR@{RANK_DEPTH}"]]
        rows += [
            [row.name, *(f"{100 * share:.1f}" for share in (*row.recalls.mean(0), row.mrr))]
            for row in self.rows
        ]
        return rows

    def remarks(self) -> list[str]:
        """The differences with their intervals, and what these mean."""
        remarks = list[str]()
        for row in self.to_dict()["rows"][1:]:
            ends = (
                (k, *(100 * share for share in shares)) for k, shares in row["difference"].items()
            )
            differences = ", ".join(
                f"@{k} {mean:+.1f} [{low:+.1f}, {high:+.1f}]" for k, mean, low, high in ends
            )
            remarks.append(f"{row['name']} less {self.rows[0].name}: {differences}")
        few = (
            f" {counted(len(self.questions), 'question')} say little."
            if len(self.questions) < _FEW
            else ""
        )
        return [*remarks, *([_BRACKETS + few] if remarks else [])]

    def __str__(self) -> str:
        table = self.table()
        first, *widths = (max(map(len, column)) for column in zip(*table, strict=True))
        lines = [
            "  ".join([row[0].ljust(first), *map(str.rjust, row[1:], widths)]).rstrip()
            for row in table
        ]
        lines += self.remarks()
        for row, kind in (
            (row, kind) for row in self.to_dict()["rows"][1:] for kind in ("gained", "lost")
        ):
            changed = row[kind]
            lines += (
                [f"\n{row['name']} {kind} {len(changed)} at {self.top_k[0]}:"] if changed else []
            )
            lines += [f"  {' '.join(text.split())}" for text in changed[:_NAMED]]
            lines += [f"  … and {len(changed) - _NAMED} more"] if len(changed) > _NAMED else []
        return "\n".join(lines)

    __repr__ = __str__  # hundreds of questions would fill the screen

    def to_html(self, title: str = "What contexts find") -> str:
        """A self-contained page: the table, the differences with intervals, gained and lost questions."""
        depths, count = ", ".join(map(str, self.top_k)), counted(len(self.questions), "question")
        summary = f"How much of the answers to {count} each row finds in the first {depths} hits (recall)."
        return render("comparison.html", title=title, summary=summary, comparison=self)


def compare(
    retrievers: Mapping[str, BaseRetriever],
    questions: Sequence[Question],
    *,
    top_k: Iterable[int] = TOP_K,
) -> Comparison:
    """Ask several retrievers, of any kind, the same questions.

    Args:
        retrievers: Retrievers by name. The first is the one that the others are compared with.
        questions: Questions with known answers. See :func:`~llama_index_contextual.app.evaluation.load_questions`.
        top_k: Numbers of hits to count. Each retriever must return as many hits as the largest of them.

    Raises:
        SettingError: There are no retrievers or no questions, or a retriever returns fewer hits than are counted.
    """
    depths, rows = checked_depths(questions, top_k), list[RetrieverScores]()
    if not retrievers:
        raise SettingError(
            "retrievers is empty. Cure: name at least one, as in {'mine': retriever}."
        )
    golds = [frozenset(question.gold) for question in questions]
    for name, retriever in retrievers.items():
        limit = getattr(retriever, "similarity_top_k", None)
        if isinstance(limit, int) and limit < depths[-1]:
            counts = f"the retriever {name!r} returns {counted(limit, 'hit')}, but {depths[-1]} are counted."
            raise SettingError(f"{counts} Cure: similarity_top_k={depths[-1]}, or a smaller top_k")
        answers = [
            [one.covered_by(hit.node) for hit in retriever.retrieve(one.text)] for one in questions
        ]
        recalls = [
            [recall_at(k, hits, gold) for k in depths]
            for hits, gold in zip(answers, golds, strict=True)
        ]
        mrr = mean_reciprocal_rank([hits[:RANK_DEPTH] for hits in answers], golds)
        rows.append(RetrieverScores(name, np.array(recalls), mrr))
    return Comparison(tuple(questions), depths, tuple(rows))


def checked_depths(questions: Sequence[Question], top_k: Iterable[int]) -> tuple[int, ...]:
    """The numbers of hits to count, smallest first. It is called before anything is indexed.

    Raises:
        SettingError: There are no questions, no numbers, or one is not a positive whole number.
    """
    depths = sorted({whole("top_k", k) for k in top_k})
    if not depths or not questions:
        raise SettingError(
            "there are no questions, or top_k counts no hits. Cure: load_questions(file), top_k=[5, 10]."
        )
    return tuple(depths)


# Measures


def interval(values: npt.ArrayLike) -> list[tuple[float, float, float]]:
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
    contexts: Iterable[str] | None = None,
    storage: str | Path | None = None,
    top_k: Iterable[int] = TOP_K,
    say: Callable[[str], object] = lambda _: None,
    show_progress: bool = False,
    llm: str | LLM | None = None,
    **options: Any,
) -> Comparison:
    """Index a folder with its text alone and with contexts, and ask every index the same questions.

    The rows have the same files, chunks and embedding, and all use the retriever of :class:`ContextualIndex`.
    Differences are to "text alone". ``"off"`` is the row "LlamaIndex metadata": what LlamaIndex embeds by itself, here
    path and header path. Every different text is embedded once.

    Args:
        folder: The documents.
        questions: Questions and the places of their answers. See :func:`load_questions`.
        contexts: Names of context generators, and ``"off"``; by default those that cost nothing. The contexts of
            ``"llm"`` are kept in the content cache, where every index of the folder finds them again.
        storage: A folder that keeps the indexes, so that a second run embeds only what changed. By default they are
            made in a temporary folder and deleted.
        top_k: Numbers of hits to count.
        say: Called with an estimate first, and with a line before each index is made.
        show_progress: Whether to draw progress bars on stderr.
        llm: The language model of the contexts of ``"llm"``; default that of the settings.
        **options: More of :meth:`ContextualIndex.open`.

    Raises:
        SettingError: A setting is wrong, or there are no documents or questions.
        ContextError: The key of the language model is missing or refused.
    """
    depths = checked_depths(questions, top_k)
    settings = ContextualIndex.open(folder, **options, reindex=True).settings
    embedding = settings.embedding
    if not isinstance(embedding, NoEmbedding):
        embedding = embedding.model_copy(update={"embeddings_cache": SimpleKVStore()})
    # Each kind of context has default files of its own, but rows must not differ by these.
    options |= {
        "files": settings.reading.rules,
        "embed_model": embedding,
        "node_parser": settings.parser,
    }
    if contexts is None:
        kinds = [name for name in registry.names() if registry.is_free(name)]
    else:
        kinds = [registry.context_name(name) for name in contexts]
    rows: dict[str, dict[str, Any]] = {BASELINE: {"context": _TextAlone()}}
    rows |= {_METADATA if kind == "off" else kind: {"context": kind} for kind in kinds}
    if "llm" in rows:  # its contexts are kept with the folder
        of_model: dict[str, Any] = {
            "context": "llm",
            "reindex": True,
            **({"llm": llm} if llm else {}),
        }
        paid = ContextualIndex.open(folder, **options, **of_model).settings
        rows["llm"]["context"] = paid.contexts.generator
    with ExitStack() as stack:
        root = Path(
            storage
            or stack.enter_context(tempfile.TemporaryDirectory(prefix="contextual-evaluation-"))
        )
        indexes = dict[str, ContextualIndex]()
        for name, row in rows.items():
            row |= {"storage": root.expanduser() / name, "config": settings.configuration.values}
            opened = ContextualIndex.open(folder, **{**options, **row})
            indexes[name] = stack.enter_context(opened)
        say(_work(indexes))
        for name, index in indexes.items():
            say(f"Indexing {folder}: {name}")
            report = index.refresh(
                show_progress=show_progress, confirm=True
            )  # it is chosen on purpose
            if name == BASELINE:
                for failure in report.failed:
                    warnings.warn(f"could not be read: {failure}", ContextualWarning, stacklevel=2)
                _check_answers(index.nodes(), questions, folder)
        retrievers = {
            name: index.as_retriever(max(*depths, RANK_DEPTH)) for name, index in indexes.items()
        }
        return compare(retrievers, questions, top_k=depths)


class _TextAlone(ContextGenerator):
    """Contexts without a word, beside which no metadata is embedded."""

    name = "text alone"
    embeds_metadata = False

    def generate(
        self,
        nodes: Sequence[BaseNode],
        document: SourceDocument,  # noqa: ARG002
    ) -> list[str]:
        return ["" for _ in nodes]


def _work(indexes: Mapping[str, ContextualIndex]) -> str:
    """The work of a run: documents, and calls of a language model."""
    paid = [index.estimate() for index in indexes.values() if index.settings.paid_source]
    calls = "".join(
        f"; {counted(cost.calls, 'call')}, about {cost.tokens.prompt:,} tokens in" for cost in paid
    )
    return f"{counted(len(indexes[BASELINE].files()), 'document')} in {len(indexes)} indexes{calls}"


def _check_answers(
    nodes: Sequence[BaseNode], questions: Sequence[Question], folder: str | Path
) -> None:
    """Warn of answers that no chunk holds: the path or the quotation is wrong, or the text is in two chunks.

    Raises:
        SettingError: That is so of all of them, or there are no chunks.
    """
    if not nodes:
        raise SettingError(
            f"{folder} holds no files to index. Cure: choose a folder of Markdown files."
        )
    held = [
        (question, {passage for node in nodes for passage in question.covered_by(node)})
        for question in questions
    ]
    lost = [
        f"{one.text!r} ({passage})"
        for one, found in held
        for passage in one.gold
        if passage not in found
    ]
    named = f"{'; '.join(lost[:_NAMED])}{' …' if len(lost) > _NAMED else ''}"
    message = f"{counted(len(lost), 'answer')} in no chunk: {named}. Cure: paths relative to the folder, few words as text"  # noqa: E501
    if len(lost) == sum(len(question.gold) for question in questions):
        raise SettingError(message)
    if lost:
        warnings.warn(message, ContextualWarning, stacklevel=3)
