"""The order of hits: without repetitions, by age, and with what is current first.

Of notes that differ on one fact, the newest is shown, and the older ones are named. A fact is a line ``timeout: 30``, a
row of two cells, or a sentence ``The owner is Ana``; two speak of the same where what stands before the value, and the
headings above that are no days, have the same words.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index_contextual.common import START_LINE, citation, date_from_heading, day_of, heading_titles, value_of
from llama_index_contextual.keyword import split_words
from llama_index_contextual.memory.digest import MemoryEntry, OlderValue, shown_path, visible
from llama_index_contextual.memory.snippet import split_sentences
from llama_index_contextual.retrieval import NearDuplicates

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import date

    Split = Callable[[str], Collection[str]]

# What ends in a question or an exclamation mark gives no value.
_FACT: Final = re.compile(
    r"(?P<key>[^:：=|?!]{2,60}?)"  # noqa: RUF001  full width is meant
    r"(?:\s?[:：]\s|\s?=(?![=>])|\s?\||\s(?:is|are|ist|sind|es|son|está|están|est|sont|è|sono|zijn|é|são|是)\s)"  # noqa: RUF001
    r"\s{0,9}(?P<value>[^|]{1,80}(?<![?!？！]))"
)
_MARKS: Final = re.compile(r"^(?:[-*+•>]\s+|\d{1,9}[.)]\s+|\[[ xX]\]\s+|\d{1,2}:\d\d\s+)+|\*\*|__")
_SURE_SHARE: Final = 0.8  # of the message that the best statement holds; one with less is not what is asked for
_LEAST_SHARE: Final = 0.4  # of what the best hit holds of the message
_MOST_OLDER: Final = 3


def best_first(hits: Collection[MemoryEntry]) -> list[MemoryEntry]:
    """The hits by score, then by id."""
    return sorted(hits, key=lambda one: (-one.score, one.id))


def unseen_hits(hits: Sequence[MemoryEntry], seen: Collection[str]) -> list[MemoryEntry]:
    """Hits that were not shown before, by id or citation."""
    return [one for one in hits if not seen or (one.id not in seen and one.citation not in seen)]


def without_repetitions(hits: Sequence[MemoryEntry], most: int) -> list[MemoryEntry]:
    """The best hits without near-duplicates."""
    met = NearDuplicates()
    return [one for one in hits[: 4 * most] if not met.has(one.node.get_content(), {})][:most]


# What is current


class Fact(NamedTuple):
    """A value that a later note may change.

    Args:
        day: Of the note, or of the heading above.
        line: Of the note, or of the chunk where that is not known.
        subject: The words of the headings above that are no days, and those before the value.
        value: Its words.
        text: A slice of the chunk.
        hit: The chunk.
        held: The terms of the message that the subject holds; none where only the headings hold some.
        worth: How much of the message these are, by the rarity of terms.
    """

    day: date
    line: int
    subject: tuple[str, ...]
    value: tuple[str, ...]
    text: str
    hit: MemoryEntry
    held: frozenset[str]
    worth: float


def facts_of(hit: MemoryEntry, terms: Split) -> list[Fact]:
    """The facts of a hit, each subject once: who speaks twice in a note is none."""
    text, metadata, facts = hit.node.get_content(), hit.node.metadata, list[Fact]()
    above, first = heading_titles(metadata), value_of(metadata, START_LINE) or 1
    for one in split_sentences(text):
        day, statement = one.day or day_of(metadata), text[one.start : one.end]
        match = None if one.is_heading else _FACT.fullmatch(_MARKS.sub("", statement).strip("| "))
        if match and day:
            places = [place for place in dict.fromkeys([*above, one.title]) if not date_from_heading(place)]
            subject = _folded(" ".join([*places, match["key"]]))
            held = frozenset(hit.terms.keys() & set(terms(" ".join(subject))))
            held = held if held.intersection(terms(match["key"])) else frozenset()
            line, worth = first + text.count("\n", 0, one.start), math.fsum(hit.terms[term] for term in held)
            facts.append(Fact(day, line, subject, _folded(match["value"]), statement, hit, held, worth))
    counts = Counter(one.subject for one in facts)
    return [one for one in facts if counts[one.subject] == 1]


def _folded(text: str) -> tuple[str, ...]:
    return tuple(map(str.casefold, split_words(text)))


def newest_first(chosen: Sequence[MemoryEntry], ranked: Sequence[MemoryEntry], terms: Split) -> list[MemoryEntry]:
    """Hits with the newest value of what is asked for where the first of them stands that has one.

    A hit that holds no more than an older value is left out, as the newest names it.

    Args:
        chosen: The hits of a digest, best first.
        ranked: All that was found.
        terms: Cuts a text into terms, as those of the hits are.
    """
    facts = [fact for one in chosen for fact in facts_of(one, terms)]
    wanted = max(facts, key=lambda fact: fact.worth, default=None)
    most = max((sum(one.terms.values()) for one in chosen), default=0.0)
    if wanted is None or wanted.worth < _LEAST_SHARE * most:
        return list(chosen)
    near = {one.id: one for one in (*chosen, *ranked) if wanted.held <= one.terms.keys()}.values()
    same = (fact for one in near for fact in facts_of(one, terms) if fact.subject == wanted.subject)
    history = sorted(same, key=lambda fact: (fact.day, fact.hit.path, fact.line))
    runs = [list(run) for _, run in groupby(history, key=lambda fact: fact.value)]
    older = [_older(run, after[0].day) for run, after in pairwise(runs) if run[-1].day < after[0].day]
    if not older:
        return list(chosen)
    newest = replace(
        history[-1].hit,
        snippet=history[-1].text,
        since=runs[-1][0].day.isoformat(),
        older=tuple(older[: -_MOST_OLDER - 1 : -1]),
    )
    least = _SURE_SHARE * wanted.worth
    others = {fact.hit.id for fact in facts if fact.subject != wanted.subject and fact.worth >= least}
    known = {fact.hit.id for fact in history}
    at = next(place for place, one in enumerate(chosen) if one.id in known)
    rest = [one for one in chosen[at:] if one.id != newest.id and (one.id not in known or one.id in others)]
    return [*chosen[:at], newest, *rest][: len(chosen)]


def _older(run: Sequence[Fact], until: date) -> OlderValue:
    last, snippet = run[-1], visible(run[-1].text)
    cited = citation(shown_path(last.hit.path), last.line, last.line)
    return OlderValue(cited, snippet, run[0].day.isoformat(), until.isoformat())
