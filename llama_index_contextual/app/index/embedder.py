"""The vectors of chunks: known ones, else from the model; checked, and kept at once."""

from __future__ import annotations

from statistics import mode
from typing import TYPE_CHECKING, Final, NamedTuple

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

BATCH_TEXTS: Final = 64  # texts that a kill or a failing server can cost
_HOPELESS: Final = 8  # texts without one usable vector: the model is broken, not a text
_SHOWN: Final = 60  # characters of a text in a message
_PROBE: Final = "length"  # a text that shows how long the vectors of a model are
_dispatcher: Final = get_dispatcher(__name__)


class Chunk(NamedTuple):
    """A node on its way into the database; as an object it takes four times as much memory.

    Attributes:
        text: What is embedded of it: its text with its context.
        row: Its row.
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
    """Return the text that is embedded of a node, without encoded bytes."""
    return readable(node.get_content(metadata_mode=MetadataMode.EMBED))


class EmbeddingResult(NamedTuple):
    """The vectors of chunks.

    Attributes:
        vectors: By the hash of the embedded text.
        sent: How many texts were sent to the model.
        problems: Why there is no usable vector of a text, by its hash.
    """

    vectors: dict[str, Singles]
    sent: int
    problems: dict[str, str]


class Embedder:
    """Makes the vectors of chunks, or takes those that are known.

    Args:
        embedding: Makes vectors.
        cache: Keeps them for all folders, unless the embedding has no name of its own.
        database: Has the vectors of the index; None where all of them are replaced.
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

        New vectors are kept after every :data:`BATCH_TEXTS` texts, so that an interruption costs no
        more than those that are being made.

        Args:
            chunks: The chunks.
            documents: The keys of their documents, of which the index may have vectors.

        Raises:
            EmbeddingError: The model failed, or gave nothing that can be used.
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
        """Return the vectors that the index or the content cache has."""
        vectors: dict[str, Singles] = {}
        if self._database is not None and self._dimensions:
            with self._database.reading() as snapshot:
                vectors = snapshot.vectors_by_hash(documents)
        if self._cache is not None:
            cached = self._cache.vectors(model_id(self._embedding), hashes - vectors.keys())
            if cached and not self._dimensions:
                self._dimensions = self._length_of_vectors(cached)
            vectors |= cached
        return {
            key: vector
            for key, vector in vectors.items()
            if key in hashes and len(vector) == self._dimensions
        }

    def _length_of_vectors(self, cached: Mapping[str, Singles]) -> int:
        """Return the length of the model's vectors; that of cached ones while it is not reached."""
        try:
            [vector] = embed_texts(self._embedding, [_PROBE])
        except EmbeddingError:
            return mode(map(len, cached.values()))
        return len(vector)

    def _embed_batch(self, texts: Mapping[str, str], vectors: dict[str, Singles]) -> dict[str, str]:
        """Add the vectors of texts, and return what is wrong with those that cannot be used."""
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
                f"{self._embedding.model_name} gave no usable vector for any of "
                f"{counted(len(texts), 'text')}: {vector_problem(answers[0], self._dimensions)}. "
                "What was finished is kept. Check the model, then refresh."
            )
        if self._cache is not None:
            self._cache.put_vectors(model_id(self._embedding), usable)
        vectors |= usable
        return problems


def vector_problem(vector: Sequence[float], dimensions: int) -> str:
    """Return why a vector cannot be used that should have so many dimensions; "" where it can."""
    if len(vector) != dimensions:
        return f"it has {len(vector)} dimensions instead of {dimensions}"
    with np.errstate(over="ignore"):
        values = np.asarray(vector, np.float32)  # as it is kept
        square = float(values @ values)
    if 0 < square < np.inf:
        return ""
    return "all its numbers are 0, or some are too large or no numbers"


def embed_texts(embedding: BaseEmbedding, texts: Sequence[str]) -> list[list[float]]:
    """Return vectors of texts, unchecked but for their number.

    Every model reads ruled lines as short as they were counted.

    Raises:
        EmbeddingError: The model failed, or gave another number of vectors.
    """
    name = embedding.model_name
    number = counted(len(texts), "text")
    try:
        vectors = embedding.get_text_embedding_batch([without_repeats(text) for text in texts])
    except (EmbeddingError, MissingExtraError, SettingError):  # its message is clear
        raise
    except Exception as error:
        reason = shortened(" ".join(str(error).split()))  # a server may say anything
        raise EmbeddingError(
            f"{name} could not embed {number} ({type(error).__name__}: {reason}). "
            "What was finished is kept. Check the model, then refresh."
        ) from error
    if len(vectors) != len(texts):
        vectors_made = counted(len(vectors), "vector")
        raise EmbeddingError(f"{name} gave {vectors_made} for {number}. Check its server.")
    return list(vectors)
