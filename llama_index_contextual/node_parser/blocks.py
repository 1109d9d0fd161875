"""The front matter and the blocks of a Markdown document.

Front matter is the YAML or TOML block at the very top of a file. pyromark finds the blocks, in a copy of the text that
is made for it (:func:`mask`); its own option for front matter is not used: it takes a ``---`` block in mid-document for
metadata too.
"""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyromark
import yaml

from llama_index_contextual.utils.errors import ContextualWarning
from llama_index_contextual.utils.text import CODE, without_code

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FRONT_MATTER: Final = re.compile(
    r"\ufeff?\s*(---|\+\+\+)[ \t]*(?:\r\n?|\n)(.*?)(?<![^\r\n])(\1|\.\.\.)[ \t]*(?:\r\n?|\n|\Z)",
    re.DOTALL,
)
# To YAML "#a" is a comment in "tags: #a #b" and in "- #a".
_HASHTAGS: Final = re.compile(r"^([ \t]*(?:-|[\w-]+:)[ \t]+)(#\w[^\r\n']*)", re.MULTILINE)
_YAML_LOADER: Final = getattr(
    yaml, "CBaseLoader", yaml.BaseLoader
)  # the C one where PyYAML was built with it
_MOST_CHARS: Final = 100_000  # a second of Python's own YAML parser
_DEEPEST: Final = 50  # lists and mappings in one another; libyaml's composer ends the process where there are 100,000
_FLAGS: Final = frozenset({"", "true", "false"})
_NULLS: Final = frozenset({None, "", "~", "null", "Null", "NULL"})
_KEY: Final = re.compile(
    r"^([^\s#'\"\[\]{},&*!|>%@`:-][^:\r\n]{0,200}?)[ \t]*:(?=\s|\Z|\d{4}-)", re.MULTILINE
)
_MOST_TOML: Final = (
    2_000  # characters a line: the parser's time and memory grow with the square of a dotted key
)
_LOOSE: Final = re.compile(r"^[^\s#-]", re.MULTILINE)  # a line that belongs to no key above it


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """The properties of a document.

    Attributes:
        end: The offset after it in the text, 0 where there is none.
        values: Its top-level keys, in lower case; scalars of YAML are strings.
        unread: The offset after a block that could not be read and stays text: no line of it is a heading.
    """

    end: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)
    unread: int = 0

    def text(self, key: str) -> str:
        """The value as one flat string, lists comma-separated; empty where it is missing or nested deeper."""
        return ", ".join(filter(None, _flat(self.values.get(key))))

    def tags(self) -> str:
        """The tags, comma-separated and without their signs: of a list, ``a, b``, or ``"#a #b"``."""
        parts = [part.strip(" []") for part in (self.text("tags") or self.text("tag")).split(",")]
        words = (part.split() if "#" in part else [part] for part in parts)
        return ", ".join(filter(None, (tag.lstrip("#") for tags in words for tag in tags)))

    def rest(self, without: Collection[str]) -> str:
        """All keys but some with their values, ``client: Acme; weight: 40``; no flags, nothing nested."""
        values = {key: self.text(key) for key in self.values if key not in without}
        return "; ".join(
            f"{key}: {value}"
            for key, value in values.items()
            if value and value.lower() not in _FLAGS
        )


def read_front_matter(text: str, name: str | None = "a document") -> FrontMatter:
    """The front matter at the top of a text.

    Lines that are no YAML, such as ``title: Avatar: The Last Airbender``, are read as a key and its text. A block of
    which most lines have no key, or that has more than 100,000 characters, stays text, and no line of it is a heading.
    A :class:`~llama_index_contextual.ContextualWarning` names either. A block that is no mapping (a paragraph
    between two rules) stays text without a warning.

    Args:
        text: The whole document.
        name: Of the document, for the warning; None for none, where only headings are read.
    """
    match = _FRONT_MATTER.match(text)
    if match is None or (match[1] == "+++" and match[3] != "+++"):
        return FrontMatter()
    is_toml, source = match[1] == "+++", match[2]
    if not is_toml:
        source = _HASHTAGS.sub(r"\1'\2'", source.replace("\u00a0", " "))
    try:
        if len(source) > _MOST_CHARS:
            raise ValueError(f"it has {len(source):,} characters, more than {_MOST_CHARS:,}")  # noqa: TRY301
        if is_toml and max(map(len, source.split("\n"))) > _MOST_TOML:
            raise ValueError(f"a line has more than {_MOST_TOML:,} characters")  # noqa: TRY301
        values = tomllib.loads(source.replace("\r\n", "\n")) if is_toml else _read_yaml(source)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)  # counted from 0, and the fence is one
        reason = (
            f"line {mark.line + 2}: {getattr(error, 'problem', '')}"
            if mark
            else str(error).partition("\n")[0]
        )
        values = _read_line_by_line(source) if isinstance(error, yaml.YAMLError) else {}
        what = f"{name} cannot be read as {'TOML' if is_toml else 'YAML'}"
        kept = "read line by line" if values else "kept as text"
        if name:
            warnings.warn(
                f"The front matter of {what} and is {kept}: {reason}",
                ContextualWarning,
                stacklevel=2,
            )
        if not values:
            return FrontMatter(unread=match.end())
    if not isinstance(values, dict):
        return FrontMatter(end=match.end() if values == "" else 0)
    return FrontMatter(match.end(), {str(key).lower(): value for key, value in values.items()})


