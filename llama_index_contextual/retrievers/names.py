"""The names of documents: path endings, the title, aliases, and the first heading."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from llama_index_contextual.retrievers.arrays import ArrayIndex, Floats, Numbers, RowArrays, Rows
from llama_index_contextual.retrievers.bm25_index import term_number
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.language import fold, normalise

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_LINK = re.compile(
    r"!?\[\[([^\[\]|#^\n]{1,200}(?:#(?=[\]|]))?)(?:[#^][^\[\]|\n]{0,200})?(?:\|[^\[\]\n]{0,200})?\]\]"
)
_QUOTES = (
    "\"'`<>«»\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u2039\u203a\u300c\u300d\u300e\u300f"
)
_ANCHOR = re.compile(r"(?<=\w)(\.[A-Za-z]\w{0,9})#.*")  # a.md#L3-L9, a.md#Heading
# White space, quotation marks, dashes, slashes, brackets, emphasis and punctuation.
_SEPARATORS = re.compile(
    rf"[{_QUOTES}\s\-_./\\()\[\]{{}}*|\u05be\u2010-\u2015\u2212?!,;:\u00a1\u00bf\u2026\u3001\u3002]+"
)
LONGEST_NAME = 200  # characters of a name
NAMING = (metadata.TITLE, "aliases", "alias")  # metadata keys of document names
NAMES_VERSION = 2  # increase it when the folding of names changes
NAME_VALUE = 1.0
TOP_HEADING = 0.75  # the value of the first heading of a document as its name


@lru_cache(maxsize=65_536)  # the same paths, titles and headings are folded for each query
def folded_name(text: str) -> str:
    """Return a name without case, accents and link brackets, with single spaces between words."""
    unquoted = text.strip().strip(_QUOTES).strip()
    name = _ANCHOR.sub(r"\1", unquoted)
    link = _LINK.fullmatch(name)
    if link:
        name = link[1]
    folded = fold(normalise(unquote(name))).casefold()
    words = _SEPARATORS.sub(" ", folded).split()
    return " ".join(words)


def titles_in(header_path: object) -> Sequence[str]:
    """Return the headings of a header path, outermost first."""
    keys = {metadata.HEADER_PATH: header_path or "", metadata.HEADING_LEVEL: 1}
    return metadata.heading_titles(keys)


def document_names(
    path: str,
    title: str,
    *aliases: str,
) -> list[str]:
    """Return the folded names of a document.

    They are its title, its aliases, and the endings of its path, with and without the suffix. For
    ``work/Notes.md``, these are ``work notes md``, ``work notes``, ``notes md`` and ``notes``.

    Args:
        path: The path of the document.
        title: The title.
        aliases: Further names. Each can be a list with commas.
    """
    names = [folded_name(title)]
    for listed in aliases:
        names += [folded_name(alias) for alias in listed.split(",")]
    pure_path = PurePosixPath(path.replace("\\", "/"))
    folders = [folded_name(folder) for folder in pure_path.parts[:-1]]
    file_names = [folded_name(pure_path.name), folded_name(pure_path.stem)]
    for file in filter(None, dict.fromkeys(file_names)):
        for start in range(len(folders) + 1):
            parts = filter(None, folders[start:])
            names.append(" ".join([*parts, file]))
    return names


def _values_of_names(path: str, first_chunk: Mapping[str, Any]) -> dict[str, float]:
    """Return the names of a document with their values.

    Args:
        path: The path of the document, or its id.
        first_chunk: The metadata of its first chunk.
    """
    titles = titles_in(first_chunk.get(metadata.HEADER_PATH))
    naming = [str(first_chunk.get(key) or "") for key in NAMING]
    values = {folded_name(title): TOP_HEADING for title in titles[:1]}
    values |= dict.fromkeys(document_names(path, *naming), NAME_VALUE)
    values.pop("", None)
    return values


@dataclass(frozen=True, eq=False)
class NameArrays(RowArrays):
    """The names of documents, each with the row of the first chunk of its document.

    Attributes:
        ids: The row for each name.
        names: The numbers of the folded names.
        values: The values of the names, 0 to 1.
    """

    names: Numbers
    values: Floats


class NameIndex(ArrayIndex):
    """An index of documents by name. A document is identified by the row of its first chunk."""

    arrays_type = NameArrays

    def with_documents(
        self, rows: Rows, documents: Iterable[tuple[str, Mapping[str, Any]]]
    ) -> NameIndex:
        """Return the index with further documents.

        Args:
            rows: The row of the first chunk of each document.
            documents: The path or id of each document, with the metadata of its first chunk.
        """
        ids: list[int] = []
        names: list[int] = []
        values: list[float] = []
        for row, (path, first_chunk) in zip(rows, documents, strict=True):
            values_of_document = _values_of_names(path, first_chunk)
            ids += [int(row)] * len(values_of_document)
            names += map(term_number, values_of_document)
            values += values_of_document.values()
        if not ids:
            return self
        added = NameArrays(
            ids=np.array(ids, np.int64),
            names=np.array(names, np.uint64),
            values=np.array(values),
        )
        return self.changed((), added)

    def find_named(self, text: str) -> list[tuple[int, float]]:
        """Return the rows of the documents that a text names, with the value of the name."""
        named: list[tuple[int, float]] = []
        name = folded_name(text) if len(text) <= LONGEST_NAME else ""
        if name:
            number = term_number(name)
            for arrays, live in self.parts:
                hits = np.flatnonzero((arrays.names == number) & live)
                rows = arrays.ids[hits].tolist()
                values = arrays.values[hits].tolist()
                named += zip(rows, values, strict=True)
        return sorted(named, key=lambda item: (-item[1], item[0]))
