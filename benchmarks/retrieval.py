"""Recall of plain vectors, of LlamaIndex's hybrid and of this package, on real documents.

    python benchmarks/retrieval.py [--sets NAME ...] [--rows NAME ...] [--embedding e5] [--pages N]
    [--collections N]

Recall@k is the mean over questions of the share of gold items (chunks, passages, lines, pages) that
the first k chunks cover. Every set has the same rows. All rows but
"stock chunks" rank the same chunks with the same embedding. Rows of this package query
``ContextualIndex``, and the others Chroma with its defaults. As chunks differ in length, there is
also the recall of the first chunks that have 2,000, 4,000 and 8,000 characters together, at least
one. "Whole" is the share of gold passages that these contain from end to end, where chunks that
touch are read as one. Where gold items are pages, "k pages" is the recall of the first k different
pages that the ranked chunks are from. The last rows are this package less others, question by
question.

"Auto-merging" is LlamaIndex's ``AutoMergingRetriever`` over the stock hybrid of the leaves of a
``HierarchicalNodeParser``; ``--rows`` has to name it. With ``--rows`` there are only rows whose
names begin so, this package and its text alone. ``--pages`` keeps the first pages of
kubernetes-docs, those with answers first, ``--collections`` the first indexes of other sets, and
``--questions`` a fixed sample of them. ``--json`` writes recall at 1, 5 and 10 of the stock hybrid
and of this package into a file, from which ``chart.py`` draws the chart of the README; other sets
in it stay.

A second table splits the questions into those that need context and the rest, and gives the
failures that contexts avoid in each part: a mean over all questions hides what contexts are for, as
most questions of public sets repeat words of the very chunk that answers them. The rule favours
contexts by its nature.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from uuid import uuid4

import chromadb
import datasets
import numpy as np
from common import (
    RememberingEmbedding,
    command_line,
    intervals,
    machine,
    markdown_table,
    shipped_index,
    stock_hybrid,
)
from datasets import DataSet, Question, first_collections
from languages import both_languages
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.ingestion import run_transformations
from llama_index.core.node_parser import (
    HierarchicalNodeParser,
    MarkdownNodeParser,
    SentenceSplitter,
    get_leaf_nodes,
)
from llama_index.core.retrievers import AutoMergingRetriever
from llama_index.core.schema import BaseNode, QueryBundle
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual import ContextualNodePostprocessor
from llama_index_contextual.app.evaluation import interval, recall_at
from llama_index_contextual.app.index.chunking import default_parser
from llama_index_contextual.retrievers.terms import query_groups, terms_of
from llama_index_contextual.utils.metadata import heading_titles, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.base.base_retriever import BaseRetriever

    from llama_index_contextual.app import ContextualIndex

Recalls: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

CUTS = (1, 5, 10, 20)
JSON_DEPTHS = CUTS[:3]
BUDGETS = (2000, 4000, 8000)  # characters
STOCK = "stock hybrid, same chunks"
POOL = 100
MERGED = 20  # leaves that are merged: of 100 nearly all would be
NEEDED = 0.15  # of a question's word weight
SETS: dict[str, Callable[[], DataSet]] = {
    "codebases": datasets.codebases,
    "code-search": datasets.code_search,
    "locomo-notes": datasets.locomo_notes,
    "chat-notes": datasets.chat_notes,
    "course-lessons": datasets.course_lessons,
    "docs-intros": datasets.docs_intros,
    "obsidian-help": datasets.obsidian_help,
    "pdf-reports": datasets.pdf_reports,
    "all-pdf-reports": lambda: datasets.pdf_reports(()),
    "meeting-transcripts": datasets.meeting_transcripts,
    "german-judgments": datasets.german_judgments,
    "japanese-articles": datasets.japanese_articles,
    "spanish": both_languages,
    "kubernetes-docs": datasets.kubernetes_docs,
}
PAGES = (
    "code-search",
    "course-lessons",
    "obsidian-help",
    "pdf-reports",
    "kubernetes-docs",
)  # whose gold is one
PASSAGES = ("locomo-notes", "docs-intros", "german-judgments", "japanese-articles")


class Row(NamedTuple):
    """One way to retrieve: which nodes each retriever sees."""

    name: str
    dense: str | None = (
        None  # context of the nodes in the vector retriever; None: no such retriever
    )
    sparse: str | None = None
    is_stock: bool = False  # LlamaIndex's own BM25 and fusion


class Measured(NamedTuple):
    """What a row found: shares by question and column, in per cent."""

    name: str
    shares: Recalls


class Bench:
    """Nodes, stores and retrievers of one collection, each made once."""

    def __init__(self, data: DataSet, collection: str, embedding: RememberingEmbedding) -> None:
        self.data, self.embedding = data, embedding
        self.documents = data.documents[collection]
        self.texts = {document.doc_id: document.text for document in self.documents}
        self.nodes = cache(self._nodes)
        self.index = cache(self._index)
        self.store = cache(self._store)

    def needs_context(self, questions: Sequence[Question]) -> list[bool]:
        """Return whether the answer's path or headings hold weight that its text lacks.

        A word weighs ln(1 + chunks / chunks that hold it), and nothing where no chunk's text has
        it. Of several gold chunks the one whose text holds the most weight is taken as the answer.
        """
        chunks, found = self._chunks(), list[bool]()
        texts = {node.node_id: {*terms_of(node.get_content())} for node in chunks}
        counts = Counter(word for words in texts.values() for word in words)
        answers = defaultdict[Any, dict[str, "BaseNode"]](dict)
        for node in chunks:
            for item in self.data.covers(node):
                answers[item][node.node_id] = node
        for question in questions:
            gold = list(
                {
                    key: node for item in question.gold for key, node in answers[item].items()
                }.values()
            )
            words = {term for group in query_groups(question.text) for term in group}
            weights = {
                word: math.log(1 + len(chunks) / counts[word]) for word in words if counts[word]
            }
            sums = [
                sum(weights[word] for word in weights.keys() & texts[node.node_id]) for node in gold
            ]
            missing = 0.0
            if gold:
                answer = gold[sums.index(max(sums))]
                place = "\n".join([path_of(answer.metadata), *heading_titles(answer.metadata)])
                beside = (weights.keys() & set(terms_of(place))) - texts[answer.node_id]
                missing = sum(weights[word] for word in beside) / (sum(weights.values()) or 1)
            found.append(missing >= NEEDED)
        return found

    def _nodes(self, context: str) -> list[BaseNode]:
        if context == "stock pipeline":
            parts = [SentenceSplitter(chunk_size=256, chunk_overlap=0)]
            markdown = [] if self.data.context == "pattern" else [MarkdownNodeParser()]
            return _with_places(
                run_transformations(self.documents, [*markdown, *parts]), self.documents
            )
        if context == "leaves":
            return get_leaf_nodes(self._levels())
        nodes = [node.model_copy(deep=True) for node in self._chunks()]
        if context == "off":
            for node in nodes:
                node.excluded_embed_metadata_keys = list(node.metadata)
            return nodes
        return list(ContextualNodePostprocessor(context=context, documents=self.documents)(nodes))

    @cache  # noqa: B019
    def _levels(self) -> list[BaseNode]:
        """Nodes of all sizes, those that hold others and the leaves."""
        nodes, starts = HierarchicalNodeParser.from_defaults()(self.documents), dict[str, int]()
        for node in nodes:  # a place is counted from the node that holds it
            start = (node.start_char_idx or 0) + (
                starts[node.parent_node.node_id] if node.parent_node else 0
            )
            starts[node.node_id] = node.start_char_idx = start
            node.end_char_idx = start + len(node.get_content())
        return nodes

    @cache  # noqa: B019  lives as long as the benchmark
    def _chunks(self) -> list[BaseNode]:
        if self.data.chunks:
            return [
                node for document in self.documents for node in self.data.chunks[document.doc_id]
            ]
        return list(default_parser(self.embedding.inner)(self.documents))

    def _index(self, context: str) -> ContextualIndex:
        return shipped_index(self.nodes(context), self.documents, self.embedding)

    def _store(self, context: str) -> VectorStoreIndex:
        """Return a collection with Chroma's defaults, compared by angle."""
        client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
        space = {"hnsw": {"space": "cosine"}}
        store = ChromaVectorStore(
            chroma_collection=client.create_collection(uuid4().hex, configuration=space)
        )
        nodes, storage = self.nodes(context), StorageContext.from_defaults(vector_store=store)
        return VectorStoreIndex(nodes, storage_context=storage, embed_model=self.embedding)

    def retriever(self, row: Row) -> BaseRetriever:
        """Put the row's retrievers together: those of the index that ships, or LlamaIndex's own."""
        if row.is_stock:
            return self._stock(row)
        retriever = self.index(row.dense or row.sparse).as_retriever(POOL)
        return retriever if row.dense == row.sparse else retriever.retrievers[row.dense is None]

    def _stock(self, row: Row) -> BaseRetriever:
        retrievers: list[BaseRetriever] = []
        if row.dense is not None:
            retrievers.append(self.store(row.dense).as_retriever(similarity_top_k=POOL))
        if row.sparse is not None:
            retrievers.append(
                BM25Retriever.from_defaults(nodes=self.nodes(row.sparse), similarity_top_k=POOL)
            )
        if row.dense != "leaves":
            return retrievers[0] if len(retrievers) == 1 else stock_hybrid(retrievers, POOL)
        levels = SimpleDocumentStore()
        levels.add_documents(self._levels())
        return AutoMergingRetriever(
            stock_hybrid(retrievers, MERGED), StorageContext.from_defaults(docstore=levels)
        )  # type: ignore[arg-type]


