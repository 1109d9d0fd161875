"""A LlamaIndex node as a row of ``chunks``, and the node that such a row is."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from dataclasses import dataclass
from typing import Any, Final

from llama_index.core.schema import BaseNode, ImageNode, IndexNode, MetadataMode, Node, TextNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from llama_index_contextual.app.store.schema import DocumentRow, NodeRow
from llama_index_contextual.errors import DamagedError
from llama_index_contextual.metadata import CONTEXT_SOURCE, value_of
from llama_index_contextual.text import readable, storable

_CLASSES: Final[dict[str, type[BaseNode]]] = {"T": TextNode, "I": IndexNode, "P": ImageNode, "N": Node}
_LETTERS: Final = {cls: letter for letter, cls in _CLASSES.items()}
# Text that most nodes have, so that zlib writes it as a reference. A change needs another layout of the database.
_COMMON: Final = (
    b'"excluded_embed_metadata_keys":["heading_level","content_type","token_count","chunk_hash","start_line",'
    b'"end_line","(hidden by the context)","path","title","header_path","context_source","context_version"],'
    b'"excluded_llm_metadata_keys":["heading_level","content_type","token_count","chunk_hash",'
    b'"(hidden by the context)","title","context","context_source","context_version"],'
    b'"relationships":{"1":{"node_id":"","node_type":"4","hash":"","class_name":"RelatedNodeInfo"},'
    b'"2":{"node_id":"","node_type":"1","class_name":"RelatedNodeInfo"},'
    b'"3":{"node_id":"","node_type":"1","class_name":"RelatedNodeInfo"}},"start_char_idx":,"end_char_idx":}T'
)
_EMPTY: Final[tuple[Any, ...]] = (None, {}, [])
_PLAIN: Final = (str, int, bool, type(None))  # values of metadata that JSON gives back as they are
_NUL: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")  # in JSON, where a backslash may itself be escaped


@dataclass(slots=True)
class Chunk:
    """A node on its way into the database.

    Attributes:
        text: What is embedded of it: its text with its context. (A node as an object takes four times as much memory.)
        row: It as the database will have it, without a number.
        window: The texts that are embedded together with its own, and its place among them; None where it is embedded
            alone.
    """

    text: str
    row: NodeRow
    window: tuple[tuple[str, ...], int] | None = None

    @classmethod
    def of(cls, node: BaseNode) -> Chunk:
        """Return the chunk of a node."""
        text = text_of(node)
        return cls(text, row_of(node, text))

    @property
    def embed_hash(self) -> str:
        """Return the hash of its embedded text."""
        return self.row.embed_hash


Indexed = tuple[DocumentRow, list[Chunk]]  # a document as it is to be written


def row_of(node: BaseNode, embedded: str) -> NodeRow:
    """Return a node as the database keeps it, given what is embedded of it.

    NUL and lone surrogates become U+FFFD, and numbers that JSON lacks, such as infinity, become text.
    """
    if type(node) not in _LETTERS:  # what a vector store makes of a class that it does not know
        node = metadata_dict_to_node(node_to_metadata_dict(node, remove_text=True), text=node.get_content())
    text, left_out = node.get_content(metadata_mode=MetadataMode.NONE), {"embedding", "metadata"}
    if isinstance(node, TextNode):
        left_out.add("text")
    if isinstance(node, IndexNode):
        left_out.add("obj")  # it may be anything; a retriever finds it through object_map
    fields = node.model_dump(mode="json", exclude=left_out, exclude_defaults=True)
    fields.pop("class_name", None)
    node_id, ref_doc_id = storable(node.node_id)[0], node.ref_doc_id
    fields["id_"] = node_id
    for kind, related in fields.get("relationships", {}).items():
        fields["relationships"][kind] = [*map(_filled, related)] if isinstance(related, list) else _filled(related)
    content = _LETTERS[type(node)] + json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    packer = zlib.compressobj(6, zdict=_COMMON)
    return NodeRow(
        0,
        node_id,
        None if ref_doc_id is None else storable(ref_doc_id)[0],
        storable(text)[0],
        _metadata_of(node),
        packer.compress(content.encode("utf-8", "surrogatepass")) + packer.flush(),
        hashlib.sha256(embedded.encode("utf-8", "backslashreplace")).hexdigest()[:32],
        str(value_of(node.metadata, CONTEXT_SOURCE) or ""),
    )


def _metadata_of(node: BaseNode) -> dict[str, Any]:
    if all(type(key) is str and type(value) in _PLAIN for key, value in node.metadata.items()):
        values = ((storable(key)[0], value) for key, value in node.metadata.items())
        return {key: storable(value)[0] if isinstance(value, str) else value for key, value in values}
    content, _ = storable(json.dumps(node.metadata, default=str, ensure_ascii=False))
    if "\\u0000" in content:
        content = _NUL.sub("\\1\ufffd", content)
    metadata: dict[str, Any] = json.loads(content, parse_constant=str)
    return metadata


def to_node(row: NodeRow) -> BaseNode:
    """Return the node of a row, a new object each time.

    Raises:
        DamagedError: It is none that :func:`row_of` made.
    """
    try:
        unpacker = zlib.decompressobj(zdict=_COMMON)
        content = unpacker.decompress(row.rest).decode("utf-8", "surrogatepass")
        fields = {**json.loads(content[1:]), "metadata": dict(row.metadata)}
        cls = _CLASSES[content[0]]
        if issubclass(cls, TextNode):
            fields["text"] = row.text
        return cls.model_validate(fields)
    except (zlib.error, ValueError, TypeError, LookupError) as error:
        raise DamagedError(
            f"chunk {row.node_id!r} of the index is damaged ({type(error).__name__}). Cure: delete index.sqlite3, then "
            "llama-index-contextual index"
        ) from error


def _filled(related: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in related.items() if value not in _EMPTY}


def text_of(node: BaseNode) -> str:
    """Embedded text of a node: its text with its context."""
    return readable(node.get_content(metadata_mode=MetadataMode.EMBED))  # of nodes of other parsers, too
