"""Group nodes by the document that they were cut from, and find a text of it that is not outdated."""

from __future__ import annotations

from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import MetadataMode, TextNode

from llama_index_contextual.context.base import DocumentChunks, SourceDocument
from llama_index_contextual.metadata import DESCRIPTION, PATH, TAGS, TITLE, bounded, display_path, path_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_index.core.schema import BaseNode
    from llama_index.core.storage.docstore import BaseDocumentStore

_MAX_GAP: Final = 64  # characters between two slices that can only have been blank lines, rules or stripped space
_MAX_PADDED: Final = 10_000_000  # characters: a wrong offset must not cost gigabytes
_SHARED: Final = (PATH, TITLE, TAGS, DESCRIPTION)  # not the day, which may be that of a section


def group_by_document(
    nodes: Sequence[BaseNode],
    *,
    documents: Iterable[BaseNode] | None = None,
    docstore: BaseDocumentStore | None = None,
    root: str | None = None,
) -> list[DocumentChunks]:
    """Group nodes by the document they were cut from.

    Args:
        nodes: In any order; those of one document are put in its order where their offsets say it.
        documents: Whole documents, found by id, else by path.
        docstore: Where LlamaIndex keeps documents. A pipeline writes it *after* its transformations, so what it holds
            may be an older text: it is used only where every chunk is found in it.
        root: What absolute paths are shown relative to; see :func:`~llama_index_contextual.metadata.display_path`.

    Returns:
        For each document its chunks. Documents appear in the order of their first chunk.
    """
    originals: dict[str, BaseNode] = {}
    for whole in documents or ():
        originals.setdefault(path_of(whole.metadata) or whole.node_id, whole)
        originals[whole.node_id] = whole
    groups: dict[str, list[BaseNode]] = {}
    for node in nodes:
        groups.setdefault(document_id(node), []).append(node)
    result = []
    for doc_id, unsorted in groups.items():
        chunks = sorted(unsorted, key=start_of)
        if not _agree(chunks):
            chunks = unsorted
        original = originals.get(doc_id) or originals.get(path_of(chunks[0].metadata))
        document = _source_document(doc_id, chunks, original, docstore, root)
        result.append(DocumentChunks(document, tuple(chunks)))
    return result


def document_id(node: BaseNode) -> str:
    """Id of the document that a node was cut from; its path, or its own id, where no document is named."""
    return node.ref_doc_id or path_of(node.metadata) or node.node_id


def position(node: BaseNode, document: SourceDocument) -> tuple[int, int]:
    """Start and end of a chunk in its document's text; (0, 0) where it cannot be found."""
    text, start = _content(node), start_of(node)
    if start < 0 or not document.text.startswith(text, start):
        start = document.text.find(text)
    return (start, start + len(text)) if start >= 0 else (0, 0)


def _source_document(
    doc_id: str,
    chunks: Sequence[BaseNode],
    original: BaseNode | None,
    docstore: BaseDocumentStore | None,
    root: str | None,
) -> SourceDocument:
    first = chunks[0].metadata
    metadata: dict[str, Any] = {} if original is None else bounded(original.metadata)[0]
    metadata |= {key: first[key] for key in _SHARED if key in first}
    path, shared = display_path(metadata, root) or display_path(first, root), MappingProxyType(metadata)
    stored = None if docstore is None else docstore.get_document(doc_id, raise_error=False)
    for whole in filter(None, (original, stored)):
        if _holds(text := _content(whole), chunks):
            return SourceDocument(doc_id, path, text, shared)
    return SourceDocument(doc_id, path, _join_slices(chunks), shared, is_joined=True)


def _content(node: BaseNode) -> str:
    return node.get_content(metadata_mode=MetadataMode.NONE)


def start_of(node: BaseNode) -> int:
    """The character of its document at which a node starts; -1 where it does not say."""
    start = node.start_char_idx if isinstance(node, TextNode) else None
    return -1 if start is None else start


def _holds(text: str, chunks: Sequence[BaseNode]) -> bool:
    """Whether a document's text is the one its chunks were cut from; an edited document's is not."""
    places = ((_content(chunk), max(0, start_of(chunk))) for chunk in chunks)
    return all(text.startswith(content, start) or content in text for content, start in places)


def _join_slices(chunks: Sequence[BaseNode]) -> str:
    """The chunks at their offsets again, with empty lines for what none holds, so that offsets stay offsets."""
    placed = [(start_of(chunk), _content(chunk)) for chunk in chunks if start_of(chunk) >= 0]
    length = max((start + len(content) for start, content in placed), default=0)
    if not _agree(chunks) or length > _MAX_PADDED + sum(len(content) for _, content in placed):
        return "\n\n".join(dict.fromkeys(map(_content, chunks)))
    parts, end = [], 0
    for start, content in placed:
        if start > end:
            parts.append(("" if start - end <= _MAX_GAP else "\n\n[…]").ljust(start - end, "\n"))
        parts.append(content[max(0, end - start) :])
        end = max(end, start + len(content))
    loose = [_content(chunk) for chunk in chunks if start_of(chunk) < 0]  # after the others, where it moves none
    return "\n\n".join(filter(None, ["".join(parts), *loose]))


def _agree(chunks: Sequence[BaseNode]) -> bool:
    """Whether chunks in order of their offsets overlap in the same words.

    They do not where one parser cut what another had cut: its offsets may count from the piece that it cut.
    """
    placed = [(start_of(chunk), _content(chunk)) for chunk in chunks if start_of(chunk) >= 0]
    for (before, earlier), (start, content) in pairwise(placed):
        shared = earlier[start - before :] if start >= before else None
        if shared is None or shared[: len(content)] != content[: len(shared)]:
            return False
    return True
