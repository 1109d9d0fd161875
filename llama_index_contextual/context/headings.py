"""Contexts that cost nothing: of headings, and of source code. Other documents get their headings.

Expressions over single lines find what source code defines, rather than a grammar per language: they read half a
function too, as in a chunk, and know some thirty languages. The ranking of source files reads the same definitions.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from llama_index.core.schema import BaseNode, MetadataMode

from llama_index_contextual.context.base import (
    ChunkContext,
    ContextGenerator,
    SourceDocument,
    position,
)
from llama_index_contextual.utils import dates, metadata
from llama_index_contextual.utils.text import KEYWORD_SUFFIXES, SOURCE_SUFFIXES, short_hash

_FORM: Final = "Document: {breadcrumb}\n{title}\n{date}\n{continues}"  # part of the version
_REVISION: Final = 3  # raise it when the same settings would give other words
_MOST_CHARS: Final = (
    300  # of a breadcrumb: a longer one loses its outer headings first, its own heading last
)

_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_YEAR: Final = re.compile(r"(19|20)\d\d")
_HASH: Final = re.compile(r"[0-9a-f-]{8,}", re.IGNORECASE)
_LEAST_DIGITS: Final = 3  # of a number that counts files: "GPT-4" and "chapter-3" say something


class HeadingContextGenerator(ContextGenerator):
    """``Document: memory/2026-01-28.md > Morning Check-in > Task Updates``, then title and date where known.

    The breadcrumb carries identity and no phrase that every chunk would share, because shared phrases pull the vectors
    of small embedding models together. Below it stand the title from front matter, unless a heading or the path says it
    already, the date in words, and what an earlier piece of a split table or fence holds. Where nothing but a path is
    known and it is an id (``urteil-001.md``), the keyword arm alone reads it: see :func:`is_id`.
    """

    name = "headings"
    version = short_hash([name, _REVISION, _FORM, _MOST_CHARS])

    def generate(
        self, nodes: Sequence[BaseNode], document: SourceDocument
    ) -> list[ChunkContext | None]:
        """One context per node; its text is empty where no heading, title, date or path with words is known."""
        texts = (_describe(node, document) for node in nodes)
        return [ChunkContext(text, self.name, lexical, self.version) for text, lexical in texts]


def _describe(node: BaseNode, document: SourceDocument) -> tuple[str, str]:
    """The embedded context of a chunk, and the one that the keyword arm alone reads."""
    values: Mapping[str, Any] = {**document.metadata, **node.metadata}
    headings = metadata.heading_titles(values)
    keys = metadata.TITLE, metadata.DATE, metadata.CONTINUES
    title, day, continues = (metadata.value_of(values, key) or "" for key in keys)
    below = [
        _new_title(str(title), document.path, headings),
        dates.date_in_words(day),
        str(continues),
    ]
    room = max(1, _MOST_CHARS - len(document.path) - len(metadata.HEADER_SEPARATOR))
    parts = filter(None, [document.path, metadata.short_header_path(headings, room)])
    breadcrumb = metadata.shortened(metadata.HEADER_SEPARATOR.join(parts), _MOST_CHARS)
    lines = [breadcrumb and f"Document: {breadcrumb}", *map(str.rstrip, below)]
    text = "\n".join(filter(None, lines)).strip()
    return (text, "") if headings or any(below) or not is_id(document.path) else ("", text)


def is_id(path: str) -> bool:
    """Whether a path holds no words about what is in the file: ``urteil-001.md``, ``0042.txt``, a hash.

    Such a name is a number, a hash, or one word with a number of three digits or more that is no year, in no folder
    with a word. Embedded, it costs vectors more than it gives (``benchmarks/results/languages.md``).
    """
    file = PurePosixPath(path)
    name = file.stem
    words, numbers = _WORD.findall(name), re.findall(r"\d+", name)
    is_counter = any(
        len(number) >= _LEAST_DIGITS and not _YEAR.fullmatch(number) for number in numbers
    )
    opaque = bool(_HASH.fullmatch(name)) or len(words) <= is_counter
    return bool(numbers) and opaque and not _WORD.search(file.parent.as_posix())


def _new_title(title: str, path: str, headings: Sequence[str]) -> str:
    """Keep a title only where it adds words: many documents repeat it as their first heading."""
    names = {
        name.casefold() for name in (*headings, path, path.rpartition("/")[2].rpartition(".")[0])
    }
    title = metadata.shortened(" ".join(title.split()))
    return "" if title.casefold() in names else title


_DEFINED: Final = re.compile(
    r"(?:(?:abstract|async|case|companion|const(?=\s(?:fn|unsafe))|data|declare|default|export|extern(?:\s\"\w{1,9}\")?|"
    r"final|implicit|infix|inline|internal|local|mutating|open|override|partial|private|protected|pub(?:\([a-z]{1,9}\))?|"
    r"public|readonly|sealed|static|suspend|unsafe|virtual)\s{1,4}){0,6}"
    r"(class|const|def|defmacro|defmodule|defp|enum(?:\s(?:class|struct))?|fn|fun|func|function|impl|interface|let|"
    r"macro_rules|mod|module|namespace|struct|sub|trait|type|typealias|union|val|var|"
    r"(?:extension|object|protocol|record)(?=\s{1,4}[A-Z]))[*!]?(?:<[^<>]{0,80}(?:<[^<>]{0,80}>[^<>]{0,80}){0,4}>)?\s{1,4}"
    r"(?:[A-Z][A-Z\d]{0,40}_[A-Z\d_]{1,40}\s(?=[A-Z]))?"  # class GTEST_API_ Test
    r"(?:\((?:\w+\s+)?\*?(\w+)?[^()]{0,80}\)\s{0,4})?"  # func (s *Stack[T]) Push
    r"([A-Za-z_$][\w$]*(?:(?:\.|::|\\)[\w$]+)*)"
    r"(?=\s*(?:[^\w\s.%*`'\"]|$|(?:do|extends|final|for|func|implements|permits|where|with)\b|[\w.*\[\]]+(?:$|\s*[{/])))"
)
_ASSIGNED: Final = re.compile(
    r"([A-Za-z_$][\w$]*)\s?(?:[:=]|<-)\s?(?:async\s)?(?:function\b|\([^()]{0,80}\)\s?=>)"
    r"|\bfunction\s([A-Za-z_$][\w$]*)\s?\("
)
_SIGNED: Final = re.compile(r"([a-z_]\w*)\s::\s")  # in Haskell
_FUNCTION: Final = re.compile(  # in C's family: its head, its parameters, what may stand before its body
    r"([\w~$*&<][\w\t *&<>:\[\],?~$.]*)\((?:[^(){};\"'`]|\((?:[^(){};\"'`]|\([^(){};\"'`]*\))*\))*\)"
    r"(?:[^\S\n]*[\w:-][^;{}=\n]*|\s*(?::|->|throws\b|where\b|noexcept|const\b|override)[^;{}=]{0,200})?\s*\{"
)
_HEAD_NAME: Final = re.compile(r"[\w$~]+(?:::[\w$~]+)*")
_NO_HEAD: Final = frozenset(
    """
    assert await case catch class do elif else fn for foreach func function guard if in lock match new not return switch
    synchronized throw try unless until using while with yield
    """.split()  # noqa: SIM905
)
_MODIFIERS: Final = ("public", "private", "protected", "static", "final", "abstract", "override")
_KINDS: Final = {
    **dict.fromkeys(("def", "defp", "fn", "fun", "func", "sub"), "function"),
    **dict.fromkeys(("const", "let", "val", "var"), "variable"),
    "defmacro": "macro", "macro_rules": "macro", "defmodule": "module", "mod": "module",
}  # fmt: skip
_COMMENTS: Final = ("*", "//", "/*", "#", "--", ";")
_DOCSTRING: Final = re.compile("(\"{3}|'{3}).*?\\1", re.DOTALL)
_VISIBLE: Final = re.compile(r"\S")
_MOST_OF_LINE: Final = 300  # characters in which a line defines something
_MOST_OF_HEAD: Final = 600  # of a function in C's family, up to its body


class Definition(NamedTuple):
    """Something that code defines: its kind in a word, its name, where its line starts (characters) and how far in."""

    kind: str
    name: str
    start: int
    indent: int

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def is_code(path: str) -> bool:
    """Whether a file's name is one of source code."""
    return PurePosixPath(path).suffix.lower() in SOURCE_SUFFIXES


