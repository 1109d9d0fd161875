"""Measure memory on real notes: what the digest finds and shows, and what recency changes.

    python benchmarks/memory.py  # everything; takes minutes
    python benchmarks/memory.py --questions 300 --parts shown updates

There is an index for each person of ``realmem-notes``, and for each conversation of
``locomo-notes`` and ``chat-notes``. The present is the day of a message, or else of the last note.
A message is a query for the notes before it. Recall@k is the mean share of a question's gold lines
that are in the first k chunks. Words shown is the mean share of the words of a gold line that the
snippet contains, without stop words and words of the question: a short digest may cite the right
chunk, but leave out the answer. The model for messages was trained on the five people of
``realmem-notes``; ``train.py messages`` prints figures of people that were left out.
"""

from __future__ import annotations

import functools
import json
import math
import random
import shutil
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from common import (
    RememberingEmbedding,
    command_line,
    contextual_chunks,
    fast_folder,
    hybrid,
    intervals,
    machine,
    markdown_table,
)
from datasets import DATA, Message, queries, realmem_notes
from llama_index.core.schema import Document, QueryBundle

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    MemoryContext,
)
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.index.chunking import default_parser
from llama_index_contextual.retrievers.asking import Question
from llama_index_contextual.retrievers.query_dates import load_lexicon, split_words
from llama_index_contextual.utils.dates import date_from_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from llama_index_contextual.memory.digest import MemoryDigest
    from llama_index_contextual.retrievers.explanation import Hit

PAIRS = Path(__file__).parents[1] / "tests" / "memory" / "changed_statements.json"

GoldLine = tuple[str, int]  # the path of a note, and the first line of a passage


class Place(NamedTuple):
    """The place of a chunk: a note, and its first and last line."""

    path: str
    first_line: int
    last_line: int

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Place:
        """Return the place of a chunk with this metadata."""
        return cls(metadata["path"], metadata["start_line"], metadata["end_line"])

    def contains(self, gold: GoldLine) -> bool:
        """Return whether a gold line is in the chunk."""
        path, line = gold
        return self.path == path and self.first_line <= line <= self.last_line


Ask = Callable[[str, date], Sequence[Place]]  # returns the hits of a question on a day


class NoteQuestion(NamedTuple):
    """A question about a conversation.

    Attributes:
        text: The question.
        conversation: The name of the conversation.
        names_a_date: Whether it names a date.
        gold: The lines that answer it.
        original: The lines with a fact that was updated later.
        updated: The lines with the update.
    """

    text: str
    conversation: str
    names_a_date: bool
    gold: tuple[GoldLine, ...]
    original: tuple[GoldLine, ...] = ()
    updated: tuple[GoldLine, ...] = ()


@dataclass(frozen=True)
class Conversation:
    """The index of a conversation, its last day, and the questions about it."""

    index: ContextualIndex
    last_day: date
    questions: list[NoteQuestion]


def questions(dataset: str, limit: int | None) -> list[NoteQuestion]:
    """Return the questions that have an answer, or a fixed sample of them."""

    def lines_of(row: dict[str, Any], key: str) -> tuple[GoldLine, ...]:
        lines = []
        for passage in row.get(key, ()):
            _, _, path = passage["path"].partition("/")
            lines.append((path, passage["start_line"]))
        return tuple(lines)

    questions = []
    for row in queries(dataset):
        if row["gold"]:
            question = NoteQuestion(
                row["query"],
                row["collection"],
                row.get("names_a_date", False),
                lines_of(row, "gold"),
                lines_of(row, "original"),
                lines_of(row, "updated"),
            )
            questions.append(question)
    if limit is None:
        return questions
    return random.Random(0).sample(questions, min(limit, len(questions)))  # noqa: S311


def conversations(
    dataset: str, questions: Sequence[NoteQuestion], embedding: RememberingEmbedding
) -> Iterator[Conversation]:
    """Yield the conversations of a data set, each while its index is open."""
    parser = default_parser(embedding.inner)  # which does not know a RememberingEmbedding
    for name in sorted({question.conversation for question in questions}):
        folder = DATA / dataset / "corpus" / name
        days = [date_from_path(path.as_posix()) for path in folder.rglob("*.md")]
        own = [question for question in questions if question.conversation == name]
        with (
            tempfile.TemporaryDirectory() as storage,
            ContextualIndex.open(
                folder, storage=storage, embed_model=embedding, node_parser=parser
            ) as index,
        ):
            index.refresh()
            yield Conversation(index, max(filter(None, days)), own)


# Messages

