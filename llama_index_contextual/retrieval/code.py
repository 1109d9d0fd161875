"""The signals of source files: what a file is called, what it defines, and how much of the pool it has.

============ ========================================================================================================
file name    share of the words of the file's name that the question has
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
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.keyword import Analyzer
    from llama_index_contextual.retrieval.fusion import Floats

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
_DEFINED: Final = re.compile(
    r"(?:(?:export|public|private|protected|static|final|abstract|async|default|unsafe|pub(?:\([a-z]{1,9}\))?)\s{1,4}){0,6}"
    r"(?:def|class|func|function|interface|trait|struct|enum|type|impl|fn|module|const|let|var)\s{1,4}"
    r"(?:\([^()]{0,80}\)\s{0,4})?([A-Za-z_$][\w$]*)"
)
_MODIFIERS: Final = frozenset(("public", "private", "protected", "static", "final", "abstract", "override"))
_ASSIGNED: Final = re.compile(r"([A-Za-z_$][\w$]*)\s?=\s?(?:async\s)?function\b")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w+")
_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_LONGEST: Final = 300  # characters of a line that may define a name
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
    names = []
    for full_line in text.splitlines():
        line = full_line.strip()
        if len(line) > _LONGEST:
            continue
        if found := _DEFINED.match(line) or _ASSIGNED.search(line):
            names.append(found[1])
        elif "(" in line and (words := line.partition("(")[0].split())[1:] and words[0] in _MODIFIERS:
            names.append(words[-1])
    return tuple(names)


@lru_cache(maxsize=1 << 15)
def _words_of(analyzer: Analyzer, name: str) -> frozenset[str]:
    """Terms of the parts of a name: ``getUserName`` has those of get, user and name."""
    return frozenset(analyzer.tokens(" ".join(_WORD.findall(name))))


def code_signals(
    query: str, analyzer: Analyzer, records: Sequence[CodeRecord | None], vectors: Floats, order: Sequence[int]
) -> dict[str, Floats]:
    """Values of the candidates by signal; 0 for those that are of no source file.

    Args:
        query: The question.
        analyzer: Of the keyword arm.
        records: Of the candidates.
        vectors: The stretched scores of the vector arm.
        order: Rows of all candidates, best first.
    """
    words, lower = _words_of(analyzer, query), query.strip().lower()
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
        defined = {name for code in codes for name in code.names}
        of_file = {
            "file name": len(codes[0].stem & words) / max(1, len(codes[0].stem)),
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