def _with_places(nodes: Sequence[BaseNode], documents: Sequence[BaseNode]) -> list[BaseNode]:
    """LlamaIndex's chunks with their places.

    Offsets are often missing, so search from the chunk before.
    """
    texts = {document.node_id: document.get_content() for document in documents}
    after: dict[str, int] = {}
    for node in nodes:
        key = node.ref_doc_id or ""
        start = max(texts[key].find(node.get_content(), after.get(key, 0)), 0)
        after[key] = node.start_char_idx = start  # type: ignore[attr-defined]
        node.end_char_idx = start + len(node.get_content())  # type: ignore[attr-defined]
    return list(nodes)


def rows_for(data: DataSet, wanted: Sequence[str]) -> list[Row]:
    """Return the rows of a set's table."""
    context = data.context
    rows = [
        Row("plain vectors", "off", is_stock=True),
        Row(STOCK, "off", "off", is_stock=True),
        Row("stock hybrid, stock chunks", "stock pipeline", "stock pipeline", is_stock=True),
        Row("auto-merging", "leaves", "leaves", is_stock=True),
        Row("ours: vectors alone", context),
        Row("ours: keywords alone", sparse=context),
        Row("ours: text alone", "off", "off"),
        Row(f"**ours: {context}**", context, context),
    ]
    left = (
        {"auto-merging"}
        if not wanted
        else {row.name for row in rows[:-2] if not row.name.startswith(tuple(wanted))}
    )
    return [
        row
        for row in rows
        if row.name not in left | ({"stock hybrid, stock chunks"} if data.chunks else set())
    ]


