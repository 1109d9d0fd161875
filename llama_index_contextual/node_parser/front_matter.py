"""The front matter of a Markdown document: the YAML or TOML block at the very top of a file."""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from llama_index_contextual.utils.errors import ContextualWarning

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# As in Pandoc, a rule that a blank line follows opens no front matter.
_FRONT_MATTER: Final = re.compile(
    r"\ufeff?\s*(?:(?P<yaml>---)(?=[ \t]*(?:\r\n|\r(?!\n)|\n)(?![ \t]*[\r\n]))|\+\+\+)"
    r"[ \t]*(?:\r\n?|\n)"
    r"(?P<source>.*?)(?<![^\r\n])(?(yaml)(?:---|\.\.\.)|\+\+\+)[ \t]*(?:\r\n?|\n|\Z)",
    re.DOTALL,
)
# To YAML, "#a" is a comment in "tags: #a #b" and in "- #a".
_HASHTAGS: Final = re.compile(r"^([ \t]*(?:-|[\w-]+:)[ \t]+)(#\w[^\r\n']*)", re.MULTILINE)
# The loader in C where PyYAML was built with it. In both, all scalars are strings, which is three
# times as fast as making objects.
_YAML_LOADER: Final = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_MOST_CHARS: Final = 100_000  # a second of Python's own YAML parser
# libyaml's composer ends the process where lists and mappings are nested 100,000 levels deep.
_DEEPEST: Final = 50
# The time and memory of the TOML parser grow with the square of the length of a dotted key.
_LONGEST_TOML_LINE: Final = 2_000
_FLAGS: Final = frozenset({"", "true", "false"})
_NULLS: Final = frozenset({None, "", "~", "null", "Null", "NULL"})
_KEY: Final = re.compile(
    r"^([^\s#'\"\[\]{},&*!|>%@`:-][^:\r\n]{0,200}?)[ \t]*:(?=\s|\Z|\d{4}-)", re.MULTILINE
)
_LINE_OF_NO_KEY: Final = re.compile(r"^[^\s#-]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """The properties of a document.

    Attributes:
        end: The offset after the block in the text; 0 if there is none.
        values: The top-level keys, in lower case; scalars of YAML are strings.
        unread: The offset after a block that could not be read. It stays text, without headings.
    """

    end: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)
    unread: int = 0

    def text(self, key: str) -> str:
        """Return a value as one line, lists comma-separated; "" if it is missing or a mapping."""
        return ", ".join(filter(None, _flat(self.values.get(key))))

    def tags(self) -> str:
        """Return the tags comma-separated and without ``#``, from a list, ``a, b`` or ``#a #b``."""
        tags: list[str] = []
        for part in (self.text("tags") or self.text("tag")).split(","):
            words = part.split() if "#" in part else [part]
            tags += [word.strip(" []").lstrip("#") for word in words]
        return ", ".join(filter(None, tags))

    def other_values(self, without: Collection[str]) -> str:
        """Return the other keys as ``client: Acme; weight: 40``, without flags and mappings."""
        parts: list[str] = []
        for key in self.values:
            value = self.text(key)
            if key not in without and value.lower() not in _FLAGS:
                parts.append(f"{key}: {value}")
        return "; ".join(parts)


def read_front_matter(text: str, name: str | None = "a document") -> FrontMatter:
    """Read the front matter at the top of a text.

    A block that is not valid YAML is read line by line, so ``title: Avatar: The Last Airbender`` is
    a key and its text. A block in which most lines have no key, or that exceeds a limit, stays
    text. A :class:`~llama_index_contextual.utils.errors.ContextualWarning` tells of either. A block
    that is no mapping, such as a paragraph between two rules, stays text without a warning.

    Args:
        text: The whole document.
        name: The document's name for the warning; None for no warning.
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
    if not values:  # it is empty
        return FrontMatter(match.end())
    if not isinstance(values, dict):
        return FrontMatter()
    return FrontMatter(match.end(), {str(key).lower(): value for key, value in values.items()})


def _reason(error: Exception) -> str:
    """Return the first line of an error, with the line of the document where YAML failed."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return str(error).partition("\n")[0]
    line = mark.line + 2  # it is counted from 0, and the fence is a line, too
    return f"line {line}: {getattr(error, 'problem', '')}"


def _check_length(source: str) -> None:
    """Raise a ValueError for a block that takes too long to parse."""
    if len(source) > _MOST_CHARS:
        raise ValueError(f"it has {len(source):,} characters, more than {_MOST_CHARS:,}")


def _parse_toml(source: str) -> dict[str, Any]:
    """Return the values of a TOML text."""
    if max(map(len, source.split("\n"))) > _LONGEST_TOML_LINE:
        raise ValueError(f"a line has more than {_LONGEST_TOML_LINE:,} characters")
    return tomllib.loads(source.replace("\r\n", "\n"))


def _parse_yaml(source: str) -> Any:
    """Return the value of a YAML text, in which all scalars are strings; None if it is empty."""
    depth = 0
    anchors: set[str | None] = set()  # of lists and mappings
    # Iterating over the events does not recurse for each level, as the composer does.
    for event in yaml.parse(source, Loader=_YAML_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            anchors.add(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent) and event.anchor in anchors:
            # Ten lines of them can make a billion items.
            raise ValueError("it has aliases of lists, which are not read")
        if depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
    return _YAML_LOADER(source).get_single_data()


def _read_line_by_line(source: str) -> dict[str, Any]:
    """Return the keys and values of a block that is not valid YAML; lines belong to the key above.

    Returns:
        An empty mapping if fewer lines begin with a key than do not.
    """
    _, *parts = _KEY.split(source)  # a key, its text, the next key, …
    if len(parts) <= len(_LINE_OF_NO_KEY.findall(source)):
        return {}
    return {key: _value(text) for key, text in zip(parts[::2], parts[1::2], strict=True)}


def _value(text: str) -> Any:
    """Return what follows a key, as YAML if it is valid, else as text."""
    with contextlib.suppress(yaml.YAMLError, ValueError):
        return _parse_yaml(f"key: {text.strip(' ')}")["key"]
    return " ".join(text.split()).strip("\"'")


def _flat(value: Any) -> list[str]:
    """Return the texts of a scalar or of a list of any depth; mappings have none."""
    if isinstance(value, list):  # YAML reads [[A link]] as a list in a list
        return [text for item in value for text in _flat(item)]
    if isinstance(value, dict) or value in _NULLS:
        return []
    return [" ".join(str(value).split())]
