"""The signals of candidates beyond their scores, from what a keyword arm of ours reads of chunks.

========== ==========================================================================================================
match      BM25 as a share of the summed rarity (idf) of the question's words: how much of the question is found
nearness   how near to each other the question's neighbouring words stand, weighted by their rarity
date       1 on a day that the question names, less over the week after it
names      1 for the best chunk of a document whose name (file, title, alias) is the question, less for a heading
shallow    1 for a chunk under no heading, or under its document's outermost alone: what a page is about stands there
========== ==========================================================================================================

They mean the same for every question, and are 0 for all candidates where there is no keyword arm of ours. What does not
depend on the question, the :class:`ChunkRecord`, is read once for each chunk and kept by the index.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from functools import lru_cache
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np

from llama_index_contextual.chunking import headings_of
from llama_index_contextual.common import fold, normalise
from llama_index_contextual.common import metadata as meta
from llama_index_contextual.keyword import Floats, TermScores, closeness, find_dates, lexicon_of, query_groups
from llama_index_contextual.retrieval.code import CodeRecord, code_record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


_LINK: Final = re.compile(
    r"!?\[\[([^\[\]|#^\n]{1,200}(?:#(?=[\]|]))?)(?:[#^][^\[\]|\n]{0,200})?(?:\|[^\[\]\n]{0,200})?\]\]"
)
_QUOTES: Final = "\"'`<>«»\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u2039\u203a\u300c\u300d\u300e\u300f"
_PLACE: Final = re.compile(r"(?<=\w)(\.[A-Za-z]\w{0,9})#.*")  # in a file: a.md#L3-L9, a.md#Heading
# Blanks, quotation marks, dashes, slashes, brackets, marks of emphasis and of sentences.
_SEPARATORS: Final = re.compile(
    rf"[{_QUOTES}\s\-_./\\()\[\]{{}}*|\u05be\u2010-\u2015\u2212?!,;:\u00a1\u00bf\u2026\u3001\u3002]+"
)
_ENDING: Final = re.compile(r"(?<=\w\w)s\b")
_LOOSE: Final = "\0"  # before a name without spaces and the endings of plurals
LONGEST_NAME: Final = 200  # characters of a name
NAMING: Final = (meta.TITLE, "aliases", "alias")  # metadata keys of names of a document
_NAME, _TOP_HEADING, _HEADING = 1.0, 0.75, 0.5  # as shares of the weight of names
_SAME: Final = 0.8  # Jaccard similarity of word pairs from which two chunks are nearly equal


class ChunkRecord(NamedTuple):
    """What the ranking reads of a chunk, whatever the question is.

    Args:
        path: Of its file; "" where it has none.
        section: Its header path.
        names: Its headings, folded, with the value of each as a name.
        is_shallow: Whether it stands under no heading, or under an outermost one alone.
        code: Names in it, where it is of a source file.
        day: The day of its note.
    """

    path: str
    section: str
    names: Mapping[str, float]
    is_shallow: bool
    code: CodeRecord | None
    day: date | None


def record_of(metadata: Mapping[str, Any], text: str) -> ChunkRecord:
    """The record of a chunk."""
    path = str(metadata.get(meta.PATH) or metadata.get("file_path") or "")
    code = code_record(path, text)
    headings = () if code else tuple(title for title, _, _ in headings_of(text))
    section = str(metadata.get(meta.HEADER_PATH) or "")
    names = _names_of(headings, section)
    is_shallow = code is None and len(_titles_in(section)) <= 1
    return ChunkRecord(path, section, names, is_shallow, code, meta.day_of(metadata))


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
    query: str, name: str, arm: Any, ids: Sequence[str], wanted: Collection[str], *, is_message: bool = False
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
        named = {one.node_id: value for of in (None, among) for one, value in arm.named(store, query, of).items()}
        return PoolReads(name, ids, store.term_scores(groups, ids), near, records, named, wanted)

    reads: PoolReads = arm.ask(read)
    return reads


def date_shares(query: str, records: Sequence[ChunkRecord | None], today: date | None) -> Floats:
    """The nearness of each chunk's day to the days that the question names; "last week" counts from ``today``."""
    shares = np.zeros(len(records))
    if days := [(row, one.day) for row, one in enumerate(records) if one is not None and one.day is not None]:
        dates = find_dates(query, today or datetime.now().astimezone().date(), lexicon_of(query))
        for row, day in days:
            shares[row] = closeness(day, dates)
    return shares


# Names


# The same few paths, titles and headings come again with each question.
@lru_cache(maxsize=65_536)
def folded_name(text: str) -> str:
    """A name without case, accents and brackets of a link, and with spaces for quotation marks and other separators."""
    return " ".join(_SEPARATORS.sub(" ", fold(normalise(_unlinked(text))).casefold()).split())


