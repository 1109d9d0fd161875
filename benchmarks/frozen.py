"""Order, ids and scores of the first ten hits on frozen chunks, and how far two such files differ.

    python benchmarks/frozen.py write FILE [--frozen FOLDER] [--folder-index]
    python benchmarks/frozen.py compare OLD NEW

``write`` asks 200 questions each of three sets: ``codebases``, 300 pages of ``kubernetes-docs`` and two conversations
of ``locomo-notes``; these two also in the mode for messages, and as a digest. Chunks, contexts and all vectors lie in
``--frozen`` (made when it is empty), so a difference comes from retrieval alone. By default the plug-in's retrievers
are asked over a ``VectorStoreIndex``, with ``--folder-index`` those of a ``ContextualIndex``.

``compare`` prints by set: the share of questions with the same ids in the same order, where hits with equal scores may
stand in any order; the share with the same ids; the largest difference of scores; recall@5 and mean reciprocal rank of
both.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from common import CACHE, RememberingEmbedding, markdown_table
from datasets import DataSet, codebases, first_collections, kubernetes_docs, locomo_notes
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import BaseNode, MetadataMode, QueryBundle, TextNode
from shipped import shipped_index

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    ContextualVectorRetriever,
    HeadingAwareMarkdownNodeParser,
    MemoryContext,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOP = 10
QUESTIONS = 200
NOW = datetime(2024, 1, 1, tzinfo=timezone.utc)  # ages in digests must not depend on the day of a run
TIE = 1e-9
SETS: dict[str, Callable[[], DataSet]] = {
    "codebases": codebases,
    "kubernetes-docs": lambda: kubernetes_docs(pages=300),
    "locomo-notes": lambda: first_collections(locomo_notes(), 2),
}
MESSAGES = ("locomo-notes",)  # sets that are also asked as messages


def frozen_nodes(folder: Path, data: DataSet, collection: str, embedding: RememberingEmbedding) -> list[BaseNode]:
    """Chunks with contexts and vectors, from a file that is made when it is missing."""
    file = folder / f"{data.name}-{collection or 'all'}.jsonl"
    if not file.exists():
        documents = data.documents[collection]
        chunks: list[BaseNode] = [node for document in documents for node in data.chunks.get(document.doc_id, [])]
        chunks = chunks or list(HeadingAwareMarkdownNodeParser(chunk_size=256)(documents))
        context = "pattern" if data.chunks else "headings"
        made = ContextualNodePostprocessor(context=context, documents=documents)(chunks)
        vectors = embedding.get_text_embedding_batch([node.get_content(MetadataMode.EMBED) for node in made])
        lines = [
            json.dumps({"node": node.to_dict(), "vector": vector}) for node, vector in zip(made, vectors, strict=True)
        ]
        file.write_text("\n".join(lines), "utf-8")
    rows = [json.loads(line) for line in file.read_text("utf-8").split("\n")]
    nodes: list[BaseNode] = []
    for row in rows:
        node = TextNode.from_dict(row["node"])
        node.embedding = row["vector"]
        nodes.append(node)
    return nodes


def question_vectors(folder: Path, texts: Sequence[str], embedding: RememberingEmbedding) -> dict[str, list[float]]:
    """Vectors of questions, from a file that is extended where some are missing."""
    file = folder / "questions.json"
    known: dict[str, list[float]] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    missing = [text for text in dict.fromkeys(texts) if text not in known]
    if missing:
        known |= {text: embedding.get_query_embedding(text) for text in missing}
        file.write_text(json.dumps(known), "utf-8")
    return known


def retriever_of(
    nodes: list[BaseNode], data: DataSet, collection: str, embedding: RememberingEmbedding, *, folder_index: bool
) -> ContextualFusionRetriever:
    """The hybrid retriever over frozen chunks."""
    if folder_index:
        index = shipped_index(nodes, data.documents[collection], embedding)
        retriever: ContextualFusionRetriever = index.as_retriever(TOP)
        retriever.__dict__["_index_of_the_benchmark"] = index  # lives as long as the retriever
        return retriever
    vectors = VectorStoreIndex(nodes, embed_model=embedding)
    arms = [ContextualVectorRetriever(vectors), ContextualBM25Retriever(nodes)]
    return ContextualFusionRetriever(arms, similarity_top_k=TOP)


def answers(folder: Path, *, folder_index: bool) -> dict[str, list[dict[str, Any]]]:
    """For each set and mode the hits of each question: ids, scores, and the gold that each covers."""
    folder.mkdir(parents=True, exist_ok=True)
    embedding, found = RememberingEmbedding(), dict[str, list[dict[str, Any]]]()
    for name, make in SETS.items():
        data = make()
        asked = data.questions[:: max(1, len(data.questions) // QUESTIONS)][:QUESTIONS]
        vectors = question_vectors(folder, [question.text for question in asked], embedding)
        for collection in data.documents:
            nodes = frozen_nodes(folder, data, collection, embedding)
            by_id = {node.node_id: node for node in nodes}
            learned = retriever_of(nodes, data, collection, embedding, folder_index=folder_index)
            questions = [question for question in asked if question.collection == collection]
            modes: list[tuple[str, Any]] = [(name, learned)]
            if name in MESSAGES:
                message = ContextualFusionRetriever(learned.retrievers, mode="message", similarity_top_k=TOP)
                modes.append((f"{name}, message", message))
            for title, retriever in modes:
                for question in questions:
                    hits = retriever.retrieve(QueryBundle(question.text, embedding=vectors[question.text]))
                    places = [
                        (rank, len(question.gold & data.covers(by_id[hit.node.node_id])) / len(question.gold))
                        for rank, hit in enumerate(hits, start=1)
                    ]
                    row = {
                        "question": question.text,
                        "hits": [(hit.node.node_id, hit.score) for hit in hits],
                        "gold": places,
                    }
                    found.setdefault(title, []).append(row)
            if name in MESSAGES:
                memory = MemoryContext(learned)
                for question in questions[:50]:
                    digest = memory.get(question.text, now=NOW)
                    hits_of = [(entry.id, entry.score) for entry in digest.entries]
                    row = {"question": question.text, "hits": hits_of, "gold": [], "markdown": digest.markdown}
                    found.setdefault(f"{name}, digest", []).append(row)
    return found


def is_same_order(old: Sequence[Sequence[Any]], new: Sequence[Sequence[Any]]) -> bool:
    """Whether two lists of ids and scores differ by the order of equal scores at most."""
    if len(old) != len(new):
        return False
    scores = {one: score or 0.0 for one, score in old}
    last = min(scores.values(), default=0.0)
    pairs = zip(old, new, strict=True)
    return all(a[0] == b[0] or abs((a[1] or 0.0) - scores.get(b[0], last)) <= TIE for a, b in pairs)


def figures(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Recall@5 and mean reciprocal rank, in per cent."""
    recalls = [min(1.0, sum(share for rank, share in row["gold"] if rank <= 5)) for row in rows]
    ranks = [next((1 / rank for rank, share in row["gold"] if share), 0.0) for row in rows]
    return 100 * float(np.mean(recalls)), 100 * float(np.mean(ranks))


