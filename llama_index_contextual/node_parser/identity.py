"""What documents and nodes are called, and where one stands that is itself a part: a chunk, or a page of a file."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llama_index.core.node_parser.node_utils import default_id_func
from llama_index.core.schema import MetadataMode, TextNode

from llama_index_contextual import metadata
from llama_index_contextual.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.schema import BaseNode, RelatedNodeInfo

_LONGEST_NUMBER: Final = 10  # digits of a page


def source_of(node: BaseNode) -> RelatedNodeInfo | None:
    """Return the document that a node was cut from; None for a document."""
    source = node.source_node
    return None if source is None or source.node_id == node.node_id else source


def identity_of(document: BaseNode, keys: Sequence[str] = ()) -> str:
    """Return what the ids of a document's chunks are made from: its own id, or some of its metadata.

    For a node that was cut from a document it is the document's id with the node's place there, or the node's own id
    where it names no place.

    Args:
        document: A document, or a node that is cut again.
        keys: Of the metadata that tell one document from all others, instead of its id. Not all of them must be there.

    Raises:
        SettingError: The metadata have none of the keys.
    """
    source = source_of(document)
    identity = str((source or document).node_id)
    if keys:
        values = [document.metadata.get(key) for key in keys]
        if all(value is None for value in values):
            raise SettingError(
                f"id_from={tuple(keys)!r}: the document {document.node_id!r} has none of these metadata keys. "
                "Cure: name keys that all documents have, or leave id_from out and give each document an id_"
            )
        identity = json.dumps(values, default=str)
    start, end = (getattr(document, name, None) for name in ("start_char_idx", "end_char_idx"))
    if source is None:
        return identity
    return str(document.node_id) if start is None else f"{identity}\0{start}-{end}"


def node_id_of(identity: str, chunk: str, ordinal: int) -> str:
    """Return the id of a chunk: a hash in the form of a UUID, which Qdrant insists on.

    Args:
        identity: Of its document.
        chunk: Its text.
        ordinal: How many chunks of the document with the same text stand before it.
    """
    content = f"{identity}\0{ordinal}\0{chunk}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"


def hash_id(i: int, doc: BaseNode) -> str:
    """Mark the default of a parser's ``id_func``: ids are made from each chunk's text, which no ``id_func`` is shown.

    Whoever calls it as a function gets what LlamaIndex's default gives.
    """
    return default_id_func(i, doc)


def given_id_func(id_func: Any) -> Callable[[int, BaseNode], str]:
    """Return the caller's function, or ours for LlamaIndex's default (random ids) and a name that ``from_dict`` reads.

    Raises:
        SettingError: It is the name of another function, which cannot be read back.
    """
    if id_func is None or id_func is default_id_func:
        return hash_id
    if callable(id_func):
        return id_func  # type: ignore[no-any-return]
    if isinstance(id_func, dict) and id_func.get("id_func_name") in {hash_id.__name__, default_id_func.__name__}:
        return hash_id
    raise SettingError(f"id_func={id_func!r} cannot be read back. Cure: pass the function again as id_func=")


class Origin(NamedTuple):
    """Where a node stands in its document: what a parser adds to the places that it finds inside the node.

    Attributes:
        offset: Where the node starts in its document.
        line: On which line, 1-based; 0 where nobody has said.
        headings: Titles of the headings that it stands under, outermost first.
        level: Level of the innermost of them, 0 for none or unknown.
    """

    offset: int = 0
    line: int = 1
    headings: tuple[str, ...] = ()
    level: int = 0

    def path(self, inner: Sequence[str]) -> tuple[str, ...]:
        """Return the headings of a chunk that has some of its own; a heading that both name stands there once."""
        outer = self.headings
        for shared in range(min(len(outer), len(inner)), 0, -1):
            if outer[-shared:] == tuple(inner[:shared]):
                return (*outer, *inner[shared:])
        return (*outer, *inner)


def origin_of(node: BaseNode) -> Origin:
    """Return where a node stands in the document that it was cut from: at the beginning, if it is a document.

    LlamaIndex's parsers write down at which character a chunk starts, but not on which line, and nothing can be read
    but its own text. So without a ``start_line`` the line is unknown, except at the beginning.
    """
    if source_of(node) is None:
        return Origin()
    headings = tuple(metadata.heading_titles(node.metadata))
    level = _positive(metadata.value_of(node.metadata, metadata.HEADING_LEVEL), 0)
    start = node.start_char_idx if isinstance(node, TextNode) else None
    end = node.end_char_idx if isinstance(node, TextNode) else None
    if start is None or end is None or end - start != len(node.get_content(metadata_mode=MetadataMode.NONE)):
        return Origin(headings=headings, level=level)  # changed since, or never placed
    line = _positive(metadata.value_of(node.metadata, metadata.START_LINE), 0 if start else 1)
    return Origin(start, line, headings, level)


def reading_order(documents: Sequence[BaseNode]) -> list[tuple[int, int | None]]:
    """Return the order in which documents are read, which matters for those that are pages of one file.

    Pages of one file have the same path and a ``page_label``. They are read by number, or in the order given where a
    label is no number. Where a label comes twice, there are two files of one path, and no page follows another.

    Returns:
        For each document its position, and the position of the page right before it, if that is given.
    """
    files: dict[str, dict[str, int]] = {}
    before: dict[int, int] = {}
    unclear = set()
    for position, document in enumerate(documents):
        path, label = metadata.path_of(document.metadata), document.metadata.get(metadata.PAGE_LABEL)
        if path and label is not None and source_of(document) is None:
            pages = files.setdefault(path, {})
            if str(label) in pages:
                unclear.add(path)
            pages[str(label)] = position
    for path, pages in files.items():
        if path in unclear:
            continue
        numbers = {label: int(label) for label in pages if label.isdecimal() and len(label) < _LONGEST_NUMBER}
        labels = sorted(numbers, key=numbers.__getitem__) if len(numbers) == len(pages) else list(pages)
        for label, following in pairwise(labels):
            if {label, following} - numbers.keys() or numbers[following] == numbers[label] + 1:
                before[pages[following]] = pages[label]
    order: dict[int, None] = {}
    for position in range(len(documents)):
        chain = [position]
        while chain[-1] in before and chain[-1] not in order:
            chain.append(before[chain[-1]])
        order.update(dict.fromkeys(reversed(chain)))
    return [(position, before.get(position)) for position in order]


def _positive(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and value > 0 else otherwise
