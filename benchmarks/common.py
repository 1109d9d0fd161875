"""Shared parts of the benchmarks: command lines, a cached embedding, retrievers and tables."""

from __future__ import annotations

import argparse
import atexit
import datetime as dt
import hashlib
import multiprocessing
import os
import platform
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import NodeParser
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.utils import iter_batch

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    ContextualVectorRetriever,
    HeadingAwareMarkdownNodeParser,
)
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.evaluation import interval
from llama_index_contextual.app.settings.models import model_id, resolve_embedding
from llama_index_contextual.context.base import ChunkContext, ContextGenerator
from llama_index_contextual.context.views import has_context
from llama_index_contextual.utils.metadata import CONTEXT, LEXICAL_CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.context.base import SourceDocument

# Nothing of a run is in the user's data directory, and no run finds the vectors of another one.
# Processes that a benchmark starts inherit the directory of the first.
if "CONTEXTUAL_BENCHMARK_DIRECTORY" not in os.environ:
    data_directory = tempfile.mkdtemp(prefix="contextual-benchmark-")
    atexit.register(shutil.rmtree, data_directory, ignore_errors=True)
    os.environ["CONTEXTUAL_BENCHMARK_DIRECTORY"] = data_directory
    os.environ["LLAMA_INDEX_CONTEXTUAL_STORAGE"] = data_directory

CACHE = Path(
    os.environ.get("LLAMA_INDEX_CONTEXTUAL_CACHE")
    or Path(__file__).resolve().parents[1] / ".benchmarks-cache"
)

PART = 500  # texts that are looked up or embedded together


def command_line(description: str | None, **defaults: Any) -> argparse.Namespace:
    """Return the options of the command line.

    Args:
        description: The description of the script.
        **defaults: The options with their defaults. False makes a switch, and a type such as
            ``int`` an option without a default. A list makes an option with several values; strings
            must be in the list. A tuple makes an argument without a name, which must be in the
            tuple; its first item is the default.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in defaults.items():
        is_list = isinstance(value, list)
        first = value[0] if isinstance(value, list | tuple) else value
        if value is False:
            parser.add_argument(f"--{name}", action="store_true")
        elif isinstance(value, tuple):
            parser.add_argument(name, default=first, nargs="?", choices=value)
        else:
            is_type = isinstance(first, type)
            parser.add_argument(
                f"--{name}",
                nargs="+" if is_list else None,
                type=first if is_type else type(first),
                default=None if is_type else value,
                choices=value if is_list and isinstance(first, str) else None,
            )
    return parser.parse_args()


class RememberingEmbedding(BaseEmbedding):
    """An embedding that keeps the vectors of another one on disk, to embed each text once."""

    _inner: BaseEmbedding = PrivateAttr()
    _store: sqlite3.Connection = PrivateAttr()
    _queries: dict[str, list[float]] = PrivateAttr(default_factory=dict)  # only in memory

    def __init__(self, spec: str | BaseEmbedding = "local", **kwargs: Any) -> None:
        inner = resolve_embedding(spec)
        super().__init__(
            model_name=f"remembering-{inner.model_name}", embed_batch_size=256, **kwargs
        )
        self._inner = inner
        CACHE.mkdir(parents=True, exist_ok=True)
        self._store = sqlite3.connect(
            CACHE / "embeddings.sqlite", check_same_thread=False, timeout=60
        )
        self._store.execute("PRAGMA journal_mode=WAL")
        self._store.execute("CREATE TABLE IF NOT EXISTS vector (key TEXT PRIMARY KEY, value BLOB)")

    @classmethod
    def class_name(cls) -> str:
        """Return the name for LlamaIndex's serialisation."""
        return "RememberingEmbedding"

    @property
    def inner(self) -> BaseEmbedding:
        """Return the embedding that makes the vectors."""
        return self._inner

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        model = model_id(self._inner)
        text_by_key = {}
        keys = []
        for text in texts:
            content = f"{model}\0{text}".encode("utf-8", "replace")
            keys.append(hashlib.sha256(content).hexdigest())
            text_by_key[keys[-1]] = text
        known = self._known(list(text_by_key))
        missing = [key for key in text_by_key if key not in known]
        # Each part is stored, so that a run that is killed costs only one of them.
        for part in iter_batch(missing, PART):
            vectors = self._inner.get_text_embedding_batch([text_by_key[key] for key in part])
            blobs = {
                key: np.array(vector, np.float32).tobytes()
                for key, vector in zip(part, vectors, strict=True)
            }
            self._store.executemany("INSERT OR REPLACE INTO vector VALUES (?, ?)", blobs.items())
            self._store.commit()
            known |= blobs
        return [np.frombuffer(known[key], np.float32).tolist() for key in keys]

    def _known(self, keys: list[str]) -> dict[str, bytes]:
        """Return the stored vectors by key."""
        known: dict[str, bytes] = {}
        for part in iter_batch(keys, PART):
            marks = ",".join("?" * len(part))
            query = f"SELECT key, value FROM vector WHERE key IN ({marks})"  # noqa: S608
            known |= dict(self._store.execute(query, part))
        return known

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        # As a query, not as a text: models with instructions tell them apart.
        if query not in self._queries:
            self._queries[query] = self._inner.get_query_embedding(query)
        return self._queries[query]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await self._inner.aget_query_embedding(query)


