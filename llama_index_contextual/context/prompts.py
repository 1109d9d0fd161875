"""The prompt for contexts of a document's chunks.

The prompt starts with the document, or as much of it as fits, so that a server with a prefix cache
processes it only once for all calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import CacheControl, CachePoint, ChatMessage, TextBlock
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.utils import get_tokenizer

from llama_index_contextual.context.documents import position, text_of
from llama_index_contextual.context.source_code import is_code
from llama_index_contextual.utils import dates, metadata
from llama_index_contextual.utils.errors import SettingError
from llama_index_contextual.utils.text import readable

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.context.base import SourceDocument

_OPENING = '<document path="{path}" title="{title}" date="{date}">\n{document}\n</document>\n\n'
_FORM = (
    "Answer with one line per chunk, its number first, in this form and with nothing else:\n"
    "1: <one or two sentences about chunk 1>"
)
CONTEXT_PROMPT = (
    f"{_OPENING}Chunks of this document, by number ({{count}} in all):\n\n{{chunks}}\n\n"
    "For each chunk write a short context, one or two sentences, that situates it within the whole "
    "document and makes it easier to find: say which subject, names, section and time it belongs "
    "to, and replace pronouns by what they stand for. Use only what the document says. Do not "
    f"repeat the chunk. {_FORM}"
)
CODE_PROMPT = (
    f"{_OPENING}Chunks of this source file, by number ({{count}} in all):\n\n{{chunks}}\n\n"
    "For each chunk write a short context, one or two sentences, that makes it easier to find: say "
    "what it defines, what that is for, and which class, module or feature it is part of. Use the "
    f"names that stand in the code. Do not repeat the code. {_FORM}"
)
PROMPTS = (CONTEXT_PROMPT, CODE_PROMPT)
_FIELDS = ("document", "chunks", "count", "path", "title", "date")
_FIELD = re.compile(r"\{(\w+)\}")
_EXCERPT_START = 300  # characters of a long chunk; all of it is in the document
_EXCERPT_END = 100
_OUTLINE_SHARE = 0.25  # of the document's window
_SAMPLE = 20_000  # characters, to estimate how many characters fill the window
_MOST_CHARS_PER_TOKEN = 12  # a longer text cannot fit, so its tokens are not counted
_LEFT_OUT = "[…]"
_BLANK_LINES = re.compile(r"\n{3,}")


@lru_cache(maxsize=64)
def count_tokens(text: str) -> int:
    """Return the number of tokens of a text by LlamaIndex's tokenizer."""
    return len(get_tokenizer()(text))


def prompt_for(document: SourceDocument, prompts: Sequence[str]) -> str:
    """Return the prompt for a document, which is the last one if the document is source code."""
    return prompts[-1] if is_code(document.path) else prompts[0]


def check_prompt(template: str | BasePromptTemplate) -> str:
    """Return a prompt as text, after checking its fields.

    Raises:
        SettingError: The prompt has unknown fields, or lacks ``{document}`` and, after it,
            ``{chunks}``.
    """
    prompt = PromptTemplate(template) if isinstance(template, str) else template
    if not isinstance(prompt, BasePromptTemplate):
        raise SettingError(
            "`prompt` must be a template or a text with {document} and {chunks} "
            f"(got {prompt!r})."
        )
    unknown = sorted(set(prompt.template_vars).difference(_FIELDS, prompt.kwargs))
    if unknown:
        raise SettingError(
            f"`prompt` has unknown fields {unknown}. Use some of {', '.join(_FIELDS)}."
        )
    placeholders: dict[str, Any] = {field: f"{{{field}}}" for field in _FIELDS}
    text: str = prompt.format(**placeholders)
    if not 0 <= text.find("{document}") <= text.find("{chunks}"):
        raise SettingError(
            "`prompt` must contain {document} and, after it, {chunks}. A server reads the document "
            "only once for all calls if it comes first."
        )
    return text


