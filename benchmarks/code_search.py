"""Source files as code search finds them: nDCG@10 over files on the questions of ``code-search``.

    python benchmarks/code_search.py [--repositories flask click ...]

A repository is indexed with contexts by pattern. As in the benchmark that the questions are from, the ranking is of
chunks, and a file counts at its first chunk. Rows: the questions of a category, of a repository, and all.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from common import RememberingEmbedding, command_line, contextual_chunks, hybrid, machine, markdown_table
from datasets import code_search, ndcg
from llama_index.core.schema import QueryBundle

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from llama_index.core.schema import Document

    from llama_index_contextual import ContextualFusionRetriever

TOP = 10


def retriever_of(
    documents: Sequence[Document], embedding: RememberingEmbedding, top_k: int = TOP
) -> ContextualFusionRetriever:
    """The retriever over the source files of a repository."""
    return hybrid(contextual_chunks(documents, "pattern"), embedding, top_k)


def gain_of(found: Sequence[Hashable], gold: frozenset[Hashable]) -> float:
    """NDCG@10, where each item of the gold counts at its first place."""
    hits = [float(one in gold and one not in found[:place]) for place, one in enumerate(found)]
    return ndcg(hits, [1.0] * len(gold), TOP)


def main() -> None:
    """Read the command line."""
    embedding, scores, data = RememberingEmbedding(), defaultdict[str, list[float]](list), code_search()
    for name in command_line(__doc__, repositories=list(data.documents)).repositories:
        retriever = retriever_of(data.documents[name], embedding)
        for question in (one for one in data.questions if one.collection == name):
            bundle = QueryBundle(question.text, embedding=embedding.get_query_embedding(question.text))
            score = gain_of([hit.node.ref_doc_id for hit in retriever.retrieve(bundle)], question.gold)
            for part in (name, question.form, "all"):
                scores[part].append(score)
        print(f"{name}: {sum(scores[name]) / len(scores[name]):.3f}", flush=True)
    rows = [[part, len(of_part), f"{sum(of_part) / len(of_part):.3f}"] for part, of_part in scores.items()]
    print(f"{machine()}\n\n{markdown_table(['questions', 'number', 'nDCG@10'], rows)}")


if __name__ == "__main__":
    main()
