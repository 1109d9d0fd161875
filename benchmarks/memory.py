"""Measure memory on real notes: what the digest finds and shows, and what recency changes.

Each person of ``realmem-notes``, and each conversation of ``locomo-notes`` and of ``chat-notes``,
is an index of its own. Now is the day of a message, or else of the last note. A message is a query
for the notes before it. Recall@k is the mean share of a question's gold lines that are in the first
k chunks. Words shown is the mean share of the words of a gold line, other
than stop words and those of the question, that the snippet of a chunk with that line holds: a
digest of four lines may cite the right chunk and still leave out what was asked for. The model for
messages was trained on the five people of ``realmem-notes``; ``train.py messages`` prints figures
of people that were left out.

    python benchmarks/memory.py                # everything; minutes
    python benchmarks/memory.py --questions 300 --parts shown updates
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
from llama_index_contextual.retrievers.query_dates import lexicon, split_words
from llama_index_contextual.utils.dates import date_from_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from llama_index_contextual.memory.digest import MemoryDigest
    from llama_index_contextual.retrievers.explanation import Hit

PAIRS = Path(__file__).parents[1] / "tests" / "memory" / "changed_statements.json"

Place = tuple[str, int, int]  # path, first line, last line


class NoteQuestion(NamedTuple):
    """One question about one conversation; a passage counts by its first line."""

    text: str
    conversation: str
    names_a_date: bool
    gold: tuple[tuple[str, int], ...]
    original: tuple[tuple[str, int], ...] = ()
    updated: tuple[tuple[str, int], ...] = ()


class Conversation(NamedTuple):
    """One conversation's index, its last day, and the questions about it."""

    index: ContextualIndex
    now: date
    questions: list[Any]


def questions(dataset: str, limit: int | None) -> list[NoteQuestion]:
    """Return the questions that have an answer, or a fixed sample of them."""

    def places_of(row: dict[str, Any], key: str) -> tuple[tuple[str, int], ...]:
        passages = row.get(key, ())
        return tuple((gold["path"].split("/", 1)[1], gold["start_line"]) for gold in passages)

    every = []
    for row in queries(dataset):
        if row["gold"]:
            gold = (places_of(row, key) for key in ("gold", "original", "updated"))
            every.append(
                NoteQuestion(row["query"], row["collection"], row.get("names_a_date", False), *gold)
            )
    return every if limit is None else random.Random(0).sample(every, min(limit, len(every)))  # noqa: S311


def conversations(
    dataset: str, questions: Sequence[Any], embedding: RememberingEmbedding
) -> Iterator[Conversation]:
    """Index conversation after conversation."""
    parser = default_parser(embedding.inner)  # a RememberingEmbedding is no LocalEmbedding
    for name in sorted({question.conversation for question in questions}):
        folder = DATA / dataset / "corpus" / name
        now = max(day for path in folder.rglob("*.md") if (day := date_from_path(path.as_posix())))
        with (
            tempfile.TemporaryDirectory() as storage,
            ContextualIndex.open(
                folder, storage=storage, embed_model=embedding, node_parser=parser
            ) as index,
        ):
            index.refresh()
            yield Conversation(
                index, now, [question for question in questions if question.conversation == name]
            )


# Messages

MEASURES = ["recall @5", "@10", "@20", "all @10", "all @20", "nDCG@10"]
AGES = {"a week": 7, "8 to 30 days": 30, "older": 10**6}  # days at most


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
            asked = sorted(
                (message for message in messages if message.conversation == person),
                key=lambda message: len(message.earlier),
            )
            for message in asked:
                for path in message.earlier:
                    if not (note := index.folder / path).exists():
                        note.parent.mkdir(exist_ok=True)
                        shutil.copyfile(DATA / "realmem-notes" / "corpus" / person / path, note)
                index.refresh()
                yield message, index


def searched(index: ContextualIndex, message: Message) -> list[str]:
    """Return the notes of a search's first 100 chunks."""
    hits = index.as_retriever(similarity_top_k=100).retrieve(message.text)
    return [hit.node.metadata["path"] for hit in hits]


def message_hits(index: ContextualIndex, message: Message) -> list[Hit]:
    """Return the first 100 chunks of the mode for messages, on the day of the message."""
    retrievers = index.as_retriever().retrievers
    retriever = ContextualFusionRetriever(retrievers, mode="message", similarity_top_k=100)
    question = Question(queries=(QueryBundle(message.text),), is_explained=True, today=message.day)
    return list(retriever.answer(question).hits)


