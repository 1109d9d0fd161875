"""An index as LlamaIndex's own parts expect a vector store: asked by them, and written by a refresh alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NoReturn

from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from pydantic import PrivateAttr

from llama_index_contextual.app.settings.embeddings import NoEmbedding
from llama_index_contextual.errors import SettingError
from llama_index_contextual.keyword import REF_DOC_ID, Candidate, both
from llama_index_contextual.retrieval import KEYWORD_WEIGHT, POOL, RRF_K, Mode, Ranking, fuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.app.index.view import Reader, View

_WORDS: Final = (VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.TEXT_SEARCH)
_BOTH: Final = (VectorStoreQueryMode.HYBRID, VectorStoreQueryMode.SEMANTIC_HYBRID)
_MODES: Final = (VectorStoreQueryMode.DEFAULT, *_WORDS, *_BOTH)


class ContextualVectorStore(BasePydanticVectorStore):
    """An index as a LlamaIndex vector store, whatever keeps its vectors. :attr:`ContextualIndex.vector_store` makes it.

    ::

        stock = VectorStoreIndex.from_vector_store(index.vector_store, embed_model=index.settings.embedding)
        stock.as_retriever(vector_store_query_mode="hybrid", alpha=0.5).retrieve("When does the freeze start?")

    Modes: ``"default"`` gives cosines, -1 to 1. ``"sparse"`` and ``"text_search"`` give BM25 scores of the keyword arm.
    ``"hybrid"`` and ``"semantic_hybrid"`` fuse both by rank, and the best has 1; ``alpha`` is the share of the vectors,
    0 to 1, default 0.4. Filters mean what they mean for :meth:`ContextualIndex.as_retriever`, which does more: learned
    fusion, operators, recency, surroundings.

    Nodes come in by :meth:`ContextualIndex.refresh`, which gives them contexts and vectors, so :meth:`add` is refused.
    A deleted file that is still in the folder comes back with the next refresh.
    """

    stores_text: bool = True
    is_embedding_query: bool = True
    _index: Any = PrivateAttr()  # a ContextualIndex, which imports this file

    def __init__(self, index: Any) -> None:
        super().__init__(stores_text=True)
        self._index = index

    def __reduce__(self) -> Any:
        return self._index.__reduce__()

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which LlamaIndex calls it."""
        return "ContextualVectorStore"

    @property
    def client(self) -> Any:
        """Return the index."""
        return self._index

    @property
    def _reader(self) -> Reader:
        reader: Reader = self._index._storage.reader  # noqa: SLF001  our own
        return reader

    def query(self, query: VectorStoreQuery, **_: Any) -> VectorStoreQueryResult:
        """Return the best nodes, best first, ties by node id.

        Args:
            query: Wants ``similarity_top_k`` nodes; in a hybrid mode ``hybrid_top_k``, where keywords propose
                ``sparse_top_k``. An empty list of ``node_ids`` means all, as ``VectorStoreIndex`` asks.

        Raises:
            SettingError: Another mode, or what the mode needs is not there.
            FingerprintError: The vector is of another embedding.
        """
        mode: str = getattr(query.mode, "value", query.mode)
        by_vector, by_words = mode not in _WORDS, mode != VectorStoreQueryMode.DEFAULT
        if mode not in _MODES:
            raise SettingError(f"mode={mode!r} is not known. Cure: {', '.join(one.value for one in _MODES)}.")
        if by_vector and (isinstance(self._index.settings.embedding, NoEmbedding) or query.query_embedding is None):
            raise SettingError(f"mode={mode!r}: there are no vectors. Cure: query_embedding=, or mode='sparse'.")
        if by_words and query.query_str is None:
            raise SettingError(f"mode={mode!r}: there are no words. Cure: query_str=, or mode='default'.")
        arm = _fused if by_vector and by_words else _by_words if by_words else _by_vector

        def work(view: View) -> VectorStoreQueryResult:
            hits = arm(view, query, query.similarity_top_k)
            nodes = view.nodes([hit.node_id for hit in hits])
            hits = [hit for hit in hits if hit.node_id in nodes]
            return VectorStoreQueryResult(
                nodes=[nodes[hit.node_id] for hit in hits],
                similarities=[float(hit.score or 0.0) for hit in hits],
                ids=[hit.node_id for hit in hits],
            )

        return self._reader.ask(work)

    async def aquery(self, query: VectorStoreQuery, **_: Any) -> VectorStoreQueryResult:
        """Do the same as :meth:`query`, without blocking the event loop."""
        return await asyncio.to_thread(self.query, query)

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Return nodes, new objects without vectors: of these ids, in their order, and those that the filters admit."""

        def work(view: View) -> list[BaseNode]:
            wanted = view.selected_ids(filters) if node_ids is None else list(dict.fromkeys(node_ids))
            if node_ids is not None and filters is not None:
                admitted = set(view.selected_ids(filters))
                wanted = [one for one in wanted if one in admitted]
            nodes = view.nodes(wanted)
            return [nodes[one] for one in wanted if one in nodes]

        return self._reader.ask(work)

    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Do the same as :meth:`get_nodes`, without blocking the event loop."""
        return await asyncio.to_thread(self.get_nodes, node_ids, filters)

    def add(self, nodes: Sequence[BaseNode], **_: Any) -> list[str]:
        """Refuse nodes: they would have no contexts, and vectors of whatever embedding made them.

        Raises:
            SettingError: There are some.
        """
        if not nodes:  # VectorStoreIndex adds none when it is made
            return []
        raise SettingError(
            f"{len(nodes)} nodes cannot be added to an index of {self._index.folder}, which cuts documents, and gives "
            "chunks contexts and vectors itself. Cure: index.refresh([Document(text=…, id_=…)]), or write a file into "
            "the folder and index.refresh()."
        )

    def delete(self, ref_doc_id: str, **_: Any) -> None:
        """Take a document out of the index, as :meth:`ContextualIndex.delete`; an unknown one is ignored.

        Raises:
            SettingError: It is a part of a document, such as a page.
        """
        if ref_doc_id in self._index.documents():
            self._index.delete(ref_doc_id)
            return
        wanted = MetadataFilter(key=REF_DOC_ID, value=ref_doc_id)
        self.delete_nodes(filters=MetadataFilters(filters=[wanted]))

    def delete_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **_: Any) -> None:
        """Take the documents of these nodes out of the index.

        Raises:
            SettingError: Only some nodes of a document are among them, or neither ids nor filters are given.
        """
        if node_ids is None and filters is None:
            self.clear()
        going = [node.node_id for node in self.get_nodes(node_ids, filters)]
        with self._reader.reading() as view:
            counts = Counter(key for _, _, key in view.snapshot.owners(going))
            documents = view.snapshot.documents(counts)
        for key, count in counts.items():
            if count < (whole := documents[key].nodes):
                raise SettingError(
                    f"only {count} of {whole} nodes of {key!r} are to be deleted, and an index holds documents "
                    f"whole. Cure: delete({key!r}), or change the document and index.refresh()."
                )
        for key in counts:
            self._index.delete(key)

    async def adelete(self, ref_doc_id: str, **_: Any) -> None:
        """Do the same as :meth:`delete`, without blocking the event loop."""
        await asyncio.to_thread(self.delete, ref_doc_id)

    async def adelete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **_: Any
    ) -> None:
        """Do the same as :meth:`delete_nodes`, without blocking the event loop."""
        await asyncio.to_thread(self.delete_nodes, node_ids, filters)

    def clear(self) -> NoReturn:
        """Refuse to empty an index: the next refresh would make all of it again.

        Raises:
            SettingError: Always.
        """
        raise SettingError(
            f"the index of {self._index.folder} is not emptied from here. Cure: delete(ref_doc_id) for each document, "
            f"or remove {self._index.storage}."
        )


