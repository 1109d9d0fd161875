"""Train relevance on questions with and without an answer, and measure it.

    python benchmarks/relevance.py [local|e5] [--sets NAME ...] [--write]

Every set is one or more indexes, which ``ContextualIndex`` searches. Three kinds of questions have
no answer:

=========== ==================================================================================
nonsense    34 of keyboard mash, 33 in 21 other languages, 33 English ones of general knowledge
strangers   questions of other sets, in the same language and some of them on similar subjects
removed     questions of the set whose notes are deleted from the index, and then put back
=========== ==================================================================================

These three kinds have the same weight, and together as much as the questions whose gold is among
the first 20 hits. All figures of a set come from weights that were fitted without it. "Firsts" are
questions whose gold is the first hit of the vector retriever or of the keyword retriever: no
default may cut those.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from llama_index_contextual.app import ContextualIndex

Floats = Any  # a numpy array of float64
Weights = dict[str, dict[str, float]]

# Kinds of questions, besides those of NONSENSE.
OWN: Final = "own"
REMOVED: Final = "removed"
STRANGER: Final = "stranger"
UNANSWERED_KINDS: Final = (*NONSENSE, STRANGER, REMOVED)
# Kinds without an answer, in groups that have the same weight in a fit.
UNANSWERED_GROUPS: Final = (frozenset(NONSENSE), frozenset([STRANGER]), frozenset([REMOVED]))
COLLECTIONS_WITH_NONSENSE: Final = 3
MAX_COLLECTIONS: Final = 5  # of a set with many questions
MAX_QUESTIONS: Final = 600  # of a set with several collections
MAX_STRANGERS: Final = 60  # questions of each other set
MAX_REMOVED: Final = 150  # questions of a set whose notes are deleted
MAX_PER_DELETION: Final = 8  # questions with the same documents
MAX_DELETED_CHARACTERS: Final = 1_000_000  # of a document; longer ones are not deleted
CUTS: Final = (0.02, MIN_RELEVANCE, 0.1, 0.2)
BINS: Final = 10
WEIGHT_NAMES: Final = ("constant", "nearest", "cosine", "words", "lead")
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
# The features of each model. "other" stands for embeddings whose cosines are stretched from the
# pool's lowest to 1.
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


@dataclass(frozen=True)
class Answer:
    """The answer of an index to a query.

    Attributes:
        kind: The kind of question.
        evidence: What the retrievers know about its relevance.
        shares: The scores of the first 20 hits as a share of the best.
        gained: The share of the question's gold that each hit adds.
        firsts: Whether each hit has gold and is the first hit of a retriever.
    """

    kind: str
    evidence: Evidence
    shares: Floats
    gained: Floats
    firsts: Floats

    @property
    def has_gold(self) -> bool:
        """Return whether gold is among the hits."""
        return self.kind == OWN and bool(self.gained.any())


class Query(NamedTuple):
    """A question with its kind."""

    kind: str
    question: Question


def ask(
    index: ContextualIndex, data: DataSet, query: Query, embedding: RememberingEmbedding
) -> Answer:
    """Return the answer of an index to a query."""
    question = query.question
    vector = embedding.get_query_embedding(question.text)
    explanation = index.as_retriever(20).explain(QueryBundle(question.text, embedding=vector))
    missing = set(question.gold)
    gained = []
    firsts = []
    for hit in explanation:
        covered = data.covers(hit.node.node) & question.gold
        gained.append(len(missing & covered) / max(1, len(question.gold)))
        missing -= covered
        is_first = any(credit.rank == 1 for credit in hit.credits)
        firsts.append(bool(covered) and is_first)
    scores = np.array([hit.score for hit in explanation])
    return Answer(
        query.kind,
        explanation.judgement.evidence or Evidence(),
        scores / scores[0] if len(scores) else scores,
        np.array(gained),
        np.array(firsts, bool),
    )


def unanswered_queries(strangers: Sequence[str]) -> list[Query]:
    """Return nonsense, and questions of other sets."""
    queries = []
    for kind, texts in {**NONSENSE, STRANGER: strangers}.items():
        queries += [Query(kind, Question(text, frozenset())) for text in texts]
    return queries


def answers_of(
    data: DataSet, strangers: Sequence[str], embedding: RememberingEmbedding
) -> list[Answer]:
    """Return the answers to the questions of a set, and to questions without an answer."""
    rng = random.Random(7)  # noqa: S311  no secret
    collections = list(data.documents)
    if len(data.questions) > MAX_QUESTIONS:
        collections = collections[:MAX_COLLECTIONS]
    answers = []
    for number, collection in enumerate(collections):
        bench = Bench(data, collection, embedding)
        index = bench.index(data.context)
        own = [question for question in data.questions if question.collection == collection]
        own = rng.sample(own, min(len(own), MAX_QUESTIONS // len(collections)))
        queries = [Query(OWN, question) for question in own]
        if number < COLLECTIONS_WITH_NONSENSE:
            queries += unanswered_queries(strangers)
        answers += [ask(index, data, query, embedding) for query in queries]
        limit = MAX_REMOVED // len(collections)
        for question in without_documents(index, data, bench, own, limit, rng):
            answers.append(ask(index, data, Query(REMOVED, question), embedding))
        index.close()
    return answers


def without_documents(
    index: ContextualIndex,
    data: DataSet,
    bench: Bench,
    own: Sequence[Question],
    limit: int,
    rng: random.Random,
) -> Iterator[Question]:
    """Yield questions while the documents that answer them are not in the index.

    Args:
        index: The index, whose documents are deleted and then put back.
        data: The set.
        bench: The documents of the index.
        own: The questions that the index can answer.
        limit: The number of questions after which no more documents are deleted.
        rng: The order of the deletions.
    """
    documents = {document.doc_id: document for document in bench.documents}
    documents_with = defaultdict[Any, set[str]](set)
    for node in index.nodes():
        for item in data.covers(node):
            documents_with[item].add(node.ref_doc_id or "")

    # Group the questions by the documents that answer them.
    groups = defaultdict[frozenset[str], list[Question]](list)
    for question in own:
        answering_ids = frozenset[str]().union(*(documents_with[item] for item in question.gold))
        lengths = [len(documents[document_id].text) for document_id in answering_ids]
        if lengths and max(lengths) < MAX_DELETED_CHARACTERS:
            groups[answering_ids].append(question)

    # Delete the documents of one group after another.
    count = 0
    for document_ids in rng.sample(list(groups), len(groups)):
        if count >= limit:
            return
        for document_id in document_ids:
            index.delete(document_id)
        for question in groups[document_ids][:MAX_PER_DELETION]:
            count += 1
            yield Question(question.text, frozenset(), question.collection)
        index.refresh([documents[document_id] for document_id in document_ids], confirm=True)


# The fit

SHRINK: Final = 0.05
NEWTON_STEPS: Final = 60
TOTAL_WEIGHT: Final = 1000


class FitSample(NamedTuple):
    """The answers that count for a fit, one row each.

    Attributes:
        answers: The answers.
        has_gold: 1 for an answer with gold, else 0.
        weights: The weights, which add up to 1,000.
    """

    answers: list[Answer]
    has_gold: Floats
    weights: Floats


def sample_of(answers: Sequence[Answer]) -> FitSample:
    """Return the answers of a set that count for a fit."""
    chosen = [answer for answer in answers if answer.has_gold]
    weights = [TOTAL_WEIGHT / 2 / len(chosen)] * len(chosen)
    for kinds in UNANSWERED_GROUPS:
        group = [answer for answer in answers if answer.kind in kinds]
        share = TOTAL_WEIGHT / 2 / len(UNANSWERED_GROUPS)
        chosen += group
        weights += [share / len(group)] * len(group)
    has_gold = np.array([answer.has_gold for answer in chosen], float)
    return FitSample(chosen, has_gold, np.array(weights))


def fit(sets: Iterable[Sequence[Answer]], models: Mapping[str, Sequence[str]]) -> Weights:
    """Return the constant and the weights of each model, by logistic regression.

    All sets have the same weight.
    """
    samples = list(map(sample_of, sets))
    has_gold = np.concatenate([sample.has_gold for sample in samples])
    sample_weights = np.concatenate([sample.weights for sample in samples])
    trained: Weights = {}
    for model, names in models.items():
        embedding = {"local": MINILM, "e5": E5}.get(model.split()[0], "")
        rows = []
        for sample in samples:
            for answer in sample.answers:
                features = answer.evidence._replace(model=embedding).features()
                rows.append([1.0, *(features[name] for name in names)])
        values = regression(np.array(rows), has_gold, sample_weights).round(1).tolist()
        trained[model] = dict(zip(("constant", *names), values, strict=True))
    return trained


def regression(inputs: Floats, targets: Floats, sample_weights: Floats) -> Floats:
    """Return the weights of a logistic regression by Newton's method, shrunk a little.

    Args:
        inputs: A row for each sample. The first column is 1, for the constant.
        targets: 0 or 1 for each sample.
        sample_weights: The weight of each sample.
    """
    size = inputs.shape[1]
    weights = np.zeros(size)
    shrink = SHRINK * np.eye(size)
    shrink[0, 0] = 0.0  # of the constant
    for _ in range(NEWTON_STEPS):
        chances = 1 / (1 + np.exp(-inputs @ weights))
        slope = inputs.T @ (sample_weights * (targets - chances)) - shrink @ weights
        variances = sample_weights * chances * (1 - chances)
        curve = (inputs * variances[:, None]).T @ inputs + shrink
        weights += np.linalg.solve(curve + 1e-9 * np.eye(size), slope)
    return weights


def relevances(answers: Sequence[Answer], weights: Weights) -> Floats:
    """Return the relevance of each question, as the package computes it."""
    return np.array([relevance(answer.evidence, weights) or 0.0 for answer in answers])


def calibration_curve(sample: FitSample, predicted: Floats) -> Floats:
    """Return a row for each tenth of relevance.

    It has three sums of weights: of the samples, multiplied by their relevance, and of those with
    gold.
    """
    curve = np.zeros((BINS, 3))
    bins = np.minimum((predicted * BINS).astype(int), BINS - 1)
    weights = sample.weights
    columns = [weights, weights * predicted, weights * sample.has_gold]
    np.add.at(curve, bins, np.stack(columns, axis=1))
    return curve


def calibration_row(name: str, sample: FitSample, predicted: Floats) -> list[object]:
    """Return the calibration error of a set, and the shares with a relevance above .5 by kind."""
    curve = calibration_curve(sample, predicted)
    error = np.abs(curve[:, 1] - curve[:, 2]).sum() / sample.weights.sum()
    is_high = predicted > 0.5
    without_gold = sample.has_gold == 0
    shares = [np.average(is_high[without_gold], weights=sample.weights[without_gold])]
    for kinds in (*UNANSWERED_GROUPS, {OWN}):
        is_kind = np.array([answer.kind in kinds for answer in sample.answers])
        shares.append(is_high[is_kind].mean() if is_kind.any() else math.nan)
    return [name, f"{error:.3f}", *(f"{100 * share:.0f}" for share in shares)]


def curve_rows(curve: Floats) -> list[list[object]]:
    """Return a row for each tenth of relevance that has questions."""
    rows: list[list[object]] = []
    total = curve[:, 0].sum()
    for number, (weight, weighted_relevance, weight_with_gold) in enumerate(curve):
        if weight:
            name = f"{number / BINS:.1f} to {(number + 1) / BINS:.1f}"
            means = [weighted_relevance / weight, weight_with_gold / weight]
            rows.append([name, f"{100 * weight / total:.1f}", *(f"{mean:.2f}" for mean in means)])
    return rows


def cut_row(
    cut: float, answers: Sequence[Answer], weights: Weights, depths: Sequence[int]
) -> list[str]:
    """Return what a cut at a relevance costs in a set.

    Returns:
        The firsts that are lost, the recall that is lost at each depth, and for each kind without
        an answer the share of questions that find nothing.
    """
    own = [answer for answer in answers if answer.kind == OWN]
    lost_firsts = 0
    lost_recalls = []
    for answer, value in zip(own, relevances(own, weights), strict=True):
        is_lost = value * answer.shares < cut
        lost_firsts += int((answer.firsts & is_lost).sum())
        lost = 100 * answer.gained * is_lost
        lost_recalls.append([lost[:depth].sum() for depth in depths])
    firsts = sum(int(answer.firsts.sum()) for answer in own)
    cells = [f"{lost_firsts} of {firsts}"]
    cells += [f"{mean:.2f}" for mean in np.mean(lost_recalls, axis=0)]
    for kind in UNANSWERED_KINDS:
        answers_of_kind = [answer for answer in answers if answer.kind == kind]
        is_cut = relevances(answers_of_kind, weights) < cut
        cells.append(f"{np.mean(is_cut):.0%}" if answers_of_kind else "")
    return cells


def answers_by_set(
    names: Sequence[str], data_sets: Mapping[str, DataSet], embedding: RememberingEmbedding
) -> dict[str, list[Answer]]:
    """Return the answers of each set. Questions of the other sets are its strangers."""
    rng = random.Random(7)  # noqa: S311  no secret
    samples = {}
    for name in names:
        questions = data_sets[name].questions
        chosen = rng.sample(questions, min(MAX_STRANGERS, len(questions)))
        samples[name] = [question.text for question in chosen]
    answers = {}
    for name in names:
        strangers: list[str] = []
        for other_name, texts in samples.items():
            if other_name != name:
                strangers += texts
        answers[name] = answers_of(data_sets[name], strangers, embedding)
        print(f"{name}: {len(answers[name])} asked", flush=True)
    return answers


def report(sets: Mapping[str, list[Answer]], models: Mapping[str, Sequence[str]]) -> str:
    """Return the tables of calibration and of cuts, each set with weights fitted without it."""
    calibration_rows = []
    cut_rows: list[list[object]] = []
    curve = np.zeros((BINS, 3))
    for name, answers in sets.items():
        other_sets = [sets[other_name] for other_name in sets if other_name != name]
        weights = fit(other_sets, models)
        sample = sample_of(answers)
        predicted = relevances(sample.answers, weights)
        calibration_rows.append(calibration_row(name, sample, predicted))
        curve += calibration_curve(sample, predicted)
        depths = (1, 3, 5) if name == "course-lessons" else (5, 10, 20)
        cut_rows += [[name, f"{cut:g}", *cut_row(cut, answers, weights, depths)] for cut in CUTS]
    shares = ["unanswered", "nonsense", STRANGER, REMOVED, "with an answer"]
    lost = ["left out", "cut", "firsts lost", "recall lost at 5 (1)", "10 (3)", "20 (5)"]
    nothing = [f"{kind}: nothing" for kind in UNANSWERED_KINDS]
    curve_header = ["relevance", "share of questions, %", "mean relevance", "with an answer"]
    parts = [
        "Calibration, each set left out; above .5, %:",
        markdown_table(["left out", "error", *shares], calibration_rows),
        "The curve, all sets:",
        markdown_table(curve_header, curve_rows(curve)),
        "The cost of a cut, each set left out:",
        markdown_table([*lost, *nothing], cut_rows),
    ]
    return "\n\n".join(parts)


def write(trained: Weights) -> None:
    """Replace the weights of the package."""
    target = Path(retrievers.__file__).with_name("weights.json")
    sections = json.loads(target.read_text("utf-8"))
    sections["relevance"].update(trained)
    target.write_text(json.dumps(sections, indent=2) + "\n", "utf-8")


def main() -> None:
    """Print the weights, the calibration of relevance, and the cost of cuts."""
    options = command_line(__doc__, embedding=tuple(SETS), sets=[str], write=False)
    known = SETS[options.embedding]
    names = options.sets or list(known)
    if len(names) == 1:
        sys.exit("Name at least two sets with --sets: each is left out of a fit.")
    embedding = RememberingEmbedding(options.embedding)
    data_sets = {name: known[name]() for name in names}
    sets = answers_by_set(names, data_sets, embedding)
    models = MODELS[options.embedding]
    trained = fit(sets.values(), models)
    rows = [
        [name, *(weights.get(key, "") for key in WEIGHT_NAMES)] for name, weights in trained.items()
    ]
    table = markdown_table(["model", *WEIGHT_NAMES], rows)
    print(f"{machine()}\n\nFitted on all sets:\n\n{table}\n\n{report(sets, models)}")
    if options.write:
        write(trained)


if __name__ == "__main__":
    main()
