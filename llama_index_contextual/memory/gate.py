"""Decide whether a user's message needs memory, and parse what it asks.

Messages are untrusted input, so each step takes time linear in the length of the message.
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import date
from typing import TYPE_CHECKING, NamedTuple

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

MAX_MESSAGE = 16_384  # characters that are read
MAX_QUERY = 1_000  # characters that are searched for; the time grows with the length
_MAX_DERIVED_QUERY = 500
_MAX_KEYWORDS = 5
_MIN_WORDS = 3
_MAX_SMALL_TALK = 16  # words
_CHINESE_CHARACTERS_PER_WORD = 2
_MAX_QUESTION_SENTENCES = 2
_COMMAND = re.compile(r"/[^\s/]{0,99}(?<![:,;])(?=\s|$)")  # a path has a second slash
_QUESTION = re.compile(r"[?？؟]|[吗呢か][。.!！\s]*$")
_STATEMENT_END = re.compile(r"[.!。！…][\s\"'”’)*_]*$")
_BLANKS = re.compile(r"[ \t]+")
_DIGEST_LINE_STARTS = (QUOTE.strip(), "- [", *NOTE_STARTS)
_POSSESSIVE = re.compile(r"['’]s?$|(?<=s)['’]$")


# The gate


def reason_to_skip(message: str, lexicon: Lexicon) -> str:
    """Return the reason why a message needs no memory, or "" if it may need it.

    Slash commands, greetings, thanks and acknowledgements need no memory. Neither do fewer than
    three words, unless they have a question mark or are a date. A path (``/etc/hosts``) is not a
    command.

    Args:
        message: The user's message. Its first 16,384 characters are read.
        lexicon: The small talk, date patterns and stop words of the message's languages.
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
    """Return the kind of the first phrase if the whole text is small talk, else ""."""
    words = tuple(split_words(unaccented(text)))
    if len(words) > _MAX_SMALL_TALK:
        return ""
    # covered[n] is the kind of the first n words if phrases cover them; "" if all are fillers.
    covered = {0: ""}
    for end in range(1, len(words) + 1):
        for start in range(end):
            kind = lexicon.phrases.get(words[start:end])
            if kind is None or start not in covered or covered.get(end):
                continue
            covered[end] = covered[start] or ("" if kind == "filler" else kind)
    return covered.get(len(words), "")


def _is_date(text: str, lexicon: Lexicon) -> bool:
    """Return whether a text names a date and nothing else."""
    dates = find_dates(text, date.today(), lexicon)  # noqa: DTZ011  the day does not matter here
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
    """Return the lines of a message that are not in fenced code or in an earlier digest."""
    own_lines = []
    fence = ""
    is_in_digest = False
    for raw_line in message.replace(NOTHING, " ").splitlines():
        line = raw_line.strip()
        if fence:
            if line.startswith(fence) and not line.strip("`~"):
                fence = ""
            continue
        continues_digest = not line or line.startswith(_DIGEST_LINE_STARTS)
        is_in_digest = line == HEADER or (is_in_digest and continues_digest)
        info = line.lstrip(line[:1])
        # With a backtick later in the line, it is inline code and not a fence.
        if line.startswith(("```", "~~~")) and "`" not in info:
            fence = line.removesuffix(info)
        elif not is_in_digest:
            own_lines.append(line)
    return own_lines


def count_words(text: str) -> float:
    """Return the number of words. Two Chinese or Japanese characters count as one word."""
    words = split_words(text)
    characters = sum(1 for word in words if HAS_CJK.match(word))
    return len(words) - characters + characters / _CHINESE_CHARACTERS_PER_WORD


def is_question(text: str) -> bool:
    """Return whether a text has a question mark or a final question particle (吗, 呢, か)."""
    return bool(_QUESTION.search(text))


# What a message asks


class ParsedMessage(NamedTuple):
    """A message in the form that a search needs.

    Attributes:
        text: The message without fenced code and without an earlier digest.
        form: ``"question"``, or ``"message"`` if it continues a conversation.
        dates: The dates in the message.
        subject: The message without stop words such as "what did", which an answer need not
            contain.
        has_subject: Whether the message is about more than a date. "What did we do yesterday?" is
            not.
    """

    text: str
    form: str
    dates: tuple[NamedDate, ...]
    subject: str
    has_subject: bool


def parse_message(message: str, lexicon: Lexicon, today: date) -> ParsedMessage:
    """Return the parsed message.

    Args:
        message: The user's message. Its first 16,384 characters are read.
        lexicon: The stop words and date patterns of the message's languages.
        today: The day that ``yesterday`` is relative to.
    """
    text = clean_message(message[:MAX_MESSAGE])
    dates = find_dates(text, today, lexicon)
    words = split_words(_without_dates(text, dates))
    stop_words = {word for word in words if lexicon.is_stop_word(_POSSESSIVE.sub("", word))}
    subject_words = [word for word in words if word not in stop_words]
    # Single letters are no subject, nor are Chinese or Japanese characters, which are words here.
    has_subject = any(len(word) > 1 for word in subject_words)
    # The subject of "What did we decide about retries?" is "retries?". Dates stay in it, because
    # notes of that day contain them. Only whole pieces between blanks are left out, because single
    # Chinese characters are not terms.
    pieces = [piece for piece in text.split() if not stop_words.issuperset(split_words(piece))]
    return ParsedMessage(text, form_of(text), dates, " ".join(pieces) or text, has_subject)


def form_of(text: str) -> str:
    """Return ``"question"`` or ``"message"``.

    A question is one or two sentences with a question mark, or words without a mark at their end,
    as in a search box. Any other text continues a conversation, even if it contains a question.
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

    The keywords are up to five words that are neither names nor stop words: the most frequent
    words, and among equally frequent words the longest. They keep their order in the message. A
    query that equals an earlier query is left out.

    Args:
        message: A message without pasted code and digests.
        lexicon: The stop words of the message's languages.
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
