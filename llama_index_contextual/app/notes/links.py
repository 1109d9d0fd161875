"""How notes hang together: ``[[wikilinks]]``, Markdown links, and front matter that says the same.

Links are read from the files when somebody asks, so they are never behind, and nothing is kept.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from llama_index_contextual.app.folder.sources import read_bytes
from llama_index_contextual.chunking import headings_of, prose_lines, read_front_matter
from llama_index_contextual.errors import DocumentError
from llama_index_contextual.memory import on_one_line, shown_path
from llama_index_contextual.metadata import citation
from llama_index_contextual.text import WIKI_LINK, caseless, decode, lines_of, normalise

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from llama_index_contextual.app.index import ContextualIndex

_NOTES: Final = (".md", ".markdown", ".mdx", ".txt")
_INLINE: Final = re.compile(
    r"!?\[[^\[\]\n]{0,300}\]\(\s{0,9}(<[^<>\n]{1,300}>|[^\s()<>]{1,300})(?:\s[^()\n]{0,300})?\)"
)
_REFERENCE: Final = re.compile(r" {0,3}\[[^\[\]\n]{1,300}\]:\s{1,9}(<[^<>\n]{1,300}>|\S{1,300})")
_ELSEWHERE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}:|//|#")
_OTHER_FILE: Final = re.compile(r"\.[A-Za-z][A-Za-z0-9]{1,4}$")
_NO_HEADING: Final = re.compile(r"\^|L\d+(?:-L?\d+)?$")  # a block's mark, or lines
_NO_WORD: Final = re.compile(r"[^\w\- ]")
_OWN_KEYS: Final = frozenset(
    {"title", "date", "aliases", "alias", "id", "created", "updated", "modified", "description"}
)
_MOST_SHARING: Final = 20  # notes; what more of them say in their front matter tells nothing


@dataclass(frozen=True, slots=True)
class Link:
    """A link from one note to another."""

    source: str
    """The path of the note that it stands in."""
    line: int
    """Counts from 1."""
    text: str
    """The link as the note has it, on one line."""
    target: str | None
    """The path of the note that it means; None where there is none that the index reads."""
    problem: str = ""
    """What is wrong with it: no such note, or no such heading in it."""

    @property
    def citation(self) -> str:
        """``memory/2026-04-09.md#L3``."""
        return citation(shown_path(self.source), self.line, self.line)


@dataclass(frozen=True)  # without slots: MCP's SDK makes a schema of it
class Related:
    """What a note has to do with others."""

    path: str
    links: tuple[Link, ...]
    """From it to others, in its order, broken ones as well."""
    linked_from: tuple[Link, ...]
    """From others to it."""
    shared: dict[str, list[str]]
    """What its front matter has in common with others, ``key: value``, and their paths."""

    def __str__(self) -> str:
        """Return all of it as Markdown; what stands after ``> `` is a note's own."""
        parts = {
            "Links to": [
                f"- [{shown_path(link.target)}] line {link.line} > {link.text}" for link in self.links if link.target
            ],
            "Linked from": [f"- [{link.citation}] > {link.text}" for link in self.linked_from],
            "The same in front matter": [
                f"- {' '.join(f'[{shown_path(path)}]' for path in paths)} > {what}"
                for what, paths in self.shared.items()
            ],
            "Broken links": [
                f"- [{link.citation}] {link.problem} > {link.text}" for link in self.links if link.problem
            ],
        }
        lines = [line for title, part in parts.items() if part for line in (f"## {title}", *part)]
        return "\n".join(lines) or f"({shown_path(self.path)} links to no note, and none links to it.)"


def related(index: ContextualIndex, target: str) -> Related:
    """Find what a note links to, what links to it, and what says the same in its front matter.

    Args:
        index: The folder of notes, whose files are read.
        target: The path of a note, as it is or as a citation shows it, or its name, perhaps in double brackets.

    Raises:
        DocumentError: There is no such note.
    """
    files = index.settings.reading.find().files
    texts: dict[str, str] = {}
    for file in files:
        if file.path.lower().endswith(_NOTES):
            try:
                texts[file.path] = decode(read_bytes(file.absolute)).text
            except DocumentError:  # it went this moment, or is no text
                continue
    notes = _NoteNames(texts, [file.path for file in files])
    path = notes.path_of(target)
    links = [link for source, text in texts.items() for link in notes.links_in(source, text)]
    return Related(
        path,
        tuple(link for link in links if link.source == path),
        tuple(link for link in links if link.target == path and link.source != path),
        notes.shared_with(path),
    )


def note_named(name: str, paths: Iterable[str], aliases: Mapping[str, str] | None = None) -> str | None:
    """Return the note that ``[[name]]`` means: by its path, its file's name or an alias; the least deep one, or None.

    Args:
        name: In any case, with or without ``.md``.
        paths: Those of the notes.
        aliases: Paths by other names, folded.
    """
    title = caseless(name.strip()).removesuffix(".md")
    folded = ((caseless(path).removesuffix(".md"), path) for path in paths)
    matches = [path for key, path in folded if key == title or key.endswith(f"/{title}")]
    if matches:
        return min(matches, key=lambda path: (path.count("/"), path))
    return (aliases or {}).get(title)


