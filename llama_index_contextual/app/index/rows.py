"""The state, documents and nodes of an index as rows of ``index.sqlite3``."""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from llama_index_contextual.utils.errors import DocumentError
from llama_index_contextual.utils.metadata import CONTEXT_SOURCE, value_of
from llama_index_contextual.utils.text import storable

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode


MAX_FIELDS_BYTES: Final = 20_000_000  # of a node beside its text and metadata, such as a picture


class DocumentRow(NamedTuple):
    """One document as it was when it was indexed.

    Attributes:
        key: Path relative to the folder, or the id that the user set.
        kind: ``"file"`` or ``"document"``; a refresh of a folder deletes only files.
        sha256: Hash of its bytes (a file) or of its text and metadata (an object); "" where the
            next refresh makes it again.
        stamp: Size and times of the file when it was read; the same stamp means the same content,
            unread. Empty where the file was so new that it could have changed without another time.
        made_with: Hash of the parser and context settings that made its nodes; "" where it has
            never been indexed.
        nodes: How many nodes it has.
        failed: Why its content with this stamp cannot be indexed; "" where it can.
    """

    key: str
    kind: str = "file"
    sha256: str = ""
    stamp: str = ""
    made_with: str = ""
    nodes: int = 0
    failed: str = ""

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
        metadata: All of it, as JSON.
        fields: The other fields of the node, as :func:`row_of` encodes them.
        embed_hash: Of its embedded text: equal hash, equal vector.
        context_source: What made its context, "" for none.
    """

    row: int
    node_id: str
    ref_doc_id: str | None
    text: str
    metadata: str
    fields: bytes
    embed_hash: str
    context_source: str


class IndexState(BaseModel):
    """What is true of the whole index.

    Attributes:
        settings: Those that made it, as :attr:`IndexSettings.fingerprint` has them; empty before
            anything was indexed.
        inputs: Hash of all values that the settings were computed from; "" where some were Python
            objects.
        choices: Keys and values of ``contextual.toml`` that made it, for those who set no others.
        folders: The paths of the folders by name; the name of an only one is "".
        dimensions: The length of the vectors; 0 where chunks have none.
        change: Grows with every write, and is the highest number that a node ever had, or higher.
        identity: Tells it from all others.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, ser_json_inf_nan="constants"
    )

    settings: dict[str, Any] = {}
    inputs: str = ""
    choices: dict[str, Any] = {}
    folders: dict[str, Annotated[str, Field(pattern=r"^[^\x00]*$")]] = {}
    dimensions: int = 0
    change: int = 0
    identity: str = ""

    @property
    def model(self) -> str:
        """Return the identity of the embedding model; "" where nothing was indexed."""
        return str(self.settings.get("embedding.model", ""))

    @property
    def revision(self) -> tuple[str, int]:
        """Return the identity of the index, and the number of its last change."""
        return self.identity, self.change


def row_of(node: BaseNode, embedded: str) -> NodeRow:
    """Return the row of a node, without a number.

    In ids and texts NUL and lone surrogates become U+FFFD. Numbers that JSON lacks, such as
    infinity, become text.

    Args:
        node: The node. Of a class that is not LlamaIndex's it becomes one of that.
        embedded: Its embedded text.

    Raises:
        DocumentError: Its other fields are too large to be kept.
    """
    from llama_index.core.constants import DATA_KEY, TYPE_KEY
    from llama_index.core.schema import IndexNode, MetadataMode, TextNode

    node_id = storable(node.node_id)[0]
    ref_doc_id = node.ref_doc_id
    bare: dict[str, Any] = {"id_": node_id, "metadata": {}, "embedding": None}
    if isinstance(node, IndexNode):
        bare["obj"] = None  # it may be anything; a retriever has an object_map
    values = node.model_copy(update=bare).to_dict(exclude_defaults=True)
    if isinstance(node, TextNode):
        values["text"] = ""  # filled in by to_node
    fields = json.dumps({DATA_KEY: values, TYPE_KEY: node.get_type()}, default=str)
    if len(fields) > MAX_FIELDS_BYTES:
        raise DocumentError(
            f"the node {node_id!r} has more than {MAX_FIELDS_BYTES:,} bytes beside its text and "
            "metadata. Leave out what it need not carry, such as a picture."
        )
    metadata = json.loads(json.dumps(node.metadata, default=str), parse_constant=str)
    return NodeRow(
        0,
        node_id,
        None if ref_doc_id is None else storable(ref_doc_id)[0],
        storable(node.get_content(metadata_mode=MetadataMode.NONE))[0],
        json.dumps(metadata),
        zlib.compress(fields.encode(), 6),
        hashlib.sha256(embedded.encode("utf-8", "backslashreplace")).hexdigest()[:32],
        str(value_of(node.metadata, CONTEXT_SOURCE) or ""),
    )


def _decompressed(data: bytes) -> bytes:
    """Return the fields of a node, which a few bytes could say are gigabytes.

    Raises:
        ValueError: They are cut, or larger than any that is written.
    """
    decompressor = zlib.decompressobj()
    content = decompressor.decompress(data, MAX_FIELDS_BYTES)
    if not decompressor.eof:
        raise ValueError(f"a node's fields are cut, or have more than {MAX_FIELDS_BYTES:,} bytes")
    return content


def fields_of(row: NodeRow) -> dict[str, Any]:
    """Return the other fields of a node, with its class, as LlamaIndex writes them.

    Raises:
        ValueError: They are something else.
    """
    from llama_index.core.schema import ObjectType

    content: dict[str, Any] = json.loads(_decompressed(row.fields))
    if not isinstance(content["__data__"], dict):
        raise TypeError("a node's fields are not an object")
    ObjectType(content["__type__"])
    return content


def to_node(row: NodeRow) -> BaseNode:
    """Return the node of a row, a new object each time."""
    from llama_index.core.storage.docstore.utils import json_to_doc

    content = fields_of(row)
    fields = content["__data__"]
    fields["metadata"] = json.loads(row.metadata)
    if "text" in fields:
        fields["text"] = row.text
    return json_to_doc(content)
