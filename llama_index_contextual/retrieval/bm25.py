"""The keyword arm: BM25 over the EMBED view and the lexical context, as a LlamaIndex retriever."""

from __future__ import annotations

import asyncio
import copy
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import BaseNode, IndexNode, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual.errors import SettingError, StorageError, whole
from llama_index_contextual.keyword import (
    K1,
    Analyzer,
    B,
    Candidate,
    KeywordIndex,
    both,
    check_filters,
    checked_nodes,
    parse_query,
)
from llama_index_contextual.retrieval.keyword_reads import KeywordReads, groups_of
from llama_index_contextual.retrieval.stored import stored_ids, stored_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.vector_stores.types import BasePydanticVectorStore

    from llama_index_contextual.retrieval.search import KeywordSearch, StoreReader

logger = logging.getLogger(__name__)


class ContextualBM25Retriever(KeywordReads, BM25Retriever):
    """A ``BM25Retriever`` of LlamaIndex with the same sources, ``similarity_top_k``, filters and persistence.

    The engine is another one: it follows single edits, and all views of an index share it. Documents and queries
    have the same analyzer. Adding or deleting a node touches that node only, and scores still equal those of a full
    rebuild. Scores are BM25 (Lucene's form), greater than 0; ties break by node id. A node without a matching term is
    not among the hits. Only where no node has one, the first nodes are returned with a score of 0: LlamaIndex's engines
    say "Empty Response" to a greeting where a retriever returns nothing. Nodes come back as new objects, equal (same
    ``hash``) to those of the vector store. A query may hold the operators of
    :mod:`llama_index_contextual.keyword.query`. It is thread-safe: readers work on an immutable state, writers take
    turns.

    Args:
        nodes: What to index; may be empty.
        similarity_top_k: Most nodes a query returns; any size.
        analyzer: Makes the terms; default ``Analyzer()``, with ``language`` if that is given.
        filters: Nodes that this retriever may return; the index holds all.
        k1: BM25's term saturation, greater than 0.
        b: BM25's length normalisation, 0 to 1.
        language: Shorthand for ``analyzer=Analyzer(language=…)``.

    Raises:
        SettingError: A setting cannot work.
    """

    filters_words = True  # its filters may be those of a query's operators

    def __init__(
        self,
        nodes: Sequence[BaseNode] | None = None,
        *,
        similarity_top_k: int = 10,
        analyzer: Analyzer | None = None,
        filters: MetadataFilters | None = None,
        k1: float = K1,
        b: float = B,
        language: str | None = None,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
    ) -> None:
        check_filters(filters)
        if analyzer and language:
            raise SettingError(
                f"language={language!r} and analyzer= are both given. Cure: Analyzer(language={language!r})."
            )
        # Not BM25Retriever.__init__: it builds a bm25s index, which refuses empty corpora and cannot change.
        BaseRetriever.__init__(
            self, callback_manager=callback_manager, object_map=object_map, objects=objects, verbose=verbose
        )
        self.similarity_top_k = whole("similarity_top_k", similarity_top_k)
        self.analyzer = analyzer or Analyzer(language=language or "auto")
        self.filters = filters
        self._reader: StoreReader[KeywordSearch] = KeywordIndex(self.analyzer, k1=k1, b=b)
        if nodes is not None:
            self.add(nodes)

    @classmethod
    def over(
        cls,
        reader: StoreReader[KeywordSearch],
        *,
        analyzer: Analyzer | None = None,
        **settings: Any,
    ) -> ContextualBM25Retriever:
        """Return a retriever over a store that something else changes; it keeps no index of its own.

        Args:
            reader: Gives the newest state of the store.
            analyzer: The one that made the store's terms; default ``Analyzer()``.
            settings: ``similarity_top_k``, ``filters``, and what every LlamaIndex retriever takes.
        """
        retriever = cls(analyzer=analyzer, **settings)
        retriever._reader = reader
        return retriever

    @classmethod
    def from_defaults(  # type: ignore[override]
        cls,
        index: Any | None = None,
        nodes: Sequence[BaseNode] | None = None,
        docstore: Any | None = None,
        vector_store: BasePydanticVectorStore | None = None,
        **settings: Any,
    ) -> ContextualBM25Retriever:
        """Return a retriever over exactly one of four sources.

        Args:
            index: A ``VectorStoreIndex``; from its vector store where that stores text (Chroma leaves the docstore
                empty), else from its docstore.
            nodes: The nodes themselves; may be empty.
            docstore: A LlamaIndex document store.
            vector_store: A vector store that holds text, such as Chroma.
            settings: As for the class.

        Raises:
            SettingError: None or several sources are given, or the store cannot list its nodes.
        """
        sources = {"index": index, "nodes": nodes, "docstore": docstore, "vector_store": vector_store}
        names = [name for name, value in sources.items() if value is not None]
        if len(names) != 1:
            raise SettingError(f"Sources given: {names or 'none'}. Cure: exactly one of {', '.join(sources)}.")
        for unknown in {"stemmer", "token_pattern", "skip_stemming", "tokenizer"} & set(settings):
            raise SettingError(f"{unknown}= belongs to bm25s. Cure: analyzer=Analyzer(language=…, stem=…).")
        if index is not None:
            # Where the store holds the text, it is the truth: the docstore is empty, or holds whole documents.
            from_store = index.vector_store.stores_text or not index.docstore.docs
            vector_store, docstore = (index.vector_store, None) if from_store else (None, index.docstore)
        if vector_store is not None:
            nodes = stored_nodes(vector_store)
        elif docstore is not None:
            nodes = list(docstore.docs.values())
        return cls(nodes, **settings)

    # Changing the index

    @property
    def index(self) -> KeywordIndex:
        """The index behind this retriever.

        Raises:
            SettingError: The retriever reads a store that something else changes.
        """
        if not isinstance(self._reader, KeywordIndex):
            raise SettingError("This retriever only reads its store. Cure: change and persist what the store is of.")
        return self._reader

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Index nodes; a node whose id is indexed already replaces the old one. Only these nodes are analysed."""
        new = checked_nodes(nodes)
        self.object_map.update({n.index_id: n.obj for n in new if isinstance(n, IndexNode) and n.obj is not None})
        self.index.add(new)

    def delete(self, node_ids: Iterable[str]) -> int:
        """Delete nodes by id and return how many there were; unknown ids are ignored."""
        return self.index.delete(node_ids)

    def with_filters(self, filters: MetadataFilters | None) -> ContextualBM25Retriever:
        """Return a view that returns only what these filters and this view's own admit. It shares the index."""
        view = copy.copy(self)
        view.filters = both(self.filters, filters)
        return view

    # Answering

    def candidates(self, query: QueryBundle, top_k: int) -> list[Candidate]:
        """Return ids and scores of the best ``top_k``, best first; [] for a query without terms."""
        return self._reader.ask(lambda store: self._matches(store, query.query_str, top_k))

    def _matches(self, store: KeywordSearch, text: str, top_k: int) -> list[Candidate]:
        """Answer a query with its operators, or as plain text where no node satisfies them."""
        parsed = parse_query(text, self.analyzer, self.may_exclude)
        filters = both(self.filters, parsed.filters)
        matches = store.keyword_query(groups_of(self.analyzer, parsed.text), top_k, filters)
        if matches or not parsed.operators or store.count(filters):
            return matches
        return store.keyword_query(self.analyzer.query_groups(text), top_k, self.filters)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        def work(store: KeywordSearch) -> list[NodeWithScore]:
            matches = self._matches(store, query_bundle.query_str, self.similarity_top_k)
            if not matches and query_bundle.query_str.strip():
                filters = both(
                    self.filters, parse_query(query_bundle.query_str, self.analyzer, self.may_exclude).filters
                )
                ids = store.selected_ids(filters) or store.selected_ids(self.filters)
                matches = [Candidate(node_id, 0.0) for node_id in ids[: self.similarity_top_k]]
            nodes = store.nodes(match.node_id for match in matches)
            return [NodeWithScore(node=nodes[m.node_id], score=m.score) for m in matches if m.node_id in nodes]

        return self._reader.ask(work)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)

    # Keeping it on disk

    def get_persist_args(self) -> dict[str, Any]:
        """Return every setting that persisting keeps."""
        engine = self.index.engine
        return {**self._retriever_settings(), "k1": engine.k1, "b": engine.b, "analyzer": self.analyzer.settings}

    def _retriever_settings(self) -> dict[str, Any]:
        """Return the settings that are persisted beside the index's."""
        filters = None if self.filters is None else self.filters.model_dump(mode="json")
        return {"similarity_top_k": self.similarity_top_k, "filters": filters}

    def persist(
        self,
        path: str | Path,
        encoding: str = "utf-8",  # noqa: ARG002  part of the base class's interface
        *,
        stamp: str | None = None,
        **_kwargs: Any,
    ) -> None:
        """Write the index and every setting to a folder; a crash leaves the old or the new state.

        Only the terms of what changed since it was last persisted there are written, and all nodes.

        Args:
            path: The folder; made if it is missing.
            encoding: Ignored: the format fixes it.
            stamp: What the index was made from (a version, a hash); loading can ask for it.
        """
        self.index.save(Path(path), stamp=stamp, settings=self._retriever_settings())

    @classmethod
    def from_persist_dir(
        cls,
        path: str | Path,
        encoding: str = "utf-8",  # noqa: ARG003  part of the base class's interface
        *,
        stamp: str | None = None,
        analyzer: Analyzer | None = None,
        **overrides: Any,
    ) -> ContextualBM25Retriever:
        """Return the retriever that :meth:`persist` wrote, every setting included.

        Args:
            path: The folder.
            encoding: Ignored: the format fixes it.
            stamp: Refuse an index that was persisted with another stamp.
            analyzer: Refuse an index whose terms another analyzer made.
            overrides: ``similarity_top_k``, ``filters``, ``k1``, ``b``, ``callback_manager``, ``object_map``, for
                those that were persisted.

        Raises:
            StorageError: The folder holds no index, or it is damaged.
            FingerprintError: It was made from something else, or with another analyzer or version of it.
        """
        engine = {key: overrides.pop(key) for key in ("k1", "b") if key in overrides}
        index, settings = KeywordIndex.load(Path(path), stamp=stamp, analyzer=analyzer, **engine)
        if settings["filters"] is not None:
            settings["filters"] = MetadataFilters.model_validate(settings["filters"])
        retriever = cls(analyzer=index.analyzer, **{**settings, **overrides})
        retriever._reader = index
        return retriever

    @classmethod
    def open(
        cls,
        path: str | Path,
        vector_store: BasePydanticVectorStore,
        *,
        stamp: str | None = None,
        analyzer: Analyzer | None = None,
        **settings: Any,
    ) -> ContextualBM25Retriever:
        """Return the retriever kept in a folder, brought up to date with a Chroma store and persisted.

        The store is the truth. A missing, damaged or stale index is built again. Otherwise ids are compared: nodes that
        the store no longer has are deleted, and new ones are added. (Only the ``stamp`` shows that the text under an id
        has changed.)

        Args:
            path: The folder.
            vector_store: Holds the nodes.
            stamp: As for :meth:`persist`.
            analyzer: Default ``Analyzer()``.
            settings: As for the class; they replace persisted ones.
        """
        analyzer = analyzer or Analyzer()
        try:
            retriever = cls.from_persist_dir(path, stamp=stamp, analyzer=analyzer, **settings)
        except StorageError as error:
            logger.info("The keyword index is built from the vector store: %s", error)
            retriever = cls.from_defaults(vector_store=vector_store, analyzer=analyzer, **settings)
        else:
            if not retriever.reconcile(vector_store):
                return retriever
        retriever.persist(path, stamp=stamp)
        return retriever

    def reconcile(self, vector_store: BasePydanticVectorStore) -> bool:
        """Delete nodes that the store no longer has, add those that are new to it, and return whether any were."""
        indexed, stored = set(self.index.state.selected_ids()), set(stored_ids(vector_store))
        self.delete(indexed - stored)
        if new := stored - indexed:
            self.add(stored_nodes(vector_store, sorted(new)))
        return indexed != stored
