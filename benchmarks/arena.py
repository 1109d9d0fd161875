"""Run public benchmarks with published figures, each counted as its authors count it.

    python benchmarks/arena.py [--only chroma locomo codebases] [--questions N]

Three systems rank the same chunks with the same local embedding in the same run: LlamaIndex's stock
hybrid, this package by reciprocal ranks, and this package at its defaults. ``code_search.py`` is
the fourth benchmark of the page. ``--questions`` takes a fixed random sample.

chroma: ``brandonstarxel/chunking_evaluation``, all five corpora in one index, five chunks for each
question. Recall, precision and intersection over union are of characters. Precision omega is the
precision of all chunks that hold an answer, so it depends on the boundaries alone. The first table
has chunkers alone, as the published table: the chunks that are nearest to the question by exact
vectors. Chroma's own chunkers are in it if that repository is installed. Each is followed by this
package's parser at the size whose chunks have the same mean length.

locomo: as basic-memory publishes LoCoMo: all sessions are documents of one index; recall is of the
documents that hold the evidence. Five of the 1,986 questions have no evidence and count as 0.

codebases: Anthropic's evaluation of contextual retrieval; pass@k is the mean share of gold chunks.
"""

from __future__ import annotations

import random
import re
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import datasets
import numpy as np
from chunking import SPLITTERS
from chunking import count as count_tokens
from common import RememberingEmbedding, command_line, intervals, machine, markdown_table
from datasets import DATA, DataSet, Span, span_of
from llama_index.core.schema import Document, QueryBundle
from retrieval import POOL, Bench, Row

from llama_index_contextual.app.evaluation import recall_at
from llama_index_contextual.utils.tokens import tiktoken_cl100k

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt
    from llama_index.core.schema import BaseNode

    Floats = npt.NDArray[np.float64]

STOCK: Final = "stock hybrid"
BY_RANKS: Final = "ours by reciprocal ranks"
OURS: Final = "ours"
CHROMA_TOP: Final = 5
CHROMA_SIZE: Final = 250  # tokens of a chunk in the published rows
CHROMA_OVERLAP: Final = 125  # of the chunker that has one
CHROMA_HEADER: Final = (
    "",
    "chunks",
    "mean tokens",
    "recall",
    "precision",
    "precision omega",
    "IoU",
)
SENTENCE_SIZE: Final = 200  # tokens of a chunk of LlamaIndex's splitter
SIZE_STEPS: Final = 5  # in which the size of equally long chunks is found
HALF_CHARACTER: Final = "\ufffd"
LOCOMO_DEPTHS: Final = (5, 10)
LOCOMO_WITHOUT_EVIDENCE: Final = 5  # questions that have no evidence, on which all systems score 0
LOCOMO_CATEGORIES: Final = {
    1: "single_hop",
    2: "multi_hop",
    3: "temporal",
    4: "open_domain",
    5: "adversarial",
}
CODEBASES_DEPTHS: Final = (5, 10, 20)


def ranked_nodes(
    data: DataSet,
    queries: Iterable[str],
    embedding: RememberingEmbedding,
) -> dict[str, list[list[BaseNode]]]:
    """Return the ranked chunks of each system for each query, over the same chunks."""
    bench = Bench(data, "", embedding)
    index = bench.index(data.context)
    stock_row = Row(STOCK, "off", "off", is_stock=True)
    systems = {
        STOCK: bench.retriever(stock_row),
        BY_RANKS: index.as_retriever(POOL, mode="reciprocal_rerank"),
        OURS: index.as_retriever(POOL),
    }
    rankings: dict[str, list[list[BaseNode]]] = {name: [] for name in systems}
    for query in queries:
        query_vector = embedding.get_query_embedding(query)
        bundle = QueryBundle(query, embedding=query_vector)
        for name, retriever in systems.items():
            hits = retriever.retrieve(bundle)
            rankings[name].append([hit.node for hit in hits])
    return rankings


