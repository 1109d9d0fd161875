"""Evaluate LlamaIndex's metadata filters, with all operators and conditions, on any metadata.

Vector stores differ in the operators that they reject (Chroma's adapter rejects ANY, ALL, CONTAINS,
TEXT_MATCH, IS_EMPTY and NOT) and in how they treat a missing key. All retrievers of a fusion must
see the same nodes, so filters are evaluated here.

A missing key only matches NE, NIN and IS_EMPTY. A comparison between different types (``"10" > 3``)
is false and not an error. Numbers are compared by value: 3 equals 3.0, and True equals 1 as in
LlamaIndex's evaluator, because a ``MetadataFilter`` cannot contain a boolean. If the value of IN or
NIN is a text and not a list, it means the text itself and the parts between its commas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from difflib import get_close_matches
from functools import cache
from itertools import chain
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from llama_index_contextual.utils import metadata as meta
from llama_index_contextual.utils.errors import SettingError
from llama_index_contextual.utils.language import caseless

if TYPE_CHECKING:
    from llama_index_contextual.retrievers.arrays import Bools, Ints

# Vector stores have three names for the document of a node. Filters can use any of them.
REF_DOC_ALIASES = frozenset({"doc_id", "document_id"})
_MAX_SIMILAR = 3  # similar names that a message suggests
_MIN_SIMILARITY = 0.5
_MAX_NAMED = 6

Filter = MetadataFilter | MetadataFilters
Condition = Callable[[Any], bool]


# Filters of this package


class WordsFilter(MetadataFilter):
    """A filter on the words of a node. TEXT_MATCH matches a phrase, CONTAINS matches terms."""

    key: str = "words"
    target: Literal["words"] = "words"


class ItemFilter(MetadataFilter):
    """A filter on the items of a value: "work, home" has two. Case is ignored.

    CONTAINS matches an item or an item below it: "health" matches "health/running".
    """

    target: Literal["items"] = "items"


class TagFilter(MetadataFilters):
    """A filter for nodes with a tag or a tag below it, in the front matter or the text."""

    tag: str


class PathFilter(MetadataFilters):
    """A filter for paths that contain a text, ignoring case.

    It includes the ``file_path`` of LlamaIndex's readers.
    """

    path: str


def tag_filter(tag: str) -> TagFilter:
    """Return the filter for a tag, which is written with or without ``#``."""
    name = tag.strip().lstrip("#").strip("/")
    filters: list[Filter] = [
        ItemFilter(key=key, value=name, operator=FilterOperator.CONTAINS)
        for key in (meta.TAGS, meta.INLINE_TAGS)
    ]
    return TagFilter(filters=filters, condition=FilterCondition.OR, tag=name)


def path_filter(path: str) -> PathFilter:
    """Return the filter for paths that contain a text."""
    contains = FilterOperator.TEXT_MATCH_INSENSITIVE
    filters: list[Filter] = [
        MetadataFilter(key=key, value=path, operator=contains)
        for key in (meta.PATH, meta.FILE_PATH)
    ]
    return PathFilter(filters=filters, condition=FilterCondition.OR, path=path)


# Filters as data

_CLASS_OF_TARGET = {"words": WordsFilter, "items": ItemFilter}


def filters_to_dict(filters: MetadataFilters) -> dict[str, Any]:
    """Return filters as plain JSON values."""
    return filters.model_dump(mode="json", serialize_as_any=True)


def filters_from_dict(data: Mapping[str, Any]) -> MetadataFilters:
    """Return the filters that :func:`filters_to_dict` wrote."""
    if "tag" in data:
        return tag_filter(data["tag"])
    if "path" in data:
        return path_filter(data["path"])
    members: list[Filter] = []
    for member in data["filters"]:
        if "filters" in member:
            members.append(filters_from_dict(member))
        else:
            filter_class = _CLASS_OF_TARGET.get(member.get("target"), MetadataFilter)
            members.append(filter_class.model_validate(member))
    return MetadataFilters(filters=members, condition=data["condition"])


# Filters in messages


def describe_filter(part: Filter) -> str:
    """Describe a filter, such as ``a path containing 'people/'`` or ``the tag 'sqlite'``."""
    if isinstance(part, TagFilter):
        return f"the tag {part.tag!r}"
    if isinstance(part, PathFilter):
        return f"a path containing {part.path!r}"
    if isinstance(part, WordsFilter):
        return f"the words {part.value!r}"
    if isinstance(part, MetadataFilters):
        condition = part.condition or FilterCondition.AND
        members = f" {condition.value} ".join(describe_filter(member) for member in part.filters)
        return f"({members})"
    operator = part.operator.value
    if part.key == meta.DATE_TS and isinstance(part.value, (int, float)):
        return f"date {operator} {datetime.fromtimestamp(part.value, timezone.utc).date()}"
    if part.operator == FilterOperator.TEXT_MATCH_INSENSITIVE:
        operator = "containing"
    value = "" if part.value is None else repr(part.value)
    return f"{part.key} {operator} {value}".strip()


