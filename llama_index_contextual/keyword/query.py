"""Read a query: its operators (``"exact phrase"``, ``-not``, ``path:`` and others), and its words that are unknown.

``path:notes/``, ``tag:work`` and ``collection:docs`` count in every query. Quotation marks and hyphens occur in
ordinary questions too, so
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
from llama_index_contextual.keyword.filters import WORDS, tag_filter
from llama_index_contextual.metadata import COLLECTION, PATH
from llama_index_contextual.text import fold, normalise
from llama_index_contextual.text.tokens import is_spelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from llama_index_contextual.keyword.analyzer import Analyzer
    from llama_index_contextual.keyword.evidence import Group

# Each stands between white space. The lengths keep the search for a closing mark linear.
_FIELD: Final = re.compile(r'(?<!\S)(path|tag|collection):(?:"([^"\n]{1,200})"|([^\s"]{1,200}))(?!\S)')
_QUOTED: Final = re.compile(r'(?<!\S)(-?)"([^"\n]{1,200})"(?!\S)')
_EXCLUDED: Final = re.compile(r"(?<!\S)-(\w\S{1,200})(?!\S)")
_FILE_PATH: Final = "file_path"  # LlamaIndex's key for a path
_LONGEST: Final = 2000  # characters; a longer text is a message and no query with operators
_NAMED: Final = 3  # unknown words that a message names
_CORRECTED: Final = 5  # letters that a word has at least to be taken for a misspelled one


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query without its operators.

    Args:
        text: What is searched for: the query without ``path:`` and the like, exclusions and quotation marks.
        operators: The operators as they were written.
        filters: What they ask of a node; None without operators.
    """

    text: str
    operators: tuple[str, ...] = ()
    filters: MetadataFilters | None = None


def parse_query(text: str, analyzer: Analyzer) -> ParsedQuery:
    """Return a query's text apart from its operators; where it has no other words, the text is what these name.

    Args:
        text: The query.
        analyzer: Knows stop words, which tell a question from a query of keywords.
    """
    if len(text) > _LONGEST or not any(mark in text for mark in ('"', "-", "path:", "tag:", "collection:")):
        return ParsedQuery(text)
    fields, rest = list(_FIELD.finditer(text)), _FIELD.sub("", text)
    quoted: list[re.Match[str]] = []
    excluded: list[re.Match[str]] = []
    if not analyzer.has_stop_words(_QUOTED.sub(" ", rest)):
        quoted = list(_QUOTED.finditer(rest))
        rest = _QUOTED.sub(lambda match: "" if match[1] else match[2], rest)
        excluded, rest = list(_EXCLUDED.finditer(rest)), _EXCLUDED.sub("", rest)
    rest = " ".join(rest.split())
    operators = tuple(match.group() for match in (*fields, *quoted, *excluded))
    pairs = [(match[1], match[2] or match[3]) for match in fields]
    rest = rest or " ".join(value for _, value in pairs)
    if not operators or not rest:
        return ParsedQuery(text)
    parts: list[MetadataFilter | MetadataFilters] = [
        *(tag_filter(value) for name, value in pairs if name == "tag"),
        *(MetadataFilter(key=COLLECTION, value=value) for name, value in pairs if name == "collection"),
        *(_words(match[2], exact=True) for match in quoted if not match[1]),
    ]
    if paths := [_part_of(key, value) for name, value in pairs if name == "path" for key in (PATH, _FILE_PATH)]:
        parts.append(MetadataFilters(filters=[*paths], condition=FilterCondition.OR))
    if unwanted := [match[2] for match in quoted if match[1]] + [match[1] for match in excluded]:
        words = [_words(value, exact=len(value.split()) > 1) for value in unwanted]
        parts.append(MetadataFilters(filters=[*words], condition=FilterCondition.NOT))
    return ParsedQuery(rest, operators, MetadataFilters(filters=parts))


def _part_of(key: str, value: str) -> MetadataFilter:
    return MetadataFilter(key=key, value=value, operator=FilterOperator.TEXT_MATCH_INSENSITIVE)


