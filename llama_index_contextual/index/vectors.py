"""Vectors of texts: from the cache, else from the model; checked, and on disk before anything else happens.

Chroma keeps new vectors in memory for up to 1,000 writes and cannot be asked for the vector of a text. The cache holds
them by the hash of the embedded text. So a kill loses one batch, a renamed or restored file costs nothing, and damaged
vector files of Chroma are filled again without the model.
"""

from __future__ import annotations

import contextlib
import sqlite3
import warnings
from array import array
from base64 import b64decode, b64encode
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llama_index.core.schema import MetadataMode
from llama_index.core.utils import iter_batch

from llama_index_contextual.document_embedding import DocumentEmbedding
from llama_index_contextual.embedding import NoEmbedding
from llama_index_contextual.errors import ContextualWarning, EmbeddingError
from llama_index_contextual.identity import short_hash
from llama_index_contextual.index.store import EMBED_HASH
from llama_index_contextual.sqlite_store import SQLiteFile, SQLiteKVStore, in_parts
from llama_index_contextual.watching import step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt
    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_contextual.index.store import Row
    from llama_index_contextual.shared_store import SharedStore

    Vectors = Sequence[Sequence[float]]

BATCH_TEXTS: Final = 64  # texts that a kill or a failing server can cost
_HOPELESS: Final = 8  # so many texts without one usable vector among them: the model is broken, not a text
# The one number of a node without an embedding: Chroma takes no node without a vector, and this one costs 0.25 kB.
_NOTHING: Final = 1.0
_SHOWN: Final = 60  # characters of a text in a message
_ROWS: Final = 1000  # rows moved at once
_FLOAT: Final = "<f4"  # how a shared vector is written, as base64
_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS vectors "
    "(model TEXT NOT NULL, hash TEXT NOT NULL, vector BLOB NOT NULL, UNIQUE (model, hash))"
)


_COLUMNS: Final = {"vectors": ["model", "hash", "vector"], "kv": ["collection", "key", "value"]}
_DAMAGED: Final = ".damaged"  # as :class:`SQLiteFile` calls what it sets aside


def _opened(path: Path) -> SQLiteFile:
    cure = "free space or make the folder writable, then refresh; what was indexed before is unharmed."
    file = SQLiteFile(path, set_aside=True, cure=cure).add_table(_TABLE)
    SQLiteKVStore(file)  # has the table of contexts made
    return file


