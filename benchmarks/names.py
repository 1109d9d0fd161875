"""The names of documents as questions: how often the document comes first.

    python benchmarks/names.py [--sets obsidian-help course-lessons kubernetes-docs] [--pages 300]

Each document of a set is asked for, through ``ContextualIndex``, by its file name, with and without
the suffix, as a link of a vault, by its title or first heading, and by each of its aliases. Where
several documents share a name, each of them is right. The set ``obsidian-help`` is for reporting
only: nothing is tuned on it.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from common import RememberingEmbedding, command_line, machine, markdown_table
from datasets import DataSet, kubernetes_docs, pages_of
from retrieval import Bench

from llama_index_contextual.node_parser.node_metadata import headings_of
from llama_index_contextual.retrievers.names import folded_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llama_index.core.schema import BaseNode, Document


def names_of(document: Document, nodes: Sequence[BaseNode]) -> Iterator[tuple[str, str]]:
    """Return the names of a document, each with its kind."""
    path = PurePosixPath(document.metadata["path"])
    yield "file name", path.stem
    yield "with suffix", path.name
    yield "as a link", f"[[{path.stem}]]"
    title = next((str(node.metadata["title"]) for node in nodes if node.metadata.get("title")), "")
    if title:
        yield "title", title
    for heading, _, _ in headings_of(document.text)[:1]:
        yield "first heading", heading
    for alias in str(nodes[0].metadata.get("aliases", "")).split(",") if nodes else ():
        if alias.strip():
            yield "alias", alias.strip()


def measure(
    name: str, documents: list[Document], embedding: RememberingEmbedding
) -> list[list[object]]:
    """Return the rows of a set.

    By kind how many names there are, and the shares of those that come first and in three.
    """
    bench = Bench(DataSet(name, {"": documents}, [], lambda _: frozenset()), "", embedding)
    nodes, retriever = bench.nodes("headings"), bench.index("headings").as_retriever(3)
    chunks = defaultdict[str, list["BaseNode"]](list)
    for node in nodes:
        chunks[node.ref_doc_id or ""].append(node)
    asked = [
        (kind, text, document.doc_id)
        for document in documents
        for kind, text in names_of(document, chunks[document.doc_id])
    ]
    owners, kinds_of = defaultdict[str, set[str]](set), defaultdict[tuple[str, str], set[str]](set)
    for kind, text, document_id in asked:
        owners[folded_name(text)].add(document_id)
        kinds_of[kind, folded_name(text)].add(document_id)
    ranks = defaultdict[str, list[int]](list)
    for kind, text, document_id in asked:
        ranked_ids = [hit.node.ref_doc_id for hit in retriever.retrieve(text)]
        right = owners[folded_name(text)]
        rank = next(
            (rank for rank, ranked_id in enumerate(ranked_ids, start=1) if ranked_id in right), 99
        )
        ranks[kind].append(rank)
        if len(kinds_of[kind, folded_name(text)]) == 1 and kind == "first heading":
            ranks["first heading of one document alone"].append(rank)
        if rank > 1:
            print(f"  {name}: {text!r} ({document_id}) finds {ranked_ids[:1]}", flush=True)
    ranks["all"] = [
        rank for kind, of_kind in ranks.items() if "alone" not in kind for rank in of_kind
    ]
    return [
        [
            name,
            kind,
            len(of_kind),
            *(100 * sum(rank <= most for rank in of_kind) / len(of_kind) for most in (1, 3)),
        ]
        for kind, of_kind in ranks.items()
    ]


def main() -> None:
    """Read the command line."""
    options = command_line(
        __doc__, sets=["obsidian-help", "course-lessons", "kubernetes-docs"], pages=300
    )
    embedding, rows = RememberingEmbedding(), list[list[object]]()
    for name in options.sets:
        is_large = name == "kubernetes-docs"
        documents = kubernetes_docs(options.pages).documents[""] if is_large else pages_of(name)
        rows += measure(name, documents, embedding)
    print(f"{machine()}\n")
    print(markdown_table(["set", "names", "questions", "first", "in three"], rows))


if __name__ == "__main__":
    main()
