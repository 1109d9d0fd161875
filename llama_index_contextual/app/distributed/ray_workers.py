"""Where a refresh has its work done: in this process, or by worker processes on Ray, hired for one refresh.

One process reads the files, looks up vectors and contexts in the caches, keeps new ones there, and writes to the store.
What takes long between these steps is what workers do: parse (and make free contexts), ask a language model, embed.
Each of the three has processes of its own.

A worker is given no more than two pieces of work, so reading waits for parsing, and parsing for the store. Where one
dies or hangs, only the pieces that it had are done again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import threading
import warnings
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final, Protocol

from llama_index_contextual.app.distributed.ray_pool import RayPool, load_ray, reason_of
from llama_index_contextual.context import Caller, CallFailedError
from llama_index_contextual.errors import ContextualWarning, DocumentError, EmbeddingError, SettingError, optional_whole
from llama_index_contextual.watching import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from llama_index.core.llms import ChatMessage
    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.app.config import Configuration
    from llama_index_contextual.app.distributed.ray_pool import Worker
    from llama_index_contextual.context import Answer, LLMContextGenerator

    Vectors = Sequence[Sequence[float]]

_LOOPBACK: Final = "127.0.0.1"
_REACH_SECONDS: Final = 5.0  # for a cluster to answer at its address; Ray itself would try for minutes
_OBJECT_STORE: Final = 200_000_000  # bytes of a Ray that is started here; what is under way takes a few MB
_STARTS: Final = 3  # one of Ray's own processes may die while it starts, and then no other takes its place
_QUIET: Final = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
_PARSED_PER_EMBEDDED: Final = 8  # one process that parses keeps up with so many that embed with the local model
_ADDRESS: Final = re.compile(r"(?:ray://)?(?P<host>[^:/]+|\[[^\]]+\]):(?P<port>\d+)/?")


class Workers(Protocol):
    """What does the work between reading and writing.

    Attributes:
        embedders: How many lists of texts can be embedded at once.
        write_contexts: Whether nodes come from :meth:`parse` with their contexts.
    """

    embedders: int
    write_contexts: bool

    def parse(self, documents: Iterable[Sequence[Document]]) -> Iterator[list[BaseNode] | DocumentError]:
        """Yield the nodes of each source's documents, in their order, or why it cannot be parsed."""

    def embed(self, lists: Iterable[list[str]]) -> Iterator[tuple[int, Vectors]]:
        """Yield the number of each list of texts and their vectors, as soon as they are made.

        Raises:
            EmbeddingError: The model failed.
        """


@dataclass(frozen=True, slots=True)
class Jobs:
    """What workers of other processes are to do in one refresh.

    Attributes:
        recipe: What they make their parts from; it is sent to each of them.
        parse: The class of those that parse documents.
        embed: The class of those that embed, or None where nothing is embedded.
        ask: The class of those that ask a language model, or None where none is asked.
        generator: Whose requests they send; without one those that parse make the contexts, too.
    """

    recipe: Any
    parse: type[Worker]
    embed: type[Worker] | None
    ask: type[Worker] | None
    generator: LLMContextGenerator | None


@dataclass(slots=True)
class LocalWorkers:
    """This process: documents are parsed one after the other; the index's vectors come from its own embedding."""

    parse_documents: Callable[[Sequence[Document]], list[BaseNode]]
    embed: Callable[[Iterable[list[str]]], Iterator[tuple[int, Vectors]]]
    embedders: int = 1
    write_contexts: bool = False

    def parse(self, documents: Iterable[Sequence[Document]]) -> Iterator[list[BaseNode] | DocumentError]:
        """Parse one source after the other; see :meth:`Workers.parse`."""
        for some in documents:
            try:
                yield self.parse_documents(some)
            except DocumentError as error:  # noqa: PERF203  of one document
                yield error


def resolve_workers(workers: str | RayWorkers | None, said: Configuration) -> RayWorkers | None:
    """Return what a setting names: ``"ray"``, ``"ray:ADDRESS"``, None for this process, or an object as it is.

    Raises:
        SettingError: It names nothing.
        MissingExtraError: Ray is not installed.
    """
    if not isinstance(workers, str):
        return workers
    kind, _, address = workers.partition(":")
    if kind != "ray":
        raise SettingError(f"workers={workers!r} is not known. Cure: 'ray', 'ray:auto' or 'ray:HOST:PORT'.")
    return RayWorkers(address or None, **said.ray.explicit())


