"""Recall of plain chunks, of LlamaIndex's stock hybrid and of ours, on sets of real documents and questions.

    python benchmarks/retrieval.py [--sets NAME ...] [--shares] [--rows NAME ...] [--pages N] [--collections N]

Recall@k is the mean over questions of the share of gold items (chunks, lines of a note, pages) that the first k chunks
cover. Every row of a set but "stock chunks" ranks the same chunks with the same embedding; a row differs in what its
name says. Those of ours are asked through ``ContextualIndex``, and the others of Chroma as it is by default. As those
chunks are longer, there is also the recall of as many chunks as have 2,000, 4,000 and 8,000 characters together, the
first one in any case. Where gold items are pages, "k pages" is the recall of the first k different pages that the
ranked chunks are from, and "in 20" how many different pages the first 20 chunks are from.
``--shares`` adds one row for each element of ours that is switched off. The last rows are ours less others, question by
question.

``--pages`` keeps the first pages of kubernetes-docs, those with answers first, and ``--collections`` the first indexes
of other sets. With ``--rows`` there are only rows whose names begin so, ours and its text alone.

A second table splits the questions into those that need context and the rest, and gives the failures that contexts
avoid in each part: a mean over all questions hides what contexts are for, as most questions of public sets repeat words
of the very chunk that answers them. The rule of the words favours contexts by its nature; that of the names looks at
the question and at titles only.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

import chromadb
import numpy as np
from common import RememberingEmbedding, command_line, intervals, machine, markdown_table, shipped_index, stock_hybrid
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
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.ingestion import run_transformations
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.core.schema import BaseNode, QueryBundle
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual import ContextualNodePostprocessor, GroupingPostprocessor
from llama_index_contextual.app.evaluation import mean_reciprocal_rank, recall_at
from llama_index_contextual.app.index.embedder import default_parser
from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.metadata import DATE, LEXICAL_CONTEXT, PATH, TITLE, heading_titles, path_of
from llama_index_contextual.retrieval import ContextualBM25Retriever, ContextualFusionRetriever
from llama_index_contextual.text import parse_date

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.base.base_retriever import BaseRetriever

    from llama_index_contextual.app import ContextualIndex

Recalls: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

TOP = 20
BUDGETS = (2000, 4000, 8000)  # characters
POOL = 100
NEEDED = 0.15  # of a question's word weight
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


@dataclass
class Measured:
    """What a row found."""

    name: str
    recalls: Recalls  # at 5, 10 and 20 chunks, of each question, shape ``(questions, 3)``
    mrr: float  # of the first chunk that covers gold
    by_length: Recalls  # in 2,000, 4,000 and 8,000 characters of chunks
    by_document: Recalls  # at 5, 10 and 20 different documents
    documents: float  # that the first 20 chunks are from, on average

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
        """Whether each question needs context, by the rule of the words and by the rule of the names.

        Words: the path or the headings of the answer hold a part of the question's weight that its text lacks. A word
        weighs ln(1 + chunks / chunks that hold it), and nothing where no chunk's text has it. Of several gold chunks
        the one whose text holds the most weight is taken as the answer. Names: the question has all words of the file's
        name, the title, a heading or the day of its answer; names of one word do not count: "overview" names nothing.
        """
        analyzer, chunks, found = Analyzer(), self._chunks(), []
        texts = {node.node_id: {*analyzer.tokens(node.get_content())} for node in chunks}
        counts = Counter(word for words in texts.values() for word in words)
        answers = defaultdict[Any, dict[str, "BaseNode"]](dict)
        for node in chunks:
            for item in self.data.covers(node):
                answers[item][node.node_id] = node
        for question in questions:
            gold = list({key: node for item in question.gold for key, node in answers[item].items()}.values())
            words = {term for group in analyzer.query_groups(question.text) for term in group}
            weights = {word: math.log(1 + len(chunks) / counts[word]) for word in words if counts[word]}
            sums = [sum(weights[word] for word in weights.keys() & texts[node.node_id]) for node in gold]
            missing = 0.0
            if gold:
                answer = gold[sums.index(max(sums))]
                place = "\n".join([path_of(answer.metadata), *heading_titles(answer.metadata)])
                beside = (weights.keys() & set(analyzer.tokens(place))) - texts[answer.node_id]
                missing = sum(weights[word] for word in beside) / (sum(weights.values()) or 1)
            names = [{*analyzer.tokens(name)} for node in gold for name in _names(node)]
            found.append((missing >= NEEDED, any(len(name) > 1 and name <= words for name in names)))
        return found

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

    def _store(self, context: str) -> VectorStoreIndex:
        """What LlamaIndex's users have: a collection with Chroma's defaults, compared by angle."""
        client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
        space = {"hnsw": {"space": "cosine"}}
        store = ChromaVectorStore(chroma_collection=client.create_collection(uuid4().hex, configuration=space))
        nodes, storage = self.nodes(context), StorageContext.from_defaults(vector_store=store)
        return VectorStoreIndex(nodes, storage_context=storage, embed_model=self.embedding)

    def retriever(self, row: Row) -> BaseRetriever:
        """Put the row's arms together: those of the index that ships, or LlamaIndex's own."""
        if row.stock:
            return self._stock(row)
        if row.dense == row.sparse and row.analyzer is None and row.lexical:
            return self.index(row.dense).as_retriever(POOL, **row.fusion)
        arms: list[BaseRetriever] = []
        if row.dense is not None:
            arms.append(self.index(row.dense).as_retriever(POOL).retrievers[0])
        if row.sparse is not None and row.analyzer is None and row.lexical:
            arms.append(self.index(row.sparse).as_retriever(POOL).retrievers[1])
        elif row.sparse is not None:
            nodes = self.nodes(row.sparse, lexical=row.lexical)
            arms.append(ContextualBM25Retriever(nodes, similarity_top_k=POOL, analyzer=row.analyzer))
        return arms[0] if len(arms) == 1 else ContextualFusionRetriever(arms, similarity_top_k=POOL, **row.fusion)

    def _stock(self, row: Row) -> BaseRetriever:
        arms: list[BaseRetriever] = []
        if row.dense is not None:
            arms.append(self.store(row.dense).as_retriever(similarity_top_k=POOL))
        if row.sparse is not None:
            arms.append(BM25Retriever.from_defaults(nodes=self.nodes(row.sparse), similarity_top_k=POOL))
        return arms[0] if len(arms) == 1 else stock_hybrid(arms, POOL)


def _names(node: BaseNode) -> list[str]:
    stem = str(node.metadata.get(PATH, "")).rsplit("/", 1)[-1].rsplit(".", 1)[0]
    day = parse_date(node.metadata.get(DATE))
    days = [day.isoformat()[:10]] if day else []
    return [stem, str(node.metadata.get(TITLE, "")), *heading_titles(node.metadata), *days]


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
        node.excluded_embed_metadata_keys = [*node.excluded_embed_metadata_keys, "start_line", "end_line"]
    return list(nodes)


def rows_for(data: DataSet, *, shares: bool) -> list[Row]:
    """The rows of a set's table."""
    context = "pattern" if data.chunks else "headings"
    ours = Row(f"**ours: {context}**", context, context)
    rows = [
        Row("plain vectors", "off", stock=True),
        Row("plain BM25, stock", sparse="off", stock=True),
        Row("stock hybrid, same chunks", "off", "off", stock=True),
        *([] if data.chunks else [Row("stock hybrid, stock chunks", "stock pipeline", "stock pipeline", stock=True)]),
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
            replace(
                ours,
                name="at most 1 chunk of a document",
                fusion={"node_postprocessors": [GroupingPostprocessor(group_size=1, group_by="path")]},
            ),
        ]
    return rows


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


