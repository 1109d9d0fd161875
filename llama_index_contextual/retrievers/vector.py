"""The vector retriever: cosine scores, all filters, and no blocked event loop."""

from __future__ import annotations

import asyncio
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from llama_index_contextual.retrievers.any_store import AnyStore, is_chroma
from llama_index_contextual.retrievers.base import Pool, PoolRetriever
from llama_index_contextual.retrievers.filters import check_filters, merge_filters
from llama_index_contextual.utils import metadata
from llama_index_contextual.utils.errors import (
    ContextualWarning,
    SettingError,
    amount,
    one_of,
    whole,
)
from llama_index_contextual.utils.tracing import in_thread, traced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle
    from typing_extensions import Self

    from llama_index_contextual.retrievers.base import Candidate, StoreReader

T = TypeVar("T")

MINILM = "all-minilm"
E5 = "multilingual-e5"
_MAX_CACHED = 16  # queries whose vectors are cached, because a digest can search twice


class OwnStore:
    """The store of this package's own index, which is maintained elsewhere.

    Args:
        reader: Reads the store.
    """

    applies_operators = True
    has_async_query = False

    def __init__(self, reader: StoreReader) -> None:
        self.ask = reader.ask
        self.snapshot = reader.snapshot

    def returns_cosines(self, _: VectorStoreQuery) -> bool:
        """Return True, because the scores are always cosine similarities."""
        return True

    def needs_vector(self, _: VectorStoreQuery) -> bool:
        """Return True, because queries must always be embedded."""
        return True

    def search(self, queries: Sequence[VectorStoreQuery]) -> list[list[Candidate]]:
        """Return the best hits of queries that differ only by their vectors."""
        return [pool.matching for pool in self.pools(queries, 0)]

    def pools(self, queries: Sequence[VectorStoreQuery], min_matching: int) -> list[Pool]:  # noqa: ARG002
        """Return the best hits of queries that differ only by their vectors."""
        if not queries:
            return []
        vectors = [query.query_embedding or [] for query in queries]
        top_k = queries[0].similarity_top_k
        filters = queries[0].filters
        pools: list[Pool] = self.ask(lambda store: store.dense_queries(vectors, top_k, filters))
        return pools