def compare(old_file: Path, new_file: Path, *, show: int) -> None:
    """Print how far two files differ."""
    old, new = (json.loads(file.read_text("utf-8")) for file in (old_file, new_file))
    table = []
    for name, rows in old.items():
        others = {row["question"]: row for row in new[name]}
        pairs = [(row, others[row["question"]]) for row in rows]
        same = [is_same_order(row["hits"], other["hits"]) for row, other in pairs]
        ids = [{one for one, _ in row["hits"]} == {one for one, _ in other["hits"]} for row, other in pairs]
        gaps = [
            abs((score or 0.0) - (dict(other["hits"]).get(one, score) or 0.0))
            for row, other in pairs
            for one, score in row["hits"]
        ]
        before, after = figures(rows), figures([other for _, other in pairs])
        table.append(
            [
                name,
                len(rows),
                100 * float(np.mean(same)),
                100 * float(np.mean(ids)),
                f"{max(gaps, default=0.0):.2g}",
                *(f"{a:.1f} → {b:.1f}" for a, b in zip(before, after, strict=True)),
            ]
        )
        for (row, other), equal in [*zip(pairs, same, strict=True)]:
            if not equal and show:
                show -= 1
                sys.stdout.write(f"{row['question']}\n  {row['hits'][:4]}\n  {other['hits'][:4]}\n")
    header = ["set", "questions", "same order", "same ids", "scores differ by", "recall@5", "MRR"]
    sys.stdout.write(markdown_table(header, table) + "\n")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write")
    write.add_argument("file", type=Path)
    write.add_argument("--frozen", type=Path, default=CACHE / "frozen")
    write.add_argument("--folder-index", action="store_true")
    two = commands.add_parser("compare")
    two.add_argument("old", type=Path)
    two.add_argument("new", type=Path)
    two.add_argument("--show", type=int, default=0, help="print so many questions whose order differs")
    args = parser.parse_args()
    if args.command == "write":
        args.file.write_text(json.dumps(answers(args.frozen, folder_index=args.folder_index)), "utf-8")
    else:
        compare(args.old, args.new, show=args.show)


if __name__ == "__main__":
    main()
