"""What the analyzer knows of languages: folding of letters, stop words, stemmers.

Stop words and stemmers come from packages that LlamaIndex brings along.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from functools import cache
from importlib import resources
from typing import Final

import Stemmer

from llama_index_contextual.errors import SettingError

# ISO 639-1 code -> the name that Snowball and NLTK's stop word files share. (Not Tamil or Nepali, whose vowel signs are
# no letters to Python's re: their words would fall apart.)
NAMES: Final = {
    "ar": "arabic",
    "ca": "catalan",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "eu": "basque",
    "fi": "finnish",
    "fr": "french",
    "hu": "hungarian",
    "id": "indonesian",
    "it": "italian",
    "nl": "dutch",
    "no": "norwegian",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sv": "swedish",
    "tr": "turkish",
}

# Snowball's Spanish rules look for accents that people leave out ("organizacion", "tecnologia", "comian"), so words are
# folded first and the accents of regular endings put back: with or without accents, singular or plural, one stem.
_SPANISH_ENDINGS: Final = (
    (re.compile(r"([cs])ion$"), r"\1ión"),
    (re.compile(r"ia(s|n|mos)?$"), r"ía\1"),
)


# Spanish stop words that stand in English notes, as words or abbreviations. They are no sign of Spanish. (To ask for
# two stop words instead would take every fourth short Spanish line for English.)
_ENGLISH_TOO: Final = {
    "es": frozenset({"e", "era", "eras", "mi", "os", "sea", "sin", "son", "ti", "todo", "todos", "tu", "ya"})
}

_FOREIGN: Final = re.compile("[^\x00-\u02ff]{64,}")
_MOST_MARKS: Final = 30  # Unicode's own limit (UAX #15); the time to sort marks grows with their square
# Only the accents of Latin, Greek and Cyrillic: the marks of Indic scripts and of Japanese change the word.
_ACCENTS: Final = re.compile("[\u0300-\u036f]+")


def normalise(text: str) -> str:
    """Return the text in Unicode form NFKC: accents belong to their letter, full-width letters become plain ones."""
    return text if text.isascii() else unicodedata.normalize("NFKC", _FOREIGN.sub(_with_fewer_marks, text))


def _with_fewer_marks(match: re.Match[str]) -> str:
    """Return text in which no letter carries more than 30 marks; no language has such letters."""
    kept, marks = [], 0
    for char in match.group():
        marks = marks + 1 if unicodedata.combining(char) else 0
        if marks <= _MOST_MARKS:
            kept.append(char)
    return "".join(kept)


def fold(word: str) -> str:
    """Return a word in lower case without accents: ``Canción`` gives ``cancion``, ``Straße`` gives ``strasse``."""
    word = word.replace("\u2019", "'").casefold()
    if word.isascii():
        return word
    bare = _ACCENTS.sub("", unicodedata.normalize("NFKD", word))
    return unicodedata.normalize("NFKC", bare)


def resolve_language(name: str) -> str:
    """Return the ISO 639-1 code for a code or an English name (``"es"``, ``"spanish"``).

    Raises:
        SettingError: No stemmer exists for it.
    """
    lowered = name.lower()
    if lowered in NAMES:
        return lowered
    for code, full in NAMES.items():
        if full == lowered:
            return code
    known = ", ".join(sorted(NAMES))
    raise SettingError(f"language={name!r} is not known. Cure: 'auto' or one of {known}.")


@cache
def stop_words(code: str) -> frozenset[str]:
    """Return the folded stop words of a language, from llama-index-core's lists of NLTK; none where no list exists."""
    listing = resources.files("llama_index.core") / "_static" / "nltk_cache" / "corpora" / "stopwords" / NAMES[code]
    if not listing.is_file():
        return frozenset()
    return frozenset(fold(word) for word in listing.read_text(encoding="utf-8").split())


@cache
def evidence(code: str) -> frozenset[str]:
    """Return the stop words that show that a text is in a language."""
    return stop_words(code) - _ENGLISH_TOO.get(code, frozenset())


class Stemmers:
    """Keep one Snowball stemmer for each thread and language, because PyStemmer's objects are not thread-safe."""

    def __init__(self) -> None:
        self._local = threading.local()

    def stem(self, word: str, code: str) -> str:
        """Return the stem of a lower-case word."""
        stemmers: dict[str, Stemmer.Stemmer] = self._local.__dict__
        stemmer = stemmers.get(code)
        if stemmer is None:
            # The analyzer remembers words itself, for all threads, so Snowball's own cache would only cost memory.
            stemmer = stemmers[code] = Stemmer.Stemmer(NAMES[code], maxCacheSize=0)
        if code == "es":
            for ending, accented in _SPANISH_ENDINGS:
                word = ending.sub(accented, word)
        return str(stemmer.stemWord(word))

    def __reduce__(self) -> tuple[type[Stemmers], tuple[()]]:
        return (Stemmers, ())