@dataclass(frozen=True)
class RayWorkers:
    """Worker processes on Ray: on this machine, or on a cluster that runs.

    Every machine of a cluster needs the same versions of Python, Ray and this package. What goes over the network are
    documents, nodes, texts and vectors. Fields of a model with "key" in their name are not sent: each worker takes keys
    from its own environment.

    Args:
        address: ``"auto"`` for the cluster that this machine belongs to, ``"HOST:PORT"``, ``"ray://HOST:PORT"`` for a
            cluster that it does not belong to. None takes ``RAY_ADDRESS``, else starts Ray on this machine. A Ray that
            this process uses already is used as it is, whatever the address.
        parse: Processes that parse documents and make free contexts. Default: one for every eight that embed.
        contexts: Processes that ask a language model, each as many calls at a time as the generator's ``num_workers``.
            Default: one on each machine with a CPU, so that ``ollama:MODEL`` is each machine's own server.
        embed: Processes that embed. Default: one for each CPU that is left.
        embed_options: What Ray is told of a process that embeds, such as ``{"num_gpus": 1}``.

    Raises:
        SettingError: A number cannot work.
        MissingExtraError: Ray is not installed.
    """

    address: str | None = None
    parse: int | None = None
    contexts: int | None = None
    embed: int | None = None
    embed_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("parse", "contexts", "embed"):
            optional_whole(name, getattr(self, name))
        load_ray()

    @contextlib.contextmanager
    def started(self, jobs: Jobs) -> Iterator[Workers]:
        """Start workers for one refresh, and end them; a Ray that was started for it ends, too.

        Raises:
            SettingError: The cluster cannot be reached, or has too little room.
        """
        pools = _Pools(jobs)
        with _connected(self.address or os.environ.get("RAY_ADDRESS") or None):
            try:
                pools.start(self)
                with pools.asking():
                    yield pools
            finally:
                pools.close()


class _Pools:
    """The workers of one refresh."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs, self.write_contexts, self.embedders = jobs, jobs.generator is None, 1
        self._pools: dict[type[Worker] | None, RayPool] = {}

    def start(self, wanted: RayWorkers) -> None:
        """Start as many of each kind as are wanted, and wait for them.

        Raises:
            SettingError: There is no room for so many, or one cannot start.
        """
        ray = load_ray()
        there = ray.cluster_resources()
        cpus = int(there.get("CPU", 1))
        parse = wanted.parse or max(1, cpus // (_PARSED_PER_EMBEDDED + 1))
        if self._jobs.embed is not None:
            self.embedders = wanted.embed or max(1, cpus - parse)
            options = {"num_cpus": 1, **wanted.embed_options}
            _refuse_without_room(self.embedders, options, there)
            self._start_pool(self._jobs.embed, self.embedders, EmbeddingError, **options)
        self._start_pool(self._jobs.parse, parse, DocumentError, num_cpus=0)  # they share CPUs with those that embed
        if self._jobs.ask is not None:
            machines = _machines(ray.nodes())
            size, options = wanted.contexts or len(machines), {"num_cpus": 0, "machines": machines}
            self._start_pool(self._jobs.ask, size, CallFailedError, **options)
        for pool in self._pools.values():
            pool.check()

    def _start_pool(
        self, kind: type[Worker], size: int, failure: type[Exception], machines: Sequence[str] = (), **options: Any
    ) -> None:
        """Start workers of one kind: on some machines in turn, or where Ray wants them."""
        ray = load_ray()
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        # Of an actor that takes no CPU Ray ignores a soft wish, and puts all of them on one machine.
        places = cycle([affinity(machine, soft=False) for machine in machines] or ["DEFAULT"])
        remote = ray.remote(max_restarts=0, **options)(kind)
        self._pools[kind] = RayPool(
            lambda: remote.options(scheduling_strategy=next(places)).remote(self._jobs.recipe), size, failure
        )

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Have the generator's requests sent by the workers; its cache, its limits and its retries stay here."""
        generator = self._jobs.generator
        if generator is None or self._jobs.ask is None:
            yield
            return
        generator.caller = _RemoteCaller(self._pools[self._jobs.ask])
        try:
            yield
        finally:
            generator.caller = None

    def parse(self, documents: Iterable[Sequence[Document]]) -> Iterator[list[BaseNode] | DocumentError]:
        """Have documents parsed; see :meth:`Workers.parse`."""
        for _, nodes in self._results(self._jobs.parse, documents, in_order=True, failures=DocumentError):
            yield nodes

    def embed(self, lists: Iterable[list[str]]) -> Iterator[tuple[int, Vectors]]:
        """Have texts embedded; see :meth:`Workers.embed`."""
        return self._results(self._jobs.embed, lists, in_order=False)

    def _results(
        self, kind: type[Worker] | None, items: Iterable[Any], *, in_order: bool, failures: Any = ()
    ) -> Iterator[tuple[int, Any]]:
        """Yield the number of each piece of work, and what came of it; repeat the warnings of workers here.

        Of the exceptions, those of the class ``failures`` are yielded, and others are raised.
        """
        for number, outcome in self._pools[kind].map(items, in_order=in_order):
            if isinstance(outcome, Exception) and not isinstance(outcome, failures):
                raise outcome
            result, messages = (outcome, []) if isinstance(outcome, Exception) else outcome
            for message in messages:
                warnings.warn(message, ContextualWarning, stacklevel=2)
            yield number, result

    def close(self) -> None:
        """End all workers."""
        for pool in self._pools.values():
            pool.close()


