"""Worker processes on Ray, which make their parts from settings that are written down.

A worker is given no more than two pieces of work, so reading waits for parsing, and parsing for the store. Where one
dies or hangs, only the pieces that it had are done again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import re
import socket
import threading
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import wraps
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.node_parser import NodeParser

from llama_index_contextual.checks import optional_whole
from llama_index_contextual.context.llm.generator import LLMContextGenerator
from llama_index_contextual.context.llm.model import ModelSpec
from llama_index_contextual.context.llm.request import CallFailedError, DirectCaller
from llama_index_contextual.embedding import NoEmbedding, resolve_embedding
from llama_index_contextual.errors import ContextualWarning, DocumentError, EmbeddingError, SettingError
from llama_index_contextual.index.pipeline import NodePipeline
from llama_index_contextual.index.ray_pool import RayPool, load_ray, reason_of
from llama_index_contextual.index.recipe import (
    UnwritableError,
    read_object,
    written_embedding,
    written_generator,
    written_parser,
)
from llama_index_contextual.index.vectors import embed_texts
from llama_index_contextual.local_embedding import LocalEmbedding
from llama_index_contextual.postprocessor.contextual import ContextualNodePostprocessor
from llama_index_contextual.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    from llama_index.core.llms import ChatMessage
    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.config import Configuration
    from llama_index_contextual.context.llm.request import Answer
    from llama_index_contextual.index.settings import IndexSettings
    from llama_index_contextual.index.vectors import Vectors
    from llama_index_contextual.index.workers import Hiring, Workers

_T = TypeVar("_T")

_REACH_SECONDS: Final = 5.0  # for a cluster to answer at its address; Ray itself would try for minutes
_OBJECT_STORE: Final = 200_000_000  # bytes of a Ray that is started here; what is under way takes a few MB
_PARSED_PER_EMBEDDED: Final = 8  # one process that parses keeps up with so many that embed with the local model
_ADDRESS: Final = re.compile(r"(?:ray://)?(?P<host>[^:/]+|\[[^\]]+\]):(?P<port>\d+)/?")


def resolve_workers(workers: str | Hiring | None, said: Configuration) -> Hiring | None:
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
    return RayWorkers(address or None, **said.ray.given())


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
            Default: one on each machine, so that ``ollama:MODEL`` is each machine's own server.
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
    def hired(self, settings: IndexSettings) -> Iterator[Workers]:
        """Start workers for one refresh, and end them; a Ray that was started for it ends, too.

        Raises:
            SettingError: The settings cannot be written down, the cluster cannot be reached, or has too little room.
        """
        recipe = _Recipe.of(settings)
        team = _Team(recipe.write_contexts)
        with _connected(self.address or os.environ.get("RAY_ADDRESS") or None):
            try:
                team.start(self, recipe)
                with team.asking(_model_of(settings.pipeline)):
                    yield team
            finally:
                team.close()


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What workers make their parts from, as plain values."""

    parser: dict[str, Any]
    contexts: dict[str, Any] | None  # None: they are not made where documents are parsed
    model: tuple[str, int | None, int] | None
    embedding: str | dict[str, Any] | None

    @property
    def write_contexts(self) -> bool:
        return self.contexts is not None

    @classmethod
    def of(cls, settings: IndexSettings) -> _Recipe:
        """Write down the settings of an index.

        Raises:
            SettingError: One of them cannot be.
        """
        pipeline, asked = settings.pipeline, _model_of(settings.pipeline)
        generator = pipeline.contexts.generator
        given: dict[str, Any] = {
            "show_context_to_llm": pipeline.contexts.show_context_to_llm,
            "descriptions": pipeline.contexts.descriptions,
            "root": pipeline.contexts.root or str(Path.cwd()),  # a worker has another one
        }
        with _writing("node_parser"):
            parser = written_parser(pipeline.parser)
        with _writing("context"):
            free = {"generator": None if generator is None or asked else written_generator(generator)}
        model = None if asked is None else asked.model_by_name()
        if asked is not None and model is None:
            raise SettingError(_UNWRITABLE.format("llm", "the name of a model, such as 'openai:MODEL@http://HOST/v1'"))
        embedding: str | dict[str, Any] | None = settings.remembered.choices.get("embed_model")
        with _writing("embed_model"):
            if isinstance(settings.embedding, NoEmbedding):
                embedding = None
            elif embedding is None:
                embedding = written_embedding(settings.embedding)
        return cls(parser, None if asked else {**given, **free}, model, embedding)


