"""Compare retrievers by the same questions, with intervals, as a table or a page."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from llama_index_contextual.app.evaluation.metrics import (
    Interval,
    interval,
    mean_reciprocal_rank,
    recall_at,
)
from llama_index_contextual.app.serve.html import render
from llama_index_contextual.utils.errors import SettingError, whole
from llama_index_contextual.utils.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from llama_index.core.base.base_retriever import BaseRetriever

    from llama_index_contextual.app.evaluation.questions import Question

Recalls: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

TOP_K = (5, 10, 20)
RANK_DEPTH = 10  # fixed, so that MRR does not grow with top_k
_FEW = 30  # for fewer questions, bootstrap intervals are too narrow
_MAX_NAMED = 3  # questions listed as gained or lost in a terminal
_BRACKETS = (
    "In brackets: the 95 % interval of a paired bootstrap. An interval that contains 0 shows no "
    "difference."
)


class RetrieverScores(NamedTuple):
    """The results of one retriever.

    Args:
        name: The name in the table.
        recalls: The share of each question's passages in the first k hits, 0 to 1. The shape is
            ``(questions, len(top_k))``.
        mrr: The mean reciprocal rank of the first hit that contains a passage, 0 to 1. Hits after
            the 10th are ignored.
    """

    name: str
    recalls: Recalls
    mrr: float

    @property
    def bars(self) -> list[Interval]:
        """Return the mean recall at each number of hits, with its interval, for a chart."""
        return interval(self.recalls)


@dataclass(frozen=True, repr=False)
class Comparison:
    """The scores of several retrievers, which can be printed or displayed in a notebook.

    Attributes:
        questions: The questions.
        top_k: The numbers of hits that recall was measured at, smallest first.
        rows: The scores. The first retriever is the baseline.
    """

    questions: tuple[Question, ...]
    top_k: tuple[int, ...]
    rows: tuple[RetrieverScores, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with shares from 0 to 1.

        Each row lists the questions whose passages it ``missed``, at least in part, at the smallest
        number of hits. Each row but the first has its ``difference`` to the first at each number of
        hits, as the mean and the ends of the 95 % bootstrap interval. It also lists the questions
        ``gained`` and ``lost`` at the smallest number.
        """
        depths = [str(k) for k in self.top_k]
        first = self.rows[0]
        rows = list[dict[str, Any]]()
        for row in self.rows:
            data: dict[str, Any] = {
                "name": row.name,
                "recall": dict(zip(depths, row.recalls.mean(axis=0).tolist(), strict=True)),
                "mrr": row.mrr,
                "missed": self._texts_where(row.recalls[:, 0] < 1),
            }
            if row is not first:
                difference = row.recalls - first.recalls
                data["difference"] = dict(zip(depths, interval(difference), strict=True))
                data["gained"] = self._texts_where(difference[:, 0] > 0)
                data["lost"] = self._texts_where(difference[:, 0] < 0)
            rows.append(data)
        return {"baseline": first.name, "questions": len(self.questions), "rows": rows}

    def _texts_where(self, selected: np.ndarray[Any, np.dtype[np.bool_]]) -> list[str]:
        """Return the texts of the selected questions."""
        return [question.text for question in compress(self.questions, selected)]

    def table(self) -> list[list[str]]:
        """Return the figures as text cells, below a row of column names."""
        rows = [["recall, %", *(f"@{k}" for k in self.top_k), f"MRR@{RANK_DEPTH}"]]
        for row in self.rows:
            shares = [*row.recalls.mean(axis=0), row.mrr]
            rows.append([row.name, *(f"{100 * share:.1f}" for share in shares)])
        return rows

    def remarks(self) -> list[str]:
        """Return lines on the differences with their intervals, and on how to read them."""
        remarks = list[str]()
        for row in self.to_dict()["rows"][1:]:
            differences = [
                f"@{k} {100 * mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
                for k, (mean, low, high) in row["difference"].items()
            ]
            remarks.append(f"{row['name']} less {self.rows[0].name}: {', '.join(differences)}")
        if remarks:
            few = ""
            if len(self.questions) < _FEW:
                count = counted(len(self.questions), "question")
                few = f" {count} are too few to draw a conclusion."
            remarks.append(_BRACKETS + few)
        return remarks

    def __str__(self) -> str:
        table = self.table()
        first, *widths = (max(map(len, column)) for column in zip(*table, strict=True))
        lines = list[str]()
        for name, *cells in table:
            aligned = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
            lines.append("  ".join([name.ljust(first), *aligned]).rstrip())
        lines += self.remarks()
        for row in self.to_dict()["rows"][1:]:
            for kind in ("gained", "lost"):
                lines += _changed_lines(f"{row['name']} {kind}", row[kind], self.top_k[0])
        return "\n".join(lines)

    __repr__ = __str__  # hundreds of questions would fill the screen

    def to_html(self, title: str = "Comparison of retrievers") -> str:
        """Return a self-contained page with a chart, the table and the differences."""
        depths = ", ".join(f"@{depth}" for depth in self.top_k)
        count = counted(len(self.questions), "question")
        summary = (
            f"Recall for {count}: the share of the answers that each row finds in its first hits "
            f"({depths})."
        )
        return render("comparison.html", title=title, summary=summary, comparison=self)


