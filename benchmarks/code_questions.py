"""Twelve questions that a project asks about its own source code, with the command line as it is.

    python benchmarks/code_questions.py CHECKOUT [--context pattern] [--storage FOLDER] [--out FILE]

The project is AmanMCP (https://github.com/Aman-CERP/amanmcp, Apache-2.0), whose decision to use contextual retrieval
rests on twelve "Tier 1" questions; 9 of them passed then. ``scripts/search-quality-queries.json`` and
``scripts/dogfood-baseline.sh`` of that repository list them with the path that one of the first ten results must have.
CHECKOUT is a copy of it (the figures here are of commit 530b952). Nothing of it is part of this project.

The script runs ``llama-index-contextual index CHECKOUT --context pattern`` on the Go files that are no tests, and once
more on these and the Markdown files, then asks each question of the retriever of ``search``. Two of the twelve ask for
a page of documentation, so the Go files alone can answer ten. A cell is the rank of the first hit with the expected
path; "-" where it is not among the first hundred.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from common import machine, markdown_table

from llama_index_contextual.app import ContextualIndex

TOP, POOL = 10, 100
FILES = {"Go files": ("*.go",), "Go and Markdown files": ("*.go", "*.md")}
QUESTIONS = {
    "Where is the vector store created": "internal/store/hnsw",
    "How does RRF fusion work": "internal/search/fusion",
    "Find the embedder interface": "internal/embed",
    "Where are MCP tools registered": "internal/mcp/server",
    "What are the performance targets": "docs/",
    "How do I add a new language": "docs/",
    "Search function": "internal/search/engine",
    "Index function": "internal/index",
    "Chunk type": "internal/chunk",
    "Config type": "internal/config",
    "OllamaEmbedder": "internal/embed/ollama",
    "Config struct fields": "internal/config",
}


def ranks(checkout: Path, storage: Path, context: str, patterns: tuple[str, ...]) -> list[int | None]:
    """Index the checkout and return for each question the rank of the first hit with the expected path."""
    files = [part for pattern in patterns for part in ("--include", pattern)] + ["--exclude", "*_test.go"]
    command = [sys.executable, "-m", "llama_index_contextual", "index", str(checkout), "--storage", str(storage)]
    subprocess.run([*command, "--context", context, *files], check=True)  # noqa: S603
    found: list[int | None] = []
    with ContextualIndex.open(checkout, storage=storage) as index:
        retriever = index.as_retriever(similarity_top_k=POOL)  # what "search" asks
        for question, expected in QUESTIONS.items():
            paths = [hit.node.metadata["path"] for hit in retriever.retrieve(question)]
            found.append(next((rank for rank, path in enumerate(paths, 1) if path.startswith(expected)), None))
    return found


def main() -> None:
    """Measure each choice of files and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--context", default="pattern", help="off, headings, pattern (default)")
    parser.add_argument("--storage", type=Path, help="keeps the indexes, so that a second run is fast")
    parser.add_argument("--out", type=Path, help="write the table to this file too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = given.storage or Path(temporary)
        columns = {
            name: ranks(given.checkout, root / f"{given.context} {name}", given.context, patterns)
            for name, patterns in FILES.items()
        }
    rows: list[list[object]] = [
        [question, f"`{expected}`", *(column[number] or "-" for column in columns.values())]
        for number, (question, expected) in enumerate(QUESTIONS.items())
    ]
    hits = [sum(rank is not None and rank <= TOP for rank in column) for column in columns.values()]
    rows.append([f"**in the first {TOP}, of {len(QUESTIONS)}**", "", *(f"**{count}**" for count in hits)])
    text = (
        f"{machine()}; contexts: {given.context}\n\n{markdown_table(['question', 'expected path', *columns], rows)}\n"
    )
    print(text)
    if given.out:
        given.out.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
