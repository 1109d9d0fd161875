"""The few sentences of a chunk that a query is about, instead of its first 220 characters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sentencex import segment  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

MAX_SNIPPET_CHARS: Final = 220  # the source's length
_NOT_TEXT: Final = re.compile(r"^\s*(?:#{1,6}\s.*|[-=*_]{3,}|`{3,}.*|~{3,}.*|[|\s:-]+)$")
_STARTS_A_BLOCK: Final = re.compile(r"^\s*(?:[-*+•]\s|\d{1,9}[.)]\s|#{1,6}\s|>|\||`{3}|~{3})")
_HEADING: Final = re.compile(r"^#{1,6}\s+(.*?)[\s#:]*$")
_GAP: Final = " … "
_HEADING_SHARE: Final = 0.5  # a heading says what follows is about, the text itself says more
_MIN_CUT: Final = 12  # characters; less of a sentence tells nothing


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a chunk."""

    text: str
    block: int
    """Number of the paragraph, list item or heading that holds it."""
    first_line: int
    """0-based line of the chunk."""
    last_line: int
    is_text: bool
    """False for headings, rules and fences."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """Some sentences of a chunk."""

    text: str
    first_line: int
    """0-based line of the chunk where the first of them stands."""
    last_line: int


def split_sentences(text: str) -> list[Sentence]:
    """Split a chunk into sentences; a list item or a heading ends one, a line break inside a paragraph does not."""
    found: list[Sentence] = []
    for block, (line, paragraph) in enumerate(_blocks(text)):
        position = 0
        for sentence in segment("en", paragraph.replace("\n", " ")):
            stripped = sentence.strip()
            start = paragraph.replace("\n", " ").find(stripped, position)
            if stripped and start >= 0:
                position = start + len(stripped)
                first, last = (line + paragraph.count("\n", 0, place) for place in (start, position))
                found.append(Sentence(stripped, block, first, last, not _NOT_TEXT.match(paragraph)))
    return found


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Give paragraphs, list items, headings and other lines, each with the 0-based line where it starts."""
    start, block = 0, list[str]()
    for number, line in enumerate(text.split("\n")):
        if block and (not line.strip() or _STARTS_A_BLOCK.match(line) or _NOT_TEXT.match(block[-1])):
            yield start, "\n".join(block)
            block = []
        if line.strip():
            start = start if block else number
            block.append(line)
    if block:
        yield start, "\n".join(block)


def choose_snippet(
    text: str,
    weights: Mapping[str, float],
    terms: Callable[[str], Collection[str]],
    *,
    limit: int = MAX_SNIPPET_CHARS,
) -> Snippet:
    """Take the sentence with the most weight of query terms, then what adds most to it, then what follows it.

    Args:
        text: The chunk.
        weights: Query terms, as ``terms`` gives them, and what each is worth, such as its rarity.
        terms: Cuts a text into terms.
        limit: Characters, ellipses included.
    """
    sentences = split_sentences(text)
    if not sentences:
        return Snippet("", 0, 0)
    held = [set(terms(sentence.text)) & weights.keys() for sentence in sentences]
    texts = [index for index, sentence in enumerate(sentences) if sentence.is_text]
    chosen = [_best(sentences, held, weights, set(), texts or range(len(sentences)))]
    while True:
        covered = set().union(*(held[index] for index in chosen))
        left = [index for index in range(len(sentences)) if index not in chosen]
        fitting = [index for index in left if _length(sentences, [*chosen, index]) <= limit]
        adding = [index for index in fitting if held[index] - covered]
        following = [index for index in fitting if _follows(sentences, chosen, index)]
        if adding:
            chosen.append(_best(sentences, held, weights, covered, adding))
        elif following:
            chosen.append(following[0])
        else:
            break
    chosen.sort()
    joined = _join(sentences, chosen)
    if len(joined) > limit:
        joined = _window(joined, held[chosen[0]], terms, limit)
    return Snippet(joined, sentences[chosen[0]].first_line, sentences[chosen[-1]].last_line)


def _follows(sentences: list[Sentence], chosen: list[int], index: int) -> bool:
    return index - 1 in chosen and sentences[index - 1].block == sentences[index].block


def _best(
    sentences: list[Sentence],
    held: list[set[str]],
    weights: Mapping[str, float],
    covered: set[str],
    among: Collection[int],
) -> int:
    def worth(index: int) -> tuple[float, bool, int]:
        gain = sum(weights[term] for term in held[index] - covered)
        share = 1.0 if sentences[index].is_text else _HEADING_SHARE
        return (gain * share, sentences[index].is_text, -index)

    return max(among, key=worth)


def _join(sentences: list[Sentence], chosen: list[int]) -> str:
    parts: list[str] = []
    for before, index in zip([None, *chosen], chosen, strict=False):
        if before is not None:
            parts.append(" " if index == before + 1 or not sentences[before].is_text else _GAP)
        text = sentences[index].text
        heading = _HEADING.match(text)
        parts.append(f"{heading[1]}:" if heading and index != chosen[-1] else text)
    return "".join(parts)


def _length(sentences: list[Sentence], chosen: list[int]) -> int:
    return len(_join(sentences, sorted(chosen)))


def _window(text: str, wanted: set[str], terms: Callable[[str], Collection[str]], limit: int) -> str:
    """Cut a sentence that is too long around its first query term, at white space."""
    first = 0
    for match in re.finditer(r"\S+", text):
        if wanted & set(terms(match[0])):
            first = match.start()
            break
    start = max(0, min(first - limit // 4, len(text) - limit))
    if start:
        space = text.find(" ", start, start + limit // 4)
        start = space + 1 if space >= 0 else start
    room = limit - 2 * (start > 0)
    head = text[start:]
    if len(head) > room:
        cut = head.rfind(" ", _MIN_CUT, room - 2)
        head = head[: cut if cut > 0 else room - 2] + " …"
    return ("… " if start else "") + head
