"""The blocks of a Markdown document, as pyromark finds them in a copy of the text that is made for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import pyromark

_PARSER: Final = pyromark.Markdown(options=pyromark.Options.ENABLE_TABLES)
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
_WIDE_COLON: Final = re.compile("\uff1a(?=[ \\t]*\\r?\\n)")  # it introduces what follows, as a colon does
_VISIBLE: Final = re.compile(r"\S")
_CODE: Final = re.compile(r"`[^`\n]{1,1000}`")
_TAGS: Final = re.compile("<[^<>]*>")
# A line that is no rule and stands in a hundred lists and quotes: a million take seconds, and mark nothing.
_DEEP_LINE: Final = re.compile(
    r"^(?![ \t\r-]*$|[ \t\r*]*$)((?:[ \t]*(?:[-*+>]|\d{1,9}[.)])(?=[ \t>])){100}[ \t]*)([^\n]*)", re.MULTILINE
)
_FENCE_MARK: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
# CommonMark takes a fence or heading right under "<CodeGroup>" for part of an HTML block, and the comments in that code
# for headings. Nobody means that: in MDX, where such names come from, a component holds Markdown.
_COMPONENTS: Final = re.compile(
    r"^(?:[ \t]*</?[A-Z][\w.]*(?:[ \t][^<>\n]*)?>[ \t]*\n)+((?=[ \t]*(?:```|~~~|#{1,6}[ \t])))?", re.MULTILINE
)
TAG_MARK: Final = "\x01"  # stands for the "<" of such a component: what starts with it is a paragraph
# A heading of HTML that stands alone on its lines, as converters write them. One around an image alone has no title.
_TITLE: Final = (
    r"(?:<(?:div|center|p)\b[^<>\n]*>[ \t]*)*<h([1-6])(?:\s[^<>]*)?>"
    r"((?:(?!</?h[1-6]\b|\n[ \t]*(?:\n|`{3}|~{3}))[\s\S])*)</h\2>(?:[ \t]*</(?:div|center|p)>)*[ \t]*$"
)
HTML_HEADING: Final = re.compile(rf"^([ \t]*){_TITLE}", re.MULTILINE | re.IGNORECASE)
# The lines of a block of HTML, such as <div align="center"> and a logo, down to the first heading in it.
_LISTINGS: Final = r"(?:pre|script|style|table|textarea)\b"
_HTML_ABOVE: Final = re.compile(
    rf"(?:\A|(?<=\n\n)|(?<=\n \n))( {{0,3}}<(?=[a-z])(?!{_LISTINGS}|h[1-6]\b)"
    rf"(?:(?![ \t]*<h[1-6]\b|[^\n]*<(?:!--|{_LISTINGS}))(?=[ \t]*\S)[^\n]*\n)+)[ \t]*{_TITLE}",
    re.MULTILINE | re.IGNORECASE,
)
# Comments of several lines in MDX, Hugo, Liquid, Jinja, Obsidian, ERB, JSP, Handlebars, Smarty, FreeMarker and
# kramdown, code of Jekyll, Hexo or Hugo, and formulas: no line in one is a heading.
_OPENING: Final = re.compile(
    r"(?:(?:(?<=\{\n)|(?<=\{ \n))[ \t]*|\{[ \t]*)(/\*)|(\{\{)-?[ \t]*/\*|(\{%)-?[ \t]*comment\b[^%\n]{0,200}%\}"
    r"|(\{\#)-?(?=\s)|^[ \t]*(%%)|^ {0,3}\{(?:%-?|\{<)[ \t]*(highlight|codeblock)\b[ \t]*([^\s%}>]*)"
    r"|(<%)(?:\#|--|/\*)|(<\#--)|(\{\{!--)|(\{\{!)|(\{\*)|^ {0,3}(\{::comment)\}|^ {0,3}(\[//\]: \# \()"
    r"|^[ \t]*(\$\$)[ \t]*$|^[ \t]*(\\\[)[ \t]*$|^[ \t]*(\\begin\{)",
    re.MULTILINE,
)
END_OF_CODE: Final = re.compile(r"^ {0,3}\{(?:%-?|\{<)[ \t]*(?:end|/)[ \t]*(?:highlight|codeblock)\b")
_CLOSING: Final = {
    "/*": re.compile(r"\*/[ \t]*(?:\}|$)"),
    "{{": re.compile(r"\*/[ \t]*-?\}\}"),
    "{%": re.compile(r"\{%-?[ \t]*endcomment[ \t]*-?%\}"),
    "{#": re.compile(r"#\}"),
    "%%": re.compile("%%"),
    "highlight": END_OF_CODE,
    "codeblock": END_OF_CODE,
    "<%": re.compile("%>"),
    "<#--": re.compile("-->"),
    "{{!--": re.compile(r"--\}\}"),
    "{{!": re.compile(r"\}\}"),
    "{*": re.compile(r"\*\}"),
    "{::comment": re.compile(r"\{:/(?:comment)?\}"),
    "[//]: # (": re.compile(r"\)[ \t]*$", re.MULTILINE),
    "$$": re.compile(r"\$\$"),
    "\\[": re.compile(r"\\\]"),
    "\\begin{": re.compile(r"\\end\{"),
}
_FENCE: Final = "~" * 8
# Quick to look for: what may open one of these, a component, a heading of HTML, and what holds others.
_MAY_OPEN: Final = re.compile(
    r"\*/|endcomment|\#\}|%%|endcodeblock|highlight|%>|<\#--|\{\{!|\*\}|\{::|^ {0,3}\[//\]"
    r"|^[ \t]*(?:\$\$|\\\[|\\begin)",
    re.MULTILINE,
)
_MAY_BE_COMPONENT: Final = re.compile("</[A-Z]")
_MAY_BE_HEADING: Final = re.compile("</h[1-6]>", re.IGNORECASE)
_MAY_CONTAIN: Final = re.compile(r"^ {0,3}(?::::|[<\x01](?:/?[A-Z]|details|aside)|>>>|\{[{%][%< \w-])", re.MULTILINE)
# What stands around a callout, a panel or a step: no heading in it heads what follows.
_CONTAINER: Final = re.compile(
    r" {0,3}(?:(:{3,})[ \t]*((?!\w+-end\b)\S)?"
    r"|(?:</[a-z]\w*>)*[<\x01](/)?([A-Z][\w.]*|details|aside)\b[^<>]{0,1000}(?<!/)>(?![^\n]*[<\x01]/\4\b)"
    r"|\{(?:\{[%<]|%-?)[ \t]*(/|end)?[ \t]*(?!(?:if\w*|unless|case|for|raw|block|capture)\b)"
    r"(\w[\w/-]*)[^{}\n]*[%>]\}+[ \t]*$"
    r"|(>>>)(?=[ \t]*(?:\[!|$)))",  # GitLab's, which ends with the same
    re.MULTILINE,
)
_EDGE: Final = re.compile(
    r"^ {0,3}(?:`{3}|~{3}|:::|[<\x01]/?[A-Za-z]|\{[{%]|>>>)[^\n]*|^(?![^\n]*<details)[^\n]*(?=</details>[ \t]*$)",
    re.MULTILINE,
)
_DEEPEST_CONTAINER: Final = 50


Block: TypeAlias = tuple[int, int, str, Any]  # start, end, pyromark's name of it, and its value


def mask(text: str, body: int = 0, unread: int = 0) -> str:
    """A copy of the same length that parses alike, in which one character is one byte.

    pyromark counts UTF-8 bytes. No character beyond ASCII means anything to Markdown's blocks, so replacing each by a
    ``?`` makes its offsets those of the text: no conversion. Front matter becomes blank lines, a byte order mark
    (which hides a heading) a space, and a lone CR, which ends a line for Markdown but not for ``find``, a line feed.

    Args:
        text: The document.
        body: Where the front matter ends.
        unread: Where a block ends that looks like front matter and cannot be read: it is a paragraph.
    """
    if unread:
        text = _VISIBLE.sub("x", text[:unread]) + text[unread:]
    if not text.isascii():
        original = _WIDE_COLON.sub(":", text) if "\uff1a" in text else text
        text = original.encode("ascii", "replace").decode("ascii")
        if "<?" in text:  # "<é" must not turn into the start of a processing instruction
            text = _NON_ASCII.sub("x", original)
        if original[0] == "\ufeff":
            text = " " + text[1:]
    if "\r" in text:
        text = text.replace("\r\n", " \n").replace("\r", "\n")
    if _MAY_OPEN.search(text):
        text = _as_markdown(text)
    if _MAY_BE_COMPONENT.search(text):
        text = _COMPONENTS.sub(lambda run: run[0].replace("<", TAG_MARK) if run[1] is not None else run[0], text)
    if _MAY_BE_HEADING.search(text):
        text = _HTML_ABOVE.sub(_as_heading, text)
        text = HTML_HEADING.sub(_as_heading, text)
    text = _DEEP_LINE.sub(lambda line: line[1] + "x" * len(line[2]), text)
    return "\n" * body + text[body:] if body else text


def _as_markdown(text: str) -> str:
    """A text with paragraphs for comments of several lines, and fences for the tags around highlighted code."""
    parts: list[str] = []
    held: list[str] = []  # the lines of what is open; where it does not end, they stay as they are
    opening: re.Match[str] | None = None
    prose, fence, start, end = without_code(text), "", 0, 0
    for line in text.splitlines(keepends=True):
        end += len(line)
        if opening is None:
            start = end - len(line)
            fence, is_code = fence_after(fence, line)
            opening = None if is_code else _OPENING.search(prose, start, end)
            if opening and _CLOSING[next(filter(None, opening.groups()))].search(text, opening.end(), end):
                opening = None
            (held if opening else parts).append(line)
            continue
        held.append(line)
        closing = _CLOSING[next(filter(None, opening.groups()))].search(line)
        if not closing:
            continue
        code = "".join(held)
        if opening[6]:
            first, last = held[0].rstrip("\n"), line.rstrip("\n")
            inside = code[len(first) : -len(line)]
            parts += [f"{_FENCE} {opening[7]}".ljust(len(first)), inside, _FENCE.ljust(len(last)), line[len(last) :]]
        else:
            before, after = opening.start() - start, len(code) - len(line) + closing.end()
            parts += [code[:before], _VISIBLE.sub("x", code[before:after]), code[after:]]
        held, opening = [], None
    return "".join([*parts, *held])


def without_code(text: str) -> str:
    """A text of the same length in which spans of code, each on one line, are blank."""
    return _CODE.sub(lambda code: " " * len(code[0]), text)


def containers_of(masked: str) -> list[tuple[int, int]]:
    """Where callouts, components and their kind begin and end, by their ends; those that end nowhere do not."""
    if not _MAY_CONTAIN.search(masked):
        return []
    found: list[tuple[int, int]] = []
    open_: list[tuple[str, int]] = []
    fence = ""
    for line in _EDGE.finditer(masked):
        fence, is_code = fence_after(fence, line[0])
        tag = None if is_code else _CONTAINER.match(masked, line.start()) or _CONTAINER.match(masked, line.end())
        if not tag:
            continue
        name = ":" if tag[1] else tag[4] or tag[6] or tag[7]
        is_end = tag[3] or tag[5] or (tag[1] and not tag[2]) or (tag[7] and name in dict(open_[-_DEEPEST_CONTAINER:]))
        if not is_end:
            open_.append((name, line.start()))
            continue
        for at in range(len(open_) - 1, max(-1, len(open_) - _DEEPEST_CONTAINER), -1):
            if open_[at][0] == name:
                found.append((open_[at][1], line.end()))
                del open_[at:]
                break
    return found


def fence_after(fence: str, line: str) -> tuple[str, bool]:
    """The fence that is open after a line, or "", and whether the line is part of one.

    Args:
        fence: The one that is open before it.
        line: With or without its end.
    """
    mark = _FENCE_MARK.match(line)
    if not fence:
        opens = mark and (mark[1][0] == "~" or "`" not in line[mark.end() :])
        return (mark[1], True) if mark and opens else ("", False)
    closes = mark and mark[1].startswith(fence) and not line.strip().strip(fence[0])
    return ("" if closes else fence), True


def _as_heading(match: re.Match[str]) -> str:
    """A heading of Markdown that is as long as one of HTML; where lines of HTML stand above it, a paragraph of them."""
    above, title = match[1], " ".join(_TAGS.sub("", match[3]).split())
    if not title:
        return match[0]
    return f"{above.replace('<', TAG_MARK)}{'#' * int(match[2])} {title}".ljust(len(match[0]))


def blocks_of(masked: str) -> Iterator[Block]:
    """The blocks of a text, each before what is in it."""
    leaves, kinds = _LEAVES, KINDS
    skip = 0
    events: Any = _PARSER.events_with_range(masked)
    for event, span in events:  # every event of the parser passes here, so as little as possible is done with each
        start = span["start"]
        if start < skip:  # inside a leaf: inline markup, rows, text
            continue
        value, tag = None, event
        if event.__class__ is dict:
            tag = event.get("Start")
            if tag.__class__ is dict:
                tag, value = tag.popitem()
        if tag in kinds:
            end = span["end"]
            if tag in leaves:
                skip = end
            yield start, end, tag, value
