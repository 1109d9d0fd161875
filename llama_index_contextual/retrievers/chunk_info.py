"""What the ranking reads of a chunk, whatever the query is.

Described when the chunk is indexed, kept as JSON, and looked up by row.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from llama_index_contextual.context.source_code import definitions_of, is_code
from llama_index_contextual.node_parser.node_metadata import headings_of
from llama_index_contextual.retrievers import names
from llama_index_contextual.retrievers.arrays import (
    ArrayIndex,
    Ints,
    Part,
    RowArrays,
    Rows,
    are_offsets,
    require,
)
from llama_index_contextual.retrievers.terms import terms_of
from llama_index_contextual.utils import metadata as meta
from llama_index_contextual.utils.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

CHUNK_INFO_VERSION: Final = 2  # raise it when the same chunk would be described differently

_MOST_REMEMBERED: Final = 50_000  # rows whose info is kept as an object
_INNER_HEADING_VALUE: Final = 0.5  # as a name; the name of a document has 1
_IN_TEXT_BONUS: Final = 0.01  # for a heading that stands in the chunk, not above it
_LEAST_HASHED: Final = 8  # words of a text with a hash
_MAY_BE_HEADING: Final = re.compile(r"^ {0,3}(?:#|=+\s*$|-+\s*$)", re.MULTILINE)
_CODE_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_NO_LETTERS: Final = re.compile(r"[\W_]+")
_IMPL_FOR: Final = re.compile(r"[^\n{]{1,200} for ")
_LAST_PART: Final = re.compile(r"[.:\\]")  # Engine.search, Engine::search


class DefinedName(NamedTuple):
    """A name that source code defines.

    Attributes:
        name: As it is written: ``PlanDay``.
        key: The same for all spellings: ``planday`` for ``plan_day``, too.
        terms: The terms of its words.
    """

    name: str
    key: str
    terms: frozenset[str]


class ChunkInfo(NamedTuple):
    """What the ranking reads of a chunk.

    Attributes:
        path: The file of the chunk; empty for none.
        citation: Where the chunk stands: ``path#L3-L5``; empty for no path.
        section: The header path.
        day: The day of the note.
        names: Folded headings above and in the chunk, each with its value as a name of the
        document, 0 to 1.
        heading_terms: Terms of the innermost heading; empty where that is the outermost, too.
        context_terms: How often each term occurs in the contexts of the chunk.
        is_code: Whether the file is source code.
        file_terms: Terms of the file's name, for source code.
        definitions: Names that the chunk defines, for source code.
        text_hash: Equal for chunks with the same words in the same order; None for a short text,
            which means what the heading above it says.
    """

    path: str
    citation: str
    section: str
    day: date | None
    names: Mapping[str, float]
    heading_terms: frozenset[str]
    context_terms: Mapping[str, int]
    is_code: bool
    file_terms: frozenset[str]
    definitions: tuple[DefinedName, ...]
    text_hash: int | None

    def to_json(self) -> bytes:
        """Return the values in field order."""
        return _JSON_ENCODER.encode(self).encode()

    @classmethod
    def from_json(cls, text: bytes) -> ChunkInfo:
        """Return the info that :meth:`to_json` wrote.

        Raises:
            StorageError: The text is something else.
        """
        try:
            values: Any = cls(*json.loads(text))
            definitions = [
                DefinedName(name, key, frozenset(terms)) for name, key, terms in values.definitions
            ]
            info: ChunkInfo = values._replace(
                day=values.day and date.fromisoformat(values.day),
                heading_terms=frozenset(values.heading_terms),
                file_terms=frozenset(values.file_terms),
                definitions=tuple(definitions),
            )
        except Exception as error:
            raise StorageError(
                "What the index keeps of a chunk is damaged. Build the index again."
            ) from error
        return info


def _json_value(value: date | frozenset[str]) -> str | list[str]:
    return value.isoformat() if isinstance(value, date) else sorted(value)


_JSON_ENCODER: Final = json.JSONEncoder(default=_json_value, separators=(",", ":"))


def describe_chunk(metadata: Mapping[str, Any], text: str, language: str = "en") -> ChunkInfo:
    """Return what the ranking reads of a chunk.

    Args:
        metadata: The metadata of its node.
        text: Its text, without metadata.
        language: The language in which its text is indexed.
    """
    path = str(metadata.get(meta.PATH) or metadata.get(meta.FILE_PATH) or "")
    section = str(metadata.get(meta.HEADER_PATH) or "")
    titles = names.titles_in(section)
    context = meta.value_of(metadata, meta.CONTEXT) or ""
    lexical_context = meta.value_of(metadata, meta.LEXICAL_CONTEXT) or ""
    is_code_file = is_code(path)
    own_title = titles[-1] if titles else ""
    headings = [] if is_code_file else _headings_in(text, own_title)
    return ChunkInfo(
        path=path,
        citation=meta.citation_of(metadata),
        section=section,
        day=meta.day_of(metadata),
        names=_names_of(titles, headings),
        heading_terms=frozenset(terms_of(own_title, language) if len(titles) > 1 else ()),
        context_terms=Counter(terms_of(f"{context}\n{lexical_context}", language)),
        is_code=is_code_file,
        file_terms=code_terms(PurePosixPath(path).stem) if is_code_file else frozenset(),
        definitions=_definitions_in(text, path) if is_code_file else (),
        text_hash=_hash_of(text),
    )


def code_terms(name: str) -> frozenset[str]:
    """Return the terms of the words of a name: those of get, user and name for ``getUserName``."""
    return frozenset(terms_of(" ".join(_CODE_WORD.findall(name))))


def code_key(name: str) -> str:
    """Return a key that ``route_group``, ``RouteGroup`` and ``route group`` share."""
    return _NO_LETTERS.sub("", name).lower()


def _headings_in(text: str, own_title: str) -> Sequence[str]:
    """Return the headings in a Markdown text.

    Most chunks have none below their first line, and are not parsed, which is slow. Many first
    lines are the same: "## See also".
    """
    first_line, _, body = text.partition("\n")
    if not _MAY_BE_HEADING.search(body):
        if own_title and first_line.lstrip("#") == f" {own_title}":
            return [own_title]
        return _headings_in_line(first_line)
    return [title for title, _, _ in headings_of(text)]


@lru_cache(maxsize=1024)
def _headings_in_line(line: str) -> Sequence[str]:
    if not _MAY_BE_HEADING.search(line):
        return []
    return [title for title, _, _ in headings_of(line)]


def _names_of(titles: Sequence[str], headings: Sequence[str]) -> dict[str, float]:
    """Return the folded headings above and in a chunk with their values as names."""
    values: dict[str, float] = {}
    for title in [*titles[-1:], *headings]:
        values[names.folded_name(title)] = _INNER_HEADING_VALUE
    for title in titles[:1]:
        values[names.folded_name(title)] = names.TOP_HEADING
    for name in set(map(names.folded_name, headings)):
        values[name] += _IN_TEXT_BONUS
    return values


def _definitions_in(text: str, path: str) -> tuple[DefinedName, ...]:
    """Return the names that a piece of source code defines."""
    defined_names: list[DefinedName] = []
    for definition in definitions_of(text, path):
        # "impl Display for Plan" defines no Display.
        if definition.kind == "impl" and _IMPL_FOR.match(text, definition.start):
            continue
        name = _LAST_PART.split(definition.name)[-1]
        defined_names.append(DefinedName(name, code_key(name), code_terms(name)))
    return tuple(defined_names)


def _hash_of(text: str) -> int | None:
    """Return a number for the words of a text, which white space and case do not change.

    None for a short text.
    """
    words = text.casefold().split()
    if len(words) < _LEAST_HASHED:
        return None
    digest = blake2b(" ".join(words).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


# By row


@dataclass(frozen=True, eq=False)
class ChunkInfoArrays(RowArrays):
    """The info of some rows as JSON.

    Attributes:
        ids: The number of each row.
        bounds: Where the JSON of each row begins, and where the last one ends.
        data: The JSON of all rows.
    """

    bounds: Ints
    data: npt.NDArray[np.uint8]

    @classmethod
    def build(cls, ids: Ints, infos: Sequence[bytes]) -> ChunkInfoArrays:
        """Return the arrays of rows and their info, as :meth:`ChunkInfo.to_json` returns it.

        Raises:
            ValueError: There are fewer infos than rows, or more.
        """
        if len(infos) != len(ids):
            raise ValueError(f"{len(ids)} rows have {len(infos)} infos")
        bounds = np.cumsum([0, *map(len, infos)])
        return cls(ids, bounds, np.frombuffer(b"".join(infos), np.uint8))

    @classmethod
    def merge(cls, parts: Sequence[Part]) -> ChunkInfoArrays:
        """Return the living rows of several arrays as one."""
        live = np.concatenate([live for _, live in parts])
        ids = np.concatenate([arrays.ids for arrays, _ in parts])
        sizes = np.concatenate([np.diff(arrays.bounds) for arrays, _ in parts])
        data = np.concatenate([arrays.data for arrays, _ in parts])
        bounds = np.append(0, np.cumsum(sizes[live]))
        return cls(ids[live], bounds, data[np.repeat(live, sizes)])

    def check(self) -> None:
        """Raise a ValueError where the arrays do not fit together."""
        require(self.data.dtype == np.uint8)
        require(len(self.bounds) == len(self.ids) + 1)
        require(are_offsets(self.bounds, len(self.data)))

    def json_at(self, place: int) -> bytes:
        """Return the JSON of the row at a place."""
        return self.data[self.bounds[place] : self.bounds[place + 1]].tobytes()


class ChunkInfoIndex(ArrayIndex):
    """The :class:`ChunkInfo` of rows."""

    made_of = ChunkInfoArrays

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        super().__init__(parts)
        self._remembered: dict[int, ChunkInfo] = {}

    def with_infos(self, rows: Rows, infos: Sequence[bytes]) -> ChunkInfoIndex:
        """Return the index with more rows; a known row gets the new info.

        Args:
            rows: The numbers of the rows.
            infos: The info of each, as :meth:`ChunkInfo.to_json` returns it.
        """
        ids = np.asarray(rows, np.int64)
        return self.changed(ids, ChunkInfoArrays.build(ids, infos)) if len(ids) else self

    def read(self, rows: Sequence[int]) -> dict[int, ChunkInfo]:
        """Return the info of rows by number, without unknown rows.

        Raises:
            StorageError: The info on disk is not that of a chunk.
        """
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered = {}
        infos = self._remembered
        missing = [row for row in rows if row not in infos]
        if missing:
            places, _ = self.find(missing)
            for arrays, inside, _ in self.by_part(places):
                for place in inside.tolist():
                    infos[int(arrays.ids[place])] = ChunkInfo.from_json(arrays.json_at(place))
        return {row: infos[row] for row in rows if row in infos}
