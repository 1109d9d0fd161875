"""Recall of plain chunks, of LlamaIndex's stock hybrid and of ours, on sets of real documents and questions.

    python benchmarks/retrieval.py [--sets NAME ...] [--shares] [--rows NAME ...]
        [--out FILE]

Recall@k is the mean over questions of the share of gold items (chunks, lines of a note, pages) that the first k chunks
cover. Every row of a set but "stock chunks" ranks the same chunks with the same embedding; a row differs in what its
name says. Those of ours are asked through ``ContextualIndex``, and the others of Chroma as it is by default. As those
chunks are longer, there is also the recall of as many chunks as have 2,000, 4,000 and 8,000 characters together, the
first one in any case. Where gold items are pages, "k pages" is the recall of the first k different pages that the
ranked chunks are from, and "in 20" how many different pages the first 20 chunks are from.
``--shares`` adds one row for each element of ours that is switched off. The last rows are ours less others, question by
question.

A second table splits the questions into those that need context and the rest, by two rules
(``benchmarks/context_need.py``), and gives the failures that contexts avoid in each part.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

import chromadb
import numpy as np
from common import RememberingEmbedding, intervals, machine, markdown_table
from context_need import NEEDED, ContextNeed, failures_avoided, signed
from datasets import (
    DataSet,
    Question,
    chat_notes,
    codebases,
    course_lessons,
    first_collections,
    german_judgments,
    japanese_articles,
    kubernetes_docs,
    locomo_notes,
)
from llama_index.core import VectorStoreIndex
from llama_index.core.ingestion import run_transformations
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import BaseNode, MetadataMode, QueryBundle
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.chroma import ChromaVectorStore
from shipped import shipped_index

from llama_index_contextual import ContextualNodePostprocessor, GroupingPostprocessor
from llama_index_contextual.app.evaluation.comparison import mean_reciprocal_rank, recall_at
from llama_index_contextual.app.index.settings import default_parser
from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.metadata import LEXICAL_CONTEXT
from llama_index_contextual.retrieval import ContextualBM25Retriever, ContextualFusionRetriever

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.base.base_retriever import BaseRetriever

    from llama_index_contextual.app import ContextualIndex

Recalls: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

TOP = 20
BUDGETS = (2000, 4000, 8000)  # characters
POOL = 100
COMPARED = ("stock hybrid", "ours: ")  # rows that ours is compared with, question by question
SETS: dict[str, Callable[[], DataSet]] = {
    "codebases": codebases,
    "locomo-notes": locomo_notes,
    "kubernetes-docs": kubernetes_docs,
    "course-lessons": course_lessons,
    "chat-notes": chat_notes,
    "german-judgments": german_judgments,
    "japanese-articles": japanese_articles,
}
PAGES = ("kubernetes-docs", "course-lessons")  # sets whose gold is a page
STOCK_WORDS = Analyzer(language="en")


@dataclass(frozen=True)
class Row:
    """One way to retrieve: which nodes each arm sees, and how the arms are fused."""

    name: str
    dense: str | None = None  # context of the nodes in the vector arm; None: no such arm
    sparse: str | None = None
    stock: bool = False  # LlamaIndex's own BM25 and fusion
    lexical: bool = True  # keep the keyword arm's extra words
    analyzer: Analyzer | None = None  # of the keyword arm, where it is not the index's
    fusion: dict[str, Any] = field(default_factory=dict)

    @property
    def own_words(self) -> bool:
        """Whether the keyword arm is the index's own."""
        return self.lexical and self.analyzer is None


@dataclass
class Measured:
    """What a row found.

    Attributes:
        name: The row's.
        recalls: At 5, 10 and 20 chunks, of each question, shape ``(questions, 3)``.
        mrr: Mean reciprocal rank of the first chunk that covers gold.
        by_length: Recalls in 2,000, 4,000 and 8,000 characters of chunks.
        by_document: Recalls at 5, 10 and 20 different documents.
        documents: How many different documents the first 20 chunks are from, on average.
    """

    name: str
    recalls: Recalls
    mrr: float
    by_length: Recalls
    by_document: Recalls
    documents: float

    def cells(self, *, pages: bool) -> list[object]:
        """The row of a table, in per cent."""
        cells: list[object] = [self.name, *(100 * self.recalls.mean(axis=0)).tolist(), 100 * self.mrr]
        cells += (100 * self.by_length.mean(axis=0)).tolist()
        return cells + ([*(100 * self.by_document.mean(axis=0)).tolist(), self.documents] if pages else [])


