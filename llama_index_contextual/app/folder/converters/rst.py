"""reStructuredText files, converted to Markdown's headings, fences and tables."""

from __future__ import annotations

import re
from itertools import zip_longest
from pathlib import Path

from llama_index_contextual.app.folder.formats import Conversion, Part, declare_format
from llama_index_contextual.app.folder.lines import convert_lines, text_of_lines
from llama_index_contextual.app.folder.markdown import escape, heading, table_of

_LINE = r"(?P<{0}>[=\-`:.'\"~^_*+#])(?P={0}){{2,}}"  # a line above or below a heading
_HEADING_LINE = re.compile(rf"\s*{_LINE.format('sign')}\s*$")
_TABLE_RULE = re.compile(r"(?:=+(?:[ ]+=+)+|\+(?:[-=]+\+)+)[ ]*$", re.MULTILINE)
# A table; a heading with or without an overline; or a code directive, a comment, a target or a text
# ending in two colons, each with the indented lines below it.
_BLOCK = re.compile(
    rf"""(?P<table>{_TABLE_RULE.pattern}\n(?:.*\S.*\n)*)
    |(?P<over>{_LINE.format("upper")})[ ]*\n(?P<middle>.*\S.*)\n(?P=over)[ ]*\n
    |(?!{_LINE.format("no")}[ ]*\n|\.\.[ \n])(?P<title>\S.*)\n
        (?P<under>{_LINE.format("lower")})[ ]*\n
    |(?P<indent>[ ]*)(?![ ])(?:
        \.\.[ ](?:
            (?:code-block|code|sourcecode|math)::[ ]*(?P<language>[\w+-]*)|parsed-literal::
        ).*\n
        |(?P<comment>\.\.(?:[ ]+(?![\w:.+-]+::|\[|\|[^|\n]+\||_).*|[ ]+_[^:\n]*:)?[ ]*\n)
        |(?P<text>(?!\.\.[ ]).*:):[ ]*\n
    )(?P<below>(?:(?:[ ]*\n)*(?P=indent)[ ]+[^ \n].*\n)*)(?:[ ]*\n)?""",
    re.VERBOSE | re.MULTILINE,
)
_ROLE = re.compile(
    r"(?<![\w:.+`-])(?::[\w:.+-]{1,60}:)?`([^`<]{1,300}?)(?:\s{0,3}<[^`>]{0,300}>)?`_{0,2}(?!`)"
)
_TAB = 8


@declare_format(
    "reStructuredText", ".rst", kept="line numbers, literal blocks", left_out="comments"
)
def read_rst(path: Path) -> Conversion:
    """Return a reStructuredText file as Markdown."""
    text = text_of_lines(path.read_bytes()).expandtabs(_TAB)
    return Conversion([Part(convert_lines(text, _BLOCK, _Blocks().convert, _convert_line))])


class _Blocks:
    """A converter of blocks, which remembers the styles of headings in the order of levels."""

    def __init__(self) -> None:
        self._styles: list[str] = []

    def convert(self, block: re.Match[str]) -> list[str]:
        """Return the converted lines of a block, or no lines if it is not really a block."""
        if block["table"]:
            return _table(block["table"].splitlines())
        if block["comment"]:
            return [""] * block[0].count("\n")
        if block["below"] or block["language"] is not None:
            return _literal(block)
        return self._heading(block)

    def _heading(self, block: re.Match[str]) -> list[str]:
        title = block["title"] or block["middle"] or ""
        is_short = block["under"] and len(block["under"]) < len(title.rstrip()) - 1
        if not title or is_short:
            return []
        style = block["lower"] or block["upper"] * 2
        if style not in self._styles:
            self._styles.append(style)
        line = heading(self._styles.index(style) + 1, _ROLE.sub(r"\1", title))
        return ["", line, ""] if block["over"] else [line, ""]


def _literal(block: re.Match[str]) -> list[str]:
    """Return a literal block as a fence with the same number of lines.

    The line of the directive, or the empty line below a text, becomes the start of the fence. The
    empty line after the block becomes its end.
    """
    lines = []
    if block["text"] and block["text"] != ":":
        lines.append(_convert_line(block["indent"] + block["text"]))
    below = block["below"].splitlines()[len(lines) :]
    return [*lines, f"```{block['language'] or ''}", *below, "```"]


def _convert_line(line: str) -> str:
    return "" if _HEADING_LINE.match(line) else escape(line, keep_lists=True)


def _table(lines: list[str]) -> list[str]:
    """Return a table as lines. The first rule shows where its columns start and end."""
    is_grid = lines[0].startswith("+")
    starts = [match.start() for match in re.finditer(r"\+|=+", lines[0])]
    spans = [slice(start + is_grid, end) for start, end in zip_longest(starts, starts[1:])]
    if is_grid:
        spans.pop()  # after the last "+"
    rows: list[list[str]] = []
    is_continued = False
    for line in lines:
        cells = _cells(line, spans, is_grid=is_grid)
        if _TABLE_RULE.match(line) or not line.strip(" -"):
            is_continued = False
        elif is_continued and (is_grid or not cells[0]):
            pairs = zip(rows[-1], cells, strict=True)
            rows[-1] = [f"{above} {cell}".strip() for above, cell in pairs]
        else:
            rows.append(cells)
            is_continued = True
    table = table_of(rows).split("\n")
    return [*table, *[""] * (len(lines) - len(table))]


def _cells(line: str, spans: list[slice], *, is_grid: bool) -> list[str]:
    cells = [""] * len(spans)
    column = 0
    for number, span in enumerate(spans):
        start = span.start
        if is_grid and line[start - 1 : start] not in ("|", "+"):
            start -= 1  # a cell that spans several columns
        else:
            column = number
        cells[column] += line[start : span.stop]
    return [cell.strip() for cell in cells]