def columns_of(data: DataSet) -> list[str]:
    """Return the columns of a set's table."""
    columns = [*(f"@{cut}" for cut in CUTS), "MRR", *(f"in {budget:,}" for budget in BUDGETS)]
    columns += [f"whole in {budget:,}" for budget in BUDGETS] if data.name in PASSAGES else []
    return columns + ([f"{cut} pages" for cut in CUTS[1:]] if data.name in PAGES else [])


def measure(
    data: DataSet, row: Row, benches: dict[str, Bench], vectors: dict[str, list[float]]
) -> Measured:
    """Ask every question."""
    retrievers, shares = {name: bench.retriever(row) for name, bench in benches.items()}, []
    for question in data.questions:
        bundle = QueryBundle(question.text, embedding=vectors[question.text])
        nodes, gold = (
            [hit.node for hit in retrievers[question.collection].retrieve(bundle)],
            question.gold,
        )
        hits = [data.covers(node) for node in nodes]
        ends = np.cumsum([len(node.get_content()) for node in nodes])
        counts = [max(1, int(np.searchsorted(ends, budget, "right"))) for budget in BUDGETS]
        first = next(
            (1 / rank for rank, hit in enumerate(hits[: CUTS[-1]], start=1) if hit & gold), 0.0
        )
        found = [
            *(recall_at(cut, hits, gold) for cut in CUTS),
            first,
            *(recall_at(cut, hits, gold) for cut in counts),
        ]
        if data.name in PASSAGES:
            texts = benches[question.collection].texts
            found += [whole_share(nodes[:count], gold, texts) for count in counts]
        if data.name in PAGES:
            pages = [*dict.fromkeys(hits)]  # of each page its best chunk
            found += [recall_at(cut, pages, gold) for cut in CUTS[1:]]
        shares.append(found)
    return Measured(row.name, 100 * np.array(shares))