def ranked(index: ContextualIndex, message: Message) -> list[str]:
    """Return the notes of these chunks."""
    return [str(hit.node.node.metadata["path"]) for hit in message_hits(index, message)]


def digested(index: ContextualIndex, message: Message, **settings: Any) -> list[str]:
    """Return the notes of a digest of 20 hits."""
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

    The second has the needed sessions among ten, and the messages that find any of theirs. The age
    of a message's sessions is that of its youngest.
    """
    sent = realmem_notes()
    sent = random.Random(0).sample(sent, min(limit or len(sent), len(sent)))  # noqa: S311
    measures: dict[str, list[list[float]]] = {way: [] for way in MESSAGE_WAYS}
    by_age = defaultdict[str, dict[str, list[bool]]](lambda: {age: [] for age in AGES})
    for message, index in asked_in_time(sent, embedding):
        for way, ask in MESSAGE_WAYS.items():
            notes = list(dict.fromkeys(ask(index, message)))
            measures[way].append(message.measure(notes))
            is_hit = {path: path in notes[:10] for path in message.gold}
            days = {
                path: (message.day - (date_from_path(path) or message.day)).days for path in is_hit
            }
            counted = [("needed sessions", days[path], hit) for path, hit in is_hit.items()]
            for count, old, hit in (
                *counted,
                ("messages with any", min(days.values()), any(is_hit.values())),
            ):
                age = next(name for name, most in AGES.items() if old <= most)
                by_age[f"{way}: {count}"][age].append(hit)
    first = np.array(next(iter(measures.values())))
    rows: list[list[object]] = []
    for way, values in measures.items():
        rows.append([way, *np.mean(values, axis=0).tolist()])
        if len(rows) > 1:
            rows.append(["less the search", *intervals(np.array(values) - first)])
    ages = [
        [
            way,
            *(
                f"{100 * statistics.mean(hits_by_age[age]):.1f} ({len(hits_by_age[age])})"
                if hits_by_age[age]
                else "–"
                for age in AGES
            ),
        ]
        for way, hits_by_age in by_age.items()
    ]
    table = markdown_table([f"{len(first)} messages, %", *MEASURES], rows)
    return f"{table}\n\n{markdown_table(['@10 by age, % (of so many)', *AGES], ages)}"


# Questions


def recall(hits: Sequence[Place], gold: Iterable[tuple[str, int]], top: int) -> float:
    """Return the share of gold lines that are in the first hits."""
    return statistics.mean(
        any(p == path and a <= line <= b for p, a, b in hits[:top]) for path, line in gold
    )


def plain(
    index: ContextualIndex, mode: str | None = None
) -> Callable[[str, date], Sequence[Place]]:
    """Return a hybrid search."""
    retriever = index.as_retriever(similarity_top_k=10, mode=mode)

    def ask(question: str, _: date) -> list[Place]:
        chunks = [hit.node.metadata for hit in retriever.retrieve(question)]
        return [(chunk["path"], chunk["start_line"], chunk["end_line"]) for chunk in chunks]

    return ask


def digest(index: ContextualIndex, **settings: Any) -> Callable[[str, date], Sequence[Place]]:
    """Return the digest, ten hits long."""
    memory = MemoryContext(index, max_results=10, max_tokens=10_000, **settings)

    def ask(question: str, now: date) -> list[Place]:
        entries = memory.get(question, now=now).entries
        return [
            (entry.path, entry.node.metadata["start_line"], entry.node.metadata["end_line"])
            for entry in entries
        ]

    return ask


WAYS: dict[str, Callable[[ContextualIndex], Callable[[str, date], Sequence[Place]]]] = {
    "hybrid search": plain,
    "the same, taken for messages": functools.partial(plain, mode="message"),
    "digest (defaults)": digest,
    "digest, recency off": functools.partial(digest, include_recency=False),
    **{
        f"digest, min_relevance {least}": functools.partial(digest, min_relevance=least)
        for least in (0.0, 0.2, 0.5)
    },
    **{
        f"digest, recency weight {weight}": functools.partial(digest, recency_weight=weight)
        for weight in (0.5, 1.0)
    },
}


def quality(
    dataset: str, questions: Sequence[NoteQuestion], embedding: RememberingEmbedding
) -> str:
    """Return the table of recall, and of strange questions that got any hit."""
    scores: dict[str, list[tuple[bool, float, float]]] = {way: [] for way in WAYS}
    foreign: dict[str, list[bool]] = {way: [] for way in WAYS}
    for conversation in conversations(dataset, questions, embedding):
        own = conversation.questions
        strange = [question for question in questions if question not in own]
        sample = random.Random(0).sample(strange, min(len(own), len(strange)))  # noqa: S311
        for way, make in WAYS.items():
            ask = make(conversation.index)
            for question in own:
                hits = ask(question.text, conversation.now)
                scores[way].append(
                    (question.names_a_date, *(recall(hits, question.gold, top) for top in (4, 10)))
                )
            if "relevance" in way or "default" in way:  # no other setting abstains differently
                foreign[way] += [bool(ask(question.text, conversation.now)) for question in sample]
    rows = []
    for way, values in scores.items():
        parts = (values, [row for row in values if row[0]])
        figures = [
            f"{100 * statistics.mean(row[column] for row in part):.1f}" if part else "–"
            for part in parts
            for column in (1, 2)
        ]
        rows.append(
            [way, *figures, f"{100 * statistics.mean(foreign[way]):.0f}" if foreign[way] else ""]
        )
    dated = sum(question.names_a_date for question in questions)
    header = ["", f"@4, all {len(questions)}", "@10", f"@4, the {dated} that name a date", "@10"]
    return markdown_table([*header, "of another conversation"], rows)


def sessions(questions: Sequence[NoteQuestion], embedding: RememberingEmbedding) -> str:
    """Return the table of the notes (sessions) of a search's first 100 chunks."""
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
                notes = list(
                    dict.fromkeys(
                        hit.node.metadata["path"] for hit in retriever.retrieve(question.text)
                    )
                )
                gold = {path for path, _ in question.gold}
                recalls = [len(gold.intersection(notes[:top])) / len(gold) for top in (1, 5, 10)]
                finds_any = float(recalls[-1] > 0)
                finds_all = float(recalls[-1] == 1)
                shares.setdefault(way, []).append([*recalls, finds_any, finds_all])
    rows = [[way, *(100 * np.mean(values, axis=0)).tolist()] for way, values in shares.items()]
    return markdown_table(["sessions, %", "recall @1", "@5", "@10", "any @10", "all @10"], rows)


