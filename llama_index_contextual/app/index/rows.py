"""The state, documents and nodes of an index as rows of ``index.sqlite3``."""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from llama_index_contextual.utils.errors import DocumentError
from llama_index_contextual.utils.metadata import CONTEXT_SOURCE, value_of
from llama_index_contextual.utils.text import storable

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode


MAX_FIELDS_BYTES = 20_000_000  # of a node besides its text and metadata, such as a picture


class DocumentRow(NamedTuple):
    """One document as it was when it was indexed.

    Attributes:
        key: The path relative to the folder, or the id that the user set.
        kind: ``"file"`` or ``"document"``. A refresh of a folder deletes only files.
        sha256: The hash of the bytes of a file, or of the text and metadata of an object. "" means
            that the next refresh indexes the document again.
        stamp: The size and times of the file when it was read. A file with the same stamp has the
            same content. "" means that the file was too new for that: it could still change within
            the resolution of its times.
        made_with: The hash of the parser and context settings that made its nodes; "" if it has
            never been indexed.
        nodes: The number of its nodes.
        failed: Why its content with this stamp cannot be indexed; "" if it can.
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
        """Return whether the document has ever been indexed, even if it fails now."""
        return bool(self.made_with)


class NodeRow(NamedTuple):
    """One node as a row of ``chunks``.

    Attributes:
        row: The row number; 0 before the node is written.
        node_id: The id.
        ref_doc_id: The id of the document that the node is a part of.
        text: The text.
        metadata: All metadata, as JSON.
        fields: All other fields, as :func:`row_of` encodes them.
        embed_hash: The hash of the embedded text. Nodes with the same hash have the same vector.
        context_source: The generator that made the context; "" if there is none.
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
    """The state of the whole index.

    Attributes:
        settings: The :attr:`IndexSettings.fingerprint` that it was made with; empty before anything
            is indexed.
        inputs: The hash of all values that ``settings`` were computed from; "" if some of them were
            Python objects.
        choices: The settings by key that it was made with. They apply unless others are set.
        folders: The paths of the folders by name. The name of a single folder is "".
        dimensions: The length of the vectors; 0 if chunks have none.
        change: A number that grows with every write. No row number has ever been higher.
        identity: A random id, unique to this index.
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
        """Return the identity of the embedding model; "" if nothing is indexed."""
        return str(self.settings.get("embedding.model", ""))

    @property
    def revision(self) -> tuple[str, int]:
        """Return the identity of the index, and the number of its last change."""
        return self.identity, self.change


def row_of(node: BaseNode, embedded: str) -> NodeRow:
    """Return the row of a node, with the row number 0.

    NUL and lone surrogates in ids and texts become U+FFFD. Numbers that JSON lacks, such as
    infinity, become text.

    Args:
        node: The node. If its class is not LlamaIndex's, it is read back as a LlamaIndex class.
        embedded: The text of the node that is embedded.

    Raises:
        DocumentError: The other fields of the node are too large.
    """
    from llama_index.core.constants import DATA_KEY, TYPE_KEY
    from llama_index.core.schema import IndexNode, MetadataMode, TextNode

    node_id = storable(node.node_id)[0]
    ref_doc_id = node.ref_doc_id
    bare: dict[str, Any] = {"id_": node_id, "metadata": {}, "embedding": None}
    if isinstance(node, IndexNode):
        bare["obj"] = None  # any object; a retriever finds it in its object_map
    values = node.model_copy(update=bare).to_dict(exclude_defaults=True)
    if isinstance(node, TextNode):
        values["text"] = ""  # to_node fills it in
    fields = json.dumps({DATA_KEY: values, TYPE_KEY: node.get_type()}, default=str)
    if len(fields) > MAX_FIELDS_BYTES:
        raise DocumentError(
            f"the node {node_id!r} has more than {MAX_FIELDS_BYTES:,} bytes besides its text and "
            "metadata. Remove large fields, such as a picture."
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
    """Return the decompressed fields of a node, within a limit: a few bytes could become gigabytes.

    Raises:
        ValueError: The data are truncated, or larger than :func:`row_of` writes.
    """
    decompressor = zlib.decompressobj()
    content = decompressor.decompress(data, MAX_FIELDS_BYTES)
    if not decompressor.eof:
        raise ValueError(f"a node's fields are truncated, or exceed {MAX_FIELDS_BYTES:,} bytes")
    return content


def fields_of(row: NodeRow) -> dict[str, Any]:
    """Return the other fields of a node and its class, as LlamaIndex's ``doc_to_json`` does.

    Raises:
        ValueError: The data are not such fields.
    """
    from llama_index.core.schema import ObjectType

    content: dict[str, Any] = json.loads(_decompressed(row.fields))
    if not isinstance(content["__data__"], dict):
        raise TypeError("a node's fields are not an object")
    ObjectType(content["__type__"])
    return content


def to_node(row: NodeRow) -> BaseNode:
    """Return a new node object from its row."""
    from llama_index.core.storage.docstore.utils import json_to_doc

    content = fields_of(row)
    fields = content["__data__"]
    fields["metadata"] = json.loads(row.metadata)
    if "text" in fields:
        fields["text"] = row.text
    return json_to_doc(content)
