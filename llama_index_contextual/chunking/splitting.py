"""From a document's text to the spans that become its chunks."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from llama_index_contextual.chunking.cut_points import refine
from llama_index_contextual.chunking.front_matter import FrontMatter, read_front_matter
from llama_index_contextual.chunking.outline import BLOCK, LINE, SECTION, Atom, Outline, outline_of
from llama_index_contextual.chunking.packing import ChunkSettings, Piece, pack, piece_between
from llama_index_contextual.chunking.sections import (
    TOP,
    Open,
    Section,
    common_path,
    find_sections,
    group_sections,
    titles_of_headings,
)
from llama_index_contextual.text.tokens import budget_cost, make_scale

_PARAGRAPH_END: Final = re.compile(r"(?:\r\n|\r(?!\n)|\n)(?:[ \t]*(?:\r\n|\r(?!\n)|\n))+")
_LINE_START: Final = re.compile(r"(?:\r\n?|\n)(?=[ \t]*\S)")
_LINE: Final = re.compile(r"[^\r\n]*")
_LINE_END: Final = re.compile(r"\r\n?|\n")
_MAX_CONTINUES: Final = 300  # characters of a table's header row, or a fence's language


class Span(NamedTuple):
    """One chunk of a text.

    Attributes:
        start: Offset of its first character.
        end: Offset after its last character.
        start_line: 1-based line of its first character.
        end_line: 1-based line of its last character.
        headings: Titles of the headings above it, outermost first, its own included.
        level: Level of the innermost of them, 0 for none.
        kind: ``"text"``, ``"code"``, ``"table"``, ``"list"``, ``"quote"``, ``"html"``, ``"heading"`` or ``"mixed"``.
        tokens: How many, in the tokenizer of the settings.
        overflow: Whether it exceeds ``chunk_size``, because nothing in it may be cut.
        continues: For a later piece of a fence its language; for a later piece of a table, and for a table above
            ``chunk_size``, its header row; else empty.
        overlap: How many of its first characters the chunk before it holds too.
        merged: Outermost titles of the sections in it, where these share no heading; else empty.
        open: The headings that are open at its end.
    """

    start: int
    end: int
    start_line: int
    end_line: int
    headings: tuple[str, ...]
    level: int
    kind: str
    tokens: int
    overflow: bool = False
    continues: str = ""
    overlap: int = 0
    merged: tuple[str, ...] = ()
    open: Open = TOP


def split_markdown(
    text: str,
    *,
    settings: ChunkSettings | None = None,
    front: FrontMatter | None = None,
    above: Open = TOP,
    markdown: bool = True,
) -> list[Span]:
    """Split a text into spans that cover everything but white space, front matter and a byte order mark.

    Encoded bytes (a picture in a data URI) are never cut and count as one character; what is nothing else is no span.

    Args:
        text: Without lone surrogates.
        settings: Sizes and tokenizer.
        front: Its front matter; ``None`` reads it here.
        above: Headings that are open where the text begins, as they are for a page of a file.
        markdown: False is for plain text: paragraphs, but no headings, fences, lists.
    """
    settings = settings or ChunkSettings()
    if front is None:
        front = read_front_matter(text) if markdown and settings.semantic else FrontMatter()
    body = front.end
    if not body and text.startswith("\ufeff"):
        body = 1
    if not text[body:].strip():
        return []
    scale = make_scale(text, settings.tokenizer)
    outline = _outline(text, body, settings, unread=front.unread, markdown=markdown)
    titles = titles_of_headings(text, ((start, end) for _, _, start, end in outline.headings))
    sections = find_sections(outline, titles, cut_at_rules=settings.cut_at_rules, above=above)
    sums = scale.cumulative(outline.offsets)
    groups = group_sections(sections, sums, settings.min_chunk_size, settings.chunk_size)
    ends = _line_ends(text)
    spans: list[Span] = []
    for group in groups:
        first, last = group[0].first, group[-1].last
        if sums[last] - sums[first] <= settings.chunk_size:
            piece = piece_between(text, outline, first, last, scale)
            if budget_cost(piece.tokens, scale.part(piece.start, piece.end)) <= settings.chunk_size:
                if piece.end > piece.start and scale.is_text(piece.start, piece.end):
                    spans.append(_describe(text, piece, group, outline, ends, settings.chunk_size))
                continue
        marks = refine(text, outline, sums, (first, last), scale, settings)
        pieces = pack(text, marks, scale, settings)
        held = (piece for piece in pieces if scale.is_text(piece.start, piece.end))
        spans.extend(_describe(text, piece, group, outline, ends, settings.chunk_size) for piece in held)
    return spans


def headings_of(text: str) -> list[tuple[str, int, int]]:
    """Return the title, the level (1 to 6) and the line (from 1) of each heading of a Markdown text."""
    front = read_front_matter(text)
    outline, ends = outline_of(text, front.end, front.unread), _line_ends(text)
    titles = titles_of_headings(text, ((start, end) for _, _, start, end in outline.headings))
    return [
        (title, level, bisect_right(ends, start) + 1)
        for title, (_, level, start, _) in zip(titles, outline.headings, strict=True)
    ]


def _line_ends(text: str) -> array[int]:
    return array("q", (match.end() for match in _LINE_END.finditer(text)))


def _outline(text: str, body: int, settings: ChunkSettings, *, unread: int, markdown: bool) -> Outline:
    if markdown and settings.semantic:
        return outline_of(text, body, unread)
    pattern, strength = (_PARAGRAPH_END, BLOCK) if settings.semantic else (_LINE_START, LINE)
    start = body + len(text[body:]) - len(text[body:].lstrip())
    start = max(body, text.rfind("\n", body, start) + 1)
    offsets = array("q", [start])
    offsets.extend(match.end() for match in pattern.finditer(text, start) if match.end() < len(text))
    strengths, kinds = [strength] * len(offsets) + [SECTION], ["text"] * len(offsets) + [""]
    offsets.append(len(text))
    return Outline(offsets, strengths, kinds)


def _describe(text: str, piece: Piece, group: list[Section], outline: Outline, ends: Sequence[int], size: int) -> Span:
    if len(group) > 1:
        offsets = outline.offsets
        group = [s for s in group if offsets[s.first] < piece.end and offsets[s.last] > piece.fresh]
    first, merged = group[0], False
    starts_with_heading = outline.kinds[first.first] == "heading" and outline.offsets[first.first] >= piece.start
    if len(group) > 1 and starts_with_heading:
        headings, level = common_path(group)
        merged = not headings
    else:  # what stands further down in the chunk heads nothing of its beginning
        headings, level = first.path, first.levels[-1] if first.levels else 0
    kinds = piece.kinds - {"heading", "rule"}
    kind = next(iter(kinds)) if len(kinds) == 1 else "mixed" if kinds else "heading"
    return Span(
        start=piece.start,
        end=piece.end,
        start_line=bisect_right(ends, piece.start) + 1,
        end_line=bisect_right(ends, piece.end - 1) + 1,
        headings=headings,
        level=level,
        kind=kind,
        tokens=piece.tokens,
        overflow=piece.tokens > size,
        continues=_continues(text, piece.atom or _long_table(piece, outline, size)),
        overlap=piece.fresh - piece.start,
        open=Open(group[-1].path, group[-1].levels),
        merged=tuple(dict.fromkeys(section.path[0] for section in group if section.path)) if merged else (),
    )


def _long_table(piece: Piece, outline: Outline, size: int) -> Atom | None:
    """First table of a chunk above ``size``: it is embedded in windows, and the later ones lack the header row."""
    if piece.tokens <= size or "table" not in piece.kinds:
        return None
    marks = range(bisect_left(outline.offsets, piece.start), bisect_left(outline.offsets, piece.end))
    atoms = (outline.atoms.get(mark) for mark in marks)
    return next((atom for atom in atoms if atom is not None and atom.kind == "table"), None)


def _continues(text: str, atom: Atom | None) -> str:
    if atom is None:
        return ""
    if atom.kind == "code":
        return atom.info.split(maxsplit=1)[0][:_MAX_CONTINUES] if atom.info.strip() else ""
    row = _LINE.match(text, atom.start, min(atom.end, atom.start + _MAX_CONTINUES))
    return row[0].strip() if row else ""
