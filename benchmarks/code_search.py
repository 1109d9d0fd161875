"""Source files as code search finds them: nDCG@10 over files on the questions of ``code-search``.

    python benchmarks/code_search.py [--repositories flask click ...]

A repository is indexed with contexts by pattern. As in the benchmark that the questions are from, the ranking is of
chunks, and a file counts at its first chunk. Rows: the questions of a category, of a repository, and all.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from common import RememberingEmbedding, command_line, contextual_chunks, hybrid, machine, markdown_table
from datasets import DATA, ndcg, queries
from llama_index.core.schema import Document, QueryBundle

from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.retrieval.code import code_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual import ContextualFusionRetriever

TOP = 10


def repositories() -> list[str]:
    """Names of those that are asked about."""
    return sorted({row["collection"] for row in queries("code-search")})


def asked_of(repository: str) -> list[tuple[str, str, frozenset[str]]]:
    """Question, category and paths of the gold of a repository."""
    rows = [row for row in queries("code-search") if row["collection"] == repository]
    return [(row["query"], row["category"], frozenset(one["path"] for one in row["gold"])) for row in rows]


def retriever_of(repository: str, embedding: RememberingEmbedding, top_k: int = TOP) -> ContextualFusionRetriever:
    """The retriever over the source files of a repository that can be read as text."""
    folder, documents = DATA / "code-search" / "corpus" / repository, []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and code_record(Analyzer(), name, ""):
            text = path.read_bytes().decode("utf-8", "ignore")
            documents.append(Document(text=text, id_=name, metadata={"path": name}))
    return hybrid(contextual_chunks(documents, "pattern"), embedding, top_k)


def gain_of(found: Sequence[str], gold: frozenset[str]) -> float:
    """NDCG@10, where each item of the gold counts at its first place."""
    hits = [float(one in gold and one not in found[:place]) for place, one in enumerate(found)]
    return ndcg(hits, [1.0] * len(gold), TOP)


def main() -> None:
    """Read the command line."""
    embedding, scores = RememberingEmbedding(), defaultdict[str, list[float]](list)
    for name in command_line(__doc__, repositories=repositories()).repositories:
        retriever = retriever_of(name, embedding)
        for text, category, gold in asked_of(name):
            hits = retriever.retrieve(QueryBundle(text, embedding=embedding.get_query_embedding(text)))
            score = gain_of([str(hit.node.metadata["path"]) for hit in hits], gold)
            for part in (name, category, "all"):
                scores[part].append(score)
        print(f"{name}: {sum(scores[name]) / len(scores[name]):.3f}", flush=True)
    rows = [[part, len(of_part), f"{sum(of_part) / len(of_part):.3f}"] for part, of_part in scores.items()]
    print(f"{machine()}\n\n{markdown_table(['questions', 'number', 'nDCG@10'], rows)}")


if __name__ == "__main__":
    main()
