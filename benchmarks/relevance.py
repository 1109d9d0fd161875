"""Train relevance, and measure what it is worth.

Questions with known answers against questions without one.

    python benchmarks/relevance.py [local|e5] [--sets NAME ...] [--write]

Every set is an index or several, asked through ``ContextualIndex``. Three kinds of questions have
no answer:

=========== ==================================================================================
nonsense    34 of keyboard mash, 33 in 21 other languages, 33 English ones of general knowledge
strangers   questions of other sets, in the same language and partly on kindred subjects
removed     questions of the set whose notes were deleted from the index, asked, and put back
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
from itertools import pairwise
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
from llama_index_contextual.retrievers.relevance import LEAST, Evidence, relevance
from llama_index_contextual.retrievers.vector import E5, MINILM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from llama_index_contextual.app import ContextualIndex

Floats = Any  # a numpy array of float64
Weights = dict[str, dict[str, float]]

OWN, REMOVED, STRANGER = "own", "removed", "stranger"
FEW: Final = 3  # collections that are asked nonsense
MOST: Final = 600  # questions of a set with several collections
TAKEN_OUT: Final = 150  # questions of a set whose notes are deleted
LARGE: Final = 1_000_000  # characters of a document that is not taken out
CUTS: Final = (0.02, LEAST, 0.1, 0.2)
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


@dataclass
class Asked:
    """The answer of one index to one query."""

    kind: str  # "own" where the index can answer, else why it cannot
    evidence: Evidence
    shares: Floats  # scores of the first 20 hits as a share of the best
    gained: Floats  # the part of the question's gold that each of them adds
    firsts: Floats  # which of them has gold and is first in the answer of an retriever

    @property
    def answered(self) -> bool:
        """Whether gold is among the hits."""
        return self.kind == OWN and bool(self.gained.any())


def ask(
    index: ContextualIndex, data: DataSet, kind: str, question: Question, vector: list[float]
) -> Asked:
    """Ask an index."""
    found = index.as_retriever(20).explain(QueryBundle(question.text, embedding=vector))
    left, gained, firsts = set(question.gold), [], []
    for hit in found:
        covered = data.covers(hit.node.node) & question.gold
        gained.append(len(left & covered) / max(1, len(question.gold)))
        left -= covered
        firsts.append(bool(covered) and any(one.rank == 1 for one in hit.credits))
    scores = np.array([hit.score for hit in found])
    shares = scores / scores[0] if len(scores) else scores
    return Asked(
        kind,
        found.judgement.evidence or Evidence(),
        shares,
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
        asked += [ask(index, data, kind, one, vectors[one.text]) for kind, one in batch]
        for question in taken_out(index, data, bench, own, TAKEN_OUT // len(collections), rng):
            asked.append(ask(index, data, REMOVED, question, vectors[question.text]))
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
    """Give questions while the documents that answer them are not in the index."""
    holders, documents = defaultdict(set), {one.doc_id: one for one in bench.documents}
    for node in index.nodes():
        for item in data.covers(node):
            holders[item].add(node.ref_doc_id)
    by_documents = defaultdict(list)
    for question in own:
        by_documents[frozenset(one for item in question.gold for one in holders[item])].append(
            question
        )
    usable = [
        key for key in by_documents if key and all(len(documents[one].text) < LARGE for one in key)
    ]
    given = 0
    for key in rng.sample(usable, len(usable)):
        if given >= most:
            return
        for one in key:
            index.delete(one)
        for question in by_documents[key][:8]:
            given += 1
            yield Question(question.text, frozenset(), question.collection)
        index.refresh([documents[one] for one in key], confirm=True)


# The fit


def sample_of(asked: Sequence[Asked]) -> tuple[list[Asked], Floats, Floats]:
    """Return the questions that count for a fit, which have an answer, and their weights.

    Together 1,000.
    """
    wrong = (
        [one for one in asked if one.kind in kinds]
        for kinds in (set(NONSENSE), {STRANGER}, {REMOVED})
    )
    every = [(1 / 2, [one for one in asked if one.answered]), *((1 / 6, part) for part in wrong)]
    parts = [(share, part) for share, part in every if part]
    chosen = [one for _, part in parts for one in part]
    weights = np.array([1000 * share / len(part) for share, part in parts for _ in part])
    return chosen, np.array([one.answered for one in chosen], float), weights


def fit(sets: Sequence[Sequence[Asked]], models: Mapping[str, Sequence[str]]) -> Weights:
    """Constant and weights of each model, by logistic regression.

    Each set counts as much as another.
    """
    chosen, truth, weights = zip(*map(sample_of, sets), strict=True)
    y, w = np.concatenate(truth), np.concatenate(weights)
    found: Weights = {}
    for model, names in models.items():
        cosines = {"local": MINILM, "e5": E5}.get(model.split()[0], "")
        evidence = [one.evidence._replace(model=cosines) for part in chosen for one in part]
        rows = [[1.0, *(one.features()[name] for name in names)] for one in evidence]
        values = dict(
            zip(
                ("constant", *names),
                regression(np.array(rows), y, w).round(1).tolist(),
                strict=True,
            )
        )
        found[model] = values
    return found


def regression(inputs: Floats, y: Floats, w: Floats) -> Floats:
    """Logistic regression by Newton's method, shrunk a little."""
    found, shrink = np.zeros(inputs.shape[1]), 0.05 * np.diag([0, *np.ones(inputs.shape[1] - 1)])
    for _ in range(60):
        chance = 1 / (1 + np.exp(-inputs @ found))
        slope = inputs.T @ (w * (y - chance)) - shrink @ found
        bend = (inputs * (w * chance * (1 - chance))[:, None]).T @ inputs + shrink
        found += np.linalg.solve(bend + 1e-9 * np.eye(len(bend)), slope)
    return found


