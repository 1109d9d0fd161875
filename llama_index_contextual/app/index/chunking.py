"""The parser of a folder: the size of chunks follows from what the embedding reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

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

LARGEST: Final = 400  # tokens of a chunk, however many more an embedding reads
LARGEST_OF_CODE: Final = 400  # of source code, also where an embedding averages windows
# Tokens of an embedding's window that are kept free for the context. A context of the Kubernetes
# pages ("Document: path > title > section") has 30 at the median and 60 at most of them.
CONTEXT_RESERVE: Final = 64


class FolderParser(HeadingAwareMarkdownNodeParser):
    """A parser with a size of its own for source code.

    Attributes:
        code_chunk_size: The tokens of a chunk of source code; 0 is the size of all other chunks.
    """

    typed_front_matter: ClassVar[bool] = True  # so that rating>=4 compares numbers
    code_chunk_size: int = 0

    def _parse_document(self, document: BaseNode, seen: Any, above: Any) -> Any:
        if not self.code_chunk_size or not is_code(path_of(document.metadata)):
            return super()._parse_document(document, seen, above)
        sizes = {**_sizes(self.code_chunk_size), "code_chunk_size": 0}
        longer = self.model_copy(update=sizes)
        return longer._parse_document(document, seen, above)  # noqa: SLF001  of the same class


def _sizes(size: int) -> dict[str, int]:
    """Return the sizes of chunks in the parser's proportions.

    400 tokens, overlap 80, minimum 50.
    """
    return {"chunk_size": size, "chunk_overlap": size // 5, "min_chunk_size": size // 8}


def default_parser(
    embedding: BaseEmbedding, chosen: Mapping[str, Any] | None = None
) -> HeadingAwareMarkdownNodeParser:
    """Return a parser whose chunks fit, with their contexts, into what the embedding reads.

    A model that reads more does not get larger chunks: smaller ones found more in the same number
    of characters. Where neither size nor overlap is chosen, the local embedding gets larger chunks
    of source code: they hold whole functions more often, and it averages the windows of a text.

    Args:
        embedding: The embedding of the index.
        chosen: Settings of the parser, which take precedence.
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
