"""Contexts for an index that somebody already has: its chunks, ids and texts, embedded anew into a new collection."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import BaseNode, Document, MetadataMode
from llama_index.core.utils import iter_batch

from llama_index_contextual.errors import DocumentError, SettingError
from llama_index_contextual.index.pipeline import default_parser
from llama_index_contextual.index.recovery import entry_of
from llama_index_contextual.index.sources import read_bytes
from llama_index_contextual.index.store import Row, Stored, store_metadata, to_node
from llama_index_contextual.metadata import (
    CONTEXT_SOURCE,
    END_LINE,
    HEADER_PATH,
    PATH,
    START_LINE,
    join_header_path,
    value_of,
)
from llama_index_contextual.text import counted, decode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from llama_index_contextual.index.storage import Storage
    from llama_index_contextual.index.writer import Writer
    from llama_index_contextual.markdown import Span
    from llama_index_contextual.node_parser import HeadingAwareMarkdownNodeParser
    from llama_index_contextual.postprocessor.contextual import ContextualNodePostprocessor

_PAGE: Final = 256
_SAMPLES: Final = 3
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
        samples: What was embedded of some nodes, before and after.
    """

    nodes: int = 0
    documents: int = 0
    located: int = 0
    embedded: int = 0
    empty: int = 0
    contexts: dict[str, int] = field(default_factory=dict)
    samples: list[tuple[str, str]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def __str__(self) -> str:
        made = ", ".join(f"{number} {source or 'none'}" for source, number in sorted(self.contexts.items())) or "none"
        return (
            f"{counted(self.nodes, 'node')} of {counted(self.documents, 'document')}; "
            f"{self.located} found in their files; contexts: {made}; "
            f"{self.embedded} embedded, {self.empty} empty left out; the old index is as it was"
        )


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
    settings = storage.settings
    with storage.writing() as writer:
        writer.manifest = settings.written_in(writer.manifest)
        writer.begin()
        sources = SourceFiles(settings.folder, default_parser(settings.embedding))
        report = _copy(existing, writer, settings.pipeline.contexts, settings.fingerprint.nodes_hash, sources)
        writer.end()
    return report


def _copy(
    existing: Any,
    writer: Writer,
    contexts: ContextualNodePostprocessor,
    settings: str,
    sources: SourceFiles,
) -> MigrationReport:
    report = MigrationReport()
    held: dict[str, list[Stored]] = {}
    made: Counter[str] = Counter()
    for page in _pages(collection_of(existing)):
        nodes = [node for node in page if node.get_content(metadata_mode=MetadataMode.NONE).strip()]
        report.empty += len(page) - len(nodes)
        before = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        report.located += sum(sources.locate(node) for node in nodes)
        contexts(nodes, sources.documents(nodes))
        rows = [Row(node, store_metadata(node, sources.entry(node), "document")) for node in nodes]
        report.embedded += writer.vectors.embed_all(rows)
        writer.write(rows)
        for row, old in zip(rows, before, strict=True):
            entry = sources.entry(row.node)
            held.setdefault(entry, []).append(Stored(row.node.node_id, entry, row.embed_hash, row.metadata))
            made[str(value_of(row.metadata, CONTEXT_SOURCE) or "")] += 1
            if len(report.samples) < _SAMPLES:
                report.samples.append((old, row.node.get_content(metadata_mode=MetadataMode.EMBED)))
        report.nodes += len(nodes)
    writer.record({key: entry_of(nodes, settings) for key, nodes in held.items()})
    report.documents, report.contexts = len(held), dict(made)
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
        self._read: dict[str, tuple[str, list[Span]] | None] = {}

    def entry(self, node: BaseNode) -> str:
        """Under which document a node is kept: its path in the folder, else whatever document it names."""
        return self._path(node) or str(node.ref_doc_id or node.node_id)

    def documents(self, nodes: Sequence[BaseNode]) -> list[Document]:
        """Return the files of nodes that were located, as documents."""
        paths = dict.fromkeys(str(node.metadata.get(PATH) or "") for node in nodes)
        read = {path: found for path in paths if (found := self._read.get(path))}
        return [Document(id_=path, text=text, metadata={PATH: path}) for path, (text, _) in read.items()]

    def locate(self, node: BaseNode) -> bool:
        """Give a node path, headings and lines, if its text stands in its file; returns whether it does."""
        path = self._path(node)
        if not path:
            return False
        node.metadata[PATH] = path
        found = self._spans(path)
        text = node.get_content(metadata_mode=MetadataMode.NONE)
        start = found[0].find(text) if found else -1
        if found is None or start < 0:
            return False
        content, spans = found
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

    def _spans(self, path: str) -> tuple[str, list[Span]] | None:
        if path not in self._read:
            try:
                text = decode(read_bytes(self._folder / path)).text
            except DocumentError:
                self._read[path] = None
            else:
                _, _, spans = self._parser.split_document(Document(id_=path, text=text, metadata={PATH: path}))
                self._read[path] = (text, spans)
        return self._read[path]


def _pages(collection: Any) -> Iterator[Sequence[BaseNode]]:
    """All nodes of a collection, some hundreds at a time, those of a document together."""
    everything = collection.get(include=["metadatas"])
    order = sorted(
        zip(everything["ids"], everything["metadatas"], strict=True), key=lambda pair: (_document(pair[1]), pair[0])
    )
    for part in iter_batch([id_ for id_, _ in order], _PAGE):
        page = collection.get(ids=part, include=["metadatas", "documents"])
        rows = zip(page["ids"], page["metadatas"], page["documents"], strict=True)
        yield [to_node(Stored(id_, "", "", dict(metadata or {})), text or "") for id_, metadata, text in rows]


def _document(metadata: Any) -> str:
    return str((metadata or {}).get("document_id", ""))
