"""``ranking="derived"``: up to three queries of a message, and their hits by formulas instead of a trained model.

It is the ranking of ``memory_context`` as its authors describe it. The queries are the message, its keywords, and the
names in it. A chunk has the best of its scores over these queries. Age halves the score of a note with a date in
its path at each half-life, and a chunk that two or more queries found gains 15 %.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from llama_index_contextual.keyword import HAS_CJK, split_words
from llama_index_contextual.retrieval.recency import decay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.keyword import Lexicon

MAX_QUERY_CHARS: Final = 500
MAX_KEYWORDS: Final = 5
OVERLAP_BOOST: Final = 1.15

_POSSESSIVE: Final = re.compile(r"['’]s?$")
_SENTENCE_ENDS: Final = ".!?\u2026:\u3002\uff01\uff1f"
_OPENINGS: Final = " \t\r\n\"'\u201c\u201d\u2018\u2019([\u00bf\u00a1*_>-"  # before a word that begins a sentence


def derive_queries(message: str, lexicon: Lexicon) -> tuple[str, ...]:
    """Queries of a message: its first 500 characters, its keywords, and its names.

    The keywords are the five best words: those that are repeated, then the longest, in the message's order; names and
    stop words are none. A query that repeats an earlier one is left out.

    Args:
        message: A message, without pasted code and digests.
        lexicon: Stop words of its languages.
    """
    original = message.strip()[:MAX_QUERY_CHARS].rstrip()
    names = _names(original, lexicon)
    known = {name.casefold() for name in names}
    counts = Counter(
        word
        for word in (_POSSESSIVE.sub("", word).casefold() for word in split_words(original))
        if not (lexicon.is_stop_word(word) or word in known or (len(word) == 1 and not HAS_CJK.match(word)))
    )
    best = set(sorted(counts, key=lambda word: (-counts[word], -len(word)))[:MAX_KEYWORDS])
    keywords = [word for word in counts if word in best]
    queries = dict[tuple[str, ...], str]()
    for text in (original, " ".join(keywords), " ".join(names)):
        if words := tuple(map(str.casefold, split_words(text))):
            queries.setdefault(words, text)
    return tuple(queries.values())


def _names(text: str, lexicon: Lexicon) -> list[str]:
    """Words that are written as names: capitals only, or a capital inside a sentence."""
    names = dict[str, None]()
    for match in re.finditer(r"[^\W\d_][\w'’-]*", text):
        word = _POSSESSIVE.sub("", match[0])
        is_acronym = len(word) > 1 and word.isupper()
        before = text[: match.start()].rstrip(_OPENINGS)
        between = text[len(before) : match.start()]
        begins_sentence = not before or "\n" in between or (before[-1] in _SENTENCE_ENDS and between[:1].isspace())
        if is_acronym or (word[:1].isupper() and not begins_sentence and not lexicon.is_stop_word(word)):
            names[word] = None
    return list(names)


def derived_score(scores: Sequence[float], age_days: float | None, half_life_days: float = 30.0) -> float:
    """The score of a chunk.

    Args:
        scores: Its score for each query that found it.
        age_days: The age of its note; None for a note without a date in its path, and where age does not count.
        half_life_days: The age at which a score is halved.
    """
    score = max(scores) * (1.0 if age_days is None else decay(max(age_days, 0.0), half_life_days))
    return score * (OVERLAP_BOOST if len(scores) > 1 else 1.0)
