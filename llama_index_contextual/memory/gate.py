"""Read a user's message: does it need memory at all, and what does it ask?

A client may send anything, so every step takes time in proportion to the message.
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import date
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index_contextual.memory.digest import HEADER, NOTE_STARTS, NOTHING, QUOTE
from llama_index_contextual.retrievers.query_dates import (
    HAS_CJK,
    find_dates,
    split_words,
    unaccented,
)
from llama_index_contextual.utils.language import sentences_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.retrievers.query_dates import Lexicon
    from llama_index_contextual.utils.dates import NamedDate

MAX_MESSAGE: Final = 16_384  # characters that are read
MAX_QUERY: Final = 1_000  # characters that are searched for; twice as many take twice as long
_MAX_DERIVED_QUERY: Final = 500
_MAX_KEYWORDS: Final = 5
_MIN_WORDS: Final = 3
_MAX_SMALL_TALK: Final = 16  # words
_CHINESE_CHARACTERS_PER_WORD: Final = 2
_MAX_QUESTION_SENTENCES: Final = 2
_COMMAND: Final = re.compile(r"/[^\s/]{0,99}(?<![:,;])(?=\s|$)")  # a path has a second slash
_QUESTION: Final = re.compile(r"[?？؟]|[吗呢か][。.!！\s]*$")
_STATEMENT_END: Final = re.compile(r"[.!。！…][\s\"'”’)*_]*$")
_BLANKS: Final = re.compile(r"[ \t]+")
_DIGEST_LINE_STARTS: Final = (QUOTE.strip(), "- [", *NOTE_STARTS)
_POSSESSIVE: Final = re.compile(r"['’]s?$|(?<=s)['’]$")


# The gate


def gate(message: str, lexicon: Lexicon) -> str:
    """Return why a message needs no memory, or "" where it may.

    Slash commands, greetings, thanks, acknowledgements, and fewer than three words without a
    question mark need none, unless they are a date. A path (``/etc/hosts``) is no command.

    Args:
        message: What the user wrote. Its first 16,384 characters are read.
        lexicon: Phrases that need no memory, and how dates are named.
    """
    stripped = message[:MAX_MESSAGE].strip()
    if not stripped:
        return "empty message"
    if _COMMAND.match(stripped):
        return "slash command"
    text = clean_message(stripped)
    if not split_words(text):
        return "no words outside code and digests"
    small_talk = _small_talk(text, lexicon)
    if small_talk:
        return small_talk
    if count_words(text) >= _MIN_WORDS or is_question(text) or _is_date(text, lexicon):
        return ""
    return "fewer than three words and no question"


def _small_talk(text: str, lexicon: Lexicon) -> str:
    """Return the first kind of phrase where phrases of small talk cover a whole text, else ""."""
    words = tuple(split_words(unaccented(text)))
    if len(words) > _MAX_SMALL_TALK:
        return ""
    # covered[n]: the kind of the first n words, "" while all are fillers; absent if not covered.
    covered = {0: ""}
    for end in range(1, len(words) + 1):
        for start in range(end):
            kind = lexicon.phrases.get(words[start:end])
            if kind is None or start not in covered or covered.get(end):
                continue
            covered[end] = covered[start] or ("" if kind == "filler" else kind)
    return covered.get(len(words), "")


def _is_date(text: str, lexicon: Lexicon) -> bool:
    """Tell whether a text names a date and nothing else."""
    dates = find_dates(text, date.today(), lexicon)  # noqa: DTZ011  any day will do
    words = split_words(_without_dates(text, dates))
    return bool(dates) and all(lexicon.is_stop_word(word) for word in words)


def clean_message(message: str) -> str:
    """Return a message without fenced code and earlier digests, cut to 1,000 characters."""
    lines = [_BLANKS.sub(" ", line) for line in _own_lines(message)]
    text = "\n".join(filter(None, lines))
    if len(text) <= MAX_QUERY:
        return text
    end = max(text.rfind(" ", 0, MAX_QUERY + 1), text.rfind("\n", 0, MAX_QUERY + 1))
    if end <= MAX_QUERY // 2:
        end = MAX_QUERY
    return text[:end].rstrip()


def _own_lines(message: str) -> list[str]:
    """Return the lines of a message outside of fenced code and of an earlier digest."""
    own_lines = []
    fence = ""
    is_in_digest = False
    for raw_line in message.replace(NOTHING, " ").splitlines():
        line = raw_line.strip()
        if fence:
            if line.startswith(fence) and not line.strip("`~"):
                fence = ""
            continue
        is_of_digest = not line or line.startswith(_DIGEST_LINE_STARTS)
        is_in_digest = line == HEADER or (is_in_digest and is_of_digest)
        info = line.lstrip(line[:1])
        # A backtick after the fence makes it code within a line.
        if line.startswith(("```", "~~~")) and "`" not in info:
            fence = line.removesuffix(info)
        elif not is_in_digest:
            own_lines.append(line)
    return own_lines


def count_words(text: str) -> float:
    """Return the number of words; two characters of Chinese or Japanese count as one."""
    words = split_words(text)
    characters = sum(1 for word in words if HAS_CJK.match(word))
    return len(words) - characters + characters / _CHINESE_CHARACTERS_PER_WORD


def is_question(text: str) -> bool:
    """Tell whether a text has a question mark, or a closing particle of Chinese or Japanese."""
    return bool(_QUESTION.search(text))


# What a message asks


class ParsedMessage(NamedTuple):
    """What a message asks of the notes.

    Attributes:
        text: The message without fenced code and without an earlier digest.
        form: ``"question"``, or ``"message"`` for one that continues a conversation.
        dates: The dates that it names.
        subject: The message without words of asking, which an answer need not hold.
        has_subject: Whether it names more than a date: "what did we do yesterday?" does not.
    """

    text: str
    form: str
    dates: tuple[NamedDate, ...]
    subject: str
    has_subject: bool


def read_message(message: str, lexicon: Lexicon, today: date) -> ParsedMessage:
    """Return what a message asks.

    Args:
        message: What the user wrote. Its first 16,384 characters are read.
        lexicon: Stop words and date patterns.
        today: The day that ``yesterday`` is relative to.
    """
    text = clean_message(message[:MAX_MESSAGE])
    dates = find_dates(text, today, lexicon)
    words = split_words(_without_dates(text, dates))
    words_of_asking = {word for word in words if lexicon.is_stop_word(_POSSESSIVE.sub("", word))}
    subject_words = [word for word in words if word not in words_of_asking]
    has_subject = any(len(word) > 1 and not HAS_CJK.match(word) for word in subject_words)
    # "What did we decide about retries?" is about retries. Dates stay, because notes of that day
    # hold them. Only whole pieces between blanks leave: single Chinese characters are no terms.
    pieces = [piece for piece in text.split() if not words_of_asking.issuperset(split_words(piece))]
    return ParsedMessage(text, form_of(text), dates, " ".join(pieces) or text, has_subject)


def form_of(text: str) -> str:
    """Return ``"question"`` or ``"message"``.

    A question is one sentence that asks, two of which one asks, or words without a mark at their
    end, as in a search box. All else continues a conversation, whatever it asks besides.
    """
    sentence_count = len(sentences_in(text))
    if sentence_count > _MAX_QUESTION_SENTENCES:
        return "message"
    is_statement = sentence_count > 1 or bool(_STATEMENT_END.search(text))
    return "question" if is_question(text) or not is_statement else "message"


def _without_dates(text: str, dates: Sequence[NamedDate]) -> str:
    for named in dates:
        text = text[: named.start] + " " * (named.end - named.start) + text[named.end :]
    return text


# Queries of ``ranking="derived"``


def derive_queries(message: str, lexicon: Lexicon) -> tuple[str, ...]:
    """Return the queries of a message: its first 500 characters, its keywords, and its names.

    The keywords are the five best words, in the message's order: repeated ones first, then the
    longest. Names and stop words are none. A query that repeats an earlier one is left out.

    Args:
        message: A message without pasted code and digests.
        lexicon: Stop words of its languages.
    """
    original = message.strip()[:_MAX_DERIVED_QUERY].rstrip()
    names: dict[str, None] = {}
    counts = Counter[str]()
    for sentence in sentences_in(original):
        for position, raw_word in enumerate(split_words(sentence)):
            word = _POSSESSIVE.sub("", raw_word)
            is_stop_word = lexicon.is_stop_word(word)
            is_acronym = len(word) > 1 and word.isupper()
            is_capitalised = position > 0 and word[:1].isupper()
            if is_acronym or (is_capitalised and not is_stop_word):
                names[word] = None
            elif not is_stop_word and (len(word) > 1 or HAS_CJK.match(word)):
                counts[word.casefold()] += 1
    for name in names:
        del counts[name.casefold()]
    best = sorted(counts, key=lambda word: (-counts[word], -len(word)))[:_MAX_KEYWORDS]
    keywords = " ".join(word for word in counts if word in best)

    queries: dict[tuple[str, ...], str] = {}
    for query in (original, keywords, " ".join(names)):
        words = tuple(word.casefold() for word in split_words(query))
        if words:
            queries.setdefault(words, query)
    return tuple(queries.values())
