"""Front matter, inline tags, and the lines of a note that are prose, and no code or comment.

Front matter is the YAML or TOML block at the very top of a file, which is metadata and not text. The Markdown parser's
own option is not used: it takes a ``---`` block in mid-document for metadata too. Tags and comments are as Obsidian and
its kind read them.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import yaml

from llama_index_contextual.chunking.markdown import fence_after, without_code
from llama_index_contextual.errors import ContextualWarning
from llama_index_contextual.text import lines_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


# "---yaml" and "---json" are Eleventy's; JSON is YAML. Before it a comment may name a licence.
_FENCED: Final = re.compile(
    r"\ufeff?(?:\s*<!--(?:(?!-->).){0,9999}-->)?(?:\s*[\r\n])?(---|\+\+\+)(?:ya?ml|json)?[ \t]*(?:\r\n?|\n)"
    r"(.*?)(?<![^\r\n])(\1|\.\.\.)[ \t]*(?:\r\n?|\n|\Z)",
    re.DOTALL,
)
_HASHTAGS: Final = re.compile(r"^([ \t]*(?:-|[\w-]+:)[ \t]+)(#\w[^\r\n']*)", re.MULTILINE)  # no comments: "tags: #a #b"
_LIST_OF_TAGS: Final = re.compile(r"^[\w-]+:[ \t]*\[[^\r\n]*", re.MULTILINE)
_SIGN: Final = re.compile(r"(?<=[\[,])([ \t]*)#(?=\w)")
_TOML_KEY: Final = re.compile(r"^([\w-]+)[ \t]*=[ \t]*", re.MULTILINE)
_GROUPS: Final = ("<<", "taxonomies", "date")  # YAML's and Zola's keys of further keys, MkDocs' "date: created:"
_YAML_LOADER: Final = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the C one where PyYAML was built with it
_MOST_CHARS: Final = 100_000  # a second of Python's own YAML parser
_DEEPEST: Final = 50  # lists and mappings in one another; libyaml's composer ends the process where there are 100,000
_FLAGS: Final = frozenset({"", "true", "false"})
_LIST_ITEM: Final = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])\s")
_TAG: Final = re.compile(r"(?<![^\s(])#([\w/-]{1,200})")
_VISIBLE: Final = re.compile(r"[^\s]")
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_KEY: Final = re.compile(r"""(?:"([^"\n]+)"|'([^'\n]+)'|([^\s#'"\[\]{},&*!|>%@`:-][^:\n]{0,200}?))[ \t]*:(?=\s|\Z)""")


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
    match = _FENCED.match(text)
    if match is None or (match[1] == "+++" and match[3] != "+++"):
        return _json_front_matter(text)
    name, language, source = name or "a document", "YAML", match[2]
    if match[1] == "+++":
        language = "TOML"
    else:
        source = _HASHTAGS.sub(r"\1'\2'", source.replace("\u00a0", " "))
        source = _LIST_OF_TAGS.sub(lambda tags: _SIGN.sub(r"\1", tags[0]), source)
    try:
        if len(source) > _MOST_CHARS:
            raise ValueError(f"it has {len(source):,} characters, more than {_MOST_CHARS:,}")  # noqa: TRY301
        is_toml = language == "TOML"
        pairs = [*tomllib.loads(source.replace("\r\n", "\n")).items()] if is_toml else _read_yaml(source)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)  # counted from 0, and the fence is one
        reason = f"line {mark.line + 2}: {getattr(error, 'problem', '')}" if mark else str(error).partition("\n")[0]
        is_syntax = isinstance(error, yaml.YAMLError | tomllib.TOMLDecodeError)
        source = source if language == "YAML" else _TOML_KEY.sub(r"\1: ", source)
        pairs = _read_line_by_line(source) if is_syntax else []
        _warn(
            f"{name} cannot be read as {language} and is {'read line by line' if pairs else 'kept as text'}: {reason}"
        )
        if not pairs:
            return FrontMatter(unread=match.end())
    if pairs is None:
        return FrontMatter()
    values = _values_of(pairs)
    if len(counts := Counter(key.lower() for key, _ in pairs)) < len(pairs):
        _warn(f"{name} repeats {', '.join(key for key in values if counts[key] > 1)}. The last one counts.")
    return FrontMatter(match.end(), values)


def _json_front_matter(text: str) -> FrontMatter:
    """That of Hugo: an object at the very top with nothing behind it on its last line."""
    start = int(text.startswith("\ufeff"))
    if text.startswith("{", start):
        with contextlib.suppress(ValueError, RecursionError):
            found, end = json.JSONDecoder().raw_decode(text[: start + _MOST_CHARS], start)
            if found and not text[end:].partition("\n")[0].strip():
                return FrontMatter(text.find("\n", end) + 1 or len(text), _values_of(found.items()))
    return FrontMatter()


def _values_of(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Values by key in lower case, with those of groups."""
    values = {key.lower(): value for key, value in pairs}
    groups = [group for name in _GROUPS if isinstance(group := values.get(name), dict)]
    return {key.lower(): value for group in [*groups, values] for key, value in group.items()}


def _warn(fault: str) -> None:
    warnings.warn(f"The front matter of {fault}", ContextualWarning, stacklevel=3)


def _read_yaml(source: str) -> list[tuple[str, Any]] | None:
    """A mapping's keys with scalars and lists of scalars, as strings; None for anything but a mapping.

    The values are not made into objects: that takes three times as long, and YAML's own dates raise on 2026-02-31.
    """
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

    What is no YAML after a key is its text, or a list of the lines with a dash. Other lines belong to the key above.
    """
    entries: list[tuple[str, list[str]]] = []
    loose = 0
    for line in source.splitlines():
        if key := _KEY.match(line):
            entries.append((key[1] or key[2] or key[3], [line[key.end() :].strip()]))
        elif line.strip() and line[0] != "#":
            loose += not entries or line[0] not in " \t-"
            entries[-1:] = [(name, [*lines, line]) for name, lines in entries[-1:]]
    return [(name, _value(lines)) for name, lines in entries] if loose < len(entries) else []


def _value(lines: list[str]) -> Any:
    """What the lines after a key are in YAML, else a text, or a list of the lines with a dash."""
    with contextlib.suppress(yaml.YAMLError, ValueError):
        if pairs := _read_yaml("\n".join([f"key: {lines[0]}", *lines[1:]])):
            return pairs[0][1]
    items = [line.strip() for line in lines if line.strip()]
    is_list = not lines[0] and all(item[:2] == "- " for item in items)
    if is_list:
        return [item[2:].strip() for item in items]
    text = " ".join(items)
    if text.startswith('"'):
        with contextlib.suppress(ValueError):
            return str(json.loads(text))
    return text[1:-1] if text[1:] and text[0] == text[-1] and text[0] in "\"'" else text


def _plain(node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return None if not node.style and node.value in _NULLS else node.value
    if isinstance(node, yaml.SequenceNode):
        inner = [_plain(item) for item in node.value if not isinstance(item, yaml.MappingNode)]
        return [*chain.from_iterable(one if isinstance(one, list) else [one] for one in inner)]  # [[A link]]
    pairs = ((key.value, value) for key, value in node.value if isinstance(key, yaml.ScalarNode))
    return {key: _plain(value) for key, value in pairs if isinstance(value, yaml.ScalarNode)}


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text that are no fenced code, each with its offset; spans of code are blank."""
    fence, offset = "", 0
    for line in lines_of(text):
        fence, is_code = fence_after(fence, line)
        if not is_code:
            yield offset, without_code(line)
        offset += len(line)


def inline_tags(text: str) -> list[str]:
    """The tags in a text, ``#health/running``, without their sign: each once, in order.

    As in Obsidian, a tag follows white space or a parenthesis, has letters, digits, ``_``, ``-`` and ``/``, and not
    only digits. Code, indented code too, and quotations hold none.
    """
    if not _TAG.search(text):
        return []
    tags: dict[str, str] = {}
    is_in_list = False
    for _, line in _prose(text):
        is_indented = line.startswith(("    ", "\t"))
        if line.strip() and not is_indented:
            is_in_list = _LIST_ITEM.match(line) is not None
        if line.lstrip().startswith(">") or (is_indented and not is_in_list):
            continue
        for match in _TAG.finditer(line):
            tag = match[1].strip("/")
            if tag.strip("0123456789/-_"):
                tags.setdefault(tag.casefold(), tag)
    return [*tags.values()]


def without_comments(text: str) -> tuple[str, int]:
    """A text in which comments, ``%% … %%``, are blank, and how many there were.

    Lines and offsets stay. Code holds no comments. One that does not end stays as it is.
    """
    if text.count("%%") < 2:  # noqa: PLR2004  its two ends
        return text, 0
    ends = [offset + mark.start() for offset, line in _prose(text) for mark in re.finditer("%%", line)]
    parts: list[str] = []
    after = 0
    for start, end in zip(ends[::2], ends[1::2], strict=False):
        parts += [text[after:start], _VISIBLE.sub(" ", text[start : end + 2])]
        after = end + 2
    return "".join([*parts, text[after:]]), len(parts) // 2
