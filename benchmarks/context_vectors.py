"""Where contexts should stand in vectors: in all chunks, in those that lack their headings' words, in a second vector.

    python benchmarks/context_vectors.py [--sets NAME ...] [--out FILE]

Contexts help questions that need them and cost a little elsewhere, and what they cost comes from the vector arm. Each
row has the same keyword arm, with contexts, and another vector arm. Failures avoided are against text alone in both
arms, as in ``retrieval.py``, for questions that need context (by the rule of the words) and for the others.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from common import RememberingEmbedding, machine, markdown_table
from context_needed import folder_bench, make_questions
from datasets import DATA, DataSet, Question, codebases, course_lessons, locomo_notes
from llama_index.core.schema import BaseNode, QueryBundle
from retrieval import POOL, Bench, Row

from llama_index_contextual.app.evaluation import recall_at
from llama_index_contextual.app.evaluation.comparison import signed
from llama_index_contextual.app.evaluation.metrics import failures_avoided
from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.metadata import CONTEXT, PATH, heading_titles
from llama_index_contextual.retrieval import ContextualFusionRetriever

if TYPE_CHECKING:
    from collections.abc import Callable


def look_alikes() -> DataSet:
    """FastAPI's pages and 200 questions of ``context_needed.py``, which need context by their making; gold: a chunk."""
    bench = folder_bench(DATA / "markdown" / "fastapi" / "en", RememberingEmbedding())
    questions = [Question(one.text, frozenset({one.gold})) for one in make_questions(bench, 200)]
    return replace(bench.data, name="look-alikes", questions=questions, covers=lambda node: frozenset({node.node_id}))


SETS: Final[dict[str, Callable[[], DataSet]]] = {
    "codebases": codebases,
    "locomo-notes": locomo_notes,
    "course-lessons": course_lessons,
    "look-alikes": look_alikes,
}
EARLY: Final = ("course-lessons", "look-alikes")  # measured at 1, 3 and 5 chunks
ROWS: Final = {
    "context in all vectors": ("own",),
    "text alone in vectors": ("off",),
    "context where the chunk lacks a rare word of its path and headings": ("lacks one",),
    "context where the chunk lacks all of them": ("lacks all",),
    "the nearest heading alone": ("nearest",),
    "two vectors, half each": ("own", "off"),
}


class Variants(Bench):
    """A collection whose chunks have contexts in some vectors only."""

    def _nodes(self, context: str, *, lexical: bool = True) -> list[BaseNode]:
        kind = "pattern" if self.data.chunks else "headings"
        if context == "own":
            return super()._nodes(kind, lexical=lexical)
        if context not in {"lacks one", "lacks all", "nearest"}:
            return super()._nodes(context, lexical=lexical)
        nodes = super()._nodes(kind, lexical=lexical)
        lacks = _lacking(nodes, every=context == "lacks all")
        for node in nodes:
            if context == "nearest":
                titles = heading_titles(node.metadata) or [str(node.metadata.get(PATH, ""))]
                node.metadata[CONTEXT] = titles[-1]
            elif not lacks[node.node_id]:
                node.excluded_embed_metadata_keys = [*node.excluded_embed_metadata_keys, CONTEXT]
        return nodes


def _lacking(nodes: list[BaseNode], *, every: bool) -> dict[str, bool]:
    """Whether a chunk's text lacks a rare word (one in ten chunks has it at most) of its path and headings."""
    analyzer = Analyzer()
    texts = {node.node_id: set(analyzer.tokens(node.get_content())) for node in nodes}
    places = {
        node.node_id: set(analyzer.tokens(" ".join([str(node.metadata.get(PATH, "")), *heading_titles(node.metadata)])))
        for node in nodes
    }
    counts: dict[str, int] = {}
    for key, words in texts.items():
        for word in words | places[key]:
            counts[word] = counts.get(word, 0) + 1
    rare = {key: {word for word in words if counts[word] < len(nodes) / 10} for key, words in places.items()}
    return {key: not (words & texts[key]) if every else bool(words - texts[key]) for key, words in rare.items()}


def recalls(data: DataSet, benches: dict[str, Variants], dense: tuple[str, ...], sparse: str, vectors: Any) -> Any:
    """Recall at three depths of every question."""
    depths = (1, 3, 5) if data.name in EARLY else (5, 10, 20)
    retrievers = {}
    for name, bench in benches.items():
        arms = [bench.retriever(Row("", dense=one)) for one in dense]
        retrievers[name] = ContextualFusionRetriever(
            [*arms, bench.retriever(Row("", sparse=sparse))], mode="learned", similarity_top_k=20, candidate_pool=POOL
        )
    found = []
    for question in data.questions:
        bundle = QueryBundle(question.text, embedding=vectors[question.text])
        hits = [data.covers(hit.node) for hit in retrievers[question.collection].retrieve(bundle)]
        found.append([recall_at(k, hits, question.gold) for k in depths])
    return np.array(found)


def main() -> None:
    """Measure the sets that were asked for and print a table each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--out", type=Path, help="write the tables to this file too")
    options = parser.parse_args()
    embedding = RememberingEmbedding()
    parts = [machine()]
    for name in options.sets:
        started = time.monotonic()
        data = SETS[name]()
        benches = {collection: Variants(data, collection, embedding) for collection in data.documents}
        texts = sorted({question.text for question in data.questions})
        vectors = dict(zip(texts, embedding.get_text_embedding_batch(texts), strict=True))
        needed = np.zeros(len(data.questions), bool)
        for collection, bench in benches.items():
            asked = [number for number, question in enumerate(data.questions) if question.collection == collection]
            needed[asked] = [words for words, _ in bench.needs_context([data.questions[one] for one in asked])]
        plain = recalls(data, benches, ("off",), "off", vectors)
        rows: list[list[object]] = []
        for label, dense in ROWS.items():
            own = recalls(data, benches, dense, "own", vectors)
            row: list[object] = [label, *(100 * own.mean(axis=0)).tolist()]
            for chosen in (needed, ~needed):
                row += map(signed, failures_avoided(plain[chosen], own[chosen]))
            rows.append(row)
        depths = ("@1", "@3", "@5") if name in EARLY else ("@5", "@10", "@20")
        header = ["vectors", *depths, *(f"needed {one}" for one in depths), *(f"elsewhere {one}" for one in depths)]
        head = f"### {name}: {int(needed.sum())} questions need context, {int((~needed).sum())} do not"
        parts.append(f"{head}\n\n{markdown_table(header, rows)}")
        print(f"{parts[-1]}\n\n({time.monotonic() - started:.0f} s)\n", flush=True)
    if options.out:
        options.out.write_text("\n\n".join(parts) + "\n", "utf-8")


if __name__ == "__main__":
    main()