class VectorCache:
    """Vectors by model and hash of the embedded text, in a SQLite file that holds paid contexts too.

    Args:
        path: The file. One that is damaged is set aside with a warning, and what can be read of it is taken over.
        model: Identity of the embedding model; vectors of several models live side by side.
        former: Caches of earlier versions. Their rows are moved over.
        shared: What other machines have made, and are given.
    """

    def __init__(self, path: Path, model: str, former: Iterable[Path] = (), shared: SharedStore | None = None) -> None:
        self._model, self._shared = model, shared
        self._file = _opened(path)
        if not self._fits():
            self._file.close()
            path.replace(path.with_name(path.name + _DAMAGED))
            text = f"{path} is of another version. It is kept as {path.name}{_DAMAGED}, and a new file is started."
            warnings.warn(text, ContextualWarning, stacklevel=2)
            self._file = _opened(path)
        damaged = path.with_name(path.name + _DAMAGED)
        if damaged.exists():
            self._take_over(damaged)
            damaged.replace(path.with_name(path.name + _DAMAGED + ".read"))
        for old in former:
            if old.exists():
                self._take_over(old)
                for suffix in ("", "-wal", "-shm"):
                    old.with_name(old.name + suffix).unlink(missing_ok=True)

    def get(self, hashes: Sequence[str]) -> dict[str, list[float]]:
        """Return vectors by hash; hashes that are not known, or whose vector cannot be used, are absent.

        What only others have is kept from here on.

        Raises:
            StorageError: The file cannot be used, or what is shared does not answer.
        """
        found = self._own(hashes)
        missing = [key for key in hashes if key not in found]
        if self._shared is not None and missing:
            values = self._shared.get_many(missing, self._collection)
            length = self.dimensions
            others = {key: _decoded(value) for key, value in values.items()}
            usable = {key: vector.tolist() for key, vector in others.items() if fault_of(vector, length) is None}
            self._keep(usable)
            found |= usable
        return found

    def put(self, vectors: Mapping[str, Sequence[float]]) -> None:
        """Keep vectors; they are on disk when this returns, and shared.

        Raises:
            StorageError: The file cannot be used, or what is shared does not answer: they are on disk then.
        """
        self._keep(vectors)
        if self._shared is not None and vectors:
            shared = {key: b64encode(np.asarray(vector, _FLOAT).tobytes()) for key, vector in vectors.items()}
            self._shared.put_all({key: {"vector": text.decode()} for key, text in shared.items()}, self._collection)

    @property
    def _collection(self) -> str:
        return f"vectors:{self._model}"

    def _own(self, hashes: Sequence[str]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for marks, part in in_parts(hashes):
            query = f"SELECT hash, vector FROM vectors WHERE model = ? AND hash IN ({marks})"  # noqa: S608  only "?"
            for key, blob in self._fetch(query, (self._model, *part)):
                vector = np.frombuffer(blob, np.float32)
                if fault_of(vector) is None:  # an earlier version kept whatever a server answered
                    found[key] = vector.tolist()
        return found

    def _keep(self, vectors: Mapping[str, Sequence[float]]) -> None:
        rows = [(self._model, key, np.asarray(vector, np.float32).tobytes()) for key, vector in vectors.items()]
        self._file.write(lambda database: database.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows))

    def __len__(self) -> int:
        """Return how many vectors of this model there are."""
        [(count,)] = self._fetch("SELECT count(*) FROM vectors WHERE model = ?", (self._model,))
        return int(count)

    @property
    def dimensions(self) -> int:
        """Return the length of this model's vectors, 0 where there is none yet."""
        rows = self._fetch("SELECT length(vector) FROM vectors WHERE model = ? LIMIT 1", (self._model,))
        return rows[0][0] // np.dtype(np.float32).itemsize if rows else 0

    def keep_only(self, hashes: Iterable[str]) -> int:
        """Forget this model's vectors of all other hashes; return how many went."""
        kept = list(hashes)

        def forget(database: sqlite3.Connection) -> int:
            database.execute("CREATE TEMP TABLE IF NOT EXISTS kept (hash TEXT PRIMARY KEY)")
            database.execute("DELETE FROM kept")
            database.executemany("INSERT OR IGNORE INTO kept VALUES (?)", ((key,) for key in kept))
            query = "DELETE FROM vectors WHERE model = ? AND hash NOT IN (SELECT hash FROM kept)"
            return database.execute(query, (self._model,)).rowcount

        return self._file.write(forget)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _fetch(self, query: str, parameters: Sequence[str]) -> list[Any]:
        return self._file.read(lambda database: database.execute(query, parameters).fetchall())

    def _fits(self) -> bool:
        """Return whether the file's tables are those of this version."""

        def columns(database: sqlite3.Connection, table: str) -> list[str]:
            return [row[1] for row in database.execute(f"PRAGMA table_info({table})")]

        return all(self._file.read(partial(columns, table=name)) == wanted for name, wanted in _COLUMNS.items())

    def _insert(self, table: str, rows: Sequence[Any]) -> None:
        statement = f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?)"  # noqa: S608  one of two names
        self._file.write(lambda database: database.executemany(statement, rows))

    def _take_over(self, old: Path) -> None:
        """Copy the rows of another cache into this one, as far as they can be read."""
        readable = contextlib.suppress(sqlite3.Error, UnicodeDecodeError)  # SQLite may quote damaged bytes in an error
        with readable, contextlib.closing(sqlite3.connect(old)) as database:
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in set(names) & set(_COLUMNS):
                columns = ", ".join(_COLUMNS[table])
                rows = database.execute(f"SELECT {columns} FROM {table}")  # noqa: S608  our own names
                for part in iter_batch(rows, _ROWS):
                    self._insert(table, part)


@dataclass(slots=True)
class Embedded:
    """What became of some texts, by the hash of each.

    Attributes:
        fresh: Texts that were sent to the model.
        failed: Texts that the model gave no usable vector for, and why.
    """

    fresh: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)


