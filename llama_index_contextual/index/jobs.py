"""What workers in other processes do: they make their parts from settings that are written down.

Each kind does one thing: parse, embed, or ask a language model. None of them reads files or writes anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.node_parser import NodeParser

from llama_index_contextual.context.llm.model import ModelSpec
from llama_index_contextual.context.llm.request import DirectCaller
from llama_index_contextual.distributed.ray_pool import Worker, with_warnings
from llama_index_contextual.distributed.ray_workers import Jobs
from llama_index_contextual.embeddings import LocalEmbedding, NoEmbedding, resolve_embedding
from llama_index_contextual.errors import SettingError
from llama_index_contextual.index.pipeline import NodePipeline
from llama_index_contextual.index.recipe import UnwritableError, read_object, written_generator, written_object
from llama_index_contextual.index.vectors import embed_texts
from llama_index_contextual.postprocessor.contextual import ContextualNodePostprocessor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.distributed.ray_workers import Vectors
    from llama_index_contextual.index.settings import IndexSettings


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What workers make their parts from, as plain values."""

    parser: dict[str, Any]
    contexts: dict[str, Any] | None  # None: they are not made where documents are parsed
    model: tuple[str, int | None, int] | None
    embedding: str | dict[str, Any] | None


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


def jobs_of(settings: IndexSettings) -> Jobs:
    """Return what workers do for an index.

    Raises:
        SettingError: A setting cannot be written down.
    """
    contexts, paid = settings.pipeline.contexts, settings.pipeline.model
    generator = contexts.generator
    model = None if paid is None else paid.model_by_name()
    if paid is not None and model is None:
        raise SettingError(_UNWRITABLE.format("llm", "the name of a model, such as 'openai:MODEL@http://HOST/v1'"))
    with _writing("node_parser"):
        parser = written_object(settings.pipeline.parser, NodeParser)
    with _writing("context"):
        written = None if generator is None or paid else written_generator(generator)
    with _writing("embed_model"):
        embedding: str | dict[str, Any] | None = None
        if not isinstance(settings.embedding, NoEmbedding):
            embedding = settings.remembered.choices.get("embed_model") or written_object(
                settings.embedding, BaseEmbedding
            )
    free = {
        "generator": written,
        "show_context_to_llm": contexts.show_context_to_llm,
        "descriptions": contexts.descriptions,
        **contexts.key_lists(),
        "root": contexts.root or str(Path.cwd()),  # a worker has another one
    }
    return Jobs(
        WorkerSettings(parser, None if paid else free, model, embedding),
        ParseWorker,
        None if embedding is None else EmbedWorker,
        None if model is None else LLMWorker,
        paid,
    )


def _read(written: dict[str, Any], kind: type[Any]) -> Any:
    try:
        return read_object(written, kind)
    except UnwritableError as error:
        cure = "Cure: install there what it needs."
        raise SettingError(f"a worker on {platform.node()} cannot make {error}. {cure}") from error


class ParseWorker(Worker):
    """Parses documents, and makes the contexts that are free."""

    def _make(self) -> None:
        contexts = self._recipe.contexts or {"generator": None}
        options = contexts if contexts["generator"] else {**contexts, "context": "off"}
        self._pipeline = NodePipeline(_read(self._recipe.parser, NodeParser), ContextualNodePostprocessor(**options))

    @with_warnings
    def do(self, documents: Sequence[Document]) -> list[BaseNode]:
        """Return the nodes of documents."""
        nodes = self._pipeline.parse(documents)
        if self._recipe.contexts is not None:
            self._pipeline.contextualize(nodes, documents)
        return nodes


class EmbedWorker(Worker):
    """Embeds texts."""

    def _make(self) -> None:
        known = self._recipe.embedding
        embedding = resolve_embedding(known) if isinstance(known, str) else _read(known or {}, BaseEmbedding)
        if isinstance(embedding, LocalEmbedding) and not embedding.threads:
            embedding.threads = 1  # it would take every core for itself
        self._embedding: BaseEmbedding = embedding

    @with_warnings
    def do(self, texts: list[str]) -> Vectors | npt.NDArray[np.float32]:
        """Return the vectors of texts."""
        vectors = embed_texts(self._embedding, texts)
        if len(set(map(len, vectors))) > 1:
            return vectors  # the process that writes says which of them cannot be used
        return np.asarray(vectors, np.float32)  # as they are kept; half of what lists would take


class LLMWorker(Worker):
    """Sends requests to a language model."""

    def _make(self) -> None:
        name, window, max_tokens = self._recipe.model or ("", None, 0)
        self._caller = DirectCaller(ModelSpec.parse(name).make(api_key=None, window=window, max_tokens=max_tokens))

    async def do(self, request: tuple[str, tuple[Any, ...]]) -> Any:
        """Send a request, or ask whether the server answers; return what it says."""
        what, arguments = request
        if what == "probe":
            return await asyncio.to_thread(self._caller.probe, *arguments)
        return await self._caller.send(*arguments)
