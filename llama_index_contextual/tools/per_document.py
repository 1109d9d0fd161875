"""Limit the number of hits of each document."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

ItemT = TypeVar("ItemT")


def limit_per_document(
    items: Iterable[ItemT],
    document_of: Callable[[ItemT], Hashable],
    per_file: int,
    most: int,
) -> list[ItemT]:
    """Return the best items, with a limit for each document.

    Args:
        items: The items, best first.
        document_of: Returns the document of an item.
        per_file: The largest number of items per document. 0 means no limit.
        most: The largest number of items in all.
    """
    counts = Counter[Hashable]()
    kept = list[ItemT]()
    for item in items:
        document = document_of(item)
        counts[document] += 1
        if len(kept) < most and not 0 < per_file < counts[document]:
            kept.append(item)
    return kept
