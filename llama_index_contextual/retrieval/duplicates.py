"""Near-equal chunks: the same text twice, up to white space, case and a few words."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

_SAME: Final = 0.8  # Jaccard similarity of word pairs from which two chunks are nearly equal
_ALIKE: Final = 0.5  # that of their words, below which their pairs are not compared
_WORD: Final = re.compile(r"\w+")


class NearDuplicates:
    """The texts so far, each with a function that returns its kind: texts of different kinds are not equal."""

    def __init__(self) -> None:
        self._texts: list[tuple[str, frozenset[str], Callable[[], Any]]] = []

    def has(self, text: str, kind: Callable[[], Any] = lambda: None) -> bool:
        """Whether a text is nearly equal to one of those so far; if not, it is one of them from now on."""
        words = frozenset(text.casefold().split())
        for other, words_of_other, kind_of_other in self._texts:
            alike = text == other or similarity(words, words_of_other) >= _ALIKE
            if alike and similarity(_pairs(text), _pairs(other)) >= _SAME and kind() == kind_of_other():
                return True
        self._texts.append((text, words, kind))
        return False


def similarity(some: frozenset[Any], others: frozenset[Any]) -> float:
    """Jaccard similarity: the share of what two sets hold that both hold."""
    both = len(some & others)
    return both / ((len(some) + len(others) - both) or 1)


def _pairs(text: str) -> frozenset[tuple[str, ...]]:
    words = _WORD.findall(text.casefold())
    return frozenset(pairwise(words)) or frozenset([tuple(words)])
