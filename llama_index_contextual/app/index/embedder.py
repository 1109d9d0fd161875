"""The vectors of chunks: known ones from the index and the cache, new ones from the model."""

from __future__ import annotations

from statistics import mode
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.schema import MetadataMode
from llama_index.core.utils import iter_batch

from llama_index_contextual.app.index.rows import NodeRow, row_of
from llama_index_contextual.app.settings.embeddings import NoEmbedding
from llama_index_contextual.app.settings.models import UNNAMED, model_id
from llama_index_contextual.utils.errors import (
    EmbeddingError,
    MissingExtraError,
    SettingError,
)
from llama_index_contextual.utils.metadata import shortened
from llama_index_contextual.utils.text import counted, readable
from llama_index_contextual.utils.tokens import without_repeats

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.app.index.content_cache import ContentCache
    from llama_index_contextual.app.index.database import Database
    from llama_index_contextual.app.index.vectors import Singles

BATCH_TEXTS = 64  # texts whose vectors an interruption or a failing server can cost
_HOPELESS = 8  # texts without any usable vector; then the model is broken, not a text
_SHOWN = 60  # characters of a text in a message
_PROBE = "length"  # a text that is embedded only for the length of its vector
_dispatcher = get_dispatcher(__name__)


class Chunk(NamedTuple):
    """A chunk that waits to be embedded and written. It takes a fourth of the memory of a node.

    Attributes:
        text: The text that is embedded, with its context.
        row: The row of the chunk.
    """

    text: str
    row: NodeRow


def chunks_of(nodes: list[BaseNode]) -> list[Chunk]:
    """Return the chunks of a document, and empty the list of its nodes to save memory."""
    chunks = []
    nodes.reverse()
    while nodes:
        node = nodes.pop()
        text = embedded_text(node)
        chunks.append(Chunk(text, row_of(node, text)))
    return chunks


def embedded_text(node: BaseNode) -> str:
    """Return the text of a node that is embedded, without encoded binary data."""
    return readable(node.get_content(metadata_mode=MetadataMode.EMBED))


class EmbeddingResult(NamedTuple):
    """The vectors of chunks.

    Attributes:
        vectors: The vectors by the hash of the embedded text.
        sent: The number of texts that were sent to the model.
        problems: The reasons why texts have no usable vector, by the hash of the text.
    """

    vectors: dict[str, Singles]
    sent: int
    problems: dict[str, str]


