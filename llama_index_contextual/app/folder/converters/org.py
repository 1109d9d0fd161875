"""Org files, converted to Markdown's headings, fences and tables."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from llama_index_contextual.app.folder.formats import Conversion, Part, declare_format
from llama_index_contextual.app.folder.lines import convert_lines, text_of_lines
from llama_index_contextual.app.folder.markdown import escape, heading

_HEADING = re.compile(r"(\*+)\s+(?:(?:TODO|DONE)\s+)?(?:\[#\w\]\s+)?(.*?)(?:\s+:[\w@:]+:)?\s*$")
_LINK = re.compile(r"\[\[(?:[^][]*\]\[)?([^][]*)\]\]")
# A block, a drawer, or a heading that is a comment, with its contents.
_BLOCK = re.compile(
    r"""[ \t]*\#\+(?i:begin_(?P<kind>src|example|export|comment)\b)[ \t]*(?P<language>[\w+-]*).*\n
        (?P<code>(?:(?![ \t]*\#\+(?i:begin_(?P=kind)\b)).*\n)*?)[ \t]*\#\+(?i:end_(?P=kind)).*\n
    |(?:[ \t]*:.*:[ \t]*\n(?:(?![ \t]*(?:\*|(?i::end:))).*\n){0,1000})?[ \t]*(?i::end:)[ \t]*\n
    |(?P<stars>\*+)[ \t]+(?:(?:TODO|DONE)[ \t]+)?(?:\[\#\w\][ \t]+)?COMMENT(?:[ \t].*)?\n
        (?:(?!\*+[ \t]).*\n|(?P=stars)\*.*\n)*""",
    re.VERBOSE,
)
_KEYWORD = re.compile(r"\s*#\+(title|author|date|caption)(?:\[.*?\])?:\s*(.*)$", re.IGNORECASE)
_TABLE_RULE = re.compile(r"\s*\|[-+]+\|?\s*$")
_COMMENT = re.compile(r"\s*#(?:\s|\+|$)")


@declare_format("Org", ".org", kept="line numbers, blocks", left_out="comments, drawers")
def read_org(path: Path) -> Conversion:
    """Return an Org file as Markdown, without comments and drawers."""
    metadata: dict[str, str] = {}
    left_out: Counter[str] = Counter()

    def convert_block(block: re.Match[str]) -> list[str]:
        kind = (block["kind"] or "").lower()
        is_comment = kind == "comment" or bool(block["stars"])
        left_out["comment"] += is_comment
        if is_comment or not kind:
            return [""] * block[0].count("\n")
        language = block["language"] if kind == "src" else ""
        return [f"```{language}", *block["code"].splitlines(), "```"]

    def convert_line(line: str) -> str:
        return _convert_line(line, metadata)

    text = text_of_lines(path.read_bytes())
    converted = convert_lines(text, _BLOCK, convert_block, convert_line)
    return Conversion([Part(converted)], metadata, left_out)


def _convert_line(line: str, metadata: dict[str, str]) -> str:
    """Return a line outside of blocks, and add a title, author or date to the metadata."""
    keyword = _KEYWORD.match(line)
    if keyword:
        name = keyword[1].lower()
        value = keyword[2]
        if name == "caption":
            return escape(value)
        if name == "date":
            metadata["created"] = value.strip().strip("<>[]")
        else:
            metadata[name] = value.strip()
    title = _HEADING.match(line)
    if title:
        return heading(len(title[1]), _LINK.sub(r"\1", title[2]))
    if line.strip().startswith("|"):
        return line.replace("+", "|") if _TABLE_RULE.match(line) else line
    return "" if _COMMENT.match(line) else escape(line, keep_lists=True)
