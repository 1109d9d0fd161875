"""Tags, shortcodes, directives and comments that stand alone: what they open, close, or belong to."""

from __future__ import annotations

import re
from typing import Final

# A block of anchors and comments: right above a heading it belongs to that, as does what it stands for.
ANCHORS: Final = re.compile(r"(?:\s*(?:<!--(?:(?!-->).)*-->|<a\s[^<>]*(?:/>|>\s*</a>)))+\s*", re.DOTALL)
FIRST: Final = "<{:/\x01"  # what a block begins with that may be one of the next two
_CLOSERS: Final = re.compile(r"(?:\s*(?:[<\x01]/[^<>\x01]*>|\{\{[%<]\s*/[^{}]*[%>]\}\}|(?::::+|///+)(?=\s*\Z)))+\s*")
# After tags that close ("</Tab><Tab>") they count too: what follows is more to them than what was before.
_OPENERS: Final = re.compile(
    rf"(?:{_CLOSERS.pattern})?"
    r"(?:\s*(?:<summary>[^<]*</summary>|[<\x01][a-z][^<>\x01]*>|\{\{[%<]\s*\w[^{}]*[%>]\}\}|"
    r"(?::::+|///+)[ \t]*\w[^\n]*(?![^\n])))+\s*",
    re.IGNORECASE,
)

# CommonMark takes a fence or heading right under "<CodeGroup>" for part of an HTML block, and the comments in that code
# for headings. Nobody means that: in MDX, where such names come from, a component holds Markdown.
_COMPONENT_LINE: Final = re.compile(r"[ \t]*</?[A-Z][\w.]*(?:[ \t][^<>\n]*)?>[ \t]*\n")
COMPONENT: Final = re.compile("</[A-Z]")  # quick to look for, as is the next
_BELOW_TAG: Final = re.compile(r">[ \t]*\n(?=[ \t]*(?:```|~~~|#{1,6}[ \t]))")
_TAG_MARK: Final = "\x01"  # stands for the "<" of such a component: what starts with it is a paragraph

OPENING_LINE: Final = re.compile(r"\s*<(?!br\b|hr\b|img\b)[a-zA-Z][^<>]*(?<!/)>\s*")  # no more than an opening tag


def only_closes(masked: str, start: int, end: int) -> bool:
    """Whether a block does nothing but close what was opened before it."""
    return _CLOSERS.fullmatch(masked, start, end) is not None


def opens(masked: str, start: int, end: int) -> bool:
    """Whether a block is no more than what opens the next, or ends in that: ``<tbody>`` under a table's head."""
    if _OPENERS.fullmatch(masked, start, end):
        return True
    last = masked.rfind("\n", start, end - 1) + 1
    return last > 0 and OPENING_LINE.fullmatch(masked, last, end) is not None


def as_paragraphs(text: str) -> str:
    """Mark the components that stand right above a fence or heading, so that they begin no HTML block."""
    parts: list[str] = []
    done = 0
    for below in _BELOW_TAG.finditer(text):
        first = end = below.end()
        while first > done and _COMPONENT_LINE.match(text, start := text.rfind("\n", done, first - 1) + 1 or done):
            first = start
        if first < end:
            parts += text[done:first], text[first:end].replace("<", _TAG_MARK)
            done = end
    return "".join(parts) + text[done:] if parts else text
