"""`ContextualIndex`: a folder of documents that can be asked, kept up to date at the least cost."""

from __future__ import annotations

import asyncio
import contextlib
from inspect import signature
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NoReturn, cast

from llama_index_contextual.checks import one_of, refuse_unknown, whole
from llama_index_contextual.documents.sources import gather, readable_documents
from llama_index_contextual.embedding import EmbeddingEstimate, NoEmbedding, model_id
from llama_index_contextual.errors import DamagedError, DocumentError, FingerprintError, SettingError
from llama_index_contextual.index import inspection
from llama_index_contextual.index.background import PATIENCE, Freshness, look_at
from llama_index_contextual.index.inspection import Pending
from llama_index_contextual.index.nodes import to_node
from llama_index_contextual.index.resolve import resolve_settings
from llama_index_contextual.index.settings import IndexSettings
from llama_index_contextual.index.writing import Storage
from llama_index_contextual.metadata import PAGE_LABEL, split_page
from llama_index_contextual.postprocessor.rerank import chosen_postprocessors
from llama_index_contextual.retrievers import POOL, ContextualFusionRetriever
from llama_index_contextual.retrievers.relevance import said_least

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from llama_index.core.base.base_query_engine import BaseQueryEngine
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.chat_engine.types import BaseChatEngine
    from llama_index.core.node_parser import NodeParser
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.readers.base import BaseReader
    from llama_index.core.schema import BaseNode, Document
    from llama_index.core.vector_stores import MetadataFilters
    from typing_extensions import Self, Unpack

    from llama_index_contextual.config import Configuration
    from llama_index_contextual.context.base import ContextGenerator
    from llama_index_contextual.context.fallback import StepOptions
    from llama_index_contextual.context.usage import ContextEstimate, Prices
    from llama_index_contextual.distributed.workers import Hiring
    from llama_index_contextual.documents.files import Discovery, FileRules, Problem
    from llama_index_contextual.index.inspection import IndexStatus, Likeness, Verification
    from llama_index_contextual.index.migration import MigrationReport
    from llama_index_contextual.index.plan import Plan, RefreshReport
    from llama_index_contextual.index.settings import Reindex
    from llama_index_contextual.index.tables import DocumentRow
    from llama_index_contextual.index.vector_store import ContextualVectorStore
    from llama_index_contextual.index.view import View
    from llama_index_contextual.preview import Preview
    from llama_index_contextual.retrievers.options import FusionOptions


