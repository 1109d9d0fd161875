"""The prompt: as much of the document as fits, first, so that a server reads it once; then the chunks. The answer."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, NamedTuple

from llama_index.core.base.llms.types import CacheControl, CachePoint, ChatMessage, TextBlock
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.utils import get_tokenizer

from llama_index_contextual.context.base import MAX_CHARS, SourceDocument, position
from llama_index_contextual.context.headings import is_code
from llama_index_contextual.utils import dates
from llama_index_contextual.utils import metadata as meta
from llama_index_contextual.utils.errors import SettingError
from llama_index_contextual.utils.text import readable, replace_surrogates

_OPENING: Final = (
    '<document path="{path}" title="{title}" date="{date}">\n{document}\n</document>\n\n'
)
_FORM: Final = (
    "Answer with one line per chunk, its number first, in this form and with nothing else:\n"
    "1: <one or two sentences about chunk 1>"
)
CONTEXT_PROMPT: Final = (
    _OPENING + "Chunks of this document, by number ({count} in all):\n\n{chunks}\n\n"
    "For each chunk write a short context, one or two sentences, that situates it within the whole document and makes "
    "it easier to find: say which subject, names, section and time it belongs to, and replace pronouns by what they "
    "stand for. Use only what the document says. Do not repeat the chunk. " + _FORM
)
CODE_PROMPT: Final = (
    _OPENING + "Chunks of this source file, by number ({count} in all):\n\n{chunks}\n\n"
    "For each chunk write a short context, one or two sentences, that makes it easier to find: say what it defines, "
    "what that is for, and which class, module or feature it is part of. Use the names that stand in the code. "
    "Do not repeat the code. " + _FORM
)
PROMPTS: Final = (CONTEXT_PROMPT, CODE_PROMPT)
_FIELDS: Final = ("document", "chunks", "count", "path", "title", "date")
_FIELD: Final = re.compile(r"\{(\w+)\}")
_EXCERPT_CHARS: Final = (
    400  # of a longer chunk the prompt shows the beginning and the end: the document shows it all
)
_OUTLINE_SHARE: Final = 4  # a fourth of the room for the document
_MAX_CHARS_PER_TOKEN: Final = 12  # a text this much longer than the room need not be counted
_LEFT_OUT: Final = "[…]"
_PADDING: Final = re.compile(r"\n{3,}")


@lru_cache(maxsize=64)
def count_tokens(text: str) -> int:
    """Count tokens as LlamaIndex does; the same document is counted for each of its calls."""
    return len(get_tokenizer()(text))


def prompt_for(document: SourceDocument, prompts: Sequence[str]) -> str:
    """The prompt for a document, of those for prose and for source code."""
    return prompts[-1] if is_code(document.path) else prompts[0]


def check_prompt(template: str | BasePromptTemplate) -> str:
    """A prompt as a text that shows document and chunks, in this order, and has no unknown field.

    Raises:
        SettingError: It does not.
    """
    prompt = PromptTemplate(template) if isinstance(template, str) else template
    if not isinstance(prompt, BasePromptTemplate):
        raise SettingError(
            "`prompt` must be a template or a text with {document} and {chunks} "
            f"(got {prompt!r})."
        )
    if unknown := sorted(set(prompt.template_vars).difference(_FIELDS, prompt.kwargs)):
        raise SettingError(
            f"The context prompt has unknown fields {unknown}. Cure: use some of {', '.join(_FIELDS)}."
        )
    names: dict[str, Any] = {field: f"{{{field}}}" for field in _FIELDS}
    text: str = prompt.format(**names)
    if not 0 <= text.find("{document}") <= text.find("{chunks}"):
        why = "servers read the document, which calls share, only once where it comes first"
        cure = "Cure: name both, in this order."
        raise SettingError(
            f"The context prompt must hold {{document}} and after it {{chunks}}: {why}. {cure}"
        )
    return text


class FilledPrompt(NamedTuple):
    """The prompt of a call: what stands before the document, the document as it is shown, and the chunks after it."""

    before: str
    document: str
    after: str

    @property
    def tokens(self) -> int:
        """Its length by LlamaIndex's tokenizer."""
        return count_tokens(self.document) + count_tokens(f"{self.before}\n{self.after}")

    def messages(self, *, cache_point: bool) -> list[ChatMessage]:
        """The messages of a chat; ``cache_point`` marks the end of the document, as Anthropic's interface wants it."""
        if not cache_point:
            return [ChatMessage("".join(self))]
        first, last = TextBlock(text=f"{self.before}{self.document}"), TextBlock(text=self.after)
        return [
            ChatMessage([first, CachePoint(cache_control=CacheControl(type="ephemeral")), last])
        ]


