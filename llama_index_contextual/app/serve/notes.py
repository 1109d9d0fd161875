"""A folder of notes as people and agents read it: asked, read by citation, listed."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from llama_index_contextual.chunking import headings_of
from llama_index_contextual.chunking.node_metadata import NAMES_TAKEN
from llama_index_contextual.errors import DocumentError
from llama_index_contextual.keyword import items_of
from llama_index_contextual.memory import MemoryContext, MemoryDigest, MemoryEntry, gate_digest, shown_path
from llama_index_contextual.metadata import INLINE_TAGS, PATH, TAGS, path_of, split_page, value_of
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
_MOST_LABELS: Final = 50  # of one kind in a list
_SUGGESTED: Final = 3
_POOL: Final = 30  # hits of which those of one note are counted
_MOST_CHARS: Final = 64_000  # of one answer


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
    """The first paths of notes, how many there are, and what they can be narrowed by, each with its number of notes."""

    paths: list[str]
    total: int
    folders: dict[str, int]
    tags: dict[str, int]
    keys: dict[str, int]

    def __str__(self) -> str:
        labels = {"Folders": self.folders, "Tags": self.tags, "Front matter": self.keys}
        rows = {name: ", ".join(f"{key} {count}" for key, count in part.items()) for name, part in labels.items()}
        lines = [f"{name}: {row}" for name, row in rows.items() if row]
        if self.total > len(self.paths):
            lines.insert(0, f"({len(self.paths)} of {self.total}; name a folder for the others)")
        return "\n".join([*self.paths, *([""] if lines and self.paths else []), *lines]) or "(no notes)"


def labels_of(index: ContextualIndex) -> dict[str, tuple[set[str], set[str]]]:
    """The tags of each document, and the keys of its front matter, by path."""
    labels: dict[str, tuple[set[str], set[str]]] = {}
    for node in index.nodes():
        meta = node.metadata
        tags, keys = labels.setdefault(path_of(meta), (set(), set()))
        written = (str(value_of(meta, key) or "").split(",") for key in (TAGS, INLINE_TAGS))
        tags.update(tag for part in written for one in part if (tag := one.strip().lstrip("#")))
        keys.update(meta.keys() - NAMES_TAKEN)
    return labels


def part_of(
    index: ContextualIndex, target: str, first: int = 1, count: int | None = None, *, whole: bool = False
) -> Part:
    """The part of a note that a citation names: the note, lines or a page of it, a name in double brackets.

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
    """The path that a target names, perhaps with a page, and the lines or the heading in it."""
    target = target.strip()
    if (path := _path_named(index, target)) is not None:
        return path, None, ""
    if link := WIKI_LINK.fullmatch(target):
        name, heading = link[1], link[2] or ""
        if (path := note_named(name, index.files()) or _alias(index, name)) is None:
            raise DocumentError(f"there is no note that [[{name.strip()}]] means. {_nearest(index, name)}")
        return path, None, heading.rpartition("#")[2].strip()
    plain = target.removeprefix("[").removesuffix("]").removeprefix("note:///")
    lines = _LINES.search(plain)
    name = plain[: lines.start()] if lines else plain
    path = _path_named(index, name) or note_named(name, index.files()) or _alias(index, name)
    if path is None:
        raise DocumentError(f"there is no note {target!r} that the index reads. {_nearest(index, name)}")
    if lines is None:
        return path, None, ""
    first, last = int(lines[1]), int(lines[2] or lines[1])
    if not 0 < first <= last:
        raise DocumentError(f"{target!r} names no lines. Cure: the first, from 1, then the last: #L3-L9")
    return path, (first, last), ""


def _nearest(index: ContextualIndex, name: str) -> str:
    """The cure for a name that no note has: the notes with the most similar ones."""
    paths = index.files()
    names = {caseless(text): path for path in paths for text in (path, PurePosixPath(path).stem)}
    similar = get_close_matches(caseless(name.strip().rpartition("/")[2].removesuffix(".md")), names, 9, 0.5)
    found = list(dict.fromkeys(names[one] for one in similar))[:_SUGGESTED] or paths[:_SUGGESTED]
    return f"Cure: {', '.join(map(shown_path, found))}" if found else "Cure: index the folder first"


