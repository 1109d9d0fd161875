"""Metadata by key instead of by node, each distinct value once: a filter looks at values, not at documents."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from llama_index_contextual.metadata import CHUNK_HASH, CONTEXT, FRONT_MATTER, LEXICAL_CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Long or different for every chunk, and nothing that people filter by: they stay in the records only.
NOT_COLUMNS: Final = frozenset({CONTEXT, LEXICAL_CONTEXT, FRONT_MATTER, CHUNK_HASH})

# Vector stores keep a node's document under three names, so filters may ask for any of them.
REF_DOC_ID: Final = "ref_doc_id"
REF_DOC_ALIASES: Final = frozenset({"doc_id", "document_id"})

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Column:
    """One key: ``values[codes[row]]`` is a row's value, code -1 says that it has none."""

    codes: npt.NDArray[np.int32]
    values: tuple[Any, ...]

    def where(self, holds: Callable[[Any], bool]) -> Bools:
        """Rows whose value (None where it has none) satisfies a condition."""
        verdicts = np.fromiter((holds(value) for value in (*self.values, None)), dtype=np.bool_)
        return verdicts[self.codes]  # code -1 reads the last verdict: that of None

    @classmethod
    def encode(cls, values: Sequence[Any]) -> Column:
        """Give equal values one code; 1, 1.0 and True are different values."""
        codes: dict[Any, int] = {}
        kept: list[Any] = []
        rows = np.empty(len(values), dtype=np.int32)
        for row, value in enumerate(values):
            if value is None:
                rows[row] = -1
                continue
            key = (type(value), value if isinstance(value, (str, int, float)) else json.dumps(value, default=str))
            code = codes.get(key)
            if code is None:
                code = codes[key] = len(kept)
                kept.append(value)
            rows[row] = code
        return cls(rows, tuple(kept))


@dataclass(frozen=True, eq=False)  # compared by identity, weakly referenced by the filter cache
class Columns:
    """The columns of a segment by metadata key."""

    by_key: Mapping[str, Column]
    size: int

    @classmethod
    def build(cls, metadata: Sequence[Mapping[str, Any]]) -> Columns:
        """Turn each row's metadata into columns."""
        keys = dict.fromkeys(key for row in metadata for key in row if key not in NOT_COLUMNS)
        return cls({key: Column.encode([row.get(key) for row in metadata]) for key in keys}, len(metadata))

    @classmethod
    def merge(cls, parts: Sequence[tuple[Columns, Bools]]) -> Columns:
        """The rows of several where the mask is true, in order."""
        keys = dict.fromkeys(key for columns, _ in parts for key in columns.by_key)
        merged = {key: Column.encode([v for columns, keep in parts for v in columns.values(key, keep)]) for key in keys}
        return cls(merged, sum(int(keep.sum()) for _, keep in parts))

    def values(self, key: str, keep: Bools) -> list[Any]:
        """Values of a key where the mask is true; None where a row has none."""
        column = self.by_key.get(key)
        if column is None:
            return [None] * int(keep.sum())
        values = (*column.values, None)
        return [values[code] for code in column.codes[keep].tolist()]