MEASURES = ["recall @5", "@10", "@20", "all @10", "all @20", "nDCG@10"]
AGES = {"a week": 7, "8 to 30 days": 30, "older": 10**6}  # the largest number of days


def asked_in_time(
    messages: Sequence[Message], embedding: RememberingEmbedding
) -> Iterator[tuple[Message, ContextualIndex]]:
    """Yield each message, and an index of the notes of its person before it.

    Notes are added as they were written.
    """
    parser = default_parser(embedding.inner)
    for person in sorted({message.conversation for message in messages}):
        with (
            fast_folder() as folder,
            ContextualIndex.open(folder, embed_model=embedding, node_parser=parser) as index,
        ):
            own = [message for message in messages if message.conversation == person]
            for message in sorted(own, key=lambda message: len(message.earlier)):
                for path in message.earlier:
                    note = index.folder / path
                    if not note.exists():
                        note.parent.mkdir(exist_ok=True)
                        shutil.copyfile(DATA / "realmem-notes" / "corpus" / person / path, note)
                index.refresh()
                yield message, index


def searched(index: ContextualIndex, message: Message) -> list[str]:
    """Return the note of each of the first 100 chunks of a search."""
    hits = index.as_retriever(similarity_top_k=100).retrieve(message.text)
    return [hit.node.metadata["path"] for hit in hits]


def message_hits(index: ContextualIndex, message: Message) -> list[Hit]:
    """Return the first 100 hits of the mode for messages, on the day of the message."""
    retrievers = index.as_retriever().retrievers
    retriever = ContextualFusionRetriever(retrievers, mode="message", similarity_top_k=100)
    question = Question(queries=(QueryBundle(message.text),), is_explained=True, today=message.day)
    return list(retriever.answer(question).hits)


def ranked(index: ContextualIndex, message: Message) -> list[str]:
    """Return the note of each of these hits."""
    return [str(hit.node.node.metadata["path"]) for hit in message_hits(index, message)]


def digested(index: ContextualIndex, message: Message, **settings: Any) -> list[str]:
    """Return the note of each of the 20 hits of a digest."""
    memory = MemoryContext(index, max_results=20, max_tokens=100_000, **settings)
    return [entry.path for entry in memory.get(message.text, now=message.day).entries]


MESSAGE_WAYS: dict[str, Callable[[ContextualIndex, Message], list[str]]] = {
    "hybrid search, 100 chunks": searched,
    "the mode for messages, 100 chunks": ranked,
    "digest of 20 hits": digested,
    "digest of 20 hits, ages left out": functools.partial(digested, include_recency=False),
}


def messages(limit: int | None, embedding: RememberingEmbedding) -> str:
    """Return two tables: needed sessions by rank, and by age.

    The second one has the needed sessions among the first ten, and the messages for which one of
    them is found. A message has the age of its youngest session.
    """
    sent = realmem_notes()
    sent = random.Random(0).sample(sent, min(limit or len(sent), len(sent)))  # noqa: S311
    measures: dict[str, list[list[float]]] = {way: [] for way in MESSAGE_WAYS}
    by_age = defaultdict[str, dict[str, list[bool]]](lambda: {age: [] for age in AGES})
    for message, index in asked_in_time(sent, embedding):
        ages = {path: age_of(path, message.day) for path in message.gold}
        for way, ask in MESSAGE_WAYS.items():
            notes = list(dict.fromkeys(ask(index, message)))
            measures[way].append(message.measure(notes))
            are_hits = {path: path in notes[:10] for path in message.gold}
            for path, is_hit in are_hits.items():
                by_age[f"{way}: needed sessions"][age_name(ages[path])].append(is_hit)
            youngest = age_name(min(ages.values()))
            by_age[f"{way}: messages with any"][youngest].append(any(are_hits.values()))
    first = np.array(next(iter(measures.values())))
    rows: list[list[object]] = []
    for way, values in measures.items():
        rows.append([way, *np.mean(values, axis=0).tolist()])
        if len(rows) > 1:
            rows.append(["less the search", *intervals(np.array(values) - first)])
    age_rows = [
        [way, *(share_with_count(hits_of_age[age]) for age in AGES)]
        for way, hits_of_age in by_age.items()
    ]
    table = markdown_table([f"{len(first)} messages, %", *MEASURES], rows)
    return f"{table}\n\n{markdown_table(['@10 by age, % (of so many)', *AGES], age_rows)}"


def age_of(path: str, day: date) -> int:
    """Return the age of a note in days; 0 if it has no date."""
    return (day - (date_from_path(path) or day)).days


