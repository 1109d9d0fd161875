"""How the time of some work grows with the length of its text, on a machine of any speed."""

import signal
import time

LIMIT = 30.0
SHORT_TIME = 0.2
GROWTH = 8
ALLOWED = 3 * GROWTH


class TooSlowError(Exception):
    """The work took more than the limit of processor time."""


def seconds(work, *arguments):
    """Return the processor time of one call; a call that takes longer than the limit is ended."""

    def stop(*_):
        raise TooSlowError

    before = signal.signal(signal.SIGVTALRM, stop)
    began = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
    try:
        work(*arguments)
    except TooSlowError:
        return LIMIT
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return time.process_time() - began


def assert_linear(work, text_of, longest):
    """Assert that a text of eight times the length takes about eight times the time.

    Quadratic work takes 64 times as long. Work that is short at full length passes: its times say
    nothing. The lengths grow step by step, so that the limit ends what is far from linear.
    """
    lengths = [longest // GROWTH**step for step in range(4, -1, -1)]
    before = LIMIT
    for length in [length for length in lengths if length > 0]:
        text = text_of(length)
        took = seconds(work, text)
        if took > max(SHORT_TIME, ALLOWED * before):
            took = min(took, seconds(work, text))
        assert took < LIMIT, f"{length} characters take {LIMIT} seconds or more."
        assert took <= max(SHORT_TIME, ALLOWED * before), (length, before, took)
        before = took
