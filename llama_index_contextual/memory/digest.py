"""The digest: a citation and a quotation for each hit, ready to be put into an agent's context.

Notes are untrusted text. The first line of a note follows its citation, and each other line stands behind a mark of
quotation. So a note keeps its own words, brackets and fences, and none of its lines can pass for a line of the digest.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from llama_index_contextual import metadata as meta
from llama_index_contextual.memory.snippet import choose_snippet
from llama_index_contextual.text import readable, replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import date

    from llama_index.core.schema import BaseNode

HEADER: Final = "## Relevant prior context"
NOTHING: Final = "(No relevant prior context for this message.)"
NOTES: Final = ("(Index: ", "(Message: ", "(Search: ")  # what a line below the hits starts with
QUOTE: Final = "  > "  # before each line of a note but its first, which follows the citation
CURRENT: Final = "  - current since "

_NON_JOINER, _JOINER = "\u200c\u200d"
_VIRAMA: Final = 9  # the combining class of the marks after which an Indic script may need a joiner
# No reader sees these: what Unicode ignores by default outside of the categories below, and the blank Braille pattern.
_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_UNUSUAL: Final = re.compile(r"[^\x20-\x7e]")  # all others stay as they are
_EMOJI_STYLES: Final = "\ufe0e\ufe0f"  # after a symbol: as text, as a picture
_KEYCAP: Final = "\u20e3"
_BLANK_LINES: Final = re.compile(r"\A(?:[^\S\n]*\n)+")
_WIDE_CHARACTER: Final = re.compile(r"[^\u0000-\u024f]")  # beyond Latin scripts
_LEAST_TOKENS: Final = 20  # fewer of a hit tell nothing
_UNSAFE_IN_PATH: Final = re.compile(r"[\[\]<>`\s]")


@dataclass(frozen=True, slots=True)
class PoolHit:
    """One hit; ranking puts another with a new score in its place.

    Args:
        node: The chunk.
        score: How likely it answers the message; where that is not known, a share of the best hit's score.
        cosine: Of the vector arm.
        terms: Matched query terms as the analyzer writes them, and how rare each is.
        reasons: Evidence for its session, where the text was taken for a message, and what changed its score.
    """

    node: BaseNode
    score: float
    cosine: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The node's id."""
        return self.node.node_id


@dataclass(frozen=True, slots=True)
class OlderStatement:
    """An older statement of notes on a fact."""

    citation: str
    snippet: str
    """A slice of the note."""
    since: str
    """The first day of it that is known, ISO 8601."""
    until: str
    """The day from which notes say something else."""

    @property
    def block(self) -> str:
        """Its lines of the digest, below the newer hit."""
        return f"  - [{self.citation}] older, until {self.until}: {cited(self.snippet, '  ' + QUOTE)}"


@dataclass(frozen=True, slots=True)
class Current:
    """The newest that notes say of a fact."""

    text: str
    """The statement, as the note has it."""
    since: str
    """The day from which notes say so."""
    older: tuple[OlderStatement, ...]
    """Earlier values, the latest first."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chunk stands in a document."""

    path: str
    start_line: int | None = None
    """First line of the chunk in its file, 1-based; None where the index does not know it."""
    end_line: int | None = None
    """Last line of the chunk, inclusive."""
    page: str = ""
    """Of the file, where the chunk is of a document that is one page."""
    document: str = ""
    """Id of the document that the chunk was cut from."""

    @property
    def citation(self) -> str:
        """``memory/2026-04-09.md#L3-L5``, or ``report.pdf#page=12``."""
        return meta.citation(shown_path(self.path), self.start_line, self.end_line, self.page)


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """One hit of a digest, with why it is there."""

    id: str
    """Node id; give it back in ``seen=`` so that the hit is not shown again."""
    place: Place
    snippet: str
    """The most relevant sentences as the note has them, all of one day; ``…`` stands for what is left out."""
    score: float
    """How likely it answers the message, times what ``reasons`` name, and 1 at most; for a retriever that is not ours,
    a share of the best hit's score."""
    date: str | None = None
    """Of its headings, else of its note."""
    header_path: str = ""
    """The headings above the chunk, on one line."""
    cosine: float | None = None
    matched_terms: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    """What raised or lowered its score, in words."""
    current: Current | None = None
    """The present value of a fact that has changed."""

    @property
    def path(self) -> str:
        """Path of its note."""
        return self.place.path

    @property
    def citation(self) -> str:
        """Its path with lines or page."""
        return self.place.citation

    @property
    def block(self) -> str:
        """Its lines of the digest: ``- [path#L3-L5] text``, and more lines where its text has more."""
        now = self.current
        changed = [] if now is None else [f"{CURRENT}{now.since}", *(one.block for one in now.older)]
        return "\n".join([f"- [{self.citation}] {cited(self.snippet)}", *changed])


