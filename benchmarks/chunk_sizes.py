"""Recall by the size of chunks, in the same number of characters, on sets of real documents and questions.

    python benchmarks/chunk_sizes.py [--sets course-lessons ...] [--pages 300] [--chats 3]

``--sizes 200 400 800`` and ``--arms vectors keywords both`` choose the rows; keywords alone take seconds.

Every row cuts the same documents with ``HeadingAwareMarkdownNodeParser`` at another ``chunk_size`` (cl100k tokens, a
fifth of it overlap, an eighth at least), gives the chunks their headings as context, and asks the same questions of the
vectors, of the keywords, and of both. Larger chunks hold more, so recall is that of as many chunks as have 2,000, 4,000
and 8,000 characters together, the first one in any case. The local embedding reads 256 word pieces at a time and
averages the windows of longer chunks, so the vectors of large chunks are those of a model that reads them in parts.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from common import RememberingEmbedding, machine, markdown_table
from datasets import chat_notes, course_lessons, first_collections, kubernetes_docs
from retrieval import BUDGETS, Bench, Row, measure

from llama_index_contextual import HeadingAwareMarkdownNodeParser
from llama_index_contextual.text import MARKDOWN_SUFFIXES

if TYPE_CHECKING:
    from datasets import DataSet
    from llama_index.core.schema import BaseNode

ROWS = (
    Row("vectors", dense="headings"),
    Row("keywords", sparse="headings"),
    Row("both", dense="headings", sparse="headings"),
)


class Sized(Bench):
    """A bench whose chunks have at most so many tokens."""

    def __init__(self, data: DataSet, collection: str, embedding: RememberingEmbedding, size: int) -> None:
        super().__init__(data, collection, embedding)
        self.size = size

    def _chunks(self) -> list[BaseNode]:
        size = self.size
        parser = HeadingAwareMarkdownNodeParser(
            chunk_size=size,
            chunk_overlap=size // 5,
            min_chunk_size=size // 8,
            markdown_suffixes=MARKDOWN_SUFFIXES,
        )
        return list(parser(self.documents))


def sets(names: list[str], pages: int, chats: int) -> list[DataSet]:
    """Read the sets that were asked for, of the large ones a part."""
    made = []
    for name in names:
        if name == "kubernetes-docs":
            made.append(kubernetes_docs(pages))
        elif name == "course-lessons":
            made.append(course_lessons())
        else:
            made.append(first_collections(chat_notes(), chats))
    return made


def main() -> None:
    """Measure and print a table for each set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["course-lessons", "kubernetes-docs", "chat-notes"]
    parser.add_argument("--sets", nargs="+", choices=names, default=names)
    parser.add_argument("--sizes", nargs="+", type=int, default=[200, 400, 800])
    parser.add_argument("--arms", nargs="+", choices=[row.name for row in ROWS], default=[row.name for row in ROWS])
    parser.add_argument("--pages", type=int, default=300, help="of kubernetes-docs, the ones with answers first")
    parser.add_argument("--chats", type=int, default=3, help="of chat-notes")
    parser.add_argument("--out", type=Path, help="write the tables to this file too")
    given = parser.parse_args()
    embedding = RememberingEmbedding()
    parts = [f"Machine: {machine()}; embedding all-MiniLM-L6-v2-int8."]
    print(parts[0], flush=True)
    for data in sets(given.sets, given.pages, given.chats):
        texts = sorted({question.text for question in data.questions})
        vectors = dict(zip(texts, embedding.get_text_embedding_batch(texts), strict=True))
        cells: list[list[object]] = []
        for size in given.sizes:
            benches = {name: Sized(data, name, embedding, size) for name in data.documents}
            nodes = [node for bench in benches.values() for node in bench.nodes("off")]
            mean = sum(len(node.get_content()) for node in nodes) / len(nodes)
            for row in (row for row in ROWS if row.name in given.arms):
                measured = measure(data, row, benches, vectors)
                cells.append(
                    [size, row.name, len(nodes), round(mean), *(100 * measured.by_length.mean(axis=0)).tolist()]
                )
        documents = sum(map(len, data.documents.values()))
        head = f"## {data.name}: {documents} documents, {len(data.questions)} questions"
        columns = ["chunk_size", "arm", "chunks", "mean characters", *(f"recall in {one:,}" for one in BUDGETS)]
        parts += [head, markdown_table(columns, cells)]
        print(f"\n{head}\n\n{parts[-1]}", flush=True)
    if given.out:
        given.out.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