_UNWRITABLE: Final = (
    "workers: {} is an object that cannot be written down, and each worker has to make its own. Cure: {}; or leave "
    "workers (--workers) out."
)


@contextlib.contextmanager
def _writing(name: str) -> Iterator[None]:
    try:
        yield
    except UnwritableError as error:
        cure = "a name, or a class that can be imported and made again from its plain settings"
        raise SettingError(_UNWRITABLE.format(f"{name} ({error})", cure)) from error


def _model_of(pipeline: NodePipeline) -> LLMContextGenerator | None:
    generator = pipeline.contexts.generator
    first = getattr(generator, "first", generator)
    return first if isinstance(first, LLMContextGenerator) else None


class _Worker(ABC):
    """An actor. It makes its parts when it is told to, so that a failure has a message."""

    def __init__(self, recipe: _Recipe) -> None:
        self._recipe = recipe

    def ready(self) -> tuple[str, str]:
        """Make the parts; return the version of this package, and the node of Ray.

        Raises:
            SettingError: One cannot be made on this machine.
        """
        from llama_index_contextual import __version__

        try:
            self._make()
        except UnwritableError as error:
            cure = "Cure: install there what it needs."
            raise SettingError(f"a worker on {platform.node()} cannot make {error}. {cure}") from error
        return __version__, load_ray().get_runtime_context().get_node_id()

    @abstractmethod
    def _make(self) -> None:
        """Make the parts from the recipe."""


def _heard(work: Callable[..., _T]) -> Callable[..., tuple[_T, list[str]]]:
    """Have a worker's method return its warnings, too: those of another process are seen by nobody."""

    @wraps(work)
    def call(*arguments: Any) -> tuple[_T, list[str]]:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            made = work(*arguments)
        return made, [str(one.message) for one in heard if issubclass(one.category, ContextualWarning)]

    return call


class _Cutter(_Worker):
    """Parses documents, and makes the contexts that are free."""

    def _make(self) -> None:
        given = self._recipe.contexts or {"generator": None}
        options = given if given["generator"] else {**given, "context": "off"}
        self._pipeline = NodePipeline(
            read_object(self._recipe.parser, NodeParser), ContextualNodePostprocessor(**options)
        )

    @_heard
    def do(self, documents: Sequence[Document]) -> list[BaseNode]:
        nodes = self._pipeline.parse(documents)
        if self._recipe.write_contexts:
            self._pipeline.contextualize(nodes, documents)
        return nodes


class _Embedder(_Worker):
    """Embeds texts."""

    def _make(self) -> None:
        known = self._recipe.embedding
        made = resolve_embedding(known) if isinstance(known, str) else read_object(known or {}, BaseEmbedding)
        if isinstance(made, LocalEmbedding) and not made.threads:
            made.threads = 1  # it would take every core for itself
        self._embedding: BaseEmbedding = made

    @_heard
    def do(self, texts: list[str]) -> Vectors | npt.NDArray[np.float32]:
        vectors = embed_texts(self._embedding, texts)
        if len(set(map(len, vectors))) > 1:
            return vectors  # the process that writes says which of them cannot be used
        return np.asarray(vectors, np.float32)  # as they are kept; half of what lists would take


class _Asker(_Worker):
    """Sends requests to a language model."""

    def _make(self) -> None:
        name, window, max_tokens = self._recipe.model or ("", None, 0)
        self._caller = DirectCaller(ModelSpec.parse(name).make(api_key=None, window=window, max_tokens=max_tokens))

    async def do(self, request: tuple[str, tuple[Any, ...]]) -> Any:
        what, arguments = request
        if what == "probe":
            return await asyncio.to_thread(self._caller.probe, *arguments)
        return await self._caller.send(*arguments)


