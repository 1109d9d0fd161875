"""Contexts that cost nothing: of headings, and of source code. Other documents get their headings."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import MetadataMode

from llama_index_contextual import metadata
from llama_index_contextual.context.base import ChunkContext, ContextGenerator, SourceDocument
from llama_index_contextual.context.documents import position, start_of
from llama_index_contextual.context.source_code import SourceCode, first_sentence, read_code
from llama_index_contextual.text import date_in_words, short_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from llama_index.core.schema import BaseNode


_FORM: Final = "Document: {breadcrumb}\n{title}\n{date}\n{continues}"  # part of the version
_REVISION: Final = 3  # raise it when the same settings would give other words
_MOST_CHARS: Final = 300  # of a breadcrumb: a longer one loses its outer headings first, its own heading last

_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_YEAR: Final = re.compile(r"(19|20)\d\d")
_HASH: Final = re.compile(r"[0-9a-f-]{8,}", re.IGNORECASE)
_LEAST_DIGITS: Final = 3  # of a number that counts files: "GPT-4" and "chapter-3" say something


class HeadingContextGenerator(ContextGenerator):
    """``Document: memory/2026-01-28.md > Morning Check-in > Task Updates``, then title and date where known.

    The breadcrumb carries identity and no phrase that every chunk would share, because shared phrases pull the vectors
    of small embedding models together. Below it stand the title from front matter, unless a heading or the path says it
    already, the date in words, and what an earlier piece of a split table or fence holds. Where nothing but a path is
    known and it is an id (``urteil-001.md``), the keyword arm alone reads it: see :func:`is_id`.
    """

    name = "headings"
    version = short_hash([name, _REVISION, _FORM, _MOST_CHARS])

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:
        """One context per node; its text is empty where no heading, title, date or path with words is known."""
        texts = (_describe(node, document) for node in nodes)
        return [ChunkContext(text, self.name, lexical, self.version) for text, lexical in texts]


def _describe(node: BaseNode, document: SourceDocument) -> tuple[str, str]:
    """The embedded context of a chunk, and the one that the keyword arm alone reads."""
    values: Mapping[str, Any] = {**document.metadata, **node.metadata}
    headings = metadata.heading_titles(values)
    keys = metadata.TITLE, metadata.DATE, metadata.CONTINUES
    title, day, continues = (metadata.value_of(values, key) or "" for key in keys)
    below = [_new_title(str(title), document.path, headings), date_in_words(day), str(continues)]
    breadcrumb = _breadcrumb(document.path, headings)
    lines = [breadcrumb and f"Document: {breadcrumb}", *map(str.rstrip, below)]
    text = "\n".join(filter(None, lines)).strip()
    return (text, "") if headings or any(below) or not is_id(document.path) else ("", text)


def _breadcrumb(path: str, headings: Sequence[str]) -> str:
    for first in range(max(1, len(headings))):
        parts = [path, "…" if first else "", metadata.join_header_path(headings[first:])]
        breadcrumb = metadata.HEADER_SEPARATOR.join(filter(None, parts))
        if len(breadcrumb) <= _MOST_CHARS:
            return breadcrumb
    return f"{breadcrumb[: _MOST_CHARS - 1].rstrip()}…"  # the chunk's own heading is all that is left


def is_id(path: str) -> bool:
    """Whether a path holds no words about what is in the file: ``urteil-001.md``, ``0042.txt``, a hash.

    Such a name is a number, a hash, or one word with a number of three digits or more that is no year, in no folder
    with a word. Embedded, it costs vectors more than it gives (``benchmarks/results/languages.md``).
    """
    file = PurePosixPath(path)
    name = file.stem
    words, numbers = _WORD.findall(name), re.findall(r"\d+", name)
    is_counter = any(len(number) >= _LEAST_DIGITS and not _YEAR.fullmatch(number) for number in numbers)
    opaque = bool(_HASH.fullmatch(name)) or len(words) <= is_counter
    return bool(numbers) and opaque and not _WORD.search(file.parent.as_posix())


def _new_title(title: str, path: str, headings: Sequence[str]) -> str:
    """Keep a title only where it adds words: many documents repeat it as their first heading."""
    names = {name.casefold() for name in (*headings, path, path.rpartition("/")[2].rpartition(".")[0])}
    title = metadata.shortened(" ".join(title.split()))
    return "" if title.casefold() in names else title


_PATTERN_REVISION: Final = 5  # raise it when the same text would give other words
_MOST_SYMBOLS: Final = 12  # names that a context lists
_MOST_LEXICAL: Final = 2000  # characters for the keyword arm


class PatternContextGenerator(ContextGenerator):
    """Contexts of source code: ``From file: search/engine.py. In: class Engine. Defines: function search.``.

    What is embedded stays that short. Of the chunk that the file begins with the keyword arm gets every name that the
    file defines.

    Other files than source code get the context of their headings, and for the keyword arm all the document's headings.
    """

    name = "pattern"
    version = short_hash([name, _PATTERN_REVISION, name, _MOST_SYMBOLS, _MOST_LEXICAL, HeadingContextGenerator.version])

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:
        """One context per node."""
        code = read_code(document.text, document.path)
        if code is None:
            return self._from_headings(nodes, document)
        return [self._from_code(node, document, code) for node in nodes]

    def _from_code(self, node: BaseNode, document: SourceDocument, code: SourceCode) -> ChunkContext:
        start, end = position(node, document)
        if start == end:  # the chunk is not part of the text that is known: read it by itself
            text = node.get_content(metadata_mode=MetadataMode.NONE)
            code, start, end = read_code(text, document.path) or code, 0, len(text)
        parts = _listed("In", code.enclosing(start)), _listed("Defines", code.defined(start, end))
        text = " ".join(filter(None, [f"From file: {document.path}.", *parts]))
        is_first = end > start and not code.text[:start].strip()
        names = [code.language, *dict.fromkeys(symbol.name for symbol in code.symbols)] if is_first else []
        return ChunkContext(text, self.name, " ".join(names)[:_MOST_LEXICAL], self.version)

    def _from_headings(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:
        titles = dict.fromkeys(title for node in nodes for title in metadata.heading_titles(node.metadata))
        # What stands before the first chunk is front matter.
        body = document.text[position(nodes[0], document)[0] if start_of(nodes[0]) > 0 else 0 :]
        more = [*titles, first_sentence(body)]
        texts = (_describe(node, document) for node in nodes)
        lexical = ((text, " ".join(filter(None, [path, *more]))[:_MOST_LEXICAL]) for text, path in texts)
        return [ChunkContext(text, self.name, words, self.version) for text, words in lexical]


def _listed(label: str, symbols: Iterable[object]) -> str:
    names = list(dict.fromkeys(map(str, symbols)))
    more = ", …" if len(names) > _MOST_SYMBOLS else ""
    return f"{label}: {', '.join(names[:_MOST_SYMBOLS])}{more}." if names else ""


FREE: Final[dict[str, Callable[[], ContextGenerator]]] = {
    "pattern": PatternContextGenerator,
    "headings": HeadingContextGenerator,
}
"""The generators that cost nothing, by name."""
