"""Memory on real notes: what the digest finds and shows, what recency costs and gives, how long it takes.

Each person of ``realmem-notes``, and each conversation of ``locomo-notes`` and of ``chat-notes``, is an index of its
own. Now is the day of a message, or else of the last note.
Recall@k is the mean share of a question's gold lines that stand in the first k chunks. Words shown is the mean share of
the words of a gold line, other than stop words and those of the question, that the snippet of a chunk with that line
holds: a digest of four lines may cite the right chunk and still leave out what was asked for.

    python benchmarks/memory.py                # everything; minutes
    python benchmarks/memory.py --questions 300 --parts shown updates
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import math
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, cast

import messages
import numpy as np
from common import RememberingEmbedding, machine, markdown_table
from datasets import DATA, kubernetes_docs, realmem_notes
from llama_index.core.bridge.pydantic import PrivateAttr
from shipped import shipped_index

from llama_index_contextual import ContextualNodePostprocessor
from llama_index_contextual.app import ContextualIndex, LocalEmbedding
from llama_index_contextual.app.index.pipeline import default_parser
from llama_index_contextual.keyword.dates import lexicon, split_words
from llama_index_contextual.memory import MemoryContext, MemoryDigest
from llama_index_contextual.memory.gate import gate
from llama_index_contextual.text import date_from_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.memory.search import HitPool, PoolSearch

Hit = tuple[str, int, int]  # path, first line, last line
SEARCHES: dict[Path, OneSearchAQuestion] = {}  # by the storage of the index


class OneEmbeddingAQuestion(RememberingEmbedding):
    """Embeds each question once, however many settings ask it."""

    _queries: dict[str, list[float]] = PrivateAttr(default_factory=dict)

    def _get_query_embedding(self, query: str) -> list[float]:
        if query not in self._queries:
            self._queries[query] = super()._get_query_embedding(query)
        return self._queries[query]


@dataclass(frozen=True, slots=True)
class Question:
    """One question about one conversation."""

    text: str
    conversation: str
    names_a_date: bool
    gold: tuple[tuple[str, int], ...]
    original: tuple[tuple[str, int], ...] = ()
    updated: tuple[tuple[str, int], ...] = ()


def questions(dataset: str, limit: int | None) -> list[Question]:
    """The questions that have an answer, or a fixed sample of them; a passage counts by its first line."""
    rows = [json.loads(line) for line in (DATA / dataset / "queries.jsonl").read_text("utf-8").splitlines()]
    found = [
        Question(
            row["query"],
            row["collection"],
            row.get("names_a_date", False),
            *(
                tuple((one["path"].split("/", 1)[1], one["start_line"]) for one in row.get(key, ()))
                for key in ("gold", "original", "updated")
            ),
        )
        for row in rows
        if row["gold"]
    ]
    return found if limit is None else random.Random(0).sample(found, min(limit, len(found)))  # noqa: S311


def recall(hits: Sequence[Hit], gold: Iterable[tuple[str, int]], top: int) -> float:
    """Share of gold lines that stand in the first hits."""
    wanted = list(gold)
    covered = [any(p == path and first <= line <= last for p, first, last in hits[:top]) for path, line in wanted]
    return sum(covered) / len(wanted)


def plain(index: ContextualIndex, mode: str | None = None) -> Callable[[str, date], Sequence[Hit]]:
    """Hybrid search."""
    retriever = index.as_retriever(similarity_top_k=10, mode=mode)

    def ask(question: str, _: date) -> list[Hit]:
        found = [hit.node.metadata for hit in retriever.retrieve(question)]
        return [(one["path"], one["start_line"], one["end_line"]) for one in found]

    return ask


class OneSearchAQuestion:
    """Lets all settings rank the same pools: they differ only in what comes after the search."""

    def __init__(self, search: PoolSearch) -> None:
        self._search = search
        self._pools: dict[Any, HitPool] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._search, name)

    def search(self, text: str, filters: MetadataFilters | None = None, **asked: Any) -> HitPool:
        """The pool, searched for once."""
        key = (text, repr(filters), *asked.values())
        if key not in self._pools:
            self._pools[key] = self._search.search(text, filters, **asked)
        return self._pools[key]


def digest(index: ContextualIndex, **settings: Any) -> Callable[[str, date], Sequence[Hit]]:
    """The digest, ten hits long."""
    memory = MemoryContext(index, max_results=10, max_tokens=10_000, **settings)
    memory._search = cast("Any", SEARCHES.setdefault(index.storage, OneSearchAQuestion(memory._search)))  # noqa: SLF001

    def ask(question: str, now: date) -> list[Hit]:
        entries = memory.get(question, now=now).entries
        return [(one.path, one.place.start_line or 0, one.place.end_line or 0) for one in entries]

    return ask


RELEVANCE = (0.0, 0.2, 0.5)  # settings of min_relevance beside the default; 0 never abstains
WAYS: dict[str, Callable[[ContextualIndex], Callable[[str, date], Sequence[Hit]]]] = {
    "hybrid search": plain,
    "the same, taken for messages": functools.partial(plain, mode="message"),
    "digest (defaults)": digest,
    "digest, recency off": lambda index: digest(index, include_recency=False),
    "digest, named dates not boosted": lambda index: digest(index, date_boost=0.0),
    **{f"digest, min_relevance {least}": functools.partial(digest, min_relevance=least) for least in RELEVANCE},
    "digest, recency weight .2": lambda index: digest(index, recency_weight=0.2),
    "digest, recency weight .5": lambda index: digest(index, recency_weight=0.5),
    "digest, recency weight 1 (as the source)": lambda index: digest(index, recency_weight=1.0),
}


def quality(dataset: str, asked: Sequence[Question], embedding: RememberingEmbedding) -> str:
    """The table of recall, and of the questions about another conversation that got any hit."""
    scores: dict[str, list[tuple[bool, float, float]]] = {way: [] for way in WAYS}
    foreign: dict[str, list[bool]] = {way: [] for way in WAYS}
    for conversation in conversations(dataset, asked, embedding):
        own, now = conversation.questions, conversation.now
        others = [question for question in asked if question not in own]
        sample = random.Random(0).sample(others, min(len(own), len(others)))  # noqa: S311
        for way, make in WAYS.items():
            ask = make(conversation.index)
            answers = [(one, ask(one.text, now)) for one in own]
            scores[way] += [
                (one.names_a_date, recall(hits, one.gold, 4), recall(hits, one.gold, 10)) for one, hits in answers
            ]
            if "relevance" in way or "default" in way:  # no other setting abstains differently
                foreign[way] += [bool(ask(one.text, now)) for one in sample]
    rows = []
    for way, found in scores.items():
        dated = [row for row in found if row[0]]
        strangers = f"{100 * statistics.mean(foreign[way]):.0f}" if foreign[way] else ""
        rows.append([way, *(_percent(part, at) for part in (found, dated) for at in (1, 2)), strangers])
    dated_count = sum(question.names_a_date for question in asked)
    strangers = "any hit for a question about another conversation"
    return markdown_table(
        ["", f"@4, all {len(asked)}", "@10", f"@4, the {dated_count} that name a date", "@10", strangers], rows
    )


def conversations(dataset: str, asked: Sequence[Any], embedding: RememberingEmbedding) -> Iterator[Conversation]:
    """Index conversation after conversation."""
    parser = default_parser(embedding.inner)  # the one that remembers is no ``LocalEmbedding``
    for name in sorted({question.conversation for question in asked}):
        folder = DATA / dataset / "corpus" / name
        now = max(day for path in folder.rglob("*.md") if (day := date_from_path(path.as_posix())))
        with (
            tempfile.TemporaryDirectory() as storage,
            ContextualIndex.open(folder, storage=storage, embed_model=embedding, node_parser=parser) as index,
        ):
            index.refresh()
            yield Conversation(index, now, [question for question in asked if question.conversation == name])


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation's index, its last day, and the questions about it."""

    index: ContextualIndex
    now: date
    questions: list[Any]