class Bench:
    """Nodes, stores and arms of one collection, each made once."""

    def __init__(self, data: DataSet, collection: str, embedding: RememberingEmbedding) -> None:
        self.data, self.embedding = data, embedding
        self.documents = data.documents[collection]
        self.nodes = cache(self._nodes)
        self.index = cache(self._index)
        self.store = cache(self._store)

    def needs_context(self, questions: Sequence[Question]) -> list[tuple[bool, bool]]:
        """Whether each question needs context, by the rule of the words and by the rule of the names."""
        answers: dict[Any, dict[str, BaseNode]] = {}
        for node in self._chunks():
            for item in self.data.covers(node):
                answers.setdefault(item, {})[node.node_id] = node
        need, needed = ContextNeed(self._chunks()), []
        for question in questions:
            gold = list({key: node for item in question.gold for key, node in answers.get(item, {}).items()}.values())
            words = bool(gold) and need.share(question.text, gold) >= NEEDED
            needed.append((words, bool(gold) and need.names(question.text, gold)))
        return needed

    def _nodes(self, context: str, *, lexical: bool = True) -> list[BaseNode]:
        if context == "stock pipeline":
            parts = [MarkdownNodeParser(), SentenceSplitter(chunk_size=256, chunk_overlap=0)]
            return _with_lines(run_transformations(self.documents, parts), self.documents)
        nodes = [node.model_copy(deep=True) for node in self._chunks()]
        if context == "off":
            for node in nodes:
                node.excluded_embed_metadata_keys = list(node.metadata)
            return nodes
        if context == "metadata":
            return nodes
        made = ContextualNodePostprocessor(context=context, documents=self.documents)(nodes)
        if not lexical:
            for node in made:
                node.metadata.pop(LEXICAL_CONTEXT, None)
        return list(made)

    @cache  # noqa: B019  lives as long as the benchmark
    def _chunks(self) -> list[BaseNode]:
        if self.data.chunks:
            return [node for document in self.documents for node in self.data.chunks[document.doc_id]]
        return list(default_parser(self.embedding.inner)(self.documents))

    def _index(self, context: str) -> ContextualIndex:
        return shipped_index(self.nodes(context), self.documents, self.embedding)

    def _store(self, context: str) -> ChromaVectorStore:
        """What LlamaIndex's users have: a collection with Chroma's defaults, compared by angle."""
        client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
        space = {"hnsw": {"space": "cosine"}}
        store = ChromaVectorStore(chroma_collection=client.create_collection(uuid4().hex, configuration=space))
        nodes = [node.model_copy() for node in self.nodes(context)]
        vectors = self.embedding.get_text_embedding_batch([n.get_content(MetadataMode.EMBED) for n in nodes])
        for node, vector in zip(nodes, vectors, strict=True):
            node.embedding = vector
        for start in range(0, len(nodes), 5000):
            store.add(nodes[start : start + 5000])
        return store

    def retriever(self, row: Row) -> BaseRetriever:
        """Put the row's arms together: those of the index that ships, or LlamaIndex's own."""
        if row.stock:
            return self._stock(row)
        if row.dense == row.sparse and row.own_words:
            return self.index(row.dense).as_retriever(POOL, **row.fusion)
        arms: list[BaseRetriever] = []
        if row.dense is not None:
            arms.append(self.index(row.dense).as_retriever(POOL).retrievers[0])
        if row.sparse is not None and row.own_words:
            arms.append(self.index(row.sparse).as_retriever(POOL).retrievers[1])
        elif row.sparse is not None:
            nodes = self.nodes(row.sparse, lexical=row.lexical)
            arms.append(ContextualBM25Retriever(nodes, similarity_top_k=POOL, analyzer=row.analyzer))
        return arms[0] if len(arms) == 1 else ContextualFusionRetriever(arms, similarity_top_k=POOL, **row.fusion)

    def _stock(self, row: Row) -> BaseRetriever:
        arms: list[BaseRetriever] = []
        if row.dense is not None:
            index = VectorStoreIndex.from_vector_store(self.store(row.dense), embed_model=self.embedding)
            arms.append(index.as_retriever(similarity_top_k=POOL))
        if row.sparse is not None:
            arms.append(BM25Retriever.from_defaults(nodes=self.nodes(row.sparse), similarity_top_k=POOL))
        if len(arms) == 1:
            return arms[0]
        options = {"llm": MockLLM(), "num_queries": 1, "use_async": False, "mode": "reciprocal_rerank"}
        return QueryFusionRetriever(arms, similarity_top_k=POOL, **options)