def suggest_names(part: Filter, metadata_of_nodes: Sequence[Mapping[str, Any]]) -> str:
    """Return the end of a sentence that suggests existing tags, folders or keys for a filter.

    It is empty if nodes have the tag, folder or key of the filter.
    """
    if isinstance(part, TagFilter):
        return _names_like(part.tag, "tags", map(tags_in, metadata_of_nodes))
    if isinstance(part, PathFilter):
        return _folders_like(part.path, metadata_of_nodes)
    if isinstance(part, (MetadataFilters, WordsFilter)):
        return ""
    if part.key == meta.PATH:
        return _folders_like(str(part.value), metadata_of_nodes)
    if part.key in meta.NAMES_TAKEN:
        return ""
    keys = [metadata.keys() - meta.NAMES_TAKEN for metadata in metadata_of_nodes]
    return _names_like(part.key, "keys", keys)


def tags_in(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tags of a node, without the ``#``."""
    for key in (meta.TAGS, meta.INLINE_TAGS):
        for written in meta.text_value(metadata, key).split(","):
            tag = written.strip().lstrip("#")
            if tag:
                yield tag


def _folders_like(path: str, metadata_of_nodes: Sequence[Mapping[str, Any]]) -> str:
    return _names_like(path.strip("/"), "folders", map(_folders_in, metadata_of_nodes))


def _folders_in(metadata: Mapping[str, Any]) -> Iterable[str]:
    return map(str, PurePosixPath(meta.path_of(metadata)).parents)


def _names_like(name: str, kind: str, names_of_nodes: Iterable[Iterable[str]]) -> str:
    """Return a text with existing names, first similar ones, then the most frequent ones."""
    known = Counter(chain.from_iterable(names_of_nodes))
    if name in known:
        return ""
    similar = get_close_matches(name, known, _MAX_SIMILAR, _MIN_SIMILARITY)
    frequent = [frequent for frequent, _ in known.most_common()]
    names = [known for known in dict.fromkeys(similar + frequent) if known not in {"", ".", "/"}]
    if not names:
        return f" (there are no {kind})"
    return f" ({kind} that exist: {', '.join(names[:_MAX_NAMED])})"


def check_filters(filters: object) -> None:
    """Raise a SettingError for filters that are not ``MetadataFilters``, such as a dictionary."""
    if filters is not None and not isinstance(filters, MetadataFilters):
        raise SettingError(
            "`filters` must be MetadataFilters(filters=[MetadataFilter(key=..., value=...)]) or "
            f"None (got {filters!r})."
        )


def merge_filters(
    first: MetadataFilters | None,
    second: MetadataFilters | None,
) -> MetadataFilters | None:
    """Return filters that match the nodes that both filters match.

    Raises:
        SettingError: The filters are not ``MetadataFilters``.
    """
    check_filters(first)
    check_filters(second)
    if first is None or second is None:
        return first or second
    return MetadataFilters(filters=[first, second], condition=FilterCondition.AND)


# Conditions on values


_OPPOSITES = {FilterOperator.NE: FilterOperator.EQ, FilterOperator.NIN: FilterOperator.IN}
_NEED_LISTS = {FilterOperator.IN, FilterOperator.ANY, FilterOperator.ALL}


def condition_of(part: MetadataFilter) -> Condition:
    """Return the condition of a single filter on a value. The value of a missing key is None.

    Raises:
        SettingError: The operator needs a list of values.
    """
    if part.operator in _OPPOSITES:
        opposite = condition_of(part.model_copy(update={"operator": _OPPOSITES[part.operator]}))
        return lambda value: not opposite(value)
    if isinstance(part, ItemFilter):
        return _item_condition(part)
    return _value_condition(part)


def _item_condition(part: MetadataFilter) -> Condition:
    """Return the condition that any item of a value matches. A missing key has the item None."""
    value = _folded(part.value)
    if part.operator == FilterOperator.CONTAINS:
        prefix = f"{value}/"
        return lambda tags: any(f"{item}/".startswith(prefix) for item in items_of(tags))
    holds = condition_of(MetadataFilter(key=part.key, value=value, operator=part.operator))
    return lambda values: any(holds(item) for item in items_of(values) or [None])


def _value_condition(part: MetadataFilter) -> Condition:
    """Return the condition of a filter on the whole value, as LlamaIndex evaluates it."""
    expected = part.value
    if part.operator == FilterOperator.IN and isinstance(expected, str):
        # LlamaIndex would match any substring, such as "acme" in "acme-corp". Qdrant's adapter
        # matches the parts between commas.
        expected = [expected, *map(str.strip, expected.split(","))]
    if part.operator in _NEED_LISTS and not isinstance(expected, list):
        raise SettingError(
            f"A filter with the operator {part.operator.value!r} needs a list of values "
            f"(got {expected!r} for {part.key!r})."
        )
    is_caseless = part.operator == FilterOperator.TEXT_MATCH_INSENSITIVE
    if is_caseless:
        expected = _folded(expected)
    filters = MetadataFilters(filters=[part.model_copy(update={"value": expected})])
    # LlamaIndex calls the function with the id of a node. Here the value itself takes its place.
    matches = build_metadata_filter_fn(lambda value: {part.key: value}, filters)

    def holds(value: Any) -> bool:
        try:
            return matches(_folded(value) if is_caseless else value)
        except TypeError:  # values of different types cannot be compared
            return False

    return holds


def items_of(value: Any) -> list[Any]:
    """Return the folded value, the items between its commas, and numbers for numeric items."""
    if value is None:
        return []
    if not isinstance(value, str):
        return [value]
    text = caseless(value)
    items = [text, *(item.strip().lstrip("#") for item in text.split(","))]
    return [*items, *map(meta.typed, items)]


def _folded(value: Any) -> Any:
    return caseless(value) if isinstance(value, str) else value


# Rows that match


def matching_rows(
    filters: MetadataFilters,
    rows: Ints,
    column_of: Callable[[str], Sequence[Any]],
    rows_with_words: Callable[[WordsFilter], Ints],
    checked: Sequence[MetadataFilter] = (),
) -> Ints:
    """Return the rows that match filters, in their order.

    Args:
        filters: The filters, which can be nested.
        rows: The numbers of the rows.
        column_of: Returns the value of a metadata key for each of the rows.
        rows_with_words: Returns the rows that match a :class:`WordsFilter`. The result can
            contain other rows of the index.
        checked: Filters that the store has applied. If it matched an item of a list, the row also
            matches here.
    """

    def mask_of(part: Filter) -> Bools:
        if isinstance(part, MetadataFilters):
            return _combined([mask_of(member) for member in part.filters], part, len(rows))
        if isinstance(part, WordsFilter):
            return np.isin(rows, rows_with_words(part))
        values = _values_of(part.key, column_of)
        holds = condition_of(part)
        if any(part is checked_part for checked_part in checked):
            holds = _of_any_item(holds)
        try:
            return np.array(list(map(cache(holds), values)), np.bool_)
        except TypeError:  # a list cannot be cached
            return np.array(list(map(holds, values)), np.bool_)

    return rows[mask_of(filters)]


def _values_of(key: str, column_of: Callable[[str], Sequence[Any]]) -> Sequence[Any]:
    """Return the values of a key. For an alias of REF_DOC_ID, missing values are the document."""
    values = column_of(key)
    if key not in REF_DOC_ALIASES:
        return values
    documents = column_of(meta.REF_DOC_ID)
    pairs = zip(values, documents, strict=True)
    return [document if value is None else value for value, document in pairs]


def _of_any_item(holds: Condition) -> Condition:
    """Return the condition that the value, or any item of a list, matches."""
    return lambda value: holds(value) or (isinstance(value, list) and any(map(holds, value)))


def _combined(masks: Sequence[Bools], filters: MetadataFilters, size: int) -> Bools:
    """Combine the masks of members by AND, OR or NOT (no member matches); all rows if empty."""
    if not masks:
        return np.ones(size, np.bool_)
    any_matches: Bools = np.any(masks, axis=0)
    all_match: Bools = np.all(masks, axis=0)
    if filters.condition == FilterCondition.OR:
        return any_matches
    if filters.condition == FilterCondition.NOT:
        return ~any_matches
    return all_match  # AND is the default


def metadata_match(
    filters: MetadataFilters | None,
    metadata: Mapping[str, Any],
    checked: Sequence[MetadataFilter] = (),
) -> bool:
    """Return whether metadata match filters. The document must be in them as ``REF_DOC_ID``."""
    row: Ints = np.zeros(1, np.int64)
    if filters is not None:
        row = matching_rows(
            filters, row, lambda key: [metadata.get(key)], lambda _: row[:0], checked
        )
    return len(row) > 0
