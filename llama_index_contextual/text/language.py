"""Which language a text is in, and what else depends on that: stop words, and letters that count as the same.

py3langid tells 27 languages apart by their letters, without a network. English has to be ruled out: notes are full of
names and code, and a short text may look like anything. Where the detector is not sure, stop words decide.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# ISO 639-1 code -> the name that Snowball and NLTK's stop word files share. (Not Tamil or Nepali, whose vowel signs are
# no letters to Python's re: their words would fall apart.)
LANGUAGE_NAMES: Final = {
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
# Those that are told apart, too: they have no stemmer, or no list of stop words.
_OTHER_NAMES: Final = {
    "hi": "Hindi",
    "ja": "Japanese",
    "ko": "Korean",
    "pl": "Polish",
    "th": "Thai",
    "uk": "Ukrainian",
    "zh": "Chinese",
}

# Spanish stop words that stand in English notes, as words or abbreviations. They are no sign of Spanish. (To ask for
# two stop words instead would take every fourth short Spanish line for English.)
_ENGLISH_TOO: Final = {
    "es": frozenset({"e", "era", "eras", "mi", "os", "sea", "sin", "son", "ti", "todo", "todos", "tu", "ya"})
}
# Words of English alone. A text with several of them, or one that is short or has many stop words of English, needs no
# detector, which takes half a second and 80 MB to load.
_ENGLISH: Final = (
    "and because between cannot could did does doesn't don't during from how its should than that the their they this "
    "those what when where which while who why with without would you your"
)
_PLAINLY_ENGLISH: Final = frozenset(_ENGLISH.split())
_SHORT: Final = 12  # words
_A_STOP_WORD_IN: Final = 4  # words of English; of Dutch or German every tenth is one that English has, too
_LEAST_WORDS: Final = 3  # of plain letters; fewer are a name, or a word of code
_SURE: Final = 0.9  # so sure has the detector to be where stop words say nothing
_LIKELY: Final = 0.3  # and so sure where they agree with it
_SAMPLE: Final = 200  # words that are looked at
_TOLD: Final = 200  # texts whose languages stand for those of all
_NAMED: Final = 0.01  # a share below it is not named
_LONGEST: Final = 2000  # characters
_WORD: Final = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")

_FOREIGN: Final = re.compile("[^\x00-\u02ff]{64,}")
_MOST_MARKS: Final = 30  # Unicode's own limit (UAX #15); the time to sort marks grows with their square
# Only the accents of Latin, Greek and Cyrillic: the marks of Indic scripts and of Japanese change the word.
_ACCENTS: Final = re.compile("[\u0300-\u036f]+")


def resolve_language(name: str) -> str:
    """Return the ISO 639-1 code for a code or an English name (``"es"``, ``"spanish"``).

    Raises:
        SettingError: No stemmer exists for it.
    """
    for code, full in LANGUAGE_NAMES.items():
        if name.lower() in (code, full):
            return code
    known = ", ".join(sorted(LANGUAGE_NAMES))
    raise SettingError(f"language={name!r} is not known. Cure: 'auto' or one of {known}.")


def tell_language(text: str) -> str:
    """Return the ISO 639-1 code of a text's language; ``"en"`` where no other one stands out.

    Args:
        text: A question, or a paragraph; of a longer one its beginning counts.
    """
    return _told(text[:_LONGEST])


def sample_of(items: Any) -> Any:
    """Return at most 200 of the items of a list or an array, evenly spread."""
    return items[:: max(1, -(-len(items) // _TOLD))]


def shares_of_languages(texts: Iterable[str]) -> dict[str, float]:
    """Return the share of each language in some texts, by their letters, the largest first."""
    letters: Counter[str] = Counter()
    for text in texts:
        letters[tell_language(text)] += sum(map(len, _WORD.findall(text)))
    total = sum(letters.values())
    return {code: number / total for code, number in letters.most_common() if number}


def languages_in_words(shares: Mapping[str, float]) -> str:
    """Return languages with their shares: ``German 62%, English 38%``; those below one per cent are left out."""
    named = {**LANGUAGE_NAMES, **_OTHER_NAMES}
    return ", ".join(f"{named[code].capitalize()} {share:.0%}" for code, share in shares.items() if share >= _NAMED)


@lru_cache(maxsize=4096)
def _told(text: str) -> str:
    plain = text.isascii()
    found = _WORD.findall(text.lower() if plain else normalise(text))[:_SAMPLE]
    words = set(found) if plain else set(map(fold, found))
    english = len(words & _PLAINLY_ENGLISH)
    evidence_of_english = len(words & stop_words("en"))
    few = len(found) <= max(_SHORT, evidence_of_english * _A_STOP_WORD_IN)
    if plain and (english > 1 or (english and few)):
        return "en"
    if not plain or len(found) >= _LEAST_WORDS:
        code, share = _detector().classify(text)
        agrees = code in LANGUAGE_NAMES and len(words & evidence(code)) > evidence_of_english
        if code != "en" and (share > _SURE or (agrees and share > _LIKELY)):
            return str(code)
    return "es" if len(words & evidence("es")) > evidence_of_english else "en"


@cache
def _detector() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    detector: Any = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)  # type: ignore[no-untyped-call]
    detector.set_languages([*LANGUAGE_NAMES, *_OTHER_NAMES])
    return detector


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


@cache
def listed_stop_words(code: str) -> frozenset[str]:
    """Return the stop words of a language, from llama-index-core's lists of NLTK; none where no list exists."""
    if code not in LANGUAGE_NAMES:
        return frozenset()
    listing = (
        resources.files("llama_index.core") / "_static" / "nltk_cache" / "corpora" / "stopwords" / LANGUAGE_NAMES[code]
    )
    return frozenset(listing.read_text(encoding="utf-8").split()) if listing.is_file() else frozenset()


@cache
def stop_words(code: str) -> frozenset[str]:
    """Return the stop words of a language as :func:`fold` gives them."""
    return frozenset(map(fold, listed_stop_words(code)))


@cache
def evidence(code: str) -> frozenset[str]:
    """Return the stop words that show that a text is in a language."""
    return stop_words(code) - _ENGLISH_TOO.get(code, frozenset())
