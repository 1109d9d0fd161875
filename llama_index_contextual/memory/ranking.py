"""Rank the hits of a digest: without repetitions, the newest statement about a subject first."""

from __future__ import annotations

import math
from collections import ChainMap
from dataclasses import replace
from itertools import chain, filterfalse, pairwise
from typing import TYPE_CHECKING, NamedTuple

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

_AGREEMENT_FACTOR = 1.15  # of ``ranking="derived"``, for a hit of several queries
_MIN_SIMILARITY = 0.8  # Jaccard similarity of near-duplicates
# The share of the subject's terms, weighted by rarity, that a statement must contain. On 302
# questions of LoCoMo notes, 0.8 leaves recall@4 unchanged and costs 1.9 points of recall@1. 0.6
# costs 5.8 points.
_MIN_SUBJECT_SHARE = 0.8


def best_first(hits: Iterable[MemoryEntry]) -> list[MemoryEntry]:
    """Return the hits sorted by score, then by id."""
    return sorted(hits, key=lambda hit: (-hit.score, hit.id))


def unseen_hits(hits: Iterable[MemoryEntry], seen: Collection[str]) -> list[MemoryEntry]:
    """Return the hits that were not shown before, by their ids and citations."""
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
        hits: The hits, best first.
        max_results: The largest number of hits to return.
        by_session: Whether a hit that repeats another is replaced by the next chunk of its session.
        keep_newest: Whether to keep the newest of several near-duplicates instead of the best.
    """
    chosen: list[MemoryEntry] = []
    fingerprints: list[frozenset[int]] = []
    queue = list(hits)
    while queue and len(chosen) < max_results:
        hit = queue.pop(0)
        fingerprint = _word_pairs(hit.node.get_content())
        index = _first_similar(fingerprint, fingerprints)
        if index is None:
            chosen.append(hit)
            fingerprints.append(fingerprint)
            continue
        if keep_newest and _is_of_later_day(hit, chosen[index]):
            chosen[index] = hit
            continue
        if hit.node.get_content() == chosen[index].node.get_content():
            citations = (*chosen[index].also_at, hit.citation)
            chosen[index] = replace(chosen[index], also_at=citations)
        if by_session and _session_of(hit) not in map(_session_of, chosen):
            _move_to_front(queue, _session_of(hit))
    return chosen


def _move_to_front(queue: list[MemoryEntry], session: Session) -> None:
    """Move the next hit of a session to the front of a queue."""
    for index, hit in enumerate(queue):
        if _session_of(hit) == session:
            queue.insert(0, queue.pop(index))
            return


def _session_of(hit: MemoryEntry) -> Session:
    return Session(hit.path, meta.day_of(hit.node.metadata))


def _is_of_later_day(hit: MemoryEntry, other: MemoryEntry) -> bool:
    day = meta.day_of(hit.node.metadata)
    other_day = meta.day_of(other.node.metadata)
    return day is not None and other_day is not None and day > other_day


def _word_pairs(text: str) -> frozenset[int]:
    """Return the hashes of all pairs of neighbouring words in a text."""
    words = text.casefold().split()
    return frozenset(map(hash, pairwise(words))) or frozenset([hash(tuple(words))])


def _first_similar(
    fingerprint: frozenset[int], fingerprints: Sequence[frozenset[int]]
) -> int | None:
    """Return the index of the first nearly equal fingerprint, or None."""
    for index, other in enumerate(fingerprints):
        if _nearly_equal(fingerprint, other):
            return index
    return None


def _nearly_equal(pairs: frozenset[int], other_pairs: frozenset[int]) -> bool:
    """Return whether the Jaccard similarity of two texts is at least 0.8."""
    # The sizes alone limit the similarity, so most texts need not be compared.
    if _MIN_SIMILARITY * max(len(pairs), len(other_pairs)) > min(len(pairs), len(other_pairs)):
        return False
    return len(pairs & other_pairs) >= _MIN_SIMILARITY * len(pairs | other_pairs)


# The newest statement


class Statement(NamedTuple):
    """The sentence of a hit that says the most about a subject.

    Attributes:
        weight: The summed rarity of the subject's terms in the sentence and the headings above it.
        day: The day of the sentence. None means that the hit has no date and never ages.
    """

    weight: float
    day: date | None


def subject_of(text: str, subject: str, hits: Sequence[MemoryEntry]) -> dict[TermGroup, float]:
    """Return the terms of a question that belong to its subject, with their rarity.

    Args:
        text: The question.
        subject: The question without stop words.
        hits: The hits for the question. The rarity of a term is read from them.
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
    """Return the hits with newer statements about the subject before older ones.

    A hit is about the subject if one of its sentences contains at least 80 % of the subject's
    terms, weighted by rarity. Headings above the sentence are included unless they only name a day.
    The dated hits about the subject are sorted by day, newest first, and hits from the same day
    keep their order. All other hits keep their ranks.

    Args:
        hits: The hits of a digest, best first.
        subject: The terms of the question's subject, with their rarity.
        evergreen: Patterns of paths that never age.
    """
    min_weight = _MIN_SUBJECT_SHARE * math.fsum(subject.values())
    days: dict[int, date] = {}
    for rank, hit in enumerate(hits):
        statement = best_statement(hit, subject)
        is_about_subject = statement.weight >= min_weight > 0
        if is_about_subject and statement.day and not meta.is_evergreen(hit.path, evergreen):
            days[rank] = statement.day
    ranks_by_day = sorted(days, key=lambda rank: days[rank], reverse=True)
    ordered = list(hits)
    for new_rank, rank in zip(days, ranks_by_day, strict=True):
        ordered[new_rank] = hits[rank]
    return ordered


