"""Vectors of texts: from the cache, else from the model; checked, and on disk before anything else happens."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from llama_index.core.schema import MetadataMode
from llama_index.core.utils import iter_batch

from llama_index_contextual.document_embedding import DocumentEmbedding
from llama_index_contextual.embedding import NoEmbedding
from llama_index_contextual.errors import EmbeddingError, SettingError
from llama_index_contextual.identity import short_hash
from llama_index_contextual.index.store import EMBED_HASH
from llama_index_contextual.index.vector_cache import fault_of
from llama_index_contextual.text import counted
from llama_index_contextual.watching import step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_contextual.index.store import Row
    from llama_index_contextual.index.vector_cache import VectorCache

    Vectors = Sequence[Sequence[float]]

BATCH_TEXTS: Final = 64  # texts that a kill or a failing server can cost
_HOPELESS: Final = 8  # so many texts without one usable vector among them: the model is broken, not a text
# The one number of a node without an embedding: Chroma takes no node without a vector, and this one costs 0.25 kB.
_NOTHING: Final = 1.0
_ABSENT: Final = 404  # what Ollama answers for a model that was not pulled
_SHOWN: Final = 60  # characters of a text in a message


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
        """See :func:`see_documents`."""
        see_documents(self._embedding, rows)

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
        kept = self.cache.get(list(dict.fromkeys(row.embed_hash for row in rows)), self._length)
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

    def _length(self) -> int:
        self._dimensions = query_length(self._embedding)
        return self._dimensions

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


def see_documents(embedding: BaseEmbedding, rows: Sequence[Row]) -> None:
    """Tell the rows of one document what they are embedded with, if the embedding reads chunks together.

    The hash of a row is then that of its window and its place, so that an edit embeds its whole window anew.

    Raises:
        EmbeddingError: A chunk is longer than what the model reads.
    """
    if not isinstance(embedding, DocumentEmbedding):
        return
    texts = [_text_of(row) for row in rows]
    for window in embedding.windows(texts):
        together = tuple(texts[window.start : window.end])
        name = short_hash(together)
        for at in range(window.first, window.last):
            rows[at].window = together, at - window.start
            rows[at].metadata[EMBED_HASH] = short_hash([name, at - window.start])


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


def _picked(rows: Mapping[str, Row], vectors: Vectors) -> dict[str, Sequence[float]]:
    """Return the vectors of rows from those of the texts that were sent for them."""
    places = enumerate(rows.items())
    return {key: vectors[number if row.window is None else row.window[1]] for number, (key, row) in places}


def query_length(embedding: BaseEmbedding) -> int:
    """Return how many numbers the vector of a query has.

    Raises:
        EmbeddingError: The model failed.
    """
    try:
        return len(embedding.get_query_embedding("length"))
    except SettingError:
        raise
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
    except (EmbeddingError, SettingError):  # what it says is clear
        raise
    except Exception as error:
        raise _failed(embedding, counted(len(texts), "text"), error) from error
    if len(vectors) != len(texts):
        raise EmbeddingError(
            f"{embedding.model_name} gave {counted(len(vectors), 'vector')} for {counted(len(texts), 'text')}."
        )
    return vectors


def _failed(embedding: BaseEmbedding, what: str, error: Exception) -> EmbeddingError:
    name, is_absent = embedding.model_name, getattr(error, "status_code", None) == _ABSENT
    is_ollama = type(error).__module__.partition(".")[0] == "ollama"
    cure = f"ollama pull {name}" if is_ollama and is_absent else "see to the model"
    return EmbeddingError(
        f"{name} could not embed {what} ({type(error).__name__}: {error}). "
        f"What was finished is kept. Cure: {cure}, then refresh."
    )
