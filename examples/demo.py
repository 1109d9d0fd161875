"""Index the example notes twice, without and with context, and ask both the same question.

Run it with ``make demo``, or ``python examples/demo.py`` where the package is installed with its ``local`` extra.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from llama_index_contextual import ContextualIndex

NOTES = Path(__file__).parent / "notes"
QUESTION = "What is the default timeout of the gateway?"
console = Console(width=None if sys.stdout.isatty() else 120)


def ask(storage: Path, context: str) -> list[list[str]]:
    """Index the notes with the given context setting and give the rows of a table of hits."""
    with ContextualIndex.open(NOTES, storage=storage, context=context) as index:
        index.refresh()
        hits = index.as_retriever(similarity_top_k=3).retrieve(QUESTION)
    rows = []
    for hit in hits:
        meta = hit.node.metadata
        place = f"{meta['path']}#L{meta['start_line']}-L{meta['end_line']}"
        rows.append([f"{hit.score:.2f}", place, " ".join(hit.node.text.split("\n\n", 1)[-1].split())[:44] + "…"])
    return rows


def main() -> None:
    """Print the hits side by side."""
    console.print(
        f"\nNotes:    {len(list(NOTES.rglob('*.md')))} files in examples/notes\nQuestion: [bold]{QUESTION}[/]\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        for title, context in (("plain chunks", "off"), ("contextual chunks", "headings")):
            table = Table("score", "source", "text (as displayed: no prefix)", title=title, title_justify="left")
            for row in ask(Path(folder) / context, context):
                table.add_row(*row)
            console.print(table)
    console.print(
        "\nBoth pages say [italic]The default value is … and can be adjusted via the config file[/]: only the\n"
        "context, embedded and keyword-indexed but never displayed, tells the gateway's 60 from the scheduler's 900.\n"
        "\nYour own notes:  [bold].venv/bin/llama-index-contextual index FOLDER[/]\n"
        '                 [bold].venv/bin/llama-index-contextual search "a question" --folder FOLDER[/]\n'
    )


if __name__ == "__main__":
    main()
