"""Nodes as bytes, compressed, and the file that keeps them: it only grows, one entry after the other."""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import BaseNode, Document, ImageNode, IndexNode, Node, TextNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from llama_index_contextual.keyword.filters import REF_DOC_ID

if TYPE_CHECKING:
    from collections.abc import Iterator

Record = bytes | memoryview

_ENTRY: Final = struct.Struct("<qII")  # of an entry: its row, and the bytes of the node's id and of the node
# As metadata_dict_to_node reads them; a node of another class becomes one of the nearest of these that it derives from.
_CLASSES: Final[dict[bytes, type[BaseNode]]] = {
    b"N": Node,
    b"I": IndexNode,
    b"P": ImageNode,
    b"T": TextNode,
}
# Text that most records hold, so that zlib writes it as a reference. A change needs a new disk.FORMAT.
_COMMON: Final = (
    b'"continues":"","overflow":true,"date":"20","date_ts":17,"tags":"","description":"","context":"Document: '
    b'"excluded_embed_metadata_keys":["heading_level","content_type","token_count","chunk_hash","start_line",'
    b'"end_line","(hidden by the context)","path","title","header_path","context_source","context_version"],'
    b'"excluded_llm_metadata_keys":["heading_level","content_type","token_count","chunk_hash",'
    b'"(hidden by the context)","title","context","context_source","context_version"],'
    b'"relationships":{"1":{"node_id":"","node_type":"4",'
    b'"metadata":{},"hash":"","class_name":"RelatedNodeInfo"},"2":{"node_id":"","node_type":"1","metadata":{},'
    b'"hash":null,"class_name":"RelatedNodeInfo"},"3":{"node_id":"'
    b'","node_type":"1","metadata":{},"hash":null,"class_name":"RelatedNodeInfo"}},'
    b'"metadata_template":"{key}: {value}","metadata_separator":"\\n","text":" the , and to of in a is for '
    b'","mimetype":"text/plain","start_char_idx":,"end_char_idx":,"text_template":"{metadata_str}\\n\\n{content}",'
    b'"class_name":"TextNode"}{"id_":"","metadata":{"path":".md","title":"","header_path":" > ","heading_level":2,'
    b'"start_line":1,"end_line":2,"content_type":"text","token_count":1,"chunk_hash":"","context_source":"headings",'
    b'"context_version":"'
)
_LETTERS: Final = {cls: letter for letter, cls in _CLASSES.items()}


def encode(node: BaseNode) -> bytes:
    """Write a node without its embedding as bytes; the first byte names its class."""
    letter = next((_LETTERS[one] for one in type(node).__mro__ if one in _LETTERS), None)
    if letter is None or (isinstance(node, Document) and not _has_media(node)):  # what a vector store makes of it
        bare = node.model_copy(update={"embedding": None})
        node = metadata_dict_to_node(node_to_metadata_dict(bare, remove_text=True), text=node.get_content())
        letter = _LETTERS[type(node)]
    if isinstance(node, IndexNode):
        # Its object may be anything; a retriever finds it through object_map.
        node = node.model_copy(update={"obj": None})
    text = node.model_dump_json(exclude={"embedding"}).encode("utf-8", "surrogatepass")
    packer = zlib.compressobj(1, zdict=_COMMON)
    return letter + packer.compress(text) + packer.flush()


def _has_media(node: Node) -> bool:
    return any((node.image_resource, node.audio_resource, node.video_resource))


def decode(record: Record) -> BaseNode:
    """Return the node that :func:`encode` was given, a new object each time."""
    return _CLASSES[bytes(record[:1])].model_validate_json(_unpacked(record))


def metadata_of(record: Record) -> dict[str, Any]:
    """Return a node's metadata and, as :data:`REF_DOC_ID`, its document's id; three times as fast as :func:`decode`."""
    fields = json.loads(_unpacked(record).decode("utf-8", "surrogatepass"))
    source = fields["relationships"].get("1")
    return {REF_DOC_ID: source["node_id"] if isinstance(source, dict) else None, **fields["metadata"]}


def _unpacked(record: Record) -> bytes:
    return zlib.decompressobj(zdict=_COMMON).decompress(record[1:])


def entry_of(row: int, node_id: str, record: Record) -> bytes:
    """Return an entry of the file of nodes."""
    name = node_id.encode("utf-8", "surrogatepass")
    return b"".join([_ENTRY.pack(row, len(name), len(record)), name, record])


def entries_in(file: memoryview) -> Iterator[tuple[int, str, memoryview]]:
    """Give row, node id and node of each entry of a file.

    Raises:
        ValueError: The file is cut.
    """
    start = 0
    while start < len(file):
        if start + _ENTRY.size > len(file):
            raise ValueError("the file of nodes is cut")
        row, letters, size = _ENTRY.unpack_from(file, start)
        start += _ENTRY.size
        if start + letters + size > len(file):
            raise ValueError("the file of nodes is cut")
        name = str(file[start : start + letters], "utf-8", "surrogatepass")
        yield row, name, file[start + letters : (start := start + letters + size)]
