"""Measure recall of plain vectors, LlamaIndex's hybrid and this package on real documents.

    python benchmarks/retrieval.py [--sets NAME ...] [--rows NAME ...] [--embedding e5] [--pages N]
    [--collections N]

Recall@k is the mean over questions of the share of gold items (chunks, passages, lines, pages) that
the first k chunks cover. Every set has the same rows. All rows but "stock chunks" rank the same
chunks with the same embedding. Rows of this package query ``ContextualIndex``, and the others
Chroma with its defaults.

Chunks differ in length. "In 2,000" is therefore the recall of the first chunks that have 2,000
characters together, and of one chunk at least. "Whole" is the share of gold passages that these
chunks contain from end to end; chunks that touch are read as one. Where gold items are pages, "k
pages" is the recall of the first k different pages of the ranking. The last rows are this package
less others, question by question.

``--rows`` keeps the rows whose names begin so, this package and its text alone. ``--pages`` keeps
the first pages of kubernetes-docs, those with answers first. ``--collections`` keeps the first
indexes of other sets, and ``--questions`` a fixed sample of their questions. ``--json`` writes
recall at 1, 5 and 10 of the stock hybrid and of this package into a file. Other sets in the file
stay. ``chart.py`` draws the chart of the README from it.

A second table has the failures that contexts avoid, for the questions that need context and for all
others. Most questions of public sets repeat words of the chunk that answers them, so a mean over
all questions hides what contexts are for. The rule favours contexts by its nature.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
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
from datasets import DataSet, Question, Span, first_collections, span_of
from languages import both_languages
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.ingestion import run_transformations
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.core.schema import BaseNode, QueryBundle
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual import ContextualNodePostprocessor
from llama_index_contextual.app.evaluation import interval, recall_at
from llama_index_contextual.app.index.chunking import default_parser
from llama_index_contextual.retrievers.terms import query_groups, terms_of
from llama_index_contextual.utils.metadata import heading_titles, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from llama_index.core.base.base_retriever import BaseRetriever

    from llama_index_contextual.app import ContextualIndex

Recalls: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"  # by question and column

CUTS: Final = (1, 5, 10, 20)
JSON_DEPTHS: Final = CUTS[:3]
BUDGETS: Final = (2000, 4000, 8000)  # characters
STOCK: Final = "stock hybrid, same chunks"
STOCK_CHUNKS: Final = "stock hybrid, stock chunks"
POOL: Final = 100
NEEDED: Final = 0.15  # of a question's word weight
RESAMPLES: Final = 2000
SETS: Final[dict[str, Callable[[], DataSet]]] = {
    "codebases": datasets.codebases,
    "code-search": datasets.code_search,
    "locomo-notes": datasets.locomo_notes,
    "chat-notes": datasets.chat_notes,
    "course-lessons": datasets.course_lessons,
    "obsidian-help": datasets.obsidian_help,
    "pdf-reports": datasets.pdf_reports,
    "all-pdf-reports": lambda: datasets.pdf_reports(()),
    "meeting-transcripts": datasets.meeting_transcripts,
    "german-judgments": datasets.german_judgments,
    "japanese-articles": datasets.japanese_articles,
    "spanish": both_languages,
    "kubernetes-docs": datasets.kubernetes_docs,
}
# Sets whose gold items are pages or passages.
PAGES: Final = (
    "code-search",
    "course-lessons",
    "obsidian-help",
    "pdf-reports",
    "kubernetes-docs",
)
PASSAGES: Final = ("locomo-notes", "german-judgments", "japanese-articles")


class Row(NamedTuple):
    """One way to retrieve.

    Attributes:
        name: The first cell of the row.
        dense: The context of the nodes in the vector retriever; None for no such retriever.
        sparse: The same for the keyword retriever.
        is_stock: Whether BM25 and the fusion are LlamaIndex's own.
    """

    name: str
    dense: str | None = None
    sparse: str | None = None
    is_stock: bool = False


class Measured(NamedTuple):
    """The results of a row.

    Attributes:
        name: The name of the row.
        shares: The shares by question and column, in per cent.
    """

    name: str
    shares: Recalls


# Systems


class Bench:
    """Nodes, stores and retrievers of one collection, each made once."""

    def __init__(self, data: DataSet, collection: str, embedding: RememberingEmbedding) -> None:
        self.data = data
        self.embedding = embedding
        self.documents = data.documents[collection]
        self.texts = {document.doc_id: document.text for document in self.documents}
        self.chunks = cache(self._parse)
        self.nodes = cache(self._nodes)
        self.index = cache(self._index)
        self.store = cache(self._store)

    def retriever(self, row: Row) -> BaseRetriever:
        """Put the row's retrievers together: those of the index that ships, or LlamaIndex's own."""
        if row.is_stock:
            return self._stock(row)
        retriever = self.index(row.dense or row.sparse).as_retriever(POOL)
        if row.dense == row.sparse:
            return retriever
        vectors, keywords = retriever.retrievers
        return vectors if row.dense else keywords

    def _parse(self) -> list[BaseNode]:
        """Return the chunks without contexts."""
        if not self.data.chunks:
            parser = default_parser(self.embedding.inner)
            return list(parser(self.documents))
        chunks: list[BaseNode] = []
        for document in self.documents:
            chunks += self.data.chunks[document.doc_id]
        return chunks

    def _nodes(self, context: str) -> list[BaseNode]:
        if context == "stock pipeline":
            return self._stock_chunks()
        nodes = [node.model_copy(deep=True) for node in self.chunks()]
        if context == "off":
            for node in nodes:
                node.excluded_embed_metadata_keys = list(node.metadata)
            return nodes
        postprocessor = ContextualNodePostprocessor(context=context, documents=self.documents)
        return list(postprocessor(nodes))

    def _stock_chunks(self) -> list[BaseNode]:
        """Return LlamaIndex's chunks with their places, which it often leaves out."""
        steps: list[Any] = [SentenceSplitter(chunk_size=256, chunk_overlap=0)]
        if self.data.context != "pattern":
            steps.insert(0, MarkdownNodeParser())
        nodes = list(run_transformations(self.documents, steps))
        last_starts = defaultdict[str, int](int)
        for node in nodes:
            document_id = node.ref_doc_id or ""
            document_text = self.texts[document_id]
            text = node.get_content()
            start = document_text.find(text, last_starts[document_id])
            start = max(start, 0)
            last_starts[document_id] = start
            node.start_char_idx = start  # type: ignore[attr-defined]
            node.end_char_idx = start + len(text)  # type: ignore[attr-defined]
        return nodes

    def _index(self, context: str) -> ContextualIndex:
        return shipped_index(self.nodes(context), self.documents, self.embedding)

    def _store(self, context: str) -> VectorStoreIndex:
        """Return a collection with Chroma's defaults, compared by angle."""
        client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
        space = {"hnsw": {"space": "cosine"}}
        collection = client.create_collection(uuid4().hex, configuration=space)
        store = ChromaVectorStore(chroma_collection=collection)
        storage = StorageContext.from_defaults(vector_store=store)
        return VectorStoreIndex(
            self.nodes(context),
            storage_context=storage,
            embed_model=self.embedding,
        )

    def _stock(self, row: Row) -> BaseRetriever:
        retrievers: list[BaseRetriever] = []
        if row.dense:
            store = self.store(row.dense)
            retrievers.append(store.as_retriever(similarity_top_k=POOL))
        if row.sparse:
            nodes = self.nodes(row.sparse)
            keywords = BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=POOL)
            retrievers.append(keywords)
        if len(retrievers) == 1:
            return retrievers[0]
        return stock_hybrid(retrievers, POOL)