def _changed_lines(name: str, questions: Sequence[str], depth: int) -> list[str]:
    """Return lines that list the first of the changed questions."""
    if not questions:
        return []
    lines = [f"\n{name} {len(questions)} at {depth}:"]
    lines += [f"  {' '.join(text.split())}" for text in questions[:_MAX_NAMED]]
    if len(questions) > _MAX_NAMED:
        lines.append(f"  … and {len(questions) - _MAX_NAMED} more")
    return lines


def compare(
    retrievers: Mapping[str, BaseRetriever],
    questions: Sequence[Question],
    *,
    top_k: Iterable[int] = TOP_K,
) -> Comparison:
    """Run the same questions on several retrievers of any kind.

    Args:
        retrievers: Retrievers by their names in the table. The first is the baseline.
        questions: Questions with known answers. See
            :func:`~llama_index_contextual.app.evaluation.load_questions`.
        top_k: Numbers of hits to measure recall at. Each retriever must return as many hits as the
            largest of them.

    Raises:
        SettingError: There are no retrievers or no questions, or a retriever returns too few hits.
    """
    depths = checked_depths(questions, top_k)
    if not retrievers:
        raise SettingError("`retrievers` is empty. Name at least one, as in {'mine': retriever}.")
    golds = [frozenset(question.gold) for question in questions]
    rows = list[RetrieverScores]()
    for name, retriever in retrievers.items():
        limit = getattr(retriever, "similarity_top_k", None)
        if isinstance(limit, int) and limit < depths[-1]:
            raise SettingError(
                f"The retriever {name!r} returns {counted(limit, 'hit')}, but {depths[-1]} are "
                f"needed. Set similarity_top_k={depths[-1]}, or a smaller top_k."
            )
        recalls = list[list[float]]()
        first_hits = []
        for question, gold in zip(questions, golds, strict=True):
            hits = [question.covered_by(hit.node) for hit in retriever.retrieve(question.text)]
            recalls.append([recall_at(k, hits, gold) for k in depths])
            first_hits.append(hits[:RANK_DEPTH])
        mrr = mean_reciprocal_rank(first_hits, golds)
        rows.append(RetrieverScores(name, np.array(recalls), mrr))
    return Comparison(tuple(questions), depths, tuple(rows))


def checked_depths(questions: Sequence[Question], top_k: Iterable[int]) -> tuple[int, ...]:
    """Return the numbers of hits to measure recall at, smallest first.

    Raises:
        SettingError: There are no questions, no numbers, or one is not a positive whole number.
    """
    depths = sorted({whole("top_k", k) for k in top_k})
    if not depths or not questions:
        raise SettingError(
            "There are no questions, or `top_k` is empty. Pass load_questions(file) and "
            "top_k=[5, 10]."
        )
    return tuple(depths)
