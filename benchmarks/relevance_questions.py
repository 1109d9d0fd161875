"""The questions of relevance.py: what an index gives for those with an answer, and for the kinds that have none."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from datasets import NONSENSE, DataSet, Question
from llama_index.core.schema import BaseNode, Document, QueryBundle
from retrieval import Bench

from llama_index_contextual.retrieval.explain import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from common import RememberingEmbedding

    from llama_index_contextual import ContextualBM25Retriever
    from llama_index_contextual.app import ContextualIndex

Floats = Any  # a numpy array of float64

NOTES: Final = "the seven notes"
OWN, REMOVED, STRANGER, HALF, OTHER = "own", "removed", "stranger", "half known", "other words"
FEW: Final = 3  # collections that are asked nonsense
MOST: Final = 600  # questions of a set with several collections
TAKEN_OUT: Final = 150  # questions of a set whose notes are deleted
LARGE: Final = 1_000_000  # characters of a document that is not taken out

# Of the seven notes: questions that they answer in other words. Nothing may take their hits away.
OTHER_WORDS: Final = (
    "incident", "crash", "slowness", "downtime last month", "which database engine did we pick?",
    "what are our servers called?", "how often do we ship?", "how long until a request gives up?",
    "when can nothing be deployed?", "shipping schedule",
)  # fmt: skip


@dataclass
class Asked:
    """What one index gave for one query.

    Attributes:
        kind: "own" where the index can answer, "other words" where it can and nothing says with which chunk, else why
            it cannot.
        evidence: What speaks for an answer.
        shares: Scores of the first 20 hits as a share of the best.
        gained: The part of the question's gold that each of them adds.
        firsts: Which of them has gold and is first in the answer of an arm.
    """

    kind: str
    evidence: Evidence
    shares: Floats
    gained: Floats
    firsts: Floats

    @property
    def answered(self) -> bool:
        """Whether gold is among the hits."""
        return self.kind == OWN and bool(self.gained.any())


def ask(index: ContextualIndex, data: DataSet, kind: str, question: Question, vector: list[float]) -> Asked:
    """Ask an index."""
    found = index.as_retriever(20).explain(QueryBundle(question.text, embedding=vector))
    left, gained, firsts = set(question.gold), [], []
    for hit in found:
        covered = data.covers(hit.node.node) & question.gold
        gained.append(len(left & covered) / max(1, len(question.gold)))
        left -= covered
        firsts.append(bool(covered) and any(one.rank == 1 for one in (hit.fused.credits if hit.fused else ())))
    scores = np.array([hit.score for hit in found])
    shares = scores / scores[0] if len(scores) else scores
    return Asked(kind, found.judgement.evidence or Evidence(), shares, np.array(gained), np.array(firsts, bool))


def answers_of(data: DataSet, strangers: Sequence[str], embedding: RememberingEmbedding) -> list[Asked]:
    """Ask the questions of a set, nonsense of its first collections, and questions whose notes are deleted."""
    rng = random.Random(7)  # noqa: S311  no secret
    collections = list(data.documents) if len(data.questions) <= MOST else list(data.documents)[:5]
    asked = []
    for number, collection in enumerate(collections):
        bench = Bench(data, collection, embedding)
        index = bench.index("pattern" if data.chunks else "headings")
        own = [question for question in data.questions if question.collection == collection]
        own = rng.sample(own, min(len(own), MOST // len(collections)))
        batch = [(OWN, question) for question in own]
        if number < FEW:
            batch += [(kind, Question(text, frozenset())) for kind, texts in NONSENSE.items() for text in texts]
            batch += [(STRANGER, Question(text, frozenset())) for text in strangers]
            keyword = index.as_retriever().retrievers[-1]
            batch += [(HALF, Question(text, frozenset())) for text in half_known(keyword)]  # type: ignore[arg-type]
        if data.name == NOTES:
            batch += [(OTHER, Question(text, frozenset())) for text in OTHER_WORDS]
        texts = [question.text for _, question in batch]
        vectors = {text: embedding.get_query_embedding(text) for text in texts}
        asked += [ask(index, data, kind, one, vectors[one.text]) for kind, one in batch]
        for question in taken_out(index, data, bench, own, TAKEN_OUT // len(collections), rng):
            asked.append(ask(index, data, REMOVED, question, vectors[question.text]))
        index.close()
    return asked


def taken_out(
    index: ContextualIndex, data: DataSet, bench: Bench, own: Sequence[Question], most: int, rng: random.Random
) -> Iterator[Question]:
    """Give questions while the documents that answer them are not in the index."""
    holders, documents = defaultdict(set), {one.doc_id: one for one in bench.documents}
    for node in index.nodes():
        for item in data.covers(node):
            holders[item].add(node.ref_doc_id)
    by_documents = defaultdict(list)
    for question in own:
        by_documents[frozenset(one for item in question.gold for one in holders[item])].append(question)
    usable = [key for key in by_documents if key and all(len(documents[one].text) < LARGE for one in key)]
    given = 0
    for key in rng.sample(usable, len(usable)) if data.name != NOTES else ():
        if given >= most:
            return
        for one in key:
            index.delete(one)
        for question in by_documents[key][:8]:
            given += 1
            yield Question(question.text, frozenset(), question.collection)
        index.refresh([documents[one] for one in key], confirm=True)


def half_known(keyword: ContextualBM25Retriever) -> list[str]:
    """Return 100 queries of a word that chunks hold and one that nobody uses."""
    rng = random.Random(7)  # noqa: S311  no secret
    texts = " ".join(node.get_content() for node in keyword.nodes(keyword.selected_ids()).values())
    words = sorted({word.lower() for word in re.findall(r"[A-Za-z]{4,12}", texts)})
    words = [word for word in words if any(keyword.term_scores(word, []).frequencies)]
    invented = [word for query in NONSENSE["mash"] for word in query.split() if word.isalpha()]
    return [f"{word} {rng.choice(invented)}" for word in rng.choices(words, k=100)]


def example_notes() -> DataSet:
    """The notes that come with the project, and six questions."""
    folder = Path(__file__).resolve().parents[1] / "examples" / "notes"
    paths = [(path, path.relative_to(folder).as_posix()) for path in sorted(folder.rglob("*.md"))]
    documents = [Document(text=path.read_text("utf-8"), id_=name, metadata={"path": name}) for path, name in paths]
    gold = {
        "What is the default timeout of the gateway?": "docs/gateway.md",
        "which colour scheme for dashboards": "MEMORY.md",
        "where do secrets live": "MEMORY.md",
        "when are releases tagged": "MEMORY.md",
        "why did we move sessions to Redis?": "MEMORY.md",
        "what is the retry budget": "MEMORY.md",
    }
    questions = [Question(text, frozenset([path])) for text, path in gold.items()]

    def covers(node: BaseNode) -> frozenset[Any]:
        return frozenset([node.ref_doc_id])

    return DataSet(NOTES, {"": documents}, questions, covers, {})
