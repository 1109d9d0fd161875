"""Order, ids and scores of the first ten hits on frozen chunks, and how far two such files differ.

    python benchmarks/frozen.py write FILE [--folder-index]
    python benchmarks/frozen.py compare OLD NEW

``write`` asks 200 questions each of three sets, one of them also in the mode for messages and as a
digest. Chunks, contexts and vectors lie in a folder of the cache (made when it is empty), so a
difference comes from retrieval alone: of the plug-in's retrievers over a ``VectorStoreIndex``, or
with ``--folder-index`` of a ``ContextualIndex``. ``compare`` prints by set the share of questions
with the same ids in the same order, where hits with equal scores may stand in any order; that with
the same ids; the largest difference of scores; recall@5 and mean reciprocal rank.
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
    from collections.abc import Callable, Sequence

FROZEN = CACHE / "frozen-nodes"
TOP = 10
QUESTIONS = 200
NOW = datetime(
    2024, 1, 1, tzinfo=timezone.utc
)  # ages in digests must not depend on the day of a run
TIE = 1e-9
SETS: dict[str, Callable[[], DataSet]] = {
    "codebases": codebases,
    "kubernetes-docs": lambda: kubernetes_docs(pages=300),
    "locomo-notes": lambda: first_collections(locomo_notes(), 2),
}
MESSAGES = ("locomo-notes",)  # sets that are also asked as messages


def frozen_nodes(data: DataSet, collection: str, embedding: RememberingEmbedding) -> list[BaseNode]:
    """Return chunks with contexts and vectors, from a file that is made when it is missing."""
    file = FROZEN / f"{data.name}-{collection or 'all'}.jsonl"
    if not file.exists():
        documents = data.documents[collection]
        cut = [node for document in documents for node in data.chunks.get(document.doc_id, [])]
        made = (
            ContextualNodePostprocessor("pattern", documents=documents)(cut)
            if cut
            else contextual_chunks(documents)
        )
        vectors = embedding.get_text_embedding_batch(
            [node.get_content(MetadataMode.EMBED) for node in made]
        )
        for node, vector in zip(made, vectors, strict=True):
            node.embedding = vector
        file.write_text("\n".join(node.to_json() for node in made), "utf-8")
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


def answers(*, folder_index: bool) -> dict[str, list[dict[str, Any]]]:
    """Return the hits of each question for each set and mode.

    A hit has an id, a score, and the gold that it covers.
    """
    FROZEN.mkdir(parents=True, exist_ok=True)
    embedding, answers_by_set = RememberingEmbedding(), defaultdict[str, list[dict[str, Any]]](list)
    for name, make in SETS.items():
        data = make()
        asked = data.questions[:: max(1, len(data.questions) // QUESTIONS)][:QUESTIONS]
        for collection, documents in data.documents.items():
            nodes = frozen_nodes(data, collection, embedding)
            covered = {node.node_id: data.covers(node) for node in nodes}
            learned = retriever_of(nodes, documents, embedding, folder_index=folder_index)
            questions = [question for question in asked if question.collection == collection]
            modes: dict[str, Any] = {name: learned}
            if name in MESSAGES:
                modes[f"{name}, message"] = ContextualFusionRetriever(
                    learned.retrievers, mode="message", similarity_top_k=TOP
                )
            for title, retriever in modes.items():
                for question in questions:
                    hits = [
                        (hit.node.node_id, hit.score) for hit in retriever.retrieve(question.text)
                    ]
                    gold = [
                        len(question.gold & covered[node_id]) / len(question.gold)
                        for node_id, _ in hits
                    ]
                    row = {
                        "question": question.text,
                        "hits": hits,
                        "gold": list(enumerate(gold, start=1)),
                    }
                    answers_by_set[title].append(row)
            if name in MESSAGES:
                memory = MemoryContext(learned)
                for question in questions[:50]:
                    digest = memory.get(question.text, now=NOW)
                    cited = [(entry.id, entry.score) for entry in digest.entries]
                    row = {
                        "question": question.text,
                        "hits": cited,
                        "gold": [],
                        "markdown": digest.markdown,
                    }
                    answers_by_set[f"{name}, digest"].append(row)
    return answers_by_set


def is_same_order(old: Sequence[Sequence[Any]], new: Sequence[Sequence[Any]]) -> bool:
    """Return whether two lists of ids and scores differ by the order of equal scores at most."""
    if len(old) != len(new):
        return False
    scores = {node_id: score or 0.0 for node_id, score in old}
    last = min(scores.values(), default=0.0)
    pairs = zip(old, new, strict=True)
    return all(a[0] == b[0] or abs((a[1] or 0.0) - scores.get(b[0], last)) <= TIE for a, b in pairs)


def figures(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return recall@5 and mean reciprocal rank, in per cent."""
    recalls = [min(1.0, sum(share for rank, share in row["gold"] if rank <= 5)) for row in rows]
    ranks = [next((1 / rank for rank, share in row["gold"] if share), 0.0) for row in rows]
    return 100 * float(np.mean(recalls)), 100 * float(np.mean(ranks))


def compare(old: dict[str, list[dict[str, Any]]], new: dict[str, list[dict[str, Any]]]) -> str:
    """Return a table of how far the answers of two states differ."""
    table: list[list[object]] = []
    for name, rows in old.items():
        new_rows = {row["question"]: row for row in new[name]}
        pairs = [(row, new_rows[row["question"]]) for row in rows]
        same = [is_same_order(row["hits"], other["hits"]) for row, other in pairs]
        ids = [
            {node_id for node_id, _ in row["hits"]} == {node_id for node_id, _ in other["hits"]}
            for row, other in pairs
        ]
        gaps = [
            abs((score or 0.0) - (dict(other["hits"]).get(node_id, score) or 0.0))
            for row, other in pairs
            for node_id, score in row["hits"]
        ]
        figure_pairs = zip(figures(rows), figures([other for _, other in pairs]), strict=True)
        shares = [100 * float(np.mean(same)), 100 * float(np.mean(ids))]
        changes = [f"{before:.1f} → {after:.1f}" for before, after in figure_pairs]
        table.append([name, len(rows), *shares, f"{max(gaps, default=0.0):.2g}", *changes])
    header = ["set", "questions", "same order", "same ids", "scores differ by", "recall@5", "MRR"]
    return markdown_table(header, table)


def main() -> None:
    """Read the command line."""
    match sys.argv[1:]:
        case ["write", file, *options] if set(options) <= {"--folder-index"}:
            Path(file).write_text(json.dumps(answers(folder_index=bool(options))), "utf-8")
        case ["compare", old, new]:
            print(compare(*(json.loads(Path(file).read_text("utf-8")) for file in (old, new))))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
