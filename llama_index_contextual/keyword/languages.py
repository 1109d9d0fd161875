"""Stemmers, from a package that LlamaIndex brings along."""

from __future__ import annotations

import re
import threading
from typing import Final

import Stemmer

from llama_index_contextual.errors import SettingError
from llama_index_contextual.language import NAMES

# Snowball's Spanish rules look for accents that people leave out ("organizacion", "tecnologia", "comian"), so words are
# folded first and the accents of regular endings put back: with or without accents, singular or plural, one stem.
_SPANISH_ENDINGS: Final = (
    (re.compile(r"([cs])ion$"), r"\1ión"),
    (re.compile(r"ia(s|n|mos)?$"), r"ía\1"),
)


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