def chances(asked: Sequence[Asked], weights: Weights) -> Floats:
    """Return the relevance of each question, as the package computes it."""
    return np.array([relevance(one.evidence, weights) or 0.0 for one in asked])


def reliability(
    sets: Mapping[str, list[Asked]], fits: Mapping[str, Weights]
) -> tuple[list[list[object]], Floats]:
    """Rows of expected calibration error and of the share above .5 for each set.

    And the curve over all of them.

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
        high = [100 * np.average(p[y == 0] > 0.5, weights=w[y == 0])]
        for kinds in (set(NONSENSE), {STRANGER}, {REMOVED}, {OWN}):
            part = [value for value, one in zip(p, chosen, strict=True) if one.kind in kinds]
            high.append(100 * np.mean(np.array(part) > 0.5) if part else float("nan"))
        error = np.abs(own[:, 1] - own[:, 2]).sum() / w.sum()
        rows.append([name, f"{error:.3f}", *(f"{one:.0f}" for one in high)])
    return rows, curve


def costs(sets: Mapping[str, list[Asked]], fits: Mapping[str, Weights]) -> list[list[object]]:
    """For each set and cut: firsts and recall that are lost, and how much finds nothing."""
    rows: list[list[object]] = []
    for name, asked in sets.items():
        own = [one for one in asked if one.kind == OWN]
        depths = (1, 3, 5) if name == "course-lessons" else (5, 10, 20)
        p = chances(own, fits[name])
        for cut in CUTS:
            gone = [chance * one.shares < cut for one, chance in zip(own, p, strict=True)]
            firsts = sum(
                int((one.firsts & cut_off).sum()) for one, cut_off in zip(own, gone, strict=True)
            )
            total = sum(int(one.firsts.sum()) for one in own)
            lost = [
                100
                * np.mean(
                    [
                        (one.gained * cut_off)[:k].sum()
                        for one, cut_off in zip(own, gone, strict=True)
                    ]
                )
                for k in depths
            ]
            cells = []
            for kind in (*NONSENSE, STRANGER, REMOVED):
                part = [one for one in asked if one.kind == kind]
                cells.append(f"{np.mean(chances(part, fits[name]) < cut):.0%}" if part else "")
            rows.append(
                [name, f"{cut:g}", f"{firsts} of {total}", *(f"{one:.2f}" for one in lost), *cells]
            )
    return rows


def main() -> None:
    """Print the weights, how well the figure is calibrated, and what cuts cost."""
    options = command_line(__doc__, embedding=tuple(SETS), sets=[str], write=False)
    known = SETS[options.embedding]
    names = options.sets or list(known)
    if len(names) == 1:
        sys.exit("--sets: each is left out of a fit, so there have to be two")
    rng = random.Random(7)  # noqa: S311  no secret
    embedding, models = RememberingEmbedding(options.embedding), MODELS[options.embedding]
    data = {name: known[name]() for name in names}
    sample = {
        name: [one.text for one in rng.sample(each.questions, min(60, len(each.questions)))]
        for name, each in data.items()
    }
    sets = {}
    for name, each in data.items():
        other = [key for key in sample if key != name]
        sets[name] = answers_of(each, [text for key in other for text in sample[key]], embedding)
        print(f"{name}: {len(sets[name])} asked", flush=True)
    fits = {
        name: fit([asked for key, asked in sets.items() if key != name], models) for name in sets
    }
    shipped = fit([*sets.values()], models)
    rows, curve = reliability(sets, fits)
    tenths = [
        [
            f"{low:.1f} to {high:.1f}",
            f"{100 * w / curve[:, 0].sum():.1f}",
            f"{p / w:.2f}",
            f"{y / w:.2f}",
        ]
        for (low, high), (w, p, y) in zip(pairwise(np.linspace(0, 1, BINS + 1)), curve, strict=True)
        if w
    ]
    numbers = ("constant", "nearest", "cosine", "words", "lead")
    weights = [[name, *(one.get(key, "") for key in numbers)] for name, one in shipped.items()]
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
            ["relevance", "share of questions, %", "mean relevance", "with an answer"], tenths
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