def _machines(nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the machines that have a CPU to give, or all where none has: Ray's own SPREAD leaves some out."""
    alive = [node for node in nodes if node["Alive"]]
    return [node["NodeID"] for node in alive if node["Resources"].get("CPU")] or [node["NodeID"] for node in alive]


def _refuse_without_room(embed: int, options: Mapping[str, Any], there: Mapping[str, float]) -> None:
    """Raise a SettingError where so many processes cannot run at a time: Ray would wait for more machines."""
    for option, name in (("num_cpus", "CPU"), ("num_gpus", "GPU")):
        each, has = options.get(option) or 0, there.get(name, 0)
        if embed * each > has:
            fewer = f"embed = {int(has // each)}, " if has >= each else ""
            raise SettingError(
                f"[ray] embed = {embed} cannot work: each process that embeds takes {each:g} {name}, and Ray has "
                f"{has:g}. Cure: {fewer}more machines, or RayWorkers(embed_options={{{option!r}: ...}}) with less."
            )


class _RemoteCaller(Caller):
    """Has workers send the requests to a language model."""

    def __init__(self, pool: RayPool) -> None:
        self._pool = pool
        self.servers = len(pool)

    async def send(self, messages: Sequence[ChatMessage], timeout: float, max_tokens: int) -> Answer:
        request = ("send", (messages, timeout, max_tokens))
        task = await asyncio.to_thread(self._pool.submit, 0, request)  # it waits while a worker is replaced
        outcome = await asyncio.wrap_future(in_thread(self._pool.outcome, task))
        if isinstance(outcome, Exception):
            raise outcome
        answer: Answer = outcome
        return answer

    def probe(self) -> str | None:
        tasks = self._pool.submit_to_each(("probe", ()))
        reasons = [outcome for task in tasks if (outcome := self._pool.outcome(task)) is not None]
        return str(reasons[0]) if reasons else None


class _Use:
    """Who uses the Ray of this process: it has one, whatever the number of refreshes at a time."""

    lock = threading.Lock()
    refreshes = 0
    ours = False


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Connect with Ray, unless this process is connected; the last refresh ends what the first has started."""
    ray = load_ray()
    with _Use.lock:
        if not ray.is_initialized():
            _connect(address)
            _Use.ours = True
        _Use.refreshes += 1
    try:
        yield
    finally:
        with _Use.lock:
            _Use.refreshes -= 1
            if _Use.ours and not _Use.refreshes:
                ray.shutdown()
                _Use.ours = False


@contextlib.contextmanager
def _as_on_a_desktop() -> Iterator[None]:
    """Let a Ray that starts stay on the loopback address, as it does on macOS and Windows.

    On Linux it replaces 127.0.0.1 by an address that other machines reach, and its processes listen on all addresses.
    """
    from ray._private import ray_constants

    name = getattr(ray_constants, "ENABLE_RAY_CLUSTERS_ENV_VAR", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
    read, said = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None), os.environ.get(name)
    ray_constants.ENABLE_RAY_CLUSTER, os.environ[name] = False, "0"  # this process, and those that it starts
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = read
        os.environ.pop(name)
        if said is not None:
            os.environ[name] = said


def _start(**options: Any) -> None:
    """Start Ray on this machine, on its loopback address.

    Raises:
        SettingError: It does not start, or it would be reached by others.
    """
    ray = load_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a Ray that is started here reports to nobody,
    os.environ.setdefault("RAY_worker_niceness", "0")
    fixed: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": _LOOPBACK, **_QUIET}
    for starts_left in reversed(range(_STARTS)):
        try:
            with _as_on_a_desktop():
                ray.init("local", **{"object_store_memory": _OBJECT_STORE, **fixed, **options})
            break
        except Exception as error:
            ray.shutdown()
            if not starts_left:
                raise SettingError(
                    f"workers='ray': Ray does not start on this machine ({reason_of(error)}). Cure: what its logs say "
                    "in /tmp/ray/session_latest/logs, or no workers, which indexes in this process."
                ) from error
    if ray.util.get_node_ip_address() != _LOOPBACK:
        ray.shutdown()
        raise SettingError(
            f"workers='ray': Ray {ray.__version__} would listen on every address of this machine, so that others "
            "reach its ports. Cure: another version of Ray, or a cluster that you protect: 'ray:HOST:PORT'."
        )


def _connect(address: str | None) -> None:
    """Connect with a cluster, or start Ray on this machine.

    Raises:
        SettingError: The cluster cannot be reached, or the one here does not start as it should.
    """
    if address is None:
        _start()
        return
    ray, where = load_ray(), _ADDRESS.fullmatch(address)
    try:
        if where is not None:
            with socket.create_connection((where["host"].strip("[]"), int(where["port"])), _REACH_SECONDS):
                pass
        ray.init(address, **({"log_to_driver": False} if address.startswith("ray://") else _QUIET))
    except Exception as error:
        raise SettingError(
            f"workers: no Ray cluster can be used at {address!r} ({reason_of(error)}). Cure: ray start --head there "
            "and its address here; RAY_AUTH_MODE=token where it wants a token; or 'ray' alone, which starts Ray here."
        ) from error