def failures_avoided(before: Recalls, after: Recalls) -> list[str]:
    """Part of the recall missing in ``before`` that ``after`` finds, in per cent, with its interval, for each k."""
    if not len(before):  # a part of a set that has no question
        return [""] * before.shape[1]

    def avoided(old: Recalls, new: Recalls) -> Recalls:
        with np.errstate(divide="ignore", invalid="ignore"):
            percent = 100 * (1 - (1 - new) / (1 - old))
        return np.where(np.isfinite(percent), percent, 0.0)  # a resample without failures has none to avoid

    sample = np.random.default_rng(0).integers(len(before), size=(2000, len(before)))
    resampled = avoided(before[sample].mean(axis=1), after[sample].mean(axis=1))
    ends = np.percentile(resampled, [2.5, 97.5], axis=0)
    shares = zip(avoided(before.mean(axis=0), after.mean(axis=0)), *ends, before.min(axis=0) < 1, strict=True)
    return [
        f"{mean:+.0f} [{low:+.0f}, {high:+.0f}]" if fails else "nothing failed" for mean, low, high, fails in shares
    ]


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
                    cells = failures_avoided(text.recalls[chosen], one.recalls[chosen])
                    rows.append([one.name.strip("*"), rule, part, int(chosen.sum()), *cells])
    head = f"Failures avoided against text alone, %, with 95 % intervals (needed by words: {NEEDED:.0%} of the weight)."
    return f"{head}\n\n{markdown_table(['', 'rule', 'context is', 'questions', '@5', '@10', '@20'], rows)}"


def main() -> None:
    """Measure the sets that were asked for and print a table each."""
    options = command_line(__doc__, sets=list(SETS), pages=int, collections=int, shares=False, rows=[str])
    print(f"Machine: {machine()}; embedding all-MiniLM-L6-v2-int8.")
    embedding = RememberingEmbedding()
    for name in options.sets:
        started = time.monotonic()
        data = kubernetes_docs(options.pages) if name == "kubernetes-docs" else SETS[name]()
        data = first_collections(data, options.collections)
        benches = {collection: Bench(data, collection, embedding) for collection in data.documents}
        texts = sorted({question.text for question in data.questions})
        vectors = dict(zip(texts, embedding.get_text_embedding_batch(texts), strict=True))
        rows = rows_for(data, shares=options.shares)
        wanted = ("**", "ours: text alone", *(options.rows or [""]))  # without these two, nothing can be compared
        measured = [measure(data, row, benches, vectors) for row in rows if row.name.startswith(wanted)]
        pages = name in PAGES
        cells = [*(one.cells(pages=pages) for one in measured), *differences(measured, pages=pages)]
        chunks = sum(len(bench.nodes("off")) for bench in benches.values())
        head = f"### {name}: {len(data.questions)} questions, {chunks} chunks in {len(benches)} index(es)"
        head += f", {len(data.documents[''])} pages" if pages else ""
        columns = ["", "@5", "@10", "@20", "MRR", *(f"in {budget:,}" for budget in BUDGETS)]
        columns += ["5 pages", "10 pages", "20 pages", "in 20"] if pages else []
        print(f"\n{head}\n\n{markdown_table(columns, cells)}\n\n{context_need(data, benches, measured)}")
        print(f"\n({time.monotonic() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
