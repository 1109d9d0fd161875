"""Decide in well under a millisecond whether a message could profit from memory at all."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from llama_index_contextual.memory.lexicon import unaccented
from llama_index_contextual.memory.message import clean_message, count_words, is_question, words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.memory.lexicon import Lexicon

# Globs over the whole first token: a prefix test would take "/newsletter" for "/new".
DEFAULT_COMMANDS: Final = tuple(
    """
    /? /help /status /agent /agent:* /agents /new /reset /clear /compact /config /context /cost /doctor /exit /quit
    /export /hooks /init /login /logout /mcp /memory /model /models /permissions /plugin /restart /resume /rewind
    /settings /skills /start /stop /think /undo /usage /verbose /version /whoami
    """.split()  # noqa: SIM905  forty commands read better as text
)
_MIN_WORDS: Final = 3
_LONGEST_SMALL_TALK: Final = 16  # words


@dataclass(frozen=True, slots=True)
class GateDecision:
    """Whether memory is worth asking, and why (not)."""

    applicable: bool
    reason: str


def gate(message: str, lexicon: Lexicon, *, commands: Sequence[str] = DEFAULT_COMMANDS) -> GateDecision:
    """Skip slash commands, greetings, thanks, acknowledgements, and fewer than three words without a question mark.

    Args:
        message: What the user wrote, of any length.
        lexicon: The phrases of the languages to expect.
        commands: Globs that the whole first token must match to be a slash command, ``/agent:*`` for example.
    """
    stripped = message.strip()
    if not stripped:
        return GateDecision(applicable=False, reason="empty message")
    if stripped.startswith("/"):
        token = stripped.split(maxsplit=1)[0].lower()
        if any(fnmatchcase(token, command) for command in commands):
            return GateDecision(applicable=False, reason="slash command")
    text = clean_message(stripped)
    if not words(text):
        return GateDecision(applicable=False, reason="no words outside code and digests")
    if kind := _small_talk(text, lexicon):
        return GateDecision(applicable=False, reason=kind)
    if count_words(text) < _MIN_WORDS and not is_question(text):
        return GateDecision(applicable=False, reason="fewer than three words and no question")
    return GateDecision(applicable=True, reason="applicable")


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
