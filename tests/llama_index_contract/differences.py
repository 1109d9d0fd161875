"""Every deliberate difference between a class of this package and the stock class that it may stand in for.

``scripts/compatibility_page.py`` writes the end of ``docs/compatibility.md`` from this list. A case in a ``test_*.py``
of this folder names the ``id`` of a row with ``differs=`` and shows both sides. What no row names is the same in both.
"""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    """One row of the page.

    Attributes:
        id: What cases call it.
        stock: What the stock class does. It is the subject of the sentence.
        ours: What ours does instead.
        because: Why; one sentence.
    """

    id: str
    stock: str
    ours: str
    because: str


# By the pair of classes, as the page shows them: "stock class → ours".
DIFFERENCES: dict[str, tuple[Difference, ...]] = {
    "MarkdownNodeParser, SentenceSplitter → HeadingAwareMarkdownNodeParser": (
        Difference(
            "false-headings",
            "takes `#` in `~~~` fences and in front matter for a heading, and misses underlined headings",
            "has the headings that CommonMark has",
            "a wrong heading becomes a wrong context",
        ),
    ),
}
