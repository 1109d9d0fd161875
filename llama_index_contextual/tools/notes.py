"""What the tools read.

Documents by path and their stored chunks, of a folder's index or of LlamaIndex nodes.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from llama_index.core.schema import MetadataMode, TextNode

from llama_index_contextual.retrievers.names import NAMING
from llama_index_contextual.utils import metadata as meta
from llama_index_contextual.utils.dates import epoch_seconds

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from llama_index.core.schema import BaseNode

Metadata = Mapping[str, Any]


class Passage(NamedTuple):
    """A stored chunk.

    Attributes:
        path: The path of its document.
        first_line: The line of the document, or of its page, that the text starts with.
        text: The text.
        metadata: The metadata of its node.
    """

    path: str
    first_line: int
    text: str
    metadata: Metadata


class Notes(ABC):
    """Documents that the tools list, search and read."""

    roots: Mapping[str, str] = {}
    """The absolute folders that agents may write before a path, and what stands for each."""

    @abstractmethod
    def paths(self) -> list[str]:
        """Return the paths of all documents, in order."""

    @abstractmethod
    def has(self, path: str) -> bool:
        """Return whether there is a document with exactly this path."""

    @abstractmethod
    def text(self, path: str) -> str | None:
        """Return the text of a document or of a page of it, ``report.pdf#page=4``.

        None if there is none.
        """

    @abstractmethod
    def metadata(self) -> Iterable[Metadata]:
        """Return the metadata of every chunk."""

    @abstractmethod
    def matching(self, matches: Callable[[str], bool]) -> Iterator[Passage]:
        """Yield the chunks whose text or front matter matches."""

    def names(self) -> list[tuple[str, str]]:
        """Return the titles and aliases of the documents, each with the path of its document."""
        named = {
            (str(values[key]), meta.path_of(values))
            for values in self.metadata()
            for key in NAMING
            if values.get(key)
        }
        return sorted(named)

    @property
    def are_dated(self) -> bool:
        """Return whether any document has a date."""
        return any(meta.value_of(values, meta.DATE) for values in self.metadata())


class Snapshot(Protocol):
    """One moment of a folder's database."""

    def rows(self) -> Sequence[int]:
        """Return the numbers of all chunks."""

    def texts(self) -> Iterator[tuple[int, str, str]]:
        """Yield the number, the text and the front matter of every chunk."""

    def column(self, column: str, rows: Sequence[int]) -> list[Any]:
        """Return a column of some chunks."""


class Database(Protocol):
    """A folder's database."""

    def reading(self) -> AbstractContextManager[Snapshot]:
        """Open one moment of it."""


class FolderNotes(Notes):
    """The notes of a folder's index, a ``ContextualIndex``.

    Args:
        index: The index. Its class belongs to the application, which the tools do not import.
    """

    def __init__(self, index: Any) -> None:
        self.index = index
        self.roots = {
            str(folder.path).rstrip("/"): f"{name}/" if name else ""
            for name, folder in index.settings.folders.collections.items()
        }

    def paths(self) -> list[str]:
        """Return the paths of all documents that can be read, in order."""
        failed = self.index.failed() if self.index.exists else {}
        return [path for path in self.index.files() if path not in failed]

    def has(self, path: str) -> bool:
        """Return whether there is a file with exactly this path."""
        return path in self.index.files(path)

    def text(self, path: str) -> str | None:
        """Return the text of a file or of a page of it; None if there is none."""
        text: str | None = self.index.read(path)
        return text

    def metadata(self) -> list[Metadata]:
        """Return the metadata of every chunk, in the order of writing."""
        if not self.index.exists:
            return []
        database: Database = self.index.settings.database
        with database.reading() as snapshot:  # making nodes would take four times as long
            return [*map(json.loads, snapshot.column("metadata", snapshot.rows()))]

    def matching(self, matches: Callable[[str], bool]) -> Iterator[Passage]:
        """Yield the chunks whose text or front matter matches."""
        database: Database = self.index.settings.database
        with database.reading() as snapshot:
            chunks = {
                row: text
                for row, text, front_matter in snapshot.texts()
                if matches(text) or (front_matter and matches(front_matter))
            }
            metadata = snapshot.column("metadata", [*chunks])
            for text, written in zip(chunks.values(), metadata, strict=True):
                values = json.loads(written)
                first_line = meta.value_of(values, meta.START_LINE)
                yield Passage(meta.path_of(values), first_line or 1, text, values)


