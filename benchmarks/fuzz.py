"""Feed made-up hostile input to every reader of this package, and report what breaks a promise: nothing should.

Each input is made from the seed and its number alone, so that a finding comes back by naming both. The kinds are those
of fuzz_kinds.py: Markdown documents through parser and contexts, messages through gate, queries and digest, answers of
a language model, vectors of an embedding server, damaged databases and settings. A text that takes longer than others
of its size is read again four times as long: its time may grow with its length and not with the square.

    python benchmarks/fuzz.py --seconds 30                  # all kinds in turn
    python benchmarks/fuzz.py --documents 1000000           # so many documents, and a share of the others
    python benchmarks/fuzz.py --seed 7 --kinds messages --first 12345 --documents 1     # one of them again
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import logging
import os
import platform
import random
import sys
import time
import traceback
import warnings
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from fuzz_kinds import KINDS, grows_too_fast

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SHARE = {
    "documents": 1,
    "messages": 10,
    "answers": 10,
    "vectors": 100,
    "states": 100,
    "databases": 1000,
    "settings": 100,
}  # one in so many
SLOW = 4  # times the usual time for its length: then growth is measured
LOOK_AT_GROWTH = 5000  # and of every so many
PATIENCE = 20.0  # seconds that one finding may take to be made small


@dataclass(slots=True)
class Tally:
    """What became of one kind.

    Attributes:
        done: Inputs that were used.
        seconds: Processor time.
        letters: Of all inputs.
        findings: By what was wrong and where, the smallest input and its number.
    """

    done: int = 0
    seconds: float = 0.0
    letters: int = 0
    findings: dict[str, tuple[int, Any]] = field(default_factory=dict)


def made(seed: int, kind: str, number: int) -> Any:
    """The input of a seed, a kind and a number."""
    return KINDS[kind].make(random.Random(f"{seed} {kind} {number}"))  # noqa: S311  reproducible, not secret


def fault(kind: str, given: Any) -> str:
    """What a use of an input breaks, and where; "" for nothing."""
    try:
        KINDS[kind].use(given)
    except RecursionError as error:
        return f"RecursionError: {error}"
    except Exception as error:  # noqa: BLE001  whatever it is
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "llama_index_contextual" in frame.filename] or frames
        what = str(error) if isinstance(error, AssertionError) else ""
        return f"{type(error).__name__} {what} in {os.path.basename(ours[-1].filename)}:{ours[-1].name}"  # noqa: PTH119
    return ""


def smallest(given: Any, still: Any) -> Any:
    """Leave out of an input what its fault does not need: halves, then quarters, then single elements."""
    until = time.monotonic() + PATIENCE
    step = max(1, len(given) // 2)
    while step:
        at = 0
        while at < len(given):
            less = given[:at] + given[at + step :]
            if len(less) and time.monotonic() < until and still(less):
                given = less
            else:
                at += step
        step //= 2
    return given


def use(kind: str, seed: int, number: int, tally: Tally) -> None:
    """Use one input, and note what it breaks."""
    given = made(seed, kind, number)
    began = time.thread_time()
    found = fault(kind, given)
    took = time.thread_time() - began
    usual = tally.seconds / max(1, tally.letters)
    tally.done += 1
    tally.seconds += took
    tally.letters += len(given)
    work = KINDS[kind].work
    if not found and work is not None:
        slow = tally.done > 100 and took > max(0.05, SLOW * usual * len(given))  # before, nothing is usual
        if (slow or not number % LOOK_AT_GROWTH) and grows_too_fast(work(given), given):
            found = "time grows faster than the text"
    if found and found not in tally.findings:
        grown = found.startswith("time")
        less = given if grown else smallest(given, lambda less: fault(kind, less) == found)
        tally.findings[found] = number, less
        print(f"seed {seed}, {kind} {number}: {found}\n    {less!r:.400}", file=sys.stderr, flush=True)


def run(
    kinds: Sequence[str], *, seed: int, first: int = 0, documents: int | None = None, seconds: float | None = None
) -> dict[str, Tally]:
    """Use inputs of some kinds in turn.

    Args:
        kinds: Names of :data:`KINDS`.
        seed: Of all inputs.
        first: Number of the first one.
        documents: How many documents, with the share of each other kind; of a single kind, how many of it.
        seconds: When to stop at the latest.
    """
    tallies = {kind: Tally() for kind in kinds}
    until = time.monotonic() + seconds if seconds else float("inf")
    share = SHARE if len(kinds) > 1 else dict.fromkeys(kinds, 1)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable()
        numbers = itertools.count(first) if documents is None else iter(range(first, first + documents))
        for number in numbers:
            for kind in kinds:
                if number % share[kind] == 0:
                    use(kind, seed, number, tallies[kind])
            if number % 50_000 == 0:
                print(f"{number:,}, {sum(len(tally.findings) for tally in tallies.values())} findings", file=sys.stderr)
            if time.monotonic() > until:
                break
    logging.disable(logging.NOTSET)
    return tallies


def table(tallies: dict[str, Tally]) -> Iterator[str]:
    """The figures, in Markdown."""
    yield "| kind | inputs | characters each | ms each | findings |"
    yield "|---|---|---|---|---|"
    for kind, tally in tallies.items():
        done = max(1, tally.done)
        each = f"{tally.letters / done:.0f} | {1000 * tally.seconds / done:.1f}"
        yield f"| {kind} | {tally.done:,} | {each} | {len(tally.findings)} |"


def main() -> None:
    """Run from the command line; the exit code is 1 where there are findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--documents", type=int, help="how many; other kinds in their share")
    parser.add_argument("--seconds", type=float, help="when to stop; 30 where --documents is not given")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    options = parser.parse_args()
    seconds = 30.0 if options.seconds is None and options.documents is None else options.seconds
    tallies = run(options.kinds, seed=options.seed, first=options.first, documents=options.documents, seconds=seconds)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"seed {options.seed}; {machine}, {datetime.now(tz=timezone.utc):%Y-%m-%d}\n")
    print("\n".join(table(tallies)))
    sys.exit(any(tally.findings for tally in tallies.values()))


if __name__ == "__main__":
    main()
