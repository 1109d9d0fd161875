"""How far a refresh is: a line that changes in a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.status import Status
    from typing_extensions import Self

    from llama_index_contextual.context import ContextUsage

EVERY: Final = 5.0  # seconds between two lines


class RefreshProgress:
    """Counts files and chunks through the stages of a refresh, and shows them on standard error.

    How many chunks there will be is not known before all files are read. So what is done is a share of the files'
    bytes, whose total never changes, and the share never falls.

    Args:
        show: Whether to show anything.
        usage: Counts the calls of the context generator.
    """

    def __init__(self, usage: Callable[[], ContextUsage], *, show: bool) -> None:
        from rich.console import Console  # slow, and no question needs it

        self._usage, self._show = usage, show
        self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._files = self._size = self._read = self._bytes = self._chunks = 0
        self._share = 0.0  # of the bytes, indexed
        self._finished = {"contexts": 0, "indexed": 0}  # chunks, by stage
        self._part = {"contexts": 0, "indexed": 0}  # of the group or batch at work
        self._started = self._shown_at = time.monotonic()
        self._status: Status | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def begin(self, files: int, size: int) -> None:
        """Begin with so many files, and bytes of all of them together."""
        self._files, self._size = files, size
        self._started = self._shown_at = time.monotonic()
        if self._show and files and self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()

    def read(self, size: int, chunks: int) -> None:
        """Count a file of so many bytes that was read and cut into so many chunks, none where it could not be read."""
        self._bytes, self._read, self._chunks = self._bytes + size, self._read + 1, self._chunks + chunks
        self._draw()

    def at_work(self, stage: str, chunks: int) -> None:
        """Count how many chunks of the group or batch at work have been through a stage."""
        self._part[stage] = chunks
        self._draw()

    def finished(self, stage: str, chunks: int) -> None:
        """Count a group or batch of so many chunks as through a stage: contexts are made, or chunks written."""
        self._finished[stage] += chunks
        self.at_work(stage, 0)

    def _draw(self) -> None:
        if not self._show:
            return
        contexts, indexed = (self._finished[stage] + self._part[stage] for stage in ("contexts", "indexed"))
        read = self._bytes / self._size if self._size else 0.0
        share = self._share = max(self._share, min(indexed * read / max(self._chunks, 1), 1.0))
        if self._status is None and time.monotonic() - self._shown_at < EVERY:
            return
        self._shown_at = time.monotonic()
        seconds = max(self._shown_at - self._started, 1e-9)
        note = f" ({note})" if (note := self._note()) else ""
        left = f", about {_time(seconds * (1 - share) / share)} left" if share else ""
        line = (
            f"Indexing: {self._read:,} of {self._files:,} files read, {counted(contexts, 'context')}{note}, "
            f"{indexed:,} chunks indexed ({share:.0%}), {indexed / seconds:.1f}/s{left}"
        )
        if self._status is not None:
            self._status.update(line)
        else:
            self._console.print(line, markup=False)

    def _note(self) -> str:
        usage = self._usage()
        if not usage.calls and not usage.failed:
            return ""
        tokens = usage.tokens.prompt + usage.tokens.completion
        fell_back = f", {sum(usage.failed.values()):,} fell back" if usage.failed else ""
        return f"{counted(usage.calls, 'call')}, {counted(tokens, 'token')}{fell_back}"


def _time(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes > 1 else f"{max(seconds, 1):.0f} s"
