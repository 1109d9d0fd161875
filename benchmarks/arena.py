"""Run public benchmarks with published figures, each counted as its authors count it.

    python benchmarks/arena.py [--only chroma locomo codebases] [--questions N]

Three systems rank the same chunks with the same local embedding in the same run: LlamaIndex's stock
hybrid, this package by reciprocal ranks, and this package at its defaults. ``code_search.py`` is
the fourth benchmark of the page. ``--questions`` takes a fixed random sample.

chroma: ``brandonstarxel/chunking_evaluation``, all five corpora in one index, five chunks for each
question. Recall, precision and intersection over union are of characters; precision omega is the
precision of all chunks that hold an answer, so it depends on the boundaries alone. Two rows are
vectors alone over one parser without contexts, as in the published table.

locomo: as basic-memory publishes LoCoMo: all sessions are documents of one index; recall is of the
documents that hold the evidence. Five of the 1,986 questions have no evidence and count as 0.

codebases: Anthropic's evaluation of contextual retrieval; pass@k is the mean share of gold chunks.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import datasets
import numpy as np
from chunking import SPLITTERS, place
from chunking import count as count_tokens
from common import RememberingEmbedding, command_line, intervals, machine, markdown_table
from datasets import DATA, DataSet, Question
from llama_index.core.schema import Document, QueryBundle
from retrieval import POOL, Bench, Row

from llama_index_contextual.app.evaluation import recall_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import BaseNode

    Floats = npt.NDArray[np.float64]

SYSTEMS: Final = ("stock hybrid", "ours by reciprocal ranks", "ours")
STOCK, OURS = SYSTEMS[0], SYSTEMS[2]
CHROMA_TOP: Final = 5
CHROMA_SIZE: Final = 200  # tokens of a chunk in the rows of one parser alone
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


def retrievers(bench: Bench) -> dict[str, BaseRetriever]:
    """Return the three systems over the same chunks."""
    index = bench.index(bench.data.context)
    stock = bench.retriever(Row("", "off", "off", is_stock=True))
    by_ranks = index.as_retriever(POOL, mode="reciprocal_rerank")
    return dict(zip(SYSTEMS, (stock, by_ranks, index.as_retriever(POOL)), strict=True))


def ranked_nodes(
    bench: Bench, questions: Iterable[str], embedding: RememberingEmbedding
) -> dict[str, list[list[BaseNode]]]:
    """Return the ranked chunks of each system for each question."""
    systems = retrievers(bench)
    rankings = defaultdict[str, list[list["BaseNode"]]](list)
    for text in questions:
        bundle = QueryBundle(text, embedding=embedding.get_query_embedding(text))
        for name, retriever in systems.items():
            rankings[name].append([hit.node for hit in retriever.retrieve(bundle)])
    return rankings


def sample(rows: list[Any], size: int | None) -> list[Any]:
    """Return a fixed random sample of the rows, or all."""
    if not size or size >= len(rows):
        return rows
    return random.Random(0).sample(rows, size)  # noqa: S311


def difference_row(name: str, ours: Floats, stock: Floats) -> list[str]:
    """Return the cells of this package less stock, question by question."""
    return [name, *intervals(ours - stock)]


# Chroma's chunking evaluation


@dataclass(frozen=True)
class Span:
    """Characters of a corpus."""

    path: str
    start: int
    end: int

    def overlap(self, other: Span) -> range:
        """Return the characters that both have."""
        if self.path != other.path:
            return range(0)
        return range(max(self.start, other.start), min(self.end, other.end))

    def meets(self, other: Span) -> bool:
        """Return whether the two overlap or touch; the benchmark counts both as holding."""
        return self.path == other.path and self.start <= other.end and other.start <= self.end


def covered_characters(references: Sequence[Span], chunks: Iterable[Span]) -> set[int]:
    """Return the characters of the references that chunks hold."""
    covered = set[int]()
    for chunk in chunks:
        for reference in references:
            covered.update(reference.overlap(chunk))
    return covered


def missing_count(references: Sequence[Span], covered: set[int]) -> int:
    """Return how many characters of the references are not covered."""
    missing = 0
    for reference in references:
        missing += len(set(range(reference.start, reference.end)) - covered)
    return missing


def chroma_scores(references: Sequence[Span], chunks: Sequence[Span]) -> tuple[float, float, float]:
    """Return recall, precision and intersection over union of the retrieved chunks."""
    covered = covered_characters(references, chunks)
    reference_size = sum(reference.end - reference.start for reference in references)
    retrieved_size = sum(chunk.end - chunk.start for chunk in chunks)
    union = retrieved_size + missing_count(references, covered)
    return len(covered) / reference_size, len(covered) / retrieved_size, len(covered) / union


def precision_omega(references: Sequence[Span], chunks: Iterable[Span]) -> float:
    """Return the precision of all chunks that overlap or touch a reference."""
    holding = [chunk for chunk in chunks if any(map(chunk.meets, references))]
    covered = covered_characters(references, holding)
    read = set[int]()
    for chunk in holding:
        read.update(range(chunk.start, chunk.end))
    return len(covered) / (len(read) + missing_count(references, covered))


def span_of(node: BaseNode) -> Span:
    """Return the characters of a chunk."""
    start, end = node.start_char_idx, node.end_char_idx  # type: ignore[attr-defined]
    return Span(node.ref_doc_id or "", start, end)


def chroma_row(
    name: str,
    questions: Sequence[tuple[str, list[Span]]],
    chunks: Sequence[Span],
    retrieved: Sequence[Sequence[Span]],
    tokens: float,
) -> tuple[list[object], Floats]:
    """Return the cells of a system and the scores of its questions."""
    chunks_by_path = defaultdict[str, list[Span]](list)
    for chunk in chunks:
        chunks_by_path[chunk.path].append(chunk)
    scores = []
    for (_, references), spans in zip(questions, retrieved, strict=True):
        recall, precision, union = chroma_scores(references, spans[:CHROMA_TOP])
        omega = precision_omega(references, chunks_by_path[references[0].path])
        scores.append((recall, precision, omega, union))
    values = 100 * np.array(scores)
    return [name, len(chunks), f"{tokens:.0f}", *values.mean(axis=0).tolist()], values


def mean_tokens(texts: Iterable[str]) -> float:
    """Return the mean number of cl100k tokens of texts."""
    return float(np.mean([count_tokens(text) for text in texts]))


def parser_row(
    name: str,
    corpora: dict[str, str],
    questions: Sequence[tuple[str, list[Span]]],
    embedding: RememberingEmbedding,
) -> list[object]:
    """Return the row of one parser, whose chunks are found by vectors alone."""
    splitter = SPLITTERS[name](CHROMA_SIZE)
    chunks = []
    for path, text in corpora.items():
        chunks += [chunk for chunk in place(path, text, splitter(text)) if chunk.text.strip()]
    texts = [chunk.text for chunk in chunks]
    vectors = np.array(embedding.get_text_embedding_batch(texts), np.float32)
    query_vectors = [embedding.get_query_embedding(text) for text, _ in questions]
    similarities = np.array(query_vectors, np.float32) @ vectors.T
    nearest = np.argsort(-similarities, axis=1, kind="stable")[:, :CHROMA_TOP].tolist()
    spans = [Span(chunk.path, chunk.start, chunk.end) for chunk in chunks]
    retrieved = [[spans[row] for row in rows] for rows in nearest]
    label = f"{name}, {CHROMA_SIZE} tokens, vectors alone"
    return chroma_row(label, questions, spans, retrieved, mean_tokens(texts))[0]


def chroma(embedding: RememberingEmbedding, size: int | None) -> str:
    """Return the table of Chroma's chunking evaluation."""
    paths = sorted((DATA / "chunking-evaluation" / "corpus").glob("*.md"))
    corpora = {path.name: path.read_bytes().decode() for path in paths}
    questions = []
    for row in sample(datasets.queries("chunking-evaluation"), size):
        gold = [Span(part["path"], part["start_char"], part["end_char"]) for part in row["gold"]]
        questions.append((row["query"], gold))
    documents = [
        Document(text=text, id_=name, metadata={"path": name}) for name, text in corpora.items()
    ]
    data = DataSet("chunking-evaluation", {"": documents}, [], lambda _: frozenset())
    bench = Bench(data, "", embedding)
    chunks = [span_of(node) for node in bench.nodes("off")]
    tokens = mean_tokens(node.get_content() for node in bench.nodes("off"))
    rows: list[Sequence[object]] = [
        parser_row(name, corpora, questions, embedding)
        for name in ("LlamaIndex SentenceSplitter", "ours")
    ]
    scores = {}
    rankings = ranked_nodes(bench, [text for text, _ in questions], embedding)
    for name, ranking in rankings.items():
        retrieved = [[span_of(node) for node in nodes] for nodes in ranking]
        cells, scores[name] = chroma_row(name, questions, chunks, retrieved, tokens)
        rows.append(cells)
    difference = difference_row("ours less stock hybrid", scores[OURS], scores[STOCK])
    rows.append([difference[0], "", "", *difference[1:]])
    header = ["", "chunks", "mean tokens", "recall", "precision", "precision omega", "IoU"]
    return f"{len(questions)} questions, 5 chunks each, %.\n\n{markdown_table(header, rows)}"


