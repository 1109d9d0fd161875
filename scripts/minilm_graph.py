"""Write the two graphs of the local embedding; the weights stay in the file of their package.

The graph of the package turns its int8 matrices into 32-bit numbers before it multiplies. Here the
input rows are rounded to eight bits too, each with its own scale, and whole numbers are multiplied,
at twice the speed.

``data/minilm-int8.onnx`` multiplies signed weights. On x86 processors without VNNI onnxruntime adds
those products in sixteen bits, which overflow. For these ``data/minilm-uint8.onnx`` moves the
weights to unsigned numbers when it is loaded (128 is their zero point). The products are then added
in 32 bits, and the results are the same, bit by bit. The session option that does this in
onnxruntime, ``session.x64quantprecision``, ends the process in versions 1.24 to 1.29.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from llama_index_contextual.app.settings.local import SIGNED_GRAPH, UNSIGNED_GRAPH, weights_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# The part of ONNX's published file format (onnx.proto) that we touch: field, number, type; * for
# many. Protobuf carries all other fields along as they are. The onnx package would do the same, at
# 20 MB and 0.4 seconds for each process.
_FORMAT: Final = """\
Model: graph 7 Graph
Graph: node 1 Node*, initializer 5 Tensor*
Node: input 1 string*, output 2 string*, op_type 4 string, attribute 5 Attribute*
Attribute: name 1 string, i 3 int64, ints 8 int64*, type 20 int32
Tensor: dims 1 int64*, data_type 2 int32, name 8 string, raw_data 9 bytes, external_data 13 Pair*, \
data_location 14 int32
Pair: key 1 string, value 2 string
"""
_FLOAT, _UINT8, _INT8, _INT32 = 1, 2, 3, 6  # TensorProto.DataType
_LEAST_BYTES: Final = 100  # of a weight that stays in its file


@lru_cache(maxsize=1)
def messages() -> dict[str, Any]:
    """Protobuf's message classes for :data:`_FORMAT`, by name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="onnx_part.proto", syntax="proto2")
    for line in _FORMAT.splitlines():
        name, _, fields = line.partition(": ")
        described = file.message_type.add(name=name)
        for part, number, kind in map(str.split, fields.split(", ")):
            label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
            entry = described.field.add(name=part, number=int(number), label=label)
            if kind[0].isupper():
                entry.type, entry.type_name = field.TYPE_MESSAGE, f".{kind.rstrip('*')}"
            else:
                entry.type = field.Type.Value(f"TYPE_{kind.rstrip('*').upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    messages: dict[str, Any] = message_factory.GetMessageClassesForFiles([file.name], pool)
    return messages


def multiply_in_int8(model: bytes) -> bytes:
    """Return an ONNX model with its products computed in eight bits; weights are not changed.

    Args:
        model: An ONNX file (opset 13 to 17) whose int8 matrices become 32-bit numbers by Cast and
            Mul.
    """
    parsed = messages()["Model"].FromString(model)
    graph, nodes = parsed.graph, list(parsed.graph.node)
    maker = {node.output[0]: node for node in nodes}
    stored = {tensor.name for tensor in graph.initializer if tensor.data_type == _INT8}
    # What makes an attention's values: a twelfth of the work, and two thirds of what rounding would
    # cost.
    biased = [node.input for node in nodes if node.op_type == "Add"]
    precise = {
        name
        for names in biased
        if any("self.value.bias" in each for each in names)
        for name in names
    }
    rounded: set[str] = (
        set()
    )  # inputs of several matrices, as of query, key and value, are rounded once
    for name, value in (
        ("step", np.float32(1 / 127)),
        ("tiny", np.float32(1e-30)),
        ("zero", np.uint8(128)),
    ):
        kind = _UINT8 if value.dtype == np.uint8 else _FLOAT
        graph.initializer.add(name=f"int8.{name}", data_type=kind, raw_data=value.tobytes())
    del graph.node[:]

    def add(kind: str, inputs: Sequence[str], out: str, **attributes: int | list[int]) -> None:
        node = graph.node.add(op_type=kind, input=inputs, output=[out])
        for name, value in attributes.items():
            field, number = (
                ("i", 2) if isinstance(value, int) else ("ints", 7)
            )  # and AttributeProto.AttributeType
            node.attribute.add(name=name, type=number, **{field: value})

    for node in nodes:
        position = {"MatMul": 1, "Gather": 0}.get(node.op_type)
        product = (
            None
            if position is None or node.output[0] in precise
            else maker.get(node.input[position])
        )
        cast_ = (
            maker.get(product.input[0])
            if product is not None and product.op_type == "Mul"
            else None
        )
        if (
            product is None
            or cast_ is None
            or cast_.op_type != "Cast"
            or cast_.input[0] not in stored
        ):
            graph.node.append(node)
            continue
        matrix, scales, out = cast_.input[0], product.input[1], node.output[0]
        if (
            node.op_type == "Gather"
        ):  # only the rows that are asked for, instead of 47 MB of 32-bit numbers
            add("Gather", [matrix, node.input[1]], f"{out}.int8")
            add("Gather", [scales, node.input[1]], f"{out}.scale")
            add("Cast", [f"{out}.int8"], f"{out}.float", to=_FLOAT)
            add("Mul", [f"{out}.float", f"{out}.scale"], out)
            continue
        rows = node.input[0]
        if rows not in rounded:
            rounded.add(rows)
            add("Abs", [rows], f"{rows}.abs")
            add("ReduceMax", [f"{rows}.abs"], f"{rows}.max", axes=[-1])
            add(
                "Max", [f"{rows}.max", "int8.tiny"], f"{rows}.size"
            )  # a row of zeros stays one of zeros
            add("Div", [rows, f"{rows}.size"], f"{rows}.unit")
            add("QuantizeLinear", [f"{rows}.unit", "int8.step", "int8.zero"], f"{rows}.int8")
        add("MatMulInteger", [f"{rows}.int8", matrix, "int8.zero"], f"{out}.int32")
        add("Cast", [f"{out}.int32"], f"{out}.float", to=_FLOAT)
        add("Mul", ["int8.step", scales], f"{out}.steps")
        add("Mul", [f"{out}.float", f"{out}.steps"], f"{out}.unit")
        add("Mul", [f"{out}.unit", f"{rows}.size"], out)
    used, read = list[Any](), set(graph.node[-1].output)  # the last node makes the result
    for node in reversed(
        graph.node
    ):  # they are in order: what reads a value stands behind what makes it
        if not read.isdisjoint(node.output):
            used.append(node)
            read.update(node.input)
    kept = used[::-1]
    del graph.node[:]
    graph.node.extend(kept)
    return bytes(parsed.SerializeToString())


def with_unsigned_weights(model: bytes) -> bytes:
    """Return the graph of :func:`multiply_in_int8` with unsigned weights."""
    parsed = messages()["Model"].FromString(model)
    graph, nodes = parsed.graph, list(parsed.graph.node)
    graph.initializer.add(name="int8.offset", data_type=_INT32, raw_data=np.int32(128).tobytes())
    del graph.node[:]

    def add_cast(source: str, out: str, data_type: int) -> None:
        node = graph.node.add(op_type="Cast", input=[source], output=[out])
        node.attribute.add(name="to", type=2, i=data_type)

    moved: set[str] = set()
    for node in nodes:
        if node.op_type == "MatMulInteger":
            rows, matrix, zero = node.input
            if matrix not in moved:
                moved.add(matrix)
                add_cast(matrix, f"{matrix}.int32", _INT32)
                moved_matrix = [f"{matrix}.int32", "int8.offset"]
                graph.node.add(op_type="Add", input=moved_matrix, output=[f"{matrix}.moved"])
                add_cast(f"{matrix}.moved", f"{matrix}.uint8", _UINT8)
            del node.input[:]
            node.input.extend([rows, f"{matrix}.uint8", zero, zero])
        graph.node.append(node)
    return bytes(parsed.SerializeToString())


def without_weights(graph: bytes, weights: bytes) -> bytes:
    """Return a graph that names the places of its weights in a file."""
    parsed = messages()["Model"].FromString(graph)
    for tensor in parsed.graph.initializer:
        place = weights.find(tensor.raw_data)
        if len(tensor.raw_data) < _LEAST_BYTES or place < 0:
            continue
        where = {
            "location": "model.onnx",
            "offset": str(place),
            "length": str(len(tensor.raw_data)),
        }
        for key, value in where.items():
            tensor.external_data.add(key=key, value=value)
        tensor.data_location = 1
        tensor.ClearField("raw_data")
    return bytes(parsed.SerializeToString())


def graphs(model: bytes) -> dict[Path, bytes]:
    """Return the content of both graph files, made from the file of the package."""
    signed = multiply_in_int8(model)
    unsigned = with_unsigned_weights(signed)
    return {
        SIGNED_GRAPH: without_weights(signed, model),
        UNSIGNED_GRAPH: without_weights(unsigned, model),
    }


if __name__ == "__main__":
    for graph_file, graph in graphs(weights_file().read_bytes()).items():
        graph_file.write_bytes(graph)