class Vectorizer:
    """Gives nodes the vectors of their embedded texts.

    Args:
        cache: Where vectors are kept.
        embedding: Makes those that are not known.

    Attributes:
        ask: Embeds some lists of texts, as :func:`embed_here` does. A refresh may have it done in other processes.
    """

    def __init__(self, cache: VectorCache, embedding: BaseEmbedding) -> None:
        self.cache = cache
        self.ask: Callable[[Iterable[list[str]]], Iterator[tuple[int, Vectors]]] = partial(embed_here, embedding)
        self._embedding = embedding
        self._dimensions = cache.dimensions

    @property
    def embeds(self) -> bool:
        """Return whether there is an embedding at all."""
        return not isinstance(self._embedding, NoEmbedding)

    def see_documents(self, rows: Sequence[Row]) -> None:
        """Tell the rows of one document what they are embedded with, if the embedding reads chunks together.

        The hash of a row is then that of its window and its place, so that an edit embeds its whole window anew.

        Raises:
            EmbeddingError: A chunk is longer than what the model reads.
        """
        if not isinstance(self._embedding, DocumentEmbedding):
            return
        texts = [_text_of(row) for row in rows]
        for window in self._embedding.windows(texts):
            together = tuple(texts[window.start : window.end])
            name = short_hash(together)
            for at in range(window.first, window.last):
                rows[at].window = together, at - window.start
                rows[at].metadata[EMBED_HASH] = short_hash([name, at - window.start])

    def embed(self, rows: Sequence[Row], progress: Callable[[int], object] | None = None) -> Embedded:
        """Give rows their vectors; a row whose text has no usable vector keeps None.

        New vectors are kept after every :data:`BATCH_TEXTS` texts, or after each window of a document, so that an
        interruption costs no more than those that are being made.

        Args:
            rows: The rows.
            progress: Called with how many more texts were embedded.

        Raises:
            EmbeddingError: The model failed, or gave nothing that can be used.
            StorageError: The cache cannot be written.
        """
        if not self.embeds:
            for row in rows:
                row.vector = [_NOTHING]
            return Embedded()
        with step("embed", model=self._embedding.model_name, rows=len(rows)) as facts:
            result = self._embed(rows, progress)
            facts |= {"embedded": len(result.fresh), "failed": len(result.failed)}
        return result

    def _embed(self, rows: Sequence[Row], progress: Callable[[int], object] | None) -> Embedded:
        kept = self.cache.get(list(dict.fromkeys(row.embed_hash for row in rows)))
        vectors = {key: array("f", vector) for key, vector in kept.items()}  # a list takes eight times as much
        missing = {row.embed_hash: row for row in rows if row.embed_hash not in vectors}
        if isinstance(self._embedding, DocumentEmbedding):  # a row of which no document is known is embedded alone
            for row in missing.values():
                row.window = row.window or ((_text_of(row),), 0)
        result = Embedded(set(missing))
        parts = list(_parts(missing))
        for number, made_now in self.ask(_texts_to_send(part) for part in parts):
            part = parts[number]
            made, failed = self._checked(part, _picked(part, made_now))
            self.cache.put(made)
            vectors |= {key: array("f", vector) for key, vector in made.items()}
            result.failed |= failed
            if progress is not None:
                progress(len(part))
        for row in rows:
            row.vector = vectors.get(row.embed_hash)
        return result

    def embed_all(self, rows: Sequence[Row]) -> int:
        """Give rows their vectors; return how many texts were embedded.

        Raises:
            EmbeddingError: A text has no usable vector.
        """
        result = self.embed(rows)
        if result.failed:
            raise EmbeddingError(f"{next(iter(result.failed.values()))} Cure: see to the model, then try again.")
        return len(result.fresh)

    def _checked(
        self, rows: Mapping[str, Row], answers: dict[str, Sequence[float]]
    ) -> tuple[dict[str, Sequence[float]], dict[str, str]]:
        """Return which vectors of some rows can be used, and why others cannot; those are asked for once more."""
        texts = {key: _text_of(row) for key, row in rows.items()}
        if not self._dimensions:
            self._dimensions = self._agreed(answers.values())
        faults = self._faults(answers)
        if faults:
            again = {key: rows[key] for key in faults}
            for _, vectors in self.ask([_texts_to_send(again)]):
                answers |= _picked(again, vectors)
            faults = self._faults(answers)
        if len(faults) == len(texts) >= _HOPELESS:
            raise EmbeddingError(
                f"{self._embedding.model_name} gave no usable vector for any of {len(texts)} texts: "
                f"{next(iter(faults.values()))}. What was finished is kept. Cure: see to the model, then refresh."
            )
        failed = {
            key: f"the embedding of its text {texts[key][:_SHOWN]!r} cannot be used: {fault}."
            for key, fault in faults.items()
        }
        return {key: vector for key, vector in answers.items() if key not in faults}, failed

    def _faults(self, answers: Mapping[str, Sequence[float]]) -> dict[str, str]:
        faults = {key: fault_of(vector, self._dimensions) for key, vector in answers.items()}
        return {key: fault for key, fault in faults.items() if fault is not None}

    def _agreed(self, answers: Iterable[Sequence[float]]) -> int:
        """Return the length of vectors on which the first answer and that to a query agree.

        Raises:
            EmbeddingError: They differ, asked twice: a query could never be compared with what is indexed.
        """
        [(given, _)] = Counter(map(len, answers)).most_common(1)
        lengths = [query_length(self._embedding)]
        if given not in lengths:
            lengths.append(query_length(self._embedding))
        if lengths[-1] not in (given, lengths[0]) or not lengths[-1]:
            raise EmbeddingError(
                f"{self._embedding.model_name} gives vectors of {given} and of {lengths[-1]} dimensions. "
                "Cure: see to the model, then refresh."
            )
        return lengths[-1]