class Embedder:
    """Embeds chunks, except those whose vectors are known.

    Args:
        embedding: The embedding model.
        cache: The vectors of all folders. It is not used for an embedding without a name.
        database: The index, whose vectors are reused; None if all of them are replaced.
    """

    def __init__(
        self, embedding: BaseEmbedding, cache: ContentCache, database: Database | None
    ) -> None:
        self._embedding = embedding
        self._cache = None if embedding.model_name == UNNAMED else cache
        self._database = database
        self._dimensions = 0 if database is None else database.state().dimensions

    @_dispatcher.span
    def embed(self, chunks: Sequence[Chunk], documents: Iterable[str]) -> EmbeddingResult:
        """Return the vectors of chunks.

        New vectors are cached after every :data:`BATCH_TEXTS` texts, so an interruption costs only
        the vectors of one batch.

        Args:
            chunks: The chunks.
            documents: The keys of their documents, whose vectors in the index are reused.

        Raises:
            EmbeddingError: The model failed, or returned no usable vector.
            StorageError: The content cache cannot be written.
        """
        if isinstance(self._embedding, NoEmbedding):
            return EmbeddingResult({}, 0, {})
        texts = {chunk.row.embed_hash: chunk.text for chunk in chunks}
        vectors = self._known_vectors(set(texts), documents)
        missing = [key for key in texts if key not in vectors]
        problems: dict[str, str] = {}
        for batch in iter_batch(missing, BATCH_TEXTS):
            problems |= self._embed_batch({key: texts[key] for key in batch}, vectors)
        return EmbeddingResult(vectors, len(missing), problems)

    def _known_vectors(self, hashes: set[str], documents: Iterable[str]) -> dict[str, Singles]:
        """Return the vectors that the index or the content cache contains."""
        vectors: dict[str, Singles] = {}
        if self._database is not None and self._dimensions:
            with self._database.reading() as snapshot:
                vectors = snapshot.vectors_by_hash(documents)
        if self._cache is not None:
            cached = self._cache.vectors(model_id(self._embedding), hashes - vectors.keys())
            if cached and not self._dimensions:
                self._dimensions = self._length_of_vectors(cached)
            vectors |= cached
        return {key: vector for key, vector in vectors.items() if len(vector) == self._dimensions}

    def _length_of_vectors(self, cached: Mapping[str, Singles]) -> int:
        """Return the length of the model's vectors, or of cached ones if it cannot be reached."""
        try:
            [vector] = embed_texts(self._embedding, [_PROBE])
        except EmbeddingError:
            return mode(map(len, cached.values()))
        return len(vector)

    def _embed_batch(self, texts: Mapping[str, str], vectors: dict[str, Singles]) -> dict[str, str]:
        """Add the vectors of texts to ``vectors``, and return the problems of unusable ones."""
        answers = embed_texts(self._embedding, list(texts.values()))
        self._dimensions = self._dimensions or mode(map(len, answers))
        usable: dict[str, Singles] = {}
        problems: dict[str, str] = {}
        for key, answer in zip(texts, answers, strict=True):
            problem = vector_problem(answer, self._dimensions)
            if problem:
                start = texts[key][:_SHOWN]
                problems[key] = f"the vector of its text {start!r} cannot be used: {problem}."
            else:
                usable[key] = np.asarray(answer, np.float32)
        if not usable and len(texts) >= _HOPELESS:
            raise EmbeddingError(
                f"{self._embedding.model_name} returned no usable vector for any of "
                f"{counted(len(texts), 'text')}: {vector_problem(answers[0], self._dimensions)}. "
                "Finished documents are kept. Check the model, then refresh."
            )
        if self._cache is not None:
            self._cache.put_vectors(model_id(self._embedding), usable)
        vectors |= usable
        return problems


def vector_problem(vector: Sequence[float], dimensions: int) -> str:
    """Return why a vector is unusable in an index of ``dimensions``; "" if it is usable."""
    if len(vector) != dimensions:
        return f"it has {len(vector)} dimensions instead of {dimensions}"
    with np.errstate(over="ignore"):
        values = np.asarray(vector, np.float32)  # the precision in which it is kept
        square = float(values @ values)
    if 0 < square < np.inf:
        return ""
    return "all its numbers are 0, or some of them are too large, infinite or NaN"


def embed_texts(embedding: BaseEmbedding, texts: Sequence[str]) -> list[list[float]]:
    """Return one vector per text, without checking the vectors.

    Long runs of one character, such as ruled lines, are shortened as in token counts.

    Raises:
        EmbeddingError: The model failed, or returned too few or too many vectors.
    """
    name = embedding.model_name
    number = counted(len(texts), "text")
    try:
        vectors = embedding.get_text_embedding_batch([without_repeats(text) for text in texts])
    except (EmbeddingError, MissingExtraError, SettingError):  # these messages are clear
        raise
    except Exception as error:
        reason = shortened(" ".join(str(error).split()))  # the answer of a server may be long
        raise EmbeddingError(
            f"{name} could not embed {number} ({type(error).__name__}: {reason}). "
            "Finished documents are kept. Check the model, then refresh."
        ) from error
    if len(vectors) != len(texts):
        vectors_made = counted(len(vectors), "vector")
        raise EmbeddingError(f"{name} gave {vectors_made} for {number}. Check its server.")
    return list(vectors)
