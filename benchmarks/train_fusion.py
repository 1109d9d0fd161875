"""Train the model of ``mode="learned"`` and say what it gives on sets that it was not trained on.

    python benchmarks/train_fusion.py [--sets NAME ...] [--pages 500] [--chats 6] [--try] [--write] [--out FILE]

Every figure is leave-one-set-out: the row of a set comes from weights that were trained on the other sets only, and is
the difference from the fusion by reciprocal ranks (weights .4 and .6, k = 20), with a 95 % paired bootstrap interval
over the questions. Recall is at 5, 10 and 20 chunks, of course-lessons at 1, 3 and 5. Each set counts as much as
another in training. ``--try`` adds one row for each feature that was left out and for each that is in.

The loss is a listwise softmax: minus the logarithm of the share that candidates with gold have of the pool. Weights
trained on all sets are then scaled to log-odds by logistic regression on the first 20 candidates of each question, and
on those of questions that were asked of another conversation, which cannot answer them. ``--write`` replaces the model
that the package ships.

The weight of dates is no result of that training: only locomo-notes asks for days of dated notes. A table of its own
says what several weights give on the first and on the second half of those questions, whose conversations differ; now
is the day of a conversation's last note.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from common import RememberingEmbedding, intervals, machine, markdown_table
from datasets import (
    DataSet,
    chat_notes,
    chunking_evaluation,
    codebases,
    course_lessons,
    kubernetes_docs,
    locomo_notes,
)
from llama_index.core.schema import QueryBundle
from retrieval import POOL, Bench, Row

from llama_index_contextual.metadata import DATE
from llama_index_contextual.retrieval import learned
from llama_index_contextual.retrieval.fusion import Mode, Ranking, fuse, fuse_learned
from llama_index_contextual.retrieval.signals import signals_of
from llama_index_contextual.text import parse_day

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import date

    from llama_index_contextual.keyword import Candidate
    from llama_index_contextual.retrieval.bm25 import ContextualBM25Retriever

SETS: Final[dict[str, Callable[[], DataSet]]] = {
    "codebases": codebases,
    "locomo-notes": locomo_notes,
    "kubernetes-docs": kubernetes_docs,
    "chunking-evaluation": chunking_evaluation,
    "course-lessons": course_lessons,
    "chat-notes": chat_notes,
}
FEATURES: Final = ("vector", "keyword", "match", "nearness", "date")
TRAINED: Final = len(FEATURES) - 1  # all but the date
DATE_WEIGHT: Final = 1.0
NAMES_WEIGHT: Final = 8.0  # above what all others give together: no set asks for names
TRIED: Final = ("cosine", "words", "title", "rest", "first", "length", "ranks")
WIDTH: Final = 2 * POOL
STEPS, RATE, SHRINK = 300, 0.04, 0.01  # Adam on standardised features
_UNIT: Final = dict.fromkeys(FEATURES, 1.0)
_KINDS: Final = {"vector": False, "keyword": True}


@dataclass
class Pools:
    """The candidates of all questions of a set, padded to ``WIDTH``; Q is the number of questions.

    Attributes:
        name: The set's.
        features: Shape (Q, WIDTH, features), those of the model first, then those that were tried.
        ranks, scores: What fusion by ranks and by scores give, shape (Q, WIDTH); minus infinity beyond the pool.
        covered: Whether a candidate covers an item of gold, shape (Q, WIDTH, items); items found together are one.
        worth: The share of the question's gold that an item stands for, shape (Q, items).
    """

    name: str
    features: Any
    ranks: Any
    scores: Any
    covered: Any
    worth: Any

    @property
    def gold(self) -> Any:
        """Whether a candidate covers any gold, shape (Q, WIDTH)."""
        return self.covered.any(axis=2)

    def measure(self, scores: Any) -> Any:
        """Recall at three depths and the reciprocal rank, in per cent, shape (Q, 4)."""
        order = np.argsort(-scores, axis=1, kind="stable")[:, :20]
        seen = np.take_along_axis(self.covered, order[:, :, None], 1)
        ever = np.logical_or.accumulate(seen, 1)
        depths = (1, 3, 5) if self.name == "course-lessons" else (5, 10, 20)
        hits = seen.any(axis=2)
        first = np.where(hits.any(axis=1), 1 / (1 + hits.argmax(axis=1)), 0.0)
        return 100 * np.stack([*((ever[:, k - 1] * self.worth).sum(axis=1) for k in depths), first], 1)


def collect(data: DataSet, embedding: RememberingEmbedding, *, extra: bool, wrong: bool = False) -> Pools:
    """Ask every question and note the features of its candidates.

    Args:
        data: The set.
        embedding: Of nodes and questions.
        extra: Also the features that were tried.
        wrong: Ask each question of the next collection, which cannot answer it.
    """
    context = "pattern" if data.chunks else "headings"
    names = list(data.documents)
    follows = dict(zip(names, [*names[1:], names[0]], strict=True))
    questions = [one for one in data.questions if one.collection in data.documents]
    vectors = embedding.get_text_embedding_batch([one.text for one in questions])
    rows: dict[int, Any] = {}
    for collection in names:
        bench = Bench(data, collection, embedding)
        row = Row("", context, context)
        vector, keyword = (
            bench.retriever(replace(row, sparse=None)),
            bench.retriever(replace(row, dense=None)),
        )
        nodes = {node.node_id: node for node in bench.nodes(context)}
        last = max((day for node in nodes.values() if (day := parse_day(node.metadata.get(DATE)))), default=None)
        covers = {node_id: data.covers(node) for node_id, node in nodes.items()}
        for number, question in enumerate(questions):
            if (follows[question.collection] if wrong else question.collection) != collection:
                continue
            bundle = QueryBundle(question.text, embedding=vectors[number])
            answers = {"vector": vector.candidates(bundle, POOL), "keyword": keyword.candidates(bundle, POOL)}  # type: ignore[attr-defined]
            ids, found, by_rank, by_score = _features(answers, keyword, question.text, last)  # type: ignore[arg-type]
            if extra:
                found = np.hstack([found, _tried(ids, answers, nodes, keyword, question.text, by_score)])  # type: ignore[arg-type]
            gold = [frozenset() if wrong else covers[one] & question.gold for one in ids]
            rows[number] = (found, by_rank, by_score, gold, len(question.gold))
    return _padded(data.name, [rows[number] for number in range(len(questions))])


def _features(
    answers: Mapping[str, Sequence[Candidate]], keyword: ContextualBM25Retriever, text: str, today: date | None
) -> tuple[list[str], Any, Any, Any]:
    """The candidates, the model's features of each, and its scores in the two older modes."""
    rankings = [Ranking("vector", 0, 0.4, answers["vector"]), Ranking("keyword", 0, 0.6, answers["keyword"])]
    ids = sorted({one.node_id for ranking in rankings for one in ranking.candidates})
    signals = signals_of(text, "keyword", keyword, ids, today)
    fused = {one.node_id: one for one in fuse_learned(rankings, _KINDS, signals, weights=_UNIT)}
    parts = [{one.arm: one.credit for one in fused[node_id].credits} for node_id in ids]
    found = np.array([[part.get(name, 0.0) for name in FEATURES] for part in parts]).reshape(-1, len(FEATURES))
    older = []
    for mode in (Mode.RECIPROCAL_RANK, Mode.DIST_BASED_SCORE):
        raw = {one.node_id: one.raw for one in fuse(rankings, mode=mode, k=20, pool=POOL)}
        older.append(np.array([raw[node_id] for node_id in ids]))
    return ids, found, older[0], older[1]


