"""Source files as code search finds them: nDCG@10 over files on the questions of ``code-search``.

    python benchmarks/code_search.py [--repositories flask click ...]

A repository is an index of its own, with contexts by pattern, asked through ``ContextualIndex``; the stock hybrid ranks
the same chunks without contexts. As in the benchmark that the questions are from, the ranking is of chunks, and a file
counts at its first chunk. Rows: the questions of a repository, of a category, and all. Differences are in hundredths.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
from common import RememberingEmbedding, command_line, intervals, machine, markdown_table
from datasets import code_search, ndcg
from llama_index.core.schema import QueryBundle
from retrieval import Bench, Row

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

TOP = 10


def gain_of(found: Sequence[Hashable], gold: frozenset[Hashable]) -> float:
    """NDCG@10, where each item of the gold counts at its first place."""
    hits = [float(one in gold and one not in found[:place]) for place, one in enumerate(found)]
    return ndcg(hits, [1.0] * len(gold), TOP)


def main() -> None:
    """Read the command line."""
    embedding, data = RememberingEmbedding(), code_search()
    scores = defaultdict[str, list[list[float]]](list)
    for name in command_line(__doc__, repositories=list(data.documents)).repositories:
        bench = Bench(data, name, embedding)
        ways = [
            bench.retriever(Row("", "off", "off", is_stock=True)),
            bench.index(data.context).as_retriever(TOP),
        ]
        for question in (one for one in data.questions if one.collection == name):
            bundle = QueryBundle(
                question.text, embedding=embedding.get_query_embedding(question.text)
            )
            found = [[hit.node.ref_doc_id for hit in way.retrieve(bundle)[:TOP]] for way in ways]
            for part in (name, question.form, "all"):
                scores[part].append([gain_of(files, question.gold) for files in found])
    rows = []
    for part, values in scores.items():
        stock, ours = np.array(values).T
        means = [f"{one.mean():.3f}" for one in (stock, ours)]
        rows.append([part, len(ours), *means, *intervals(100 * (ours - stock)[:, None])])
    print(
        f"{machine()}\n\n{markdown_table(['questions', 'number', 'stock hybrid', 'ours', 'ours less stock'], rows)}"
    )


if __name__ == "__main__":
    main()
