"""Read a user's message: does it need memory at all, and what is its query?

Everything here takes time in proportion to the message, because a client may send anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from llama_index_contextual.keyword import HAS_CJK, NamedDate, find_dates, split_words, unaccented
from llama_index_contextual.memory.digest import CURRENT, HEADER, NOTES, NOTHING, QUOTE
from llama_index_contextual.text import sentences_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import date

    from llama_index_contextual.keyword import Lexicon

MAX_MESSAGE: Final = 16_384  # characters; what follows is not read
MAX_QUERY_CHARS: Final = 1_000  # of them are asked; twice as many take twice as long

_MIN_WORDS: Final = 3
_LONGEST_SMALL_TALK: Final = 16  # words
_LONGEST_COMMAND: Final = 100  # characters
_ROOTS: Final = frozenset(
    """
    /applications /bin /boot /dev /etc /home /lib /lib64 /library /media /mnt /opt /private /proc /root /run /sbin /srv
    /sys /system /tmp /users /usr /var /volumes
    """.split()  # noqa: SIM905  a list of words reads better as text
)
_CJK_CHARS_A_WORD: Final = 2  # Chinese words have about two characters
_QUESTION_SENTENCES: Final = 2

_SUFFIX: Final = re.compile(r"\w\.\w")
_QUESTION: Final = re.compile(r"[?？؟]|[吗呢か][。.!！\s]*$")
_BLANKS: Final = re.compile(r"[ \t]+")
_POSSESSIVE: Final = re.compile(r"['’]s?$|(?<=s)['’]$")
_STATES: Final = re.compile(r"[.!。！…][\s\"'”’)*_]*$")


def clean_message(message: str) -> str:
    """Leave out fenced code and an earlier digest that was pasted in or quoted; trim to 1,000 characters at a space."""
    lines = (_BLANKS.sub(" ", line).strip() for line in _unquoted_lines(message.replace(NOTHING, " ").splitlines()))
    text = "\n".join(line for line in lines if line)
    if len(text) <= MAX_QUERY_CHARS:
        return text
    head = text[: MAX_QUERY_CHARS + 1]
    cut = max(head.rfind(" "), head.rfind("\n"))
    return text[: cut if cut > MAX_QUERY_CHARS // 2 else MAX_QUERY_CHARS].rstrip()


def _unquoted_lines(lines: Sequence[str]) -> Iterator[str]:
    """Leave out the lines of fenced code, of an earlier digest, and of an earlier digest that is quoted."""
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
        if text[:3] in {"```", "~~~"}:
            after = text.lstrip(text[0])
            if "`" not in after:  # else it is code within a line
                fence = text[: len(text) - len(after)]
                continue
        if not in_digest:
            yield line


def count_words(text: str) -> float:
    """Count words, two characters of Chinese or Japanese as one."""
    return sum(1 / _CJK_CHARS_A_WORD if HAS_CJK.match(word) else 1 for word in split_words(text))


def is_question(text: str) -> bool:
    """Return whether a question mark, or a closing particle of Chinese or Japanese, makes it a question."""
    return bool(_QUESTION.search(text))


# The gate


def gate(message: str, lexicon: Lexicon, *, commands: Sequence[str] = ("/*",)) -> str:
    """Return why memory is not worth asking; "" where it is.

    It is not for slash commands, greetings, thanks, acknowledgements, and fewer than three words without a question
    mark.

    Args:
        message: What the user wrote; its first 16,384 characters are read.
        lexicon: Phrases that need no memory.
        commands: Globs that the whole first token must match to be a command. A path is never one.
    """
    stripped = message[:MAX_MESSAGE].strip()
    if not stripped:
        return "empty message"
    if _is_command(stripped, commands):
        return "slash command"
    text = clean_message(stripped)
    if not split_words(text):
        return "no words outside code and digests"
    if kind := _small_talk(text, lexicon):
        return kind
    is_short = count_words(text) < _MIN_WORDS and not is_question(text)
    return "fewer than three words and no question" if is_short else ""


def _is_command(message: str, commands: Sequence[str]) -> bool:
    """Return whether a message starts with a command, such as ``/deploy now``, whoever knows it.

    Paths are none (``/etc/hosts``, ``/tmp``, ``/notes.md``), and neither is a word with a mark after it
    (``/newsletter: what did we decide?``).
    """
    token = message[: _LONGEST_COMMAND + 1].split(maxsplit=1)[0].lower()
    is_path = "/" in token[1:] or token in _ROOTS or bool(_SUFFIX.search(token))
    if len(token) > _LONGEST_COMMAND or is_path or token[-1] in ":,;":
        return False
    return any(fnmatchcase(token, command) for command in commands)


def _small_talk(text: str, lexicon: Lexicon) -> str:
    """Return the first kind of phrase where nothing but small talk covers the whole message, else ""."""
    message = tuple(split_words(unaccented(text)))
    if len(message) > _LONGEST_SMALL_TALK:
        return ""
    longest = max(map(len, lexicon.phrases), default=0)
    # kinds[i]: how the first i words can be covered, as the first kind that is no filler ("" while all are fillers)
    kinds: list[str | None] = [""] + [None] * len(message)
    for end in range(1, len(message) + 1):
        for start in range(max(0, end - longest), end):
            kind = lexicon.phrases.get(message[start:end])
            before = kinds[start]
            if kind is None or before is None:
                continue
            so_far = before or ("" if kind == "filler" else kind)
            if kinds[end] in (None, ""):
                kinds[end] = so_far
    return kinds[len(message)] or ""


# What it asks


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """What a message asks of the notes."""

    text: str
    """The message without fenced code and without an earlier digest, at most 1,000 characters."""
    form: str
    """``"question"``, or ``"message"`` for what goes on with something."""
    dates: tuple[NamedDate, ...]
    """The dates that it names."""
    subject: str
    """The message without its words of asking and its operators, which an answer need not hold."""
    has_subject: bool
    """Whether it says more than a date: "what did we do yesterday?" does not."""
    is_cut: bool = False
    """Whether the message was longer than what is read of it."""


def read_message(
    message: str, lexicon: Lexicon, today: date, *, plain: Callable[[str], str] | None = None
) -> ParsedMessage:
    """Return the parsed form of a message.

    Args:
        message: What the user wrote, of which 16,384 characters are read; code and digests in it are left out.
        lexicon: Stop words and date patterns.
        today: What ``yesterday`` is relative to.
        plain: Returns a text without a query's operators: an answer holds no word of ``path:notes/``.
    """
    text = clean_message(message[:MAX_MESSAGE])
    dates = find_dates(text, today, lexicon)
    message_words = split_words(_blank(text, dates))
    asides = {word for word in message_words if lexicon.is_stop_word(_POSSESSIVE.sub("", word))}
    has_subject = any(len(word) > 1 and not HAS_CJK.match(word) for word in message_words if word not in asides)
    subject = _subject(plain(text) if plain else text, asides)
    return ParsedMessage(text, form_of(text), dates, subject, has_subject, len(message) > MAX_MESSAGE)


def form_of(text: str) -> str:
    """Return "question" or "message".

    One sentence that asks, or two of which one asks, is a question. So are words without a mark at their end, as people
    write into a search box. All else goes on with something, whatever it asks beside.
    """
    sentences = len(sentences_in(text))
    if sentences > _QUESTION_SENTENCES:
        return "message"
    return "question" if is_question(text) or not (sentences > 1 or _STATES.search(text)) else "message"


def _subject(text: str, asides: set[str]) -> str:
    """``What did we decide about retries?`` is about retries. Dates stay: the notes of that day hold them."""
    # By pieces between blanks: Chinese cut into single characters has none of the index's terms.
    subject = " ".join(piece for piece in text.split() if not asides.issuperset(split_words(piece)))
    return subject or text


def _blank(text: str, dates: Sequence[NamedDate]) -> str:
    for named in dates:
        text = text[: named.start] + " " * len(named.text) + text[named.start + len(named.text) :]
    return text
