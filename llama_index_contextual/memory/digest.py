"""The digest and its settings: a citation and a quotation for each hit, ready to be put into an agent's context.

Notes are untrusted text. The first line of a note follows its citation, and each other line stands behind a mark of
quotation. So a note keeps its own words, brackets and fences, and none of its lines can pass for a line of the digest.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import quote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from llama_index_contextual.utils import metadata as meta
from llama_index_contextual.utils.errors import Checked
from llama_index_contextual.utils.text import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from llama_index.core.schema import BaseNode

HEADER: Final = "## Relevant prior context"
NOTHING: Final = "(No relevant prior context for this message.)"
NOTES: Final = ("(Index: ", "(Search: ")  # what a line below the hits starts with
QUOTE: Final = "  > "  # before each line of a note but its first, which follows the citation
CURRENT: Final = "  - current since "

_UNUSUAL: Final = re.compile(r"[^\x20-\x7e\n\t]")
# No reader sees these: what Unicode ignores by default outside of the categories below, and the blank Braille pattern.
_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0d\uffa0\U000e0100-\U000e01ef]"
)
# Scripts and emoji need one of these after a character beyond Latin, and keys before their frame; more could hide text.
_JOINERS: Final = "\u200c\u200d\ufe0e\ufe0f"
_JOINED: Final = re.compile(
    f"(?P<kept>(?<=[^\0-\u02ff{_JOINERS}])(?:\ufe0f?\u200d|[\u200c\ufe0e\ufe0f])|(?<=[0-9#*])\ufe0f(?=\u20e3))"
    f"|[{_JOINERS}]"
)
_BLANK_LINES: Final = re.compile(r"\A(?:[^\S\n]*\n)+")
_UNSAFE_IN_PATH: Final = re.compile(r"[\[\]<>`\s]")
_Share = Annotated[float, Field(ge=0, le=1)]
_Texts = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]


class MemorySettings(Checked, BaseModel):
    """How notes answer an agent.

    Attributes:
        enabled: Whether memory answers at all.
        max_results: The most hits of a digest.
        max_tokens: The most tokens of a digest; its first hit is shown whatever it costs.
        include_recency: Whether newer notes win among near equals. Where a message names a date, that counts instead.
        half_life_days: Days after which a dated note's recency factor is a half.
        recency_weight: The share of a score that age may take, 0 to 1. benchmarks/results/memory.md: a weight of 0.1
            costs 0.1 points of recall@4; one of 1, as the source has it, 34.
        ranking: How a digest orders its hits: ``"learned"`` searches for the message once and compares by a trained
            model; ``"derived"`` searches for it, its keywords and its names, and multiplies by age and by agreement.
        min_relevance: How likely a hit has to answer the message, 0 to 1; 0 leaves out none; ``"auto"`` is 0.05, or 0
            with another embedding than the local one.
        evergreen: Patterns of notes that never age.

    Raises:
        SettingError: A value cannot work.
    """

    model_config = ConfigDict(frozen=True)

    enabled: bool = True
    max_results: int = Field(4, ge=1, le=100_000)
    max_tokens: int = Field(600, ge=1, le=10**9)
    include_recency: bool = True
    half_life_days: float = Field(30.0, gt=0, le=1_000_000)
    recency_weight: _Share = 0.1
    ranking: Literal["learned", "derived"] = "learned"
    min_relevance: _Share | Literal["auto"] = "auto"
    evergreen: _Texts = ("MEMORY.md",)


class OlderValue(NamedTuple):
    """What notes had of a fact before.

    Args:
        citation: The note and its line.
        snippet: A slice of the note.
        since: The first day of it that is known, ISO 8601.
        until: The day from which notes have something else.
    """

    citation: str
    snippet: str
    since: str
    until: str


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """A hit. Ranking puts one with another score in its place, and the digest one with a quotation.

    Attributes:
        node: The chunk.
        score: How likely it answers the message, less for its age, and 1 at most in a digest; for a retriever that is
            not ours it tells the rank alone.
        terms: Matched query terms as the keyword index writes them, and how rare each is.
        snippet: The most relevant sentences as the note has them, all of one day.
        date: Of its headings, else of its note, ISO 8601.
        since: The day from which notes have the value of a fact that has changed, ISO 8601.
        older: Its values before, the latest first.
    """

    node: BaseNode
    score: float
    terms: Mapping[str, float] = field(default_factory=dict)
    snippet: str = ""
    date: str | None = None
    since: str | None = None
    older: tuple[OlderValue, ...] = ()

    @property
    def id(self) -> str:
        """The node's id; in ``seen=`` it keeps the hit from being shown again."""
        return self.node.node_id

    @property
    def path(self) -> str:
        """The path of its note, else the id of the document."""
        return meta.file_of(self.node.metadata) or self.node.ref_doc_id or self.id

    @property
    def properties(self) -> list[str]:
        """The front matter of its note, ``key: value`` each."""
        return [*filter(None, str(self.node.metadata.get(meta.FRONT_MATTER) or "").split("; "))]

    @property
    def citations(self) -> tuple[str, str]:
        """The citation of the chunk, and that of the chunk with all lines above it, the front matter among them."""
        lines = self.node.metadata, {**self.node.metadata, meta.START_LINE: 1}
        plain, whole = (shown_path(meta.citation_of(one) or self.path) for one in lines)
        return plain, whole

    @property
    def citation(self) -> str:
        """``memory/2026-04-09.md#L3-L5``, or ``report.pdf#page=12``; from line 1 where it quotes the front matter."""
        return self.citations[self.snippet.startswith((*self.properties,))]

    @property
    def header_path(self) -> str:
        """The headings above the chunk, on one line."""
        return on_one_line(str(meta.value_of(self.node.metadata, meta.HEADER_PATH) or ""))

    @property
    def block(self) -> str:
        """Its lines of the digest: ``- [path#L3-L5] text``, and more lines where its text has more."""
        lines = [f"- [{self.citation}] {cited(self.snippet)}"]
        if self.older:
            lines.append(f"{CURRENT}{self.since}")
            older = [
                (f"  - [{one.citation}] older, until {one.until}: ", one.snippet)
                for one in self.older
            ]
            lines += [before + cited(snippet, "  " + QUOTE) for before, snippet in older]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        names = ("id", "citation", "path", "header_path", "date", "snippet", "score", "since")
        return {
            **{name: getattr(self, name) for name in names},
            **{
                key: meta.value_of(self.node.metadata, key)
                for key in (meta.START_LINE, meta.END_LINE)
            },
            "older": [one._asdict() for one in self.older],
        }


