"""The signals of candidates beyond their scores, from what a keyword arm of ours reads of chunks.

========== ==========================================================================================================
match      BM25 as a share of the summed rarity (idf) of the question's words: how much of the question is found
nearness   how near to each other the question's neighbouring words stand, weighted by their rarity
date       1 on a day that the question names, less over the week after it
names      1 for the best chunk of a document whose name (file, title, alias) is the question, 0.5 for a heading
opening    share of the question's words, by rarity, in the headings with which the chunk begins
========== ==========================================================================================================

They mean the same for every question, and are 0 for all candidates where there is no keyword arm of ours. What does not
depend on the question, the :class:`ChunkRecord`, is read once for each chunk and kept by the index. A vector arm counts
for less where its model knows little of the question's language: see :func:`trust_in`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from llama_index_contextual.keyword import closeness, find_dates, lexicon_of
from llama_index_contextual.metadata import (
    DATE,
    DATE_TS,
    HEADER_PATH,
    HEADING_LEVEL,
    PATH,
    TITLE,
    day_of,
    heading_titles,
    prefixed_key,
)
from llama_index_contextual.retrieval.code import CodeRecord, code_record
from llama_index_contextual.retrieval.vector import E5, MINILM
from llama_index_contextual.text import fold, normalise, tell_language
from llama_index_contextual.text.tokens import share_spelled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from llama_index_contextual.keyword import Analyzer, TermScores
    from llama_index_contextual.retrieval.bm25 import ContextualBM25Retriever
    from llama_index_contextual.retrieval.fusion import Floats, Ranking

_LINK: Final = re.compile(r"!?\[\[([^\[\]|#^\n]{1,200})(?:[#^][^\[\]|\n]{0,200})?(?:\|[^\[\]\n]{0,200})?\]\]")
_QUOTES: Final = "\"'“”„«»`’‘<>"
_SEPARATORS: Final = re.compile(r"[\s\-_./\\]+")
_HEADING_LINE: Final = re.compile(r" {0,3}#{1,6}[ \t]+(\S.*)$")
_READ: Final = 1000  # characters of a chunk that may be headings
_LONGEST: Final = 200  # characters of a name
_MOST_WORDS: Final = 16  # of a name
_ALIASES: Final = ("aliases", "alias")
_OURS: Final = (DATE, DATE_TS, HEADER_PATH, HEADING_LEVEL, PATH)
_DATED: Final = (*_OURS, *map(prefixed_key, _OURS), "file_path", "file_name")
_FIRST: Final = 50  # candidates whose openings are read
_DOCUMENT, _HEADING = 1.0, 0.5
_KNOWN: Final = 0.5  # of a question's letters: with so many in words that it knows, the English model is good at it
_LEAST_TRUST: Final = 0.2  # its vectors still tell apart what words do not
_E5_TRUST: Final = 0.8  # of multilingual-e5 where the words are found, beside English; where none is, one more
_FOUND: Final = 0.25  # of the question's rarity: so much is found where question and notes speak one language


@dataclass(frozen=True)
class ChunkRecord:
    """What the ranking reads of a chunk, whatever the question is.

    Args:
        path: Of its file; "" where it has none.
        names: Names of its document: file, title, aliases, folded.
        headings: The first and the last heading above it, folded.
        opening: The headings with which it begins.
        code: Names in it, where it is of a source file.
        dated: The part of its metadata that may name its day.
    """

    path: str
    names: frozenset[str]
    headings: frozenset[str]
    opening: str
    code: CodeRecord | None
    dated: Mapping[str, Any]

    @cached_property
    def day(self) -> date | None:
        """The day of its note."""
        return day_of(self.dated)


def record_of(analyzer: Analyzer, metadata: Mapping[str, Any], text: str) -> ChunkRecord:
    """The record of a chunk."""
    path = str(metadata.get(PATH) or metadata.get("file_path") or "")
    code = code_record(analyzer, path, text)
    return ChunkRecord(
        path,
        _document_names(path, *(str(metadata.get(key) or "") for key in (TITLE, *_ALIASES))),
        _section_names(str(metadata.get(HEADER_PATH) or "")),
        "" if code else opening_of(text),
        code,
        {key: metadata[key] for key in _DATED if key in metadata},
    )


class PoolReads(NamedTuple):
    """What a keyword arm of ours reads of candidates.

    Args:
        arm: Its name.
        analyzer: Its analyzer.
        ids: Of the candidates.
        terms: Scores of the question's terms in each.
        nearness: Of the question's words in each; None for a message, whose text is too long for it.
        records: Of each; None of one that the store lost.
    """

    arm: str
    analyzer: Analyzer
    ids: Sequence[str]
    terms: TermScores
    nearness: Floats | None
    records: Sequence[ChunkRecord | None]

    @property
    def weight(self) -> float:
        """The summed idf of the question's words, which no BM25 score exceeds."""
        return float(sum(self.terms.idfs))


def read_pool(
    query: str, name: str, arm: ContextualBM25Retriever, ids: Sequence[str], *, is_message: bool = False
) -> PoolReads:
    """Everything that the ranking of some candidates needs from a keyword arm.

    Args:
        query: The question.
        name: The arm's.
        arm: The keyword arm.
        ids: The candidates.
        is_message: Whether nearness is left out.
    """
    groups, analyzer = arm.groups(query), arm.analyzer

    def read(store: Any) -> PoolReads:
        near = None if is_message else store.nearness(groups, ids).shares
        records = store.records(ids, lambda metadata, text: record_of(analyzer, metadata, text))
        return PoolReads(name, analyzer, ids, store.term_scores(groups, ids), near, records)

    return arm.ask(read)


