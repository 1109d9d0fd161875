"""Find the definitions in source code.

Regular expressions over single lines are used in place of a grammar per language. They cover some
thirty languages, and also work on half a function, which is all that a chunk may contain. Contexts
and the ranking of source files use the same definitions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import PurePosixPath
from typing import NamedTuple

from llama_index_contextual.utils.text import KEYWORD_SUFFIXES, SOURCE_SUFFIXES

_DEFINED = re.compile(
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
_ASSIGNED = re.compile(
    r"([A-Za-z_$][\w$]*)\s?(?:[:=]|<-)\s?(?:async\s)?(?:function\b|\([^()]{0,80}\)\s?=>)"
    r"|\bfunction\s([A-Za-z_$][\w$]*)\s?\("
)
_SIGNED = re.compile(r"([a-z_]\w*)\s::\s")  # Haskell
# In the C family: the head, the parameters, and anything between them and the body.
_FUNCTION = re.compile(
    r"([\w~$*&<][\w\t "
    r"*&<>:\[\],?~$.]*)\((?:[^(){};\"'`]|\((?:[^(){};\"'`]|\([^(){};\"'`]*\))*\))*\)"
    r"(?:[^\S\n]*[\w:-][^;{}=\n]*|\s*(?::|->|throws\b|where\b|noexcept|const\b|override)[^;{}=]{0,200})?\s*\{"
)
_NAME = re.compile(r"[\w$~]+(?:::[\w$~]+)*")
_NOT_A_FUNCTION = frozenset(
    """
    assert await case catch class do elif else fn for foreach func function guard if in lock match
    new not return switch synchronized throw try unless until using while with yield
    """.split()  # noqa: SIM905
)
_MODIFIERS = ("public", "private", "protected", "static", "final", "abstract", "override")
_KINDS = {
    **dict.fromkeys(("def", "defp", "fn", "fun", "func", "sub"), "function"),
    **dict.fromkeys(("const", "let", "val", "var"), "variable"),
    "defmacro": "macro", "macro_rules": "macro", "defmodule": "module", "mod": "module",
}  # fmt: skip
_COMMENT_STARTS = ("*", "//", "/*", "#", "--", ";")
_DOCSTRING = re.compile("(\"{3}|'{3}).*?\\1", re.DOTALL)
_VISIBLE = re.compile(r"\S")
_LONGEST_LINE = 300  # characters of a line that are searched
_LONGEST_HEAD = 600  # characters of a C-family function before its body


class Definition(NamedTuple):
    """Something that code defines.

    Attributes:
        kind: Such as ``class`` or ``function``.
        name: The name, prefixed by the name of its type if the line contains it.
        start: The offset of the first visible character of the line.
        indent: The number of columns before that character.
    """

    kind: str
    name: str
    start: int
    indent: int

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@lru_cache(maxsize=1024)  # the chunks of a document follow each other
def is_code(path: str) -> bool:
    """Return whether a file's suffix is that of source code."""
    return PurePosixPath(path).suffix.lower() in SOURCE_SUFFIXES


def definitions_of(text: str, path: str) -> list[Definition]:
    """Return the definitions in source code, at most one per line.

    Args:
        text: All of a file or any part of it.
        path: The file's name. Its suffix determines the language.
    """
    has_keywords = path.lower().endswith(KEYWORD_SUFFIXES)
    definitions = []
    line_start = 0
    for line in text.splitlines(keepends=True):
        start = line_start + len(line) - len(line.lstrip())
        line_start += len(line)
        visible = line.strip()[:_LONGEST_LINE]
        if not visible or visible.startswith(_COMMENT_STARTS):
            continue
        defined = _by_keyword(visible)
        if defined is None and not has_keywords:
            defined = _by_signature(text, start, visible)
        if defined is not None:
            kind, name = defined
            definitions.append(Definition(kind, name, start, _indent(line)))
    return definitions


def listable_definitions(text: str, path: str) -> list[Definition]:
    """Return the definitions in code, without variables and without examples in docstrings."""
    code = _DOCSTRING.sub(lambda docstring: _VISIBLE.sub(" ", docstring[0]), text)
    return [item for item in definitions_of(code, path) if item.kind != "variable"]


def enclosing_definitions(
    text: str, position: int, before: Sequence[Definition]
) -> list[Definition]:
    """Return the definitions that enclose a position, outermost first, judging by indentation.

    Args:
        text: The file.
        position: An offset. The first visible character at or after it is decisive.
        before: The definitions above the position, in order.
    """
    visible = _VISIBLE.search(text, position)
    offset = visible.start() if visible else len(text) - 1
    line_start = text.rfind("\n", 0, offset) + 1
    level = _indent(text[line_start : offset + 1])
    enclosing: list[Definition] = []
    for definition in reversed(before):
        if definition.indent < level:
            enclosing.insert(0, definition)
            level = definition.indent
    return enclosing


def _by_keyword(line: str) -> tuple[str, str] | None:
    """Return the kind and name of a definition that starts with a keyword of any language."""
    keyword = _DEFINED.match(line)
    assigned = _ASSIGNED.search(line)
    if keyword:
        word, type_name, name = keyword.groups()
        kind = _KINDS.get(word, word.partition(" ")[0])
        is_function_value = kind == "variable" and assigned  # const find = (text) => …
        if not is_function_value:
            return kind, ".".join(filter(None, (type_name, name)))
    function = assigned or _SIGNED.match(line)
    if function is None:
        return None
    return "function", function[function.lastindex or 1]


def _by_signature(text: str, start: int, line: str) -> tuple[str, str] | None:
    """Return the kind and name of a C-family function, recognised by its parameters and body."""
    words = line.partition("(")[0].split()
    has_modifier = "(" in line and len(words) > 1 and words[0] in _MODIFIERS
    if has_modifier and "=" not in words:
        return "function", words[-1].lstrip("*&")
    function = _FUNCTION.match(text, start, start + _LONGEST_HEAD)
    names = _NAME.findall(function[1]) if function else []
    is_function = bool(names) and _NOT_A_FUNCTION.isdisjoint(names)
    return ("function", names[-1]) if is_function else None


def _indent(line: str) -> int:
    """Return the number of columns before the first visible character of a line."""
    line = line.expandtabs(4)
    return len(line) - len(line.lstrip())
