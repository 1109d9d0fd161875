"""The signals of candidates beyond their scores, from what a keyword arm of ours reads of chunks.

========== ==========================================================================================================
match      BM25 as a share of the summed rarity (idf) of the question's words: how much of the question is found
nearness   how near to each other the question's neighbouring words stand, weighted by their rarity
date       1 on a day that the question names, less over the week after it
names      1 for the best chunk of a document whose name (file, title, alias) is the question, less for a heading
heading    the share of the question's rarity in the chunk's text, whatever its context has, times the share of its
           heading's words that the question has, or 1 where that is its document's outermost or none: contexts give
           the name of a page to all of its chunks, and the one right below the heading asked for stays ahead
========== ==========================================================================================================

They mean the same for every question, and are 0 for all candidates where there is no keyword arm of ours. What does not
depend on the question, the :class:`ChunkRecord`, is read once for each chunk and kept by the index.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from llama_index_contextual.node_parser.node_metadata import headings_of
from llama_index_contextual.retrievers.code_features import (
    CodeRecord,
    code_record,
    definition_grade,
)
from llama_index_contextual.retrievers.names import (
    LONGEST_NAME,
    TOP_HEADING,
    folded_name,
    titles_in,
)
from llama_index_contextual.retrievers.query_dates import closeness, find_dates, lexicon_of
from llama_index_contextual.retrievers.terms import language_of, query_groups, terms_of
from llama_index_contextual.utils import metadata as meta

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from llama_index_contextual.retrievers.arrays import Floats
    from llama_index_contextual.retrievers.bm25_index import TermScores


_HEADING: Final = 0.5  # as a share of the weight of names: the value of a heading inside a document
_IN_TEXT: Final = 0.01  # more where the heading stands in the chunk, and not above it
# Of a question of several parts: what stands between them; the least share of its rarity that is one; the share of a
# part with which a chunk speaks of it; what a whole part counts, in log-odds; how many hits stay before its best chunk.
_BETWEEN_PARTS: Final = re.compile(
    r"[,;/&+、]|\b(?:and|or|vs|versus|und|oder|et|ou|y|e|и|или)\b", re.IGNORECASE
)
_LEAST_PART: Final = 0.15
_SPEAKS: Final = 0.6
_WHOLE: Final = 10.0
_UNMOVED: Final = 3
_STEP: Final = 1e-6  # log-odds below what comes before it
_SAME: Final = 0.8  # Jaccard similarity of word pairs from which two chunks are nearly equal


class ChunkRecord(NamedTuple):
    """What the ranking reads of a chunk, whatever the question is.

    Args:
        path: Of its file; "" where it has none.
        section: Its header path.
        names: Its headings, folded, with the value of each as a name.
        heading: Terms of its heading, where that is not its document's outermost.
        context: Terms of its contexts, each between blanks: one text takes a tenth of the room of many.
        code: Names in it, where it is of a source file.
        day: The day of its note.
    """

    path: str
    section: str
    names: Mapping[str, float]
    heading: frozenset[str]
    context: str
    code: CodeRecord | None
    day: date | None


def record_of(metadata: Mapping[str, Any], text: str) -> ChunkRecord:
    """The record of a chunk."""
    path = str(metadata.get(meta.PATH) or metadata.get("file_path") or "")
    code = code_record(path, text)
    headings = () if code else tuple(title for title, _, _ in headings_of(text))
    section = str(metadata.get(meta.HEADER_PATH) or "")
    names = _names_of(headings, section)
    contexts = "\n".join(
        str(meta.value_of(metadata, key) or "") for key in (meta.CONTEXT, meta.LEXICAL_CONTEXT)
    )
    heading = frozenset(_terms_in("".join(titles_in(section)[1:][-1:])).split())
    return ChunkRecord(
        path, section, names, heading, _terms_in(contexts), code, meta.day_of(metadata)
    )


@lru_cache(maxsize=4096)
def _terms_in(text: str) -> str:
    """Terms of a heading or a context, which chunks of a document share, each between blanks."""
    return "".join(f" {term} " for term in terms_of(text))


class PoolReads(NamedTuple):
    """What a keyword arm of ours reads of candidates.

    Args:
        arm: Its name.
        ids: Of the candidates.
        terms: Scores of the question's terms in each.
        nearness: Of the question's words in each; 0 for a message, whose text is too long for it.
        records: Of each; None of one that the store lost.
        named: Of documents whose name the question is the best chunk's id, and the value of that name: negative for
            one that it is but for spaces and a plural, which counts where no chunk is called so.
        wanted: Those of the ids that the filters admit; of others a name takes nothing away.
    """

    arm: str
    ids: Sequence[str]
    terms: TermScores
    nearness: Floats
    records: Sequence[ChunkRecord | None]
    named: Mapping[str, float]
    wanted: Collection[str]

    @property
    def weight(self) -> float:
        """The summed idf of the question's words, which no BM25 score exceeds."""
        return float(sum(self.terms.idfs))


