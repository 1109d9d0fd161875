"""A comparison as a report: an HTML page with a plot, or Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.evaluation.metrics import interval
from llama_index_contextual.report import render
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from llama_index_contextual.evaluation.comparison import Comparison, Measured
    from llama_index_contextual.evaluation.questions import Question

PUBLISHED: Final = (
    "Anthropic reports 35 % (contextual embeddings), 49 % (with contextual BM25) and 67 % (with a reranker) at 20 "
    "chunks, on its own data and with contexts by a language model."
)


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
        summary=(
            f"{counted(len(comparison.questions), 'question')}; recall in the first {_listed(comparison.top_k)} hits."
        ),
        table=comparison.cells(),
        remarks=comparison.remarks(),
        plot=_plot(comparison),
        baseline=comparison.baseline,
        failures=comparison.failure_cells(),
        failure_remarks=comparison.failure_remarks(),
        changed=[_changed(comparison, row) for row in comparison.rows if row.name != comparison.baseline],
        published=PUBLISHED,
        notes=comparison.note_cells(),
        note_remarks=comparison.note_remarks(),
        k=k,
    )


def markdown_report(comparison: Comparison, title: str = "What contexts find") -> str:
    """Return the tables and the changed questions as Markdown."""
    lines = [f"# {title}", "", *_table(comparison.cells()), "", *comparison.remarks(), ""]
    if failures := comparison.failure_cells():
        lines += ["## Failures avoided", "", *_table(failures), "", *comparison.failure_remarks(), PUBLISHED, ""]
    if notes := comparison.note_cells():
        lines += ["## Costs", "", *_table(notes), "", *comparison.note_remarks(), ""]
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
    marks = [
        {"label": f"{row.name} @{k}", "value": f"{mean:.1f}", "x": _x(mean), "low": _x(low), "high": _x(high)}
        for row in comparison.rows
        for k, (mean, low, high) in zip(comparison.top_k, interval(100 * row.recalls), strict=True)
    ]
    return {"ticks": [{"x": _x(value), "label": f"{value} %"} for value in range(0, 101, 20)], "marks": marks}


def _x(percent: float) -> float:
    """Return where a recall stands, in per cent of the plot's width: there is room for a label at both ends."""
    return round(4 + 0.92 * percent, 2)


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
