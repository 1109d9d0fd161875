"""The signals of source files: what a file is called, what it defines, and how much of the pool it has.

============ ========================================================================================================
file name    share of the words of the file's name that the question has; a word of most chunks counts half as much
defines      how many words a name that the file defines shares with the question
exact        1 where a name that the chunk defines stands in the question, or is the question; spelled so, if any is
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
from collections import Counter, defaultdict
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from llama_index_contextual.context.source_code import definitions_of, is_code
from llama_index_contextual.retrievers.terms import terms_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.retrievers.arrays import Floats

SIGNALS: Final = ("file name", "defines", "exact", "file vector", "file share", "test")
FURTHER: Final = {"words": 9.0, "question": 0.5}  # log-odds
PROSE: Final = 0.5  # factor of the signals for a question with a question mark, which is about more than a name
_TESTS: Final = frozenset(
    """
    benchmark benchmarks doc docs example examples fixtures spec specs test testdata tests
    """.split()  # noqa: SIM905  a list of words reads better as text
)
_TEST_ENDINGS: Final = ("_test", ".test", "_spec", ".spec", "Test", "Tests")
_IMPL_FOR: Final = re.compile(r"[^\n{]{1,200} for ")
_LAST_PART: Final = re.compile(r"[.:\\]")  # Engine.search, Engine::search
_IDENTIFIER: Final = re.compile(r"\b[A-Za-z_][^\WA-Z_]*[A-Z_]\w*")
_BETWEEN: Final = re.compile(r"[\W_]+")
_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_SPEAKERS: Final = 3  # chunks that speak for their file
_MOST_REPEATS: Final = 3
_FADES: Final = 10  # ranks after which a candidate counts 1/e of the first


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


def code_record(path: str, text: str) -> CodeRecord | None:
    """The record of a chunk; None where its file is no source file."""
    if not is_code(path):
        return None
    pure = PurePosixPath(path)
    is_test = pure.name.startswith("test_") or pure.stem.endswith(_TEST_ENDINGS)
    is_test = is_test or not _TESTS.isdisjoint(part.strip("_") for part in pure.parts[:-1])
    # "impl Display for Plan" defines no Display
    defined = (
        one
        for one in definitions_of(text, path)
        if one.kind != "impl" or not _IMPL_FOR.match(text, one.start)
    )
    names = (_LAST_PART.split(one.name)[-1] for one in defined)
    return CodeRecord(path, _words_of(pure.stem), tuple(names), is_test)


@lru_cache(maxsize=1 << 15)
def _words_of(name: str) -> frozenset[str]:
    """Terms of the parts of a name: ``getUserName`` has those of get, user and name."""
    return frozenset(terms_of(" ".join(_WORD.findall(name))))


def code_signals(
    query: str, reads: Any, vectors: Floats, order: Sequence[int]
) -> dict[str, Floats]:
    """Values of the candidates by signal; 0 for those that are of no source file.

    Args:
        query: The question.
        reads: What a keyword arm reads of the candidates, as :class:`~.retrieval.signals.PoolReads` has it.
        vectors: The stretched scores of the vector arm.
        order: Rows of all candidates, best first.
    """
    words, terms = _words_of(query), reads.terms
    names = [query, *_IDENTIFIER.findall(query)]
    rarest = max(terms.idfs, default=0.0) or 1.0
    rarity = {
        term: idf / rarest
        for idf, group in zip(terms.idfs, terms.groups, strict=True)
        for term in group
    }
    asks_for_tests = not words.isdisjoint(_words_of(" ".join(_TESTS)))
    mass, members = defaultdict[str, float](float), defaultdict[str, dict[int, CodeRecord]](dict)
    for rank, row in enumerate(order):
        if code := getattr(reads.records[row], "code", None):
            mass[code.path] += math.exp(-rank / _FADES)
            members[code.path][row] = code
    signals, factor = (
        {name: np.zeros(len(reads.records)) for name in SIGNALS},
        PROSE if "?" in query else 1.0,
    )
    files = {row: code for codes in members.values() for row, code in codes.items()}
    grades = {
        row: max(definition_grade(name, code) for name in names) for row, code in files.items()
    }
    best = max(grades.values(), default=0)
    for path, codes in members.items():
        rows, first = [*codes], next(iter(codes.values()))
        defined = [
            _words_of(name) for name in {name for code in codes.values() for name in code.names}
        ]
        of_file = {
            "file name": sum(0.5 + 0.5 * rarity.get(one, 1.0) for one in first.stem & words)
            / max(1, len(first.stem)),
            "defines": max((_shared(name, words) for name in defined if name), default=0.0),
            "file vector": float(np.sort(vectors[rows])[::-1][:_SPEAKERS].sum()) / _SPEAKERS,
            "file share": mass[path] / max(mass.values()),
            "test": float(first.is_test and not asks_for_tests),
        }
        for name, value in of_file.items():
            signals[name][rows] = factor * value
    for row, grade in grades.items():
        signals["exact"][row] = factor * (0 < grade == best)
    return signals


def definition_grade(name: str, code: CodeRecord) -> int:
    """2 where a chunk of a source file defines a name as it is spelled, 1 for ``plan_day`` of ``PlanDay``, else 0."""
    return 2 if name.strip(" ()") in code.names else int(_joined(name) in map(_joined, code.names))


def _joined(name: str) -> str:
    """Letters and digits of a name: ``route_group``, ``RouteGroup`` and ``route group`` are one."""
    return _BETWEEN.sub("", name).lower()


def _shared(name: frozenset[str], words: frozenset[str]) -> float:
    """The share of a name's words that a question has, half where it has a single one of several of its own."""
    both = len(name & words)
    return both / len(name) * min(1.0, both / min(2, len(words) or 1))


def repeats(query: str, reads: Any, order: Sequence[int]) -> Floats:
    """The loss of each further chunk of a source file, in log-odds."""
    loss, seen, lost = (
        FURTHER["question" if "?" in query else "words"],
        Counter[str](),
        np.zeros(len(order)),
    )
    for row in order:
        if code := getattr(reads.records[row], "code", None):
            lost[row] = loss * min(seen[code.path], _MOST_REPEATS)
            seen[code.path] += 1
    return lost
