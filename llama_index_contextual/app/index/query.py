"""What a question sees: one moment of the database, and the engines that are derived from it."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from contextlib import ExitStack
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from llama_index_contextual.app.index.embedder import check_vectors
from llama_index_contextual.app.settings.embeddings import NoEmbedding, model_id
from llama_index_contextual.app.store.cache_files import Caches, RowCache
from llama_index_contextual.app.store.nodes import to_node
from llama_index_contextual.errors import CopyError, FingerprintError
from llama_index_contextual.keyword import Candidate, Column, admitted, holding_words, lexical_text
from llama_index_contextual.metadata import COLLECTION, PATH
from llama_index_contextual.retrieval import POOL, ContextualBM25Retriever, ContextualVectorRetriever
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores import MetadataFilters

    from llama_index_contextual.app.index.settings import IndexSettings
    from llama_index_contextual.app.store.schema import Rows
    from llama_index_contextual.app.store.snapshot import Snapshot
    from llama_index_contextual.keyword import Analyzer, Bm25Index, Group, Nearness, TermScores

_T = TypeVar("_T")


class IndexView:
    """One moment of an index, as retrievers ask it; see :class:`~llama_index_contextual.retrieval.stores.SearchStore`.

    Args:
        snapshot: The database.
        caches: Of this process.
        name: Of the database.
        leave: Ends the transaction.
        check: Called before vectors are compared; it refuses another model's.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        caches: Caches,
        name: str,
        leave: Callable[[], object],
        check: Callable[[Snapshot], object] = lambda _: None,
    ) -> None:
        self.snapshot = snapshot
        self._check = check
        self._name = name
        self._caches = caches
        self._leave = leave
        self._users, self._retired = 0, False
        self._guard = threading.Lock()

    def enter(self) -> bool:
        """Keep the transaction open; return False where it has ended, as for a thread that outlived its question."""
        with self._guard:
            if self._retired:
                return False
            self._users += 1
            return True

    def exit(self) -> None:
        """End the transaction once nobody uses it any more."""
        with self._guard:
            self._users -= 1
            self._retired = not self._users
        if self._retired:
            self._leave()

    # Nodes and filters

    @cached_property
    def _known(self) -> RowCache:
        return self._caches.rows(self.snapshot)

    def count(self, filters: MetadataFilters | None = None) -> int:
        """Return the number of nodes that filters admit."""
        return len(self._known.rows if filters is None else self._admitted(filters))

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects for those of the ids that exist."""
        rows = self._rows_of(list(node_ids))
        known = sorted({row for row in rows if row})
        nodes = {one.node_id: to_node(one) for one in self.snapshot.nodes(np.array(known, dtype=np.int64))}
        if len(nodes) < len(known):
            self.snapshot.refuse("nodes are lost")
        return nodes

    def selected_ids(self, filters: MetadataFilters | None = None) -> list[str]:
        """Return the ids of the nodes that filters admit, in the order in which they were written."""
        rows = self._known.rows if filters is None else self._admitted(filters)
        return [node_id for node_id in self._ids_of(rows.tolist()) if node_id is not None]

    def values(self, key: str, node_ids: Iterable[str]) -> dict[str, Any]:
        """Return the nodes' values of a metadata key; None where one has none."""
        wanted = list(node_ids)
        rows = {node_id: row for node_id, row in zip(wanted, self._rows_of(wanted), strict=True) if row}
        return dict(zip(rows, self._known.values(key, list(rows.values()), self._values), strict=True))

    def records(self, node_ids: Sequence[str], make: Callable[[dict[str, Any], str], _T]) -> Sequence[_T | None]:
        """Result of ``make(metadata, text)`` for each node, made once for each; None for unknown ids."""

        def read(rows: Rows) -> dict[int, _T]:
            return {one.row: make(one.metadata, one.text) for one in self.snapshot.nodes(rows)}

        return self._known.records(self._rows_of(node_ids), read)

    def _column(self, key: str) -> Column | None:
        column = self._known.column(key, self._values)
        return column if column.values else None

    def _values(self, key: str, rows: Rows) -> list[Any]:
        if key != COLLECTION or "collections" not in self.snapshot.state.choices:
            return self.snapshot.column(key, rows)
        return [str(path).partition("/")[0] for path in self.snapshot.column(PATH, rows)]

    def _admitted(self, filters: MetadataFilters) -> Rows:
        def read() -> Rows:
            holding = partial(holding_words, self._keywords, texts=self._texts)
            return admitted(filters, self._known.rows, self._column, holding)

        return self._known.answer(f"filters {filters.model_dump()!r}", read)

    def _among(self, filters: MetadataFilters | None, node_ids: Sequence[str] | None) -> Rows | None:
        rows = None if filters is None else self._admitted(filters)
        if node_ids is None:
            return rows
        wanted = np.array(sorted(row for row in self._rows_of(node_ids) if row), dtype=np.int64)
        return wanted if rows is None else np.intersect1d(wanted, rows)

    def _texts(self, rows: Rows) -> list[str]:
        texts = {one.row: lexical_text(to_node(one)) for one in self.snapshot.nodes(np.sort(rows))}
        return [texts.get(row, "") for row in rows.tolist()]

    # Numbers and ids

    def _ids_of(self, rows: Sequence[int]) -> list[str | None]:
        """Return the ids of nodes by number; None for those that were deleted meanwhile."""
        known = self._known
        ids = list(map(known.id_of.get, rows))
        if None in ids:
            missing = [row for row, node_id in zip(rows, ids, strict=True) if node_id is None]
            read = self.snapshot.node_ids(missing)
            if len(read) < len(missing) and np.isin([row for row in missing if row not in read], known.rows).any():
                self.snapshot.refuse("nodes are lost")
            known.add_ids(read)
            ids = list(map(known.id_of.get, rows))
        return ids

    def _rows_of(self, node_ids: Sequence[str]) -> list[int]:
        """Return the numbers of nodes, 0 for unknown ids."""
        known = self._known
        missing = [node_id for node_id in node_ids if node_id not in known.row_of]
        if missing:
            known.add_ids({row: node_id for node_id, row in self.snapshot.rows_of(missing).items()})
        return [known.row_of.get(node_id, 0) for node_id in node_ids]

    def _best(self, rows: Rows, scores: Any, top_k: int) -> list[Candidate]:
        """Return the nodes of rows, best first, ties by id."""
        ids = self._ids_of(rows.tolist())
        # They come by score, so that sorting hardly has to compare more than neighbours.
        pairs = sorted((score, node_id) for score, node_id in zip((-scores).tolist(), ids, strict=True) if node_id)
        return [Candidate(node_id, -score) for score, node_id in pairs[:top_k]]

    # Words

    @property
    def _keywords(self) -> Bm25Index:
        return self._caches.keywords(self.snapshot)

    @property
    def analyzer(self) -> Analyzer:
        """Analyzer of questions and texts."""
        return self._caches.analyzer

    def keyword_query(
        self,
        groups: Sequence[Group],
        top_k: int,
        filters: MetadataFilters | None = None,
        node_ids: Sequence[str] | None = None,
    ) -> list[Candidate]:
        """Return the best ``top_k`` nodes that hold a term: scores are above 0, best first, ties by id."""
        rows, scores = self._keywords.search(groups, top_k, self._among(filters, node_ids))
        return self._best(rows, scores, top_k)

    def term_scores(self, groups: Sequence[Group], node_ids: Sequence[str]) -> TermScores:
        """Share of each term in the keyword score of each node."""
        return self._keywords.term_scores(groups, self._rows_of(node_ids))

    def nearness(self, groups: Sequence[Group], node_ids: Sequence[str]) -> Nearness:
        """Return how near to each other neighbouring terms of a query stand in each node."""
        return self._keywords.nearness(groups, self._rows_of(node_ids))

    # Vectors

    def dense_queries(
        self,
        embeddings: Sequence[Sequence[float]],
        top_k: int,
        filters: MetadataFilters | None = None,
        node_ids: Sequence[str] | None = None,
    ) -> list[list[Candidate]]:
        """Return the ``top_k`` nodes nearest to each vector, best first, ties by id; scores are cosines, -1 to 1.

        Raises:
            FingerprintError: The vectors are by now another model's.
        """
        model = self.snapshot.state.model
        if model not in ("", self._caches.model):
            raise FingerprintError(
                f"the index in {self._name} was made with the embedding {model}, not with "
                f"{self._caches.model}: their vectors do not compare. Cure: open it again, with the former."
            )
        self._check(self.snapshot)
        among = self._among(filters, node_ids)
        hits = self._caches.vectors(self.snapshot).nearest(embeddings, top_k, among) if embeddings else []
        return [self._best(rows, scores, top_k) for rows, scores in hits]

    def cache_problems(self, *, embeds: bool) -> list[str]:
        """Return how the caches differ from the chunks, a sentence each."""
        rows, caches = self.snapshot.rows(), {"cache of words": self._keywords.rows}
        if embeds:
            caches["cache of vectors"] = self._caches.vectors(self.snapshot).rows
        return [
            f"The {name} lacks {counted(len(np.setdiff1d(rows, shown)), 'chunk')} and has "
            f"{len(np.setdiff1d(shown, rows))} too many."
            for name, shown in caches.items()
            if not np.array_equal(rows, np.sort(shown))
        ]