def rows_for(data: DataSet, prefixes: Sequence[str]) -> list[Row]:
    """Return the rows of a set's table; the last two are this package on text alone and in full."""
    context = data.context
    rows = [
        Row("plain vectors", "off", is_stock=True),
        Row(STOCK, "off", "off", is_stock=True),
        Row(STOCK_CHUNKS, "stock pipeline", "stock pipeline", is_stock=True),
        Row("ours: vectors alone", context),
        Row("ours: keywords alone", sparse=context),
    ]
    if prefixes:
        rows = [row for row in rows if row.name.startswith(tuple(prefixes))]
    if data.chunks:  # the set fixes them
        rows = [row for row in rows if row.name != STOCK_CHUNKS]
    rows.append(Row("ours: text alone", "off", "off"))
    rows.append(Row(f"**ours: {context}**", context, context))
    return rows


# Measures


def columns_of(data: DataSet) -> list[str]:
    """Return the columns of a set's table."""
    columns = [f"@{cut}" for cut in CUTS]
    columns.append("MRR")
    columns += [f"in {budget:,}" for budget in BUDGETS]
    if data.name in PASSAGES:
        columns += [f"whole in {budget:,}" for budget in BUDGETS]
    if data.name in PAGES:
        columns += [f"{cut} pages" for cut in CUTS[1:]]
    return columns


