"""Train relevance on questions with and without an answer, and measure it.

    python benchmarks/relevance.py [local|e5] [--sets NAME ...] [--write]

Every set is one or more indexes, which ``ContextualIndex`` searches. Three kinds of questions have
no answer:

=========== ==================================================================================
nonsense    34 of keyboard mash, 33 in 21 other languages, 33 English ones of general knowledge
strangers   questions of other sets, in the same language and some of them on similar subjects
removed     questions of the set whose notes are deleted from the index, and then put back
=========== ==================================================================================

Nonsense, strangers and removed ones weigh the same, and together as much as the questions whose
gold is among the first 20 hits. All figures of a set come from weights that were fitted without it.
"Firsts" are questions whose gold is the first hit of the vector retriever or of the keyword
retriever: no default may cut those.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from common import RememberingEmbedding, command_line, machine, markdown_table
from datasets import (
    NONSENSE,
    DataSet,
    Question,
    codebases,
    course_lessons,
    first_collections,
    german_judgments,
    japanese_articles,
    locomo_notes,
)
from languages import both_languages
from llama_index.core.schema import QueryBundle
from retrieval import Bench

from llama_index_contextual import retrievers
from llama_index_contextual.retrievers.relevance import MIN_RELEVANCE, Evidence, relevance
from llama_index_contextual.retrievers.vector import E5, MINILM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from llama_index_contextual.app import ContextualIndex

Floats = Any  # a numpy array of float64
Weights = dict[str, dict[str, float]]

OWN, REMOVED, STRANGER = "own", "removed", "stranger"
FEW: Final = 3  # collections that get nonsense questions
MOST: Final = 600  # questions of a set with several collections
STRANGERS: Final = 60  # questions of each other set
TAKEN_OUT: Final = 150  # questions of a set whose notes are deleted
MOST_OF_A_GROUP: Final = 8  # questions with the same documents
LARGE: Final = 1_000_000  # characters of a document that is not taken out
CUTS: Final = (0.02, MIN_RELEVANCE, 0.1, 0.2)
BINS: Final = 10
SETS: Final[dict[str, dict[str, Callable[[], DataSet]]]] = {
    "local": {
        "codebases": codebases,
        "course-lessons": course_lessons,
        "locomo-notes": locomo_notes,
    },
    "e5": {
        "german-judgments": german_judgments,
        "japanese-articles": lambda: japanese_articles(300),
        "spanish": both_languages,
        "locomo-notes": lambda: first_collections(locomo_notes(), 2),
    },
}
# What each model weighs; "other" stands for embeddings whose cosines are stretched from the pool's
# lowest to 1.
MODELS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "local": {
        "local and words": ("cosine", "words", "lead"),
        "local": ("nearest",),
        "other and words": ("cosine", "words", "lead"),
        "other": ("nearest",),
        "words": ("words", "lead"),
    },
    "e5": {"e5 and words": ("cosine", "words", "lead"), "e5": ("nearest",)},
}

# Questions

UNANSWERED: Final = (frozenset(NONSENSE), frozenset([STRANGER]), frozenset([REMOVED]))


@dataclass
class Asked:
    """The answer of one index to one query."""

    kind: str  # "own" where the index can answer, else why it cannot
    evidence: Evidence
    shares: Floats  # scores of the first 20 hits as a share of the best
    gained: Floats  # the part of the question's gold that each of them adds
    firsts: Floats  # which of them has gold and is first in the answer of a retriever

    @property
    def answered(self) -> bool:
        """Return whether gold is among the hits."""
        return self.kind == OWN and bool(self.gained.any())


def ask(
    index: ContextualIndex, data: DataSet, kind: str, question: Question, vector: list[float]
) -> Asked:
    """Ask an index."""
    explanation = index.as_retriever(20).explain(QueryBundle(question.text, embedding=vector))
    missing = set(question.gold)
    gained = []
    firsts = []
    for hit in explanation:
        covered = data.covers(hit.node.node) & question.gold
        gained.append(len(missing & covered) / max(1, len(question.gold)))
        missing -= covered
        firsts.append(bool(covered) and any(credit.rank == 1 for credit in hit.credits))
    scores = np.array([hit.score for hit in explanation])
    return Asked(
        kind,
        explanation.judgement.evidence or Evidence(),
        scores / scores[0] if len(scores) else scores,
        np.array(gained),
        np.array(firsts, bool),
    )


def answers_of(
    data: DataSet, strangers: Sequence[str], embedding: RememberingEmbedding
) -> list[Asked]:
    """Ask the questions of a set, nonsense, and questions whose notes are deleted."""
    rng = random.Random(7)  # noqa: S311  no secret
    collections = list(data.documents) if len(data.questions) <= MOST else list(data.documents)[:5]
    asked = []
    for number, collection in enumerate(collections):
        bench = Bench(data, collection, embedding)
        index = bench.index(data.context)
        own = [question for question in data.questions if question.collection == collection]
        own = rng.sample(own, min(len(own), MOST // len(collections)))
        batch = [(OWN, question) for question in own]
        if number < FEW:
            batch += [
                (kind, Question(text, frozenset()))
                for kind, texts in NONSENSE.items()
                for text in texts
            ]
            batch += [(STRANGER, Question(text, frozenset())) for text in strangers]
        texts = [question.text for _, question in batch]
        vectors = {text: embedding.get_query_embedding(text) for text in texts}
        for kind, question in batch:
            asked.append(ask(index, data, kind, question, vectors[question.text]))
        removed = taken_out(index, data, bench, own, TAKEN_OUT // len(collections), rng)
        asked += [ask(index, data, REMOVED, each, vectors[each.text]) for each in removed]
        index.close()
    return asked


def taken_out(
    index: ContextualIndex,
    data: DataSet,
    bench: Bench,
    own: Sequence[Question],
    most: int,
    rng: random.Random,
) -> Iterator[Question]:
    """Yield questions while the documents that answer them are not in the index."""
    documents = {document.doc_id: document for document in bench.documents}
    holders = defaultdict[Any, set[str]](set)
    for node in index.nodes():
        for item in data.covers(node):
            holders[item].add(node.ref_doc_id or "")

    # Group the questions by the documents that answer them.
    groups = defaultdict[frozenset[str], list[Question]](list)
    for question in own:
        answering_ids = frozenset[str]().union(*(holders[item] for item in question.gold))
        if all(len(documents[document_id].text) < LARGE for document_id in answering_ids):
            groups[answering_ids].append(question)
    groups.pop(frozenset(), None)

    # Delete the documents of one group after another.
    count = 0
    for document_ids in rng.sample(list(groups), len(groups)):
        if count >= most:
            return
        for document_id in document_ids:
            index.delete(document_id)
        for question in groups[document_ids][:MOST_OF_A_GROUP]:
            count += 1
            yield Question(question.text, frozenset(), question.collection)
        index.refresh([documents[document_id] for document_id in document_ids], confirm=True)


# The fit

SHRINK: Final = 0.05
NEWTON_STEPS: Final = 60


def sample_of(asked: Sequence[Asked]) -> tuple[list[Asked], Floats, Floats]:
    """Return the questions that count for a fit, which have an answer, and their weights.

    The weights add up to 1,000.
    """
    chosen = [answer for answer in asked if answer.answered]
    weights = [1000 / 2 / len(chosen) for _ in chosen]
    for kinds in UNANSWERED:
        answers = [answer for answer in asked if answer.kind in kinds]
        chosen += answers
        weights += [1000 / 6 / len(answers) for _ in answers]
    is_answered = np.array([answer.answered for answer in chosen], float)
    return chosen, is_answered, np.array(weights)


def fit(sets: Sequence[Sequence[Asked]], models: Mapping[str, Sequence[str]]) -> Weights:
    """Return the constant and the weights of each model, by logistic regression.

    All sets have the same weight.
    """
    chosen, answered, weights = zip(*map(sample_of, sets), strict=True)
    is_answered = np.concatenate(answered)
    sample_weights = np.concatenate(weights)
    trained: Weights = {}
    for model, names in models.items():
        embedding = {"local": MINILM, "e5": E5}.get(model.split()[0], "")
        rows = []
        for answer in chain.from_iterable(chosen):
            features = answer.evidence._replace(model=embedding).features()
            rows.append([1.0, *(features[name] for name in names)])
        values = regression(np.array(rows), is_answered, sample_weights).round(1).tolist()
        trained[model] = dict(zip(("constant", *names), values, strict=True))
    return trained


def regression(inputs: Floats, y: Floats, w: Floats) -> Floats:
    """Return the weights of a logistic regression by Newton's method, shrunk a little."""
    size = inputs.shape[1]
    weights = np.zeros(size)
    shrink = SHRINK * np.eye(size)
    shrink[0, 0] = 0.0  # of the constant
    for _ in range(NEWTON_STEPS):
        chance = 1 / (1 + np.exp(-inputs @ weights))
        slope = inputs.T @ (w * (y - chance)) - shrink @ weights
        curve = (inputs * (w * chance * (1 - chance))[:, None]).T @ inputs + shrink
        weights += np.linalg.solve(curve + 1e-9 * np.eye(size), slope)
    return weights


