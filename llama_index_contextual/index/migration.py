"""Contexts for an index that somebody already has: its chunks, ids and texts, embedded anew into a new index."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import BaseNode, Document, MetadataMode, TextNode
from llama_index.core.utils import iter_batch
from llama_index.core.vector_stores.utils import metadata_dict_to_node

from llama_index_contextual.documents import read_bytes
from llama_index_contextual.errors import DocumentError, SettingError
from llama_index_contextual.index.pipeline import default_parser, nodes_hash
from llama_index_contextual.index.plan import RefreshReport
from llama_index_contextual.index.tables import Chunk, DocumentRow
from llama_index_contextual.metadata import (
    END_LINE,
    HEADER_PATH,
    PATH,
    START_LINE,
    join_header_path,
)
from llama_index_contextual.retrievers.chroma import pages
from llama_index_contextual.text import counted, decode, storable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from llama_index_contextual.index.writing import Storage
    from llama_index_contextual.markdown import Span
    from llama_index_contextual.node_parser import HeadingAwareMarkdownNodeParser

_AT_ONCE: Final = 16  # documents that are read, embedded and written together
_PATH_KEYS: Final = (PATH, "file_path", "source", "file_name")


@dataclass(slots=True)
class MigrationReport:
    """What became of an index's nodes.

    Attributes:
        nodes: How many there are; ids and texts are those of the old index.
        documents: How many documents they belong to.
        located: Nodes whose text was found in its source file, and which so have their headings and lines.
        embedded: Texts that were embedded.
        empty: Nodes without text, which are left out.
        contexts: Nodes by what made their context.
        refused: Documents that were not written, by key, and why.
    """

    nodes: int = 0
    documents: int = 0
    located: int = 0
    embedded: int = 0
    empty: int = 0
    contexts: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        contexts = ", ".join(f"{number} {source or 'none'}" for source, number in sorted(self.contexts.items()))
        counts = (
            f"{counted(self.nodes, 'node')} of {counted(self.documents, 'document')}; "
            f"{self.located} found in their files; contexts: {contexts or 'none'}; "
            f"{self.embedded} embedded, {self.empty} empty left out; the old index is as it was"
        )
        return "\n".join([counts, *(f"{key} was left out: {reason}" for key, reason in self.refused.items())])


def collection_of(existing: Any) -> Any:
    """The Chroma collection of a ``VectorStoreIndex``, a ``ChromaVectorStore``, or a collection itself.

    Raises:
        SettingError: It is none of these.
    """
    store = getattr(existing, "vector_store", existing)
    collection = getattr(store, "client", store)
    if not (hasattr(collection, "get") and hasattr(collection, "upsert")):
        raise SettingError(
            f"{type(existing).__name__} is no index on Chroma. Cure: a VectorStoreIndex on a ChromaVectorStore, that "
            "store, or a Chroma collection."
        )
    return collection


def migrate(existing: Any, storage: Storage) -> MigrationReport:
    """Copy the nodes of an index into a new one, with contexts; the old index is only read."""
    settings, report, work, counts = storage.settings, MigrationReport(), RefreshReport(), Counter[str]()
    made_with = nodes_hash(settings.fingerprint)
    sources = SourceFiles(settings.folders.root, default_parser(settings.embedding))
    with storage.writing() as writer:
        for documents in _documents(collection_of(existing), sources, report):
            nodes = [node for _, some in documents for node in some]
            report.located += sum(sources.locate(node) for node in nodes)
            settings.pipeline.contexts(nodes, sources.documents(nodes))
            indexed = [
                (DocumentRow(key, "document", made_with=made_with, nodes=len(some)), [Chunk.of(node) for node in some])
                for key, some in documents
            ]
            written = writer.write(indexed, work)
            counts.update(chunk.row.context_source for _, chunks in written for chunk in chunks)
            report.documents += len(written)
        writer.finish(whole=False)
    report.contexts, report.nodes, report.embedded = dict(counts), counts.total(), work.embedded
    report.refused = {problem.path: problem.reason for problem in work.failed}
    return report


class SourceFiles:
    """The files that nodes were cut from, where they are at hand: they know the headings above a chunk.

    Args:
        folder: Where they are.
        parser: Finds the headings.
    """

    def __init__(self, folder: Path, parser: HeadingAwareMarkdownNodeParser) -> None:
        self._folder = folder
        self._parser = parser
        self._read: dict[str, tuple[str, list[Span]]] = {}

    def document_of(self, node: BaseNode) -> str:
        """Under which document a node is kept: its path in the folder, else whatever document it names."""
        return self._path(node) or storable(str(node.ref_doc_id or node.node_id))[0]

    def documents(self, nodes: Sequence[BaseNode]) -> list[Document]:
        """Return the files of nodes that were located, as documents."""
        paths = dict.fromkeys(str(node.metadata.get(PATH) or "") for node in nodes)
        texts = {path: self._read[path][0] for path in paths if path in self._read}
        return [Document(id_=path, text=text, metadata={PATH: path}) for path, text in texts.items() if text]

    def locate(self, node: BaseNode) -> bool:
        """Give a node path, headings and lines, if its text stands in its file; returns whether it does."""
        path = self._path(node)
        if not path:
            return False
        node.metadata[PATH] = path
        content, spans = self._file(path)
        text = node.get_content(metadata_mode=MetadataMode.NONE)
        start = content.find(text)
        if start < 0:
            return False
        place = max(0, bisect_right([span.start for span in spans], start) - 1)
        if spans and spans[place].headings:
            node.metadata[HEADER_PATH] = join_header_path(spans[place].headings)
        node.metadata[START_LINE] = content.count("\n", 0, start) + 1
        node.metadata[END_LINE] = content.count("\n", 0, start + len(text.rstrip())) + 1
        return True

    def _path(self, node: BaseNode) -> str:
        """The path of a node's file relative to the folder; "" if it names no file there."""
        for key in _PATH_KEYS:
            value = node.metadata.get(key)
            path = self._folder / str(value) if value else self._folder
            if value and path.is_file() and path.resolve().is_relative_to(self._folder):
                return path.resolve().relative_to(self._folder).as_posix()
        return ""

    def _file(self, path: str) -> tuple[str, list[Span]]:
        """Return the text of a file, "" where it cannot be read, and its spans."""
        if path not in self._read:
            text = ""
            spans: list[Span] = []
            with contextlib.suppress(DocumentError):
                text = decode(read_bytes(self._folder / path)).text
            if text:
                _, _, spans = self._parser.split_document(Document(id_=path, text=text, metadata={PATH: path}))
            self._read[path] = text, spans
        return self._read[path]