class _Team:
    """The workers of one refresh."""

    def __init__(self, write_contexts: bool) -> None:
        self.write_contexts, self.embedders = write_contexts, 1
        self._pools: dict[type[_Worker], RayPool] = {}

    def start(self, wanted: RayWorkers, recipe: _Recipe) -> None:
        """Start as many of each kind as are wanted, and wait for them.

        Raises:
            SettingError: There is no room for so many, or one cannot start.
        """
        ray = load_ray()
        there = ray.cluster_resources()
        cpus = int(there.get("CPU", 1))
        parse = wanted.parse or max(1, cpus // (_PARSED_PER_EMBEDDED + 1))
        if recipe.embedding is not None:
            self.embedders = wanted.embed or max(1, cpus - parse)
            options = {"num_cpus": 1, **wanted.embed_options}
            _refuse_without_room(self.embedders, options, there)
            self._hire(_Embedder, recipe, self.embedders, EmbeddingError, **options)
        self._hire(_Cutter, recipe, parse, DocumentError, num_cpus=0)  # they share CPUs with those that embed
        if recipe.model is not None:
            machines = _machines(ray.nodes())
            size, options = wanted.contexts or len(machines), {"num_cpus": 0, "machines": machines}
            self._hire(_Asker, recipe, size, CallFailedError, **options)
        for pool in self._pools.values():
            pool.check()

    def _hire(
        self,
        kind: type[_Worker],
        recipe: _Recipe,
        size: int,
        failure: type[Exception],
        machines: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """Start workers of one kind: on some machines in turn, or where Ray wants them."""
        ray = load_ray()
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        places = cycle([affinity(machine, soft=True) for machine in machines] or ["DEFAULT"])
        remote = ray.remote(max_restarts=0, **options)(kind)
        self._pools[kind] = RayPool(
            lambda: remote.options(scheduling_strategy=next(places)).remote(recipe), size, failure
        )

    @contextlib.contextmanager
    def asking(self, generator: LLMContextGenerator | None) -> Iterator[None]:
        """Have a generator's requests sent by the workers; its cache, its limits and its retries stay here."""
        if generator is None:
            yield
            return
        generator.caller = _RemoteCaller(self._pools[_Asker])
        try:
            yield
        finally:
            generator.caller = None

    def cut(self, documents: Iterable[Sequence[Document]]) -> Iterator[list[BaseNode] | DocumentError]:
        """Have documents parsed; see :meth:`Workers.cut`."""
        for _, nodes in self._done(_Cutter, documents, in_order=True):
            if isinstance(nodes, Exception) and not isinstance(nodes, DocumentError):
                raise nodes
            yield nodes

    def embed(self, lists: Iterable[list[str]]) -> Iterator[tuple[int, Vectors]]:
        """Have texts embedded; see :meth:`Workers.embed`."""
        for number, vectors in self._done(_Embedder, lists, in_order=False):
            if isinstance(vectors, Exception):
                raise vectors
            yield number, vectors

    def _done(self, kind: type[_Worker], items: Iterable[Any], *, in_order: bool) -> Iterator[tuple[int, Any]]:
        """Yield the number of each piece of work, and what came of it; repeat the warnings of workers here."""
        for number, outcome in self._pools[kind].map(items, in_order=in_order):
            made, heard = (outcome, []) if isinstance(outcome, Exception) else outcome
            for message in heard:
                warnings.warn(message, ContextualWarning, stacklevel=2)
            yield number, made

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


class _RemoteCaller:
    """Has workers send the requests to a language model."""

    def __init__(self, pool: RayPool) -> None:
        self._pool = pool
        self.servers = len(pool)

    async def send(self, messages: Sequence[ChatMessage], timeout: float, max_tokens: int) -> Answer:
        request = ("send", (messages, timeout, max_tokens))
        task = await asyncio.to_thread(self._pool.given, 0, request)  # it waits while a worker is replaced
        outcome = await asyncio.wrap_future(in_thread(self._pool.outcome, task))
        if isinstance(outcome, Exception):
            raise outcome
        answer: Answer = outcome
        return answer

    def probe(self, seconds: float) -> str | None:
        tasks = self._pool.to_each(("probe", (seconds,)))
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


def _connect(address: str | None) -> None:
    """Connect with a cluster, or start Ray on this machine.

    Raises:
        SettingError: The cluster cannot be reached.
    """
    ray, quiet = load_ray(), {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a Ray that is started here reports to nobody,
    os.environ.setdefault("RAY_worker_niceness", "0")
    if address is None:
        own: dict[str, Any] = {"_node_ip_address": "127.0.0.1"}  # else others could reach its ports, without a password
        ray.init("local", include_dashboard=False, object_store_memory=_OBJECT_STORE, **own, **quiet)
        return
    where = _ADDRESS.fullmatch(address)
    try:
        if where is not None:
            with socket.create_connection((where["host"].strip("[]"), int(where["port"])), _REACH_SECONDS):
                pass
        ray.init(address, **({"log_to_driver": False} if address.startswith("ray://") else quiet))
    except Exception as error:
        raise SettingError(
            f"workers: no Ray cluster can be used at {address!r} ({reason_of(error)}). Cure: ray start --head there "
            "and its address here; RAY_AUTH_MODE=token where it wants a token; or 'ray' alone, which starts Ray here."
        ) from error
