"""Hits as people and agents are shown them: few of one document, with the lines around what matches."""

from __future__ import annotations

import contextlib
import ctypes
import re
import socket
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar

from llama_index_contextual.memory.snippets import choose_snippet
from llama_index_contextual.retrievers.query_dates import HAS_CJK
from llama_index_contextual.retrievers.terms import finder_of, query_groups
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import ContextualWarning, SettingError
from llama_index_contextual.utils.text import WIKI_LINK, readable, wiki_text

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.app.index.index import ContextualIndex
    from llama_index_contextual.retrievers.explanation import Explanation, Hit

_T = TypeVar("_T")

LOOPBACK: Final = ("127.0.0.1", "localhost")
TOP_K: Final = 5
_ARENA_MAX: Final = -8  # glibc's M_ARENA_MAX
_POOL: Final = 50  # hits of which those of one document are counted
_LINES: Final = 3  # of an excerpt
_CHARS: Final = 400
_HEADING: Final = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_BULLET: Final = re.compile(r"^(?:[-*+>] |\[[ xX]\] |\[![\w-]{1,40}\][+-]? ?){1,4}")
_LINK: Final = re.compile(
    r"!?\[([^\[\]]{1,200})\]\([^()\s]{0,500}\)"
)  # its text may go over two lines
_EMPHASIS: Final = re.compile(
    r"`([^`\n]+)`|(?<![\w*=~])(\*{1,3}|==|~~)(?=[^\s*=~])((?:(?!\2).){1,200})(?<=\S)\2(?![\w*=~])"
)
_CELLS: Final = re.compile(r"(`[^`\n]+`)|(?<!\\)\|")
_RULES: Final = frozenset("-*_=|:…· ")
_WORD: Final = re.compile(r"\w+|\W+")


def limit_arenas() -> None:
    """Let all threads share two arenas of memory: one for each thread would keep the most that it ever needed."""
    with contextlib.suppress(OSError, TypeError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 2)


def run_app(app_of: Callable[[int], Any], port: int, place: str) -> None:
    """Serve the application of a port on this machine alone; its address, with a place in it, goes to standard error.

    Raises:
        SettingError: Another program has the port; 0 is one that is free.
    """
    import uvicorn

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((LOOPBACK[0], port))
        except OSError as error:
            message = f"`port` {port} cannot be used at {LOOPBACK[0]} ({error.strerror})."
            raise SettingError(f"{message} Choose another port.") from error
        listening.listen()
        port = listening.getsockname()[1]
        config = uvicorn.Config(app_of(port), log_level="critical", timeout_graceful_shutdown=1)
        sys.stderr.write(f"ready at http://{LOOPBACK[0]}:{port}{place}\n")
        sys.stderr.flush()
        uvicorn.Server(config).run(sockets=[listening])


# Hits


@dataclass(frozen=True)
class ShownHit:
    """A hit with what is shown of it.

    Attributes:
        hit: The hit.
        node: The chunk.
        path: The path of its document.
        name: The title of its document, else the name of the file.
        date: Its day; "" for none.
        headings: The headings that it stands under, without one that repeats the name.
        terms: The terms of the question that it holds.
        more: Further hits of its document, which are counted at the last one that is shown.
    """

    hit: Hit
    node: BaseNode
    path: str
    name: str
    date: str
    headings: str
    terms: frozenset[str]
    more: int

    @classmethod
    def of(cls, hit: Hit, more: int) -> ShownHit:
        """What is shown of a hit."""
        node, name = hit.node.node, note_name(hit.node.node)
        date, headings = (
            str(metadata.value_of(node.metadata, key) or "")
            for key in (metadata.DATE, metadata.HEADER_PATH)
        )
        headings = "" if headings.casefold() == name.casefold() else headings
        terms = frozenset(term.term for term in hit.terms)
        return cls(hit, node, metadata.path_of(node.metadata), name, date, headings, terms, more)

    @property
    def excerpt(self) -> list[str]:
        """Up to three lines around the words that match."""
        return excerpt(readable(self.node.get_content()), self.terms)

    def to_dict(self) -> dict[str, Any]:
        """Plain data. The text is the displayed one, without its context."""
        keys = (
            metadata.START_LINE,
            metadata.END_LINE,
            metadata.HEADER_PATH,
            metadata.DATE,
            metadata.PAGE_LABEL,
        )
        return {
            "score": self.hit.score,
            "citation": self.hit.source,
            "name": self.name,
            "path": self.path,
            **{key: metadata.value_of(self.node.metadata, key) for key in keys},
            "id": self.node.node_id,
            "text": self.node.get_content(),
            "more_in_document": self.more,
        }


