"""The blocks of a Markdown document, as pyromark finds them in a masked copy of the text.

pyromark's own option for front matter is not used: it takes a ``---`` block in the middle of a
document for metadata, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyromark

from llama_index_contextual.utils.text import CODE, without_code

_VISIBLE: Final = re.compile(r"\S")
_PARSER: Any = pyromark.Markdown(options=pyromark.Options.ENABLE_TABLES)
_LEAVES: Final = frozenset({"Paragraph", "HtmlBlock", "Heading", "CodeBlock", "Table", "Rule"})
KINDS: Final = {
    "Paragraph": "text",
    "HtmlBlock": "html",
    "Heading": "heading",
    "CodeBlock": "code",
    "Table": "table",
    "Rule": "rule",
    "List": "list",
    "Item": "list",
    "BlockQuote": "quote",
}
_NON_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_HTML_TAG: Final = re.compile("<[^<>]*>")
# A line that is no rule and stands in a hundred lists and quotes: a million take seconds, and mark
# nothing.
_DEEP_LINE: Final = re.compile(
    r"^(?![ \t\r-]*$|[ \t\r*]*$)((?:[ \t]*(?:[-*+>]|\d{1,9}[.)])(?=[ \t>])){100}[ \t]*)([^\n]*)",
    re.MULTILINE,
)
# A heading of HTML that stands alone on its lines, as converters write them. One around an image
# alone has no title.
HTML_HEADING: Final = re.compile(
    r"^[ \t]*(?:<(?:div|center|p)\b[^<>\n]*>\s{0,99}){0,3}<h(?P<level>[1-6])(?:\s[^<>]*)?>"
    r"(?P<title>(?:(?!</?h[1-6]\b|\n[ \t]*(?:\n|`{3}|~{3}))[\s\S])*)</h(?P=level)>"
    r"(?:[ \t]*</(?:div|center|p)>)*[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
# Code of an item is indented as the item is, and ends with it: a heading at the start of a line
# would end both.
_CODE_OR_HEADING: Final = re.compile(
    r"(?=`|^[ \t~<])"  # what either begins with
    rf"(?:^(?P<indent> {{0,3}}(?: |\t)[ \t]*)(?P<ticks>`{{3,}}(?=[^`\n]*$)|~{{3,}}).*"
    r"(?:\n(?!(?P=indent) {0,3}(?P=ticks)[`~]*[ \t]*$)(?:(?P=indent).*|[ \t]*$))*"
    r"(?:\n(?P=indent) {0,3}(?P=ticks).*)?"
    rf"|{CODE}|{HTML_HEADING.pattern})",
    HTML_HEADING.flags,
)


def _between(opening: str, closing: str) -> str:
    """Return the pattern of a comment.

    The comment holds no other opening, so that openings without an end cost no time.
    """
    return rf"{opening}(?:(?!{opening})[\s\S])*?{closing}"


_TAG: Final = r"\{(?:%-?|\{[<%])\s?"  # of Liquid and its kind, and of Hugo
# What begins and what ends a comment of templates, at the beginning of a line: JSP, FreeMarker,
# Blade, Mako, Mustache; and where TeX's text is no Markdown.
_COMMENTS: Final = r"""
    <%-- --%> <#-- --> {{-- --}} <%doc> </%doc> {{! }} \begin{comment} \end{comment}
    \begin{verbatim} \end{verbatim}
