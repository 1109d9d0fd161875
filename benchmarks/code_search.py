"""Source files as code search finds them: nDCG@10 over files on the questions of ``code-search``.

    python benchmarks/code_search.py [--repositories flask click ...]

A repository is indexed with contexts by pattern. As in the benchmark that the questions are from, the ranking is of
chunks, and a file counts at its first chunk. Rows: the questions of a category, of a repository, and all.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from common import RememberingEmbedding, machine, markdown_table
from datasets import DATA
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import Document, MetadataMode, QueryBundle

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    ContextualVectorRetriever,
    HeadingAwareMarkdownNodeParser,
)
from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.retrieval.signals import code_record

if TYPE_CHECKING:
    from collections.abc import Sequence

TOP = 10


def asked_of(repository: str = "") -> list[Any]:
    """Question, category and paths of the gold of a repository; without one the repository of each question."""
    rows = map(json.loads, (DATA / "code-search" / "queries.jsonl").read_text("utf-8").splitlines())
    if not repository:
        return [row["collection"] for row in rows]
    return [
        (row["query"], row["category"], frozenset(one["path"] for one in row["gold"]))
        for row in rows
        if row["collection"] == repository
    ]


def retriever_of(repository: str, embedding: RememberingEmbedding, top_k: int = TOP) -> ContextualFusionRetriever:
    """The retriever over the source files of a repository that can be read as text."""
    folder, documents = DATA / "code-search" / "corpus" / repository, []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and code_record(Analyzer(), name, ""):
            text = path.read_bytes().decode("utf-8", "ignore")
            documents.append(Document(text=text, id_=name, metadata={"path": name}))
    chunks = HeadingAwareMarkdownNodeParser(chunk_size=256)(documents)
    nodes = list(ContextualNodePostprocessor(context="pattern", documents=documents)(chunks))
    vectors = embedding.get_text_embedding_batch([node.get_content(MetadataMode.EMBED) for node in nodes])
    for node, vector in zip(nodes, vectors, strict=True):
        node.embedding = vector
    index = VectorStoreIndex(nodes, embed_model=embedding)
    arms = [ContextualVectorRetriever(index), ContextualBM25Retriever(nodes)]
    return ContextualFusionRetriever(arms, similarity_top_k=top_k)


def ndcg(found: Sequence[str], gold: frozenset[str]) -> float:
    """NDCG@10, where each item of the gold counts at its first place."""
    ideal = sum(1 / math.log2(place + 2) for place in range(min(len(gold), TOP)))
    firsts = [place for place, one in enumerate(found[:TOP]) if one in gold and one not in found[:place]]
    return sum(1 / math.log2(place + 2) for place in firsts) / ideal


def main() -> None:
    """Read the command line."""
    names = sorted({*asked_of()})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repositories", nargs="+", choices=names, default=names)
    embedding, scores = RememberingEmbedding(), defaultdict[str, list[float]](list)
    for name in parser.parse_args().repositories:
        retriever = retriever_of(name, embedding)
        for text, category, gold in asked_of(name):
            hits = retriever.retrieve(QueryBundle(text, embedding=embedding.get_query_embedding(text)))
            score = ndcg([str(hit.node.metadata["path"]) for hit in hits], gold)
            for part in (name, category, "all"):
                scores[part].append(score)
        print(f"{name}: {sum(scores[name]) / len(scores[name]):.3f}", flush=True)
    rows = [[part, len(of_part), f"{sum(of_part) / len(of_part):.3f}"] for part, of_part in scores.items()]
    print(f"{machine()}\n\n{markdown_table(['questions', 'number', 'nDCG@10'], rows)}")


if __name__ == "__main__":
    main()
