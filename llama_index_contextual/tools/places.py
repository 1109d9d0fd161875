"""What a citation or a name means, and the part of a note that it names."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from llama_index_contextual.memory.digest import shown_path
from llama_index_contextual.node_parser.node_metadata import headings_of
from llama_index_contextual.retrievers.names import document_names, folded_name
from llama_index_contextual.tools.answer import fitting
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import DocumentError
from llama_index_contextual.utils.language import caseless
from llama_index_contextual.utils.text import is_markdown, lines_of

if TYPE_CHECKING:
    from llama_index_contextual.tools.notes import Notes

MAX_PART: Final = 64_000  # characters of one answer, whatever the call requests
_MAX_SUGGESTED: Final = 3
_LIKENESS: Final = 0.5  # of a name that is suggested
_MAX_SIGNS: Final = 9  # "#" in a name: each is tried as the start of a place
_CITED_LINES: Final = re.compile(r"L(\d{1,9})(?:-L?(\d{1,9}))?")
# "a.md:3", "a.md:3-5" and "a.md:L3-L5" as other tools write lines, "a.md:3:14" with a column, and
# "a.md (lines 3 to 5)" in words.
_NUMBERED: Final = re.compile(
    r"(.+?)(?::|,? \(?lines? )L?(\d{1,9})(?:(?:-L?| to )(\d{1,9})|:\d{1,9})?[:)]?", re.DOTALL
)
# A line of an answer, "- [a.md#L3] text", and a link of Markdown, "[text](a.md#L3)".
_QUOTED: Final = re.compile(
    r"(?:- )?!?\[(?:[^\[\]]*\]\((?P<link>[^\n]+)\)|(?P<citation>[^\[\]]+)\].*)", re.DOTALL
)
_NO_WORD: Final = re.compile(r"[^\w\- ]")


class Part(NamedTuple):
    """Some lines of a note; both ends are included and count from 1.

    Attributes:
        path: The path of the note, with its page if it names one.
        from_line: The first line.
        to_line: The last line.
        total_lines: How many lines the note or its page has.
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
        """Return whether it has every line of the note."""
        is_cut = self.is_cut or self.is_line_cut
        return self.from_line == 1 and self.to_line >= self.total_lines and not is_cut


class _Place(NamedTuple):
    """A note, and what follows the ``#`` of its citation: lines, a page, a heading or nothing."""

    path: str
    mark: str


def part_of(
    notes: Notes, target: str, first: int = 1, count: int | None = None, most: int = MAX_PART
) -> Part:
    """Return the part of a note that a citation names: the note, lines or a page of it, a section.

    Of a part of more than ``most`` characters, as many whole lines as fit are returned. A longer
    line is cut.

    Args:
        notes: The notes.
        target: ``a.md``, ``a.md#L3-L9``, ``a.md:3-9``, ``report.pdf#page=4``, ``[[Name]]``,
            ``[[Name#Heading]]``, or an absolute path in the folder.
        first: The first line, from 1, if the target names no lines.
        count: Most lines, if it names none; None is all.
        most: Most characters.

    Raises:
        DocumentError: There is no such note, page, heading or line, or the note has no text.
    """
    path, mark = _place_of(notes, target)
    if metadata.split_page(f"{path}#{mark}")[1]:
        path = f"{path}#{mark}"
        mark = ""
    text = notes.text(path)
    if text is None:
        raise DocumentError(f"{path!r} cannot be read: it has no text, or no such page.")
    lines = [line.rstrip("\r\n") for line in lines_of(text)]
    last = len(lines) if count is None else first + count - 1
    cited = _CITED_LINES.fullmatch(mark)
    if cited:
        first = int(cited[1])
        last = int(cited[2] or cited[1])
    elif mark:
        first, end = _section(text, mark.rpartition("#")[2].strip(), len(lines))
        last = end if count is None else min(end, first + count - 1)
    if first > max(len(lines), 1) or (cited and not 0 < first <= last):
        raise DocumentError(f"{path!r} has no lines {first} to {last}. It has {len(lines)} lines.")
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
    """Return a path as the notes have it, from one as agents write it.

    ``/srv/notes/a.md``, ``./a.md``, ``.``.
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
        DocumentError: No note is meant. The message names the most similar ones.
    """
    written = _unquoted(notes, target).strip("![] ").partition("|")[0].strip()
    inner = relative_path(notes, written)
    parts = inner.split("#", _MAX_SIGNS)
    places = [
        _Place("#".join(parts[:count]).strip(), "#".join(parts[count:]))
        for count in range(len(parts), 0, -1)
    ]
    numbered = _NUMBERED.fullmatch(inner)
    if numbered:
        places.append(_Place(numbered[1], f"L{numbered[2]}-L{numbered[3] or numbered[2]}"))
    for place in (_Place(written, ""), *places):
        if notes.has(place.path):
            return place
    names = _names(notes)
    for name, mark in places:  # "Meeting, C# too" is a title
        folded = folded_name(name)
        # Folding drops the mark of "a.md#L3", which is no part of a title.
        before_sign, sign, _ = name.rpartition("#")
        has_mark = bool(sign) and folded_name(before_sign) == folded
        if folded in names and not has_mark:
            return _Place(names[folded], mark)
    folder = places[-1].path.rstrip("/")
    if any(path.startswith(f"{folder}/") for path in names.values()):
        raise DocumentError(f"{folder!r} is a folder. Call list with path={folder}.")
    raise DocumentError(f"There is no note {target!r}. {_hint(places[-1].path, names)}")


def _unquoted(notes: Notes, target: str) -> str:
    """Return the place in a line of an answer or in a link of Markdown; else what is written."""
    quoted = _QUOTED.fullmatch(target.strip())
    if quoted is None or notes.has(target):
        return target
    if quoted["link"]:
        return unquote(quoted["link"])
    return quoted["citation"] if notes.has(quoted["citation"].partition("#")[0]) else target


def _hint(name: str, names: Mapping[str, str]) -> str:
    """Return what to do about a name that no note has.

    Args:
        name: The name.
        names: The path that each folded name means.
    """
    if not names:
        return "Index the folder first."
    similar = get_close_matches(folded_name(name), names, _MAX_SIGNS, _LIKENESS)
    paths = [*dict.fromkeys(names[similar_name] for similar_name in similar)]
    if not paths:
        return "Search for its words."
    return f"Did you mean {', '.join(map(shown_path, paths[:_MAX_SUGGESTED]))}?"


def _names(notes: Notes) -> dict[str, str]:
    """Return the path that each folded name means.

    Ends of paths count before titles and aliases, and those of short paths before others.
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
    """Return the first and last line of the section below a heading, the heading included.

    Args:
        text: The note.
        heading: The heading, or its anchor.
        end: The last line of the note.

    Raises:
        DocumentError: There is no such heading.
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
        f"There is no heading {heading!r} in the note. Leave it out to read it all."
    )


def _slug(heading: str) -> str:
    """Return a heading as an anchor has it."""
    return _NO_WORD.sub("", caseless(heading)).replace(" ", "-")
