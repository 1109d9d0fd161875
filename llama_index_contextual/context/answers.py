"""Read the contexts in a model's answer, and reject unusable ones."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache

from llama_index_contextual.utils.text import replace_surrogates

MAX_CHARS = 600  # of a context; the prompt asks for two sentences
MOST_READ = 8000  # characters of an answer per chunk, far more than a context needs
_FEWEST_LETTERS = 8
_COPIED_WORDS = 6  # this many words in a row make a quotation
_COPIED_SHARE = 0.6  # of a context that must be quotations to reject it
_LOOP_WORDS = 12  # a shorter context can repeat most of its words and still be good
_LOOP_SHARE = 0.4  # of distinct words, below which a context is a loop

# Everything up to the end tag, since the prompt can contain the start tag; or thoughts without an
# end.
_THOUGHTS = re.compile(
    r"\A.*(?:[<\[◁]/(?:think|thinking|reasoning)[>\]▷]|<\|message\|>)"
    r"|(?:[<◁]|\A\s*\[)(?:think|thinking|reasoning)[>\]▷].*\Z",
    re.DOTALL | re.IGNORECASE,
)
_WRAPPING = re.compile(
    r"^[^\S\n]*(?:```|~~~)[^\n]*$|</?(?:context|answer|chunk|output|response|summary)\b[^<>\n]*>|<\|\w+\|>",
    re.MULTILINE | re.IGNORECASE,
)
# Also in the form of the prompt's chunk tags, or as the first cell of a table row.
_CHUNK_NUMBER = re.compile(
    r"^[ \t>*#_|-]*(?P<word><?(?:chunk|context)\s*(?:number\s*=?\s*\"?|no\.?\s*)?)?"
    r"[#\[(]?(?P<number>\d{1,3})(?:\"[^<>\n]*>|[\])]?\**[^\S\n]*"
    r"(?:[.:)|\-\u2013\u2014\u3001\u3002\uff09\uff0e\uff1a]|(?(word)$|(?!))))[*_ \t]*(?=\S|$)",
    re.MULTILINE | re.IGNORECASE,
)
_PREAMBLE = re.compile(
    r"^\s*(?:(?:sure|certainly|of course|okay|ok)[,!.:]?\s*)?"
    r"(?:(?:here(?:'s| is| are)|below is|this is)\b[^.:\n]{0,80}:"
    r"|(?:the )?(?:succinct |short )?(?:context|answer|summary):)\s*",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"^[^\S\n]*(?:#{1,6}\s+|[-*+•]\s+|>\s+)", re.MULTILINE)
_QUOTES = ('""', "''", "\u201c\u201d", "\u2018\u2019", "«»", "``")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u2028\u2029]")
_LOOP = re.compile(r"(\w.{0,30}?)(?:\W{0,3}\1){5,}")  # a word, number or phrase six times
_ABOUT_CHUNK = re.compile(r"\b(?:chunk|part|number|item)s?\s+\d+", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<=\d)[,.\u2019'](?=\d{3}(?!\d))")
_APOLOGY = re.compile(
    r"^(?:i(?:'m| am)\s+(?:sorry|unable|not able|an? (?:ai|language))|sorry\b"
    r"|i\s+(?:can(?:no|')t|do not have|don't have)|as an ai\b|unfortunately,? "
    r"i\b|(?:please|could you)\s+provide\b"
    r"|(?:there is )?no (?:context|chunk|document)\b|n/?a\.?$|none\.?$|lo siento\b|no puedo\b)",
    re.IGNORECASE,
)


def split_answers(answer: str, count: int) -> dict[int, str]:
    """Match a model's answer to the chunks of its prompt.

    Args:
        answer: The answer. After its thoughts, at most :data:`MOST_READ` characters per chunk are
            read.
        count: The number of chunks. The prompt numbers them from 1 to ``count``.

    Returns:
        The cleaned contexts by number, without those that the model left out. Empty if the model
        used a number twice or a number that no chunk has, because its numbering cannot be trusted
        then.
    """
    text = _THOUGHTS.sub("", answer)[: MOST_READ * count]
    listed = _texts_of_json(text)
    if len(listed) == count:
        texts = dict(enumerate(listed, 1))
    else:
        texts = _numbered_texts(text, count)
    contexts = {number: clean(part) for number, part in texts.items()}
    return {number: context for number, context in contexts.items() if context}


def _numbered_texts(text: str, count: int) -> dict[int, str]:
    """Return the text after each number. Without a number 1, a single chunk gets all of it."""
    marks = list(_CHUNK_NUMBER.finditer(text))
    numbers = [int(mark["number"]) for mark in marks]
    if count == 1 and 1 not in numbers:
        return {1: text}
    if len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(1, count + 1)):
        return {}
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    triples = zip(numbers, marks, ends, strict=False)
    return {number: text[mark.end() : end] for number, mark, end in triples}


def _texts_of_json(answer: str) -> list[str]:
    """Return the strings of an answer that is JSON, or that ends with JSON on a line of its own."""
    text = _WRAPPING.sub("", answer).strip()
    opening = re.search(r"[\[{]", text)
    start = opening.start() if opening else 0
    if text[:start].rstrip(" \t")[-1:] not in ("", "\n", ":"):
        return []
    try:
        value = json.loads(text[start:])
    except (ValueError, RecursionError):
        return []
    texts: list[str] = []
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            waiting += reversed(part.values())
        elif isinstance(part, list):
            waiting += reversed(part)
    return texts


def clean(text: str) -> str:
    """Return a context without the markup that models add, as one :func:`storable_line`."""
    text = _CONTROL.sub(" ", _WRAPPING.sub("", text[:MOST_READ])).strip()
    text = _MARKUP.sub("", _PREAMBLE.sub("", text)).replace("**", "")
    text = " ".join(text.split()).strip("| ")
    while text and text[0] + text[-1] in _QUOTES:
        text = text[1:-1].strip()
    return storable_line(text)


def storable_line(text: str) -> str:
    """Return a context as one bounded line that every store, server and terminal accepts.

    It cleans the answers of models and the contexts from caches, which anybody could have written.
    """
    text, _ = replace_surrogates(text[:MOST_READ])
    text = " ".join(_CONTROL.sub(" ", text).split())
    if len(text) <= MAX_CHARS:
        return text
    return f"{text[: MAX_CHARS - 1].rsplit(' ', 1)[0]}…"


def refusal(context: str, chunk: str, document: str, prompt: str = "") -> str:
    """Return the reason to reject a cleaned context, in fixed words; "" if it is usable.

    Args:
        context: The context.
        chunk: The text of the chunk.
        document: The text of the document, with its path, title and date.
        prompt: The template of the prompt.
    """
    words = _words(context)
    if _is_loop(context, words):
        return "repetition"
    if sum(map(str.isalnum, context)) < _FEWEST_LETTERS:
        return "empty"
    if _APOLOGY.match(context):
        return "refused"
    if _is_copied(words[:_COPIED_WORDS], prompt):
        return "copy of the prompt"
    if _is_copied(words, chunk) or _is_copied(words, document):
        return "copy"
    numbers = _numbers(_ABOUT_CHUNK.sub("", context))
    return "" if numbers <= _numbers(chunk) | _numbers(document) else "invented"


def _is_loop(context: str, words: Sequence[str]) -> bool:
    """Return whether a context repeats itself again and again."""
    is_long = len(words) >= _LOOP_WORDS
    if is_long and len(set(words)) < _LOOP_SHARE * len(words):
        return True
    return _LOOP.search(context) is not None


def _is_copied(words: Sequence[str], source: str) -> bool:
    """Return whether most of a context consists of quotations from a source."""
    size = min(_COPIED_WORDS, len(words))
    if not size:
        return False
    spaced = _spaced(source)
    runs = [f" {' '.join(words[i : i + size])} " for i in range(len(words) - size + 1)]
    return sum(run in spaced for run in runs) >= _COPIED_SHARE * len(runs)


@lru_cache(maxsize=8)  # all chunks of a document are compared with it
def _numbers(text: str) -> frozenset[str]:
    """Return the numbers in a text without leading zeros and thousands separators; "" for 0."""
    digits = re.findall(r"\d+", _THOUSANDS.sub("", text))
    return frozenset(number.lstrip("0") for number in digits)


@lru_cache(maxsize=8)  # as above
def _spaced(text: str) -> str:
    return f" {' '.join(_words(text))} "


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