def age_name(days: int) -> str:
    """Return the name of an age."""
    return next(name for name, largest in AGES.items() if days <= largest)


def share_with_count(flags: Sequence[bool]) -> str:
    """Return the percentage that is true, with the number of all."""
    return f"{100 * statistics.mean(flags):.1f} ({len(flags)})" if flags else "–"


# Questions


def recall(hits: Sequence[Place], gold: Iterable[GoldLine], top: int) -> float:
    """Return the share of gold lines that are in the first hits."""
    return statistics.mean(any(hit.contains(line) for hit in hits[:top]) for line in gold)


def plain(index: ContextualIndex, mode: str | None = None) -> Ask:
    """Return a hybrid search."""
    retriever = index.as_retriever(similarity_top_k=10, mode=mode)

    def ask(question: str, _: date) -> list[Place]:
        return [Place.of(hit.node.metadata) for hit in retriever.retrieve(question)]

    return ask


def digest(index: ContextualIndex, **settings: Any) -> Ask:
    """Return a digest of ten hits."""
    memory = MemoryContext(index, max_results=10, max_tokens=10_000, **settings)

    def ask(question: str, now: date) -> list[Place]:
        return [Place.of(entry.node.metadata) for entry in memory.get(question, now=now).entries]

    return ask


WAYS: dict[str, Callable[[ContextualIndex], Ask]] = {
    "hybrid search": plain,
    "the same, taken for messages": functools.partial(plain, mode="message"),
    "digest (defaults)": digest,
    "digest, recency off": functools.partial(digest, include_recency=False),
    **{
        f"digest, min_relevance {value}": functools.partial(digest, min_relevance=value)
        for value in (0.0, 0.2, 0.5)
    },
    **{
        f"digest, recency weight {weight}": functools.partial(digest, recency_weight=weight)
        for weight in (0.5, 1.0)
    },
}


class Recalls(NamedTuple):
    """The recall of a question among the first 4 and 10 hits."""

    names_a_date: bool
    at_4: float
    at_10: float


def quality(
    dataset: str, questions: Sequence[NoteQuestion], embedding: RememberingEmbedding
) -> str:
    """Return the table of recall, and of questions of other conversations that got any hit."""
    recalls: dict[str, list[Recalls]] = {way: [] for way in WAYS}
    got_hits: dict[str, list[bool]] = {way: [] for way in WAYS}
    for conversation in conversations(dataset, questions, embedding):
        own = conversation.questions
        strange = [question for question in questions if question not in own]
        sample = random.Random(0).sample(strange, min(len(own), len(strange)))  # noqa: S311
        for way, ask_of in WAYS.items():
            ask = ask_of(conversation.index)
            for question in own:
                hits = ask(question.text, conversation.last_day)
                shares = [recall(hits, question.gold, top) for top in (4, 10)]
                recalls[way].append(Recalls(question.names_a_date, *shares))
            if "relevance" in way or "default" in way:  # other settings do not affect abstention
                got_hits[way] += [
                    bool(ask(question.text, conversation.last_day)) for question in sample
                ]
    rows = []
    for way, values in recalls.items():
        dated = [value for value in values if value.names_a_date]
        abstention = f"{100 * statistics.mean(got_hits[way]):.0f}" if got_hits[way] else ""
        rows.append([way, *mean_recalls(values), *mean_recalls(dated), abstention])
    dated_count = sum(question.names_a_date for question in questions)
    header = [
        "",
        f"@4, all {len(questions)}",
        "@10",
        f"@4, the {dated_count} that name a date",
        "@10",
        "of another conversation",
    ]
    return markdown_table(header, rows)


def mean_recalls(values: Sequence[Recalls]) -> list[str]:
    """Return the mean recall at 4 and at 10 as cells."""
    if not values:
        return ["–", "–"]
    means = [
        statistics.mean(value.at_4 for value in values),
        statistics.mean(value.at_10 for value in values),
    ]
    return [f"{100 * mean:.1f}" for mean in means]