"""
_MARKS: Final = [*map(re.escape, _COMMENTS.split())]
# These, comments of HTML, MDX, Go, Jinja, Handlebars, ERB, Obsidian and Liquid, code of the last,
# and formulas: no line in one is a heading.
_NO_MARKDOWN: Final = re.compile(
    "(?=[ \\t`~<{%$\\\\])(?:"
    + "|".join(
        [
            f"(?P<code>{CODE})",
            _between(r"\{\{!--", r"--\}\}"),
            _between("<%#", "%>"),
            rf"^[ \t]*(?:{'|'.join(map(_between, _MARKS[::2], _MARKS[1::2]))})",
            _between("<!--", "-->"),
            _between(r"\{-?\s{0,9}/\*", r"\*/\s{0,9}-?\}"),
            _between(r"(?<!\$)\{#(?=[-\s])", r"#\}"),
            _between(r"(?:^[ \t]*%%|(?<![\w%])%%(?=\s))", "%%"),  # "%%time" in a sentence is none
            _between(
                rf"{_TAG}(?:comment|highlight|mermaid)\b",
                rf"{_TAG}(?:end|/)\s?(?:comment|highlight|mermaid)",
            ),
            # Alone on its line: "\[sic\]" is text.
            r"^[ \t]*\\\[[ \t]*$(?:(?!\n[ \t]*(?:\n|\\\[))[\s\S])*?\\\]",
            r"^[ \t]*\$\$(?:[ \t]*$(?:(?!\$\$)[\s\S])*|(?:(?!\$\$|\n[ \t]*\n)[\s\S])*)\$\$",
        ]
    )
    + ")",
    re.MULTILINE,
)
# What stands around a callout, a panel or a step (Quarto, Docusaurus, MDX, HTML, Hugo, GitBook): no
# heading in it heads what follows.
_CONTAINER: Final = re.compile(
    r"^ {0,3}(?:(?P<colons>:{3,})[ \t]*(?P<title>\S)?"
    rf"|(?:<(?=/?(?:[A-Z]|details\b|aside\b|blockquote\b))|{_TAG}(?!(?:end)?(?:if|for|unless|raw)))"
    r"(?P<slash>/|end)?\s?(?P<tag>[A-Za-z][\w.-]*)(?:(?!\{%)[^<>]){0,1000}?(?<!/)(?:>|%\})"
    r"(?!.*(?:/|end)\s?(?P=tag)\b))",
    re.MULTILINE,
)
_DEEPEST_CONTAINER: Final = 50


def mask(text: str, body: int = 0, unread: int = 0) -> str:
    """Return a copy of the same length that parses alike, in which each character is one byte.

    pyromark counts UTF-8 bytes. No character beyond ASCII means anything to Markdown's blocks, so
    a letter in place of each makes its offsets those of the text. Front matter becomes blank lines,
    a byte order mark (which hides a heading) a space, and a lone CR a line feed, because it ends a
    line for Markdown but not for ``find``.

    Args:
        text: The document.
        body: The offset after the front matter.
        unread: The offset after front matter that could not be read; it is a paragraph.
    """
    if unread:
        text = _VISIBLE.sub("x", text[:unread]) + text[unread:]
    text = _NON_ASCII.sub("x", text.replace("\ufeff", " "))
    if "\r" in text:
        text = text.replace("\r\n", " \n").replace("\r", "\n")
    text = _NO_MARKDOWN.sub(_without_marks, text)
    text = _CODE_OR_HEADING.sub(_as_heading, text)
    text = _DEEP_LINE.sub(lambda line: line[1] + "x" * len(line[2]), text)
    return "\n" * body + text[body:]


def _without_marks(run: re.Match[str]) -> str:
    """Replace the second and later lines of a comment by letters, so that none is a heading."""
    if run["code"]:
        return run[0]
    first_line, line_end, later_lines = run[0].partition("\n")
    closing = later_lines[-3:]
    return first_line + line_end + _VISIBLE.sub("x", later_lines[:-3]) + closing


def _as_heading(match: re.Match[str]) -> str:
    """Replace an HTML heading by a Markdown heading of the same length; leave code as it is."""
    title = " ".join(_HTML_TAG.sub("", match["title"] or "").split())
    if not title:
        return match[0]
    marks = "#" * int(match["level"])
    return f"{marks} {title}".ljust(len(match[0]))


def containers_of(masked: str) -> list[tuple[int, int]]:
    """Return the start and end of callouts and the like that are closed, by their ends."""
    if not _CONTAINER.search(masked):
        return []
    containers: list[tuple[int, int]] = []
    opened: list[tuple[str, int]] = []  # names and starts
    for edge in _CONTAINER.finditer(without_code(masked)):
        name = edge["tag"] or ":"
        is_opening = not edge["slash"] and (edge["tag"] or edge["title"])
        if is_opening:
            opened.append((name, edge.start()))
            continue
        lowest = max(0, len(opened) - _DEEPEST_CONTAINER)
        for position in range(len(opened) - 1, lowest - 1, -1):
            opened_name, start = opened[position]
            if opened_name == name:
                containers.append((start, edge.end()))
                del opened[position:]
                break
    return containers


class Block(NamedTuple):
    """A block of a document."""

    start: int
    end: int
    tag: str  # pyromark's name: "Paragraph", "List", "Item", …
    value: Any  # what pyromark knows of it: the level of a heading, the info string of a fence

    @property
    def kind(self) -> str:
        """Return the content type, such as "text", "code" or "table"."""
        return KINDS[self.tag]


def blocks_of(masked: str) -> Iterator[Block]:
    """Yield the blocks of a text, each before those inside it."""
    leaf_end = 0
    # All events of the parser pass through this loop, so it does as little as possible for each.
    for event, span in _PARSER.events_with_range(masked):
        start = span["start"]
        if start < leaf_end:  # inside a leaf: inline markup, rows, text
            continue
        tag: Any = event
        value = None
        if event.__class__ is dict:
            tag = event.get("Start")
            if tag.__class__ is dict:
                tag, value = tag.popitem()
        if tag in KINDS:
            end = span["end"]
            if tag in _LEAVES:
                leaf_end = end - 1  # a list that a tab indents starts at the line end above
            yield Block(start, end, tag, value)
