"""The front matter of a Markdown document, a YAML or TOML block at the very top of the file."""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from llama_index_contextual.utils.errors import ContextualWarning

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# As in Pandoc, a "---" line followed by a blank line is a rule and does not start front matter.
_FRONT_MATTER = re.compile(
    r"\ufeff?\s*(?:(?P<yaml>---)(?=[ \t]*(?:\r\n|\r(?!\n)|\n)(?![ \t]*[\r\n]))|\+\+\+)"
    r"[ \t]*(?:\r\n?|\n)"
    r"(?P<source>.*?)(?<![^\r\n])(?(yaml)(?:---|\.\.\.)|\+\+\+)[ \t]*(?:\r\n?|\n|\Z)",
    re.DOTALL,
)
# In YAML, the "#a" of "tags: #a #b" and of "- #a" would be a comment.
_HASHTAGS = re.compile(r"^([ \t]*(?:-|[\w-]+:)[ \t]+)(#\w[^\r\n']*)", re.MULTILINE)
# The C loader, if PyYAML was built with it. Both loaders return all scalars as strings, which is
# three times as fast as converting them.
_YAML_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_MOST_CHARS = 100_000  # which take the pure Python YAML parser a second
# libyaml crashes the process if lists and mappings are nested 100,000 levels deep.
_DEEPEST = 50
# The time and memory of the TOML parser grow with the square of the length of a dotted key.
_LONGEST_TOML_LINE = 2_000
_FLAGS = frozenset({"", "true", "false"})
_NULLS = frozenset({None, "", "~", "null", "Null", "NULL"})
_KEY = re.compile(
    r"^([^\s#'\"\[\]{},&*!|>%@`:-][^:\r\n]{0,200}?)[ \t]*:(?=\s|\Z|\d{4}-)", re.MULTILINE
)
_LINE_OF_NO_KEY = re.compile(r"^[^\s#-]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """The properties in the front matter of a document.

    Attributes:
        end: The offset after the block in the text; 0 if there is none.
        values: The values by top-level key, in lower case. YAML scalars are strings.
        unread: The offset after a block that could not be parsed. It is kept as text without
            headings.
    """

    end: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)
    unread: int = 0

    def text(self, key: str) -> str:
        """Return a value on one line, lists comma-separated; "" if it is missing or a mapping."""
        return ", ".join(filter(None, _flat(self.values.get(key))))

    def tags(self) -> str:
        """Return the comma-separated tags without ``#``, from a list, ``a, b`` or ``#a #b``."""
        tags: list[str] = []
        for part in (self.text("tags") or self.text("tag")).split(","):
            words = part.split() if "#" in part else [part]
            tags += [word.strip(" []").lstrip("#") for word in words]
        return ", ".join(filter(None, tags))

    def other_values(self, without: Collection[str]) -> str:
        """Return the remaining keys as ``client: Acme; weight: 40``, without flags and mappings."""
        parts: list[str] = []
        for key in self.values:
            value = self.text(key)
            if key not in without and value.lower() not in _FLAGS:
                parts.append(f"{key}: {value}")
        return "; ".join(parts)


def read_front_matter(text: str, name: str | None = "a document") -> FrontMatter:
    """Read the front matter at the top of a text.

    A block that is not valid YAML is read line by line, so that ``title: Avatar: The Last
    Airbender`` is read as a key and its text. A block that exceeds a limit, or in which most lines
    have no key, is kept as text. Both cases cause a
    :class:`~llama_index_contextual.utils.errors.ContextualWarning`. A block that is not a mapping,
    such as a paragraph between two rules, is kept as text without a warning.

    Args:
        text: The whole document.
        name: The document's name for the warning, or None for no warning.
    """
    match = _FRONT_MATTER.match(text)
    if match is None:
        return FrontMatter()
    is_toml = match["yaml"] is None
    source = match["source"]
    if not is_toml:
        source = _HASHTAGS.sub(r"\1'\2'", source.replace("\u00a0", " "))
    try:
        _check_length(source)
        values = _parse_toml(source) if is_toml else _parse_yaml(source)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        values = _read_line_by_line(source) if isinstance(error, yaml.YAMLError) else {}
        if name:
            syntax = "TOML" if is_toml else "YAML"
            outcome = "read line by line" if values else "kept as text"
            warnings.warn(
                f"The front matter of {name} cannot be read as {syntax} and is {outcome}: "
                f"{_reason(error)}",
                ContextualWarning,
                stacklevel=2,
            )
        if not values:
            return FrontMatter(unread=match.end())
    if not values:  # the block is empty
        return FrontMatter(match.end())
    if not isinstance(values, dict):
        return FrontMatter()
    return FrontMatter(match.end(), {str(key).lower(): value for key, value in values.items()})


def _reason(error: Exception) -> str:
    """Return the first line of an error, or for YAML the problem and the document's line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return str(error).partition("\n")[0]
    line = mark.line + 2  # counted from 0, after the line of the fence
    return f"line {line}: {getattr(error, 'problem', '')}"


def _check_length(source: str) -> None:
    """Raise a ValueError for a block that would take too long to parse."""
    if len(source) > _MOST_CHARS:
        raise ValueError(f"it has {len(source):,} characters, more than {_MOST_CHARS:,}")


def _parse_toml(source: str) -> dict[str, Any]:
    """Return the values of a TOML text."""
    if max(map(len, source.split("\n"))) > _LONGEST_TOML_LINE:
        raise ValueError(f"a line has more than {_LONGEST_TOML_LINE:,} characters")
    return tomllib.loads(source.replace("\r\n", "\n"))


def _parse_yaml(source: str) -> Any:
    """Return the value of a YAML text with all scalars as strings, or None if it is empty."""
    depth = 0
    anchors: set[str | None] = set()  # of lists and mappings
    # Unlike the composer, iterating over the events does not recurse.
    for event in yaml.parse(source, Loader=_YAML_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            anchors.add(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent) and event.anchor in anchors:
            # Ten lines of aliases can expand to a billion items.
            raise ValueError("it has aliases of lists, which are not supported")
        if depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
    return _YAML_LOADER(source).get_single_data()


def _read_line_by_line(source: str) -> dict[str, Any]:
    """Return the keys and values of a block that is not valid YAML.

    A line without a key belongs to the key above it.

    Returns:
        The values by key; nothing unless most lines begin with a key.
    """
    _, *parts = _KEY.split(source)  # a key, its text, the next key, …
    if len(parts) <= len(_LINE_OF_NO_KEY.findall(source)):
        return {}
    return {key: _value(text) for key, text in zip(parts[::2], parts[1::2], strict=True)}


def _value(text: str) -> Any:
    """Return the value after a key, as YAML if it is valid, else as text."""
    with contextlib.suppress(yaml.YAMLError, ValueError):
        return _parse_yaml(f"key: {text.strip(' ')}")["key"]
    return " ".join(text.split()).strip("\"'")


def _flat(value: Any) -> list[str]:
    """Return the texts of a scalar or of all items of a nested list. Mappings are left out."""
    if isinstance(value, list):  # YAML reads [[A link]] as a list in a list
        return [text for item in value for text in _flat(item)]
    if isinstance(value, dict) or value in _NULLS:
        return []
    return [" ".join(str(value).split())]
