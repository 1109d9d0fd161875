"""Split documents and queries into terms.

A text is split into words, and a word into its parts: the parts of identifiers, paths and numbers,
and pairs of characters in scripts without spaces between words.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from datetime import date
from functools import lru_cache
from itertools import chain

import Stemmer

from llama_index_contextual.retrievers import words
from llama_index_contextual.utils import dates
from llama_index_contextual.utils.language import LANGUAGE_NAMES, detect_language, fold, stop_words

Group = tuple[str, ...]  # a term and its alternatives, which match like the term

TERMS_VERSION = 14  # increase it when the terms of a text change
_MAX_CHARACTERS = 256  # length of a word; a longer one is data and is cut
_ENGLISH = "en"
_ANY = ""  # no language: only English stems, and no stop words

_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_SHORT = re.compile(r"([a-z]([a-z])\2)(?:ed|ing)s?")  # "added": Snowball's stem is "ad"

_stemmers = threading.local()  # by language; a stemmer must not be shared between threads


def terms_of(text: str, language: str | None = None) -> list[str]:
    """Return the terms of a document or a part of it in order, including repeated terms.

    Each word has its English stem, whatever the language, so that names and loanwords are found in
    every language. In a text in another language, the stem in that language follows. Stop words are
    only left out of English texts. In other languages, their frequency gives them a low weight.

    Args:
        text: The document or a part of it.
        language: The language of the document. Default: the language of the text.

    Example:
        >>> terms_of("getUserName returns the user's names")
        ['getusernam', 'get', 'user', 'name', 'return', 'user', 'name']
    """
    return list(chain.from_iterable(_groups_in(text, language or language_of(text))))


@lru_cache(maxsize=64)  # several parts of a retriever need the terms of the same query
def query_groups(text: str, language: str | None = None) -> tuple[Group, ...]:
    """Return the terms of a query. Stop words are only included if it has no other words.

    Args:
        text: The query.
        language: The language of a longer text that contains the query. Default: the language of
            the query.
    """
    return tuple(_groups_in(text, language or language_of(text)) or _groups_in(text, _ANY))


def finder_of(terms: Iterable[str]) -> Callable[[str], set[str]]:
    """Return a function that finds terms in a short text.

    The text is read in the languages of the terms. Stop words of these languages are ignored.

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
    """Return whether a text contains a stop word of English or of its own language."""
    folded_words = {fold(word) for word in words.words_of(text)}
    return not folded_words.isdisjoint(stop_words(_ENGLISH) | stop_words(language_of(text)))


def language_of(text: str) -> str:
    """Return the language of a text if there is a stemmer for it, else English."""
    language = detect_language(text)
    return language if language in LANGUAGE_NAMES else _ENGLISH


def is_day(group: Group) -> bool:
    """Return whether a term is a date. Its year, month and day are terms of their own."""
    return _DAY.fullmatch(group[0]) is not None


def _groups_in(text: str, language: str) -> list[Group]:
    groups: list[Group] = []
    for word in words.words_of(text):
        groups += groups_of(language, word)
    return groups


@lru_cache(maxsize=5000)  # for queries; indexing has a cache of its own
def groups_of(language: str, written: str) -> tuple[Group, ...]:
    """Return the terms of a word. A compound has its own terms and those of its parts."""
    written = written[:_MAX_CHARACTERS]
    if words.is_plain(written):
        return tuple((stem,) for stem in _stems_of(written, language))
    if _is_ignored(fold(written), language):
        return ()
    days, word = dates.extract_dates(written)
    terms, word = words.take_pairs(word)
    for part in words.names_and_parts(word):
        if part[0].isdecimal():
            terms += words.numbers_of(part)
        else:
            terms += _stems_of(part, language)
    groups_of_days = chain.from_iterable(map(_day_groups, days))
    return (*groups_of_days, *((term,) for term in terms))


def _is_ignored(folded: str, language: str) -> bool:
    """Return whether a word is a stop word in an English text."""
    return language == _ENGLISH and folded in stop_words(_ENGLISH)


@lru_cache(maxsize=10_000)  # compounds share their parts
def _stems_of(word: str, language: str) -> tuple[str, ...]:
    """Return the stems of a word, in English and in the language. A stop word has none."""
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
        # The stemmer needs no cache, because _stems_of has one for all threads.
        stemmers[language] = Stemmer.Stemmer(LANGUAGE_NAMES[language], maxCacheSize=0)
    return str(stemmers[language].stemWord(word))


def _day_groups(day: date) -> list[Group]:
    """Return the terms of a date: the date, the year, the month in all languages, and the day."""
    names: list[str] = []
    for language in dates.DATE_LANGUAGES:
        names += _stems_of(dates.month_name(day.month, language), _ENGLISH)
    return [(day.isoformat(),), (str(day.year),), tuple(dict.fromkeys(names)), (str(day.day),)]
