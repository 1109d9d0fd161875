"""Near-equal chunks: the same text twice, up to white space, case and a few words."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Final

_SAME: Final = 0.8  # Jaccard similarity of word pairs from which two chunks say the same
_WORD: Final = re.compile(r"\w+")


class NearDuplicates:
    """Texts that were met so far."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._holders: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)

    def has(self, text: str) -> bool:
        """Return whether a text is nearly equal to one that was met before; if not, it has been met now."""
        words = _WORD.findall(text.casefold())
        pairs: set[tuple[str, ...]] = set(pairwise(words)) or {tuple(words)}
        shared = Counter(number for pair in pairs for number in self._holders.get(pair, ()))
        if any(both >= _SAME * (len(pairs) + self._sizes[number] - both) for number, both in shared.items()):
            return True
        for pair in pairs:
            self._holders[pair].append(len(self._sizes))
        self._sizes.append(len(pairs))
        return False