def read_pool(
    query: str,
    name: str,
    arm: Any,
    ids: Sequence[str],
    wanted: Collection[str],
    *,
    is_message: bool = False,
) -> PoolReads:
    """Everything that the ranking of some candidates needs from a keyword arm.

    Args:
        query: The question.
        name: The arm's.
        arm: A keyword arm of ours.
        ids: The candidates.
        wanted: Those of them that are admitted.
        is_message: Whether nearness is left out.
    """
    groups = query_groups(query)

    def read(store: Any) -> PoolReads:
        near = np.zeros(len(ids)) if is_message else store.nearness(groups, ids)
        records = store.records(ids, record_of)
        among = {*store.rows_of(wanted).values()}
        named = {
            one.node_id: value
            for of in (None, among)
            for one, value in arm.named(store, query, of).items()
        }
        return PoolReads(name, ids, store.term_scores(groups, ids), near, records, named, wanted)

    reads: PoolReads = arm.ask(read)
    return reads


def date_shares(query: str, records: Sequence[ChunkRecord | None], today: date | None) -> Floats:
    """The nearness of each chunk's day to the days that the question names; "last week" counts from ``today``."""
    shares = np.zeros(len(records))
    if days := [
        (row, one.day) for row, one in enumerate(records) if one is not None and one.day is not None
    ]:
        dates = find_dates(query, today or datetime.now().astimezone().date(), lexicon_of(query))
        for row, day in days:
            shares[row] = closeness(day, dates)
    return shares


def heading_shares(reads: PoolReads) -> Floats:
    """How much of the question stands in the text of each chunk below a heading asked for; 0 for source files."""
    groups, counts = reads.terms.groups, reads.terms.counts
    wanted = {term for group in groups for term in group}
    shares, of_context = np.zeros(len(counts)), np.zeros_like(counts)
    for row, one in enumerate(reads.records):
        if one is None or one.code is not None or (one.heading and not one.heading & wanted):
            continue
        shares[row] = len(one.heading & wanted) / len(one.heading) if one.heading else 1.0
        for at in counts[row].nonzero()[0].tolist():
            of_context[row, at] = sum(one.context.count(f" {term} ") for term in groups[at])
    found: Floats = ((counts > of_context) * reads.terms.idfs).sum(axis=1)
    return shares * found / (reads.weight or 1.0)


# Names


@lru_cache(maxsize=65_536)
def _names_of(headings: Sequence[str], header_path: str) -> Mapping[str, float]:
    """The outermost heading of a chunk, the innermost and those in it, folded, with the value of each as a name."""
    titles = titles_in(header_path)
    values = {_HEADING: [*titles[-1:], *headings], TOP_HEADING: titles[:1]}
    named = {folded_name(one): value for value, several in values.items() for one in several}
    in_text = {*map(folded_name, headings)}
    return {name: value + _IN_TEXT * (name in in_text) for name, value in named.items()}


