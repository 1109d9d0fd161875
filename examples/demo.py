"""Index the example notes, ask one question, and show beside it what chunks without context would have found.

Run it with ``make demo``, or ``python examples/demo.py`` where the package is installed with its ``local`` extra. Both
sides have the same chunks, the same embedding and the same hybrid retriever; only the context differs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from llama_index.core import Document, VectorStoreIndex
from rich.console import Console
from rich.table import Table

from llama_index_contextual import ContextualBM25Retriever, ContextualFusionRetriever
from llama_index_contextual.app import ContextualIndex, LocalEmbedding
from llama_index_contextual.app.index.pipeline import default_parser  # the parser that ContextualIndex uses

if TYPE_CHECKING:
    from llama_index.core.schema import NodeWithScore

NOTES = Path(__file__).parent / "notes"
QUESTION = "What is the default timeout of the gateway?"
console = Console(width=None if sys.stdout.isatty() else 118)


def contextual_hits(storage: Path) -> list[NodeWithScore]:
    """Index the folder with contexts and ask."""
    with ContextualIndex.open(NOTES, storage=storage) as index:
        console.print(f"{index.refresh()}\n")
        return index.as_retriever(similarity_top_k=3).retrieve(QUESTION)


def plain_hits() -> list[NodeWithScore]:
    """Ask the same chunks without any context: their text alone is embedded and keyword-indexed."""
    embedding = LocalEmbedding()
    paths = sorted(NOTES.rglob("*.md"))
    documents = [Document(text=p.read_text("utf-8"), metadata={"path": p.relative_to(NOTES).as_posix()}) for p in paths]
    nodes = default_parser(embedding)(documents)
    for node in nodes:
        node.excluded_embed_metadata_keys = list(node.metadata)
    vectors = VectorStoreIndex(nodes, embed_model=embedding).as_retriever(similarity_top_k=len(nodes))
    return ContextualFusionRetriever([vectors, ContextualBM25Retriever(nodes)], similarity_top_k=3).retrieve(QUESTION)


def table(title: str, hits: list[NodeWithScore]) -> Table:
    """Draw hits: score, citation, and the text as it is displayed."""
    drawn = Table("score", "source", "text, as displayed", title=title, title_justify="left", title_style="bold")
    for hit in hits:
        meta = hit.node.metadata
        body = " ".join(hit.node.get_content().split("\n\n", 1)[-1].split())
        drawn.add_row(f"{hit.score:.2f}", f"{meta['path']}#L{meta['start_line']}-L{meta['end_line']}", f"{body[:58]}…")
    return drawn


def main() -> None:
    """Print both answers, one above the other."""
    console.print(f"\nNotes: examples/notes   Question: [bold]{QUESTION}[/]\n")
    with tempfile.TemporaryDirectory() as folder:
        contextual = contextual_hits(Path(folder))
    console.print(table("Chunks alone", plain_hits()))
    console.print(table("\nThe same chunks with their context", contextual))
    console.print(
        "\nTwo pages say [italic]The default value is … and can be adjusted via the config file[/]. Their text alone\n"
        "does not tell whose. The context, which is embedded and keyword-indexed but not displayed, does:\n"
        "the gateway's 60 comes first.\n\n"
        "Your own notes:  [bold].venv/bin/llama-index-contextual index FOLDER[/]\n"
        '                 [bold].venv/bin/llama-index-contextual search "a question" --folder FOLDER[/]\n'
    )


if __name__ == "__main__":
    main()
