"""List the notes, and the folders, tags and front matter keys that can narrow a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from llama_index_contextual.memory.digest import shown_path
from llama_index_contextual.retrievers.filters import tags_in
from llama_index_contextual.tools.answer import MAX_CHARS, Answer, fitting
from llama_index_contextual.tools.places import relative_path
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import DocumentError
from llama_index_contextual.utils.language import caseless

if TYPE_CHECKING:
    from llama_index_contextual.tools.notes import Notes

_MAX_LABEL_CHARS = 300  # length of each line of folders, tags or keys
_MAX_SUGGESTED = 3
_RESERVED = 120  # characters of an answer for the hint on its last line


class Labels(NamedTuple):
    """The tags and the front matter keys of a document, by which a search can be narrowed."""

    tags: set[str]
    keys: set[str]


def labels_of(notes: Notes) -> dict[str, Labels]:
    """Return the tags and the front matter keys of each document, by path."""
    labels: dict[str, Labels] = {}
    for values in notes.metadata():
        document_labels = labels.setdefault(metadata.path_of(values), Labels(set(), set()))
        document_labels.tags.update(tags_in(values))
        document_labels.keys.update(values.keys() - metadata.NAMES_TAKEN)
    return labels


def folders_of(paths: Iterable[str]) -> Counter[str]:
    """Return the number of paths in each folder, subfolders included."""
    return Counter(
        f"{parent}/" for path in paths for parent in PurePosixPath(path).parents if parent.name
    )


def listing(notes: Notes, below: str = "") -> Answer:
    """Return the paths of the notes, and the labels that can narrow a search.

    Args:
        notes: The notes.
        below: Limits the list. A folder as agents write it (``daily/``, ``./daily``, ``.``, an
            absolute path), the start of a path (``daily/2026-04``) or a pattern (``**/*.pdf``).

    Raises:
        DocumentError: No path matches.
    """
    start = relative_path(notes, below).rstrip("/*")
    everything = notes.paths()
    paths = _paths_below(everything, start)
    if start and not paths:
        raise DocumentError(f"There is no note in a folder {below!r}. {_hint(start, everything)}")
    labels = _label_lines(notes, paths)
    available = MAX_CHARS - _RESERVED - sum(map(len, labels))
    shown = fitting(map(shown_path, paths), available)
    lines = [*shown, "", *labels]
    if len(shown) < len(paths):
        lines.append(
            f"({len(shown)} of {len(paths)} notes. Next: list with a folder or the start of a "
            "path, or grep.)"
        )
    return Answer("\n".join(lines).strip() or "(no notes)", {"total": len(paths)})


def _paths_below(paths: Sequence[str], start: str) -> list[str]:
    """Return the paths in a folder. If there are none, return those that match a pattern or text.

    Args:
        paths: All paths.
        start: A folder, a path, the start of a path, or a pattern.
    """
    if not start:
        return list(paths)
    folder = f"{shown_path(start)}/"
    in_folder = [path for path in paths if f"{shown_path(path)}/".startswith(folder)]
    if not in_folder and "*" in start:
        pattern = start.replace("**/", "*") + "*"
        return [path for path in paths if fnmatchcase(path, pattern)]
    beginning = caseless(start)
    return in_folder or [path for path in paths if caseless(path).startswith(beginning)]


def _hint(start: str, paths: Iterable[str]) -> str:
    """Return a hint that names folders with a similar name."""
    folders = folders_of(map(shown_path, paths))
    similar = get_close_matches(f"{start}/", folders, _MAX_SUGGESTED, 0.0)
    return f"Did you mean {', '.join(similar)}?" if similar else "List without a path."


def _label_lines(notes: Notes, paths: Iterable[str]) -> list[str]:
    """Return a line each for folders, tags and keys, with the number of notes of each label."""
    paths = list(paths)
    all_labels = labels_of(notes)
    listed = [all_labels[path] for path in paths if path in all_labels]
    counts = {
        "Folders": folders_of(map(shown_path, paths)),
        "Tags": Counter(tag for labels in listed for tag in labels.tags),
        "Front matter": Counter(key for labels in listed for key in labels.keys),
    }
    return [_label_line(name, count) for name, count in counts.items() if count]


def _label_line(name: str, counts: Counter[str]) -> str:
    """Return a line with the most common labels of a kind, as many as fit."""
    items = (f"{label} {number}" for label, number in counts.most_common())
    shown = fitting(items, _MAX_LABEL_CHARS, gap=2)
    if len(shown) < len(counts):
        shown.append("…")
    return f"{name}: {', '.join(shown)}"
