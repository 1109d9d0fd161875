"""What a question sees: one moment of the database, and the engines that are derived from it.

The engines know numbers of nodes only. They are caught up by comparing two sets of numbers: what the database has, and
what an engine shows. A question does that in memory and writes nothing. A writer keeps the engines on disk at its end,
for the next process. Whatever is wrong with such a copy, the engine is derived again.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import logging
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import numpy as np

from llama_index_contextual.embedding import NoEmbedding, model_id
from llama_index_contextual.errors import CopyError, FingerprintError, StorageError
from llama_index_contextual.index.nodes import to_node
from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.keyword.engine import KeywordEngine
from llama_index_contextual.keyword.evidence import Match
from llama_index_contextual.keyword.filters import Column, admitted
from llama_index_contextual.keyword.words import holding_words, lexical_text, word_like
from llama_index_contextual.matrix import Matrix
from llama_index_contextual.retrievers import POOL, ContextualBM25Retriever, ContextualVectorRetriever
from llama_index_contextual.retrievers.search import Candidate
from llama_index_contextual.text import counted
from llama_index_contextual.vector_stores.engine import catch_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores import MetadataFilters

    from llama_index_contextual.index.database import Database
    from llama_index_contextual.index.settings import IndexSettings
    from llama_index_contextual.index.state import IndexState
    from llama_index_contextual.index.tables import Rows, Snapshot
    from llama_index_contextual.keyword.evidence import Group, Nearness, TermScores
    from llama_index_contextual.vector_stores.engine import VectorEngine
    from llama_index_contextual.vector_stores.stores import Store

_T = TypeVar("_T")
logger = logging.getLogger(__name__)

# While another process writes, an engine follows it only for a tenth of the time.
_SHARE: Final = 10.0
_TEXTS: Final = 1000  # nodes that are in memory while an engine is derived
_COLUMNS: Final = 32  # metadata keys whose values are remembered
_IDS: Final = 50_000  # nodes whose ids are remembered: some 15 MB


class Engines:
    """The engines of one index in this process, and which change of the database each shows.

    Args:
        folder: Where writers keep them.
        model: Identity of the embedding model.
        store: What keeps vectors beside the matrix.
        exact_limit: Most nodes whose every vector is compared with a question.
    """

    def __init__(self, folder: Path, model: str, store: Store, exact_limit: int) -> None:
        self._folder, self._model, self._store, self._limit = folder, model, store, exact_limit
        self.analyzer = Analyzer()
        self._keywords = _Derived(self._load_keywords, _with_texts)
        self._matrix = _Derived(self._load_matrix, self._with_vectors)
        self._opened: VectorEngine | None = None
        self._filled = False
        self._guard = threading.Lock()
        self._columns: tuple[object, dict[str, Any]] = None, {}
        self._ids: tuple[object, dict[str, int], dict[int, str]] = None, {}, {}

    def keywords(self, snapshot: Snapshot) -> KeywordEngine:
        """Return the keyword engine, as near to a moment of the database as there is time for."""
        engine: KeywordEngine = self._keywords.at(snapshot)
        return engine

    def matrix(self, snapshot: Snapshot) -> Matrix:
        """Return all vectors, as near to a moment of the database as there is time for."""
        matrix: Matrix = self._matrix.at(snapshot)
        return matrix

    def store(self, snapshot: Snapshot, count: int) -> VectorEngine | None:
        """Return the store, where a writer has filled it and it has to answer: an exact one, or beyond the limit."""
        shown = snapshot.state.get("store") or {}
        is_filled = (shown.get("name"), shown.get("edition")) == (self._store.name, snapshot.edition)
        return self._store_at(snapshot) if is_filled and (count > self._limit or self._store.is_exact) else None

    def nearest(
        self, snapshot: Snapshot, count: int, embedding: Sequence[float], top_k: int, among: Rows | None
    ) -> tuple[Rows, Any]:
        """Return the nearest rows and their cosines. Where the store cannot answer, every vector is compared."""
        store = self.store(snapshot, count)
        if store is not None:
            try:
                hits = store.nearest(embedding, top_k, among)
            except FingerprintError:
                raise
            except StorageError as error:
                logger.warning("Every vector is compared, because the store does not answer: %s", error)
            else:
                if len(hits[0]) >= min(top_k, count if among is None else len(among)):
                    return hits
                logger.warning("Every vector is compared, because the store has lost some. Cure: refresh.")
        return self.matrix(snapshot).nearest(embedding, top_k, among)

    def column(self, snapshot: Snapshot, key: str, read: Callable[[], Any]) -> Any:
        """Return something that was read of all nodes at the moment of a snapshot; it is remembered."""
        moment = _moment(snapshot)
        with self._guard:
            if self._columns[0] != moment or len(self._columns[1]) > _COLUMNS:
                self._columns = moment, {}
            known = self._columns[1]
        if key not in known:
            known[key] = read()
        return known[key]

    def ids(self, snapshot: Snapshot) -> tuple[dict[str, int], dict[int, str]]:
        """Return what is known so far of numbers and ids at the moment of a snapshot; whoever looks one up adds it."""
        moment = _moment(snapshot)
        with self._guard:
            if self._ids[0] != moment or len(self._ids[2]) > _IDS:
                self._ids = moment, {}, {}
            return self._ids[1:]

    def save(self, snapshot: Snapshot, *, embeds: bool) -> None:
        """Bring all engines up to date and keep them on disk. Where that fails, the next process derives them.

        Raises:
            StorageError: The store cannot be filled; all else is there, and answers.
        """
        stamp, count = json.dumps(_moment(snapshot)), snapshot.count()
        with contextlib.suppress(StorageError):
            keywords = self._keywords.at(snapshot, wait=True)
            if self._keywords.saved != stamp:
                self._keywords.keep(keywords.save(self._folder / "keywords", stamp), stamp)
        if not embeds:
            return
        with contextlib.suppress(StorageError):
            if count <= self._limit and not self._store.is_exact:
                matrix = self._matrix.at(snapshot, wait=True)
                if self._matrix.saved != stamp:
                    self._matrix.keep(matrix.save(self._folder / "matrix", stamp), stamp)
        if count > self._limit or self._store.is_shared:
            self._fill_store(snapshot)

    def store_state(self, snapshot: Snapshot) -> dict[str, Any]:
        """Return what the database is to say of the store: where the vectors are, if they are there."""
        if not self._filled:
            return snapshot.state.get("store") or {}
        return {"name": self._store.name, "edition": snapshot.edition}

    def forget(self) -> None:
        """Derive all of it again when it is asked next."""
        self._keywords.forget()
        self._matrix.forget()

    def close(self) -> None:
        """Let go of the store."""
        with self._guard:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def _store_at(self, snapshot: Snapshot) -> VectorEngine:
        with self._guard:
            if self._opened is None:
                self._opened = self._store.open(snapshot.identity)
            return self._opened

    def _fill_store(self, snapshot: Snapshot) -> None:
        store, rows, newest = self._store_at(snapshot), snapshot.rows(), int(snapshot.state.get("newest", 0))
        catch_up(store, rows, lambda rows: snapshot.vectors(self._model, rows), newest)
        self._filled = True

    def _load_keywords(self) -> tuple[KeywordEngine, str]:
        return KeywordEngine.load(self._folder / "keywords", self.analyzer) or (KeywordEngine(self.analyzer), "")

    def _load_matrix(self) -> tuple[Matrix, str]:
        return Matrix.load(self._folder / "matrix") or (Matrix(), "")

    def _with_vectors(self, matrix: Matrix, snapshot: Snapshot, rows: Rows) -> Matrix:
        read = 0
        for some, vectors in snapshot.vectors(self._model, rows):
            matrix, read = matrix.with_rows(some, vectors), read + len(some)
        if read < len(rows):
            lost = counted(len(rows) - read, "chunk")
            logger.warning(
                "%s: the vector is lost, so that only words find it. Cure: llama-index-contextual index", lost
            )
        return matrix


class _Derived:
    """One engine, the moment that it shows, and the stamp of its copy on disk.

    Args:
        load: Returns the copy on disk and its stamp, or an empty engine.
        add: Returns an engine with more nodes.
    """

    def __init__(self, load: Callable[[], tuple[Any, str]], add: Callable[[Any, Snapshot, Rows], Any]) -> None:
        self._load, self._add = load, add
        self._engine: Any = None
        self._moment: list[Any] = ["", 0, 0]
        self.saved = ""
        self._lock = threading.Lock()
        self._cost = self._derived_at = 0.0

    def at(self, snapshot: Snapshot, *, wait: bool = False) -> Any:
        """Return the engine at a moment; other threads go on with an older one while it is brought up to date."""
        wanted = _moment(snapshot)
        if self._engine is not None and self._shows(wanted):
            return self._engine
        if not self._lock.acquire(blocking=wait or self._engine is None):
            return self._engine
        try:
            started = time.monotonic()
            following = self._engine is not None and self._moment[:2] == wanted[:2]
            busy = following and not snapshot.state.get("complete") and started - self._derived_at < self._cost * _SHARE
            if self._engine is not None and (self._shows(wanted) or (busy and not wait)):
                return self._engine
            engine, self.saved = (self._engine, self.saved) if following else self._read(wanted)
            rows = snapshot.rows()
            if self.saved == json.dumps(wanted) and len(np.setdiff1d(engine.rows, rows)):
                snapshot.refuse("it lacks nodes that its engines have")
            engine = engine.without(np.setdiff1d(engine.rows, rows, assume_unique=True))
            self._engine = self._add(engine, snapshot, np.setdiff1d(rows, engine.rows, assume_unique=True))
            self._moment, self._derived_at = wanted, time.monotonic()
            self._cost = self._derived_at - started
            return self._engine
        finally:
            self._lock.release()

    def _shows(self, wanted: list[Any]) -> bool:
        return self._moment[:2] == wanted[:2] and self._moment[2] >= wanted[2]

    def _read(self, wanted: list[Any]) -> tuple[Any, str]:
        """Return the copy on disk, unless it is of another database, another edition, or later than this moment."""
        engine, stamp = self._load()
        try:
            identity, edition, change = json.loads(stamp)
        except ValueError:
            return engine.without(engine.rows), ""
        if [identity, edition] != wanted[:2] or change > wanted[2]:
            return engine.without(engine.rows), ""
        return engine, stamp

    def keep(self, engine: Any, stamp: str) -> None:
        """Go on with an engine that was kept on disk."""
        with self._lock:
            self._engine, self.saved = engine, stamp

    def forget(self) -> None:
        """Derive it again."""
        with self._lock:
            self._engine = None


def _moment(snapshot: Snapshot) -> list[Any]:
    return [snapshot.identity, snapshot.edition, snapshot.change]


def _with_texts(engine: KeywordEngine, snapshot: Snapshot, rows: Rows) -> KeywordEngine:
    for start in range(0, len(rows), _TEXTS):
        nodes = list(snapshot.nodes(rows[start : start + _TEXTS]))
        engine = engine.with_texts([one.row for one in nodes], (lexical_text(to_node(one)) for one in nodes))
    return engine


class View:
    """One moment of an index, as retrievers ask it; see :class:`~llama_index_contextual.retrievers.search.SearchStore`.

    Args:
        snapshot: The database.
        state: What it says of the whole index.
        engines: Of this process.
        leave: Ends the transaction.
    """

    def __init__(self, snapshot: Snapshot, state: IndexState, engines: Engines, leave: Callable[[], object]) -> None:
        self.snapshot = snapshot
        self.state = state
        self._engines = engines
        self._leave = leave
        self._users, self._retired = 0, False
        self._guard = threading.Lock()
        self._row_of, self._id_of = engines.ids(snapshot)

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

    def count(self) -> int:
        """Return the number of nodes."""
        return len(self._rows())

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
        rows = self._rows() if filters is None else self._admitted(filters)
        return list(self._ids_of(rows.tolist()).values())

    def values(self, key: str, node_ids: Iterable[str]) -> dict[str, Any]:
        """Return the nodes' values of a metadata key; None where one has none."""
        wanted = list(node_ids)
        column, rows = self._column(key), self._rows()
        if not len(rows):
            return {}
        numbers = np.array(self._rows_of(wanted), dtype=np.int64)
        at = np.minimum(np.searchsorted(rows, numbers), len(rows) - 1)
        places = zip(wanted, numbers.tolist(), at.tolist(), strict=True)
        known = [(node_id, place) for node_id, number, place in places if rows[place] == number]
        if column is None:
            return dict.fromkeys([node_id for node_id, _ in known])
        values = (*column.values, None)  # code -1 reads the last
        return {node_id: values[column.codes[place]] for node_id, place in known}

    def _rows(self) -> Rows:
        rows: Rows = self._engines.column(self.snapshot, "(rows)", self.snapshot.rows)
        return rows

    def _column(self, key: str) -> Column | None:
        column: Column = self._engines.column(
            self.snapshot, f"metadata {key}", lambda: Column.encode(self.snapshot.column(key))
        )
        return column if column.values else None

    def _admitted(self, filters: MetadataFilters) -> Rows:
        def read() -> Rows:
            holding = partial(holding_words, self._keywords, texts=self._texts)
            return admitted(filters, self._rows(), self._column, holding)

        rows: Rows = self._engines.column(self.snapshot, f"filters {filters.model_dump()!r}", read)
        return rows

    def _among(self, filters: MetadataFilters | None, node_ids: Sequence[str] | None) -> Rows | None:
        rows = None if filters is None else self._admitted(filters)
        if node_ids is None:
            return rows
        own = np.array(sorted(row for row in self._rows_of(node_ids) if row), dtype=np.int64)
        return own if rows is None else np.intersect1d(own, rows)

    def _texts(self, rows: Rows) -> list[str]:
        texts = {one.row: lexical_text(to_node(one)) for one in self.snapshot.nodes(np.sort(rows))}
        return [texts.get(row, "") for row in rows.tolist()]

    # Numbers and ids

    def _ids_of(self, rows: Iterable[int]) -> dict[int, str]:
        """Return the ids of nodes by number, in the order given; those that were deleted meanwhile are left out."""
        wanted = [int(row) for row in rows]
        missing = [row for row in wanted if row not in self._id_of]
        if missing:
            known = self.snapshot.node_ids(missing)
            if len(known) < len(missing) and np.isin([row for row in missing if row not in known], self._rows()).any():
                self.snapshot.refuse("nodes are lost")
            self._id_of.update(known)
            self._row_of.update({node_id: row for row, node_id in known.items()})
        return {row: self._id_of[row] for row in wanted if row in self._id_of}

    def _rows_of(self, node_ids: Sequence[str]) -> list[int]:
        """Return the numbers of nodes, 0 for unknown ids."""
        missing = [node_id for node_id in node_ids if node_id not in self._row_of]
        if missing:
            known = self.snapshot.rows_of(missing)
            self._row_of.update(known)
            self._id_of.update({row: node_id for node_id, row in known.items()})
        return [self._row_of.get(node_id, 0) for node_id in node_ids]

    def _best(self, rows: Rows, scores: Any, top_k: int) -> list[tuple[str, float]]:
        """Return ids and scores, best first, ties by id."""
        ids = self._ids_of(rows.tolist())
        pairs = [(ids[row], score) for row, score in zip(rows.tolist(), scores.tolist(), strict=True) if row in ids]
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:top_k]

    # Words

    @property
    def _keywords(self) -> KeywordEngine:
        return self._engines.keywords(self.snapshot)

    @property
    def analyzer(self) -> Analyzer:
        """Return what makes terms of a question."""
        return self._engines.analyzer

    def keyword_query(
        self,
        groups: Sequence[Group],
        top_k: int,
        filters: MetadataFilters | None = None,
        node_ids: Sequence[str] | None = None,
    ) -> list[Match]:
        """Return the best ``top_k`` nodes that hold a term: scores are above 0, best first, ties by id."""
        rows, scores = self._keywords.search(groups, top_k, self._among(filters, node_ids))
        return [Match(*one) for one in self._best(rows, scores, top_k)]

    def term_scores(self, groups: Sequence[Group], node_ids: Sequence[str]) -> TermScores:
        """Return what each term adds to the keyword score of each node."""
        return self._keywords.term_scores(groups, self._rows_of(node_ids))

    def nearness(self, groups: Sequence[Group], node_ids: Sequence[str]) -> Nearness:
        """Return how near to each other neighbouring terms of a query stand in each node."""
        return self._keywords.nearness(groups, self._rows_of(node_ids))

    def word_like(self, word: str) -> str | None:
        """Return the word of a node that is spelled most like a word; None where none is nearly the same."""
        return word_like(self._keywords, word, self._texts)

    # Vectors

    def dense_query(
        self,
        embedding: Sequence[float],
        top_k: int,
        filters: MetadataFilters | None = None,
        node_ids: Sequence[str] | None = None,
    ) -> list[Candidate]:
        """Return the ``top_k`` nodes nearest to a vector, best first, ties by id; scores are cosines, -1 to 1."""
        among = self._among(filters, node_ids)
        rows, scores = self._engines.nearest(self.snapshot, self.count(), embedding, top_k, among)
        return [Candidate(*one) for one in self._best(rows, scores, top_k)]

    def engine_problems(self, *, embeds: bool) -> list[str]:
        """Return how the engines differ from the database, a sentence each."""
        rows, engines = self.snapshot.rows(), {"keyword engine": self._keywords.rows}
        if embeds:
            store = self._engines.store(self.snapshot, len(rows))
            try:
                if store is None:
                    engines["matrix"] = self._engines.matrix(self.snapshot).rows
                else:
                    engines["store"] = store.rows()
            except StorageError as error:
                return [str(error)]
        return [
            f"The {name} lacks {counted(len(np.setdiff1d(rows, shown)), 'chunk')} and has "
            f"{len(np.setdiff1d(shown, rows))} too many."
            for name, shown in engines.items()
            if not np.array_equal(rows, np.sort(shown))
        ]