def _tried(
    ids: Sequence[str],
    answers: Mapping[str, Sequence[Candidate]],
    nodes: Mapping[str, Any],
    keyword: ContextualBM25Retriever,
    text: str,
    scores: Any,
) -> Any:
    """Features that did not carry over: see ``TRIED``."""
    terms = keyword.term_scores(text, ids)
    idfs = np.array(terms.idfs)
    total = idfs.sum() or 1.0
    cosine = {one.node_id: one.score or 0.0 for one in answers["vector"]}
    ranks = {one.node_id: rank for rank, one in enumerate(answers["keyword"], 1)}
    documents = [nodes[node_id].ref_doc_id or nodes[node_id].metadata.get("path") for node_id in ids]
    starts = Counter[Any]()
    rows = []
    for at, node_id in enumerate(ids):
        node = nodes[node_id]
        head = f"{node.metadata.get('path', '')} {node.metadata.get('header_path', '')}".replace("/", " ")
        title = set(keyword.analyzer.tokens(head))
        rest = [scores[i] for i, one in enumerate(documents) if one == documents[at] and i != at]
        starts[documents[at]] += 1
        rows.append(
            [
                cosine.get(node_id, min(cosine.values(), default=0.0)),
                float((terms.scores[at] > 0) @ idfs) / total,
                sum(idf for idf, group in zip(idfs, terms.groups, strict=True) if title & set(group)) / total,
                max(rest, default=0.0),
                float(node.metadata.get("start_line", 0) == 1),
                float(np.log(len(node.get_content()) + 1)),
                60 / (60 + ranks.get(node_id, 10**6)),
            ]
        )
    return np.array(rows).reshape(-1, len(TRIED))