def sessions(questions: Sequence[NoteQuestion], embedding: RememberingEmbedding) -> str:
    """Return the table of the sessions, which are notes, among the first 100 chunks of a search."""
    modes: dict[str, str | None] = {
        "by ranks, nothing trained": "reciprocal_rerank",
        "learned, the default": None,
    }
    shares: dict[str, list[list[float]]] = {}
    for conversation in conversations("locomo-notes", questions, embedding):
        index = conversation.index
        retrievers = {way: index.as_retriever(100, mode=mode) for way, mode in modes.items()}
        vectors, keywords = retrievers["learned, the default"].retrievers
        members = {"vectors": vectors, "keywords": keywords}
        for way, retriever in (members | retrievers).items():
            for question in conversation.questions:
                hits = retriever.retrieve(question.text)
                notes = list(dict.fromkeys(hit.node.metadata["path"] for hit in hits))
                gold = {path for path, _ in question.gold}
                recalls = [len(gold.intersection(notes[:top])) / len(gold) for top in (1, 5, 10)]
                finds_any = float(recalls[-1] > 0)
                finds_all = float(recalls[-1] == 1)
                shares.setdefault(way, []).append([*recalls, finds_any, finds_all])
    rows = [[way, *(100 * np.mean(values, axis=0)).tolist()] for way, values in shares.items()]
    return markdown_table(["sessions, %", "recall @1", "@5", "@10", "any @10", "all @10"], rows)


class Shown(NamedTuple):
    """Whether the chunk of a gold line is cited, and the share of its words in the snippet."""

    is_cited: bool
    share: float


def shown(
    dataset: str, questions: Sequence[NoteQuestion], embedding: RememberingEmbedding
) -> list[list[str]]:
    """Return a row for each budget, on gold lines that are cited and words that are shown."""
    budgets = (200, 300, 600)
    results: dict[int, list[Shown]] = {budget: [] for budget in budgets}
    tokens: dict[int, list[float]] = {budget: [] for budget in budgets}
    for conversation in conversations(dataset, questions, embedding):
        index = conversation.index
        lines = {}
        for path in index.files():
            lines[path] = (index.folder / path).read_text("utf-8").split("\n")
        for budget in budgets:
            memory = MemoryContext(index, max_tokens=budget)
            for question in conversation.questions:
                digest = memory.get(question.text, now=conversation.last_day)
                tokens[budget].append(len(digest.markdown) / 4)
                for gold in question.gold:
                    path, line = gold
                    results[budget].append(shown_of(digest, question, gold, lines[path][line - 1]))
    rows = []
    for budget, results_of_budget in results.items():
        name = f"{dataset}, {len(results_of_budget)} gold lines, max_tokens={budget}"
        cited = [result for result in results_of_budget if result.is_cited]
        shares = [
            len(cited) / len(results_of_budget),
            statistics.mean(result.share for result in results_of_budget),
            statistics.mean(result.share for result in cited),
            statistics.mean(result.share >= 0.5 for result in results_of_budget),
        ]
        percentages = [f"{100 * share:.1f}" for share in shares]
        rows.append([name, *percentages, f"{statistics.mean(tokens[budget]):.0f}"])
    return rows


def shown_of(digest: MemoryDigest, question: NoteQuestion, gold: GoldLine, text: str) -> Shown:
    """Return what a digest shows of a gold line.

    Args:
        digest: The digest.
        question: The question.
        gold: The line.
        text: The text of the line.
    """
    citing = [entry for entry in digest.entries if Place.of(entry.node.metadata).contains(gold)]
    snippet_words = words_of(" ".join(entry.snippet for entry in citing))
    words = words_of(text) - words_of(question.text)
    words = {word for word in words if not load_lexicon().is_stop_word(word)}
    is_cited = bool(citing)
    share = len(words & snippet_words) / len(words) if words else float(is_cited)
    return Shown(is_cited, share)


def words_of(text: str) -> set[str]:
    """Return the words of a text without case."""
    return {word.casefold() for word in split_words(text)}


class UpdateRanks(NamedTuple):
    """The ranks, from 0, of an updated statement and of the original one; infinite if missing."""

    newer: float
    older: float


def updates(questions: Sequence[NoteQuestion], embedding: RememberingEmbedding) -> str:
    """Return a table of the facts of chat-notes that were updated later.

    It says which of the two statements ranks higher in a digest of ten.
    """
    recency: dict[str, dict[str, Any]] = {"recency off": {"include_recency": False}}
    for weight in (0.1, 0.5, 1.0):
        recency[f"recency weight {weight}"] = {"recency_weight": weight}
    ranks: dict[str, list[UpdateRanks]] = {name: [] for name in recency}
    for conversation in conversations("chat-notes", questions, embedding):
        for name, settings in recency.items():
            ask = digest(conversation.index, **settings)
            for question in conversation.questions:
                if question.updated and question.updated != question.original:
                    hits = ask(question.text, conversation.last_day)
                    newer = first_rank(hits, question.updated)
                    older = first_rank(hits, question.original)
                    ranks[name].append(UpdateRanks(newer, older))
    rows = []
    for name, ranks_of_name in ranks.items():
        complete = [pair for pair in ranks_of_name if max(pair) < math.inf]
        newer_in_four = sum(pair.newer < 4 for pair in ranks_of_name)
        older_in_four = sum(pair.older < 4 for pair in ranks_of_name)
        counts = [str(newer_in_four), str(older_in_four)]
        rows.append([name, newer_first(ranks_of_name), newer_first(complete), *counts])
    header = [
        "",
        "newer above older, or alone",
        "where both are found",
        "newer in the first 4",
        "older in the first 4",
    ]
    return markdown_table(header, rows)