def shown(
    dataset: str, questions: Sequence[NoteQuestion], embedding: RememberingEmbedding
) -> list[list[str]]:
    """Return a row for each budget.

    It says how often the chunk of a gold line is cited, and how much of the line is shown.
    """
    budgets = (200, 300, 600)
    shares: dict[int, list[tuple[bool, float]]] = {budget: [] for budget in budgets}
    tokens: dict[int, list[float]] = {budget: [] for budget in budgets}
    for conversation in conversations(dataset, questions, embedding):
        index = conversation.index
        lines = {
            path: (index.folder / path).read_text("utf-8").split("\n") for path in index.files()
        }
        for budget in budgets:
            memory = MemoryContext(index, max_tokens=budget)
            for question in conversation.questions:
                answer = memory.get(question.text, now=conversation.now)
                tokens[budget].append(len(answer.markdown) / 4)
                for gold in question.gold:
                    shares[budget].append(shown_of(answer, question, gold, lines))
    return [
        [
            f"{dataset}, {len(rows)} gold lines, max_tokens={budget}",
            f"{100 * statistics.mean(cited for cited, _ in rows):.1f}",
            f"{100 * statistics.mean(share for _, share in rows):.1f}",
            f"{100 * statistics.mean(share for cited, share in rows if cited):.1f}",
            f"{100 * statistics.mean(share >= 0.5 for _, share in rows):.1f}",
            f"{statistics.mean(tokens[budget]):.0f}",
        ]
        for budget, rows in shares.items()
    ]


def shown_of(
    answer: MemoryDigest, question: NoteQuestion, gold: tuple[str, int], lines: dict[str, list[str]]
) -> tuple[bool, float]:
    """Return whether a gold chunk is cited, and the share of its words in the snippet."""
    path, line = gold
    citing = [
        entry
        for entry in answer.entries
        if entry.path == path
        and entry.node.metadata["start_line"] <= line <= entry.node.metadata["end_line"]
    ]
    known = {word.casefold() for word in split_words(question.text)}
    snippets = {word.casefold() for entry in citing for word in split_words(entry.snippet)}
    gold_words = {word.casefold() for word in split_words(lines[path][line - 1])} - known
    gold_words = {word for word in gold_words if not lexicon().is_stop_word(word)}
    is_cited = bool(citing)
    share = len(gold_words & snippets) / len(gold_words) if gold_words else float(is_cited)
    return is_cited, share