class IndexReader:
    """Gives views of an index to whoever asks it, always of what was written last.

    Args:
        settings: Of the index.
    """

    def __init__(self, settings: IndexSettings) -> None:
        self._database = settings.database
        self._settings, self._is_checked = settings, False
        self.caches = Caches(settings.layout.cache, settings.paid, model_id(settings.embedding))
        self._current = contextvars.ContextVar[IndexView | None]("what a question sees", default=None)

    def _check(self, snapshot: Snapshot) -> None:
        """Refuse another model's vectors, once for each index."""
        if not self._is_checked:
            check_vectors(snapshot, self._settings.paid, self._settings.embedding)
            self._is_checked = True

    def __deepcopy__(self, memo: object) -> IndexReader:
        return self  # a copy of a retriever follows the same index

    def __reduce__(self) -> NoReturn:
        raise CopyError(
            f"the index in {self._database.name} is open in this process and cannot be pickled, nor its retrievers. "
            "Cure: pickle the folder's path, and ContextualIndex.open() it where it arrives."
        )

    @contextlib.contextmanager
    def reading(self) -> Iterator[IndexView]:
        """Return the view that :meth:`snapshot` opened, else one of the newest moment.

        Raises:
            StorageError: There is no index, or it cannot be read.
        """
        view = self._current.get()
        if view is None or not view.enter():
            view = self._opened()
        try:
            yield view
        finally:
            view.exit()

    def _opened(self) -> IndexView:
        if not self._database.exists:
            self._settings.require_index()
        with ExitStack() as stack:
            snapshot = stack.enter_context(self._database.reading())
            if not snapshot.state.settings:
                self._settings.require_index()
            view = IndexView(snapshot, self.caches, self._database.name, stack.pop_all().close, self._check)
        view.enter()
        return view

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Look once: all that is asked in this context meanwhile, by its threads too, sees one moment."""
        with self.reading() as view:
            token = self._current.set(view)
            try:
                yield
            finally:
                self._current.reset(token)

    def ask(self, work: Callable[[IndexView], _T]) -> _T:
        """Result of ``work``, which only reads, for a view.

        Raises:
            StorageError: The index cannot be read.
        """
        with self.reading() as view:
            return work(view)

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()
        self._settings.paid.close()

    def arms(self, filters: MetadataFilters | None) -> list[ContextualVectorRetriever | ContextualBM25Retriever]:
        """Return the vector arm and the keyword arm, with the same filters; without an embedding the latter alone."""
        words = ContextualBM25Retriever.over(
            self, analyzer=self.caches.analyzer, similarity_top_k=POOL, filters=filters
        )
        embedding = self._settings.embedding
        if isinstance(embedding, NoEmbedding):
            return [words]
        return [ContextualVectorRetriever.over(self, embedding, similarity_top_k=POOL, filters=filters), words]
