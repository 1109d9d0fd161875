"""Train relevance, and measure what it is worth: questions with known answers against questions without one.

    python benchmarks/relevance.py [--embedding local|e5] [--sets NAME ...] [--write] [--out FILE]

Every set is an index or several, asked through ``ContextualIndex``. Four kinds of questions have no answer:

=========== ==========================================================================================================
nonsense    34 of keyboard mash, 33 in 21 other languages, 33 English ones of general knowledge
strangers   questions of other sets, in the same language and partly on kindred subjects
removed     questions of the set whose notes were deleted from the index, asked, and put back
half known  a known and an invented word; only for the table of what finds nothing
=========== ==========================================================================================================

Nonsense, strangers and removed ones weigh the same, and together as much as the questions whose gold is among the first
20 hits. All figures of a set come from weights that were fitted without it; ``examples/notes`` is never fitted on. Its
questions "in other words" have to find something. "Firsts" are questions whose gold stands first in the answer of the
vector arm or of the keyword arm: no default may cut those.
"""

from __future__ import annotations

import argparse
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from common import RememberingEmbedding, machine, markdown_table
from datasets import (
    NONSENSE,
    DataSet,
    codebases,
    course_lessons,
    first_collections,
    german_judgments,
    japanese_articles,
    locomo_notes,
)
from languages import both_languages
from relevance_questions import HALF, NOTES, OTHER, OWN, REMOVED, STRANGER, Asked, answers_of, example_notes

from llama_index_contextual import retrieval
from llama_index_contextual.retrieval.explain import LEAST, relevance
from llama_index_contextual.retrieval.vector import E5, MINILM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Floats = Any  # a numpy array of float64
Weights = dict[str, dict[str, float]]

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
# What each model weighs; "other" stands for embeddings whose cosines are stretched from the pool's lowest to 1.
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


def sample_of(asked: Sequence[Asked]) -> tuple[list[Asked], Floats, Floats]:
    """The questions that count for a fit, which of them have an answer, and what each weighs; together 1,000."""
    wrong = ([one for one in asked if one.kind in kinds] for kinds in (set(NONSENSE), {STRANGER}, {REMOVED}))
    every = [(1 / 2, [one for one in asked if one.answered]), *((1 / 6, part) for part in wrong)]
    parts = [(share, part) for share, part in every if part]
    chosen = [one for _, part in parts for one in part]
    weights = np.array([1000 * share / len(part) for share, part in parts for _ in part])
    return chosen, np.array([one.answered for one in chosen], float), weights


def fit(sets: Sequence[Sequence[Asked]], models: Mapping[str, Sequence[str]]) -> Weights:
    """Constant and weights of each model, by logistic regression; each set counts as much as another."""
    chosen, truth, weights = zip(*map(sample_of, sets), strict=True)
    y, w = np.concatenate(truth), np.concatenate(weights)
    found: Weights = {}
    for model, names in models.items():
        cosines = {"local": MINILM, "e5": E5}.get(model.split()[0], "")
        evidence = [one.evidence._replace(model=cosines) for part in chosen for one in part]
        rows = [[1.0, *(one.features()[name] for name in names)] for one in evidence]
        values = dict(zip(("constant", *names), regression(np.array(rows), y, w).round(1).tolist(), strict=True))
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
    """The relevance of each question, as the package computes it."""
    return np.array([relevance(one.evidence, weights) or 0.0 for one in asked])


def left_out(sets: Mapping[str, list[Asked]], models: Mapping[str, Sequence[str]]) -> dict[str, Weights]:
    """For each set the weights that were fitted without it."""
    return {name: fit([asked for key, asked in sets.items() if key not in {name, NOTES}], models) for name in sets}