def _text_of(row: Row) -> str:
    return row.node.get_content(metadata_mode=MetadataMode.EMBED)


def _parts(rows: Mapping[str, Row]) -> Iterator[dict[str, Row]]:
    """Yield rows that are embedded together: those of one window, else some that have none."""
    for window, group in groupby(rows, lambda key: _window_of(rows[key])):
        for keys in iter_batch(group, BATCH_TEXTS) if window is None else [list(group)]:
            yield {key: rows[key] for key in keys}


def _texts_to_send(rows: Mapping[str, Row]) -> list[str]:
    window = _window_of(next(iter(rows.values())))
    return [_text_of(row) for row in rows.values()] if window is None else list(window)


def _window_of(row: Row) -> tuple[str, ...] | None:
    return None if row.window is None else row.window[0]


def _decoded(value: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """Return a vector that others have made; an empty one where the value is none."""
    try:
        return np.frombuffer(b64decode(value["vector"]), _FLOAT)
    except (KeyError, TypeError, ValueError):
        return np.empty(0, _FLOAT)


def _picked(rows: Mapping[str, Row], vectors: Vectors) -> dict[str, Sequence[float]]:
    """Return the vectors of rows from those of the texts that were sent for them."""
    places = enumerate(rows.items())
    return {key: vectors[number if row.window is None else row.window[1]] for number, (key, row) in places}


def fault_of(vector: Sequence[float] | npt.NDArray[np.float32], dimensions: int = 0) -> str | None:
    """Return why a vector cannot be used, or None where it can.

    Args:
        vector: Of any length.
        dimensions: How long it should be; 0 where that is not known.
    """
    if not len(vector):
        return "it is empty"
    if dimensions and len(vector) != dimensions:
        return f"it has {len(vector)} dimensions instead of {dimensions}"
    with np.errstate(over="ignore"):
        values = np.asarray(vector, np.float32)  # as stores keep it
        square = float(values @ values)
    if not np.isfinite(values).all() or not np.isfinite(square):
        return "its numbers are too large or no numbers"
    return None if square > 0 else "all its numbers are 0"


def query_length(embedding: BaseEmbedding) -> int:
    """Return how many numbers the vector of a query has.

    Raises:
        EmbeddingError: The model failed.
    """
    try:
        return len(embedding.get_query_embedding("length"))
    except Exception as error:
        raise _failed(embedding, "a query", error) from error


def embed_here(embedding: BaseEmbedding, lists: Iterable[list[str]]) -> Iterator[tuple[int, Vectors]]:
    """Yield the number of each list of texts and the vectors of its texts, as soon as they are made.

    Raises:
        EmbeddingError: The model failed.
    """
    for number, texts in enumerate(lists):
        yield number, embed_texts(embedding, texts)


def embed_texts(embedding: BaseEmbedding, texts: list[str]) -> list[list[float]]:
    """Return vectors of texts, unchecked but for their number; a model that reads chunks together sees all at once.

    Raises:
        EmbeddingError: The model failed, or gave another number of vectors.
    """
    try:
        if isinstance(embedding, DocumentEmbedding):
            vectors = embedding.embed_window(texts)
        else:
            vectors = embedding.get_text_embedding_batch(texts)
    except EmbeddingError:
        raise
    except Exception as error:
        raise _failed(embedding, f"{len(texts)} texts", error) from error
    if len(vectors) != len(texts):
        raise EmbeddingError(f"{embedding.model_name} gave {len(vectors)} vectors for {len(texts)} texts.")
    return vectors


def _failed(embedding: BaseEmbedding, what: str, error: Exception) -> EmbeddingError:
    return EmbeddingError(
        f"{embedding.model_name} could not embed {what} ({type(error).__name__}: {error}). "
        "What was finished is kept. Cure: see to the model, then refresh."
    )
