"""The digest: a citation and a quotation for each hit, ready for an agent's context.

Notes are untrusted text. The first line of a quotation follows the citation, and each further line
follows a quotation mark. A note therefore keeps its own words, brackets and fences, but none of its
lines can imitate a line of the digest.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote

from llama_index_contextual.utils import metadata as meta
from llama_index_contextual.utils.errors import one_of
from llama_index_contextual.utils.text import counted, replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from llama_index.core.schema import BaseNode

DigestFormat: TypeAlias = Literal["markdown", "json"]

HEADER = "## Relevant prior context"
NOTHING = "(No relevant prior context for this message.)"
NOTE_STARTS = ("(Index: ", "(Search: ", "(Next: ")
QUOTE = "  > "

_NOT_PLAIN = re.compile(r"[^\x20-\x7e\n\t]")
# Invisible characters in categories of visible ones, such as the blank Braille pattern.
_SHAPELESS = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0d\uffa0\U000e0100-\U000e01ef]"
)
# Some scripts and emoji need a joiner after a character that is not Latin, and keycap emoji need
# one before the enclosing character. Anywhere else a joiner could hide text.
_JOINERS = "\u200c\u200d\ufe0e\ufe0f"
_JOINER = re.compile(
    f"(?P<needed>(?<=[^\0-\u02ff{_JOINERS}])(?:\ufe0f?\u200d|[\u200c\ufe0e\ufe0f])"
    f"|(?<=[0-9#*])\ufe0f(?=\u20e3))|[{_JOINERS}]"
)
_LEADING_BLANK_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")
_UNSAFE_IN_PATH = re.compile(r"[\[\]<>`\s]")
_INVISIBLE_CATEGORIES = frozenset({"Cf", "Co", "Cn"})
_LINE_CATEGORIES = frozenset({"Cc", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """A hit for a message. In a digest it has a quotation.

    Attributes:
        node: The chunk.
        score: The probability that the chunk answers the message, reduced by its age, at most 1.
            For retrievers of other packages, it depends on the rank alone.
        terms: The matched query terms, in the form of the keyword index, with their rarity.
        snippet: The most relevant sentences, unchanged, all from the same day.
        date: The date of the heading above the snippet, else of the note, in ISO 8601. A period is
            written ``2025-10-01/2025-10-31``.
        also_at: The citations of other chunks with the same text.
    """

    node: BaseNode
    score: float
    terms: Mapping[str, float] = field(default_factory=dict)
    snippet: str = ""
    date: str | None = None
    also_at: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Return the id of the node. Pass it as ``seen=`` to leave the hit out."""
        return self.node.node_id

    @property
    def path(self) -> str:
        """Return the path of the note, else the id of its document."""
        return meta.file_of(self.node.metadata) or self.node.ref_doc_id or self.id

    @property
    def properties(self) -> list[str]:
        """Return the front matter of the note as ``key: value`` texts."""
        front_matter = str(self.node.metadata.get(meta.FRONT_MATTER) or "")
        return [entry for entry in front_matter.split("; ") if entry]

    @property
    def citations(self) -> tuple[str, str]:
        """Return the citation of the chunk, and one that includes the front matter."""
        from_line_1 = {**self.node.metadata, meta.START_LINE: 1}
        return self._cite(self.node.metadata), self._cite(from_line_1)

    @property
    def citation(self) -> str:
        """Return the citation, such as ``memory/2026-04-09.md#L3-L5`` or ``report.pdf#page=12``.

        It starts at line 1 if the snippet quotes the front matter.
        """
        chunk_citation, whole_citation = self.citations
        quotes_front_matter = self.snippet.startswith(tuple(self.properties))
        return whole_citation if quotes_front_matter else chunk_citation

    def _cite(self, metadata: Mapping[str, Any]) -> str:
        return shown_path(meta.citation_of(metadata) or self.path)

    @property
    def header_path(self) -> str:
        """Return the headings above the chunk on one line."""
        return on_one_line(str(meta.value_of(self.node.metadata, meta.HEADER_PATH) or ""))

    @property
    def block(self) -> str:
        """Return the lines of the hit in a digest: ``- [path#L3-L5] text``, then quoted lines."""
        return f"- [{self.citation}] {cited(self.snippet)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the hit as plain data."""
        data = {
            "id": self.id,
            "citation": self.citation,
            "path": self.path,
            "header_path": self.header_path,
            "date": self.date,
            "snippet": self.snippet,
            "score": self.score,
            meta.START_LINE: meta.value_of(self.node.metadata, meta.START_LINE),
            meta.END_LINE: meta.value_of(self.node.metadata, meta.END_LINE),
        }
        if self.also_at:
            data["also_at"] = list(self.also_at)
        return data


