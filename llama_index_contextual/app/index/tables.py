"""The tables of an index, their rows, and nodes on their way into them and out of them.

::

    state      what is true of the whole index: its identity, the number of its last change, its settings
    documents  what was read: path or id, hash, size and times, and why one failed
    nodes      text, metadata and place of each chunk; the id of a row is what engines call it
    vectors    by model and hash of the embedded text
    contexts   what a language model was paid for

A row of ``nodes`` never changes: a chunk of which anything changed gets a new row. Its id is never used again: it is
larger than all before it, and than the time in nanoseconds, so that a copy of the database that was put back does not
use it either. So whoever derives something from the nodes compares two sets of numbers to know what is new and what is
gone.

An *edition* is all of an index as one embedding model has it. While another model is to replace it, the next edition is
written beside it. Readers see the edition that ``state`` names.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import sqlalchemy as sa
from llama_index.core.schema import BaseNode, ImageNode, IndexNode, MetadataMode, Node, TextNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from llama_index_contextual.errors import DamagedError, StorageError
from llama_index_contextual.metadata import CONTEXT_SOURCE, value_of
from llama_index_contextual.text import readable, short_hash, storable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Rows = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float32]

LAYOUT: Final = 3
AT_ONCE: Final = 500  # values of one statement: SQLite before 3.32 takes 999
PAGE: Final = 2000  # rows that are in memory together

TABLES: Final = sa.MetaData()
_NUMBER: Final = sa.BigInteger().with_variant(sa.Integer, "sqlite")
STATE: Final = sa.Table(
    "state", TABLES, sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.JSON, nullable=False)
)
DOCUMENTS: Final = sa.Table(
    "documents",
    TABLES,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("edition", sa.Integer, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("size", _NUMBER, nullable=False),
    sa.Column("stamp", sa.Text, nullable=False),
    sa.Column("made_with", sa.Text, nullable=False),
    sa.Column("nodes", sa.Integer, nullable=False),
    sa.Column("failed", sa.Text, nullable=False),
    sa.Column("failed_stamp", sa.Text, nullable=False),
    sa.UniqueConstraint("edition", "key"),
)
NODES: Final = sa.Table(
    "nodes",
    TABLES,
    sa.Column("id", _NUMBER, primary_key=True, autoincrement=False),
    sa.Column("edition", sa.Integer, nullable=False),
    sa.Column("document", _NUMBER, sa.ForeignKey(DOCUMENTS.c.id), nullable=False, index=True),
    sa.Column("node_id", sa.Text, nullable=False),
    sa.Column("ref_doc_id", sa.Text),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("metadata", sa.JSON, nullable=False),
    sa.Column("rest", sa.LargeBinary, nullable=False),
    sa.Column("embed_hash", sa.Text, nullable=False),
    sa.Column("context_source", sa.Text, nullable=False),
    sa.Column("checksum", _NUMBER, nullable=False),
    sa.UniqueConstraint("edition", "node_id"),
)
VECTORS: Final = sa.Table(
    "vectors",
    TABLES,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("vector", sa.LargeBinary, nullable=False),
    sa.Column("checksum", _NUMBER, nullable=False),
    sa.UniqueConstraint("hash", "model"),
)
CONTEXTS: Final = sa.Table(
    "contexts",
    TABLES,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("collection", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("value", sa.JSON, nullable=False),
    sa.UniqueConstraint("key", "collection"),
)


def check_layout(layout: Any, name: str) -> None:
    """Refuse tables of another layout, also while a process has them open.

    Args:
        layout: As the table ``state`` says it.
        name: Of the database.

    Raises:
        DamagedError: An earlier version of this package made them: a refresh makes them anew.
        StorageError: A newer version made them.
    """
    if isinstance(layout, int) and layout < LAYOUT:
        raise DamagedError(
            f"{name} is of an earlier layout. Cure: llama-index-contextual index FOLDER, which makes it anew: nothing "
            "is embedded or paid for twice. In PostgreSQL: another schema, #NAME."
        )
    if isinstance(layout, int) and layout > LAYOUT:
        raise StorageError(
            f"{name} has layout {layout}, this package reads up to {LAYOUT}. "
            "Cure: upgrade llama-index-contextual, then start this process again."
        )


class DocumentRow(NamedTuple):
    """One document as it was when it was indexed.

    Attributes:
        key: Path relative to the folder, or the id that the user set.
        kind: ``"file"`` or ``"document"``; a refresh of a folder deletes only files.
        sha256: Hash of its bytes (a file) or of its text and metadata (a document given by hand); "" where it is not
            known, so that the next refresh makes it again.
        size: In bytes.
        stamp: Size and times of the file when it was read; the same stamp means the same content, unread. Empty where
            the file was so new that it could have changed without another time.
        made_with: Hash of the parser and context settings that made its nodes; "" where it has never been indexed.
        nodes: How many nodes it has.
        failed: Why its content of today cannot be indexed; "" where it can.
        failed_stamp: Size and times of the file that failed.
    """

    key: str
    kind: str = "file"
    sha256: str = ""
    size: int = 0
    stamp: str = ""
    made_with: str = ""
    nodes: int = 0
    failed: str = ""
    failed_stamp: str = ""

    @property
    def is_indexed(self) -> bool:
        """Return whether it has been indexed; a file that failed at its first time has not."""
        return bool(self.made_with)


class NodeRow(NamedTuple):
    """One node as the database has it.

    Attributes:
        row: Its number; 0 before it is written.
        node_id: Its id.
        ref_doc_id: Id of the document that it was cut from.
        text: Its text.
        metadata: All of it.
        rest: The other fields of the node, as :func:`row_of` encodes them.
        embed_hash: Of its embedded text: equal hash, equal vector.
        context_source: What made its context, "" for none.
    """

    row: int
    node_id: str
    ref_doc_id: str | None
    text: str
    metadata: dict[str, Any]
    rest: bytes
    embed_hash: str
    context_source: str


NODE_COLUMNS: Final = (*(NODES.c[name if name != "row" else "id"] for name in NodeRow._fields), NODES.c.checksum)
DOCUMENT_COLUMNS: Final = tuple(DOCUMENTS.c[name] for name in DocumentRow._fields)


def checksum_of(node_id: str, text: str, metadata: str | dict[str, Any], rest: bytes, embed_hash: str) -> int:
    """Return what tells that a node is as it was written; a SQLite file has no checksums of its own.

    Args:
        node_id: Its id.
        text: Its text.
        metadata: All of it, perhaps as JSON.
        rest: Its other fields.
        embed_hash: Of its embedded text.
    """
    if not isinstance(metadata, str):
        metadata = json.dumps(metadata)
    words = f"{node_id}\0{text}\0{metadata}\0{embed_hash}"
    return zlib.crc32(rest, zlib.crc32(words.encode("utf-8", "surrogatepass")))


def node_of(*values: Any) -> NodeRow:
    """Return a node that was read, given the values of :data:`NODE_COLUMNS`, where metadata may be JSON.

    Raises:
        ValueError: It is not as it was written.
    """
    node = NodeRow(*values[:-1])
    metadata: Any = node.metadata
    if checksum_of(node.node_id, node.text, metadata, node.rest, node.embed_hash) != values[-1]:
        raise ValueError(f"chunk {node.node_id!r} has another checksum")
    return node._replace(metadata=json.loads(metadata)) if isinstance(metadata, str) else node


def vector_of(blob: bytes, checksum: int) -> Floats | None:
    """Return a vector as it was written; None where it is not."""
    return np.frombuffer(blob, "<f4") if zlib.crc32(blob) == checksum else None


def fault_of(vector: Sequence[float] | npt.NDArray[np.float32], dimensions: int = 0) -> str | None:
    """Return why a vector cannot be used, or None where it can.

    Args:
        vector: Of any length.
        dimensions: How long it should be; 0 where that is not known.
    """
    if not len(vector):
        return "it is empty"
    if dimensions and len(vector) != dimensions:
        return f"it has {len(vector)} dimensions instead of {dimensions}"
    with np.errstate(over="ignore"):
        values = np.asarray(vector, np.float32)  # as stores keep it
        square = float(values @ values)
    if not np.isfinite(values).all() or not np.isfinite(square):
        return "its numbers are too large or no numbers"
    return None if square > 0 else "all its numbers are 0"


def vector_row(model: str, key: str, blob: bytes) -> dict[str, Any]:
    """Return the row of a vector, given the short name of its model, the hash of the text, and its bytes."""
    return {"model": model, "hash": key, "vector": blob, "checksum": zlib.crc32(blob)}


def name_of_model(model: str) -> str:
    """Return the short name under which a model's vectors are kept."""
    return short_hash(model)


# Nodes

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
    """Return what is embedded of a node: the text with its context."""
    return readable(node.get_content(metadata_mode=MetadataMode.EMBED))  # of nodes of other parsers, too