# LoCoMo as basic-memory counts it


def document_scores(nodes: Sequence[BaseNode], gold: frozenset[str]) -> list[float]:
    """Return recall of documents at each depth and the reciprocal rank among the first ten."""
    ranking = [*dict.fromkeys(node.ref_doc_id or "" for node in nodes)][: LOCOMO_DEPTHS[-1]]
    recalls = [len(gold.intersection(ranking[:depth])) / len(gold) for depth in LOCOMO_DEPTHS]
    ranks = [rank for rank, path in enumerate(ranking, start=1) if path in gold]
    return [*recalls, 1 / ranks[0] if ranks else 0.0]


def locomo(embedding: RememberingEmbedding, size: int | None) -> str:
    """Return the tables of LoCoMo with all sessions in one index."""
    documents = datasets.pages_of("locomo-notes")
    rows = sample(datasets.queries("locomo-notes"), size)
    data = DataSet("locomo-notes", {"": documents}, [], lambda _: frozenset())
    rankings = ranked_nodes(Bench(data, "", embedding), [row["query"] for row in rows], embedding)
    golds = [frozenset(passage["path"] for passage in row["gold"]) for row in rows]
    scores = {}
    for name, ranking in rankings.items():
        pairs = zip(ranking, golds, strict=True)
        scores[name] = np.array([document_scores(nodes, gold) for nodes, gold in pairs])
    without_evidence = 0 if size else LOCOMO_WITHOUT_EVIDENCE
    answerable = len(rows) / (len(rows) + without_evidence)
    table: list[Sequence[object]] = []
    for name, values in scores.items():
        table.append([name, *(f"{mean:.3f}" for mean in answerable * values.mean(axis=0))])
    difference = difference_row(
        "ours less stock hybrid, points", 100 * scores[OURS], 100 * scores[STOCK]
    )
    table.append(difference)
    header = ["", *(f"recall@{depth}" for depth in LOCOMO_DEPTHS), "MRR"]
    categories = np.array([row["category"] for row in rows])
    category_table = []
    for number, label in LOCOMO_CATEGORIES.items():
        chosen = categories == number
        cells = [f"{values[chosen, 0].mean():.3f}" for values in scores.values()]
        category_table.append([label, int(chosen.sum()), *cells])
    return (
        f"{len(documents)} documents, {len(rows) + without_evidence:,} questions.\n\n"
        f"{markdown_table(header, table)}\n\n"
        f"{markdown_table(['recall@5', 'questions', *scores], category_table)}"
    )


# Anthropic's codebases


def codebases(embedding: RememberingEmbedding, size: int | None) -> str:
    """Return the table of Anthropic's code set."""
    data = datasets.codebases()
    questions: list[Question] = sample(data.questions, size)
    bench = Bench(data, "", embedding)
    rankings = ranked_nodes(bench, [question.text for question in questions], embedding)
    scores = {}
    for name, ranking in rankings.items():
        values = []
        for nodes, question in zip(ranking, questions, strict=True):
            hits = [data.covers(node) for node in nodes]
            values.append([recall_at(depth, hits, question.gold) for depth in CODEBASES_DEPTHS])
        scores[name] = 100 * np.array(values)
    table: list[Sequence[object]] = [
        [name, *values.mean(axis=0).tolist()] for name, values in scores.items()
    ]
    table.append(difference_row("ours less stock hybrid", scores[OURS], scores[STOCK]))
    header = ["", *(f"pass@{depth}" for depth in CODEBASES_DEPTHS)]
    return f"{len(questions)} questions, %.\n\n{markdown_table(header, table)}"


BENCHMARKS: Final = {"chroma": chroma, "locomo": locomo, "codebases": codebases}


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