BUDGETS = (200, 300, 600)  # max_tokens


def shown(dataset: str, asked: Sequence[Question], embedding: RememberingEmbedding) -> list[list[str]]:
    """One row a budget: how often the chunk of a gold line is cited, how much of that line the digest shows."""
    found: dict[int, list[tuple[bool, float]]] = {budget: [] for budget in BUDGETS}
    tokens: dict[int, list[float]] = {budget: [] for budget in BUDGETS}
    for one in conversations(dataset, asked, embedding):
        lines = {path: (one.index.folder / path).read_text("utf-8").split("\n") for path in one.index.files()}
        for budget in BUDGETS:
            memory = MemoryContext(one.index, max_tokens=budget)
            for question in one.questions:
                given = memory.get(question.text, now=one.now)
                tokens[budget].append(len(given.markdown) / 4)
                found[budget] += [shown_of(given, question, gold, lines) for gold in question.gold]
    return [
        [
            f"{dataset}, {len(rows)} gold lines, max_tokens={budget}",
            f"{100 * statistics.mean(cited for cited, _ in rows):.1f}",
            f"{100 * statistics.mean(share for _, share in rows):.1f}",
            f"{100 * statistics.mean(share for cited, share in rows if cited):.1f}",
            f"{100 * statistics.mean(share >= 0.5 for _, share in rows):.1f}",
            f"{statistics.mean(tokens[budget]):.0f}",
        ]
        for budget, rows in found.items()
    ]


