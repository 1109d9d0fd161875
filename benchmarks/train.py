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
    from collections.abc import Iterator, Sequence

    from llama_index_contextual.retrievers.explanation import Hit

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
STEPS, RATE = 400, 0.05
SHRINK: Final = {"ranking": 0.01, "code": 0.003, "messages": 0.1}
SHOWN: Final = 20


class Pool(NamedTuple):
    """The candidates of a question.

    Values of the features, the sum of the others, which have gold, and their groups.

    A group is a file or a session, and counts at its best candidate.
    """

    values: Any
    base: Any
    gold: Any
    groups: list[str]

    def order(self, weights: Any) -> list[int]:
        """Candidates, best first, the best of each group."""
        best: dict[str, int] = {}
        for row in np.argsort(-(self.base + self.values @ weights), kind="stable").tolist():
            best.setdefault(self.groups[row], row)
        return list(best.values())

    def measure(self, weights: Any) -> list[float]:
        """Return recall at 5 and 20, the first reciprocal rank and nDCG@10, in per cent."""
        order = self.order(weights)
        right = self.gold[order]
        first = float(1 / (1 + right.argmax())) if right.any() else 0.0
        gold = frozenset(self.groups[row] for row in np.flatnonzero(self.gold))
        gain = gain_of([self.groups[row] for row in order], gold) if gold else 0.0
        return [100 * float(one) for one in (right[:5].any(), right[:SHOWN].any(), first, gain)]


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
    """Pools of the questions about a collection; a group is a file of code, or else a chunk."""
    retriever: Any = Bench(data, collection, embedding).retriever(
        Row("", data.context, data.context)
    )
    for question in (one for one in data.questions if one.collection == collection):
        bundle = QueryBundle(question.text, embedding=embedding.get_query_embedding(question.text))
        hits = retriever.explain(bundle).hits
        gold = [bool(data.covers(hit.node.node) & question.gold) for hit in hits]
        groups = [str(hit.node.node.ref_doc_id) if model == "code" else hit.node_id for hit in hits]
        yield pool_of(hits, model, gold, groups)


def of_questions(
    names: Sequence[str], embedding: RememberingEmbedding
) -> Iterator[tuple[str, list[Pool]]]:
    """Pools of the sets of questions."""
    for name in names:
        data = kubernetes_docs(300) if name == "kubernetes-docs" else SETS[name]()
        yield (
            name,
            [pool for one in data.documents for pool in pools_of(data, one, "ranking", embedding)],
        )


def of_code(
    names: Sequence[str], embedding: RememberingEmbedding
) -> Iterator[tuple[str, list[Pool]]]:
    """Pools of the repositories of code-search."""
    for name in names or code_search().documents:
        yield name, list(pools_of(code_search(), name, "code", embedding))


def of_messages(
    names: Sequence[str], embedding: RememberingEmbedding
) -> Iterator[tuple[str, list[Pool]]]:
    """Pools of the people of realmem-notes; a message is asked of the notes before its own."""
    found, wanted = defaultdict[str, list[Pool]](list), realmem_notes()
    for message, index in asked_in_time(
        [one for one in wanted if one.conversation in names or not names], embedding
    ):
        hits = message_hits(index, message)
        notes = [str(hit.node.node.metadata["path"]) for hit in hits]
        gold = [note in message.gold for note in notes]
        found[message.conversation].append(pool_of(hits, "messages", gold, notes))
    yield from found.items()


def train(sets: Sequence[Sequence[Pool]], shrink: float) -> Any:
    """Weights of the features."""
    able = [(one, 1 / len(pools) / len(sets)) for pools in sets for one in pools if one.gold.any()]
    every = np.concatenate([one.values for one, _ in able])
    spread = every.std(axis=0) + 1e-6
    weights = first = second = np.zeros(every.shape[1])
    for step in range(1, STEPS + 1):
        slope = shrink * weights
        for one, share in able:
            rows = (
                one.order(weights / spread)
                if len(set(one.groups)) < len(one.groups)
                else slice(None)
            )
            values, gold = one.values[rows] / spread, one.gold[rows]
            scores = one.base[rows] + values @ weights
            powers = np.exp(scores - scores.max())
            wanted = powers * gold if gold.any() else powers
            slope = slope + share * (powers / powers.sum() - wanted / wanted.sum()) @ values
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        weights = weights - RATE * first / (1 - 0.9**step) / (
            np.sqrt(second / (1 - 0.999**step)) + 1e-9
        )
    return weights / spread


def scale_of(sets: Sequence[Sequence[Pool]], weights: Any) -> float:
    """Return the factor that turns scores into log-odds of gold among 20, by Newton's method."""
    pools = [one for several in sets for one in several]
    orders = [one.order(weights)[:SHOWN] for one in pools]
    x = np.concatenate(
        [one.values[rows] @ weights for one, rows in zip(pools, orders, strict=True)]
    )
    y = np.concatenate([one.gold[rows] for one, rows in zip(pools, orders, strict=True)]).astype(
        float
    )
    design, line = np.stack([np.ones(len(x)), x], 1), np.zeros(2)
    for _ in range(50):
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


def main() -> None:
    """Train, report, and write where that is asked for."""
    options = command_line(__doc__, model=tuple(TRAINED), sets=[str], write=False)
    collect = {"ranking": of_questions, "code": of_code, "messages": of_messages}[options.model]
    defaults = {"ranking": LEARNED, "code": [], "messages": []}
    sets = dict(collect(options.sets or defaults[options.model], RememberingEmbedding()))
    names = TRAINED[options.model]
    shrink = SHRINK[options.model]
    shipped = SHIPPED[options.model]
    before = np.array([shipped[name] for name in names])
    rows: list[list[object]] = []
    for name, pools in sets.items():
        others = [one for other, one in sets.items() if other != name]
        weights = train(others, shrink) if others else before
        new, old = (np.array([one.measure(some) for one in pools]) for some in (weights, before))
        rows += [
            [f"{name}, {len(pools)}", *new.mean(axis=0)],
            ["less the shipped weights", *intervals(new - old)],
        ]
    weights = train(list(sets.values()), shrink)
    weights = weights * (
        scale_of(list(sets.values()), weights) if options.model == "ranking" else 1.0
    )
    trained = {**shipped, **dict(zip(names, weights.round(3).tolist(), strict=True))}
    table = markdown_table(["left out", "@5", "@20", "MRR", "nDCG@10"], rows)
    print(f"{machine()}\n\n{table}\n\n{json.dumps(trained, indent=2)}")
    if options.write:
        write(options.model, trained)


if __name__ == "__main__":
    main()
