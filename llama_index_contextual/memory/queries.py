"""Derive complementary queries from one message: the original, its keywords, the names in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from llama_index_contextual.memory.message import HAS_CJK, clean_message, words
from llama_index_contextual.memory.when import NamedDate, find_dates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import date

    from llama_index_contextual.memory.lexicon import Lexicon

MAX_KEYWORDS: Final = 5
_RARE_NAME: Final = 0.8
_MAX_NAMES: Final = 5
_TITLE_CASE_WORDS: Final = 4  # "What Did Melanie Paint": from this many capitals on, with few others, they say nothing
_SHOUTED_WORDS: Final = 3
_TOKEN: Final = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_NOT_PROSE: Final = re.compile(r"https?://\S+|\S+@\S+\.\S+|`[^`\n]*`")
_POSSESSIVE: Final = re.compile(r"['’]s?$|(?<=s)['’]$")
_CONTRACTED: Final = re.compile(r"['’].*")  # I'm, Let's
_BEFORE_A_SENTENCE: Final = " \t\"'“”‘’«»([{¿¡*_>#-•"
_ENDS_A_SENTENCE: Final = ".!?…:;\n"


@dataclass(frozen=True, slots=True)
class Query:
    """One query that was derived from a message."""

    kind: str
    """``original``, ``keywords`` or ``names``."""
    text: str
    asides: str = ""
    """Of the original, the words of asking, which a hit need not hold."""


@dataclass(frozen=True, slots=True)
class DerivedQueries:
    """What a message asks for."""

    queries: tuple[Query, ...]
    """The original first."""
    dates: tuple[NamedDate, ...]


def derive_queries(
    message: str, lexicon: Lexicon, today: date, *, rarity: Callable[[str], float | None] | None = None
) -> DerivedQueries:
    """Derive up to three queries and the named dates. Keywords and names count only where they add something.

    Args:
        message: What the user wrote; code and digests in it are left out.
        lexicon: Stop words and date patterns.
        today: What ``yesterday`` is relative to.
        rarity: Share of the index's chunks that lack a word. Rare words are taken for keywords, and a name that is in
            more than a fifth of the chunks makes no query: every note of a diary names its writer (recall@4 of LoCoMo
            notes fell by two points in a prototype). Without it the first keywords and all names are taken.
    """
    text = clean_message(message)
    dates = find_dates(text, today, lexicon)
    names = find_names(text, lexicon, dates)
    keywords = find_keywords(text, lexicon, dates=dates, names=names, rarity=rarity)
    if rarity is not None:
        names = [name for name in names if (rare := rarity(name)) is None or rare >= _RARE_NAME]
    queries = [Query("original", text, _asides(text, lexicon, dates))]
    for kind, found in (("keywords", keywords), ("names", names)):
        derived = " ".join(found)
        if derived and all(_same_words(derived, query.text) is False for query in queries):
            queries.append(Query(kind, derived))
    return DerivedQueries(tuple(queries), dates)


def find_keywords(
    text: str,
    lexicon: Lexicon,
    *,
    dates: Sequence[NamedDate] = (),
    names: Sequence[str] = (),
    rarity: Callable[[str], float | None] | None = None,
    limit: int = MAX_KEYWORDS,
) -> list[str]:
    """Find the words a text is about: no stop words, names or dates; the rarest, in the order of the text, lower case.

    Scripts without spaces have none: there the index's own analyzer cuts the original.
    """
    taken = {name.casefold() for name in names}
    found: dict[str, None] = {}
    for word in words(_blank(text, dates)):
        bare = _POSSESSIVE.sub("", word).casefold()
        if len(bare) > 1 and not HAS_CJK.match(bare) and bare not in taken and not lexicon.is_stop_word(bare):
            found.setdefault(bare)
    candidates = [word for word in found if not lexicon.is_stop_word(word.replace("'", ""))]
    if rarity is not None and len(candidates) > limit:
        # a word that no note has finds nothing; the sort is stable, so earlier words win ties
        known = {word: -1.0 if rare is None or rare >= 1 else rare for word in candidates for rare in [rarity(word)]}
        rarest = set(sorted(candidates, key=known.__getitem__, reverse=True)[:limit])
        candidates = [word for word in candidates if word in rarest]
    return candidates[:limit]


def find_names(text: str, lexicon: Lexicon, dates: Sequence[NamedDate] = ()) -> list[str]:
    """Find proper names by their capitals: ``JC``, ``iPhone``, ``Caroline``; not ``Hi``, ``Did``, ``Friday``.

    The first word of a sentence is one unless it is ordinary. Where everything is in capitals, they mean nothing.
    """
    prose = _NOT_PROSE.sub(lambda match: " " * len(match[0]), _blank(text, dates))
    tokens = [match for match in _TOKEN.finditer(prose) if any(char.isalpha() for char in match[0])]
    shouted = len(tokens) >= _SHOUTED_WORDS and all(token[0].isupper() for token in tokens)
    capitals = sum(token[0][0].isupper() for token in tokens)
    titled = capitals >= _TITLE_CASE_WORDS and capitals > 0.7 * len(tokens)
    found: dict[str, None] = {}
    for token in tokens:
        name = _POSSESSIVE.sub("", token[0])
        if shouted or not _is_name(name, lexicon, plain_capitals=not titled, opens=_opens_a_sentence(prose, token)):
            continue
        found.setdefault(name)
    return list(found)[:_MAX_NAMES]


def _asides(text: str, lexicon: Lexicon, dates: Sequence[NamedDate]) -> str:
    """``What did we decide about retries?`` is about retries. Dates stay: the notes of that day hold them."""
    return " ".join(word for word in words(_blank(text, dates)) if lexicon.is_stop_word(_POSSESSIVE.sub("", word)))


def _is_name(word: str, lexicon: Lexicon, *, plain_capitals: bool, opens: bool) -> bool:
    folded = word.casefold()
    if lexicon.is_stop_word(folded) or lexicon.is_stop_word(_CONTRACTED.sub("", word)) or folded in lexicon.weekdays:
        return False
    if any(char.isupper() for char in word[1:]):  # JC, iPhone, McDonald; OK and FYI are listed as ordinary
        return folded not in lexicon.openers
    if not word[0].isupper() or len(word) == 1 or not plain_capitals:
        return False
    return not (opens and lexicon.is_ordinary(word))


def _opens_a_sentence(text: str, token: re.Match[str]) -> bool:
    before = text[: token.start()]
    stripped = before.rstrip(_BEFORE_A_SENTENCE)
    return (
        not stripped
        or stripped[-1] in _ENDS_A_SENTENCE
        or "¿" in before[len(stripped) :]
        or "¡" in before[len(stripped) :]
    )


def _blank(text: str, dates: Sequence[NamedDate]) -> str:
    for named in dates:
        text = text[: named.start] + " " * len(named.text) + text[named.end :]
    return text


def _same_words(left: str, right: str) -> bool:
    return [word.casefold() for word in words(left)] == [word.casefold() for word in words(right)]
