"""Split texts into words, and identifiers, paths, numbers and text without spaces into parts."""

from __future__ import annotations

import re
from itertools import pairwise

from llama_index_contextual.utils.language import normalise

# Vowel signs and accents belong to words, but Python's \w does not include them.
_LETTERS = (
    r"\w\u0300-\u036f\u0900-\u0963\u0966-\u0df3\u0e01-\u0e4e\u0e81-\u0ece\u0f39-\u0fbc"
    r"\u1000-\u1049\u1050-\u109f\u1780-\u17d3\u17dd"
)
_TAG = "</?[a-z]{1,8}>"
# The joints in identifiers, paths, contractions and initials, and markup inside words: max_results,
# a.b.c, src/main.rs, std::fs, don't, R&D, **Kuber**netes.
_JOINT = (
    rf"[-./'\u2019@]|::?|->|\*{{1,3}}|~~|==|{_TAG}"
    r"|(?<=\d),(?=\d{3}|\d\d,\d)|(?<=[A-Za-z])&(?=[A-Za-z](?![A-Za-z_]))"
)
_EMOJI = (
    "[\U0001f1e6-\U0001f1ff]{2}"
    "|[\u2600-\u27bf\u2b00-\u2bff\U0001f300-\U0001f3fa\U0001f400-\U0001faff]"
)


def _word_of(letters: str) -> str:
    """Return the pattern of a word: letters, perhaps with further parts, or C++ and C#.

    Most words have no further part. The lookahead at the next character makes them fast.
    """
    return (
        rf"\w[{letters}]*(?:(?=[-./'\u2019@:*~=<,&+#])"
        rf"(?:(?<=\b[A-Za-z])(?:\+\+|#(?![\w#]))|(?:(?:{_JOINT})[{letters}]+)+))?"
    )


_WORD = re.compile(rf"{_EMOJI}|{_word_of(_LETTERS)}")
_ASCII_WORD = re.compile(_word_of(r"\w"), re.ASCII)  # twice as fast
# Vowel signs of Arabic and Hebrew, which are rarely written, and characters without width.
_UNWRITTEN = re.compile(
    "[\u00ad\u200b-\u200d\u2060\ufeff\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a"
    "\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed]+"
)
# Chinese, Japanese, Korean; Thai and Lao; Burmese; Khmer. Their marks belong to the characters.
_UNSPACED = re.compile(
    "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
    "\u0e01-\u0e4e\u0e81-\u0ece\u1000-\u103f\u1050-\u108f\u109a-\u109f\u1780-\u17d3\u17dd]+"
)
_CHARACTER = re.compile(
    ".[\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u102b-\u103e\u1056-\u1059"
    "\u105e-\u1060\u1062-\u1064\u1067-\u106d\u1071-\u1074\u1082-\u108d\u17b4-\u17d3\u17dd]*"
)
_JOINTS = "-./'\u2019@:>,_&*~="
# Joints between digits stay in names: v1.2.3 is not v123, and 10.0.0.1/8 is not 10.0.0.18.
_NOT_IN_NAMES = re.compile(rf"{_TAG}|(?<!\d)[{_JOINTS}]+|[{_JOINTS}]+(?!\d)")
_BETWEEN_PARTS = re.compile(rf"{_TAG}|[-/'\u2019@:>&*~=]+|(?<!\d)[.,]+|[.,]+(?!\d)")
_AFFIX = re.compile(r"^v(?=\d)|(?<=\d)(?:st|nd|rd|th)$", re.IGNORECASE)
# HTTPServer2 -> HTTP Server 2; getUserName -> get User Name. The last branch is for other scripts.
_UPPER = "A-ZÀ-ÖØ-Þ"
_LOWER = "a-zß-öø-ÿ"
_PART = re.compile(
    rf"\d+(?:[.,]\d+)*|[{_UPPER}]+(?=[{_UPPER}][{_LOWER}])|[{_UPPER}]?[{_LOWER}]+|[{_UPPER}]+"
    rf"|(?:(?![\d_{_UPPER}{_LOWER}])[{_LETTERS}])+"
)
_PLAIN = re.compile(rf"(?:(?![\d_])[{_LETTERS}])+")
# 1,250.00, 1.250, and 1,25,000 in India.
_GROUPED = re.compile(
    r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?:\.\d{3})+|\d{1,2}(?:,\d\d)+,\d{3}(?:\.\d+)?"
)
# 1'250.00 in Switzerland, and 1_250 in programs. A space within a French number ends no word.
_OTHERWISE_GROUPED = re.compile(r"\d{1,3}(?:['\u2019_]\d{3})+(?:\.\d+)?")
_SPACE_IN_NUMBER = re.compile("[\u00a0\u2009\u202f](?<=[0-9].)(?=[0-9]{3}(?![0-9]))")
_PRICE = re.compile(r"(\d{2,})\.\d\d")


