"""Train the model of ``mode="message"`` and say what it gives for people whom it was not trained on.

    python benchmarks/train_messages.py [--try] [--write] [--out FILE]

Each person of ``realmem-notes`` is an index. A message is asked on its day, of the notes before the one in which it was
sent; a session is a note, and counts at its first chunk. Every figure of the model is leave-one-person-out: the
messages of a person are ranked by weights that were trained on the other four. Intervals are 95 % paired bootstraps
over messages. ``--try`` adds a row for each feature that was left out and for each that was tried. ``--write`` replaces
the model of the package.

The loss is a listwise softmax: the mean over a message's needed sessions of minus the logarithm of the share that the
session has beside all that are not needed. Weights are shrunk. That of dates is learned fusion's: hardly a message
names a day.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from common import RememberingEmbedding, intervals, machine, markdown_table
from datasets import Message, realmem_notes
from llama_index.core.schema import MetadataMode, QueryBundle
from memory import conversations

from llama_index_contextual.metadata import PATH
from llama_index_contextual.retrieval import sessions as session_fusion
from llama_index_contextual.retrieval.fusion import Ranking, fuse_learned
from llama_index_contextual.retrieval.sessions import FEATURES, Sessions, fuse_sessions, sentences_of, sessions_of
from llama_index_contextual.retrieval.signals import signals_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_contextual.app import ContextualIndex

TRAINED: Final = tuple(name for name in FEATURES if name != "date")
TRIED: Final = (
    "best vector", "best keyword", "chunks", "nearness", "age, half-life 10", "age, half-life 90", "thread", "length"
)  # fmt: skip
DATE_WEIGHT: Final = 1.0
STEPS, RATE, SHRINK = 400, 0.05, 0.1  # Adam on standardised features
POOL: Final = 100
_UNIT: Final = dict.fromkeys(FEATURES, 1.0)
_KINDS: Final = {"vector": False, "keyword": True}


class Asked(NamedTuple):
    """One message with its candidates.

    Args:
        message: What was sent.
        notes: The sessions that are candidates.
        features: Shape (sessions, features): those of the model, then those that were tried.
        chunks: Notes of the chunks in the order of learned fusion, which ranks for questions.
    """

    message: Message
    notes: list[str]
    features: Any
    chunks: list[str]

    @property
    def gold(self) -> Any:
        """Whether an answer needs a session, shape (sessions,)."""
        return np.array([note in self.message.gold for note in self.notes])


def collect(asked: Sequence[Message], index: ContextualIndex, *, extra: bool) -> list[Asked]:
    """Ask all messages of a person and note the features of the sessions that are candidates."""
    nodes = {node.node_id: node for node in index.nodes()} if extra else {}
    centres = _centres(nodes, index) if extra else {}
    return [_asked(one, index, nodes, centres) for one in asked]


def _asked(message: Message, index: ContextualIndex, nodes: Mapping[str, Any], centres: Mapping[str, Any]) -> Asked:
    vector, keyword = (one.with_filters(message.before) for one in index.as_retriever().retrievers)  # type: ignore[attr-defined]
    texts = [message.text, *sentences_of(message.text)]
    answers = [Ranking("vector", at, 1.0, vector.candidates(QueryBundle(text), POOL)) for at, text in enumerate(texts)]
    answers.append(Ranking("keyword", 0, 1.0, keyword.candidates(QueryBundle(message.text), POOL)))
    whole = [one for one in answers if not one.query]
    ids = list(dict.fromkeys(one.node_id for answer in whole for one in answer.candidates))
    signals = signals_of(message.text, "keyword", keyword, ids, message.day)
    sessions = sessions_of(keyword, ids, message.day)
    note = {node_id: str(session[0]) for node_id, session in sessions.of.items()}  # type: ignore[index]
    found = {}
    for one in fuse_sessions(answers, _KINDS, signals, sessions, weights=_UNIT):
        found.setdefault(note[one.node_id], {credit.arm: credit.credit for credit in one.credits if not credit.rank})
    rows = np.array([[part.get(name, 0.0) for name in TRAINED] for part in found.values()])
    if nodes:
        rows = np.hstack([rows, _tried(list(found), answers, signals, sessions, note, nodes, centres)])
    learned = fuse_learned(whole, _KINDS, signals, explained=False)
    return Asked(message, list(found), rows, [note[one.node_id] for one in learned])


def _tried(
    notes: list[str],
    answers: Sequence[Ranking],
    signals: Any,
    sessions: Sessions,
    note: Mapping[str, str],
    nodes: Mapping[str, Any],
    centres: Mapping[str, Any],
) -> Any:
    """Features that did not carry over: see ``TRIED``."""
    best: dict[str, Counter[str]] = {name: Counter() for name in ("vector", "keyword", "near")}
    for answer in (answers[0], answers[-1]):
        for one in answer.candidates:
            own = best[answer.arm]
            own[note[one.node_id]] = max(own[note[one.node_id]], one.score or 0.0)
    for node_id, share in signals.shares["nearness"].items():
        best["near"][note[node_id]] = max(best["near"][note[node_id]], share)
    ages = {str(session[0]): age or 0 for session, age in sessions.ages.items()}  # type: ignore[index]
    many = Counter(note[one.node_id] for answer in (answers[0], answers[-1]) for one in answer.candidates)
    length = Counter(dict.fromkeys(notes, 0))
    for node in nodes.values():
        length[node.metadata[PATH]] += len(node.get_content())
    # The thread: how like a session is to the five best, by the mean vectors of notes.
    matrix = np.array([centres[name] for name in notes])
    first = np.argsort([-best["vector"][name] for name in notes])[:5]
    like = matrix @ matrix[first].T
    like[first, range(len(first))] = 0
    return np.array(
        [
            [
                best["vector"][name],
                best["keyword"][name] / (signals.weight or 1.0),
                np.log1p(many[name]),
                best["near"][name],
                0.5 ** (ages[name] / 10),
                0.5 ** (ages[name] / 90),
                like[at].mean(),
                np.log(length[name]),
            ]
            for at, name in enumerate(notes)
        ]
    )


def _centres(nodes: Mapping[str, Any], index: ContextualIndex) -> dict[str, Any]:
    embedding = index.as_retriever().retrievers[0].embed_model  # type: ignore[attr-defined]
    texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes.values()]
    sums: dict[str, Any] = {}
    for node, vector in zip(nodes.values(), embedding.get_text_embedding_batch(texts), strict=True):
        sums[node.metadata[PATH]] = sums.get(node.metadata[PATH], 0) + np.array(vector)
    return {path: one / np.linalg.norm(one) for path, one in sums.items()}


def train(asked: Sequence[Asked], columns: Sequence[int]) -> Any:
    """Weights of these features, by Adam."""
    able = [one for one in asked if one.gold.any()]
    rows = np.concatenate([one.features[:, columns] for one in able])
    spread = rows.std(axis=0) + 1e-6
    rows = (rows - rows.mean(axis=0)) / spread
    gold = np.concatenate([one.gold for one in able])
    sizes = [len(one.notes) for one in able]
    starts = np.cumsum([0, *sizes[:-1]])
    share = gold / np.repeat(np.add.reduceat(gold, starts), sizes) / len(able)
    weights = first = second = np.zeros(len(columns))
    for step in range(1, STEPS + 1):
        scores = rows @ weights
        powers = np.exp(scores - np.repeat(np.maximum.reduceat(scores, starts), sizes))
        others = np.repeat(np.add.reduceat(powers * ~gold, starts), sizes)
        own = powers / (powers + others)  # of a needed session beside those that are not
        fault = np.repeat(np.add.reduceat(share / (powers + others), starts), sizes)
        slope = rows.T @ np.where(gold, share * (own - 1), powers * fault) + SHRINK * weights
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        weights = weights - RATE * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-9)
    return weights / spread


def ranked(one: Asked, weights: Any, columns: Sequence[int]) -> list[str]:
    """The notes by the model, best first."""
    return [one.notes[at] for at in np.argsort(-(one.features[:, columns] @ weights), kind="stable")]


def left_out(people: Sequence[Sequence[Asked]], columns: Sequence[int]) -> Any:
    """The measures of all messages by weights that were trained on the other people, shape (messages, 6)."""
    found = []
    for own in people:
        weights = train([one for other in people if other is not own for one in other], columns)
        found += [one.message.measure(ranked(one, weights, columns)) for one in own]
    return np.array(found)


def report(people: Sequence[Sequence[Asked]], *, tried: bool) -> str:
    """The tables."""
    header = ["%", "recall @5", "@10", "@20", "all @10", "all @20", "nDCG@10"]
    model = list(range(len(TRAINED)))
    before = np.array([one.message.measure(one.chunks) for own in people for one in own])
    after = left_out(people, model)
    rows: list[list[object]] = [
        ["learned fusion, as for questions", *before.mean(axis=0).tolist()],
        ["the model for messages, left out", *after.mean(axis=0).tolist()],
        ["less learned fusion", *intervals(after - before)],
    ]
    sizes = np.cumsum([len(own) for own in people])[:-1]
    for own, part in zip(people, np.split(after, sizes), strict=True):
        name = f"{own[0].message.conversation.replace('_', ' ')}, {len(own)} messages"
        rows.append([name, *part.mean(axis=0).tolist()])
    parts = [markdown_table(header, rows)]
    if tried:
        names = [*TRAINED, *TRIED]
        choices = [(f"without {names[at]}", [one for one in model if one != at]) for at in model]
        choices += [(f"with {names[at]}", [*model, at]) for at in range(len(model), len(names))]
        rows = [[name, *intervals(left_out(people, columns) - after)] for name, columns in choices]
        parts.append(markdown_table(["less the model, left out", *header[1:]], rows))
    return "\n\n".join(parts)


def main() -> None:
    """Train, report, and write where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--try", dest="tried", action="store_true", help="add rows for single features")
    parser.add_argument("--write", action="store_true", help="replace the model of the package")
    parser.add_argument("--out", type=Path, help="write the tables to this file too")
    options = parser.parse_args()
    people = []
    for one in conversations("realmem-notes", realmem_notes(), RememberingEmbedding()):
        people.append(collect(one.questions, one.index, extra=options.tried))
        print(f"{one.questions[0].conversation}: {len(one.questions)} messages", flush=True)
    weights = train([one for own in people for one in own], range(len(TRAINED)))
    model = dict(zip(TRAINED, weights.round(3).tolist(), strict=True)) | {"date": DATE_WEIGHT}
    content = json.dumps({"weights": model}, indent=2)
    text = f"Machine: {machine()}; embedding all-MiniLM-L6-v2-int8.\n\n{report(people, tried=options.tried)}"
    text += f"\n\nTrained on all of them:\n\n```json\n{content}\n```\n"
    print(text)
    if options.out:
        options.out.write_text(text, "utf-8")
    if options.write:
        Path(session_fusion.__file__).with_name("messages.json").write_text(content + "\n", "utf-8")


if __name__ == "__main__":
    main()
