"""The tables of an index, and their rows.

::

    state      what is true of the whole index: its identity, the number of its last change, its settings
    documents  what was read: path or id, hash, size and times, and why one failed
    nodes      text, metadata and place of each chunk; the id of a row is what engines call it
    vectors    by model and hash of the embedded text
    contexts   what a language model was paid for

A row of ``nodes`` never changes and its id is never used again: a chunk of which anything changed gets a new row. So
whoever derives something from the nodes compares two sets of numbers to know what is new and what is gone.

An *edition* is all of an index as one embedding model has it. While another model is to replace it, the next edition is
written beside it. Readers see the edition that ``state`` names.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import sqlalchemy as sa

from llama_index_contextual.errors import StorageError
from llama_index_contextual.identity import short_hash

if TYPE_CHECKING:
    import numpy.typing as npt

    Rows = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float32]

LAYOUT: Final = 1
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
    sa.Column("id", _NUMBER, primary_key=True),
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
    sqlite_autoincrement=True,
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
    """Refuse tables that a newer version of this package made, also while a process has them open.

    Args:
        layout: As the table ``state`` says it.
        name: Of the database.

    Raises:
        StorageError: A newer version made them.
    """
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
        rest: The other fields of the node, encoded; see :mod:`llama_index_contextual.index.nodes`.
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


def checksum_of(node_id: str, text: str, metadata: str, rest: bytes, embed_hash: str) -> int:
    """Return what tells that a node is as it was written; a SQLite file has no checksums of its own.

    Args:
        node_id: Its id.
        text: Its text.
        metadata: All of it, as JSON.
        rest: Its other fields.
        embed_hash: Of its embedded text.
    """
    words = f"{node_id}\0{text}\0{metadata}\0{embed_hash}"
    return zlib.crc32(rest, zlib.crc32(words.encode("utf-8", "surrogatepass")))


def node_of(row: int, *fields: Any) -> NodeRow:
    """Return a node that was read, given the values of :data:`NODE_COLUMNS`.

    Raises:
        ValueError: It is not as it was written.
    """
    *values, checksum = fields
    node = NodeRow(row, *values)
    if checksum_of_node(node) != checksum:
        raise ValueError(f"chunk {node.node_id!r} has another checksum")
    return node


def checksum_of_node(node: NodeRow) -> int:
    """Return what tells that a node is as it was written."""
    return checksum_of(node.node_id, node.text, json.dumps(node.metadata), node.rest, node.embed_hash)


def vector_of(blob: bytes, checksum: int) -> Floats | None:
    """Return a vector as it was written; None where it is not."""
    return np.frombuffer(blob, "<f4") if zlib.crc32(blob) == checksum else None


def vector_row(model: str, key: str, blob: bytes) -> dict[str, Any]:
    """Return the row of a vector, given the short name of its model, the hash of the text, and its bytes."""
    return {"model": model, "hash": key, "vector": blob, "checksum": zlib.crc32(blob)}


def name_of_model(model: str) -> str:
    """Return the short name under which a model's vectors are kept."""
    return short_hash(model)