def chances(asked: Sequence[Asked], weights: Weights) -> Floats:
    """Return the relevance of each question, as the package computes it."""
    return np.array([relevance(answer.evidence, weights) or 0.0 for answer in asked])


def reliability(
    sets: Mapping[str, list[Asked]], fits: Mapping[str, Weights]
) -> tuple[list[list[object]], Floats]:
    """Return the calibration error and the share above .5 of each set, and the curve over all.

    The curve has a row for each tenth: summed weight, relevance times weight, weight of those that
    are answered.
    """
    rows: list[list[object]] = []
    curve = np.zeros((BINS, 3))
    for name, asked in sets.items():
        chosen, y, w = sample_of(asked)
        p = chances(chosen, fits[name])
        own = np.zeros((BINS, 3))
        np.add.at(own, np.minimum((p * BINS).astype(int), BINS - 1), np.stack([w, w * p, w * y], 1))
        curve += own
        shares = [np.average(p[y == 0] > 0.5, weights=w[y == 0])]
        for kinds in (*UNANSWERED, {OWN}):
            is_kind = [answer.kind in kinds for answer in chosen]
            shares.append(np.mean(p[is_kind] > 0.5) if any(is_kind) else float("nan"))
        error = np.abs(own[:, 1] - own[:, 2]).sum() / w.sum()
        rows.append([name, f"{error:.3f}", *(f"{100 * share:.0f}" for share in shares)])
    return rows, curve


