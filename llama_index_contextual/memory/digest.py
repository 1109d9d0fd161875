"""The digest: one line a hit, ready to be put into an agent's context.

Notes are untrusted text. Whatever a note contains, its hit stays one line of the digest: no heading, citation, code
fence or tag of the note's own survives as such.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from llama_index_contextual.metadata import citation
from llama_index_contextual.text import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HEADER: Final = "## Relevant prior context"
NOTHING: Final = "(No relevant prior context for this message.)"
NOTES: Final = ("(Index: ", "(Message: ", "(Search: ")  # what a line below the hits starts with
DISABLED: Final = "memory is switched off (enabled is false)"

_NON_JOINER, _JOINER = "\u200c\u200d"
_VIRAMA: Final = 9  # the combining class of the marks after which an Indic script may need a joiner
# No reader sees these: what Unicode ignores by default outside of the categories below, and the blank Braille pattern.
_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_HEADING_MARK: Final = re.compile(r"(?<!\S)#{1,6}(?=\s|$)")
_LINE_MARKERS: Final = re.compile(r"^(?:(?:[>*+•\-]|\d{1,9}[.)])(?:\s+|$))+")
_FENCES: Final = re.compile(r"`{3,}|~{3,}")
_TAG: Final = re.compile(r"<(?=[A-Za-z/!?|])")
_UNSAFE_IN_PATH: Final = re.compile(r"[\[\]<>`\s]")


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """One hit of a digest, with why it is there."""

    id: str
    """Node id; give it back in ``seen=`` so that the hit is not shown again."""
    path: str
    start_line: int | None
    """First line of the chunk in its file, 1-based; None where the index does not know it."""
    end_line: int | None
    """Last line of the chunk, inclusive."""
    snippet: str
    """The most relevant sentences, sanitised, on one line, all of one day."""
    score: float
    """How likely it answers the message, 0 to 1, times what ``reasons`` say; for a retriever that is not ours, a share
    of the best hit's score."""
    queries: tuple[str, ...] = ()
    """Kinds of the queries that found it."""
    date: str | None = None
    """Of its headings, else of its note."""
    header_path: str = ""
    """The headings above the chunk, sanitised."""
    context: str = ""
    """What the index knows of the chunk beside its text, sanitised."""
    cosine: float | None = None
    matched_terms: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    """What raised or lowered its score, in words."""
    page: str = ""
    """Of the file, where the chunk is of a document that is one page."""

    @property
    def citation(self) -> str:
        """``memory/2026-04-09.md#L3-L5``, or ``report.pdf#page=12``."""
        return citation(shown_path(self.path), self.start_line, self.end_line, self.page)

    @property
    def line(self) -> str:
        """Its line of the digest."""
        return f"- [{self.citation}] {self.snippet}"


def shown_path(path: str) -> str:
    """Return the path of a note as a line shows it: it ends no line and no citation."""
    return _UNSAFE_IN_PATH.sub(lambda char: " " if char[0] == " " else quote(char[0]), _visible(path, quote))


@dataclass(frozen=True, slots=True)
class MemoryDigest:
    """What memory has to say about a message."""

    applicable: bool
    """False if memory was not asked: the gate closed, or memory is switched off."""
    reason: str
    entries: tuple[MemoryEntry, ...] = ()
    queries: tuple[str, ...] = ()
    """The queries that ran."""
    dates: tuple[str, ...] = ()
    """The dates that the message named, ``2026-04-05`` or ``2026-04-01/2026-04-30``."""
    notes: tuple[str, ...] = ()
    """What the answer does not cover, a line each: ``"Index: 3 files changed since; being indexed."``,
    ``'Search: the index does not know "flurbel".'``"""
    left_out: int = 0
    """Hits that were found and are not shown: less relevant, said already, or beyond ``max_results``."""

    @property
    def markdown(self) -> str:
        """The digest as an agent reads it; one neutral line if there is nothing to say."""
        shown = f"({DISABLED.capitalize()}.)" if self.reason == DISABLED else format_digest(self.entries)
        return "\n".join([shown, *(f"({note})" for note in self.notes)])

    def noting(self, freshness: str) -> MemoryDigest:
        """Return the digest with a line that says how far the index is behind; without one where nothing is said."""
        return replace(self, notes=(*self.notes, f"Index: {freshness}.")) if freshness else self

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the fields, each entry's citation, and the Markdown."""
        entries = [{**asdict(entry), "citation": entry.citation} for entry in self.entries]
        return {**asdict(self), "entries": entries, "markdown": self.markdown}

    def to_json(self) -> str:
        """The same as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2)

    def __str__(self) -> str:
        return self.markdown


def format_digest(entries: Sequence[MemoryEntry]) -> str:
    """Give the digest of some entries, or one neutral line if there are none."""
    return "\n".join([HEADER, *(entry.line for entry in entries)]) if entries else NOTHING


def sanitise(text: str) -> str:
    """Make text of a note harmless as a part of one line of the digest.

    White space and control characters become single spaces, and what cannot be seen goes (it can hide text from a human
    reader). Headings, quotes, bullets and fences lose their marks, brackets become round ones (no citation but ours has
    square ones), and ``<`` before a tag becomes ``‹``. To do so once more changes nothing.
    """
    line = _once(text)
    while (again := _once(line)) != line:
        line = again
    return line


def _once(text: str) -> str:
    line = _FENCES.sub(" ", _visible(text, lambda _: ""))
    line = _TAG.sub("‹", _HEADING_MARK.sub("", line).replace("[", "(").replace("]", ")"))
    return _LINE_MARKERS.sub("", " ".join(line.split()))


def _visible(text: str, hidden: Callable[[str], str]) -> str:
    """Replace line breaks and control characters by spaces, and what cannot be seen by ``hidden(character)``."""
    if text.isascii() and text.isprintable():
        return text
    text, _ = replace_surrogates(text)  # no output stream can encode one
    parts: list[str] = []
    for position, char in enumerate(text):
        category = unicodedata.category(char)
        if category in {"Cc", "Zl", "Zp"}:
            parts.append(" ")
        elif category in {"Cf", "Co", "Cn"} or _UNSEEN.match(char):
            before, after = parts[-1][-1:] if parts else "", text[position + 1 : position + 2]
            parts.append(char if _joins(before, char, after) else hidden(char))
        else:
            parts.append(char)
    return "".join(parts)


def _joins(before: str, char: str, after: str) -> bool:
    """Say whether a joiner is one that a script or an emoji needs, so that it hides nothing."""
    if char not in {_NON_JOINER, _JOINER} or not before or not after:
        return False
    if unicodedata.combining(before) == _VIRAMA:
        return unicodedata.category(after)[0] == "L"
    if char == _NON_JOINER:
        return unicodedata.bidirectional(before) == unicodedata.bidirectional(after) == "AL"
    return unicodedata.category(before) in {"So", "Sk"} and unicodedata.category(after) == "So"
