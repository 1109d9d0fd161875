"""The signals of candidates beyond their scores, from what a keyword arm of ours reads of chunks.

========== ==========================================================================================================
match      BM25 as a share of the summed rarity (idf) of the question's words: how much of the question is found
nearness   how near to each other the question's neighbouring words stand, weighted by their rarity
date       1 on a day that the question names, less over the week after it
names      1 for the best chunk of a document whose name (file, title, alias) is the question, less for a heading
opening    share of the question's words, by rarity, in the headings with which the chunk begins
========== ==========================================================================================================

They mean the same for every question, and are 0 for all candidates where there is no keyword arm of ours. What does not
depend on the question, the :class:`ChunkRecord`, is read once for each chunk and kept by the index.

Source files have more: what a file is called, what it defines, and how much of the pool it has.

============ ========================================================================================================
file name    share of the words of the file's name that the question has; a word of most chunks counts half as much
defines      how many words a name that the file defines shares with the question
exact        1 where a name that the chunk defines stands in the question, or is the question
file vector  the mean of the file's three best vector scores, 0 for a missing one: several chunks speak for a file
file share   how much of the pool the file has, better candidates counting more, as a share of the file with most
test         1 for tests, examples, benchmarks and fixtures unless the question asks for them; its weight is negative
============ ========================================================================================================

All are 0 for chunks of other files. Who types words looks for places in the code, so each further chunk of a file loses
:data:`FURTHER`; a question with a question mark may be answered by several chunks of one file.
``benchmarks/train.py`` trains the numbers in ``code.json``.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

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
from llama_index_contextual.text import fold, normalise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from llama_index_contextual.keyword import Analyzer, TermScores
    from llama_index_contextual.retrieval.bm25 import ContextualBM25Retriever

Floats = npt.NDArray[np.float64]
_LINK: Final = re.compile(
    r"!?\[\[([^\[\]|#^\n]{1,200}(?:#(?=[\]|]))?)(?:[#^][^\[\]|\n]{0,200})?(?:\|[^\[\]\n]{0,200})?\]\]"
)
_QUOTES: Final = "\"'“”„«»`’‘<>"
# Blanks, dashes, slashes, and marks of sentences.
_SEPARATORS: Final = re.compile(r"[\s\-_./\\\u05be\u2010-\u2015\u2212?!,;:\u00a1\u00bf\u2026\u3001\u3002]+")
_HEADING_LINE: Final = re.compile(r" {0,3}#{1,6}[ \t]+(\S.*)$")
_READ: Final = 1000  # characters of a chunk that may be headings
_LONGEST: Final = 200  # characters of a name
_MOST_WORDS: Final = 16  # of a name
_ALIASES: Final = ("aliases", "alias")
_OURS: Final = (DATE, DATE_TS, HEADER_PATH, HEADING_LEVEL, PATH)
_DATED: Final = (*_OURS, *map(prefixed_key, _OURS), "file_path", "file_name")
_FIRST: Final = 50  # candidates whose openings are read
_NAME, _TOP_HEADING, _HEADING = 1.0, 0.75, 0.5  # as shares of the weight of names

SIGNALS: Final = ("file name", "defines", "exact", "file vector", "file share", "test")
FURTHER: Final = {"words": 9.0, "question": 0.5}  # log-odds
PROSE: Final = 0.5  # factor of the signals for a question with a question mark, which is about more than a name
_SUFFIXES: Final = frozenset(
    """
    .c .cc .cjs .cpp .cs .cxx .dart .ex .exs .go .h .hpp .hs .java .jl .js .jsx .kt .lua .m .mjs .php .pl .pm .py .pyi
    .r .rb .rs .scala .sh .sql .swift .ts .tsx .vue .zig
    """.split()  # noqa: SIM905  a list of words reads better as text
)
_TESTS: Final = frozenset(
    """
    __tests__ benchmark benchmarks doc docs example examples fixtures spec specs test testdata tests
    """.split()  # noqa: SIM905
)
_TEST_ENDINGS: Final = ("_test", ".test", "_spec", ".spec", "Test", "Tests")
_MODIFIERS: Final = frozenset(("public", "private", "protected", "static", "final", "abstract", "override"))
_DEFINED: Final = re.compile(
    r"(?:(?:abstract|async|case|companion|data|declare|default|export|extern|final|implicit|infix|inline|internal|local|"
    r"mutating|open|override|partial|private|protected|pub(?:\([a-z]{1,9}\))?|public|readonly|sealed|static|suspend|"
    r"unsafe|virtual)\s{1,4}){0,6}(?:class|const|def|defmacro|defmodule|defp|enum|fn|fun|func|function|impl|interface|let|"
    r"macro_rules!|module|struct|trait|type|typealias|union|val|var|(?:extension|object|protocol|record)(?=\s{1,4}[A-Z]))"
    r"\s{1,4}(?:\([^()]{0,80}\)\s{0,4})?([A-Za-z_$][\w$]*(?:(?:\.|::)[\w$]+)*)"
)
_ASSIGNED: Final = re.compile(r"([A-Za-z_$][\w$]*)\s?[:=]\s?(?:async\s)?(?:function\b|\([^()]{0,80}\)\s?=>)")
_SIGNED: Final = re.compile(r"([a-z_]\w*)\s::\s")
_HEAD: Final = re.compile(r"[\w\s*&<>:\[\],?~$]+")  # of a function in C's family
_NO_HEAD: Final = frozenset(
    """
    assert await case catch do elif else fn for foreach func function guard if in lock match new not return switch
    synchronized throw try unless until using while with yield
    """.split()  # noqa: SIM905
)
_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w+")
_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_LONGEST_LINE: Final = 300  # characters of a line that may define a name
_SPEAKERS: Final = 3  # chunks that speak for their file
_FADES: Final = 10  # ranks after which a candidate counts 1/e of the first
_FEW: Final = 4  # words of a question so short that a name has to hold all of them
_ENOUGH: Final = 2  # words that a name has to share with a question
_MOST_REPEATS: Final = 3


class CodeRecord(NamedTuple):
    """What the ranking reads of a chunk of a source file, whatever the question is.

    Args:
        path: Of its file.
        stem: Terms of the file's name.
        names: The names that it defines.
        is_test: Whether the file is a test, an example or documentation of code.
    """

    path: str
    stem: frozenset[str]
    names: tuple[str, ...]
    is_test: bool


def code_record(analyzer: Analyzer, path: str, text: str) -> CodeRecord | None:
    """The record of a chunk; None where its file is no source file."""
    pure = PurePosixPath(path)
    if pure.suffix.lower() not in _SUFFIXES:
        return None
    is_test = pure.name.startswith("test_") or pure.stem.endswith(_TEST_ENDINGS)
    is_test = is_test or not _TESTS.isdisjoint(pure.parts[:-1])
    return CodeRecord(path, _words_of(analyzer, pure.stem), definitions_of(text), is_test)


def definitions_of(text: str) -> tuple[str, ...]:
    """The names that a chunk defines."""
    lines = (line.strip() for line in text.splitlines())
    names = (_defined_in(line) for line in lines if len(line) <= _LONGEST_LINE)
    return tuple(re.split(r"[.:]", name)[-1] for name in names if name)


def _defined_in(line: str) -> str:
    """The name that a line of any language defines, with what it is a part of; "" for none."""
    if found := _DEFINED.match(line) or _ASSIGNED.search(line) or _SIGNED.match(line):
        return found[1]
    head, bracket, rest = line.partition("(")
    words = head.split()
    if bracket and words[1:] and words[0] in _MODIFIERS:
        return words[-1]
    is_function = bracket and line.endswith("{") and not re.search(r"[\"'`]|=>|\bfunction\b", rest)
    if is_function and _HEAD.fullmatch(head) and _NO_HEAD.isdisjoint(words := re.findall(r"[\w$]+", head)):
        return words[-1] if words else ""
    return ""


@lru_cache(maxsize=1 << 15)
def _words_of(analyzer: Analyzer, name: str) -> frozenset[str]:
    """Terms of the parts of a name: ``getUserName`` has those of get, user and name."""
    return frozenset(analyzer.tokens(" ".join(_WORD.findall(name))))


@dataclass(frozen=True)
class ChunkRecord:
    """What the ranking reads of a chunk, whatever the question is.

    Args:
        path: Of its file; "" where it has none.
        names: What it is called, folded, by the value of each: names of its document, and the first and last heading.
        opening: The headings with which it begins.
        code: Names in it, where it is of a source file.
        dated: The part of its metadata that may name its day.
    """

    path: str
    names: Mapping[str, float]
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
        _names_of(path, *(str(metadata.get(key) or "") for key in (HEADER_PATH, TITLE, *_ALIASES))),
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
        near = None if is_message else store.nearness(groups, ids)
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
    """A name without case, accents, brackets of a link, and with spaces for all separators and marks."""
    return " ".join(_SEPARATORS.sub(" ", fold(normalise(_unlinked(text))).casefold()).split())


def _unlinked(text: str) -> str:
    """A name without quotes, brackets of a link, and codes of a URL."""
    text = text.strip().strip(_QUOTES).strip()
    link = _LINK.fullmatch(text)
    return unquote(link[1] if link else text)


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
def _names_of(path: str, header_path: str, title: str, *aliases: str) -> Mapping[str, float]:
    """Values of the names of a chunk, folded: its outermost and innermost heading, and the names of its document.

    Those are its path, the file's name, both without the suffix, its title and aliases.
    """
    pure = PurePosixPath(path.replace("\\", "/"))
    both = (pure.parts, pure.with_suffix("").parts if pure.suffix and pure.stem else ())
    named = [title, *(part for one in aliases for part in one.split(","))]
    named += ["/".join(parts[start:]) for parts in both for start in range(len(parts))]
    titles = heading_titles({HEADER_PATH: header_path, HEADING_LEVEL: 1})
    values = {_HEADING: titles[-1:], _TOP_HEADING: titles[:1], _NAME: named}
    return {folded_name(one): value for value, several in values.items() for one in several}


def named_rows(query: str, records: Sequence[ChunkRecord | None], raw: Floats) -> dict[int, float]:
    """Rows of the best chunk of each document that the question names, with the value of the name.

    Args:
        query: The question.
        records: Of the candidates, in the order of their ids.
        raw: Their scores so far.
    """
    name = folded_name(query) if len(query) <= _LONGEST else ""
    if not 0 < len(name.split()) <= _MOST_WORDS:
        return {}
    shares = {row: one.names[name] for row, one in enumerate(records) if one is not None and name in one.names}
    paths = {row: PurePosixPath(record.path) for row in shares if (record := records[row])}
    written = _unlinked(query)
    if exact := {row for row, path in paths.items() if written in (str(path), path.name, path.stem)}:
        shares = {row: share if row in exact else _HEADING for row, share in shares.items()}  # A.md beside a.md
    found: dict[object, int] = {}
    for row in sorted(shares, key=lambda row: (-shares[row], -raw[row], row)):
        record = records[row]
        found.setdefault((record and record.path) or row, row)
    return {row: shares[row] for row in found.values()}


# Source files


def code_signals(
    query: str, reads: PoolReads, records: Sequence[CodeRecord | None], vectors: Floats, order: Sequence[int]
) -> dict[str, Floats]:
    """Values of the candidates by signal; 0 for those that are of no source file.

    Args:
        query: The question.
        reads: Of the keyword arm.
        records: Of the candidates.
        vectors: The stretched scores of the vector arm.
        order: Rows of all candidates, best first.
    """
    analyzer, terms, lower = reads.analyzer, reads.terms, query.strip().lower()
    words, rarest = _words_of(analyzer, query), max(terms.idfs, default=0.0) or 1.0
    rarity = {term: idf / rarest for idf, group in zip(terms.idfs, terms.groups, strict=True) for term in group}
    identifiers = {one for one in _IDENTIFIER.findall(query) if "_" in one[1:] or one[1:] != one[1:].lower()}
    mass, members = dict[str, float](), dict[str, list[int]]()
    for rank, row in enumerate(order):
        if record := records[row]:
            mass[record.path] = mass.get(record.path, 0.0) + math.exp(-rank / _FADES)
            members.setdefault(record.path, []).append(row)
    most, asks_for_tests = max(mass.values()), not words.isdisjoint(_words_of(analyzer, " ".join(_TESTS)))
    signals = {name: np.zeros(len(records)) for name in SIGNALS}
    for path, rows in members.items():
        codes = [record for row in rows if (record := records[row])]
        stem, defined = codes[0].stem, {name for code in codes for name in code.names}
        of_file = {
            "file name": sum(0.5 + 0.5 * rarity.get(word, 1.0) for word in stem & words) / max(1, len(stem)),
            "defines": max((_shared(_words_of(analyzer, name), words) for name in defined), default=0.0),
            "file vector": float(np.sort(vectors[rows])[::-1][:_SPEAKERS].sum()) / _SPEAKERS,
            "file share": mass[path] / most,
            "test": float(codes[0].is_test and not asks_for_tests),
        }
        for name, value in of_file.items():
            signals[name][rows] = value
        exact = [any(name in identifiers or name.lower() == lower for name in code.names) for code in codes]
        signals["exact"][rows] = exact
    factor = PROSE if "?" in query else 1.0
    return {name: factor * values for name, values in signals.items()}


def _shared(name: frozenset[str], question_words: frozenset[str]) -> float:
    """The share of a name's words that a question has, less where it has a single one of several."""
    both = len(name & question_words)
    every = len(name | question_words) if len(question_words) < _FEW else len(name)
    return both / max(1, every) * min(1.0, both / min(_ENOUGH, len(question_words) or 1))


def repeats(query: str, records: Sequence[CodeRecord | None], order: Sequence[int]) -> Floats:
    """The loss of each further chunk of a source file, in log-odds."""
    loss = FURTHER["question" if "?" in query else "words"]
    seen, lost = Counter[str](), np.zeros(len(records))
    for row in order:
        if record := records[row]:
            lost[row] = loss * min(seen[record.path], _MOST_REPEATS)
            seen[record.path] += 1
    return lost