def _padded(name: str, rows: Sequence[Any]) -> Pools:
    patterns = []
    for _, _, _, gold, _ in rows:
        by_item: dict[Any, list[int]] = {}
        for at, items in enumerate(gold):
            for item in items:
                by_item.setdefault(item, []).append(at)
        patterns.append(Counter(tuple(found) for found in by_item.values()))
    size, items = len(rows), max(1, *map(len, patterns))
    pools = Pools(
        name,
        np.zeros((size, WIDTH, rows[0][0].shape[1]), np.float32),
        np.full((size, WIDTH), -np.inf),
        np.full((size, WIDTH), -np.inf),
        np.zeros((size, WIDTH, items), bool),
        np.zeros((size, items)),
    )
    for number, (found, by_rank, by_score, _, total) in enumerate(rows):
        pools.features[number, : len(found)] = found
        pools.ranks[number, : len(found)] = by_rank
        pools.scores[number, : len(found)] = by_score
        for item, (at, count) in enumerate(patterns[number].items()):
            pools.covered[number, list(at), item] = True
            pools.worth[number, item] = count / total
    return pools


def train(sets: Sequence[Pools], columns: Sequence[int]) -> Any:
    """Weights of these features: a listwise softmax by Adam, each set with the same weight."""
    features = np.concatenate([one.features[:, :, columns] for one in sets])
    inside = np.concatenate([np.isfinite(one.ranks) for one in sets])
    gold = np.concatenate([one.gold for one in sets])
    share = np.concatenate([np.full(len(one.ranks), 1 / len(one.ranks)) for one in sets])
    able = gold.any(axis=1)
    features, inside, gold, share = features[able], inside[able], gold[able], share[able] / share[able].sum()
    middle, spread = features[inside].mean(axis=0), features[inside].std(axis=0) + 1e-6
    flat = ((features - middle) / spread * inside[:, :, None]).reshape(-1, len(columns))
    weights = first = second = np.zeros(len(columns))
    for step in range(1, STEPS + 1):
        scores = np.where(inside, (flat @ weights.astype(np.float32)).reshape(inside.shape), -np.inf)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        wanted = powers * gold
        error = powers / powers.sum(axis=1, keepdims=True) - wanted / wanted.sum(axis=1, keepdims=True)
        slope = (error * share[:, None]).astype(np.float32).reshape(-1) @ flat + SHRINK * weights
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        weights = weights - RATE * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-9)
    return weights / spread


def calibrate(sets: Sequence[Pools], wrong: Sequence[Pools], weights: Any) -> dict[str, float]:
    """The model in the scale of log-odds that a candidate among the first 20 has gold."""
    scores, gold, share = [], [], []
    for one in [*sets, *wrong]:
        raw = np.where(np.isfinite(one.ranks), one.features[:, :, : len(weights)] @ weights, -np.inf)
        order = np.argsort(-raw, axis=1, kind="stable")[:, :20]
        best = np.take_along_axis(raw, order, 1)
        scores.append(best[np.isfinite(best)])
        gold.append(np.take_along_axis(one.gold, order, 1)[np.isfinite(best)])
        share.append(np.full(len(scores[-1]), 1 / len(scores[-1])))
    x, y, w = np.concatenate(scores), np.concatenate(gold), np.concatenate(share)
    design = np.stack([np.ones(len(x)), x], 1)
    line = np.zeros(2)
    for _ in range(50):  # Newton
        chance = 1 / (1 + np.exp(-(design @ line)))
        curve = (design * (w * chance * (1 - chance))[:, None]).T @ design
        line = line + np.linalg.solve(curve + 1e-9 * np.eye(2), design.T @ (w * (y - chance)))
    scaled = dict(zip(FEATURES[:TRAINED], (line[1] * weights).round(3).tolist(), strict=True))
    return {**scaled, "date": DATE_WEIGHT, "names": NAMES_WEIGHT}