def set_of(name: str, documents: list[Document]) -> DataSet:
    """Return documents that are one index; their questions are scored in this script."""
    return DataSet(
        name,
        documents={"": documents},
        questions=[],
        covers=lambda _: frozenset(),
    )


def sample(rows: list[Any], size: int | None) -> list[Any]:
    """Return a fixed random sample of the rows, or all."""
    if not size or size >= len(rows):
        return rows
    return random.Random(0).sample(rows, size)  # noqa: S311


def difference_cells(scores: Mapping[str, Floats]) -> list[str]:
    """Return the cells of this package less stock, question by question."""
    return intervals(scores[OURS] - scores[STOCK])


# Chroma's chunking evaluation


class ChromaQuestion(NamedTuple):
    """A question and the parts of one corpus that answer it, which do not overlap."""

    text: str
    references: Sequence[Span]

    @property
    def path(self) -> str:
        """Return the corpus with the answer."""
        return self.references[0].path

    def is_answered_in(self, chunk: Span) -> bool:
        """Return whether a chunk holds a reference; to touch it is enough in this benchmark."""
        return any(map(chunk.touches, self.references))


def characters(spans: Iterable[Span]) -> set[int]:
    """Return the characters of all spans of a corpus."""
    union = set[int]()
    for span in spans:
        union.update(range(span.start, span.end))
    return union


def chroma_scores(question: ChromaQuestion, retrieved: Sequence[Span]) -> list[float]:
    """Return recall, precision and intersection over union of the retrieved chunks."""
    gold = characters(question.references)
    read = characters(span for span in retrieved if span.path == question.path)
    covered = len(gold & read)
    retrieved_size = sum(span.end - span.start for span in retrieved)
    union = retrieved_size + len(gold - read)
    return [covered / len(gold), covered / retrieved_size, covered / union]


def precision_omega(question: ChromaQuestion, chunks: Iterable[Span]) -> float:
    """Return the precision of all chunks that overlap or touch a reference."""
    gold = characters(question.references)
    chunks_with_gold = [chunk for chunk in chunks if question.is_answered_in(chunk)]
    read = characters(chunks_with_gold)
    return len(gold & read) / len(gold | read)


class Chunks(NamedTuple):
    """The chunks of all corpora.

    Attributes:
        texts: The text of each chunk.
        spans: The place of each chunk.
    """

    texts: Sequence[str]
    spans: Sequence[Span]

    @property
    def mean_tokens(self) -> float:
        """Return the mean length of a chunk."""
        tokens = sum(map(count_tokens, self.texts))
        return tokens / len(self.texts)


class Chunker(NamedTuple):
    """A way to cut a corpus.

    Attributes:
        name: The first cell of its row.
        split: Returns the texts of the chunks of a corpus.
    """

    name: str
    split: Callable[[str], Sequence[str]]

    def cut(self, corpora: Mapping[str, str]) -> Chunks:
        """Cut all corpora."""
        texts: list[str] = []
        spans: list[Span] = []
        for path, corpus in corpora.items():
            corpus_texts = [text for text in self.split(corpus) if text.strip()]
            texts += corpus_texts
            spans += locate(path, corpus, corpus_texts)
        return Chunks(texts, spans)


def locate(path: str, corpus: str, texts: Sequence[str]) -> list[Span]:
    """Return the place of each chunk: the first one after the start of the chunk before it.

    Chunks may overlap. White space counts as equal, because some chunkers change it, and the halves
    of a character that a chunk cuts do not count.
    """
    spans = []
    earliest_start = 0
    for text in texts:
        words = text.replace(HALF_CHARACTER, " ").split()
        escaped_words = map(re.escape, words)
        pattern = re.compile(r"\s*".join(escaped_words))
        match = pattern.search(corpus, earliest_start)
        if match is None:
            raise ValueError(f"A chunk is not in {path}: {text!r}")
        start, end = match.span()
        spans.append(Span(path, start, end))
        earliest_start = start + 1
    return spans


def our_parser(size: int) -> Chunker:
    """Return the parser of this package at a size, without overlap."""
    splitter = SPLITTERS[OURS](size)
    return Chunker(
        f"{OURS}, {size} tokens",
        lambda corpus: [text for text, _ in splitter(corpus)],
    )


