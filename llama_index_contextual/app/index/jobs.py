"""What workers in other processes do: they make their parts from settings that are written down.

Each kind does one thing: parse, embed, or ask a language model. None of them reads files or writes anything.
"""

from __future__ import annotations

import asyncio
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from llama_index_contextual.app.distributed.ray_pool import Worker, with_warnings
from llama_index_contextual.app.distributed.ray_workers import Jobs
from llama_index_contextual.app.index.pipeline import NodePipeline, is_plain, parser_settings, plain_generator
from llama_index_contextual.app.index.vectors import embed_texts
from llama_index_contextual.app.settings.embeddings import NoEmbedding, model_id, resolve_embedding
from llama_index_contextual.app.settings.local import LocalEmbedding
from llama_index_contextual.context import Caller, make_llm
from llama_index_contextual.errors import SettingError
from llama_index_contextual.retrieval import ContextualNodePostprocessor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import BaseModel
    from llama_index.core.node_parser import NodeParser
    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.app.distributed.ray_workers import Vectors
    from llama_index_contextual.app.index.settings import IndexSettings


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What workers make their parts from, as plain values."""

    parser: tuple[type[Any], dict[str, Any]]
    contexts: dict[str, Any] | None  # None: they are not made where documents are parsed
    model: tuple[str, int | None, int] | None
    embedding: str | tuple[type[Any], dict[str, Any]] | None


_UNWRITABLE: Final = (
    "workers: {} is an object that cannot be written down, and each worker has to make its own. Cure: {}; or leave "
    "workers (--workers) out."
)
_CURE: Final = "a name, or a class that can be imported and made again from its plain settings"
_OWN: Final = ("callback_manager", "id_func", "class_name")  # of LlamaIndex's, which each object makes for itself


def _written(name: str, thing: BaseModel, is_same: Callable[[Any], bool]) -> tuple[type[Any], dict[str, Any]]:
    """Return the class of an object and its plain settings without keys, of which a worker makes the same."""
    kind = type(thing)
    names = (field for field in kind.model_fields if field not in _OWN and "key" not in field)
    plain = {field: value for field in names if is_plain(value := getattr(thing, field))}
    try:
        if "<" not in kind.__qualname__ and is_same(kind(**plain)):
            return kind, plain
    except Exception as error:
        raise SettingError(_UNWRITABLE.format(f"{name} ({kind.__qualname__})", _CURE)) from error
    raise SettingError(_UNWRITABLE.format(f"{name} ({kind.__qualname__})", _CURE))


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
    parser = settings.pipeline.parser
    written = None if generator is None or paid else plain_generator(generator)
    if generator is not None and not paid and written is None:
        raise SettingError(_UNWRITABLE.format(f"context ({type(generator).__name__})", _CURE))
    embedding = settings.embedding
    model_of_vectors = settings.remembered.choices.get("embed_model") or _written(
        "embed_model", embedding, lambda again: model_id(again) == model_id(embedding)
    )
    free = {
        "generator": written,
        "show_context_to_llm": contexts.show_context_to_llm,
        "descriptions": contexts.descriptions,
        **contexts.key_lists(),
        "root": contexts.root or str(Path.cwd()),  # a worker has another one
    }
    return Jobs(
        WorkerSettings(
            _written("node_parser", parser, lambda again: _is_same_parser(again, parser)),
            None if paid else free,
            model,
            model_of_vectors,
        ),
        ParseWorker,
        None if isinstance(embedding, NoEmbedding) else EmbedWorker,
        None if model is None else LLMWorker,
        paid,
    )


def _is_same_parser(one: NodeParser, other: NodeParser) -> bool:
    return one.id_func == other.id_func and parser_settings(one) == parser_settings(other)


def _made(kind: type[Any], settings: dict[str, Any]) -> Any:
    """Make an object of its class and settings.

    Raises:
        SettingError: This machine lacks what it needs.
    """
    try:
        return kind(**settings)
    except Exception as error:
        raise SettingError(
            f"a worker on {platform.node()} cannot make {kind.__qualname__} ({type(error).__name__}: {error}). "
            "Cure: install there what it needs."
        ) from error


class ParseWorker(Worker):
    """Parses documents, and makes the contexts that are free."""

    def _make(self) -> None:
        contexts = self._recipe.contexts or {"generator": None}
        options = contexts if contexts["generator"] else {**contexts, "context": "off"}
        self._pipeline = NodePipeline(_made(*self._recipe.parser), ContextualNodePostprocessor(**options))

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
        model = self._recipe.embedding
        embedding = resolve_embedding(model) if isinstance(model, str) else _made(*model)
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
        self._caller = Caller(make_llm(name, window=window, max_tokens=max_tokens))

    async def do(self, request: tuple[str, tuple[Any, ...]]) -> Any:
        """Send a request, or ask whether the server answers; return what it says."""
        what, arguments = request
        if what == "probe":
            return await asyncio.to_thread(self._caller.probe)
        return await self._caller.send(*arguments)
