"""Workers of one kind on Ray: pieces of work are given to them, and are done again where one dies or hangs.

The pieces of a worker that is lost go to the others at once. One in its place joins them when it has started, if Ray
has room for it: where a machine of a cluster is gone, it may never.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from abc import ABC, abstractmethod
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

from llama_index_contextual.errors import ContextualWarning, SettingError, needs
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_T = TypeVar("_T")

_AHEAD: Final = 2  # pieces of work that a worker has: one that it does, one that waits
_DEATHS: Final = 3  # of workers in a row over one piece of work, after which it is given up
_HANGS: Final = 1800.0  # seconds without an answer, after which a worker is ended; a slow model takes a minute or two
_FETCH: Final = 60.0  # of them at least for an answer that is made to arrive
_START_SECONDS: Final = 120.0  # for a worker to start and import its packages


def load_ray() -> Any:
    """Return the module ``ray``, which takes a second to import.

    Raises:
        MissingExtraError: It is not installed.
    """
    with needs("ray", "ray"):
        import ray
    return ray


class Worker(ABC):
    """An actor. It makes its parts when it is told to, so that a failure has a message."""

    def __init__(self, recipe: Any) -> None:
        self._recipe = recipe

    def ready(self) -> tuple[str, str]:
        """Make the parts; return the version of this package, and the node of Ray.

        Raises:
            SettingError: One cannot be made on this machine.
        """
        from llama_index_contextual import __version__

        self._make()
        return __version__, load_ray().get_runtime_context().get_node_id()

    @abstractmethod
    def _make(self) -> None:
        """Make the parts from the recipe."""


def with_warnings(work: Callable[..., _T]) -> Callable[..., tuple[_T, list[str]]]:
    """Have a worker's method return its warnings, too: those of another process are seen by nobody."""

    @wraps(work)
    def call(*arguments: Any) -> tuple[_T, list[str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = work(*arguments)
        return result, [str(one.message) for one in caught if issubclass(one.category, ContextualWarning)]

    return call


@dataclass(slots=True, eq=False)
class Task:
    """A piece of work, the worker that has it, and what that will answer."""

    number: int
    item: Any
    worker: _Worker
    ref: Any
    given: float
    deaths: int = 0


@dataclass(slots=True, eq=False)
class _Worker:
    """An actor, what it will answer when it has made its parts, its node of Ray, and how much it has to do."""

    actor: Any
    answer: Any
    node: str = ""
    busy: int = 0  # pieces of work


class RayPool:
    """The workers of one kind.

    Args:
        make: Starts one.
        size: How many.
        failure: The class of the error for a piece of work over which workers die.
    """

    def __init__(self, make: Callable[[], Any], size: int, failure: type[Exception]) -> None:
        self._make, self._failure = make, failure
        self._lock = threading.Lock()
        self._closed = False
        self._ready: list[_Worker] = []
        self._starting: list[_Worker] = []
        self._end_of_all: Exception | None = None  # why nobody is left
        for _ in range(size):
            self._start()

    def __len__(self) -> int:
        return len(self._ready) + len(self._starting)

    def _start(self) -> None:
        actor = self._make()
        self._starting.append(_Worker(actor, actor.ready.remote()))

    def check(self) -> None:
        """Wait until all workers have made their parts.

        Raises:
            SettingError: They do not start, or are of another version.
        """
        self._check(self._starting, _START_SECONDS)
        self._ready, self._starting = self._starting, []

    def _check(self, workers: Sequence[_Worker], seconds: float) -> None:
        from llama_index_contextual import __version__

        ray = load_ray()
        try:
            answers = ray.get([worker.answer for worker in workers], timeout=seconds)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.GetTimeoutError:
            raise SettingError(
                f"{counted(len(workers), 'worker')} did not start in {_START_SECONDS:.0f} s: Ray has {_room(ray)}. "
                "Cure: fewer ([ray] parse and embed), or more machines."
            ) from None
        except ray.exceptions.RayError as error:
            raise SettingError(
                f"a worker could not start ({reason_of(error)}). Cure: the same Python, Ray and llama-index-contextual "
                "on every machine."
            ) from error
        versions = {version for version, _ in answers}
        for worker, (_, node) in zip(workers, answers, strict=True):
            worker.node = node
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
                tasks.append(self.submit(*taken))
            if not tasks:
                return
            task = tasks[0] if in_order else self._first_done(tasks)
            tasks.remove(task)
            yield task.number, self.outcome(task)

    def submit_to_each(self, item: Any) -> list[Task]:
        """Give an item to every worker."""
        with self._lock:
            return [self._task(0, item, worker) for worker in self._ready]

    def submit(self, number: int, item: Any) -> Task:
        """Give an item to the worker that has the least to do."""
        with self._lock:
            return self._task(number, item, self._least_busy())

    def _task(self, number: int, item: Any, worker: _Worker) -> Task:
        worker.busy += 1
        return Task(number, item, worker, worker.actor.do.remote(item), time.monotonic())

    def _least_busy(self) -> _Worker:
        """Return the worker that has the least to do; those that start are waited for where there is no other.

        Raises:
            SettingError: Nobody is left, and nobody could start.
        """
        while self._starting:
            answers = [worker.answer for worker in self._starting]
            done, _ = load_ray().wait(answers, timeout=0 if self._ready else _START_SECONDS)
            if not done and self._ready:
                break
            # Where none has started all have had their time: one after the other would take minutes each.
            tried = [worker for worker in self._starting if not done or worker.answer in done]
            self._starting = [worker for worker in self._starting if worker not in tried]
            try:
                self._check(tried, 0)
            except Exception as error:  # noqa: BLE001  it is raised where nobody is left
                for worker in tried:
                    self._end(worker)
                if not len(self):
                    self._end_of_all = error
            else:
                self._ready += tried
        if not self._ready and self._end_of_all is not None:
            raise self._end_of_all
        return min(self._ready, key=lambda worker: worker.busy)

    def outcome(self, task: Task) -> Any:
        """Return what came of a piece of work, or the exception that it raised."""
        exceptions = load_ray().exceptions
        try:
            while True:
                try:
                    return load_ray().get(task.ref, timeout=max(self._left(task), _FETCH))
                except exceptions.RayTaskError as error:  # noqa: PERF203  it is tried again
                    return error.cause
                except exceptions.RayError as error:  # the worker died or hangs, or the machine is gone
                    hangs = isinstance(error, exceptions.GetTimeoutError)
                    why = f"no answer in {_HANGS:.0f} s" if hangs else reason_of(error)
                    if not self._resubmit(task):
                        return self._failure(f"it ended {_DEATHS} workers one after the other ({why}).")
        finally:
            with self._lock:
                task.worker.busy -= 1

    @staticmethod
    def _left(task: Task) -> float:
        """Return the seconds that a worker has for its answer."""
        return task.given + _HANGS - time.monotonic()

    def _first_done(self, tasks: Sequence[Task]) -> Task:
        """Return a task that is done, or whose worker has had its time."""
        oldest = min(tasks, key=lambda task: task.given)
        done, _ = load_ray().wait([task.ref for task in tasks], num_returns=1, timeout=max(self._left(oldest), 0))
        return next((task for task in tasks if task.ref in done), oldest)

    def _resubmit(self, task: Task) -> bool:
        """Give a piece of work to another worker than the one that was lost; return False where it is given up."""
        with self._lock:
            if self._closed:
                raise CancelledError
            if task.worker in self._ready:  # else it waited behind what the worker died over
                there = {node["NodeID"] for node in load_ray().nodes() if node["Alive"]}
                task.deaths += task.worker.node in there  # else the machine is gone, with every worker that it had
                for worker in [one for one in self._ready if one is task.worker or one.node not in there]:
                    self._ready.remove(worker)
                    self._end(worker)
                    self._start()
            if task.deaths < _DEATHS:
                task.worker.busy -= 1
                again = self._task(task.number, task.item, self._least_busy())
                task.worker, task.ref, task.given = again.worker, again.ref, again.given
            return task.deaths < _DEATHS

    def close(self) -> None:
        """End the workers; whoever waits for one is told."""
        self._closed = True
        for worker in [*self._ready, *self._starting]:
            self._end(worker)

    def _end(self, worker: _Worker) -> None:
        with contextlib.suppress(Exception):  # it is gone already, or Ray is
            load_ray().kill(worker.actor)


def _room(ray: Any) -> str:
    resources = ray.cluster_resources()
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))


def reason_of(error: Exception) -> str:
    """Return the first line of a message of Ray's, which go on for pages."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": .")
