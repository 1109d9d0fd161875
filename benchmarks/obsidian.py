"""A vault as it is: Obsidian's own help, and a published comparison of search tools over it.

    python benchmarks/obsidian.py [--embed-model local e5]

171 notes and 58 questions, six of them Russian. Each question has notes that answer it and, often, notes that answer a
part. A note counts where its first chunk ranks. nDCG gives a whole answer 1 and a part 0.5. The published figures are
of the same notes and questions, by the script of flowing-abyss/obsidian-hybrid-search (commit 398f27b), which asks for
ten notes. Nothing in this package was chosen by these questions.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile

import numpy as np
from common import machine, markdown_table
from datasets import DATA

from llama_index_contextual.app import ContextualIndex

NOTES, CHUNKS = 10, 60  # notes that count, and chunks that are asked for, so that they are of ten notes
PART = 0.5
PUBLISHED = (
    ("obsidian-hybrid-search", 0.733, 0.788, 0.724),
    ("the same with its reranker", 0.736, 0.780, 0.672),
    ("qmd, with 2.2 GB of models", 0.659, 0.665, 0.500),
)


def gain(values: list[float]) -> float:
    """Return the discounted gain of the first five."""
    return sum(value / math.log2(place + 2) for place, value in enumerate(values[:5]))


def measures(paths: list[str], whole: set[str], part: set[str]) -> tuple[float, float, float]:
    """Return nDCG@5, the reciprocal rank and whether the first note answers."""
    values = [1.0 if path in whole else PART * (path in part) for path in paths]
    best = sorted([1.0] * len(whole) + [PART] * len(part), reverse=True)
    rank = next((place for place, path in enumerate(paths, 1) if path in whole), math.inf)
    return gain(values) / gain(best), 1 / rank, float(rank == 1)


def main() -> None:
    """Index the vault with each embedding, ask all questions, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embed-model", nargs="+", default=["local", "e5"])
    given = parser.parse_args()
    folder = DATA / "obsidian-help"
    questions = [json.loads(line) for line in (folder / "queries.jsonl").read_text("utf-8").splitlines()]
    rows: list[tuple[object, ...]] = []
    for model in given.embed_model:
        with (
            tempfile.TemporaryDirectory() as storage,
            ContextualIndex.open(folder / "corpus", storage=storage, embed_model=model) as index,
        ):
            index.refresh()
            retriever = index.as_retriever(similarity_top_k=CHUNKS)
            results = []
            for question in questions:
                hits = retriever.retrieve(question["query"])
                paths = list(dict.fromkeys(hit.node.metadata["path"] for hit in hits))[:NOTES]
                whole, part = ({note["path"] for note in question[key]} for key in ("gold", "partial"))
                results.append(measures(paths, whole, part))
        rows.append((f"this package, `{model}`", *(f"{value:.3f}" for value in np.mean(results, axis=0))))
    rows += [(name, *(f"{value:.3f}" for value in values)) for name, *values in PUBLISHED]
    table = markdown_table(["", "nDCG@5", "MRR", "Hit@1"], rows)
    print(f"`python benchmarks/obsidian.py`; {machine()}\n\n{table}\n")


if __name__ == "__main__":
    main()