def _read_yaml(source: str) -> Any:
    """The value of a YAML text, in which all scalars are strings (three times as fast as objects); "" for none."""
    depth, lists = 0, set[str | None]()
    for event in yaml.parse(
        source, Loader=_YAML_LOADER
    ):  # this does not call itself for each level; the composer does
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
            event, yaml.CollectionEndEvent
        )
        if depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
        if isinstance(event, yaml.CollectionStartEvent):
            lists.add(event.anchor)
        if (
            isinstance(event, yaml.AliasEvent) and event.anchor in lists
        ):  # ten lines can make a billion items
            raise ValueError("it has aliases of lists, which are not read")
    return _YAML_LOADER(source).get_single_data() or ""  # strings, lists and mappings alone


def _read_line_by_line(source: str) -> dict[str, Any]:
    """The values of a block that is no YAML as a whole; none where fewer lines begin with a key than do not.

    What is no YAML after a key is its text. Other lines belong to the key above.
    """
    _, *parts = _KEY.split(source)
    is_text = 2 * len(parts[::2]) <= len(_LOOSE.findall(source))
    return (
        {}
        if is_text
        else {key: _value(text) for key, text in zip(parts[::2], parts[1::2], strict=True)}
    )


def _value(text: str) -> Any:
    """What stands after a key in YAML, else a text."""
    with contextlib.suppress(yaml.YAMLError, ValueError):
        return _read_yaml(f"key: {text.strip(' ')}")["key"]
    return " ".join(text.split()).strip("\"'")


def _flat(value: Any) -> list[str]:
    """The texts of a value: one, or those of a list; nested keys are no properties."""
    if isinstance(value, list):
        return [text for item in value for text in _flat(item)]  # [[A link]]
    return [] if isinstance(value, dict) or value in _NULLS else [" ".join(str(value).split())]


