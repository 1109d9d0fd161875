"""Compare the cost of indexing with LlamaIndex's own parts, without an embedding.

    python benchmarks/indexing.py --nodes 10000

Both pipelines read the same real pages (the Kubernetes documentation; beyond what exists, pages
with exchanged words, as in ``scale.py``) until they have about so many nodes. "Ours" is
``HeadingAwareMarkdownNodeParser``, ``ContextualNodePostprocessor`` and
``ContextualBM25Retriever``; "stock" is ``MarkdownNodeParser``, ``SentenceSplitter`` and
``BM25Retriever``. Each pipeline runs in a process of its own. CPU time is that of all its threads,
per 1,000 nodes. Memory is what the process holds more than before the first page was parsed. The
size of a node is that of its JSON, which a second table shows by its parts.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from common import command_line, in_fresh_process, machine, markdown_table
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.core.schema import Document
from llama_index.retrievers.bm25 import BM25Retriever
from scale import pages

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualNodePostprocessor,
    HeadingAwareMarkdownNodeParser,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.schema import BaseNode

NODES_PER_PAGE: Final = 8.4
MEBIBYTE: Final = 2**20
PARTS: Final = {
    "text": "text",
    "metadata": "metadata",
    "excluded_embed_metadata_keys": "names of metadata that are not embedded",
    "excluded_llm_metadata_keys": "names of metadata that an LLM does not see",
    "relationships": "links to the document and to neighbors",
    "": "all else: id, offsets, templates, class",
}


class Cost(NamedTuple):
    """The cost of a pipeline.

    Attributes:
        nodes: How many nodes there are.
        parse: CPU seconds of parsing, contexts included, per 1,000 nodes.
        keywords: CPU seconds of the BM25 index, per 1,000 nodes.
        memory: MiB that the process holds more than before, per 1,000 nodes.
        node_size: Bytes of a node's JSON, on average.
        parts: The same by :data:`PARTS`.
    """

    nodes: int
    parse: float
    keywords: float
    memory: float
    node_size: float
    parts: dict[str, float]


def our_nodes(documents: Sequence[Document]) -> Sequence[BaseNode]:
    """Return the nodes of this package, with contexts."""
    nodes = HeadingAwareMarkdownNodeParser().get_nodes_from_documents(documents)
    return ContextualNodePostprocessor()(nodes)


def stock_nodes(documents: Sequence[Document]) -> Sequence[BaseNode]:
    """Return the nodes of LlamaIndex's parsers."""
    sections = MarkdownNodeParser().get_nodes_from_documents(documents)
    return SentenceSplitter().get_nodes_from_documents(sections)


PIPELINES: dict[str, tuple[Callable[..., Sequence[BaseNode]], Callable[..., object]]] = {
    "ours": (our_nodes, ContextualBM25Retriever),
    "stock": (stock_nodes, lambda nodes: BM25Retriever(nodes=nodes)),
}


def cost(name: str, number_of_pages: int) -> Cost:
    """Return the cost of a pipeline over so many pages."""
    make_nodes, make_retriever = PIPELINES[name]
    documents = [
        Document(text=text, metadata={"path": path})
        for path, text in islice(pages(), number_of_pages)
    ]
    # Import what a first use imports, and load models.
    make_retriever(make_nodes(documents[:3]))
    memory_before = resident_memory()

    start = time.process_time()
    nodes = make_nodes(documents)
    parsed = time.process_time()
    retriever = make_retriever(nodes)
    indexed = time.process_time()

    thousands = len(nodes) / 1000
    memory = (resident_memory() - memory_before) / thousands
    del retriever
    parts = bytes_by_part(nodes)
    return Cost(
        nodes=len(nodes),
        parse=(parsed - start) / thousands,
        keywords=(indexed - parsed) / thousands,
        memory=memory,
        node_size=sum(parts.values()),
        parts=parts,
    )


def bytes_by_part(nodes: Sequence[BaseNode]) -> dict[str, float]:
    """Return how many bytes of a node's JSON each part takes, on average."""
    sizes: Counter[str] = Counter()
    for node in nodes:
        text = node.to_json()
        fields = json.loads(text)
        size_of_fields = 0
        for name in filter(None, PARTS):
            size = len(json.dumps({name: fields[name]})) - len("{}")
            sizes[name] += size
            size_of_fields += size
        sizes[""] += len(text) - size_of_fields
    return {name: size / len(nodes) for name, size in sizes.items()}


def resident_memory() -> float:
    """Return the memory of this process in MiB (Linux)."""
    [kibibytes] = re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text("ascii"))
    return int(kibibytes) * 1024 / MEBIBYTE


def main() -> None:
    """Measure both pipelines and print a table."""
    nodes = command_line(__doc__, nodes=10_000).nodes
    ours, stock = (
        in_fresh_process(cost, name, round(nodes / NODES_PER_PAGE)) for name in PIPELINES
    )
    rows = []
    labels = {
        "parse": "parsing and contexts, CPU s per 1,000 nodes",
        "keywords": "BM25 index, CPU s per 1,000 nodes",
        "memory": "memory, MiB per 1,000 nodes",
        "node_size": "a node as JSON, bytes",
    }
    for field, label in labels.items():
        left = getattr(ours, field)
        right = getattr(stock, field)
        rows.append([label, f"{left:,.2f}", f"{right:,.2f}", f"{left / right:.2f}"])
    total = ours.parse + ours.keywords
    stock_total = stock.parse + stock.keywords
    rows.append(["both, CPU s", f"{total:.2f}", f"{stock_total:.2f}", f"{total / stock_total:.2f}"])
    header = [f"nodes: {ours.nodes:,} / {stock.nodes:,}", "ours", "stock", "ours / stock"]
    print(f"{machine()}\n\n{markdown_table(header, rows)}\n")
    sizes = []
    for part, label in PARTS.items():
        sizes.append([label, f"{ours.parts[part]:,.0f}", f"{stock.parts[part]:,.0f}"])
    print(markdown_table(["bytes of a node as JSON", "ours", "stock"], sizes))


if __name__ == "__main__":
    main()
