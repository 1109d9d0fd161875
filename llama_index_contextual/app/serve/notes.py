"""Notes as people and agents open them: what a citation or a name means, and what there is."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from difflib import get_close_matches
from os.path import normpath
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from llama_index_contextual.chunking import headings_of
from llama_index_contextual.chunking.node_metadata import NAMES_TAKEN
from llama_index_contextual.errors import DocumentError
from llama_index_contextual.keyword import items_of
from llama_index_contextual.memory import shown_path
from llama_index_contextual.metadata import INLINE_TAGS, PATH, TAGS, TITLE, path_of, split_page, value_of
from llama_index_contextual.text import WIKI_LINK, caseless, counted, lines_of, normalise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_index_contextual.app.index import ContextualIndex

_MOST_LISTED: Final = 500
_MOST_LABELS: Final = 50  # of one kind in a list
_SUGGESTED: Final = 3
_MOST_CHARS: Final = 64_000  # of one answer
_LINES: Final = re.compile(r"(?:#L|:)(\d{1,9})(?:-L?(\d{1,9}))?$")
_LINK: Final = re.compile(r"!?\[[^\[\]\n]*\]\(<?([^()<>\n]+)>?\)")
_NO_WORD: Final = re.compile(r"[^\w\- ]")


@dataclass(frozen=True)
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


def part_of(index: ContextualIndex, target: str, first: int = 1, count: int | None = None) -> Part:
    """The part of a note that a citation names: the note, lines or a page of it, a name in double brackets.

    Of more than 64,000 characters as many whole lines as fit are returned.

    Args:
        index: Of the folder of notes.
        target: ``a.md``, ``a.md#L3-L9``, ``report.pdf#page=4``, ``[[Name]]``, ``[[Name#Heading]]``.
        first: The first line, from 1, where the target names no lines.
        count: Most lines, where it names none; None is all.

    Raises:
        DocumentError: There is no such note, page, heading or line, or it is no text.
    """
    path, place = resolve(index, target)
    text = index.read(path)
    if text is None:
        file, page = split_page(path)
        raise DocumentError(f"{file!r} has no page {page!r}" if page else f"the note {path!r} is not a text file")
    lines = [line.rstrip("\r\n") for line in lines_of(text)]
    if isinstance(place, str):
        place = _section(text, place)
    if place:
        first, count = place[0], place[1] - place[0] + 1
    if first > max(len(lines), 1):
        raise DocumentError(f"from_line={first} is too high: {path!r} has {counted(len(lines), 'line')}")
    wanted = lines[first - 1 : None if count is None else first - 1 + count]
    excerpt, is_cut = "\n".join(wanted), False
    if len(excerpt) > _MOST_CHARS:
        is_cut = len(wanted[0]) > _MOST_CHARS
        excerpt = excerpt[:_MOST_CHARS] if is_cut else excerpt[: excerpt.rindex("\n", 0, _MOST_CHARS + 1)]
    last = first + excerpt.count("\n") if lines else 0
    return Part(shown_path(path), first, last, len(lines), excerpt, is_cut)


def resolve(index: ContextualIndex, target: str) -> tuple[str, tuple[int, int] | str | None]:
    """The path that a citation or a name means, perhaps with a page, and the lines or the heading in it.

    Raises:
        DocumentError: There is none.
    """
    target = target.strip()
    if target in index.files(target):
        return target, None
    place: tuple[int, int] | str | None = None
    paths, folders = index.files(), index.settings.folders
    if link := WIKI_LINK.fullmatch(target):
        name, place = link[1].strip(), (link[2] or "").rpartition("#")[2].strip() or None
    else:
        name = link[1] if (link := _LINK.fullmatch(target)) else target.strip("`").removeprefix("[").removesuffix("]")
        place_of_file = Path(normpath(name.removeprefix("note:///").removeprefix("file://")))
        name = folders.path_of(place_of_file) or place_of_file.as_posix().lstrip("/")
        is_whole = next(_paths_meant(index, name, paths), None) is not None  # "Meeting at 10:30", "C# in depth"
        if lines := None if is_whole else _LINES.search(name):
            name, place = name[: lines.start()], (int(lines[1]), int(lines[2] or lines[1]))
            if not 0 < place[0] <= place[1]:
                raise DocumentError(f"{target!r} names no lines. Cure: the first, from 1, then the last: #L3-L9")
        elif not is_whole:
            name, _, heading = name.partition("#")
            place = heading.rpartition("#")[2].strip() or None
    path = next(_paths_meant(index, name, paths), None)
    if path is None:
        names = {caseless(text): path for path in paths for text in (path, PurePosixPath(path).stem)}
        similar = get_close_matches(caseless(name.rpartition("/")[2].removesuffix(".md")), names, 9, 0.5)
        nearest = list(dict.fromkeys(names[one] for one in similar))[:_SUGGESTED] or paths[:_SUGGESTED]
        cure = ", ".join(map(shown_path, nearest)) or "index the folder first"
        raise DocumentError(f"there is no note that {target} means. Cure: {cure}")
    return path, place


def _paths_meant(index: ContextualIndex, name: str, paths: list[str]) -> Iterator[str]:
    """Yield the paths that a name may mean: as a citation shows one, by its end, by a title or an alias."""
    file, page = split_page(name)
    for wanted, rest in ((name, ""), (file, name[len(file) :] if page else "")):
        known = normalise(wanted)
        yield from (path + rest for path in paths if known in (normalise(path), normalise(shown_path(path))))
    title = caseless(name.strip())
    end = f"/{title.removesuffix('.md')}"
    matches = (path for path in paths if f"/{caseless(path).removesuffix('.md')}".endswith(end))
    yield from sorted(matches, key=lambda path: (path.count("/"), path))
    for key in (TITLE, "aliases", "alias") if index.exists else ():
        named = zip(index.values(key), index.values(PATH), strict=True)
        yield from (str(path) for value, path in named if title in items_of(value))


def _section(text: str, heading: str) -> tuple[int, int]:
    """First and last line of the section below a heading, with it."""
    headings = headings_of(text)
    at = next((at for at, (title, _, _) in enumerate(headings) if _slug(title) == _slug(heading)), None)
    if at is None:
        raise DocumentError(f"there is no heading {heading!r} in the note. Cure: the name without it")
    _, level, first = headings[at]
    after = (line for _, other, line in headings[at + 1 :] if other <= level)
    return first, next(after, sum(1 for _ in lines_of(text)) + 1) - 1


def _slug(heading: str) -> str:
    """A heading as an anchor has it: ``Open questions`` and ``open-questions`` are one."""
    return _NO_WORD.sub("", caseless(heading)).replace(" ", "-")


def labels_of(index: ContextualIndex) -> dict[str, tuple[set[str], set[str]]]:
    """The tags of each document, and the keys of its front matter, by path."""
    labels: dict[str, tuple[set[str], set[str]]] = {}
    for node in index.nodes() if index.exists else ():
        meta = node.metadata
        tags, keys = labels.setdefault(path_of(meta), (set(), set()))
        written = (str(value_of(meta, key) or "").split(",") for key in (TAGS, INLINE_TAGS))
        tags.update(tag for part in written for one in part if (tag := one.strip().lstrip("#")))
        keys.update(meta.keys() - NAMES_TAKEN)
    return labels


def listing(index: ContextualIndex, below: str = "") -> tuple[str, int]:
    """The paths of the readable notes, all or those below a folder, with what narrows a search; and their number."""
    below = below.strip("/")
    failed = index.failed() if index.exists else {}
    readable = [path for path in index.files() if path not in failed]
    paths = [path for path in readable if not below or f"{shown_path(path)}/".startswith(f"{below}/") or path == below]
    labels = labels_of(index)
    counts = {
        "Folders": Counter(f"{parent}/" for path in paths for parent in PurePosixPath(path).parents if parent.name),
        "Tags": Counter(tag for path in paths for tag in labels.get(path, ((), ()))[0]),
        "Front matter": Counter(key for path in paths for key in labels.get(path, ((), ()))[1]),
    }
    most = {name: count.most_common(_MOST_LABELS) for name, count in counts.items() if count}
    lines = [f"{name}: {', '.join(f'{key} {number}' for key, number in keys)}" for name, keys in most.items()]
    if len(paths) > _MOST_LISTED:
        lines.insert(0, f"({_MOST_LISTED} of {len(paths)}; name a folder for the others)")
    shown = [*map(shown_path, paths[:_MOST_LISTED])]
    return "\n".join([*shown, *([""] if lines and shown else []), *lines]) or "(no notes)", len(paths)