def measure(
    data: DataSet,
    row: Row,
    benches: Mapping[str, Bench],
    query_vectors: Mapping[str, list[float]],
) -> Measured:
    """Retrieve the chunks for every question."""
    retrievers = {name: bench.retriever(row) for name, bench in benches.items()}
    shares = []
    for question in data.questions:
        query_vector = query_vectors[question.text]
        bundle = QueryBundle(question.text, embedding=query_vector)
        hits = retrievers[question.collection].retrieve(bundle)
        nodes = [hit.node for hit in hits]
        texts = benches[question.collection].texts
        shares.append(shares_of(data, question.gold, nodes, texts))
    return Measured(row.name, 100 * np.array(shares))


def shares_of(
    data: DataSet,
    gold: frozenset[Any],
    nodes: Sequence[BaseNode],
    texts: Mapping[str, str],
) -> list[float]:
    """Return the values of a question in the columns of its set."""
    covered = [data.covers(node) for node in nodes]

    # The number of chunks that each budget of characters has space for.
    lengths = [len(node.get_content()) for node in nodes]
    ends = np.cumsum(lengths)
    counts = []
    for budget in BUDGETS:
        count = int(np.searchsorted(ends, budget, side="right"))
        counts.append(max(count, 1))

    shares = [recall_at(cut, covered, gold) for cut in CUTS]
    shares.append(reciprocal_rank(covered, gold))
    shares += [recall_at(count, covered, gold) for count in counts]
    if data.name in PASSAGES:
        shares += [whole_share(nodes[:count], gold, texts) for count in counts]
    if data.name in PAGES:
        pages = list(dict.fromkeys(covered))
        shares += [recall_at(cut, pages, gold) for cut in CUTS[1:]]
    return shares


def reciprocal_rank(covered: Sequence[frozenset[Any]], gold: frozenset[Any]) -> float:
    """Return the reciprocal rank of the first chunk that covers gold, or 0."""
    last_rank = CUTS[-1]
    for rank, items in enumerate(covered[:last_rank], start=1):
        if not gold.isdisjoint(items):
            return 1 / rank
    return 0.0


def whole_share(nodes: Sequence[BaseNode], gold: frozenset[Any], texts: Mapping[str, str]) -> float:
    """Return the share of gold passages that the nodes contain from end to end.

    Nodes that touch are read as one.
    """
    joined = joined_spans(nodes, texts)
    whole = 0
    for passage in gold:
        whole += any(span.contains(passage) for span in joined)
    return whole / len(gold)


def joined_spans(nodes: Sequence[BaseNode], texts: Mapping[str, str]) -> list[Span]:
    """Return the places of chunks, of which those that touch are one."""
    joined: list[Span] = []
    for span in sorted(map(span_of, nodes)):
        if joined:
            last = joined[-1]
            between = texts[span.path][last.end : span.start]
            if last.path == span.path and not between.strip():
                end = max(last.end, span.end)
                joined[-1] = Span(span.path, last.start, end)
                continue
        joined.append(span)
    return joined


# Tables