def _unlinked(text: str) -> str:
    """A name without quotes, brackets of a link, and codes of a URL."""
    text = _PLACE.sub(r"\1", text.strip().strip(_QUOTES).strip())
    link = _LINK.fullmatch(text)
    return unquote(link[1] if link else text)


def names_of_documents(documents: Iterable[tuple[Any, ...]]) -> dict[str, dict[str, float]]:
    """Documents by their folded names, with the value of each; by :func:`_loose` ones it is negative.

    Args:
        documents: The path of each, its first chunk's header path, and values of :data:`NAMING`.
    """
    by_name: dict[str, dict[str, float]] = {}
    for path, section, *naming in documents:
        headings = {folded_name(title): _TOP_HEADING for title in _titles_in(section)[:1]}
        names = dict.fromkeys(document_names(path, *(str(value or "") for value in naming)), _NAME)
        for name, value in (headings | names).items():
            by_name.setdefault(name, {})[path] = value
            by_name.setdefault(_loose(name), {})[path] = -value
    by_name.pop("", None)
    return by_name


def named_documents(by_name: Mapping[str, Mapping[str, float]], text: str) -> list[tuple[str, float]]:
    """Documents whose name a text is, or is but for spaces and a plural, best first, with the value of the name."""
    name = folded_name(text) if len(text) <= LONGEST_NAME else ""
    return sorted((by_name.get(name) or by_name.get(_loose(name), {})).items(), key=lambda item: -abs(item[1]))


def _loose(name: str) -> str:
    return _LOOSE + _ENDING.sub("", name).replace(" ", "") if name else ""


def document_names(path: str, title: str, *aliases: str) -> list[str]:
    """Folded names of a document: its title; aliases between commas; ends of its path, each without the suffix, too."""
    pure = PurePosixPath(path.replace("\\", "/"))
    folders, files = [folded_name(part) for part in pure.parts[:-1]], [pure.name, pure.stem if pure.suffix else ""]
    ends = [[*folders[start:], file] for file in map(folded_name, files) if file for start in range(len(folders) + 1)]
    named = [title, *(part for one in aliases for part in one.split(","))]
    return [*map(folded_name, named), *(" ".join(filter(None, parts)) for parts in ends)]


def _titles_in(header_path: object) -> Sequence[str]:
    return meta.heading_titles({meta.HEADER_PATH: header_path or "", meta.HEADING_LEVEL: 1})


@lru_cache(maxsize=65_536)
def _names_of(headings: Sequence[str], header_path: str) -> Mapping[str, float]:
    """The outermost heading of a chunk, the innermost and those in it, folded, with the value of each as a name."""
    titles = _titles_in(header_path)
    values = {_HEADING: [*titles[-1:], *headings], _TOP_HEADING: titles[:1]}
    return {folded_name(one): value for value, several in values.items() for one in several}


def name_shares(query: str, reads: PoolReads, raw: Floats) -> Floats:
    """The value of the name that the question is, for the best chunk of each document that is called so; 0 for others.

    Where filters leave that chunk out, the best one that they admit has the value, too.

    Args:
        query: The question.
        reads: Of the candidates.
        raw: Their scores so far.
    """
    name, shares, met = folded_name(query) if len(query) <= LONGEST_NAME else "", np.zeros(len(raw)), set[Any]()
    records = {row: one for row, one in enumerate(reads.records) if one and name}
    named = {row: reads.named.get(reads.ids[row], 0.0) for row in records}
    values = {row: max(named[row], one.names.get(name, 0.0)) for row, one in records.items()}
    values = values if any(values.values()) else {row: -value for row, value in named.items()}
    for row in sorted(values, key=lambda row: (-values[row], -raw[row], row)):
        document = (records[row].path, reads.ids[row] in reads.wanted)
        if document not in met or not records[row].path:
            shares[row] = values[row]
            met.add(document)
    return shares


# Near duplicates


class NearDuplicates:
    """The pairs of words of the texts so far; notes of different days repeat nothing."""

    def __init__(self) -> None:
        self._met: list[tuple[frozenset[tuple[str, ...]], Mapping[str, Any]]] = []

    def has(self, text: str, metadata: Mapping[str, Any]) -> bool:
        """Whether a text is nearly equal to one of those so far; if not, it is one of them from now on."""
        words = text.casefold().split()
        pairs = frozenset[tuple[str, ...]](pairwise(words)) or frozenset([tuple(words)])
        for others, of_other in self._met:
            both = len(pairs & others)
            if both >= _SAME * (len(pairs) + len(others) - both) and meta.day_of(metadata) == meta.day_of(of_other):
                return True
        self._met.append((pairs, metadata))
        return False