@dataclass(frozen=True, slots=True)
class MemoryDigest:
    """The hits for a message.

    Attributes:
        applicable: False if memory was not searched: the gate closed, or memory is switched off.
        reason: Why there are hits or none.
        entries: The hits, best first.
        form: ``"question"``, or ``"message"`` for a message that goes on with something.
        queries: The message, and its sentences where it is no question.
        dates: The dates that the message named, ``2026-04-05`` or ``2026-04-01/2026-04-30``.
        notes: What the answer does not cover, a line each: ``"Index: 3 files changed since; being indexed."``,
            ``'Search: the index does not know "flurbel".'``
        left_out: How many hits are not shown: less relevant, repeated, or beyond ``max_results``.
    """

    applicable: bool
    reason: str
    entries: tuple[MemoryEntry, ...] = ()
    form: str = ""
    queries: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: int = 0

    @property
    def markdown(self) -> str:
        """The digest as an agent reads it; one neutral line if there is nothing to say."""
        hits = [HEADER, *(entry.block for entry in self.entries)] if self.entries else [NOTHING]
        apart = (
            [""] if self.entries and self.notes else []
        )  # else Markdown takes them for the end of the quotation
        return "\n".join([*hits, *apart, *(f"({note})" for note in self.notes)])

    def with_freshness_note(self, freshness: str) -> MemoryDigest:
        """The digest with a line about how far the index is behind; the same digest where that is empty."""
        return replace(self, notes=(*self.notes, f"Index: {freshness}.")) if freshness else self

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the fields and the Markdown."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {
            **values,
            "entries": [entry.to_dict() for entry in self.entries],
            "markdown": self.markdown,
        }


# Texts of notes


def quoted(text: str, mark: str = QUOTE) -> str:
    """A text of a note with the mark of quotation before each line."""
    return "\n".join(mark + line if line else mark.rstrip() for line in visible(text).split("\n"))


def cited(text: str, mark: str = QUOTE) -> str:
    """A text of a note as it follows its citation: the first line, and the others behind the mark."""
    first, _, others = _BLANK_LINES.sub("", visible(text)).rstrip("\n").partition("\n")
    return "\n".join([first, quoted(others, mark)]) if others else first


def shown_path(path: str) -> str:
    """The path of a note as a line shows it: it ends no line and no citation."""
    return _UNSAFE_IN_PATH.sub(
        lambda char: " " if char[0].isspace() else quote(char[0]), visible(path, quote)
    )


def visible(text: str, hidden: Callable[[str], str] = lambda _: "") -> str:
    """A text of a note without what a human reader would not see. To do so once more changes nothing.

    Line breaks become those of Unix, other control characters spaces. All else stays.

    Args:
        text: Of a note.
        hidden: What stands for a character without a shape, which can hide text.
    """

    def shown(match: re.Match[str]) -> str:
        char, category = match[0], unicodedata.category(match[0])
        if category in {"Cc", "Zl", "Zp"}:
            return " "
        is_hidden = (category in {"Cf", "Co", "Cn"} and char not in _JOINERS) or _UNSEEN.match(char)
        return hidden(char) if is_hidden else char

    text, _ = replace_surrogates(
        text.replace("\r\n", "\n").replace("\r", "\n")
    )  # no output stream can encode one
    return _JOINED.sub(lambda match: match["kept"] or hidden(match[0]), _UNUSUAL.sub(shown, text))


def on_one_line(text: str) -> str:
    """The same with single spaces for all white space."""
    return " ".join(visible(text).split())
