"""Front matter: the YAML or TOML block at the very top of a file, which is metadata and not text.

The Markdown parser's own option is not used: it takes a ``---`` block in mid-document for metadata too.
"""

from __future__ import annotations

import re
import sys
import warnings
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
# Its composer calls itself for each level of nesting, up to the end of the process; Python's raises RecursionError. So
# few characters cannot nest too deeply for a thread's stack of 512 KiB.
_SAFE_CHARS: Final = 1000
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
        """The value as one flat string, lists comma-separated; empty where it is missing or nested deeper."""
        value = self.values.get(key)
        if isinstance(value, list | tuple):
            return ", ".join(str(item).strip() for item in value if item and not isinstance(item, list | dict))
        return "" if value is None or isinstance(value, dict) else " ".join(str(value).split())

    def rest(self, without: Collection[str]) -> str:
        """The values of all keys but some, in their order, as one string; flags and what is nested are left out."""
        values = (self.text(key) for key in self.values if key not in without)
        return " ".join(value for value in values if value.lower() not in _FLAGS)


def read_front_matter(text: str, source: str = "") -> FrontMatter:
    """Read the front matter at the top of a text.

    A block that does not parse is reported with a :class:`~llama_index_contextual.errors.ContextualWarning` and stays
    text; a block that is no mapping (a paragraph between two rules) is no front matter and stays text silently.

    Args:
        text: The whole document.
        source: A name for the document in the warning.
    """
    match = _FENCED.match(text) if text.startswith(("---", "+++", "\ufeff---", "\ufeff+++")) else None
    if match is None or (match[1] == "+++" and match[3] != "+++"):
        return FrontMatter()
    try:
        values = tomllib.loads(match[2].replace("\r\n", "\n")) if match[1] == "+++" else _read_yaml(match[2])
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        warnings.warn(
            f"The front matter of {source or 'a document'} is broken and is kept as text: {reason}",
            ContextualWarning,
            stacklevel=2,
        )
        return FrontMatter()
    if not isinstance(values, dict):
        return FrontMatter()
    return FrontMatter(match.end(), {str(key).lower(): value for key, value in values.items()})


def _read_yaml(source: str) -> dict[str, Any] | None:
    """A mapping's scalars and lists of scalars, as strings; None for anything but a mapping.

    Only composed, not constructed: that takes a third of the time, and YAML's own dates would raise on 2026-02-31.
    """
    node = yaml.compose(source, Loader=_YAML_LOADER if len(source) <= _SAFE_CHARS else yaml.BaseLoader)
    if not isinstance(node, yaml.MappingNode):
        return {} if node is None else None
    return {key.value: _plain(value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def _plain(node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return None if node.style is None and node.value in _NULLS else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value if isinstance(item, yaml.ScalarNode)]
    return {}
