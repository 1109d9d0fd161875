"""Contexts that cost nothing: of headings, and of source code. Other documents get their headings.

Pygments finds the definitions of source code rather than a grammar per language: it comes with rich, reads some 500
languages, never fails on half a function, and tells names from strings and comments, which is all that is needed here.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import lru_cache
from itertools import takewhile
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llama_index.core.schema import MetadataMode
from pygments.lexers import get_lexer_for_filename
from pygments.token import Comment, Keyword, Name, Operator, Punctuation, String
from pygments.util import ClassNotFound

from llama_index_contextual import metadata
from llama_index_contextual.context.base import ChunkContext, ContextGenerator, SourceDocument, position, start_of
from llama_index_contextual.text import date_in_words, short_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from llama_index.core.schema import BaseNode
    from pygments.lexer import Lexer
    from pygments.token import _TokenType


_FORM: Final = "Document: {breadcrumb}\n{title}\n{date}\n{continues}"  # part of the version
_REVISION: Final = 3  # raise it when the same settings would give other words
_MOST_CHARS: Final = 300  # of a breadcrumb: a longer one loses its outer headings first, its own heading last

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

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:
        """One context per node; its text is empty where no heading, title, date or path with words is known."""
        texts = (_describe(node, document) for node in nodes)
        return [ChunkContext(text, self.name, lexical, self.version) for text, lexical in texts]


def _describe(node: BaseNode, document: SourceDocument) -> tuple[str, str]:
    """The embedded context of a chunk, and the one that the keyword arm alone reads."""
    values: Mapping[str, Any] = {**document.metadata, **node.metadata}
    headings = metadata.heading_titles(values)
    keys = metadata.TITLE, metadata.DATE, metadata.CONTINUES
    title, day, continues = (metadata.value_of(values, key) or "" for key in keys)
    below = [_new_title(str(title), document.path, headings), date_in_words(day), str(continues)]
    breadcrumb = _breadcrumb(document.path, headings)
    lines = [breadcrumb and f"Document: {breadcrumb}", *map(str.rstrip, below)]
    text = "\n".join(filter(None, lines)).strip()
    return (text, "") if headings or any(below) or not is_id(document.path) else ("", text)


def _breadcrumb(path: str, headings: Sequence[str]) -> str:
    for first in range(max(1, len(headings))):
        parts = [path, "…" if first else "", metadata.join_header_path(headings[first:])]
        breadcrumb = metadata.HEADER_SEPARATOR.join(filter(None, parts))
        if len(breadcrumb) <= _MOST_CHARS:
            return breadcrumb
    return f"{breadcrumb[: _MOST_CHARS - 1].rstrip()}…"  # the chunk's own heading is all that is left


def is_id(path: str) -> bool:
    """Whether a path holds no words about what is in the file: ``urteil-001.md``, ``0042.txt``, a hash.

    Such a name is a number, a hash, or one word with a number of three digits or more that is no year, in no folder
    with a word. Embedded, it costs vectors more than it gives (``benchmarks/results/languages.md``).
    """
    file = PurePosixPath(path)
    name = file.stem
    words, numbers = _WORD.findall(name), re.findall(r"\d+", name)
    is_counter = any(len(number) >= _LEAST_DIGITS and not _YEAR.fullmatch(number) for number in numbers)
    opaque = bool(_HASH.fullmatch(name)) or len(words) <= is_counter
    return bool(numbers) and opaque and not _WORD.search(file.parent.as_posix())


def _new_title(title: str, path: str, headings: Sequence[str]) -> str:
    """Keep a title only where it adds words: many documents repeat it as their first heading."""
    names = {name.casefold() for name in (*headings, path, path.rpartition("/")[2].rpartition(".")[0])}
    title = metadata.shortened(" ".join(title.split()))
    return "" if title.casefold() in names else title


# A keyword that the defined name follows, and the word that a reader would use for it.
_DEFINERS: Final = {
    "class": "class", "struct": "struct", "enum": "enum", "union": "union", "interface": "interface",
    "trait": "trait", "impl": "impl", "record": "record", "protocol": "protocol", "object": "object",
    "namespace": "namespace", "module": "module", "mod": "module", "defmodule": "module",
    "def": "function", "fn": "function", "func": "function", "fun": "function", "function": "function",
    "type": "type", "macro_rules": "macro",
}  # fmt: skip
_OPEN_BRACKETS: Final = {"(": ")", "<": ">"}
_NOT_DEFINING: Final = frozenset({".", "new", "return", ",", "(", ":", "=", "!", "@", "else", "throw", "&", "|"})
# Languages where every function has a keyword: "len(rest) > 0 {" defines nothing there, though it looks like C.
_KEYWORD_FUNCTIONS: Final = frozenset(
    {"Cython", "Go", "Julia", "Kotlin", "Lua", "Nim", "Python", "Ruby", "Rust", "Scala", "Swift", "Zig"}
)
_NO_CODE: Final = frozenset({"text", "md", "rst", "html", "xml", "json", "yaml", "toml", "ini", "csv", "diff", "tex"})
_SENTENCE_END: Final = re.compile(r"(?<=[.!?。\uff01\uff1f])(?:\s|$)|\n\s*\n")
_VISIBLE: Final = re.compile(r"\S")
_MAX_LEXED: Final = 200_000  # characters: a generated file of megabytes has no reader
_MAX_SENTENCE: Final = 200
_MAX_SIGNATURE: Final = 24  # tokens between a parameter list and its body: const noexcept override -> Result<T>


class Token(NamedTuple):
    """One token that is no white space."""

    start: int
    kind: _TokenType
    text: str


class Symbol(NamedTuple):
    """Something that code defines: its kind in a word, its name, and where it stands (characters)."""

    kind: str
    name: str
    start: int
    indent: int

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class SourceCode(NamedTuple):
    """The definitions of a file of source code, or of a part of one."""

    text: str
    language: str
    symbols: tuple[Symbol, ...]

    def defined(self, start: int, end: int) -> list[Symbol]:
        """The symbols defined between two positions, in their order."""
        return [symbol for symbol in self.symbols if start <= symbol.start < end]

    def enclosing(self, start: int) -> list[Symbol]:
        """The symbols that a position is inside of, outermost first, by indentation.

        None after what was read: which symbols stand between is not known.
        """
        if start >= _MAX_LEXED:
            return []
        visible = _VISIBLE.search(self.text, start)
        level = _indent(self.text, visible.start() if visible else len(self.text) - 1)
        stack: list[Symbol] = []
        for symbol in self.symbols[: bisect_left(self.symbols, start, key=lambda symbol: symbol.start)]:
            while stack and stack[-1].indent >= symbol.indent:
                stack.pop()
            stack.append(symbol)
        return list(takewhile(lambda symbol: symbol.indent < level, stack))


def read_code(text: str, path: str) -> SourceCode | None:
    """The definitions of source code; None where the file's name is not one of code.

    Args:
        text: All of a file or any part of it. What follows the first 200,000 characters is not read.
        path: The file's name: its ending decides the language.
    """
    lexer = _lexer(path.rpartition("/")[2])
    if lexer is None:
        return None
    tokens: list[Token] = []
    for start, kind, value in lexer.get_tokens_unprocessed(text[:_MAX_LEXED]):
        if (kind in Comment and kind not in Comment.Preproc) or kind in String.Doc:
            continue
        if kind in Punctuation or kind in Operator:  # "()," and "->" come as one token or as several
            tokens.extend(Token(start + offset, kind, mark) for offset, mark in enumerate(value) if mark.strip())
        elif value.strip():
            tokens.append(Token(start + len(value) - len(value.lstrip()), kind, value.strip()))
    symbols = {symbol.start: symbol for symbol in _definitions(text, tokens, lexer.name)}
    ordered = sorted(symbols.values(), key=lambda symbol: symbol.start)
    return SourceCode(text, lexer.name, tuple(ordered))


def is_code(path: str) -> bool:
    """Whether a file's name is one of source code."""
    return _lexer(path.rpartition("/")[2]) is not None