def _alias(index: ContextualIndex, name: str) -> str | None:
    """The path of the first note whose front matter gives it another name; None for none."""
    for key in ("aliases", "alias") if index.exists else ():
        for value, path in zip(index.values(key), index.values(PATH), strict=True):
            if caseless(name.strip()) in items_of(value):
                return str(path)
    return None


def _path_named(index: ContextualIndex, path: str) -> str | None:
    """The path of a note that is named by it or as a citation shows it, with its page; None without one."""
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
        self._labels: tuple[int, dict[str, tuple[set[str], set[str]]]] | None = None

    async def context(self, message: str) -> MemoryDigest:
        """The digest for a message; small talk touches neither folder nor index."""
        closed = gate_digest(message, self.memory.settings)
        return closed or await self.fresh(lambda: self.memory.aget(message))

    async def fresh(self, ask: Callable[[], Awaitable[MemoryDigest]]) -> MemoryDigest:
        """Ask after a short look at the folder, and say what the answer does not know yet."""
        note = await self.keeper.alook()
        is_tried = note.refreshing or note.error
        if is_tried and not await asyncio.to_thread(lambda: self.index.exists):  # it may ask a server
            return MemoryDigest(applicable=True, reason=_EMPTY).with_freshness_note(f"{_EMPTY}; {note}")
        return (await ask()).with_freshness_note(str(note))

    async def search(
        self, queries: Sequence[str], max_results: int, filters: MetadataFilters | None, per_file: int = 0
    ) -> MemoryDigest:
        """The hits of several queries in one ranking; of a single query as they are.

        A hit ranks by its places in all of them (reciprocal rank fusion). Its text is that of the query that has it
        highest.
        """
        pool = max_results if not per_file else max(max_results, _POOL)
        digests = await asyncio.gather(
            *(self.memory.asearch(text, max_results=pool, filters=filters) for text in queries)
        )
        return _few_of_each(digests[0] if len(digests) == 1 else _merged(digests, pool), per_file, max_results)

    def _labels_by_path(self) -> dict[str, tuple[set[str], set[str]]]:
        if not self.index.exists:
            return {}
        change = self.index.settings.state().change
        if self._labels is None or self._labels[0] != change:
            self._labels = change, labels_of(self.index)
        return self._labels[1]

    def listing(self, below: str = "") -> Listing:
        """The notes, all or those below a folder, with what a search can be narrowed by."""
        below = below.strip("/")
        paths = self._readable(below) or [
            path for path in self._readable() if f"{shown_path(path)}/".startswith(f"{below}/")
        ]
        folders = Counter(f"{parent}/" for path in paths for parent in PurePosixPath(path).parents if parent.name)
        labels = self._labels_by_path()
        tags = Counter(tag for path in paths for tag in labels.get(path, ((), ()))[0])
        keys = Counter(key for path in paths for key in labels.get(path, ((), ()))[1])
        return Listing(
            [*map(shown_path, paths[:MOST_LISTED])],
            len(paths),
            dict(folders.most_common(_MOST_LABELS)),
            dict(tags.most_common(_MOST_LABELS)),
            dict(keys.most_common(_MOST_LABELS)),
        )

    def _readable(self, below: str = "") -> list[str]:
        """The paths of the files that the index reads, without those that it could not read."""
        failed = self.index.failed() if self.index.exists else {}
        return [path for path in self.index.files(below) if path not in failed]


def _merged(digests: Sequence[MemoryDigest], max_results: int) -> MemoryDigest:
    """The hits of several searches in one ranking."""
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


def _few_of_each(digest: MemoryDigest, per_file: int, most: int) -> MemoryDigest:
    """The best entries of a digest, of which one note has at most ``per_file``; a note counts the others."""
    counts = Counter[str]()
    shown: list[MemoryEntry] = []
    for entry in digest.entries:
        counts[entry.path] += 1
        if (not per_file or counts[entry.path] <= per_file) and len(shown) < most:
            shown.append(entry)
    kept = Counter(entry.path for entry in shown)
    more = [f"{counts[path] - kept[path]} more in {shown_path(path)}" for path in kept if counts[path] > kept[path]]
    notes = (*digest.notes, *([f"{', '.join(more)}; per_file=0 shows them"] if more else []))
    left_out = digest.left_out + len(digest.entries) - len(shown)
    return replace(digest, entries=tuple(shown), notes=notes, left_out=left_out)