def updates(questions: Sequence[NoteQuestion], embedding: RememberingEmbedding) -> str:
    """Return a table of the facts of chat-notes that were updated later.

    It says which of the two statements ranks higher in a digest of ten.
    """
    recency: dict[str, dict[str, Any]] = {
        "recency off": {"include_recency": False},
        **{f"recency weight {weight}": {"recency_weight": weight} for weight in (0.1, 0.5, 1.0)},
    }
    places: dict[str, list[tuple[float, float]]] = {name: [] for name in recency}
    for conversation in conversations("chat-notes", questions, embedding):
        for name, settings in recency.items():
            ask = digest(conversation.index, **settings)
            for question in conversation.questions:
                if question.updated and question.updated != question.original:
                    hits = ask(question.text, conversation.now)
                    newer, older = (
                        first_of(hits, gold) for gold in (question.updated, question.original)
                    )
                    places[name].append((newer, older))
    rows = []
    for name, ranks in places.items():
        complete = [row for row in ranks if max(row) < math.inf]
        wins = [
            f"{sum(newer < older for newer, older in part)} of {len(part)}"
            for part in (ranks, complete)
        ]
        in_first_four = [str(sum(row[column] < 4 for row in ranks)) for column in (0, 1)]
        rows.append([name, *wins, *in_first_four])
    header = [
        "",
        "newer above older, or alone",
        "where both are found",
        "newer in the first 4",
        "older in the first 4",
    ]
    return markdown_table(header, rows)


def pairs(embedding: RememberingEmbedding) -> str:
    """Return the table of pairs of an old and a new statement.

    How often the new one comes first: by relevance alone, and with the newest statement first. The
    held-out pairs were written after the rule.
    """
    data = json.loads(PAIRS.read_text("utf-8"))
    now = date.fromisoformat(data["now"])
    rows: list[list[object]] = []
    for title in ("pairs", "held_out_pairs"):
        first: dict[str, list[int]] = {"hybrid": [0, 0], "keywords alone": [0, 0]}
        for pair in data[title]:
            notes = {**data["background"], **dict([pair["old"], pair["new"]])}
            documents = [
                Document(text=text, id_=path, metadata={"path": path})
                for path, text in notes.items()
            ]
            nodes = contextual_chunks(documents)
            retrievers = {
                "hybrid": hybrid(nodes, embedding, 50),
                "keywords alone": ContextualFusionRetriever([ContextualBM25Retriever(nodes)]),
            }
            for name, retriever in retrievers.items():
                for column, recency in enumerate((False, True)):
                    memory = MemoryContext(retriever, include_recency=recency)
                    entries = memory.get(pair["question"], now=now).entries
                    paths = [entry.path for entry in entries]
                    first[name][column] += paths[:1] == [pair["new"][0]]
        number = len(data[title])
        for name, counts in first.items():
            shares = [f"{count} of {number}" for count in counts]
            rows.append([f"{title.replace('_', ' ')}, {name}", *shares])
    return markdown_table(["new statement first", "by relevance alone", "newest first"], rows)


def first_of(hits: Sequence[Place], gold: Sequence[tuple[str, int]]) -> float:
    """Return the place of the first hit with a gold line, from 0; infinite if none has one."""
    return next(
        (place for place, hit in enumerate(hits) if any(recall([hit], [line], 1) for line in gold)),
        math.inf,
    )


def main() -> None:
    """Run and print the Markdown of results/memory.md."""
    parts = ["messages", "recall", "sessions", "shown", "pairs", "updates"]
    names = ["locomo-notes", "chat-notes"]  # for recall and shown
    arguments = command_line(__doc__, questions=int, parts=parts, sets=names)
    embedding, limit, sets = RememberingEmbedding(), arguments.questions, arguments.sets
    header = [
        "%",
        "cited @4",
        "words shown",
        "words shown where cited",
        "half of the words shown",
        "tokens",
    ]
    tables: dict[str, Callable[[], str]] = {
        "messages": lambda: messages(limit, embedding),
        "recall": lambda: "\n\n".join(
            quality(name, questions(name, limit), embedding) for name in sets
        ),
        "sessions": lambda: sessions(questions("locomo-notes", limit), embedding),
        "shown": lambda: markdown_table(
            header, [row for name in sets for row in shown(name, questions(name, limit), embedding)]
        ),
        "pairs": lambda: pairs(embedding),
        "updates": lambda: updates(questions("chat-notes", None), embedding),
    }
    print(f"# Memory\n\n{machine()}\n")
    for part in arguments.parts:
        print(f"## {part}\n\n{tables[part]()}\n", flush=True)


if __name__ == "__main__":
    main()