def _with_lines(nodes: Sequence[BaseNode], documents: Sequence[BaseNode]) -> list[BaseNode]:
    """Find the places of LlamaIndex's chunks: their offsets are often missing, so search from the chunk before."""
    texts = {document.node_id: document.get_content() for document in documents}
    after: dict[str, int] = {}
    for node in nodes:
        key = node.ref_doc_id or ""
        start = max(texts[key].find(node.get_content(), after.get(key, 0)), 0)
        after[key] = node.start_char_idx = start  # type: ignore[attr-defined]
        node.end_char_idx = start + len(node.get_content())  # type: ignore[attr-defined]
        node.metadata["start_line"] = texts[key].count("\n", 0, start) + 1
        node.metadata["end_line"] = node.metadata["start_line"] + node.get_content().count("\n")
        hidden = ["start_line", "end_line"]
        node.excluded_embed_metadata_keys = [*node.excluded_embed_metadata_keys, *hidden]
    return list(nodes)


def rows_for(data: DataSet, *, shares: bool, own_chunks: bool) -> list[Row]:
    """The rows of a set's table; ``own_chunks``: LlamaIndex's pipeline with its own chunks, too."""
    context = "pattern" if data.chunks else "headings"
    ours = Row(f"**ours: {context}**", context, context)
    rows = [
        Row("plain vectors", "off", stock=True),
        Row("plain BM25, stock", sparse="off", stock=True),
        Row("stock hybrid, same chunks", "off", "off", stock=True),
        *([Row("stock hybrid, stock chunks", "stock pipeline", "stock pipeline", stock=True)] if own_chunks else []),
        Row("ours: text alone", "off", "off"),
        Row("ours: LlamaIndex metadata", "metadata", "metadata"),
        *([Row("ours: headings", "headings", "headings")] if data.chunks else []),
        ours,
    ]
    if shares:
        rows += [
            Row("vector arm alone", context),
            Row("keyword arm alone", sparse=context),
            replace(ours, name="without: other languages than English", analyzer=STOCK_WORDS),
            replace(ours, name="without: context in the vector arm", dense="off"),
            replace(ours, name="without: context in the keyword arm", sparse="off"),
            replace(ours, name="without: extra words in the keyword arm", lexical=False),
            replace(ours, name="by ranks, not learned", fusion={"mode": "reciprocal_rerank"}),
            replace(ours, name="at most 1 chunk of a document", fusion=_at_most(1)),
        ]
    return rows


def _at_most(chunks: int) -> dict[str, Any]:
    return {"node_postprocessors": [GroupingPostprocessor(group_size=chunks, group_by="path")]}


def measure(data: DataSet, row: Row, benches: dict[str, Bench], vectors: dict[str, list[float]]) -> Measured:
    """Ask every question."""
    retrievers = {name: bench.retriever(row) for name, bench in benches.items()}
    all_hits, firsts, lengths, documents = [], [], [], []
    for question in data.questions:
        bundle = QueryBundle(question.text, embedding=vectors[question.text])
        nodes = [hit.node for hit in retrievers[question.collection].retrieve(bundle)]
        best = {node.ref_doc_id: node for node in reversed(nodes)}  # of each document its best chunk
        all_hits.append([data.covers(node) for node in nodes])
        lengths.append(np.cumsum([len(node.get_content()) for node in nodes]))
        firsts.append([data.covers(node) for node in nodes if best[node.ref_doc_id] is node])
        documents.append(len({node.ref_doc_id for node in nodes[:TOP]}))
    golds = [question.gold for question in data.questions]
    mrr = mean_reciprocal_rank([hits[:TOP] for hits in all_hits], golds)
    counts = [[max(1, int(np.searchsorted(ends, budget, "right"))) for budget in BUDGETS] for ends in lengths]
    by_length = _recalls(all_hits, golds, counts)
    recalls, by_document = _recalls(all_hits, golds), _recalls(firsts, golds)
    return Measured(row.name, recalls, mrr, by_length, by_document, float(np.mean(documents)))


def _recalls(
    all_hits: Sequence[Sequence[frozenset[Any]]], golds: Sequence[frozenset[Any]], counts: Sequence[Any] = ()
) -> Recalls:
    counts = counts or [(5, 10, 20)] * len(golds)
    asked = zip(all_hits, golds, counts, strict=True)
    return np.array([[recall_at(k, hits, gold) for k in ks] for hits, gold, ks in asked])


