"""Fit relevance: how likely a hit answers a question, by its nearness and the share of the question's words it holds.

    python benchmarks/relevance.py

Each index is asked its own questions (is a hit gold?), questions of the other sets, questions of general knowledge, and
gibberish; nothing answers the last three. Printed are the weights that ``retrievers/relevance.py`` ships, fitted on all
sets, and what a cut costs: for each set the share of its gold hits that goes, with weights that were fitted without it,
and the share of the other hits that stays.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import chromadb
import numpy as np
from common import RememberingEmbedding, machine, markdown_table
from datasets import DataSet, chat_notes, codebases, course_lessons, kubernetes_docs
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import QueryBundle
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    ContextualVectorRetriever,
)
from llama_index_contextual.index.pipeline import default_parser

if TYPE_CHECKING:
    from collections.abc import Sequence

Floats = Any  # a numpy array of float64

TOP = 10
EACH = 80  # questions of a collection
ELSEWHERE = [
    "best pizza in Naples",
    "who won the 1998 world cup",
    "how to bake sourdough bread",
    "symptoms of measles in children",
    "capital of Mongolia",
    "how to change a bicycle tyre",
    "when was Mozart born",
    "guitar chords for beginners",
]
GIBBERISH = ["asdfghjkl", "qwertyuiop zxcvbnm", "fnord flurbel gnix", "hjkl;", "zzz yyy xxx", "skjdfh ksjdhf", "????"]
CUTS = (0.03, 0.05, 0.1)


@dataclass
class Hits:
    """Features and truth of the hits that one set gave.

    Attributes:
        name: The set.
        own: Features of the hits of its own questions: nearness and share of words, one row a hit.
        gold: Which of those are gold.
        other: Features of the hits of questions that it cannot answer.
    """

    name: str
    own: Floats
    gold: Floats
    other: Floats


class Searched:
    """One collection, and the features of its hits."""

    def __init__(self, data: DataSet, collection: str, embedding: RememberingEmbedding) -> None:
        documents = data.documents[collection]
        if data.chunks:
            nodes = [node.model_copy(deep=True) for doc in documents for node in data.chunks[doc.doc_id]]
        else:
            nodes = list(default_parser(embedding.inner)(documents))  # type: ignore[arg-type]
        kind = "pattern" if data.chunks else "headings"
        nodes = list(ContextualNodePostprocessor(context=kind, documents=documents)(nodes))  # type: ignore[arg-type]
        client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
        store = ChromaVectorStore(chroma_collection=client.create_collection(uuid4().hex))
        context = StorageContext.from_defaults(vector_store=store)
        index = VectorStoreIndex(nodes, storage_context=context, embed_model=embedding)
        self.keyword = ContextualBM25Retriever(nodes)
        self.vector = ContextualVectorRetriever(index, embedding, companion=self.keyword)
        self.fusion = ContextualFusionRetriever([self.vector, self.keyword], similarity_top_k=TOP)
        self.covers = data.covers

    def features(self, question: str) -> tuple[list[Any], Floats]:
        """Return the nodes of the first hits and, a row for each, nearness and share of words."""
        nodes = [hit.node for hit in self.fusion.retrieve(question)]
        cosines = {one.node_id: float(one.score or 0) for one in self.vector.candidates(QueryBundle(question), 100)}
        low = min(cosines.values(), default=0.0)
        near = [(cosines.get(node.node_id, low) - low) / (1 - low) for node in nodes]
        words = self.keyword.term_scores(question, [node.node_id for node in nodes]).shares() or [0.0] * len(nodes)
        return nodes, np.array([near, words]).T


def hits_of(data: DataSet, strangers: Sequence[str], embedding: RememberingEmbedding) -> Hits:
    """Ask the first two collections of a set."""
    rng = random.Random(7)  # noqa: S311  no secret
    own, gold, other = [], [], []
    for collection in list(data.documents)[:2]:
        searched = Searched(data, collection, embedding)
        asked = [question for question in data.questions if question.collection == collection]
        for question in rng.sample(asked, min(EACH, len(asked))):
            nodes, features = searched.features(question.text)
            own.append(features)
            gold += [bool(question.gold & searched.covers(node)) for node in nodes]
        unanswerable = (*rng.sample(list(strangers), EACH // 2), *ELSEWHERE, *GIBBERISH)
        other += [searched.features(text)[1] for text in unanswerable]
    return Hits(data.name, np.concatenate(own), np.array(gold, dtype=float), np.concatenate(other))


def fit(parts: Sequence[Hits], columns: Sequence[int]) -> Floats:
    """Return constant and weights of a logistic model, each set and each kind of question counting the same."""
    rows = np.concatenate([np.concatenate([part.own, part.other])[:, columns] for part in parts])
    truth = np.concatenate([np.concatenate([part.gold, np.zeros(len(part.other))]) for part in parts])
    weight = np.concatenate(
        [np.repeat([1 / len(part.own), 0.25 / len(part.other)], [len(part.own), len(part.other)]) for part in parts]
    )
    inputs = np.column_stack([np.ones(len(rows)), rows])
    found = np.zeros(inputs.shape[1])
    for _ in range(50):  # Newton's method
        chance = 1 / (1 + np.exp(-inputs @ found))
        slope = inputs.T @ (weight * (truth - chance)) - 1e-4 * found
        bend = (inputs * (weight * chance * (1 - chance))[:, None]).T @ inputs + 1e-4 * np.eye(len(found))
        found += np.linalg.solve(bend, slope)
    return found


def main() -> None:
    """Print the weights and what cuts cost."""
    embedding = RememberingEmbedding()
    sets = [codebases(), course_lessons(), chat_notes(), kubernetes_docs(60)]
    texts = {data.name: [question.text for question in data.questions] for data in sets}
    parts = []
    for data in sets:
        strangers = [text for name, own in texts.items() if name != data.name for text in own]
        parts.append(hits_of(data, strangers, embedding))
    print(machine(), "\n")
    for name, columns in (("both", [0, 1]), ("nearness", [0]), ("words", [1])):
        print(f"{name}: {', '.join(f'{value:.2f}' for value in fit(parts, columns))}")
    rows = []
    for part in parts:
        weights = fit([other for other in parts if other is not part], [0, 1])
        own, stranger = (1 / (1 + np.exp(-weights[0] - x @ weights[1:])) for x in (part.own, part.other))
        cells = [f"{(own[part.gold > 0] < cut).mean():.1%} go, {(stranger >= cut).mean():.1%} stay" for cut in CUTS]
        rows.append([part.name, f"{part.gold.mean():.1%}", f"{np.median(own[part.gold > 0]):.2f}", *cells])
    header = ["left out", "gold among hits", "median of gold", *(f"cut at {cut}: gold, the others'" for cut in CUTS)]
    print("\n" + markdown_table(header, rows))


if __name__ == "__main__":
    main()
