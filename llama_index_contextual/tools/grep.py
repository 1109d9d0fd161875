"""Find the lines of stored notes that hold exact characters or match an expression, in time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import regex  # type: ignore[import-untyped]

from llama_index_contextual.memory.digest import on_one_line, shown_path
from llama_index_contextual.retrievers.filters import admitted
from llama_index_contextual.tools.answer import MAX_CHARS, Answer
from llama_index_contextual.utils import metadata as meta
from llama_index_contextual.utils.errors import SettingError
from llama_index_contextual.utils.text import counted, lines_of, printable

if TYPE_CHECKING:
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.tools.arguments import Grep
    from llama_index_contextual.tools.notes import Notes, Passage

_SECONDS: Final = 2.0  # that an expression may take
_MAX_LINE: Final = 200  # characters of a line
_BEFORE: Final = 60  # characters of a long line before the match
_MAX_TWINS: Final = 3  # further places of the same line
_MAX_NOTES: Final = 6  # that the last line names
_MAX_NAMES: Final = 150  # characters of their names
_RESERVED: Final = 350  # characters for the first and the last line
_ESCAPED: Final = regex.compile(r"\\p\{\w+\}|\\.")  # "\W" has no capital letter of a word
_LOOKS_LIKE_EXPRESSION: Final = regex.compile(r"\\[wdsb]|[.\])][*+?]|\||\[.+\]|^\^|\$$")


class Matcher(NamedTuple):
    """Whether and where a text matches.

    Attributes:
        is_in: Tells whether a text has a match.
        start: Gives the offset of the first match in a text that has one.
    """

    is_in: Callable[[str], bool]
    start: Callable[[str], int]


def matcher_of(pattern: str, *, is_regex: bool) -> Matcher:
    """Return the matcher of a pattern. Case counts if the pattern has a capital letter.

    Raises:
        SettingError: The expression cannot be read.
    """
    if is_regex:
        return _expression(pattern)
    if pattern != pattern.lower():
        return Matcher(lambda text: pattern in text, lambda text: text.find(pattern))
    return Matcher(lambda text: pattern in text.lower(), lambda text: text.lower().find(pattern))


def _expression(pattern: str) -> Matcher:
    """Return the matcher of a regular expression that may take :data:`_SECONDS` in all."""
    letters = _ESCAPED.sub("", pattern)
    flags = regex.MULTILINE | (regex.IGNORECASE if letters == letters.lower() else 0)
    try:
        expression = regex.compile(pattern, flags)
    except regex.error as error:
        raise SettingError(
            f"`pattern` is not a regular expression: {error}. Without regex, every "
            "character is literal."
        ) from error
    deadline = time.monotonic() + _SECONDS

    def search(text: str) -> regex.Match[str] | None:
        try:
            return expression.search(text, timeout=max(deadline - time.monotonic(), 1e-3))
        except TimeoutError as error:
            raise SettingError(
                f"`pattern` took more than {_SECONDS:.0f} seconds. Simplify the "
                "expression, or narrow it with path."
            ) from error

    def start(text: str) -> int:
        match = search(text)
        return match.start() if match else 0

    return Matcher(lambda text: search(text) is not None, start)


@dataclass
class Line:
    """A line that matches.

    Attributes:
        passage: The chunk that holds it.
        number: Its number in the note or page; 0 for front matter.
        text: The line.
        twins: Other lines with the same text.
    """

    passage: Passage
    number: int
    text: str
    twins: list[Line] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Return the path of its note."""
        return self.passage.path

    @property
    def page(self) -> object:
        """Return the page of its note; None if it has no pages."""
        return meta.page_of(self.passage.metadata)

    @property
    def citation(self) -> str:
        """Return its place, as ``read`` takes it."""
        number = self.number or None
        return shown_path(meta.citation(self.path, number, number, self.page))

    @property
    def headings(self) -> str:
        """Return the headings above it."""
        headings = meta.value_of(self.passage.metadata, meta.HEADER_PATH)
        return on_one_line(str(headings or "")) if self.number else "front matter"

    def shown(self, matcher: Matcher) -> str:
        """Return the line with its place, and the places of its twins."""
        headings = f"{self.headings}: " if self.headings else ""
        twins = ", ".join(line.citation for line in self.twins[:_MAX_TWINS])
        more = len(self.twins) - _MAX_TWINS
        twins += f" and {more:,} more" if more > 0 else ""
        also = f" (also {twins})" if twins else ""
        return f"- [{self.citation}] {headings}{_excerpt(self.text, matcher)}{also}"


