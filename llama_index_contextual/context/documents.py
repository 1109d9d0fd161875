"""Group chunks by document, and find a text of each document that matches its chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from llama_index.core.schema import BaseNode, MetadataMode, TextNode

from llama_index_contextual.context.base import DocumentChunks, SourceDocument
from llama_index_contextual.utils import metadata

if TYPE_CHECKING:
    from llama_index.core.storage.docstore import BaseDocumentStore

# The date is not included, because it can belong to a section only.
_SHARED_KEYS = (metadata.PATH, metadata.TITLE, metadata.TAGS, metadata.DESCRIPTION)
_LARGEST_GAP = 10_000_000  # characters; a wrong offset must not cost gigabytes
_NO_OFFSET = -1


def group_by_document(
    nodes: Sequence[BaseNode],
    *,
    documents: Iterable[BaseNode] | None = None,
    docstore: BaseDocumentStore | None = None,
    root: str | None = None,
) -> list[DocumentChunks]:
    """Group nodes by their documents, in the order in which the documents first appear.

    Args:
        nodes: Nodes in any order. The chunks of a document are sorted by their offsets, if they
            have any.
        documents: The whole documents. They are looked up by id, then by path.
        docstore: A LlamaIndex docstore. A pipeline updates it *after* its transformations, so its
            text can be outdated. It is used only if it contains every chunk.
        root: The folder that absolute paths are shown relative to. See `metadata.display_path`.
    """
    chunks_by_id: dict[str, list[BaseNode]] = {}
    for node in nodes:
        document_id = node.ref_doc_id or metadata.path_of(node.metadata) or node.node_id
        chunks_by_id.setdefault(document_id, []).append(node)

    whole_documents = _by_id_and_path(documents or ())
    groups: list[DocumentChunks] = []
    for document_id, chunks in chunks_by_id.items():
        path = metadata.path_of(chunks[0].metadata)
        original = whole_documents.get(document_id) or whole_documents.get(path)
        stored = None
        if docstore is not None:
            stored = docstore.get_document(document_id, raise_error=False)
        groups.append(_group(document_id, chunks, original, stored, root))
    return groups


def _by_id_and_path(documents: Iterable[BaseNode]) -> dict[str, BaseNode]:
    """Return documents by id, and the first document of each path by path."""
    known: dict[str, BaseNode] = {}
    for document in documents:
        path = metadata.path_of(document.metadata)
        if path:
            known.setdefault(path, document)
        known[document.node_id] = document
    return known


def _group(
    document_id: str,
    nodes: Sequence[BaseNode],
    original: BaseNode | None,
    stored: BaseNode | None,
    root: str | None,
) -> DocumentChunks:
    """Return the chunks of a document with the text that fits them best.

    The text is that of ``original``, or else of ``stored``, if it contains every chunk. Otherwise
    the chunks are joined.
    """
    chunks, text = _joined(nodes)
    for document in (original, stored):
        if document and _contains(text_of(document), chunks):
            text = text_of(document)
            break
    first_chunk = chunks[0].metadata
    shared, _ = metadata.bounded(original.metadata if original else {})
    for key in _SHARED_KEYS:
        if key in first_chunk:
            shared[key] = first_chunk[key]
    path = metadata.display_path({**first_chunk, **shared}, root)
    source = SourceDocument(document_id, path, text, MappingProxyType(shared))
    return DocumentChunks(source, tuple(chunks))


def _contains(text: str, chunks: Sequence[BaseNode]) -> bool:
    """Return whether a document contains every chunk. An edited document does not."""
    for chunk in chunks:
        content = text_of(chunk)
        start = max(0, start_of(chunk))
        if not text.startswith(content, start) and content not in text:
            return False
    return True


def _joined(nodes: Sequence[BaseNode]) -> tuple[Sequence[BaseNode], str]:
    """Return the chunks of a document in document order, and their joined text.

    Each chunk is placed at its offset. Gaps between chunks are filled with line breaks. If
    overlapping chunks disagree, their offsets cannot be trusted, as when one parser split the
    chunks of another. The chunks then keep their order and are joined with blank lines.
    """
    chunks = sorted(nodes, key=start_of)
    parts: list[str] = []
    end = 0
    previous = ""
    previous_start = 0
    for chunk in chunks:
        start = start_of(chunk)
        content = text_of(chunk)
        overlap = previous[start - previous_start :]
        agrees = overlap[: len(content)] == content[: len(overlap)]
        is_near = previous_start <= start <= end + _LARGEST_GAP
        if not agrees or not is_near:
            distinct_texts = dict.fromkeys(map(text_of, nodes))
            return nodes, "\n\n".join(distinct_texts)
        parts.append("\n" * (start - end))
        parts.append(content[max(0, end - start) :])
        end = max(end, start + len(content))
        previous = content
        previous_start = start
    return chunks, "".join(parts)


def text_of(node: BaseNode) -> str:
    """Return the text of a node without its metadata."""
    return node.get_content(metadata_mode=MetadataMode.NONE)


def start_of(node: BaseNode) -> int:
    """Return the offset of a node in its document, or -1 if it has none."""
    if not isinstance(node, TextNode) or node.start_char_idx is None:
        return _NO_OFFSET
    return node.start_char_idx


def position(node: BaseNode, document: SourceDocument) -> tuple[int, int]:
    """Return the start and end of a chunk in its document's text, or (0, 0) if it is not there."""
    text = text_of(node)
    start = start_of(node)
    if start < 0 or not document.text.startswith(text, start):
        start = document.text.find(text)
    if start < 0:
        return 0, 0
    return start, start + len(text)
