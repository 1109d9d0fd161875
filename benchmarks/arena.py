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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import datasets
import numpy as np
from chunking import SPLITTERS, place
from chunking import count as count_tokens
from common import RememberingEmbedding, command_line, intervals, machine, markdown_table
from datasets import DATA, DataSet
from llama_index.core.schema import Document, QueryBundle
from retrieval import POOL, Bench, Row

from llama_index_contextual.app.evaluation import recall_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt
    from llama_index.core.schema import BaseNode

    Floats = npt.NDArray[np.float64]

STOCK: Final = "stock hybrid"
BY_RANKS: Final = "ours by reciprocal ranks"
OURS: Final = "ours"
CHROMA_TOP: Final = 5
CHROMA_SIZE: Final = 200  # tokens of a chunk in the rows of one parser alone
CHROMA_PARSERS: Final = ("LlamaIndex SentenceSplitter", "ours")
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
    data: DataSet, queries: Iterable[str], embedding: RememberingEmbedding
) -> dict[str, list[list[BaseNode]]]:
    """Return the ranked chunks of each system for each query, over the same chunks."""
    bench = Bench(data, "", embedding)
    index = bench.index(data.context)
    systems = {
        STOCK: bench.retriever(Row("", "off", "off", is_stock=True)),
        BY_RANKS: index.as_retriever(POOL, mode="reciprocal_rerank"),
        OURS: index.as_retriever(POOL),
    }
    rankings = defaultdict[str, list[list["BaseNode"]]](list)
    for query in queries:
        bundle = QueryBundle(query, embedding=embedding.get_query_embedding(query))
        for name, retriever in systems.items():
            rankings[name].append([hit.node for hit in retriever.retrieve(bundle)])
    return rankings


def set_of(name: str, documents: list[Document]) -> DataSet:
    """Return documents that are one index; their questions are scored in this script."""
    return DataSet(name, {"": documents}, [], lambda _: frozenset())


def sample(rows: list[Any], size: int | None) -> list[Any]:
    """Return a fixed random sample of the rows, or all."""
    if not size or size >= len(rows):
        return rows
    return random.Random(0).sample(rows, size)  # noqa: S311


def difference_cells(scores: Mapping[str, Floats]) -> list[str]:
    """Return the cells of this package less stock, question by question."""
    return intervals(scores[OURS] - scores[STOCK])


# Chroma's chunking evaluation


class Span(NamedTuple):
    """Characters of a corpus."""

    path: str
    start: int
    end: int

    def meets(self, other: Span) -> bool:
        """Return whether the two overlap or touch; the benchmark counts both as holding."""
        return self.path == other.path and self.start <= other.end and other.start <= self.end


class ChromaQuestion(NamedTuple):
    """A question and the parts of one corpus that answer it, which do not overlap."""

    text: str
    references: Sequence[Span]

    @property
    def path(self) -> str:
        """Return the corpus with the answer."""
        return self.references[0].path


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
    read = characters(chunk for chunk in chunks if any(map(chunk.meets, question.references)))
    return len(gold & read) / len(gold | read)


class ChromaSystem:
    """The chunks of a system and the scores of its answers.

    Args:
        name: The first cell of its row.
        texts: The text of each chunk.
        spans: The place of each chunk.
    """

    def __init__(self, name: str, texts: Sequence[str], spans: Sequence[Span]) -> None:
        self.name = name
        self.size = len(texts)
        self.tokens = float(np.mean([count_tokens(text) for text in texts]))
        self.spans = defaultdict[str, list[Span]](list)
        for span in spans:
            self.spans[span.path].append(span)

    def scores(
        self, questions: Sequence[ChromaQuestion], retrieved: Sequence[Sequence[Span]]
    ) -> Floats:
        """Return recall, precision, precision omega and IoU by question, in per cent."""
        rows = []
        for question, spans in zip(questions, retrieved, strict=True):
            recall, precision, union = chroma_scores(question, spans[:CHROMA_TOP])
            omega = precision_omega(question, self.spans[question.path])
            rows.append([recall, precision, omega, union])
        return 100 * np.array(rows)

    def row(self, scores: Floats) -> list[object]:
        """Return the cells of the system."""
        return [self.name, self.size, f"{self.tokens:.0f}", *scores.mean(axis=0).tolist()]


def parser_row(
    name: str,
    corpora: Mapping[str, str],
    questions: Sequence[ChromaQuestion],
    embedding: RememberingEmbedding,
) -> list[object]:
    """Return the row of one parser, whose chunks are found by vectors alone."""
    # Cut the corpora.
    splitter = SPLITTERS[name](CHROMA_SIZE)
    texts = []
    spans = []
    for path, corpus in corpora.items():
        for chunk in place(path, corpus, splitter(corpus)):
            if chunk.text.strip():
                texts.append(chunk.text)
                spans.append(Span(path, chunk.start, chunk.end))

    # Compare every question with every chunk.
    vectors = np.array(embedding.get_text_embedding_batch(texts), np.float32)
    retrieved = []
    for question in questions:
        query_vector = np.array(embedding.get_query_embedding(question.text), np.float32)
        nearest = np.argsort(-(vectors @ query_vector), kind="stable")[:CHROMA_TOP]
        retrieved.append([spans[row] for row in nearest])

    system = ChromaSystem(f"{name}, {CHROMA_SIZE} tokens, vectors alone", texts, spans)
    return system.row(system.scores(questions, retrieved))


