"""The blocks of a Markdown document, which pyromark finds in a masked copy of the text.

pyromark's front matter option is not used, because it also treats a ``---`` block in the middle of
a document as metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyromark

from llama_index_contextual.utils.text import CODE, without_code

_VISIBLE = re.compile(r"\S")
_PARSER: Any = pyromark.Markdown(options=pyromark.Options.ENABLE_TABLES)
_LEAVES = frozenset({"Paragraph", "HtmlBlock", "Heading", "CodeBlock", "Table", "Rule"})
KINDS = {
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
_NON_ASCII = re.compile(r"[^\x00-\x7f]")
_HTML_TAG = re.compile("<[^<>]*>")
# A line that is nested in a hundred lists and quotes and is not a rule. Parsing a million of them
# takes seconds and gives no blocks.
_DEEP_LINE = re.compile(
    r"^(?![ \t\r-]*$|[ \t\r*]*$)((?:[ \t]*(?:[-*+>]|\d{1,9}[.)])(?=[ \t>])){100}[ \t]*)([^\n]*)",
    re.MULTILINE,
)
# An HTML heading on lines of its own, as converters write them. If it contains only an image, it
# has no title.
HTML_HEADING = re.compile(
    r"^[ \t]*(?:<(?:div|center|p)\b[^<>\n]*>\s{0,99}){0,3}<h(?P<level>[1-6])(?:\s[^<>]*)?>"
    r"(?P<title>(?:(?!</?h[1-6]\b|\n[ \t]*(?:\n|`{3}|~{3}))[\s\S])*)</h(?P=level)>"
    r"(?:[ \t]*</(?:div|center|p)>)*[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
# Code in a list item is indented like the item and ends with it. A heading at the start of a line
# would end both.
_CODE_OR_HEADING = re.compile(
    r"(?=`|^[ \t~<])"  # how code and headings begin
    rf"(?:^(?P<indent> {{0,3}}(?: |\t)[ \t]*)(?P<ticks>`{{3,}}(?=[^`\n]*$)|~{{3,}}).*"
    r"(?:\n(?!(?P=indent) {0,3}(?P=ticks)[`~]*[ \t]*$)(?:(?P=indent).*|[ \t]*$))*"
    r"(?:\n(?P=indent) {0,3}(?P=ticks).*)?"
    rf"|{CODE}|{HTML_HEADING.pattern})",
    HTML_HEADING.flags,
)


def _between(opening: str, closing: str) -> str:
    """Return the pattern of a comment.

    A comment contains no other opening, so that unclosed openings do not cost quadratic time.
    """
    return rf"{opening}(?:(?!{opening})[\s\S])*?{closing}"


_TAG = r"\{(?:%-?|\{[<%])\s?"  # of Hugo, Liquid and similar languages
# The start and end marks of comments in templates (JSP, FreeMarker, Blade, Mako, Mustache), and of
# TeX environments that are not Markdown. They only count at the start of a line.
_COMMENTS = r"""
    <%-- --%> <#-- --> {{-- --}} <%doc> </%doc> {{! }} \begin{comment} \end{comment}
    \begin{verbatim} \end{verbatim}
