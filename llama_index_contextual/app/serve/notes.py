"""Notes as people and agents read them: what a citation or a name means; which notes, folders and tags there are."""

from __future__ import annotations

import json
import re
from collections import Counter
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index_contextual.memory.digest import shown_path
from llama_index_contextual.node_parser.node_metadata import headings_of
from llama_index_contextual.retrievers.names import NAMING, document_names, folded_name
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import DocumentError
from llama_index_contextual.utils.language import caseless
from llama_index_contextual.utils.metadata import NAMES_TAKEN
from llama_index_contextual.utils.text import is_markdown, lines_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llama_index_contextual.app.index.index import ContextualIndex

_MOST_LISTED: Final = 500
_MOST_LABELS: Final = 50  # of one kind in a list
_SUGGESTED: Final = 3
_MOST_SIGNS: Final = 9  # "#" in a name: the folder is looked at for each
_MOST_CHARS: Final = 64_000  # of one answer
_CITED_LINES: Final = re.compile(r"L(\d{1,9})(?:-L?(\d{1,9}))?")
_NO_WORD: Final = re.compile(r"[^\w\- ]")


class Part(NamedTuple):
    """Some lines of a note; both ends are included, and count from 1."""

    path: str
    from_line: int
    to_line: int
    total_lines: int
    text: str

    @property
    def extent(self) -> str:
        """Which lines of how many it has; "" for a whole note."""
        is_whole = self.from_line == 1 and self.to_line >= self.total_lines
        return "" if is_whole else f"lines {self.from_line} to {self.to_line} of {self.total_lines}"


def part_of(index: ContextualIndex, target: str, first: int = 1, count: int | None = None) -> Part:
    """The part of a note that a citation names: the note, lines or a page of it, a name in double brackets.

    Of more than 64,000 characters as many whole lines as fit are returned; a longer line is cut, with a mark.

    Args:
        index: Of the notes.
        target: ``a.md``, ``a.md#L3-L9``, ``report.pdf#page=4``, ``[[Name]]``, ``[[Name#Heading]]``.
        first: The first line, from 1, where the target names no lines.
        count: Most lines, where it names none; None is all, of a heading those of its section.

    Raises:
        DocumentError: There is no such note, page, heading or line, or it is no text.
    """
    path, place = _resolve(index, target)
    if metadata.split_page(f"{path}#{place}")[1]:
        path, place = f"{path}#{place}", ""
    text = index.read(path)
    if text is None:
        raise DocumentError(
            f"{path!r} cannot be read: it is no text, or has no such page. Cure: the name alone"
        )
    lines = [line.rstrip("\r\n") for line in lines_of(text)]
    last = len(lines) if count is None else first + count - 1
    if cited := _CITED_LINES.fullmatch(place):
        first, last = int(cited[1]), int(cited[2] or cited[1])
    elif place:
        first, end = _section(text, place.rpartition("#")[2].strip(), len(lines))
        last = end if count is None else min(end, first + count - 1)
    if first > max(len(lines), 1) or (cited and not 0 < first <= last):
        raise DocumentError(
            f"{path!r} has no lines {first} to {last}. Cure: some of its {len(lines)}, as in #L3-L9"
        )
    shown = "\n".join(lines[first - 1 : last])
    if len(shown) > _MOST_CHARS:
        shown = shown[:_MOST_CHARS].rpartition("\n")[0] or f"{shown[:_MOST_CHARS]} …"
    last = first + shown.count("\n") if lines else 0
    return Part(shown_path(path), first, last, len(lines), shown)


def _resolve(index: ContextualIndex, target: str) -> tuple[str, str]:
    """The path of the note that a citation or a name means, and the lines, page or heading after its ``#``, or ""."""
    inner = target.strip("![] ").partition("|")[0].strip()
    parts = inner.split("#", _MOST_SIGNS)
    ways = [("#".join(parts[:at]).strip(), "#".join(parts[at:])) for at in range(len(parts), 0, -1)]
    for name, place in ways:
        if name in index.files(name):
            return name, place
    names = _names(index)
    for name, place in ways:  # "Meeting, C# too" is a title
        if path := names.get(folded_name(name)):
            return path, place
    similar = get_close_matches(folded_name(ways[-1][0]), names, 9, 0.5)
    paths = [*dict.fromkeys(names[one] for one in similar)][:_SUGGESTED]
    cure = ", ".join(map(shown_path, paths)) or (
        "search for its words" if names else "index the folder first"
    )
    raise DocumentError(f"there is no note that {target!r} means. Cure: {cure}")


