"""Split a document's text into the spans that become its chunks.

A group of sections that fits into a chunk is one span. A larger group is split at its strongest
marks. A block or sentence that is too long by itself is split inside.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import regex  # type: ignore[import-untyped]

from llama_index_contextual.node_parser.front_matter import FrontMatter, read_front_matter
from llama_index_contextual.node_parser.sections import (
    BLOCK,
    CHARACTER,
    GLUED,
    LINE,
    PIECE,
    SECTION,
    SENTENCE,
    SPACE,
    Atom,
    Mark,
    Outline,
    Path,
    Section,
    common_path,
    find_sections,
    group_sections,
    outline_of,
)
from llama_index_contextual.utils.language import detect_language, sentence_starts
from llama_index_contextual.utils.tokens import TokenCounter, make_counter

_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")
_PARAGRAPH_END = re.compile(r"(?:\r\n|\r(?!\n)|\n)(?:[ \t]*(?:\r\n|\r(?!\n)|\n))+")
# Up to ``size`` characters of a sentence or line that end at its end, at white space, or else after
# a letter with all its combining marks.
_PIECE_OF_SENTENCE = (
    r"(?s)(?:.{{1,{size}}}\Z|(?P<words>.{{0,{before_space}}}[ \n])"
    r"|.{{1,{size}}}(?![\p{{M}}\u0e33\u0eb3])|.{{1,{size}}})\s*"
)
_TOKENS_PER_CHARACTER = 4  # the most with a byte-level tokenizer
_MAX_ROW = 3000  # characters of a header row that are read
_MAX_CONTINUES = 300  # characters of a table's header row, or a fence's language
# The pieces of a text, each counted alone, have at most this many times the tokens of the text.
_MOST_MERGED = 4
_CHUNKS_OF_A_SENTENCE = 2  # the limit of a single sentence or line, in chunk sizes
_CHUNKS_OF_A_BLOCK = 8  # the limit with keep_blocks, in chunk sizes
_BLOCKS_OF_SENTENCES = frozenset({"text", "list", "quote"})


class ChunkSettings(NamedTuple):
    """Settings for splitting a text. See :class:`HeadingAwareMarkdownNodeParser`."""

    chunk_size: int = 400
    chunk_overlap: int = 80
    min_chunk_size: int = 50
    min_section_size: int = 0
    tokenizer: str | Callable[[str], Any] | None = None
    keep_blocks: bool = False

    @property
    def hard_limit(self) -> int:
        """Return the maximum number of tokens of any chunk."""
        times = _CHUNKS_OF_A_BLOCK if self.keep_blocks else _CHUNKS_OF_A_SENTENCE
        return times * self.chunk_size


class Span(NamedTuple):
    """One chunk of a text."""

    start: int  # offset of its first character
    end: int  # offset after its last character
    path: Path  # the headings above it, or those that all its sections share
    kind: str  # "text", "code", "table", "list", "quote", "html", "heading" or "mixed"
    tokens: int  # by the tokenizer of the settings
    continues: str = ""  # the language or header row, if it continues a fence or table
    overlap: int = 0  # characters at its start that the previous chunk also contains
    open_path: Path = ()  # the headings that are open at its end


def split_markdown(
    text: str,
    *,
    settings: ChunkSettings | None = None,
    front: FrontMatter | None = None,
    above: Path = (),
    markdown: bool = True,
) -> list[Span]:
    """Return spans that cover a text except white space, front matter and a byte order mark.

    Encoded bytes, such as a picture in a data URI, are never split and count as one character.
    Chunks that would contain nothing else are left out.

    Args:
        text: A text without lone surrogates.
        settings: The settings for splitting it.
        front: Its front matter. If None, it is read from the text.
        above: The headings that are already open at the beginning of the text, which can be a page.
        markdown: False for plain text, which has paragraphs but no headings, fences or lists.
    """
    settings = settings or ChunkSettings()
    if front is None:
        front = read_front_matter(text) if markdown else FrontMatter()
    body = front.end or int(text.startswith("\ufeff"))
    outline = outline_of(text, body, front.unread) if markdown else _paragraphs(text, body)
    marks = outline.marks
    counter = make_counter(text, settings.tokenizer)
    costs = counter.costs([mark.offset for mark in marks])
    sums = array("q", accumulate(costs, initial=0))
    sections = find_sections(text, outline, sums, settings.min_chunk_size, above)
    spans: list[Span] = []
    for group in group_sections(sections, settings.min_section_size, settings.chunk_size):
        first = group[0].first
        last = group[-1].last
        end = marks[last]._replace(strength=SECTION)
        packer = _Packer(
            counter, settings, body, marks=[*marks[first:last], end], sums=sums[first : last + 1]
        )
        spans += [_with_headings(span, group, marks) for span in packer.pack()]
    return spans


def _with_headings(span: Span, group: list[Section], marks: Sequence[Mark]) -> Span:
    """Add the headings above a span and those that are open at its end."""
    new_text = span.start + span.overlap
    sections: list[Section] = []
    for section in group:
        section_start = marks[section.first].offset
        section_end = marks[section.last].offset
        if section_start < span.end and section_end > new_text:
            sections.append(section)
    first = sections[0]
    first_mark = marks[first.first]
    begins_with_heading = first_mark.kind == "heading" and first_mark.offset >= span.start
    path = first.path  # a heading further down does not apply to the beginning
    if begins_with_heading or not first.has_text:
        path = common_path(sections)
    return span._replace(path=path, open_path=sections[-1].path)


def _paragraphs(text: str, body: int) -> Outline:
    """Return the outline of a plain text."""
    start = len(text) - len(text[body:].lstrip())
    first_line = max(body, text.rfind("\n", body, start) + 1)
    end = len(text)
    offsets = [first_line]
    offsets += [match.end() for match in _PARAGRAPH_END.finditer(text, start)]
    marks = [Mark(offset, BLOCK, "text") for offset in offsets if offset < end]
    marks.append(Mark(end, SECTION, ""))
    return Outline(marks)


def _kind(marks: Iterable[Mark]) -> str:
    """Return the content type of a chunk."""
    kinds = {mark.kind for mark in marks} - {"heading", "rule"}
    if not kinds:
        return "heading"
    return kinds.pop() if len(kinds) == 1 else "mixed"


def _continues(text: str, atom: Atom) -> str:
    """Return the language of a fence, or the header row of a table without its padding."""
    if atom.kind == "code":
        words = atom.info.split()[:1]
    else:
        rows = text[atom.start : atom.start + _MAX_ROW].splitlines()
        words = rows[0].split()
    return " ".join(words)[:_MAX_CONTINUES]


def _marks_between_lines(text: str, block: Mark, end: int) -> Iterator[Mark]:
    """Yield the places to split a block between its lines."""
    is_code = block.atom is not None and block.atom.kind == "code"
    all_lines = _LINE.finditer(text, block.offset, end)
    lines = [line for line in all_lines if line[0].strip()]
    for number, (before, line) in enumerate(pairwise(lines)):
        # The first line of a fence and the first two lines of a table stay with the next line.
        is_head = block.atom is not None and number < (1 if is_code else 2)
        closes_fence = is_code and not line[0].strip("`~> \t\r\n")
        is_after_blank = before.end() < line.start()
        if is_head or closes_fence:
            strength = GLUED
        else:
            strength = PIECE if is_after_blank else LINE
        yield block._replace(offset=line.start(), strength=strength)


def _marks_between_sentences(text: str, block: Mark, end: int, language: str) -> list[Mark]:
    """Return the places to cut a block between its sentences, and between lines of text."""
    starts = sentence_starts(text, block.offset, end, language)
    strengths = dict.fromkeys(starts, SENTENCE)
    if block.kind == "text":
        lines = _unwrapped_lines(text, block.offset, end)
        strengths.update(dict.fromkeys(lines, LINE))
    return [
        block._replace(offset=start, strength=strength)
        for start, strength in sorted(strengths.items())
    ]


def _unwrapped_lines(text: str, start: int, end: int) -> list[int]:
    """Return the offsets of the lines that their author began, in text without blank lines.

    A line is the rest of a wrapped line if its first word would not have fit above, or is in small
    letters.
    """
    lines: list[tuple[int, str]] = []  # the offset and the text of each line that is not blank
    for line in _LINE.finditer(text, start, end):
        indented = line[0].rstrip()
        visible = indented.lstrip()
        if visible:
            lines.append((line.start() + len(indented) - len(visible), visible))
    widest = max((len(visible) for _, visible in lines), default=0)
    starts: list[int] = []
    for (_, before), (offset, visible) in pairwise(lines):
        first_word = visible.split(maxsplit=1)[0]
        has_space = len(before) + len(" ") + len(first_word) <= widest
        if has_space and not first_word[0].islower():
            starts.append(offset)
    return starts


def _marks_between_words(text: str, sentence: Mark, end: int, chunk_size: int) -> Iterator[Mark]:
    """Yield places to split a sentence or line into pieces that are sure to fit into a chunk."""
    size = max(1, chunk_size // _TOKENS_PER_CHARACTER)
    pattern = _PIECE_OF_SENTENCE.format(size=size, before_space=size - 1)
    for match in regex.finditer(pattern, text, pos=sentence.offset, endpos=end):
        if match.end() < end:
            strength = SPACE if match["words"] else CHARACTER
            yield sentence._replace(offset=match.end(), strength=strength)


@dataclass
class _Packer:
    """Packs the marks of a group of sections into chunks."""

    counter: TokenCounter
    settings: ChunkSettings
    body: int  # the offset after the front matter
    marks: Sequence[Mark]  # ending with a mark at the end of the group
    sums: Sequence[int]  # the cost before each mark

    @property
    def size(self) -> int:
        """Return the number of tokens that a chunk should not exceed."""
        return self.settings.chunk_size

    @cached_property
    def language(self) -> str:
        """Return the language of the document."""
        return detect_language(self.counter.text[self.body :])

    def pack(self) -> Iterator[Span]:
        """Yield the chunks."""
        if self.sums[-1] - self.sums[0] > self.size:
            self.add_finer_marks()
        # A chunk has the marks from first to last, and begins with an overlap from start.
        start = self.marks[0].offset
        first = 0
        while first < len(self.marks) - 1:
            new_text = self.marks[first].offset
            last = self.best_cut(first, start)
            if last is None and start < new_text:
                start = new_text  # drop the overlap, which left no space
                last = self.best_cut(first, start)
            if last is None:
                last = self.forced_cut(first)
            end = self.counter.visible_end(start, self.marks[last].offset)
            # Skip a chunk that adds nothing to the previous one.
            if end > new_text and self.counter.is_text(start, end):
                yield self.span(self.marks[first:last], start, end)
            start = self.next_start(first, last)
            first = last

    def span(self, marks: Sequence[Mark], start: int, end: int) -> Span:
        """Return the chunk of some marks, with the overlap before them."""
        first = marks[0]
        tokens = self.counter.tokens(start, end)
        atom = None
        if start == first.offset and first.is_inside_atom:
            atom = first.atom
        elif tokens > self.size:
            # An oversized chunk is embedded in windows, of which later ones lack the header row.
            atoms = [mark.atom for mark in marks if mark.atom is not None]
            tables = (atom for atom in atoms if atom.kind == "table")
            atom = next(tables, None)
        return Span(
            start,
            end,
            path=(),  # see _with_headings
            kind=_kind(marks),
            tokens=tokens,
            continues="" if atom is None else _continues(self.counter.text, atom),
            overlap=first.offset - start,
        )

    def add_finer_marks(self) -> None:
        """Add marks inside the blocks that exceed the budget."""
        marks: list[Mark] = []
        sums = array("q", [0])
        lead = 0  # the cost of what must stay with the block, such as its heading
        for number, (mark, after) in enumerate(pairwise(self.marks)):
            cost = self.sums[number + 1] - self.sums[number]
            if mark.strength:
                lead = 0
            inside = self.marks_inside(mark, after.offset, cost, lead)
            costs = [cost]
            if inside:
                offsets = [part.offset for part in (mark, *inside, after)]
                costs = self.counter.costs(offsets)
            marks += [mark, *inside]
            for part_cost in costs:
                sums.append(sums[-1] + part_cost)
            lead += cost
        marks.append(self.marks[-1])
        self.marks = marks
        self.sums = sums

    def marks_inside(self, block: Mark, end: int, cost: int, lead: int) -> list[Mark]:
        """Return marks between the lines or sentences of a block that exceeds the budget.

        Args:
            block: The block.
            end: The offset after it.
            cost: The cost of the block with the white space below it.
            lead: The cost of what must stay with the block, such as its heading.
        """
        budget = self.size
        if block.atom is None:
            budget -= lead
        elif self.settings.keep_blocks:
            budget = self.settings.hard_limit
        if block.kind == "rule" or cost <= budget:
            return []
        if not self.counter.exceeds(budget, block.offset, end):
            return []

        text = self.counter.text
        if block.atom or block.kind in {"html", "heading"}:
            marks = list(_marks_between_lines(text, block, end))
        else:
            marks = _marks_between_sentences(text, block, end, self.language)
        marks = [mark for mark in marks if not self.counter.cuts_run(mark.offset)]

        longest_sentence = _CHUNKS_OF_A_SENTENCE * self.size - lead
        finer: list[Mark] = []
        edges = [block, *marks, block._replace(offset=end)]
        for mark, after in pairwise(edges):
            finer.append(mark)
            if self.counter.exceeds(longest_sentence, mark.offset, after.offset):
                words = _marks_between_words(text, mark, after.offset, self.size)
                finer += [word for word in words if not self.counter.cuts_run(word.offset)]
        return finer[1:]

    def best_cut(self, first: int, start: int) -> int | None:
        """Return the mark at which to end a chunk.

        It is the strongest mark in the upper half of the budget, preferring marks that leave no
        small tail. If the upper half has no mark, it is the last mark that fits.

        Args:
            first: The mark at which the new text of the chunk begins.
            start: The offset at which its overlap begins.

        Returns:
            The index of the mark, or None if no mark fits.
        """
        marks = self.marks
        sums = self.sums
        limit = self.size
        if start < marks[first].offset:
            limit -= self.counter.tokens(start, marks[first].offset)
        while True:
            after = bisect_right(sums, sums[first] + limit)
            candidates = range(first + 1, after)
            fitting = [number for number in candidates if marks[number].strength]
            if not fitting:
                return None
            half = sums[first] + limit // 2
            upper_half = [number for number in fitting if sums[number] >= half]
            last = max(upper_half or fitting[-1:], key=self.value_of_cut)
            end = marks[last].offset
            excess = self.counter.cost(start, end) - self.size
            if excess <= 0:
                return last
            limit -= excess

    def value_of_cut(self, number: int) -> tuple[bool, int, int]:
        """Return a sort key that is greater for a better mark, and greatest for the group's end."""
        tail = self.sums[-1] - self.sums[number]
        leaves_no_small_tail = tail == 0 or tail >= self.settings.min_chunk_size
        return leaves_no_small_tail, self.marks[number].strength, number

    def forced_cut(self, first: int) -> int:
        """Return the mark to split at if none fits: the next possible one within the hard limit."""
        sums = self.sums
        start = self.marks[first].offset
        hard_limit = self.settings.hard_limit
        # Beyond this sum, a chunk exceeds the hard limit without counting its tokens.
        after = bisect_right(sums, sums[first] + _MOST_MERGED * hard_limit) + 1
        for number, mark in enumerate(self.marks[first + 1 : after], start=first + 1):
            if mark.strength:
                if self.counter.cost(start, mark.offset) <= hard_limit:
                    return number
                break
        last_fitting = bisect_right(sums, sums[first] + self.size) - 1
        return max(first + 1, last_fitting)

    def next_start(self, first: int, last: int) -> int:
        """Return the start of the next chunk, which is that of its overlap if it has one."""
        following = self.marks[last]
        end = following.offset
        overlap = self.settings.chunk_overlap
        if not overlap or following.kind == "heading":
            return end
        earliest = bisect_left(self.sums, self.sums[last] - overlap)
        lowest = max(first + 1, earliest)
        starts: list[int] = []
        for mark in self.marks[lowest:last]:
            if mark.kind == "heading":
                starts = []
            elif _may_start_overlap(mark):
                starts.append(mark.offset)
        before = self.marks[last - 1]
        if not starts and before.atom is None and before.kind in _BLOCKS_OF_SENTENCES:
            starts = sentence_starts(self.counter.text, before.offset, end, self.language)
        fitting = (start for start in starts if self.counter.tokens(start, end) <= overlap)
        return next(fitting, end)


def _may_start_overlap(mark: Mark) -> bool:
    """Return whether an overlap can start at a mark of the previous chunk."""
    is_inside_sentence = mark.strength in {SPACE, CHARACTER}
    return mark.kind != "rule" and not mark.is_inside_atom and not is_inside_sentence