def shown_of(
    given: MemoryDigest, question: Question, gold: tuple[str, int], lines: dict[str, list[str]]
) -> tuple[bool, float]:
    """Whether the chunk of a gold line is cited, and the share of its own words that the snippet shows."""
    language = lexicon()
    path, line = gold
    citing = [
        entry
        for entry in given.entries
        if entry.path == path and (entry.place.start_line or 0) <= line <= (entry.place.end_line or 0)
    ]
    known = {word.casefold() for word in split_words(question.text)}
    said = {word.casefold() for entry in citing for word in split_words(entry.snippet)}
    wanted = {word.casefold() for word in split_words(lines[path][line - 1])} - known
    wanted = {word for word in wanted if not language.is_stop_word(word)}
    return bool(citing), len(wanted & said) / len(wanted) if wanted else float(bool(citing))


def in_one_note(asked: Sequence[Question]) -> str:
    """Say how many facts of chat-notes were updated in the note that they were first told in."""
    facts = [one for one in asked if one.updated]
    notes = [{path for path, _ in one.updated} == {path for path, _ in one.original} for one in facts]
    same = sum(one.updated == one.original for one in facts)
    return f"Of {len(facts)} facts {sum(notes)} were updated in the same note, {same} of them in the same passage."


RECENCY: dict[str, dict[str, Any]] = {
    "recency off": {"include_recency": False},
    **{f"recency weight {weight}": {"recency_weight": weight} for weight in (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)},
}


def updates(asked: Sequence[Question], embedding: RememberingEmbedding) -> str:
    """Facts of chat-notes that were updated later: which of both stands higher in a digest of ten."""
    places: dict[str, list[tuple[float, float]]] = {name: [] for name in RECENCY}
    for one in conversations("chat-notes", asked, embedding):
        for name, settings in RECENCY.items():
            ask = digest(one.index, **settings)
            for question in one.questions:
                if not question.updated or question.updated == question.original:
                    continue
                hits = ask(question.text, one.now)
                newer, older = (first_of(hits, gold) for gold in (question.updated, question.original))
                places[name].append((newer, older))
    rows = []
    for name, found in places.items():
        both = [row for row in found if max(row) < math.inf]
        rows.append(
            [
                name,
                f"{sum(newer < older for newer, older in found)} of {len(found)}",
                f"{sum(newer < older for newer, older in both)} of {len(both)}",
                f"{sum(newer < 4 for newer, _ in found)}",
                f"{sum(older < 4 for _, older in found)}",
            ]
        )
    return markdown_table(
        ["", "newer above older, or alone", "where both are found", "newer in the first 4", "older in the first 4"],
        rows,
    )


def first_of(hits: Sequence[Hit], gold: Sequence[tuple[str, int]]) -> float:
    """Place of the first hit that holds a gold line, from 0; infinite if none does."""
    return next(
        (
            place
            for place, (path, first, last) in enumerate(hits)
            if any(path == p and first <= line <= last for p, line in gold)
        ),
        math.inf,
    )