class NodeNotes(Notes):
    """The notes in LlamaIndex nodes: each document is put together from its nodes.

    Args:
        nodes: Gives the nodes as they are now.
    """

    def __init__(self, nodes: Callable[[], Iterable[BaseNode]]) -> None:
        self._nodes = nodes

    def paths(self) -> list[str]:
        """Return the paths of all documents, in order."""
        return sorted({passage.path for passage in self._passages()})

    def has(self, path: str) -> bool:
        """Return whether a node belongs to a document with exactly this path."""
        return any(path == passage.path for passage in self._passages())

    def text(self, path: str) -> str | None:
        """Return the text of a document or of a page of it; None if there is none."""
        name, page = meta.split_page(path)
        passages = [passage for passage in self._passages() if passage.path == path]
        if not passages and page:
            passages = [
                passage
                for passage in self._passages()
                if passage.path == name and _page(passage.metadata).casefold() == page.casefold()
            ]
        pages: dict[str, list[Passage]] = {}
        for passage in passages:
            pages.setdefault(_page(passage.metadata), []).append(passage)
        return "\n\n".join(_joined(part) for part in pages.values()) if pages else None

    def metadata(self) -> list[Metadata]:
        """Return the metadata of every node."""
        return [passage.metadata for passage in self._passages()]

    def matching(self, matches: Callable[[str], bool]) -> Iterator[Passage]:
        """Yield the nodes whose text or front matter matches."""
        for passage in self._passages():
            front_matter = str(passage.metadata.get(meta.FRONT_MATTER) or "")
            if matches(passage.text) or (front_matter and matches(front_matter)):
                yield passage

    def _passages(self) -> list[Passage]:
        """Return all nodes in document order, with their texts without overlaps."""
        documents: dict[tuple[str, str], list[TextNode]] = {}
        for node in self._nodes():
            if isinstance(node, TextNode):
                path = meta.file_of(node.metadata).removeprefix("file://")
                document = (path or node.ref_doc_id or node.node_id, _page(node.metadata))
                documents.setdefault(document, []).append(node)
        passages = list[Passage]()
        for (path, _), nodes in sorted(documents.items()):
            passages += _passages_of(path, sorted(nodes, key=_position))
        return passages


def _page(values: Metadata) -> str:
    return str(meta.page_of(values) or "")


def _position(node: TextNode) -> tuple[int, int]:
    """Return where a node stands in its document."""
    return meta.value_of(node.metadata, meta.START_LINE) or 0, node.start_char_idx or 0


def _passages_of(path: str, nodes: Sequence[TextNode]) -> list[Passage]:
    """Return the nodes of a document or page, each with its first line.

    A node that does not say its line follows the one before it.
    """
    passages = list[Passage]()
    next_line = 1
    end = 0
    for node in nodes:
        text = node.get_content(MetadataMode.NONE)
        start = node.start_char_idx
        first_line = meta.value_of(node.metadata, meta.START_LINE)
        if first_line is None and start is not None and start < end:  # an overlap
            text = text[end - start :]
        first_line = first_line or next_line
        passages.append(Passage(path, first_line, text, _with_place(path, node.metadata)))
        next_line = first_line + text.count("\n") + 1
        end = node.end_char_idx or 0
    return passages


def _with_place(path: str, values: Metadata) -> Metadata:
    """Return the metadata of a node with its path and its day, by which filters ask."""
    place: dict[str, Any] = {meta.PATH: path}
    day = meta.day_of(values)
    if day is not None and meta.DATE not in values:
        place |= {meta.DATE: day.isoformat(), meta.DATE_TS: epoch_seconds(day)}
    return {**values, **place}


def _joined(passages: Sequence[Passage]) -> str:
    """Return the text of a document, each chunk at its line."""
    lines = list[str]()
    for passage in passages:
        lines += [""] * (passage.first_line - 1 - len(lines))
        lines[passage.first_line - 1 :] = passage.text.split("\n")
    return "\n".join(lines)
