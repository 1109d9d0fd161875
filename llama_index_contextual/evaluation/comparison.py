"""Compare retrievers on the same questions: metrics, differences, and the questions that each gained and lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from llama_index.core.schema import BaseNode, MetadataMode
from rich.console import Console
from rich.table import Table
from rich.text import Text

from llama_index_contextual.checks import whole
from llama_index_contextual.errors import SettingError
from llama_index_contextual.metadata import END_LINE, START_LINE, citation, path_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from llama_index.core.base.base_retriever import BaseRetriever

    from llama_index_contextual.evaluation.questions import Question

Recalls: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

TOP_K: Final = (5, 10, 20)
MRR_DEPTH: Final = 10  # the same for all, so that the figure does not grow with top_k
_DRAWS: Final = 2000  # of the bootstrap
_SHOWN: Final = 400  # characters of a hit in a report
_FEW: Final = 30  # with fewer questions an interval says little


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of one retriever.

    Attributes:
        name: Its name, as the table shows it.
        recalls: Share of each question's passages in the first k hits, shape ``(questions, len(top_k))``, 0 to 1.
        mrr: Mean reciprocal rank of the first hit that holds a passage, 0 to 1; hits after the 10th count as none.
        notes: More figures, by column name.
        firsts: For each question the first hit, as citation and text; "" where there is none.
    """

    name: str
    recalls: Recalls
    mrr: float
    notes: Mapping[str, float] = field(default_factory=dict)
    firsts: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Comparison:
    """Retrievers side by side. It prints itself, also in a notebook.

    Attributes:
        questions: The questions that were asked.
        top_k: The numbers of hits that were counted, smallest first.
        rows: The retrievers.
        baseline: The row that the others are compared with, unless another is named.
    """

    questions: tuple[Question, ...]
    top_k: tuple[int, ...]
    rows: tuple[Measured, ...]
    baseline: str

    def gained(self, name: str, than: str | None = None, *, k: int | None = None) -> list[Question]:
        """Return the questions of which ``name`` found more in the first k hits than another row.

        Args:
            name: A row.
            than: Another row. Default: the baseline.
            k: One of ``top_k``. Default: the smallest.

        Raises:
            SettingError: There is no such row, or k was not counted.
        """
        column = self._column(k)
        more = self._row(name).recalls[:, column] > self._row(than or self.baseline).recalls[:, column]
        return [question for question, is_more in zip(self.questions, more, strict=True) if is_more]

    def lost(self, name: str, than: str | None = None, *, k: int | None = None) -> list[Question]:
        """Return the questions of which ``name`` found less. See :meth:`gained`."""
        return self.gained(than or self.baseline, name, k=k)

    def difference(self, name: str, than: str | None = None) -> list[tuple[float, float, float]]:
        """Return the mean difference in recall at each k, in points, with its 95 % paired bootstrap interval.

        An interval that contains 0 means that these questions cannot tell the two rows apart.
        """
        points = 100 * (self._row(name).recalls - self._row(than or self.baseline).recalls)
        drawn = np.random.default_rng(0).integers(len(points), size=(_DRAWS, len(points)))
        low, high = np.percentile(points[drawn].mean(axis=1), [2.5, 97.5], axis=0)
        return list(zip(points.mean(axis=0).tolist(), low.tolist(), high.tolist(), strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data. All shares are from 0 to 1, differences too; questions are those of the smallest k."""
        return {
            "baseline": self.baseline,
            "questions": len(self.questions),
            "rows": [
                {
                    "name": row.name,
                    "recall": dict(zip(map(str, self.top_k), row.recalls.mean(axis=0).tolist(), strict=True)),
                    "mrr": row.mrr,
                    **row.notes,
                    **({} if row.name == self.baseline else self._difference_to_dict(row.name)),
                }
                for row in self.rows
            ],
        }

    def __str__(self) -> str:
        console = Console(file=StringIO(), width=200, record=True, force_jupyter=False)
        console.print(self._table())
        drawn = "\n".join(line.rstrip() for line in console.export_text().splitlines())
        return "\n".join([drawn, *self.remarks()])

    __repr__ = __str__  # hundreds of questions would fill the screen

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
        lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in body)
        remarks = "".join(f"<p>{escape(remark)}</p>" for remark in self.remarks())
        return f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>{remarks}"

    def _table(self) -> Table:
        head, *body = self.cells()
        table = Table(head[0], box=None, pad_edge=False)
        for column in head[1:]:
            table.add_column(column, justify="right")
        for line in body:
            table.add_row(*map(Text, line))
        return table

    def cells(self) -> list[list[str]]:
        """Return the table as text, its header first; recalls and MRR in per cent."""
        notes = list(dict.fromkeys(name for row in self.rows for name in row.notes))
        return [
            ["recall, %", *(f"@{k}" for k in self.top_k), f"MRR@{MRR_DEPTH}", *notes],
            *(
                [
                    row.name,
                    *(f"{100 * recall:.1f}" for recall in row.recalls.mean(axis=0)),
                    f"{100 * row.mrr:.1f}",
                    *(f"{row.notes[name]:.2f}" if name in row.notes else "" for name in notes),
                ]
                for row in self.rows
            ),
        ]

    def remarks(self) -> list[str]:
        """Return what to know of the figures: differences with their intervals, and how much they tell."""
        remarks = []
        for row in self.rows:
            if row.name == self.baseline:
                continue
            parts = (
                f"@{k} {mean:+.1f} [{low:+.1f}, {high:+.1f}]"
                for k, (mean, low, high) in zip(self.top_k, self.difference(row.name), strict=True)
            )
            remarks.append(f"{row.name} less {self.baseline}: {', '.join(parts)}")
        if len(self.rows) > 1:
            remarks.append(
                "In brackets: the 95 % interval of a paired bootstrap. If it contains 0, it shows no difference."
            )
        if len(self.questions) < _FEW:
            remarks.append(
                f"{len(self.questions)} questions are few. Cure: ask {_FEW} or more before you decide by this."
            )
        return remarks

    def _difference_to_dict(self, name: str) -> dict[str, Any]:
        ends = zip(self.top_k, self.difference(name), strict=True)
        return {
            "difference": {str(k): [points / 100 for points in interval] for k, interval in ends},
            "gained": [question.text for question in self.gained(name)],
            "lost": [question.text for question in self.lost(name)],
        }

    def _row(self, name: str) -> Measured:
        for row in self.rows:
            if row.name == name:
                return row
        raise SettingError(f"there is no row {name!r}. Cure: use one of {[row.name for row in self.rows]}")

    def _column(self, k: int | None) -> int:
        if k is not None and k not in self.top_k:
            raise SettingError(f"k={k} was not counted. Cure: use one of {list(self.top_k)}")
        return 0 if k is None else self.top_k.index(k)


def compare(
    retrievers: Mapping[str, BaseRetriever],
    questions: Sequence[Question],
    *,
    top_k: Iterable[int] = TOP_K,
) -> Comparison:
    """Ask several retrievers, of any kind, the same questions.

    Args:
        retrievers: Retrievers by name. The first is the one that the others are compared with.
        questions: Questions with known answers. See :func:`~llama_index_contextual.evaluation.load_questions`.
        top_k: Numbers of hits to count. Each retriever must return as many hits as the largest of them.

    Raises:
        SettingError: Nothing to compare, or a retriever returns fewer hits than are counted.
    """
    if not retrievers:
        raise SettingError("retrievers={} is empty. Cure: give at least one, by name.")
    counted = check_top_k(top_k)
    rows = tuple(measure(name, one, questions, counted) for name, one in retrievers.items())
    return Comparison(tuple(questions), counted, rows, rows[0].name)


def measure(
    name: str,
    retriever: BaseRetriever,
    questions: Sequence[Question],
    top_k: tuple[int, ...],
    *,
    notes: Mapping[str, float] | None = None,
) -> Measured:
    """Ask one retriever all questions. See :func:`compare`."""
    check_questions(questions)
    most, returned = max(top_k), getattr(retriever, "similarity_top_k", None)
    if isinstance(returned, int) and returned < most:
        raise SettingError(
            f"the retriever {name!r} returns {returned} hits, but {most} are counted. "
            f"Cure: similarity_top_k={most}, or a smaller top_k="
        )
    found = [retriever.retrieve(question.text) for question in questions]
    covered = [[question.covered_by(hit.node) for hit in hits] for question, hits in zip(questions, found, strict=True)]
    golds = [frozenset(question.gold) for question in questions]
    recalls = [[recall_at(k, hits, gold) for k in top_k] for hits, gold in zip(covered, golds, strict=True)]
    firsts = tuple(_shown(hits[0].node) if hits else "" for hits in found)
    mrr = mean_reciprocal_rank([hits[:MRR_DEPTH] for hits in covered], golds)
    return Measured(name, np.array(recalls), mrr, notes or {}, firsts)


def _shown(node: BaseNode) -> str:
    """Return a hit as a report shows it: where it is from, and how it begins."""
    place = citation(path_of(node.metadata), node.metadata.get(START_LINE), node.metadata.get(END_LINE))
    return f"{place or node.node_id}\n{node.get_content(MetadataMode.NONE)[:_SHOWN]}"


def check_questions(questions: Sequence[Question]) -> None:
    """Refuse an empty list, before anything is indexed for it.

    Raises:
        SettingError: There are no questions.
    """
    if not questions:
        raise SettingError("there are no questions. Cure: give load_questions(file), or a list of Question.")


def check_top_k(top_k: Iterable[int]) -> tuple[int, ...]:
    """Return the numbers of hits to count, smallest first.

    Raises:
        SettingError: There are none, or one is not a positive whole number.
    """
    counted = sorted({whole("top_k", k) for k in top_k})
    if not counted:
        raise SettingError(f"top_k=[] counts nothing. Cure: give numbers of hits, such as {list(TOP_K)}")
    return tuple(counted)


def recall_at(k: int, hits: Sequence[Collection[object]], gold: Collection[object]) -> float:
    """Return the share of the gold items that the first k hits cover, 0 to 1.

    Anthropic's contextual retrieval evaluation calls the mean of this over all queries *pass@k*.

    Args:
        k: How many hits count, at least 1.
        hits: For each hit, best first, the gold items that it covers. Other items are ignored.
        gold: The items to find, at least one.

    Raises:
        ValueError: ``k`` is less than 1 or ``gold`` is empty.
    """
    if k < 1 or not gold:
        raise ValueError(f"recall needs k >= 1 and at least one gold item, got k={k} and {len(gold)} items")
    wanted = set(gold)
    return len({item for hit in hits[:k] for item in hit} & wanted) / len(wanted)


def mean_reciprocal_rank(
    hits_of_queries: Sequence[Sequence[Collection[object]]], golds: Sequence[Collection[object]]
) -> float:
    """Return the mean over queries of 1 / rank of the first hit that covers a gold item, or 0 where none does.

    Args:
        hits_of_queries: For each query its hits, as :func:`recall_at` takes them.
        golds: For each query its gold items.

    Raises:
        ValueError: There are no queries, or not as many as gold sets.
    """
    if not golds or len(golds) != len(hits_of_queries):
        raise ValueError(f"need one gold set per query, got {len(hits_of_queries)} queries and {len(golds)} gold sets")
    total = 0.0
    for hits, gold in zip(hits_of_queries, golds, strict=True):
        wanted = set(gold)
        total += next((1 / rank for rank, hit in enumerate(hits, 1) if wanted & set(hit)), 0.0)
    return total / len(golds)
