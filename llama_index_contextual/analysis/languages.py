"""Stop words and stemmers per language, both from packages that LlamaIndex brings along."""

from __future__ import annotations

import re
import threading
from functools import cache
from importlib import resources
from typing import Final

import Stemmer

from llama_index_contextual.analysis.folding import fold
from llama_index_contextual.errors import SettingError

# ISO 639-1 code -> the name that Snowball and NLTK's stop word files share. (Not Tamil or Nepali, whose vowel signs are
# no letters to Python's re: the words would fall apart.)
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


def resolve_language(name: str) -> str:
    """The ISO 639-1 code for a code or an English name (``"es"``, ``"spanish"``).

    Raises:
        SettingError: There is no stemmer for it.
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
    """Folded stop words of a language, from the NLTK lists bundled with llama-index-core; empty where it has none."""
    listing = resources.files("llama_index.core") / "_static" / "nltk_cache" / "corpora" / "stopwords" / NAMES[code]
    if not listing.is_file():
        return frozenset()
    return frozenset(fold(word) for word in listing.read_text(encoding="utf-8").split())


class Stemmers:
    """Snowball stemmers, one per thread and language: PyStemmer's objects are not thread-safe."""

    def __init__(self) -> None:
        self._local = threading.local()

    def stem(self, word: str, code: str) -> str:
        """The stem of a lower-case word."""
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
