"""Facts that change: whether a digest says the last value first, and names what was said before as older.

One set is made by rule: a hundred facts, each told two to five times with another value in the notes of 200 days, as a
key, a row of a table, a sentence or a paragraph below a heading, among notes of other things. The other is
``chat-notes``: questions whose answer was told in one passage and changed in a later one, in free prose.

    python benchmarks/current_facts.py
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from common import RememberingEmbedding, machine, markdown_table
from memory import conversations, first_of, questions

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.index.pipeline import default_parser
from llama_index_contextual.memory import MemoryContext, context

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_DAY = date(2025, 9, 1)
DAYS = 200
SERVICES = """upload download search billing login export import mail print chat archive calendar video payroll backup
metrics mirror planner scanner gateway""".split()  # noqa: SIM905  a list of words reads better as text
PROPERTIES = ("timeout", "port", "owner", "region", "retry limit")
OWNERS = "Ana Ben Chidi Dana Emre Fatou Goro Hana Ivo Jun Kofi Lena".split()  # noqa: SIM905
REGIONS = "Lisbon Oslo Lima Accra Osaka Perth Quebec Tunis".split()  # noqa: SIM905
FILLER = (
    "The {a} team met the {b} team about the budget.",
    "Somebody asked why {a} is slow in the morning; nobody knew.",
    "Read a long page on {a} and {b}.",
    "Lunch with {c}, who told of a trip to {d}.",
    "The {a} review went well, {c} took notes.",
)


def value_of(kind: str, numbers: random.Random) -> str:
    """Make a value up for a property."""
    if kind == "owner":
        return numbers.choice(OWNERS)
    if kind == "region":
        return numbers.choice(REGIONS)
    return str(numbers.randrange(2, 9000))


def told(form: int, service: str, kind: str, value: str) -> str:
    """Write a fact down in one of four forms."""
    if form == 0:
        return f"- {service} {kind}: {value}\n"
    if form == 1:
        return f"| what | value |\n|---|---|\n| {service} {kind} | {value} |\n"
    if form == 2:
        return f"- The {kind} of {service} is {value}.\n"
    return f"## {service.capitalize()} {kind}\n\n{value}\n"


def make_notes(folder: Path) -> dict[str, list[tuple[date, str]]]:
    """Write the notes of 200 days; return each question with the days and values of its answer, oldest first."""
    numbers = random.Random(0)  # noqa: S311
    days: dict[int, list[str]] = {number: [] for number in range(DAYS)}
    asked: dict[str, list[tuple[date, str]]] = {}
    for place, (service, kind) in enumerate((one, two) for one in SERVICES for two in PROPERTIES):
        values: list[str] = []
        times = numbers.randrange(3, 7)  # it is told once and changes two to five times
        while len(values) < times:
            value = value_of(kind, numbers)
            if value not in values:
                values.append(value)
        when = sorted(numbers.sample(range(DAYS), times))
        for number, value in zip(when, values, strict=True):
            days[number].append(told(place % 4, service, kind, value))
        asked[f"What is the {kind} of {service}?"] = [
            (FIRST_DAY + timedelta(number), value) for number, value in zip(when, values, strict=True)
        ]
    (folder / "memory").mkdir()
    for number, facts in days.items():
        day = FIRST_DAY + timedelta(number)
        chatter = [
            numbers.choice(FILLER).format(
                a=numbers.choice(SERVICES),
                b=numbers.choice(SERVICES),
                c=numbers.choice(OWNERS),
                d=numbers.choice(REGIONS),
            )
            for _ in range(numbers.randrange(3, 8))
        ]
        facts.sort(key=lambda fact: fact.startswith("## "))  # else what follows would stand below that heading
        text = "\n".join([f"# {day}\n", *(f"- {line}" for line in chatter), "", *facts])
        (folder / "memory" / f"{day}.md").write_text(text, "utf-8")
    return asked


def made(embedding: RememberingEmbedding) -> list[list[str]]:
    """Ask for each of the hundred facts; a row without the rule, a row with it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        asked = make_notes(folder)
        with ContextualIndex.open(folder, embed_model=embedding, node_parser=default_parser(embedding.inner)) as index:
            index.refresh()
            memory, now = MemoryContext(index), FIRST_DAY + timedelta(DAYS)
            rows = []
            for name, rule in RULES.items():
                first, above, named = 0, 0, 0
                with rule():
                    for question, history in asked.items():
                        entries = memory.get(question, now=now).entries
                        (last, _), (before, older) = history[-1], history[-2]
                        dates = [one.date for one in entries]
                        is_first = dates[:1] == [last.isoformat()]
                        first += is_first
                        above += is_first or (
                            last.isoformat() in dates
                            and not {day.isoformat() for day, _ in history[:-1]}
                            & set(dates[: dates.index(last.isoformat())])
                        )
                        named += is_first and any(
                            one.since == before.isoformat() and older in one.snippet for one in entries[0].older
                        )
                rows.append([f"made by rule, {name}", str(len(asked)), str(first), str(above), str(named)])
            return rows


def chats(embedding: RememberingEmbedding) -> list[list[str]]:
    """Ask the questions of chat-notes whose answer changed."""
    asked = [one for one in questions("chat-notes", None) if one.updated and one.updated != one.original]
    counts = {name: [0, 0] for name in RULES}
    for one in conversations("chat-notes", asked, embedding):
        memory = MemoryContext(one.index, max_results=10, max_tokens=10_000)
        for name, rule in RULES.items():
            with rule():
                for question in one.questions:
                    entries = memory.get(question.text, now=one.now).entries
                    hits = [(each.path, each.start_line or 0, each.end_line or 0) for each in entries]
                    newer, older = (first_of(hits, gold) for gold in (question.updated, question.original))
                    counts[name][0] += newer == 0
                    counts[name][1] += newer < older
    return [[f"chat-notes, {name}", str(len(asked)), *map(str, found), "–"] for name, found in counts.items()]


@contextlib.contextmanager
def without() -> Iterator[None]:
    """Leave hits in the order of their scores."""
    with (
        patch.object(context, "newer_values_first", lambda ranked, *_: ranked),
        patch.object(context, "newest_first", lambda chosen, *_: (chosen, {})),
    ):
        yield


RULES = {"by score alone": without, "what is current wins": contextlib.nullcontext}


def main() -> None:
    """Run and print the Markdown of results/memory.md."""
    embedding = RememberingEmbedding()
    print(machine(), "\n")
    header = [
        "",
        "questions",
        "the last value is the first hit",
        "it stands above all older ones",
        "the one before is named as older",
    ]
    print(markdown_table(header, [*made(embedding), *chats(embedding)]))


if __name__ == "__main__":
    main()
