"""The vector arm: cosine scores, every filter, and no blocked event loop."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from llama_index.core import Settings
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from llama_index_contextual.retrievers.any_store import AnyStore, PoolRetriever, call, is_chroma
from llama_index_contextual.retrievers.filters import both, check_filters
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import (
    ContextualWarning,
    SettingError,
    amount,
    one_of,
    whole,
)
from llama_index_contextual.utils.tracing import in_thread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.schema import IndexNode, QueryBundle
    from typing_extensions import Self

    from llama_index_contextual.retrievers.bm25_index import Candidate


MINILM: Final = "all-minilm"
E5: Final = "multilingual-e5"
_REMEMBERED: Final = 16  # queries whose vectors are remembered: a digest asks twice


class ReadStore:
    """Search a store that something else changes.

    Args:
        reader: Has ``snapshot()``, in whose context everything that is read comes from one state of the store, and
            ``ask(work)``, which calls ``work`` with the newest state.
    """

    filters_words, asks_async = True, False

    def __init__(self, reader: Any) -> None:
        self.ask, self.snapshot = reader.ask, reader.snapshot

    def gives_cosines(self, _: VectorStoreQuery) -> bool:
        """Whether the scores are cosine similarities."""
        return True

    needs_vector = gives_cosines

    async def search_each(
        self, queries: Sequence[VectorStoreQuery], *, on_loop: bool
    ) -> list[list[Candidate]]:
        """The best of each of some queries, which differ by their vectors alone."""
        vectors = [query.query_embedding or [] for query in queries]

        def work() -> Any:
            top_k, filters = queries[0].similarity_top_k, queries[0].filters
            return self.ask(lambda store: store.dense_queries(vectors, top_k, filters))

        return await call(work, on_loop=on_loop) if queries else []


class ContextualVectorRetriever(PoolRetriever):
    """Retrieve by vector from a LlamaIndex vector store.

    It stands where ``VectorIndexRetriever`` stood. From Chroma the score is the cosine similarity, -1 to 1, whatever
    the collection's distance function, and ties break by node id; from other stores both are theirs. No call blocks the
    event loop.

    Args:
        index: A ``VectorStoreIndex`` on any store, which brings its embedding, its objects and its callbacks, too; or a
            store that holds text.
        similarity_top_k: Most nodes a query returns; of a hybrid query the store decides how many.
        embed_model: Embeds queries; default that of the index, else ``Settings.embed_model`` when first used.
        filters: Nodes that may be returned. They mean the same on every store: what a store does not filter as we do is
            filtered on its hits, and the query is repeated for more until there are enough or no more.
        doc_ids: Only nodes of these documents; None for all.
        node_ids: Only these nodes; None for all.
        vector_store_query_mode: As LlamaIndex names them: ``"mmr"``, ``"hybrid"`` … where the store knows them.
        alpha: For hybrid queries of a store, 0 to 1: 0 is keywords only, 1 vectors only.
        sparse_top_k: For hybrid queries of a store: its hits by keywords.
        hybrid_top_k: For hybrid queries of a store: its hits in all.
        vector_store_kwargs: Further arguments of the store's ``query``, such as ``mmr_threshold``.

    Raises:
        SettingError: A setting cannot work.
    """

    def __init__(
        self,
        index: Any,
        similarity_top_k: int = 10,
        vector_store_query_mode: VectorStoreQueryMode | str = VectorStoreQueryMode.DEFAULT,
        filters: MetadataFilters | None = None,
        alpha: float | None = None,
        node_ids: Sequence[str] | None = None,
        doc_ids: Sequence[str] | None = None,
        sparse_top_k: int | None = None,
        hybrid_top_k: int | None = None,
        callback_manager: CallbackManager | None = None,
        object_map: dict[str, Any] | None = None,
        embed_model: BaseEmbedding | None = None,
        verbose: bool = False,
        *,
        objects: list[IndexNode] | None = None,
        vector_store_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        store, index = (index, None) if isinstance(index, ReadStore) else _store_and_index(index)
        if objects is None and object_map is None:
            object_map = getattr(index, "_object_map", None)
        callback_manager = callback_manager or getattr(index, "_callback_manager", None)
        super().__init__(
            callback_manager=callback_manager,
            object_map=object_map,
            objects=objects,
            verbose=verbose,
        )
        check_filters(filters)
        if doc_ids is not None:
            documents = MetadataFilter(
                key=metadata.REF_DOC_ID, operator=FilterOperator.IN, value=list(doc_ids)
            )
            filters = both(filters, MetadataFilters(filters=[documents]))
        self._query = VectorStoreQuery(
            node_ids=None if node_ids is None else list(dict.fromkeys(node_ids)),
            mode=_mode_of(store, vector_store_query_mode),
            alpha=None if alpha is None else amount("alpha", alpha, zero=True, most=1),
            sparse_top_k=None if sparse_top_k is None else whole("sparse_top_k", sparse_top_k),
            hybrid_top_k=None if hybrid_top_k is None else whole("hybrid_top_k", hybrid_top_k),
        )
        self.similarity_top_k, self.filters = whole("similarity_top_k", similarity_top_k), filters
        self._reader = (
            store if isinstance(store, ReadStore) else AnyStore(store, index, vector_store_kwargs)
        )
        self.filters_words, self.asks_async = self._reader.filters_words, self._reader.asks_async
        self.is_comparable = self._reader.gives_cosines(self._query)
        self._embed_model = embed_model or getattr(index, "_embed_model", None)
        self._vectors: dict[tuple[str, ...], tuple[BaseEmbedding, list[float]]] = {}

    @classmethod
    def over(cls, reader: Any, embed_model: BaseEmbedding | None = None, **settings: Any) -> Self:
        """A retriever over a store that something else changes.

        Args:
            reader: Gives the newest state of the store.
            embed_model: Embeds queries; default ``Settings.embed_model`` when first used.
            settings: ``similarity_top_k`` and ``filters``.
        """
        return cls(ReadStore(reader), embed_model=embed_model, **settings)

    @property
    def cosines_of(self) -> str:
        """Model of the cosines, whoever runs it: :data:`MINILM`, :data:`E5`, or "" for others.

        The meaning of other cosines for fusion and relevance was not measured.
        """
        model = self._embed_model or Settings._embed_model  # noqa: SLF001  the property would make one
        name = str(getattr(model, "model_name", "")).lower() if self.is_comparable else ""
        return next((part for part in (MINILM, E5) if part in name), "")

    @property
    def embed_model(self) -> BaseEmbedding:
        """Embeds queries; ``Settings.embed_model`` is resolved only where this retriever has none."""
        return self._embed_model or Settings.embed_model

    async def candidates(
        self, queries: Sequence[QueryBundle], top_k: int, *, on_loop: bool
    ) -> list[list[Candidate]]:
        """Ids and scores of the best ``top_k`` of each query, best first; [] for an empty query."""
        questions = [
            one
            for one in queries
            if one.embedding is not None or any(map(str.strip, one.embedding_strs))
        ]
        embeddings: list[Any] = [query.embedding for query in questions]
        if self._reader.needs_vector(self._query):
            # The synchronous embedding in a thread: many models' asynchronous one computes on the event loop.
            embeddings = await call(self._embeddings, questions, on_loop=on_loop)
        settings = replace(self._query, similarity_top_k=top_k, filters=self.filters)
        pairs = zip(embeddings, questions, strict=True)
        store_queries = [
            replace(settings, query_embedding=one, query_str=query.query_str)
            for one, query in pairs
        ]
        answers = iter(await self._reader.search_each(store_queries, on_loop=on_loop))
        return [
            next(answers) if any(query is one for one in questions) else [] for query in queries
        ]

    def _embeddings(self, queries: Sequence[QueryBundle]) -> list[list[float]]:
        """The vector that came with each query, else one that is made; several are made at the same time."""
        model = self.embed_model
        texts = dict.fromkeys(
            tuple(query.embedding_strs) for query in queries if query.embedding is None
        )
        known = {
            text: one[1] for text in texts if (one := self._vectors.get(text)) and one[0] is model
        }
        missing = [text for text in texts if text not in known]
        futures = {
            text: in_thread(model.get_agg_embedding_from_queries, list(text))
            for text in missing[1:]
        }
        known |= {text: model.get_agg_embedding_from_queries(list(text)) for text in missing[:1]}
        known |= {text: future.result() for text, future in futures.items()}
        self._vectors.update({text: (model, known[text]) for text in missing})
        for text in list(self._vectors)[:-_REMEMBERED]:
            self._vectors.pop(text, None)
        return [
            known[tuple(query.embedding_strs)] if query.embedding is None else query.embedding
            for query in queries
        ]


def _store_and_index(source: Any) -> tuple[Any, Any]:
    """A vector store and its index; None for the index where there is the store alone."""
    is_store = isinstance(source, BasePydanticVectorStore)
    store, index = (source, None) if is_store else (getattr(source, "vector_store", None), source)
    if not isinstance(store, BasePydanticVectorStore) or not (store.stores_text or index):
        raise SettingError(
            f"index={type(store or source).__name__} holds no text. "
            "Cure: the VectorStoreIndex on it, or a store that holds text (Chroma, Qdrant, ...)."
        )
    return store, index


def _mode_of(store: object, name: VectorStoreQueryMode | str) -> VectorStoreQueryMode:
    """The mode of this name, or the default where the store would ignore it."""
    one_of("vector_store_query_mode", name, tuple(mode.value for mode in VectorStoreQueryMode))
    mode = VectorStoreQueryMode(name)
    if not is_chroma(store) or mode in {VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.MMR}:
        return mode
    message = f"Chroma ignores vector_store_query_mode={mode.value!r} and answers by vectors alone"
    cure = "ContextualFusionRetriever with a ContextualBM25Retriever"
    warnings.warn(f"{message}. Cure: {cure}.", ContextualWarning, stacklevel=3)
    return VectorStoreQueryMode.DEFAULT