def by_form(data: DataSet, stock: Recalls, ours: Recalls) -> str:
    """Return a table of recall by the form of the questions, where there are several."""
    forms, rows = np.array([question.form for question in data.questions]), list[list[object]]()
    for form in sorted({*forms.tolist()}):
        pairs = zip(*(shares[forms == form].mean(axis=0) for shares in (stock, ours)), strict=True)
        rows.append(
            [
                form,
                int((forms == form).sum()),
                *(f"{one:.1f} / {other:.1f}" for one, other in pairs),
            ]
        )
    header = [f"{STOCK} / ours", "questions", *columns_of(data)]
    return f"\n\n{markdown_table(header, rows)}" if len(rows) > 1 else ""


def whole_share(nodes: Sequence[BaseNode], gold: frozenset[Any], texts: dict[str, str]) -> float:
    """Return the share of gold passages that stand in the nodes from end to end.

    Nodes that touch are one.
    """
    joined: list[list[Any]] = []
    for key, start, end in sorted(
        (node.ref_doc_id, node.start_char_idx, node.end_char_idx) for node in nodes
    ):  # type: ignore[attr-defined]
        if joined and joined[-1][0] == key and not texts[str(key)][joined[-1][2] : start].strip():
            joined[-1][2] = max(joined[-1][2], end)
        else:
            joined.append([key, start, end])
    held = [
        any(key == one[0] and start <= one[1] and one[2] <= end for key, start, end in joined)
        for one in gold
    ]
    return sum(held) / len(held)


def failures_avoided(before: Recalls, after: Recalls) -> list[str]:
    """Return the share of the recall missing in ``before`` that ``after`` finds, for each k."""
    if not len(before):  # a part of a set that has no question
        return [""] * before.shape[1]

    def avoided(old: Recalls, new: Recalls) -> Recalls:
        with np.errstate(divide="ignore", invalid="ignore"):
            percent = 100 * (1 - (1 - new) / (1 - old))
        return np.where(
            np.isfinite(percent), percent, 0.0
        )  # a resample without failures has none to avoid

    sample = np.random.default_rng(0).integers(len(before), size=(2000, len(before)))
    resampled = avoided(before[sample].mean(axis=1), after[sample].mean(axis=1))
    ends = np.percentile(resampled, [2.5, 97.5], axis=0)
    shares = zip(
        avoided(before.mean(axis=0), after.mean(axis=0)), *ends, before.min(axis=0) < 1, strict=True
    )
    return [
        f"{mean:+.0f} [{low:+.0f}, {high:+.0f}]" if fails else "nothing failed"
        for mean, low, high, fails in shares
    ]


