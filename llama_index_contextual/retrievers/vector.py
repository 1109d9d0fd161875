"""The vector arm: cosine scores, every filter, and no blocked event loop."""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any, cast

from llama_index.core import Settings
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import BaseNode, IndexNode, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters, VectorStoreQuery
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual.checks import whole
from llama_index_contextual.errors import CopyError, SettingError
from llama_index_contextual.keyword.filters import admits, both, check_filters
from llama_index_contextual.retrievers.chroma import ChromaDense, stored_nodes
from llama_index_contextual.retrievers.search import Candidate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.callbacks import CallbackManager

    from llama_index_contextual.retrievers.search import DenseSearch, NodeSearch, StoreReader, T


class _Held:
    """Hold a store that copies of a retriever share, because a store cannot be copied."""

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


class _PlainStore:
    """Search any LlamaIndex vector store that holds text; filters are the store's own."""

    def __init__(self, store: BasePydanticVectorStore) -> None:
        self._store = store

    def dense_query(
        self, embedding: Sequence[float], top_k: int, filters: MetadataFilters | None = None
    ) -> list[Candidate]:
        """Return the store's answer, with its scores."""
        query = VectorStoreQuery(query_embedding=list(embedding), similarity_top_k=top_k, filters=filters)
        found = self._store.query(query)
        nodes = list(found.nodes or [])
        scores: list[float | None] = [*found.similarities] if found.similarities else [None] * len(nodes)
        return [Candidate(node.node_id, score, node) for node, score in zip(nodes, scores, strict=True)]

    def selected_ids(self, filters: MetadataFilters | None = None) -> list[str]:
        """Return the ids of all nodes that the filters admit."""
        return [node.node_id for node in stored_nodes(self._store) if admits(filters, node.metadata)]

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects for those of the ids that exist."""
        wanted = list(node_ids)
        return {node.node_id: node for node in self._store.get_nodes(wanted)} if wanted else {}


class ContextualVectorRetriever(BaseRetriever):
    """Retrieve by vector from a LlamaIndex vector store.

    From Chroma the score is the cosine similarity, -1 to 1, whatever the collection's distance function; from other
    stores it is theirs. Ties break by node id. No call blocks the event loop.

    Args:
        vector_store: A store that holds text, or a ``VectorStoreIndex`` on one (which brings its embedding, too).
        embed_model: Embeds queries; default that of the index, else ``Settings.embed_model`` when first used.
        similarity_top_k: Most nodes a query returns.
        filters: Nodes that may be returned. Chroma evaluates what it evaluates as we do; the rest is evaluated here.
        companion: A BM25 retriever over the same nodes. It evaluates filters faster than Chroma, and gives nodes, so
            that Chroma is asked for ids and distances only.

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
        companion: NodeSearch | None = None,
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
        self._held: _Held | None = _Held(vector_store)
        self._reader: StoreReader[DenseSearch] | None = None
        self._embed_model = embed_model

    @classmethod
    def over(
        cls,
        reader: StoreReader[DenseSearch],
        embed_model: BaseEmbedding | None = None,
        *,
        similarity_top_k: int = 10,
        filters: MetadataFilters | None = None,
    ) -> ContextualVectorRetriever:
        """Return a retriever over a store that something else changes.

        Args:
            reader: Gives the newest state of the store.
            embed_model: Embeds queries; default ``Settings.embed_model`` when first used.
            similarity_top_k: Most nodes a query returns.
            filters: Nodes that may be returned.
        """
        check_filters(filters)
        made = cls.__new__(cls)
        BaseRetriever.__init__(made)
        settings = {"similarity_top_k": whole("similarity_top_k", similarity_top_k), "filters": filters}
        made.__dict__.update(settings, companion=None, _held=None, _reader=reader, _embed_model=embed_model)
        return made

    @property
    def filters_words(self) -> bool:
        """Return whether filters are evaluated by a keyword index, and so may be those of a query's operators."""
        return self._reader is not None or self.companion is not None

    @property
    def gives_local_cosines(self) -> bool:
        """Return whether scores are cosines of all-MiniLM-L6-v2, whoever runs that model.

        It is the local embedding's model, and what other cosines mean for relevance is not known.
        """
        cosines = self._reader is not None or _is_chroma(cast("_Held", self._held).store)
        model = self._embed_model or Settings._embed_model  # noqa: SLF001  the property would make one
        return cosines and "all-minilm" in str(getattr(model, "model_name", "")).lower()

    @property
    def embed_model(self) -> BaseEmbedding:
        """Embeds queries; ``Settings.embed_model`` is resolved only if none was given."""
        return self._embed_model or Settings.embed_model

    def with_filters(self, filters: MetadataFilters | None) -> ContextualVectorRetriever:
        """Return a view that returns only what these filters and this view's own admit."""
        view = copy.copy(self)
        view.filters = both(self.filters, filters)
        return view

    def candidates(self, query: QueryBundle, top_k: int) -> list[Candidate]:
        """Return ids and scores of the best ``top_k``, best first; [] for an empty query."""
        if not _asks(query):
            return []
        embedding = query.embedding
        if embedding is None:
            embedding = self.embed_model.get_agg_embedding_from_queries(query.embedding_strs)
        return self._ask(lambda store: store.dense_query(embedding, top_k, self.filters))

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects for those of the ids that exist."""
        wanted = list(node_ids)
        return self._ask(lambda store: store.nodes(wanted))

    def _ask(self, work: Callable[[DenseSearch], T]) -> T:
        if self._reader is not None:
            return self._reader.ask(work)
        store = cast("_Held", self._held).store
        return work(ChromaDense(store.client, self.companion) if _is_chroma(store) else _PlainStore(store))

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


def _is_chroma(store: BasePydanticVectorStore) -> bool:
    return isinstance(store, ChromaVectorStore)


def _asks(query: QueryBundle) -> bool:
    return query.embedding is not None or any(text.strip() for text in query.embedding_strs)
