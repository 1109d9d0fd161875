"""Whether work grows faster than the text that it is given.

Four times the text may take four times as long. A step that is quadratic takes sixteen times as
long, so nine is the line between both. Times are of the processor.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FACTOR, LINE = 4, 9


def grows_too_fast(
    work: Callable[[str], object], short: str, long: str, noise: float = 0.010
) -> bool:
    """Whether a text of four times the length takes more than nine times as long.

    It is measured three times before it counts, because other work on the machine slows single
    runs.

    Args:
        work: What is done with a text.
        short: A text.
        long: One of its kind, :data:`FACTOR` times as long.
        noise: Seconds; what takes less passes.
    """

    def once() -> bool:
        took = seconds(work, long)
        return took >= noise and took >= LINE * seconds(work, short)

    return all(once() for _ in range(3))


def seconds(work: Callable[[str], object], text: str) -> float:
    """The least processor time of three calls."""
    best = float("inf")
    for _ in range(3):
        began = time.thread_time()
        work(text)
        best = min(best, time.thread_time() - began)
    return best