def grep(notes: Notes, arguments: Grep) -> Answer:
    """Return the lines of the stored notes that match, in the order of their paths.

    Raises:
        SettingError: The expression or a filter cannot work, or the expression takes too long.
    """
    matcher = matcher_of(arguments.pattern, is_regex=arguments.regex)
    lines = _matching_lines(notes, matcher, arguments.filters)
    if not lines:
        return Answer(_nothing(arguments), {"hits": [], "lines": 0, "notes": 0})
    merged = _merged(lines)
    shown = _shown(merged, matcher, arguments)
    hidden = Counter(line.path for line in merged)
    hidden.subtract(line.path for line in shown)
    notes_count = len({line.path for line in lines})
    summary = f"{counted(len(lines), 'line')} in {counted(notes_count, 'note')}:"
    data = [{"citation": line.citation, "headings": line.headings} for line in shown]
    text = "\n".join([summary, *(line.shown(matcher) for line in shown), *_more(+hidden)])
    return Answer(text, {"hits": data, "lines": len(lines), "notes": notes_count})


def _matching_lines(notes: Notes, matcher: Matcher, filters: MetadataFilters | None) -> list[Line]:
    """Return every line that matches, once, in the order of paths and lines."""
    lines: dict[tuple[str, object, int, str], Line] = {}
    for passage in _admitted(notes.matching(matcher.is_in), filters):
        page = passage.metadata.get(meta.PAGE_LABEL)
        for line in _lines_of(passage, matcher):
            front_matter = "" if line.number else line.text
            lines.setdefault((passage.path, page, line.number, front_matter), line)
    return sorted(lines.values(), key=lambda line: (line.path, line.number))


def _admitted(passages: Iterable[Passage], filters: MetadataFilters | None) -> Iterable[Passage]:
    """Return the chunks that match the filters."""
    if filters is None:
        return passages
    passages = [*passages]
    every = np.arange(len(passages))
    matching = admitted(
        filters,
        every,
        lambda key: [passage.metadata.get(key) for passage in passages],
        lambda _: every[:0],
    )
    return [passages[row] for row in matching]


def _lines_of(passage: Passage, matcher: Matcher) -> Iterable[Line]:
    """Yield the lines of a chunk that match, and those of its front matter that do."""
    front_matter = str(passage.metadata.get(meta.FRONT_MATTER) or "")
    if front_matter and matcher.is_in(front_matter):
        for text in front_matter.split("; "):
            if matcher.is_in(text):
                yield Line(passage, 0, text)
    for number, line in enumerate(lines_of(passage.text), passage.first_line):
        if matcher.is_in(line):
            yield Line(passage, number, line.strip())


def _excerpt(text: str, matcher: Matcher) -> str:
    """Return a line, or the part of a long one around the match."""
    start = 0
    if len(text) > _MAX_LINE:
        start = max(0, min(matcher.start(text) - _BEFORE, len(text) - _MAX_LINE))
    cut = text[start : start + _MAX_LINE]
    after = "…" if start + _MAX_LINE < len(text) else ""
    return ("…" if start else "") + on_one_line(cut) + after


def _merged(lines: Iterable[Line]) -> list[Line]:
    """Return the lines with each text once: the first of several equal lines names the others."""
    first: dict[str, Line] = {}
    for line in lines:
        known = first.setdefault(line.text, line)
        if known is not line:
            known.twins.append(line)
    return [*first.values()]


def _shown(lines: Iterable[Line], matcher: Matcher, arguments: Grep) -> list[Line]:
    """Return the lines to show: few of each note, and as many as fit in a short answer."""
    shown = list[Line]()
    of_note = Counter[str]()
    available = MAX_CHARS - _RESERVED
    for line in lines:
        if len(shown) == arguments.max_results:
            break
        if arguments.per_file and of_note[line.path] == arguments.per_file:
            continue
        available -= len(line.shown(matcher)) + 1
        if available < 0:
            break
        of_note[line.path] += 1
        shown.append(line)
    return shown


def _more(hidden: Counter[str]) -> list[str]:
    """Return the line that says what is not shown and how to see it.

    None if everything is shown.
    """
    if not hidden:
        return []
    names = [f"{shown_path(path)} {number}" for path, number in hidden.most_common(_MAX_NOTES)]
    listed = meta.shortened(", ".join(names), _MAX_NAMES) + (
        ", …" if len(hidden) > _MAX_NOTES else ""
    )
    counts = f"{hidden.total()} more in {counted(len(hidden), 'note')}: {listed}"
    return [f"({counts}. Next: grep with path= one of these and per_file=0, or a longer pattern.)"]


def _nothing(arguments: Grep) -> str:
    """Return the answer if no line matches, with a hint if the pattern looks like an expression."""
    pattern = printable(arguments.pattern, one_line=True)
    text = f'(No line holds "{pattern}".'
    if not arguments.regex and _LOOKS_LIKE_EXPRESSION.search(arguments.pattern):
        text += " regex=true reads it as a regular expression."
    return f"{text} retrieve finds other wordings.)"
