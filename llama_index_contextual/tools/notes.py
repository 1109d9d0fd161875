"""The documents that the tools read, by path, and their chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.schema import Document, MetadataMode, TextNode

from llama_index_contextual.retrievers.names import NAMING
from llama_index_contextual.utils import metadata as meta
from llama_index_contextual.utils.dates import epoch_seconds

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

Metadata = Mapping[str, Any]
Matches = Callable[[str], bool]

_MAX_LINE = 10_000_000  # a larger number in metadata is not a line number
_MAX_DIGITS = 9  # a longer text is not read as a page number


def page_in(metadata: Metadata) -> str:
    """Return the page of a chunk by its metadata, or ""."""
    return str(meta.page_of(metadata) or "")


class Passage(NamedTuple):
    """A stored chunk.

    Attributes:
        path: The path of its document.
        page: The page of the document, or "" if it has no pages.
        first_line: The line number in the document, or in the page, at which the text starts.
        text: The text.
        metadata: The metadata of its node.
    """

    path: str
    page: str
    first_line: int
    text: str
    metadata: Metadata

    @classmethod
    def of(cls, text: str, metadata: Metadata) -> Passage:
        """Return a chunk whose place is read from its metadata."""
        first_line = _start_line(metadata) or 1
        return cls(meta.path_of(metadata), page_in(metadata), first_line, text, metadata)

    @property
    def place(self) -> tuple[str, int, str, int]:
        """Return the key that sorts chunks in reading order: page 9 comes before page 10."""
        is_number = self.page.isdecimal() and len(self.page) <= _MAX_DIGITS
        page_number = int(self.page) if is_number else 0
        return self.path, page_number, self.page, self.first_line

    @property
    def properties(self) -> list[str]:
        """Return the title and the front matter of the chunk as ``key: value`` texts."""
        title = meta.value_of(self.metadata, meta.TITLE)
        front_matter = str(self.metadata.get(meta.FRONT_MATTER) or "")
        properties = []
        if title:
            properties.append(f"{meta.TITLE}: {title}")
        if front_matter:
            properties += front_matter.split("; ")
        return properties


class Notes(ABC):
    """Documents that the tools list, search and read."""

    roots: Mapping[str, str] = {}
    """The absolute folders that an agent can put before a path, each with the prefix to use."""

    @abstractmethod
    def paths(self) -> list[str]:
        """Return the paths of all documents, in order."""

    @abstractmethod
    def has(self, path: str) -> bool:
        """Return whether a document has exactly this path."""

    @abstractmethod
    def text(self, path: str) -> str | None:
        """Return the text of a document, or of a page such as ``report.pdf#page=4``.

        None means that there is no text.
        """

    @abstractmethod
    def metadata(self) -> list[Metadata]:
        """Return the metadata of every chunk."""

    @abstractmethod
    def matching(self, matches: Matches) -> Iterator[Passage]:
        """Yield the chunks whose text or properties match, in reading order."""

    def names(self) -> list[tuple[str, str]]:
        """Return each title and alias of the documents, with the path of its document."""
        named = set[tuple[str, str]]()
        for values in self.metadata():
            titles = [str(values[key]) for key in NAMING if values.get(key)]
            named.update((title, meta.path_of(values)) for title in titles)
        return sorted(named)

    @property
    def are_dated(self) -> bool:
        """Return whether any document has a date."""
        return any(meta.value_of(values, meta.DATE) for values in self.metadata())


class NodeNotes(Notes):
    """The notes in LlamaIndex nodes. The text of a document is joined from its nodes.

    Args:
        nodes: Returns the current nodes.
    """

    def __init__(self, nodes: Callable[[], Iterable[BaseNode]]) -> None:
        self._nodes = nodes

    def paths(self) -> list[str]:
        """Return the paths of all documents, in order."""
        return [*self._documents()]

    def has(self, path: str) -> bool:
        """Return whether a node belongs to a document with exactly this path."""
        return path in self._documents()

    def text(self, path: str) -> str | None:
        """Return the text of a document or of a page of it; None if there is none."""
        documents = self._documents()
        passages = documents.get(path)
        if passages is None:
            name, page = meta.split_page(path)
            label = page.casefold()
            of_document = documents.get(name, [])
            passages = [passage for passage in of_document if passage.page.casefold() == label]
        if not passages:
            return None
        pages = groupby(passages, lambda passage: passage.page)
        return "\n\n".join(_joined(page) for _, page in pages)

    def metadata(self) -> list[Metadata]:
        """Return the metadata of every node."""
        return [passage.metadata for passage in self._passages()]

    def matching(self, matches: Matches) -> Iterator[Passage]:
        """Yield the nodes whose text or properties match."""
        for passage in self._passages():
            if any(map(matches, [passage.text, *passage.properties])):
                yield passage

    def _documents(self) -> dict[str, list[Passage]]:
        """Return the nodes of each document by its path."""
        by_path = groupby(self._passages(), lambda passage: passage.path)
        return {path: [*passages] for path, passages in by_path}

    def _passages(self) -> list[Passage]:
        """Return all nodes in reading order, without the overlaps of their texts."""
        nodes_by_page: dict[tuple[str, object], list[TextNode | Document]] = {}
        for node in self._nodes():
            if isinstance(node, TextNode | Document):
                file = meta.file_of(node.metadata).removeprefix("file://")
                path = file or node.ref_doc_id or node.node_id
                page = meta.page_of(node.metadata)
                nodes_by_page.setdefault((path, page), []).append(node)
        passages = list[Passage]()
        for (path, _), nodes in nodes_by_page.items():
            passages += _passages_of(path, sorted(nodes, key=_position))
        return sorted(passages, key=lambda passage: passage.place)


def _position(node: TextNode | Document) -> tuple[int, int]:
    """Return the key that sorts the nodes of a document."""
    return _start_line(node.metadata), _start(node) or 0


def _start_line(metadata: Metadata) -> int:
    """Return the line at which a node starts, or 0 if its metadata contain no valid line."""
    line = meta.value_of(metadata, meta.START_LINE)
    return line if isinstance(line, int) and 0 < line <= _MAX_LINE else 0


def _start(node: TextNode | Document) -> int | None:
    """Return the offset of a node in its document. None means that it is not known."""
    return node.start_char_idx if isinstance(node, TextNode) else None


def _passages_of(path: str, nodes: Iterable[TextNode | Document]) -> list[Passage]:
    """Return the nodes of a document or page as passages, each with its first line.

    A node without a line number follows the node before it.
    """
    passages = list[Passage]()
    next_line = 1
    previous = ""
    end = 0
    for node in nodes:
        text = node.get_content(MetadataMode.NONE)

        # Remove the text that overlaps with the previous node.
        start = _start(node)
        overlap = ""
        if start is not None and start < end and previous.endswith(text[: end - start]):
            overlap = text[: end - start]
        previous = text
        end = (start or 0) + len(text)
        text = text[len(overlap) :]

        start_line = _start_line(node.metadata)
        first_line = start_line + overlap.count("\n") if start_line else next_line
        next_line = first_line + text.count("\n") + 1
        values = _with_place(path, node.metadata)
        passages.append(Passage(path, page_in(values), first_line, text, values))
    return passages


def _with_place(path: str, values: Metadata) -> Metadata:
    """Return the metadata of a node, with the path and the day that filters need."""
    placed = {**values, meta.PATH: path}
    day = meta.day_of(values)
    if day is not None and meta.DATE not in values:
        placed[meta.DATE] = day.isoformat()
        placed[meta.DATE_TS] = epoch_seconds(day)
    return placed


def _joined(passages: Iterable[Passage]) -> str:
    """Return the text of a document or page, with each chunk at its line.

    A chunk can begin in the middle of the line that ends the previous chunk.
    """
    lines = list[str]()
    for passage in passages:
        first, *further = passage.text.split("\n")
        lines = lines or _lines_above(passage)
        missing_lines = passage.first_line - 1 - len(lines)
        if missing_lines < 0:
            lines[-1] = f"{lines[-1]} {first}"
        else:
            lines += [""] * missing_lines
            lines.append(first)
        lines += further
    return "\n".join(lines)


def _lines_above(passage: Passage) -> list[str]:
    """Return the lines above the first chunk: its properties, cut to the number of these lines."""
    number_of_lines = passage.first_line - 1
    properties = passage.properties
    if len(properties) > number_of_lines:
        properties = ["; ".join(properties)][:number_of_lines]
    return properties
