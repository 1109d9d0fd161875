"""BM25 over the EMBED view and the lexical context, changed in place."""

from __future__ import annotations

import asyncio
import copy
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import BaseNode, IndexNode, MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual.analysis import Analyzer
from llama_index_contextual.checks import amount, whole
from llama_index_contextual.errors import FingerprintError, SettingError, StorageError
from llama_index_contextual.metadata import FRONT_MATTER, LEXICAL_CONTEXT
from llama_index_contextual.retrievers.candidates import Candidate
from llama_index_contextual.retrievers.chroma import stored_ids, stored_nodes
from llama_index_contextual.retrievers.evidence import TermEvidence, evidence_in
from llama_index_contextual.retrievers.filter_masks import FilterMasks
from llama_index_contextual.retrievers.filters import both, check_filters
from llama_index_contextual.retrievers.lexical_index import LexicalIndex, Masks, Snapshot
from llama_index_contextual.retrievers.persistence import load, save

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.vector_stores.types import BasePydanticVectorStore

logger = logging.getLogger(__name__)

K1: Final = 1.2
B: Final = 0.75
_MORE_WORDS: Final = (LEXICAL_CONTEXT, FRONT_MATTER)


def lexical_text(node: BaseNode) -> str:
    """What BM25 reads of a node: the EMBED view and, after it, the lexical context and the front matter."""
    text = node.get_content(metadata_mode=MetadataMode.EMBED)
    return "\n".join([text, *(str(node.metadata[key]) for key in _MORE_WORDS if node.metadata.get(key))])


