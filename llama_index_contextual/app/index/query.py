"""What a question reads: one moment of the database, and the arrays that are derived from it."""

from __future__ import annotations

import contextlib
import contextvars
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import numpy as np
from llama_index.core.postprocessor.types import BaseNodePostprocessor

from llama_index_contextual.app.settings.embeddings import NoEmbedding
from llama_index_contextual.app.settings.models import UNNAMED
from llama_index_contextual.postprocessors.recency import RecencyPostprocessor
from llama_index_contextual.postprocessors.rerank import RerankWithContext
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.fusion import POOL
from llama_index_contextual.retrievers.node_index import KeywordView, lexical_text
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever
from llama_index_contextual.utils.errors import CopyError, SettingError, StorageError, amount
from llama_index_contextual.utils.metadata import COLLECTION, PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores import MetadataFilters

    from llama_index_contextual.app.index.database import Rows, Snapshot
    from llama_index_contextual.app.index.settings import IndexSettings
    from llama_index_contextual.retrievers.bm25_index import Candidate
    from llama_index_contextual.retrievers.names import NameIndex

_T = TypeVar("_T")
_ID: Final = "\0id"  # keys that no metadata has


class IndexView(KeywordView):
    """One moment of an index, as retrievers read it."""

    def __init__(self, snapshot: Snapshot, reader: IndexReader) -> None:
        self.snapshot, self._reader, self._caches = snapshot, reader, reader.settings.caches
        self._moment = self._caches.at(snapshot)
        self.engine, self.answers = self._moment.words, self._moment.answers
        self.infos = self._moment.infos
        self._row_of: dict[str, int] = {}  # of nodes that were found

    # Nodes and filters

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """New node objects for those of the ids that exist."""
        return {
            one.node_id: one
            for one in self.snapshot.nodes(sorted({*self.rows_of(node_ids).values()}))
        }

    def column(self, key: str) -> Sequence[Any]:
        """Values of a metadata key, one for each node."""
        return self.answer(
            f"metadata {key}", lambda: self._caches.values(key, self.rows.tolist(), self._values)
        )

    def _values(self, key: str, rows: Rows) -> list[Any]:
        if key != COLLECTION or "" in self.snapshot.state.folders:
            return self.snapshot.values(key, rows)
        return [str(path).partition("/")[0] for path in self.snapshot.values(PATH, rows)]

    @property
    def names(self) -> NameIndex:
        """Names of the documents, by the numbers of their first nodes."""
        return self._moment.names

    def rows_beside(self, row: int) -> list[int]:
        """Numbers of the nodes of a node's document."""
        return self.snapshot.rows_beside(row)

    def texts(self, rows: Rows) -> list[str]:
        """The texts of nodes, as the keyword arm reads them."""
        ordered = np.sort(rows)
        texts = dict(
            zip(ordered.tolist(), map(lexical_text, self.snapshot.nodes(ordered)), strict=True)
        )
        return [texts[row] for row in rows.tolist()]

    # Numbers and ids

    def ids_of(self, rows: Sequence[int]) -> list[str]:
        """The ids of nodes by number."""
        ids: list[str] = self._caches.values(
            _ID, rows, lambda _, numbers: self.snapshot.column("node_id", numbers)
        )
        self._row_of.update(zip(ids, rows, strict=True))
        return ids

    def rows_of(self, node_ids: Iterable[str]) -> dict[str, int]:
        """The numbers of nodes by id, without unknown ids."""
        wanted = list(node_ids)
        if missing := [node_id for node_id in wanted if node_id not in self._row_of]:
            self._row_of.update(self.snapshot.rows_of(missing))
        return {node_id: self._row_of[node_id] for node_id in wanted if node_id in self._row_of}

    # Vectors

    def dense_queries(
        self,
        embeddings: Sequence[Sequence[float]],
        top_k: int,
        filters: MetadataFilters | None = None,
    ) -> list[list[Candidate]]:
        """The ``top_k`` nodes nearest to each vector, best first, ties by id; scores are cosines, -1 to 1.

        Raises:
            FingerprintError: The embedding is another one of the same name.
            StorageError: The index was made again since with another embedding; words find in it as before.
        """
        model, ours = self.snapshot.state.model, self._caches.model
        if model != ours:
            raise StorageError(
                f"the index was made with the embedding {model}, not with {ours}: their vectors do not compare. "
                "Cure: open it again, with the former."
            )
        self._reader.check_identity(self.snapshot)
        among = None if filters is None else self.admitted(filters)
        hits = self._moment.vectors.nearest(embeddings, top_k, among) if embeddings else []
        return [self.best(rows, scores, top_k) for rows, scores in hits]