def section_of(text: str, heading: str) -> tuple[int, int] | None:
    """Return the first and the last line of what stands below a heading, with it; None where there is none."""
    headings = headings_of(text)
    at = next((at for at, (title, _, _) in enumerate(headings) if _slug(title) == _slug(heading)), None)
    if at is None:
        return None
    _, level, first = headings[at]
    after = (line for _, other, line in headings[at + 1 :] if other <= level)
    return first, next(after, sum(1 for _ in lines_of(text)) + 1) - 1


class _NoteNames:
    """The notes of a folder, and how they name one another."""

    def __init__(self, texts: Mapping[str, str], paths: Sequence[str]) -> None:
        self._texts = texts
        self._paths = {normalise(path): path for path in paths} | {path: path for path in paths}
        self._values = {path: read_front_matter(text, path).values for path, text in texts.items()}
        aliases: dict[str, str] = {}
        for path, values in self._values.items():
            for alias in (*_several(values.get("aliases")), *_several(values.get("alias"))):
                aliases.setdefault(caseless(alias), path)
        self._by = cache(partial(note_named, paths=paths, aliases=aliases))
        self._slugs = cache(lambda path: {_slug(title) for title, _, _ in headings_of(texts[path])})

    def path_of(self, target: str) -> str:
        target = target.strip()
        link = WIKI_LINK.fullmatch(target)
        plain = (link[1] if link else target.removeprefix("[").removesuffix("]")).partition("#")[0].strip()
        for path in self._texts:
            if plain in {path, shown_path(path)}:
                return path
        path_by_name = self._by(plain)
        if path_by_name is None or path_by_name not in self._texts:
            raise DocumentError(f"there is no note {target!r} that the index reads. Cure: its path, or its name")
        return path_by_name

    def links_in(self, source: str, text: str) -> Iterator[Link]:
        """Give the links of a note to others; code holds none, and links to the web and to other files are left out."""
        for number, line in prose_lines(text):
            for match in WIKI_LINK.finditer(line):
                name, heading = match[1].strip(), (match[2] or "").rpartition("#")[2].strip()
                target = self._by(name)
                if name and (target or not _OTHER_FILE.search(name) or name.lower().endswith(_NOTES)):
                    yield self._link(source, number, match[0], target, heading)
            for match in (*_INLINE.finditer(line), *_REFERENCE.finditer(line)):
                written = match[1].strip("<>")
                if _ELSEWHERE.match(written):
                    continue
                name, heading = map(unquote, written.partition("#")[::2])
                target = self._at(source, name)
                if target or not _OTHER_FILE.search(name) or name.lower().endswith(_NOTES):
                    yield self._link(source, number, match[0], target, heading)

    def _at(self, source: str, name: str) -> str | None:
        """Return the note that a relative path means; one that starts with a slash counts from the folder."""
        name = name.partition("?")[0]
        whole = name.lstrip("/") if name.startswith("/") else posixpath.join(posixpath.dirname(source), name)
        path = posixpath.normpath(whole)
        names = (path, normalise(path), f"{path}.md", normalise(f"{path}.md"))
        return next((self._paths[name] for name in names if name in self._paths), None)

    def _link(self, source: str, line: int, text: str, target: str | None, heading: str) -> Link:
        problem = "" if target else "no such note:"
        is_known = target in self._texts  # else it is a converted file
        if target and is_known and heading and not _NO_HEADING.match(heading):
            problem = "" if _slug(heading) in self._slugs(target) else "no such heading:"
        return Link(source, line, on_one_line(text), target, problem)

    def shared_with(self, path: str) -> dict[str, list[str]]:
        """Return what a note's front matter has in common with others."""
        holders: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for other, values in self._values.items():
            for key in values.keys() - _OWN_KEYS:
                for value in dict.fromkeys(map(caseless, _several(values[key]))):
                    holders[key, value].append(other)
        shared: dict[str, list[str]] = {}
        for key in self._values[path].keys() - _OWN_KEYS:
            for value in _several(self._values[path][key]):
                others = [other for other in holders[key, caseless(value)] if other != path]
                if 0 < len(others) <= _MOST_SHARING:
                    shared[on_one_line(f"{key}: {value}")] = others
        return dict(sorted(shared.items()))


def _several(value: object) -> list[str]:
    """Return the texts of a value of front matter: a list of them, or one."""
    values = value if isinstance(value, list | tuple) else [value]
    return [text for value in values if isinstance(value, str | int | float) and (text := str(value).strip())]


def _slug(heading: str) -> str:
    """Return a heading as an anchor has it: ``Open questions`` and ``open-questions`` are one."""
    return _NO_WORD.sub("", caseless(heading)).replace(" ", "-")
