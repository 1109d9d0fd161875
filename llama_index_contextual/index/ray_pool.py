"""Workers of one kind on Ray: pieces of work are given to them, and are done again where one dies."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.errors import (
    MissingExtraError,
    SettingError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


_AHEAD: Final = 2  # pieces of work that a worker has: one that it does, one that waits
_DEATHS: Final = 3  # of workers in a row over one piece of work, after which it is given up
_START_SECONDS: Final = 120.0  # for a worker to start and import its packages


def load_ray() -> Any:
    """Return the module ``ray``, which takes a second to import.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    return ray


@dataclass(slots=True, eq=False)
class Task:
    """A piece of work, and the worker that has it."""

    number: int
    item: Any
    slot: int
    actor: Any
    ref: Any
    deaths: int = 0


class RayPool:
    """The workers of one kind.

    Args:
        make: Starts one.
        size: How many.
        failure: The class of the error for a piece of work over which workers die.
    """

    def __init__(self, make: Callable[[], Any], size: int, failure: type[Exception]) -> None:
        self._make, self._failure = make, failure
        self._busy: Counter[int] = Counter()  # pieces of work by worker
        self._lock = threading.Lock()
        self._closed = False
        self._actors = [make() for _ in range(size)]

    def __len__(self) -> int:
        return len(self._actors)

    def check(self, actors: Sequence[Any] = ()) -> None:
        """Wait until workers have made their parts: all of them, or those that are given.

        Raises:
            SettingError: They do not start, or are of another version.
        """
        from llama_index_contextual import __version__

        ray, actors = load_ray(), actors or self._actors
        try:
            versions = set(ray.get([actor.ready.remote() for actor in actors], timeout=_START_SECONDS))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.GetTimeoutError:
            raise SettingError(
                f"{len(actors)} workers did not start in {_START_SECONDS:.0f} s: Ray has {_room(ray)}. Cure: fewer "
                "([ray] parse and embed), or more machines."
            ) from None
        except ray.exceptions.RayError as error:
            raise SettingError(
                f"a worker could not start ({reason_of(error)}). Cure: the same Python, Ray and llama-index-contextual "
                "on every machine."
            ) from error
        if versions - {__version__}:
            raise SettingError(
                f"workers have llama-index-contextual {', '.join(sorted(versions))}, and this process has "
                f"{__version__}. Cure: the same version on every machine."
            )

    def map(self, items: Iterable[Any], *, in_order: bool) -> Iterator[tuple[int, Any]]:
        """Yield the number and the outcome of each item, which may be an exception; take no more items than needed."""
        numbered, tasks = enumerate(items), list[Task]()
        while True:
            while len(tasks) < _AHEAD * len(self) and (taken := next(numbered, None)) is not None:
                tasks.append(self.given(*taken))
            if not tasks:
                return
            task = tasks[0] if in_order else self._first_done(tasks)
            tasks.remove(task)
            yield task.number, self.outcome(task)

    def given(self, number: int, item: Any, slot: int | None = None) -> Task:
        """Give an item to one worker, or to the one that has the least to do."""
        with self._lock:
            slot = min(range(len(self)), key=self._busy.__getitem__) if slot is None else slot
            self._busy[slot] += 1
            actor = self._actors[slot]
            return Task(number, item, slot, actor, actor.do.remote(item))

    def outcome(self, task: Task) -> Any:
        """Return what came of a piece of work, or the exception that it raised."""
        exceptions = load_ray().exceptions
        try:
            while True:
                try:
                    return load_ray().get(task.ref)
                except exceptions.RayTaskError as error:  # noqa: PERF203  it is tried again
                    return error.cause
                except exceptions.RayError as error:  # the worker died, or the machine that had its answer
                    if not self._again(task):
                        return self._failure(f"it ended {_DEATHS} workers one after the other ({reason_of(error)}).")
        finally:
            with self._lock:
                self._busy[task.slot] -= 1

    def _first_done(self, tasks: Sequence[Task]) -> Task:
        done, _ = load_ray().wait([task.ref for task in tasks], num_returns=1)
        return next(task for task in tasks if task.ref == done[0])

    def _again(self, task: Task) -> bool:
        """Give a piece of work to a new worker in the place of one that died; return False where it is given up."""
        with self._lock:
            if self._closed:
                raise CancelledError
            if self._actors[task.slot] is task.actor:  # else it was waiting behind the one that the worker died over
                task.deaths += 1
                self._end(task.actor)
                self._actors[task.slot] = self._make()
                self.check([self._actors[task.slot]])
            task.actor = self._actors[task.slot]
            if task.deaths < _DEATHS:
                task.ref = task.actor.do.remote(task.item)
            return task.deaths < _DEATHS

    def close(self) -> None:
        """End the workers; whoever waits for one is told."""
        self._closed = True
        for actor in self._actors:
            self._end(actor)

    def _end(self, actor: Any) -> None:
        with contextlib.suppress(Exception):  # it is gone already, or Ray is
            load_ray().kill(actor)


def _room(ray: Any) -> str:
    resources = ray.cluster_resources()
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))


def reason_of(error: Exception) -> str:
    """Return the first line of a message of Ray's, which go on for pages."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": .")