def chroma_corpora() -> dict[str, str]:
    """Return the texts of the corpora by file name."""
    paths = sorted((DATA / "chunking-evaluation" / "corpus").glob("*.md"))
    return {path.name: path.read_bytes().decode() for path in paths}


def chroma_questions(size: int | None) -> list[ChromaQuestion]:
    """Return all questions, or a sample."""
    questions = []
    for row in sample(datasets.queries("chunking-evaluation"), size):
        references = [
            Span(part["path"], part["start_char"], part["end_char"]) for part in row["gold"]
        ]
        questions.append(ChromaQuestion(row["query"], references))
    return questions


def span_of(node: BaseNode) -> Span:
    """Return the characters of a chunk."""
    return Span(node.ref_doc_id or "", node.start_char_idx, node.end_char_idx)  # type: ignore[attr-defined]


def chroma(embedding: RememberingEmbedding, size: int | None) -> str:
    """Return the table of Chroma's chunking evaluation."""
    corpora = chroma_corpora()
    questions = chroma_questions(size)
    rows = [parser_row(name, corpora, questions, embedding) for name in CHROMA_PARSERS]

    # Rank the chunks of this package.
    documents = [
        Document(text=text, id_=path, metadata={"path": path}) for path, text in corpora.items()
    ]
    data = set_of("chunking-evaluation", documents)
    nodes = Bench(data, "", embedding).chunks()
    texts = [node.get_content() for node in nodes]
    spans = [span_of(node) for node in nodes]
    scores = {}
    rankings = ranked_nodes(data, [question.text for question in questions], embedding)
    for name, ranking in rankings.items():
        system = ChromaSystem(name, texts, spans)
        retrieved = [list(map(span_of, hits)) for hits in ranking]
        scores[name] = system.scores(questions, retrieved)
        rows.append(system.row(scores[name]))
    rows.append([f"{OURS} less {STOCK}", "", "", *difference_cells(scores)])
    header = ["", "chunks", "mean tokens", "recall", "precision", "precision omega", "IoU"]
    return f"{len(questions)} questions, 5 chunks each, %.\n\n{markdown_table(header, rows)}"


# LoCoMo as basic-memory counts it


def document_scores(nodes: Sequence[BaseNode], gold: frozenset[str]) -> list[float]:
    """Return recall of documents at each depth and the reciprocal rank among the first ten."""
    ranking = list(dict.fromkeys(node.ref_doc_id or "" for node in nodes))
    scores = [len(gold.intersection(ranking[:depth])) / len(gold) for depth in LOCOMO_DEPTHS]
    for rank, path in enumerate(ranking[: LOCOMO_DEPTHS[-1]], start=1):
        if path in gold:
            return [*scores, 1 / rank]
    return [*scores, 0.0]


def gold_paths(question: Mapping[str, Any]) -> frozenset[str]:
    """Return the documents that hold the evidence."""
    return frozenset(passage["path"] for passage in question["gold"])


def locomo(embedding: RememberingEmbedding, size: int | None) -> str:
    """Return the tables of LoCoMo with all sessions in one index."""
    data = set_of("locomo-notes", datasets.pages_of("locomo-notes"))
    questions = sample(datasets.queries("locomo-notes"), size)
    golds = [gold_paths(question) for question in questions]
    scores = {}
    rankings = ranked_nodes(data, [question["query"] for question in questions], embedding)
    for name, ranking in rankings.items():
        scores[name] = np.array(list(map(document_scores, ranking, golds)))

    # All questions.
    without_evidence = 0 if size else LOCOMO_WITHOUT_EVIDENCE
    question_count = len(questions) + without_evidence
    rows = []
    for name, values in scores.items():
        means = values.sum(axis=0) / question_count
        rows.append([name, *(f"{mean:.3f}" for mean in means)])
    points = {name: 100 * values for name, values in scores.items()}
    rows.append([f"{OURS} less {STOCK}, points", *difference_cells(points)])
    header = ["", *(f"recall@{depth}" for depth in LOCOMO_DEPTHS), "MRR"]

    # By category.
    categories = np.array([question["category"] for question in questions])
    category_rows: list[list[object]] = []
    for number, label in LOCOMO_CATEGORIES.items():
        chosen = categories == number
        cells = [f"{values[chosen, 0].mean():.3f}" for values in scores.values()]
        category_rows.append([label, int(chosen.sum()), *cells])
    return (
        f"{len(data.documents[''])} documents, {question_count:,} questions.\n\n"
        f"{markdown_table(header, rows)}\n\n"
        f"{markdown_table(['recall@5', 'questions', *scores], category_rows)}"
    )


# Anthropic's codebases


def codebases(embedding: RememberingEmbedding, size: int | None) -> str:
    """Return the table of Anthropic's code set."""
    data = datasets.codebases()
    questions = sample(data.questions, size)
    scores = {}
    rows: list[list[object]] = []
    rankings = ranked_nodes(data, [question.text for question in questions], embedding)
    for name, ranking in rankings.items():
        shares = []
        for question, nodes in zip(questions, ranking, strict=True):
            covered = [data.covers(node) for node in nodes]
            shares.append([recall_at(depth, covered, question.gold) for depth in CODEBASES_DEPTHS])
        scores[name] = 100 * np.array(shares)
        rows.append([name, *scores[name].mean(axis=0).tolist()])
    rows.append([f"{OURS} less {STOCK}", *difference_cells(scores)])
    header = ["", *(f"pass@{depth}" for depth in CODEBASES_DEPTHS)]
    return f"{len(questions)} questions, %.\n\n{markdown_table(header, rows)}"


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
