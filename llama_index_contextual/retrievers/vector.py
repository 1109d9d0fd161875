"""The vector arm: Chroma off the event loop, every filter, cosine scores."""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any

from llama_index.core import Settings
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import BaseNode, IndexNode, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters, VectorStoreQuery
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual.checks import whole
from llama_index_contextual.errors import CopyError, SettingError
from llama_index_contextual.retrievers.candidates import Candidate
from llama_index_contextual.retrievers.chroma import nearest, nodes_of, select_ids, to_where
from llama_index_contextual.retrievers.filters import both, check_filters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.callbacks import CallbackManager

    from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever


class _Held:
    """A store that copies of a retriever share, since what is stored is not theirs to copy."""

    def __init__(self, store: BasePydanticVectorStore) -> None:
        self.store = store

    def __deepcopy__(self, memo: object) -> _Held:
        return self

    def __reduce__(self) -> tuple[type[_Held], tuple[BasePydanticVectorStore]]:
        # LlamaIndex pickles a store without its open client, and what arrives fails at its first query.
        copied = self.store.model_copy()  # pickling may take parts out of the object
        if set(copied.__getstate__().get("__pydantic_private__") or ()) != set(copied.__pydantic_private__ or ()):
            raise CopyError(
                f"a retriever over {type(self.store).__name__} cannot be pickled: the store holds an open client. "
                "Cure: pickle what makes the store, and make store and retriever where it arrives."
            )
        return (_Held, (self.store,))


class ContextualVectorRetriever(BaseRetriever):
    """Vector retrieval from a LlamaIndex vector store.

    From Chroma the score is the cosine similarity, -1 to 1, whatever the collection's distance function; from other
    stores it is theirs. Ties break by node id. No call blocks the event loop.

    Args:
        vector_store: A store that holds text, or a ``VectorStoreIndex`` on one (which brings its embedding, too).
        embed_model: Embeds queries; default that of the index, else ``Settings.embed_model`` when first used.
        similarity_top_k: Most nodes a query returns.
        filters: Nodes that may be returned. Chroma takes what it can be trusted with; the rest is resolved here.
        companion: A BM25 retriever over the same nodes. It resolves filters (Chroma needs 9 ms for what it does in
            well under one) and hands out nodes, so that Chroma is asked for ids and distances only.

    Raises:
        SettingError: A setting cannot work.
    """

    def __init__(
        self,
        vector_store: Any,
        embed_model: BaseEmbedding | None = None,
        *,
        similarity_top_k: int = 10,
        filters: MetadataFilters | None = None,
        companion: ContextualBM25Retriever | None = None,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(callback_manager=callback_manager, object_map=object_map, objects=objects, verbose=verbose)
        check_filters(filters)
        if not isinstance(vector_store, BasePydanticVectorStore):
            embed_model = embed_model or getattr(vector_store, "_embed_model", None)
            vector_store = getattr(vector_store, "vector_store", vector_store)
        if not isinstance(vector_store, BasePydanticVectorStore) or not vector_store.stores_text:
            raise SettingError(
                f"vector_store={type(vector_store).__name__} holds no text. "
                "Cure: a store that does (Chroma, Qdrant, ...), or index.as_retriever() as the arm."
            )
        self.similarity_top_k = whole("similarity_top_k", similarity_top_k)
        self.filters = filters
        self.companion = companion
        self._held = _Held(vector_store)
        self._embed_model = embed_model

    @property
    def _store(self) -> BasePydanticVectorStore:
        return self._held.store

    @property
    def embed_model(self) -> BaseEmbedding:
        """The query embedding; ``Settings.embed_model`` is resolved only if none was given."""
        return self._embed_model or Settings.embed_model

    def with_filters(self, filters: MetadataFilters | None) -> ContextualVectorRetriever:
        """A view that returns only what the filters admit, beside this one's own."""
        view = copy.copy(self)
        view.filters = both(self.filters, filters)
        return view

    def candidates(self, query: QueryBundle, top_k: int) -> list[Candidate]:
        """Ids and scores of the best ``top_k``, best first; [] for an empty query."""
        if not _asks(query):
            return []
        embedding = query.embedding
        if embedding is None:
            embedding = self.embed_model.get_agg_embedding_from_queries(query.embedding_strs)
        return self._nearest(embedding, query, top_k)

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """New node objects for those of the ids that exist."""
        wanted = list(node_ids)
        found = self.companion.nodes(wanted) if self.companion else {}
        missing = [node_id for node_id in wanted if node_id not in found]
        if missing and isinstance(self._store, ChromaVectorStore):
            found |= {node.node_id: node for node in nodes_of(self._store.client, missing)}
        elif missing:
            found |= {node.node_id: node for node in self._store.get_nodes(missing)}
        return found

    def _nearest(self, embedding: list[float], query: QueryBundle, top_k: int) -> list[Candidate]:
        if isinstance(self._store, ChromaVectorStore):
            collection = self._store.client
            where, ids = self._restriction(collection)
            pairs = nearest(collection, embedding, top_k, where=where, ids=ids)
            return [Candidate(node_id, score) for node_id, score in pairs]
        asked = VectorStoreQuery(
            query_embedding=embedding, similarity_top_k=top_k, query_str=query.query_str, filters=self.filters
        )
        found = self._store.query(asked)
        nodes = list(found.nodes or [])
        scores: list[float | None] = [*found.similarities] if found.similarities else [None] * len(nodes)
        return [Candidate(node.node_id, score, node) for node, score in zip(nodes, scores, strict=True)]

    def _restriction(self, collection: Any) -> tuple[dict[str, Any] | None, list[str] | None]:
        """The filters as Chroma's where, or as ids."""
        if self.filters is None:
            return None, None
        if self.companion is not None:
            return None, self.companion.selected_ids(self.filters)
        where = to_where(self.filters)
        return (where, None) if where else (None, select_ids(collection, self.filters))

    def _scored(self, candidates: list[Candidate]) -> list[NodeWithScore]:
        missing = [one.node_id for one in candidates if one.node is None]
        loaded = self.nodes(missing) if missing else {}
        found = [(one.node or loaded.get(one.node_id), one.score) for one in candidates]
        return [NodeWithScore(node=node, score=score) for node, score in found if node is not None]

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._scored(self.candidates(query_bundle, self.similarity_top_k))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        # The synchronous embedding in a thread: many models' asynchronous one computes on the event loop.
        return await asyncio.to_thread(self._retrieve, query_bundle)


def _asks(query: QueryBundle) -> bool:
    return query.embedding is not None or any(text.strip() for text in query.embedding_strs)
