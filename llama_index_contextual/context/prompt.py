"""What the model is asked: the document first, so that a server reads it once, and the chunks after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from llama_index.core.base.llms.types import CacheControl, CachePoint, ChatMessage, MessageRole, TextBlock
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import MetadataMode

from llama_index_contextual.errors import SettingError
from llama_index_contextual.metadata import HEADER_PATH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.prompts import BasePromptTemplate
    from llama_index.core.schema import BaseNode

CONTEXT_PROMPT: Final = PromptTemplate(
    "<document>\n{document}\n</document>\n\n"
    "Chunks of this document, by number ({count} in all):\n\n{chunks}\n\n"
    "For each chunk write a short context, one or two sentences, that situates it within the whole document and makes "
    "it easier to find: say which subject, names, section and time it belongs to, and replace pronouns by what they "
    "stand for. Do not repeat the chunk. Answer with one line per chunk, its number first, in this form and with "
    "nothing else:\n"
    "1: context of chunk 1"
)
_DOCUMENT_MARK: Final = "\x00document\x00"
_FIELDS: Final = ("document", "chunks")


def check_prompt(prompt: BasePromptTemplate) -> None:
    """Raise SettingError unless a prompt shows document and chunks, in this order."""
    text = prompt.format(document="\x00document", chunks="\x00chunks", count="")
    positions = [text.find(f"\x00{field}") for field in _FIELDS]
    if -1 in positions or positions != sorted(positions):
        raise SettingError(
            "The context prompt must hold {document} and after it {chunks}: servers read the part that calls share, "
            "the document, only once where it comes first. Cure: name both, in this order."
        )


def describe_chunks(nodes: Sequence[BaseNode], excerpt: int | None) -> str:
    """List chunks by number, each with its section and its text.

    Args:
        nodes: The chunks of one call.
        excerpt: A longer chunk is shown by its beginning and end, together so many characters: the document
            shows all of it. None shows all of it again.
    """
    parts = []
    for number, node in enumerate(nodes, 1):
        section = str(node.metadata.get(HEADER_PATH) or "").replace('"', "'")
        attribute = f' section="{section}"' if section else ""
        text = _shorten(node.get_content(metadata_mode=MetadataMode.NONE).strip(), excerpt)
        parts.append(f'<chunk number="{number}"{attribute}>\n{text}\n</chunk>')
    return "\n".join(parts)


def messages(
    prompt: BasePromptTemplate, document: str, chunks: str, count: int, *, cache_point: bool
) -> list[ChatMessage]:
    """Fill in the prompt.

    Args:
        prompt: See :func:`check_prompt`.
        document: The document as it is shown.
        chunks: See :func:`describe_chunks`.
        count: How many they are.
        cache_point: Whether to mark the end of the document, as Anthropic's interface wants it.
    """
    before, _, after = prompt.format(document=_DOCUMENT_MARK, chunks=chunks, count=count).partition(_DOCUMENT_MARK)
    if not cache_point:
        return [ChatMessage(role=MessageRole.USER, content=f"{before}{document}{after}")]
    blocks = [
        TextBlock(text=f"{before}{document}"),
        CachePoint(cache_control=CacheControl(type="ephemeral")),
        TextBlock(text=after),
    ]
    return [ChatMessage(role=MessageRole.USER, content=blocks)]


def _shorten(text: str, excerpt: int | None) -> str:
    if excerpt is None or len(text) <= excerpt:
        return text
    head = text[: excerpt * 3 // 4].rsplit(" ", 1)[0]
    tail = text[-(excerpt // 4) :].partition(" ")[2] or text[-(excerpt // 4) :]
    return f"{head} […] {tail}"
