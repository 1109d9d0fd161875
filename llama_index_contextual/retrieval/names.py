"""Names: whether a question is the name of a document, or of a heading in it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from llama_index_contextual.metadata import HEADER_PATH, HEADING_LEVEL, PATH, TITLE, heading_titles
from llama_index_contextual.text import fold, normalise

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


def names_of_path(path: str) -> Iterator[str]:
    """Yield the names of a file: its path, the file's name, and both without the suffix, folded."""
    pure = PurePosixPath(path.replace("\\", "/"))
    for one in (pure, pure.with_suffix("") if pure.suffix and pure.stem else pure):
        parts = one.parts
        yield from (folded_name("/".join(parts[start:])) for start in range(len(parts)))


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
    keys = (PATH, _FILE_PATH, TITLE, HEADER_PATH, *_ALIASES)
    columns = {key: arm.values(key, node_ids) for key in keys}
    of_path: dict[str, bool] = {}
    found: dict[str, tuple[str, float]] = {}
    for node_id in node_ids:
        values = {key: values.get(node_id) for key, values in columns.items()}
        path = str(values[PATH] or values[_FILE_PATH] or "")
        if path not in of_path:
            of_path[path] = name in names_of_path(path)
        sections = heading_titles({HEADER_PATH: values[HEADER_PATH], HEADING_LEVEL: 1})
        names = [str(values[TITLE] or ""), *(part for key in _ALIASES for part in str(values[key] or "").split(","))]
        if of_path[path] or name in map(folded_name, names):
            found[node_id] = (path or node_id, _DOCUMENT)
        elif sections and name in {folded_name(sections[0]), folded_name(sections[-1])}:
            found[node_id] = (path or node_id, _HEADING)
    return found
