"""Read a query: its operators (``"exact phrase"``, ``-not``, ``path:``, ``tag:``), and its words that are unknown.

``path:notes/`` and ``tag:work`` count in every query. Quotation marks and hyphens occur in ordinary questions too, so
``"…"`` and ``-…`` count only in a query of keywords: one that has no stop word outside of quotation marks. "What is
"Little Women" about?" is a question and stays as it is; ``"Little Women" plot -film`` is a query of keywords.

What operators ask becomes metadata filters, so every arm that takes filters obeys them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.keyword.analyzer import WORD
from llama_index_contextual.keyword.filters import WORDS
from llama_index_contextual.keyword.languages import normalise
from llama_index_contextual.metadata import PATH, TAGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from llama_index_contextual.keyword.analyzer import Analyzer
    from llama_index_contextual.keyword.snapshot import Group

# Each stands between white space. The lengths keep the search for a closing mark linear.
_FIELD: Final = re.compile(r'(?<!\S)(path|tag):(?:"([^"\n]{1,200})"|([^\s"]{1,200}))(?!\S)')
_QUOTED: Final = re.compile(r'(?<!\S)(-?)"([^"\n]{1,200})"(?!\S)')
_EXCLUDED: Final = re.compile(r"(?<!\S)-(\w\S{1,200})(?!\S)")
_FILE_PATH: Final = "file_path"  # LlamaIndex's key for a path
_LONGEST: Final = 2000  # characters; a longer text is a message and no query with operators
_NAMED: Final = 3  # unknown words that a message names


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """Hold a query without its operators.

    Args:
        text: What is searched for: the query without ``path:``, ``tag:``, exclusions and quotation marks.
        operators: The operators as they were written.
        filters: What they ask of a node; None without operators.
    """

    text: str
    operators: tuple[str, ...] = ()
    filters: MetadataFilters | None = None


def parse_query(text: str, analyzer: Analyzer) -> ParsedQuery:
    """Return a query's text apart from its operators; a query that holds nothing else has none.

    Args:
        text: The query.
        analyzer: Knows stop words, which tell a question from a query of keywords.
    """
    if len(text) > _LONGEST or not any(mark in text for mark in ('"', "-", "path:", "tag:")):
        return ParsedQuery(text)
    operators: list[str] = []
    asked: dict[str, list[MetadataFilter]] = {"path": [], "tag": [], "phrase": [], "not": []}

    def take(kind: Callable[[re.Match[str]], tuple[str, str, str]]) -> Callable[[re.Match[str]], str]:
        def replace(match: re.Match[str]) -> str:
            name, value, kept = kind(match)
            operators.append(match.group())
            asked[name].append(_filter(name, value))
            return kept

        return replace

    rest = _FIELD.sub(take(lambda m: (m[1], m[2] or m[3], "")), text)
    if not analyzer.has_stop_words(_QUOTED.sub(" ", rest)):
        rest = _QUOTED.sub(take(lambda m: ("not", m[2], "") if m[1] else ("phrase", m[2], m[2])), rest)
        rest = _EXCLUDED.sub(take(lambda m: ("not", m[1], "")), rest)
    rest = " ".join(rest.split())
    if not operators or not rest:
        return ParsedQuery(text)
    parts: list[MetadataFilter | MetadataFilters] = [*asked["tag"], *asked["phrase"]]
    if asked["path"]:
        either = [one.model_copy(update={"key": key}) for one in asked["path"] for key in (PATH, _FILE_PATH)]
        parts.append(MetadataFilters(filters=list(either), condition=FilterCondition.OR))
    if asked["not"]:
        parts.append(MetadataFilters(filters=list(asked["not"]), condition=FilterCondition.NOT))
    return ParsedQuery(rest, tuple(operators), MetadataFilters(filters=parts))


def _filter(name: str, value: str) -> MetadataFilter:
    if name in {"path", "tag"}:
        key, part = (PATH, value) if name == "path" else (TAGS, value.removeprefix("#"))
        return MetadataFilter(key=key, value=part, operator=FilterOperator.TEXT_MATCH_INSENSITIVE)
    exact = name == "phrase" or len(value.split()) > 1
    return MetadataFilter(
        key=WORDS, value=value, operator=FilterOperator.TEXT_MATCH if exact else FilterOperator.CONTAINS
    )


def unknown_words(
    text: str, analyzer: Analyzer, strange: Iterable[Group], like: Callable[[str], str | None] | None = None
) -> str:
    """Return a line on the words of a text that an index does not know, or "" where it knows all.

    The line names the first three. A stop word is never one of them.

    Args:
        text: The text.
        analyzer: The index's.
        strange: Those terms of the text that nothing in the index holds.
        like: Gives a word of the index that may have been meant; None where that must not be said.
    """
    unheard = {frozenset(group) for group in strange}
    words = [word for word in WORD.findall(normalise(text)) if unheard and not analyzer.has_stop_words(word)]
    terms = {word: analyzer.query_groups(word) for word in words}
    lost = [word for word, groups in terms.items() if groups and unheard.issuperset(map(frozenset, groups))]
    if not lost:
        return ""
    named = [
        f'"{word}"' + (f' (did you mean "{meant}"?)' if like and (meant := like(word)) else "")
        for word in lost[:_NAMED]
    ]
    *before, last = [*named, "other words"] if len(lost) > _NAMED else named
    return f"the index does not know {' and '.join(filter(None, [', '.join(before), last]))}"
