"""Draw the first picture of the README from real output: ``python docs/before_after.py``.

It asks the question of the README's first example, with and without contexts, and writes the chunks
that are found into two SVG files, one for light pages and one for dark ones.
"""

from __future__ import annotations

import os
import textwrap
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llama_index.core import SimpleDirectoryReader, VectorStoreIndex

from llama_index_contextual import ContextualNodePostprocessor, HeadingAwareMarkdownNodeParser
from llama_index_contextual.app import LocalEmbedding

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

ROOT: Final = Path(__file__).parents[1]
IMAGES: Final = ROOT / "docs" / "images"
QUESTION: Final = "What is the default number of retries of the scheduler?"
WIDTH: Final = 880
HEIGHT: Final = 300
CARD: Final = 410  # width of a card
LINE_LENGTH: Final = 50  # characters of a line in a card
TEXT_LINES: Final = 3


@dataclass(frozen=True)
class Theme:
    """Colors of a picture."""

    name: str
    background: str
    card: str
    text: str
    muted: str
    wrong: str
    right: str


THEMES: Final = (
    Theme("light", "#ffffff", "#f6f8fa", "#1f2328", "#59636e", "#cf222e", "#1a7f37"),
    Theme("dark", "#0d1117", "#151b23", "#f0f6fc", "#9198a1", "#f85149", "#3fb950"),
)


def first_hit(context: str) -> BaseNode:
    """Return the chunk that the vectors of the example notes find first."""
    documents = SimpleDirectoryReader("examples/notes", recursive=True).load_data()
    index = VectorStoreIndex.from_documents(
        documents,
        transformations=[HeadingAwareMarkdownNodeParser(), ContextualNodePostprocessor(context)],
        embed_model=LocalEmbedding(),
    )
    [hit] = index.as_retriever(similarity_top_k=1).retrieve(QUESTION)
    return hit.node


def card(left: int, title: str, color: str, node: BaseNode, theme: Theme) -> list[str]:
    """Return the SVG elements of one answer."""
    heading, _, body = node.get_content().lstrip("# ").partition("\n")
    lines = [heading, *textwrap.wrap(" ".join(body.split()), LINE_LENGTH)][:TEXT_LINES]
    context = str(node.metadata.get("context", "nothing"))
    place = (
        f"{node.metadata['file_name']}, lines {node.metadata['start_line']} to "
        f"{node.metadata['end_line']}"
    )
    parts = [
        f'<rect x="{left}" y="70" width="{CARD}" height="210" rx="8" fill="{theme.card}"/>',
        f'<rect x="{left}" y="70" width="6" height="210" fill="{color}"/>',
        f'<text x="{left + 24}" y="102" fill="{color}" font-weight="600">{escape(title)}</text>',
        f'<text x="{left + 24}" y="130" fill="{theme.muted}" font-size="13">{escape(place)}</text>',
    ]
    for number, line in enumerate(lines):
        ending = " …" if number == TEXT_LINES - 1 else ""
        weight = 600 if number == 0 else 400
        parts.append(
            f'<text x="{left + 24}" y="{158 + 22 * number}" fill="{theme.text}" '
            f'font-size="14" font-weight="{weight}">{escape(line + ending)}</text>'
        )
    parts.append(
        f'<text x="{left + 24}" y="240" fill="{theme.muted}" font-size="13">embedded with '
        "it:</text>"
    )
    shown = context.replace("examples/notes/", "").partition("\n")[0][:LINE_LENGTH]
    parts.append(
        f'<text x="{left + 24}" y="262" fill="{color}" font-size="13">{escape(shown)}</text>'
    )
    return parts


def picture(wrong: BaseNode, right: BaseNode, theme: Theme) -> str:
    """Return the picture as SVG."""
    font = "-apple-system, Segoe UI, Helvetica, Arial, sans-serif"
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" '
            f'height="{HEIGHT}" font-family="{font}" font-size="16" role="img">'
        ),
        f"<title>{escape(QUESTION)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="{theme.background}"/>',
        (
            f'<text x="20" y="40" fill="{theme.text}" font-size="18" font-weight="600">'
            f"{escape(QUESTION)}</text>"
        ),
        *card(20, "✗ Without contexts", theme.wrong, wrong, theme),
        *card(450, "✓ With contexts", theme.right, right, theme),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Write both pictures."""
    os.chdir(ROOT)
    wrong = first_hit("off")
    right = first_hit("headings")
    for theme in THEMES:
        file = IMAGES / f"before-after-{theme.name}.svg"
        file.write_text(picture(wrong, right, theme), "utf-8")


if __name__ == "__main__":
    main()
