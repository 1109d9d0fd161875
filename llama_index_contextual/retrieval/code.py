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
``benchmarks/train_code.py`` trains the numbers in ``code.json``.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_contextual.keyword import Analyzer

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


@lru_cache(maxsize=65_536)
def is_code(path: str) -> bool:
    """Return whether a path is that of a source file."""
    return PurePosixPath(path).suffix.lower() in _SUFFIXES


def is_test(path: str) -> bool:
    """Return whether a path is that of a test, an example or documentation of code."""
    pure = PurePosixPath(path)
    is_named_so = pure.name.startswith("test_") or (bool(pure.suffix) and pure.stem.endswith(_TEST_ENDINGS))
    return is_named_so or not _TESTS.isdisjoint(pure.parts[:-1])


@lru_cache(maxsize=4096)
def definitions_of(text: str) -> tuple[str, ...]:
    """Return the names that a chunk defines."""
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
    """Return the terms of the parts of a name: ``getUserName`` has those of get, user and name."""
    return frozenset(analyzer.tokens(" ".join(_WORD.findall(name))))


def code_signals(
    query: str,
    analyzer: Analyzer,
    paths: Mapping[str, str],
    texts: Mapping[str, str],
    vectors: Mapping[str, float],
    order: Sequence[str],
) -> dict[str, dict[str, float]]:
    """Return by signal the values of the chunks of source files.

    Args:
        query: The question.
        analyzer: Of the keyword arm.
        paths: Of the chunks of source files, by id.
        texts: Of the same chunks.
        vectors: The stretched scores of the vector arm.
        order: All candidates, best first.
    """
    question_words, lower = _words_of(analyzer, query), query.strip().lower()
    identifiers = {one for one in _IDENTIFIER.findall(query) if "_" in one[1:] or one[1:] != one[1:].lower()}
    mass, members = Counter[str](), defaultdict[str, list[str]](list)
    for rank, node_id in enumerate(order):
        if (path := paths.get(node_id)) is not None:
            mass[path] += math.exp(-rank / _FADES)  # type: ignore[assignment]  # a counter of floats
            members[path].append(node_id)
    most = max(mass.values(), default=1.0)
    factor = PROSE if "?" in query else 1.0
    asks_for_tests = not question_words.isdisjoint(_words_of(analyzer, " ".join(_TESTS)))
    signals: dict[str, dict[str, float]] = defaultdict(dict)
    for path, node_ids in members.items():
        names = {node_id: definitions_of(texts.get(node_id, "")) for node_id in node_ids}
        defined = {name for of_chunk in names.values() for name in of_chunk}
        stem = _words_of(analyzer, PurePosixPath(path).stem)
        best = sorted((vectors.get(node_id, 0.0) for node_id in node_ids), reverse=True)[:_SPEAKERS]
        of_file = {
            "file name": len(stem & question_words) / max(1, len(stem)),
            "defines": max((_shared(_words_of(analyzer, name), question_words) for name in defined), default=0.0),
            "file vector": math.fsum(best) / _SPEAKERS,
            "file share": mass[path] / most,
            "test": float(not asks_for_tests and is_test(path)),
        }
        for node_id in node_ids:
            exact = any(name in identifiers or name.lower() == lower for name in names[node_id])
            for signal, value in (*of_file.items(), ("exact", float(exact))):
                if value:
                    signals[signal][node_id] = factor * value
    return dict(signals)


def _shared(name: frozenset[str], question_words: frozenset[str]) -> float:
    """Return the share of a name's words that a question has, less where it has a single one of several."""
    both = len(name & question_words)
    every = len(name | question_words) if len(question_words) < _FEW else len(name)
    return both / max(1, every) * min(1.0, both / min(_ENOUGH, len(question_words) or 1))


def repeats(paths: Mapping[str, str], order: Sequence[str], query: str) -> dict[str, float]:
    """Return the loss of each further chunk of a source file, in log-odds, by id."""
    loss = FURTHER["question" if "?" in query else "words"]
    seen, lost = Counter[str](), dict[str, float]()
    for node_id in order:
        if (path := paths.get(node_id)) is not None:
            if seen[path]:
                lost[node_id] = loss * min(seen[path], _MOST_REPEATS)
            seen[path] += 1
    return lost
