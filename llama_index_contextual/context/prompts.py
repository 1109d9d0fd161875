"""The prompt: as much of the document as fits, first, so that a server reads it once; then the chunks."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llama_index.core.base.llms.types import CacheControl, CachePoint, ChatMessage, TextBlock
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.schema import MetadataMode
from llama_index.core.utils import get_tokenizer

from llama_index_contextual.context.documents import position
from llama_index_contextual.context.source_code import is_code
from llama_index_contextual.errors import SettingError
from llama_index_contextual.metadata import DATE, HEADER_PATH, HEADER_SEPARATOR, TITLE, value_of
from llama_index_contextual.text import date_in_words, readable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.context.base import SourceDocument

_OPENING: Final = '<document path="{path}" title="{title}" date="{date}">\n{document}\n</document>\n\n'
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
_INSTRUCTION_TOKENS: Final = 300
_EXCERPT_CHARS: Final = 400  # of a longer chunk the prompt shows the beginning and the end: the document shows it all
_CHARS_PER_TOKEN: Final = 3  # few, so that what is reserved suffices in any language with an alphabet
_MARK_TOKENS: Final = 30  # around each chunk
_SAFETY: Final = 0.9  # our tokenizer is not the model's
_LEAST_WINDOW: Final = 500  # tokens of a model
_OUTLINE_SHARE: Final = 0.25  # of the room for the document
_SPAN_SHARE: Final = 0.5  # of it for the chunks of one call; the rest is what surrounds them
_MAX_CHARS_PER_TOKEN: Final = 12  # a text this much longer than the room need not be counted
_LEFT_OUT: Final = "[…]"
_PADDING: Final = re.compile(r"\n{3,}")


@lru_cache(maxsize=64)
def count_tokens(text: str) -> int:
    """Count tokens as LlamaIndex does; the same document is counted for each of its calls."""
    return len(get_tokenizer()(text))


def _fits(text: str, window: int) -> bool:
    """Whether a text may be shown as a whole."""
    return len(text) <= window * _MAX_CHARS_PER_TOKEN and count_tokens(text) <= window


def _room(text: str, window: int) -> int:
    """About how many of a text's characters may be shown."""
    sample = text[:20_000]
    return int(window * len(sample) / max(1, count_tokens(sample)))