class ContextualVectorRetriever(PoolRetriever):
    """Retrieve by vector from a LlamaIndex vector store.

    It replaces ``VectorIndexRetriever``. For Chroma, the score is the cosine similarity, -1 to 1,
    whatever the distance function of the collection, and ties are broken by node id. For other
    stores, scores and ties are those of the store. Asynchronous calls never block the event loop.

    Args:
        index: A ``VectorStoreIndex`` on any store, or a vector store that contains text. Of an
            index, the embedding, the objects and the callbacks are used.
        similarity_top_k: The largest number of nodes that a query returns. The store decides the
            number for a hybrid query.
        embed_model: The embedding for queries. Default: the model of the index, else
            ``Settings.embed_model`` at the first query.
        filters: Metadata filters for the returned nodes. They mean the same on every store: parts
            that a store would treat differently are applied to its hits, and the query is repeated
            with a larger size until there are enough hits or the store has no more.
        doc_ids: The ids of the documents to search. None means all.
        node_ids: The ids of the nodes to search. None means all.
        vector_store_query_mode: One of LlamaIndex's modes that the store supports, such as
            ``"mmr"`` or ``"hybrid"``.
        alpha: For hybrid queries, 0 to 1. 0 is keywords only and 1 is vectors only.
        sparse_top_k: For hybrid queries, the number of hits by keywords.
        hybrid_top_k: For hybrid queries, the number of hits in all.
        vector_store_kwargs: Further arguments of the store's ``query``, such as ``mmr_threshold``.

    Raises:
        SettingError: A setting is invalid.
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
        self.reader: OwnStore | AnyStore
        if isinstance(index, OwnStore):
            self.reader = index
        else:
            self.reader, index = _any_store_of(index, vector_store_kwargs)
        if object_map is None:
            object_map = getattr(index, "_object_map", None)
        super().__init__(
            callback_manager=callback_manager or getattr(index, "_callback_manager", None),
            object_map=object_map,
            objects=objects,
            verbose=verbose,
        )
        check_filters(filters)
        if doc_ids is not None:
            documents = MetadataFilter(
                key=metadata.REF_DOC_ID, operator=FilterOperator.IN, value=list(doc_ids)
            )
            filters = merge_filters(filters, MetadataFilters(filters=[documents]))
        self._query = VectorStoreQuery(
            node_ids=None if node_ids is None else list(dict.fromkeys(node_ids)),
            mode=_mode_of(self.reader, vector_store_query_mode),
            alpha=None if alpha is None else amount("alpha", alpha, zero=True, most=1),
            sparse_top_k=None if sparse_top_k is None else whole("sparse_top_k", sparse_top_k),
            hybrid_top_k=None if hybrid_top_k is None else whole("hybrid_top_k", hybrid_top_k),
        )
        self.similarity_top_k = whole("similarity_top_k", similarity_top_k)
        self.filters = filters
        self.applies_operators = self.reader.applies_operators
        self.keeps_scores = self.reader.returns_cosines(self._query)
        self.has_async_query = self.reader.has_async_query
        self._needs_vector = self.reader.needs_vector(self._query)
        if isinstance(embed_model, str):
            raise SettingError(
                f"`embed_model` must be an embedding of LlamaIndex (got {embed_model!r}). "
                "Pass an object, such as OllamaEmbedding('nomic-embed-text')."
            )
        self._embed_model = embed_model or getattr(index, "_embed_model", None)
        self._vectors: dict[tuple[str, ...], tuple[BaseEmbedding, list[float]]] = {}

    @classmethod
    def over(
        cls,
        reader: StoreReader,
        embed_model: BaseEmbedding | None = None,
        *,
        similarity_top_k: int = 10,
        filters: MetadataFilters | None = None,
    ) -> Self:
        """Return a retriever over the store of this package's own index.

        Args:
            reader: Reads the newest state of the store.
            embed_model: The embedding for queries. Default: ``Settings.embed_model`` at the first
                query.
            similarity_top_k: The largest number of nodes that a query returns.
            filters: Metadata filters for the returned nodes.
        """
        store = OwnStore(reader)
        return cls(store, similarity_top_k, embed_model=embed_model, filters=filters)

    @property
    def cosines_of(self) -> str:
        """Return the model of the cosines, :data:`MINILM` or :data:`E5`, whatever runs it.

        It is "" for any other model, because fusion and relevance are not calibrated for it.
        """
        if not self.keeps_scores:
            return ""
        model = self._embed_model or Settings._embed_model  # noqa: SLF001  the property would load one
        name = str(getattr(model, "model_name", "")).lower()
        return next((part for part in (MINILM, E5) if part in name), "")

    @property
    def embed_model(self) -> BaseEmbedding:
        """Return the embedding for queries. By default, it is ``Settings.embed_model``."""
        return self._embed_model or Settings.embed_model

    @traced
    def candidates(self, queries: Sequence[QueryBundle], top_k: int) -> list[list[Candidate]]:
        """Return the ids and scores of the best nodes for each query. An empty query has none."""
        hits = self.reader.search(self._store_queries(queries, top_k))
        return _for_each(queries, hits, [])

    @traced
    def pools(self, queries: Sequence[QueryBundle], size: int, min_matching: int) -> list[Pool]:
        """Return the best nodes for each query. An empty query has none."""
        store_queries = self._store_queries(queries, size)
        return _for_each(queries, self.reader.pools(store_queries, min_matching), Pool([], []))

    @traced
    async def acandidates(
        self, queries: Sequence[QueryBundle], top_k: int
    ) -> list[list[Candidate]]:
        """Like :meth:`candidates`, but with the asynchronous query of the store.

        Raises:
            TypeError: The store has no asynchronous query, so :attr:`has_async_query` is false.
        """
        if not isinstance(self.reader, AnyStore):
            raise TypeError("The store has no asynchronous query.")
        # The asynchronous method of many embeddings blocks the event loop, so run the synchronous
        # one in a thread.
        store_queries = await asyncio.to_thread(self._store_queries, queries, top_k)
        return _for_each(queries, await self.reader.asearch(store_queries), [])

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if not self.has_async_query:
            return await super()._aretrieve(query_bundle)
        [candidates] = await self.acandidates([query_bundle], self.similarity_top_k)
        return await asyncio.to_thread(self._with_nodes, candidates)

    def _store_queries(self, queries: Sequence[QueryBundle], top_k: int) -> list[VectorStoreQuery]:
        """Return the queries for a store, without empty ones."""
        queries = [query for query in queries if _has_content(query)]
        vectors: Sequence[list[float] | None] = [query.embedding for query in queries]
        if self._needs_vector:
            vectors = self._embed(queries)
        return [
            replace(
                self._query,
                similarity_top_k=top_k,
                filters=self.filters,
                query_embedding=vector,
                query_str=query.query_str,
            )
            for query, vector in zip(queries, vectors, strict=True)
        ]

    def _embed(self, queries: Sequence[QueryBundle]) -> list[list[float]]:
        """Return the vector of each query: its own, a cached one, or a new one from the model.

        New vectors are computed concurrently.
        """
        model = self.embed_model
        texts = [tuple(query.embedding_strs) for query in queries]
        vectors: dict[tuple[str, ...], list[float]] = {}
        for text, query in zip(texts, queries, strict=True):
            known_model, vector = self._vectors.get(text, (None, []))
            if query.embedding is not None:
                vectors[text] = query.embedding
            elif known_model is model:
                vectors[text] = vector

        # Embed the first new text in this thread, and each further text in a thread of its own.
        new_texts = list(dict.fromkeys(text for text in texts if text not in vectors))
        embed = model.get_agg_embedding_from_queries
        futures = {text: in_thread(embed, list(text)) for text in new_texts[1:]}
        for text in new_texts[:1]:
            vectors[text] = embed(list(text))
        vectors |= {text: future.result() for text, future in futures.items()}

        # Cache the newest vectors.
        self._vectors.update({text: (model, vectors[text]) for text in new_texts})
        for text in list(self._vectors)[:-_MAX_CACHED]:
            self._vectors.pop(text, None)
        return [vectors[text] for text in texts]


def _has_content(query: QueryBundle) -> bool:
    return query.embedding is not None or any(text.strip() for text in query.embedding_strs)


def _for_each(queries: Sequence[QueryBundle], answers: Sequence[T], nothing: T) -> list[T]:
    """Return an answer for each query, with ``nothing`` for each empty query."""
    remaining = iter(answers)
    return [next(remaining) if _has_content(query) else nothing for query in queries]


def _any_store_of(
    source: object, options: Mapping[str, Any] | None
) -> tuple[AnyStore, VectorStoreIndex | None]:
    """Return the vector store, and the index if the source is one.

    Raises:
        SettingError: The source is neither an index nor a vector store that contains text.
    """
    if isinstance(source, BasePydanticVectorStore) and source.stores_text:
        return AnyStore(source, options=options), None
    if isinstance(source, VectorStoreIndex):
        names = getattr(source.index_struct, "nodes_dict", None)
        return AnyStore(source.vector_store, source.docstore, names, options), source
    raise SettingError(
        f"`index` must be a VectorStoreIndex, or a vector store that contains text, such as Chroma "
        f"(got {type(source).__name__}). For any other store, pass the VectorStoreIndex on it."
    )


def _mode_of(store: OwnStore | AnyStore, name: VectorStoreQueryMode | str) -> VectorStoreQueryMode:
    """Return the mode with this name, or the default mode if the store would ignore it."""
    one_of("vector_store_query_mode", name, tuple(mode.value for mode in VectorStoreQueryMode))
    mode = VectorStoreQueryMode(name)
    is_known = mode in {VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.MMR}
    if is_known or not isinstance(store, AnyStore) or not is_chroma(store.store):
        return mode
    warnings.warn(
        f"Chroma ignores vector_store_query_mode={mode.value!r} and answers by vectors alone. "
        "Use a ContextualFusionRetriever with a ContextualBM25Retriever.",
        ContextualWarning,
        stacklevel=3,
    )
    return VectorStoreQueryMode.DEFAULT
