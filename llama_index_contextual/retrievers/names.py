"""Names of documents, folded, and the index of them: ends of a path, a title, aliases, the heading that comes first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np

from llama_index_contextual.retrievers.arrays import ArrayIndex, Floats, Ints, Numbers, RowArrays
from llama_index_contextual.retrievers.bm25_index import term_number
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.language import fold, normalise

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_LINK: Final = re.compile(
    r"!?\[\[([^\[\]|#^\n]{1,200}(?:#(?=[\]|]))?)(?:[#^][^\[\]|\n]{0,200})?(?:\|[^\[\]\n]{0,200})?\]\]"
)
_QUOTES: Final = (
    "\"'`<>«»\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u2039\u203a\u300c\u300d\u300e\u300f"
)
_PLACE: Final = re.compile(r"(?<=\w)(\.[A-Za-z]\w{0,9})#.*")  # in a file: a.md#L3-L9, a.md#Heading
# Blanks, quotation marks, dashes, slashes, brackets, marks of emphasis and of sentences.
_SEPARATORS: Final = re.compile(
    rf"[{_QUOTES}\s\-_./\\()\[\]{{}}*|\u05be\u2010-\u2015\u2212?!,;:\u00a1\u00bf\u2026\u3001\u3002]+"
)
_ENDING: Final = re.compile(r"(?<=\w\w)s\b")
_LOOSE: Final = "\0"  # before a name without spaces and the endings of plurals
LONGEST_NAME: Final = 200  # characters of a name
NAMING: Final = (metadata.TITLE, "aliases", "alias")  # metadata keys of names of a document
NAMES_VERSION: Final = 1  # another one wherever a name is folded to something else
_NAME, TOP_HEADING = 1.0, 0.75  # values of a name, and of the heading with which a document begins


# The same few paths, titles and headings come again with each question.
@lru_cache(maxsize=65_536)
def folded_name(text: str) -> str:
    """A name without case, accents and brackets of a link, and with spaces for quotation marks and other separators."""
    return " ".join(_SEPARATORS.sub(" ", fold(normalise(_unlinked(text))).casefold()).split())


def _unlinked(text: str) -> str:
    """A name without quotes, brackets of a link, and codes of a URL."""
    text = _PLACE.sub(r"\1", text.strip().strip(_QUOTES).strip())
    link = _LINK.fullmatch(text)
    return unquote(link[1] if link else text)


def _loose(name: str) -> str:
    return _LOOSE + _ENDING.sub("", name).replace(" ", "") if name else ""


def titles_in(header_path: object) -> Sequence[str]:
    """The headings of a header path, outermost first."""
    return metadata.heading_titles(
        {metadata.HEADER_PATH: header_path or "", metadata.HEADING_LEVEL: 1}
    )


def document_names(path: str, title: str, *aliases: str) -> list[str]:
    """Folded names of a document: its title; aliases between commas; ends of its path, each without the suffix, too."""
    pure = PurePosixPath(path.replace("\\", "/"))
    folders, files = (
        [folded_name(part) for part in pure.parts[:-1]],
        [pure.name, pure.stem if pure.suffix else ""],
    )
    ends = [
        [*folders[start:], file]
        for file in map(folded_name, files)
        if file
        for start in range(len(folders) + 1)
    ]
    named = [title, *(part for one in aliases for part in one.split(","))]
    return [*map(folded_name, named), *(" ".join(filter(None, parts)) for parts in ends)]


def _values_of_names(path: str, first: Mapping[str, Any]) -> dict[str, float]:
    """Each name of a document with its value; the name without spaces and plurals has it negated.

    Args:
        path: Of the document, or its id.
        first: Metadata of its first chunk.
    """
    naming = [str(first.get(key) or "") for key in NAMING]
    values = {
        folded_name(title): TOP_HEADING for title in titles_in(first.get(metadata.HEADER_PATH))[:1]
    }
    values |= dict.fromkeys(document_names(path, *naming), _NAME)
    both = values | {_loose(name): -value for name, value in values.items()}
    return {name: value for name, value in both.items() if name}


@dataclass(frozen=True, eq=False)
class NameArrays(RowArrays):
    """Names of documents; ``ids`` has the row of a document's first chunk once for each.

    Args:
        ids: The rows.
        names: Numbers of the folded names.
        values: Of the names.
    """

    names: Numbers
    values: Floats


class NameIndex(ArrayIndex):
    """Documents by their names, each by the row of its first chunk."""

    made_of = NameArrays

    def with_documents(
        self, rows: Sequence[int] | Ints, documents: Iterable[tuple[str, Mapping[str, Any]]]
    ) -> NameIndex:
        """Index with more documents.

        Args:
            rows: Of the first chunk of each.
            documents: The path of each, or its id, and the metadata of its first chunk.
        """
        named = [_values_of_names(*one) for one in documents]
        names = np.array([term_number(name) for one in named for name in one], np.uint64)
        values = np.array([value for one in named for value in one.values()], np.float64)
        ids = np.repeat(np.asarray(rows, np.int64), [len(one) for one in named])
        return self.changed((), NameArrays(ids, names, values)) if len(ids) else self

    def find_named(self, text: str) -> list[tuple[int, float]]:
        """Rows of documents whose name a text is, and the values of the name, best first.

        Where no document has that name, those that have it but for spaces and a plural, whose values are negative.
        """
        name = folded_name(text) if len(text) <= LONGEST_NAME else ""
        exact = self._having(name) if name else []
        return exact or (self._having(_loose(name)) if name else [])

    def _having(self, name: str) -> list[tuple[int, float]]:
        found = list[tuple[int, float]]()
        for arrays, live in self.parts:
            at = np.flatnonzero((arrays.names == term_number(name)) & live)
            found += zip(arrays.ids[at].tolist(), arrays.values[at].tolist(), strict=True)
        return sorted(found, key=lambda item: (-abs(item[1]), item[0]))