def differences(measured: Sequence[Measured], *, pages: bool) -> list[list[object]]:
    """The cells of the last rows: ours less each row of ``COMPARED``, with 95 % paired bootstrap intervals."""
    ours = next(one for one in measured if one.name.startswith("**"))
    rows = []
    for other in (one for one in measured if one.name.startswith(COMPARED)):
        cells = [f"ours less {other.name.removeprefix('ours: ')}", *intervals(100 * (ours.recalls - other.recalls)), ""]
        cells += intervals(100 * (ours.by_length - other.by_length))
        rows.append(cells + ([*intervals(100 * (ours.by_document - other.by_document)), ""] if pages else []))
    return rows


def context_need(data: DataSet, benches: dict[str, Bench], measured: Sequence[Measured]) -> str:
    """A table of the failures that contexts avoid where they are needed, and elsewhere."""
    needed = np.zeros((len(data.questions), 2), bool)
    for collection, bench in benches.items():
        asked = [number for number, question in enumerate(data.questions) if question.collection == collection]
        if asked:
            needed[asked] = bench.needs_context([data.questions[number] for number in asked])
    text = next(one for one in measured if one.name == "ours: text alone")
    rows = []
    for one in measured:
        if one.name.startswith(("**ours", "ours: LlamaIndex", "ours: headings")):
            for rule, column in (("words", 0), ("names", 1)):
                for part, chosen in (("needed", needed[:, column]), ("elsewhere", ~needed[:, column])):
                    avoided = failures_avoided(text.recalls[chosen], one.recalls[chosen])
                    cells = [signed(ends) for ends in avoided] or ["", "", ""]
                    rows.append([one.name.strip("*"), rule, part, int(chosen.sum()), *cells])
    head = f"Failures avoided against text alone, %, with 95 % intervals (needed by words: {NEEDED:.0%} of the weight)."
    return f"{head}\n\n{markdown_table(['', 'rule', 'context is', 'questions', '@5', '@10', '@20'], rows)}"


def main() -> None:
    """Measure the sets that were asked for and print a table each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--pages", type=int, help="of kubernetes-docs, the ones with answers first; all by default")
    parser.add_argument("--collections", type=int, help="of sets with an index each, the first ones; all by default")
    parser.add_argument("--shares", action="store_true", help="add one row per element that is switched off")
    parser.add_argument("--same-chunks", action="store_true", help="leave out the row that embeds LlamaIndex's chunks")
    parser.add_argument(
        "--rows", nargs="+", default=[""], help="only rows whose names begin so, ours and its text alone"
    )
    parser.add_argument("--out", type=Path, help="write the tables to this file too")
    options = parser.parse_args()
    parts = [f"Machine: {machine()}; embedding all-MiniLM-L6-v2-int8."]
    embedding = RememberingEmbedding()
    for name in options.sets:
        started = time.monotonic()
        data = kubernetes_docs(options.pages) if name == "kubernetes-docs" else SETS[name]()
        data = first_collections(data, options.collections)
        benches = {collection: Bench(data, collection, embedding) for collection in data.documents}
        texts = sorted({question.text for question in data.questions})
        vectors = dict(zip(texts, embedding.get_text_embedding_batch(texts), strict=True))
        rows = rows_for(data, shares=options.shares, own_chunks=not data.chunks and not options.same_chunks)
        wanted = ("**", "ours: text alone", *options.rows)  # without these two, nothing can be compared
        measured = [measure(data, row, benches, vectors) for row in rows if row.name.startswith(wanted)]
        pages = name in PAGES
        cells = [*(one.cells(pages=pages) for one in measured), *differences(measured, pages=pages)]
        chunks = sum(len(bench.nodes("off")) for bench in benches.values())
        head = f"### {name}: {len(data.questions)} questions, {chunks} chunks in {len(benches)} index(es)"
        head += f", {len(data.documents[''])} pages" if pages else ""
        columns = ["", "@5", "@10", "@20", "MRR", *(f"in {budget:,}" for budget in BUDGETS)]
        columns += ["5 pages", "10 pages", "20 pages", "in 20"] if pages else []
        parts.append(f"{head}\n\n{markdown_table(columns, cells)}\n\n{context_need(data, benches, measured)}")
        print(f"\n{parts[-1]}\n\n({time.monotonic() - started:.0f} s)", flush=True)
    if options.out:
        options.out.write_text("\n\n".join(parts) + "\n", "utf-8")


if __name__ == "__main__":
    main()
