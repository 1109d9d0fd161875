"""Contexts in nodes, and what the EMBED and LLM views of a node show: its context, less what that repeats."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PureWindowsPath
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.utils import metadata as names
from llama_index_contextual.utils.dates import date_in_words

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

_ABOUT_CONTEXTS: Final = (names.CONTEXT_SOURCE, names.CONTEXT_VERSION, names.LEXICAL_CONTEXT)
# What contexts repeat, where they do. Embedded twice, it would make the chunks of a document more alike.
_PATHS: Final = (names.PATH, names.FILE_PATH, names.FILE_NAME)
_REPEATED: Final = (*_PATHS, names.TITLE, names.HEADER_PATH, names.DATE)
EVERY_KEY: Final = "*"  # among leave_out_keys: EMBED shows the context and nothing else

# In a node's lists of excluded keys, around those that a context hides: other steps add theirs before or after.
_HIDES: Final = "(hidden by the context:)"
_END: Final = "(end)"
_EMBED: Final = "excluded_embed_metadata_keys"
_LLM: Final = "excluded_llm_metadata_keys"
_WORD: Final = re.compile(r"\w+")


def has_context(metadata: Mapping[str, Any]) -> bool:
    """Whether this package has written a context here; a ``context`` alone is somebody else's."""
    return all(
        names.key_in(metadata, key) in metadata
        for key in (names.CONTEXT_SOURCE, names.CONTEXT_VERSION)
    )


def put_context(
    metadata: dict[str, Any], text: str, source: str, version: str, lexical: str = ""
) -> None:
    """Write a context in place of an earlier one of ours; keys of somebody else stay, and ours have names beside."""
    drop_context(metadata)
    for key, value in zip(
        (names.CONTEXT, *_ABOUT_CONTEXTS), (text, source, version, lexical), strict=True
    ):
        if value or key != names.LEXICAL_CONTEXT or key in metadata:
            metadata[names.prefixed_key(key) if key in metadata else key] = value


def drop_context(metadata: dict[str, Any]) -> None:
    """Take a context of ours out; a ``context`` of somebody else stays."""
    for key in (names.CONTEXT, *_ABOUT_CONTEXTS) if has_context(metadata) else ():
        metadata.pop(names.key_in(metadata, key), None)


def set_views(
    node: BaseNode, *, show_context_to_llm: bool = False, leave_out_keys: Sequence[str] = ()
) -> None:
    """Let EMBED show the context and what it showed before, less what the context repeats; hide the context from LLM.

    Path, file name, title, header path and date are left out of EMBED where the context says them, and the first two
    also where the keyword arm alone reads them. What is excluded anyway stays so. :func:`reset_views` undoes it.

    Args:
        node: Changed in place: its ``excluded_embed_metadata_keys`` and ``excluded_llm_metadata_keys``.
        show_context_to_llm: Whether the prompt of an answering LLM shows the context too.
        leave_out_keys: More keys that EMBED does not show, also those that a later step writes. ``"*"`` is all that are
            there but the context.
    """
    reset_views(node)
    metadata, ours = (
        node.metadata,
        (names.CONTEXT, *_ABOUT_CONTEXTS) if has_context(node.metadata) else (),
    )
    context, lexical = (
        str(names.value_of(metadata, key) or "") if ours else ""
        for key in (names.CONTEXT, names.LEXICAL_CONTEXT)
    )
    shown = [names.key_in(metadata, names.CONTEXT)] if context else []
    about = [name for name in (names.key_in(metadata, key) for key in ours) if name not in shown]
    embedded, read = (
        _words(context),
        _words(f"{context} {lexical}"),
    )  # by vectors and keywords, by keywords
    hidden = [
        name
        for name in (*_REPEATED, *map(names.prefixed_key, _REPEATED))
        if name in metadata and read.strip() and _is_repeated(name, metadata[name], embedded, read)
    ]
    hidden += [key for key in metadata if EVERY_KEY in leave_out_keys and key not in shown]
    left_out = [*about, *hidden, *leave_out_keys]
    for name, keys in (
        (_EMBED, left_out),
        (_LLM, [*about, *([] if show_context_to_llm else shown)]),
    ):
        excluded = getattr(node, name)
        known = (key for key in dict.fromkeys(keys) if key in metadata or key in leave_out_keys)
        added = [key for key in known if key not in excluded and key != EVERY_KEY]
        setattr(node, name, [*excluded, _HIDES, *added, _END] if added else excluded)


def headings_of_ours(metadata: Mapping[str, Any]) -> list[str]:
    """The key of the header path that our parser wrote; none where there is none, or another parser's."""
    name = names.key_in(metadata, names.HEADER_PATH)
    return (
        [name]
        if name in metadata and names.value_of(metadata, names.HEADING_LEVEL) is not None
        else []
    )


def reset_views(node: BaseNode) -> None:
    """Let EMBED and LLM show what they did before :func:`set_views`."""
    for name in (_EMBED, _LLM):
        keys = list(getattr(node, name))
        if _HIDES in keys:
            del keys[keys.index(_HIDES) : keys.index(_END) + 1]
        setattr(node, name, keys)


def _is_repeated(name: str, value: Any, embedded: str, read: str) -> bool:
    """Whether a context's words hold a value: of an absolute path the file, of headings the chunk's own."""
    text, key = str(value)[: names.MOST_VALUE], name.removeprefix(names.prefixed_key(""))
    if key in _PATHS:
        return _words(PureWindowsPath(text).name if names.is_absolute(text) else text) in read
    if key == names.HEADER_PATH:
        text = (names.heading_titles({names.HEADER_PATH: text}) or [""])[-1]
    is_day = key == names.DATE and len(text) == len("2026-01-28")  # a context has no time of day
    return _words(text) in embedded or (is_day and _words(date_in_words(text) or text) in embedded)


def _words(text: str) -> str:
    """A text's words between spaces, so that one text is found in another by whole words."""
    return " ".join(["", *_WORD.findall(text.casefold()), ""])
