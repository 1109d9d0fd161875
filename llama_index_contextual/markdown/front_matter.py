"""Front matter: the YAML or TOML block at the very top of a file, which is metadata and not text.

The Markdown parser's own option is not used: it takes a ``---`` block in mid-document for metadata too.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import yaml

from llama_index_contextual.errors import ContextualWarning

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_FENCED: Final = re.compile(
    r"\ufeff?(---|\+\+\+)[ \t]*(?:\r\n?|\n)(.*?)(?<![^\r\n])(\1|\.\.\.)[ \t]*(?:\r\n?|\n|\Z)", re.DOTALL
)
_YAML_LOADER: Final = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the C one where PyYAML was built with it
_MOST_CHARS: Final = 100_000  # a second of Python's own YAML parser
_DEEPEST: Final = 50  # lists and mappings in one another; libyaml's composer ends the process where there are 100,000
_FLAGS: Final = frozenset({"", "true", "false"})
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """What a document's front matter says.

    Attributes:
        end: The offset after it in the text, 0 where there is none.
        values: Its top-level keys, in lower case; scalars of YAML are strings.
    """

    end: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)

    def text(self, key: str) -> str:
        """Return the value as one flat string, lists comma-separated; empty where it is missing or nested deeper."""
        value = self.values.get(key)
        if isinstance(value, list | tuple):
            return ", ".join(str(item).strip() for item in value if item and not isinstance(item, list | dict))
        return "" if value is None or isinstance(value, dict) else " ".join(str(value).split())

    def rest(self, without: Collection[str]) -> str:
        """Return all keys but some with their values, ``client: Acme; weight: 40``; no flags, nothing nested."""
        values = {key: self.text(key) for key in self.values if key not in without}
        return "; ".join(f"{key}: {value}" for key, value in values.items() if value and value.lower() not in _FLAGS)


def read_front_matter(text: str, source: str = "") -> FrontMatter:
    """Read the front matter at the top of a text.

    A block that does not parse, or has more than 100,000 characters, stays text, and a
    :class:`~llama_index_contextual.errors.ContextualWarning` says so. A block that is no mapping (a paragraph between
    two rules) stays text without a warning.

    Args:
        text: The whole document.
        source: A name for the document in the warning.
    """
    match = _FENCED.match(text) if text.startswith(("---", "+++", "\ufeff---", "\ufeff+++")) else None
    if match is None or (match[1] == "+++" and match[3] != "+++"):
        return FrontMatter()
    try:
        if len(match[2]) > _MOST_CHARS:
            raise ValueError(f"it has {len(match[2]):,} characters, more than {_MOST_CHARS:,}")  # noqa: TRY301
        is_toml = match[1] == "+++"
        pairs = [*tomllib.loads(match[2].replace("\r\n", "\n")).items()] if is_toml else _read_yaml(match[2])
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        warnings.warn(
            f"The front matter of {source or 'a document'} cannot be read and is kept as text: {_reason(error)}",
            ContextualWarning,
            stacklevel=2,
        )
        return FrontMatter()
    if pairs is None:
        return FrontMatter()
    counts = Counter(key.lower() for key, _ in pairs)
    if repeated := ", ".join(key for key, count in counts.items() if count > 1):
        warnings.warn(
            f"The front matter of {source or 'a document'} says more than once: {repeated}. The last one counts.",
            ContextualWarning,
            stacklevel=2,
        )
    return FrontMatter(match.end(), {key.lower(): value for key, value in pairs})


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 2}: {error.problem}"  # counted from 0, and the fence is one
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _read_yaml(source: str) -> list[tuple[str, Any]] | None:
    """Return a mapping's keys with scalars and lists of scalars, as strings; None for anything but a mapping.

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


def _plain(node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return None if not node.style and node.value in _NULLS else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value if isinstance(item, yaml.ScalarNode)]
    return {}
