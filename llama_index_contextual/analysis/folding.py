"""Unicode folding: case, width and accents disappear, letters of every script stay."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

# Latin, Greek and Cyrillic accents only: the marks of Indic scripts and Japanese voicing marks carry the word.
_ACCENTS: Final = re.compile("[\u0300-\u036f]+")


def normalise(text: str) -> str:
    """NFKC, so that a decomposed accent is no word boundary and full-width letters are letters."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def fold(word: str) -> str:
    """Lower case without accents: ``Canción`` gives ``cancion``, ``Straße`` gives ``strasse``."""
    word = word.replace("\u2019", "'").casefold()
    if word.isascii():
        return word
    bare = _ACCENTS.sub("", unicodedata.normalize("NFKD", word))
    return unicodedata.normalize("NFKC", bare)
