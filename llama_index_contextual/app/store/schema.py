"""Tables of the two files of an index, what a row of them is, and how a node becomes one.

A row of ``chunks`` never changes: a chunk of which anything changed gets a new row. Its number is never used again: it
is larger than all before it, and than the time in nanoseconds, so that a copy of the file that was put back does not
use it either. So whoever derives something from the chunks compares two sets of numbers.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NamedTuple

import numpy as np
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError

from llama_index_contextual.errors import DamagedError, StorageError
from llama_index_contextual.text import short_hash

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    Rows = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float32]

LAYOUT: Final = 1
INDEX_TABLES: Final = """
CREATE TABLE state (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE documents (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, sha256 TEXT NOT NULL, size INTEGER NOT NULL,
    stamp TEXT NOT NULL, made_with TEXT NOT NULL, nodes INTEGER NOT NULL, failed TEXT NOT NULL,
    failed_stamp TEXT NOT NULL
);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, document INTEGER NOT NULL REFERENCES documents, node_id TEXT NOT NULL UNIQUE,
    ref_doc_id TEXT, text TEXT NOT NULL, metadata TEXT NOT NULL, rest BLOB NOT NULL, embed_hash TEXT NOT NULL,
    context_source TEXT NOT NULL, checksum INTEGER NOT NULL
);
CREATE INDEX chunks_of_document ON chunks (document);
"""
PAID_TABLES: Final = """
CREATE TABLE vectors (
    id INTEGER PRIMARY KEY, model TEXT NOT NULL, hash TEXT NOT NULL, vector BLOB NOT NULL, checksum INTEGER NOT NULL,
    UNIQUE (hash, model)
);
CREATE TABLE kept (
    collection TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (collection, key)
) WITHOUT ROWID;
"""


def check_layout(layout: Any, name: str) -> None:
    """Refuse tables of another layout, also while a process has them open.

    Args:
        layout: As the table ``state`` names it.
        name: Of the file.

    Raises:
        DamagedError: Of an earlier one: a refresh builds the file again.
        StorageError: A newer version of this package made them.
    """
    if isinstance(layout, int) and layout > LAYOUT:
        raise StorageError(
            f"{name} has layout {layout}, this package reads up to {LAYOUT}. "
            "Cure: upgrade llama-index-contextual, then start this process again."
        )
    if layout != LAYOUT:
        raise DamagedError(
            f"{name} is of another layout. Cure: llama-index-contextual index FOLDER, which makes it anew."
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
    """One node as a row of ``chunks``.

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


CHUNK_COLUMNS: Final = "id, node_id, ref_doc_id, text, metadata, rest, embed_hash, context_source, checksum"
DOCUMENT_COLUMNS: Final = ", ".join(DocumentRow._fields)


def checksum_of(node_id: str, text: str, metadata: str | dict[str, Any], rest: bytes, embed_hash: str) -> int:
    """Checksum of a node's row; a SQLite file has none of its own.

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


def chunk_row(values: Sequence[Any]) -> NodeRow:
    """Row of a chunk, given the values of :data:`CHUNK_COLUMNS`.

    Raises:
        ValueError: It is not as it was written.
    """
    row = NodeRow(*values[:-1])
    metadata: Any = row.metadata
    if checksum_of(row.node_id, row.text, metadata, row.rest, row.embed_hash) != values[-1]:
        raise ValueError(f"chunk {row.node_id!r} has another checksum")
    return row._replace(metadata=json.loads(metadata))


def vector_of(blob: bytes, checksum: int) -> Floats | None:
    """Vector as it was written; None where it is not."""
    return np.frombuffer(blob, "<f4") if zlib.crc32(blob) == checksum else None


def vector_problem(vector: Sequence[float] | npt.NDArray[np.float32], dimensions: int = 0) -> str | None:
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


def short_name_of_model(model: str) -> str:
    """Short name under which a model's vectors are kept."""
    return short_hash(model)


# What is true of the whole index


def _names_its_model(fingerprint: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Refuse settings that do not say whose vectors an index holds: they are damaged."""
    if fingerprint.get("embedding") and "model" not in fingerprint["embedding"]:
        raise ValueError("the embedding has no model")
    return fingerprint


def _names_its_folders(choices: dict[str, Any]) -> dict[str, Any]:
    """Refuse several folders that are no folders; other values are checked where they are used."""
    folders = choices.get("collections", {})
    if not isinstance(folders, dict) or not all(isinstance(one, dict) for one in folders.values()):
        raise ValueError("its folders are none")
    return choices


@dataclass(frozen=True, slots=True)
class IndexState:
    """What is true of the whole index.

    Attributes:
        settings: By section, as :attr:`IndexSettings.fingerprint` has them; empty before anything was indexed.
        choices: The settings that were asked for, by their keys in ``contextual.toml``, so that they are said once.
        objects: What was an object in Python, by its argument, and its class; who does not give it again cannot write.
        folder: Of the documents.
        complete: False while a refresh is at work or was killed.
        change: Grows with every write, and is the highest number that a node ever had, or higher.
        identity: Tells it from all others.
        layout: Version of the tables.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    settings: Annotated[dict[str, dict[str, Any]], AfterValidator(_names_its_model)] = field(default_factory=dict)
    choices: Annotated[dict[str, Any], AfterValidator(_names_its_folders)] = field(default_factory=dict)
    objects: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    complete: bool = True
    change: int = 0
    identity: str = ""
    layout: int = LAYOUT

    @property
    def model(self) -> str:
        """Return the identity of the embedding model; "" where nothing was indexed."""
        return str((self.settings.get("embedding") or {}).get("model", ""))

    def written(self) -> dict[str, Any]:
        """Values that a writer writes; the others are counted by the database."""
        return {name: getattr(self, name) for name in ("settings", "choices", "objects", "folder", "layout")}


ALWAYS: Final = {"layout", "identity", "change"}  # of an index from its beginning
_STATE: Final = TypeAdapter(IndexState)


def state_of(values: Mapping[str, Any]) -> IndexState:
    """Return the state that a database holds, given its table ``state``.

    Raises:
        ValueError: It makes no sense.
        TypeError: It is no JSON.
        RecursionError: It is nested too deeply.
    """
    try:
        return _STATE.validate_json(json.dumps(dict(values)))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, fault["loc"]))
        raise ValueError(f"{place}{': ' * bool(place)}{fault['msg']}") from error