def definitions_of(text: str, path: str) -> list[Definition]:
    """What source code defines, line by line.

    Args:
        text: All of a file or any part of it.
        path: The file's name: its ending decides the language.
    """
    found, end = [], 0
    has_keywords = path.lower().endswith(KEYWORD_SUFFIXES)
    for line in text.splitlines(keepends=True):
        start, end = end + len(line) - len(line.lstrip()), end + len(line)
        if (visible := line.strip()[:_MOST_OF_LINE]) and not visible.startswith(_COMMENTS):
            defined = _defined_in(visible) or (
                None if has_keywords else _function_at(text, start, visible)
            )
            found += [Definition(*defined, start, _indent(line))] if defined else []
    return found


def _defined_in(line: str) -> tuple[str, str] | None:
    """Kind and name of what a line defines by a keyword of any language."""
    by_keyword, assigned = _DEFINED.match(line), _ASSIGNED.search(line)
    kind = _KINDS.get(by_keyword[1], by_keyword[1].partition(" ")[0]) if by_keyword else ""
    if by_keyword and not (assigned and kind == "variable"):
        return kind, ".".join(filter(None, by_keyword.groups()[1:]))
    if function := assigned or _SIGNED.match(line):
        return "function", next(filter(None, function.groups()[::-1]))
    return None


