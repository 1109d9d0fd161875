"""Cut text into words, and one word into its parts: identifiers, paths, numbers, CJK characters."""

from __future__ import annotations

import re
from typing import Final

# A word with what joins identifiers, paths and contractions: max_results, kebab-case, a.b.c, src/main.rs, std::fs,
# don't.
WORD: Final = re.compile(r"\w+(?:(?:[-./'\u2019@]|::|->|(?<=\d),(?=\d{3}))\w+)*")
LONGEST: Final = 256  # characters of one word that are looked at: beyond that it is data, not language

# Not between digits: v1.2.3 is not v123.
_SEPARATORS: Final = re.compile(r"(?<!\d)[-./'\u2019@:>,_]+|[-./'\u2019@:>,_]+(?!\d)")
_UPPER: Final = "A-ZÀ-ÖØ-Þ"
_LOWER: Final = "a-zß-öø-ÿ"
# HTTPServer2 -> HTTP Server 2; getUserName -> get User Name; the last branch takes scripts without such case.
_CAMEL: Final = re.compile(
    rf"[{_UPPER}]+(?=[{_UPPER}][{_LOWER}])|[{_UPPER}]?[{_LOWER}]+|[{_UPPER}]+|\d+|[^\W\d_{_UPPER}{_LOWER}]+",
)
_THOUSANDS: Final = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_NUMBER: Final = re.compile(r"v?([\d.,]+)|(\d+)(?:st|nd|rd|th)", re.IGNORECASE)
_CJK: Final = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f]+")


def is_plain(word: str) -> bool:
    """Return whether a word has no parts: it holds letters only, and is neither camelCase nor CJK."""
    return word.isalpha() and (word.islower() or word.istitle() or word.isupper()) and not _CJK.search(word)


def without_possessive(word: str) -> str:
    """Return a word without its possessive: ``Caroline's`` gives ``Caroline``."""
    return word[:-2] if word[-2:] in {"'s", "\u2019s"} else word


def bigrams(word: str) -> list[str]:
    """Return the overlapping pairs of a word's CJK characters; a lone character stands for itself."""
    found = []
    for run in _CJK.findall(word):
        found += [run] if len(run) == 1 else [run[i : i + 2] for i in range(len(run) - 1)]
    return found


def without_cjk(word: str) -> str:
    """Return the word with "-" in place of its CJK characters."""
    return _CJK.sub("-", word).strip("-")


def as_number(word: str) -> str | None:
    """Return a number as one term, else None: ``1,000`` gives ``1000``, ``9th`` ``9``, ``v1.2.3`` ``1.2.3``."""
    match = _NUMBER.fullmatch(word)
    if not match:
        return None
    number = match.group(1) or match.group(2)
    return number.replace(",", "") if _THOUSANDS.fullmatch(number) else number


def split_identifier(word: str) -> tuple[list[str], list[str]]:
    """Return the names and the parts of a compound.

    ``a.getUserName`` gives ``(["agetUserName", "getUserName"], ["get", "User", "Name"])``.

    Names are the whole and each segment that has parts itself, with separators removed, so that ``get_user_name``,
    ``get-user-name`` and ``getUserName`` share one. Parts of a single letter are noise and left out.
    """
    # An underscore binds closer than a dot: in self.max_results, max_results is a name too.
    segments = [piece for piece in re.split(r"[-./'\u2019@:>,]+", word) if piece.strip("_")]
    names, parts = [_SEPARATORS.sub("", word)], []
    for segment in segments:
        pieces = _CAMEL.findall(segment)
        if len(pieces) > 1 and len(segments) > 1:
            names.append(_SEPARATORS.sub("", segment))
        parts += [piece for piece in pieces if len(piece) > 1 or piece.isdigit()]
    return names, parts
