"""Nodes as compact bytes: read back one by one, equal to what a vector store gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
from llama_index.core.schema import BaseNode, ImageNode, IndexNode, Node, TextNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable, Sequence

# As metadata_dict_to_node reads them; every other class is a TextNode to a vector store.
_CLASSES: Final[dict[bytes, type[BaseNode]]] = {
    b"N": Node,
    b"I": IndexNode,
    b"P": ImageNode,
    b"T": TextNode,
}
_LETTERS: Final = {cls: letter for letter, cls in _CLASSES.items()}


def encode(node: BaseNode) -> bytes:
    """A node without its embedding; the first byte names its class."""
    letter = _LETTERS.get(type(node))
    if letter is None:  # what a vector store would make of a Document or another subclass
        bare = node.model_copy(update={"embedding": None})
        node = metadata_dict_to_node(node_to_metadata_dict(bare, remove_text=True), text=node.get_content())
        letter = _LETTERS[type(node)]
    if isinstance(node, IndexNode):
        # Its object may be anything; a retriever finds it through object_map.
        node = node.model_copy(update={"obj": None})
    return letter + node.model_dump_json(exclude={"embedding"}).encode("utf-8", "surrogatepass")


def decode(record: bytes) -> BaseNode:
    """The node that :func:`encode` was given, a new object each time."""
    return _CLASSES[record[:1]].model_validate_json(record[1:])


@dataclass(frozen=True, slots=True)
class Records:
    """Encoded nodes one after the other; record i is ``blob[starts[i]:starts[i + 1]]``."""

    blob: bytes | mmap.mmap
    starts: npt.NDArray[np.int64]

    def __reduce__(self) -> tuple[type[Records], tuple[bytes, npt.NDArray[np.int64]]]:
        return (Records, (bytes(self.blob), self.starts))  # a mapped file cannot be pickled

    @classmethod
    def build(cls, nodes: Iterable[BaseNode]) -> Records:
        """Encode nodes."""
        return cls._join([encode(node) for node in nodes])

    @classmethod
    def _join(cls, records: Sequence[bytes]) -> Records:
        sizes = np.fromiter(map(len, records), dtype=np.int64, count=len(records))
        return cls(b"".join(records), np.concatenate(([0], np.cumsum(sizes))).astype(np.int64))

    def __getitem__(self, row: int) -> bytes:
        return bytes(self.blob[self.starts[row] : self.starts[row + 1]])

    def node(self, row: int) -> BaseNode:
        """The node of a row, a new object each time."""
        return decode(self[row])

    @classmethod
    def merge(cls, parts: Sequence[tuple[Records, npt.NDArray[np.bool_]]]) -> Records:
        """The records of several where the mask is true, in order."""
        return cls._join([records[int(row)] for records, keep in parts for row in np.flatnonzero(keep)])
