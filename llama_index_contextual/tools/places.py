"""Resolve a citation or a name to a part of a note."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from llama_index_contextual.memory.digest import shown_path
from llama_index_contextual.node_parser.node_metadata import headings_of
from llama_index_contextual.retrievers.names import document_names, folded_name
from llama_index_contextual.tools.answer import fitting
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import DocumentError
from llama_index_contextual.utils.language import caseless
from llama_index_contextual.utils.text import counted, is_markdown, lines_of

if TYPE_CHECKING:
    from llama_index_contextual.tools.notes import Notes

MAX_PART = 64_000  # characters of an answer, whatever the call asks for
_MAX_SUGGESTED = 3
_MAX_SIMILAR = 9  # similar names, of which several can mean the same note
_MIN_SIMILARITY = 0.5  # of a name that is suggested
_MAX_HASHES = 9  # "#" in a name; each is tried as the start of the place in the note
_CITED_LINES = re.compile(r"L(\d{1,9})(?:-L?(\d{1,9}))?")
# The ways in which other tools write lines: "a.md:3", "a.md:3-5", "a.md:L3-L5", "a.md:3:14" with a
# column, and "a.md (lines 3 to 5)".
_NUMBERED = re.compile(
    r"(.+?)(?::|,? \(?lines? )L?(\d{1,9})(?:(?:-L?| to )(\d{1,9})|:\d{1,9})?[:)]?", re.DOTALL
)
# A line of an answer, "- [a.md#L3] text", or a Markdown link, "[text](a.md#L3)".
_QUOTED = re.compile(
    r"(?:- )?!?\[(?:[^\[\]]*\]\((?P<link>[^\n]+)\)|(?P<citation>[^\[\]]+)\].*)", re.DOTALL
)
_NOT_IN_SLUG = re.compile(r"[^\w\- ]")


class Part(NamedTuple):
    """Some lines of a note. Line numbers start at 1, and both ends are included.

    Attributes:
        path: The path of the note, with the page if the citation names one.
        from_line: The first line.
        to_line: The last line.
        total_lines: The number of lines of the note or page.
        text: The lines.
        is_cut: Whether further lines were requested that do not fit.
        is_line_cut: Whether not even the first line fits.
    """

    path: str
    from_line: int
    to_line: int
    total_lines: int
    text: str
    is_cut: bool
    is_line_cut: bool

    @property
    def is_whole(self) -> bool:
        """Return whether the part has every line of the note or page."""
        is_cut = self.is_cut or self.is_line_cut
        return self.from_line == 1 and self.to_line >= self.total_lines and not is_cut


class _Place(NamedTuple):
    """A note and a place in it.

    Attributes:
        path: The path or name of the note.
        fragment: The text after the ``#`` of a citation: lines, a page, a heading, or "".
    """

    path: str
    fragment: str


def part_of(
    notes: Notes,
    target: str,
    first: int = 1,
    count: int | None = None,
    most: int = MAX_PART,
) -> Part:
    """Return the part of a note that a citation names: lines, a page, a section or the whole note.

    If the part has more than ``most`` characters, as many whole lines as fit are returned. If not
    even the first line fits, it is cut.

    Args:
        notes: The notes.
        target: ``a.md``, ``a.md#L3-L9``, ``a.md:3-9``, ``report.pdf#page=4``, ``[[Name]]``,
            ``[[Name#Heading]]``, or an absolute path in the folder.
        first: The first line, from 1, if the target names no lines.
        count: The largest number of lines, if the target names no lines. None means all.
        most: The largest number of characters.

    Raises:
        DocumentError: The note, page, heading or line does not exist, or the note has no text.
    """
    path, fragment = _place_of(notes, target)
    if metadata.split_page(f"{path}#{fragment}")[1]:
        path = f"{path}#{fragment}"
        fragment = ""
    text = notes.text(path)
    if text is None:
        raise DocumentError(f"{path!r} cannot be read: it has no text, or the page does not exist.")
    lines = [line.rstrip("\r\n") for line in lines_of(text)]
    last = len(lines) if count is None else first + count - 1
    cited = _CITED_LINES.fullmatch(fragment)
    if cited:
        first = int(cited[1])
        last = int(cited[2] or cited[1])
    elif fragment:
        first, end = _section(text, fragment.rpartition("#")[2].strip(), len(lines))
        last = end if count is None else min(end, first + count - 1)
    if first > max(len(lines), 1) or (cited and not 0 < first <= last):
        span = f"lines {first} to {last}" if cited and first > last else f"line {first}"
        raise DocumentError(f"{path!r} has no {span}. It has {counted(len(lines), 'line')}.")
    requested = lines[first - 1 : last]
    shown_lines = fitting(requested, most)
    is_line_cut = bool(requested) and not shown_lines
    shown = "\n".join(shown_lines)
    if is_line_cut:
        shown_lines = requested[:1]
        shown = f"{requested[0][:most]} …"
    return Part(
        path=shown_path(path),
        from_line=first,
        to_line=first + len(shown_lines) - 1,
        total_lines=len(lines),
        text=shown,
        is_cut=len(shown_lines) < len(requested),
        is_line_cut=is_line_cut,
    )


def relative_path(notes: Notes, path: str) -> str:
    """Return a path in the form of the notes.

    Args:
        notes: The notes.
        path: A path as agents write it, such as ``/srv/notes/a.md``, ``./a.md`` or ``.``.
    """
    path = path.strip().removeprefix("file://")
    if "/../" in path:
        path = posixpath.normpath(path)
    for root, prefix in notes.roots.items():
        if f"{path}/".startswith(f"{root}/"):
            return prefix + path[len(root) + 1 :]
    while path.startswith("./"):
        path = path[2:]
    return "" if path == "." else path.lstrip("/")


def _place_of(notes: Notes, target: str) -> _Place:
    """Return the place that a citation or a name means.

    Raises:
        DocumentError: No note matches. The message suggests the most similar notes.
    """
    written = _unquoted(notes, target).strip("![] ").partition("|")[0].strip()
    places = _possible_places(relative_path(notes, written))

    # Look for a note with this path.
    for place in (_Place(written, ""), *places):
        if notes.has(place.path):
            return place

    # Look for a note with this name.
    names = _names(notes)
    for name, fragment in places:
        folded = folded_name(name)
        # Folding drops the fragment of "a.md#L3", so this name would match without it.
        before_hash = name.rpartition("#")[0]
        has_fragment = folded_name(before_hash) == folded
        if folded in names and not has_fragment:
            return _Place(names[folded], fragment)

    folder = places[-1].path.rstrip("/")
    if any(path.startswith(f"{folder}/") for path in names.values()):
        raise DocumentError(f"{folder!r} is a folder. Call list with path={folder}.")
    raise DocumentError(f"There is no note {target!r}. {_hint(places[-1].path, names)}")


def _possible_places(citation: str) -> list[_Place]:
    """Return the ways to split a citation into a note and a place in it, likely ones first.

    Each "#" can begin the place, or be a part of the name, as in "Meeting, C# too". The place can
    also be lines in the form of other tools.
    """
    parts = citation.split("#", _MAX_HASHES)
    places = []
    for count in range(len(parts), 0, -1):
        path = "#".join(parts[:count]).strip()
        places.append(_Place(path, "#".join(parts[count:])))
    numbered = _NUMBERED.fullmatch(citation)
    if numbered:
        path, first, last = numbered.groups()
        places.append(_Place(path, f"L{first}-L{last or first}"))
    return places


def _unquoted(notes: Notes, target: str) -> str:
    """Return the citation in a line of an answer or in a Markdown link, else the target itself."""
    quoted = _QUOTED.fullmatch(target.strip())
    if quoted is None or notes.has(target):
        return target
    if quoted["link"]:
        return unquote(quoted["link"])
    return quoted["citation"] if notes.has(quoted["citation"].partition("#")[0]) else target


def _hint(name: str, names: Mapping[str, str]) -> str:
    """Return a hint for a name that no note has.

    Args:
        name: The name.
        names: The path of the note for each folded name.
    """
    if not names:
        return "Index the folder first."
    similar = get_close_matches(folded_name(name), names, _MAX_SIMILAR, _MIN_SIMILARITY)
    paths = [*dict.fromkeys(names[similar_name] for similar_name in similar)]
    if not paths:
        return "Search for its words."
    return f"Did you mean {', '.join(map(shown_path, paths[:_MAX_SUGGESTED]))}?"


def _names(notes: Notes) -> dict[str, str]:
    """Return the path of the note for each folded name.

    If several notes share a name, the end of a path takes precedence over a title or an alias.
    Among paths, the one in the fewest folders takes precedence.
    """

    def rank(path: str) -> tuple[int, bool, str]:
        return path.count("/"), not is_markdown(path), path

    named = dict[str, str]()
    for path in sorted(notes.paths(), key=rank):
        for name in document_names(path, path):
            named.setdefault(name, path)
    for titles, path in notes.names():
        for name in document_names("", titles, titles):
            named.setdefault(name, path)
    return named


def _section(text: str, heading: str, end: int) -> tuple[int, int]:
    """Return the first and last line of a section, its heading included.

    Args:
        text: The note.
        heading: The heading, or its anchor.
        end: The last line of the note.

    Raises:
        DocumentError: The heading does not exist.
    """
    headings = headings_of(text)
    slugs = {_slug(heading), _slug(unquote(heading))}
    for position, (title, level, first) in enumerate(headings):
        if _slug(title) in slugs:
            for _, next_level, line in headings[position + 1 :]:
                if next_level <= level:
                    return first, line - 1
            return first, end
    raise DocumentError(
        f"There is no heading {heading!r} in the note. Leave it out to read the whole note."
    )


def _slug(heading: str) -> str:
    """Return the anchor of a heading."""
    return _NOT_IN_SLUG.sub("", caseless(heading)).replace(" ", "-")