def reliability(sets: Mapping[str, list[Asked]], fits: Mapping[str, Weights]) -> tuple[list[list[object]], Floats]:
    """Rows of expected calibration error and of the share above .5 for each set; and the curve over all of them.

    The curve has a row for each tenth: summed weight, relevance times weight, weight of those that are answered.
    """
    rows: list[list[object]] = []
    curve = np.zeros((BINS, 3))
    for name, asked in sets.items():
        if name == NOTES:
            continue
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
            firsts = sum(int((one.firsts & cut_off).sum()) for one, cut_off in zip(own, gone, strict=True))
            total = sum(int(one.firsts.sum()) for one in own)
            lost = [
                100 * np.mean([(one.gained * cut_off)[:k].sum() for one, cut_off in zip(own, gone, strict=True)])
                for k in depths
            ]
            cells = []
            for kind in (*NONSENSE, STRANGER, REMOVED, OTHER, HALF):
                part = [one for one in asked if one.kind == kind]
                cells.append(f"{np.mean(chances(part, fits[name]) < cut):.0%}" if part else "")
            rows.append([name, f"{cut:g}", f"{firsts} of {total}", *(f"{one:.2f}" for one in lost), *cells])
    return rows


def main() -> None:
    """Print the weights, how well the figure is calibrated, and what cuts cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embedding", choices=list(SETS), default="local")
    parser.add_argument("--sets", nargs="+", help="only these")
    parser.add_argument("--write", action="store_true", help="replace the weights of the package")
    parser.add_argument("--out", type=Path, help="write the tables to this file too")
    options = parser.parse_args()
    if len(options.sets or SETS[options.embedding]) == 1:
        parser.error("--sets: each is left out of a fit, so there have to be two")
    rng = random.Random(7)  # noqa: S311  no secret
    embedding, models, known = (
        RememberingEmbedding(options.embedding),
        MODELS[options.embedding],
        SETS[options.embedding],
    )
    data = {name: known[name]() for name in options.sets or known}
    sample = {
        name: [one.text for one in rng.sample(each.questions, min(60, len(each.questions)))]
        for name, each in data.items()
    }
    sets = {}
    for name, each in {**data, NOTES: example_notes()}.items():
        other = [key for key in sample if key != name]
        sets[name] = answers_of(each, [text for key in other for text in sample[key]], embedding)
        print(f"{name}: {len(sets[name])} asked", flush=True)
    fits, shipped = left_out(sets, models), fit([asked for name, asked in sets.items() if name != NOTES], models)
    rows, curve = reliability(sets, fits)
    numbers = ("constant", "nearest", "cosine", "words", "lead")
    parts = [
        machine(),
        "Fitted on all sets:",
        markdown_table(
            ["model", *numbers], [[name, *(one.get(key, "") for key in numbers)] for name, one in shipped.items()]
        ),
        "Calibration, each set left out; above .5, %:",
        markdown_table(["left out", "error", "unanswered", "nonsense", STRANGER, REMOVED, "with an answer"], rows),
        "The curve, all sets:",
        markdown_table(
            ["relevance", "share of questions, %", "mean relevance", "with an answer"],
            [
                [f"{low:.1f} to {high:.1f}", f"{100 * w / curve[:, 0].sum():.1f}", f"{p / w:.2f}", f"{y / w:.2f}"]
                for (low, high), (w, p, y) in zip(pairwise(np.linspace(0, 1, BINS + 1)), curve, strict=True)
                if w
            ],
        ),
        "What a cut costs, each set left out:",
        markdown_table(
            [
                "left out",
                "cut",
                "firsts lost",
                "recall lost at 5 (1)",
                "10 (3)",
                "20 (5)",
                *(f"{kind}: nothing" for kind in (*NONSENSE, STRANGER, REMOVED, OTHER, HALF)),
            ],
            costs(sets, fits),
        ),
    ]
    text = "\n\n".join(parts)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", "utf-8")
    if options.write:
        target = Path(retrieval.__file__).with_name("relevance.json")
        weights = {**json.loads(target.read_text("utf-8"))["weights"], **shipped}
        target.write_text(json.dumps({"weights": weights}, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