def fill_prompt(
    prompt: str,
    nodes: Sequence[BaseNode],
    document: SourceDocument,
    outline: Sequence[BaseNode],
    window: int,
) -> FilledPrompt:
    """The prompt about some chunks; see :func:`shown` and :func:`check_prompt`."""
    metadata = {**document.metadata, **nodes[0].metadata}
    about = {
        "path": document.path,
        "title": meta.value_of(metadata, meta.TITLE) or "",
        "count": len(nodes),
    }
    about["date"] = dates.date_in_words(meta.value_of(metadata, meta.DATE))
    fields = {name: " ".join(str(value).replace('"', "'").split()) for name, value in about.items()}
    fields["chunks"] = _describe(nodes)
    before, _, after = prompt.partition("{document}")
    before, after = (
        _FIELD.sub(lambda match: fields.get(match[1], match[0]), part) for part in (before, after)
    )
    return FilledPrompt(before, shown(nodes, document, outline, window), after)


def shown(
    nodes: Sequence[BaseNode], document: SourceDocument, outline: Sequence[BaseNode], window: int
) -> str:
    """The part of a document that a call for some chunks shows: its outline and what is around them, if not all of it.

    Args:
        nodes: The chunks that the call is about.
        document: Their document.
        outline: All known chunks of it, whose header paths are its outline.
        window: Tokens of it that may be shown.
    """
    text = _PADDING.sub("\n\n", readable(document.text)).strip("\n")
    if len(text) <= window * _MAX_CHARS_PER_TOKEN and count_tokens(text) <= window:
        return text
    sample = text[:20_000]
    room = int(window * len(sample) / max(1, count_tokens(sample)))  # characters, about
    headings = "\n".join(dict.fromkeys(filter(None, map(_section, outline))))[
        : room // _OUTLINE_SHARE
    ]
    start, end = position(nodes[0], document)[0], position(nodes[-1], document)[1]
    spare = max(0, room - len(headings) - (end - start)) // 2
    around = document.text[max(0, start - spare) : end + spare]
    around = _PADDING.sub("\n\n", readable(around))[: room - len(headings)]
    outlined = f"Its outline:\n{headings}" if headings else ""
    note = "(The document is longer than what is shown here.)"
    return "\n\n".join(filter(None, [note, outlined, f"{_LEFT_OUT}\n{around}\n{_LEFT_OUT}"]))


def _describe(nodes: Sequence[BaseNode]) -> str:
    """List chunks by number, each with its section and its text, or the two ends of it where it is long."""
    parts = []
    for number, node in enumerate(nodes, 1):
        section = _section(node).replace('"', "'")
        attribute = section and f' section="{section}"'
        text = readable(node.get_content(metadata_mode=MetadataMode.NONE)).strip()
        if len(text) > _EXCERPT_CHARS:
            start, end = text[: _EXCERPT_CHARS * 3 // 4], text[-(_EXCERPT_CHARS // 4) :]
            text = f"{start.rsplit(' ', 1)[0]} {_LEFT_OUT} {end.partition(' ')[2] or end}"
        parts.append(f'<chunk number="{number}"{attribute}>\n{text}\n</chunk>')
    return "\n".join(parts)


def _section(node: BaseNode) -> str:
    return str(meta.value_of(node.metadata, meta.HEADER_PATH) or "")


MOST_READ: Final = (
    8000  # characters of an answer for each chunk that was asked about; a context is far shorter
)
_MIN_LETTERS: Final = 8
_COPIED_WORDS: Final = 6  # so many words in a row are a quotation
_COPIED_SHARE: Final = 0.6
_LOOP_WORDS: Final = 12  # a shorter context may well say most of its words twice
_LOOP_SHARE: Final = 0.4  # of a context's words that differ from all before them

_THOUGHTS: Final = (
    re.compile(  # up to their end, which may have been begun in the prompt; or without one
        r"\A.*(?:[<\[◁]/(?:think|thinking|reasoning)[>\]▷]|<\|message\|>)"
        r"|(?:[<◁]|\A\s*\[)(?:think|thinking|reasoning)[>\]▷].*\Z",
        re.DOTALL | re.IGNORECASE,
    )
)
_WRAPPING: Final = re.compile(
    r"^[^\S\n]*(?:```|~~~)[^\n]*$|</?(?:context|answer|chunk|output|response|summary)\b[^<>\n]*>|<\|\w+\|>",
    re.MULTILINE | re.IGNORECASE,
)
_NUMBER: Final = (
    re.compile(  # also as the tag of a chunk in the prompt, or as the first cell of a table
        r"^[ \t>*#_|-]*(?P<word><?(?:chunk|context)\s*(?:number\s*=?\s*\"?|no\.?\s*)?)?"
        r"[#\[(]?(?P<number>\d{1,3})(?:\"[^<>\n]*>|[\])]?\**[^\S\n]*"
        r"(?:[.:)|\-\u2013\u2014\u3001\u3002\uff09\uff0e\uff1a]|(?(word)$|(?!))))[*_ \t]*(?=\S|$)",
        re.MULTILINE | re.IGNORECASE,
    )
)
_PREAMBLE: Final = re.compile(
    r"^\s*(?:(?:sure|certainly|of course|okay|ok)[,!.:]?\s*)?"
    r"(?:(?:here(?:'s| is| are)|below is|this is)\b[^.:\n]{0,80}:"
    r"|(?:the )?(?:succinct |short )?(?:context|answer|summary):)\s*",
    re.IGNORECASE,
)
_MARKUP: Final = re.compile(r"^[^\S\n]*(?:#{1,6}\s+|[-*+•]\s+|>\s+)", re.MULTILINE)
_QUOTES: Final = ('""', "''", "\u201c\u201d", "\u2018\u2019", "«»", "``")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u2028\u2029]")
_LOOP: Final = re.compile(r"(\w.{0,30}?)(?:\W{0,3}\1){5,}")  # a word, number or phrase six times
_ABOUT_CHUNK: Final = re.compile(r"\b(?:chunk|part|number|item)s?\s+\d+", re.IGNORECASE)
_THOUSANDS: Final = re.compile(r"(?<=\d)[,.\u2019'](?=\d{3}(?!\d))")
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
    text = _THOUGHTS.sub("", answer)[: MOST_READ * count]
    listed = _texts_of_json(text)
    marks = list(_NUMBER.finditer(text))
    numbers = [int(mark["number"]) for mark in marks]
    if len(listed) == count:
        contexts = dict(enumerate(map(clean, listed), 1))
    elif count == 1 and 1 not in numbers:
        contexts = {1: clean(text)}
    elif len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(1, count + 1)):
        return {}
    else:
        ends = [*(mark.start() for mark in marks[1:]), len(text)][: len(marks)]
        contexts = {
            at: clean(text[mark.end() : end])
            for at, mark, end in zip(numbers, marks, ends, strict=True)
        }
    return {number: context for number, context in contexts.items() if context}