def date_shares(query: str, records: Sequence[ChunkRecord | None], today: date | None) -> Floats:
    """The nearness of each chunk's day to the days that the question names; "last week" counts from ``today``."""
    shares = np.zeros(len(records))
    if dates := find_dates(query, today or datetime.now().astimezone().date(), lexicon_of(query)):
        days = [(row, one.day) for row, one in enumerate(records) if one is not None and one.day is not None]
        for row, day in days:
            shares[row] = closeness(day, dates)
    return shares


def opening_shares(reads: PoolReads, order: Sequence[int]) -> Floats:
    """The share of a question's terms, by rarity, in the openings of the first candidates: at least two of several."""
    shares, terms = np.zeros(len(reads.ids)), reads.terms
    total, least = sum(terms.idfs) or 1.0, min(2, len(terms.groups))
    for row in order[:_FIRST]:
        record = reads.records[row]
        if record is not None and record.opening:
            opening, pairs = _terms_of(reads.analyzer, record.opening), zip(terms.idfs, terms.groups, strict=True)
            both = [idf for idf, group in pairs if not opening.isdisjoint(group)]
            shares[row] = sum(both) / total if len(both) >= least else 0.0
    return shares


@lru_cache(maxsize=65_536)
def _terms_of(analyzer: Analyzer, text: str) -> frozenset[str]:
    return frozenset(analyzer.tokens(text))


# Names


# The same few paths, titles and headings come again with each question.
@lru_cache(maxsize=65_536)
def folded_name(text: str) -> str:
    """A name without case, accents, brackets of a link, and with spaces for all separators."""
    text = text.strip().strip(_QUOTES).strip()
    if link := _LINK.fullmatch(text):
        text = link[1]
    return " ".join(_SEPARATORS.sub(" ", fold(normalise(text)).casefold()).split())


def opening_of(text: str) -> str:
    """The headings with which a chunk begins."""
    titles = []
    for line in text[:_READ].splitlines():
        if found := _HEADING_LINE.match(line):
            titles.append(found[1])
        elif line.strip():
            break
    return " ".join(titles)


@lru_cache(maxsize=65_536)
def _document_names(path: str, title: str, *aliases: str) -> frozenset[str]:
    """Names of a document: its path, the file's name, both without the suffix, its title and aliases, folded."""
    pure = PurePosixPath(path.replace("\\", "/"))
    both = (pure.parts, pure.with_suffix("").parts if pure.suffix and pure.stem else ())
    named = [title, *(part for one in aliases for part in one.split(","))]
    named += ["/".join(parts[start:]) for parts in both for start in range(len(parts))]
    return frozenset(map(folded_name, named))


@lru_cache(maxsize=65_536)
def _section_names(header_path: str) -> frozenset[str]:
    titles = heading_titles({HEADER_PATH: header_path, HEADING_LEVEL: 1})
    return frozenset(map(folded_name, (*titles[:1], *titles[-1:])))


def named_rows(query: str, records: Sequence[ChunkRecord | None], raw: Floats) -> dict[int, float]:
    """Rows of the best chunk of each document that the question names, and 1, or 0.5 where it is a heading's name.

    Args:
        query: The question.
        records: Of the candidates, in the order of their ids.
        raw: Their scores so far.
    """
    name = folded_name(query) if len(query) <= _LONGEST else ""
    if not 0 < len(name.split()) <= _MOST_WORDS:
        return {}
    shares = {
        row: _DOCUMENT if name in record.names else _HEADING
        for row, record in enumerate(records)
        if record is not None and (name in record.names or name in record.headings)
    }
    found: dict[object, int] = {}
    for row in sorted(shares, key=lambda row: (-shares[row], -raw[row], row)):
        record = records[row]
        found.setdefault((record and record.path) or row, row)
    return {row: shares[row] for row in found.values()}


# Trust in vectors


def trust_in(
    models: Mapping[str, str], query: str, rankings: Sequence[Ranking], reads: PoolReads | None
) -> dict[str, float]:
    """Factors for scores of arms, by the arm's name; those of other arms are 1.

    The vectors of all-MiniLM-L6-v2 count by the share of the question that its vocabulary knows: all for an English
    question, a fifth for a Japanese one. Those of multilingual-e5 count all for an English question, and less for one
    in another language, where words find more. They count for more, and the keywords for less, where no chunk holds
    much of the question: it may be in another language than the notes. No answers are needed to know either.
    Figures: ``benchmarks/results/languages.md``.

    Args:
        models: Of vector arms whose model is known, by the arm's name; see ``ContextualVectorRetriever.cosines_of``.
        query: The question.
        rankings: The answers of the arms.
        reads: Of the keyword arm; None where there is none.
    """
    trust = {name: english_trust(query) for name, model in models.items() if model == MINILM}
    multilingual = [name for name, model in models.items() if model == E5]
    if reads is not None and reads.weight and multilingual:
        best = max((one.in_ranks[1].max(initial=0.0) for one in rankings if one.arm == reads.arm), default=0.0)
        share_found = min(float(best) / reads.weight / _FOUND, 1.0)
        least = 1.0 if tell_language(query) == "en" else _E5_TRUST
        trust |= {reads.arm: share_found, **dict.fromkeys(multilingual, max(least, _E5_TRUST + 1 - share_found))}
    return trust


def english_trust(query: str) -> float:
    """Weight of vectors of all-MiniLM-L6-v2 for a question, 0.2 to 1: 1 where it is in English."""
    return max(_LEAST_TRUST, min(1.0, share_spelled(query) / _KNOWN))
