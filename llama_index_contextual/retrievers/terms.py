"""Texts as terms, in the same way for documents and for queries.

A text is cut into words, and a word into its parts: those of identifiers, paths and numbers, and
pairs of characters in scripts that put no spaces between words.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from datetime import date
from functools import lru_cache
from itertools import chain
from typing import Final

import Stemmer

from llama_index_contextual.retrievers import words
from llama_index_contextual.utils import dates
from llama_index_contextual.utils.language import LANGUAGE_NAMES, fold, stop_words, tell_language

Group = tuple[str, ...]  # a term and its alternatives, which count as the same term

TERMS_VERSION: Final = 14  # raise it whenever a text has other terms
_MOST_CHARACTERS: Final = 256  # of a word; what is longer is data and not language
_ENGLISH: Final = "en"
_ANY: Final = ""  # no language: words have no stem of their own, and none is a stop word

_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_SHORT: Final = re.compile(r"([a-z]([a-z])\2)(?:ed|ing)s?")  # "added", of which Snowball makes "ad"

_stemmers = threading.local()  # by language; those of PyStemmer are for one thread each


def terms_of(text: str, language: str | None = None) -> list[str]:
    """Return the terms of a document or a part of it in order, each as often as it occurs.

    A word is its English stem, whatever the language, so that names and loanwords are found in
    every language. In a text of another language its stem in that language follows. Stop words are
    left out of English texts only: elsewhere their frequency tells what they are worth.

    Args:
        text: The document or a part of it.
        language: The language of the document; by default that of the text.

    Example:
        >>> terms_of("getUserName returns the user's names")
        ['getusernam', 'get', 'user', 'name', 'return', 'user', 'name']
    """
    return list(chain.from_iterable(_groups_in(text, language or language_of(text))))


@lru_cache(maxsize=64)  # several parts of a retriever read the same query
def query_groups(text: str, language: str | None = None) -> tuple[Group, ...]:
    """Return the terms of a query, with stop words where it has nothing else.

    Args:
        text: The query.
        language: The language of a longer text that the query is a part of; by default its own.
    """
    return tuple(_groups_in(text, language or language_of(text)) or _groups_in(text, _ANY))


def finder_of(terms: Iterable[str]) -> Callable[[str], set[str]]:
    """Return a function that returns which of some terms occur in a short text.

    The text is read in the languages of the terms, whose stop words do not count.

    Example:
        >>> sorted(finder_of({"fr:slot", "slot", "de"})("Noms de slots"))
        ['fr:slot', 'slot']
    """
    searched = frozenset(terms)
    languages = {term[:2] for term in searched if term[2:3] == ":"}
    ignored = frozenset[str]().union(*map(stop_words, languages))

    def find(text: str) -> set[str]:
        terms = set[str]()
        for word in words.words_of(text):
            if fold(word) not in ignored:
                for language in (_ENGLISH, *languages):
                    terms.update(*groups_of(language, word))
        return terms & searched

    return find


def has_stop_words(text: str) -> bool:
    """Return whether a text has a stop word of English or of its own language."""
    folded_words = {fold(word) for word in words.words_of(text)}
    return not folded_words.isdisjoint(stop_words(_ENGLISH) | stop_words(language_of(text)))


def language_of(text: str) -> str:
    """Return the language of a text, among those with a stemmer; English where it is unknown."""
    language = tell_language(text)
    return language if language in LANGUAGE_NAMES else _ENGLISH


def is_day(group: Group) -> bool:
    """Return whether a term is a whole day, whose year, month and number are terms as well."""
    return _DAY.fullmatch(group[0]) is not None


def _groups_in(text: str, language: str) -> list[Group]:
    groups: list[Group] = []
    for word in words.words_of(text):
        groups += groups_of(language, word)
    return groups


@lru_cache(maxsize=5000)  # an index remembers the words of its texts while it reads them
def groups_of(language: str, written: str) -> tuple[Group, ...]:
    """Return the terms of a word: of a compound those of the whole, then those of its parts."""
    written = written[:_MOST_CHARACTERS]
    if words.is_plain(written):
        return tuple((stem,) for stem in _stems_of(written, language))
    if _is_ignored(fold(written), language):
        return ()
    days, word = dates.take_dates(written)
    terms, word = words.take_pairs(word)
    for part in words.names_and_parts(word):
        if part[0].isdecimal():
            terms += words.numbers_of(part)
        else:
            terms += _stems_of(part, language)
    groups_of_days = chain.from_iterable(map(_day_groups, days))
    return (*groups_of_days, *((term,) for term in terms))


def _is_ignored(folded: str, language: str) -> bool:
    """Return whether a word is a stop word of an English text."""
    return language == _ENGLISH and folded in stop_words(_ENGLISH)


@lru_cache(maxsize=10_000)  # compounds share their parts
def _stems_of(word: str, language: str) -> tuple[str, ...]:
    """Return the English stem of a word, and its stem in another language; none of a stop word."""
    plain = fold(word)
    if not plain or _is_ignored(plain, language):
        return ()
    if any(map(str.isdecimal, plain)):
        return (plain,)
    short = _SHORT.fullmatch(plain)
    stem = short[1] if short else _stem(plain, _ENGLISH)
    if language in (_ENGLISH, _ANY):
        return (stem,)
    return (stem, f"{language}:{fold(_stem(word.casefold(), language))}")


def _stem(word: str, language: str) -> str:
    stemmers: dict[str, Stemmer.Stemmer] = _stemmers.__dict__
    if language not in stemmers:
        # _stems_of remembers words, for all threads.
        stemmers[language] = Stemmer.Stemmer(LANGUAGE_NAMES[language], maxCacheSize=0)
    return str(stemmers[language].stemWord(word))


def _day_groups(day: date) -> list[Group]:
    """Return the terms of a day: the day, its year, the names of its month, and its number."""
    names: list[str] = []
    for language in dates.DATE_LANGUAGES:
        names += _stems_of(dates.month_name(day.month, language), _ENGLISH)
    return [(day.isoformat(),), (str(day.year),), tuple(dict.fromkeys(names)), (str(day.day),)]
