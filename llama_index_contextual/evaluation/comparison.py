"""Compare retrievers on the same questions: metrics, differences, and the questions that each gained and lost."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llama_index.core.schema import BaseNode, MetadataMode
from rich.console import Console
from rich.table import Table
from rich.text import Text

from llama_index_contextual.checks import whole
from llama_index_contextual.errors import SettingError
from llama_index_contextual.evaluation.metrics import (
    Recalls,
    failures_avoided,
    interval,
    mean_reciprocal_rank,
    ndcg,
    recall_at,
)
from llama_index_contextual.evaluation.need import PARTS_SAID, parts_of
from llama_index_contextual.metadata import citation_of
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from llama_index.core.base.base_retriever import BaseRetriever

    from llama_index_contextual.evaluation.questions import Question

TOP_K: Final = (5, 10, 20)
RANK_DEPTH: Final = 10  # the same for all, so that MRR and nDCG do not grow with top_k
ALL: Final = "all questions"
TIME: Final = "ms a question"
CHARACTERS: Final = "characters embedded"
COST_SAID: Final = "A question's time is without embedding it. Embedding is estimated, as if nothing were known yet."
MADE_SAID: Final = (
    "Nobody asked these questions: {} made each from one chunk. They show whether a setting finds what the documents "
    "say. They use the documents' words more than people do, so recall is higher, and settings may rank otherwise than "
    "by real questions. Cure: a file of questions that were asked."
)
ALIKE: Final = "chunks alike"
SHARED: Final = "same context, %"
COLLAPSED: Final = 50  # per cent of the nearest chunks with the same context
ALIKE_SAID: Final = (
    "Chunks alike: the mean cosine of two chunks, -1 to 1, and its spread. A context whose words are in all chunks "
    "pushes the mean up and the spread down, and recall collapses. Same context: of the five nearest chunks of each."
)
_SHOWN: Final = 400  # characters of a hit in a report
_FEW: Final = 30  # with fewer questions an interval says little


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of one retriever.

    Attributes:
        name: Its name, as the table shows it.
        recalls: Share of each question's passages in the first k hits, shape ``(questions, len(top_k))``, 0 to 1.
        mrr: Mean reciprocal rank of the first hit that holds a passage, 0 to 1; hits after the 10th count as none.
        ndcg: Normalised discounted cumulative gain of the first 10 hits, 0 to 1.
        notes: What it costs and how alike its chunks are, by column name; times are in milliseconds.
        firsts: For each question the first hit, as citation and text; "" where there is none.
    """

    name: str
    recalls: Recalls
    mrr: float
    ndcg: float = 0.0
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
        parts: Parts of the questions by name, for each question whether it is in the part. See
            :func:`~llama_index_contextual.evaluation.need.parts_of`.
        made: What made the questions, where nobody asked them.
    """

    questions: tuple[Question, ...]
    top_k: tuple[int, ...]
    rows: tuple[Measured, ...]
    baseline: str
    parts: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    made: str = ""

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
        return interval(100 * (self._row(name).recalls - self._row(than or self.baseline).recalls))

    def failures_avoided(self, name: str) -> dict[str, list[tuple[float, float, float] | None]]:
        """Return the failures of the baseline that a row avoids, in per cent, for all questions and for each part.

        Returns:
            For each k the per cent and its 95 % interval; below 0 where the row adds failures, None where the baseline
            fails nowhere. Parts without questions are left out.
        """
        before, after = self._row(self.baseline).recalls, self._row(name).recalls
        found: dict[str, list[tuple[float, float, float] | None]] = {}
        for part, chosen in {ALL: [True] * len(self.questions), **self.parts}.items():
            mask = np.asarray(chosen, bool)
            if not mask.any():
                continue
            avoided = failures_avoided(before[mask], after[mask])
            ends = zip(avoided.percent, avoided.low, avoided.high, strict=True)
            failed = (before[mask].min(axis=0) < 1).tolist()
            found[part] = [one if some else None for one, some in zip(ends, failed, strict=True)]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain data. All shares are from 0 to 1, differences too; questions are those of the smallest k."""
        return {
            "baseline": self.baseline,
            "questions": len(self.questions),
            "made": self.made,
            "rows": [
                {
                    "name": row.name,
                    "recall": dict(zip(map(str, self.top_k), row.recalls.mean(axis=0).tolist(), strict=True)),
                    "mrr": row.mrr,
                    "ndcg": row.ndcg,
                    **row.notes,
                    **({} if row.name == self.baseline else self._difference_to_dict(row.name)),
                }
                for row in self.rows
            ],
        }

    def __str__(self) -> str:
        lines = [_drawn(self.cells()), *self.remarks()]
        if failures := self.failure_cells():
            lines += ["", _drawn(failures), *self.failure_remarks()]
        if notes := self.note_cells():
            lines += ["", _drawn(notes), *self.note_remarks()]
        return "\n".join(lines)

    __repr__ = __str__  # hundreds of questions would fill the screen

    def _repr_html_(self) -> str:
        shown = [(self.cells(), self.remarks()), (self.failure_cells(), self.failure_remarks())]
        shown.append((self.note_cells(), self.note_remarks()))
        return "".join(_html_table(cells, remarks) for cells, remarks in shown if cells)

    def cells(self) -> list[list[str]]:
        """Return the table as text, its header first; recalls, MRR and nDCG in per cent."""
        return [
            ["recall, %", *(f"@{k}" for k in self.top_k), f"MRR@{RANK_DEPTH}", f"nDCG@{RANK_DEPTH}"],
            *(
                [row.name, *(f"{100 * share:.1f}" for share in (*row.recalls.mean(axis=0), row.mrr, row.ndcg))]
                for row in self.rows
            ),
        ]

    def note_cells(self) -> list[list[str]]:
        """Return what each row costs and how alike its chunks are, the header first; empty without such notes."""
        notes = list(dict.fromkeys(name for row in self.rows for name in row.notes))
        rows = [
            [row.name, *(_number(row.notes[name]) if name in row.notes else "" for name in notes)] for row in self.rows
        ]
        return [["costs", *notes], *rows] if notes else []

    def note_remarks(self) -> list[str]:
        """Return what the notes mean, and which contexts make neighbours the same."""
        noted = {name for row in self.rows for name in row.notes}
        said = [COST_SAID] if CHARACTERS in noted else []
        said += [ALIKE_SAID] if ALIKE in noted else []
        return said + [
            f"{row.name}: {row.notes[SHARED]:.0f} % of the nearest chunks have the same context. Such a context tells "
            "nothing apart. Cure: another one, which names what is special about each chunk."
            for row in self.rows
            if row.notes.get(SHARED, 0) > COLLAPSED
        ]

    def remarks(self) -> list[str]:
        """Return what to know of the figures: differences with their intervals, and how much they tell."""
        remarks = [MADE_SAID.format(self.made)] if self.made else []
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
        if (asked := len(self.questions)) < _FEW:
            remarks.append(
                f"{counted(asked, 'question')} {'is' if asked == 1 else 'are'} few. "
                f"Cure: ask {_FEW} or more before you decide by this."
            )
        return remarks

    def failure_cells(self) -> list[list[str]]:
        """Return the failures that each row avoids as text, the header first; empty where nothing failed."""
        rows = [
            [row.name, part, str(self._size(part)), *map(_signed, ends)]
            for row in self.rows
            if row.name != self.baseline
            for part, ends in self.failures_avoided(row.name).items()
            if any(ends)
        ]
        head = ["failures avoided, %", "of", "questions", *(f"@{k}" for k in self.top_k)]
        return [head, *rows] if rows else []

    def failure_remarks(self) -> list[str]:
        """Return what the table of avoided failures counts, and what its parts are."""
        said = [
            f"Of the answers that “{self.baseline}” misses, the part that a row finds; less than 0: it misses more."
        ]
        return said + ([PARTS_SAID] if self.parts else [])

    def _size(self, part: str) -> int:
        return sum(self.parts[part]) if part in self.parts else len(self.questions)

    def _difference_to_dict(self, name: str) -> dict[str, Any]:
        ends = zip(self.top_k, self.difference(name), strict=True)
        avoided = self.failures_avoided(name).items()
        return {
            "failures_avoided": {part: self._avoided_to_dict(part, found) for part, found in avoided},
            "difference": {str(k): [points / 100 for points in interval] for k, interval in ends},
            "gained": [question.text for question in self.gained(name)],
            "lost": [question.text for question in self.lost(name)],
        }

    def _avoided_to_dict(self, part: str, found: list[tuple[float, float, float] | None]) -> dict[str, Any]:
        shares = (None if one is None else [percent / 100 for percent in one] for one in found)
        return {"questions": self._size(part), **dict(zip(map(str, self.top_k), shares, strict=True))}

    def _row(self, name: str) -> Measured:
        for row in self.rows:
            if row.name == name:
                return row
        raise SettingError(f"there is no row {name!r}. Cure: use one of {[row.name for row in self.rows]}")

    def _column(self, k: int | None) -> int:
        if k is not None and k not in self.top_k:
            raise SettingError(f"k={k} was not counted. Cure: use one of {list(self.top_k)}")
        return 0 if k is None else self.top_k.index(k)


