"""What the benchmarks share: an embedding that remembers, the machine's description, intervals, Markdown tables."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import platform
import sqlite3
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from llama_index_contextual.app.evaluation.comparison import interval
from llama_index_contextual.app.settings.embeddings import model_id, resolve_embedding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from http.server import BaseHTTPRequestHandler

    import numpy.typing as npt

CACHE = Path(
    os.environ.get("LLAMA_INDEX_CONTEXTUAL_CACHE") or Path(__file__).resolve().parents[1] / ".benchmarks-cache"
)


class RememberingEmbedding(BaseEmbedding):
    """Wraps an embedding and keeps its vectors on disk by text, so that ten settings embed each text once."""

    _inner: BaseEmbedding = PrivateAttr()
    _store: sqlite3.Connection = PrivateAttr()

    def __init__(self, spec: str | BaseEmbedding = "local", **kwargs: Any) -> None:
        inner = resolve_embedding(spec)
        super().__init__(model_name=f"remembering-{inner.model_name}", embed_batch_size=256, **kwargs)
        self._inner = inner
        CACHE.mkdir(parents=True, exist_ok=True)
        self._store = sqlite3.connect(CACHE / "embeddings.sqlite", check_same_thread=False, timeout=60)
        self._store.execute("PRAGMA journal_mode=WAL")
        self._store.execute("CREATE TABLE IF NOT EXISTS vector (key TEXT PRIMARY KEY, value BLOB)")

    @classmethod
    def class_name(cls) -> str:
        """Name for LlamaIndex's serialisation."""
        return "RememberingEmbedding"

    @property
    def inner(self) -> BaseEmbedding:
        """The embedding that does the work."""
        return self._inner

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        model = model_id(self._inner)
        keys = [hashlib.sha256(f"{model}\0{text}".encode("utf-8", "replace")).hexdigest() for text in texts]
        known: dict[str, Any] = {}
        for start in range(0, len(keys), 500):
            part = keys[start : start + 500]
            marks = ",".join("?" * len(part))
            known |= dict(self._store.execute(f"SELECT key, value FROM vector WHERE key IN ({marks})", part))  # noqa: S608
        missing = list({key: text for key, text in zip(keys, texts, strict=True) if key not in known}.items())
        for start in range(0, len(missing), 500):  # kept in parts, so that a run that is killed costs one of them
            batch = missing[start : start + 500]
            vectors = self._inner.get_text_embedding_batch([text for _, text in batch])
            fresh = {key: np.array(v, np.float32).tobytes() for (key, _), v in zip(batch, vectors, strict=True)}
            self._store.executemany("INSERT OR REPLACE INTO vector VALUES (?, ?)", fresh.items())
            self._store.commit()
            known |= fresh
        return [np.frombuffer(known[key], np.float32).tolist() for key in keys]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        # As a query, not as a text: models with instructions tell them apart.
        return self._inner.get_query_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await self._inner.aget_query_embedding(query)


def machine() -> str:
    """Describe machine, date and versions in one line, for the head of a result."""
    packages = ("llama-index-core", "chromadb", "numpy")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    today = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    return f"{today}, {platform.machine()}, {os.cpu_count()} cores, CPython {platform.python_version()}, {versions}"


def intervals(points: npt.ArrayLike) -> list[str]:
    """Write the mean of each column, with its sign and its 95 % interval by bootstrap over the rows."""
    return [f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]" for mean, low, high in interval(points)]


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Draw a GitHub table; floats with one decimal."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in rows:
        cells = [f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def send_json(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
    """Answer a request with JSON; one whose asker was cut off meanwhile is dropped."""
    data = json.dumps(body).encode()
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    with contextlib.suppress(OSError):
        handler.wfile.write(data)
