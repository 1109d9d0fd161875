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
_RANKING: Final = {feature.name: feature.weight for feature in FEATURES}
SHIPPED: Final[dict[str, dict[str, float]]] = {
    "ranking": _RANKING,
    "code": _RANKING,
    "messages": shipped_weights("messages"),
}
TRAINED: Final = {
    "ranking": tuple(name for name in _RANKING if name not in CHOSEN | CODE),
    "code": tuple(name for name in _RANKING if name in CODE),
    "messages": tuple(SHIPPED["messages"]),
}
LEARNED: Final = ["codebases", "course-lessons", "locomo-notes", "kubernetes-docs", "chat-notes"]
STEPS: Final = 400
RATE: Final = 0.05  # of Adam
MOMENTUM: Final = 0.9
SQUARE_MOMENTUM: Final = 0.999
NEWTON_STEPS: Final = 50
SHRINK: Final = {"ranking": 0.01, "code": 0.003, "messages": 0.1}
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
        best: dict[str, int] = {}
        for row in np.argsort(-(self.base + self.values @ weights), kind="stable").tolist():
            best.setdefault(self.groups[row], row)
        return list(best.values())

    def measure(self, weights: Floats) -> list[float]:
        """Return recall at 5 and 20, the first reciprocal rank and nDCG@10, in per cent."""
        order = self.order(weights)
        is_gold = self.gold[order]
        gold_groups = frozenset(self.groups[row] for row in np.flatnonzero(self.gold))
        gain = 0.0
        if gold_groups:
            gain = gain_of([self.groups[row] for row in order], gold_groups)
        first = 1 / (1 + is_gold.argmax()) if is_gold.any() else 0.0
        shares = [is_gold[:5].any(), is_gold[:SHOWN].any(), first, gain]
        return [100 * float(share) for share in shares]


def pool_of(hits: Sequence[Hit], model: str, gold: Sequence[bool], groups: Sequence[str]) -> Pool:
    """Return the pool of an explained question."""
    names = TRAINED[model]
    weights = SHIPPED[model]
    values = np.zeros((len(hits), len(names)))
    base = np.zeros(len(hits))
    for row, hit in enumerate(hits):
        for credit in hit.credits:
            if credit.name in names:
                values[row, names.index(credit.name)] = credit.credit / weights[credit.name]
            elif credit.name != "turn":  # which follows from the others
                base[row] += credit.credit
    return Pool(values, base, np.array(gold, dtype=bool), list(groups))


def pools_of(
    data: DataSet, collection: str, model: str, embedding: RememberingEmbedding
) -> Iterator[Pool]:
    """Yield the pool of each question about a collection.

    A group is a file of code, or else a chunk.
    """
    bench = Bench(data, collection, embedding)
    retriever: Any = bench.retriever(Row("", data.context, data.context))
    for question in data.questions:
        if question.collection != collection:
            continue
        vector = embedding.get_query_embedding(question.text)
        hits = retriever.explain(QueryBundle(question.text, embedding=vector)).hits
        gold = [bool(data.covers(hit.node.node) & question.gold) for hit in hits]
        groups = [hit.node_id for hit in hits]
        if model == "code":
            groups = [str(hit.node.node.ref_doc_id) for hit in hits]
        yield pool_of(hits, model, gold, groups)


def pools_of_questions(
    names: Sequence[str], embedding: RememberingEmbedding
) -> Iterator[tuple[str, list[Pool]]]:
    """Yield the pools of each set of questions."""
    for name in names or LEARNED:
        data = kubernetes_docs(300) if name == "kubernetes-docs" else SETS[name]()
        pools: list[Pool] = []
        for collection in data.documents:
            pools += pools_of(data, collection, "ranking", embedding)
        yield name, pools


def pools_of_code(
    names: Sequence[str], embedding: RememberingEmbedding
) -> Iterator[tuple[str, list[Pool]]]:
    """Yield the pools of each repository of code-search."""
    data = code_search()
    for name in names or data.documents:
        yield name, list(pools_of(data, name, "code", embedding))