class StandIn(LocalEmbedding):
    """Embeds questions as an index does, and gives texts any vectors: their values do not matter to the time."""

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return np.random.default_rng(len(texts[0])).standard_normal((len(texts), 384)).tolist()  # type: ignore[no-any-return]

    def _get_query_embedding(self, query: str) -> list[float]:
        return super()._get_text_embeddings([query])[0]


def latency(chunks: int, repeats: int) -> str:
    """Medians at so many chunks of real pages."""
    embedding, data, day = StandIn(), kubernetes_docs(), date(2026, 1, 1)
    nodes = ContextualNodePostprocessor()(default_parser(embedding)(data.documents[""]))[:chunks]
    for number, node in enumerate(nodes):
        node.metadata["date"] = (day - timedelta(days=number % 365)).isoformat()
    with shipped_index(nodes, data.documents[""], embedding) as index:
        memory = MemoryContext(index, min_relevance=0.0)
        asked = [question.text for question in data.questions][:repeats]
        small_talk = ["thanks a lot!", "ok", "hola, buenos días", "/status", *asked[:4]]
        rows = [
            ["gate", _median(lambda text: gate(text, lexicon()), small_talk * 20)],
            ["embedding of the question alone", _median(embedding.get_query_embedding, asked)],
            ["hybrid search, top 4", _median(index.as_retriever(4).retrieve, asked)],
            ["digest", _median(lambda text: memory.get(text, now=day), asked)],
        ]
    return markdown_table([f"p50 at {len(nodes)} chunks", "ms"], rows)


def _median(call: Callable[[str], Any], texts: Sequence[str]) -> str:
    call(texts[0])
    times = []
    for text in texts:
        start = time.perf_counter()
        call(text)
        times.append(time.perf_counter() - start)
    return f"{1000 * statistics.median(times):.2f}"


def _percent(found: Sequence[tuple[bool, float, float]], at: int) -> str:
    return f"{100 * statistics.mean(row[at] for row in found):.1f}" if found else "–"


def main() -> None:
    """Run and print the Markdown of results/memory.md."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--questions", type=int, default=None, help="a sample of so many")
    options.add_argument("--chunks", type=int, default=10_000, help="size of the index for latency")
    parts = ("messages", "recall", "shown", "updates", "latency")
    options.add_argument("--parts", nargs="+", choices=parts, default=parts)
    options.add_argument("--sets", nargs="+", default=["locomo-notes", "chat-notes"], help="for recall and shown")
    options.add_argument("--chats", type=int, help="of chat-notes for the part updates, the first so many")
    options.add_argument("--freeze", action="store_true", help="collect no garbage of imports, as MCP does not")
    given = options.parse_args()
    embedding = OneEmbeddingAQuestion()
    print("# Memory\n")
    print(machine(), "\n")
    if "messages" in given.parts:
        print("## Sessions for messages (realmem-notes)\n")
        sent = realmem_notes()
        sent = random.Random(0).sample(sent, min(given.questions or len(sent), len(sent)))  # noqa: S311
        print(messages.found(conversations("realmem-notes", sent, embedding)), "\n", flush=True)
    if "recall" in given.parts:
        for name in given.sets:
            print(f"## Recall of gold lines on {name}, %\n")
            print(quality(name, questions(name, given.questions), embedding), "\n", flush=True)
    if "shown" in given.parts:
        header = ["%", "cited @4", "words shown", "words shown where cited", "half of the words shown", "tokens"]
        rows = [row for name in given.sets for row in shown(name, questions(name, given.questions), embedding)]
        print("## What the digest shows of the lines that answer\n")
        print(markdown_table(header, rows), "\n")
    if "updates" in given.parts:
        print("## Facts that were updated later (chat-notes)\n")
        asked = questions("chat-notes", None)
        print(in_one_note(asked), "\n", flush=True)
        kept = sorted({one.conversation for one in asked})[: given.chats]
        print(updates([one for one in asked if one.conversation in kept], embedding), "\n")
    if "latency" in given.parts:
        print("## Latency\n")
        print(latency(given.chunks, 60), "\n", flush=True)
        if given.freeze:
            gc.collect()
            gc.freeze()
        print(messages.waited(StandIn(), 200))


if __name__ == "__main__":
    main()
