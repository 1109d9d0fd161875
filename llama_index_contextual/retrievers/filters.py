"""Evaluate LlamaIndex's metadata filters: every operator, every condition, nested, over values of metadata.

Vector stores differ in what they refuse (Chroma's adapter refuses ANY, ALL, CONTAINS, TEXT_MATCH, IS_EMPTY and NOT) and
in how they treat a missing key. Both arms of a hybrid retriever must see the same documents, so filters are evaluated
here.

For a missing key only NE, NIN and IS_EMPTY hold. A comparison between types (``"10" > 3``) is false and no error.
Numbers compare by value: 3 is 3.0, and True is 1 as in LlamaIndex's own evaluator, because a ``MetadataFilter`` takes
no booleans. IN and NIN with a text instead of a list mean the text, and the parts between its commas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from difflib import get_close_matches
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

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

# Vector stores keep a node's document under three names, so filters may ask for any of them.
REF_DOC_ALIASES: Final = frozenset({"doc_id", "document_id"})
# A filter on this key is on the node's words and not on its metadata: TEXT_MATCH wants a phrase, CONTAINS terms.
WORDS: Final = "(words)"
# Before a key: the filter is on the items of a value ("work, home" has two, and is one, too), whatever their case, and
# numbers by value. CONTAINS asks for an item or one below it: "health" for "health/running".
ITEMS: Final = "(items)"
_NEAREST: Final = 3  # tags or keys that a message names


# Filters on tags and items, and in words


def item_filter(key: str, value: Any, how: FilterOperator = FilterOperator.EQ) -> MetadataFilter:
    """Filter on the items of a value, in any case: ``topics: [ML, art]`` has the item ``ml``."""
    return MetadataFilter(key=ITEMS + key, value=value, operator=how)


def tag_filter(tag: str) -> MetadataFilters:
    """Filter for what has a tag or one below it, in front matter or in the text."""
    value = tag.strip().lstrip("#").strip("/")
    filters = [
        item_filter(key, value, FilterOperator.CONTAINS) for key in (meta.TAGS, meta.INLINE_TAGS)
    ]
    return MetadataFilters(filters=[*filters], condition=FilterCondition.OR)


def _tag_of(part: MetadataFilter | MetadataFilters) -> str | None:
    """The tag of a filter that :func:`tag_filter` made; None of another one."""
    first = part.filters[0] if isinstance(part, MetadataFilters) and part.filters else None
    value = first.value if isinstance(first, MetadataFilter) else None
    return value if isinstance(value, str) and part == tag_filter(value) else None


def filter_in_words(part: MetadataFilter | MetadataFilters) -> str:
    """A filter as a message names it: ``path containing 'people/'``, ``the tag 'sqlite'``, ``date >= 2026-04-09``."""
    if (tag := _tag_of(part)) is not None:
        return f"the tag {tag!r}"
    if isinstance(part, MetadataFilters):
        return f"({f' {(part.condition or FilterCondition.AND).value} '.join(map(filter_in_words, part.filters))})"
    if part.key == meta.DATE_TS and isinstance(part.value, (int, float)):
        return (
            f"date {part.operator.value} {datetime.fromtimestamp(part.value, timezone.utc).date()}"
        )
    how = (
        "containing"
        if part.operator == FilterOperator.TEXT_MATCH_INSENSITIVE
        else part.operator.value
    )
    return f"{part.key.removeprefix(ITEMS)} {how} {'' if part.value is None else repr(part.value)}".strip()


def nearest_names(
    part: MetadataFilter | MetadataFilters, metas: Sequence[Mapping[str, Any]]
) -> str:
    """The nearest tags, folders or keys to that of a filter, as the end of a sentence; "" for a known key."""
    kind, wanted, found = "tags", _tag_of(part), Counter[str]()
    if wanted is not None:
        texts = [
            str(one[key]) for one in metas for key in (meta.TAGS, meta.INLINE_TAGS) if key in one
        ]
        found.update(tag.strip() for text in texts for tag in text.split(","))
    elif isinstance(part, MetadataFilter) and part.key == meta.PATH:
        kind, wanted = "folders", str(part.value).strip("/")
        found.update(
            str(folder)
            for one in metas
            for folder in PurePosixPath(meta.path_of(one)).parents
            if folder.name
        )
    elif isinstance(part, MetadataFilter) and part.key not in {
        WORDS,
        meta.DATE_TS,
        *meta.NAMES_TAKEN,
    }:
        kind, wanted = "keys", part.key.removeprefix(ITEMS)
        found.update(key for one in metas for key in one.keys() - meta.NAMES_TAKEN)
    if wanted is None or wanted in found:
        return ""
    near = [
        *get_close_matches(wanted, found, _NEAREST, 0.5),
        *(one for one, _ in found.most_common(2 * _NEAREST)),
    ]
    shown = list(dict.fromkeys(near))[: 2 * _NEAREST]
    return f" ({kind} that there are: {', '.join(shown)})" if shown else f" (there are no {kind})"


def check_filters(filters: object) -> None:
    """Raise a SettingError for filters that are not LlamaIndex's, such as Chroma's dictionaries."""
    if filters is not None and not isinstance(filters, MetadataFilters):
        raise SettingError(
            f"filters={filters!r} are not MetadataFilters. "
            "Cure: MetadataFilters(filters=[MetadataFilter(key=..., value=...)]), or None."
        )


def both(first: MetadataFilters | None, other: MetadataFilters | None) -> MetadataFilters | None:
    """Filters that admit what both admit.

    Raises:
        SettingError: One of them is of another type.
    """
    check_filters(first)
    check_filters(other)
    if first is None or other is None:
        return first or other
    return MetadataFilters(filters=[first, other], condition=FilterCondition.AND)


# Conditions on values


_LISTED: Final = {FilterOperator.IN, FilterOperator.ANY, FilterOperator.ALL}
_OPPOSITES: Final = {FilterOperator.NE: FilterOperator.EQ, FilterOperator.NIN: FilterOperator.IN}


def condition_of(part: MetadataFilter) -> Callable[[Any], bool]:
    """Condition of a single filter on a value; the value None stands for a missing key.

    Raises:
        SettingError: The operator needs a list of values and got something else.
    """
    how, wanted = part.operator, part.value
    if how in _OPPOSITES:
        opposite = condition_of(part.model_copy(update={"operator": _OPPOSITES[how]}))
        return lambda value: not opposite(value)
    if part.key.startswith(ITEMS):
        folded = _folded(wanted)
        if how == FilterOperator.CONTAINS:
            tag = str(folded).strip("#/")
            return lambda value: any(
                f"{item}/".startswith(f"{tag}/") for item in map(str, items_of(value))
            )
        of_item = condition_of(
            MetadataFilter(key=part.key.removeprefix(ITEMS), value=folded, operator=how)
        )
        return lambda value: any(of_item(item) for item in items_of(value) or [None])
    if how == FilterOperator.IN and isinstance(wanted, str):
        # LlamaIndex takes every part of the text, and so "acme" for a part of "acme-corp"; Qdrant's adapter these.
        wanted = [wanted, *(part.strip() for part in wanted.split(","))]
    if how in _LISTED and not isinstance(wanted, list):
        raise SettingError(
            f"Filter on {part.key!r}: operator {how.value!r} got {wanted!r}. Cure: a list of values."
        )
    fold: Callable[[Any], Any] = (
        _folded if how == FilterOperator.TEXT_MATCH_INSENSITIVE else (lambda value: value)
    )
    plain = MetadataFilters(filters=[part.model_copy(update={"value": fold(wanted)})])
    matches = build_metadata_filter_fn(
        lambda value: {part.key: fold(value)}, plain
    )  # its "node id" is the value

    def holds(value: Any) -> bool:
        try:
            return matches(value)
        except TypeError:  # of another type
            return False

    return holds


def items_of(value: Any) -> list[Any]:
    """A value, and the items between its commas, folded; what reads as a number is one as well."""
    if not isinstance(value, str):
        return [] if value is None else [value]
    value = caseless(value)
    texts = dict.fromkeys([value, *(part.strip().lstrip("#") for part in value.split(","))])
    return [*texts, *(number for text in texts if not isinstance(number := meta.typed(text), str))]


def _folded(value: Any) -> Any:
    return caseless(value) if isinstance(value, str) else value


# Masks of rows


def _mask(filters: MetadataFilters, test: Callable[[MetadataFilter], Bools], size: int) -> Bools:
    """Mask of the rows that filters admit: any nesting of AND, OR and NOT (no member holds); without members all."""
    masks = [
        _mask(part, test, size) if isinstance(part, MetadataFilters) else test(part)
        for part in filters.filters
    ]
    if not masks:
        return np.ones(size, dtype=np.bool_)
    if filters.condition in {None, FilterCondition.AND}:
        return np.asarray(np.all(masks, axis=0))
    any_holds = np.asarray(np.any(masks, axis=0))
    return ~any_holds if filters.condition == FilterCondition.NOT else any_holds


def admitted(
    filters: MetadataFilters,
    rows: Ints,
    column_of: Callable[[str], Sequence[Any]],
    holding: Callable[[MetadataFilter], Ints],
    passed: Sequence[MetadataFilter] = (),
) -> Ints:
    """Those of some rows that filters admit, in their order.

    Args:
        filters: Any nesting of them.
        rows: Numbers of rows.
        column_of: Gives the values of a metadata key, one for each of the rows.
        holding: Gives the rows that satisfy a filter on :data:`WORDS`, and perhaps others.
        passed: Filters that a store let the rows pass; one that searched a list for a value was right to do so.
    """

    def test(part: MetadataFilter) -> Bools:
        if part.key == WORDS:
            return np.isin(rows, holding(part))
        key, holds = part.key.removeprefix(ITEMS), condition_of(part)
        values = column_of(key)
        if key in REF_DOC_ALIASES:
            pairs = zip(values, column_of(meta.REF_DOC_ID), strict=True)
            values = [document if value is None else value for value, document in pairs]
        if any(part is other for other in passed):
            items = [value if isinstance(value, list) else [] for value in values]
            return np.array(
                [
                    holds(value) or any(map(holds, of))
                    for value, of in zip(values, items, strict=True)
                ]
            )
        try:  # once for each distinct value
            return np.fromiter(map(cache(holds), values), np.bool_, len(rows))
        except TypeError:  # a list among them
            return np.fromiter(map(holds, values), np.bool_, len(rows))

    return rows[_mask(filters, test, len(rows))]


def admits(
    filters: MetadataFilters | None,
    metadata: Mapping[str, Any],
    passed: Sequence[MetadataFilter] = (),
) -> bool:
    """Whether filters admit one document, by its metadata and, as ``REF_DOC_ID``, its document's id; see above."""
    row = np.zeros(1, np.int64)
    found = (
        row
        if filters is None
        else admitted(filters, row, lambda key: [metadata.get(key)], lambda _: row[:0], passed)
    )
    return len(found) > 0