@dataclass(frozen=True, slots=True)
class MemoryDigest:
    """The parts of the notes that are relevant to a message.

    Attributes:
        applicable: False if memory was not searched, because the message needs none or memory is
            off.
        reason: The reason why there are hits, or why there are none.
        entries: The hits, best first.
        form: ``"question"``, or ``"message"`` if the message continues a conversation.
        queries: The queries that ran: the message and, if it is not a question, its sentences.
        dates: The dates in the message, such as ``2026-04-05`` or ``2026-04-01/2026-04-30``.
        left_out: The number of hits that are not shown, because they are less relevant, repeat
            another hit, or exceed ``max_results``.
        notes: Limits of the answer, one line each, such as
            ``"Index: 3 files changed since; being indexed."``
    """

    applicable: bool
    reason: str
    entries: tuple[MemoryEntry, ...] = ()
    form: str = ""
    queries: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    left_out: int = 0
    notes: tuple[str, ...] = ()

    @property
    def markdown(self) -> str:
        """Return the digest as Markdown for an agent. Without hits, it is one neutral line."""
        notes = [f"({note})" for note in self.notes]
        if not self.entries:
            return "\n".join([NOTHING, *notes])
        # Without a blank line, Markdown would add the notes to the last quotation.
        gap = [""] if notes else []
        return "\n".join([HEADER, *(entry.block for entry in self.entries), *gap, *notes])

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the Markdown as plain data."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        entries = [entry.to_dict() for entry in self.entries]
        return {**fields, "entries": entries, "markdown": self.markdown}

    def render(self, format: DigestFormat = "markdown") -> str:  # noqa: A002
        """Return the digest as text.

        Args:
            format: ``"markdown"``, or ``"json"`` for all fields as data.
        """
        one_of("format", format, ("markdown", "json"))
        if format == "markdown":
            return self.markdown
        data = self.to_dict()
        del data["markdown"]
        return json.dumps(data, ensure_ascii=False)

    def fitting(self, max_chars: int, format: DigestFormat) -> MemoryDigest:  # noqa: A002
        """Return the digest with as many hits as fit into ``max_chars`` characters, at least one.

        If not even the first hit fits, its quotation is cut.
        """
        digest = self
        for count in range(len(self.entries), 0, -1):
            digest = self._with_first_hits(count)
            surplus = len(digest.render(format)) - max_chars
            if surplus <= 0:
                return digest
        if not self.entries:
            return self
        [hit] = digest.entries
        end = max(0, len(hit.snippet) - surplus - 1)
        return replace(digest, entries=(replace(hit, snippet=f"{hit.snippet[:end]}…"),))

    def _with_first_hits(self, count: int) -> MemoryDigest:
        """Return the digest with the first ``count`` hits, and a note on how to get the rest."""
        hidden = len(self.entries) - count
        if not hidden:
            return self
        next_call = f"Next: retrieve with the same words; {counted(hidden, 'more hit')}."
        return replace(
            self,
            entries=self.entries[:count],
            left_out=self.left_out + hidden,
            notes=(*self.notes, next_call),
        )

    def with_freshness_note(self, freshness: str) -> MemoryDigest:
        """Return the digest with a note that says how far the index is behind, if it is."""
        if not freshness:
            return self
        return replace(self, notes=(*self.notes, f"Index: {freshness}."))


# Making text of notes safe


def quoted(text: str) -> str:
    """Return a text of a note with a quotation mark before each line."""
    lines = visible(text).split("\n")
    return "\n".join(QUOTE + line if line else QUOTE.rstrip() for line in lines)


def cited(text: str) -> str:
    """Return a text of a note as it follows its citation: quoted from the second line on."""
    text = _LEADING_BLANK_LINES.sub("", visible(text)).rstrip("\n")
    first, has_more, further = text.partition("\n")
    return f"{first}\n{quoted(further)}" if has_more else first


def shown_path(path: str) -> str:
    """Return a path with characters escaped that would end a line or a citation."""

    def escaped(match: re.Match[str]) -> str:
        return " " if match[0].isspace() else quote(match[0])

    return _UNSAFE_IN_PATH.sub(escaped, visible(path, hidden=quote))


def visible(text: str, hidden: Callable[[str], str] = lambda _: "") -> str:
    """Return a text of a note without characters that a human reader would not see.

    Line breaks become line feeds, and other control characters become spaces. The function is
    idempotent.

    Args:
        text: The text of a note.
        hidden: Returns the replacement of an invisible character, which could hide text.
    """

    def shown(match: re.Match[str]) -> str:
        character = match[0]
        category = unicodedata.category(character)
        if category in _LINE_CATEGORIES:
            return " "
        if category in _INVISIBLE_CATEGORIES and character not in _JOINERS:
            return hidden(character)
        return hidden(character) if _SHAPELESS.match(character) else character

    def joined(match: re.Match[str]) -> str:
        return match["needed"] or hidden(match[0])

    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text, _ = replace_surrogates(text)  # no output stream can encode a surrogate
    return _JOINER.sub(joined, _NOT_PLAIN.sub(shown, text))


def on_one_line(text: str) -> str:
    """Return the visible text on one line, with single spaces for all white space."""
    return " ".join(visible(text).split())
