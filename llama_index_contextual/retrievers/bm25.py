"""The keyword arm: BM25 over the EMBED view and the lexical context, as a LlamaIndex retriever."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import BaseNode, IndexNode, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual.retrievers.any_store import stored_nodes
from llama_index_contextual.retrievers.base import PoolRetriever
from llama_index_contextual.retrievers.bm25_index import Candidate, TermScores
from llama_index_contextual.retrievers.filters import (
    both,
    check_filters,
    filter_in_words,
    nearest_names,
)
from llama_index_contextual.retrievers.node_index import KeywordIndex
from llama_index_contextual.retrievers.terms import query_groups
from llama_index_contextual.utils.errors import SettingError, refuse_unknown, whole

if TYPE_CHECKING:
    from typing_extensions import Self


T = TypeVar("T")
_MOST_NAMED: Final = 50  # documents of one name
_READ_OF_DOCUMENT: Final = 200  # chunks of a document of which the best one is taken
_BASE_SETTINGS: Final = ("callback_manager", "object_map", "objects", "verbose")


class ContextualBM25Retriever(PoolRetriever, BM25Retriever):
    """A ``BM25Retriever`` of LlamaIndex with the same sources, ``similarity_top_k``, filters and persistence.

    The engine is another one: it follows single edits, and all views of an index share it.
    Adding or deleting a node touches that node only, and scores still equal those of a full
    rebuild. Scores are BM25 (Lucene's form), greater than 0; ties break by node id. A node without a matching term is
    not among the hits, so a query that matches nothing returns an empty list. An empty query with filters returns the
    nodes that pass the filters, with a score of 0. Nodes come back as new objects, equal (same ``hash``) to those of
    the vector store. It is thread-safe: readers work on an immutable state, writers take turns.

    It takes a query for words. Operators (``path:``, ``tag:``) are read by the :class:`ContextualFusionRetriever` that
    it is an arm of, also as the only one.

    Args:
        nodes: What to index; may be empty.
        similarity_top_k: Most nodes a query returns; any size.
        filters: Nodes that this retriever may return; the index holds all.
        settings: ``object_map``, ``callback_manager`` and others of LlamaIndex's retrievers.

    Raises:
        SettingError: A setting cannot work.
    """

    def __init__(
        self,
        nodes: Sequence[BaseNode] | None = None,
        *,
        similarity_top_k: int = 10,
        filters: MetadataFilters | None = None,
        **settings: Any,
    ) -> None:
        for unknown in {"stemmer", "language", "token_pattern", "skip_stemming", "tokenizer"} & set(
            settings
        ):
            raise SettingError(
                f"{unknown}= belongs to bm25s. Cure: leave it out; each text has its own language here."
            )
        refuse_unknown(type(self).__name__, settings, _BASE_SETTINGS)
        check_filters(filters)
        # Not BM25Retriever.__init__: it builds a bm25s index, which refuses empty corpora and cannot change.
        BaseRetriever.__init__(self, **settings)
        self.similarity_top_k = whole("similarity_top_k", similarity_top_k)
        self.filters = filters
        self._reader: Any = KeywordIndex()
        if nodes is not None:
            self.add(nodes)

    @classmethod
    def over(cls, reader: Any, **settings: Any) -> Self:
        """A retriever over a store that something else changes.

        Args:
            reader: Gives the newest state of the store.
            settings: ``similarity_top_k``, ``filters``, and what every LlamaIndex retriever takes.
        """
        retriever = cls(**settings)
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
        """A retriever over exactly one of four sources.

        Args:
            index: Any index; from its vector store where that stores text (Chroma leaves the docstore empty), else
                from its docstore.
            nodes: The nodes themselves; may be empty.
            docstore: A LlamaIndex document store.
            vector_store: A vector store that holds text, such as Chroma.
            settings: As for the class.

        Raises:
            SettingError: There is no source or more than one, or the store cannot list its nodes.
        """
        sources = {
            "index": index,
            "nodes": nodes,
            "docstore": docstore,
            "vector_store": vector_store,
        }
        names = [name for name, value in sources.items() if value is not None]
        if len(names) != 1:
            raise SettingError(
                f"Sources given: {names or 'none'}. Cure: exactly one of {', '.join(sources)}."
            )
        if index is not None:
            # Where the store holds the text, it is the truth: the docstore is empty, or holds whole documents.
            store, docstore = getattr(index, "vector_store", None), getattr(index, "docstore", None)
            if store is not None and (store.stores_text or not (docstore and docstore.docs)):
                vector_store = store
        if vector_store is not None:
            nodes = stored_nodes(vector_store)
        elif docstore is not None:
            nodes = list(docstore.docs.values())
        elif nodes is None:
            raise SettingError(
                f"index={type(index).__name__} is none. Cure: an index of LlamaIndex, or nodes=."
            )
        return cls(nodes, **settings)

    # Changing the index

    @property
    def index(self) -> KeywordIndex:
        """The index behind this retriever; a SettingError where it reads a store that something else changes."""
        if not isinstance(self._reader, KeywordIndex):
            raise SettingError(
                "This retriever only reads its store. Cure: change and persist what the store is of."
            )
        return self._reader

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Index nodes; a node whose id is indexed already replaces the old one. Only these nodes are analysed."""
        new = list(nodes) if isinstance(nodes, Iterable) else [nodes]
        if not all(isinstance(node, BaseNode) for node in new):
            raise SettingError(
                f"nodes={type(nodes).__name__} is not a list of nodes. Cure: a list of LlamaIndex nodes; for a store "
                "ContextualBM25Retriever.from_defaults(index=..., docstore=..., vector_store=...) with one of them."
            )
        self.object_map.update(
            {n.index_id: n.obj for n in new if isinstance(n, IndexNode) and n.obj is not None}
        )
        self.index.add(new)

    def delete(self, node_ids: Iterable[str]) -> int:
        """Delete nodes by id and return their number; unknown ids are ignored."""
        return self.index.delete(node_ids)

    # Answering

    def candidates(self, queries: Sequence[QueryBundle], top_k: int) -> list[list[Candidate]]:
        """Return ids and scores of the best nodes for each query, best first, among them those of :meth:`named`."""

        def work(store: Any) -> list[list[Candidate]]:
            return [self._matches(store, query.query_str, top_k) for query in queries]

        return self.ask(work)

    def _matches(self, store: Any, text: str, top_k: int) -> list[Candidate]:
        matches = store.keyword_query(query_groups(text), top_k, self.filters)
        among = None if self.filters is None else store.admitted(self.filters).tolist()
        named = {one.node_id: one for one in self.named(store, text, among)}
        others = [one for one in matches if one.node_id not in named]
        return (
            sorted([*named.values(), *others][:top_k], key=lambda one: -(one.score or 0.0))
            if named
            else matches
        )

    def named(
        self, store: Any, text: str, among: Iterable[int] | None = None
    ) -> dict[Candidate, float]:
        """The best chunk of each document whose name a query is, of all or of some rows, and the value of that name.

        Names are a path, a file's name, a title, an alias, and the heading with which a document begins. No term finds
        what is called as stop words are (``About.md``), nor the note ``Python`` among hundreds that speak of it.
        """
        documents, found = store.names.find_named(text)[:_MOST_NAMED], dict[Candidate, float]()
        rows_among = None if among is None or not documents else {*among}
        for first, value in documents:
            rows = [
                row for row in store.rows_beside(first) if rows_among is None or row in rows_among
            ]
            ids = store.ids_of(rows[:_READ_OF_DOCUMENT])
            scores = store.term_scores(query_groups(text), ids).scores.sum(axis=1).tolist()
            if ids:
                found[max(map(Candidate, ids, scores), key=lambda one: one.score or 0.0)] = value
        return found

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        query = query_bundle

        def work(store: Any) -> list[NodeWithScore]:
            hits = self._matches(store, query.query_str, self.similarity_top_k)
            if self.filters is not None and not query.query_str.strip():
                hits = [
                    Candidate(one, 0.0)
                    for one in store.selected_ids(self.filters)[: self.similarity_top_k]
                ]
            nodes = store.nodes([hit.node_id for hit in hits])
            return [
                NodeWithScore(node=nodes[hit.node_id], score=hit.score)
                for hit in hits
                if hit.node_id in nodes
            ]

        return self.ask(work)

    # Reading nodes and terms

    def __len__(self) -> int:
        return int(self.ask(lambda store: len(store.rows)))

    def selected_ids(self, filters: MetadataFilters | None = None) -> list[str]:
        """Ids of the nodes that these filters and this view's admit."""
        all_filters = both(self.filters, filters)
        return self.ask(lambda store: store.selected_ids(all_filters))

    def term_scores(self, text: str, node_ids: Sequence[str]) -> TermScores:
        """Share of each term of a query in the score of each node."""
        return self.ask(lambda store: store.term_scores(query_groups(text), node_ids))  # type: ignore[no-any-return]

    def suggest(self, query: str) -> list[str]:
        """Return names and words of the index that a misspelt query may mean, best first.

        The list is empty where the index knows all words of the query, and nothing is searched for.

        Example:
            ``suggest("dikstra")`` gives ``["Dijkstra's Algorithm", "Dijkstra"]``.
        """
        return self.ask(lambda store: store.suggest(query))

    def empty_filters(self) -> list[str]:
        """Those of this view's filters that no node passes, in words, with the nearest values that there are."""
        parts = (
            self.filters.filters
            if self.filters is not None and self.filters.condition == "and"
            else []
        )

        def work(store: Any) -> list[str]:
            empty = [
                part for part in parts if not len(store.admitted(MetadataFilters(filters=[part])))
            ]
            metas = (
                [node.metadata for node in store.nodes(store.selected_ids()).values()]
                if empty
                else []
            )
            return list(
                dict.fromkeys(filter_in_words(part) + nearest_names(part, metas) for part in empty)
            )

        return self.ask(work)

    # Keeping it on disk

    def get_persist_args(self) -> dict[str, Any]:
        """The settings of the retriever that persisting keeps; those of the index are kept with it."""
        filters = None if self.filters is None else self.filters.model_dump(mode="json")
        return {"similarity_top_k": self.similarity_top_k, "filters": filters}

    def persist(self, path: str | Path, encoding: str = "utf-8", **_: Any) -> None:  # noqa: ARG002
        """Write the index and every setting to a folder; a crash leaves the old or the new state.

        Args:
            path: The folder; made if it is missing.
            encoding: Ignored: the format fixes it.
        """
        self.index.save(Path(path), self.get_persist_args())

    @classmethod
    def from_persist_dir(cls, path: str | Path, encoding: str = "utf-8", **overrides: Any) -> Self:  # noqa: ARG003
        """The retriever that :meth:`persist` wrote, every setting included.

        Args:
            path: The folder.
            encoding: Ignored: the format fixes it.
            overrides: ``similarity_top_k``, ``filters``, ``callback_manager``, ``object_map``, for those that were
                persisted.

        Raises:
            StorageError: The folder holds no index, or it is damaged.
            FingerprintError: Texts have other terms in this version.
        """
        index, settings = KeywordIndex.load(Path(path))
        if settings["filters"] is not None:
            settings["filters"] = MetadataFilters.model_validate(settings["filters"])
        return cls.over(index, **{**settings, **overrides})
