"""Markup whose lines stay lines, so that a citation by lines holds for the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from llama_index_contextual.app.folder.files import decode

_LINE_END: Final = re.compile(r"\r\n?")
# What Python takes for the end of a line, and editors and citations do not.
_NO_LINE_ENDS: Final = dict.fromkeys(map(ord, "\f\v\x1c\x1d\x1e\x85\u2028\u2029"), " ")


def text_of_lines(data: bytes) -> str:
    """Return the text of a file; each of its lines ends with a line feed."""
    return _LINE_END.sub("\n", decode(data).text).translate(_NO_LINE_ENDS)


def convert_lines(
    text: str,
    pattern: re.Pattern[str],
    convert_block: Callable[[re.Match[str]], list[str]],
    convert_line: Callable[[str], str],
) -> str:
    """Return a text whose blocks and other lines are converted by two functions.

    Args:
        text: As :func:`text_of_lines` returns it.
        pattern: Of a block.
        convert_block: Returns as many lines as the block has, or none for a block that is none.
        convert_line: Returns the line.
    """
    text = text if text.endswith("\n") else f"{text}\n"
    converted: list[str] = []
    position = 0
    while position < len(text):
        block = pattern.match(text, position)
        lines = convert_block(block) if block else []
        if block and lines:
            converted += lines
            position = block.end()
        else:
            end = text.index("\n", position)
            converted.append(convert_line(text[position:end]))
            position = end + 1
    return "\n".join(converted) + "\n"
