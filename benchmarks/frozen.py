"""Record the first ten hits on frozen chunks, and compare two such records.

    python benchmarks/frozen.py write FILE [--folder-index]
    python benchmarks/frozen.py compare OLD NEW

``write`` asks 200 questions of each of three sets, and of one of them also in the mode for messages
and for a digest. Chunks, contexts and vectors come from a folder of the cache, which is filled by
the first run, so a difference comes from retrieval alone: from the plug-in's retrievers over a
``VectorStoreIndex``, or with ``--folder-index`` from a ``ContextualIndex``. ``compare`` prints for
each set the share of questions with the same ids in the same order (hits with equal scores may have
any order), the share with the same ids, the largest difference of scores, recall@5 and mean
reciprocal rank.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from common import (
    CACHE,
    RememberingEmbedding,
    contextual_chunks,
    hybrid,
    markdown_table,
    shipped_index,
)
from datasets import DataSet, codebases, first_collections, kubernetes_docs, locomo_notes
from llama_index.core.schema import BaseNode, Document, MetadataMode, TextNode

from llama_index_contextual import (
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    MemoryContext,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from datasets import Question

    # A question with its "hits", as ids with scores, and its "gold", as ranks with shares.
    Row = dict[str, Any]
    Hits = Sequence[tuple[str, float | None]]

FROZEN = CACHE / "frozen-nodes"
TOP = 10
QUESTIONS = 200
NOW = datetime(2024, 1, 1, tzinfo=timezone.utc)  # digests must not depend on the day of a run
DIGESTS = 50
TIE = 1e-9
SETS: dict[str, Callable[[], DataSet]] = {
    "codebases": codebases,
    "kubernetes-docs": lambda: kubernetes_docs(pages=300),
    "locomo-notes": lambda: first_collections(locomo_notes(), 2),
}
MESSAGES = ("locomo-notes",)  # sets that are also asked as messages


def frozen_nodes(data: DataSet, collection: str, embedding: RememberingEmbedding) -> list[BaseNode]:
    """Return chunks with contexts and vectors, from a file that the first call writes."""
    file = FROZEN / f"{data.name}-{collection or 'all'}.jsonl"
    if not file.exists():
        documents = data.documents[collection]
        chunks = [node for document in documents for node in data.chunks.get(document.doc_id, [])]
        if chunks:
            nodes = ContextualNodePostprocessor("pattern", documents=documents)(chunks)
        else:
            nodes = contextual_chunks(documents)
        texts = [node.get_content(MetadataMode.EMBED) for node in nodes]
        vectors = embedding.get_text_embedding_batch(texts)
        for node, vector in zip(nodes, vectors, strict=True):
            node.embedding = vector
        file.write_text("\n".join(node.to_json() for node in nodes), "utf-8")
    return [TextNode.from_json(line) for line in file.read_text("utf-8").split("\n")]


def retriever_of(
    nodes: list[BaseNode],
    documents: list[Document],
    embedding: RememberingEmbedding,
    *,
    folder_index: bool,
) -> ContextualFusionRetriever:
    """Return the hybrid retriever over frozen chunks."""
    if not folder_index:
        return hybrid(nodes, embedding, TOP)
    index = shipped_index(nodes, documents, embedding)
    retriever: ContextualFusionRetriever = index.as_retriever(TOP)
    retriever.__dict__["_index_of_the_benchmark"] = index  # lives as long as the retriever
    return retriever


def answers(*, folder_index: bool) -> dict[str, list[Row]]:
    """Return a row for each question, by set and mode."""
    FROZEN.mkdir(parents=True, exist_ok=True)
    embedding = RememberingEmbedding()
    rows: dict[str, list[Row]] = defaultdict(list)
    for name, load in SETS.items():
        data = load()
        step = max(1, len(data.questions) // QUESTIONS)
        chosen = data.questions[::step][:QUESTIONS]
        for collection, documents in data.documents.items():
            nodes = frozen_nodes(data, collection, embedding)
            covered = {node.node_id: data.covers(node) for node in nodes}
            retriever = retriever_of(nodes, documents, embedding, folder_index=folder_index)
            questions = [question for question in chosen if question.collection == collection]
            rows[name] += [row_of(retriever, question, covered) for question in questions]
            if name in MESSAGES:
                by_message = ContextualFusionRetriever(
                    retriever.retrievers, mode="message", similarity_top_k=TOP
                )
                rows[f"{name}, message"] += [
                    row_of(by_message, question, covered) for question in questions
                ]
                memory = MemoryContext(retriever)
                rows[f"{name}, digest"] += [
                    digest_row(memory, question) for question in questions[:DIGESTS]
                ]
    return rows


def row_of(
    retriever: ContextualFusionRetriever,
    question: Question,
    covered: Mapping[str, frozenset[Any]],
) -> Row:
    """Return the hits of a question, and the share of its gold in each, by rank.

    Args:
        retriever: The retriever.
        question: The question.
        covered: The gold that each chunk covers, by id.
    """
    hits = [(hit.node.node_id, hit.score) for hit in retriever.retrieve(question.text)]
    shares = [len(question.gold & covered[node_id]) / len(question.gold) for node_id, _ in hits]
    return {"question": question.text, "hits": hits, "gold": list(enumerate(shares, start=1))}


def digest_row(memory: MemoryContext, question: Question) -> Row:
    """Return the entries of a digest, and its text."""
    digest = memory.get(question.text, now=NOW)
    entries = [(entry.id, entry.score) for entry in digest.entries]
    return {
        "question": question.text,
        "hits": entries,
        "gold": [],
        "markdown": digest.markdown,
    }


def is_same_order(old: Hits, new: Hits) -> bool:
    """Return whether two lists of hits differ at most by the order of equal scores."""
    if len(old) != len(new):
        return False
    old_scores = {node_id: score or 0.0 for node_id, score in old}
    lowest = min(old_scores.values(), default=0.0)
    for (old_id, old_score), (new_id, _) in zip(old, new, strict=True):
        gap = abs((old_score or 0.0) - old_scores.get(new_id, lowest))
        if old_id != new_id and gap > TIE:
            return False
    return True


def largest_gap(old: Hits, new: Hits) -> float:
    """Return the largest difference between the scores of the same hit."""
    new_scores = dict(new)
    gaps = [0.0]
    for node_id, score in old:
        new_score = new_scores.get(node_id, score)
        gaps.append(abs((score or 0.0) - (new_score or 0.0)))
    return max(gaps)


def figures(rows: Sequence[Row]) -> tuple[float, float]:
    """Return recall@5 and mean reciprocal rank, in percent."""
    recalls = []
    reciprocal_ranks = []
    for row in rows:
        recall = sum(share for rank, share in row["gold"] if rank <= 5)
        recalls.append(min(1.0, recall))
        gold_ranks = [rank for rank, share in row["gold"] if share]
        reciprocal_ranks.append(1 / min(gold_ranks) if gold_ranks else 0.0)
    return 100 * float(np.mean(recalls)), 100 * float(np.mean(reciprocal_ranks))


def compare(old: dict[str, list[Row]], new: dict[str, list[Row]]) -> str:
    """Return a table of how far two records differ."""
    table: list[list[object]] = []
    for name, old_rows in old.items():
        row_by_question = {row["question"]: row for row in new[name]}
        new_rows = [row_by_question[row["question"]] for row in old_rows]
        are_same = []
        have_same_ids = []
        gaps = []
        for old_row, new_row in zip(old_rows, new_rows, strict=True):
            old_hits = old_row["hits"]
            new_hits = new_row["hits"]
            are_same.append(is_same_order(old_hits, new_hits))
            have_same_ids.append(dict(old_hits).keys() == dict(new_hits).keys())
            gaps.append(largest_gap(old_hits, new_hits))
        shares = [100 * float(np.mean(flags)) for flags in (are_same, have_same_ids)]
        figure_pairs = zip(figures(old_rows), figures(new_rows), strict=True)
        changes = [f"{before:.1f} → {after:.1f}" for before, after in figure_pairs]
        table.append([name, len(old_rows), *shares, f"{max(gaps):.2g}", *changes])
    header = ["set", "questions", "same order", "same ids", "scores differ by", "recall@5", "MRR"]
    return markdown_table(header, table)


def main() -> None:
    """Write or compare records, as the command line says."""
    match sys.argv[1:]:
        case ["write", file, *options] if set(options) <= {"--folder-index"}:
            Path(file).write_text(json.dumps(answers(folder_index=bool(options))), "utf-8")
        case ["compare", old, new]:
            old_rows, new_rows = (json.loads(Path(file).read_text("utf-8")) for file in (old, new))
            print(compare(old_rows, new_rows))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