def _by_vector(view: View, query: VectorStoreQuery, top_k: int) -> list[Candidate]:
    return view.dense_queries([query.query_embedding or []], top_k, _filters(query), query.node_ids or None)[0]


def _by_words(view: View, query: VectorStoreQuery, top_k: int) -> list[Candidate]:
    groups = view.analyzer.query_groups(query.query_str or "")
    return view.keyword_query(groups, top_k, _filters(query), query.node_ids or None)


def _fused(view: View, query: VectorStoreQuery, top_k: int) -> list[Candidate]:
    alpha = 1 - KEYWORD_WEIGHT if query.alpha is None else query.alpha
    if not 0 <= alpha <= 1:
        raise SettingError(f"alpha={alpha!r} is no share. Cure: 0 (keywords alone) to 1 (vectors alone).")
    top_k = query.hybrid_top_k or top_k
    pool = max(POOL, top_k)
    nearest, words = _by_vector(view, query, pool), _by_words(view, query, query.sparse_top_k or pool)
    rankings = [Ranking("vector", 0, alpha, nearest), Ranking("keyword", 0, 1 - alpha, words)]
    fused = fuse(rankings, mode=Mode.RECIPROCAL_RANK, k=RRF_K, pool=pool)
    return [Candidate(one.node_id, one.score) for one in fused[:top_k]]


def _filters(query: VectorStoreQuery) -> MetadataFilters | None:
    if query.doc_ids is None:
        return query.filters
    documents = MetadataFilter(key=REF_DOC_ID, operator=FilterOperator.IN, value=list(query.doc_ids))
    return both(query.filters, MetadataFilters(filters=[documents]))
