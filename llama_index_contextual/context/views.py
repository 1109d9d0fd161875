"""Read and write the contexts in nodes, and choose the metadata that a node's views show.

The EMBED view shows the context and all metadata that it showed before, except values that the
context repeats. Embedding a path or title twice would make the chunks of a document too similar.
The LLM view does not show the context.

This package always excludes the keys ``context_source`` and ``context_version``. The keys that a
context hides are inserted between these two. So other steps can add keys before or after them, and
:func:`remove_context` can still restore the lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PureWindowsPath
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index_contextual.utils import dates, metadata

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

_PATH_KEYS = (metadata.PATH, metadata.FILE_PATH, metadata.FILE_NAME)
_REPEATED_KEYS = (*_PATH_KEYS, metadata.TITLE, metadata.HEADER_PATH, metadata.DATE)
_DAY_LENGTH = len("2026-01-28")
_WORD = re.compile(r"\w+")
_CONTEXT_KEYS = (
    metadata.CONTEXT,
    metadata.CONTEXT_SOURCE,
    metadata.CONTEXT_VERSION,
    metadata.LEXICAL_CONTEXT,
)


class _Names(NamedTuple):
    """The names of the four context keys in the metadata of a node, or for a new context in it."""

    context: str
    source: str
    version: str
    lexical: str


def _names_in(values: Mapping[str, Any]) -> _Names:
    names = []
    is_written = has_context(values)
    for key in _CONTEXT_KEYS:
        if is_written:
            name = metadata.key_in(values, key)
        else:
            name = metadata.prefixed_key(key) if key in values else key
        names.append(name)
    return _Names(*names)


def has_context(values: Mapping[str, Any]) -> bool:
    """Return whether this package wrote a context. A ``context`` key alone is somebody else's."""
    source_name = metadata.key_in(values, metadata.CONTEXT_SOURCE)
    version_name = metadata.key_in(values, metadata.CONTEXT_VERSION)
    return source_name in values and version_name in values


def write_context(node: BaseNode, text: str, source: str, version: str, lexical: str = "") -> None:
    """Write a context into a node, in place of an earlier one.

    Keys that the document itself brought are kept. Call :func:`set_views` afterwards.
    """
    remove_context(node)
    values = node.metadata
    names = _names_in(values)
    values[names.context] = text
    values[names.source] = source
    values[names.version] = version
    if lexical or metadata.LEXICAL_CONTEXT in values:
        values[names.lexical] = lexical


def remove_context(node: BaseNode) -> None:
    """Remove a context that this package wrote, and restore the views as they were before."""
    names = _names_in(node.metadata)
    _reset_views(node, names)
    if has_context(node.metadata):
        for name in names:
            node.metadata.pop(name, None)


def set_views(
    node: BaseNode, *, show_context_to_llm: bool = False, embed_metadata: bool = True
) -> None:
    """Make the EMBED view of a node show its context once, and the LLM view only on request.

    Args:
        node: The node. Its ``excluded_embed_metadata_keys`` and ``excluded_llm_metadata_keys`` are
            changed in place.
        show_context_to_llm: Whether the LLM view shows the context.
        embed_metadata: Whether the EMBED view shows more than the text and the context.
    """
    values = node.metadata
    names = _names_in(values)
    _reset_views(node, names)
    if not has_context(values):
        return
    context = str(values.get(names.context) or "")
    own_names = [name for name in names if name in values]
    shown_names = {names.context} if context else set()

    # Set the EMBED view.
    hidden_names = list(values)
    if embed_metadata:
        hidden_names = own_names + _repeated_names(values, names, context)
    _hide_from_embed(node, names, [name for name in hidden_names if name not in shown_names])

    # Set the LLM view.
    if show_context_to_llm:
        own_names = [name for name in own_names if name not in shown_names]
    node.excluded_llm_metadata_keys = node.excluded_llm_metadata_keys + own_names


def hide_headings(node: BaseNode) -> None:
    """Exclude our parser's header path from the EMBED view of a node without a context.

    Call :func:`remove_context` first.
    """
    if metadata.is_of_our_parser(node.metadata):
        header_name = metadata.key_in(node.metadata, metadata.HEADER_PATH)
        _hide_from_embed(node, _names_in(node.metadata), [header_name])


def _hide_from_embed(node: BaseNode, names: _Names, hidden_names: Iterable[str]) -> None:
    """Exclude metadata from embedding, between the two keys that are always excluded."""
    excluded = node.excluded_embed_metadata_keys
    known = {names.source, names.version, *excluded}
    added = [name for name in hidden_names if name not in known]
    node.excluded_embed_metadata_keys = [*excluded, names.source, *added, names.version]


def _reset_views(node: BaseNode, names: _Names) -> None:
    """Remove the keys that this package added from the lists of excluded keys."""
    excluded = node.excluded_embed_metadata_keys
    if names.source in excluded and names.version in excluded:
        before = excluded[: excluded.index(names.source)]
        after = excluded[excluded.index(names.version) + 1 :]
        node.excluded_embed_metadata_keys = [*before, *after]
    if has_context(node.metadata):
        excluded = node.excluded_llm_metadata_keys
        node.excluded_llm_metadata_keys = [name for name in excluded if name not in names]


def _repeated_names(values: Mapping[str, Any], names: _Names, context: str) -> list[str]:
    """Return the names of the metadata whose values a context repeats."""
    embedded_words = _words(context)
    lexical_context = str(values.get(names.lexical) or "")
    searched_words = embedded_words + _words(lexical_context)
    if searched_words.isspace():
        return []
    repeated: list[str] = []
    for key in _REPEATED_KEYS:
        words = searched_words if key in _PATH_KEYS else embedded_words
        for name in (key, metadata.prefixed_key(key)):
            is_repeated = name in values and _contains_value(words, key, str(values[name]))
            if is_repeated:
                repeated.append(name)
    return repeated


def _contains_value(words: str, key: str, value: str) -> bool:
    """Return whether the value of a key is among the words."""
    if key in _PATH_KEYS and metadata.is_absolute(value):
        value = PureWindowsPath(value).name
    elif key == metadata.HEADER_PATH:
        titles = metadata.heading_titles({key: value})
        value = titles[-1] if titles else ""
    elif key == metadata.DATE and len(value) == _DAY_LENGTH:  # contexts contain no time of day
        in_words = dates.date_in_words(value) or value
        if _words(in_words) in words:
            return True
    return _words(value) in words


def _words(text: str) -> str:
    """Return the words of a text separated and surrounded by spaces, to search for whole words."""
    words = _WORD.findall(text.casefold())
    return " ".join(["", *words, ""])