"""
_MARKS = [*map(re.escape, _COMMENTS.split())]
# The comments above, comments of HTML, MDX, Go, Jinja, Handlebars, ERB, Obsidian and Liquid, code
# blocks of Liquid, and formulas. No line in any of these is a heading.
_NO_MARKDOWN = re.compile(
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
            _between(r"(?:^[ \t]*%%|(?<![\w%])%%(?=\s))", "%%"),  # not "%%time" in a sentence
            _between(
                rf"{_TAG}(?:comment|highlight|mermaid)\b",
                rf"{_TAG}(?:end|/)\s?(?:comment|highlight|mermaid)",
            ),
            # Only on a line of its own, because "\[sic\]" is text.
            r"^[ \t]*\\\[[ \t]*$(?:(?!\n[ \t]*(?:\n|\\\[))[\s\S])*?\\\]",
            r"^[ \t]*\$\$(?:[ \t]*$(?:(?!\$\$)[\s\S])*|(?:(?!\$\$|\n[ \t]*\n)[\s\S])*)\$\$",
        ]
    )
    + ")",
    re.MULTILINE,
)
# The edges of a callout, panel or step (Quarto, Docusaurus, MDX, HTML, Hugo, GitBook). A heading
# inside such a container does not apply to the text after it.
_CONTAINER = re.compile(
    r"^ {0,3}(?:(?P<colons>:{3,})[ \t]*(?P<title>\S)?"
    rf"|(?:<(?=/?(?:[A-Z]|details\b|aside\b|blockquote\b))|{_TAG}(?!(?:end)?(?:if|for|unless|raw)))"
    r"(?P<slash>/|end)?\s?(?P<tag>[A-Za-z][\w.-]*)(?:(?!\{%)[^<>]){0,1000}?(?<!/)(?:>|%\})"
    r"(?!.*(?:/|end)\s?(?P=tag)\b))",
    re.MULTILINE,
)
_DEEPEST_CONTAINER = 50


def mask(text: str, body: int = 0, unread: int = 0) -> str:
    """Return a copy of the same length with the same blocks, in which each character is one byte.

    pyromark's offsets count UTF-8 bytes. Characters beyond ASCII have no meaning for Markdown's
    blocks, so each is replaced by a letter, which makes the offsets valid for the text. Front
    matter becomes blank lines. A byte order mark, which would hide a heading, becomes a space. A
    lone CR becomes a line feed, because it ends a line in Markdown but not for ``find``.

    Args:
        text: The document.
        body: The offset after the front matter.
        unread: The offset after front matter that could not be read and becomes a paragraph.
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
    """Replace all but the first line of a comment by letters, so that no line is a heading."""
    if run["code"]:
        return run[0]
    first_line, line_end, later_lines = run[0].partition("\n")
    closing = later_lines[-3:]
    return first_line + line_end + _VISIBLE.sub("x", later_lines[:-3]) + closing


def _as_heading(match: re.Match[str]) -> str:
    """Replace an HTML heading by a Markdown heading of the same length. Code is unchanged."""
    title = " ".join(_HTML_TAG.sub("", match["title"] or "").split())
    if not title:
        return match[0]
    marks = "#" * int(match["level"])
    return f"{marks} {title}".ljust(len(match[0]))


class Container(NamedTuple):
    """The offsets of a callout or another container of blocks."""

    start: int
    end: int


def containers_of(masked: str) -> list[Container]:
    """Return the closed containers, sorted by their end."""
    if not _CONTAINER.search(masked):
        return []
    containers: list[Container] = []
    opened: list[tuple[str, int]] = []  # the names and starts of open containers
    for edge in _CONTAINER.finditer(without_code(masked)):
        name = edge["tag"] or ":"
        is_opening = not edge["slash"] and (edge["tag"] or edge["title"])
        if is_opening:
            opened.append((name, edge.start()))
            continue
        # Close the innermost open container with this name, and those inside it.
        lowest = max(0, len(opened) - _DEEPEST_CONTAINER)
        for position in range(len(opened) - 1, lowest - 1, -1):
            opened_name, start = opened[position]
            if opened_name == name:
                containers.append(Container(start, edge.end()))
                del opened[position:]
                break
    return containers


class Block(NamedTuple):
    """A block of a document."""

    start: int
    end: int
    tag: str  # pyromark's name: "Paragraph", "List", "Item", …
    value: Any  # pyromark's details: the level of a heading, the info string of a fence

    @property
    def kind(self) -> str:
        """Return the content type, such as "text", "code" or "table"."""
        return KINDS[self.tag]


def blocks_of(masked: str) -> Iterator[Block]:
    """Yield the blocks of a text. Each block comes before those inside it."""
    leaf_end = 0
    # This loop runs for every parser event, so it does as little as possible.
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