def quoted(text: str, mark: str = QUOTE) -> str:
    """A text of a note with the mark of quotation before each line."""
    return "\n".join(mark + line if line else mark.rstrip() for line in visible(text).split("\n"))


def cited(text: str, mark: str = QUOTE) -> str:
    """A text of a note as it follows its citation: the first line, and the others behind the mark."""
    first, _, others = _BLANK_LINES.sub("", visible(text)).rstrip("\n").partition("\n")
    return "\n".join([first, quoted(others, mark)]) if others else first


def shown_path(path: str) -> str:
    """The path of a note as a line shows it: it ends no line and no citation."""
    return _UNSAFE_IN_PATH.sub(lambda char: " " if char[0] == " " else quote(char[0]), _visible(path, quote))


@dataclass(frozen=True, slots=True)
class MemoryDigest:
    """What memory has to say about a message."""

    applicable: bool
    """False if memory was not searched: the gate closed, or memory is switched off."""
    reason: str
    entries: tuple[MemoryEntry, ...] = ()
    form: str = ""
    """What the message was taken for: ``"question"``, or ``"message"`` for what goes on with something."""
    queries: tuple[str, ...] = ()
    """The queries: the message, and its sentences where it is no question."""
    dates: tuple[str, ...] = ()
    """The dates that the message named, ``2026-04-05`` or ``2026-04-01/2026-04-30``."""
    notes: tuple[str, ...] = ()
    """What the answer does not cover, a line each: ``"Index: 3 files changed since; being indexed."``,
    ``'Search: the index does not know "flurbel".'``"""
    left_out: int = 0
    """Hits that were found and are not shown: less relevant, repeated, or beyond ``max_results``."""

    @property
    def markdown(self) -> str:
        """The digest as an agent reads it; one neutral line if there is nothing to say."""
        apart = [""] if self.entries and self.notes else []  # else Markdown takes them for the end of the quotation
        return "\n".join([format_digest(self.entries), *apart, *(f"({note})" for note in self.notes)])

    def with_freshness_note(self, freshness: str) -> MemoryDigest:
        """The digest with a line about how far the index is behind; the same digest where that is empty."""
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
    """The digest of some entries, or one neutral line if there are none."""
    return "\n".join([HEADER, *(entry.block for entry in entries)]) if entries else NOTHING


def visible(text: str) -> str:
    """A text of a note without what a human reader would not see.

    Line breaks become those of Unix, other control characters spaces. What has no shape goes, as it can hide text.
    All else stays. To do so once more changes nothing.
    """
    return _visible(text.replace("\r\n", "\n").replace("\r", "\n"), lambda _: "", controls="\n\t")


def on_one_line(text: str) -> str:
    """The same with single spaces for all white space."""
    return " ".join(visible(text).split())


def _visible(text: str, hidden: Callable[[str], str], *, controls: str = "") -> str:
    """A text with spaces for control characters but some, and ``hidden(character)`` for what cannot be seen."""
    if text.isascii() and text.isprintable():
        return text
    text, _ = replace_surrogates(text)  # no output stream can encode one
    parts, end = [""], 0
    for match in _UNUSUAL.finditer(text):
        parts += filter(None, [text[end : match.start()]])
        char, end, category = match[0], match.end(), unicodedata.category(match[0])
        if category in {"Cc", "Zl", "Zp"}:
            char = char if char in controls else " "
        elif category in {"Cf", "Co", "Cn"} or _UNSEEN.match(char):
            char = char if _joins(parts[-1][-1:], char, text[end : end + 1]) else hidden(char)
        parts.append(char)
    return "".join([*parts, text[end:]])


