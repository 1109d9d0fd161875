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
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, TypeAlias

import pyromark
import yaml

from llama_index_contextual.errors import ContextualWarning
from llama_index_contextual.text import CODE, without_code

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FRONT_MATTER: Final = re.compile(
    r"\ufeff?\s*(---|\+\+\+)[ \t]*(?:\r\n?|\n)(.*?)(?<![^\r\n])(\1|\.\.\.)[ \t]*(?:\r\n?|\n|\Z)", re.DOTALL
)
# To YAML "#a" is a comment in "tags: #a #b", "- #a" and "tags: [#a, #b]".
_HASHTAGS: Final = re.compile(r"^([ \t]*(?:-|[\w-]+:)[ \t]+)(#\w[^\r\n']*)", re.MULTILINE)
_LIST_OF_TAGS: Final = re.compile(r"^[\w-]+:[ \t]*\[[^\r\n]*", re.MULTILINE)
_SIGN: Final = re.compile(r"(?<=[\[,])([ \t]*)#(?=\w)")
_YAML_LOADER: Final = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the C one where PyYAML was built with it
_MOST_CHARS: Final = 100_000  # a second of Python's own YAML parser
_DEEPEST: Final = 50  # lists and mappings in one another; libyaml's composer ends the process where there are 100,000
_FLAGS: Final = frozenset({"", "true", "false"})
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_KEY: Final = re.compile(r"([^\s#'\"\[\]{},&*!|>%@`:-][^:\n]{0,200}?)[ \t]*:(?=\s|\Z|\d{4}-)")


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
        value = self.values.get(key)
        if isinstance(value, list | tuple):
            return ", ".join(str(item).strip() for item in value if item and not isinstance(item, list | dict))
        return "" if value is None or isinstance(value, dict) else " ".join(str(value).split())

    def tags(self) -> str:
        """The tags, comma-separated and without their signs: of a list, ``a, b``, or ``"#a #b"``."""
        parts = [part.strip() for part in (self.text("tags") or self.text("tag")).split(",")]
        words = (part.split() if "#" in part else [part] for part in parts)
        return ", ".join(filter(None, (tag.lstrip("#") for tags in words for tag in tags)))

    def rest(self, without: Collection[str]) -> str:
        """All keys but some with their values, ``client: Acme; weight: 40``; no flags, nothing nested."""
        values = {key: self.text(key) for key in self.values if key not in without}
        return "; ".join(f"{key}: {value}" for key, value in values.items() if value and value.lower() not in _FLAGS)


def read_front_matter(text: str, name: str = "") -> FrontMatter:
    """The front matter at the top of a text.

    Lines that are no YAML, such as ``title: Avatar: The Last Airbender``, are read as a key and its text. A block of
    which most lines have no key, or that has more than 100,000 characters, stays text, and no line of it is a heading.
    A :class:`~llama_index_contextual.errors.ContextualWarning` names either. A block that is no mapping (a paragraph
    between two rules) stays text without a warning.

    Args:
        text: The whole document.
        name: Of the document, for the warning.
    """
    match = _FRONT_MATTER.match(text)
    if match is None or (match[1] == "+++" and match[3] != "+++"):
        return FrontMatter()
    name, is_toml, source = name or "a document", match[1] == "+++", match[2]
    if not is_toml:
        source = _HASHTAGS.sub(r"\1'\2'", source.replace("\u00a0", " "))
        source = _LIST_OF_TAGS.sub(lambda tags: _SIGN.sub(r"\1", tags[0]), source)
    try:
        if len(source) > _MOST_CHARS:
            raise ValueError(f"it has {len(source):,} characters, more than {_MOST_CHARS:,}")  # noqa: TRY301
        pairs = [*tomllib.loads(source.replace("\r\n", "\n")).items()] if is_toml else _read_yaml(source)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)  # counted from 0, and the fence is one
        reason = f"line {mark.line + 2}: {getattr(error, 'problem', '')}" if mark else str(error).partition("\n")[0]
        pairs = _read_line_by_line(source) if isinstance(error, yaml.YAMLError) else []
        kept = "read line by line" if pairs else "kept as text"
        _warn(f"{name} cannot be read as {'TOML' if is_toml else 'YAML'} and is {kept}: {reason}")
        if not pairs:
            return FrontMatter(unread=match.end())
    if pairs is None:
        return FrontMatter()
    values = {key.lower(): value for key, value in pairs}
    if len(counts := Counter(key.lower() for key, _ in pairs)) < len(pairs):
        _warn(f"{name} repeats {', '.join(key for key in values if counts[key] > 1)}. The last one counts.")
    return FrontMatter(match.end(), values)


def _warn(fault: str) -> None:
    warnings.warn(f"The front matter of {fault}", ContextualWarning, stacklevel=3)


def _read_yaml(source: str) -> list[tuple[str, Any]] | None:
    """A mapping's keys with scalars and lists of scalars, as strings (three times as fast as objects); else None."""
    depth = 0
    for event in yaml.parse(source, Loader=_YAML_LOADER):  # this does not call itself for each level; the composer does
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
    node = yaml.compose(source, Loader=_YAML_LOADER)
    if not isinstance(node, yaml.MappingNode):
        return [] if node is None else None
    return [(key.value, _plain(value)) for key, value in node.value if isinstance(key, yaml.ScalarNode)]


