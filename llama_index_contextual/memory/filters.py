"""Which notes a search is about: by path, tag and days, as LlamaIndex's metadata filters."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.dates import epoch_seconds
from llama_index_contextual.errors import SettingError
from llama_index_contextual.metadata import DATE_TS, PATH, TAGS

if TYPE_CHECKING:
    from collections.abc import Iterable


def days_filter(first: date | None, last: date | None) -> MetadataFilters:
    """Notes from some days, both included; None leaves that end open. A note without a date is of no day."""
    ends = ((first, FilterOperator.GTE), (last, FilterOperator.LTE))
    return _all(_one(DATE_TS, epoch_seconds(day), how) for day, how in ends if day is not None)


def note_filters(*, path: str = "", tag: str = "", since: str = "", until: str = "") -> MetadataFilters | None:
    """Filters from what an agent writes; None where it writes nothing.

    Args:
        path: Part of a note's path, in any case.
        tag: Part of one of its tags, in any case.
        since: Its first day, as ``2026-04-09``.
        until: Its last day.

    Raises:
        SettingError: A day is none, or the first comes after the last.
    """
    first, last = _day("since", since), _day("until", until)
    if first and last and first > last:
        raise SettingError(f"since={since!r} comes after until={until!r}. Cure: exchange them.")
    parts = ((PATH, path.strip()), (TAGS, tag.strip().removeprefix("#")))
    found: list[MetadataFilter | MetadataFilters] = [
        _one(key, part, FilterOperator.TEXT_MATCH_INSENSITIVE) for key, part in parts if part
    ]
    if first or last:
        found += days_filter(first, last).filters
    return _all(found) if found else None


def _one(key: str, value: str | int, operator: FilterOperator) -> MetadataFilter:
    return MetadataFilter(key=key, value=value, operator=operator)


def _all(filters: Iterable[MetadataFilter | MetadataFilters]) -> MetadataFilters:
    return MetadataFilters(filters=list(filters))


def _day(name: str, text: str) -> date | None:
    try:
        return date.fromisoformat(text.strip()) if text.strip() else None
    except ValueError:
        raise SettingError(f"{name}={text!r} is no date. Cure: write it as 2026-04-09.") from None
