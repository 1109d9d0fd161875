"""The services that embed a document's chunks together: Voyage, Jina, and a llama.cpp server of one's own.

Voyage has contextualized chunk embeddings. Jina has late chunking: it reads the document as one text and takes the mean
over each chunk's own tokens. A llama.cpp server gives the vector of every token, and the rest happens here.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from llama_index.core.bridge.pydantic import Field

from llama_index_contextual.app.settings.late_chunking import DocumentEmbedding
from llama_index_contextual.errors import EmbeddingError, SettingError
from llama_index_contextual.service import post
from llama_index_contextual.text import counted, replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class VendorEmbedding(DocumentEmbedding):
    """What the vendors' services share: the address, and the key, which stays in the environment.

    Attributes:
        key_name: The environment variable with the key.
        addresses: The service's address by the beginning of the key.
    """

    key_name: ClassVar[str]
    addresses: ClassVar[Mapping[str, str]]

    base_url: str = Field(default="", description="Address of the service, up to and including /v1.")
    dimensions: int | None = Field(default=None, gt=0, description="Length of vectors, where the model has several.")

    def require_key(self) -> str:
        """Return the key.

        Raises:
            SettingError: There is none.
        """
        key = os.environ.get(self.key_name, "")
        if not key:
            raise SettingError(
                f"the embedding {self.model_name} needs a key. Cure: set the environment variable {self.key_name}."
            )
        return key

    def _ask(self, path: str, body: Mapping[str, Any]) -> Any:
        key = self.require_key()
        address = next(address for start, address in self.addresses.items() if key.startswith(start))
        url = f"{self.base_url.rstrip('/') or address}/{path}"
        return post(url, body, {"Authorization": f"Bearer {key}"}, failure=EmbeddingError)


class VoyageDocumentEmbedding(VendorEmbedding):
    """Voyage's contextualized chunk embeddings (``voyage-context-3`` and later), with ``VOYAGE_API_KEY``."""

    key_name: ClassVar[str] = "VOYAGE_API_KEY"
    # Keys that MongoDB issued are refused by Voyage's own host, and the other way round.
    addresses: ClassVar[Mapping[str, str]] = {"al-": "https://ai.mongodb.com/v1", "": "https://api.voyageai.com/v1"}

    model_name: str = Field(default="voyage-context-3", description="The model.")
    window_tokens: int = Field(default=30_000, gt=0, le=32_000, description="Tokens of a document read at once.")

    def _embed(self, texts: Sequence[str], kind: str) -> list[list[float]]:
        body: dict[str, Any] = {"inputs": [list(texts)], "model": self.model_name, "input_type": kind}
        if self.dimensions is not None:
            body["output_dimension"] = self.dimensions
        answer = self._ask("contextualizedembeddings", body)
        return _in_order(_part(answer, "data", 0, "data"))

    def _embed_window(self, chunks: Sequence[str]) -> list[list[float]]:
        return self._embed(chunks, "document")

    def _embed_query(self, query: str) -> list[float]:
        return self._embed([query], "query")[0]


class JinaDocumentEmbedding(VendorEmbedding):
    """Jina's embeddings with late chunking (``jina-embeddings-v3`` and later), with ``JINA_API_KEY``."""

    key_name: ClassVar[str] = "JINA_API_KEY"
    addresses: ClassVar[Mapping[str, str]] = {"": "https://api.jina.ai/v1"}

    model_name: str = Field(default="jina-embeddings-v3", description="The model.")
    window_tokens: int = Field(default=7_500, gt=0, le=32_000, description="Tokens of a document read at once.")

    def _embed(self, texts: Sequence[str], task: str, *, together: bool) -> list[list[float]]:
        body: dict[str, Any] = {"model": self.model_name, "task": task, "late_chunking": together, "input": list(texts)}
        if self.dimensions is not None:
            body["dimensions"] = self.dimensions
        return _in_order(_part(self._ask("embeddings", body), "data"))

    def _embed_window(self, chunks: Sequence[str]) -> list[list[float]]:
        return self._embed(chunks, "retrieval.passage", together=True)

    def _embed_query(self, query: str) -> list[float]:
        return self._embed([query], "retrieval.query", together=False)[0]


class LlamaCppDocumentEmbedding(DocumentEmbedding):
    """Late chunking on a llama.cpp server, started with ``--embeddings --pooling none``.

    The window is read as one text. A chunk's vector is the mean over its own tokens, each of which has seen the others.
    """

    model_name: str = Field(default="llama.cpp", description="Name under which vectors are recorded.")
    base_url: str = Field(default="http://127.0.0.1:8080", description="The server.")
    window_tokens: int = Field(
        default=2_000, gt=0, description="Tokens read at once; the server's batch must hold them."
    )

    def _tokens(self, text: str, *, special: bool = False) -> list[int]:
        clean = replace_surrogates(text)[0]
        answer = post(f"{self.base_url}/tokenize", {"content": clean, "add_special": special}, failure=EmbeddingError)
        return cast("list[int]", _part(answer, "tokens"))

    def _sizes(self, chunks: Sequence[str]) -> list[int]:
        return [len(self._tokens(chunk)) + 1 for chunk in chunks]

    def _embed_window(self, chunks: Sequence[str]) -> list[list[float]]:
        before, after = self._special()
        parts = [self._tokens(f"{chunk}\n") for chunk in chunks]
        ids = [*before, *(token for part in parts for token in part), *after]
        answer = post(f"{self.base_url}/embeddings", {"content": ids}, failure=EmbeddingError)
        rows = np.asarray(_part(answer, 0, "embedding"), np.float64)
        if len(rows) != len(ids):
            raise EmbeddingError(
                f"{self.base_url} gave {counted(len(rows), 'vector')} for {counted(len(ids), 'token')}. "
                "Cure: start llama-server with --embeddings --pooling none"
            )
        ends = np.cumsum([len(before), *map(len, parts)]).tolist()
        return [rows[a:b].mean(axis=0).tolist() for a, b in itertools.pairwise(ends)]

    def _embed_query(self, query: str) -> list[float]:
        return self._embed_window([query])[0]

    def _special(self) -> tuple[list[int], list[int]]:
        """Return the tokens that the model wants before and after a text."""
        with_them, plain = self._tokens("a", special=True), self._tokens("a")
        at = next((at for at in range(len(with_them)) if with_them[at : at + len(plain)] == plain), 0)
        return with_them[:at], with_them[at + len(plain) :]


def _part(answer: Any, *path: str | int) -> Any:
    """Return what stands at a place in an answer, or None: what then lacks is found by the check of the vectors."""
    try:
        for step in path:
            answer = answer[step]
    except (KeyError, IndexError, TypeError):
        return None
    return answer


def _in_order(items: Any) -> list[list[float]]:
    entries = [item for item in items or [] if isinstance(item, dict)]
    return [item.get("embedding") or [] for item in sorted(entries, key=lambda item: item.get("index") or 0)]
