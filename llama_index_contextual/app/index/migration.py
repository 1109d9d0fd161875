"""Contexts for an index that somebody already has: its chunks, ids and texts, embedded anew into a new index."""

from __future__ import annotations

import contextlib
import logging
import time
from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import BaseNode, Document, MetadataMode, TextNode
from llama_index.core.utils import iter_batch
from llama_index.core.vector_stores.utils import metadata_dict_to_node

from llama_index_contextual.app.folder.sources import read_bytes
from llama_index_contextual.app.folder.walk import Problem
from llama_index_contextual.app.index.pipeline import default_parser, nodes_hash
from llama_index_contextual.app.index.plan import RefreshReport
from llama_index_contextual.app.index.tables import Chunk, DocumentRow
from llama_index_contextual.errors import DocumentError, SettingError
from llama_index_contextual.metadata import (
    END_LINE,
    HEADER_PATH,
    PATH,
    START_LINE,
    join_header_path,
)
from llama_index_contextual.retrieval import pages
from llama_index_contextual.text import counted, decode, storable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from llama_index_contextual.app.index.writing import Storage
    from llama_index_contextual.chunking import HeadingAwareMarkdownNodeParser, Span

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 16  # documents that are read, embedded and written together
_PATH_KEYS: Final = (PATH, "file_path", "source", "file_name")


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


def migrate(existing: Any, storage: Storage) -> RefreshReport:
    """Copy the nodes of an index into a new one, with contexts; the old index is only read."""
    settings, report, started = storage.settings, RefreshReport(), time.monotonic()
    made_with = nodes_hash(settings.fingerprint)
    sources = SourceFiles(settings.folders.root, default_parser(settings.embedding))
    with storage.writing() as writer:
        for documents in _documents(collection_of(existing), sources, report):
            for key, nodes in documents.items():
                if elsewhere := sum(not sources.locate(node) for node in nodes):
                    reason = "stands in no file here, so that its headings and lines are what the old index has of them"
                    report.repaired.append(Problem(key, f"{elsewhere} of {counted(len(nodes), 'chunk')} {reason}"))
            every = [node for nodes in documents.values() for node in nodes]
            settings.pipeline.contexts(every, sources.documents(every))
            indexed = [
                (DocumentRow(key, "document", made_with=made_with, nodes=len(nodes)), [*map(Chunk.of, nodes)])
                for key, nodes in documents.items()
            ]
            report.added += [document.key for document, _ in writer.write(indexed, report)]
        writer.finish(whole=False)
        with writer.reading() as snapshot:
            report.chunks, report.context_sources = snapshot.count(), snapshot.context_sources()
    for problem in (*report.failed, *report.repaired):
        logger.warning("%s", problem)
    report.seconds = time.monotonic() - started
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


def _documents(collection: Any, sources: SourceFiles, report: RefreshReport) -> Iterator[dict[str, list[BaseNode]]]:
    """Yield some documents at a time, with their nodes."""
    ids: dict[str, list[str]] = {}
    for page in pages(collection, ["metadatas"]):
        for id_, metadata in zip(page["ids"], page["metadatas"], strict=True):
            ids.setdefault(sources.document_of(_node(id_, metadata, "")), []).append(id_)
    for keys in iter_batch(sorted(ids), _AT_ONCE):
        owners = {id_: key for key in keys for id_ in sorted(ids[key])}
        documents: dict[str, list[BaseNode]] = {}
        empty = Counter[str]()
        for page in pages(collection, ["metadatas", "documents"], node_ids=owners):
            for id_, metadata, text in zip(page["ids"], page["metadatas"], page["documents"], strict=True):
                if (text or "").strip():
                    documents.setdefault(owners[id_], []).append(_node(id_, metadata, text))
                else:
                    empty[owners[id_]] += 1
        report.repaired += [
            Problem(key, f"{counted(count, 'chunk')} without text left out") for key, count in empty.items()
        ]
        yield documents


def _node(id_: str, metadata: dict[str, Any] | None, text: str | None) -> BaseNode:
    try:
        return metadata_dict_to_node(dict(metadata or {}), text=text or "")
    except (ValueError, TypeError):  # a collection that LlamaIndex did not write
        return TextNode(id_=id_, text=text or "", metadata=dict(metadata or {}))