def excerpt(text: str, terms: frozenset[str]) -> list[str]:
    """Up to three lines of a chunk around the terms that match, without headings, rules, fences, marks of Markdown."""
    find = finder_of(terms)
    chosen, _ = choose_snippet(text, dict.fromkeys(terms, 1.0), find, limit=_CHARS)
    chosen = WIKI_LINK.sub(lambda link: wiki_text(link) or link[1], _LINK.sub(r"\1", chosen))
    whole = [
        line.strip() for line in chosen.splitlines() if not line.lstrip().startswith(("```", "~~~"))
    ]
    lines = [_EMPHASIS.sub(_unmarked, _row(_BULLET.sub("", line))) for line in whole]
    kept = [line for line in lines if not (_HEADING.match(line) or _RULES.issuperset(line))]
    first = next((at for at, line in enumerate(kept) if find(line)), 0)
    first = max(0, min(first, len(kept) - _LINES))
    return kept[first : first + _LINES] or [line for line in lines if line][:_LINES]


def _unmarked(part: re.Match[str]) -> str:
    return part[1] or _EMPHASIS.sub(_unmarked, part[3])


def _row(line: str) -> str:
    """The cells of a line that is the row of a table."""
    cells = (
        _CELLS.sub(lambda part: part[1] or "\n", line).split("\n")
        if line[:1] == line[-1:] == "|"
        else [line]
    )
    return " · ".join(filter(None, map(str.strip, cells)))


def marked(text: str, terms: Collection[str]) -> Iterator[tuple[bool, str]]:
    """The parts of a text, each with whether it matches; languages without spaces have terms within words."""
    find, parts = finder_of(terms), list[tuple[bool, str]]()
    for word in _WORD.findall(text):
        found = find(word) if word[0].isalnum() or word[0] == "_" else ()
        is_matched = [bool(found)] * len(word)
        if found and HAS_CJK.search(word):
            is_matched = [False] * len(word)
            for match in (match for term in found for match in re.finditer(re.escape(term), word)):
                is_matched[match.start() : match.end()] = [True] * len(match[0])
        parts += zip(is_matched, word, strict=True)
    for is_match, run in groupby(parts, lambda part: part[0]):
        yield is_match, "".join(part for _, part in run)


def searched_terms(question: str) -> set[str]:
    """The terms of a question in all languages that it may be in."""
    return {term for group in query_groups(question) for term in group}


def note_name(node: BaseNode) -> str:
    """The title of a chunk's document, else the name of its file without the suffix."""
    title = str(metadata.value_of(node.metadata, metadata.TITLE) or "").strip()
    path = metadata.path_of(node.metadata)
    return title or (PurePosixPath(path).stem if path else str(node.ref_doc_id or node.node_id))


def ask(
    index: ContextualIndex,
    question: str,
    most: int | None = None,
    filters: MetadataFilters | None = None,
    *,
    per_file: int | None = None,
    min_score: float | None = None,
) -> tuple[Explanation, list[ShownHit]]:
    """The hits of a question as people are shown them: without those that are hardly relevant, few of one document.

    Args:
        index: The index.
        question: The question.
        most: Most hits; None is what the configuration sets, else 5.
        filters: LlamaIndex's.
        per_file: Most hits of one document; 0 is no limit, None is what the configuration sets.
        min_score: The relevance that a hit needs; None is what the configuration sets, else 0.05 of the best hit.

    Raises:
        SettingError: The question is empty.
    """
    if not question.strip():
        raise SettingError(f"`question` is empty (got {question!r}). Say what to look for.")
    configuration = index.settings.configuration
    most = most or configuration["retrieval.top_k"] or TOP_K
    per_file = configuration["retrieval.per_file"] if per_file is None else per_file
    least = (
        configuration.values.get("retrieval.min_score", "auto") if min_score is None else min_score
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextualWarning)  # the explanation says the same
        retriever = index.as_retriever(
            max(most, _POOL) if per_file else most, filters=filters, min_score=least
        )
        explanation = retriever.explain(question)
    kept = few_of_each(
        explanation.hits,
        lambda hit: metadata.path_of(hit.node.node.metadata) or hit.node_id,
        per_file,
        most,
    )
    return replace(explanation, hits=tuple(hit for hit, _ in kept)), [
        ShownHit.of(hit, more) for hit, more in kept
    ]


def few_of_each(
    items: Iterable[_T], document_of: Callable[[_T], Hashable], per_file: int, most: int
) -> list[tuple[_T, int]]:
    """The best items, of which one document has at most ``per_file``; the last of a document counts the others."""
    counts, shown = Counter[Hashable](), Counter[Hashable]()
    kept = list[tuple[Hashable, _T]]()
    for item in items:
        key = document_of(item)
        counts[key] += 1
        if len(kept) < most and not (per_file and shown[key] >= per_file):
            shown[key] += 1
            kept.append((key, item))
    last = {key: at for at, (key, _) in enumerate(kept)}
    return [
        (item, (counts[key] - shown[key]) * (last[key] == at))
        for at, (key, item) in enumerate(kept)
    ]
