"""Read a user's message: does it need memory at all, and what does it ask?

Everything here takes time in proportion to the message, because a client may send anything.
"""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING, Final, NamedTuple

from llama_index_contextual.keyword import HAS_CJK, NamedDate, find_dates, split_words, unaccented
from llama_index_contextual.memory.digest import CURRENT, HEADER, NOTES, NOTHING, QUOTE
from llama_index_contextual.text import sentences_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from llama_index_contextual.keyword import Lexicon

MAX_MESSAGE: Final = 16_384  # characters; what follows is not read
MAX_QUERY_CHARS: Final = 1_000  # of them are searched for; twice as many take twice as long
_MIN_WORDS: Final = 3
_LONGEST_SMALL_TALK: Final = 16  # words
_CJK_CHARS_A_WORD: Final = 2  # Chinese words have about two characters
_QUESTION_SENTENCES: Final = 2
_COMMAND: Final = re.compile(r"/[^\s/]{0,99}(?<![:,;])(?=\s|$)")
_ROOTS: Final = frozenset(
    """
    /applications /bin /boot /dev /etc /home /lib /lib64 /library /media /mnt /opt /private /proc /root /run /sbin /srv
    /sys /system /tmp /users /usr /var /volumes
    """.split()  # noqa: SIM905  a list of words reads better as text
)
_SUFFIX: Final = re.compile(r"\w\.\w")
_QUESTION: Final = re.compile(r"[?？؟]|[吗呢か][。.!！\s]*$")
_BLANKS: Final = re.compile(r"[ \t]+")
_POSSESSIVE: Final = re.compile(r"['’]s?$|(?<=s)['’]$")
_STATES: Final = re.compile(r"[.!。！…][\s\"'”’)*_]*$")


def clean_message(message: str) -> str:
    """A message without fenced code and earlier digests, pasted or quoted; cut to 1,000 characters at a space."""
    lines = (_BLANKS.sub(" ", line).strip() for line in _unquoted_lines(message.replace(NOTHING, " ").splitlines()))
    text = "\n".join(filter(None, lines))
    if len(text) <= MAX_QUERY_CHARS:
        return text
    cut = max(text.rfind(" ", 0, MAX_QUERY_CHARS + 1), text.rfind("\n", 0, MAX_QUERY_CHARS + 1))
    return text[: cut if cut > MAX_QUERY_CHARS // 2 else MAX_QUERY_CHARS].rstrip()


def _unquoted_lines(lines: Sequence[str]) -> Iterator[str]:
    """Lines outside of fenced code, of an earlier digest, and of an earlier digest that is quoted."""
    fence, in_digest, before = "", False, ""
    for line in lines:
        text = line.strip()
        if fence:
            if text.startswith(fence) and not text.strip("`~"):
                fence = ""
            continue
        bare = text.lstrip("> \t")
        if bare == HEADER:
            in_digest = True
            before = line[: line.index(HEADER)].rstrip()  # each line of a quoted digest starts with it
        elif in_digest:
            of_a_note = line.lstrip().removeprefix(before).lstrip(" ").startswith(QUOTE.strip())
            in_digest = of_a_note or not bare or bare.startswith(("- [", CURRENT.lstrip(), *NOTES))
        after = text.lstrip(text[:1])
        if text[:3] in {"```", "~~~"} and "`" not in after:  # else it is code within a line
            fence = text[: len(text) - len(after)]
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
    mark, unless they are a date. A path is no command (``/etc/hosts``, ``/tmp``, ``/notes.md``), nor a word with a mark
    after it.

    Args:
        message: What the user wrote; its first 16,384 characters are read.
        lexicon: Phrases that need no memory.
    """
    stripped = message[:MAX_MESSAGE].strip()
    if not stripped:
        return "empty message"
    command = _COMMAND.match(stripped)
    if command and command[0].lower() not in _ROOTS and not _SUFFIX.search(command[0]):
        return "slash command"
    text = clean_message(stripped)
    if not split_words(text):
        return "no words outside code and digests"
    if kind := _small_talk(text, lexicon):
        return kind
    if count_words(text) >= _MIN_WORDS or is_question(text):
        return ""
    dates = find_dates(text, date.today(), lexicon)  # noqa: DTZ011  whichever day it is
    is_date = bool(dates) and all(map(lexicon.is_stop_word, split_words(_without_dates(text, dates))))
    return "" if is_date else "fewer than three words and no question"


def _without_dates(text: str, dates: Sequence[NamedDate]) -> str:
    for named in dates:
        text = text[: named.start] + " " * len(named.text) + text[named.start + len(named.text) :]
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
        subject: The message without its words of asking and its operators, which an answer need not hold.
        has_subject: Whether it names more than a date: "what did we do yesterday?" does not.
        is_cut: Whether the message was longer than what is read of it.
    """

    text: str
    form: str
    dates: tuple[NamedDate, ...]
    subject: str
    has_subject: bool
    is_cut: bool = False


def read_message(
    message: str, lexicon: Lexicon, today: date, *, plain: Callable[[str], str] | None = None
) -> ParsedMessage:
    """The parsed form of a message.

    Args:
        message: What the user wrote, of which 16,384 characters are read; code and digests in it are left out.
        lexicon: Stop words and date patterns.
        today: What ``yesterday`` is relative to.
        plain: Gives a text without a query's operators: an answer holds no word of ``path:notes/``.
    """
    text = clean_message(message[:MAX_MESSAGE])
    dates = find_dates(text, today, lexicon)
    words = split_words(_without_dates(text, dates))
    asides = {word for word in words if lexicon.is_stop_word(_POSSESSIVE.sub("", word))}
    has_subject = any(len(word) > 1 and not HAS_CJK.match(word) for word in words if word not in asides)
    # "What did we decide about retries?" is about retries. Dates stay: the notes of that day hold them. The pieces are
    # those between blanks: Chinese cut into single characters has none of the index's terms.
    bare = plain(text) if plain else text
    subject = " ".join(piece for piece in bare.split() if not asides.issuperset(split_words(piece))) or bare
    return ParsedMessage(text, form_of(text), dates, subject, has_subject, len(message) > MAX_MESSAGE)


def form_of(text: str) -> str:
    """``"question"`` or ``"message"``.

    One sentence that asks, or two of which one asks, is a question. So are words without a mark at their end, as people
    write into a search box. All else goes on with something, whatever it asks beside.
    """
    sentences = len(sentences_in(text))
    if sentences > _QUESTION_SENTENCES:
        return "message"
    return "question" if is_question(text) or not (sentences > 1 or _STATES.search(text)) else "message"
