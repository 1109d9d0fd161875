"""Find the lines of stored notes that contain exact text or match a regular expression."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import regex  # type: ignore[import-untyped]

from llama_index_contextual.memory.digest import on_one_line, shown_path
from llama_index_contextual.retrievers.filters import matching_rows
from llama_index_contextual.tools.answer import MAX_CHARS, Answer, fitting
from llama_index_contextual.tools.arguments import MAX_RESULTS
from llama_index_contextual.utils import metadata as meta
from llama_index_contextual.utils.errors import SettingError
from llama_index_contextual.utils.text import counted, lines_of, printable

if TYPE_CHECKING:
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.tools.arguments import Grep
    from llama_index_contextual.tools.notes import Notes, Passage

_TEXT_SECONDS = 2.0  # time limit of an expression for one text
_SECONDS = 10.0  # time limit of an expression for all texts
_MAX_REPEATS = 10_000  # the library expands each repeated part in memory
_MAX_LINE = 200  # characters of a line that are shown
_BEFORE = 60  # characters of a long line that are shown before the match
_MAX_DUPLICATE_CHARS = 100  # length of the citations of further places of the same line
_MAX_HEADINGS = 150  # length of the headings above a line
_MAX_NAMES = 150  # length of the list of notes with further lines
_RESERVED = 350  # characters of an answer for its first and last lines
_BATCH = 1000  # chunks that are filtered together
_ESCAPED = regex.compile(r"\\p\{\w+\}|\\.")  # the capital in "\W" is not a letter to find
_REPEATS = regex.compile(r"\{(\d+)(?:,\d*)?\}")
_REFUSED = regex.compile(r"\(\?(?:R|[-+]?\d|&|P>|[a-zA-Z01]*x)")
_LOOKS_LIKE_EXPRESSION = regex.compile(r"\\[wdsb]|[.\])][*+?]|\||\[.+\]|^\^|\$$")


class Line(NamedTuple):
    """The place of a line of text.

    Attributes:
        passage: The chunk that contains the line.
        number: The line number in the note or page. None for a property in the front matter.
    """

    passage: Passage
    number: int | None

    @property
    def citation(self) -> str:
        """Return the citation of the line for ``read``. For a property, it covers the front matter.

        The front matter is all lines above the first chunk.
        """
        passage = self.passage
        first = self.number
        last = self.number
        if first is None and passage.first_line > 1:
            first = 1
            last = passage.first_line - 1
        return shown_path(meta.citation(passage.path, first, last, passage.page))

    @property
    def headings(self) -> str:
        """Return the headings above the line."""
        if self.number is None:
            return "front matter"
        headings = meta.value_of(self.passage.metadata, meta.HEADER_PATH)
        return meta.shortened(on_one_line(str(headings or "")), _MAX_HEADINGS)


@dataclass
class Findings:
    """The matching lines. As many as can be shown are kept, and the remaining lines are counted.

    Attributes:
        most: The largest number of different texts to keep.
        per_file: The largest number of texts to keep per note. 0 means no limit.
        groups: The kept texts, each with the lines that have this text.
        hidden: The number of further lines of each note.
    """

    most: int
    per_file: int
    groups: dict[str, list[Line]] = field(default_factory=dict)
    hidden: Counter[str] = field(default_factory=Counter)
    _kept: Counter[str] = field(default_factory=Counter)
    _properties: set[tuple[str, str]] = field(default_factory=set)
    _last_numbers: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(
        self,
        passage: Passage,
        properties: Iterable[str],
        lines: Iterable[tuple[int, str]],
    ) -> None:
        """Add the properties and the numbered lines of a chunk that no earlier chunk had.

        Call this in reading order. Chunks of a note share its properties. They share lines if they
        overlap or if a line is split between them.
        """
        for text in properties:
            if (passage.path, text) not in self._properties:
                self._properties.add((passage.path, text))
                self._add_line(passage, None, text)
        last_number = self._last_numbers.get((passage.path, passage.page), 0)
        for number, text in lines:
            if number > last_number:
                last_number = number
                self._add_line(passage, number, text)
        self._last_numbers[passage.path, passage.page] = last_number

    def _add_line(self, passage: Passage, number: int | None, text: str) -> None:
        """Keep a line unless a limit is reached."""
        path = passage.path
        is_full = self.per_file and self._kept[path] >= self.per_file
        if text in self.groups:
            self.groups[text].append(Line(passage, number))
        elif is_full or len(self.groups) >= self.most:
            self.hidden[path] += 1
        else:
            self._kept[path] += 1
            self.groups[text] = [Line(passage, number)]


class Pattern(NamedTuple):
    """The text or expression to find.

    Attributes:
        fold: Prepares a text: makes it lower case unless the search is case-sensitive.
        find: Returns the offset of the first match in a folded text, or -1.
    """

    fold: Callable[[str], str]
    find: Callable[[str], int]

    def start(self, text: str) -> int:
        """Return the offset of the first match in a text, or -1."""
        return self.find(self.fold(text))

    def is_in(self, text: str) -> bool:
        """Return whether the pattern matches in a text."""
        return self.find(self.fold(text)) >= 0


def grep(notes: Notes, arguments: Grep) -> Answer:
    """Return the matching lines of the stored notes, in the order of their paths.

    Raises:
        SettingError: The expression or a filter is invalid, or the expression takes too long.
    """
    pattern = pattern_of(arguments.pattern, is_regex=arguments.regex)
    passages = _matching_filters(notes.matching(pattern.is_in), arguments.filters)
    findings = Findings(arguments.max_results, arguments.per_file)
    for passage in passages:
        properties = filter(pattern.is_in, passage.properties)
        findings.add(passage, properties, _matching_lines(passage, pattern))
    if not findings.groups:
        return Answer(_no_match_text(arguments), {"hits": [], "lines": 0, "notes": 0})

    # Count all matching lines.
    hidden = findings.hidden
    kept = [line for lines in findings.groups.values() for line in lines]
    number_of_lines = len(kept) + hidden.total()
    number_of_notes = len(hidden.keys() | {line.passage.path for line in kept})

    # Show as many lines as fit.
    all_items = (_item(text, lines, pattern) for text, lines in findings.groups.items())
    items = fitting(all_items, MAX_CHARS - _RESERVED)
    groups = list(findings.groups.values())
    for lines in groups[len(items) :]:
        hidden.update(line.passage.path for line in lines)
    shown = [line for line, *_ in groups[: len(items)]]
    hits = [{"citation": line.citation, "headings": line.headings} for line in shown]
    text = "\n".join(
        [f"{counted(number_of_lines, 'line')} in {counted(number_of_notes, 'note')}:", *items]
    )
    if hidden:
        next_call = _next_call(arguments, hidden, shown, has_space=len(items) == len(groups))
        text += f"\n({_hidden_text(hidden)}. Next: {next_call}.)"
    return Answer(text, {"hits": hits, "lines": number_of_lines, "notes": number_of_notes})


def pattern_of(pattern: str, *, is_regex: bool) -> Pattern:
    """Return a pattern. The search is case-sensitive if the pattern has a capital letter.

    Raises:
        SettingError: The expression is invalid.
    """
    if is_regex:
        return Pattern(str, _expression(pattern))
    fold = str.lower if pattern == pattern.lower() else str
    return Pattern(fold, methodcaller("find", pattern))


def _expression(pattern: str) -> Callable[[str], int]:
    """Return a function that finds the first match of a regular expression, or fails in time.

    Raises:
        SettingError: The expression is invalid, or its time or memory could not be limited.
    """
    unescaped = _ESCAPED.sub("", pattern)
    repeats = map(int, _REPEATS.findall(unescaped))
    if prod(filter(None, repeats)) > _MAX_REPEATS:
        raise SettingError(
            f"`pattern` must repeat its parts at most {_MAX_REPEATS:,} times in all. Lower the "
            "numbers in {}."
        )
    if _REFUSED.search(unescaped):
        raise SettingError(
            "`pattern` must not contain itself or ignore spaces. Leave out (?R), (?1), (?&name) "
            "and (?x)."
        )
    flags = regex.MULTILINE | (regex.IGNORECASE if unescaped == unescaped.lower() else 0)
    try:
        expression = regex.compile(pattern, flags)
    except (regex.error, RecursionError) as error:
        raise SettingError(
            f"`pattern` is not a valid regular expression: {error}. Correct it, or leave out "
            "regex to find the characters themselves."
        ) from error
    deadline = time.monotonic() + _SECONDS

    def find(text: str) -> int:
        seconds = min(_TEXT_SECONDS, deadline - time.monotonic())
        try:
            match = expression.search(text, timeout=max(seconds, 0))
        except TimeoutError as error:
            raise SettingError("`pattern` takes too long. Simplify the expression.") from error
        return match.start() if match else -1

    return find


def _matching_filters(
    passages: Iterable[Passage], filters: MetadataFilters | None
) -> Iterator[Passage]:
    """Yield the chunks that match the filters."""
    if filters is None:
        yield from passages
        return
    remaining = iter(passages)
    while batch := list(islice(remaining, _BATCH)):
        rows = np.arange(len(batch))

        def column(key: str, batch: Sequence[Passage] = batch) -> list[Any]:
            return [passage.metadata.get(key) for passage in batch]

        for row in matching_rows(filters, rows, column, lambda _: np.arange(0)):
            yield batch[row]


def _matching_lines(passage: Passage, pattern: Pattern) -> Iterator[tuple[int, str]]:
    """Yield the lines of a chunk that match, each with its number."""
    folded_lines = _lines_of(pattern.fold(passage.text))
    matching = [place for place, line in enumerate(folded_lines) if pattern.find(line) >= 0]
    if matching:
        lines = _lines_of(passage.text)
        for place in matching:
            yield passage.first_line + place, lines[place].strip()


def _lines_of(text: str) -> list[str]:
    return list(lines_of(text)) if "\r" in text else text.split("\n")  # which is much faster


def _item(text: str, lines: Iterable[Line], pattern: Pattern) -> str:
    """Return a line with its citation, its headings and the other places of the same text."""
    line, *duplicates = lines
    headings = f"{line.headings}: " if line.headings else ""
    item = f"- [{line.citation}] {headings}{_excerpt(text, pattern)}"
    if not duplicates:
        return item
    citations = fitting(
        (duplicate.citation for duplicate in duplicates), _MAX_DUPLICATE_CHARS, gap=2
    )
    hidden = len(duplicates) - len(citations)
    if not citations:
        return f"{item} (also in {counted(hidden, 'place')})"
    more = f" and {hidden:,} more" if hidden else ""
    return f"{item} (also {', '.join(citations)}{more})"


def _excerpt(text: str, pattern: Pattern) -> str:
    """Return a line, or the part of a long line around the match."""
    start = 0
    if len(text) > _MAX_LINE:
        start = max(0, min(pattern.start(text) - _BEFORE, len(text) - _MAX_LINE))
    end = start + _MAX_LINE
    before = "…" if start else ""
    after = "…" if end < len(text) else ""
    return f"{before}{on_one_line(text[start:end])}{after}"


def _hidden_text(hidden: Counter[str]) -> str:
    """Return a text with the number of lines that are not shown, in all and for each note."""
    counts = (f"{shown_path(path)} {number}" for path, number in hidden.most_common())
    shown = fitting(counts, _MAX_NAMES, gap=2)
    if len(shown) < len(hidden):
        shown.append("…")
    return f"{hidden.total():,} more in {counted(len(hidden), 'note')}: {', '.join(shown)}"


def _next_call(
    arguments: Grep,
    hidden: Counter[str],
    shown: Sequence[Line],
    *,
    has_space: bool,
) -> str:
    """Return a hint on which call returns more lines.

    Args:
        arguments: The arguments of the last call.
        hidden: The number of lines of each note that are not shown.
        shown: The lines that are shown.
        has_space: Whether more lines would fit in the answer.
    """
    if len(hidden) > 1 or arguments.per_file:
        return "grep with path= one of these and per_file=0, or a longer pattern"
    if has_space and arguments.max_results < MAX_RESULTS:
        return f"grep with max_results={MAX_RESULTS}, or a longer pattern"
    [path] = hidden
    if any(line.passage.page for line in shown):
        return "grep with a longer pattern"
    last_line = max((line.number or 0 for line in shown if line.passage.path == path), default=0)
    place = f"path={shown_path(path)} from_line={last_line + 1}"
    return f"read with {place}, or grep with a longer pattern"


def _no_match_text(arguments: Grep) -> str:
    """Return the answer if no line matches, with a hint if the pattern looks like an expression."""
    pattern = printable(meta.shortened(arguments.pattern, _MAX_LINE), one_line=True)
    text = f'(No line contains "{pattern}".'
    if not arguments.regex and _LOOKS_LIKE_EXPRESSION.search(arguments.pattern):
        text += " regex=true reads it as a regular expression."
    return f"{text} retrieve finds other wordings.)"