class PromptBudget:
    """How much goes into a call; what an answer has taught is known to later runs of the same generator.

    Args:
        batch_size: Chunks of a call at most.
        output_tokens: Tokens of a context at most.

    Attributes:
        window: Tokens of a document that may be shown.
        size: How many chunks a call has at most.
    """

    def __init__(self, batch_size: int, output_tokens: int) -> None:
        self.window, self.size = 0, batch_size
        self._per_chunk = _EXCERPT_CHARS // _CHARS_PER_TOKEN + output_tokens + _MARK_TOKENS
        self._tokens = 10**9  # of the window that is known to do

    def divide(self, tokens: int) -> None:
        """Divide a model's window of so many tokens between the document and the rest, before a run."""
        self._tokens = tokens = min(tokens, self._tokens)
        self.size = max(1, min(self.size, tokens // 2 // self._per_chunk))
        room = int((tokens - self.size * self._per_chunk - _INSTRUCTION_TOKENS) * _SAFETY)
        self.window = max(1, room, tokens // 8)

    def shrink(self, window: int) -> bool:
        """Show less from now on, because a prompt for this window did not fit; False if that is hopeless."""
        if window == self.window:  # else another call has done it
            self.divide(self._tokens // 2)
        return self._tokens > _LEAST_WINDOW


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
        raise SettingError("is no prompt. Cure: a text with {document} and {chunks}, or a template.", prompt=prompt)
    if unknown := sorted(set(prompt.template_vars).difference(_FIELDS, prompt.kwargs)):
        raise SettingError(f"The context prompt has unknown fields {unknown}. Cure: use some of {', '.join(_FIELDS)}.")
    names: dict[str, Any] = {field: f"{{{field}}}" for field in _FIELDS}
    text: str = prompt.format(**names)
    if not 0 <= text.find("{document}") <= text.find("{chunks}"):
        why = "servers read the document, which calls share, only once where it comes first"
        cure = "Cure: name both, in this order."
        raise SettingError(f"The context prompt must hold {{document}} and after it {{chunks}}: {why}. {cure}")
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
        return [ChatMessage([first, CachePoint(cache_control=CacheControl(type="ephemeral")), last])]


def fill_prompt(
    prompt: str, nodes: Sequence[BaseNode], document: SourceDocument, outline: Sequence[BaseNode], window: int
) -> FilledPrompt:
    """The prompt about some chunks; see :func:`shown` and :func:`check_prompt`."""
    metadata = {**document.metadata, **nodes[0].metadata}
    about = {"path": document.path, "title": value_of(metadata, TITLE) or "", "count": len(nodes)}
    about["date"] = date_in_words(value_of(metadata, DATE))
    fields = {name: " ".join(str(value).replace('"', "'").split()) for name, value in about.items()}
    fields["chunks"] = _describe(nodes)
    before, _, after = prompt.partition("{document}")
    before, after = (_FIELD.sub(lambda match: fields.get(match[1], match[0]), part) for part in (before, after))
    return FilledPrompt(before, shown(nodes, document, outline, window), after)


def calls_of(nodes: Sequence[BaseNode], document: SourceDocument, size: int, window: int) -> list[list[BaseNode]]:
    """Split chunks into calls of at most ``size``; chunks of one call lie together where the document does not fit."""
    if _fits(_without_padding(document), window):
        return [list(nodes[start : start + size]) for start in range(0, len(nodes), size)]
    room = int(_room(document.text, window) * _SPAN_SHARE)
    result: list[list[BaseNode]] = []
    first = 0
    for node in nodes:
        start, end = position(node, document)
        if result and len(result[-1]) < size and end - first <= room:
            result[-1].append(node)
        else:
            result.append([node])
            first = start
    return result


def shown(nodes: Sequence[BaseNode], document: SourceDocument, outline: Sequence[BaseNode], window: int) -> str:
    """The part of a document that a call for some chunks shows; what is left out is marked.

    Args:
        nodes: The chunks that the call is about.
        document: Their document.
        outline: All known chunks of it, whose header paths are its outline.
        window: Tokens of it that may be shown.
    """
    if _fits(visible := _without_padding(document), window):
        return visible
    room = _room(document.text, window)
    headings = _outline(outline, int(room * _OUTLINE_SHARE))
    around = _neighbourhood(nodes, document, room - len(headings))
    note = "(The document is longer than what is shown here.)"
    return "\n\n".join(filter(None, [note, headings and f"Its outline:\n{headings}", around]))


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
    return str(value_of(node.metadata, HEADER_PATH) or "")


def _without_padding(document: SourceDocument) -> str:
    """A document's text without encoded bytes, and without the lines that only keep offsets where it was joined."""
    text = readable(document.text)
    return _PADDING.sub("\n\n", text).strip("\n") if document.is_joined else text


def _outline(nodes: Sequence[BaseNode], room: int) -> str:
    """The header paths of a document, within so many characters: inner headings go first, then the last."""
    paths = [path.split(HEADER_SEPARATOR) for path in map(_section, nodes) if path.strip("/ ")]
    outline = ""
    for depth in range(max(map(len, paths), default=0), 0, -1):
        outline = "\n".join(dict.fromkeys(HEADER_SEPARATOR.join(path[:depth]) for path in paths))
        if len(outline) <= room:
            return outline
    return f"{outline[:room].rpartition(chr(10))[0]}\n{_LEFT_OUT}" if outline else ""


def _neighbourhood(nodes: Sequence[BaseNode], document: SourceDocument, room: int) -> str:
    spans, text = [position(node, document) for node in nodes], document.text
    start, end = min(span[0] for span in spans), max(span[1] for span in spans)
    spare = max(0, room - (end - start)) // 2
    left, right = max(0, start - spare), min(len(text), end + spare)
    if left:  # at a line's start, if there is one
        left = text.find("\n", left, start) + 1 or left
    if right < len(text):
        right = max(text.rfind("\n", end, right), 0) or right
    body = readable(_PADDING.sub("\n\n", text[left:right]))
    if len(body) > room:  # one chunk longer than the room: its ends say most
        body = f"{body[: room // 2]}\n{_LEFT_OUT}\n{body[-(room // 2) :]}"
    return f"{_LEFT_OUT if left else ''}\n{body}\n{_LEFT_OUT if right < len(text) else ''}".strip("\n")