def curve_rows(curve: Floats) -> list[list[object]]:
    """Return a row for each tenth of relevance that has questions."""
    rows: list[list[object]] = []
    for number, (weight, chance, answered) in enumerate(curve):
        if weight:
            name = f"{number / BINS:.1f} to {(number + 1) / BINS:.1f}"
            share = 100 * weight / curve[:, 0].sum()
            means = [f"{value / weight:.2f}" for value in (chance, answered)]
            rows.append([name, f"{share:.1f}", *means])
    return rows


def costs(sets: Mapping[str, list[Asked]], fits: Mapping[str, Weights]) -> list[list[object]]:
    """Return for each set and cut what is lost and how much finds nothing."""
    rows: list[list[object]] = []
    for name, asked in sets.items():
        own = [answer for answer in asked if answer.kind == OWN]
        depths = (1, 3, 5) if name == "course-lessons" else (5, 10, 20)
        p = chances(own, fits[name])
        total = sum(int(answer.firsts.sum()) for answer in own)
        for cut in CUTS:
            lost_firsts = 0
            lost_recall = []
            for answer, chance in zip(own, p, strict=True):
                is_lost = chance * answer.shares < cut
                lost_firsts += int((answer.firsts & is_lost).sum())
                lost = answer.gained * is_lost
                lost_recall.append([100 * lost[:depth].sum() for depth in depths])
            cells = [f"{mean:.2f}" for mean in np.mean(lost_recall, axis=0)]
            for kind in (*NONSENSE, STRANGER, REMOVED):
                answers = [answer for answer in asked if answer.kind == kind]
                is_cut = chances(answers, fits[name]) < cut
                cells.append(f"{np.mean(is_cut):.0%}" if answers else "")
            rows.append([name, f"{cut:g}", f"{lost_firsts} of {total}", *cells])
    return rows


def main() -> None:
    """Print the weights, the calibration of relevance, and what cuts cost."""
    options = command_line(__doc__, embedding=tuple(SETS), sets=[str], write=False)
    known = SETS[options.embedding]
    names = options.sets or list(known)
    if len(names) == 1:
        sys.exit("Name at least two sets with --sets: each is left out of a fit.")
    rng = random.Random(7)  # noqa: S311  no secret
    embedding = RememberingEmbedding(options.embedding)
    models = MODELS[options.embedding]
    data_sets = {name: known[name]() for name in names}
    samples = {}
    for name, data in data_sets.items():
        questions = rng.sample(data.questions, min(STRANGERS, len(data.questions)))
        samples[name] = [question.text for question in questions]
    sets = {}
    for name, data in data_sets.items():
        strangers: list[str] = []
        for other_name, texts in samples.items():
            if other_name != name:
                strangers += texts
        sets[name] = answers_of(data, strangers, embedding)
        print(f"{name}: {len(sets[name])} asked", flush=True)
    fits = {}
    for name in sets:
        fits[name] = fit([asked for other, asked in sets.items() if other != name], models)
    shipped = fit(list(sets.values()), models)
    rows, curve = reliability(sets, fits)
    numbers = ("constant", "nearest", "cosine", "words", "lead")
    weights = []
    for name, values in shipped.items():
        weights.append([name, *(values.get(key, "") for key in numbers)])
    nothing = [f"{kind}: nothing" for kind in (*NONSENSE, STRANGER, REMOVED)]
    lost = ["left out", "cut", "firsts lost", "recall lost at 5 (1)", "10 (3)", "20 (5)"]
    parts = [
        machine(),
        "Fitted on all sets:",
        markdown_table(["model", *numbers], weights),
        "Calibration, each set left out; above .5, %:",
        markdown_table(
            ["left out", "error", "unanswered", "nonsense", STRANGER, REMOVED, "with an answer"],
            rows,
        ),
        "The curve, all sets:",
        markdown_table(
            ["relevance", "share of questions, %", "mean relevance", "with an answer"],
            curve_rows(curve),
        ),
        "What a cut costs, each set left out:",
        markdown_table([*lost, *nothing], costs(sets, fits)),
    ]
    print("\n\n".join(parts))
    if options.write:
        target = Path(retrievers.__file__).with_name("weights.json")
        sections = json.loads(target.read_text("utf-8"))
        sections["relevance"].update(shipped)
        target.write_text(json.dumps(sections, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