def _documents(
    collection: Any, sources: SourceFiles, report: MigrationReport
) -> Iterator[list[tuple[str, list[BaseNode]]]]:
    """Yield some documents at a time, with their nodes."""
    ids: dict[str, list[str]] = {}
    for page in pages(collection, ["metadatas"]):
        for id_, metadata in zip(page["ids"], page["metadatas"], strict=True):
            ids.setdefault(sources.document_of(_node(id_, metadata, "")), []).append(id_)
    for keys in iter_batch(sorted(ids), _AT_ONCE):
        owners = {id_: key for key in keys for id_ in sorted(ids[key])}
        documents: dict[str, list[BaseNode]] = {}
        for page in pages(collection, ["metadatas", "documents"], node_ids=owners):
            for id_, metadata, text in zip(page["ids"], page["metadatas"], page["documents"], strict=True):
                if (text or "").strip():
                    documents.setdefault(owners[id_], []).append(_node(id_, metadata, text))
                else:
                    report.empty += 1
        yield list(documents.items())


def _node(id_: str, metadata: dict[str, Any] | None, text: str | None) -> BaseNode:
    try:
        return metadata_dict_to_node(dict(metadata or {}), text=text or "")
    except (ValueError, TypeError):  # a collection that LlamaIndex did not write
        return TextNode(id_=id_, text=text or "", metadata=dict(metadata or {}))