def _function_at(text: str, start: int, line: str) -> tuple[str, str] | None:
    """Kind and name of a function as C's family defines it: without a keyword, by its parameters and its body."""
    words = line.partition("(")[0].split()
    if "(" in line and words[1:] and words[0] in _MODIFIERS and "=" not in words:
        return "function", words[-1].lstrip("*&")
    found = _FUNCTION.match(text, start, start + _MOST_OF_HEAD)
    names = _HEAD_NAME.findall(found[1]) if found else []
    return ("function", names[-1]) if names and _NO_HEAD.isdisjoint(names) else None


def _indent(line: str) -> int:
    """The columns before a line's first visible character."""
    line = line.expandtabs(4)
    return len(line) - len(line.lstrip())


_PATTERN_REVISION: Final = 7  # raise it when the same text would give other words
_MOST_SYMBOLS: Final = 12  # names that a context lists
_MOST_LEXICAL: Final = 2000  # characters for the keyword arm


class PatternContextGenerator(HeadingContextGenerator):
    """Contexts of source code: ``From file: search/engine.py. In: class Engine. Defines: function search.``.

    What is embedded stays that short. Of the chunk that the file begins with the keyword arm gets every name that the
    file defines.

    Other files than source code get the context of their headings.
    """

    name = "pattern"
    version = short_hash(
        [
            name,
            _PATTERN_REVISION,
            name,
            _MOST_SYMBOLS,
            _MOST_LEXICAL,
            HeadingContextGenerator.version,
        ]
    )

    def generate(
        self, nodes: Sequence[BaseNode], document: SourceDocument
    ) -> list[ChunkContext | None]:
        """One context per node."""
        if not is_code(document.path):
            return super().generate(nodes, document)
        defined = _listable(document.text, document.path)
        return [self._from_code(node, document, defined) for node in nodes]

    def _from_code(
        self, node: BaseNode, document: SourceDocument, defined: Sequence[Definition]
    ) -> ChunkContext:
        text, (start, end) = document.text, position(node, document)
        if start == end:  # the chunk is not part of the text that is known: read it by itself
            text = node.get_content(metadata_mode=MetadataMode.NONE)
            defined, start, end = _listable(text, document.path), 0, len(text)
        first, last = (bisect_left(defined, at, key=lambda one: one.start) for at in (start, end))
        parts = (
            _listed("In", _enclosing(text, start, defined[:first])),
            _listed("Defines", defined[first:last]),
        )
        context = " ".join(filter(None, [f"From file: {document.path}.", *parts]))
        is_first = end > start and not text[:start].strip()
        names = dict.fromkeys(one.name for one in defined) if is_first else ()
        return ChunkContext(context, self.name, " ".join(names)[:_MOST_LEXICAL], self.version)


def _listable(text: str, path: str) -> list[Definition]:
    """What code defines without its variables and the examples in its docstrings."""
    code = _DOCSTRING.sub(lambda quoted: _VISIBLE.sub(" ", quoted[0]), text)
    return [one for one in definitions_of(code, path) if one.kind != "variable"]


def _enclosing(text: str, start: int, before: Sequence[Definition]) -> list[Definition]:
    """The definitions that a position is inside of, outermost first, by indentation."""
    visible = _VISIBLE.search(text, start)
    at = visible.start() if visible else len(text) - 1
    level, around = _indent(text[text.rfind("\n", 0, at) + 1 : at + 1]), list[Definition]()
    for one in reversed(before):
        if not level:
            break
        if one.indent < level:
            around.append(one)
            level = one.indent
    return around[::-1]


def _listed(label: str, symbols: Iterable[object]) -> str:
    names = list(dict.fromkeys(map(str, symbols)))
    more = ", …" if len(names) > _MOST_SYMBOLS else ""
    return f"{label}: {', '.join(names[:_MOST_SYMBOLS])}{more}." if names else ""


FREE: Final = {one.name: one for one in (PatternContextGenerator, HeadingContextGenerator)}
"""The generators that cost nothing, by name."""
