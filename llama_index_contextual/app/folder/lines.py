"""Line-by-line conversion of markup, so that line numbers in citations stay valid."""

from __future__ import annotations

import re
from collections.abc import Callable

from llama_index_contextual.app.folder.files import decode

_LINE_END = re.compile(r"\r\n?")
# Characters that end a line in Python, but not in editors and citations.
_NO_LINE_ENDS = dict.fromkeys(map(ord, "\f\v\x1c\x1d\x1e\x85\u2028\u2029"), " ")


def text_of_lines(data: bytes) -> str:
    """Return the text of a file, in which each line ends with a line feed."""
    return _LINE_END.sub("\n", decode(data).text).translate(_NO_LINE_ENDS)


def convert_lines(
    text: str,
    pattern: re.Pattern[str],
    convert_block: Callable[[re.Match[str]], list[str]],
    convert_line: Callable[[str], str],
) -> str:
    """Convert the blocks of a text with one function, and all other lines with another.

    Args:
        text: A text from :func:`text_of_lines`.
        pattern: The pattern of a block.
        convert_block: A function that returns as many lines as the block has, or no lines if it is
            not really a block.
        convert_line: A function that returns the converted line.
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
