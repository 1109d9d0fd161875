"""Evaluate LlamaIndex's metadata filters: every operator, every condition, nested, over columns of metadata.

Vector stores differ in what they refuse (Chroma's adapter refuses ANY, ALL, CONTAINS, TEXT_MATCH, IS_EMPTY and NOT) and
in how they treat a missing key. Both arms of a hybrid retriever must see the same documents, so filters are evaluated
here.

For a missing key only NE, NIN and IS_EMPTY hold. A comparison between types (``"10" > 3``) is false and no error.
Numbers compare by value: 3 is 3.0, and True is 1 as in LlamaIndex's own evaluator, because a ``MetadataFilter`` takes
no booleans. IN and NIN with a text instead of a list mean the text, and the parts between its commas.

Metadata is kept by key and not by node, with each distinct value once, so that a filter looks at values and not at
documents.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.errors import SettingError
from llama_index_contextual.metadata import DATE_TS, INLINE_TAGS, TAGS, typed
from llama_index_contextual.text import caseless

if TYPE_CHECKING:
    from collections.abc import Sequence

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
ColumnTest = Callable[[MetadataFilter], Bools]

# Vector stores keep a node's document under three names, so filters may ask for any of them.
REF_DOC_ID: Final = "ref_doc_id"

# A filter on this key is on the node's words and not on its metadata: TEXT_MATCH wants a phrase, CONTAINS terms.
WORDS: Final = "(words)"
# Before a key: the filter is on the items of a value ("work, home" has two, and is one, too), whatever their case, and
# numbers by value. CONTAINS asks for an item or one below it: "health" for "health/running".
ITEMS: Final = "(items)"
REF_DOC_ALIASES: Final = frozenset({"doc_id", "document_id"})

_EMPTY: Final[tuple[Any, ...]] = ("", [], (), {})
_LISTS: Final = frozenset({FilterOperator.IN, FilterOperator.NIN, FilterOperator.ANY, FilterOperator.ALL})


def filter_in_words(part: MetadataFilter | MetadataFilters) -> str:
    """A filter as a message names it: ``'people/' in its path``, ``the tag 'sqlite'``, ``date >= 2026-04-09``."""
    if (tag := tag_of(part)) is not None:
        return f"the tag {tag!r}"
    if isinstance(part, MetadataFilters):
        return f"({f' {(part.condition or FilterCondition.AND).value} '.join(map(filter_in_words, part.filters))})"
    if part.operator == FilterOperator.TEXT_MATCH_INSENSITIVE:
        return f"{part.value!r} in its {part.key}"
    operator = part.operator.value
    if part.key == DATE_TS and isinstance(part.value, (int, float)):
        return f"date {operator} {datetime.fromtimestamp(part.value, timezone.utc).date()}"
    key = part.key.removeprefix(ITEMS)
    return f"{key} {'is' if key != part.key and part.operator == FilterOperator.CONTAINS else operator} {part.value!r}"


def keys_of(filters: MetadataFilters | None) -> list[str]:
    """Return the metadata keys that filters ask for, each of them; where one of several is enough, none."""
    if filters is None or filters.condition != FilterCondition.AND:
        return []
    keys = [part.key.removeprefix(ITEMS) for part in filters.filters if isinstance(part, MetadataFilter)]
    return [key for key in dict.fromkeys(keys) if key != WORDS]


def _comparable(value: Any, other: Any) -> bool:
    numbers = (int, float)  # booleans are integers, too
    return (isinstance(value, numbers) and isinstance(other, numbers)) or type(value) is type(other)


def _equal(value: Any, other: Any) -> bool:
    return _comparable(value, other) and bool(value == other)


def _contains(value: Any, item: Any) -> bool:
    """Return whether a list holds an item, or a text (such as comma-separated tags) holds a part."""
    if isinstance(value, str):
        return isinstance(item, str) and item in value
    return isinstance(value, (list, tuple, set)) and any(_equal(each, item) for each in value)


def _has_text(value: Any, part: Any) -> bool:
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
    FilterOperator.TEXT_MATCH: _has_text,
    FilterOperator.TEXT_MATCH_INSENSITIVE: lambda value, part: _has_text(_folded(value), _folded(part)),
}


def condition_of(part: MetadataFilter) -> Callable[[Any], bool]:
    """Condition of a single filter on a value; the value None stands for a missing key.

    Raises:
        SettingError: The operator needs a list of values and got something else, or is unknown.
    """
    operator, wanted = part.operator, part.value
    if part.key.startswith(ITEMS):
        return _condition_of_items(part)
    if operator in {FilterOperator.IN, FilterOperator.NIN} and isinstance(wanted, str):
        # LlamaIndex takes every part of the text, and so "acme" for a part of "acme-corp"; Qdrant's adapter these.
        wanted = [wanted, *(part.strip() for part in wanted.split(","))]
    if operator == FilterOperator.IS_EMPTY:
        return lambda value: value is None or value in _EMPTY
    if operator in _LISTS and not isinstance(wanted, list):
        raise SettingError(
            f"Filter on {part.key!r}: operator {operator.value!r} got {wanted!r}. Cure: a list of values."
        )
    holds = _HOLDS.get(operator)
    if holds is None:
        raise SettingError(f"Filter on {part.key!r}: operator {operator!r} is not known.")
    if operator in {FilterOperator.NE, FilterOperator.NIN}:
        return lambda value: value is None or holds(value, wanted)
    return lambda value: value is not None and holds(value, wanted)


def _condition_of_items(part: MetadataFilter) -> Callable[[Any], bool]:
    plain = MetadataFilter(key=part.key.removeprefix(ITEMS), value=_folded(part.value), operator=part.operator)
    if part.operator == FilterOperator.CONTAINS:
        wanted = caseless(str(part.value)).strip("#/")
        return lambda value: any(f"{item}/".startswith(f"{wanted}/") for item in map(str, items_of(value)))
    holds = condition_of(plain)
    if part.operator in {FilterOperator.NE, FilterOperator.NIN}:
        return lambda value: all(holds(item) for item in items_of(value))
    return lambda value: any(holds(item) for item in items_of(value) or [None])


def items_of(value: Any) -> list[Any]:
    """Return a value, and the items between its commas, folded; what reads as a number is one as well."""
    if not isinstance(value, str):
        return [] if value is None else [value]
    value = caseless(value)
    texts = dict.fromkeys([value, *(part.strip().lstrip("#") for part in value.split(","))])
    return [*texts, *(number for text in texts if not isinstance(number := typed(text), str))]


def _folded(value: Any) -> Any:
    return caseless(value) if isinstance(value, str) else value


def item_filter(key: str, value: Any, operator: FilterOperator = FilterOperator.EQ) -> MetadataFilter:
    """Return a filter on the items of a value, in any case: ``topics: [ML, art]`` has the item ``ml``."""
    return MetadataFilter(key=ITEMS + key, value=value, operator=operator)


def having(key: str) -> MetadataFilters:
    """Admit what has a value for a key."""
    empty = MetadataFilter(key=key, value=None, operator=FilterOperator.IS_EMPTY)
    return MetadataFilters(filters=[empty], condition=FilterCondition.NOT)


def tag_filter(tag: str) -> MetadataFilters:
    """Admit what has a tag or one below it, in front matter or in the text."""
    value = tag.strip().lstrip("#").strip("/")
    filters = [item_filter(key, value, FilterOperator.CONTAINS) for key in (TAGS, INLINE_TAGS)]
    return MetadataFilters(filters=[*filters], condition=FilterCondition.OR)


def tag_of(part: MetadataFilter | MetadataFilters) -> str | None:
    """The tag of a filter that :func:`tag_filter` made; None of another one."""
    if not isinstance(part, MetadataFilters) or len(part.filters) != len((TAGS, INLINE_TAGS)):
        return None
    first = part.filters[0]
    value = first.value if isinstance(first, MetadataFilter) else None
    return value if isinstance(value, str) and part == tag_filter(value) else None


def select(filters: MetadataFilters, column_test: ColumnTest, size: int) -> Bools:
    """Return the rows that filters admit.

    Args:
        filters: Any nesting of AND, OR and NOT (no member holds). Filters without members admit everything.
        column_test: Returns the rows that a single filter admits.
        size: Number of rows.
    """
    verdicts = [
        select(part, column_test, size) if isinstance(part, MetadataFilters) else column_test(part)
        for part in filters.filters
    ]
    if not verdicts:
        return np.ones(size, dtype=np.bool_)
    condition = filters.condition or FilterCondition.AND
    if condition == FilterCondition.AND:
        return np.asarray(np.logical_and.reduce(verdicts))
    admitted: Bools = np.asarray(np.logical_or.reduce(verdicts))
    return ~admitted if condition == FilterCondition.NOT else admitted


def admitted(
    filters: MetadataFilters,
    rows: Ints,
    column_of: Callable[[str], Column | None],
    holding: Callable[[MetadataFilter], Ints],
) -> Ints:
    """Return those of some rows that filters admit, in their order.

    Args:
        filters: Any nesting of them.
        rows: Numbers of rows.
        column_of: Returns the values of a metadata key, one for each of the rows; None where no row has the key.
        holding: Returns the rows that satisfy a filter on :data:`WORDS`, and perhaps others.
    """

    def test(part: MetadataFilter) -> Bools:
        if part.key == WORDS:
            return np.isin(rows, holding(part))
        holds, column = condition_of(part), column_of(part.key.removeprefix(ITEMS))
        if part.key in REF_DOC_ALIASES and (documents := column_of(REF_DOC_ID)) is not None:
            column = documents if column is None else column.or_else(documents)
        return np.full(len(rows), holds(None)) if column is None else column.where(holds)

    return rows[select(filters, test, len(rows))]


def admits(filters: MetadataFilters | None, metadata: Mapping[str, Any], passed: Sequence[MetadataFilter] = ()) -> bool:
    """Return whether filters admit one document, by its metadata and, as :data:`REF_DOC_ID`, its document's id.

    Args:
        filters: Any nesting of them.
        metadata: Of the document.
        passed: Filters that a store let it pass; one that searched a list for a value was right to do so.
    """

    def test(part: MetadataFilter) -> Bools:
        value, holds = _value(part.key, metadata), condition_of(part)
        inside = isinstance(value, list) and any(part is other for other in passed) and any(map(holds, value))
        return np.array([inside or holds(value)])

    return filters is None or bool(select(filters, test, 1)[0])


def _value(key: str, metadata: Mapping[str, Any]) -> Any:
    key = key.removeprefix(ITEMS)
    return metadata.get(REF_DOC_ID if key in REF_DOC_ALIASES and key not in metadata else key)


def check_filters(filters: object) -> None:
    """Raise a SettingError for filters that are not LlamaIndex's, such as Chroma's dictionaries."""
    if filters is not None and not isinstance(filters, MetadataFilters):
        raise SettingError(
            f"filters={filters!r} are not MetadataFilters. "
            "Cure: MetadataFilters(filters=[MetadataFilter(key=..., value=...)]), or None."
        )


def both(first: MetadataFilters | None, other: MetadataFilters | None) -> MetadataFilters | None:
    """Return filters that admit what both admit.

    Raises:
        SettingError: One of them is of another type.
    """
    check_filters(first)
    check_filters(other)
    if first is None or other is None:
        return first or other
    return MetadataFilters(filters=[first, other], condition=FilterCondition.AND)


@dataclass(frozen=True, slots=True)
class Column:
    """The values of one key: ``values[codes[row]]`` is a row's value, and code -1 says that it has none."""

    codes: npt.NDArray[np.int32]
    values: tuple[Any, ...]

    def where(self, holds: Callable[[Any], bool]) -> Bools:
        """Return the rows whose value (None where a row has none) satisfies a condition."""
        verdicts = np.fromiter((holds(value) for value in (*self.values, None)), dtype=np.bool_)
        return verdicts[self.codes]  # code -1 reads the last verdict: that of None

    def or_else(self, other: Column) -> Column:
        """Return a column whose rows without a value have that of another."""
        values, others = (*self.values, None), (*other.values, None)
        pairs = zip(self.codes.tolist(), other.codes.tolist(), strict=True)
        return Column.encode([values[code] if code >= 0 else others[instead] for code, instead in pairs])

    def moved(self, before: Ints, rows: Ints, read: Callable[[Ints], Sequence[Any]]) -> Column:
        """Return the column of other rows: the values of rows that it has already, and for the others what is read.

        Args:
            before: The numbers of its own rows, ascending.
            rows: Those of the new column, ascending.
            read: Returns the values of some rows.
        """
        at = np.searchsorted(before, rows)
        is_known = np.isin(rows, before, assume_unique=True)
        added = Column.encode(read(rows[~is_known]))
        codes = np.empty(len(rows), dtype=np.int32)
        codes[is_known] = self.codes[at[is_known]]
        codes[~is_known] = np.where(added.codes < 0, -1, added.codes + len(self.values))
        return Column(codes, (*self.values, *added.values))

    @classmethod
    def encode(cls, values: Sequence[Any]) -> Column:
        """Return the column of some values; equal values share a code, and 1, 1.0 and True are not equal."""
        codes: dict[Any, int] = {}
        distinct: list[Any] = []
        rows = np.empty(len(values), dtype=np.int32)
        for row, value in enumerate(values):
            if value is None:
                rows[row] = -1
                continue
            key = (type(value), value if isinstance(value, (str, int, float)) else json.dumps(value, default=str))
            code = codes.get(key)
            if code is None:
                code = codes[key] = len(distinct)
                distinct.append(value)
            rows[row] = code
        return cls(rows, tuple(distinct))
