"""From a document's text to the spans that become its chunks.

A group of sections that fits is one span. Another is cut at the strongest marks, and where a block
or a sentence alone is too long, inside it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

import regex  # type: ignore[import-untyped]

from llama_index_contextual.node_parser import sections as sectioning
from llama_index_contextual.node_parser.front_matter import FrontMatter, read_front_matter
from llama_index_contextual.node_parser.sections import Atom, Mark, Outline, Path, Section
from llama_index_contextual.utils.language import sentence_starts, tell_language
from llama_index_contextual.utils.tokens import Scale, make_scale

# A combining mark belongs to the letter before it.
_COMBINING_MARK: Final = regex.compile("[\\p{M}\u0e33\u0eb3]")
_SPACE: Final = re.compile(r"\s+")
_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")
_PARAGRAPH_END: Final = re.compile(r"(?:\r\n|\r(?!\n)|\n)(?:[ \t]*(?:\r\n|\r(?!\n)|\n))+")
_LINE_START: Final = re.compile(r"(?:\r\n?|\n)(?=[ \t]*\S)")
_TOKENS_PER_CHARACTER: Final = 4  # of a byte-level tokenizer at most
_MAX_ROW: Final = 3000  # characters of a header row that are read
_MAX_CONTINUES: Final = 300  # characters of a table's header row, or a fence's language
# The pieces of a text have at most so many times the tokens of the text when each is counted alone.
_MOST_MERGED: Final = 4
_CHUNKS_OF_A_SENTENCE: Final = 2  # a sentence or line may have so many times chunk_size
_CHUNKS_OF_A_BLOCK: Final = 8  # the same of a block that is never cut
_BLOCKS_OF_SENTENCES: Final = frozenset({"text", "list", "quote"})


class ChunkSettings(NamedTuple):
    """How a text is cut; see :class:`HeadingAwareMarkdownNodeParser`."""

    chunk_size: int = 400
    chunk_overlap: int = 80
    min_chunk_size: int = 50
    min_section_size: int = 0
    tokenizer: str | Callable[[str], Any] | None = None
    keep_blocks: bool = False
    semantic: bool = True

    @property
    def hard_limit(self) -> int:
        """Return the number of tokens that no chunk exceeds."""
        times = _CHUNKS_OF_A_BLOCK if self.keep_blocks else _CHUNKS_OF_A_SENTENCE
        return times * self.chunk_size


class Span(NamedTuple):
    """One chunk of a text."""

    start: int  # offset of its first character
    end: int  # offset after its last character
    path: Path  # the headings above it; of several sections those that all of them share
    kind: str  # "text", "code", "table", "list", "quote", "html", "heading" or "mixed"
    tokens: int  # in the tokenizer of the settings
    continues: str = ""  # of a later piece of a fence its language, of a table its header row
    overlap: int = 0  # how many of its first characters the chunk before it holds, too
    open_path: Path = ()  # the headings that are open at its end


class _Cut(NamedTuple):
    """A place to cut inside a block."""

    offset: int
    strength: int


def split_markdown(
    text: str,
    *,
    settings: ChunkSettings | None = None,
    front: FrontMatter | None = None,
    above: Path = (),
    markdown: bool = True,
) -> list[Span]:
    """Return spans that cover a text except white space, front matter and a byte order mark.

    Encoded bytes, such as a picture in a data URI, are never cut and count as one character. What
    holds nothing else is no span.

    Args:
        text: A text without lone surrogates.
        settings: How to cut it.
        front: Its front matter; None reads it here.
        above: The headings that are open where the text begins, as they are for a page of a file.
        markdown: False for plain text, which has paragraphs, but no headings, fences and lists.
    """
    settings = settings or ChunkSettings()
    is_structured = markdown and settings.semantic
    if front is None:
        front = read_front_matter(text) if is_structured else FrontMatter()
    body = front.end or int(text.startswith("\ufeff"))
    if not text[body:].strip():
        return []
    if is_structured:
        outline = sectioning.outline_of(text, body, front.unread)
    else:
        outline = _plain_outline(text, body, semantic=settings.semantic)
    packer = _Packer(text, body, make_scale(text, settings.tokenizer), settings)
    sums = packer.cumulative_cost(outline.marks)
    sections = sectioning.find_sections(text, outline, sums, settings.min_chunk_size, above)
    groups = sectioning.group_sections(
        sections, sums, settings.min_section_size, settings.chunk_size
    )
    spans: list[Span] = []
    for group in groups:
        part = slice(group[0].first, group[-1].last + 1)
        packed = packer.pack(outline.marks[part], sums[part])
        spans += [_with_headings(span, group, outline.marks) for span in packed]
    return spans


def _with_headings(span: Span, group: list[Section], marks: Sequence[Mark]) -> Span:
    """Add the headings above a span and those that are open at its end."""
    new_text = span.start + span.overlap
    sections = [
        section
        for section in group
        if marks[section.first].offset < span.end and marks[section.last].offset > new_text
    ]
    first = sections[0]
    first_mark = marks[first.first]
    begins_with_heading = first_mark.kind == "heading" and first_mark.offset >= span.start
    path = first.path  # a heading further down heads nothing of the beginning
    if begins_with_heading or not first.has_text:
        path = sectioning.common_path(sections)
    return span._replace(path=path, open_path=sections[-1].path)


def _plain_outline(text: str, body: int, *, semantic: bool) -> Outline:
    """Return the paragraphs of a plain text, or its lines."""
    pattern = _PARAGRAPH_END if semantic else _LINE_START
    strength = sectioning.BLOCK if semantic else sectioning.LINE
    start = body + len(text[body:]) - len(text[body:].lstrip())
    first_line = max(body, text.rfind("\n", body, start) + 1)
    offsets = [first_line, *(match.end() for match in pattern.finditer(text, start))]
    marks = [Mark(offset, strength, "text") for offset in offsets if offset < len(text)]
    return Outline([*marks, Mark(len(text), sectioning.SECTION, "")])


def _kind(marks: Iterable[Mark]) -> str:
    """Return the content type of a chunk."""
    kinds = {mark.kind for mark in marks} - {"heading", "rule"}
    if not kinds:
        return "heading"
    return kinds.pop() if len(kinds) == 1 else "mixed"


def _continues(text: str, atom: Atom) -> str:
    """Return the language of a fence, or the header row of a table without its padding."""
    if atom.kind == "code":
        return "".join(atom.info.split(maxsplit=1)[:1])[:_MAX_CONTINUES]
    row = text[atom.start : min(atom.end, atom.start + _MAX_ROW)].splitlines()[0]
    return " ".join(row.split())[:_MAX_CONTINUES]


def _cuts_inside(text: str, mark: Mark, end: int, language: str) -> Iterator[_Cut]:
    """Yield the places to cut inside a block: before lines or sentences."""
    atom = mark.atom
    if atom is None and mark.kind not in {"html", "heading"}:
        for offset in sentence_starts(text, mark.offset, end, language):
            yield _Cut(offset, sectioning.SENTENCE)
        return
    lines = [match for match in _LINE.finditer(text, mark.offset, end) if match[0].strip()]
    # The first line of a fence and the first two of a table stay with the line that follows.
    head_lines = 2 if atom and atom.kind == "table" else 1
    for number, (before, line) in enumerate(pairwise(lines), start=1):
        is_code = atom is not None and atom.kind == "code"
        closes_fence = is_code and not line[0].strip("`~> \t\r\n")
        if atom and (number <= head_lines or closes_fence):
            yield _Cut(line.start(), sectioning.GLUED)
        elif before.end() == line.start():
            yield _Cut(line.start(), sectioning.LINE)
        else:  # after a blank line
            yield _Cut(line.start(), sectioning.PIECE)


def _cuts_at_spaces(text: str, start: int, end: int, step: int) -> Iterator[_Cut]:
    """Yield places to cut inside a sentence or line, at most ``step`` characters apart."""
    while end - start > step:
        limit = start + step
        space = max(text.rfind(" ", start + 1, limit), text.rfind("\n", start + 1, limit))
        strength = sectioning.SPACE
        if space >= 0:
            start = space + 1
        else:
            strength = sectioning.CHARACTER
            start = _letter_before(text, start + 1, limit)
        blank = _SPACE.match(text, start, end)
        start = blank.end() if blank else start
        if start >= end:
            return
        yield _Cut(start, strength)


def _letter_before(text: str, first: int, limit: int) -> int:
    """Return the last offset up to a limit at which no combining mark stands."""
    for offset in range(limit, first, -1):
        if not _COMBINING_MARK.match(text, offset):
            return offset
    return limit  # in a run of marks that is longer, any place is as good


class _Packer:
    """Packs the marks of groups of sections into chunks."""

    def __init__(self, text: str, body: int, scale: Scale, settings: ChunkSettings) -> None:
        self.text = text
        self.body = body  # the offset after the front matter
        self.scale = scale
        self.settings = settings
        self.size = settings.chunk_size

    @cached_property
    def language(self) -> str:
        """Return the language of the document."""
        return tell_language(self.text[self.body :])

    def cumulative_cost(self, marks: Sequence[Mark]) -> Sequence[int]:
        """Return the cost before each mark."""
        return self.scale.cumulative([mark.offset for mark in marks])

    def visible_end(self, start: int, end: int) -> int:
        """Return the end of a slice without the white space below it."""
        return start + len(self.text[start:end].rstrip())

    def cost(self, start: int, end: int) -> int:
        """Return the cost of a slice without the white space below it."""
        return self.scale.cost(start, self.visible_end(start, end))

    def pack(self, marks: Sequence[Mark], sums: Sequence[int]) -> Iterator[Span]:
        """Yield the chunks of one group of sections, whose last mark is its end."""
        marks = [*marks[:-1], marks[-1]._replace(strength=sectioning.SECTION)]
        may_exceed = sums[-1] - sums[0] > self.size
        if may_exceed and self.cost(marks[0].offset, marks[-1].offset) > self.size:
            marks = self.with_finer_marks(marks, sums)
            sums = self.cumulative_cost(marks)
        places_to_cut = [number for number, mark in enumerate(marks) if mark.strength]
        first = 0
        start = marks[0].offset
        while first < len(marks) - 1:
            last = self.best_cut(marks, sums, first, start)
            if last is None and start < marks[first].offset:
                start = marks[first].offset  # without the overlap, which left no room
                last = self.best_cut(marks, sums, first, start)
            if last is None:
                next_place = places_to_cut[bisect_right(places_to_cut, first)]
                last = self.forced_cut(marks, sums, first, next_place)
            end = self.visible_end(start, marks[last].offset)
            # A chunk holds something that the chunk before it does not.
            if end > marks[first].offset and self.scale.is_text(start, end):
                yield self.span(marks[first:last], start, end)
            start = self.next_start(marks, sums, first, last)
            first = last

    def span(self, marks: Sequence[Mark], start: int, end: int) -> Span:
        """Return the chunk of some marks, with the overlap before them."""
        first = marks[0]
        tokens = self.scale.exact(start, end)
        atom = first.atom if start == first.offset and first.is_inside_atom else None
        if atom is None and tokens > self.size:
            # It is embedded in windows, and later ones lack the header row.
            tables = [mark.atom for mark in marks if mark.atom and mark.atom.kind == "table"]
            atom = tables[0] if tables else None
        continues = _continues(self.text, atom) if atom else ""
        return Span(start, end, (), _kind(marks), tokens, continues, first.offset - start)

    def with_finer_marks(self, marks: Sequence[Mark], sums: Sequence[int]) -> list[Mark]:
        """Return the marks with more of them inside blocks over the budget."""
        finer: list[Mark] = []
        head = 0  # the last place to cut: a heading holds on to the block below it
        for index, (mark, after) in enumerate(pairwise(marks)):
            finer.append(mark)
            if mark.strength:
                head = index
            heading_cost = sums[index] - sums[head]
            if mark.atom is None:
                budget = self.size - heading_cost
            else:
                budget = self.settings.hard_limit if self.settings.keep_blocks else self.size
            may_exceed = mark.kind != "rule" and sums[index + 1] - sums[index] > budget
            if may_exceed and self.cost(mark.offset, after.offset) > budget:
                longest_sentence = _CHUNKS_OF_A_SENTENCE * self.size - heading_cost
                finer += self.marks_inside(mark, after.offset, longest_sentence)
        return [*finer, marks[-1]]

    def marks_inside(self, mark: Mark, end: int, longest_sentence: int) -> Iterator[Mark]:
        """Yield marks between the lines or sentences of a block, and inside too long ones."""
        step = max(1, self.size // _TOKENS_PER_CHARACTER)
        cuts = [
            _Cut(mark.offset, 0),
            *_cuts_inside(self.text, mark, end, self.language),
            _Cut(end, 0),
        ]
        cuts = [cut for cut in cuts if not self.scale.cuts_run(cut.offset)]
        for cut, following in pairwise(cuts):
            finer = [cut]
            if self.scale.cost(cut.offset, following.offset) > longest_sentence:
                finer += _cuts_at_spaces(self.text, cut.offset, following.offset, step)
            for offset, strength in finer:
                if offset > mark.offset and not self.scale.cuts_run(offset):
                    yield mark._replace(offset=offset, strength=strength)

    def best_cut(
        self, marks: Sequence[Mark], sums: Sequence[int], first: int, start: int
    ) -> int | None:
        """Return where to end a chunk.

        It is the strongest mark in the upper half of the budget that leaves no small tail, else the
        last mark that fits.

        Args:
            marks: The marks of the group.
            sums: The cost before each of them.
            first: The mark at which the new text of the chunk begins.
            start: The offset at which its overlap begins.

        Returns:
            The index of a mark; None if none fits.
        """
        end = len(marks) - 1
        limit = self.size
        if start < marks[first].offset:
            limit -= self.scale.exact(start, marks[first].offset)
        while True:
            reach = min(end, bisect_right(sums, sums[first] + limit) - 1)
            fitting = [mark for mark in range(first + 1, reach + 1) if marks[mark].strength]
            if not fitting:
                return None
            last = end
            if reach < end:
                half = sums[first] + limit // 2
                upper_half = [mark for mark in fitting if sums[mark] >= half] or fitting[-1:]
                last = max(upper_half, key=lambda mark: self._value_of_cut(marks, sums, mark))
            excess = self.cost(start, marks[last].offset) - self.size
            if excess <= 0:
                return last
            limit -= excess

    def _value_of_cut(
        self, marks: Sequence[Mark], sums: Sequence[int], mark: int
    ) -> tuple[bool, int, int]:
        """Return a key that is greater for a better cut."""
        leaves_no_small_tail = sums[-1] - sums[mark] >= self.settings.min_chunk_size
        return leaves_no_small_tail, marks[mark].strength, mark

    def forced_cut(
        self, marks: Sequence[Mark], sums: Sequence[int], first: int, next_place: int
    ) -> int:
        """Return where to cut when nothing fits: at the next place to cut, up to the hard limit."""
        hard_limit = self.settings.hard_limit
        # Beyond this sum, the tokens need not be counted.
        may_fit = sums[next_place - 1] - sums[first] <= _MOST_MERGED * hard_limit
        if may_fit and self.cost(marks[first].offset, marks[next_place].offset) <= hard_limit:
            return next_place
        return max(first + 1, bisect_right(sums, sums[first] + self.size) - 1)

    def next_start(self, marks: Sequence[Mark], sums: Sequence[int], first: int, last: int) -> int:
        """Return where the next chunk starts: at the blocks or sentences of its overlap."""
        end = marks[last].offset
        overlap = self.settings.chunk_overlap
        if not overlap or last == len(marks) - 1 or marks[last].kind == "heading":
            return end
        lowest = max(first + 1, bisect_left(sums, sums[last] - overlap))
        for number in range(lowest, last):
            if marks[number].kind == "heading":
                lowest = number + 1
        offsets = [mark.offset for mark in marks[lowest:last] if _may_start_overlap(mark)]
        before = marks[last - 1]
        if not offsets and before.atom is None and before.kind in _BLOCKS_OF_SENTENCES:
            offsets = sentence_starts(self.text, before.offset, end, self.language)
        for offset in offsets:
            if self.scale.exact(offset, end) <= overlap:
                return offset
        return end


def _may_start_overlap(mark: Mark) -> bool:
    """Return whether a chunk may begin with what starts at a mark of the chunk before."""
    is_inside_sentence = mark.strength in {sectioning.SPACE, sectioning.CHARACTER}
    return mark.kind != "rule" and not mark.is_inside_atom and not is_inside_sentence
