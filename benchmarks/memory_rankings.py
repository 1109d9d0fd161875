"""Both rankings of a digest on three sets of notes: ``python benchmarks/memory_rankings.py --questions 200``.

``locomo-notes`` and ``chat-notes`` count gold lines in the first four chunks and the first ten; ``realmem-notes``
counts the sessions that a message needs in the first four sessions and the first ten, of the notes before the message.
Now is the day of a message, or of the last note.
"""

from __future__ import annotations

import argparse
import random
from typing import TYPE_CHECKING, Any

import numpy as np
from common import intervals, machine, markdown_table
from datasets import realmem_notes
from memory import OneEmbeddingAQuestion, conversations, questions, recall

from llama_index_contextual.memory import MemoryContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from common import RememberingEmbedding

WAYS: dict[str, dict[str, Any]] = {
    "learned (default)": {},
    "derived": {"ranking": "derived"},
    "derived, age left out": {"ranking": "derived", "include_recency": False},
}
SIZE = {"max_results": 10, "max_tokens": 100_000}


def of_lines(conversation: Any, question: Any, settings: dict[str, Any]) -> list[float]:
    """Recall of gold lines at 4 and 10."""
    memory = MemoryContext(conversation.index, **SIZE, **settings)
    entries = memory.get(question.text, now=conversation.now).entries
    hits = [(one.path, one.place.start_line or 0, one.place.end_line or 0) for one in entries]
    return [100 * recall(hits, question.gold, top) for top in (4, 10)]


def of_sessions(conversation: Any, message: Any, settings: dict[str, Any]) -> list[float]:
    """Recall of sessions at 4 and 10."""
    retriever = conversation.index.as_retriever(similarity_top_k=50, filters=message.before)
    memory = MemoryContext(retriever, **(SIZE | {"max_results": 20}), **settings)
    sessions = list(dict.fromkeys(one.path for one in memory.get(message.text, now=message.day).entries))
    return [100 * len(message.gold.intersection(sessions[:top])) / len(message.gold) for top in (4, 10)]


def rows(dataset: str, asked: list[Any], measure: Callable[..., list[float]], embedding: RememberingEmbedding) -> Any:
    """One row a ranking, and its difference from the first."""
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for one in conversations(dataset, asked, embedding):
        for way, settings in WAYS.items():
            found[way] += [measure(one, question, settings) for question in one.questions]
    first = np.array(next(iter(found.values())))
    for number, (way, values) in enumerate(found.items()):
        means = [f"{mean:.1f}" for mean in np.mean(values, axis=0)]
        less = intervals(np.array(values) - first) if number else ["", ""]
        yield [f"{dataset}, {len(asked)}" if number == 0 else "", way, means[0], less[0], means[1], less[1]]


def main() -> None:
    """Print the table of results/memory_rankings.md."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--questions", type=int, default=200, help="a sample of so many of each set")
    given = options.parse_args()
    embedding, messages = OneEmbeddingAQuestion(), realmem_notes()
    sample = random.Random(0).sample(messages, min(given.questions, len(messages)))  # noqa: S311
    table = [
        *rows("locomo-notes", questions("locomo-notes", given.questions), of_lines, embedding),
        *rows("chat-notes", questions("chat-notes", given.questions), of_lines, embedding),
        *rows("realmem-notes", sample, of_sessions, embedding),
    ]
    print(machine(), "\n")
    print(markdown_table(["set, questions", "ranking", "recall @4, %", "less learned", "@10", "less learned"], table))


if __name__ == "__main__":
    main()
