"""Measure how often a document comes first if the query is its name.

    python benchmarks/names.py [--sets obsidian-help course-lessons kubernetes-docs] [--pages 300]

Queries go through ``ContextualIndex``. They are the file name of each document, with and without
suffix and as a link in a vault, its title, first heading and aliases. If several documents have the
same name, each of them is right. The set ``obsidian-help`` is for reporting only: nothing is tuned
on it.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from common import RememberingEmbedding, command_line, machine, markdown_table
from datasets import DataSet, kubernetes_docs, pages_of
from retrieval import Bench

from llama_index_contextual.node_parser.node_metadata import headings_of
from llama_index_contextual.retrievers.names import folded_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from llama_index.core.schema import BaseNode, Document


NOT_FOUND: Final = 99  # the rank of a document that is not among the hits
ALL_KINDS: Final = "all"
UNSHARED_HEADING: Final = "first heading of one document alone"


class NameQuery(NamedTuple):
    """The name of a document as a query.

    Attributes:
        kind: The kind of name, such as "title".
        text: The query.
        document_id: The document.
    """

    kind: str
    text: str
    document_id: str


def names_of(document: Document, nodes: Sequence[BaseNode]) -> Iterator[tuple[str, str]]:
    """Yield the names of a document, each after its kind."""
    path = PurePosixPath(document.metadata["path"])
    yield "file name", path.stem
    yield "with suffix", path.name
    yield "as a link", f"[[{path.stem}]]"
    titles = [str(node.metadata["title"]) for node in nodes if node.metadata.get("title")]
    if titles:
        yield "title", titles[0]
    for heading, _, _ in headings_of(document.text)[:1]:
        yield "first heading", heading
    aliases = str(nodes[0].metadata.get("aliases", "")) if nodes else ""
    for alias in aliases.split(","):
        if alias.strip():
            yield "alias", alias.strip()


def queries_of(documents: Sequence[Document], nodes: Sequence[BaseNode]) -> list[NameQuery]:
    """Return all names of documents as queries."""
    nodes_of_document = defaultdict[str, list["BaseNode"]](list)
    for node in nodes:
        nodes_of_document[node.ref_doc_id or ""].append(node)
    queries = []
    for document in documents:
        for kind, text in names_of(document, nodes_of_document[document.doc_id]):
            queries.append(NameQuery(kind, text, document.doc_id))
    return queries


def measure(
    name: str, documents: list[Document], embedding: RememberingEmbedding
) -> list[list[object]]:
    """Return a row for each kind of name in a set.

    It has the number of names, and the percentages that come first and among the first three.
    """
    bench = Bench(DataSet(name, {"": documents}, [], lambda _: frozenset()), "", embedding)
    retriever = bench.index("headings").as_retriever(3)
    queries = queries_of(documents, bench.nodes("headings"))
    owners = defaultdict[str, set[str]](set)
    owners_by_heading = defaultdict[str, set[str]](set)
    for query in queries:
        owners[folded_name(query.text)].add(query.document_id)
        if query.kind == "first heading":
            owners_by_heading[folded_name(query.text)].add(query.document_id)

    ranks = defaultdict[str, list[int]](list)
    for query in queries:
        found_ids = [hit.node.ref_doc_id for hit in retriever.retrieve(query.text)]
        rank = rank_of(found_ids, owners[folded_name(query.text)])
        ranks[query.kind].append(rank)
        ranks[ALL_KINDS].append(rank)
        is_heading = query.kind == "first heading"
        if is_heading and len(owners_by_heading[folded_name(query.text)]) == 1:
            ranks[UNSHARED_HEADING].append(rank)
        if rank > 1:
            document_id = query.document_id
            print(f"  {name}: {query.text!r} ({document_id}) finds {found_ids[:1]}", flush=True)
    ranks[ALL_KINDS] = ranks.pop(ALL_KINDS)  # the last row
    rows: list[list[object]] = []
    for kind, ranks_of_kind in ranks.items():
        shares = [share_within(ranks_of_kind, rank) for rank in (1, 3)]
        rows.append([name, kind, len(ranks_of_kind), *shares])
    return rows


def rank_of(found_ids: Sequence[str | None], right_ids: Collection[str]) -> int:
    """Return the rank of the first right document."""
    for rank, found_id in enumerate(found_ids, start=1):
        if found_id in right_ids:
            return rank
    return NOT_FOUND


def share_within(ranks: Sequence[int], last_rank: int) -> float:
    """Return the percentage of ranks up to the last one."""
    return 100 * sum(rank <= last_rank for rank in ranks) / len(ranks)


def main() -> None:
    """Measure the sets and print a table."""
    options = command_line(
        __doc__, sets=["obsidian-help", "course-lessons", "kubernetes-docs"], pages=300
    )
    embedding = RememberingEmbedding()
    rows: list[list[object]] = []
    for name in options.sets:
        if name == "kubernetes-docs":
            documents = kubernetes_docs(options.pages).documents[""]
        else:
            documents = pages_of(name)
        rows += measure(name, documents, embedding)
    print(f"{machine()}\n")
    print(markdown_table(["set", "names", "questions", "first", "in three"], rows))


if __name__ == "__main__":
    main()
