"""A comparison as a report: an HTML page with a plot, or Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from llama_index_contextual.evaluation.need import failures_avoided
from llama_index_contextual.report import render

if TYPE_CHECKING:
    from llama_index_contextual.evaluation.comparison import Comparison, Measured
    from llama_index_contextual.evaluation.questions import Question

_LEFT, _SCALE, _ROW, _TOP = 230, 5.2, 26, 24  # of the plot, in pixels; the scale is pixels a point of recall
_DRAWS: Final = 2000  # of the bootstrap


def html_report(comparison: Comparison, title: str = "What contexts find") -> str:
    """Return a self-contained page: table, plot of recall with intervals, failures avoided, gained and lost questions.

    Args:
        comparison: As :func:`~llama_index_contextual.evaluation.compare` or ``evaluate`` gives it.
        title: The page's.
    """
    k = comparison.top_k[0]
    return render(
        "comparison.html",
        title=title,
        summary=f"{len(comparison.questions)} questions; recall in the first {_listed(comparison.top_k)} hits.",
        table=comparison.cells(),
        remarks=comparison.remarks(),
        plot=_plot(comparison),
        baseline=comparison.baseline,
        failures=_failures(comparison),
        changed=[_changed(comparison, row) for row in comparison.rows if row.name != comparison.baseline],
        k=k,
    )


def markdown_report(comparison: Comparison, title: str = "What contexts find") -> str:
    """Return the tables and the changed questions as Markdown."""
    lines = [f"# {title}", "", *_table(comparison.cells()), "", *comparison.remarks(), ""]
    if failures := _failures(comparison):
        lines += ["## Failures avoided", "", *_table(failures), ""]
    for row in comparison.rows:
        if row.name != comparison.baseline:
            changed = _changed(comparison, row)
            for kind in ("gained", "lost"):
                lines += [f"## {row.name}: {len(changed[kind])} {kind} in the first {comparison.top_k[0]}", ""]
                lines += [f"- {_inline(one['text'])}" for one in changed[kind]] + [""]
    return "\n".join(lines)


def _table(cells: list[list[str]]) -> list[str]:
    head, *body = [["" if cell is None else _inline(cell).replace("|", "\\|") for cell in line] for line in cells]
    return ["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *body)]


def _inline(text: str) -> str:
    return " ".join(text.split())


def _listed(counts: tuple[int, ...]) -> str:
    return ", ".join(map(str, counts[:-1])) + (" and " if len(counts) > 1 else "") + str(counts[-1])


def _plot(comparison: Comparison) -> dict[str, Any]:
    """Lay out one line for each row and each k: the mean and its interval by bootstrap over the questions."""
    marks: list[dict[str, Any]] = []
    for row in comparison.rows:
        points = 100 * np.asarray(row.recalls)
        drawn = np.random.default_rng(0).integers(len(points), size=(_DRAWS, len(points)))
        low, high = np.percentile(points[drawn].mean(axis=1), [2.5, 97.5], axis=0)
        for column, k in enumerate(comparison.top_k):
            mean = float(points[:, column].mean())
            ends = {"low": _x(float(low[column])), "high": _x(float(high[column])), "x": _x(mean)}
            label = f"{row.name} @{k}"
            marks.append({"label": label, "value": f"{mean:.1f}", "y": _TOP + _ROW * len(marks) + 10, **ends})
    ticks = [{"x": _x(value), "label": f"{value} %"} for value in range(0, 101, 20)]
    height = _TOP + _ROW * len(marks) + 8
    return {"width": _LEFT + int(100 * _SCALE) + 60, "height": height, "left": _LEFT, "ticks": ticks, "marks": marks}


def _x(percent: float) -> float:
    return round(_LEFT + _SCALE * percent, 1)


def _failures(comparison: Comparison) -> list[list[str]]:
    """Per cent of the baseline's failures that each row avoids; empty where the baseline fails nowhere or is alone."""
    rows = {row.name: row for row in comparison.rows}
    baseline = rows.pop(comparison.baseline)
    if not rows or np.asarray(baseline.recalls).min() >= 1:
        return []
    lines = [["failures avoided, %", *(f"@{k}" for k in comparison.top_k)]]
    for name, row in rows.items():
        avoided = failures_avoided(baseline.recalls, row.recalls)
        ends = zip(avoided.percent, avoided.low, avoided.high, strict=True)
        lines.append([name, *(f"{mean:+.0f} [{low:+.0f}, {high:+.0f}]" for mean, low, high in ends)])
    return lines


def _changed(comparison: Comparison, row: Measured) -> dict[str, Any]:
    """List the questions that a row gained and lost, with the first hit of both sides."""
    number = {id(question): place for place, question in enumerate(comparison.questions)}
    before = next(one for one in comparison.rows if one.name == comparison.baseline)

    def shown(question: Question) -> dict[str, str]:
        place = number[id(question)]
        first = {"before": before.firsts, "after": row.firsts}
        return {"text": question.text, **{key: hits[place] if hits else "" for key, hits in first.items()}}

    gained, lost = comparison.gained(row.name), comparison.lost(row.name)
    return {"name": row.name, "gained": [shown(one) for one in gained], "lost": [shown(one) for one in lost]}
