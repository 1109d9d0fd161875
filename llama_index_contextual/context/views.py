"""Contexts in nodes, and what a node's views show beside them.

The EMBED view shows a context and everything that it showed before, except what the context
repeats: embedded twice, a path or a title would make the chunks of a document more alike. The LLM
view does not show the context.

The keys that a context hides stand in a node's excluded keys between two keys of this package that
are always hidden, ``context_source`` and ``context_version``. So another step may add keys before
or after, and :func:`remove_context` restores the lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PureWindowsPath
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.utils import dates, metadata

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

_PATH_KEYS: Final = (metadata.PATH, metadata.FILE_PATH, metadata.FILE_NAME)
_REPEATED_KEYS: Final = (*_PATH_KEYS, metadata.TITLE, metadata.HEADER_PATH, metadata.DATE)
_DAY_LENGTH: Final = len("2026-01-28")
_WORD: Final = re.compile(r"\w+")


def has_context(values: Mapping[str, Any]) -> bool:
    """Return whether this package wrote a context; a key ``context`` alone is somebody else's."""
    return all(
        metadata.key_in(values, key) in values
        for key in (metadata.CONTEXT_SOURCE, metadata.CONTEXT_VERSION)
    )


def write_context(node: BaseNode, text: str, source: str, version: str, lexical: str = "") -> None:
    """Write a context into a node in place of an earlier one; keys of the document stay.

    The views are set by :func:`set_views`.
    """
    remove_context(node)
    ours = {
        metadata.CONTEXT: text,
        metadata.CONTEXT_SOURCE: source,
        metadata.CONTEXT_VERSION: version,
        metadata.LEXICAL_CONTEXT: lexical,
    }
    values = node.metadata
    for key, value in ours.items():
        is_needed = value or key != metadata.LEXICAL_CONTEXT or key in values
        if is_needed:
            values[_new_name(values, key)] = value


def remove_context(node: BaseNode) -> None:
    """Remove a context that this package wrote, and restore what the views showed without it."""
    _reset_views(node)
    if has_context(node.metadata):
        for name in _names(node.metadata).values():
            node.metadata.pop(name, None)


def set_views(
    node: BaseNode, *, show_context_to_llm: bool = False, embed_metadata: bool = True
) -> None:
    """Let the EMBED view of a node show its context once, and the LLM view only if it is to.

    Args:
        node: Changed in place: its ``excluded_embed_metadata_keys`` and
            ``excluded_llm_metadata_keys``.
        show_context_to_llm: Whether the prompt of an answering model shows the context.
        embed_metadata: Whether the EMBED view shows anything but text and context.
    """
    _reset_views(node)
    if not has_context(node.metadata):
        return
    names = _names(node.metadata)
    context = str(node.metadata.get(names[metadata.CONTEXT]) or "")
    bookkeeping = [name for key, name in names.items() if key != metadata.CONTEXT or not context]

    if embed_metadata:
        repeated = _repeated_keys(node.metadata, context)
    else:
        repeated = [key for key in node.metadata if key != names[metadata.CONTEXT] or not context]
    _hide_from_embed(node, [*bookkeeping, *repeated])

    hidden = bookkeeping if show_context_to_llm else list(names.values())
    excluded = node.excluded_llm_metadata_keys
    node.excluded_llm_metadata_keys = [*excluded, *_missing(hidden, excluded, node.metadata)]


def hide_headings(node: BaseNode) -> None:
    """Do not embed the header path of a node without a context, if our parser wrote it."""
    _reset_views(node)
    name = metadata.key_in(node.metadata, metadata.HEADER_PATH)
    is_ours = metadata.value_of(node.metadata, metadata.HEADING_LEVEL) is not None
    if is_ours and name in node.metadata:
        _hide_from_embed(node, [name])


def _hide_from_embed(node: BaseNode, keys: Iterable[str]) -> None:
    """Exclude keys from what is embedded, between the two keys that are always excluded."""
    first, last = _delimiters(node.metadata)
    excluded = node.excluded_embed_metadata_keys
    added = [key for key in _missing(keys, excluded, node.metadata) if key not in (first, last)]
    node.excluded_embed_metadata_keys = [*excluded, first, *added, last]


def _reset_views(node: BaseNode) -> None:
    """Remove from the excluded keys what this package has added to them."""
    first, last = _delimiters(node.metadata)
    embed_keys = list(node.excluded_embed_metadata_keys)
    if first in embed_keys and last in embed_keys:
        del embed_keys[embed_keys.index(first) : embed_keys.index(last) + 1]
        node.excluded_embed_metadata_keys = embed_keys
    if has_context(node.metadata):
        ours = set(_names(node.metadata).values())
        llm_keys = node.excluded_llm_metadata_keys
        node.excluded_llm_metadata_keys = [key for key in llm_keys if key not in ours]


def _names(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the names that our keys have in metadata which hold a context."""
    keys = (
        metadata.CONTEXT,
        metadata.CONTEXT_SOURCE,
        metadata.CONTEXT_VERSION,
        metadata.LEXICAL_CONTEXT,
    )
    return {key: metadata.key_in(values, key) for key in keys}


def _new_name(values: Mapping[str, Any], key: str) -> str:
    """Return the name that one of our keys gets in metadata without a context."""
    return metadata.prefixed_key(key) if key in values else key


def _delimiters(values: Mapping[str, Any]) -> tuple[str, str]:
    """Return the two keys between which the hidden ones stand."""
    name_of = metadata.key_in if has_context(values) else _new_name
    return (
        name_of(values, metadata.CONTEXT_SOURCE),
        name_of(values, metadata.CONTEXT_VERSION),
    )


def _missing(keys: Iterable[str], excluded: Iterable[str], values: Mapping[str, Any]) -> list[str]:
    """Return the keys that metadata hold and that are not excluded yet."""
    return [key for key in dict.fromkeys(keys) if key in values and key not in excluded]


def _repeated_keys(values: Mapping[str, Any], context: str) -> list[str]:
    """Return the keys whose value a context repeats."""
    lexical = str(metadata.value_of(values, metadata.LEXICAL_CONTEXT) or "")
    embedded_words = _words(context)
    searched_words = _words(f"{context} {lexical}")
    if not searched_words.strip():
        return []
    keys = []
    for key in _REPEATED_KEYS:
        for name in (key, metadata.prefixed_key(key)):
            text = str(values.get(name, ""))[: metadata.MOST_VALUE]
            words = searched_words if key in _PATH_KEYS else embedded_words
            if name in values and any(_words(form) in words for form in _forms(key, text)):
                keys.append(name)
    return keys


def _forms(key: str, text: str) -> list[str]:
    """Return the forms of a value in which a context may repeat it."""
    if key in _PATH_KEYS:
        return [PureWindowsPath(text).name if metadata.is_absolute(text) else text]
    if key == metadata.HEADER_PATH:
        titles = metadata.heading_titles({metadata.HEADER_PATH: text})
        return titles[-1:] or [""]
    if (
        key == metadata.DATE and len(text) == _DAY_LENGTH
    ):  # no time of day, which contexts do not say
        return [text, dates.date_in_words(text) or text]
    return [text]


def _words(text: str) -> str:
    """Return the words of a text between blanks, so that whole words are found."""
    return " ".join(["", *_WORD.findall(text.casefold()), ""])
