"""From a document's text to the spans that become its chunks.

A group of sections that fits is one span. Another is cut at the strongest mark, at last inside of blocks and sentences.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import regex  # type: ignore[import-untyped]
from pydantic import BaseModel

from llama_index_contextual.chunking import outline as ruler
from llama_index_contextual.chunking.markdown import END_OF_CODE, FrontMatter, read_front_matter
from llama_index_contextual.chunking.outline import Atom, Outline, Path, Section
from llama_index_contextual.errors import Checked, SettingError, whole
from llama_index_contextual.text import sentence_starts
from llama_index_contextual.text.tokens import Scale, budget_cost, make_scale

_TOKENIZERS: Final = ("cl100k", "minilm", "e5")
_MARK: Final = regex.compile("[\\p{M}\u0e33\u0eb3]")  # of the letter before
_SPACE: Final = re.compile(r"\s+")
_ROW: Final = re.compile(r"\s*<(?:tr|li|dt|p|div|h[1-6]|details)\b", re.IGNORECASE)  # better to cut before than a cell
_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")
_PARAGRAPH_END: Final = re.compile(r"(?:\r\n|\r(?!\n)|\n)(?:[ \t]*(?:\r\n|\r(?!\n)|\n))+")
_LINE_START: Final = re.compile(r"(?:\r\n?|\n)(?=[ \t]*\S)")
_SEAM: Final = 4  # tokens by which a part that stands alone may exceed its share of the whole
_TOKENS_PER_CHARACTER: Final = 4  # of a byte-level tokenizer at most
_MAX_CONTINUES: Final = 300  # characters of a table's header row, or a fence's language


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
            whole("chunk_overlap", self.chunk_overlap, least=0, most=size - 1)
            whole("min_chunk_size", self.min_chunk_size, least=0, most=size)
            if isinstance(self.tokenizer, str) and self.tokenizer not in _TOKENIZERS:
                cure = f"is not known. Cure: one of {', '.join(_TOKENIZERS)}, or a callable that counts tokens"
                raise SettingError(cure, tokenizer=self.tokenizer)

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
    continues: str = ""  # of a later piece of a fence the language; of a table above chunk_size the header row
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
    scale, size = make_scale(text, settings.tokenizer), settings.chunk_size
    outline = ruler.outline_of(text, body, front.unread) if structured else _plain_outline(text, body, settings)
    outline.sums = scale.cumulative(outline.offsets)
    sections = ruler.find_sections(text, outline, above)
    spans: list[Span] = []
    for group in ruler.group_sections(sections, outline.sums, settings.min_chunk_size, size):
        first, last = group[0].first, group[-1].last
        start, stop = outline.offsets[first], outline.offsets[last]
        end = start + len(text[start:stop].rstrip())
        tokens = scale.exact(start, end) if end > start else 0
        pieces: Iterable[Span] = [Span(start, end, (), _kind(outline.kinds[first:last]), tokens)] if end > start else []
        if max(outline.sums[last] - outline.sums[first], budget_cost(tokens, scale.part(start, end))) > size:
            pieces = _pack(text, _refine(text, outline, (first, last), scale, settings), scale, settings)
        spans.extend(_with_headings(piece, group, outline) for piece in pieces if scale.is_text(piece.start, piece.end))
    return spans


def _kind(kinds: Iterable[str]) -> str:
    """The kind of a chunk in which some kinds start."""
    kinds = {*kinds} - {"heading", "rule"}
    return next(iter(kinds)) if len(kinds) == 1 else "mixed" if kinds else "heading"


def _with_headings(span: Span, group: list[Section], outline: Outline) -> Span:
    """A span with the headings above it, and those that are open at its end."""
    offsets = outline.offsets
    if len(group) > 1:
        fresh = span.start + span.overlap
        group = [s for s in group if offsets[s.first] < span.end and offsets[s.last] > fresh]
    first = group[0]
    heads = outline.kinds[first.first] == "heading" and offsets[first.first] >= span.start
    # Otherwise what stands further down in the chunk heads nothing of its beginning.
    return span._replace(path=ruler.common_path(group) if heads else first.path, open=group[-1].path)


def _plain_outline(text: str, body: int, settings: ChunkSettings) -> Outline:
    """The paragraphs of a plain text; without structure its lines."""
    pattern, strength = (_PARAGRAPH_END, ruler.BLOCK) if settings.semantic else (_LINE_START, ruler.LINE)
    start = body + len(text[body:]) - len(text[body:].lstrip())
    outline = Outline()
    outline.add(max(body, text.rfind("\n", body, start) + 1), strength, "text")
    for match in pattern.finditer(text, start):
        if match.end() < len(text):
            outline.add(match.end(), strength, "text")
    outline.add(len(text), ruler.SECTION, "")
    return outline


def _continues(text: str, atom: Atom | None) -> str:
    if atom is None:
        return ""
    if atom.kind == "code":
        return "".join(atom.info.split(maxsplit=1)[:1])[:_MAX_CONTINUES]
    row = _LINE.match(text, atom.start, min(atom.end, atom.start + _MAX_CONTINUES))
    return row[0].strip() if row else ""


def _refine(text: str, outline: Outline, between: tuple[int, int], scale: Scale, settings: ChunkSettings) -> Outline:
    """The marks of an outline between two of them, with finer ones inside blocks over the budget."""
    sums, (first, last) = outline.sums, between
    size, cap = settings.chunk_size, 2 * settings.chunk_size
    most = settings.hard_bound if settings.keep_blocks else settings.chunk_size
    step = max(1, settings.chunk_size // _TOKENS_PER_CHARACTER)
    marks, before = Outline(), array("q")
    held = sums[first]  # the tokens before the heading, if any, that holds on to the block
    shift = 0  # by how much the counts of finer parts exceed the counts of the blocks they are in
    for index in range(first, last):
        start, end = outline.offsets[index : index + 2]
        kind, atom, weight = outline.kinds[index], outline.atoms[index], sums[index + 1] - sums[index]
        if outline.strengths[index]:
            held = sums[index]
        marks.add(start, outline.strengths[index], kind, atom)
        before.append(sums[index] + shift)
        if atom:  # white space below it does not count
            if weight <= most - _SEAM or _standalone_tokens(text, start, end, scale) <= most:
                continue
        elif weight <= size and (kind == "rule" or sums[index + 1] - held <= size):
            continue  # a paragraph that fits may not fit together with its heading
        above = sums[index] - held
        room = cap - above - (above > 0)  # the sum of two parts may be one less than what they have together
        finer = _cut_points(text, (start, end), kind, atom, scale, room, step)
        counts = scale.cumulative([start, *(offset for offset, _ in finer), end])
        for (offset, strength), count in zip(finer, counts[1:], strict=False):
            marks.add(offset, strength, kind, atom)
            before.append(sums[index] + shift + count)
        shift += counts[-1] - weight
    marks.add(outline.offsets[last], ruler.SECTION, "")
    before.append(sums[last] + shift)
    marks.sums = before
    return marks


def _cut_points(
    text: str, block: tuple[int, int], kind: str, atom: Atom | None, scale: Scale, room: int, step: int
) -> list[tuple[int, int]]:
    """Places to cut inside one block over the budget: lines or sentences, and inside those over the room too."""
    start, end = block
    finer = [place for place in _inside(text, start, end, kind, atom) if not scale.cuts_run(place[0])]
    offsets = [start, *(offset for offset, _ in finer), end]
    sums = scale.cumulative(offsets)
    places: list[tuple[int, int]] = []
    for number, (low, high) in enumerate(pairwise(offsets)):
        places += finer[number - 1 : number] if number else []
        weight = sums[number + 1] - sums[number]
        if weight > room or (weight > room - _SEAM and _standalone_tokens(text, low, high, scale) > room):
            inside = _whitespace_cut_points(text, low, high, step)
            places.extend(place for place in inside if not scale.cuts_run(place[0]))
    return places


def _standalone_tokens(text: str, start: int, end: int, scale: Scale) -> int:
    """The tokens of a part without the white space below it, and with or without that before it, whichever is more."""
    part = text[start:end]
    stop = start + len(part.rstrip())
    bare = min(stop, start + len(part) - len(part.lstrip()))
    return max(scale.cost(begin, stop) for begin in {start, bare})


def _inside(text: str, start: int, end: int, kind: str, atom: Atom | None) -> Iterator[tuple[int, int]]:
    """Places to cut inside one block: (offset, strength)."""
    if kind == "heading" and atom is None:
        return
    if kind != "html" and atom is None:
        yield from ((offset, ruler.SENTENCE) for offset in sentence_starts(text, start, end))
        return
    lines = [match for match in _LINE.finditer(text, start, end) if match[0].strip()]
    head = 2 if atom and atom.kind == "table" else 1  # a fence's first line, or a table's two, hold on to the next
    for number, (before, line) in enumerate(pairwise(lines), start=1):
        is_last = atom and atom.kind == "code" and number == len(lines) - 1  # of a fence, as {% endhighlight %}
        if atom and (number <= head or (is_last and (not line[0].strip("`~> \t\r\n") or END_OF_CODE.match(line[0])))):
            yield line.start(), ruler.GLUED
        elif kind == "html" and _ROW.match(line[0]):
            yield line.start(), ruler.PIECE
        else:
            yield line.start(), ruler.LINE if before.end() == line.start() else ruler.PIECE


def _whitespace_cut_points(text: str, start: int, end: int, step: int) -> Iterator[tuple[int, int]]:
    """Places to cut inside one sentence or line, at least every ``step`` characters: after white space if any."""
    while end - start > step:
        space = max(text.rfind(" ", start + 1, start + step), text.rfind("\n", start + 1, start + step))
        at = start + step
        while at > start + 1 and _MARK.match(text, at):
            at -= 1
        start = space + 1 if space > 0 else at
        blank = _SPACE.match(text, start, end)
        start = blank.end() if blank else start
        if start >= end:
            return
        yield start, ruler.SPACE if space > 0 else ruler.CHARACTER


def _pack(text: str, marks: Outline, scale: Scale, settings: ChunkSettings) -> Iterator[Span]:
    """The pieces of one group of sections."""
    offsets, size, bound = marks.offsets, settings.chunk_size, settings.hard_bound
    first, start = 0, offsets[0]
    while first < len(offsets) - 1:
        limit, most = size, bound
        if start < offsets[first]:
            limit -= scale.exact(start, offsets[first])
        while True:
            last = _choose(marks, first, limit, settings)
            if last is None and start < offsets[first]:  # the overlap took the room: do without
                start, limit = offsets[first], size
                last = _choose(marks, first, size, settings)
            is_forced = last is None
            last = _overflowing(marks, first, most, size) if last is None else last
            end = start + len(text[start : offsets[last]].rstrip())
            tokens = scale.exact(start, end)
            over = budget_cost(tokens, scale.part(start, end)) - (bound if is_forced else size)
            if over <= 0 or (is_forced and last == first + 1):
                break
            limit, most = (limit, most - over) if is_forced else (limit - over, most)
        if end > offsets[first]:  # something that the chunk before does not hold
            atom = marks.atoms[first] if start == offsets[first] and marks.is_inside_atom(first) else None
            if atom is None and tokens > size:  # it is embedded in windows, and later ones lack the header row
                atom = next((one for one in marks.atoms[first:last] if one is not None and one.kind == "table"), None)
            kind = _kind(marks.kinds[first:last])
            yield Span(start, end, (), kind, tokens, _continues(text, atom), offsets[first] - start)
        start = _overlap_start(text, marks, first, last, scale, settings)
        first = last


def _choose(marks: Outline, first: int, limit: int, settings: ChunkSettings) -> int | None:
    """The strongest mark in the upper half of the budget, else the last one that fits; None if none does."""
    sums, strengths = marks.sums, marks.strengths
    total = len(sums) - 1
    reach = bisect_right(sums, sums[first] + limit) - 1
    if reach >= total:
        return total
    floor = sums[first] + limit // 2
    best: int | None = None
    best_rank = (False, 0)
    for mark in range(reach, first, -1):
        if sums[mark] < floor and best is not None:
            break
        rank = (sums[total] - sums[mark] >= settings.min_chunk_size, strengths[mark])
        if strengths[mark] and rank > best_rank:
            best, best_rank = mark, rank
    return best


def _overflowing(marks: Outline, first: int, most: int, size: int) -> int:
    """Where to cut when nothing fits: after the first thing that cannot be cut, unless that exceeds ``most``."""
    total, sums = len(marks.offsets) - 1, marks.sums
    last = first + 1
    while last < total and not marks.strengths[last] and sums[last] - sums[first] <= most:
        if marks.kinds[last] == "heading" and sums[last + 1] - sums[first] > size:
            return last  # one more heading without text; any of them may start a chunk
        last += 1
    if sums[last] - sums[first] > most:
        last = max(first + 1, bisect_right(sums, sums[first] + min(most, size)) - 1)
    return min(last, total)


def _overlap_start(text: str, marks: Outline, first: int, last: int, scale: Scale, settings: ChunkSettings) -> int:
    """Where the next piece starts: whole blocks or sentences before ``last``, in the same section."""
    offsets, sums, kinds, room = marks.offsets, marks.sums, marks.kinds, settings.chunk_overlap
    at = offsets[last]
    if not room or last >= len(offsets) - 1 or kinds[last] == "heading":
        return at
    start = at
    for mark in range(last - 1, first, -1):
        if sums[last] - sums[mark] > room or kinds[mark] == "heading":
            break
        is_start = not marks.is_inside_atom(mark) and marks.strengths[mark] not in {ruler.SPACE, ruler.CHARACTER}
        if is_start and kinds[mark] != "rule":
            start = offsets[mark]
    kind = kinds[last - 1]
    if start == at and marks.atoms[last - 1] is None and kind in {"text", "list", "quote"}:
        starts = [*sentence_starts(text, offsets[last - 1], at), at]
        tail = scale.cumulative(starts)
        start = next(o for o, t in zip(starts, tail, strict=True) if tail[-1] - t <= room)
    while start < at and scale.exact(start, at) > room:
        start = next((offset for offset in offsets[first:last] if offset > start), at)
    return start
