"""From what a model answered to contexts: matched to chunks by number, cleaned, and refused where they are none."""

from __future__ import annotations

import re
from typing import Final

MAX_CHARS: Final = 600  # about 150 tokens; the prompt asks for one or two sentences
_MIN_LETTERS: Final = 8
_COPIED_WORDS: Final = 6  # so many words in a row are a quotation
_COPIED_SHARE: Final = 0.8

_THINKING: Final = re.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_THOUGHT_END: Final = re.compile(r"\A.*</(?:think|thinking|reasoning)>", re.DOTALL | re.IGNORECASE)
_FENCE: Final = re.compile(r"^\s*(?:```|~~~)[^\n]*$", re.MULTILINE)
_TAG: Final = re.compile(r"</?(?:context|answer|chunk|output|response|summary)\b[^>\n]*>", re.IGNORECASE)
_NUMBER: Final = re.compile(
    r"^[ \t>*#_-]*(?:(?:chunk|context)\s*(?:number\s*|no\.?\s*)?)?"
    r"[#\[(]?(\d{1,3})[\])]?\**\s*[.:)\-\u2013\u2014][*_ \t]*(?=\S|$)",
    re.MULTILINE | re.IGNORECASE,
)
_PREAMBLE: Final = re.compile(
    r"^\s*(?:(?:sure|certainly|of course|okay|ok)[,!.:]?\s*)?"
    r"(?:(?:here(?:'s| is| are)|below is|this is)\b[^.:\n]{0,80}:"
    r"|(?:the )?(?:succinct |short )?(?:context|answer|summary):)\s*",
    re.IGNORECASE,
)
_MARKUP: Final = re.compile(r"^\s*(?:#{1,6}\s+|[-*+•]\s+|>\s+)", re.MULTILINE)
_EMPHASIS: Final = re.compile(r"\*\*(?=\S)(.+?)(?<=\S)\*\*")  # __ is part of names
_QUOTES: Final = {'"': '"', "'": "'", "\u201c": "\u201d", "\u2018": "\u2019", "«": "»", "`": "`"}
_REFUSAL: Final = re.compile(
    r"^(?:i(?:'m| am)\s+(?:sorry|unable|not able|an? (?:ai|language))|sorry\b"
    r"|i\s+(?:can(?:no|')t|do not have|don't have)|as an ai\b|unfortunately,? i\b|(?:please|could you)\s+provide\b"
    r"|(?:there is )?no (?:context|chunk|document)\b|n/?a\.?$|none\.?$|lo siento\b|no puedo\b)",
    re.IGNORECASE,
)


def split_answers(answer: str, count: int) -> dict[int, str]:
    """Match a model's answer to the chunks that it was asked about.

    Args:
        answer: What the model said.
        count: How many chunks it was asked about, which it knows as 1 to ``count``.

    Returns:
        Cleaned contexts by number. A number is missing where the model left it out. When it gave a number
        twice or one that was not asked for, its numbering means nothing, and nothing is returned.
    """
    text = _without_thinking(answer)
    marks = list(_NUMBER.finditer(text))
    if count == 1 and (not marks or int(marks[0][1]) != 1 or len(marks) > 1):
        context = clean(text)
        return {1: context} if context else {}
    numbers = [int(mark[1]) for mark in marks]
    if len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(1, count + 1)):
        return {}
    ends = [*(mark.start() for mark in marks[1:]), len(text)][: len(marks)]
    contexts = {int(mark[1]): clean(text[mark.end() : end]) for mark, end in zip(marks, ends, strict=True)}
    return {number: context for number, context in contexts.items() if context}


def clean(text: str, max_chars: int = MAX_CHARS) -> str:
    """Take off everything that models wrap a context in, and put it on one line of at most ``max_chars``."""
    text = _TAG.sub("", _FENCE.sub("", _without_thinking(text)))
    text = _PREAMBLE.sub("", text.strip(), count=1)
    text = _EMPHASIS.sub(r"\1", _MARKUP.sub("", text))
    text = " ".join(text.split())
    while len(text) > 1 and _QUOTES.get(text[0]) == text[-1]:
        text = text[1:-1].strip()
    return _cap(text, max_chars)


def refusal(context: str, chunk: str, document: str) -> str | None:
    """Say why a cleaned context is none, or None where it is one.

    Args:
        context: What the model said about the chunk.
        chunk: The chunk's text.
        document: The document's first characters; the whole will do.
    """
    if sum(character.isalnum() for character in context) < _MIN_LETTERS:
        return "empty"
    if _REFUSAL.match(context):
        return "refused"
    words = _words(context)
    if _copied(words, _words(chunk)):
        return "copy of the chunk"
    if _copied(words, _words(document[: 2 * MAX_CHARS])):
        return "copy of the document's beginning"
    return None


def _without_thinking(text: str) -> str:
    # A thought that was begun but not ended hides no answer; one that was ended but not begun was begun in the prompt.
    return _THOUGHT_END.sub("", _THINKING.sub("", text))


def _cap(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    sentence = max(text.rfind(mark, 0, max_chars) for mark in (". ", "! ", "? ", "。"))
    if sentence > max_chars // 3:
        return text[: sentence + 1]
    return f"{text[: max_chars - 1].rsplit(' ', 1)[0]}…"


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _copied(words: list[str], source: list[str]) -> bool:
    """Whether a context's words stand in the source in the same order, nearly all of them."""
    size = min(_COPIED_WORDS, len(words))
    if not size or len(source) < size:
        return False
    known = {tuple(source[i : i + size]) for i in range(len(source) - size + 1)}
    grams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return sum(gram in known for gram in grams) >= _COPIED_SHARE * len(grams)
