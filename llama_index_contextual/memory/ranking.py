"""The order of hits: no repetitions, and the newest statement about a subject first."""

from __future__ import annotations

import math
from collections import ChainMap
from dataclasses import replace
from itertools import chain, filterfalse, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index_contextual.memory.snippets import split_sentences
from llama_index_contextual.postprocessors.recency import decay
from llama_index_contextual.retrievers.sessions import Session
from llama_index_contextual.retrievers.terms import query_groups, terms_of
from llama_index_contextual.utils import dates
from llama_index_contextual.utils import metadata as meta

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import date

    from llama_index_contextual.memory.digest import MemoryEntry

    TermGroup = tuple[str, ...]

_AGREEMENT_FACTOR: Final = 1.15  # of ``ranking="derived"``, for a hit of several queries
_MIN_SIMILARITY: Final = 0.8  # of near-duplicates
# What a statement holds of the subject, as a share of the rarity of its terms. On 302 questions of
# LoCoMo notes, 0.8 leaves recall@4 as it is and costs 1.9 points at 1; 0.6 costs 5.8.
_MIN_SUBJECT_SHARE: Final = 0.8


def best_first(hits: Iterable[MemoryEntry]) -> list[MemoryEntry]:
    """Return the hits by score, then by id."""
    return sorted(hits, key=lambda hit: (-hit.score, hit.id))


def unseen_hits(hits: Iterable[MemoryEntry], seen: Collection[str]) -> list[MemoryEntry]:
    """Return the hits whose id and citations are not among those shown before."""
    shown = frozenset(seen)
    return [hit for hit in hits if shown.isdisjoint({hit.id, *hit.citations})]


def without_repetitions(
    hits: Sequence[MemoryEntry],
    max_results: int,
    *,
    by_session: bool = False,
    keep_newest: bool = False,
) -> list[MemoryEntry]:
    """Return the best hits without near-duplicates.

    Args:
        hits: Best first.
        max_results: The most hits.
        by_session: Whether the next chunk of the same session replaces a hit that repeats another.
        keep_newest: Whether the newest of several near-duplicates is returned, not the best.
    """
    chosen: list[MemoryEntry] = []
    fingerprints: list[frozenset[int]] = []
    queue = list(hits)
    while queue and len(chosen) < max_results:
        hit = queue.pop(0)
        fingerprint = _word_pairs(hit.node.get_content())
        alike = (
            place for place, pairs in enumerate(fingerprints) if _nearly_equal(fingerprint, pairs)
        )
        place = next(alike, None)
        if place is None:
            chosen.append(hit)
            fingerprints.append(fingerprint)
            continue
        if keep_newest and _is_of_later_day(hit, chosen[place]):
            chosen[place] = hit
            continue
        if hit.node.get_content() == chosen[place].node.get_content():
            other_places = (*chosen[place].also_at, hit.citation)
            chosen[place] = replace(chosen[place], also_at=other_places)
        if by_session and _session_of(hit) not in map(_session_of, chosen):
            _move_to_front(queue, _session_of(hit))
    return chosen


def _move_to_front(queue: list[MemoryEntry], session: Session) -> None:
    """Move the next hit of a session to the front of a queue."""
    for place, hit in enumerate(queue):
        if _session_of(hit) == session:
            queue.insert(0, queue.pop(place))
            return


def _session_of(hit: MemoryEntry) -> Session:
    return Session(hit.path, meta.day_of(hit.node.metadata))


def _is_of_later_day(hit: MemoryEntry, other: MemoryEntry) -> bool:
    day = meta.day_of(hit.node.metadata)
    other_day = meta.day_of(other.node.metadata)
    return day is not None and other_day is not None and day > other_day


def _word_pairs(text: str) -> frozenset[int]:
    """Return hashes of the pairs of neighbouring words of a text."""
    words = text.casefold().split()
    return frozenset(map(hash, pairwise(words))) or frozenset([hash(tuple(words))])


def _nearly_equal(pairs: frozenset[int], other_pairs: frozenset[int]) -> bool:
    """Tell whether the Jaccard similarity of two texts is at least 0.8."""
    if _MIN_SIMILARITY * max(len(pairs), len(other_pairs)) > min(len(pairs), len(other_pairs)):
        return False  # without a comparison of their words
    return len(pairs & other_pairs) >= _MIN_SIMILARITY * len(pairs | other_pairs)


# The newest statement


class Statement(NamedTuple):
    """The sentence of a hit that holds the most of a subject.

    Attributes:
        worth: What it and the headings above hold of the subject, as summed rarity of terms.
        day: Its day; None for a hit without a date, which never ages.
    """

    worth: float
    day: date | None


