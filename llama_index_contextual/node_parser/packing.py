"""From a document's text to the spans that become its chunks.

A group of sections that fits is one span. Another is cut at the strongest mark, at last inside of blocks and sentences.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import regex  # type: ignore[import-untyped]
from pydantic import BaseModel

from llama_index_contextual.node_parser import sections as ruler
from llama_index_contextual.node_parser.blocks import FrontMatter, read_front_matter
from llama_index_contextual.node_parser.sections import Atom, Mark, Outline, Path, Section
from llama_index_contextual.utils.errors import Checked, SettingError, whole
from llama_index_contextual.utils.language import sentence_starts
from llama_index_contextual.utils.tokens import COUNTERS, Scale, make_scale

_MARK: Final = regex.compile("[\\p{M}\u0e33\u0eb3]")  # of the letter before
_SPACE: Final = re.compile(r"\s+")
_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")
_PARAGRAPH_END: Final = re.compile(r"(?:\r\n|\r(?!\n)|\n)(?:[ \t]*(?:\r\n|\r(?!\n)|\n))+")
_LINE_START: Final = re.compile(r"(?:\r\n?|\n)(?=[ \t]*\S)")
_TOKENS_PER_CHARACTER: Final = 4  # of a byte-level tokenizer at most
_MAX_ROW: Final = 3000  # characters of a header row that are read
_MAX_CONTINUES: Final = 300  # characters of a table's header row, or a fence's language
_MOST_MERGED: Final = (
    4  # times as many tokens have the pieces of a text, counted one by one, as the text has
)


class ChunkSettings(Checked, BaseModel):
    """How a text is cut; sizes are in tokens of ``tokenizer``.

    Attributes:
        chunk_size: A chunk has at most this many tokens. One sentence or code line may have twice as many; its chunk is
            marked ``overflow``.
        chunk_overlap: At most this many tokens of whole sentences or blocks are repeated from the chunk before,
            counted in ``chunk_size``, inside one section only.
        tokenizer: ``"cl100k"``, ``"minilm"``, ``"e5"``, or a callable that returns the tokens of a text, or how many.
            None is LlamaIndex's ``Settings.tokenizer``.
        min_chunk_size: Smaller sections merge with a neighbour; smaller tails are avoided.
        keep_blocks: Whether a code block or table is never cut, up to eight times ``chunk_size``; its chunk is marked
            ``overflow``. Otherwise it is cut at ``chunk_size``, between lines or rows: whole tables of reports cost 4
            points of recall@5 (``benchmarks/results/documents.md``).
        semantic: False packs lines to the budget and ignores all structure.
    """

    chunk_size: int = 400
    chunk_overlap: int = 80
    tokenizer: str | Callable[[str], Any] | None = None
    min_chunk_size: int = 50
    keep_blocks: bool = False
    semantic: bool = True

    if not TYPE_CHECKING:  # a type checker reads the fields instead

        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            whole("chunk_size", size := self.chunk_size, most=1_000_000)
            for name, most, bound in (
                ("chunk_overlap", size - 1, "less than"),
                ("min_chunk_size", size, "at most"),
            ):
                value = whole(name, getattr(self, name), least=0)
                if value > most:
                    raise SettingError(
                        f"`{name}` must be {bound} `chunk_size` (got {value} for {size})."
                    )
            if isinstance(self.tokenizer, str) and self.tokenizer not in COUNTERS:
                known = ", ".join(map(repr, COUNTERS))
                raise SettingError(
                    f"`tokenizer` must be one of {known}, or a callable (got {self.tokenizer!r})."
                )

    @property
    def hard_bound(self) -> int:
        """The size that nothing exceeds, in tokens."""
        return (8 if self.keep_blocks else 2) * self.chunk_size


class Span(NamedTuple):
    """One chunk of a text."""

    start: int  # offset of its first character
    end: int  # offset after its last character
    path: Path  # the headings above it, outermost first, its own included; of several sections those that all share
    kind: str  # "text", "code", "table", "list", "quote", "html", "heading" or "mixed"
    tokens: int  # in the tokenizer of the settings
    continues: str = (
        ""  # of a later piece of a fence the language; of a table above chunk_size the header row
    )
    overlap: int = 0  # how many of its first characters the chunk before it holds too
    open: Path = ()  # the headings that are open at its end


def split_markdown(
    text: str,
    *,
    settings: ChunkSettings | None = None,
    front: FrontMatter | None = None,
    above: Path = (),
    markdown: bool = True,
) -> list[Span]:
    """Spans that cover all of a text (without lone surrogates) but white space, front matter and a byte order mark.

    Encoded bytes (a picture in a data URI) are never cut and count as one character; what is nothing else is no span.
    ``front=None`` reads the front matter here. ``above`` are the headings that are open where the text begins, as they
    are for a page of a file. ``markdown=False`` is for plain text: paragraphs, but no headings, fences, lists.
    """
    settings = settings or ChunkSettings()
    structured = markdown and settings.semantic
    if front is None:
        front = read_front_matter(text) if structured else FrontMatter()
    body = front.end or int(text.startswith("\ufeff"))
    if not text[body:].strip():
        return []
    outline = (
        ruler.outline_of(text, body, front.unread)
        if structured
        else _plain_outline(text, body, settings)
    )
    packer = _Packer(text, make_scale(text, settings.tokenizer), settings)
    sums = packer.sums(outline.marks)
    sections = ruler.find_sections(text, outline, above)
    spans: list[Span] = []
    for group in ruler.group_sections(sections, sums, settings.min_chunk_size, settings.chunk_size):
        first, last = group[0].first, group[-1].last
        pieces = packer.pieces(outline.marks[first : last + 1], sums[first : last + 1])
        spans.extend(_with_headings(piece, group, outline.marks) for piece in pieces)
    return spans


def _kind(marks: Iterable[Mark]) -> str:
    """The kind of a chunk in which some marks are."""
    kinds = {mark.kind for mark in marks} - {"heading", "rule"}
    return next(iter(kinds)) if len(kinds) == 1 else "mixed" if kinds else "heading"


def _with_headings(span: Span, group: list[Section], marks: Sequence[Mark]) -> Span:
    """A span with the headings above it, and those that are open at its end."""
    fresh = span.start + span.overlap
    group = [
        part
        for part in group
        if marks[part.first].offset < span.end and marks[part.last].offset > fresh
    ]
    first = group[0]
    heads = marks[first.first].kind == "heading" and marks[first.first].offset >= span.start
    # Otherwise what stands further down in the chunk heads nothing of its beginning.
    return span._replace(
        path=ruler.common_path(group) if heads else first.path, open=group[-1].path
    )


def _plain_outline(text: str, body: int, settings: ChunkSettings) -> Outline:
    """The paragraphs of a plain text; without structure its lines."""
    pattern, strength = (
        (_PARAGRAPH_END, ruler.BLOCK) if settings.semantic else (_LINE_START, ruler.LINE)
    )
    start = body + len(text[body:]) - len(text[body:].lstrip())
    offsets = [
        max(body, text.rfind("\n", body, start) + 1),
        *(match.end() for match in pattern.finditer(text, start)),
    ]
    marks = [Mark(offset, strength, "text") for offset in offsets if offset < len(text)]
    return Outline([*marks, Mark(len(text), ruler.SECTION, "")])


def _continues(text: str, atom: Atom | None) -> str:
    """The language of a fence, or the header row of a table without the blanks that align its columns."""
    if atom is None or atom.kind == "code":
        return "".join(atom.info.split(maxsplit=1)[:1])[:_MAX_CONTINUES] if atom else ""
    row = text[atom.start : min(atom.end, atom.start + _MAX_ROW)].splitlines()[0]
    return " ".join(row.split())[:_MAX_CONTINUES]


def _cut_points(text: str, mark: Mark, end: int) -> Iterator[tuple[int, int]]:
    """Places to cut inside one block, before lines or sentences: (offset, strength)."""
    atom = mark.atom
    if mark.kind not in {"html", "heading"} and atom is None:
        yield from ((offset, ruler.SENTENCE) for offset in sentence_starts(text, mark.offset, end))
        return
    lines = [match for match in _LINE.finditer(text, mark.offset, end) if match[0].strip()]
    head = (
        2 if atom and atom.kind == "table" else 1
    )  # a fence's first line, or a table's two, hold on to the next
    for number, (before, line) in enumerate(pairwise(lines), start=1):
        is_end = atom and atom.kind == "code" and not line[0].strip("`~> \t\r\n")  # of a fence
        if atom and (number <= head or is_end):
            yield line.start(), ruler.GLUED
        else:
            yield line.start(), ruler.LINE if before.end() == line.start() else ruler.PIECE


def _whitespace_cut_points(text: str, start: int, end: int, step: int) -> Iterator[tuple[int, int]]:
    """Places to cut inside one sentence or line, at least every ``step`` characters: after white space if any."""
    while end - start > step:
        space = max(
            text.rfind(" ", start + 1, start + step), text.rfind("\n", start + 1, start + step)
        )
        bounds = range(
            start + step, start + 1, -1
        )  # in a run of marks that is longer, any place is as good
        start = (
            space + 1
            if space > 0
            else next((at for at in bounds if not _MARK.match(text, at)), start + step)
        )
        blank = _SPACE.match(text, start, end)
        start = blank.end() if blank else start
        if start >= end:
            return
        yield start, ruler.SPACE if space > 0 else ruler.CHARACTER


class _Packer:
    """Packs the marks of groups of sections into chunks."""

    def __init__(self, text: str, scale: Scale, settings: ChunkSettings) -> None:
        self.text, self.scale, self.settings = text, scale, settings
        self.size, self.bound = settings.chunk_size, settings.hard_bound

    def sums(self, marks: Sequence[Mark]) -> Sequence[int]:
        """The cost before each mark."""
        return self.scale.cumulative([mark.offset for mark in marks])

    def visible(self, start: int, end: int) -> tuple[int, int]:
        """A slice without the white space below it."""
        return start, start + len(self.text[start:end].rstrip())

    def cost(self, start: int, end: int) -> int:
        """The cost of a slice without the white space below it."""
        return self.scale.cost(*self.visible(start, end))

    def pieces(self, marks: Sequence[Mark], sums: Sequence[int]) -> Iterator[Span]:
        """The chunks of one group of sections, whose last mark is its end."""
        marks = [*marks[:-1], marks[-1]._replace(strength=ruler.SECTION)]
        if (
            sums[-1] - sums[0] > self.size
            and self.cost(marks[0].offset, marks[-1].offset) > self.size
        ):
            marks = self.refined(marks, sums)
            sums = self.sums(marks)
        strong = [at for at, mark in enumerate(marks) if mark.strength]
        first, start = 0, marks[0].offset
        while first < len(marks) - 1:
            last = self.fitting(marks, sums, first, start)
            if (
                last is None and start < marks[first].offset
            ):  # the overlap took the room: do without
                start = marks[first].offset
                last = self.fitting(marks, sums, first, start)
            last = last or self.forced(marks, sums, first, strong[bisect_right(strong, first)])
            start, end = self.visible(start, marks[last].offset)
            if end > marks[first].offset and self.scale.is_text(
                start, end
            ):  # something that no chunk before holds
                yield self.span(marks[first:last], start, end)
            start = next(self.restarts(marks, sums, first, last), marks[last].offset)
            first = last

    def span(self, marks: Sequence[Mark], start: int, end: int) -> Span:
        """The chunk that begins with the first of some marks, or with an overlap before it."""
        first, tokens = marks[0], self.scale.exact(start, end)
        atom = first.atom if start == first.offset and first.is_inside_atom else None
        if (
            atom is None and tokens > self.size
        ):  # it is embedded in windows, and later ones lack the header row
            atom = next(
                (mark.atom for mark in marks if mark.atom and mark.atom.kind == "table"), None
            )
        return Span(
            start, end, (), _kind(marks), tokens, _continues(self.text, atom), first.offset - start
        )

    def refined(self, marks: Sequence[Mark], sums: Sequence[int]) -> list[Mark]:
        """The marks with finer ones inside blocks over the budget."""
        found: list[Mark] = []
        head = 0
        for index, (mark, after) in enumerate(pairwise(marks)):
            found.append(mark)
            head = index if mark.strength else head
            above = sums[index] - sums[head]  # of a heading that holds on to the block
            most = (
                self.size - above
                if mark.atom is None
                else self.bound
                if self.settings.keep_blocks
                else self.size
            )
            weight = sums[index + 1] - sums[index]
            if (
                weight > most
                and mark.kind != "rule"
                and self.cost(mark.offset, after.offset) > most
            ):
                found += self.finer(mark, after.offset, 2 * self.size - above)
        return [*found, marks[-1]]

    def finer(self, mark: Mark, end: int, room: int) -> Iterator[Mark]:
        """Marks inside one block: between lines or sentences, and inside those that exceed the room."""
        step = max(1, self.size // _TOKENS_PER_CHARACTER)
        places = [(mark.offset, 0), *_cut_points(self.text, mark, end), (end, 0)]
        places = [place for place in places if not self.scale.cuts_run(place[0])]
        for (start, strength), (stop, _) in pairwise(places):
            inside: Iterable[tuple[int, int]] = ()
            if self.scale.cost(start, stop) > room:
                inside = _whitespace_cut_points(self.text, start, stop, step)
            for offset, strong in [(start, strength), *inside]:
                if offset > mark.offset and not self.scale.cuts_run(offset):
                    yield mark._replace(offset=offset, strength=strong)

    def fitting(
        self, marks: Sequence[Mark], sums: Sequence[int], first: int, start: int
    ) -> int | None:
        """The strongest mark in the upper half of the budget, else the last one that fits; None if none does."""
        total, least = len(marks) - 1, self.settings.min_chunk_size
        limit = self.size - (
            self.scale.exact(start, marks[first].offset) if start < marks[first].offset else 0
        )
        while True:
            reach = min(total, bisect_right(sums, sums[first] + limit) - 1)
            near = [mark for mark in range(first + 1, reach + 1) if marks[mark].strength]
            upper = [mark for mark in near if sums[mark] >= sums[first] + limit // 2] or near[-1:]
            if not upper:
                return None
            last = total
            if reach < total:
                last = max(
                    upper,
                    key=lambda mark: (
                        sums[total] - sums[mark] >= least,
                        marks[mark].strength,
                        mark,
                    ),
                )
            over = self.cost(start, marks[last].offset) - self.size
            if over <= 0:
                return last
            limit -= over

    def forced(self, marks: Sequence[Mark], sums: Sequence[int], first: int, last: int) -> int:
        """Where to cut when nothing fits: at the next strong mark ``last``, unless that exceeds the bound."""
        is_near = (
            sums[last - 1] - sums[first] <= _MOST_MERGED * self.bound
        )  # else its tokens need not be counted
        if is_near and self.cost(marks[first].offset, marks[last].offset) <= self.bound:
            return last
        return max(first + 1, bisect_right(sums, sums[first] + self.size) - 1)

    def restarts(
        self, marks: Sequence[Mark], sums: Sequence[int], first: int, last: int
    ) -> Iterator[int]:
        """Where the next chunk may start: blocks or sentences of this section that the overlap has room for."""
        end, room, before = marks[last].offset, self.settings.chunk_overlap, marks[last - 1]
        if not room or last == len(marks) - 1 or marks[last].kind == "heading":
            return
        near = range(max(first + 1, bisect_left(sums, sums[last] - room)), last)
        headed = max(
            (mark + 1 for mark in near if marks[mark].kind == "heading"), default=near.start
        )
        offsets = [
            mark.offset
            for mark in marks[headed:last]
            if mark.kind != "rule"
            and not mark.is_inside_atom
            and mark.strength not in {ruler.SPACE, ruler.CHARACTER}
        ]
        if not offsets and before.atom is None and before.kind in {"text", "list", "quote"}:
            offsets = sentence_starts(self.text, before.offset, end)
        yield from (offset for offset in offsets if self.scale.exact(offset, end) <= room)