class FilledPrompt(NamedTuple):
    """The prompt of one call: the shown document, and the texts before and after it."""

    before: str
    document: str
    after: str

    @property
    def tokens(self) -> int:
        """Return the length of the prompt by LlamaIndex's tokenizer."""
        return count_tokens(self.document) + count_tokens(f"{self.before}\n{self.after}")

    def messages(self, *, cache_point: bool) -> list[ChatMessage]:
        """Return the prompt as chat messages.

        Args:
            cache_point: Whether to mark the end of the document, which Anthropic's API needs for
                its prompt cache.
        """
        if not cache_point:
            return [ChatMessage("".join(self))]
        shared = TextBlock(text=f"{self.before}{self.document}")
        mark = CachePoint(cache_control=CacheControl(type="ephemeral"))
        return [ChatMessage([shared, mark, TextBlock(text=self.after)])]


def fill_prompt(
    prompt: str,
    nodes: Sequence[BaseNode],
    document: SourceDocument,
    outline: Sequence[BaseNode],
    window: int,
) -> FilledPrompt:
    """Return the prompt for some chunks.

    Args:
        prompt: A prompt from :func:`check_prompt`.
        nodes: The chunks.
        document: Their document.
        outline: All known chunks of the document.
        window: The maximum number of tokens of the document to show.
    """
    values = {**document.metadata, **nodes[0].metadata}
    facts = {
        "path": document.path,
        "title": metadata.text_value(values, metadata.TITLE),
        "count": len(nodes),
        "date": dates.date_in_words(metadata.value_of(values, metadata.DATE)),
    }
    fields = {name: " ".join(str(fact).replace('"', "'").split()) for name, fact in facts.items()}
    fields["chunks"] = _numbered(nodes)
    before, _, after = prompt.partition("{document}")
    shown = shown_document(nodes, document, outline, window)
    return FilledPrompt(_filled(before, fields), shown, _filled(after, fields))


def _filled(template: str, fields: Mapping[str, str]) -> str:
    return _FIELD.sub(lambda field: fields.get(field[1], field[0]), template)


def shown_document(
    nodes: Sequence[BaseNode], document: SourceDocument, outline: Sequence[BaseNode], window: int
) -> str:
    """Return the document, or its outline and the text around the chunks if it does not fit.

    The arguments are those of :func:`fill_prompt`.
    """
    text = _compact(document.text).strip("\n")
    if len(text) <= window * _MOST_CHARS_PER_TOKEN and count_tokens(text) <= window:
        return text

    sample = text[:_SAMPLE]
    most_chars = window * len(sample) // max(1, count_tokens(sample))
    sections = dict.fromkeys(filter(None, map(_section, outline)))
    headings = "\n".join(sections)[: int(most_chars * _OUTLINE_SHARE)]

    start, _ = position(nodes[0], document)
    _, end = position(nodes[-1], document)
    margin = max(0, most_chars - len(headings) - (end - start)) // 2
    surroundings = _compact(document.text[max(0, start - margin) : end + margin])
    parts = [
        "(The document is longer than what is shown here.)",
        f"Its outline:\n{headings}" if headings else "",
        f"{_LEFT_OUT}\n{surroundings[: most_chars - len(headings)]}\n{_LEFT_OUT}",
    ]
    return "\n\n".join(filter(None, parts))


def _compact(text: str) -> str:
    """Return a text without encoded bytes and without repeated blank lines."""
    return _BLANK_LINES.sub("\n\n", readable(text))


def _numbered(nodes: Sequence[BaseNode]) -> str:
    """List numbered chunks, each with its section and its text or, if that is long, an excerpt."""
    parts = []
    for number, node in enumerate(nodes, 1):
        section = _section(node).replace('"', "'")
        attribute = f' section="{section}"' if section else ""
        text = _excerpt(readable(text_of(node)).strip())
        parts.append(f'<chunk number="{number}"{attribute}>\n{text}\n</chunk>')
    return "\n".join(parts)


def _excerpt(text: str) -> str:
    if len(text) <= _EXCERPT_START + _EXCERPT_END:
        return text
    start = text[:_EXCERPT_START].rsplit(" ", 1)[0]
    end = text[-_EXCERPT_END:]
    return f"{start} {_LEFT_OUT} {end.partition(' ')[2] or end}"


def _section(node: BaseNode) -> str:
    return metadata.text_value(node.metadata, metadata.HEADER_PATH)