def _read_line_by_line(source: str) -> list[tuple[str, Any]]:
    """The keys of a block that is no YAML as a whole; none where fewer lines begin with a key than do not.

    What is no YAML after a key is its text. Other lines belong to the key above.
    """
    entries: list[tuple[str, list[str]]] = []
    loose = 0
    for line in source.splitlines():
        if key := _KEY.match(line):
            entries.append((key[1], [line[key.end() :].strip()]))
        elif line.strip() and line[0] != "#":
            loose += not entries or line[0] not in " \t-"
            entries[-1:] = [(name, [*lines, line]) for name, lines in entries[-1:]]
    return [(name, _value(lines)) for name, lines in entries] if loose < len(entries) else []


def _value(lines: list[str]) -> Any:
    """What the lines after a key are in YAML, else a text."""
    with contextlib.suppress(yaml.YAMLError, ValueError):
        if pairs := _read_yaml("\n".join([f"key: {lines[0]}", *lines[1:]])):
            return pairs[0][1]
    return " ".join(filter(None, map(str.strip, lines))).strip("\"'")


def _plain(node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return None if not node.style and node.value in _NULLS else node.value
    if isinstance(node, yaml.SequenceNode):
        inner = [_plain(item) for item in node.value if not isinstance(item, yaml.MappingNode)]
        return [*chain.from_iterable(one if isinstance(one, list) else [one] for one in inner)]  # [[A link]]
    return {}  # nested keys are no properties


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
_WIDE_COLON: Final = re.compile("\uff1a(?=[ \\t]*\\r?\\n)")  # it introduces what follows, as a colon does
_HTML_TAG: Final = re.compile("<[^<>]*>")
# A line that is no rule and stands in a hundred lists and quotes: a million take seconds, and mark nothing.
_DEEP_LINE: Final = re.compile(
    r"^(?![ \t\r-]*$|[ \t\r*]*$)((?:[ \t]*(?:[-*+>]|\d{1,9}[.)])(?=[ \t>])){100}[ \t]*)([^\n]*)", re.MULTILINE
)
# CommonMark takes a fence or heading right under "<CodeGroup>" for part of an HTML block, and the comments in that code
# for headings. Nobody means that: in MDX, where such names come from, a component holds Markdown.
_COMPONENTS: Final = re.compile(
    r"^(?:[ \t]*</?[A-Z][\w.]*(?:[ \t][^<>\n]*)?>[ \t]*\n)+((?=[ \t]*(?:```|~~~|#{1,6}[ \t])))?", re.MULTILINE
)
_TAG_MARK: Final = "\x01"  # stands for the "<" of such a component: what starts with it is a paragraph
# A heading of HTML that stands alone on its lines, as converters write them, with the lines of a block above it, such
# as <div align="center"> and a logo. One around an image alone has no title.
_LISTINGS: Final = r"(?:pre|script|style|table|textarea)\b"
HTML_HEADING: Final = re.compile(
    rf"^((?:(?:\A|(?<=\n\n)|(?<=\n \n)) {{0,3}}<(?=[a-z])(?!{_LISTINGS}|h[1-6]\b)"
    rf"(?:(?![ \t]*<h[1-6]\b|.*<(?:!--|{_LISTINGS}))(?=[ \t]*\S).*\n)+)?[ \t]*)"
    r"(?:<(?:div|center|p)\b[^<>\n]*>[ \t]*)*<h([1-6])(?:\s[^<>]*)?>"
    r"((?:(?!</?h[1-6]\b|\n[ \t]*(?:\n|`{3}|~{3}))[\s\S])*)</h\2>(?:[ \t]*</(?:div|center|p)>)*[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
# Anchors and short comments right above a heading are of it.
_ANCHOR: Final = r"(?:!--(?:(?!-->)[\s\S]){0,200}-->|a\s[^<>]{0,200}(?:/>|>\s*</a>))\s*"
_ANCHORS: Final = re.compile(
    rf"<(?:(?<=\n\n<)|(?<=\n \n<)|(?<![\s\S]<)){_ANCHOR}(?:<{_ANCHOR})*(?<=\n)(#{{1,6}}[ \t].*)$", re.MULTILINE
)
_HAS_HTML_HEADING: Final = re.compile("</h[1-6]>", re.IGNORECASE)


def _comment(opening: str, closing: str) -> str:
    """The pattern of a comment; it holds no other opening, so that openings without an end cost no time."""
    return rf"{opening}(?:(?!{opening})[\s\S])*?{closing}"


# Code, and comments of MDX, Hugo, Liquid, Jinja and Obsidian, formulas, and code of Jekyll or Hugo: no line in one is a
# heading.
_HIGHLIGHT: Final = r"^ {0,3}\{(?:%-?|\{<)[ \t]*"
_END_OF_HIGHLIGHT: Final = _HIGHLIGHT + r"(?:end|/)[ \t]*highlight\b"
_HIGHLIGHTED: Final = (
    rf"(?P<above>{_HIGHLIGHT}highlight\b[ \t]*(?P<language>[^\s%}}>]*).*\n)"
    rf"(?P<lines>(?:(?!{_HIGHLIGHT}(?:/|end)?[ \t]*highlight\b).*\n)*)(?P<below>{_END_OF_HIGHLIGHT}.*)"
)
_NO_MARKDOWN: Final = re.compile(
    "|".join(
        [
            f"(?P<code>{CODE})",
            r"\{\s*/\*(?:(?!\{\s*/\*|\*/)[\s\S])*\*/\s*\}",
            _comment(r"\{\{-?\s*/\*", r"\*/\s*-?\}\}"),
            _comment(r"\{%-?\s*comment\b[^%\n]{0,200}%\}", r"\{%-?\s*endcomment\s*-?%\}"),
            _comment(r"\{\#-?(?=\s)", r"\#\}"),
            _comment(r"^[ \t]*%%", "%%"),
            _comment(r"^[ \t]*\$\$[ \t]*$", r"\$\$"),
            r"\$\$(?:(?!\$\$|\n[ \t]*\n)[\s\S])*\$\$",
            _HIGHLIGHTED,
        ]
    ),
    re.MULTILINE,
)
_MAY_HOLD: Final = ("*/", "endcomment", "#}", "%%", "$$", "highlight")
END_OF_CODE: Final = re.compile(_END_OF_HIGHLIGHT)
# What stands around a callout, a panel or a step (Quarto, Docusaurus, MDX, HTML, Hugo, GitBook): no heading in it heads
# what follows.
_NOTED: Final = r"(?=[^<>]{1,300}\b(?:alert|warning|note|admonition|callout|tip|info|important|danger)\b)"
_CONTAINER: Final = re.compile(
    r"^ {0,3}(?:(?P<colons>:{3,})[ \t]*(?P<title>\S)?"
    rf"|[<\x01](?P<slash>/)?(?P<tag>[A-Z][\w.]*|details|aside|blockquote|div(?:(?<=/div)|{_NOTED}))\b[^<>]{{0,1000}}(?<!/)>(?!.*[<\x01]/(?P=tag)\b)"
    r"|\{(?:\{[%<]|%-?)[ \t]*(?P<end>/|end)?[ \t]*(?!(?:if\w*|unless|case|for|raw|block|capture)\b)"
    r"(?P<name>\w[\w/-]*)[^{}\n]*[%>]\}+[ \t]*$)",
    re.MULTILINE,
)
_MAY_CONTAIN: Final = (":::", "</", "\x01/", "{{%", "{{<", "{%")
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
    if any(mark in text for mark in _MAY_HOLD):
        text = _NO_MARKDOWN.sub(_as_markdown, text)
    if "</" in text:
        text = _COMPONENTS.sub(lambda run: run[0].replace("<", _TAG_MARK) if run[1] is not None else run[0], text)
        text = HTML_HEADING.sub(_as_heading, text) if _HAS_HTML_HEADING.search(text) else text
    if "-->" in text or "<a " in text:
        text = _ANCHORS.sub(lambda run: run[1].ljust(len(run[0])), text)
    text = _DEEP_LINE.sub(lambda line: line[1] + "x" * len(line[2]), text)
    return "\n" * body + text[body:] if body else text


def _as_markdown(match: re.Match[str]) -> str:
    """Code as it is, a paragraph for a comment, and fences for the tags around highlighted code."""
    if match["code"] is not None:
        return match[0]
    if match["above"] is None:
        return _VISIBLE.sub("x", match[0])
    opening = f"~~~~~~~~ {match['language']}".ljust(len(match["above"]) - 1)
    return f"{opening}\n{match['lines']}{'~' * 8:<{len(match['below'])}}"


def _as_heading(match: re.Match[str]) -> str:
    """A heading of Markdown that is as long as one of HTML."""
    title = " ".join(_HTML_TAG.sub("", match[3]).split())
    return f"{'#' * int(match[2])} {title}".ljust(len(match[0])) if title else match[0]


def containers_of(masked: str) -> list[tuple[int, int]]:
    """Where callouts, components and their kind begin and end, by their ends; those that end nowhere do not."""
    found: list[tuple[int, int]] = []
    open_: list[tuple[str, int]] = []
    for edge in _CONTAINER.finditer(without_code(masked)) if any(mark in masked for mark in _MAY_CONTAIN) else ():
        name = ":" if edge["colons"] else edge["tag"] or edge["name"]
        if not (edge["slash"] or edge["end"] or (edge["colons"] and not edge["title"])):
            open_.append((name, edge.start()))
            continue
        for at in range(len(open_) - 1, max(-1, len(open_) - _DEEPEST_CONTAINER), -1):
            if open_[at][0] == name:
                found.append((open_[at][1], edge.end()))
                del open_[at:]
                break
    return found


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
                skip = end - 1  # a list that a tab indents starts at the line end above
            yield start, end, tag, value