def best_statement(hit: MemoryEntry, subject: Mapping[TermGroup, float]) -> Statement:
    """Return the sentence of a hit that says the most about a subject. On a tie, the newest wins.

    Args:
        hit: The hit.
        subject: The terms of the subject, with their rarity.
    """

    def matched_groups(text: str) -> set[TermGroup]:
        terms = set(terms_of(text))
        return {group for group in subject if not terms.isdisjoint(group)}

    text = hit.node.get_content()
    note_day = meta.day_of(hit.node.metadata)
    titles = meta.heading_titles(hit.node.metadata)
    groups_above_chunk = matched_groups(" ".join(filterfalse(dates.is_only_a_date, titles)))
    groups_above = groups_above_chunk
    best = Statement(0.0, note_day)
    for sentence in split_sentences(text):
        sentence_text = text[sentence.start : sentence.end]
        groups = matched_groups(sentence_text)
        if sentence.is_heading:
            names_day = dates.is_only_a_date(sentence_text)
            groups_above = groups_above_chunk if names_day else groups_above_chunk | groups
            continue
        weight = math.fsum(subject[group] for group in groups | groups_above)
        day = sentence.day or note_day
        is_newer = weight == best.weight and day and best.day and day > best.day
        if weight > best.weight or is_newer:
            best = Statement(weight, day)
    return best


# ``ranking="derived"``: the formulas that the authors of ``memory_context`` describe


def derived_score(
    scores: Sequence[float],
    age_days: int | None,
    half_life_days: float = 30.0,
) -> float:
    """Return the score of a chunk: its best score, multiplied by factors for age and agreement.

    Args:
        scores: The scores of the chunk for the queries that found it.
        age_days: The age of the note. None means that age is ignored.
        half_life_days: The age at which a score is halved.
    """
    age_factor = 1.0 if age_days is None else decay(age_days, half_life_days)
    agreement_factor = _AGREEMENT_FACTOR if len(scores) > 1 else 1.0
    return max(scores) * age_factor * agreement_factor


def rank_by_formulas(
    pools: Sequence[Sequence[MemoryEntry]],
    today: date | None,
    half_life_days: float,
) -> list[MemoryEntry]:
    """Return the hits of all queries, ranked by :func:`derived_score`.

    Args:
        pools: The hits of each query.
        today: The present day, for notes with a date in their path. None means that age is ignored.
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