class ContextualIndex:
    """A folder of documents, indexed with contexts, kept up to date, and asked.

    ::

        with ContextualIndex.open("docs") as index:
            print(index.refresh())
            for hit in index.as_retriever().retrieve("How do I pin a version?"):
                print(hit.node.metadata["path"], hit.node.metadata["start_line"], hit.node.text)

    One database holds the index; everything else in the storage folder is derived from it. One process writes at a
    time, or many where PostgreSQL has the database. Readers in other processes notice what was written. An object may
    be used by many threads.

    Only :meth:`refresh`, :meth:`delete` and :meth:`contextualize` change an index. Questions change
    nothing on disk, embed no document and ask no context model. :meth:`freshness` says how far the index is behind
    its folder.
    """

    def __init__(self, settings: IndexSettings) -> None:
        if not isinstance(settings, IndexSettings):
            raise SettingError(f"ContextualIndex({settings!r}) opens nothing. Cure: ContextualIndex.open({settings!r})")
        self.settings = settings
        self._storage = Storage(settings)

    @classmethod
    def open(
        cls,
        folder: str | Path | None,
        *,
        storage: str | Path | None = None,
        embed_model: str | BaseEmbedding | None = None,
        context: str | ContextGenerator | None = None,
        node_parser: NodeParser | None = None,
        files: FileRules | None = None,
        readers: Mapping[str, BaseReader] | None = None,
        reindex: Reindex = "auto",
        show_context_to_llm: bool | None = None,
        create: bool = True,
        lock_timeout: float = 0.0,
        database: str | None = None,
        vector_store: Any = None,
        config: str | Path | Configuration | Callable[[Path], Configuration] | None = None,
        **context_options: Unpack[StepOptions],
    ) -> ContextualIndex:
        """Open the index of a folder; nothing is read or embedded before :meth:`refresh`.

        Args:
            folder: The documents; None for the folder that ``storage`` was made from.
            storage: Where the index lives; ``FOLDER/.contextual`` by default. It is of one folder.
            embed_model: ``"local"``, ``"e5"`` (many languages), ``"none"`` (keywords alone), ``"ollama:MODEL"``,
                ``"openai:MODEL"``, another name of docs/embeddings.md, or any LlamaIndex embedding. By default what
                the index was made with, else ``"local"``.
            context: ``"off"``, ``"headings"``, ``"pattern"``, ``"llm"``, or a generator of your own. By default what
                the index was made with, else ``"headings"``.
            node_parser: Any LlamaIndex node parser; by default ours, sized for the embedding.
            files: Which files of the folder are read.
            readers: LlamaIndex readers by suffix, e.g. ``{".pdf": PDFReader()}``.
            reindex: What happens when settings differ from those the index was made with. ``"auto"``: parser and
                context are applied to everything at the next refresh, another embedding model is an error;
                ``"error"``: any difference is one; ``"ignore"``: what is indexed stays as it is; ``"all"``: another
                embedding model too is applied to everything, in a new collection that replaces the old one at the end.
            show_context_to_llm: Whether an answering LLM sees contexts. Default: it does not.
            create: Whether an index that does not exist may be made; False is an error then.
            lock_timeout: Seconds to wait while another process writes.
            database: ``"postgresql://USER@HOST/DATABASE#NAME"`` (extra ``postgres``), where several machines share an
                index and write at once. By default a file in the storage folder.
            vector_store: What keeps vectors beside the matrix: ``"chroma"`` in the storage folder, for more chunks than
                ``[store] exact_limit``; ``"chroma:http://HOST:PORT"``, ``"qdrant:http://HOST:PORT"``, a client of
                Chroma or Qdrant, or a :class:`~llama_index_contextual.vector_stores.VectorEngine` of your own. It is
                derived from the database: naming another one fills that at the next refresh. Default: ``"chroma"``.
            config: A configuration file, or what :func:`load_configuration` read, or a function that reads it for a
                folder. By default ``contextual.toml`` in the folder, where there is one; of a folder that you do not
                trust only what docs/security.md lists as safe. Arguments come before it, and it comes before what the
                index was made with.
            **context_options: Settings of the context generator, e.g. ``llm=``, and which metadata is embedded beside
                a context: ``keep_keys`` and ``leave_out_keys`` of :class:`ContextualNodePostprocessor`.

        Raises:
            SettingError: A setting is wrong.
            FingerprintError: The index was made with another embedding model.
            StorageError: The storage cannot be read.
        """
        settings = resolve_settings(
            folder,
            storage=storage,
            embed_model=embed_model,
            context=context,
            context_options={**context_options},
            show_context_to_llm=show_context_to_llm,
            node_parser=node_parser,
            files=files,
            readers=readers,
            reindex=reindex,
            lock_timeout=lock_timeout,
            database=database,
            vector_store=vector_store,
            config=config,
        )
        index = cls(settings)
        try:
            state = settings.state()
        except DamagedError:
            if not create:
                raise
            return index  # a refresh mends it
        if not create:
            settings.require_index(state)
        settings.check(state)
        return index

    @classmethod
    def contextualize(
        cls, existing: Any, folder: str | Path, *, storage: str | Path | None = None, **settings: Any
    ) -> tuple[ContextualIndex, MigrationReport]:
        """Give the nodes of an index on Chroma contexts, in a new index; the old one is only read.

        Ids and texts stay. Headings and lines come from the source files where the folder has them, else the nodes'
        own metadata has to do. A later :meth:`refresh` of the folder cuts its files afresh, with our parser.

        Args:
            existing: A ``VectorStoreIndex`` on Chroma, a ``ChromaVectorStore``, or a bare Chroma collection.
            folder: Where the source files are.
            storage: Where the new index lives, ``FOLDER/.contextual`` by default; there must be none yet.
            **settings: As for :meth:`open`.

        Raises:
            SettingError: There is an index in the storage already, or ``existing`` is not on Chroma.
        """
        from llama_index_contextual.index.migration import collection_of, migrate

        collection_of(existing)
        index = cls.open(folder, storage=storage, **settings)
        if index.exists:
            raise SettingError(f"there is an index in {index.storage} already. Cure: another storage folder.")
        return index, migrate(existing, index._storage)  # noqa: SLF001  our own

    def __copy__(self) -> Self:
        """Another handle on what is open: a copy of an index is a copy of nothing on disk."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self, memo: object) -> Self:
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        self._storage.reader.__reduce__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database and of the context generator; what was written is safe already."""
        self._storage.reader.close()
        if self.settings.pipeline.contexts.generator is not None:
            self.settings.pipeline.contexts.generator.close()

    @property
    def folder(self) -> Path:
        """The documents."""
        return self.settings.folder

    @property
    def storage(self) -> Path:
        """Where the index lives."""
        return self.settings.layout.root

    @property
    def exists(self) -> bool:
        """Whether anything has been indexed yet."""
        return self.settings.exists

    def documents(self) -> dict[str, DocumentRow]:
        """What is indexed, by path or id: hashes, sizes, numbers of nodes."""
        return {key: one for key, one in self._storage.documents().items() if one.is_indexed}

    def failed(self) -> dict[str, str]:
        """Why files could not be indexed when a refresh met them last, by path."""
        return {key: one.failed for key, one in self._storage.documents().items() if one.failed}

    def files(self, below: str = "") -> list[str]:
        """List the paths of the files that the index reads: POSIX, relative to the folder, in order.

        Args:
            below: Only this file, or the files of this sub-folder.
        """
        return [file.path for file in self._found(below).files]

    def skipped(self) -> list[str]:
        """List the paths of files that no pattern names, and that no ignore file leaves out: they are not read."""
        return self._found().skipped

    def read(self, path: str) -> str | None:
        """Return the text of one file of the folder; None where there is none that the index would read.

        Hidden files, files that ``.gitignore`` names, and links out of the folder count as none.

        Args:
            path: Relative to the folder, in POSIX form. ``report.pdf#page=12`` is that page alone.
        """
        file, page = (path, "") if path in self.files(path) else split_page(path)
        if file not in self.files(file):
            return None
        try:
            documents = self.settings.reading.load(file)
        except DocumentError:  # it went this moment, or is no text
            return None
        if page:
            documents = [one for one in documents if str(one.metadata.get(PAGE_LABEL)) == page]
        return "\n\n".join(document.text for document in documents) if documents else None

    def refresh(
        self,
        source: str | Path | Iterable[Document] | None = None,
        *,
        show_progress: bool = False,
        retry_contexts: bool = True,
        confirm: bool = False,
        workers: str | Hiring | None = None,
    ) -> RefreshReport:
        """Bring the index up to date; only chunks whose embedded text is new are embedded.

        Args:
            source: None for the whole folder; a folder or file inside it, outside of which nothing is deleted; or
                documents, which deletes nothing. Documents need an id that you set, or ``metadata["path"]``.
            show_progress: Whether to show how far it is: bars of files, contexts and embedded chunks in a terminal, a
                line every few seconds on standard error elsewhere.
            retry_contexts: Whether a language model is asked again for contexts that fell back.
            confirm: Whether it may delete more than half of the documents, and pay a language model again for more than
                a fifth of the chunks.
            workers: ``"ray"`` or ``"ray:ADDRESS"`` has documents parsed, contexts made and texts embedded on Ray, to
                the same nodes (extra ``ray``); a :class:`~llama_index_contextual.distributed.RayWorkers` also
                says how many do what. By default all is done in this process.

        Raises:
            ConfirmationError: It would delete or pay for more than that.
            LockedError: Another process is writing.
            FingerprintError: The settings differ and ``reindex`` does not allow it, or one that made the index cannot
                be written down and was not given again.
            EmbeddingError: The model failed; what was finished is kept.
            StorageError: The disk is full, or the storage cannot be written or trusted.
        """
        from llama_index_contextual.index.refresh import refresh_index  # what a question needs not is not imported

        return refresh_index(
            self._storage,
            source,
            show_progress=show_progress,
            retry_contexts=retry_contexts,
            confirm=confirm,
            workers=workers,
        )

    async def arefresh(self, source: str | Path | Iterable[Document] | None = None, **options: Any) -> RefreshReport:
        """Do the same as :meth:`refresh`, without blocking the event loop."""
        return await asyncio.to_thread(self.refresh, source, **options)

    def freshness(self, budget: float = PATIENCE) -> Freshness:
        """Return how far the index is behind its folder; nothing is written, and unchanged files are not read.

        Args:
            budget: Seconds after which the look ends, with what it has seen.

        Raises:
            StorageError: The database cannot be read.
        """
        return look_at(self.settings, self._storage.documents(), budget)

    def estimate(self, prices: Prices | None = None) -> ContextEstimate:
        """Say what contexts for the whole folder would cost, without making any; those in the cache cost nothing.

        A file that cannot be read is left out, with a line in the log.

        Args:
            prices: Money per million tokens.
        """
        documents = readable_documents(self.settings.reading)
        nodes = self.settings.pipeline.parse(documents)
        estimate: ContextEstimate = self.settings.pipeline.contexts.estimate(nodes, documents, prices)
        return estimate

    def estimate_embedding(self) -> EmbeddingEstimate:
        """Say what a refresh would embed and how long that takes, where contexts cost nothing.

        Only documents that are new, changed or outdated are read. A text is embedded once: not where the index has its
        vector. Nothing is written, and no server of a model is asked. A local model embeds a few texts, to see how fast
        it is here.

        Raises:
            SettingError: An LLM would write the contexts, and without them the texts are not known.
        """
        if self.settings.pipeline.paid_source is not None:
            raise SettingError("contexts by an LLM cost something. Cure: estimate() says what.")
        return inspection.embedding_work(self.settings, {} if self._storage.replaces() else self.documents())

    def delete(self, ref_doc_id: str) -> int:
        """Take a document out of the index; returns how many chunks went.

        Args:
            ref_doc_id: Its path relative to the folder, or the id that was given. A file that is still in the folder
                comes back with the next refresh of it.
        """
        if not self.exists:
            return 0  # writing would make an index
        with self._storage.writing() as writer:
            if ref_doc_id not in writer.documents:
                return 0
            count = writer.delete([ref_doc_id])
            writer.finish(whole=False)
            return count

    def drop(self) -> None:
        """Delete the index for good, with the vectors and contexts that it keeps; the documents stay.

        Raises:
            StorageError: There is none, several machines share it, or its storage holds something else, too.
        """
        self._storage.drop()

    def as_retriever(
        self,
        similarity_top_k: int | None = None,
        *,
        filters: MetadataFilters | None = None,
        recency: bool | float | None = None,
        rerank: str | BaseNodePostprocessor | Literal[False] | None = None,
        **options: Unpack[FusionOptions],
    ) -> ContextualFusionRetriever:
        """A retriever that fuses vectors and BM25 over the newest state of the index, whoever wrote it.

        An index without an embedding has the keyword arm alone.

        Args:
            similarity_top_k: How many chunks to return. Default: what the configuration says, else 10.
            filters: LlamaIndex metadata filters, e.g. on ``path`` or ``date_ts``.
            recency: Whether newer notes win among near equals; a number is the half-life in days. Default: what the
                configuration says, else False.
            rerank: What ranks the hits of the arms again, by context and text: ``"cohere:MODEL"``, ``"jina:MODEL"``,
                ``"llama.cpp:http://HOST"``, ``"fastembed:MODEL"``, ``"sentence-transformers:MODEL"``, ``"llm"``,
                ``"ollama:MODEL"``, ``"openai:MODEL"``, or any LlamaIndex postprocessor. False is none. Default: what
                the configuration says, else none.
            **options: More settings of :class:`ContextualFusionRetriever`. ``mode``, ``retriever_weights`` or ``rrf_k``
                come before the fusion of the configuration. ``node_postprocessors`` replace those of the configuration,
                of ``recency`` and of ``rerank``.

        Raises:
            SettingError: A setting is wrong, or a reranker has no key.
            MissingExtraError: The package that runs a reranker is not installed.
        """
        known = {*signature(ContextualFusionRetriever.__init__).parameters, "filters", "recency", "rerank"}
        refuse_unknown("as_retriever", options, known - {"self", "retrievers"})
        if self._storage.replaces():
            raise FingerprintError("the index is still another embedding model's. Cure: refresh() first.")
        said = self.settings.configuration.retrieval
        if similarity_top_k is None:
            similarity_top_k = said.top_k or 10
        similarity_top_k = whole("similarity_top_k", similarity_top_k)
        arms = self._storage.reader.arms(filters)
        options.setdefault("candidate_pool", max(POOL, similarity_top_k))  # who asks for 200 hits need not know of it
        options.setdefault("min_score", said.min_score or 0.0)
        if "node_postprocessors" not in options:
            options["node_postprocessors"] = chosen_postprocessors(
                said,
                recency,
                rerank,
                pool=options["candidate_pool"],
                llm=self.settings.configuration.context.llm.llm,
            )
        if len(arms) > 1 and not {"mode", "retriever_weights", "rrf_k"} & set(options):
            options["mode"] = said.mode
            if "keyword_weight" in said.explicit():
                options["retriever_weights"] = [1 - said.keyword_weight, said.keyword_weight]
        return ContextualFusionRetriever(arms, similarity_top_k=similarity_top_k, **options)

    @property
    def vector_store(self) -> ContextualVectorStore:
        """This index as LlamaIndex's ``VectorStoreIndex.from_vector_store(…)`` takes it, whatever keeps the vectors."""
        from llama_index_contextual.index.vector_store import ContextualVectorStore

        return ContextualVectorStore(self)

    def as_query_engine(
        self, llm: Any = None, *, similarity_top_k: int = 5, citations: bool = False, **options: Any
    ) -> BaseQueryEngine:
        """A query engine that answers from the index.

        Args:
            llm: Answers. Default: LlamaIndex's ``Settings.llm``; with ``citations`` it may also be a name, as for
                :class:`~llama_index_contextual.answering.CitedSynthesizer`, which has a default of its own.
            similarity_top_k: Most chunks of a prompt.
            citations: Whether each sentence names its source, ``[1]`` for the first of ``source_nodes``. A number or a
                quotation that is wrong is marked, and where nothing is relevant no model is asked.
            **options: Of :meth:`as_retriever` and of LlamaIndex's ``RetrieverQueryEngine.from_args``.
        """
        from llama_index.core.query_engine import RetrieverQueryEngine

        make = RetrieverQueryEngine.from_args
        if citations:
            from llama_index_contextual.answering import CitedSynthesizer

            refuse_unknown("citations=True", {"response_synthesizer"} & options.keys(), ())
            options.setdefault("min_score", said_least(self.settings.configuration.retrieval.min_score))
            writer = CitedSynthesizer(llm, streaming=options.get("streaming", False))
            options, llm = {**options, "response_synthesizer": writer}, writer.llm
        retriever, rest = self._retriever_of("as_query_engine", make, similarity_top_k, options)
        return make(retriever, llm=llm, **rest)

    def as_chat_engine(
        self, chat_mode: str = "condense_plus_context", llm: Any = None, *, similarity_top_k: int = 5, **options: Any
    ) -> BaseChatEngine:
        """A chat engine that answers from the index, and also what the index knows nothing of, such as a greeting.

        Args:
            chat_mode: As LlamaIndex names them. ``"condense_plus_context"`` (also ``"best"``) makes a question of the
                conversation, ``"context"`` searches for the message as it is, ``"condense_question"`` asks a query
                engine.
            llm: Answers; default LlamaIndex's ``Settings.llm``.
            similarity_top_k: Most chunks of a prompt.
            **options: Of :meth:`as_retriever` and of the engine's ``from_defaults``: ``memory``, ``chat_history``,
                ``system_prompt``, ``context_prompt`` ...

        Raises:
            SettingError: A setting is wrong, or neither the retriever nor the engine takes it.
        """
        from llama_index.core import chat_engine
        from llama_index.core.query_engine import RetrieverQueryEngine

        engines: dict[str, Any] = {
            "condense_plus_context": chat_engine.CondensePlusContextChatEngine,
            "best": chat_engine.CondensePlusContextChatEngine,
            "context": chat_engine.ContextChatEngine,
            "condense_question": chat_engine.CondenseQuestionChatEngine,
        }
        one_of("chat_mode", chat_mode, tuple(engines))
        make = engines[chat_mode].from_defaults
        retriever, rest = self._retriever_of("as_chat_engine", make, similarity_top_k, options)
        if chat_mode == "condense_question":
            asked = RetrieverQueryEngine.from_args(retriever, llm=llm)
            return cast("BaseChatEngine", make(query_engine=asked, llm=llm, **rest))
        return cast("BaseChatEngine", make(retriever=retriever, llm=llm, **rest))

    def _retriever_of(
        self, what: str, make: Callable[..., Any], similarity_top_k: int, options: Mapping[str, Any]
    ) -> tuple[ContextualFusionRetriever, dict[str, Any]]:
        """Return the retriever of an engine, and those options that are the engine's own."""
        own = {*signature(make).parameters} - {"kwargs"}
        known = {*signature(ContextualFusionRetriever.__init__).parameters, "filters", "recency", "rerank"}
        refuse_unknown(what, options, (known | own) - {"self", "retriever", "retrievers"})
        retrieving = {key: value for key, value in options.items() if key in known - {"node_postprocessors"}}
        rest = {key: value for key, value in options.items() if key not in retrieving}
        return self.as_retriever(similarity_top_k, **retrieving), rest

    def status(self) -> IndexStatus:
        """What the index holds, made with which settings, and how far behind the folder it is."""
        pending = Pending.of(*self._planned())
        return self._storage.reader.ask(lambda view: inspection.status(self.settings, view, pending))

    def verify(self) -> Verification:
        """Whether files, database and engines agree; nothing is changed. Reads everything."""
        plan, failed = self._planned()
        self.settings.require_index()
        self.settings.database.check()
        return self._storage.reader.ask(lambda view: inspection.verify(self.settings, view, plan, failed))

    def preview(self, path: str | Path) -> Preview:
        """Return the chunks that a file has with this index's settings; a notebook draws them as a page.

        The file is read as it is now, and nothing is indexed. Where contexts cost something, free ones stand in.

        Args:
            path: A file of the folder, relative to it or absolute.

        Raises:
            DocumentError: The file cannot be read, or is not in the folder.
        """
        from llama_index_contextual.preview import preview_file

        file, pipeline = (self.folder / path).resolve(), self.settings.pipeline
        reader = self.settings.reading.reader_of(file.name)
        return preview_file(file, pipeline.parser, pipeline.contexts, self.folder, reader)

    def nodes(self, document: str | None = None) -> list[BaseNode]:
        """Every node of the index, as new objects without vectors, in the order in which they were written.

        Args:
            document: Only those of this path or id.
        """

        def read(view: View) -> list[BaseNode]:
            rows = view.snapshot.nodes() if document is None else view.snapshot.nodes_of([document]).get(document, ())
            return [to_node(row) for row in rows]

        return self._storage.reader.ask(read)

    def values(self, key: str) -> list[Any]:
        """The value of a metadata key of every node; None where one has none."""
        return self._storage.reader.ask(lambda view: view.snapshot.column(key))

    def likeness(self) -> Likeness:
        """How alike the chunks are, by their vectors, and how many neighbours share a context; 0 without vectors."""
        if isinstance(self.settings.embedding, NoEmbedding):
            return inspection.Likeness(0.0, 0.0, 0.0)
        model = model_id(self.settings.embedding)
        return self._storage.reader.ask(lambda view: inspection.likeness(view.snapshot, model))

    def export(self, target: str | Path | IO[str]) -> int:
        """Write every chunk as one JSON object a line, to a path or an open file; returns how many."""
        with contextlib.ExitStack() as stack:
            nodes = self._storage.reader.ask(lambda view: inspection.exported(view.snapshot))
            file = (
                stack.enter_context(Path(target).open("w", encoding="utf-8"))
                if isinstance(target, str | Path)
                else target
            )
            return inspection.export(nodes, file)

    def _found(self, below: str = "") -> Discovery:
        known = [key for key, one in self._storage.documents().items() if one.kind == "file"]
        return self.settings.reading.find(below, known=known)

    def _planned(self) -> tuple[Plan, list[Problem]]:
        failed: list[Problem] = []
        documents = self._storage.documents()
        sources, _ = gather(None, self.settings.reading, documents, failed)
        return inspection.planned(self.settings, documents, sources, failed)
