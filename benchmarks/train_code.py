"""Train the numbers of source files, ``code.json``, and measure them on repositories that were left out.

    python benchmarks/train_code.py [--repositories flask click ...] [--write]

The signals of :mod:`llama_index_contextual.retrieval.code` are added to learned fusion as it is. Their weights alone
are trained: a listwise softmax over the best chunk of each file. The questions are those of ``code-search`` and, with a
weight of .3, those of ``codebases``, whose gold are chunks, so that a file that is found does not lose the chunk that
answers. The row of a repository comes from weights that were trained without it.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from code_search import ndcg, repository
from common import RememberingEmbedding, machine, markdown_table
from datasets import DATA, codebases
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import MetadataMode, QueryBundle

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    ContextualVectorRetriever,
    HeadingAwareMarkdownNodeParser,
)
from llama_index_contextual.retrieval import code
from llama_index_contextual.retrieval.signals import repeats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.schema import BaseNode

SIGNALS: Final = ("file name", "defines", "exact", "file vector", "file share", "test")
POOL: Final = 100
STEPS, RATE, SHRINK, ROUNDS = 400, 0.05, 0.003, 3  # Adam; the best chunk of each file is chosen anew in each round
OF_CHUNKS: Final = 0.3  # weight of the questions of codebases


@dataclass
class Pool:
    """The candidates of a question: the sum of the other signals, those of source files, paths, and which are right."""

    text: str
    paths: list[str]
    base: Any
    signals: Any
    right: Any
    gold: frozenset[str]
    by_file: bool


def pools(nodes: list[BaseNode], questions: Sequence[tuple[str, frozenset[str]]], *, by_file: bool) -> list[Pool]:
    """The pools of questions, each with the paths or the ids that are right."""
    embedding, found = RememberingEmbedding(), []
    vectors = embedding.get_text_embedding_batch([node.get_content(MetadataMode.EMBED) for node in nodes])
    for node, vector in zip(nodes, vectors, strict=True):
        node.embedding = vector
    index = VectorStoreIndex(nodes, embed_model=embedding)
    arms: list[Any] = [ContextualVectorRetriever(index), ContextualBM25Retriever(nodes)]
    retriever = ContextualFusionRetriever(arms, similarity_top_k=POOL)
    for text, gold in questions:
        hits = retriever.explain(QueryBundle(text, embedding=embedding.get_query_embedding(text))).hits
        parts = [{one.arm: one for one in hit.fused.credits} if hit.fused else {} for hit in hits]
        signals = np.array([[one[name].score if name in one else 0.0 for name in SIGNALS] for one in parts])
        others = [sum(c.credit for name, c in one.items() if name not in (*SIGNALS, "further chunk")) for one in parts]
        paths = [str(hit.node.node.metadata["path"]) for hit in hits]
        right = [(path if by_file else hit.node_id) in gold for path, hit in zip(paths, hits, strict=True)]
        found.append(Pool(text, paths, np.array(others), signals, np.array(right), gold, by_file))
    return found


def train(every: Sequence[Pool]) -> Any:
    """Weights of the signals."""
    weights = np.zeros(len(SIGNALS))
    counts = {kind: sum(one.by_file is kind for one in every) for kind in (True, False)}
    for _ in range(ROUNDS):
        chosen = [(_best_of_files(one, weights) if one.by_file else np.arange(len(one.base)), one) for one in every]
        able = [(rows, one) for rows, one in chosen if one.right[rows].any()]
        first = second = np.zeros(len(SIGNALS))
        for step in range(1, STEPS + 1):
            slope = SHRINK * weights
            for rows, one in able:
                scores = one.base[rows] + one.signals[rows] @ weights
                powers = np.exp(scores - scores.max())
                wanted = powers * one.right[rows]
                share = (1.0 if one.by_file else OF_CHUNKS) / counts[one.by_file]
                slope = slope + share * (powers / powers.sum() - wanted / wanted.sum()) @ one.signals[rows]
            first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
            weights = weights - RATE * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-9)
    return weights


def _best_of_files(one: Pool, weights: Any) -> Any:
    rows = dict[str, int]()
    for row in np.argsort(-(one.base + one.signals @ weights), kind="stable").tolist():
        rows.setdefault(one.paths[row], row)
    return np.array([*rows.values()])


def measure(one: Pool, weights: Any) -> float:
    """NDCG@10 of a question with some weights."""
    scores = one.base + one.signals @ weights
    order = [str(row) for row in np.argsort(-scores, kind="stable")]
    lost = repeats({row: one.paths[int(row)] for row in order}, order, one.text)
    order.sort(key=lambda row: -(scores[int(row)] - lost.get(row, 0.0)))
    return ndcg([one.paths[int(row)] for row in order], one.gold)


def main() -> None:
    """Train, report, and write where that is asked for."""
    rows = list(map(json.loads, (DATA / "code-search" / "queries.jsonl").read_text("utf-8").splitlines()))
    names = sorted({row["collection"] for row in rows})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repositories", nargs="+", choices=names, default=names)
    parser.add_argument("--write", action="store_true", help="replace the numbers of the package")
    options = parser.parse_args()
    found = defaultdict[str, list[Pool]](list)
    for name in options.repositories:
        documents = repository(name)
        chunks = HeadingAwareMarkdownNodeParser(chunk_size=256)(documents)
        nodes = list(ContextualNodePostprocessor(context="pattern", documents=documents)(chunks))
        asked = [(r["query"], frozenset(g["path"] for g in r["gold"])) for r in rows if r["collection"] == name]
        found[name] = pools(nodes, asked, by_file=True)
    data = codebases()
    given = [node for document in data.documents[""] for node in data.chunks[document.doc_id]]
    nodes = list(ContextualNodePostprocessor(context="pattern", documents=data.documents[""])(given))
    of_chunks = pools(nodes, [(one.text, frozenset(map(str, one.gold))) for one in data.questions], by_file=False)
    table: list[list[object]] = []
    for name in options.repositories:
        others = [one for other in options.repositories if other != name for one in found[other]]
        weights = train([*others, *of_chunks])
        scores = [measure(one, weights) for one in found[name]]
        table.append([name, len(scores), f"{np.mean(scores):.3f}"])
        print(table[-1], flush=True)
    weights = train([*(one for name in options.repositories for one in found[name]), *of_chunks])
    content = json.dumps({"weights": dict(zip(SIGNALS, weights.round(2).tolist(), strict=True))}, indent=2)
    print(f"{machine()}\n\n{markdown_table(['left out', 'questions', 'nDCG@10'], table)}\n\n{content}")
    if options.write:
        Path(code.__file__).with_name("code.json").write_text(content + "\n", "utf-8")


if __name__ == "__main__":
    main()