def _words(value: str, *, exact: bool) -> MetadataFilter:
    operator = FilterOperator.TEXT_MATCH if exact else FilterOperator.CONTAINS
    return MetadataFilter(key=WORDS, value=value, operator=operator)


@dataclass(frozen=True, slots=True)
class UnknownWords:
    """The words of a text that an index does not know.

    Args:
        meant: Each word with the known word that is spelled most like it; None where none is, or that must not be said.
    """

    meant: Mapping[str, str | None]

    def __str__(self) -> str:
        """Return a line that names the first three; "" where all are known."""
        if not self.meant:
            return ""
        parts = [f'"{word}"' + (f' (did you mean "{like}"?)' if like else "") for word, like in self.meant.items()]
        *before, last = parts if len(parts) <= _NAMED else [*parts[:_NAMED], "other words"]
        return f"the index does not know {' and '.join(filter(None, [', '.join(before), last]))}"

    def corrected(self, text: str) -> tuple[str, str]:
        """Return a text with the words that were meant instead of misspelled ones, and a line that says so.

        A word counts as misspelled where one letter is missing, too many, another one, or exchanged with the next. The
        line is "" where there is none.
        """
        sure = {word: like for word, like in self.meant.items() if like and _one_letter_apart(fold(word), like)}
        notes = []
        for word, like in sure.items():
            changed = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", like, text)
            notes += [f'"{like}" instead of "{word}"'] if changed != text else []
            text = changed
        return text, f"searched for {' and '.join(notes)}, which the index does not know" if notes else ""


def unknown_words(
    text: str, analyzer: Analyzer, strange: Iterable[Group], like: Callable[[str, str], str | None] | None = None
) -> UnknownWords:
    """Return the words of a text that an index does not know. A stop word is never one of them.

    Args:
        text: The text.
        analyzer: The index's.
        strange: Those terms of the text that nothing in the index holds.
        like: Gives, for a word and the language of the text, a word of the index that may have been meant. It is asked
            about the first three that are in no dictionary. None where that must not be said.
    """
    unheard = {frozenset(group) for group in strange}
    words = [word for word in WORD.findall(normalise(text)) if unheard and not analyzer.has_stop_words(word)]
    language = analyzer.language_of(text)
    terms = {word: analyzer.query_groups(word, language) for word in words}
    missing = [word for word, groups in terms.items() if groups and unheard.issuperset(map(frozenset, groups))]
    guessable = {word for word in missing[:_NAMED] if like and not is_spelled(word)}
    meant = {word: like(word, language) if like and word in guessable else None for word in missing}
    if language != "en":  # whose forms stand in no dictionary of ours: "droht" is no misspelled "drohe"
        meant = {word: None if guess and _is_form_of(fold(word), guess) else guess for word, guess in meant.items()}
    return UnknownWords(meant)


def may_be_misspelled(text: str) -> bool:
    """Return whether a text has a longer word that is in no dictionary; only then an index need be asked."""
    return any(len(word) >= _CORRECTED and word.isalpha() and not is_spelled(word) for word in WORD.findall(text))


def _is_form_of(left: str, right: str) -> bool:
    """Return whether two words differ in their last letter alone, as endings do."""
    shorter = min(len(left), len(right))
    return abs(len(left) - len(right)) <= 1 and left[: shorter - 1] == right[: shorter - 1]


def _one_letter_apart(left: str, right: str) -> bool:
    """Return whether two words of five letters or more differ by one letter, or by two neighbours in another order."""
    if min(len(left), len(right)) < _CORRECTED or abs(len(left) - len(right)) > 1 or left == right:
        return False
    at = next((at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), len(right))
    rests = left[at:], right[at:]
    if len(left) != len(right):
        longer, shorter = sorted(rests, key=len, reverse=True)
        return longer[1:] == shorter
    return rests[0][1:] == rests[1][1:] or (rests[0][1::-1] == rests[1][:2] and rests[0][2:] == rests[1][2:])