def _texts_of_json(answer: str) -> list[str]:
    """The texts in an answer that is JSON, or ends with it after a line break or a colon, in their order; else none."""
    text, texts = _WRAPPING.sub("", answer).strip(), list[str]()
    start = min((at for at in map(text.find, "[{") if at >= 0), default=0)
    with suppress(ValueError, RecursionError):
        parts = (
            [json.loads(text[start:])] if text[:start].rstrip(" \t")[-1:] in ("", "\n", ":") else []
        )
        while parts:
            part = parts.pop()
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, dict | list):
                parts += reversed(part.values() if isinstance(part, dict) else part)
    return texts


def clean(text: str) -> str:
    """A context without all that models wrap it in: one line of at most ``MAX_CHARS``, which can be stored."""
    text = _WRAPPING.sub("", replace_surrogates(text)[0][:MOST_READ])
    text = _PREAMBLE.sub("", _CONTROL.sub(" ", text).strip(), count=1)
    text = " ".join(_MARKUP.sub("", text).replace("**", "").split()).strip("| ")
    while len(text) > 1 and text[0] + text[-1] in _QUOTES:
        text = text[1:-1].strip()
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1].rsplit(' ', 1)[0]}…"


def refusal(context: str, chunk: str, document: str, prompt: str = "") -> str:
    """The reason why a cleaned context is none, in the same words for the same reason; "" where it is one.

    Args:
        context: Of the chunk.
        chunk: Its text.
        document: What the model knew besides: the document with its path, title and date.
        prompt: The instructions.
    """
    words = _words(context)
    loop = len(words) >= _LOOP_WORDS and len(set(words)) < _LOOP_SHARE * len(words)
    numbers = set(_numbers(_ABOUT_CHUNK.sub("", context)))
    checks: dict[str, object] = {
        "repetition": loop or _LOOP.search(context),
        "empty": sum(character.isalnum() for character in context) < _MIN_LETTERS,
        "refused": _REFUSAL.match(context),
        "copy of the prompt": _copied(words[:_COPIED_WORDS], _spaced(prompt)),
        "copy": _copied(words, _spaced(chunk)) or _copied(words, _spaced(document)),
        "invented": not numbers.issubset([*_numbers(chunk), *_numbers(document)]),
    }
    return next((reason for reason, holds in checks.items() if holds), "")


@lru_cache(maxsize=8)  # as below
def _numbers(text: str) -> list[str]:
    """The numbers in a text, without zeros before and commas between thousands."""
    return [one.lstrip("0") or "0" for one in re.findall(r"\d+", _THOUSANDS.sub("", text))]


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
