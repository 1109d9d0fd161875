"""How many of the nearest vectors a search finds.

A graph of neighbours loses some, above all small groups beside a large one, and says nothing of it. Questions are made
of stored vectors, so that no model is needed: a vector itself, and one that is about as far from it as a good question.
"""

from __future__ import annotations

import json
import logging
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from llama_index_contextual.errors import ContextualWarning
from llama_index_contextual.matrix import units_of
from llama_index_contextual.retrievers.chroma import GRAPH, space_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

logger = logging.getLogger(__name__)
Floats = npt.NDArray[np.float32]

TOP: Final = 10
ENOUGH: Final = 0.98  # of the true ten nearest, or of the sample: less is worth a word
_AWAY: Final = 0.8  # length of what is added to a vector of length 1: their cosine is then 0.78
_SAME: Final = 1e-4  # cosines that differ by less are equal: stores round
_LEAST: Final = 200  # vectors: a graph of fewer loses next to nothing
_SAMPLE: Final = 128
_ROUNDS: Final = 4  # in which other documents are looked for
_DOCUMENT: Final = "ref_doc_id"  # LlamaIndex's key


def made_questions(vectors: npt.ArrayLike) -> Floats:
    """Return two questions of each vector, shape ``(2 * vectors, dimensions)``: itself, and one away from it."""
    plain = np.asarray(vectors, dtype=np.float32)
    noise = np.random.default_rng(0).standard_normal(plain.shape)
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    away = plain + _AWAY * lengths * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    return np.concatenate([plain, away.astype(np.float32)])


def found_share(
    pages: Iterable[tuple[Sequence[str], Floats]], questions: Floats, answers: Sequence[Sequence[str]]
) -> float:
    """Return which share of the true :data:`TOP` nearest some answers hold, 0 to 1; equally near ones count as well.

    Args:
        pages: Ids and vectors of everything that there is.
        questions: Vectors, shape ``(questions, dimensions)``.
        answers: The ids that were found for each question.
    """
    asked = units_of(questions)
    best = np.full((len(asked), 0), -np.inf, dtype=np.float32)
    given = [dict.fromkeys(answer[:TOP], -np.inf) for answer in answers]
    for ids, vectors in pages:
        cosines = asked @ units_of(vectors).T
        best = -np.sort(-np.concatenate([best, cosines], axis=1), axis=1)[:, :TOP]
        columns = {id_: column for column, id_ in enumerate(ids)}
        for row, answer in enumerate(given):
            answer.update({id_: float(cosines[row, columns[id_]]) for id_ in answer if id_ in columns})
    if not best.size:
        return 1.0
    found: int = sum(
        score >= least - _SAME
        for answer, least in zip(given, best[:, -1].tolist(), strict=True)
        for score in answer.values()
    )
    return found / int(best.size)


def warn_of_losses(collection: Any) -> None:
    """Warn where :func:`losses` finds any. A question goes on whatever happens here, and says itself what is wrong."""
    try:
        lost = losses(collection)
    except Exception:
        logger.debug("the graph of %s could not be looked at", collection, exc_info=True)
        return
    if lost is not None:
        better = {"space": space_of(collection), **GRAPH}
        warnings.warn(
            f"The graph of the Chroma collection {collection.name!r} loses what is near: {lost}. Cure: make the "
            f'collection again with configuration={{"hnsw": {json.dumps(better)}}}; or a ContextualIndex, which '
            "compares a question with every vector.",
            ContextualWarning,
            stacklevel=2,
        )


def losses(collection: Any) -> str | None:
    """Return what a Chroma collection's graph loses, as a sentence; None where a sample shows nothing.

    Some stored vectors are read, from as many documents as can be told quickly, and asked for. What is nearer than the
    last of ten answers and not among them was lost. That takes some 0.1 s, whatever the collection's size.
    """
    count = collection.count()
    if count < _LEAST:
        return None
    ids, vectors = _sample(collection)
    questions = made_questions(vectors)
    found = collection.query(query_embeddings=questions.tolist(), n_results=TOP, include=["distances"])
    distances = _distances(space_of(collection), questions, vectors)
    lost = 0
    for own, answer, theirs in zip(distances, found["ids"], found["distances"], strict=True):
        near = np.flatnonzero(own < max(theirs, default=np.inf) - _SAME * max(1.0, abs(float(own.mean()))))
        lost += not {ids[row] for row in near.tolist()} <= set(answer)
    if lost <= (1 - ENOUGH) * len(questions):
        return None
    return f"for {lost} of {len(questions)} questions made of its own vectors it missed one that is near"


def _sample(collection: Any) -> tuple[list[str], Floats]:
    """Return ids and vectors of some rows: of any, and of several documents, for small ones are easily lost."""
    every = collection.get(include=[])["ids"]
    chosen = {every[row] for row in np.random.default_rng(0).permutation(len(every))[:_SAMPLE].tolist()}
    seen: list[str] = []
    for _ in range(_ROUNDS):
        where = {_DOCUMENT: {"$nin": seen}} if seen else None
        page = collection.get(where=where, limit=_SAMPLE // _ROUNDS, include=["metadatas"])
        documents = {str((metadata or {}).get(_DOCUMENT, "")) for metadata in page["metadatas"]} - {""}
        chosen.update(page["ids"])
        if not documents:
            break
        seen += sorted(documents)
    read = collection.get(ids=sorted(chosen), include=["embeddings"])
    return read["ids"], np.asarray(read["embeddings"], dtype=np.float32)


def _distances(space: str, questions: Floats, vectors: Floats) -> Floats:
    """Return distances as Chroma gives them, shape ``(questions, vectors)``."""
    if space == "cosine":
        return 1 - units_of(questions) @ units_of(vectors).T
    products = questions @ vectors.T
    if space == "ip":
        return 1 - products
    squares: Floats = (questions**2).sum(axis=1)[:, None] + (vectors**2).sum(axis=1) - 2 * products
    return squares