class PreparedChunks(NodeParser):
    """A parser that returns the chunks that were prepared for a document."""

    _chunks: dict[str, list[BaseNode]] = PrivateAttr()

    def __init__(self, nodes: Sequence[BaseNode]) -> None:
        super().__init__()
        self._chunks = defaultdict(list)
        for node in nodes:
            self._chunks[node.ref_doc_id or ""].append(node.model_copy(deep=True))

    def _parse_nodes(
        self,
        nodes: Sequence[BaseNode],
        show_progress: bool = False,  # noqa: ARG002
        **_: Any,  # noqa: ARG002, RUF100
    ) -> list[BaseNode]:
        return [
            chunk.model_copy(deep=True) for node in nodes for chunk in self._chunks[node.node_id]
        ]


class PreparedContexts(ContextGenerator):
    """A generator that returns the contexts that were prepared for chunks."""

    name = "given"
    version = "1"

    def __init__(self, nodes: Sequence[BaseNode]) -> None:
        self._metadata = {node.node_id: node.metadata for node in nodes}

    def generate(
        self,
        nodes: Sequence[BaseNode],
        document: SourceDocument,  # noqa: ARG002
    ) -> list[ChunkContext | None]:
        """Return the prepared context of each chunk."""
        contexts: list[ChunkContext | None] = []
        for node in nodes:
            values = self._metadata[node.node_id]
            contexts.append(ChunkContext(values.get(CONTEXT, ""), values.get(LEXICAL_CONTEXT, "")))
        return contexts


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function that is called in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def shipped_index(
    nodes: Sequence[BaseNode], documents: Sequence[Document], embedding: BaseEmbedding
) -> ContextualIndex:
    """Return an index over the chunks of a benchmark, in a temporary folder.

    Chunks and contexts are stored in a ``ContextualIndex`` even if no setting makes them, so that
    the retrievers, their settings and the stored nodes are those that a user gets.
    """
    folder = tempfile.TemporaryDirectory(prefix="contextual-benchmark-")
    has_contexts = any(has_context(node.metadata) for node in nodes)
    context = PreparedContexts(nodes) if has_contexts else "off"
    index = ContextualIndex.open(
        folder.name, embed_model=embedding, node_parser=PreparedChunks(nodes), context=context
    )
    index.refresh(documents, confirm=True)
    index.__dict__["_folder_of_the_benchmark"] = folder  # lives as long as the index
    return index


def contextual_chunks(documents: Sequence[Document], context: str = "headings") -> list[BaseNode]:
    """Return chunks of 256 tokens, with contexts."""
    chunks = HeadingAwareMarkdownNodeParser(chunk_size=256)(documents)
    return list(ContextualNodePostprocessor(context=context, documents=documents)(chunks))


def hybrid(
    nodes: Sequence[BaseNode], embedding: BaseEmbedding, top_k: int
) -> ContextualFusionRetriever:
    """Return the retrievers of the plug-in over chunks in memory."""
    vectors = ContextualVectorRetriever(VectorStoreIndex(nodes, embed_model=embedding))
    return ContextualFusionRetriever(
        [vectors, ContextualBM25Retriever(nodes)], similarity_top_k=top_k
    )


def stock_hybrid(retrievers: list[BaseRetriever], top_k: int) -> QueryFusionRetriever:
    """Return LlamaIndex's fusion by reciprocal rank, without variants of the question."""
    options = {"llm": MockLLM(), "num_queries": 1, "use_async": False, "mode": "reciprocal_rerank"}
    return QueryFusionRetriever(retrievers, similarity_top_k=top_k, **options)


def fast_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder, in memory if the system has such a place.

    Nothing then waits for a disk. The files outlive a process that is killed.
    """
    memory = Path("/dev/shm")  # noqa: S108
    return tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)


def machine() -> str:
    """Return date, machine and versions in one line, for the head of a result."""
    packages = ("llama-index-core", "chromadb", "numpy")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    today = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    return (
        f"{today}, {platform.machine()}, {os.cpu_count()} cores, CPython "
        f"{platform.python_version()}, {versions}"
    )


def intervals(points: npt.ArrayLike) -> list[str]:
    """Return the mean of each column, signed, with its 95 % bootstrap interval over the rows."""
    return [f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]" for mean, low, high in interval(points)]


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a GitHub table; floats with one decimal."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in rows:
        cells = [f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
