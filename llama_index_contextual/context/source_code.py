"""The definitions of source code, in any language that Pygments reads.

Pygments rather than a grammar per language: it comes with rich, reads some 500 languages, never fails on half a
function, and tells names from strings and comments, which is all that is needed here.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from pygments.lexers import get_lexer_for_filename
from pygments.token import Comment, Keyword, Name, Operator, Punctuation, String
from pygments.util import ClassNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pygments.lexer import Lexer
    from pygments.token import _TokenType

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
    for position, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        definer = _DEFINERS.get(token.text) if token.kind in Keyword or token.kind in Name else None
        if definer is not None:
            for name, start in _named_after(tokens, position + 1):
                yield Symbol(definer, name, start, _indent(text, start))
        elif unnamed and depth <= 0 and _is_name(token) and _has_body(tokens, position):
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