def _drawn(cells: list[list[str]]) -> str:
    head, *body = cells
    table = Table(head[0], box=None, pad_edge=False)
    for column in head[1:]:
        table.add_column(column, justify="right")
    for line in body:
        table.add_row(*map(Text, line))
    console = Console(file=StringIO(), width=200, record=True, force_jupyter=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


def _html_table(cells: list[list[str]], remarks: list[str]) -> str:
    head, *body = cells
    shown = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in body)
    said = "".join(f"<p>{escape(remark)}</p>" for remark in remarks)
    return f"<table><thead><tr>{shown}</tr></thead><tbody>{lines}</tbody></table>{said}"


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 and value != int(value) else f"{value:,.0f}"  # noqa: PLR2004


def _signed(ends: tuple[float, float, float] | None) -> str:
    if ends is None:
        return "nothing failed"
    return "{:+.0f} [{:+.0f}, {:+.0f}]".format(*ends)


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
        questions: Questions with known answers. See :func:`~llama_index_contextual.evaluation.load_questions`.
        top_k: Numbers of hits to count. Each retriever must return as many hits as the largest of them.
        nodes: All chunks that are searched. With them the result tells the questions that need context from the others.

    Raises:
        SettingError: Nothing to compare, or a retriever returns fewer hits than are counted.
    """
    if not retrievers:
        raise SettingError("retrievers={} is empty. Cure: give at least one, by name.")
    counted = check_top_k(top_k)
    rows = tuple(measure(name, one, questions, counted) for name, one in retrievers.items())
    parts = {} if nodes is None else parts_of(questions, nodes)
    return Comparison(tuple(questions), counted, rows, rows[0].name, parts)


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
            f"the retriever {name!r} returns {counted(returned, 'hit')}, but {most} are counted. "
            f"Cure: similarity_top_k={most}, or a smaller top_k="
        )
    started = time.perf_counter()
    found = [retriever.retrieve(question.text) for question in questions]
    took = 1000 * (time.perf_counter() - started) / len(questions)
    covered = [[question.covered_by(hit.node) for hit in hits] for question, hits in zip(questions, found, strict=True)]
    golds = [frozenset(question.gold) for question in questions]
    recalls = [[recall_at(k, hits, gold) for k in top_k] for hits, gold in zip(covered, golds, strict=True)]
    firsts = tuple(_shown(hits[0].node) if hits else "" for hits in found)
    mrr = mean_reciprocal_rank([hits[:RANK_DEPTH] for hits in covered], golds)
    return Measured(
        name, np.array(recalls), mrr, ndcg(RANK_DEPTH, covered, golds), {**(notes or {}), TIME: took}, firsts
    )


def _shown(node: BaseNode) -> str:
    """Return a hit as a report shows it: where it is from, and how it begins."""
    return f"{citation_of(node.metadata) or node.node_id}\n{node.get_content(MetadataMode.NONE)[:_SHOWN]}"


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