def pools_of_messages(
    names: Sequence[str], embedding: RememberingEmbedding
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
        pools[message.conversation].append(pool_of(hits, "messages", gold, notes))
    yield from pools.items()


COLLECT: Final = {
    "ranking": pools_of_questions,
    "code": pools_of_code,
    "messages": pools_of_messages,
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
        weights = weights - RATE * unbiased_slope / (np.sqrt(unbiased_square) + 1e-9)
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
    slope: Floats = (powers / powers.sum() - gold_powers / gold_powers.sum()) @ values
    return slope


def scale_of(sets: Sequence[Sequence[Pool]], weights: Floats) -> float:
    """Return the factor that turns scores into log-odds of gold among 20, by Newton's method."""
    scores = []
    gold = []
    for pool in chain.from_iterable(sets):
        rows = pool.order(weights)[:SHOWN]
        scores.append(pool.values[rows] @ weights)
        gold.append(pool.gold[rows])
    x = np.concatenate(scores)
    y = np.concatenate(gold).astype(np.float64)
    design = np.stack([np.ones(len(x)), x], axis=1)
    line = np.zeros(2)
    for _ in range(NEWTON_STEPS):
        chance = 1 / (1 + np.exp(-(design @ line)))
        curve = (design * (chance * (1 - chance))[:, None]).T @ design
        line = line + np.linalg.solve(curve + 1e-9 * np.eye(2), design.T @ (y - chance))
    return float(line[1])


def write(model: str, trained: dict[str, float]) -> None:
    """Replace the weights of the package."""
    folder = Path(retrievers.__file__).parent
    if model == "messages":
        file = folder / "weights.json"
        sections = json.loads(file.read_text("utf-8"))
        sections[model] = trained
        file.write_text(json.dumps(sections, indent=2) + "\n", "utf-8")
        return
    file = folder / "features.py"
    source = file.read_text("utf-8")
    for name in TRAINED[model]:
        source = re.sub(rf'(name = "{name}"\n    weight = ).+', rf"\g<1>{trained[name]}", source)
    file.write_text(source, "utf-8")


def cross_validate(
    sets: Mapping[str, Sequence[Pool]], shipped: Floats, shrink: float
) -> list[list[object]]:
    """Return what weights find on each set that were trained on the other sets."""
    rows: list[list[object]] = []
    for name, pools in sets.items():
        other_sets = [other for other_name, other in sets.items() if other_name != name]
        weights = train(other_sets, shrink) if other_sets else shipped
        trained_scores = np.array([pool.measure(weights) for pool in pools])
        shipped_scores = np.array([pool.measure(shipped) for pool in pools])
        rows.append([f"{name}, {len(pools)}", *trained_scores.mean(axis=0)])
        rows.append(["less the shipped weights", *intervals(trained_scores - shipped_scores)])
    return rows


def main() -> None:
    """Train, report, and write the weights if the command line says so."""
    options = command_line(__doc__, model=tuple(TRAINED), sets=[str], write=False)
    model = options.model
    sets = dict(COLLECT[model](options.sets or (), RememberingEmbedding()))
    names = TRAINED[model]
    shipped = np.array([SHIPPED[model][name] for name in names])
    rows = cross_validate(sets, shipped, SHRINK[model])
    pools = list(sets.values())
    weights = train(pools, SHRINK[model])
    if model == "ranking":
        weights = weights * scale_of(pools, weights)
    trained = SHIPPED[model] | dict(zip(names, weights.round(3).tolist(), strict=True))
    table = markdown_table(["left out", "@5", "@20", "MRR", "nDCG@10"], rows)
    print(f"{machine()}\n\n{table}\n\n{json.dumps(trained, indent=2)}")
    if options.write:
        write(model, trained)


if __name__ == "__main__":
    main()
