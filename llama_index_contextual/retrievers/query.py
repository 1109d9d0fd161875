"""Parse queries and filters: the operators of a query, its unknown words, and written conditions.

``path:notes/`` and ``tag:work`` are operators in every query. Quotation marks also occur in
ordinary questions, so ``"..."`` is only an operator if the query has no stop words outside of the
quotation marks, as in ``"Little Women" plot``. The question ``What is "Little Women" about?`` is
not changed.

Operators become metadata filters, so all retrievers that accept filters apply them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)

from llama_index_contextual.retrievers.filters import (
    ItemFilter,
    WordsFilter,
    path_filter,
    tag_filter,
)
from llama_index_contextual.retrievers.query_dates import find_dates, lexicon_of
from llama_index_contextual.retrievers.terms import has_stop_words, language_of, query_groups
from llama_index_contextual.retrievers.words import words_of
from llama_index_contextual.utils.dates import epoch_seconds, iso_period
from llama_index_contextual.utils.errors import SettingError
from llama_index_contextual.utils.metadata import DATE_TS, typed

if TYPE_CHECKING:
    from llama_index_contextual.retrievers.bm25_index import TermScores

Filter = MetadataFilter | MetadataFilters

# Operators are between white space. The length limits keep the search for a closing mark linear.
_FIELD = re.compile(
    r"(?<!\S)(?P<name>path|tag):"
    r'(?:"(?P<quoted>[^"\n]{1,200})"|(?P<plain>[^\s"]{1,200}))(?!\S)'
)
_PHRASE = re.compile(r'(?<!\S)["“„](?P<words>[^"“”„\n]{1,200})["”“](?!\S)')
_MAX_CHARACTERS = 2000  # a longer text is a message and has no operators
_CONDITION = re.compile(
    r"(?P<key>[^=<>!~]{1,100})(?P<operator>!=|<=|>=|==|=|<|>|~)(?![=<>])(?P<value>[^\n]{0,300})"
)
_OPERATORS = {"=": FilterOperator.EQ, "~": FilterOperator.TEXT_MATCH_INSENSITIVE}
_MAX_NAMED = 3  # unknown words that a note names


class ParsedQuery(NamedTuple):
    """A query without its operators.

    Attributes:
        text: The text to search for: the query without fields and quotation marks.
        operators: The operators as they were written.
        filters: The filters of the operators. None without operators.
    """

    text: str
    operators: tuple[str, ...] = ()
    filters: MetadataFilters | None = None


def parse_query(text: str) -> ParsedQuery:
    """Return the text and the operators of a query.

    If the query has no other words, the text is the values of its operators.
    """
    if len(text) > _MAX_CHARACTERS:
        return ParsedQuery(text)
    fields = list(_FIELD.finditer(text))
    words = _FIELD.sub("", text)
    phrases = list(_PHRASE.finditer(words))
    if phrases and has_stop_words(_PHRASE.sub(" ", words)):
        phrases = []
    if phrases:
        words = _PHRASE.sub(r"\g<words>", words)
    words = " ".join(words.split()) or " ".join(map(_value_of, fields))
    operators = [*fields, *phrases]
    if not operators or not words:
        return ParsedQuery(text)

    written = tuple(operator[0] for operator in operators)
    filters = MetadataFilters(filters=[_filter_of(operator) for operator in operators])
    return ParsedQuery(words, written, filters)


def _value_of(field: re.Match[str]) -> str:
    return field["quoted"] or field["plain"]


def _filter_of(operator: re.Match[str]) -> Filter:
    if operator.re is _PHRASE:
        return WordsFilter(value=operator["words"], operator=FilterOperator.TEXT_MATCH)
    value = _value_of(operator)
    return tag_filter(value) if operator["name"] == "tag" else path_filter(value)


def unknown_words_note(text: str, terms: TermScores) -> str:
    """Return a note that names the first words of a query that no node contains, or ""."""
    quoted = [f'"{word}"' for word in unknown_words(text, terms)[:_MAX_NAMED]]
    return f"the index does not know {', '.join(quoted)}" if quoted else ""


def unknown_words(text: str, terms: TermScores) -> list[str]:
    """Return the distinct words of a query that no node contains in any form.

    Args:
        text: The query. Its stop words are never returned.
        terms: The terms of the query with their document frequencies.
    """
    known_groups = set(compress(terms.groups, terms.frequencies))
    language = language_of(text)
    unknown = []
    for word in words_of(text):
        groups = query_groups(word, language)
        if groups and known_groups.isdisjoint(groups) and not has_stop_words(word):
            unknown.append(word)
    return list(dict.fromkeys(unknown))


# Filters of users and agents


def note_filters(
    *,
    path: str | Sequence[str] = "",
    tag: str | Sequence[str] = "",
    since: str = "",
    until: str = "",
    where: Sequence[str] = (),
) -> MetadataFilters | None:
    """Return LlamaIndex metadata filters for conditions that a user or an agent writes.

    The result is None if there are no conditions. Upper and lower case are the same.

    Args:
        path: A part of the path. If there are several, one of them must match.
        tag: A tag, or a tag above it: ``health`` matches ``health/running``. If there are several,
            all must match.
        since: The first day, as ``2026-04-09`` or in words (``last week``). Undated notes do not
            match.
        until: The last day.
        where: Conditions on the front matter, which must all match: ``status=open``, ``rating>=4``,
            ``topics=ml`` (an item of a list), ``due<2026-05-01``, ``status!=done``,
            ``author~smith`` (contains), ``author=`` (is empty).

    Raises:
        SettingError: A date or a condition cannot be parsed, or ``since`` is after ``until``.
    """
    first = _day("since", since)
    last = _day("until", until)
    if first and last and first > last:
        raise SettingError(f"`since` must not be after `until` (got {since!r} and {until!r}).")
    filters: list[Filter] = [_condition(condition) for condition in where]
    paths: list[Filter] = [path_filter(part) for part in _listed(path)]
    if len(paths) > 1:
        paths = [MetadataFilters(filters=[*paths], condition=FilterCondition.OR)]
    filters += paths
    filters += [tag_filter(name) for name in _listed(tag)]
    filters += days_filter(first, last).filters
    return MetadataFilters(filters=filters) if filters else None


def _listed(values: str | Sequence[str]) -> list[str]:
    """Return the values that are not empty, without white space around them."""
    texts = [values] if isinstance(values, str) else values
    return [text.strip() for text in texts if text.strip()]


def _condition(text: str) -> Filter:
    """Return the filter of a condition on front matter."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise SettingError(
            "`where` must be KEY=VALUE, with =, !=, <, <=, >, >= or ~ (contains) as the operator "
            f"(got {text!r})."
        )
    key = match["key"].strip().lower()
    operator = match["operator"]
    written = match["value"].strip()
    if not written and operator in ("=", "!="):
        empty = MetadataFilter(key=key, value=None, operator=FilterOperator.IS_EMPTY)
        if operator == "=":
            return empty
        return MetadataFilters(filters=[empty], condition=FilterCondition.NOT)
    value = written if operator == "~" else typed(written)
    if isinstance(value, bool):
        value = int(value)  # LlamaIndex's filters do not accept booleans
    named_operator = _OPERATORS.get(operator) or FilterOperator(operator)
    return ItemFilter(key=key, value=value, operator=named_operator)


def days_filter(first: date | None, last: date | None) -> MetadataFilters:
    """Return the filters for notes from the first to the last day, both included.

    None means no limit.
    """
    filters: list[Filter] = []
    for day, operator in ((first, FilterOperator.GTE), (last, FilterOperator.LTE)):
        if day is not None:
            seconds = epoch_seconds(day)
            filters.append(MetadataFilter(key=DATE_TS, value=seconds, operator=operator))
    return MetadataFilters(filters=filters)


def _day(name: str, text: str) -> date | None:
    """Return the day that a text names: the first of a period for ``since``, else the last."""
    if not text.strip():
        return None
    period = iso_period(text.strip())
    if period is None:
        today = date.today()  # noqa: DTZ011  the user's own day
        ranges = find_dates(text, today, lexicon_of(text))
        if not ranges:
            raise SettingError(
                f"`{name}` must be a date such as 2026-04-09, or words such as last week or in May "
                f"(got {text!r})."
            )
        period = ranges[0].period
    return period.first if name == "since" else period.last
