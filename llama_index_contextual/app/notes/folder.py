"""A folder of notes as an agent uses it: asked and read, while a refresh keeps its index up to date."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Literal

from llama_index_contextual.app.folder.formats import suffix_of
from llama_index_contextual.chunking import headings_of
from llama_index_contextual.errors import DocumentError, SettingError
from llama_index_contextual.keyword import items_of
from llama_index_contextual.memory import MemoryContext, MemoryDigest, MemoryEntry, gate_digest, shown_path
from llama_index_contextual.metadata import PATH, split_page
from llama_index_contextual.retrieval import ContextualBM25Retriever, ContextualFusionRetriever
from llama_index_contextual.text import WIKI_LINK, caseless, counted, lines_of, normalise

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.app.index import BackgroundRefresh, ContextualIndex

MOST_LISTED: Final = 500
_EMPTY: Final = "nothing is indexed yet"
_K: Final = 20.0  # of reciprocal rank fusion
_LINES: Final = re.compile(r"#L(\d{1,9})(?:-L?(\d{1,9}))?$")
_NO_WORD: Final = re.compile(r"[^\w\- ]")
_MOST_NOTES: Final = 20  # of one multi_get
_MOST_CHARS: Final = 64_000  # of one answer


By = Literal["both", "words", "meaning"]


@dataclass(frozen=True)  # without slots: MCP's SDK makes a schema of it
class Part:
    """Some lines of a note; both ends are included, and count from 1. ``is_cut``: the last line goes on."""

    path: str
    from_line: int
    to_line: int
    total_lines: int
    text: str
    is_cut: bool = False

    @property
    def extent(self) -> str:
        """Which lines of how many it has; "" for a whole note."""
        if self.from_line == 1 and self.to_line >= self.total_lines and not self.is_cut:
            return ""
        cut = f"; line {self.to_line} is cut, it is longer than {_MOST_CHARS:,} characters" if self.is_cut else ""
        return f"lines {self.from_line} to {self.to_line} of {self.total_lines}{cut}"

    def __str__(self) -> str:
        return f"{self.text}\n\n({self.extent})" if self.extent else self.text


@dataclass(frozen=True)  # without slots: MCP's SDK makes a schema of it
class Listing:
    """Paths of notes, the first of them; how many there are, and of which kinds."""

    paths: list[str]
    total: int
    kinds: dict[str, int]

    def __str__(self) -> str:
        more: list[str] = []
        if self.total > len(self.paths):
            more.append(f"({len(self.paths)} of {self.total}; name a folder for the others)")
        if set(self.kinds) - {"md"}:
            more.append(f"({', '.join(f'{number} {kind}' for kind, number in self.kinds.items())})")
        return "\n".join([*self.paths, *more]) or "(no notes)"


def part_of(
    index: ContextualIndex, target: str, first: int = 1, count: int | None = None, *, whole: bool = False
) -> Part:
    """Return what a hit or a tool has cited: a note, lines or a page of one, a name in double brackets.

    Args:
        index: Of the folder of notes.
        target: ``a.md``, ``a.md#L3-L9``, ``report.pdf#page=4``, ``[[Name]]``, ``[[Name#Heading]]``.
        first: The first line, from 1, where the target names no lines.
        count: Most lines, where it names none; None is all.
        whole: Whether more than 64,000 characters are wanted. Else as many whole lines as fit are returned.

    Raises:
        DocumentError: There is no such note, page, heading or line, or it is no text.
    """
    path, lines_named, heading = _place(index, target)
    text = index.read(path)
    if text is None:
        file, page = split_page(path)
        raise DocumentError(f"{file!r} has no page {page!r}" if page else f"the note {path!r} is not a text file")
    lines = [line.rstrip("\r\n") for line in lines_of(text)]
    if heading and (lines_named := section_of(text, heading)) is None:
        raise DocumentError(f"there is no heading {heading!r} in the note. Cure: the name without it")
    if lines_named:
        first, count = lines_named[0], lines_named[1] - lines_named[0] + 1
    if first > max(len(lines), 1):
        raise DocumentError(f"from_line={first} is too high: {path!r} has {counted(len(lines), 'line')}")
    lines_wanted = lines[first - 1 : None if count is None else first - 1 + count]
    excerpt = "\n".join(lines_wanted)
    is_cut = False
    if len(excerpt) > _MOST_CHARS and not whole:
        is_cut = len(lines_wanted[0]) > _MOST_CHARS
        excerpt = excerpt[:_MOST_CHARS] if is_cut else excerpt[: excerpt.rindex("\n", 0, _MOST_CHARS + 1)]
    last = first + excerpt.count("\n") if lines else 0
    return Part(shown_path(path), first, last, len(lines), excerpt, is_cut)


def _place(index: ContextualIndex, target: str) -> tuple[str, tuple[int, int] | None, str]:
    """Return the path that a target names, perhaps with a page, and the lines or the heading in it."""
    target = target.strip()
    if (path := _path_named(index, target)) is not None:
        return path, None, ""
    if link := WIKI_LINK.fullmatch(target):
        name, heading = link[1], link[2] or ""
        if (path := note_named(name, index.files()) or _alias(index, name)) is None:
            raise DocumentError(
                f"there is no note that [[{name.strip()}]] means. Cure: a path that a search or a list shows"
            )
        return path, None, heading.rpartition("#")[2].strip()
    plain = target.removeprefix("[").removesuffix("]").removeprefix("note:///")
    lines = _LINES.search(plain)
    if (path := _path_named(index, plain[: lines.start()] if lines else plain)) is None:
        raise DocumentError(
            f"there is no note {target!r} that the index reads. Cure: a path that a search or a list shows"
        )
    if lines is None:
        return path, None, ""
    first, last = int(lines[1]), int(lines[2] or lines[1])
    if not 0 < first <= last:
        raise DocumentError(f"{target!r} names no lines. Cure: the first, from 1, then the last: #L3-L9")
    return path, (first, last), ""


def _alias(index: ContextualIndex, name: str) -> str | None:
    """Return the path of the first note whose front matter gives it another name; None for none."""
    for key in ("aliases", "alias") if index.exists else ():
        for value, path in zip(index.values(key), index.values(PATH), strict=True):
            if caseless(name.strip()) in items_of(value):
                return str(path)
    return None


def _path_named(index: ContextualIndex, path: str) -> str | None:
    """Return the path of a note that is named by it or as a citation shows it, with its page; None without one."""
    if path in index.files(path):
        return path
    file = split_page(path)[0]
    wanted = {normalise(path), normalise(file)}
    match = next((known_path for known_path in index.files() if normalise(shown_path(known_path)) in wanted), None)
    return match if match is None or normalise(shown_path(match)) == normalise(path) else match + path[len(file) :]


def note_named(name: str, paths: Iterable[str]) -> str | None:
    """The note that ``[[name]]`` means: by its path or its file's name; the least deep one, or None.

    Args:
        name: In any case, with or without ``.md``.
        paths: Those of the notes.
    """
    title = caseless(name.strip()).removesuffix(".md")
    folded = ((caseless(path).removesuffix(".md"), path) for path in paths)
    matches = [path for key, path in folded if key == title or key.endswith(f"/{title}")]
    return min(matches, key=lambda path: (path.count("/"), path), default=None)


def section_of(text: str, heading: str) -> tuple[int, int] | None:
    """First and last line of the section below a heading, with it; None where there is none."""
    headings = headings_of(text)
    at = next((at for at, (title, _, _) in enumerate(headings) if _slug(title) == _slug(heading)), None)
    if at is None:
        return None
    _, level, first = headings[at]
    after = (line for _, other, line in headings[at + 1 :] if other <= level)
    return first, next(after, sum(1 for _ in lines_of(text)) + 1) - 1


def _slug(heading: str) -> str:
    """A heading as an anchor has it: ``Open questions`` and ``open-questions`` are one."""
    return _NO_WORD.sub("", caseless(heading)).replace(" ", "-")


class Notes:
    """A folder of notes: asked, read and listed."""

    def __init__(self, index: ContextualIndex, memory: MemoryContext, keeper: BackgroundRefresh) -> None:
        self.index = index
        self.memory = memory
        self.keeper = keeper

    async def context(self, message: str) -> MemoryDigest:
        """Return the digest for a message; small talk touches neither folder nor index."""
        closed = gate_digest(message, self.memory.settings)
        return closed or await self.fresh(lambda: self.memory.aget(message))

    async def fresh(self, ask: Callable[[], Awaitable[MemoryDigest]]) -> MemoryDigest:
        """Ask after a short look at the folder, and say what the answer does not know yet."""
        note = await self.keeper.alook()
        is_tried = note.refreshing or note.error
        if is_tried and not await asyncio.to_thread(lambda: self.index.exists):  # it may ask a server
            return MemoryDigest(applicable=True, reason=_EMPTY).noting(f"{_EMPTY}; {note}")
        return (await ask()).noting(str(note))

    async def search(
        self, queries: Sequence[tuple[str, By]], max_results: int, filters: MetadataFilters | None
    ) -> MemoryDigest:
        """Return what several queries find together, each by words, by meaning or by both; one alone as it is.

        A hit ranks by its places in all of them (reciprocal rank fusion). Its text is that of the query that has it
        highest.

        Raises:
            SettingError: A query is by an arm that the index lacks.
        """
        digests = await asyncio.gather(
            *(self._memory_by(by).asearch(text, max_results=max_results, filters=filters) for text, by in queries)
        )
        return digests[0] if len(digests) == 1 else _merged(digests, max_results)

    def _memory_by(self, by: By) -> MemoryContext:
        if by == "both":
            return self.memory
        arms = self.index.as_retriever(similarity_top_k=self.memory.settings.candidate_pool).retrievers
        matching = [arm for arm in arms if isinstance(arm, ContextualBM25Retriever) == (by == "words")]
        if not matching:
            raise SettingError("cannot be: this index has no embedding. Cure: by='words'", by=by)
        return MemoryContext(ContextualFusionRetriever(matching), self.memory.settings)

    def several(self, glob: str) -> tuple[list[tuple[str, str]], int]:
        """Return notes whose path a pattern matches, each path with its text, and how many there are."""
        paths = [path for path in self._readable() if fnmatchcase(path, glob) or fnmatchcase(shown_path(path), glob)]
        if not paths:
            raise DocumentError(f"no note matches {glob!r}. Cure: a path that a search or a list shows")
        notes: list[tuple[str, str]] = []
        room = _MOST_CHARS
        for path in paths[:_MOST_NOTES]:
            text = self.index.read(path)
            if text is None:
                text = "(no text that can be read)"
            if len(text) > room and notes:
                break
            notes.append((shown_path(path), text[:room]))
            room -= len(text)
        return notes, len(paths)

    def listing(self, below: str = "") -> Listing:
        """Return the paths of the notes, all or those below a folder."""
        below = below.strip("/")
        paths = self._readable(below) or [
            path for path in self._readable() if f"{shown_path(path)}/".startswith(f"{below}/")
        ]
        kinds = Counter(suffix_of(path).removeprefix(".") or "without a suffix" for path in paths)
        return Listing([*map(shown_path, paths[:MOST_LISTED])], len(paths), dict(kinds.most_common()))

    def _readable(self, below: str = "") -> list[str]:
        """Return the paths of the files that the index reads, without those that it could not read."""
        failed = self.index.failed() if self.index.exists else {}
        return [path for path in self.index.files(below) if path not in failed]

    async def status(self) -> dict[str, Any]:
        """Return what is indexed, and how far that is behind."""
        note = await self.keeper.alook()
        documents = await asyncio.to_thread(self.index.documents)
        state = await asyncio.to_thread(self.index.settings.state)
        failed = (await asyncio.to_thread(self.index.pending)).failed
        return {
            "folder": str(self.index.folder),
            "collections": {name: str(place) for name, place in self.index.collections.items()},
            "documents": len(documents),
            "chunks": sum(document.nodes for document in documents.values()),
            "failed": len(failed),
            "reasons": dict(list(failed.items())[:MOST_LISTED]),
            "complete": state.complete,
            "freshness": {**asdict(note), "text": str(note) or "up to date"},
        }


def _merged(digests: Sequence[MemoryDigest], max_results: int) -> MemoryDigest:
    """Return the hits of several searches in one ranking."""
    scores: defaultdict[str, float] = defaultdict(float)
    places: dict[str, tuple[int, MemoryEntry]] = {}
    counts: Counter[str] = Counter()
    for digest in digests:
        for rank, entry in enumerate(digest.entries, 1):
            scores[entry.id] += 1 / (_K + rank)
            counts[entry.id] += 1
            if entry.id not in places or rank < places[entry.id][0]:
                places[entry.id] = rank, entry
    order = sorted(scores, key=lambda key: (-scores[key], key))
    entries = tuple(
        replace(entry, reasons=(*entry.reasons, f"found by {counts[key]} of {len(digests)} queries"))
        for key, (_, entry) in ((key, places[key]) for key in order[:max_results])
    )
    return MemoryDigest(
        applicable=True,
        reason="found" if entries else digests[0].reason,
        entries=entries,
        queries=tuple(query for digest in digests for query in digest.queries),
        notes=tuple(dict.fromkeys(note for digest in digests for note in digest.notes)),
        left_out=sum(digest.left_out for digest in digests) + len(order) - len(entries),
    )