def newer_first(pairs: Sequence[UpdateRanks]) -> str:
    """Return in words how often the newer statement ranks higher."""
    return f"{sum(pair.newer < pair.older for pair in pairs)} of {len(pairs)}"


def pairs(embedding: RememberingEmbedding) -> str:
    """Return the table of pairs of an old and a new statement.

    It says how often the new one comes first, by relevance alone, and with the newest statement
    first. The held-out pairs were written after the rule.
    """
    data = json.loads(PAIRS.read_text("utf-8"))
    now = date.fromisoformat(data["now"])
    rows: list[list[object]] = []
    for title in ("pairs", "held_out_pairs"):
        counts: dict[str, list[int]] = {}
        for pair in data[title]:
            old_path, old_text = pair["old"]
            new_path, new_text = pair["new"]
            notes = {**data["background"], old_path: old_text, new_path: new_text}
            for name, retriever in retrievers_of(notes, embedding).items():
                counts_of_name = counts.setdefault(name, [0, 0])
                for column, recency in enumerate((False, True)):
                    memory = MemoryContext(retriever, include_recency=recency)
                    entries = memory.get(pair["question"], now=now).entries
                    is_first = bool(entries) and entries[0].path == new_path
                    counts_of_name[column] += is_first
        for name, counts_of_name in counts.items():
            shares = [f"{count} of {len(data[title])}" for count in counts_of_name]
            rows.append([f"{title.replace('_', ' ')}, {name}", *shares])
    return markdown_table(["new statement first", "by relevance alone", "newest first"], rows)


def retrievers_of(
    notes: Mapping[str, str], embedding: RememberingEmbedding
) -> dict[str, ContextualFusionRetriever]:
    """Return the retrievers over some notes, by their name in the table."""
    documents = [
        Document(text=text, id_=path, metadata={"path": path}) for path, text in notes.items()
    ]
    nodes = contextual_chunks(documents)
    return {
        "hybrid": hybrid(nodes, embedding, 50),
        "keywords alone": ContextualFusionRetriever([ContextualBM25Retriever(nodes)]),
    }


def first_rank(hits: Sequence[Place], gold: Sequence[GoldLine]) -> float:
    """Return the rank of the first hit with a gold line, from 0; infinite if none has one."""
    for rank, hit in enumerate(hits):
        if any(map(hit.contains, gold)):
            return rank
    return math.inf


def table_of_shown(sets: Sequence[str], limit: int | None, embedding: RememberingEmbedding) -> str:
    """Return the table of cited lines and shown words."""
    rows: list[list[str]] = []
    for name in sets:
        rows += shown(name, questions(name, limit), embedding)
    header = [
        "%",
        "cited @4",
        "words shown",
        "words shown where cited",
        "half of the words shown",
        "tokens",
    ]
    return markdown_table(header, rows)


def main() -> None:
    """Print the Markdown of results/memory.md."""
    parts = ["messages", "recall", "sessions", "shown", "pairs", "updates"]
    sets = ["locomo-notes", "chat-notes"]  # for recall and shown
    options = command_line(__doc__, questions=int, parts=parts, sets=sets)
    embedding = RememberingEmbedding()
    limit = options.questions
    tables: dict[str, Callable[[], str]] = {
        "messages": lambda: messages(limit, embedding),
        "recall": lambda: "\n\n".join(
            quality(name, questions(name, limit), embedding) for name in options.sets
        ),
        "sessions": lambda: sessions(questions("locomo-notes", limit), embedding),
        "shown": lambda: table_of_shown(options.sets, limit, embedding),
        "pairs": lambda: pairs(embedding),
        "updates": lambda: updates(questions("chat-notes", None), embedding),
    }
    print(f"# Memory\n\n{machine()}\n")
    for part in options.parts:
        print(f"## {part}\n\n{tables[part]()}\n", flush=True)


if __name__ == "__main__":
    main()