def _names(index: ContextualIndex) -> dict[str, str]:
    """The path that each name, folded, means: ends of paths, of short ones first; then titles and aliases."""
    paths = sorted(index.files(), key=lambda path: (path.count("/"), not is_markdown(path), path))
    named = [(name, path) for path in paths for name in document_names(path, path)]
    for key in NAMING if index.exists else ():
        pairs = {*zip(index.values(key), index.values(metadata.PATH), strict=True)}
        texts = [
            (str(titles), path) for titles, path in pairs if titles
        ]  # "aliases: 404" is a number
        named += [
            (name, path) for titles, path in texts for name in document_names("", titles, titles)
        ]
    return dict(reversed(named))


def _section(text: str, heading: str, end: int) -> tuple[int, int]:
    """First and last line of the section below a heading, with it, in a text of so many lines."""
    headings = headings_of(text)
    at = next(
        (at for at, (title, _, _) in enumerate(headings) if _slug(title) == _slug(heading)), None
    )
    if at is None:
        raise DocumentError(
            f"there is no heading {heading!r} in the note. Cure: the name without it"
        )
    _, level, first = headings[at]
    return first, next((line - 1 for _, other, line in headings[at + 1 :] if other <= level), end)


def _slug(heading: str) -> str:
    """A heading as an anchor has it."""
    return _NO_WORD.sub("", caseless(heading)).replace(" ", "-")


def labels_of(index: ContextualIndex) -> dict[str, tuple[set[str], set[str]]]:
    """The tags of each document, and the keys of its front matter, by path."""
    labels: dict[str, tuple[set[str], set[str]]] = {}
    if not index.exists:
        return labels
    with (
        index.settings.database.reading() as snapshot
    ):  # nodes would take four times as long to make
        values = [json.loads(row.metadata) for row in snapshot.node_rows(snapshot.rows())]
    for one in values:
        tags, keys = labels.setdefault(metadata.path_of(one), (set(), set()))
        for key in (metadata.TAGS, metadata.INLINE_TAGS):
            written = str(metadata.value_of(one, key) or "").split(",")
            tags.update(tag for part in written if (tag := part.strip().lstrip("#")))
        keys.update(one.keys() - NAMES_TAKEN)
    return labels


def folders_of(paths: Iterable[str]) -> Counter[str]:
    """How many of some paths are in each folder."""
    return Counter(
        f"{parent}/" for path in paths for parent in PurePosixPath(path).parents if parent.name
    )


def listing(index: ContextualIndex, below: str = "") -> tuple[str, int]:
    """The paths of the readable notes, all or those below a folder, with what narrows a search; and their number."""
    failed = index.failed() if index.exists else {}
    start = f"{below.strip('/')}/".lstrip("/")
    everything = [path for path in index.files() if path not in failed]
    paths = [path for path in everything if f"{shown_path(path)}/".startswith(start)]
    if start and not paths:
        near = get_close_matches(start, folders_of(everything), _SUGGESTED, 0.0)
        raise DocumentError(
            f"no note is in a folder {below!r}. Cure: {', '.join(near) or 'no path'}"
        )
    labels, nothing = labels_of(index), (set[str](), set[str]())
    counts = {
        "Folders": folders_of(paths),
        "Tags": Counter(tag for path in paths for tag in labels.get(path, nothing)[0]),
        "Front matter": Counter(key for path in paths for key in labels.get(path, nothing)[1]),
    }
    lines = [*map(shown_path, paths[:_MOST_LISTED]), ""]
    if len(paths) > _MOST_LISTED:
        lines.append(f"({_MOST_LISTED} of {len(paths)}; name a folder for the others)")
    for name, count in counts.items():
        if most := count.most_common(_MOST_LABELS):
            lines.append(f"{name}: {', '.join(f'{key} {number}' for key, number in most)}")
    return "\n".join(lines).strip() or "(no notes)", len(paths)
