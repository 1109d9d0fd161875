"""Train the weights of the package's models, and cross-validate them over the sets.

    python benchmarks/train.py ranking|code|messages [--sets NAME ...] [--write]

The features are those of ``retrievers/features.py``: a new one is trained as soon as it is in that
list. A retriever explains each question, with the value of each feature for each candidate. The
loss is a listwise softmax: minus the logarithm of the share of the candidates with gold, by Adam on
standardised values, shrunk, each set with the same weight. ``ranking`` trains on chunks,
``messages`` on sessions, and ``code`` on the best chunk of each file, beside all other features as
they are. ``ranking`` is put into the scale of log-odds that a candidate among the first 20 has
gold. ``--write`` replaces the weights of the package: those of the classes, or of ``weights.json``.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from code_search import gain_of
from common import RememberingEmbedding, command_line, intervals, machine, markdown_table
from datasets import DataSet, code_search, kubernetes_docs, realmem_notes
from llama_index.core.schema import QueryBundle
from memory import asked_in_time, message_hits
from retrieval import SETS, Bench, Row

from llama_index_contextual import retrievers
from llama_index_contextual.retrievers.features import FEATURES
from llama_index_contextual.retrievers.rankings import shipped_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from llama_index_contextual.retrievers.explanation import Hit

    Floats = npt.NDArray[np.float64]

# Chosen by hand: hardly a question of the sets has a date, a name or parts, and the sets differ in
# the heading and in proper names.
CHOSEN: Final = {"date", "heading", "proper name", "names", "further chunk", "part"}
CODE: Final = {"file name", "defines", "exact", "file vector", "tests"}
RANKING: Final = "ranking"
CODE_RANKING: Final = "code"
MESSAGES: Final = "messages"
_RANKING_WEIGHTS: Final = {feature.name: feature.weight for feature in FEATURES}
SHIPPED: Final[dict[str, dict[str, float]]] = {
    RANKING: _RANKING_WEIGHTS,
    CODE_RANKING: _RANKING_WEIGHTS,
    MESSAGES: shipped_weights(MESSAGES),
}
TRAINED: Final = {
    RANKING: tuple(name for name in _RANKING_WEIGHTS if name not in CHOSEN | CODE),
    CODE_RANKING: tuple(name for name in _RANKING_WEIGHTS if name in CODE),
    MESSAGES: tuple(SHIPPED[MESSAGES]),
}
LEARNED: Final = (
    "codebases",
    "course-lessons",
    "locomo-notes",
    "kubernetes-docs",
    "chat-notes",
)
KUBERNETES_PAGES: Final = 300
STEPS: Final = 400
RATE: Final = 0.05  # of Adam
MOMENTUM: Final = 0.9
SQUARE_MOMENTUM: Final = 0.999
NEWTON_STEPS: Final = 50
SHRINK: Final = {
    RANKING: 0.01,
    CODE_RANKING: 0.003,
    MESSAGES: 0.1,
}
SHOWN: Final = 20


class Pool(NamedTuple):
    """The candidates of a question, one row each.

    Attributes:
        values: The values of the features that are trained.
        base: The sum of all other features.
        gold: Which candidates have gold.
        groups: The file or the session of each; a group counts at its best candidate.
    """

    values: Floats
    base: Floats
    gold: npt.NDArray[np.bool_]
    groups: Sequence[str]

    def order(self, weights: Floats) -> list[int]:
        """Return the best candidate of each group, best first."""
        scores = self.base + self.values @ weights
        order = np.argsort(-scores, kind="stable")
        best_row: dict[str, int] = {}
        for row in order.tolist():
            group = self.groups[row]
            best_row.setdefault(group, row)
        return list(best_row.values())

    def measure(self, weights: Floats) -> list[float]:
        """Return recall at 5 and 20, the first reciprocal rank and nDCG@10, in per cent."""
        order = self.order(weights)
        is_gold = self.gold[order]
        reciprocal_rank = 0.0
        if is_gold.any():
            reciprocal_rank = 1 / (1 + is_gold.argmax())
        gold_rows = np.flatnonzero(self.gold)
        gold_groups = frozenset(self.groups[row] for row in gold_rows)
        gain = 0.0
        if gold_groups:
            ranking = [self.groups[row] for row in order]
            gain = gain_of(ranking, gold_groups)
        shares = [
            is_gold[:5].any(),
            is_gold[:SHOWN].any(),
            reciprocal_rank,
            gain,
        ]
        return [100 * float(share) for share in shares]


def pool_of(
    hits: Sequence[Hit],
    model: str,
    gold: Sequence[bool],
    groups: Sequence[str],
) -> Pool:
    """Return the pool of an explained question."""
    names = TRAINED[model]
    weights = SHIPPED[model]
    values = np.zeros((len(hits), len(names)))
    base = np.zeros(len(hits))
    for row, hit in enumerate(hits):
        for credit in hit.credits:
            if credit.name in names:
                column = names.index(credit.name)
                values[row, column] = credit.credit / weights[credit.name]
            elif credit.name != "turn":  # which follows from the others
                base[row] += credit.credit
    return Pool(values, base, np.array(gold, dtype=bool), list(groups))


def pools_of(
    data: DataSet,
    collection: str,
    model: str,
    embedding: RememberingEmbedding,
) -> Iterator[Pool]:
    """Yield the pool of each question about a collection.

    A group is a file of code, or else a chunk.
    """
    bench = Bench(data, collection, embedding)
    row = Row("", data.context, data.context)
    retriever: Any = bench.retriever(row)
    for question in data.questions:
        if question.collection != collection:
            continue
        query_vector = embedding.get_query_embedding(question.text)
        bundle = QueryBundle(question.text, embedding=query_vector)
        hits = retriever.explain(bundle).hits
        gold = []
        groups = []
        for hit in hits:
            node = hit.node.node
            covered = data.covers(node)
            gold.append(not covered.isdisjoint(question.gold))
            groups.append(str(node.ref_doc_id) if model == CODE_RANKING else hit.node_id)
        yield pool_of(hits, model, gold, groups)


def pools_of_questions(
    names: Sequence[str],
    embedding: RememberingEmbedding,
) -> Iterator[tuple[str, list[Pool]]]:
    """Yield the pools of each set of questions."""
    for name in names or LEARNED:
        if name == "kubernetes-docs":
            data = kubernetes_docs(KUBERNETES_PAGES)
        else:
            data = SETS[name]()
        pools: list[Pool] = []
        for collection in data.documents:
            pools += pools_of(data, collection, RANKING, embedding)
        yield name, pools


def pools_of_code(
    names: Sequence[str],
    embedding: RememberingEmbedding,
) -> Iterator[tuple[str, list[Pool]]]:
    """Yield the pools of each repository of code-search."""
    data = code_search()
    for name in names or data.documents:
        pools = pools_of(data, name, CODE_RANKING, embedding)
        yield name, list(pools)


def pools_of_messages(
    names: Sequence[str],
    embedding: RememberingEmbedding,
) -> Iterator[tuple[str, list[Pool]]]:
    """Yield the pools of each person of realmem-notes.

    A message is a query for the notes before its own.
    """
    pools = defaultdict[str, list[Pool]](list)
    messages = realmem_notes()
    if names:
        messages = [message for message in messages if message.conversation in names]
    for message, index in asked_in_time(messages, embedding):
        hits = message_hits(index, message)
        notes = [str(hit.node.node.metadata["path"]) for hit in hits]
        gold = [note in message.gold for note in notes]
        pool = pool_of(hits, MESSAGES, gold, notes)
        pools[message.conversation].append(pool)
    yield from pools.items()


COLLECT: Final = {
    RANKING: pools_of_questions,
    CODE_RANKING: pools_of_code,
    MESSAGES: pools_of_messages,
}


def train(sets: Sequence[Sequence[Pool]], shrink: float) -> Floats:
    """Return the weights of the features."""
    usable = []
    for pools in sets:
        share = 1 / len(pools) / len(sets)
        usable += [(pool, share) for pool in pools if pool.gold.any()]
    all_values = np.concatenate([pool.values for pool, _ in usable])
    spread = all_values.std(axis=0) + 1e-6
    weights = np.zeros(all_values.shape[1])
    mean_slope = np.zeros_like(weights)
    mean_square = np.zeros_like(weights)
    for step in range(1, STEPS + 1):
        slope = shrink * weights
        for pool, share in usable:
            slope = slope + share * slope_of(pool, weights, spread)
        mean_slope = MOMENTUM * mean_slope + (1 - MOMENTUM) * slope
        mean_square = SQUARE_MOMENTUM * mean_square + (1 - SQUARE_MOMENTUM) * slope**2
        unbiased_slope = mean_slope / (1 - MOMENTUM**step)
        unbiased_square = mean_square / (1 - SQUARE_MOMENTUM**step)
        step_size = RATE / (np.sqrt(unbiased_square) + 1e-9)
        weights = weights - step_size * unbiased_slope
    return weights / spread


def slope_of(pool: Pool, weights: Floats, spread: Floats) -> Floats:
    """Return the slope of the loss of a question, by standardised weights."""
    rows = list(range(len(pool.groups)))
    if len(set(pool.groups)) < len(pool.groups):
        rows = pool.order(weights / spread)
    values = pool.values[rows] / spread
    scores = pool.base[rows] + values @ weights
    powers = np.exp(scores - scores.max())
    is_gold = pool.gold[rows]
    gold_powers = powers * is_gold if is_gold.any() else powers
    shares = powers / powers.sum()
    gold_shares = gold_powers / gold_powers.sum()
    slope: Floats = (shares - gold_shares) @ values
    return slope


def scale_of(sets: Sequence[Sequence[Pool]], weights: Floats) -> float:
    """Return the factor that turns scores into log-odds of gold among 20, by Newton's method."""
    scores = []
    gold = []
    for pool in chain.from_iterable(sets):
        rows = pool.order(weights)[:SHOWN]
        scores.append(pool.values[rows] @ weights)
        gold.append(pool.gold[rows])
    all_scores = np.concatenate(scores)
    all_gold = np.concatenate(gold).astype(np.float64)
    constant = np.ones(len(all_scores))
    design = np.stack([constant, all_scores], axis=1)
    line = np.zeros(2)
    for _ in range(NEWTON_STEPS):
        chance = 1 / (1 + np.exp(-(design @ line)))
        variance = chance * (1 - chance)
        curve = (design * variance[:, None]).T @ design
        curve = curve + 1e-9 * np.eye(2)
        slope = design.T @ (all_gold - chance)
        line = line + np.linalg.solve(curve, slope)
    _, factor = line
    return float(factor)


