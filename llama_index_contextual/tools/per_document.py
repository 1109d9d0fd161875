"""Keep few hits of each document."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

ItemT = TypeVar("ItemT")


def few_of_each(
    items: Iterable[ItemT], document_of: Callable[[ItemT], Hashable], per_file: int, most: int
) -> list[ItemT]:
    """Return the best items, few of each document.

    Args:
        items: Best first.
        document_of: Gives the document of an item.
        per_file: Most items of one document; 0 is no limit.
        most: Most items in all.
    """
    counts = Counter[Hashable]()
    kept = list[ItemT]()
    for item in items:
        counts[document_of(item)] += 1
        if len(kept) < most and not 0 < per_file < counts[document_of(item)]:
            kept.append(item)
    return kept