class Reader:
    """Gives views of an index to whoever asks it, always of what was written last.

    Args:
        database: Of the index.
        settings: Of the index.
    """

    def __init__(self, database: Database, settings: IndexSettings) -> None:
        self._database = database
        self._settings = settings
        self._model = model_id(settings.embedding)
        self.engines = Engines(settings.layout.root, self._model, settings.store, settings.exact_limit)
        self._current = contextvars.ContextVar[View | None]("what a question sees", default=None)

    def __deepcopy__(self, memo: object) -> Reader:
        return self  # a copy of a retriever follows the same index

    def __reduce__(self) -> NoReturn:
        raise CopyError(
            f"the index in {self._database.name} is open in this process and cannot be pickled, nor its retrievers. "
            "Cure: pickle the folder's path, and ContextualIndex.open() it where it arrives."
        )

    @contextlib.contextmanager
    def reading(self) -> Iterator[View]:
        """Return the view that :meth:`looking` opened, else one of the newest moment.

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

    def _opened(self) -> View:
        if not self._database.exists:
            self._settings.require_index()
        with ExitStack() as stack:
            snapshot = stack.enter_context(self._database.reading())
            state = self._settings.state_in(snapshot)
            if not state.settings:
                self._settings.require_index()
            view = View(snapshot, state, self.engines, stack.pop_all().close)
        view.enter()
        return view

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Look once: all that is asked in this context meanwhile, by its threads too, sees one moment."""
        with self.reading() as view:
            token = self._current.set(view)
            try:
                yield
            finally:
                self._current.reset(token)

    def ask(self, work: Callable[[View], _T], *, vectors: bool = False) -> _T:
        """Return what ``work`` makes of a view.

        Args:
            work: Only reads.
            vectors: Whether it compares vectors.

        Raises:
            FingerprintError: The vectors are by now another model's.
            StorageError: The index cannot be read.
        """
        with self.reading() as view:
            model = view.state.model
            if vectors and model and model != self._model:
                raise FingerprintError(
                    f"the index in {self._database.name} was made with the embedding {model}, not with {self._model}: "
                    "their vectors do not compare. Cure: open it again, with the former."
                )
            return work(view)

    def close(self) -> None:
        """Let go of the database and of the store."""
        self.engines.close()
        self._database.close()

    def arms(self, filters: MetadataFilters | None) -> list[ContextualVectorRetriever | ContextualBM25Retriever]:
        """Return the vector arm and the keyword arm, with the same filters; without an embedding the latter alone."""
        words = ContextualBM25Retriever.over(
            _Side(self, vectors=False), analyzer=self.engines.analyzer, similarity_top_k=POOL, filters=filters
        )
        embedding = self._settings.embedding
        if isinstance(embedding, NoEmbedding):
            return [words]
        nearest = _Side(self, vectors=True)
        return [ContextualVectorRetriever.over(nearest, embedding, similarity_top_k=POOL, filters=filters), words]


class _Side:
    """Asks the newest view for an arm; see ``StoreReader`` in :mod:`llama_index_contextual.retrievers.search`."""

    def __init__(self, reader: Reader, *, vectors: bool) -> None:
        self._reader, self._vectors = reader, vectors

    def looking(self) -> AbstractContextManager[None]:
        """Look once for all that is asked meanwhile."""
        return self._reader.looking()

    def ask(self, work: Callable[[Any], _T]) -> _T:
        """Return what ``work`` makes of the newest view."""
        return self._reader.ask(work, vectors=self._vectors)
