"""The views of an index that queries read: a database snapshot, and the arrays derived from it."""

from __future__ import annotations

import contextlib
import contextvars
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
from llama_index.core.postprocessor.types import BaseNodePostprocessor

from llama_index_contextual.app.settings.embeddings import NoEmbedding
from llama_index_contextual.postprocessors.recency import RecencyPostprocessor
from llama_index_contextual.postprocessors.rerank import RerankWithContext
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.fusion import POOL
from llama_index_contextual.retrievers.node_index import KeywordView, lexical_text
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever
from llama_index_contextual.utils.errors import CopyError, SettingError, StorageError, amount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores import MetadataFilters

    from llama_index_contextual.app.index.caches import Caches
    from llama_index_contextual.app.index.database import Rows, Snapshot
    from llama_index_contextual.app.index.settings import IndexSettings
    from llama_index_contextual.retrievers.base import Pool
    from llama_index_contextual.retrievers.names import NameIndex

_T = TypeVar("_T")


class IndexView(KeywordView):
    """An index at one moment, as retrievers read it."""

    def __init__(self, snapshot: Snapshot, caches: Caches) -> None:
        self.snapshot = snapshot
        self._caches = caches
        self._moment = self._caches.moment_of(snapshot)
        self.bm25 = self._moment.bm25
        self.infos = self._moment.infos
        self.cached_values = self._moment.cached_values
        self._row_of: dict[str, int] = {}  # by node id, for the ids that were needed

    # Nodes and filters

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects by id, without unknown ids."""
        rows = sorted(set(self.rows_of(node_ids).values()))
        return {node.node_id: node for node in self.snapshot.nodes(rows)}

    def column(self, key: str) -> Sequence[Any]:
        """Return the values of a metadata key, one for each node."""
        return self.cached(f"metadata {key}", lambda: self._column(key))

    def _column(self, key: str) -> list[Any]:
        def read(rows: Rows) -> list[Any]:
            return self.snapshot.values(key, rows)

        return self._caches.values(key, self.rows.tolist(), read)

    @property
    def names(self) -> NameIndex:
        """Return the names of the documents, by the numbers of their first nodes."""
        return self._moment.names

    def rows_beside(self, row: int) -> list[int]:
        """Return the row numbers of all nodes of the document that a node is from."""
        return self.snapshot.rows_beside(row)

    def texts(self, rows: Rows) -> list[str]:
        """Return the texts of nodes, as the keyword retriever reads them."""
        ordered = np.sort(rows)
        texts = map(lexical_text, self.snapshot.nodes(ordered))
        text_of = dict(zip(ordered.tolist(), texts, strict=True))
        return [text_of[row] for row in rows.tolist()]

    # Numbers and ids

    def ids_of(self, rows: Sequence[int]) -> list[str]:
        """Return the ids of nodes by row number."""
        ids = self.infos.node_ids(rows)
        self._row_of.update(zip(ids, rows, strict=True))
        return ids

    def rows_of(self, node_ids: Iterable[str]) -> dict[str, int]:
        """Return the row numbers of nodes by id, without unknown ids."""
        ids = list(node_ids)
        missing = [node_id for node_id in ids if node_id not in self._row_of]
        if missing:
            self._row_of.update(self.snapshot.rows_of(missing))
        return {node_id: self._row_of[node_id] for node_id in ids if node_id in self._row_of}

    # Vectors

    def dense_queries(
        self,
        embeddings: Sequence[Sequence[float]],
        top_k: int,
        filters: MetadataFilters | None = None,
    ) -> list[Pool]:
        """Return the ``top_k`` nodes nearest to each vector, best first, ties by id.

        Scores are cosines, -1 to 1.

        Raises:
            StorageError: The index has been rebuilt with another embedding.
        """
        model = self.snapshot.state.model
        if model != self._caches.model:
            raise StorageError(
                f"the index was made with the embedding {model}, not with {self._caches.model}. "
                "Vectors of different models cannot be compared. Open the index with the embedding "
                "that made it."
            )
        if not embeddings:
            return []
        among = None if filters is None else self.matching_rows(filters)
        hits = self._moment.vectors.nearest(embeddings, top_k, among)
        return [self.pool(hits_of_query, top_k) for hits_of_query in hits]


class IndexReader:
    """Opens views of the newest state of an index.

    Args:
        settings: The settings of the index.
    """

    def __init__(self, settings: IndexSettings) -> None:
        self.settings = settings
        self._current = contextvars.ContextVar[IndexView | None]("view of a query", default=None)

    def __deepcopy__(self, memo: object) -> IndexReader:
        return self  # a copy of a retriever follows the same index

    def __reduce__(self) -> NoReturn:
        raise CopyError(
            f"the open index in {self.settings.database.path} and its retrievers cannot be "
            "pickled. Pickle the path of the folder, and open the index in the other process."
        )

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[IndexView]:
        """Open a view of the newest state. Nested calls get the same view, also in threads.

        Raises:
            StorageError: The index does not exist or cannot be read.
        """
        view = self._current.get()
        if view is not None and not view.snapshot.has_ended:  # a thread may outlive its query
            yield view
            return
        with self.settings.database.reading() as snapshot:
            view = IndexView(snapshot, self.settings.caches)
            token = self._current.set(view)
            try:
                yield view
            finally:
                self._current.reset(token)

    def ask(self, work: Callable[[IndexView], _T]) -> _T:
        """Return the result of ``work`` for a view of the newest state.

        Raises:
            StorageError: The index cannot be read.
        """
        with self.snapshot() as view:
            return work(view)

    def retrievers(
        self, filters: MetadataFilters | None
    ) -> list[ContextualVectorRetriever | ContextualBM25Retriever]:
        """Return the vector retriever, if there is an embedding, and the keyword retriever."""
        keywords = ContextualBM25Retriever.over(self, similarity_top_k=POOL, filters=filters)
        embedding = self.settings.embedding
        if isinstance(embedding, NoEmbedding):
            return [keywords]
        vectors = ContextualVectorRetriever.over(
            self, embedding, similarity_top_k=POOL, filters=filters
        )
        return [vectors, keywords]

    def postprocessors(
        self, recency: bool | float | None, rerank: BaseNodePostprocessor | None
    ) -> list[BaseNodePostprocessor]:
        """Return the postprocessors of a retriever; see :meth:`ContextualIndex.as_retriever`."""
        configuration = self.settings.configuration
        steps: list[BaseNodePostprocessor] = []
        half_life = configuration["retrieval.recency"] if recency is None else recency
        if half_life is True:
            half_life = configuration["retrieval.half_life_days"]
        if half_life is not False:
            days = amount("recency", half_life)
            steps.append(RecencyPostprocessor(half_life_days=days))
        if rerank is not None:
            steps.append(_with_contexts(rerank))
        return steps


def _with_contexts(rerank: BaseNodePostprocessor) -> BaseNodePostprocessor:
    """Return a reranker that sees contexts. Some of LlamaIndex's read only the text of a node."""
    if not isinstance(rerank, BaseNodePostprocessor):
        raise SettingError(f"`rerank` must be a LlamaIndex node postprocessor (got {rerank!r}).")
    from llama_index.core.postprocessor import LLMRerank, StructuredLLMRerank  # slow
    from llama_index.core.postprocessor.rankGPT_rerank import RankGPTRerank

    hides_contexts = isinstance(rerank, LLMRerank | StructuredLLMRerank | RankGPTRerank)
    return RerankWithContext(rerank) if hides_contexts else rerank
