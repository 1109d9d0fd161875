"""How far a refresh is: bars that count chunks in a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from llama_index_contextual.context.base import ContextProgress
    from llama_index_contextual.context.usage import ContextUsage

EVERY: Final = 5.0  # seconds between two lines
_STAGES: Final = ("files read", "contexts", "indexed")


class RefreshProgress:
    """Counts files and chunks through the three stages of a refresh, and shows them on standard error.

    How many chunks there will be is not known before all files are read. So what is done is a share of the files'
    bytes, whose total never changes, and the share never falls.

    Args:
        show: Whether to show anything.
        usage: Tells what the context generator has done.
        console: Where to show it. Default: standard error.
    """

    def __init__(self, usage: Callable[[], ContextUsage], *, show: bool, console: Console | None = None) -> None:
        self._usage = usage
        self._console = console or Console(stderr=True, soft_wrap=True, highlight=False)
        self._show = show
        self._sizes: Sequence[int] = ()
        self._share = 0.0  # of the bytes, indexed
        self._read = self._bytes = self._chunks = self._described = self._embedded = 0
        self._part = {"contexts": 0, "embedded": 0}  # of the group or batch at work
        self._started = self._said = time.monotonic()
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def begin(self, sizes: Sequence[int]) -> None:
        """Begin with files of these sizes, in the order in which they are read."""
        self._sizes = sizes
        self._started = self._said = time.monotonic()
        if not self._show or not sizes or not self._console.is_terminal:
            return
        columns = (
            TextColumn("{task.description:>10}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[count]:>8}"),
            TextColumn("{task.fields[rate]:>8}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._bars = Progress(*columns, console=self._console, transient=True)
        self._tasks = {stage: self._bars.add_task(stage, total=1.0, count="", rate="", note="") for stage in _STAGES}
        self._bars.start()

    def read(self, chunks: int) -> None:
        """Note a file that was read and cut into so many chunks, none where it could not be read."""
        self._bytes += self._sizes[self._read]
        self._read += 1
        self._chunks += chunks
        self._shown()

    def contexts(self, progress: ContextProgress) -> None:
        """Note how far the contexts of the group at work are."""
        self._part["contexts"] = progress.done
        self._shown()

    def group_done(self, chunks: int) -> None:
        """Note that a group of so many chunks has its contexts."""
        self._described += chunks
        self._part["contexts"] = 0
        self._shown()

    def embedded(self, chunks: int) -> None:
        """Note that so many more chunks of the batch at work have their vectors."""
        self._part["embedded"] += chunks
        self._shown()

    def batch_done(self, chunks: int) -> None:
        """Note that a batch of so many chunks is written."""
        self._embedded += chunks
        self._part["embedded"] = 0
        self._shown()

    def _done(self) -> dict[str, tuple[int, float]]:
        """Return for each stage how many files or chunks it has done, and which share of all bytes these are."""
        total = sum(self._sizes)
        read = self._bytes / total if total else 0.0
        described = self._described + self._part["contexts"]
        indexed = self._embedded + self._part["embedded"]
        of_chunks = read / self._chunks if self._chunks else 0.0
        self._share = max(self._share, min(indexed * of_chunks, 1.0))
        return {
            "files read": (self._read, read),
            "contexts": (described, min(described * of_chunks, 1.0)),
            "indexed": (indexed, self._share),
        }

    def _shown(self) -> None:
        if not self._show:
            return
        stages, seconds = self._done(), max(time.monotonic() - self._started, 1e-9)
        if self._bars is not None:
            for stage, (count, share) in stages.items():
                note = self._note() if stage == "contexts" else ""
                rate = f"{count / seconds:.1f}/s"
                self._bars.update(self._tasks[stage], completed=share, count=f"{count:,}", rate=rate, note=note)
        elif time.monotonic() - self._said >= EVERY:
            self._said = time.monotonic()
            self._console.print(self._line(stages, seconds), markup=False)

    def _line(self, stages: dict[str, tuple[int, float]], seconds: float) -> str:
        (read, _), (described, _), (indexed, share) = (stages[stage] for stage in _STAGES)
        left = f", about {_time(seconds * (1 - share) / share)} left" if share else ""
        note = f" ({self._note()})" if self._note() else ""
        return (
            f"Indexing: {read:,} of {len(self._sizes):,} files read, {counted(described, 'context')}{note}, "
            f"{indexed:,} chunks indexed ({share:.0%}), {indexed / seconds:.1f}/s{left}"
        )

    def _note(self) -> str:
        usage = self._usage()
        if not usage.calls and not usage.failed:
            return ""
        tokens = usage.tokens.prompt + usage.tokens.completion
        fell_back = f", {sum(usage.failed.values()):,} fell back" if usage.failed else ""
        price = "" if usage.price is None else f", ${usage.price:.2f}"
        return f"{counted(usage.calls, 'call')}, {counted(tokens, 'token')}{price}{fell_back}"


def _time(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes > 1 else f"{max(seconds, 1):.0f} s"
