"""Descriptions of chunks for the ranking, independent of the query.

A chunk is described when it is indexed. The descriptions are stored in columns and looked up by
row. Details that few features need, and only for few chunks, are stored as JSON.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from llama_index_contextual.context.source_code import definitions_of, is_code
from llama_index_contextual.node_parser.node_metadata import headings_of
from llama_index_contextual.node_parser.sections import title_of
from llama_index_contextual.retrievers import names
from llama_index_contextual.retrievers.arrays import (
    ArrayIndex,
    Bools,
    Floats,
    Ints,
    Numbers,
    Part,
    RowArrays,
    Rows,
    are_offsets,
    require,
)
from llama_index_contextual.retrievers.bm25_index import term_number
from llama_index_contextual.retrievers.terms import terms_of
from llama_index_contextual.utils import metadata as meta
from llama_index_contextual.utils.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

CHUNK_INFO_VERSION = 3  # increase it when descriptions of chunks change

_MAX_CACHED = 50_000  # rows whose info is kept as an object
_INNER_HEADING_VALUE = 0.5  # value of an inner heading as a name; a document name has 1
_IN_TEXT_BONUS = 0.01  # for a heading that is in the chunk and not only above it
_MIN_HASHED_WORDS = 8  # a shorter text has no hash
_HEADING_LINE = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_MAY_BE_HEADING = re.compile(r"^ {0,3}(?:#|=+\s*$|-+\s*$)", re.MULTILINE)
_CODE_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_NOT_IN_KEY = re.compile(r"[\W_]+")
_IMPL_FOR = re.compile(r"[^\n{]{1,200} for ")
_LAST_PART = re.compile(r"[.:\\]")  # Engine.search, Engine::search
_JSON_ENCODER = json.JSONEncoder(default=sorted, separators=(",", ":"))


class DefinedName(NamedTuple):
    """A name that source code defines.

    Attributes:
        name: The name as written, such as ``PlanDay``.
        key: A key for all spellings: ``planday`` for both ``PlanDay`` and ``plan_day``.
        terms: The terms of the words in the name.
    """

    name: str
    key: str
    terms: frozenset[str]


class ChunkInfo(NamedTuple):
    """The details of a chunk that features read one chunk at a time.

    Attributes:
        path: The path of the file, or "".
        citation: The citation, ``path#L3-L5``, or "" without a path.
        section: The header path.
        file_terms: For source code, the terms of the file's name.
        definitions: For source code, the names that the chunk defines.
    """

    path: str
    citation: str
    section: str
    file_terms: frozenset[str]
    definitions: Sequence[DefinedName]

    def to_json(self) -> bytes:
        """Return the fields as a JSON list."""
        return _JSON_ENCODER.encode(self).encode()

    @classmethod
    def from_json(cls, text: bytes) -> ChunkInfo:
        """Return the info that :meth:`to_json` wrote.

        Raises:
            StorageError: The text does not have this form.
        """
        try:
            path, citation, section, file_terms, written = json.loads(text)
            definitions = [DefinedName(name, key, frozenset(terms)) for name, key, terms in written]
            return cls(path, citation, section, frozenset(file_terms), definitions)
        except Exception as error:
            raise StorageError(
                "The stored description of a chunk is damaged. Build the index again."
            ) from error


class ChunkDescription(NamedTuple):
    """The description of a chunk for the ranking.

    Attributes:
        info: The details that are read one chunk at a time.
        day: The day of the note.
        is_code: Whether the file is source code.
        text_hash: A hash of the words and their order. None for a short text, because its meaning
            depends on the heading above it.
        names: The folded headings above and in the chunk, each with its value as a name of the
            document, 0 to 1.
        heading_terms: The terms of the innermost heading. They are empty below a single heading.
        context_terms: The number of occurrences of each term in the contexts of the chunk.
    """

    info: ChunkInfo
    day: date | None
    is_code: bool
    text_hash: int | None
    names: Mapping[str, float]
    heading_terms: frozenset[str]
    context_terms: Mapping[str, int]


def describe_chunk(
    metadata: Mapping[str, Any],
    text: str,
    language: str = "en",
) -> ChunkDescription:
    """Return the description of a chunk for the ranking.

    Args:
        metadata: The metadata of the node.
        text: The text of the node, without metadata.
        language: The language in which the text is indexed.
    """
    path = str(metadata.get(meta.PATH) or metadata.get(meta.FILE_PATH) or "")
    section = str(metadata.get(meta.HEADER_PATH) or "")
    titles = names.titles_in(section)
    context = meta.value_of(metadata, meta.CONTEXT) or ""
    lexical_context = meta.value_of(metadata, meta.LEXICAL_CONTEXT) or ""
    is_code_file = is_code(path)
    own_title = titles[-1] if titles else ""
    headings = [] if is_code_file else _headings_in(text, own_title)
    info = ChunkInfo(
        path=path,
        citation=meta.citation_of(metadata),
        section=section,
        file_terms=code_terms(PurePosixPath(path).stem) if is_code_file else frozenset(),
        definitions=_definitions_in(text, path) if is_code_file else [],
    )
    return ChunkDescription(
        info=info,
        day=meta.day_of(metadata),
        is_code=is_code_file,
        text_hash=_hash_of(text),
        names=_names_of(titles, headings),
        heading_terms=frozenset(terms_of(own_title, language) if len(titles) > 1 else ()),
        context_terms=Counter(terms_of(f"{context}\n{lexical_context}", language)),
    )


def code_terms(name: str) -> frozenset[str]:
    """Return the terms of the words in a name: of get, user and name for ``getUserName``."""
    return frozenset(terms_of(" ".join(_CODE_WORD.findall(name))))


def code_key(name: str) -> str:
    """Return a key that is the same for ``route_group``, ``RouteGroup`` and ``route group``."""
    return _NOT_IN_KEY.sub("", name).lower()


def _headings_in(text: str, own_title: str) -> Sequence[str]:
    """Return the headings in a Markdown text.

    Parsing is slow, so a text is only parsed if it may have a heading below its first line.
    """
    first_line, _, body = text.partition("\n")
    if not _MAY_BE_HEADING.search(body):
        if own_title and first_line.lstrip("#") == f" {own_title}":
            return [own_title]
        return [title_of(first_line)] if _HEADING_LINE.match(first_line) else []
    return [title for title, _, _ in headings_of(text)]


def _names_of(titles: Sequence[str], headings: Sequence[str]) -> dict[str, float]:
    """Return the folded headings above and in a chunk, with their values as names."""
    values: dict[str, float] = {}

    # Value the innermost heading above the chunk and those in it, and more the top heading.
    for title in [*titles[-1:], *headings]:
        values[names.folded_name(title)] = _INNER_HEADING_VALUE
    for title in titles[:1]:
        values[names.folded_name(title)] = names.TOP_HEADING

    # Prefer a chunk with the heading in it to further chunks below the heading.
    for name in set(map(names.folded_name, headings)):
        values[name] += _IN_TEXT_BONUS
    return values


def _definitions_in(text: str, path: str) -> list[DefinedName]:
    """Return the names that a piece of source code defines."""
    defined_names: list[DefinedName] = []
    for definition in definitions_of(text, path):
        # "impl Display for Plan" does not define Display.
        if definition.kind == "impl" and _IMPL_FOR.match(text, definition.start):
            continue
        name = _LAST_PART.split(definition.name)[-1]
        defined_names.append(DefinedName(name, code_key(name), code_terms(name)))
    return defined_names


def _hash_of(text: str) -> int | None:
    """Return a hash of the words of a text, whatever its white space and case.

    None for a short text.
    """
    words = text.casefold().split()
    if len(words) < _MIN_HASHED_WORDS:
        return None
    digest = blake2b(" ".join(words).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


# Descriptions by row

_BY_ROW = ("days", "hashes", "code_flags")
_LABELS = ("labels", "heading_labels", "context_labels", "name_labels")
# The columns with any number of entries for each row, by the column with their bounds.
_ENTRIES = {
    "id_bounds": ("ids_as_bytes",),
    "info_bounds": ("infos_as_json",),
    "label_bounds": _LABELS,
}
_TYPES = {
    "days": "q",
    "hashes": "q",
    "code_flags": "B",
    "id_bounds": "q",
    "ids_as_bytes": "B",
    "info_bounds": "q",
    "infos_as_json": "B",
    "label_bounds": "q",
    "labels": "Q",
    "heading_labels": "B",
    "context_labels": "I",
    "name_labels": "d",
}


@dataclass(frozen=True, eq=False)
class ChunkInfoArrays(RowArrays):
    """The descriptions of some rows.

    Bounds are the offset of the first entry of each row, followed by the end of the last entry. A
    label is the number of a term of a heading or context, or of a name.

    Attributes:
        ids: The number of each row.
        days: The day of each row as an ordinal, or 0.
        hashes: The hash of each text, or 0.
        code_flags: 1 for source code, else 0.
        id_bounds: The bounds of the node ids.
        ids_as_bytes: The node ids.
        info_bounds: The bounds of the infos.
        infos_as_json: The :class:`ChunkInfo` of each row.
        label_bounds: The bounds of the labels.
        labels: The labels.
        heading_labels: 1 for each label that is a term of the innermost heading, else 0.
        context_labels: The number of occurrences of the term in the contexts.
        name_labels: The value of the label as a name.
    """

    days: Ints
    hashes: Ints
    code_flags: Numbers
    id_bounds: Ints
    ids_as_bytes: Numbers
    info_bounds: Ints
    infos_as_json: Numbers
    label_bounds: Ints
    labels: Numbers
    heading_labels: Numbers
    context_labels: Numbers
    name_labels: Floats

    @classmethod
    def merge(cls, parts: Sequence[Part]) -> ChunkInfoArrays:
        """Merge the live rows of several arrays."""
        live = np.concatenate([live for _, live in parts])
        columns = {}
        for name in ("ids", *_TYPES):
            columns[name] = np.concatenate([vars(arrays)[name] for arrays, _ in parts])
        for name in ("ids", *_BY_ROW):
            columns[name] = columns[name][live]
        for bounds, entries in _ENTRIES.items():
            sizes = np.concatenate([np.diff(vars(arrays)[bounds]) for arrays, _ in parts])
            columns[bounds] = np.append(0, np.cumsum(sizes[live]))
            for name in entries:
                columns[name] = columns[name][np.repeat(live, sizes)]
        return cls(**columns)

    def check(self) -> None:
        """Raise a ValueError if the arrays are inconsistent."""
        columns = vars(self)
        require(all(columns[name].dtype == np.dtype(kind) for name, kind in _TYPES.items()))
        require(all(len(columns[name]) == len(self.ids) for name in _BY_ROW))
        for bounds, entries in _ENTRIES.items():
            require(len(columns[bounds]) == len(self.ids) + 1)
            require(all(are_offsets(columns[bounds], len(columns[entry])) for entry in entries))


class InfoCollector:
    """Collects descriptions of chunks, and turns them into arrays at once."""

    def __init__(self) -> None:
        self._columns: dict[str, array[Any]] = {name: array(kind) for name, kind in _TYPES.items()}
        for bounds in _ENTRIES:
            self._columns[bounds].append(0)

    def add(self, node_id: str, chunk: ChunkDescription) -> None:
        """Add the description of a node."""
        columns = self._columns
        columns["days"].append(chunk.day.toordinal() if chunk.day else 0)
        columns["hashes"].append(chunk.text_hash or 0)
        columns["code_flags"].append(chunk.is_code)
        columns["ids_as_bytes"].frombytes(node_id.encode("utf-8", "surrogatepass"))
        columns["infos_as_json"].frombytes(chunk.info.to_json())
        labels = {*chunk.heading_terms, *chunk.context_terms, *chunk.names}
        columns["labels"].extend(map(term_number, labels))
        columns["heading_labels"].extend(label in chunk.heading_terms for label in labels)
        columns["context_labels"].extend(chunk.context_terms.get(label, 0) for label in labels)
        columns["name_labels"].extend(chunk.names.get(label, 0.0) for label in labels)
        for bounds, entries in _ENTRIES.items():
            columns[bounds].append(len(columns[entries[0]]))

    def arrays(self, ids: Ints) -> ChunkInfoArrays:
        """Return the arrays of rows.

        Args:
            ids: The number of the row of each added chunk.

        Raises:
            ValueError: The numbers of rows and chunks differ.
        """
        columns = {name: np.array(column, _TYPES[name]) for name, column in self._columns.items()}
        if len(columns["days"]) != len(ids):
            raise ValueError(f"{len(ids)} rows have {len(columns['days'])} chunks")
        return ChunkInfoArrays(ids, **columns)


@dataclass(frozen=True, eq=False)
class Chunks:
    """The descriptions of some chunks in columns. Unknown values are 0.

    Attributes:
        is_known: Whether the index contains each chunk.
        days: The day of each chunk as an ordinal.
        hashes: The hash of each text.
        is_code: Whether each chunk is source code.
        is_prose: Whether each chunk is known and not source code.
        label_rows: The row of the chunk of each label.
        labels: The labels of all chunks. See :class:`ChunkInfoArrays`.
        heading_labels: 1 for each label that is a term of the innermost heading, else 0.
        context_labels: The number of occurrences of the term in the contexts.
        name_labels: The value of the label as a name.
        places: The position of each chunk in the index, or -1 if it is unknown.
        index: The index, from which infos are read.
    """

    is_known: Bools
    days: Ints
    hashes: Ints
    is_code: Bools
    is_prose: Bools
    label_rows: Ints
    labels: Numbers
    heading_labels: Numbers
    context_labels: Numbers
    name_labels: Floats
    places: Ints
    index: ChunkInfoIndex

    def info(self, row: int) -> ChunkInfo:
        """Return the info of a known chunk.

        Raises:
            StorageError: The stored info is damaged.
        """
        return self.index.info_at(int(self.places[row]))

    def name_values(self, name: str) -> Floats:
        """Return the value of a folded name for each chunk."""
        is_name = self.labels == term_number(name)
        values = np.bincount(self.label_rows[is_name], self.name_labels[is_name], len(self.days))
        return values.astype(np.float64)


class ChunkInfoIndex(ArrayIndex):
    """An index of descriptions of chunks by row."""

    arrays_type = ChunkInfoArrays

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        super().__init__(parts)
        self._infos: dict[int, ChunkInfo] = {}

    def with_chunks(self, rows: Rows, chunks: InfoCollector) -> ChunkInfoIndex:
        """Return the index with further rows. A known row is replaced.

        Raises:
            ValueError: The numbers of rows and chunks differ.
        """
        ids = np.asarray(rows, np.int64)
        added = chunks.arrays(ids)
        return self.changed(ids, added) if len(ids) else self

    def node_ids(self, rows: Rows) -> list[str]:
        """Return the node ids of rows. The id of an unknown row is ""."""
        places, positions = self.find(rows)
        ids = [""] * len(rows)
        for arrays, inside, in_part in self.by_part(places):
            encoded = memoryview(arrays.ids_as_bytes)
            starts = arrays.id_bounds[inside].tolist()
            ends = arrays.id_bounds[inside + 1].tolist()
            for position, start, end in zip(positions[in_part].tolist(), starts, ends, strict=True):
                ids[position] = str(encoded[start:end], "utf-8", "surrogatepass")
        return ids

    def read(self, rows: Rows) -> Chunks:
        """Return the descriptions of rows. The values of unknown rows are 0."""
        if len(self._infos) > _MAX_CACHED:
            self._infos = {}
        by_row = {name: np.zeros(len(rows), _TYPES[name]) for name in _BY_ROW}
        label_rows = [np.empty(0, np.int64)]
        labels = {name: [np.empty(0, _TYPES[name])] for name in _LABELS}
        places, positions = self.find(rows)
        for arrays, inside, in_part in self.by_part(places):
            owners = positions[in_part]
            for name in _BY_ROW:
                by_row[name][owners] = vars(arrays)[name][inside]
            entries, sizes = _entries_of(arrays.label_bounds, inside)
            label_rows.append(np.repeat(owners, sizes))
            for name in _LABELS:
                labels[name].append(vars(arrays)[name][entries])
        places_by_row = np.full(len(rows), -1)
        places_by_row[positions] = places
        is_known = places_by_row >= 0
        is_code = by_row["code_flags"] > 0
        return Chunks(
            is_known=is_known,
            days=by_row["days"],
            hashes=by_row["hashes"],
            is_code=is_code,
            is_prose=is_known & ~is_code,
            label_rows=np.concatenate(label_rows),
            **{name: np.concatenate(columns) for name, columns in labels.items()},
            places=places_by_row,
            index=self,
        )

    def info_at(self, place: int) -> ChunkInfo:
        """Return the info of the row at a position in :attr:`all_rows`.

        Raises:
            StorageError: The stored info is damaged.
        """
        if place not in self._infos:
            start = 0
            for arrays, live in self.parts:
                if start <= place < start + len(live):
                    first, end = arrays.info_bounds[place - start : place - start + 2]
                    encoded = arrays.infos_as_json[first:end].tobytes()
                    self._infos[place] = ChunkInfo.from_json(encoded)
                start += len(live)
        return self._infos[place]


def _entries_of(bounds: Ints, places: Ints) -> tuple[Ints, Ints]:
    """Return the offsets of the entries of some rows, and the number of entries of each row."""
    starts = bounds[places]
    sizes = bounds[places + 1] - starts
    firsts = np.cumsum(sizes) - sizes
    entries: Ints = np.arange(sizes.sum()) + np.repeat(starts - firsts, sizes)
    return entries, sizes
