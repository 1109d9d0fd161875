"""Rows that filters admit, remembered for each segment: a filter is evaluated once, however often it is asked."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from llama_index_contextual.retrievers.columns import NOT_COLUMNS, REF_DOC_ALIASES, REF_DOC_ID, Columns
from llama_index_contextual.retrievers.filters import Bools, select

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.retrievers.lexical_index import Snapshot
    from llama_index_contextual.retrievers.segments import Segment

_KEPT: Final = 64  # filters a segment remembers; 64 masks of 100k rows are 6 MB


class FilterMasks:
    """Masks by segment and filter. Thread-safe; shared by all views of an index."""

    def __init__(self) -> None:
        # By Columns, which a segment shares with its versions of fewer live rows, and which dies with the last of them.
        self._known: WeakKeyDictionary[Columns, OrderedDict[str, Bools]] = WeakKeyDictionary()
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[FilterMasks], tuple[()]]:
        return (FilterMasks, ())  # a cache

    def of(self, snapshot: Snapshot, filters: MetadataFilters) -> list[Bools]:
        """For each segment, the rows that filters admit."""
        key = repr(filters.model_dump())  # not as JSON, where inf, -inf and nan are all null
        return [self._mask(segment, filters, key) for segment in snapshot.segments]

    def _mask(self, segment: Segment, filters: MetadataFilters, key: str) -> Bools:
        with self._lock:
            known = self._known.setdefault(segment.columns, OrderedDict())
            if key in known:
                known.move_to_end(key)
                return known[key]
        mask = select(filters, lambda name, holds: _test(segment, name, holds), len(segment))
        with self._lock:
            known[key] = mask
            while len(known) > _KEPT:
                known.popitem(last=False)
        return mask


def _test(segment: Segment, key: str, holds: Callable[[Any], bool]) -> Bools:
    if key in NOT_COLUMNS:
        rows = range(len(segment))
        return np.fromiter((holds(segment.records.node(row).metadata.get(key)) for row in rows), np.bool_, len(segment))
    columns = segment.columns.by_key
    column = columns.get(REF_DOC_ID if key in REF_DOC_ALIASES and key not in columns else key)
    return np.full(len(segment), holds(None)) if column is None else column.where(holds)
