"""Retrievers that answer the same questions: recall, ranks, differences with intervals, as a table and a page."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from llama_index.core.schema import MetadataMode

from llama_index_contextual.app.serve.html import render
from llama_index_contextual.errors import SettingError, whole
from llama_index_contextual.metadata import citation_of
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import numpy.typing as npt
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import NodeWithScore

    from llama_index_contextual.app.evaluation.questions import Question

Recalls: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Interval: TypeAlias = tuple[float, float, float]

TOP_K: Final = (5, 10, 20)
RANK_DEPTH: Final = 10  # the same for all, so that MRR does not grow with top_k
_RESAMPLES: Final = 2000  # of the bootstrap
_SHOWN: Final = 400  # characters of a hit in a report
_FEW: Final = 30  # with fewer questions an interval says little
_BRACKETS: Final = "In brackets: the 95 % interval of a paired bootstrap. If it contains 0, it shows no difference."


@dataclass(frozen=True, slots=True)
class RetrieverScores:
    """The results of one retriever.

    Attributes:
        name: Its name, as the table shows it.
        recalls: Share of each question's passages in the first k hits, shape ``(questions, len(top_k))``, 0 to 1.
        mrr: Mean reciprocal rank of the first hit that holds a passage, 0 to 1; hits after the 10th count as none.
        milliseconds: Time of a question, without embedding it.
        chunks: How many chunks were searched; 0 where that is not known.
        firsts: For each question citation and text of the first hit; empty where there is none.
    """

    name: str
    recalls: Recalls
    mrr: float
    milliseconds: float = 0.0
    chunks: int = 0
    firsts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, repr=False)
class Comparison:
    """Retrievers side by side. It prints itself, also in a notebook.

    Attributes:
        questions: The questions.
        top_k: The numbers of hits that were counted, smallest first.
        rows: The retrievers.
        baseline: The row that the others are compared with.
    """

    questions: tuple[Question, ...]
    top_k: tuple[int, ...]
    rows: tuple[RetrieverScores, ...]
    baseline: str

    def gained(self, name: str) -> list[Question]:
        """The questions of which a row found more than the baseline, in the smallest number of hits.

        Raises:
            SettingError: There is no such row.
        """
        return self._found_more(name, self.baseline)

    def lost(self, name: str) -> list[Question]:
        """The questions of which a row found less. See :meth:`gained`."""
        return self._found_more(self.baseline, name)

    def _found_more(self, name: str, other: str) -> list[Question]:
        return list(compress(self.questions, self._row(name).recalls[:, 0] > self._row(other).recalls[:, 0]))

    def difference(self, name: str) -> list[Interval]:
        """The mean difference in recall to the baseline at each k, in points, with its 95 % paired bootstrap interval.

        An interval that contains 0 means that these questions cannot tell the two rows apart.
        """
        return interval(100 * (self._row(name).recalls - self._row(self.baseline).recalls))

    def others(self) -> list[RetrieverScores]:
        """The rows that are compared with the baseline."""
        return [row for row in self.rows if row.name != self.baseline]

    def changes(self, name: str) -> dict[str, list[Question]]:
        """The questions that a row gained and lost at the smallest k."""
        return {"gained": self.gained(name), "lost": self.lost(name)}

    def first_hit(self, name: str, question: Question) -> tuple[str, str]:
        """Citation and text of the first hit of a row for a question; empty where it has none."""
        firsts = self._row(name).firsts
        return firsts[self.questions.index(question)] if firsts else ("", "")

    def to_dict(self) -> dict[str, Any]:
        """Plain data. All shares are from 0 to 1, differences too; questions are those of the smallest k."""
        rows = []
        for row in self.rows:
            data = {"name": row.name, "recall": self._by_k(row.recalls.mean(axis=0).tolist()), "mrr": row.mrr}
            data |= {"chunks": row.chunks, "milliseconds": row.milliseconds}
            if row.name != self.baseline:
                data["difference"] = self._by_k([[point / 100 for point in ends] for ends in self.difference(row.name)])
                data |= {kind: [each.text for each in changed] for kind, changed in self.changes(row.name).items()}
            rows.append(data)
        return {"baseline": self.baseline, "questions": len(self.questions), "rows": rows}

    def _by_k(self, values: Iterable[Any]) -> dict[str, Any]:
        return dict(zip(map(str, self.top_k), values, strict=True))

    def table(self) -> list[list[str]]:
        """The figures as texts, under a row of headings."""
        rows = [["recall, %", *(f"@{k}" for k in self.top_k), f"MRR@{RANK_DEPTH}", "ms a question", "chunks"]]
        for row in self.rows:
            shares = (f"{100 * share:.1f}" for share in (*row.recalls.mean(axis=0), row.mrr))
            rows.append([row.name, *shares, f"{row.milliseconds:.1f}", f"{row.chunks:,}" if row.chunks else ""])
        return rows

    def remarks(self) -> list[str]:
        """The differences with their intervals, and how much they tell."""
        remarks = list[str]()
        for row in self.others():
            ends = zip(self.top_k, self.difference(row.name), strict=True)
            differences = ", ".join(f"@{k} {mean:+.1f} [{low:+.1f}, {high:+.1f}]" for k, (mean, low, high) in ends)
            remarks.append(f"{row.name} less {self.baseline}: {differences}")
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

    def _row(self, name: str) -> RetrieverScores:
        rows = {row.name: row for row in self.rows}
        if name not in rows:
            raise SettingError(f"there is no row {name!r}. Cure: use one of {list(rows)}")
        return rows[name]


def html_report(comparison: Comparison, title: str = "What contexts find") -> str:
    """A self-contained page: table, plot of recall with intervals, gained and lost questions."""
    *ks, most = map(str, comparison.top_k)
    depths = f"{', '.join(ks)}{' and ' if ks else ''}{most}"
    count = counted(len(comparison.questions), "question")
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
    rows = tuple(measure(name, retriever, questions, depths) for name, retriever in retrievers.items())
    return Comparison(tuple(questions), depths, rows, rows[0].name)


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
    name: str, retriever: BaseRetriever, questions: Sequence[Question], top_k: tuple[int, ...], chunks: int = 0
) -> RetrieverScores:
    """The results of one retriever for all questions. See :func:`compare`."""
    most, limit = max(top_k), getattr(retriever, "similarity_top_k", None)
    if isinstance(limit, int) and limit < most:
        raise SettingError(
            f"the retriever {name!r} returns {counted(limit, 'hit')}, but {most} are counted. "
            f"Cure: similarity_top_k={most}, or a smaller top_k"
        )
    start = time.perf_counter()
    results = [retriever.retrieve(question.text) for question in questions]
    milliseconds = 1000 * (time.perf_counter() - start) / len(questions)
    answers = [
        [question.covered_by(hit.node) for hit in hits] for question, hits in zip(questions, results, strict=True)
    ]
    golds = [frozenset(question.gold) for question in questions]
    return RetrieverScores(
        name,
        np.array([[recall_at(k, hits, gold) for k in top_k] for hits, gold in zip(answers, golds, strict=True)]),
        mean_reciprocal_rank([hits[:RANK_DEPTH] for hits in answers], golds),
        milliseconds,
        chunks,
        tuple(_beginning(hits[0]) if hits else ("", "") for hits in results),
    )


def _beginning(hit: NodeWithScore) -> tuple[str, str]:
    """A hit as a report shows it: where it is from, and how it begins."""
    return citation_of(hit.node.metadata) or hit.node.node_id, hit.node.get_content(MetadataMode.NONE)[:_SHOWN]


# Measures


def interval(values: npt.ArrayLike) -> list[Interval]:
    """Mean and 95 % bootstrap interval of each column, as ``(mean, low, high)``.

    Args:
        values: Shape ``(questions, k)``, at least one question. For a paired interval give differences.
    """
    points = np.asarray(values, float)
    return intervals_of(points.mean(axis=0), points[resamples(len(points))].mean(axis=1))


def resamples(count: int) -> npt.NDArray[np.int64]:
    """Row numbers of each resample of so many questions; the same in every run."""
    return np.random.default_rng(0).integers(count, size=(_RESAMPLES, count))


def intervals_of(values: Recalls, resampled: Recalls) -> list[Interval]:
    """Each value with the 2.5th and 97.5th percentile of its resamples."""
    low, high = np.percentile(resampled, [2.5, 97.5], axis=0)
    return list(zip(values.tolist(), low.tolist(), high.tolist(), strict=True))


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