class ContextualBM25Retriever(BM25Retriever):
    """Keyword retrieval that follows single edits, filters, persists, and shares its index between views.

    It is LlamaIndex's ``BM25Retriever`` to whoever asks, with another engine: one analyzer for documents and queries,
    and term frequencies in segments, so that adding or deleting a node touches that node only and scores still equal
    those of a full rebuild. Scores are BM25 (Lucene's form), greater than 0; a node without a matching term is never
    returned; ties break by node id. Nodes come back as new objects, equal (same ``hash``) to those of the vector store.

    Thread-safe: readers work on an immutable snapshot, writers take turns.

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
        self._index = LexicalIndex(amount("k1", k1), amount("b", b, zero=True, most=1))
        self._masks = FilterMasks()
        if nodes:  # a live index need not exist yet
            self.add(nodes)

    @classmethod
    def from_defaults(  # type: ignore[override]
        cls,
        index: Any | None = None,
        nodes: Sequence[BaseNode] | None = None,
        docstore: Any | None = None,
        vector_store: BasePydanticVectorStore | None = None,
        **settings: Any,
    ) -> ContextualBM25Retriever:
        """Build from exactly one of four sources.

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
        given = {"index": index, "nodes": nodes, "docstore": docstore, "vector_store": vector_store}
        named = [name for name, value in given.items() if value is not None]
        if len(named) != 1:
            raise SettingError(f"Sources given: {named or 'none'}. Cure: exactly one of {', '.join(given)}.")
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

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Index nodes; a node whose id is indexed already replaces the old one. Only these nodes are analysed."""
        self.object_map.update({n.index_id: n.obj for n in nodes if isinstance(n, IndexNode) and n.obj is not None})
        self._index.add(nodes, lambda node: self.analyzer.tokens(lexical_text(node)))

    def update(self, nodes: Sequence[BaseNode]) -> None:
        """The same as :meth:`add`, for callers that think of it as a change."""
        self.add(nodes)

    def delete(self, node_ids: Iterable[str]) -> int:
        """Delete nodes by id; unknown ids are ignored.

        Returns:
            How many were deleted.
        """
        return self._index.delete(node_ids)

    def with_filters(self, filters: MetadataFilters | None) -> ContextualBM25Retriever:
        """A view that returns only what the filters admit (beside this one's own). Shares the index, costs nothing."""
        return self.with_settings(filters=both(self.filters, filters))

    def with_settings(self, **settings: Any) -> ContextualBM25Retriever:
        """A view with another ``similarity_top_k`` or ``filters`` on the same index."""
        unknown = set(settings) - {"similarity_top_k", "filters"}
        if unknown:
            raise SettingError(f"{sorted(unknown)} cannot differ between views. Cure: similarity_top_k or filters.")
        check_filters(settings.get("filters"))
        if "similarity_top_k" in settings:
            settings["similarity_top_k"] = whole("similarity_top_k", settings["similarity_top_k"])
        view = copy.copy(self)
        view.__dict__.update(settings)
        return view

    # Reading it

    def __len__(self) -> int:
        return self._index.snapshot.count

    @property
    def snapshot(self) -> Snapshot:
        """What the index holds now; it does not change when the index does."""
        return self._index.snapshot

    @property
    def node_ids(self) -> list[str]:
        """Ids of the nodes that this view may return."""
        snapshot = self._index.snapshot
        return snapshot.ids(self._masks_for(snapshot))

    def selected_ids(self, filters: MetadataFilters | None) -> list[str]:
        """Ids of the nodes that these filters and this view's own admit."""
        snapshot = self._index.snapshot
        wanted = both(self.filters, filters)
        return snapshot.ids(None if wanted is None else self._masks.of(snapshot, wanted))

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """New node objects for those of the ids that are indexed."""
        snapshot = self._index.snapshot
        places = {node_id: place for node_id in node_ids if (place := snapshot.locate(node_id))}
        return {node_id: snapshot.node(*place) for node_id, place in places.items()}

    def document_frequency(self, text: str) -> dict[str, int]:
        """For each term of a text, how many nodes of the index hold it: 1 is rare, 0 is unknown."""
        snapshot = self._index.snapshot
        return {group[0]: snapshot.frequency(group) for group in self.analyzer.query_groups(text)}

    def evidence(self, text: str, node_ids: Iterable[str]) -> dict[str, list[TermEvidence]]:
        """Which terms of a query each node holds, most important first; [] for a node that holds none."""
        return evidence_in(self._index.snapshot, self.analyzer.query_groups(text), node_ids)

    def candidates(self, query: QueryBundle, top_k: int) -> list[Candidate]:
        """Ids and scores of the best ``top_k``, best first; [] for a query without terms."""
        snapshot = self._index.snapshot
        groups = self.analyzer.query_groups(query.query_str)
        matches = snapshot.search(groups, top_k, self._masks_for(snapshot))
        return [Candidate(match.node_id, match.score) for match in matches]

    def _masks_for(self, snapshot: Snapshot) -> Masks | None:
        return None if self.filters is None else self._masks.of(snapshot, self.filters)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        snapshot = self._index.snapshot
        groups = self.analyzer.query_groups(query_bundle.query_str)
        matches = snapshot.search(groups, self.similarity_top_k, self._masks_for(snapshot))
        return [NodeWithScore(node=snapshot.node(match.segment, match.row), score=match.score) for match in matches]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)

    # Keeping it on disk

    def get_persist_args(self) -> dict[str, Any]:
        """Every setting that persisting keeps."""
        return {
            "similarity_top_k": self.similarity_top_k,
            "k1": self._index.k1,
            "b": self._index.b,
            "filters": None if self.filters is None else self.filters.model_dump(mode="json"),
            "analyzer": self.analyzer.settings,
        }

    def persist(
        self,
        path: str | Path,
        encoding: str = "utf-8",  # noqa: ARG002  part of the base class's interface
        *,
        stamp: str | None = None,
        **_kwargs: Any,
    ) -> None:
        """Write the index and every setting to a folder, so that a crash leaves the old or the new state.

        Only what changed since it was last persisted there is written.

        Args:
            path: The folder; made if it is missing.
            encoding: Ignored: the format fixes it.
            stamp: What the index was made from (a version, a hash); loading can ask for it.
        """
        settings = {**self.get_persist_args(), "fingerprint": self.analyzer.fingerprint, "stamp": stamp}
        save(Path(path), self._index.snapshot, settings)

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
        """Load what :meth:`persist` wrote, every setting included.

        Args:
            path: The folder.
            encoding: Ignored: the format fixes it.
            stamp: Refuse an index that was persisted with another stamp.
            analyzer: Refuse an index whose terms another analyzer made.
            overrides: ``similarity_top_k``, ``filters``, ``k1``, ``b``, ``callback_manager``, ``object_map``, for
                those that were persisted.

        Raises:
            StorageError: There is no index, or it is damaged.
            FingerprintError: It was made from something else, or with another analyzer or version of it.
        """
        settings, segments, terms = load(Path(path))
        made_by, made_from = settings.pop("fingerprint"), settings.pop("stamp")
        own = Analyzer.from_settings(settings.pop("analyzer"))
        if made_by != (analyzer or own).fingerprint:
            raise FingerprintError(f"{path} holds terms of another analyzer or version. Cure: build it again.")
        if stamp is not None and stamp != made_from:
            raise FingerprintError(f"{path} is stale: made from {made_from!r}, wanted {stamp!r}. Cure: build it again.")
        if settings["filters"] is not None:
            settings["filters"] = MetadataFilters.model_validate(settings["filters"])
        retriever = cls(analyzer=analyzer or own, **{**settings, **overrides})
        retriever._index.load(segments, terms)
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
        """Load from a folder, bring up to date with a Chroma store, and persist: the store is the truth.

        A missing, damaged or stale index is built again. Otherwise ids are compared: nodes that the store no longer
        has are deleted and new ones added. (A changed text under an old id shows only in the ``stamp``.)

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
            changed = True
        else:
            changed = retriever.reconcile(vector_store)
        if changed:
            retriever.persist(path, stamp=stamp)
        return retriever

    def reconcile(self, vector_store: BasePydanticVectorStore) -> bool:
        """Delete nodes that the store no longer has, add those that are new to it, by id.

        Returns:
            Whether anything changed.
        """
        known, stored = set(self._index.snapshot.ids()), set(stored_ids(vector_store))
        gone, new = known - stored, stored - known
        self.delete(gone)
        if new:
            self.add(stored_nodes(vector_store, sorted(new)))
        return bool(gone or new)