class IndexReader:
    """Opens views of an index, always of what was written last.

    Args:
        settings: Of the index.
    """

    def __init__(self, settings: IndexSettings) -> None:
        self.settings = settings
        self._is_checked = False
        self._current = contextvars.ContextVar[IndexView | None]("view of a question", default=None)

    def __deepcopy__(self, memo: object) -> IndexReader:
        return self  # a copy of a retriever follows the same index

    def __reduce__(self) -> NoReturn:
        raise CopyError(
            f"the index in {self.settings.database.path} is open in this process and cannot be pickled, nor its "
            "retrievers. Cure: pickle the folder's path, and ContextualIndex.open() it where it arrives."
        )

    def check_identity(self, snapshot: Snapshot) -> None:
        """Refuse, once, an embedding without a name that is another one than made the index."""
        if self.settings.embedding.model_name == UNNAMED and not self._is_checked:
            from llama_index_contextual.app.index.embedder import check_identity

            check_identity(snapshot, self.settings.embedding)
            self._is_checked = True

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[IndexView]:
        """One view of the newest moment: all that is read in this context, by its threads too, sees the same.

        Raises:
            StorageError: There is no index, or it cannot be read.
        """
        view = self._current.get()
        if view is not None and not view.snapshot.has_ended:  # else a thread outlived its question
            yield view
            return
        with self.settings.database.reading() as snapshot:
            view = IndexView(snapshot, self)
            token = self._current.set(view)
            try:
                yield view
            finally:
                self._current.reset(token)

    def ask(self, work: Callable[[IndexView], _T]) -> _T:
        """Result of ``work``, which only reads, for a view.

        Raises:
            StorageError: The index cannot be read.
        """
        with self.snapshot() as view:
            return work(view)

    def retrievers(
        self, filters: MetadataFilters | None
    ) -> list[ContextualVectorRetriever | ContextualBM25Retriever]:
        """Return the vector and the keyword retriever with the same filters; without an embedding the latter alone."""
        words = ContextualBM25Retriever.over(self, similarity_top_k=POOL, filters=filters)
        embedding = self.settings.embedding
        if isinstance(embedding, NoEmbedding):
            return [words]
        return [
            ContextualVectorRetriever.over(self, embedding, similarity_top_k=POOL, filters=filters),
            words,
        ]

    def postprocessors(
        self, recency: bool | float | None, rerank: BaseNodePostprocessor | None
    ) -> list[BaseNodePostprocessor]:
        """The postprocessors of a retriever, in the order of their work; see :meth:`ContextualIndex.as_retriever`."""
        defaults = self.settings.configuration
        steps: list[BaseNodePostprocessor] = []
        half_life = defaults["retrieval.recency"] if recency is None else recency
        if half_life is not False:
            days = (
                defaults["retrieval.half_life_days"]
                if half_life is True
                else amount("recency", half_life)
            )
            steps.append(RecencyPostprocessor(half_life_days=days))
        if rerank is not None:
            if not isinstance(rerank, BaseNodePostprocessor):
                raise SettingError(
                    f"`rerank` must be a LlamaIndex node postprocessor (got {rerank!r})."
                )
            from llama_index.core.postprocessor import (
                LLMRerank,
                StructuredLLMRerank,
            )  # with their prompts
            from llama_index.core.postprocessor.rankGPT_rerank import RankGPTRerank

            hides_contexts = isinstance(rerank, LLMRerank | StructuredLLMRerank | RankGPTRerank)
            steps.append(RerankWithContext(rerank) if hides_contexts else rerank)
        return steps