def name_shares(query: str, reads: PoolReads, raw: Floats) -> Floats:
    """The value of the name that the question is, for the best chunk of each document that is called so; 0 for others.

    The best is one with a heading of that name, of a source file one that defines it. Where filters leave it out, the
    best one that they admit has the value, too.

    Args:
        query: The question.
        reads: Of the candidates.
        raw: Their scores so far.
    """
    name, shares, met = (
        folded_name(query) if len(query) <= LONGEST_NAME else "",
        np.zeros(len(raw)),
        set[Any](),
    )
    records = {row: one for row, one in enumerate(reads.records) if one and name}
    if not reads.named and not any(name in one.names for one in records.values()):
        return shares
    documents = {row: one.path or reads.ids[row] for row, one in records.items()}
    of_named = {
        documents[row]: reads.named[reads.ids[row]]
        for row in records
        if reads.ids[row] in reads.named
    }
    named = {row: of_named.get(document, 0.0) for row, document in documents.items()}
    values = {row: max(named[row], one.names.get(name, 0.0)) for row, one in records.items()}
    values = values if any(values.values()) else {row: -value for row, value in named.items()}
    grades = {
        row: definition_grade(query, one.code) if one.code else one.names.get(name, 0.0)
        for row, one in records.items()
    }
    for row in sorted(values, key=lambda row: (-values[row], -grades[row], -raw[row], row)):
        document = (records[row].path, reads.ids[row] in reads.wanted)
        if document not in met or not records[row].path:
            shares[row] = values[row]
            met.add(document)
    return shares


# Questions of several parts


def part_lifts(query: str, reads: PoolReads, raw: Floats) -> Floats:
    """What puts the best chunk of each part of a question (``retries and the timeout``) behind the first three hits.

    0 where those before it speak of that part, and everywhere for a question of one part. The first three stay, as two
    parts of a question in prose often have one answer.

    Args:
        query: The question.
        reads: Of the candidates.
        raw: Their scores so far.
    """
    columns, language = (
        {group: at for at, group in enumerate(reads.terms.groups)},
        language_of(query),
    )
    idfs, lifts = np.array(reads.terms.idfs), np.zeros(len(raw))
    groups = (query_groups(part, language) for part in _BETWEEN_PARTS.split(query))
    parts = [
        sorted({columns[group] for group in of_part if group in columns}) for of_part in groups
    ]
    parts = [part for part in parts if part and idfs[part].sum() > _LEAST_PART * reads.weight]
    if len(parts) < 2 or not len(raw):  # noqa: PLR2004
        return lifts
    held, shown = reads.terms.counts > 0, np.argsort(-raw, kind="stable")[:_UNMOVED].tolist()
    last = float(raw[shown[-1]])
    for part in parts:
        shares = held[:, part] @ idfs[part] / idfs[part].sum()
        speaks = shares >= _SPEAKS
        if speaks[shown].any() or not speaks.any():
            continue
        row = int(np.where(speaks, raw + _WHOLE * shares, -np.inf).argmax())
        last = max(float(raw[row]), last - _STEP)
        lifts[row] = last - raw[row]
        shown.append(row)
    return lifts


# Near duplicates


class NearDuplicates:
    """The pairs of words of the texts so far; notes of different days repeat nothing."""

    def __init__(self) -> None:
        self._met: list[tuple[frozenset[int], date | None]] = []

    def has(self, text: str, metadata: Mapping[str, Any]) -> bool:
        """Whether a text is nearly equal to one of those so far; if not, it is one of them from now on."""
        words, day = text.casefold().split(), meta.day_of(metadata)
        pairs = frozenset(map(hash, pairwise(words))) or frozenset([hash(tuple(words))])
        for others, other_day in self._met:
            few, many = sorted((len(pairs), len(others)))
            if few >= _SAME * many and day == other_day:
                both = len(pairs & others)
                if both >= _SAME * (few + many - both):
                    return True
        self._met.append((pairs, day))
        return False
