"""Read a query: its operators (``"exact phrase"``, ``-not``, ``path:`` and others), and its words that are unknown.

``path:notes/``, ``tag:work`` and ``collection:docs`` count in every query. Quotation marks and hyphens occur in
ordinary questions too, so ``"…"`` and ``-…`` count only in a query of keywords: one that has no stop word outside of
quotation marks. "What is "Little Women" about?" is a question and stays as it is; ``"Little Women" plot -film`` is a
query of keywords. ``-…`` is an operator only where nothing else explains it: the word is one of the language or of the
index, no chunk has it with its dash, and no other token is of a shell (``rm -rf build``) or a negative number.

What operators ask becomes metadata filters, so every arm that takes filters obeys them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)

from llama_index_contextual.retrievers.filters import WORDS, item_filter, tag_filter
from llama_index_contextual.retrievers.query_dates import find_dates, lexicon_of
from llama_index_contextual.retrievers.terms import (
    has_stop_words,
    language_of,
    query_groups,
)
from llama_index_contextual.retrievers.words import words_of
from llama_index_contextual.utils.dates import epoch_seconds
from llama_index_contextual.utils.errors import SettingError
from llama_index_contextual.utils.metadata import COLLECTION, DATE_TS, FILE_PATH, PATH, typed

if TYPE_CHECKING:
    from llama_index_contextual.retrievers.bm25_index import TermScores

# Each stands between white space. The lengths keep the search for a closing mark linear.
_FIELD: Final = re.compile(
    r'(?<!\S)(-?)(path|tag|collection):(?:"([^"\n]{1,200})"|([^\s"]{1,200}))(?!\S)'
)
_QUOTED: Final = re.compile(r'(?<!\S)(-?)["“„]([^"“”„\n]{1,200})["”“](?!\S)')
_EXCLUDED: Final = re.compile(r"(?<!\S)-(\w\S{1,200})(?!\S)")
_OF_A_SHELL: Final = re.compile(
    r"(?:\.{1,2}/|~/|[/$|`<>]|\*\.)|(?:\.{1,2}|&&|\*)$"
)  # how a token of a command begins
_EXCLUDABLE: Final = re.compile(r"[^\W\d_]\S{2,}")  # flags are shorter
_LONGEST: Final = 2000  # characters; a longer text is a message and no query with operators
_CONDITION: Final = re.compile(r"([^=<>!~]{1,100})(!=|<=|>=|==|=|<|>|~)(?![=<>])([^\n]{0,300})")
_OPERATORS: Final = {
    "=": FilterOperator.EQ,
    "~": FilterOperator.TEXT_MATCH_INSENSITIVE,
}  # others are LlamaIndex's
_NAMED: Final = 3  # unknown words that a message names


class ParsedQuery(NamedTuple):
    """A query without its operators.

    Args:
        text: What is searched for: the query without ``path:`` and the like, exclusions and quotation marks.
        operators: The operators as they were written.
        filters: What they ask of a node; None without operators.
    """

    text: str
    operators: tuple[str, ...] = ()
    filters: MetadataFilters | None = None


def parse_query(text: str, may_exclude: Callable[[str], bool] = str.isalpha) -> ParsedQuery:
    """A query's text apart from its operators; where it has no other words, the text is what these name.

    Args:
        text: The query.
        may_exclude: Whether ``-word`` can be an operator, by its word; default where it has letters only.
    """
    if len(text) > _LONGEST or not any(
        mark in text for mark in ('"', "“", "„", "-", "path:", "tag:", "collection:")
    ):
        return ParsedQuery(text)
    fields, rest = list(_FIELD.finditer(text)), _FIELD.sub("", text)
    found = [(match[0], _of_field(match)) for match in fields]
    if not has_stop_words(_QUOTED.sub(" ", rest)):
        found += [
            (match[0], _words(match[2], FilterOperator.TEXT_MATCH))
            for match in _QUOTED.finditer(rest)
        ]
        rest = _QUOTED.sub(lambda match: "" if match[1] else match[2], rest)
        if not _is_command(rest.split(), may_exclude):
            found += [
                (match[0], _words(match[1], FilterOperator.CONTAINS))
                for match in _EXCLUDED.finditer(rest)
            ]
            rest = _EXCLUDED.sub("", rest)
    rest = " ".join(rest.split()) or " ".join(
        match[3] or match[4] for match in fields if not match[1]
    )
    if not found or not rest:
        return ParsedQuery(text)
    parts = [one for operator, one in found if not operator.startswith("-")]
    if unwanted := [one for operator, one in found if operator.startswith("-")]:
        parts.append(MetadataFilters(filters=unwanted, condition=FilterCondition.NOT))
    return ParsedQuery(
        rest, tuple(operator for operator, _ in found), MetadataFilters(filters=parts)
    )


def _of_field(match: re.Match[str]) -> MetadataFilter | MetadataFilters:
    """Filter of ``path:``, ``tag:`` or ``collection:``."""
    name, value, how = match[2], match[3] or match[4], FilterOperator.TEXT_MATCH_INSENSITIVE
    if name == "tag":
        return tag_filter(value)
    if name == "collection":
        return MetadataFilter(key=COLLECTION, value=value)
    either = [MetadataFilter(key=key, value=value, operator=how) for key in (PATH, FILE_PATH)]
    return MetadataFilters(filters=[*either], condition=FilterCondition.OR)


def _is_command(tokens: Sequence[str], may_exclude: Callable[[str], bool]) -> bool:
    """Whether the dashes of tokens are those of flags or numbers: ``rm -rf build``, ``-18 degrees``."""
    words = [token[1:] for token in tokens if token.startswith("-") and len(token) > 1]
    others = [token for token in tokens if not token.startswith("-")]
    if not words or not others or any(map(_OF_A_SHELL.match, others)):
        return bool(words)
    return not all(_EXCLUDABLE.fullmatch(word) and may_exclude(word) for word in words)


def _words(value: str, how: FilterOperator) -> MetadataFilter | MetadataFilters:
    return MetadataFilter(key=WORDS, value=value, operator=how)


def unknown_words_note(text: str, terms: TermScores) -> str:
    """A line that names the first three words of a text all of whose terms are missing in an index; "" for none.

    Args:
        text: The text. A stop word of it is never one of them.
        terms: How many nodes of the index hold each term.
    """
    missing = {
        frozenset(one)
        for one, number in zip(terms.groups, terms.frequencies, strict=True)
        if not number
    }
    words = [word for word in words_of(text) if missing and not has_stop_words(word)]
    language = language_of(text)
    groups = {word: query_groups(word, language) for word in words}
    unknown = [
        word
        for word, of_word in groups.items()
        if of_word and missing.issuperset(map(frozenset, of_word))
    ]
    named = [f'"{word}"' for word in unknown[:_NAMED]]
    return f"the index does not know {', '.join(named)}" if named else ""


# Which notes


def note_filters(
    *,
    path: str | Sequence[str] = "",
    tag: str | Sequence[str] = "",
    since: str = "",
    until: str = "",
    collections: Sequence[str] = (),
    where: Sequence[str] = (),
) -> MetadataFilters | None:
    """LlamaIndex's metadata filters for what an agent writes; None where it writes nothing.

    Args:
        path: Part of a note's path, in any case; of several one is enough.
        tag: One of its tags, in any case, or one above it: ``health`` for ``health/running``; of several it has all.
        since: Its first day, as ``2026-04-09`` or in words (``last week``). A note without a date is left out.
        until: Its last day.
        collections: Names of folders, of an index of several: one of them is the note's.
        where: Conditions on its front matter, all of them: ``status=open``, ``rating>=4``, ``topics=ml`` (an item of a
            list), ``due<2026-05-01``, ``status!=done``, ``author~smith`` (a part), ``author=`` (nothing).

    Raises:
        SettingError: A day is none, the first comes after the last, or a condition cannot be read.
    """
    first, last = _day("since", since), _day("until", until)
    if first and last and first > last:
        raise SettingError(f"`since` must not be after `until` (got {since!r} and {until!r}).")
    filters: list[MetadataFilter | MetadataFilters] = [_condition(condition) for condition in where]
    paths, tags = (
        [one.strip() for one in ([of] if isinstance(of, str) else of) if one.strip()]
        for of in (path, tag)
    )
    how = FilterOperator.TEXT_MATCH_INSENSITIVE
    parts = [MetadataFilter(key=PATH, value=one, operator=how) for one in paths]
    filters += (
        [MetadataFilters(filters=[*parts], condition=FilterCondition.OR)] if parts[1:] else parts
    )
    filters += map(tag_filter, tags)
    if collections:
        filters.append(
            MetadataFilter(key=COLLECTION, value=[*collections], operator=FilterOperator.IN)
        )
    filters += days_filter(first, last).filters
    return MetadataFilters(filters=filters) if filters else None


def _condition(text: str) -> MetadataFilter | MetadataFilters:
    """Filter of a condition on front matter."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise SettingError(
            "`where` must be KEY=VALUE, or have !=, <, <=, >, >= or ~ (a part) in place of = "
            f"(got {text!r})."
        )
    key, operator, value = match[1].strip().lower(), match[2], match[3].strip()
    if not value and operator in ("=", "!="):
        empty = MetadataFilter(key=key, value=None, operator=FilterOperator.IS_EMPTY)
        return (
            empty
            if operator == "="
            else MetadataFilters(filters=[empty], condition=FilterCondition.NOT)
        )
    wanted = value if operator == "~" else typed(value)
    wanted = (
        int(wanted) if isinstance(wanted, bool) else wanted
    )  # LlamaIndex's filters take no booleans
    return item_filter(key, wanted, _OPERATORS.get(operator) or FilterOperator(operator))


def days_filter(first: date | None, last: date | None) -> MetadataFilters:
    """Filter for dated notes from some days, both included; None leaves that end open."""
    ends = ((first, FilterOperator.GTE), (last, FilterOperator.LTE))
    return MetadataFilters(
        filters=[
            MetadataFilter(key=DATE_TS, value=epoch_seconds(day), operator=how)
            for day, how in ends
            if day is not None
        ]
    )


def _day(name: str, text: str) -> date | None:
    """The day that a text names: of ``last week`` its first for ``since``, its last for ``until``."""
    if not text.strip():
        return None
    with contextlib.suppress(ValueError):
        return date.fromisoformat(text.strip())
    [named] = find_dates(text, date.today(), lexicon_of(text))[:1] or [None]  # noqa: DTZ011  the user's own day
    if named is None:
        raise SettingError(
            f"`{name}` must be a date such as 2026-04-09, or words such as last week or in May "
            f"(got {text!r})."
        )
    return named.first if name == "since" else named.last
