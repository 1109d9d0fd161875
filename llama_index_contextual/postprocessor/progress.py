"""A progress bar that counts chunks across documents."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llama_index_contextual.context.base import ContextProgress


@contextmanager
def progress_bar(*, enabled: bool) -> Iterator[Callable[[ContextProgress], None] | None]:
    """Give a callable that draws progress on stderr, or None when it is not wanted."""
    if not enabled:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("Contexts", total=None)

        def draw(progress: ContextProgress) -> None:
            note = f"Contexts ({progress.cached} cached, {progress.fallbacks} fallbacks)"
            bar.update(task, completed=progress.done, total=progress.total, description=note)

        yield draw
