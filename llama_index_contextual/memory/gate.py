"""Read a user's message: does it need memory at all, and what does it ask? And ``ranking="derived"``.

Everything here takes time in proportion to the message, because a client may send anything.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index_contextual.memory.digest import CURRENT, HEADER, NOTES, NOTHING, QUOTE
from llama_index_contextual.memory.ranking import best_first
from llama_index_contextual.postprocessors.recency import decay
from llama_index_contextual.retrievers.query_dates import (
    HAS_CJK,
    find_dates,
    split_words,
    unaccented,
)
from llama_index_contextual.utils.dates import NamedDate, date_from_path
from llama_index_contextual.utils.language import sentences_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llama_index_contextual.memory.digest import MemoryEntry
    from llama_index_contextual.retrievers.query_dates import Lexicon

MAX_MESSAGE: Final = 16_384  # characters; what follows is not read
MAX_QUERY_CHARS: Final = 1_000  # of them are searched for; twice as many take twice as long
_DERIVED_CHARS: Final = 500
_KEYWORDS: Final = 5
_OVERLAP_BOOST: Final = 1.15
_MIN_WORDS: Final = 3
_LONGEST_SMALL_TALK: Final = 16  # words
_CJK_CHARS_A_WORD: Final = 2  # Chinese words have about two characters
_QUESTION_SENTENCES: Final = 2
_COMMAND: Final = re.compile(r"/[^\s/]{0,99}(?<![:,;])(?=\s|$)")  # no path has but one slash
_QUESTION: Final = re.compile(r"[?？؟]|[吗呢か][。.!！\s]*$")
_BLANKS: Final = re.compile(r"[ \t]+")
_OF_A_DIGEST: Final = (QUOTE.strip(), "- [", CURRENT.strip(), *NOTES)
_POSSESSIVE: Final = re.compile(r"['’]s?$|(?<=s)['’]$")
_STATES: Final = re.compile(r"[.!。！…][\s\"'”’)*_]*$")


def clean_message(message: str) -> str:
    """A message without fenced code and earlier digests; cut to 1,000 characters at a space."""
    lines = (
        _BLANKS.sub(" ", line).strip()
        for line in _unquoted_lines(message.replace(NOTHING, " ").splitlines())
    )
    text = "\n".join(filter(None, lines))
    if len(text) <= MAX_QUERY_CHARS:
        return text
    cut = max(text.rfind(" ", 0, MAX_QUERY_CHARS + 1), text.rfind("\n", 0, MAX_QUERY_CHARS + 1))
    return text[: cut if cut > MAX_QUERY_CHARS // 2 else MAX_QUERY_CHARS].rstrip()


def _unquoted_lines(lines: Sequence[str]) -> Iterator[str]:
    """Lines outside of fenced code and of an earlier digest."""
    fence, in_digest = "", False
    for line in map(str.strip, lines):
        after = line.lstrip(line[:1])
        if fence:
            fence = "" if line.startswith(fence) and not line.strip("`~") else fence
            continue
        in_digest = line == HEADER or (in_digest and (not line or line.startswith(_OF_A_DIGEST)))
        if line[:3] in {"```", "~~~"} and "`" not in after:  # else it is code within a line
            fence = line[: len(line) - len(after)]
        elif not in_digest:
            yield line


def count_words(text: str) -> float:
    """Number of words, two characters of Chinese or Japanese as one."""
    return sum(1 / _CJK_CHARS_A_WORD if HAS_CJK.match(word) else 1 for word in split_words(text))


def is_question(text: str) -> bool:
    """Whether a question mark, or a closing particle of Chinese or Japanese, makes it a question."""
    return bool(_QUESTION.search(text))


def gate(message: str, lexicon: Lexicon) -> str:
    """Why memory is not worth asking; "" where it is.

    It is not for slash commands, greetings, thanks, acknowledgements, and fewer than three words without a question
    mark, unless they are a date. A path is no command (``/etc/hosts``), nor a word with a mark after it.

    Args:
        message: What the user wrote; its first 16,384 characters are read.
        lexicon: Phrases that need no memory.
    """
    stripped = message[:MAX_MESSAGE].strip()
    if not stripped:
        return "empty message"
    if _COMMAND.match(stripped):
        return "slash command"
    text = clean_message(stripped)
    if not split_words(text):
        return "no words outside code and digests"
    if kind := _small_talk(text, lexicon):
        return kind
    if count_words(text) >= _MIN_WORDS or is_question(text):
        return ""
    dates = find_dates(text, date.today(), lexicon)  # noqa: DTZ011  whichever day it is
    is_date = bool(dates) and all(
        map(lexicon.is_stop_word, split_words(_without_dates(text, dates)))
    )
    return "" if is_date else "fewer than three words and no question"


def _without_dates(text: str, dates: Sequence[NamedDate]) -> str:
    for named in dates:
        text = text[: named.start] + " " * (named.end - named.start) + text[named.end :]
    return text


def _small_talk(text: str, lexicon: Lexicon) -> str:
    """The first kind of phrase where nothing but small talk covers the whole message, else ""."""
    message = tuple(split_words(unaccented(text)))
    if len(message) > _LONGEST_SMALL_TALK:
        return ""
    # kinds[i]: how the first i words can be covered, as the first kind that is no filler ("" while all are fillers)
    kinds: list[str | None] = [""] + [None] * len(message)
    for end in range(1, len(message) + 1):
        for start in range(end):
            kind, before = lexicon.phrases.get(message[start:end]), kinds[start]
            if kind is not None and before is not None and not kinds[end]:
                kinds[end] = before or ("" if kind == "filler" else kind)
    return kinds[len(message)] or ""


class ParsedMessage(NamedTuple):
    """What a message asks of the notes.

    Args:
        text: The message without fenced code and without an earlier digest, at most 1,000 characters.
        form: ``"question"``, or ``"message"`` for what goes on with something.
        dates: The dates that it names.
        subject: The message without its words of asking, which an answer need not hold.
        has_subject: Whether it names more than a date: "what did we do yesterday?" does not.
    """

    text: str
    form: str
    dates: tuple[NamedDate, ...]
    subject: str
    has_subject: bool


def read_message(message: str, lexicon: Lexicon, today: date) -> ParsedMessage:
    """The parsed form of a message.

    Args:
        message: What the user wrote, of which 16,384 characters are read; code and digests in it are left out.
        lexicon: Stop words and date patterns.
        today: What ``yesterday`` is relative to.
    """
    text = clean_message(message[:MAX_MESSAGE])
    dates = find_dates(text, today, lexicon)
    words = split_words(_without_dates(text, dates))
    asides = {word for word in words if lexicon.is_stop_word(_POSSESSIVE.sub("", word))}
    has_subject = any(
        len(word) > 1 and not HAS_CJK.match(word) for word in words if word not in asides
    )
    # "What did we decide about retries?" is about retries. Dates stay: the notes of that day hold them. The pieces are
    # those between blanks: Chinese cut into single characters has none of the index's terms.
    subject = (
        " ".join(piece for piece in text.split() if not asides.issuperset(split_words(piece)))
        or text
    )
    return ParsedMessage(text, form_of(text), dates, subject, has_subject)


def form_of(text: str) -> str:
    """``"question"`` or ``"message"``.

    One sentence that asks, or two of which one asks, is a question. So are words without a mark at their end, as people
    write into a search box. All else goes on with something, whatever it asks beside.
    """
    sentences = len(sentences_in(text))
    if sentences > _QUESTION_SENTENCES:
        return "message"
    return (
        "question"
        if is_question(text) or not (sentences > 1 or _STATES.search(text))
        else "message"
    )


# ``ranking="derived"``, as the authors of ``memory_context`` describe it: the best of a chunk's scores for the message,
# its keywords and its names; half of it for each half-life of a dated path; 15 % more for two queries


def derive_queries(message: str, lexicon: Lexicon) -> tuple[str, ...]:
    """Queries of a message: its first 500 characters, its keywords, and its names.

    The keywords are the five best words: those that are repeated, then the longest, in the message's order; names and
    stop words are none. A query that repeats an earlier one is left out.

    Args:
        message: A message, without pasted code and digests.
        lexicon: Stop words of its languages.
    """
    original = message.strip()[:_DERIVED_CHARS].rstrip()
    names, counts = dict[str, None](), Counter[str]()
    for sentence in sentences_in(original):
        for at, word in enumerate(_POSSESSIVE.sub("", word) for word in split_words(sentence)):
            is_stop_word = lexicon.is_stop_word(word)
            if (len(word) > 1 and word.isupper()) or (
                at and word[:1].isupper() and not is_stop_word
            ):
                names[word] = None  # capitals only, or a capital inside a sentence
            elif not is_stop_word and (len(word) > 1 or HAS_CJK.match(word)):
                counts[word.casefold()] += 1
    keywords = counts.keys() - set(map(str.casefold, names))
    best = sorted(counts, key=lambda word: (word not in keywords, -counts[word], -len(word)))[
        : min(_KEYWORDS, len(keywords))
    ]
    queries = dict[tuple[str, ...], str]()
    for text in (original, " ".join(word for word in counts if word in best), " ".join(names)):
        if words := tuple(map(str.casefold, split_words(text))):
            queries.setdefault(words, text)
    return tuple(queries.values())


def derived_score(
    scores: Sequence[float], age_days: int | None, half_life_days: float = 30.0
) -> float:
    """The score of a chunk, from those for each query that found it and the age of its note, where that counts."""
    score = max(scores) * (1.0 if age_days is None else decay(max(age_days, 0), half_life_days))
    return score * (_OVERLAP_BOOST if len(scores) > 1 else 1.0)


def by_formulas(
    pools: Sequence[Sequence[MemoryEntry]], today: date | None, half_life_days: float
) -> list[MemoryEntry]:
    """Hits of all queries by :func:`derived_score`, best first.

    Args:
        pools: The hits of each query.
        today: The present day, for notes with a date in their path; None where age does not count.
        half_life_days: The age at which a score is halved.
    """
    ranked = []
    for one in {hit.id: hit for pool in reversed(pools) for hit in pool}.values():
        scores = [hit.score for pool in pools for hit in pool if hit.id == one.id]
        day = today and date_from_path(one.path)
        age = (today - day).days if today and day else None
        ranked.append(replace(one, score=derived_score(scores, age, half_life_days)))
    return best_first(ranked)
