"""Text as terms, in the same way for documents and for queries.

Text is cut into words, and each word into its parts: identifiers, paths, numbers, CJK characters.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from datetime import date
from functools import lru_cache
from typing import Final

import Stemmer

from llama_index_contextual.utils.dates import DATE_LANGUAGES, month_name, take_dates
from llama_index_contextual.utils.language import (
    LANGUAGE_NAMES,
    fold,
    normalise,
    stop_words,
    tell_language,
)

Group = tuple[str, ...]  # one term of a query: its alternatives count as the same term

TERMS_VERSION: Final = 12  # raise it whenever a text has other terms: persisted indexes are rebuilt
_FOLDED: Final = ("en", "es")  # people leave Spanish accents out, so they go before the stemmer
_AS_WRITTEN: Final = ""  # stands for no language: words as they are written
_LONG: Final = 80  # characters of a paragraph that has a language of its own; a shorter one has that of the whole text

# A word with what joins identifiers, paths, contractions and initials: max_results, kebab-case, a.b.c, src/main.rs,
# std::fs, don't, R&D. C++ and C# are words of their own, and so is each emoji.
_EMOJI: Final = "[\U0001f1e6-\U0001f1ff]{2}|[\u2600-\u27bf\u2b00-\u2bff\U0001f300-\U0001f3fa\U0001f400-\U0001faff]"
WORD: Final = re.compile(
    rf"\b[A-Za-z](?:\+\+|#(?![\w#]))|{_EMOJI}"
    r"|\w+(?:(?:[-./'\u2019@]|::|->|(?<=\d),(?=\d{3})|(?<=[A-Za-z])&(?=[A-Za-z](?![A-Za-z_])))\w+)*"
)
# Of Arabic and Hebrew; and what has no width: soft hyphens, zero-width spaces and joiners of words.
_UNWRITTEN: Final = re.compile(
    "[\u00ad\u200b\u2060\ufeff\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed]+"
)
_LONGEST: Final = 256  # characters of one word that are read: beyond that it is data, not language

# Not between digits: v1.2.3 is not v123.
_SEPARATORS: Final = re.compile(r"(?<!\d)[-./'\u2019@:>,_&]+|[-./'\u2019@:>,_]+(?!\d)")
_UPPER: Final = "A-ZÀ-ÖØ-Þ"
_LOWER: Final = "a-zß-öø-ÿ"
# HTTPServer2 -> HTTP Server 2; getUserName -> get User Name; the last branch takes scripts without such case.
_CAMEL: Final = re.compile(
    rf"[{_UPPER}]+(?=[{_UPPER}][{_LOWER}])|[{_UPPER}]?[{_LOWER}]+|[{_UPPER}]+|\d+|[^\W\d_{_UPPER}{_LOWER}]+",
)
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_THOUSANDS: Final = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_NUMBER: Final = re.compile(r"v?([\d.,]+)|(\d+)(?:st|nd|rd|th)", re.IGNORECASE)
_CJK: Final = re.compile(
    "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f]+"
)

# Snowball's Spanish rules look for accents that people leave out ("organizacion", "tecnologia", "comian"), so words are
# folded first and the accents of regular endings put back: with or without accents, singular or plural, one stem.
_SPANISH_ENDINGS: Final = (
    (re.compile(r"([cs])ion$"), r"\1ión"),
    (re.compile(r"ia(s|n|mos)?$"), r"ía\1"),
)

_SHORT: Final = re.compile(
    r"([a-z]([a-z])\2)(?:ed|ing)s?"
)  # of "added" Snowball 2 makes "ad", and of "add" "add"

_stemmers: Final = (
    threading.local()
)  # by language, for each thread: PyStemmer's objects are not thread-safe


def words_of(text: str) -> list[str]:
    """Words of a text; of Arabic and Hebrew without vowel signs, which few people write, and without soft hyphens."""
    return [word[:_LONGEST] for word in WORD.findall(_UNWRITTEN.sub("", normalise(text)))]


def _stem(word: str, code: str) -> str:
    """Snowball stem of a lower-case word."""
    stemmers: dict[str, Stemmer.Stemmer] = _stemmers.__dict__
    if code not in stemmers:
        # _analyse remembers words, for all threads, so Snowball's own cache would only cost memory.
        stemmers[code] = Stemmer.Stemmer(LANGUAGE_NAMES[code], maxCacheSize=0)
    if code == "es":
        for ending, accented in _SPANISH_ENDINGS:
            word = ending.sub(accented, word)
    short = _SHORT.fullmatch(word) if code == "en" else None
    return short[1] if short else str(stemmers[code].stemWord(word))


def terms_of(text: str) -> list[str]:
    """Terms of a document in order, each as often as it occurs.

    Each paragraph is in a language of its own, in English where that is not known. A word of English and Spanish is its
    stem, and stop words are left out. In other languages it is two terms, the word and its stem, and stop words stay:
    there the exact word finds more (``benchmarks/results/languages.md``), and its rarity says what a stop word is
    worth.

    Example:
        >>> terms_of("getUserName returns the user's names")
        ['getusernam', 'get', 'user', 'name', 'return', 'user', 'name']
    """
    whole, terms = language_of(text), list[str]()
    for paragraph in text.split("\n\n"):
        code = language_of(paragraph) if len(paragraph) >= _LONG else whole
        for word in words_of(paragraph):
            terms += _analyse(code, word)
    return terms


def finder_of(terms: Iterable[str]) -> Callable[[str], set[str]]:
    """A function that finds which of some terms stand in a short text, whose language is that of the terms.

    Stop words of that language do not count.

    Example:
        >>> sorted(finder_of({"fr:slot", "slots", "de"})("Noms de slots"))
        ['fr:slot', 'slots']
    """
    wanted = frozenset(terms)
    others = {term[:2] for term in wanted if term[2:3] == ":"} - {"es"}
    codes, stopped = (
        (*_FOLDED, _AS_WRITTEN, *others),
        frozenset[str]().union(*map(stop_words, others)),
    )

    def find(text: str) -> set[str]:
        words = [word for word in words_of(text) if fold(word) not in stopped] if wanted else []
        return {term for word in words for code in codes for term in _analyse(code, word)} & wanted

    return find


@lru_cache(maxsize=64)  # each question is asked of several parts
def query_groups(text: str, language: str | None = None) -> tuple[Group, ...]:
    """Terms of a query, each with its alternatives in other languages.

    A short query rarely shows its language ("zanahorias"), and one index may hold documents in several languages. So
    each word counts as it is written and under its English and its Spanish stem, and in another language its stem is a
    term of its own. BM25 takes alternatives as one term. Stop words of English or Spanish are left out, unless the
    query holds only such words.

    Args:
        text: The query.
        language: Of a longer text that it is of; default its own.
    """
    words, main, groups = words_of(text), language or language_of(text), list[Group]()
    for written in words:
        days, word = take_dates(written)
        groups += [group for day in days for group in _date_groups(day)]
        if word and (of_word := _analyse(main, word)):
            groups += _alternatives(main if main in _FOLDED else _AS_WRITTEN, word)
            groups += [
                (term,) for term in of_word if main not in _FOLDED and term.startswith(f"{main}:")
            ]
    return tuple(groups or [group for word in words for group in _alternatives("en", word)])


def _alternatives(first: str, word: str) -> list[Group]:
    """Distinct terms of each position of a word: ``a.bc`` may give [("abc",), ("bc", "es:bc")]."""
    terms = _analyse(first, word) or _analyse(first, word, keeps_stop_words=True)
    codes = (code for code in (*_FOLDED, _AS_WRITTEN) if code != first)
    others = (_analyse(code, word, keeps_stop_words=True) for code in codes)
    same = [terms, *(found for found in others if len(found) == len(terms))]
    return [tuple(dict.fromkeys(position)) for position in zip(*same, strict=True)]


def has_stop_words(text: str) -> bool:
    """Whether a text holds a stop word of English, of Spanish, or of the language that it is in."""
    words = {fold(word) for word in words_of(text)}
    return any(not words.isdisjoint(stop_words(code)) for code in {*_FOLDED, language_of(text)})


def language_of(text: str) -> str:
    """Language of a query or a paragraph, one with a stemmer."""
    code = tell_language(text)
    return code if code in LANGUAGE_NAMES else "en"


@lru_cache(maxsize=50_000)  # 24 MB at most
def _analyse(code: str, word: str, keeps_stop_words: bool = False) -> Group:
    """Terms of one word: the stem of a plain word, the names and then the parts of any other."""
    stopped = stop_words(code) if code in _FOLDED and not keeps_stop_words else frozenset[str]()
    if fold(word) in stopped:
        return ()
    if word.endswith(("'s", "\u2019s")):
        word = word[:-2]
    word = word.strip("_")
    if (
        word.isalpha()
        and (word.islower() or word.istitle() or word.isupper())
        and not _CJK.search(word)
    ):
        return _finish([word], code, stopped)
    terms: list[str] = []
    dates, word = take_dates(word)
    terms += [term for day in dates for group in _date_groups(day) for term in group]
    if pairs := _bigrams(word):
        terms += pairs
        word = _CJK.sub("-", word).strip("-")
    if number := _as_number(word):
        terms.append(number)
    elif word:
        names, parts = _split_identifier(word)
        distinct = names if len(parts) != 1 or names[0] != parts[0] else []
        terms += _finish([*distinct, *parts], code, stopped)
    return tuple(terms)


def _date_groups(day: date) -> list[Group]:
    """Terms of a day: the day, its year, the names of its month, which are one term of a query, and its number."""
    months = (
        term
        for language in DATE_LANGUAGES
        for term in _terms(month_name(day.month, language), language)
    )
    return [(day.isoformat(),), (str(day.year),), tuple(dict.fromkeys(months)), (str(day.day),)]


def is_day(group: Group) -> bool:
    """Whether a term is a whole day, which stands for one beside its year, its month and its number."""
    return _DAY.fullmatch(group[0]) is not None


def _finish(words: Iterable[str], code: str, stopped: frozenset[str]) -> Group:
    """Terms of words without the stop words."""
    return tuple(
        term for word in words if word and fold(word) not in stopped for term in _terms(word, code)
    )


def _terms(word: str, code: str) -> Group:
    """Terms of a word: its stem; of a language whose words count as they are written, both."""
    if not word.isalpha() or code == _AS_WRITTEN:
        return (fold(word),)
    if code not in _FOLDED:
        return fold(word), f"{code}:{fold(_stem(word.casefold(), code))}"
    stem = _stem(fold(word), code)
    return (stem if code == "en" else f"{code}:{stem}",)  # the Spanish stem of "hello" is "hell"


def _bigrams(word: str) -> list[str]:
    """Overlapping pairs of a word's CJK characters; a lone character stands for itself."""
    runs = _CJK.findall(word)
    return [run[at : at + 2] for run in runs for at in range(max(1, len(run) - 1))]


