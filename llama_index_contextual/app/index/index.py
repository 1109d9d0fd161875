"""`ContextualIndex`: a folder of documents that can be searched and is kept up to date."""

from __future__ import annotations

import contextlib
import logging
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index_contextual.app.folder.sources import gather
from llama_index_contextual.app.folder.walk import FileRules, Problem
from llama_index_contextual.app.index.query import IndexReader
from llama_index_contextual.app.index.settings import IndexSettings, open_settings
from llama_index_contextual.app.index.status import PATIENCE, Freshness, freshness_of, index_status
from llama_index_contextual.retrievers.fusion import POOL, ContextualFusionRetriever
from llama_index_contextual.utils.errors import DamagedError, DocumentError, refuse_unknown, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.node_parser import NodeParser
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.readers.base import BaseReader
    from llama_index.core.schema import BaseNode, Document
    from llama_index.core.vector_stores import MetadataFilters
    from typing_extensions import Self

    from llama_index_contextual.app.index.folder_notes import FolderNotes
    from llama_index_contextual.app.index.rows import DocumentRow
    from llama_index_contextual.app.index.status import IndexStatus, RefreshReport
    from llama_index_contextual.context.base import ContextEstimate, ContextGenerator

logger = logging.getLogger(__name__)
_PARAMETERS = {*signature(ContextualFusionRetriever.__init__).parameters} - {
    "self",
    "retrievers",
}
# The keyword arguments of :meth:`ContextualIndex.as_retriever`.
_OPTIONS = _PARAMETERS | {"filters", "recency", "rerank"}