_VISIBLE: Final = re.compile(r"\S")
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
_HTML_TAG: Final = re.compile("<[^<>]*>")
# A line that is no rule and stands in a hundred lists and quotes: a million take seconds, and mark nothing.
_DEEP_LINE: Final = re.compile(
    r"^(?![ \t\r-]*$|[ \t\r*]*$)((?:[ \t]*(?:[-*+>]|\d{1,9}[.)])(?=[ \t>])){100}[ \t]*)([^\n]*)",
    re.MULTILINE,
)
# A heading of HTML that stands alone on its lines, as converters write them. One around an image alone has no title.
HTML_HEADING: Final = re.compile(
    r"^[ \t]*(?:<(?:div|center|p)\b[^<>\n]*>\s{0,99}){0,3}<h(?P<level>[1-6])(?:\s[^<>]*)?>"
    r"(?P<title>(?:(?!</?h[1-6]\b|\n[ \t]*(?:\n|`{3}|~{3}))[\s\S])*)</h(?P=level)>"
    r"(?:[ \t]*</(?:div|center|p)>)*[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
# Code of an item is indented as the item is, and ends with it: a heading at the start of a line would end both.
_CODE_OR_HEADING: Final = re.compile(
    rf"^(?P<indent> {{0,3}}(?: |\t)[ \t]*)(?P<ticks>`{{3,}}(?=[^`\n]*$)|~{{3,}}).*"
    r"(?:\n(?!(?P=indent) {0,3}(?P=ticks)[`~]*[ \t]*$)(?:(?P=indent).*|[ \t]*$))*(?:\n(?P=indent) {0,3}(?P=ticks).*)?"
    rf"|{CODE}|{HTML_HEADING.pattern}",
    HTML_HEADING.flags,
)


def _between(opening: str, closing: str) -> str:
    """The pattern of a comment; it holds no other opening, so that openings without an end cost no time."""
    return rf"{opening}(?:(?!{opening})[\s\S])*?{closing}"


_TAG: Final = r"\{(?:%-?|\{[<%])\s?"  # of Liquid and its kind, and of Hugo
# What begins and what ends a comment of templates, at the beginning of a line: JSP, FreeMarker, Blade, Mako, Mustache;
# and where TeX's text is no Markdown.
_COMMENTS: Final = r"""
    <%-- --%> <#-- --> {{-- --}} <%doc> </%doc> {{! }} \begin{comment} \end{comment} \begin{verbatim} \end{verbatim}
"""
_MARKS: Final = [*map(re.escape, _COMMENTS.split())]
# These, comments of HTML, MDX, Go, Jinja, Handlebars, ERB, Obsidian and Liquid, code of the last, and formulas: no line
# in one is a heading.
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
            r"^[ \t]*\\\[[ \t]*$(?:(?!\n[ \t]*(?:\n|\\\[))[\s\S])*?\\\]",  # alone on its line: "\[sic\]" is text
            r"^[ \t]*\$\$(?:[ \t]*$(?:(?!\$\$)[\s\S])*|(?:(?!\$\$|\n[ \t]*\n)[\s\S])*)\$\$",
        ]
    )
    + ")",
    re.MULTILINE,
)
# What stands around a callout, a panel or a step (Quarto, Docusaurus, MDX, HTML, Hugo, GitBook): no heading in it heads
# what follows.
_CONTAINER: Final = re.compile(
    r"^ {0,3}(?:(?P<colons>:{3,})[ \t]*(?P<title>\S)?"
    rf"|(?:<(?=/?(?:[A-Z]|details\b|aside\b|blockquote\b))|{_TAG}(?!(?:end)?(?:if|for|unless|raw)))"
    r"(?P<slash>/|end)?\s?(?P<tag>[A-Za-z][\w.-]*)(?:(?!\{%)[^<>]){0,1000}?(?<!/)(?:>|%\})(?!.*(?:/|end)\s?(?P=tag)\b))",
    re.MULTILINE,
)
_DEEPEST_CONTAINER: Final = 50


def mask(text: str, body: int = 0, unread: int = 0) -> str:
    """A copy of the same length that parses alike, in which one character is one byte.

    pyromark counts UTF-8 bytes. No character beyond ASCII means anything to Markdown's blocks, so replacing each by a
    letter makes its offsets those of the text: no conversion. Front matter becomes blank lines, a byte order
    mark (which hides a heading) a space, and a lone CR, which
    ends a line for Markdown but not for ``find``, a line feed.

    Args:
        text: The document.
        body: Where the front matter ends.
        unread: Where a block ends that looks like front matter and cannot be read: it is a paragraph.
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
    """A comment of which no line is a heading: letters alone from its second line on, up to where it ends."""
    first, line_end, others = run[0].partition("\n")
    return (
        run[0] if run["code"] else f"{first}{line_end}{_VISIBLE.sub('x', others[:-3])}{others[-3:]}"
    )


def _as_heading(match: re.Match[str]) -> str:
    """A heading of Markdown that is as long as one of HTML; a block of code as it is."""
    title = " ".join(_HTML_TAG.sub("", match["title"] or "").split())
    return f"{'#' * int(match['level'])} {title}".ljust(len(match[0])) if title else match[0]


def containers_of(masked: str) -> list[tuple[int, int]]:
    """Where callouts, components and their kind begin and end, by their ends; those that end nowhere do not."""
    found, open_ = list[tuple[int, int]](), list[tuple[str, int]]()
    for edge in _CONTAINER.finditer(without_code(masked)) if _CONTAINER.search(masked) else ():
        name = edge["tag"] or ":"
        if not edge["slash"] and (edge["tag"] or edge["title"]):
            open_.append((name, edge.start()))
            continue
        near = range(len(open_) - 1, max(-1, len(open_) - _DEEPEST_CONTAINER), -1)
        if (at := next((at for at in near if open_[at][0] == name), None)) is not None:
            found.append((open_[at][1], edge.end()))
            del open_[at:]
    return found


def blocks_of(masked: str) -> Iterator[tuple[int, int, str, Any]]:
    """The start, the end, pyromark's name and the value of each block of a text, before those that are in it."""
    leaves, kinds = _LEAVES, KINDS
    skip = 0
    events: Any = _PARSER.events_with_range(masked)
    for (
        event,
        span,
    ) in (
        events
    ):  # every event of the parser passes here, so as little as possible is done with each
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
                skip = end - 1  # a list that a tab indents starts at the line end above
            yield start, end, tag, value
