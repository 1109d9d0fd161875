"""Vectors of texts: kept ones, else from the model; checked, and on disk before anything else happens."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np
from llama_index.core.utils import iter_batch

from llama_index_contextual.app.settings.embeddings import UNNAMED, NoEmbedding, model_id
from llama_index_contextual.app.settings.late_chunking import DocumentEmbedding
from llama_index_contextual.app.store.nodes import Chunk, to_node
from llama_index_contextual.app.store.schema import vector_problem
from llama_index_contextual.errors import EmbeddingError, FingerprintError, MissingExtraError, SettingError
from llama_index_contextual.text import counted, short_hash
from llama_index_contextual.watching import step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_contextual.app.store.paid import PaidStore
    from llama_index_contextual.app.store.schema import Rows
    from llama_index_contextual.app.store.snapshot import Snapshot

BATCH_TEXTS: Final = 64  # texts that a kill or a failing server can cost
_PAGE: Final = 2048  # chunks whose hashes are looked up at once
_HOPELESS: Final = 8  # so many texts without one usable vector among them: the model is broken, not a text
_ABSENT: Final = 404  # what Ollama answers for a model that was not pulled
_SAME: Final = 0.99  # cosine of two vectors of one text by one model; machines round differently
_SHOWN: Final = 60  # characters of a text in a message


def check_vectors(snapshot: Snapshot, paid: PaidStore, embedding: BaseEmbedding) -> None:
    """Refuse an embedding without a name of its own whose vectors are not those of an index.

    The name of an embedding's class is the same for all of its objects, so a text of the index is embedded once more.

    Raises:
        FingerprintError: Its vector is another one than the index has.
    """
    model = model_id(embedding)
    if embedding.model_name != UNNAMED or snapshot.state.model != model:
        return
    for row in snapshot.nodes(snapshot.rows()[:1]):
        chunk = Chunk.of(to_node(row))
        kept = dict(paid.vectors(model, [row.embed_hash])).get(row.embed_hash)
        if kept is None or chunk.embed_hash != row.embed_hash:
            continue
        try:
            now = np.asarray(embed_texts(embedding, [chunk.text])[0], np.float32)
        except EmbeddingError:  # which the work itself will tell
            continue
        cosine = float(now @ kept) / max(float(np.linalg.norm(now) * np.linalg.norm(kept)), 1e-12)
        if len(now) != len(kept) or cosine < _SAME:
            name = type(embedding).__name__
            raise FingerprintError(
                f"the vectors of this {name} are not those of the index: {chunk.text[:_SHOWN]!r} has another one "
                f"(cosine {cosine:.2f}), and both have the model_name {UNNAMED!r}. Cure: the former embedding; or "
                f"{name}(model_name='…') with a name for each model, and reindex='all'."
            )


class Embedder:
    """Gives nodes the vectors of their embedded texts.

    Args:
        paid: Where vectors are kept.
        embedding: Makes those that are not known.
        check: Called before the first of them is made.

    Attributes:
        model: Identity of the embedding model.
    """

    def __init__(self, paid: PaidStore, embedding: BaseEmbedding, check: Callable[[], object] = lambda: None) -> None:
        self.model = model_id(embedding)
        self._check = check
        self._paid = paid
        self._embedding = embedding
        self._dimensions = 0

    @property
    def embeds(self) -> bool:
        """Return whether there is an embedding at all."""
        return not isinstance(self._embedding, NoEmbedding)

    def known(self, hashes: Sequence[str]) -> set[str]:
        """Those hashes of embedded texts whose vector is kept."""
        return self._paid.with_vectors(self.model, dict.fromkeys(hashes))

    def embed(
        self, chunks: Sequence[Chunk], progress: Callable[[int], object] = lambda _: None
    ) -> tuple[set[str], dict[str, str]]:
        """Keep the vectors of chunks; those of texts that are kept already are not made again.

        New vectors are kept after every :data:`BATCH_TEXTS` texts, or after each window of a document, so that an
        interruption costs no more than those that are being made.

        Args:
            chunks: The chunks.
            progress: Called with how many texts were embedded so far.

        Returns:
            Which texts were sent to the model, by their hashes, and why there is no usable vector of some of them.

        Raises:
            EmbeddingError: The model failed, or gave nothing that can be used.
            StorageError: The file of what was paid cannot be written.
        """
        if not self.embeds:
            return set(), {}
        with step("embed", model=self._embedding.model_name, rows=len(chunks)) as facts:
            known = self._paid.with_vectors(self.model, {chunk.embed_hash for chunk in chunks})
            self._dimensions = self._dimensions or self._paid.dimensions(self.model)
            missing = {chunk.embed_hash: chunk for chunk in chunks if chunk.embed_hash not in known}
            if isinstance(self._embedding, DocumentEmbedding):  # what no document is known of is embedded alone
                for chunk in missing.values():
                    chunk.window = chunk.window or ((chunk.text,), 0)
            faults, done = dict[str, str](), 0
            if missing:
                self._check()
                self._check = lambda: None
            for texts, places in _requests(missing):
                answers = embed_texts(self._embedding, texts)
                chunks_now = {key: missing[key] for key in places}
                vectors, failed = self._checked(chunks_now, {key: answers[place] for key, place in places.items()})
                self._paid.put_vectors(self.model, vectors)
                faults |= failed
                done += len(places)
                progress(done)
            facts |= {"embedded": len(missing), "failed": len(faults)}
        return set(missing), faults

    def embed_all(self, chunks: Sequence[Chunk]) -> None:
        """Keep the vectors of chunks.

        Raises:
            EmbeddingError: A text has no usable vector.
        """
        _, faults = self.embed(chunks)
        if faults:
            raise EmbeddingError(f"{next(iter(faults.values()))} Cure: see to the model, then try again.")

    def _checked(
        self, chunks: Mapping[str, Chunk], answers: dict[str, Sequence[float]]
    ) -> tuple[dict[str, Sequence[float]], dict[str, str]]:
        """Return which vectors of chunks can be used, and why others cannot; those are asked for once more."""
        texts = {key: chunk.text for key, chunk in chunks.items()}
        if not self._dimensions:
            self._dimensions = self._agreed(answers.values())
        faults = self._faults(answers)
        if faults:
            for again, places in _requests({key: chunks[key] for key in faults}):
                vectors = embed_texts(self._embedding, again)
                answers |= {key: vectors[place] for key, place in places.items()}
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
        faults = {key: vector_problem(vector, self._dimensions) for key, vector in answers.items()}
        return {key: fault for key, fault in faults.items() if fault is not None}

    def _agreed(self, answers: Iterable[Sequence[float]]) -> int:
        """Return the length of vectors on which the first answer and that to a query agree.

        Raises:
            EmbeddingError: They differ, asked twice: a query could never be compared with what is indexed.
        """
        [(length, _)] = Counter(map(len, answers)).most_common(1)
        lengths = [query_length(self._embedding)]
        if length not in lengths:
            lengths.append(query_length(self._embedding))
        if lengths[-1] not in (length, lengths[0]) or not lengths[-1]:
            raise EmbeddingError(
                f"{self._embedding.model_name} gives vectors of {length} and of {lengths[-1]} dimensions. "
                "Cure: see to the model, then refresh."
            )
        return lengths[-1]


def lost_rows(rows: Rows, hashes_of: Callable[[Rows], list[str]], embedder: Embedder) -> list[int]:
    """Numbers of chunks whose vector is not kept."""
    lost: list[int] = []
    for start in range(0, len(rows), _PAGE):
        part = rows[start : start + _PAGE]
        hashes = hashes_of(part)
        known = embedder.known(hashes)
        lost += [row for row, key in zip(part.tolist(), hashes, strict=True) if key not in known]
    return lost


def attach_document_windows(embedding: BaseEmbedding, chunks: Sequence[Chunk]) -> None:
    """Tell the chunks of one document what they are embedded with, if the embedding reads chunks together.

    The hash of a chunk is then that of its window and its place, so that an edit embeds its whole window anew.

    Raises:
        EmbeddingError: A chunk is longer than what the model reads.
    """
    if not isinstance(embedding, DocumentEmbedding):
        return
    texts = [chunk.text for chunk in chunks]
    hashes = [chunk.embed_hash for chunk in chunks]
    for window in embedding.windows(texts):
        together = tuple(texts[window.start : window.end])
        name = short_hash(together)
        for at in range(window.first, window.last):
            chunks[at].window = together, at - window.start
            hashes[at] = short_hash([name, at - window.start])
    for chunk, value in zip(chunks, hashes, strict=True):
        chunk.row = chunk.row._replace(embed_hash=value)


def _requests(chunks: Mapping[str, Chunk]) -> Iterator[tuple[list[str], dict[str, int]]]:
    """Yield the texts that are sent to the model together, and the places of chunks among them, by hash."""
    for window, group in groupby(chunks.items(), lambda one: one[1].window and one[1].window[0]):
        if window:
            yield list(window), {key: chunk.window[1] for key, chunk in group if chunk.window}
        else:
            for part in iter_batch(group, BATCH_TEXTS):
                yield [chunk.text for _, chunk in part], {key: place for place, (key, _) in enumerate(part)}


def query_length(embedding: BaseEmbedding) -> int:
    """Return how many numbers the vector of a query has.

    Raises:
        EmbeddingError: The model failed.
    """
    try:
        return len(embedding.get_query_embedding("length"))
    except (MissingExtraError, SettingError):
        raise
    except Exception as error:
        raise _failed(embedding, "a query", error) from error


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
    except (EmbeddingError, MissingExtraError, SettingError):  # what it says is clear
        raise
    except Exception as error:
        raise _failed(embedding, counted(len(texts), "text"), error) from error
    if len(vectors) != len(texts):
        raise EmbeddingError(
            f"{embedding.model_name} gave {counted(len(vectors), 'vector')} for {counted(len(texts), 'text')}. "
            "Cure: see to the server"
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
