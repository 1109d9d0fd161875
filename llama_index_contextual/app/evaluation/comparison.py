"""Retrievers that are asked the same questions: their figures, their differences, and both as a report."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llama_index.core.schema import BaseNode, MetadataMode

from llama_index_contextual.app.evaluation.metrics import (
    PARTS_REMARK,
    Interval,
    Recalls,
    failures_avoided,
    interval,
    mean_reciprocal_rank,
    ndcg,
    parts_of,
    recall_at,
)
from llama_index_contextual.app.serve.html import Table, render, rendered
from llama_index_contextual.app.serve.marking import Marker
from llama_index_contextual.errors import SettingError, needs, whole
from llama_index_contextual.metadata import PATH, citation_of
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from llama_index.core.base.base_retriever import BaseRetriever
    from markupsafe import Markup

    from llama_index_contextual.app.evaluation.questions import Question

TOP_K: Final = (5, 10, 20)
RANK_DEPTH: Final = 10  # the same for all, so that MRR and nDCG do not grow with top_k
COLLAPSED: Final = 50  # per cent of the nearest chunks with the same context
# Columns of the table of costs.
CHARACTERS: Final = "characters embedded"
ALIKE: Final = "chunks alike"
SHARED: Final = "same context, %"
TIME: Final = "ms a question"
_COSTS_REMARKS: Final = {
    CHARACTERS: "A question's time is without embedding it. Embedding is estimated, as if nothing were known yet.",
    ALIKE: "Chunks alike: the mean cosine of two chunks, -1 to 1, and its spread. A context whose words are in all "
    "chunks pushes the mean up and the spread down, and recall collapses. Same context: of the five nearest chunks of "
    "each.",
}
_PUBLISHED: Final = (
    "Anthropic reports 35 % (contextual embeddings), 49 % (with contextual BM25) and 67 % (with a reranker) at 20 "
    "chunks, on its own data and with contexts by a language model."
)
_TITLE: Final = "What contexts find"
_SHOWN: Final = 400  # characters of a hit in a report
_FEW: Final = 30  # with fewer questions an interval says little


@dataclass(frozen=True, slots=True)
class RetrieverScores:
    """The results of one retriever.

    Attributes:
        name: Its name, as the table shows it.
        recalls: Share of each question's passages in the first k hits, shape ``(questions, len(top_k))``, 0 to 1.
        mrr: Mean reciprocal rank of the first hit that holds a passage, 0 to 1; hits after the 10th count as none.
        ndcg: Normalised discounted cumulative gain of the first 10 hits, 0 to 1.
        notes: What it costs and how alike its chunks are, by column name; times are in milliseconds.
        firsts: For each question citation and text of the first hit; empty where there is none.
    """

    name: str
    recalls: Recalls
    mrr: float
    ndcg: float = 0.0
    notes: Mapping[str, float] = field(default_factory=dict)
    firsts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, repr=False)
class Comparison:
    """Retrievers side by side. It prints itself, also in a notebook.

    Attributes:
        questions: The questions that were asked.
        top_k: The numbers of hits that were counted, smallest first.
        rows: The retrievers.
        baseline: The row that the others are compared with, unless another is named.
        parts: Parts of the questions by name, for each question whether it is in the part. See
            :func:`~llama_index_contextual.app.evaluation.metrics.parts_of`.
    """

    questions: tuple[Question, ...]
    top_k: tuple[int, ...]
    rows: tuple[RetrieverScores, ...]
    baseline: str
    parts: Mapping[str, Sequence[bool]] = field(default_factory=dict)

    def gained(self, name: str, than: str | None = None, *, k: int | None = None) -> list[Question]:
        """The questions of which ``name`` found more in the first k hits than another row.

        Args:
            name: A row.
            than: Another row. Default: the baseline.
            k: One of ``top_k``. Default: the smallest.

        Raises:
            SettingError: There is no such row, or k was not counted.
        """
        if k is not None and k not in self.top_k:
            raise SettingError(f"k={k} was not counted. Cure: use one of {list(self.top_k)}")
        column = 0 if k is None else self.top_k.index(k)
        recalls, others = self._row(name).recalls, self._row(than or self.baseline).recalls
        return list(compress(self.questions, recalls[:, column] > others[:, column]))

    def lost(self, name: str, than: str | None = None, *, k: int | None = None) -> list[Question]:
        """The questions of which ``name`` found less. See :meth:`gained`."""
        return self.gained(than or self.baseline, name, k=k)

    def difference(self, name: str, than: str | None = None) -> list[Interval]:
        """The mean difference in recall at each k, in points, with its 95 % paired bootstrap interval.

        An interval that contains 0 means that these questions cannot tell the two rows apart.
        """
        return interval(100 * (self._row(name).recalls - self._row(than or self.baseline).recalls))

    def failures_avoided(self, name: str) -> dict[str, list[Interval | None]]:
        """The failures of the baseline that a row avoids, in per cent, for all questions and for each part.

        Returns:
            For each k the per cent and its 95 % interval; below 0 where the row adds failures, None where the baseline
            fails nowhere. Parts without questions are left out.
        """
        before, after = self._row(self.baseline).recalls, self._row(name).recalls
        masks = {part: np.asarray(mask, bool) for part, mask in self._parts().items()}
        return {part: failures_avoided(before[mask], after[mask]) for part, mask in masks.items() if mask.any()}

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame``: a row a retriever, with its recall at each k, MRR and nDCG as shares.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        with needs("pandas", "pandas"):
            from pandas import DataFrame
        columns = [*(f"@{k}" for k in self.top_k), "MRR", "nDCG"]
        rows = {row.name: [*row.recalls.mean(axis=0), row.mrr, row.ndcg] for row in self.rows}
        return DataFrame.from_dict(rows, orient="index", columns=columns)

    def to_dict(self) -> dict[str, Any]:
        """Plain data. All shares are from 0 to 1, differences too; questions are those of the smallest k."""
        rows = []
        for row in self.rows:
            recalls = dict(zip(map(str, self.top_k), row.recalls.mean(axis=0).tolist(), strict=True))
            data = {"name": row.name, "recall": recalls, "mrr": row.mrr, "ndcg": row.ndcg, **row.notes}
            if row.name != self.baseline:
                data["failures_avoided"] = {
                    part: {"questions": sum(self._parts()[part]), **self._shares(intervals)}
                    for part, intervals in self.failures_avoided(row.name).items()
                }
                data["difference"] = self._shares(self.difference(row.name))
                data |= {kind: [each.text for each in changed] for kind, changed in self.changes(row.name).items()}
            rows.append(data)
        return {"baseline": self.baseline, "questions": len(self.questions), "rows": rows}

    def _shares(self, intervals: Iterable[Interval | None]) -> dict[str, list[float] | None]:
        """Intervals in per cent as shares from 0 to 1, by the number of hits."""
        shares = (None if ends is None else [percent / 100 for percent in ends] for ends in intervals)
        return dict(zip(map(str, self.top_k), shares, strict=True))

    def changes(self, name: str) -> dict[str, list[Question]]:
        """The questions that a row gained and lost at the smallest k."""
        return {"gained": self.gained(name), "lost": self.lost(name)}

    def first_hit(self, name: str, question: Question) -> tuple[str, Markup]:
        """The first hit of a row for a question: citation and text as HTML; empty where it has none."""
        firsts = self._row(name).firsts
        source, text = firsts[self.questions.index(question)] if firsts else ("", "")
        return source, rendered(text, {PATH: source.partition("#")[0]}, Marker(), lambda _: "")

    def intervals(self) -> list[tuple[str, float, float, float]]:
        """Each recall in per cent with its 95 % interval, after the name of the row and the number of hits."""
        return [
            (f"{row.name} @{k}", *ends)
            for row in self.rows
            for k, ends in zip(self.top_k, interval(100 * row.recalls), strict=True)
        ]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables()))

    __repr__ = __str__  # hundreds of questions would fill the screen

    def _repr_html_(self) -> str:
        return "".join(table.to_html() for table in self.tables())

    def tables(self) -> list[Table]:
        """Return recalls, avoided failures and costs; the last two where there are any."""
        columns = [f"@{k}" for k in self.top_k]
        recalls = [
            [row.name, *(f"{100 * share:.1f}" for share in (*row.recalls.mean(axis=0), row.mrr, row.ndcg))]
            for row in self.rows
        ]
        failures = [
            [row.name, part, str(sum(self._parts()[part])), *map(signed, intervals)]
            for row in self.others()
            for part, intervals in self.failures_avoided(row.name).items()
            if any(ends and any(ends) for ends in intervals)
        ]
        failures_remarks = [
            f"Of the answers that “{self.baseline}” misses, the part that a row finds; less than 0: it misses more.",
            *([PARTS_REMARK] if self.parts else []),
            _PUBLISHED,
        ]
        notes = list(dict.fromkeys(note for row in self.rows for note in row.notes))
        costs = [[row.name, *(_number(row.notes.get(note)) for note in notes)] for row in self.rows if notes]
        tables = [
            Table("", ["recall, %", *columns, f"MRR@{RANK_DEPTH}", f"nDCG@{RANK_DEPTH}"], recalls, self._remarks()),
            Table("Failures avoided", ["failures avoided, %", "of", "questions", *columns], failures, failures_remarks),
            Table("Costs", ["costs", *notes], costs, self._costs_remarks(notes)),
        ]
        return [table for table in tables if table.rows]

    def _remarks(self) -> list[str]:
        """The differences with their intervals, and how much they tell."""
        remarks = list[str]()
        for row in self.others():
            ends = zip(self.top_k, self.difference(row.name), strict=True)
            differences = ", ".join(f"@{k} {mean:+.1f} [{low:+.1f}, {high:+.1f}]" for k, (mean, low, high) in ends)
            remarks.append(f"{row.name} less {self.baseline}: {differences}")
        if self.others():
            remarks.append(
                "In brackets: the 95 % interval of a paired bootstrap. If it contains 0, it shows no difference."
            )
        if (count := len(self.questions)) < _FEW:
            are = "is" if count == 1 else "are"
            remarks.append(
                f"{counted(count, 'question')} {are} few. Cure: ask {_FEW} or more before you decide by this."
            )
        return remarks

    def _costs_remarks(self, notes: Sequence[str]) -> list[str]:
        return [remark for note, remark in _COSTS_REMARKS.items() if note in notes] + [
            f"{row.name}: {row.notes[SHARED]:.0f} % of the nearest chunks have the same context. Such a context tells "
            "nothing apart. Cure: another one, which names what is special about each chunk."
            for row in self.rows
            if row.notes.get(SHARED, 0) > COLLAPSED
        ]

    def _parts(self) -> dict[str, Sequence[bool]]:
        return {"all questions": [True] * len(self.questions), **self.parts}

    def others(self) -> list[RetrieverScores]:
        """The rows that are compared with the baseline."""
        return [row for row in self.rows if row.name != self.baseline]

    def _row(self, name: str) -> RetrieverScores:
        rows = {row.name: row for row in self.rows}
        if name not in rows:
            raise SettingError(f"there is no row {name!r}. Cure: use one of {list(rows)}")
        return rows[name]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if abs(value) < 10 and value != int(value) else f"{value:,.0f}"  # noqa: PLR2004


def signed(ends: Interval | None) -> str:
    """Return avoided failures as a cell of a table."""
    return "nothing failed" if ends is None else "{:+.0f} [{:+.0f}, {:+.0f}]".format(*ends)


def html_report(comparison: Comparison, title: str = _TITLE) -> str:
    """A self-contained page: table, plot of recall with intervals, failures avoided, gained and lost questions.

    Args:
        comparison: As :func:`~llama_index_contextual.app.evaluation.compare` or ``evaluate`` gives it.
        title: The page's.
    """
    *ks, most = map(str, comparison.top_k)
    depths = f"{', '.join(ks)}{' and ' if ks else ''}{most}"
    count = counted(len(comparison.questions), "question")
    summary = f"How much of the answers to {count} each row finds in the first {depths} hits (recall)."
    return render("comparison.html", title=title, summary=summary, comparison=comparison)


def compare(
    retrievers: Mapping[str, BaseRetriever],
    questions: Sequence[Question],
    *,
    top_k: Iterable[int] = TOP_K,
    nodes: Sequence[BaseNode] | None = None,
) -> Comparison:
    """Ask several retrievers, of any kind, the same questions.

    Args:
        retrievers: Retrievers by name. The first is the one that the others are compared with.
        questions: Questions with known answers. See :func:`~llama_index_contextual.app.evaluation.load_questions`.
        top_k: Numbers of hits to count. Each retriever must return as many hits as the largest of them.
        nodes: All chunks that are searched. With them the result tells the questions that need context from the others.

    Raises:
        SettingError: Nothing to compare, or a retriever returns fewer hits than are counted.
    """
    if not retrievers:
        raise SettingError("retrievers={} is empty. Cure: give at least one, by name.")
    depths = check_asking(questions, top_k)
    rows = tuple(measure(name, retriever, questions, depths) for name, retriever in retrievers.items())
    parts = {} if nodes is None else parts_of(questions, nodes)
    return Comparison(tuple(questions), depths, rows, rows[0].name, parts)


def measure(
    name: str,
    retriever: BaseRetriever,
    questions: Sequence[Question],
    top_k: tuple[int, ...],
    notes: Mapping[str, float] | None = None,
) -> RetrieverScores:
    """Ask one retriever all questions. See :func:`compare`."""
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
        ndcg(RANK_DEPTH, answers, golds),
        {**(notes or {}), TIME: milliseconds},
        tuple(_beginning(hits[0].node) if hits else ("", "") for hits in results),
    )


def _beginning(node: BaseNode) -> tuple[str, str]:
    """A hit as a report shows it: where it is from, and how it begins."""
    return citation_of(node.metadata) or node.node_id, node.get_content(MetadataMode.NONE)[:_SHOWN]


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
