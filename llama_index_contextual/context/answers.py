"""From a model's answer to contexts: matched to chunks by number, cleaned, and refused where they are none."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Final

from llama_index_contextual.context.base import MAX_CHARS
from llama_index_contextual.text import replace_surrogates

MOST_READ: Final = 8000  # characters of an answer for each chunk that was asked about; a context is far shorter
_MIN_LETTERS: Final = 8
_COPIED_WORDS: Final = 6  # so many words in a row are a quotation
_COPIED_SHARE: Final = 0.6
_NEAR_SHARE: Final = 0.85  # of a context's words that stand in the chunk in the same order
_LOOP_WORDS: Final = 12  # a shorter context may well say most of its words twice
_LOOP_SHARE: Final = 0.4  # of a context's words that differ from all before them

_THINKING: Final = re.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_THOUGHT_END: Final = re.compile(r"\A.*</(?:think|thinking|reasoning)>", re.DOTALL | re.IGNORECASE)
_FENCE: Final = re.compile(r"^[^\S\n]*(?:```|~~~)[^\n]*$", re.MULTILINE)
_TAG: Final = re.compile(r"</?(?:context|answer|chunk|output|response|summary)\b[^<>\n]*>", re.IGNORECASE)
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
_MARKUP: Final = re.compile(r"^[^\S\n]*(?:#{1,6}\s+|[-*+•]\s+|>\s+)", re.MULTILINE)
_EMPHASIS: Final = re.compile(r"\*\*(?=\S)([^*\n]+(?:\*(?!\*)[^*\n]*)*)(?<=\S)\*\*")  # __ is part of names
_QUOTES: Final = ('""', "''", "\u201c\u201d", "\u2018\u2019", "«»", "``")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u2028\u2029]")
_LOOP: Final = re.compile(r"(\w.{0,30}?)(?:\W{0,3}\1){5,}")  # a word, number or phrase six times
_SECOND_ANSWER: Final = re.compile(
    r"(?:^|\s)1\s*[:.)]\s.+\s2\s*[:.)]\s|[.!?]\W{0,2}\s(?:chunk\s+)?[2-9]\s*[:)]\s|\bchunk 1\b.*\bchunk 2\b",
    re.IGNORECASE,
)
_PLACEHOLDER: Final = re.compile(r"\W*(?:the )?context (?:of|for) (?:the )?chunk(?: \d+)?\W*", re.IGNORECASE)
_DATA: Final = re.compile(  # without the quote before a key, which may have looked like one around the whole
    r"^\W*\{|^\s*\[\s*[\"'\[{]|(?:^|[\"'])(?:context|chunk|text|answer|number|id|\d+)[\"']\s*:", re.IGNORECASE
)
_ABOUT_CHUNK: Final = re.compile(r"\b(?:chunk|part|number|item)s?\s+\d+", re.IGNORECASE)
_DIGITS: Final = re.compile(r"\d+")
_NUMBERS: Final = re.compile(r"\d{1,40}(?:[,\u2019']\d{3}(?!\d))*")
_NUMERALS: Final = "two three four five six seven eight nine ten eleven twelve"  # "one" is any
_IDENTIFIER: Final = re.compile(
    r"`([^`]+)`|\b(\w+_\w+)\b|\b([a-z]{2,}[A-Z][a-z]\w*)\b|\b([A-Za-z]\w*(?:\.[A-Za-z]\w*)*\(\))"
)
_MOST_WORDS: Final = 1000  # of a chunk that a context is compared with
_REFUSAL: Final = re.compile(
    r"^(?:i(?:'m| am)\s+(?:sorry|unable|not able|an? (?:ai|language))|sorry\b"
    r"|i\s+(?:can(?:no|')t|do not have|don't have)|as an ai\b|unfortunately,? i\b|(?:please|could you)\s+provide\b"
    r"|(?:there is )?no (?:context|chunk|document)\b|n/?a\.?$|none\.?$|lo siento\b|no puedo\b)",
    re.IGNORECASE,
)


def split_answers(answer: str, count: int) -> dict[int, str]:
    """Match a model's answer to the chunks that it was asked about.

    Args:
        answer: The answer. After its thoughts, so much is read as contexts for all chunks could take.
        count: How many chunks it was asked about; it knows them as 1 to ``count``.

    Returns:
        Cleaned contexts by number, without those that the model left out. Empty when it gave a number twice or one that
        was not asked for, because its numbering then means nothing.
    """
    text = _without_thinking(answer)[: MOST_READ * count]
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


def clean(text: str) -> str:
    """A context without all that models wrap it in: one line of at most ``MAX_CHARS``, which can be stored."""
    text = _TAG.sub("", _FENCE.sub("", _without_thinking(replace_surrogates(text)[0])[:MOST_READ]))
    text = _PREAMBLE.sub("", _CONTROL.sub(" ", text).strip(), count=1)
    text = " ".join(_EMPHASIS.sub(r"\1", _MARKUP.sub("", text)).split())
    while len(text) > 1 and text[0] + text[-1] in _QUOTES:
        text = text[1:-1].strip()
    if len(text) <= MAX_CHARS:
        return text
    sentence = max(text.rfind(mark, 0, MAX_CHARS) for mark in (". ", "! ", "? ", "。"))
    if sentence > MAX_CHARS // 3:
        return text[: sentence + 1]
    return f"{text[: MAX_CHARS - 1].rsplit(' ', 1)[0]}…"


def refusal(context: str, chunk: str, document: str, prompt: str = "") -> str | None:
    """The reason why a cleaned context is none, in the same words for the same reason; None where it is one.

    Args:
        context: Of the chunk.
        chunk: Its text.
        document: What the model knew besides: the document with its path, title and date.
        prompt: The instructions.
    """
    words = _words(context)
    loop = len(words) >= _LOOP_WORDS and len(set(words)) < _LOOP_SHARE * len(words)
    checks: dict[str, object] = {
        "repetition": loop or _LOOP.search(context),
        "empty": sum(character.isalnum() for character in context) < _MIN_LETTERS,
        "refused": _REFUSAL.match(context),
        "data instead of a sentence": _DATA.search(context),
        "several answers": _SECOND_ANSWER.search(context),
        "copy of the prompt": _PLACEHOLDER.match(context) or _copied(words[:_COPIED_WORDS], _spaced(prompt)),
        "copy of the chunk": _copied(words, _spaced(chunk)) or _nearly_copied(words, _words(chunk)),
        "copy of the document": _copied(words, _spaced(document)),
        "invented": _invented(context, f"{document}\n{chunk}"),
    }
    return next((reason for reason, holds in checks.items() if holds), None)


def _invented(context: str, source: str) -> bool:
    """Whether a context has a number, date or identifier that stands in nothing that the model knew.

    A number counts in any form (``1,000``, ``05``, ``five``), a date as the numbers that it consists of. Identifiers
    are what no prose has: ``snake_case``, ``camelCase``, ``a.b()`` and what stands between backticks.
    """
    sentence = _ABOUT_CHUNK.sub("", context)
    folded, numerals = " ".join(source.casefold().split()), dict(enumerate(_NUMERALS.split(), 2))
    for match in _NUMBERS.finditer(sentence):
        number = int(re.sub(r"\D", "", match[0]))
        forms = [str(number), f"{number:,}".replace(",", "[,.\u2019' ]")]
        numeral = rf"|\b{numerals[number]}\b" if number in numerals else ""
        if not re.search(rf"(?<!\d)0*(?:{'|'.join(forms)})(?!\d){numeral}", folded):
            return True
    names = (next(filter(None, match.groups())) for match in _IDENTIFIER.finditer(sentence))
    return not all(" ".join(name.casefold().removesuffix("()").split()) in folded for name in names)


def _nearly_copied(words: list[str], source: list[str]) -> bool:
    """Whether nearly all of a context's words stand in the source in the same order, if not side by side."""
    if len(words) < _COPIED_WORDS:
        return False
    blocks = SequenceMatcher(None, words, source[:_MOST_WORDS], autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) >= _NEAR_SHARE * len(words)


def _without_thinking(text: str) -> str:
    # A thought that was begun but not ended hides no answer; one that was ended but not begun was begun in the prompt.
    return _THOUGHT_END.sub("", _THINKING.sub("", text))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


@lru_cache(maxsize=8)  # all chunks of a document are compared with it
def _spaced(text: str) -> str:
    return f" {' '.join(_words(text))} "


def _copied(words: list[str], source: str) -> bool:
    """Whether most of a context's words stand in the source side by side."""
    size = min(_COPIED_WORDS, len(words))
    grams = [f" {' '.join(words[i : i + size])} " for i in range(len(words) - size + 1)]
    return size > 0 and sum(gram in source for gram in grams) >= _COPIED_SHARE * len(grams)
