"""Messages through the digest: which sessions it finds, for whom it says nothing, and how long it takes.

A part of ``benchmarks/memory.py``. The model of the package was trained on these five people; what it gives for people
whom it does not know, ``benchmarks/train_messages.py`` says.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import time
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from common import intervals, markdown_table
from datasets import DATA, Message, realmem_notes

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.memory import MemoryContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llama_index.core.base.embeddings.base import BaseEmbedding

MEASURES = ["recall @5", "@10", "@20", "all @10", "all @20", "nDCG@10"]
NOTES, CHANGES = 5_000, 50


def searched(index: ContextualIndex, message: Message) -> list[str]:
    """The notes of a search's first 100 chunks."""
    hits = index.as_retriever(similarity_top_k=100, filters=message.before).retrieve(message.text)
    return [hit.node.metadata["path"] for hit in hits]


def digested(index: ContextualIndex, message: Message, **settings: Any) -> list[str]:
    """The notes of a digest of 20 hits."""
    retriever = index.as_retriever(similarity_top_k=50, filters=message.before)
    memory = MemoryContext(retriever, max_results=20, max_tokens=100_000, **settings)
    return [entry.path for entry in memory.get(message.text, now=message.day).entries]


WAYS: dict[str, Callable[[ContextualIndex, Message], list[str]]] = {
    "hybrid search, 100 chunks": searched,
    "digest of 20 hits": digested,
    "digest of 20 hits, ages not looked at": lambda index, message: digested(index, message, include_recency=False),
}


def found(people: Iterator[Any]) -> str:
    """Two tables: sessions that an answer needs, and what is said to other people's messages.

    Args:
        people: The index of each person, with the messages as its questions.
    """
    measures: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    forms, own, foreign = Counter[str](), list[bool](), list[bool]()
    everything = realmem_notes()
    for one in people:
        for way, ask in WAYS.items():
            measures[way] += [message.measure(ask(one.index, message)) for message in one.questions]
        memory = MemoryContext(one.index)
        others = [message for message in everything if message.conversation != one.questions[0].conversation]
        digests = [memory.get(message.text, now=message.day) for message in one.questions]
        forms.update(digest.form or digest.reason for digest in digests)
        own += [bool(digest.entries) for digest in digests]
        sample = random.Random(0).sample(others, len(digests))  # noqa: S311
        foreign += [bool(memory.get(message.text, now=message.day).entries) for message in sample]
    first = np.array(next(iter(measures.values())))
    rows: list[list[object]] = []
    for way, values in measures.items():
        rows.append([way, *np.mean(values, axis=0).tolist()])
        if len(rows) > 1:
            rows.append(["less the search", *intervals(np.array(values) - first)])
    said = [["of the person", 100 * statistics.mean(own)], ["of another person", 100 * statistics.mean(foreign)]]
    taken = ", ".join(f"{count} {form}" for form, count in forms.most_common())
    return "\n\n".join(
        [
            markdown_table([f"{len(first)} messages, %", *MEASURES], rows),
            f"Taken for: {taken}.",
            markdown_table(["messages that get any hit, of all notes of a person", "%"], said),
        ]
    )


def waited(embedding: BaseEmbedding, messages: int, notes: int = NOTES) -> str:
    """How long a digest of a message takes in a folder of many notes, the sessions of all five people over again.

    The second half of the rows is of messages that come right after one more note was written and indexed.
    """
    asked = random.Random(0).sample(realmem_notes(), messages)  # noqa: S311
    sources = sorted((DATA / "realmem-notes" / "corpus").glob("*/memory/*.md"))
    now = date(2026, 1, 1)
    with tempfile.TemporaryDirectory() as name:
        for number in range(notes):
            day = now - timedelta(days=number // 3)
            shutil.copy(sources[number % len(sources)], Path(name) / f"{day.isoformat()}-{number % 3}.md")
        with ContextualIndex.open(name, embed_model=embedding) as index:
            index.refresh(confirm=True)
            memory = MemoryContext(index)
            memory.get(asked[0].text, now=now)
            times = [clocked(memory, message, now) for message in asked]
            changed = []
            for number, message in enumerate(asked[:CHANGES]):
                new = Path(name) / f"new-{number}.md"
                new.write_text(f"# Note {number}\n\nThe drone flew {number} minutes.\n", encoding="utf-8")
                index.refresh(new)
                changed.append(clocked(memory, message, now))
            size = index.status().chunks
    rows: list[list[object]] = []
    for when, seconds in (("", times), (", after a change", changed)):
        spread = 1000 * np.percentile(seconds, [50, 90, 99], axis=0)
        for at, what in enumerate(("until the answer", "of all processors")):
            rows.append([what + when, len(seconds), *spread[:, at].tolist()])
    return markdown_table([f"ms, {notes:,} notes, {size:,} chunks", "messages", "p50", "p90", "p99"], rows)


def clocked(memory: MemoryContext, message: Message, now: date) -> tuple[float, float]:
    """Seconds until the answer, and of all processors."""
    start = time.perf_counter(), time.process_time()
    memory.get(message.text, now=now)
    return time.perf_counter() - start[0], time.process_time() - start[1]