def our_parser_at(mean_tokens: float, corpora: Mapping[str, str]) -> Chunker:
    """Return the parser of this package at the size whose chunks have this mean length."""
    size = round(mean_tokens)
    nearest: dict[float, Chunker] = {}
    for _ in range(SIZE_STEPS):
        chunker = our_parser(size)
        mean = chunker.cut(corpora).mean_tokens
        nearest[abs(mean - mean_tokens)] = chunker
        size = round(size * mean_tokens / mean)
    return nearest[min(nearest)]


def peer_chunkers(embedding: RememberingEmbedding) -> list[Chunker]:
    """Return Chroma's chunkers with the settings of the published rows, and LlamaIndex's splitter.

    Chroma's are left out if `chunking_evaluation` is not installed.
    """
    sentences = SPLITTERS["LlamaIndex SentenceSplitter"](SENTENCE_SIZE)
    llama_index = Chunker(
        f"LlamaIndex SentenceSplitter, {SENTENCE_SIZE} tokens",
        lambda corpus: [text for text, _ in sentences(corpus)],
    )
    tiktoken_cl100k()  # keeps the vocabulary that Chroma's chunkers would download
    try:
        from chunking_evaluation import chunking
    except ImportError:
        print("Chroma's chunkers are left out: install chunking_evaluation.", file=sys.stderr)
        return [llama_index]
    recursive = chunking.RecursiveTokenChunker(
        chunk_size=CHROMA_SIZE,
        chunk_overlap=0,
        length_function=count_tokens,
    )
    fixed = chunking.FixedTokenChunker(
        chunk_size=CHROMA_SIZE,
        chunk_overlap=CHROMA_OVERLAP,
        encoding_name="cl100k_base",
    )
    cluster = chunking.ClusterSemanticChunker(
        embedding.get_text_embedding_batch,
        max_chunk_size=CHROMA_SIZE,
    )
    overlap = f"overlap {CHROMA_OVERLAP}"
    return [
        Chunker(f"RecursiveTokenChunker, {CHROMA_SIZE} tokens", recursive.split_text),
        Chunker(f"ClusterSemanticChunker, {CHROMA_SIZE} tokens", cluster.split_text),
        Chunker(f"FixedTokenChunker, {CHROMA_SIZE} tokens, {overlap}", fixed.split_text),
        llama_index,
    ]


def chroma_row(name: str, chunks: Chunks, scores: Floats) -> list[object]:
    """Return the cells of a system."""
    means = scores.mean(axis=0).tolist()
    return [name, len(chunks.texts), f"{chunks.mean_tokens:.0f}", *means]


def scores_of(
    chunks: Chunks,
    questions: Sequence[ChromaQuestion],
    retrieved: Sequence[Sequence[Span]],
) -> Floats:
    """Return recall, precision, precision omega and IoU by question, in per cent."""
    spans_of_corpus = defaultdict[str, list[Span]](list)
    for span in chunks.spans:
        spans_of_corpus[span.path].append(span)
    rows = []
    for question, spans in zip(questions, retrieved, strict=True):
        recall, precision, union = chroma_scores(question, spans[:CHROMA_TOP])
        omega = precision_omega(question, spans_of_corpus[question.path])
        rows.append([recall, precision, omega, union])
    return 100 * np.array(rows)


def scores_by_vectors(
    chunks: Chunks,
    questions: Sequence[ChromaQuestion],
    embedding: RememberingEmbedding,
) -> Floats:
    """Return the scores of chunks whose vectors are compared with every question."""
    chunk_vectors = np.array(
        embedding.get_text_embedding_batch(list(chunks.texts)),
        dtype=np.float32,
    )
    retrieved = []
    for question in questions:
        query_vector = np.array(
            embedding.get_query_embedding(question.text),
            dtype=np.float32,
        )
        similarities = chunk_vectors @ query_vector
        nearest = np.argsort(-similarities, kind="stable")
        retrieved.append([chunks.spans[row] for row in nearest[:CHROMA_TOP]])
    return scores_of(chunks, questions, retrieved)


