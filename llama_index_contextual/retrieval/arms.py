"""The arms of a fusion: their names, weights and filters."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.vector_store import VectorIndexRetriever
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual.errors import SettingError
from llama_index_contextual.retrieval.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrieval.fusion import Mode
from llama_index_contextual.retrieval.vector import ContextualVectorRetriever

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.vector_stores.types import MetadataFilters


KEYWORD_WEIGHT: Final = 0.6


@dataclass(frozen=True, slots=True, eq=False)
class Arm:
    """A retriever as one of several that answer a question.

    Args:
        name: A short one that no other arm has.
        weight: Its share of the whole; the weights of all arms sum to 1.
        retriever: Answers.
    """

    name: str
    weight: float
    retriever: BaseRetriever

    @property
    def is_keyword(self) -> bool:
        """Return whether it matches words: it says so (``kind == "keyword"``), or it is a BM25 retriever."""
        return _is_keyword(self.retriever)

    @property
    def ours(self) -> ContextualBM25Retriever | ContextualVectorRetriever | None:
        """Return the retriever if it answers with ids, so that of a pool of 100 candidates 10 nodes are read."""
        arm = self.retriever
        return arm if isinstance(arm, ContextualBM25Retriever | ContextualVectorRetriever) else None

    @property
    def has_filters(self) -> bool:
        """Return whether it leaves out some nodes."""
        return getattr(self.retriever, "filters", None) is not None

    @property
    def computes(self) -> bool:
        """Return whether it computes in a thread, so that an event loop has nothing to wait for."""
        return self.ours is not None and not self.asks_async

    @property
    def asks_async(self) -> bool:
        """Return whether it asks a store on an event loop."""
        return isinstance(self.retriever, ContextualVectorRetriever) and self.retriever.asks_async

    def with_query_filters(self, filters: MetadataFilters | None) -> Arm:
        """Return an arm that evaluates the filters of a query's operators, where it can."""
        return self.filtered(filters) if self.ours is not None and self.ours.filters_words else self

    def filtered(self, filters: MetadataFilters | None) -> Arm:
        """Return an arm that returns only what the filters admit."""
        return replace(self, retriever=cast("Any", self.retriever).with_filters(filters))

    def without_filters(self) -> Arm | None:
        """Return an arm over all chunks; None where it is not ours, or its scores are not comparable."""
        retriever = self.ours
        if retriever is None or (isinstance(retriever, ContextualVectorRetriever) and not retriever.gives_cosines):
            return None
        view = copy.copy(retriever)
        view.filters = None
        return replace(self, retriever=view)


def checked_retrievers(retrievers: object) -> list[BaseRetriever]:
    """Return the arms as a list.

    Raises:
        SettingError: They are not a sequence of retrievers; the message says what was probably meant.
    """
    kind = type(retrievers).__name__
    if isinstance(retrievers, BaseRetriever):
        raise SettingError(f"retrievers={kind} is a single retriever. Cure: a list, ContextualFusionRetriever([...]).")
    if hasattr(retrievers, "as_retriever") or not isinstance(retrievers, Iterable):
        cure = "[index.as_retriever()]" if hasattr(retrievers, "as_retriever") else "a list of retrievers"
        raise SettingError(f"retrievers={kind} is not a list of retrievers. Cure: {cure}.")
    arms = list(retrievers)
    if not arms:
        raise SettingError("retrievers=[] is empty. Cure: at least one retriever.")
    for arm in arms:
        if not isinstance(arm, BaseRetriever):
            cure = "its as_retriever()" if hasattr(arm, "as_retriever") else "a LlamaIndex retriever"
            raise SettingError(f"retrievers hold a {type(arm).__name__}, which is not a retriever. Cure: {cure}.")
    return arms


def arms_of(retrievers: Sequence[BaseRetriever], weights: Sequence[float] | None) -> list[Arm]:
    """Return retrievers as arms, with distinct names and weights that sum to 1.

    A name is the retriever's own ``name``, "bm25", "vector", or its class. By default keyword arms share
    :data:`KEYWORD_WEIGHT` and the others the rest.

    Raises:
        SettingError: Arms and weights differ in number, a weight is negative or not finite, or all are 0.
    """
    if weights is None:
        keyword = [_is_keyword(retriever) for retriever in retrievers]
        shares = {True: KEYWORD_WEIGHT, False: 1 - KEYWORD_WEIGHT}
        weights = [shares[kind] / keyword.count(kind) for kind in keyword]
    if len(weights) != len(retrievers) or not all(map(_is_weight, weights)) or sum(weights) <= 0:
        raise SettingError(
            f"retriever_weights={list(weights)} cannot work. Cure: a finite number for each of {len(retrievers)} "
            "retrievers, none negative and not all 0."
        )
    plain = [name_of(retriever) for retriever in retrievers]
    names = [
        name if plain.count(name) == 1 else f"{name} {plain[: number + 1].count(name)}"
        for number, name in enumerate(plain)
    ]
    total = sum(weights)
    return [
        Arm(name, weight / total, retriever) for name, weight, retriever in zip(names, weights, retrievers, strict=True)
    ]


def default_mode(retrievers: Sequence[BaseRetriever], weights: object, k: object) -> Mode:
    """Return the mode for arms: learned for those that the model was trained on, else by ranks."""
    trained = keyword_of(retrievers) is not None and len({_is_keyword(retriever) for retriever in retrievers}) > 1
    return Mode.LEARNED if trained and weights is None and k is None else Mode.RECIPROCAL_RANK


def keyword_of(retrievers: Iterable[BaseRetriever]) -> ContextualBM25Retriever | None:
    """Return the first keyword retriever of ours."""
    return next((retriever for retriever in retrievers if isinstance(retriever, ContextualBM25Retriever)), None)


def _is_keyword(retriever: object) -> bool:
    return getattr(retriever, "kind", None) == "keyword" or isinstance(retriever, BM25Retriever)


def _is_weight(value: object) -> bool:
    return isinstance(value, int | float | np.floating | np.integer) and bool(0 <= value < math.inf)


def name_of(retriever: Any) -> str:
    """Return the name of a retriever as an arm: its own, "bm25", "vector", or its class."""
    name = getattr(retriever, "name", None)
    if isinstance(name, str):
        return name
    if isinstance(retriever, BM25Retriever):
        return "bm25"
    is_vector = isinstance(retriever, (ContextualVectorRetriever, VectorIndexRetriever))
    return "vector" if is_vector else type(retriever).__name__