def subject_of(text: str, subject: str, hits: Sequence[MemoryEntry]) -> dict[TermGroup, float]:
    """Return the terms of a question that belong to its subject, with their rarity.

    Args:
        text: The question.
        subject: The question without its words of asking.
        hits: Hits for the question, which know how rare its terms are.
    """
    rarities = ChainMap(*(dict(hit.terms) for hit in hits))
    subject_terms = set(terms_of(subject))
    return {
        group: rarities[group[0]]
        for group in query_groups(text)
        if group[0] in rarities and not subject_terms.isdisjoint(group)
    }


def newest_first(
    hits: Sequence[MemoryEntry],
    subject: Mapping[TermGroup, float],
    evergreen: Sequence[str] = (),
) -> list[MemoryEntry]:
    """Return the hits with the newest statement about the subject before older ones.

    A hit makes a statement about the subject where a sentence, with the headings above it that name
    more than a day, holds most of its terms, by their rarity. Such hits share the places that they
    had, newest day first. Hits of one day keep their order, and hits without a day their places.

    Args:
        hits: The hits of a digest, best first.
        subject: The terms of the question's subject with their rarity.
        evergreen: Patterns of paths that never age.
    """
    min_worth = _MIN_SUBJECT_SHARE * math.fsum(subject.values())
    days: dict[int, date] = {}
    for place, hit in enumerate(hits):
        statement = best_statement(hit, subject)
        is_about_subject = statement.worth >= min_worth > 0
        if is_about_subject and statement.day and not meta.is_evergreen(hit.path, evergreen):
            days[place] = statement.day
    newest_places = sorted(days, key=lambda place: days[place], reverse=True)
    ordered = list(hits)
    for place, newest_place in zip(days, newest_places, strict=True):
        ordered[place] = hits[newest_place]
    return ordered


def best_statement(hit: MemoryEntry, subject: Mapping[TermGroup, float]) -> Statement:
    """Return the sentence of a hit that holds the most of a subject, the newest of equal ones."""

    def held_groups(text: str) -> set[TermGroup]:
        terms = set(terms_of(text))
        return {group for group in subject if not terms.isdisjoint(group)}

    text = hit.node.get_content()
    note_day = meta.day_of(hit.node.metadata)
    titles = meta.heading_titles(hit.node.metadata)
    groups_above_chunk = held_groups(" ".join(filterfalse(dates.names_only_a_day, titles)))
    groups_above = groups_above_chunk
    best = Statement(0.0, note_day)
    for sentence in split_sentences(text):
        sentence_text = text[sentence.start : sentence.end]
        groups = held_groups(sentence_text)
        if sentence.is_heading:
            names_day = dates.names_only_a_day(sentence_text)
            groups_above = groups_above_chunk if names_day else groups_above_chunk | groups
            continue
        worth = math.fsum(subject[group] for group in groups | groups_above)
        day = sentence.day or note_day
        is_newer = worth == best.worth and day and best.day and day > best.day
        if worth > best.worth or is_newer:
            best = Statement(worth, day)
    return best


# ``ranking="derived"``, as the authors of ``memory_context`` describe it


def derived_score(
    scores: Sequence[float], age_days: int | None, half_life_days: float = 30.0
) -> float:
    """Return the score of a chunk: the best of its scores, times factors for age and agreement.

    Args:
        scores: Those for each query that found it.
        age_days: The age of its note; None where age does not count.
        half_life_days: The age at which a score is halved.
    """
    age_factor = 1.0 if age_days is None else decay(age_days, half_life_days)
    agreement_factor = _AGREEMENT_FACTOR if len(scores) > 1 else 1.0
    return max(scores) * age_factor * agreement_factor


def by_formulas(
    pools: Sequence[Sequence[MemoryEntry]], today: date | None, half_life_days: float
) -> list[MemoryEntry]:
    """Return the hits of all queries by :func:`derived_score`, best first.

    Args:
        pools: The hits of each query.
        today: The present day, for notes with a date in their path; None where age does not count.
        half_life_days: The age at which a score is halved.
    """
    copies: dict[str, list[MemoryEntry]] = {}
    for hit in chain.from_iterable(pools):
        copies.setdefault(hit.id, []).append(hit)
    ranked = []
    for hits in copies.values():
        day = dates.date_from_path(hits[0].path)
        age_days = (today - day).days if today and day else None
        score = derived_score([hit.score for hit in hits], age_days, half_life_days)
        ranked.append(replace(hits[0], score=score))
    return best_first(ranked)
