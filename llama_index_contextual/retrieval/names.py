"""Names: whether a question is the name of a document, or of a heading in it."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from llama_index_contextual.metadata import HEADER_PATH, HEADING_LEVEL, PATH, TITLE, heading_titles
from llama_index_contextual.text import fold, normalise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.retrieval.bm25 import ContextualBM25Retriever

_LINK: Final = re.compile(r"!?\[\[([^\[\]|#^\n]{1,200})(?:[#^][^\[\]|\n]{0,200})?(?:\|[^\[\]\n]{0,200})?\]\]")
_QUOTES: Final = "\"'“”„«»`’‘<>"
_SEPARATORS: Final = re.compile(r"[\s\-_./\\]+")
_HEADING_LINE: Final = re.compile(r" {0,3}#{1,6}[ \t]+(\S.*)$")
_READ: Final = 1000  # characters of a chunk that may be headings
_LONGEST: Final = 200  # characters of a name
_FILE_PATH: Final = "file_path"
_ALIASES: Final = ("aliases", "alias")
_MOST_WORDS: Final = 16  # of a name
_DOCUMENT, _HEADING = 1.0, 0.5


# The same few paths, titles and headings come again with each question.
@lru_cache(maxsize=65_536)
def folded_name(text: str) -> str:
    """Return a name without case, accents, brackets of a link, and with spaces for all separators."""
    text = text.strip().strip(_QUOTES).strip()
    if link := _LINK.fullmatch(text):
        text = link[1]
    return " ".join(_SEPARATORS.sub(" ", fold(normalise(text)).casefold()).split())


def opening_of(text: str) -> str:
    """Return the headings with which a chunk begins."""
    titles = []
    for line in text[:_READ].splitlines():
        if found := _HEADING_LINE.match(line):
            titles.append(found[1])
        elif line.strip():
            break
    return " ".join(titles)


@lru_cache(maxsize=65_536)
def names_of_path(path: str) -> frozenset[str]:
    """Names of a file: its path, the file's name, and both without the suffix, folded."""
    pure = PurePosixPath(path.replace("\\", "/"))
    both = (pure.parts, pure.with_suffix("").parts if pure.suffix and pure.stem else ())
    return frozenset(folded_name("/".join(parts[start:])) for parts in both for start in range(len(parts)))


@lru_cache(maxsize=65_536)
def _document_names(path: str, title: str, *aliases: str) -> frozenset[str]:
    """Names of a document, folded."""
    named = (title, *(part for one in aliases for part in one.split(",")))
    return names_of_path(path) | frozenset(map(folded_name, named))


@lru_cache(maxsize=65_536)
def _section_names(header_path: str) -> frozenset[str]:
    """The first and the last title of a header path, folded."""
    titles = heading_titles({HEADER_PATH: header_path, HEADING_LEVEL: 1})
    return frozenset(map(folded_name, (*titles[:1], *titles[-1:])))


def named_documents(query: str, arm: ContextualBM25Retriever, node_ids: Sequence[str]) -> dict[str, tuple[str, float]]:
    """Return the document of each candidate whose name the question is, and 1, or 0.5 where it is a heading's.

    Args:
        query: The question.
        arm: Knows the metadata of the candidates.
        node_ids: The candidates.
    """
    name = folded_name(query) if len(query) <= _LONGEST else ""
    if not 0 < len(name.split()) <= _MOST_WORDS or not node_ids:
        return {}
    columns = [arm.values(key, node_ids) for key in (PATH, _FILE_PATH, TITLE, HEADER_PATH, *_ALIASES)]
    found: dict[str, tuple[str, float]] = {}
    for node_id in node_ids:
        path, file_path, title, header_path, *aliases = (str(values.get(node_id) or "") for values in columns)
        if name in _document_names(path or file_path, title, *aliases):
            found[node_id] = (path or file_path or node_id, _DOCUMENT)
        elif name in _section_names(header_path):
            found[node_id] = (path or file_path or node_id, _HEADING)
    return found
