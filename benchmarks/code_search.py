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
from llama_index_contextual.retrieval.signals import is_code

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llama_index.core.schema import BaseNode

TOP = 10


def repository(name: str) -> list[Document]:
    """The source files of a repository that can be read as text."""
    folder, documents = DATA / "code-search" / "corpus" / name, []
    for path in sorted(folder.rglob("*")):
        own = path.relative_to(folder).as_posix()
        if path.is_file() and is_code(own):
            text = path.read_bytes().decode("utf-8", "ignore")
            documents.append(Document(text=text, id_=own, metadata={"path": own}))
    return documents


def ndcg(found: Sequence[str], gold: frozenset[str]) -> float:
    """NDCG@10, where each file of the gold counts at its first place."""
    ideal = sum(1 / math.log2(place + 2) for place in range(min(len(gold), TOP)))
    firsts = [place for place, one in enumerate(found[:TOP]) if one in gold and one not in found[:place]]
    return sum(1 / math.log2(place + 2) for place in firsts) / ideal


def answers(name: str, questions: Sequence[dict[str, Any]], embedding: RememberingEmbedding) -> Iterator[float]:
    """NDCG@10 of each question to a repository."""
    documents = repository(name)
    chunks = HeadingAwareMarkdownNodeParser(chunk_size=256)(documents)
    nodes: list[BaseNode] = ContextualNodePostprocessor(context="pattern", documents=documents)(chunks)
    vectors = embedding.get_text_embedding_batch([node.get_content(MetadataMode.EMBED) for node in nodes])
    for node, vector in zip(nodes, vectors, strict=True):
        node.embedding = vector
    arms: list[Any] = [
        ContextualVectorRetriever(VectorStoreIndex(nodes, embed_model=embedding)),
        ContextualBM25Retriever(nodes),
    ]
    retriever = ContextualFusionRetriever(arms, similarity_top_k=TOP)
    for question in questions:
        bundle = QueryBundle(question["query"], embedding=embedding.get_query_embedding(question["query"]))
        found = [str(hit.node.metadata["path"]) for hit in retriever.retrieve(bundle)]
        yield ndcg(found, frozenset(one["path"] for one in question["gold"]))


def main() -> None:
    """Read the command line."""
    lines = (DATA / "code-search" / "queries.jsonl").read_text("utf-8").splitlines()
    questions = defaultdict[str, list[dict[str, Any]]](list)
    for row in map(json.loads, lines):
        questions[row["collection"]].append(row)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repositories", nargs="+", choices=sorted(questions), default=sorted(questions))
    embedding, scores = RememberingEmbedding(), defaultdict[str, list[float]](list)
    for name in parser.parse_args().repositories:
        asked = questions[name]
        for question, score in zip(asked, answers(name, asked, embedding), strict=True):
            for part in (name, question["category"], "all"):
                scores[part].append(score)
        print(f"{name}: {sum(scores[name]) / len(scores[name]):.3f}", flush=True)
    rows = [[part, len(of_part), f"{sum(of_part) / len(of_part):.3f}"] for part, of_part in scores.items()]
    print(f"{machine()}\n")
    print(markdown_table(["questions", "number", "nDCG@10"], rows))


if __name__ == "__main__":
    main()
