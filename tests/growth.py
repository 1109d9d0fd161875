"""Measure whether work grows faster than the text that it is given.

Four times the text may take four times as long. A quadratic step takes sixteen times as long, so
the limit is nine. Times are processor times.
"""

from __future__ import annotations

import gc
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FACTOR, LINE = 4, 9
LIMIT = 30.0  # seconds after which a call is stopped, so that an endless one fails
SHORT_TIME = 0.2  # seconds; shorter times at full length pass


class TooSlowError(Exception):
    """Raised if a call takes longer than the limit."""


def grows_too_fast(
    work: Callable[[str], object], short: str, long: str, noise: float = 0.010
) -> bool:
    """Return whether a text of four times the length takes more than nine times as long.

    Three measurements must agree, because other work on the machine slows single runs.

    Args:
        work: The function to measure.
        short: A text.
        long: A text of the same kind, :data:`FACTOR` times as long.
        noise: Seconds; shorter times are ignored.
    """

    def once() -> bool:
        took = seconds(work, long)
        return took >= noise and took >= LINE * least_seconds(work, short)

    return all(once() for _ in range(3))


def least_seconds(work: Callable[[str], object], text: str) -> float:
    """Return the least processor time of three calls, as other work makes calls slower."""
    return min(seconds(work, text) for _ in range(3))


def seconds(work: Callable[[str], object], text: str) -> float:
    """Return the processor time of a call.

    Garbage is not collected meanwhile: a collection takes long for reasons outside the call.
    """
    gc.disable()
    try:
        began = time.thread_time()
        work(text)
        return time.thread_time() - began
    finally:
        gc.enable()


def seconds_of(work: Callable[[str], object], text: str) -> float:
    """Return the processor time of one call, which ends after :data:`LIMIT` seconds."""

    def stop(*_: object) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGVTALRM, stop)
    began = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
    try:
        work(text)
    except TooSlowError:
        return LIMIT
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return time.process_time() - began


def assert_linear(
    work: Callable[[str], object], text_of: Callable[[int], str], longest: int
) -> None:
    """Assert that time grows no faster than the length of a text.

    The lengths grow up to the longest, so that the limit ends what is far from linear.
    """
    for length in (longest // FACTOR**3, longest // FACTOR**2, longest // FACTOR, longest):
        text = text_of(length)
        took = seconds_of(work, text)
        assert took < LIMIT, f"{length} characters take {LIMIT} seconds or more."
        if took > SHORT_TIME:
            quarter = text_of(length // FACTOR)
            assert not grows_too_fast(work, quarter, text, noise=SHORT_TIME), (length, took)