def context_need(data: DataSet, benches: dict[str, Bench], before: Recalls, after: Recalls) -> str:
    """Return a table of the failures that contexts avoid where they are needed, and elsewhere."""
    needed = np.zeros(len(data.questions), bool)
    for collection, bench in benches.items():
        asked = [
            number
            for number, question in enumerate(data.questions)
            if question.collection == collection
        ]
        if asked:
            needed[asked] = bench.needs_context([data.questions[number] for number in asked])
    parts = (("needed", needed), ("elsewhere", ~needed))
    rows = [
        [part, int(chosen.sum()), *failures_avoided(before[chosen], after[chosen])]
        for part, chosen in parts
    ]
    head = (
        f"Failures avoided against text alone, %, with 95 % intervals (needed: {NEEDED:.0%} "
        "of the weight)."
    )
    return (
        f"{head}\n\n"
        f"{markdown_table(['context is', 'questions', *(f'@{cut}' for cut in CUTS)], rows)}"
    )


def write_json(path: Path, data: DataSet, chunk_count: int, stock: Recalls, ours: Recalls) -> None:
    """Write recall at 1, 5 and 10 of one set into a JSON file, and keep the other sets in it.

    Each figure is a list of the mean and the two ends of its 95 % interval, in per cent.
    """
    figures: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    record: dict[str, Any] = {
        "questions": len(data.questions),
        "chunks": chunk_count,
        "machine": machine(),
    }
    rows = {"stock": stock, "ours": ours, "difference": ours - stock}
    for column, depth in enumerate(JSON_DEPTHS):
        record[f"recall@{depth}"] = {
            name: [round(value, 2) for value in interval(shares[:, [column]])[0]]
            for name, shares in rows.items()
        }
    figures[data.name] = record
    path.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", "utf-8")


def main() -> None:
    """Measure the sets that were asked for and print a table each."""
    options = command_line(
        __doc__,
        sets=list(SETS),
        rows=[str],
        embedding="local",
        pages=int,
        collections=int,
        questions=int,
        json=Path,
    )
    embedding = RememberingEmbedding(options.embedding)
    print(f"Machine: {machine()}; embedding {embedding.inner.model_name}.")
    for name in options.sets:
        started = time.monotonic()
        data = (
            datasets.kubernetes_docs(options.pages) if name == "kubernetes-docs" else SETS[name]()
        )
        data = first_collections(data, options.collections, options.questions)
        benches = {collection: Bench(data, collection, embedding) for collection in data.documents}
        vectors = {one.text: embedding.get_query_embedding(one.text) for one in data.questions}
        *others, text, ours = (
            measure(data, row, benches, vectors) for row in rows_for(data, options.rows)
        )
        columns = columns_of(data)
        cells: list[list[object]] = [
            [one.name, *one.shares.mean(axis=0).tolist()] for one in (*others, text, ours)
        ]
        cells += [
            [f"ours less {one.name.removeprefix('ours: ')}", *intervals(ours.shares - one.shares)]
            for one in (*others, text)
        ]
        chunks = sum(len(bench.nodes("off")) for bench in benches.values())
        stock = next((one for one in others if one.name == STOCK), None)
        if options.json and stock:
            write_json(options.json, data, chunks, stock.shares, ours.shares)
        head = (
            f"### {name}: {len(data.questions)} questions, {chunks:,} chunks in "
            f"{len(benches)} index(es)"
        )
        need = context_need(
            data, benches, *(one.shares[:, : len(CUTS)] / 100 for one in (text, ours))
        )
        forms = "".join(
            by_form(data, one.shares, ours.shares) for one in others if one.name == STOCK
        )
        print(f"\n{head}\n\n{markdown_table(['', *columns], cells)}{forms}\n\n{need}")
        print(f"\n({time.monotonic() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