def table_by_form(data: DataSet, stock: Recalls, ours: Recalls) -> str:
    """Return a table of recall by the form of the questions, where there is more than one form."""
    forms = np.array([question.form for question in data.questions])
    names = sorted(set(forms.tolist()))
    if len(names) == 1:
        return ""
    rows = []
    for name in names:
        chosen = forms == name
        stock_means = stock[chosen].mean(axis=0)
        our_means = ours[chosen].mean(axis=0)
        cells = []
        for stock_mean, our_mean in zip(stock_means, our_means, strict=True):
            cells.append(f"{stock_mean:.1f} / {our_mean:.1f}")
        rows.append([name, int(chosen.sum()), *cells])
    header = [f"{STOCK} / ours", "questions", *columns_of(data)]
    return markdown_table(header, rows)


def needs_context(bench: Bench, questions: Sequence[Question]) -> list[bool]:
    """Return whether the answer's path or headings hold weight that its text lacks.

    A word weighs ln(1 + chunks / chunks that hold it), and nothing if no chunk's text has it. If
    there are several gold chunks, the answer is the one whose text holds the most weight.
    """
    chunks = bench.chunks()
    text_terms = {}
    chunks_with_term = Counter[str]()
    answers = defaultdict[Any, list["BaseNode"]](list)
    for node in chunks:
        terms = frozenset(terms_of(node.get_content()))
        text_terms[node.node_id] = terms
        chunks_with_term.update(terms)
        for item in bench.data.covers(node):
            answers[item].append(node)

    needed = []
    for question in questions:
        weights = {}
        for term in chain.from_iterable(query_groups(question.text)):
            count = chunks_with_term[term]
            if count:
                weights[term] = math.log(1 + len(chunks) / count)
        gold: list[BaseNode] = []
        for item in question.gold:
            gold += answers[item]
        share = missing_share(gold, text_terms, weights)
        needed.append(share >= NEEDED)
    return needed


def missing_share(
    gold: Sequence[BaseNode],
    text_terms: Mapping[str, frozenset[str]],
    weights: Mapping[str, float],
) -> float:
    """Return the share of the weight that only the path or headings of the answer hold."""
    if not gold:
        return 0.0

    def weight_of(node: BaseNode) -> float:
        return summed_weight(text_terms[node.node_id], weights)

    answer = max(gold, key=weight_of)
    path = path_of(answer.metadata)
    titles = heading_titles(answer.metadata)
    terms = frozenset(terms_of("\n".join([path, *titles])))
    missing_terms = terms - text_terms[answer.node_id]
    total = sum(weights.values()) or 1.0
    return summed_weight(missing_terms, weights) / total


def summed_weight(terms: Collection[str], weights: Mapping[str, float]) -> float:
    """Return the weight of the terms together."""
    return sum(weight for term, weight in weights.items() if term in terms)


def avoided_failures(before: Recalls, after: Recalls) -> Recalls:
    """Return the per cent of the mean missing recall that ``after`` finds; 0 where none misses."""
    missing_before = 1 - before
    missing_after = 1 - after
    with np.errstate(divide="ignore", invalid="ignore"):
        percent = 100 * (1 - missing_after / missing_before)
    return np.where(np.isfinite(percent), percent, 0.0)


def failure_cells(before: Recalls, after: Recalls) -> list[str]:
    """Return the failures that ``after`` avoids, with intervals, for each k."""
    question_count, column_count = before.shape
    if not question_count:  # a part of a set that has no question
        return [""] * column_count
    generator = np.random.default_rng(0)
    samples = generator.integers(question_count, size=(RESAMPLES, question_count))
    resampled_before = before[samples].mean(axis=1)
    resampled_after = after[samples].mean(axis=1)
    resampled = avoided_failures(resampled_before, resampled_after)
    lows, highs = np.percentile(resampled, [2.5, 97.5], axis=0)
    means = avoided_failures(before.mean(axis=0), after.mean(axis=0))
    cells = []
    for column in range(column_count):
        if before[:, column].min() == 1:
            cells.append("nothing failed")
        else:
            cells.append(f"{means[column]:+.0f} [{lows[column]:+.0f}, {highs[column]:+.0f}]")
    return cells


