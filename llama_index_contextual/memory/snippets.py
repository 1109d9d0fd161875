"""Quote a hit: choose the sentences of the chunk that match the query, as one slice of its text.

Chunks are untrusted and can be long, so each step takes time linear in the length of the chunk.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from llama_index_contextual.memory.digest import MemoryEntry, visible
from llama_index_contextual.retrievers.terms import terms_of
from llama_index_contextual.utils import dates
from llama_index_contextual.utils import metadata as meta
from llama_index_contextual.utils.language import detect_language, sentence_starts
from llama_index_contextual.utils.text import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import date

    SplitTerms = Callable[[str], Collection[str]]

_BEYOND_LATIN = re.compile(r"[^\u0000-\u024f]")
_CHARACTERS_PER_TOKEN = 4
_MIN_TOKENS = 20  # a shorter quotation would say too little
_MAX_SENTENCE = 10_000  # characters
# A heading, or a line and the lines that continue it. A list item, heading, quotation, table row or
# fence begins a new block.
_BLOCK = re.compile(
    r"^[^\S\n]*(?P<marks>#{1,6})[^\S\n].*"
    r"|^[^\S\n]*\S.*(?:\n(?!\s|\Z|[-*+•]\s|\d{1,9}[.)]\s|#{1,6}\s|[>|]|`{3}|~{3}).+)*",
    re.MULTILINE,
)


class Sentence(NamedTuple):
    """A sentence or a heading of a chunk.

    Attributes:
        start: The offset of its first character in the chunk.
        end: The offset after its last character.
        day: The day of the nearest dated heading above it.
        is_heading: Whether it is a heading.
    """

    start: int
    end: int
    day: date | None
    is_heading: bool


def split_sentences(text: str, max_length: int = _MAX_SENTENCE) -> list[Sentence]:
    """Return the sentences of a chunk.

    A list item or a heading ends a sentence. A line break inside a paragraph does not.

    Args:
        text: The chunk.
        max_length: The largest length in characters. Longer sentences are split, at white space if
            possible.
    """
    last = max_length - 1
    piece = re.compile(rf"\S.{{0,{last}}}(?!\S)|\S.{{0,{last}}}", re.DOTALL)
    language = detect_language(text)
    sentences: list[Sentence] = []
    day = None
    level_of_day = 0
    for block in _BLOCK.finditer(text):
        start, end = block.span()
        level = len(block["marks"] or "")
        starts = [start]
        if level:
            heading_day = dates.date_from_heading(block[0])
            if heading_day or level <= level_of_day:
                day = heading_day
                level_of_day = level if heading_day else 0
        else:
            starts += sentence_starts(text, start, end, language)
        for sentence_start, next_start in pairwise([*starts, end]):
            sentence_end = sentence_start + len(text[sentence_start:next_start].rstrip())
            sentences += (
                Sentence(*match.span(), day, bool(level))
                for match in piece.finditer(text, sentence_start, sentence_end)
            )
    return sentences


def choose_snippet(
    text: str,
    weights: Mapping[str, float],
    split_terms: SplitTerms,
    *,
    limit: int,
) -> tuple[str, date | None]:
    """Return the neighbouring sentences that match a query best, filled up to the limit.

    Args:
        text: The chunk.
        weights: The weight of each query term, such as its idf. The terms must have the form that
            ``split_terms`` returns.
        split_terms: Splits a text into terms.
        limit: The largest length in characters.

    Returns:
        A slice of the chunk in which all sentences are from the same day, and this day if a heading
        above the slice names it.
    """
    sentences = split_sentences(text, min(limit, _MAX_SENTENCE))
    if not sentences:
        return "", None
    matched_terms = [
        weights.keys() & set(split_terms(text[sentence.start : sentence.end]))
        for sentence in sentences
    ]
    days = {sentence.day for sentence in sentences}

    def fits(first: int, last: int) -> bool:
        length = sentences[last].end - sentences[first].start
        return length <= limit and sentences[first].day == sentences[last].day

    def is_idle_heading(index: int) -> bool:
        """Return whether a heading neither matches the query nor distinguishes days."""
        sentence = sentences[index]
        distinguishes_days = sentence.day is not None and len(days) > 1
        return sentence.is_heading and not matched_terms[index] and not distinguishes_days

    first, last = _best_window(matched_terms, weights, fits)
    while last > first and sentences[last].is_heading:  # a heading is useless without its text
        last -= 1
    while first < last and is_idle_heading(first):
        first += 1
    while first and not is_idle_heading(first - 1) and fits(first - 1, last):
        first -= 1
    return text[sentences[first].start : sentences[last].end], sentences[first].day


def _best_window(
    matched_terms: Sequence[Collection[str]],
    weights: Mapping[str, float],
    fits: Callable[[int, int], bool],
) -> tuple[int, int]:
    """Return the first and last sentence of the window with the largest weight of matched terms.

    A window is as long as ``fits`` allows. On a tie the first window wins, without its leading
    sentences that match no term.

    Args:
        matched_terms: The query terms in each sentence.
        weights: The weight of each query term.
        fits: Returns whether a window from one sentence to another is allowed.
    """
    counts = Counter[str]()
    best_weight = -1.0
    best_first = 0
    best_stop = 0
    stop = 0
    for first, terms_of_first in enumerate(matched_terms):
        while stop < len(matched_terms) and fits(first, stop):
            counts.update(matched_terms[stop])
            stop += 1
        weight = math.fsum(weights[term] for term, count in counts.items() if count)
        skips_idle_sentence = first == best_first + 1 and not matched_terms[first - 1]
        if weight > best_weight or (weight == best_weight > 0 and skips_idle_sentence):
            best_weight = weight
            best_first = first
            best_stop = stop
        counts.subtract(terms_of_first)
    return best_first, best_stop - 1


def with_snippets(
    hits: Sequence[MemoryEntry],
    term_groups: Sequence[tuple[str, ...]],
    max_tokens: int,
) -> tuple[MemoryEntry, ...]:
    """Return the hits with snippets that share a token budget.

    Each hit gets an equal share of the remaining budget, so later hits can use what earlier hits
    left. The first hit is always returned. If the budget is too small, the last hits are left out.

    Args:
        hits: The hits, best first.
        term_groups: The terms of the query, each with its alternatives.
        max_tokens: The budget for all lines of the digest together, in estimated tokens.
    """
    entries: list[MemoryEntry] = []
    tokens_left = max_tokens
    for position, hit in enumerate(hits):
        share = tokens_left // (len(hits) - position) - estimate_tokens(hit.block)
        if share < _MIN_TOKENS and entries:
            break
        entry = _with_snippet(hit, term_groups, max(share, _MIN_TOKENS))
        entries.append(entry)
        tokens_left -= estimate_tokens(entry.block)
    return tuple(entries)


def _with_snippet(
    hit: MemoryEntry,
    term_groups: Sequence[tuple[str, ...]],
    max_tokens: int,
) -> MemoryEntry:
    weights: dict[str, float] = {}
    for group in term_groups:
        if group[0] in hit.terms:
            weights |= dict.fromkeys(group, hit.terms[group[0]])
    text = readable(hit.node.get_content())
    # The answer may be in the front matter alone: "birthday: 1991-05-02".
    missing_terms = weights.keys() - set(terms_of(text))
    matching_properties = [
        entry for entry in hit.properties if not missing_terms.isdisjoint(terms_of(entry))
    ]
    text = "\n\n".join([*matching_properties, text])
    characters_per_token = len(text) / max(1, estimate_tokens(text))
    limit = int(max_tokens * characters_per_token)
    snippet, day = choose_snippet(text, weights, terms_of, limit=limit)
    period = dates.Period(day, day) if day else meta.period_of(hit.node.metadata)
    return replace(
        hit,
        snippet=visible(snippet),
        score=round(min(hit.score, 1.0), 6),
        date=period.isoformat() if period else None,
    )


def estimate_tokens(text: str) -> int:
    """Estimate the LLM tokens of a text: 1/4 for each Latin character and 1 for any other."""
    wide_count = 0 if text.isascii() else len(_BEYOND_LATIN.findall(text))
    return wide_count + math.ceil((len(text) - wide_count) / _CHARACTERS_PER_TOKEN)