def words_of(text: str) -> list[str]:
    """Return the words of a text. Compounds are not split."""
    if text.isascii():
        return _ASCII_WORD.findall(text)
    text = _SPACE_IN_NUMBER.sub(",", text)
    return _WORD.findall(_UNWRITTEN.sub("", normalise(text)))


def is_plain(word: str) -> bool:
    """Return whether a word consists of ASCII letters and is not a compound."""
    return word.isascii() and word.isalpha() and _has_usual_case(word)


def _has_usual_case(word: str) -> bool:
    return word in (word.lower(), word.upper(), word.title())


def take_pairs(word: str) -> tuple[list[str], str]:
    """Return the pairs of characters in scripts without spaces, and the rest of the word.

    Pairs overlap. A run of one character is returned as it is. The rest has no ordinal or
    possessive ending: ``9th`` becomes ``9``.
    """
    pairs: list[str] = []
    if not word.isascii():
        for run in _UNSPACED.findall(word):
            characters = _CHARACTER.findall(run)
            pairs += map("".join, pairwise(characters)) if len(characters) > 1 else characters
        word = _UNSPACED.sub("-", word)
    remaining = word.removesuffix("'s").removesuffix("\u2019s")
    return pairs, _AFFIX.sub("", remaining).strip(_JOINTS)


def names_and_parts(word: str) -> list[str]:
    """Return the compound itself, its segments that are compounds, and its parts.

    ``a.getUserName`` becomes ``agetUserName``, ``getUserName``, ``get``, ``User`` and ``Name``.
    Joints are removed, so that ``get_user_name``, ``get-user-name`` and ``getUserName`` share a
    term. Parts of a single letter are noise and left out.
    """
    if not word:
        return []
    if _PLAIN.fullmatch(word) and _has_usual_case(word):
        return [word]
    if _OTHERWISE_GROUPED.fullmatch(word):
        return [re.sub("['\u2019_]", ",", word)]
    if word[-1] in "+#":
        return [word, word[0]]
    segments = [segment for segment in _BETWEEN_PARTS.split(word) if segment.strip("_")]
    names = [_NOT_IN_NAMES.sub("", word)]
    parts = list[str]()
    for segment in segments:
        pieces = _PART.findall(segment)
        if len(pieces) > 1 and len(segments) > 1:
            names.append(_NOT_IN_NAMES.sub("", segment))
        parts += [piece for piece in pieces if len(piece) > 1 or piece.isdecimal()]
    return parts if parts == names else [*names, *parts]


def numbers_of(number: str) -> list[str]:
    """Return the forms of a number in which it can be searched for.

    ``1,250.00`` becomes ``1250.00`` and ``1250``. ``3.450`` also becomes ``3450``, which it means
    in many languages.
    """
    is_grouped = _GROUPED.fullmatch(number) is not None
    if is_grouped and "," not in number:
        return [number, number.replace(".", "")]
    plain = number.replace(",", "") if is_grouped else number
    price = _PRICE.fullmatch(plain)
    return [plain, price[1]] if price else [plain]