def first_sentence(text: str) -> str:
    """A text's first sentence on one line, cut visibly where it is endless."""
    sentence = " ".join(_SENTENCE_END.split(text.strip(), maxsplit=1)[0].split())
    return sentence if len(sentence) <= _MAX_SENTENCE else f"{sentence[: _MAX_SENTENCE - 1].rstrip()}…"


@lru_cache(maxsize=256)
def _lexer(file_name: str) -> Lexer | None:
    try:
        # C++ headers end in .h more often than C's, and C++'s lexer reads both.
        lexer = get_lexer_for_filename("a.hpp" if file_name.endswith(".h") else file_name, stripnl=False)
    except ClassNotFound:
        return None
    return None if _NO_CODE.intersection(lexer.aliases) else lexer


def _definitions(text: str, tokens: Sequence[Token], language: str) -> Iterator[Symbol]:
    depth, unnamed = 0, language not in _KEYWORD_FUNCTIONS
    for at, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        definer = _DEFINERS.get(token.text) if token.kind in Keyword or token.kind in Name else None
        if definer is not None:
            for name, start in _named_after(tokens, at + 1):
                yield Symbol(definer, name, start, _indent(text, start))
        elif unnamed and depth <= 0 and _is_name(token) and _has_body(tokens, at):
            yield Symbol("function", token.text, token.start, _indent(text, token.start))