def _as_number(word: str) -> str | None:
    """A number as one term, else None: ``1,000`` gives ``1000``, ``9th`` ``9``, ``v1.2.3`` ``1.2.3``."""
    match = _NUMBER.fullmatch(word)
    number = match[1] or match[2] if match else None
    return number.replace(",", "") if number and _THOUSANDS.fullmatch(number) else number


def _split_identifier(word: str) -> tuple[list[str], list[str]]:
    """Names and parts of a compound.

    ``a.getUserName`` gives ``(["agetUserName", "getUserName"], ["get", "User", "Name"])``.

    Names are the whole and each segment that has parts itself, with separators removed, so that ``get_user_name``,
    ``get-user-name`` and ``getUserName`` share one. Parts of a single letter are noise and left out.
    """
    # An underscore binds closer than a dot: in self.max_results, max_results is a name too.
    if word[-1] in "+#":
        return [word], [word[0]]
    segments = [piece for piece in re.split(r"[-./'\u2019@:>,&]+", word) if piece.strip("_")]
    names, parts = [_SEPARATORS.sub("", word)], list[str]()
    for segment in segments:
        pieces = _CAMEL.findall(segment)
        if len(pieces) > 1 and len(segments) > 1:
            names.append(_SEPARATORS.sub("", segment))
        parts += [piece for piece in pieces if len(piece) > 1 or piece.isdigit()]
    return names, parts