def chunker_table(
    corpora: Mapping[str, str],
    questions: Sequence[ChromaQuestion],
    embedding: RememberingEmbedding,
) -> str:
    """Return the table of chunkers, each beside this package's parser at the same mean length."""
    rows: list[list[object]] = []
    for peer in peer_chunkers(embedding):
        peer_chunks = peer.cut(corpora)
        peer_scores = scores_by_vectors(peer_chunks, questions, embedding)
        parser = our_parser_at(peer_chunks.mean_tokens, corpora)
        our_chunks = parser.cut(corpora)
        our_scores = scores_by_vectors(our_chunks, questions, embedding)
        rows.append(chroma_row(peer.name, peer_chunks, peer_scores))
        rows.append(chroma_row(parser.name, our_chunks, our_scores))
        differences = intervals(our_scores - peer_scores)
        rows.append([f"{OURS} less it", "", "", *differences])
        print(rows[-3:], file=sys.stderr, flush=True)
    return markdown_table(CHROMA_HEADER, rows)


def chroma_corpora() -> dict[str, str]:
    """Return the texts of the corpora by file name."""
    paths = sorted((DATA / "chunking-evaluation" / "corpus").glob("*.md"))
    return {path.name: path.read_bytes().decode() for path in paths}


def chroma_questions(size: int | None) -> list[ChromaQuestion]:
    """Return all questions, or a sample."""
    questions = []
    for row in sample(datasets.queries("chunking-evaluation"), size):
        references = []
        for part in row["gold"]:
            reference = Span(part["path"], part["start_char"], part["end_char"])
            references.append(reference)
        questions.append(ChromaQuestion(row["query"], references))
    return questions


def system_table(
    corpora: Mapping[str, str],
    questions: Sequence[ChromaQuestion],
    embedding: RememberingEmbedding,
) -> str:
    """Return the table of whole systems over the chunks of this package."""
    documents = []
    for path, text in corpora.items():
        document = Document(
            text=text,
            id_=path,
            metadata={"path": path},
        )
        documents.append(document)
    data = set_of("chunking-evaluation", documents)
    nodes = Bench(data, "", embedding).chunks()
    chunks = Chunks(
        texts=[node.get_content() for node in nodes],
        spans=[span_of(node) for node in nodes],
    )
    scores = {}
    rows: list[list[object]] = []
    queries = [question.text for question in questions]
    for name, ranking in ranked_nodes(data, queries, embedding).items():
        retrieved = [list(map(span_of, hits)) for hits in ranking]
        scores[name] = scores_of(chunks, questions, retrieved)
        rows.append(chroma_row(name, chunks, scores[name]))
    rows.append([f"{OURS} less {STOCK}", "", "", *difference_cells(scores)])
    return markdown_table(CHROMA_HEADER, rows)


def chroma(embedding: RememberingEmbedding, size: int | None) -> str:
    """Return the tables of Chroma's chunking evaluation."""
    corpora = chroma_corpora()
    questions = chroma_questions(size)
    return (
        f"{len(questions)} questions, {CHROMA_TOP} chunks each, %. Chunkers, by vectors alone:\n\n"
        f"{chunker_table(corpora, questions, embedding)}\n\n"
        "Whole systems, on the same chunks:\n\n"
        f"{system_table(corpora, questions, embedding)}"
    )


# LoCoMo as basic-memory counts it


def document_scores(nodes: Sequence[BaseNode], gold: frozenset[str]) -> list[float]:
    """Return recall of documents at each depth and the reciprocal rank among the first ten."""
    ranking = list(dict.fromkeys(node.ref_doc_id or "" for node in nodes))
    scores = []
    for depth in LOCOMO_DEPTHS:
        gold_in_depth = gold.intersection(ranking[:depth])
        scores.append(len(gold_in_depth) / len(gold))
    last_rank = LOCOMO_DEPTHS[-1]
    for rank, path in enumerate(ranking[:last_rank], start=1):
        if path in gold:
            return [*scores, 1 / rank]
    return [*scores, 0.0]