class ContextualIndex:
    """A folder of documents, indexed with contexts, kept up to date, and searched.

    ::

        with ContextualIndex.open("docs") as index:
            print(index.refresh())
            for hit in index.as_retriever().retrieve("How do I pin a version?"):
                print(hit.node.metadata["path"], hit.node.metadata["start_line"], hit.node.text)

    One process writes at a time. Readers in other processes see what it wrote. Threads can share an
    object. Only :meth:`refresh` and :meth:`delete` change an index: a query changes nothing on
    disk, embeds no documents and generates no contexts.
    """

    def __init__(self, settings: IndexSettings) -> None:
        self._reader = IndexReader(settings)
        self.settings = settings

    @classmethod
    def open(
        cls,
        folder: str | Path | Mapping[str, str | Path] | None,
        *,
        storage: str | Path | None = None,
        embed_model: str | BaseEmbedding | None = None,
        context: str | ContextGenerator | None = None,
        node_parser: NodeParser | None = None,
        readers: Mapping[str, BaseReader] | None = None,
        files: FileRules | None = None,
        reindex: bool = False,
        config: Mapping[str, Any] | None = None,
        create: bool = True,
        **context_options: Any,
    ) -> ContextualIndex:
        """Open the index of a folder. Only :meth:`refresh` reads and embeds documents.

        An index remembers the settings that it was made with, so a later process need not repeat
        them. It does not remember Python objects: a refresh without them indexes the documents
        again, with the settings of that process.

        Args:
            folder: The folder of the documents. For several folders, a mapping from names to
                paths; they are added to the folders of the storage. None means the folders that
                ``storage`` was made from.
            storage: The folder of the index. Default: one for each folder, in the user's data
                directory.
            embed_model: A name from docs/guides/embeddings.md, or any LlamaIndex embedding.
                Default: that of the index, else ``"local"``.
            context: ``"off"``, ``"headings"`` (or ``"headers"``), ``"pattern"``, ``"llm"``, or your
                own generator. Default: that of the index, else ``"headings"``.
            node_parser: Any LlamaIndex node parser. Default: the parser of this package, with
                chunks that fit the embedding.
            readers: LlamaIndex readers by suffix, e.g. ``{".pdf": PDFReader()}``.
            files: The rules that select the files to read.
            reindex: Whether the next refresh may rebuild the index for another embedding model.
                Otherwise another model is an error.
            config: Settings by key (``"retrieval.top_k"``). They override the index, settings files
                and environment variables. Other arguments override them.
            create: Whether to create an index that does not exist. Otherwise that is an error.
            **context_options: Options of the context generator, such as ``llm=``, and settings that
                are in no table, such as ``show_context_to_llm``.

        Raises:
            SettingError: A setting is not valid.
            FingerprintError: The index was made with another embedding model.
            StorageError: The storage cannot be read.
        """
        passed = {
            "embed_model": embed_model,
            "context": context,
            "node_parser": node_parser,
            "readers": readers,
            "files": files,
        }
        settings = open_settings(
            folder, storage, config, reindex=reindex, passed=passed, context_options=context_options
        )
        if not create:
            with settings.database.reading() as snapshot:  # raises an error if there is no index
                settings.replaces(snapshot.state)
            return cls(settings)
        with contextlib.suppress(DamagedError):  # a refresh repairs it
            settings.replaces(settings.database.state())
        _ = settings.contexts, settings.parser  # raises errors of these settings now
        return cls(settings)

    def __deepcopy__(self, memo: object) -> Self:
        return self  # a copy would share the same files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the databases and the context generator."""
        self.settings.close()

    @property
    def folder(self) -> Path:
        """Return the folder of the documents; of several folders, the storage of their index."""
        return self.settings.folders.root

    @property
    def storage(self) -> Path:
        """Return the folder in which the index is stored."""
        return self.settings.layout.root

    @property
    def exists(self) -> bool:
        """Return whether anything has been indexed yet."""
        return self.settings.exists

    def refresh(
        self,
        documents: Iterable[Document] | None = None,
        *,
        show_progress: bool = False,
        retry_contexts: bool = True,
        confirm: bool = False,
    ) -> RefreshReport:
        """Bring the index up to date. Only chunks whose embedded text is new are embedded.

        Args:
            documents: Documents to add or replace; nothing is deleted then. Each needs an id that
                you set, or ``metadata["path"]``. None means the files of the folder.
            show_progress: Whether to show a progress bar on a terminal.
            retry_contexts: Whether to generate contexts again that fell back to free ones.
            confirm: Whether the refresh may delete more than half of the documents, and pay a
                language model again for more than a fifth of the chunks.

        Raises:
            ConfirmationError: The refresh would exceed one of these limits.
            LockedError: Another process is writing.
            EmbeddingError: The embedding model failed. Finished documents are kept.
            StorageError: The disk is full, or the storage cannot be written or trusted.
        """
        # A query does not need this module.
        from llama_index_contextual.app.index.refresh import refresh_index

        options = {
            "show_progress": show_progress,
            "retry_contexts": retry_contexts,
            "confirm": confirm,
        }
        return refresh_index(self.settings, documents, **options)

    def delete(self, ref_doc_id: str) -> int:
        """Delete a document by its path or id, and return the number of its chunks.

        A file that is still in the folder is indexed again by the next refresh.

        Raises:
            DamagedError: The index is damaged. A refresh builds it again.
        """
        from llama_index_contextual.app.index.refresh import writing

        database = self.settings.database
        if ref_doc_id not in database.documents():
            return 0
        with writing(self.settings), database.writing() as transaction:
            return transaction.delete_documents([ref_doc_id])

    def freshness(self, budget: float = PATIENCE) -> Freshness:
        """Return how far the index is behind its folder, after at most ``budget`` seconds."""
        return freshness_of(self.settings, self.settings.database.documents(), budget)

    def status(self, *, check: bool = False) -> IndexStatus:
        """Return what the index contains, its settings, and how far it is behind its folder.

        Args:
            check: Whether to read everything and compare files, databases and caches. The
                differences are in ``problems``.

        Raises:
            StorageError: There is no index, or it is damaged.
        """
        return index_status(self.settings, check=check)

    def estimate(self) -> ContextEstimate:
        """Estimate the cost of contexts for the whole folder. Cached contexts cost nothing.

        Files that cannot be read are left out, with a warning in the log.
        """
        settings = self.settings
        failed: list[Problem] = []
        documents: list[Document] = []
        for source in gather(None, settings.folder_reader, {}, failed):
            try:
                documents += source.load().documents
            except DocumentError as error:  # noqa: PERF203  the next one may be read
                failed.append(Problem(source.id, str(error)))
        for problem in failed:
            logger.warning("Left out: %s", problem)
        nodes = settings.parser.get_nodes_from_documents(documents)
        estimate: ContextEstimate = settings.contexts.estimate(nodes, documents)
        return estimate

    def documents(self) -> dict[str, DocumentRow]:
        """Return the indexed documents by path or id, with their hashes and numbers of nodes."""
        rows = self.settings.database.documents()
        return {key: row for key, row in rows.items() if row.is_indexed}

    def files(self) -> list[str]:
        """Return the paths of the files that the index reads."""
        return [file.path for file in self.settings.find_files().files]

    def read(self, path: str) -> str | None:
        """Return the text of a file of the folder; None if the index does not read such a file.

        Args:
            path: The path relative to the folder, in POSIX form. ``report.pdf#page=12`` is one
                page.
        """
        return self.notes.text(path)

    @property
    def notes(self) -> FolderNotes:
        """Return the documents as the tools for agents read them."""
        from llama_index_contextual.app.index.folder_notes import FolderNotes

        return FolderNotes(self.settings)

    def nodes(self, document: str | None = None) -> list[BaseNode]:
        """Return the nodes of the index or of a document, as new objects without vectors."""
        with self.settings.database.reading() as snapshot:
            rows = snapshot.rows() if document is None else snapshot.rows_of_document(document)
            return [*snapshot.nodes(rows)]

    def as_retriever(
        self,
        similarity_top_k: int | None = None,
        *,
        filters: MetadataFilters | None = None,
        recency: bool | float | None = None,
        rerank: BaseNodePostprocessor | None = None,
        **options: Any,
    ) -> ContextualFusionRetriever:
        """Return a retriever that fuses vectors and BM25 over the newest state of the index.

        Without an embedding it searches by BM25 alone.

        Args:
            similarity_top_k: The number of chunks to return. Default: as configured, else 10.
            filters: LlamaIndex metadata filters, e.g. on ``path`` or ``date_ts``.
            recency: Whether newer notes come first among hits of nearly equal score. A number is
                the half-life in days. Default: as configured, else False.
            rerank: Any LlamaIndex postprocessor that reranks the hits.
            **options: Further settings of :class:`ContextualFusionRetriever`, which override the
                configuration.

        Raises:
            SettingError: A setting is not valid.
        """
        refuse_unknown("as_retriever", options, _OPTIONS)
        defaults = self.settings.configuration
        top_k = whole("similarity_top_k", similarity_top_k or defaults["retrieval.top_k"] or 10)
        options.setdefault("candidate_pool", max(POOL, top_k))
        options.setdefault("min_score", defaults["retrieval.min_score"] or 0.0)
        if "node_postprocessors" not in options:
            options["node_postprocessors"] = self._reader.postprocessors(recency, rerank)
        retrievers = self._reader.retrievers(filters)
        if len(retrievers) == 1 and not options.keys() & {"rrf_k", "retriever_weights"}:
            # The features for names, dates and definitions need no vectors.
            options.setdefault("mode", "learned")
        return ContextualFusionRetriever(retrievers, similarity_top_k=top_k, **options)
