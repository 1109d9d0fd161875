"""The keyword retriever: BM25 over the EMBED view and the lexical context of each node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core.schema import BaseNode, IndexNode, NodeWithScore, QueryBundle
from llama_index.core.storage.docstore import BaseDocumentStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters

from llama_index_contextual.retrievers.any_store import stored_nodes
from llama_index_contextual.retrievers.base import Candidate, Pool, PoolRetriever
from llama_index_contextual.retrievers.filters import (
    check_filters,
    describe_filter,
    filters_from_dict,
    filters_to_dict,
    merge_filters,
    suggest_names,
)
from llama_index_contextual.retrievers.index_members import IndexMembers
from llama_index_contextual.retrievers.node_index import KeywordIndex
from llama_index_contextual.retrievers.terms import query_groups
from llama_index_contextual.utils.errors import SettingError, objects_of, refuse_unknown, whole
from llama_index_contextual.utils.tracing import traced

if TYPE_CHECKING:
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.indices.base import BaseIndex
    from typing_extensions import Self

    from llama_index_contextual.retrievers.base import StoreReader
    from llama_index_contextual.retrievers.bm25_index import TermScores
    from llama_index_contextual.retrievers.node_index import KeywordView

_MAX_NAMED = 50  # documents with the same name
_MAX_CHUNKS = 200  # chunks of a named document of which the best is chosen
_SETTINGS = (
    "similarity_top_k",
    "filters",
    "callback_manager",
    "objects",
    "object_map",
    "verbose",
)
# Settings of LlamaIndex's BM25Retriever that this class does not have.
_TERM_SETTINGS = frozenset({"stemmer", "language", "skip_stemming", "token_pattern", "tokenizer"})


class ContextualBM25Retriever(PoolRetriever):
    """Retrieve by words, with the interface of LlamaIndex's ``BM25Retriever``.

    Nodes can be added and deleted one by one. Only the changed nodes are analysed, and scores equal
    those of a full rebuild. Scores are BM25 scores (Lucene's formula), greater than 0. Ties are
    broken by node id. A node without a matching term is not a hit, so a query that matches nothing
    returns an empty list. An empty query with filters returns the nodes that match the filters,
    with a score of 0. Nodes are returned as new objects that equal those of the vector store (same
    ``hash``). Threads can share a retriever: readers use an immutable state, and writers wait for
    each other.

    The retriever reads a query as plain words. To use operators (``path:``, ``tag:``), wrap it in a
    :class:`ContextualFusionRetriever`.

    Args:
        nodes: The nodes to index. The list can be empty.
        similarity_top_k: The largest number of nodes that a query returns.
        filters: Metadata filters for the returned nodes. All nodes are indexed.
        callback_manager: LlamaIndex's callbacks.
        objects: Index nodes whose objects are queried in their place.
        object_map: The objects of index nodes by id.
        verbose: Whether LlamaIndex prints each result.
        unknown: Rejected with an error. This includes the settings of LlamaIndex's
            ``BM25Retriever`` for stemming and stop words.

    Raises:
        SettingError: A setting is unknown or invalid.
    """

    name = "bm25"
    kind = "keyword"

    def __init__(
        self,
        nodes: Sequence[BaseNode] | None = None,
        *,
        similarity_top_k: int = 10,
        filters: MetadataFilters | None = None,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
        **unknown: object,
    ) -> None:
        _refuse(unknown)
        check_filters(filters)
        super().__init__(
            callback_manager=callback_manager,
            objects=objects,
            object_map=object_map,
            verbose=verbose,
        )
        self.similarity_top_k = whole("similarity_top_k", similarity_top_k)
        self.filters = filters
        self.reader: StoreReader = KeywordIndex()
        self._members: IndexMembers | None = None
        if nodes is not None:
            self.add(nodes)

    @classmethod
    def over(
        cls,
        reader: StoreReader,
        *,
        similarity_top_k: int = 10,
        filters: MetadataFilters | None = None,
    ) -> Self:
        """Return a retriever over a store that is maintained elsewhere.

        Args:
            reader: Reads the newest state of the store.
            similarity_top_k: The largest number of nodes that a query returns.
            filters: Metadata filters for the returned nodes.
        """
        retriever = cls(similarity_top_k=similarity_top_k, filters=filters)
        retriever.reader = reader
        return retriever

    @classmethod
    def from_defaults(
        cls,
        index: BaseIndex[Any] | None = None,
        nodes: Sequence[BaseNode] | None = None,
        docstore: BaseDocumentStore | None = None,
        vector_store: BasePydanticVectorStore | None = None,
        *,
        similarity_top_k: int = 10,
        filters: MetadataFilters | None = None,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
        **unknown: object,
    ) -> Self:
        """Return a retriever over the nodes of exactly one source.

        Nodes that are later deleted from ``index``, for example by ``index.delete_ref_doc``, are no
        longer returned. Nodes that are later inserted are found if the index lists its nodes in
        memory, as it does on ``SimpleVectorStore``. On a store that contains text, such as Chroma,
        add them with :meth:`add`. Changes of any other source are not followed, nor are changes of
        an index after a retriever was persisted and loaded.

        Args:
            index: Any LlamaIndex index. Its nodes are read from the vector store if that stores
                text, else from the document store.
            nodes: The nodes. The list can be empty.
            docstore: A LlamaIndex document store.
            vector_store: A vector store that contains text, such as Chroma.
            similarity_top_k: See the class.
            filters: See the class.
            callback_manager: See the class.
            objects: See the class.
            object_map: See the class.
            verbose: See the class.
            unknown: Rejected with an error.

        Raises:
            SettingError: There is not exactly one source, the store cannot list its nodes, or a
                setting is unknown.
        """
        _refuse(unknown)
        sources = {
            "index": index,
            "nodes": nodes,
            "docstore": docstore,
            "vector_store": vector_store,
        }
        given = [name for name, source in sources.items() if source is not None]
        if len(given) != 1:
            raise SettingError(
                f"from_defaults() needs exactly one of {', '.join(sources)} "
                f"(got {' and '.join(given) or 'none'})."
            )
        kinds = {"docstore": BaseDocumentStore, "vector_store": BasePydanticVectorStore}
        for name, kind in kinds.items():
            source = sources[name]
            if source is not None and not isinstance(source, kind):
                raise SettingError(
                    f"`{name}` must be a {kind.__name__} (got {type(source).__name__}). "
                    "For an index, pass index=."
                )
        members = None
        if index is not None:
            members = IndexMembers(index)
            nodes = members.nodes()
        elif vector_store is not None:
            nodes = stored_nodes(vector_store)
        elif docstore is not None:
            nodes = list(docstore.docs.values())
        retriever = cls(
            nodes,
            similarity_top_k=similarity_top_k,
            filters=filters,
            callback_manager=callback_manager,
            objects=objects,
            object_map=object_map,
            verbose=verbose,
        )
        retriever._members = members
        return retriever

    # Changes

    @property
    def index(self) -> KeywordIndex:
        """Return the index of this retriever.

        Raises:
            SettingError: The retriever only reads a store that is maintained elsewhere.
        """
        if not isinstance(self.reader, KeywordIndex):
            raise SettingError(
                "This retriever only reads its store. Change or persist that store instead."
            )
        return self.reader

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Index nodes. A node replaces an indexed node with the same id.

        Raises:
            SettingError: ``nodes`` is not a list of LlamaIndex nodes.
        """
        added = objects_of(
            BaseNode,  # type: ignore[type-abstract]
            nodes,
            "nodes",
            "LlamaIndex nodes",
            "Create a node from a text with TextNode(text=…). For a store, call "
            "ContextualBM25Retriever.from_defaults() with index=, docstore= or vector_store=.",
        )
        for node in added:
            if isinstance(node, IndexNode) and node.obj is not None:
                self.object_map[node.index_id] = node.obj
        self.index.add(added)

    def delete(self, node_ids: Iterable[str]) -> int:
        """Delete nodes by id, ignore unknown ids, and return the number of deleted nodes.

        Raises:
            SettingError: ``node_ids`` is a single id.
        """
        if isinstance(node_ids, str):
            raise SettingError(f"`node_ids` must be a list of ids. Pass [{node_ids!r}].")
        return self.index.delete(node_ids)

    # Answers

    @traced
    def pools(self, queries: Sequence[QueryBundle], size: int, min_matching: int) -> list[Pool]:  # noqa: ARG002
        """Return the best nodes for each query, including those of :meth:`named_chunks`."""
        self._add_inserted()
        texts = [query.query_str for query in queries]
        while True:
            pools: list[Pool] = self.reader.ask(
                lambda store: [self._pool(store, text, size) for text in texts]
            )
            hits = [hit for pool in pools for hit in (*pool.unfiltered, *pool.matching)]
            if not self._drop_deleted([hit.node_id for hit in hits]):
                return pools

    def _add_inserted(self) -> None:
        """Index the nodes that the LlamaIndex index has received since the last query."""
        inserted = None if self._members is None else self._members.inserted_nodes()
        if inserted:
            self.add(inserted)

    def _drop_deleted(self, node_ids: Sequence[str]) -> bool:
        """Delete nodes that the LlamaIndex index no longer has. Return whether there were any."""
        return self._members is not None and self.delete(self._members.deleted_ids(node_ids)) > 0

    def _pool(self, store: KeywordView, text: str, top_k: int) -> Pool:
        """Return the best nodes that match a term, or whose document is named by the query."""
        pool: Pool = store.keyword_query(query_groups(text), top_k, self.filters)
        unfiltered = _with_named(pool.unfiltered, self.named_chunks(store, text), top_k)
        if self.filters is None:
            return Pool(unfiltered, unfiltered)
        rows = store.matching_rows(self.filters).tolist()
        matching = _with_named(pool.matching, self.named_chunks(store, text, rows), top_k)
        return Pool(matching, unfiltered)

    def named_chunks(
        self, store: KeywordView, text: str, rows: Iterable[int] | None = None
    ) -> dict[Candidate, float]:
        """Return the best chunk of each document that a query names, with the value of the name.

        Names are paths, file names, titles, aliases, and the first heading of a document. Terms
        alone cannot find a document whose name is a stop word (``About.md``), or the note
        ``Python`` among hundreds that mention Python.

        Args:
            store: The state of the index.
            text: The query.
            rows: The rows that can be returned. None means all rows.
        """
        documents = store.names.find_named(text)[:_MAX_NAMED]
        if not documents:
            return {}
        admitted_rows = None if rows is None else set(rows)
        named = {}
        for first_row, value in documents:
            document_rows = store.rows_beside(first_row)
            if admitted_rows is not None:
                document_rows = [row for row in document_rows if row in admitted_rows]
            ids = store.ids_of(document_rows[:_MAX_CHUNKS])
            scores = store.term_scores(query_groups(text), ids).scores.sum(axis=1).tolist()
            candidates = [Candidate(*pair) for pair in zip(ids, scores, strict=True)]
            if candidates:
                best = max(candidates, key=lambda candidate: candidate.score or 0.0)
                named[best] = value
        return named

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        text = query_bundle.query_str

        def answer(store: KeywordView) -> list[NodeWithScore]:
            if self.filters is not None and not text.strip():
                ids = store.matching_ids(self.filters)[: self.similarity_top_k]
                candidates = [Candidate(node_id, 0.0) for node_id in ids]
            else:
                candidates = self._pool(store, text, self.similarity_top_k).matching
            nodes = store.nodes([candidate.node_id for candidate in candidates])
            return [
                NodeWithScore(node=nodes[node_id], score=score) for node_id, score, _ in candidates
            ]

        self._add_inserted()
        while True:
            results = self.reader.ask(answer)
            if not self._drop_deleted([result.node.node_id for result in results]):
                return results

    # Nodes and terms

    def __len__(self) -> int:
        return int(self.reader.ask(lambda store: len(store.rows)))

    def matching_ids(self, filters: MetadataFilters | None = None) -> list[str]:
        """Return the ids of the nodes that match these filters and those of the retriever."""
        self._add_inserted()
        all_filters = merge_filters(self.filters, filters)
        return self.reader.ask(lambda store: store.matching_ids(all_filters))

    def term_scores(self, text: str, node_ids: Sequence[str]) -> TermScores:
        """Return the summand of each term of a query in the score of each node."""
        scores: TermScores = self.reader.ask(
            lambda store: store.term_scores(query_groups(text), node_ids)
        )
        return scores

    def suggest(self, query: str) -> list[str]:
        """Return names and words of the index that a misspelt query could mean, best first.

        The list is empty if the index contains all words of the query. This does not search.

        Example:
            ``suggest("dikstra")`` returns ``["Dijkstra's Algorithm", "Dijkstra"]``.
        """
        return self.reader.ask(lambda store: store.suggest(query))

    def empty_filters(self) -> list[str]:
        """Return descriptions of the filters that no node matches, with similar existing values."""
        if self.filters is None or self.filters.condition not in {None, "and"}:
            return []
        members = self.filters.filters

        def find_empty(store: KeywordView) -> list[str]:
            alone = [MetadataFilters(filters=[member]) for member in members]
            empty = [
                filters.filters[0] for filters in alone if not len(store.matching_rows(filters))
            ]
            if not empty:
                return []
            nodes = store.nodes(store.matching_ids()).values()
            metadata_of_nodes = [node.metadata for node in nodes]
            described = [
                describe_filter(member) + suggest_names(member, metadata_of_nodes)
                for member in empty
            ]
            return list(dict.fromkeys(described))

        return self.reader.ask(find_empty)

    # Files

    def get_persist_args(self) -> dict[str, Any]:
        """Return the settings that :meth:`persist` stores."""
        filters = None if self.filters is None else filters_to_dict(self.filters)
        return {"similarity_top_k": self.similarity_top_k, "filters": filters}

    def persist(self, path: str | Path, encoding: str = "utf-8", **_: Any) -> None:  # noqa: ARG002
        """Write the index and the settings to a folder. A crash leaves the old or the new state.

        Args:
            path: The folder. It is created if it does not exist.
            encoding: Ignored, because the files are binary.
        """
        self.index.save(Path(path), self.get_persist_args())

    @classmethod
    def from_persist_dir(cls, path: str | Path, encoding: str = "utf-8", **overrides: Any) -> Self:  # noqa: ARG003
        """Return the retriever that :meth:`persist` wrote, with its settings.

        Args:
            path: The folder.
            encoding: Ignored, because the files are binary.
            overrides: Settings of the class that replace the persisted ones.

        Raises:
            StorageError: The folder contains no index, or the index is damaged.
            FingerprintError: The index was written by a version that splits texts into other terms.
        """
        index, settings = KeywordIndex.load(Path(path))
        if settings["filters"] is not None:
            settings["filters"] = filters_from_dict(settings["filters"])
        retriever = cls(**{**settings, **overrides})
        retriever.reader = index
        return retriever


def _with_named(
    matches: list[Candidate], named: Iterable[Candidate], top_k: int
) -> list[Candidate]:
    """Return the best ``top_k`` matches, among which all named nodes are included."""
    named = list(named)
    if not named:
        return matches
    named_ids = {candidate.node_id for candidate in named}
    unnamed = [candidate for candidate in matches if candidate.node_id not in named_ids]
    best = [*named, *unnamed][:top_k]
    return sorted(best, key=lambda candidate: -(candidate.score or 0.0))


def _refuse(settings: Mapping[str, object]) -> None:
    """Raise a SettingError if the class does not have these settings."""
    reason = ""
    if not _TERM_SETTINGS.isdisjoint(settings):
        reason = (
            "The language of each text and query is detected, and words are stemmed accordingly. "
            "Leave the setting out."
        )
    refuse_unknown("ContextualBM25Retriever", settings, _SETTINGS, reason)