def dates(sets: Sequence[Pools], model: dict[str, float]) -> str:
    """A table of what the date gives where a question names the day of a note, by halves."""
    rows: list[list[object]] = []
    weights = np.array([model[name] for name in FEATURES[:TRAINED]])
    for one in sets:
        day = one.features[:, :, TRAINED]
        asked = np.flatnonzero((day > 0).any(axis=1))
        raw = np.where(np.isfinite(one.ranks), one.features[:, :, :TRAINED] @ weights, -np.inf)
        before = one.measure(raw)
        for half, part in zip(("first", "second"), np.array_split(asked, 2), strict=True):
            if len(part):
                rows.append([f"{one.name}, {half} half, {len(part)} questions", *before[part].mean(axis=0).tolist()])
                for weight in (0.5, DATE_WEIGHT, 1.5, 2.0):
                    gain = one.measure(raw + weight * day)[part] - before[part]
                    rows.append([f"with a weight of {weight:g}", *intervals(gain)])
    return markdown_table(["questions that name the day of a note", "recall", "", "", "MRR"], rows)


def left_out(sets: Sequence[Pools], columns: Sequence[int]) -> list[Any]:
    """For each set its measures by weights that were trained on the others."""
    found = []
    for one in sets:
        weights = train([other for other in sets if other is not one], columns)
        scores = np.where(np.isfinite(one.ranks), one.features[:, :, columns] @ weights, -np.inf)
        found.append(one.measure(scores))
    return found


def report(sets: Sequence[Pools], *, tried: bool) -> str:
    """The tables."""
    before = [one.measure(one.ranks) for one in sets]
    scores = [one.measure(one.scores) for one in sets]
    model = list(range(TRAINED))
    trained = left_out(sets, model)
    rows: list[list[object]] = []
    for one, old, by_score, new in zip(sets, before, scores, trained, strict=True):
        rows.append([f"{one.name}, {len(old)} questions: ranks", *old.mean(axis=0).tolist()])
        rows.append(["scores less ranks", *intervals(by_score - old)])
        rows.append(["learned, left out, less ranks", *intervals(new - old)])
    parts = [markdown_table(["", "recall", "", "", "MRR"], rows)]
    choices: list[tuple[str, list[Any]]] = [("by scores", scores), ("learned", trained)]
    names = [*FEATURES, *TRIED]
    if tried:
        choices += [(f"without {names[at]}", left_out(sets, [one for one in model if one != at])) for at in model]
        choices += [(f"with {names[at]}", left_out(sets, [*model, at])) for at in range(len(FEATURES), len(names))]
    rows = []
    for name, found in choices:
        gains = np.array([(new - old).mean(axis=0) for new, old in zip(found, before, strict=True)])
        rows.append(
            [name, *(f"{gain:+.1f}" for gain in gains.mean(axis=0)), *(f"{gain:+.1f}" for gain in gains.min(axis=0))]
        )
    header = ["mean over sets, left out, less ranks", "recall", "", "", "MRR", "worst set: recall", "", "", "MRR"]
    return "\n\n".join([*parts, markdown_table(header, rows)])


def main() -> None:
    """Train, report, and write where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--pages", type=int, help="of kubernetes-docs, the ones with answers first; all by default")
    parser.add_argument("--chats", nargs="+", help="of chat-notes; all by default")
    parser.add_argument("--try", dest="tried", action="store_true", help="add rows for single features")
    parser.add_argument("--write", action="store_true", help="replace the model of the package")
    parser.add_argument("--out", type=Path, help="write the tables to this file too")
    options = parser.parse_args()
    embedding = RememberingEmbedding()
    sets, wrong = [], []
    for name in options.sets:
        started = time.monotonic()
        data = kubernetes_docs(options.pages) if name == "kubernetes-docs" else SETS[name]()
        if name == "chat-notes" and options.chats:
            data = replace(data, documents={chat: data.documents[chat] for chat in options.chats})
        sets.append(collect(data, embedding, extra=options.tried))
        if len(data.documents) > 1:
            wrong.append(collect(data, embedding, extra=options.tried, wrong=True))
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    text = f"Machine: {machine()}; embedding all-MiniLM-L6-v2-int8.\n\n{report(sets, tried=options.tried)}"
    model = calibrate(sets, wrong, train(sets, range(TRAINED)))
    text += f"\n\n{dates(sets, model)}"
    content = json.dumps({"weights": model}, indent=2)
    text += f"\n\nTrained on all of them:\n\n```json\n{content}\n```\n"
    print(text)
    if options.out:
        options.out.write_text(text, "utf-8")
    if options.write:
        Path(learned.__file__).with_name("learned.json").write_text(content + "\n", "utf-8")


if __name__ == "__main__":
    main()
