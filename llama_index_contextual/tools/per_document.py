"""Keep few hits of each document and count the others."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

ItemT = TypeVar("ItemT")


def few_of_each(
    items: Iterable[ItemT], document_of: Callable[[ItemT], Hashable], per_file: int, most: int
) -> list[tuple[ItemT, int]]:
    """Return the best items, each with how many further ones of its document are not among them.

    Only the last item of a document has that number; the others have 0.

    Args:
        items: Best first.
        document_of: Gives the document of an item.
        per_file: Most items of one document; 0 is no limit.
        most: Most items in all.
    """
    total = Counter[Hashable]()
    kept = Counter[Hashable]()
    last_position = dict[Hashable, int]()
    shown = list[tuple[ItemT, Hashable]]()
    for item in items:
        document = document_of(item)
        total[document] += 1
        if len(shown) < most and not (per_file and kept[document] >= per_file):
            kept[document] += 1
            last_position[document] = len(shown)
            shown.append((item, document))
    return [
        (item, total[document] - kept[document] if last_position[document] == position else 0)
        for position, (item, document) in enumerate(shown)
    ]