def table_of_need(
    data: DataSet,
    benches: Mapping[str, Bench],
    before: Recalls,
    after: Recalls,
) -> str:
    """Return a table of the failures that contexts avoid where they are needed, and elsewhere."""
    is_needed = np.zeros(len(data.questions), bool)
    collections = np.array([question.collection for question in data.questions])
    for collection, bench in benches.items():
        question_rows = np.flatnonzero(collections == collection)
        if len(question_rows):
            questions = [data.questions[row] for row in question_rows]
            is_needed[question_rows] = needs_context(bench, questions)
    rows: list[list[object]] = []
    for part, chosen in (("needed", is_needed), ("elsewhere", ~is_needed)):
        cells = failure_cells(before[chosen], after[chosen])
        rows.append([part, int(chosen.sum()), *cells])
    header = ["context is", "questions", *(f"@{cut}" for cut in CUTS)]
    table = markdown_table(header, rows)
    return (
        "Failures avoided against text alone, %, with 95 % intervals (needed: "
        f"{NEEDED:.0%} of the weight).\n\n{table}"
    )


def write_json(
    path: Path,
    data: DataSet,
    chunk_count: int,
    stock: Recalls,
    ours: Recalls,
) -> None:
    """Write recall at 1, 5 and 10 of one set into a JSON file, and keep the other sets in it.

    Each figure is a list of the mean and the two ends of its 95 % interval, in per cent.
    """
    figures: dict[str, Any] = {}
    if path.exists():
        figures = json.loads(path.read_text("utf-8"))
    record: dict[str, Any] = {
        "questions": len(data.questions),
        "chunks": chunk_count,
        "machine": machine(),
    }
    rows = {
        "stock": stock,
        "ours": ours,
        "difference": ours - stock,
    }
    for column, depth in enumerate(JSON_DEPTHS):
        recalls = {}
        for name, shares in rows.items():
            [mean_and_ends] = interval(shares[:, [column]])
            recalls[name] = [round(value, 2) for value in mean_and_ends]
        record[f"recall@{depth}"] = recalls
    figures[data.name] = record
    path.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", "utf-8")


def report(
    data: DataSet,
    prefixes: Sequence[str],
    embedding: RememberingEmbedding,
    json_file: Path | None,
) -> str:
    """Measure a set and return its tables."""
    benches = {}
    for collection in data.documents:
        benches[collection] = Bench(data, collection, embedding)
    query_vectors = {}
    for question in data.questions:
        query_vectors[question.text] = embedding.get_query_embedding(question.text)
    measured = [measure(data, row, benches, query_vectors) for row in rows_for(data, prefixes)]
    references = measured[:-1]
    text_alone, ours = measured[-2:]
    chunk_count = sum(len(bench.chunks()) for bench in benches.values())

    # Recall of every row, and the differences.
    rows: list[list[object]] = []
    for row in measured:
        means = row.shares.mean(axis=0).tolist()
        rows.append([row.name, *means])
    for row in references:
        name = row.name.removeprefix("ours: ")
        differences = intervals(ours.shares - row.shares)
        rows.append([f"ours less {name}", *differences])
    tables = [markdown_table(["", *columns_of(data)], rows)]

    # What the stock hybrid finds for each form of question.
    for row in references:
        if row.name == STOCK:
            tables.append(table_by_form(data, row.shares, ours.shares))
            if json_file:
                write_json(json_file, data, chunk_count, row.shares, ours.shares)

    # Where contexts help.
    recall_columns = slice(len(CUTS))
    before = text_alone.shares[:, recall_columns] / 100
    after = ours.shares[:, recall_columns] / 100
    tables.append(table_of_need(data, benches, before, after))
    head = (
        f"### {data.name}: {len(data.questions)} questions, {chunk_count:,} chunks in "
        f"{len(benches)} index(es)"
    )
    return "\n\n".join([head, *filter(None, tables)])


def main() -> None:
    """Measure the sets that the command line names and print the tables of each."""
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
        if name == "kubernetes-docs":
            data = datasets.kubernetes_docs(options.pages)
        else:
            data = SETS[name]()
        data = first_collections(data, options.collections, options.questions)
        tables = report(data, options.rows or (), embedding, options.json)
        seconds = time.monotonic() - started
        print(f"\n{tables}\n\n({seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