def _joins(before: str, char: str, after: str) -> bool:
    """Whether a script or an emoji needs an unseen character, so that it hides nothing."""
    if char in _EMOJI_STYLES:
        return bool(before) and (unicodedata.category(before) in {"So", "Sm"} or after == _KEYCAP)
    if char not in {_NON_JOINER, _JOINER} or not before or not after:
        return False
    if unicodedata.combining(before) == _VIRAMA:
        return unicodedata.category(after)[0] == "L"
    if char == _NON_JOINER:
        return unicodedata.bidirectional(before) == unicodedata.bidirectional(after) == "AL"
    return (unicodedata.category(before) in {"So", "Sk"} or before in _EMOJI_STYLES) and (
        unicodedata.category(after) == "So"
    )


# Entries


def is_seen(one: PoolHit, seen: Collection[str]) -> bool:
    """Whether a hit was shown before, by its id or its citation."""
    return bool(seen) and (one.id in seen or _entry(one, "", None).citation in seen)


def entries_of(
    chosen: Sequence[PoolHit],
    groups: Sequence[tuple[str, ...]],
    terms: Callable[[str], Collection[str]],
    max_tokens: int,
    current: Mapping[str, Current],
) -> tuple[MemoryEntry, ...]:
    """Entries whose snippets share the budget; what one leaves goes to those after it.

    Args:
        chosen: Best first.
        groups: The query's terms with their alternatives.
        terms: Cuts a text into terms.
        max_tokens: For all lines together, estimated. Where it is short, later hits are left out; the first never is.
        current: By id what a hit has of a fact that has changed.
    """
    entries: list[MemoryEntry] = []
    left = max_tokens
    for position, one in enumerate(chosen):
        weights = {
            alternative: one.terms[group[0]] for group in groups for alternative in group if group[0] in one.terms
        }
        text = readable(one.node.get_content())
        properties = str(one.node.metadata.get(meta.FRONT_MATTER) or "")
        if weights.keys() & set(terms(properties)):  # "birthday: 1991-05-02" may be what is asked for
            text = "\n\n".join([*properties.split("; "), text])
        now = current.get(one.id)
        share = left // (len(chosen) - position) - estimate_tokens(_entry(one, "", None, now).block)
        if share < _LEAST_TOKENS and entries:
            break
        limit = int(max(share, _LEAST_TOKENS) * len(text) / max(1, estimate_tokens(text)))
        snippet, day = choose_snippet(text, weights, terms, limit=limit)
        if now is not None and now.text not in snippet:
            snippet = now.text
        entries.append(_entry(one, visible(snippet), day, now))
        left -= estimate_tokens(entries[-1].block)
    return tuple(entries)


def _entry(one: PoolHit, snippet: str, day: date | None, current: Current | None = None) -> MemoryEntry:
    values, document = one.node.metadata, one.node.ref_doc_id or ""
    lines = (meta.value_of(values, key) for key in (meta.START_LINE, meta.END_LINE))
    start, end = (line if isinstance(line, int) else None for line in lines)
    path, page = meta.path_of(values) or document or one.id, str(values.get(meta.PAGE_LABEL) or "")
    day = day or meta.day_of(values)
    return MemoryEntry(
        id=one.id,
        place=Place(path, start, end, page, document),
        snippet=snippet,
        score=round(min(one.score, 1.0), 6),
        date=day.isoformat() if day else None,
        header_path=on_one_line(str(meta.value_of(values, meta.HEADER_PATH) or "")),
        cosine=None if one.cosine is None else round(one.cosine, 4),
        matched_terms=tuple(term.rsplit(":", 1)[-1] for term in one.terms),  # without the analyzer's language
        reasons=one.reasons,
        current=current,
    )


def estimate_tokens(text: str) -> int:
    """Estimated LLM tokens without a tokenizer: four characters each, one character each beyond Latin scripts."""
    wide = 0 if text.isascii() else len(_WIDE_CHARACTER.findall(text))
    return wide + -(-(len(text) - wide) // 4)
