"""Draw the chart of the README from ``results/recall.json``: ``python benchmarks/chart.py``.

``retrieval.py --json benchmarks/results/recall.json`` writes the figures. The chart is written as
two SVG files into ``docs/images``, one for light pages and one for dark ones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
FIGURES: Final = ROOT / "benchmarks" / "results" / "recall.json"
IMAGES: Final = ROOT / "docs" / "images"
MEASURE: Final = "recall@5"

# Sets in the order of the chart. The ranking was trained on questions of the second group.
UNSEEN: Final = {
    "german-judgments": "German judgments",
    "japanese-articles": "Japanese articles",
    "obsidian-help": "Obsidian's help",
    "pdf-reports": "PDF reports",
    "meeting-transcripts": "Meeting transcripts",
}
TRAINED: Final = {
    "codebases": "Source code",
    "locomo-notes": "Dated notes",
    "kubernetes-docs": "Kubernetes docs",
    "course-lessons": "Course lessons",
    "chat-notes": "Chats with an assistant",
}

WIDTH: Final = 880
TOP: Final = 92
BAR: Final = 13  # height of a bar
ROW: Final = 42  # height of the two bars of a set and the space below them
HEADING: Final = 34  # height of a heading of a group
AXIS_LEFT: Final = 250
AXIS_WIDTH: Final = 470
TICKS: Final = (0, 25, 50, 75, 100)


@dataclass(frozen=True)
class Theme:
    """Colors of a chart."""

    name: str
    background: str
    grid: str
    text: str
    muted: str
    stock: str
    ours: str


THEMES: Final = (
    Theme("light", "#ffffff", "#d1d9e0", "#1f2328", "#59636e", "#afb8c1", "#1a7f37"),
    Theme("dark", "#0d1117", "#3d444d", "#f0f6fc", "#9198a1", "#656c76", "#3fb950"),
)


def position(percent: float) -> float:
    """Return the horizontal place of a value on the axis."""
    return AXIS_LEFT + AXIS_WIDTH * percent / 100


def text(left: float, top: float, content: str, color: str, **style: object) -> str:
    """Return a line of text; ``font_size=13`` becomes ``font-size="13"``."""
    attributes = "".join(
        f' {name.replace("_", "-")}="{value}"' for name, value in sorted(style.items())
    )
    return f'<text x="{left:.0f}" y="{top:.0f}" fill="{color}"{attributes}>{escape(content)}</text>'


def bar(top: float, figure: list[float], color: str, theme: Theme) -> list[str]:
    """Return a bar with its 95 % interval and its value."""
    mean, low, high = figure
    middle = top + BAR / 2
    right = position(mean)
    ends = (position(low), position(high))
    whiskers = [f"M{ends[0]:.1f} {middle}H{ends[1]:.1f}"]
    whiskers += [f"M{end:.1f} {middle - 3}v6" for end in ends]
    return [
        (
            f'<rect x="{AXIS_LEFT}" y="{top}" width="{right - AXIS_LEFT:.1f}" height="{BAR}" '
            f'fill="{color}"/>'
        ),
        f'<path d="{" ".join(whiskers)}" stroke="{theme.text}" stroke-width="1.2"/>',
        text(position(100) + 18, top + BAR - 2, f"{mean:.1f}", theme.text, font_size=13),
    ]


def rows_of_set(top: float, label: str, record: dict[str, Any], theme: Theme) -> list[str]:
    """Return the name of a set, its two bars, and whether they differ."""
    figures = record[MEASURE]
    mean, low, high = figures["difference"]
    is_significant = low > 0 or high < 0
    verdict = f"{mean:+.1f}" if is_significant else f"{mean:+.1f}, n.s."
    color = theme.text if is_significant else theme.muted
    weight = 600 if is_significant else 400
    label_left = AXIS_LEFT - 14
    questions = f"{record['questions']} questions"
    return [
        text(label_left, top + 12, label, theme.text, text_anchor="end"),
        text(label_left, top + 28, questions, theme.muted, text_anchor="end", font_size=12),
        *bar(top, figures["ours"], theme.ours, theme),
        *bar(top + BAR + 2, figures["stock"], theme.stock, theme),
        text(position(100) + 70, top + 19, verdict, color, font_size=13, font_weight=weight),
    ]


def axis(bottom: float, theme: Theme) -> list[str]:
    """Return grid lines and their labels."""
    parts = []
    for tick in TICKS:
        left = position(tick)
        parts.append(f'<path d="M{left} {TOP - 8}V{bottom}" stroke="{theme.grid}"/>')
        label = f"{tick} %"
        parts.append(
            text(left, bottom + 18, label, theme.muted, text_anchor="middle", font_size=12)
        )
    return parts


def legend(theme: Theme) -> list[str]:
    """Return the title and what the bars mean."""
    return [
        text(24, 34, "Answers found in the first five chunks", theme.text, font_size=18)
        + text(24, 58, "Recall@5 with 95 % intervals. Same chunks, same embedding.", theme.muted),
        f'<rect x="505" y="47" width="13" height="13" fill="{theme.ours}"/>',
        text(524, 58, "this package", theme.text),
        f'<rect x="632" y="47" width="13" height="13" fill="{theme.stock}"/>',
        text(651, 58, "LlamaIndex vectors + BM25", theme.text),
    ]


def chart(figures: dict[str, Any], theme: Theme) -> str:
    """Return the chart as SVG."""
    top = TOP
    body = []
    groups = {
        "Never used in training": UNSEEN,
        "Used in training": TRAINED,
    }
    for heading, labels in groups.items():
        body.append(text(24, top + 12, heading, theme.muted, font_size=13, font_weight=600))
        top += HEADING
        for name, label in labels.items():
            if name in figures:
                body += rows_of_set(top, label, figures[name], theme)
                top += ROW
    height = top + 52
    caption = "Right: recall, and the difference in points; n.s. = not significant."
    font = "-apple-system, Segoe UI, Helvetica, Arial, sans-serif"
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="{font}" font-size="14" role="img">'
        ),
        "<title>Recall at five of this package and of LlamaIndex's stock hybrid</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="{theme.background}"/>',
        *legend(theme),
        *axis(top, theme),
        *body,
        text(24, height - 12, caption, theme.muted, font_size=12),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Write both charts."""
    figures = json.loads(FIGURES.read_text("utf-8"))
    for theme in THEMES:
        (IMAGES / f"recall-{theme.name}.svg").write_text(chart(figures, theme), "utf-8")


if __name__ == "__main__":
    main()