def _named_after(tokens: Sequence[Token], position: int) -> Iterator[tuple[str, int]]:
    """Yield the name that ``fn``, ``impl<T>`` or ``func (e *Engine)`` introduces, and where it stands, if any.

    Go names a method's class in brackets before its name: that gives ``Engine.Search``. A function without a name,
    ``func(a int) Result {``, has a type there.
    """
    if position < len(tokens) and tokens[position].text == "!":  # macro_rules!
        position += 1
    owner, opening = "", tokens[position].text if position < len(tokens) else ""
    if opening in _OPEN_BRACKETS:
        end = _after_brackets(tokens, position)
        if opening == "(":
            owner = next((token.text for token in tokens[position + 2 : end] if token.kind in Name), "")
            if end + 1 >= len(tokens) or tokens[end + 1].text != "(":
                return
        position = end
    if position < len(tokens) and tokens[position].kind in Name:
        token = tokens[position]
        yield (f"{owner}.{token.text}" if owner else token.text), token.start


def _is_name(token: Token) -> bool:
    return token.kind in Name and token.kind not in Name.Decorator


def _has_body(tokens: Sequence[Token], position: int) -> bool:
    """Whether a name is followed by a parameter list and ``{``, as functions of C's family are."""
    if position + 1 >= len(tokens) or tokens[position + 1].text != "(":
        return False
    before = [token.text for token in tokens[max(0, position - 2) : position]]
    if before == ["-", ">"] or (before and before[-1] in _NOT_DEFINING and before != [":", ":"]):  # Class::method
        return False
    end = _after_brackets(tokens, position + 1)
    signature = tokens[end : end + _MAX_SIGNATURE]
    ends = set("{;=}" if signature and signature[0].text == ":" else "{;=},).")  # A::A() : x(1) {
    return next((token.text for token in signature if token.text in ends), "") == "{"


def _after_brackets(tokens: Sequence[Token], position: int) -> int:
    opening, closing, depth = tokens[position].text, _OPEN_BRACKETS[tokens[position].text], 0
    for index in range(position, len(tokens)):
        depth += {opening: 1, closing: -1}.get(tokens[index].text, 0)
        if depth == 0:
            return index + 1
    return len(tokens)


def _indent(text: str, position: int) -> int:
    line = text[text.rfind("\n", 0, position) + 1 : position + 1]
    return len(line.expandtabs(4)) - len(line.expandtabs(4).lstrip())


_PATTERN_REVISION: Final = 5  # raise it when the same text would give other words
_MOST_SYMBOLS: Final = 12  # names that a context lists
_MOST_LEXICAL: Final = 2000  # characters for the keyword arm


class PatternContextGenerator(ContextGenerator):
    """Contexts of source code: ``From file: search/engine.py. In: class Engine. Defines: function search.``.

    What is embedded stays that short. Of the chunk that the file begins with the keyword arm gets every name that the
    file defines.

    Other files than source code get the context of their headings, and for the keyword arm all the document's headings.
    """

    name = "pattern"
    version = short_hash([name, _PATTERN_REVISION, name, _MOST_SYMBOLS, _MOST_LEXICAL, HeadingContextGenerator.version])

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:
        """One context per node."""
        code = read_code(document.text, document.path)
        if code is None:
            return self._from_headings(nodes, document)
        return [self._from_code(node, document, code) for node in nodes]

    def _from_code(self, node: BaseNode, document: SourceDocument, code: SourceCode) -> ChunkContext:
        start, end = position(node, document)
        if start == end:  # the chunk is not part of the text that is known: read it by itself
            text = node.get_content(metadata_mode=MetadataMode.NONE)
            code, start, end = read_code(text, document.path) or code, 0, len(text)
        parts = _listed("In", code.enclosing(start)), _listed("Defines", code.defined(start, end))
        text = " ".join(filter(None, [f"From file: {document.path}.", *parts]))
        is_first = end > start and not code.text[:start].strip()
        names = [code.language, *dict.fromkeys(symbol.name for symbol in code.symbols)] if is_first else []
        return ChunkContext(text, self.name, " ".join(names)[:_MOST_LEXICAL], self.version)

    def _from_headings(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:
        titles = dict.fromkeys(title for node in nodes for title in metadata.heading_titles(node.metadata))
        # What stands before the first chunk is front matter.
        body = document.text[position(nodes[0], document)[0] if start_of(nodes[0]) > 0 else 0 :]
        more = [*titles, first_sentence(body)]
        texts = (_describe(node, document) for node in nodes)
        lexical = ((text, " ".join(filter(None, [path, *more]))[:_MOST_LEXICAL]) for text, path in texts)
        return [ChunkContext(text, self.name, words, self.version) for text, words in lexical]


def _listed(label: str, symbols: Iterable[object]) -> str:
    names = list(dict.fromkeys(map(str, symbols)))
    more = ", …" if len(names) > _MOST_SYMBOLS else ""
    return f"{label}: {', '.join(names[:_MOST_SYMBOLS])}{more}." if names else ""


FREE: Final[dict[str, Callable[[], ContextGenerator]]] = {
    "pattern": PatternContextGenerator,
    "headings": HeadingContextGenerator,
}
"""The generators that cost nothing, by name."""
