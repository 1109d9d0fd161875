"""What of a Markdown text is prose and no code, and what Obsidian and its kind read in it: inline tags and comments."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from llama_index_contextual.text import lines_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_CODE: Final = re.compile(r"`[^`\n]{1,1000}`")
_TAG: Final = re.compile(r"(?<![^\s(])#([\w/-]{1,200})")
_COMMENT: Final = "%%"
_VISIBLE: Final = re.compile(r"[^\s]")


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text with their numbers, from 1, without fenced code; spans of code are blank."""
    for number, line, is_code in _lines(text):
        if not is_code:
            yield number, line.rstrip("\r\n")


def _lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield each line with its number and its end, as long as it was, and whether it is part of a fence."""
    for number, (line, _, is_code) in enumerate(with_fences(lines_of(text)), 1):
        yield number, line if is_code else _CODE.sub(lambda code: " " * len(code[0]), line), is_code


def with_fences(lines: Iterable[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield each line with the fence that is open after it, or "", and whether the line is part of one."""
    fence = ""
    for line in lines:
        mark, inside = _FENCE.match(line), bool(fence)
        if not fence:
            fence = mark[1] if mark else ""
        elif mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
        yield line, fence, inside or bool(mark)


def inline_tags(text: str) -> list[str]:
    """Return the tags in a text, ``#health/running``, without their sign: each once, in order.

    As in Obsidian, a tag follows white space or a parenthesis, has letters, digits, ``_``, ``-`` and ``/``, and not
    only digits. Code holds none.
    """
    if not _TAG.search(text):
        return []
    tags: dict[str, str] = {}
    for _, line in prose_lines(text):
        for match in _TAG.finditer(line):
            tag = match[1].strip("/")
            if tag.strip("0123456789/-_"):
                tags.setdefault(tag.casefold(), tag)
    return [*tags.values()]


def without_comments(text: str) -> tuple[str, int]:
    """Return a text in which comments, ``%% … %%``, are blank, and how many there were.

    Lines and offsets stay. Code holds no comments. One that does not end stays as it is.
    """
    if text.count(_COMMENT) < 2:  # noqa: PLR2004  its two ends
        return text, 0
    ends: list[int] = []
    offset = 0
    for _, line, is_code in _lines(text):
        if not is_code:
            at = line.find(_COMMENT)
            while at >= 0:
                ends.append(offset + at)
                at = line.find(_COMMENT, at + len(_COMMENT))
        offset += len(line)
    parts: list[str] = []
    after = 0
    for start, end in zip(ends[::2], ends[1::2], strict=False):
        last = end + len(_COMMENT)
        parts += [text[after:start], _VISIBLE.sub(" ", text[start:last])]
        after = last
    return "".join([*parts, text[after:]]), len(parts) // 2