def gold_paths(question: Mapping[str, Any]) -> frozenset[str]:
    """Return the documents that hold the evidence."""
    return frozenset(passage["path"] for passage in question["gold"])


def locomo(embedding: RememberingEmbedding, size: int | None) -> str:
    """Return the tables of LoCoMo with all sessions in one index."""
    pages = datasets.pages_of("locomo-notes")
    data = set_of("locomo-notes", pages)
    questions = sample(datasets.queries("locomo-notes"), size)
    texts = [question["query"] for question in questions]
    golds = list(map(gold_paths, questions))
    scores = {}
    for name, ranking in ranked_nodes(data, texts, embedding).items():
        scores_by_question = map(document_scores, ranking, golds)
        scores[name] = np.array(list(scores_by_question))

    without_evidence = 0 if size else LOCOMO_WITHOUT_EVIDENCE
    question_count = len(questions) + without_evidence
    categories = np.array([question["category"] for question in questions])
    return (
        f"{len(pages)} documents, {question_count:,} questions.\n\n"
        f"{locomo_table(scores, question_count)}\n\n"
        f"{locomo_categories(scores, categories)}"
    )


def locomo_table(scores: Mapping[str, Floats], question_count: int) -> str:
    """Return the table of all questions; those without evidence are in their number alone."""
    rows: list[list[object]] = []
    points = {}
    for name, values in scores.items():
        means = values.sum(axis=0) / question_count
        cells = [f"{mean:.3f}" for mean in means]
        rows.append([name, *cells])
        points[name] = 100 * values
    rows.append([f"{OURS} less {STOCK}, points", *difference_cells(points)])
    recalls = [f"recall@{depth}" for depth in LOCOMO_DEPTHS]
    return markdown_table(["", *recalls, "MRR"], rows)


def locomo_categories(scores: Mapping[str, Floats], categories: npt.NDArray[np.int64]) -> str:
    """Return the table of recall at the first depth by category."""
    rows: list[list[object]] = []
    for number, label in LOCOMO_CATEGORIES.items():
        chosen = categories == number
        cells = []
        for values in scores.values():
            recall = values[chosen, 0].mean()
            cells.append(f"{recall:.3f}")
        rows.append([label, int(chosen.sum()), *cells])
    header = [f"recall@{LOCOMO_DEPTHS[0]}", "questions", *scores]
    return markdown_table(header, rows)


# Anthropic's codebases


def codebases(embedding: RememberingEmbedding, size: int | None) -> str:
    """Return the table of Anthropic's code set."""
    data = datasets.codebases()
    questions = sample(data.questions, size)
    texts = [question.text for question in questions]
    scores = {}
    rows: list[list[object]] = []
    for name, ranking in ranked_nodes(data, texts, embedding).items():
        recalls = []
        for question, nodes in zip(questions, ranking, strict=True):
            covered = list(map(data.covers, nodes))
            recalls.append([recall_at(depth, covered, question.gold) for depth in CODEBASES_DEPTHS])
        scores[name] = 100 * np.array(recalls)
        means = scores[name].mean(axis=0).tolist()
        rows.append([name, *means])
    rows.append([f"{OURS} less {STOCK}", *difference_cells(scores)])
    header = ["", *(f"pass@{depth}" for depth in CODEBASES_DEPTHS)]
    table = markdown_table(header, rows)
    return f"{len(questions)} questions, %.\n\n{table}"


BENCHMARKS: Final = {
    "chroma": chroma,
    "locomo": locomo,
    "codebases": codebases,
}


def main() -> None:
    """Run the benchmarks and print their tables."""
    options = command_line(__doc__, only=list(BENCHMARKS), questions=int)
    embedding = RememberingEmbedding()
    print(f"{machine()}; embedding {embedding.inner.model_name}.")
    for name in options.only:
        table = BENCHMARKS[name](embedding, options.questions)
        print(f"\n## {name}\n\n{table}", flush=True)


if __name__ == "__main__":
    main()
