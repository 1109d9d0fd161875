"""Words of languages: phrases that need no memory, stop words, how dates are named.

Each language is one YAML file of ``data/languages/``. A user's own file with the same keys works as well. The names
of months and weekdays stand in ``text/dates.py``; a file of yours may hold ``months`` and ``weekdays``.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import regex  # type: ignore[import-untyped]
import yaml

from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.text import dates, fold, listed_stop_words, normalise, tell_language

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEFAULT_LANGUAGES: Final = ("en", "es", "zh", "ja")
# Those that count besides where a text is in one of them: "hier" is yesterday in French, and here in German.
FURTHER_LANGUAGES: Final = ("de", "fr", "it", "nl", "pt", "ru")
_BUNDLED: Final = (*DEFAULT_LANGUAGES, *FURTHER_LANGUAGES)
T = TypeVar("T")
_PHRASES: Final = {
    "greetings": "greeting",
    "thanks": "thanks",
    "acknowledgements": "acknowledgement",
    "fillers": "filler",
}
_MAPPINGS: Final = ("months", "weekdays", "numbers", "units")
_MOST_BYTES: Final = 1_000_000  # of a language's file
_DEEPEST: Final = 8
_YAML: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C ten times as fast
_SHOWN: Final = 100  # characters of a wrong entry
_SECONDS: Final = 1.0  # that a date pattern of a user's own file may take for a text
_SLOT: Final = re.compile(r"\{(month|weekday|unit|number|day|year)\}")
_DIGITS: Final = {"day": r"[0-3]?\d", "year": r"(?:19|20|21)\d\d(?![-/.]\d)"}
_CJK: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
HAS_CJK: Final = re.compile(f"[{_CJK}]")
_WORD: Final = re.compile(f"[{_CJK}]|(?:(?![{_CJK}])[^\\W_])+(?:['-](?:(?![{_CJK}])[^\\W_])+)*")


@dataclass(frozen=True, slots=True)
class DatePattern:
    """One way to name a date."""

    means: str
    """A key of ``dates_in_text.MEANINGS``."""
    value: int
    regex: re.Pattern[str]
    bounded: bool = False
    """Whether it has a second for a text: it is of a user's file, which may take any time."""

    def matches(self, text: str) -> list[re.Match[str]]:
        """Return where a text names a date in this way; a pattern of a user's own file has a second for that."""
        if not self.bounded:
            return list(self.regex.finditer(text))
        try:
            return list(regex.compile(self.regex.pattern, regex.IGNORECASE).finditer(text, timeout=_SECONDS))
        except TimeoutError:
            warnings.warn(
                f"languages: the date pattern {self.regex.pattern!r} takes too long, and its dates are not seen. Cure: "
                "no repetition inside of a repetition, and {1,3} instead of * and +.",
                ContextualWarning,
                stacklevel=2,
            )
            return []


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Several languages taken together: a message need not say in which one it is."""

    phrases: Mapping[tuple[str, ...], str]
    """Words of a phrase to its kind: greeting, thanks, acknowledgement, filler."""
    stop_words: frozenset[str]
    numbers: Mapping[str, int]
    """Lower-case month, weekday and number words to their number."""
    units: Mapping[str, str]
    date_patterns: tuple[DatePattern, ...]

    def is_stop_word(self, word: str) -> bool:
        """Whether a word says nothing of the subject; ``como`` counts as ``cómo``, ``té`` (tea) not as ``te``."""
        return word.casefold() in self.stop_words


def split_words(text: str) -> list[str]:
    """Split into words; a character of a script that writes no spaces (Chinese, Japanese) is one by itself."""
    return _WORD.findall(text.replace("’", "'"))


def unaccented(text: str) -> str:
    """Return the text in lower case without accents, as people type in a chat: ``Cómo estás`` gives ``como estas``."""
    return fold(normalise(text))


def lexicon_of(text: str, languages: tuple[str, ...] = DEFAULT_LANGUAGES) -> Lexicon:
    """Return the words that count in a text: of some languages, and of its own where they are the default ones."""
    further = tell_language(text) if languages == DEFAULT_LANGUAGES else ""
    return lexicon(languages, further if further in FURTHER_LANGUAGES else "")


@lru_cache(maxsize=16)
def lexicon(languages: tuple[str, ...] = DEFAULT_LANGUAGES, further: str = "") -> Lexicon:
    """Load languages by name or by the path of a YAML file.

    Args:
        languages: Names of :data:`DEFAULT_LANGUAGES` and :data:`FURTHER_LANGUAGES`, or paths.
        further: One more name, "" for none. (Phrases are whole messages: with the default, those of all names count.)

    Raises:
        SettingError: A language is unknown or its file is malformed.
    """
    phrases = [*languages, *(FURTHER_LANGUAGES if languages == DEFAULT_LANGUAGES else ())]
    languages = (*languages, further) if further else languages
    loaded = [_load(language) for language in languages]
    numbers: dict[str, int] = {}
    units: dict[str, str] = {}
    for data in loaded:
        for key in ("months", "weekdays", "numbers"):
            numbers.update(_with_unaccented({str(word): int(n) for word, n in (data.get(key) or {}).items()}))
        units.update(_with_unaccented({str(word): unit for word, unit in (data.get("units") or {}).items()}))
    stop_words = {word.casefold() for data in loaded for word in _entries(data, "stop_words")}
    stop_words = stop_words.union(*map(listed_stop_words, set(FURTHER_LANGUAGES) & {*languages}))
    return Lexicon(
        phrases=_phrases(map(_load, phrases)),
        stop_words=frozenset(stop_words | {unaccented(word) for word in stop_words}),
        numbers=numbers,
        units=units,
        date_patterns=tuple(chain.from_iterable(map(_date_patterns, languages, loaded))),
    )


def _with_unaccented(words: Mapping[str, T]) -> dict[str, T]:
    return {form: value for word, value in words.items() for form in (word.casefold(), unaccented(word))}


@cache
def _load(language: str) -> Mapping[str, Any]:
    bundled = files("llama_index_contextual").joinpath("data", "languages", f"{language}.yaml")
    try:
        with bundled.open("rb") if language in _BUNDLED else Path(language).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        data = _plain_yaml(content)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise SettingError(
            f"languages: {language!r} cannot be read ({error}). "
            f"Cure: one of {', '.join(_BUNDLED)}, or the path of a YAML file like those"
        ) from error
    if not isinstance(data, dict) or not all(isinstance(data.get(key) or {}, dict) for key in _MAPPINGS):
        raise SettingError(
            f"languages: {language!r} has not the form of a language. Cure: the keys of data/languages/en.yaml"
        )
    return {"months": dates.month_words(language), "weekdays": dates.weekday_words(language), **data}


def _plain_yaml(content: bytes) -> Any:
    """Read YAML without aliases, by which nine lines can say a billion words; and not deep, as the parser calls itself.

    Raises:
        ValueError: It has an alias, is too deep or too long.
    """
    if len(content) > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES:,} bytes")
    text, depth = content.decode("utf-8"), 0
    for event in yaml.parse(text, Loader=_YAML):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > _DEEPEST:
            raise ValueError(f"an alias, or more than {_DEEPEST} levels")
    loader = _YAML(text)  # yaml.load() could be given another one
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _entries(data: Mapping[str, Any], key: str) -> list[str]:
    return [entry.strip() for entry in str(data.get(key) or "").split(",") if entry.strip()]


def _phrases(loaded: Iterable[Mapping[str, Any]]) -> dict[tuple[str, ...], str]:
    found: dict[tuple[str, ...], str] = {}
    for data in loaded:
        for key, kind in _PHRASES.items():
            for phrase in _entries(data, key):
                found.setdefault(tuple(split_words(unaccented(phrase))), kind)
    return found


def _date_patterns(language: str, data: Mapping[str, Any]) -> Iterable[DatePattern]:
    """Fill the slots of a language's patterns; a slot may stand in several alternatives, so its groups are numbered.

    Raises:
        SettingError: One is no expression, or does not say what it means.
    """
    slots = dict(_DIGITS)
    for slot, key in {"month": "months", "weekday": "weekdays", "unit": "units", "number": "numbers"}.items():
        names = {str(name) for name in data.get(key) or ()}
        alternatives = sorted(names | {unaccented(name) for name in names}, key=lambda name: (-len(name), name))
        slots[slot] = "|".join([*map(re.escape, alternatives), *([r"\d{1,3}"] if slot == "number" else [])])
    for entry in data.get("dates") or ():
        counter = iter(range(99))
        try:
            body = _SLOT.sub(lambda slot: f"(?P<{slot[1]}_{next(counter)}>{slots[slot[1]]})", entry["pattern"])  # noqa: B023
            edges = ("", "") if HAS_CJK.search(body) else (r"(?<!\w)", r"(?!\w)")
            expression = re.compile(f"{edges[0]}(?:{body}){edges[1]}", re.IGNORECASE)
            means, value = entry["means"], int(entry.get("value", 0))
        except (re.error, RecursionError, OverflowError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise SettingError(
                f"languages: {language!r} has a date that cannot be read, {str(entry)[:_SHOWN]} ({error}). Cure: "
                "pattern, means and value, as in data/languages/en.yaml"
            ) from error
        yield DatePattern(means, value, expression, bounded=language not in _BUNDLED)
