"""The default parser of an index, whose chunks fit the input limit of the embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from llama_index_contextual.app.settings.embeddings import NoEmbedding, embedding_limit
from llama_index_contextual.app.settings.local import LocalEmbedding
from llama_index_contextual.context.source_code import is_code
from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser
from llama_index_contextual.utils.metadata import path_of
from llama_index_contextual.utils.text import MARKDOWN_SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import BaseNode

LARGEST = 400  # tokens of a chunk, even if an embedding reads more
LARGEST_OF_CODE = 400  # the same for source code, with an embedding that averages windows
# Tokens of an embedding's window that are kept free for the context. Contexts of the Kubernetes
# pages ("Document: path > title > section") have 30 tokens at the median, and seldom more than 60.
CONTEXT_RESERVE = 64


class FolderParser(HeadingAwareMarkdownNodeParser):
    """A parser with a separate chunk size for source code.

    Attributes:
        code_chunk_size: The largest chunk of source code in tokens. 0 means ``chunk_size``.
    """

    typed_front_matter: ClassVar[bool] = True  # so that rating>=4 compares numbers
    code_chunk_size: int = 0

    def _parse_document(self, document: BaseNode, seen: Any, above: Any) -> Any:
        if not self.code_chunk_size or not is_code(path_of(document.metadata)):
            return super()._parse_document(document, seen, above)
        sizes = {**_sizes(self.code_chunk_size), "code_chunk_size": 0}
        code_parser = self.model_copy(update=sizes)
        return code_parser._parse_document(document, seen, above)  # noqa: SLF001  of the same class


def _sizes(size: int) -> dict[str, int]:
    """Return a chunk size with its overlap and minimum: for 400 tokens, 80 and 50."""
    return {"chunk_size": size, "chunk_overlap": size // 5, "min_chunk_size": size // 8}


def default_parser(
    embedding: BaseEmbedding, chosen: Mapping[str, Any] | None = None
) -> HeadingAwareMarkdownNodeParser:
    """Return a parser whose chunks, with their contexts, fit the input limit of the embedding.

    Models that read more do not get larger chunks, because smaller ones found more in the same
    number of characters. Source code is an exception: if neither size nor overlap is chosen, the
    local embedding gets larger chunks of it. They contain whole functions more often, and this
    embedding averages the windows of a long text.

    Args:
        embedding: The embedding of the index.
        chosen: Settings of the parser that override the computed ones.
    """
    settings: dict[str, Any] = {"markdown_suffixes": MARKDOWN_SUFFIXES, **(chosen or {})}
    known = embedding_limit(embedding)
    if known is not None:
        tokenizer, limit = known
        is_counted_alike = settings.setdefault("tokenizer", tokenizer) == tokenizer
        if is_counted_alike and "chunk_size" not in settings:
            averages = isinstance(embedding, LocalEmbedding | NoEmbedding)
            is_code_longer = averages and "chunk_overlap" not in settings
            settings["code_chunk_size"] = LARGEST_OF_CODE if is_code_longer else 0
            settings["chunk_size"] = min(max(limit - CONTEXT_RESERVE, limit // 2), LARGEST)
    if "chunk_size" in settings:
        settings = {**_sizes(settings["chunk_size"]), **settings}
    return FolderParser(**settings)