def write(model: str, trained: dict[str, float]) -> None:
    """Replace the weights of the package."""
    folder = Path(retrievers.__file__).parent
    if model == MESSAGES:
        file = folder / "weights.json"
        sections = json.loads(file.read_text("utf-8"))
        sections[model] = trained
        file.write_text(json.dumps(sections, indent=2) + "\n", "utf-8")
        return
    file = folder / "features.py"
    source = file.read_text("utf-8")
    for name in TRAINED[model]:
        before_weight = rf'(name = "{name}"\n    weight = )'
        source = re.sub(f"{before_weight}.+", rf"\g<1>{trained[name]}", source)
    file.write_text(source, "utf-8")


def cross_validate(
    sets: Mapping[str, Sequence[Pool]],
    shipped: Floats,
    shrink: float,
) -> list[list[object]]:
    """Return what weights find on each set that were trained on the other sets."""
    rows: list[list[object]] = []
    for name, pools in sets.items():
        other_sets = [sets[other_name] for other_name in sets if other_name != name]
        weights = shipped
        if other_sets:
            weights = train(other_sets, shrink)
        trained_scores = np.array([pool.measure(weights) for pool in pools])
        shipped_scores = np.array([pool.measure(shipped) for pool in pools])
        means = trained_scores.mean(axis=0)
        differences = intervals(trained_scores - shipped_scores)
        rows.append([f"{name}, {len(pools)}", *means])
        rows.append(["less the shipped weights", *differences])
    return rows


def main() -> None:
    """Train, report, and write the weights if the command line says so."""
    options = command_line(__doc__, model=tuple(TRAINED), sets=[str], write=False)
    model = options.model
    shrink = SHRINK[model]
    names = TRAINED[model]
    embedding = RememberingEmbedding()
    sets = dict(COLLECT[model](options.sets or (), embedding))

    # Cross-validate.
    shipped = np.array([SHIPPED[model][name] for name in names])
    rows = cross_validate(sets, shipped, shrink)
    table = markdown_table(["left out", "@5", "@20", "MRR", "nDCG@10"], rows)

    # Train on all sets.
    pools = list(sets.values())
    weights = train(pools, shrink)
    if model == RANKING:
        weights = weights * scale_of(pools, weights)
    rounded_weights = weights.round(3).tolist()
    trained = dict(SHIPPED[model])
    trained.update(zip(names, rounded_weights, strict=True))
    print(f"{machine()}\n\n{table}\n\n{json.dumps(trained, indent=2)}")
    if options.write:
        write(model, trained)


if __name__ == "__main__":
    main()
