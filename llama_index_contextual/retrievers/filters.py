"""One evaluator for LlamaIndex's metadata filters: every operator, every condition, nested.

Vector stores differ in what they refuse (Chroma's adapter: ANY, ALL, CONTAINS, TEXT_MATCH, IS_EMPTY, NOT) and in how
they treat a missing key. Both arms of a hybrid retriever must see the same documents, so filters are resolved here.

Missing keys: only NE, NIN and IS_EMPTY hold for them. A comparison between types (``"10" > 3``) is false, no error.
Numbers compare by value (3 == 3.0), but True is not 1, as in Chroma.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.errors import SettingError

Bools = npt.NDArray[np.bool_]
ColumnTest = Callable[[str, Callable[[Any], bool]], Bools]

_EMPTY: Final[tuple[Any, ...]] = ("", [], (), {})
_LISTS: Final = frozenset({FilterOperator.IN, FilterOperator.NIN, FilterOperator.ANY, FilterOperator.ALL})


def _comparable(value: Any, other: Any) -> bool:
    if isinstance(value, bool) or isinstance(other, bool):
        return isinstance(value, bool) and isinstance(other, bool)
    numbers = (int, float)
    return (isinstance(value, numbers) and isinstance(other, numbers)) or type(value) is type(other)


def _equal(value: Any, other: Any) -> bool:
    return _comparable(value, other) and bool(value == other)


def _contains(value: Any, item: Any) -> bool:
    """Whether a list holds an item, or a text (such as comma-separated tags) holds a part."""
    if isinstance(value, str):
        return isinstance(item, str) and item in value
    return isinstance(value, (list, tuple, set)) and any(_equal(each, item) for each in value)


def _text_in(part: Any, value: Any) -> bool:
    return isinstance(value, str) and isinstance(part, str) and part in value


_HOLDS: Final[dict[FilterOperator, Callable[[Any, Any], bool]]] = {
    FilterOperator.EQ: _equal,
    FilterOperator.NE: lambda value, other: not _equal(value, other),
    FilterOperator.GT: lambda value, other: _comparable(value, other) and value > other,
    FilterOperator.GTE: lambda value, other: _comparable(value, other) and value >= other,
    FilterOperator.LT: lambda value, other: _comparable(value, other) and value < other,
    FilterOperator.LTE: lambda value, other: _comparable(value, other) and value <= other,
    FilterOperator.IN: lambda value, others: any(_equal(value, other) for other in others),
    FilterOperator.NIN: lambda value, others: not any(_equal(value, other) for other in others),
    FilterOperator.ANY: lambda value, others: any(_contains(value, other) for other in others),
    FilterOperator.ALL: lambda value, others: all(_contains(value, other) for other in others),
    FilterOperator.CONTAINS: _contains,
    FilterOperator.TEXT_MATCH: lambda value, part: _text_in(part, value),
    FilterOperator.TEXT_MATCH_INSENSITIVE: lambda value, part: (
        isinstance(value, str) and isinstance(part, str) and part.casefold() in value.casefold()
    ),
}


def condition_of(one: MetadataFilter) -> Callable[[Any], bool]:
    """What a single filter asks of a value, None standing for a missing key.

    Raises:
        SettingError: The operator needs a list of values and got something else, or is unknown.
    """
    operator, wanted = one.operator, one.value
    if operator == FilterOperator.IS_EMPTY:
        return lambda value: value is None or value in _EMPTY
    if operator in _LISTS and not isinstance(wanted, list):
        raise SettingError(
            f"Filter on {one.key!r}: operator {operator.value!r} got {wanted!r}. Cure: a list of values."
        )
    holds = _HOLDS.get(operator)
    if holds is None:
        raise SettingError(f"Filter on {one.key!r}: operator {operator!r} is not known.")
    if operator in {FilterOperator.NE, FilterOperator.NIN}:
        return lambda value: value is None or holds(value, wanted)
    return lambda value: value is not None and holds(value, wanted)


def select(filters: MetadataFilters, column_test: ColumnTest, size: int) -> Bools:
    """The rows that filters admit.

    Args:
        filters: Any nesting of AND, OR and NOT (no member holds). Without members, everything is admitted.
        column_test: Given a key and a condition, the rows whose value satisfies it.
        size: Number of rows.
    """
    verdicts = [
        select(one, column_test, size) if isinstance(one, MetadataFilters) else column_test(one.key, condition_of(one))
        for one in filters.filters
    ]
    if not verdicts:
        return np.ones(size, dtype=np.bool_)
    condition = filters.condition or FilterCondition.AND
    if condition == FilterCondition.AND:
        return np.asarray(np.logical_and.reduce(verdicts))
    admitted: Bools = np.asarray(np.logical_or.reduce(verdicts))
    return ~admitted if condition == FilterCondition.NOT else admitted


def admits(filters: MetadataFilters | None, metadata: Mapping[str, Any]) -> bool:
    """Whether one document's metadata passes."""
    if filters is None:
        return True
    return bool(select(filters, lambda key, holds: np.array([holds(metadata.get(key))]), 1)[0])


def check_filters(filters: object) -> None:
    """Raise a SettingError for filters that are none of LlamaIndex's, such as Chroma's dictionaries."""
    if filters is not None and not isinstance(filters, MetadataFilters):
        raise SettingError(
            f"filters={filters!r} are no MetadataFilters. "
            "Cure: MetadataFilters(filters=[MetadataFilter(key=..., value=...)]), or None."
        )


def both(one: MetadataFilters | None, other: MetadataFilters | None) -> MetadataFilters | None:
    """Filters that admit what both admit.

    Raises:
        SettingError: One is of another type.
    """
    check_filters(one)
    check_filters(other)
    if one is None or other is None:
        return one or other
    return MetadataFilters(filters=[one, other], condition=FilterCondition.AND)
