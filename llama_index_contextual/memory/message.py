"""Read a user's message: is memory worth asking at all, and what should it be asked?

Everything here takes time in proportion to the message, because a client may send anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from llama_index_contextual.keyword.dates_in_text import NamedDate, find_dates
from llama_index_contextual.keyword.lexicon import HAS_CJK, unaccented, words
from llama_index_contextual.memory.digest import HEADER, NOTES, NOTHING, QUOTE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import date

    from llama_index_contextual.keyword.lexicon import Lexicon

MAX_MESSAGE: Final = 16_384  # characters; what follows is not read
MAX_QUERY_CHARS: Final = 500  # the source's limit on the original query
MAX_KEYWORDS: Final = 5

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
_RARE_NAME: Final = 0.8
_MAX_NAMES: Final = 5
_TITLE_CASE_WORDS: Final = 4  # "What Did Melanie Paint": from this many capitals on, with few others, they say nothing
_SHOUTED_WORDS: Final = 3

_SUFFIX: Final = re.compile(r"\w\.\w")
_QUESTION: Final = re.compile(r"[?？؟]|[吗呢か][。.!！\s]*$")
_BLANKS: Final = re.compile(r"[ \t]+")
_TOKEN: Final = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_PIECE: Final = re.compile(r"`[^`\n]*`|[^\s`]+")
_POSSESSIVE: Final = re.compile(r"['’]s?$|(?<=s)['’]$")
_CONTRACTED: Final = re.compile(r"['’].*")  # I'm, Let's
_BEFORE_A_SENTENCE: Final = " \t\"'“”‘’«»([{¿¡*_>#-•"
_ENDS_A_SENTENCE: Final = ".!?…:;\n"


def clean_message(message: str) -> str:
    """Leave out fenced code and an earlier digest that was pasted in or quoted; trim to 500 characters at a space."""
    lines = (_BLANKS.sub(" ", line).strip() for line in _own_lines(message.replace(NOTHING, " ").splitlines()))
    text = "\n".join(line for line in lines if line)
    if len(text) <= MAX_QUERY_CHARS:
        return text
    head = text[: MAX_QUERY_CHARS + 1]
    cut = max(head.rfind(" "), head.rfind("\n"))
    return text[: cut if cut > MAX_QUERY_CHARS // 2 else MAX_QUERY_CHARS].rstrip()


def _own_lines(lines: Sequence[str]) -> Iterator[str]:
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
            in_digest = of_a_note or not bare or bare.startswith(("- [", *NOTES))
        if text[:3] in {"```", "~~~"}:
            after = text.lstrip(text[0])
            if "`" not in after:  # else it is code within a line
                fence = text[: len(text) - len(after)]
                continue
        if not in_digest:
            yield line


def count_words(text: str) -> float:
    """Count words, two characters of Chinese or Japanese as one."""
    return sum(1 / _CJK_CHARS_A_WORD if HAS_CJK.match(word) else 1 for word in words(text))


def is_question(text: str) -> bool:
    """Say whether a question mark, or a closing particle of Chinese or Japanese, makes it a question."""
    return bool(_QUESTION.search(text))


# The gate


@dataclass(frozen=True, slots=True)
class GateDecision:
    """Whether memory is worth asking, and why (not)."""

    applicable: bool
    reason: str


def gate(message: str, lexicon: Lexicon, *, commands: Sequence[str] = ("/*",)) -> GateDecision:
    """Skip slash commands, greetings, thanks, acknowledgements, and fewer than three words without a question mark.

    Args:
        message: What the user wrote; its first 16,384 characters are read.
        lexicon: The phrases of the languages to expect.
        commands: Globs that the whole first token must match to be a command. A path is never one.
    """
    stripped = message[:MAX_MESSAGE].strip()
    if not stripped:
        return GateDecision(applicable=False, reason="empty message")
    if _is_command(stripped, commands):
        return GateDecision(applicable=False, reason="slash command")
    text = clean_message(stripped)
    if not words(text):
        return GateDecision(applicable=False, reason="no words outside code and digests")
    if kind := _small_talk(text, lexicon):
        return GateDecision(applicable=False, reason=kind)
    if count_words(text) < _MIN_WORDS and not is_question(text):
        return GateDecision(applicable=False, reason="fewer than three words and no question")
    return GateDecision(applicable=True, reason="applicable")


def _is_command(message: str, commands: Sequence[str]) -> bool:
    """Say whether a message starts with a command, such as ``/deploy now``, whoever knows it.

    Paths are none (``/etc/hosts``, ``/tmp``, ``/notes.md``), and neither is a word with a mark after it
    (``/newsletter: what did we decide?``).
    """
    token = message[: _LONGEST_COMMAND + 1].split(maxsplit=1)[0].lower()
    is_path = "/" in token[1:] or token in _ROOTS or bool(_SUFFIX.search(token))
    if len(token) > _LONGEST_COMMAND or is_path or token[-1] in ":,;":
        return False
    return any(fnmatchcase(token, command) for command in commands)


def _small_talk(text: str, lexicon: Lexicon) -> str | None:
    """Name the first kind of phrase if nothing but small talk covers the whole message."""
    message = tuple(words(unaccented(text)))
    if len(message) > _LONGEST_SMALL_TALK:
        return None
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
    return kinds[len(message)] or None


# What to ask


@dataclass(frozen=True, slots=True)
class Query:
    """One query that was derived from a message."""

    kind: str
    """``"original"``, ``"keywords"`` or ``"names"``."""
    text: str


@dataclass(frozen=True, slots=True)
class DerivedQueries:
    """What a message asks for."""

    queries: tuple[Query, ...]
    """The original first."""
    dates: tuple[NamedDate, ...]
    subject: str
    """The message without its words of asking and its operators, which an answer need not hold."""
    is_cut: bool = False
    """Whether the message was longer than what is read of it."""


def derive_queries(
    message: str,
    lexicon: Lexicon,
    today: date,
    *,
    rarity: Callable[[str], float | None] | None = None,
    plain: Callable[[str], str] | None = None,
) -> DerivedQueries:
    """Derive up to three queries and the named dates. Keywords and names count only where they add something.

    Args:
        message: What the user wrote, of which 16,384 characters are read; code and digests in it are left out.
        lexicon: Stop words and date patterns.
        today: What ``yesterday`` is relative to.
        rarity: Share of the index's chunks that lack a word. Rare words are taken for keywords, and a name that is in
            more than a fifth of the chunks makes no query: every note of a diary names its writer (recall@4 of LoCoMo
            notes fell by two points in a prototype). Without it the first keywords and all names are taken.
        plain: Returns a text without a query's operators: an answer holds no word of ``path:notes/``.
    """
    text = clean_message(message[:MAX_MESSAGE])
    dates = find_dates(text, today, lexicon)
    names = find_names(text, lexicon, dates)
    keywords = find_keywords(text, lexicon, dates=dates, names=names, rarity=rarity)
    if rarity is not None:
        names = [name for name in names if (rare := rarity(name)) is None or rare >= _RARE_NAME]
    queries = [Query("original", text)]
    for kind, found in (("keywords", keywords), ("names", names)):
        derived = " ".join(found)
        if derived and all(_same_words(derived, query.text) is False for query in queries):
            queries.append(Query(kind, derived))
    subject = _subject(text, plain(text) if plain else text, lexicon, dates)
    return DerivedQueries(tuple(queries), dates, subject, len(message) > MAX_MESSAGE)


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
    prose = _PIECE.sub(_prose, _blank(text, dates))
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


def _subject(text: str, plain: str, lexicon: Lexicon, dates: Sequence[NamedDate]) -> str:
    """``What did we decide about retries?`` is about retries. Dates stay: the notes of that day hold them."""
    asides = {word for word in words(_blank(text, dates)) if lexicon.is_stop_word(_POSSESSIVE.sub("", word))}
    # By pieces between blanks: Chinese cut into single characters has none of the index's terms.
    return " ".join(piece for piece in plain.split() if not asides.issuperset(words(piece))) or plain


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


def _prose(piece: re.Match[str]) -> str:
    """Blank out code, addresses of the web and of mail."""
    text = piece[0]
    _, at, host = text.partition("@")
    is_address = "://" in text or (at and "." in host)
    return " " * len(text) if is_address or text[0] == "`" else text


def _blank(text: str, dates: Sequence[NamedDate]) -> str:
    for named in dates:
        text = text[: named.start] + " " * len(named.text) + text[named.end :]
    return text


def _same_words(left: str, right: str) -> bool:
    return [word.casefold() for word in words(left)] == [word.casefold() for word in words(right)]
