"""`ContextualIndex`: a folder of documents that can be asked, kept up to date at the least cost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from llama_index_contextual.app.folder.sources import readable_documents
from llama_index_contextual.app.index import status as inspection
from llama_index_contextual.app.index.background import PATIENCE, Freshness, look_at
from llama_index_contextual.app.index.queries import IndexQueries
from llama_index_contextual.app.index.resolve import resolve_settings
from llama_index_contextual.app.index.settings import IndexSettings
from llama_index_contextual.app.index.status import Pending
from llama_index_contextual.app.index.writer import Storage
from llama_index_contextual.errors import DamagedError, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.node_parser import NodeParser
    from llama_index.core.readers.base import BaseReader
    from llama_index.core.schema import Document
    from typing_extensions import Self

    from llama_index_contextual.app.index.plan import RefreshReport
    from llama_index_contextual.app.index.query import IndexView
    from llama_index_contextual.app.index.settings import Reindex
    from llama_index_contextual.app.index.status import IndexStatus
    from llama_index_contextual.app.preview import Preview
    from llama_index_contextual.app.settings.embeddings import EmbeddingEstimate
    from llama_index_contextual.app.settings.schema import Configuration
    from llama_index_contextual.context import ContextEstimate, ContextGenerator


class ContextualIndex(IndexQueries):
    """A folder of documents, indexed with contexts, kept up to date, and asked.

    ::

        with ContextualIndex.open("docs") as index:
            print(index.refresh())
            for hit in index.as_retriever().retrieve("How do I pin a version?"):
                print(hit.node.metadata["path"], hit.node.metadata["start_line"], hit.node.text)

    Two files hold the index, and what was paid for; the cache beside them is derived. One process writes at a
    time. Readers in other processes notice what was written. An object may
    be used by many threads.

    Only :meth:`refresh` and :meth:`delete` change an index. Questions change
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
        folder: str | Path | Mapping[str, Any] | None,
        *,
        storage: str | Path | None = None,
        embed_model: str | BaseEmbedding | None = None,
        context: str | ContextGenerator | None = None,
        node_parser: NodeParser | None = None,
        readers: Mapping[str, BaseReader] | None = None,
        reindex: Reindex = "auto",
        config: str | Path | Configuration | Callable[[Path], Configuration] | None = None,
        **options: Any,
    ) -> ContextualIndex:
        """Open the index of a folder; nothing is read or embedded before :meth:`refresh`.

        Args:
            folder: The documents. Several folders are a mapping of names to paths, or to mappings with ``path`` and
                perhaps ``description``, ``include``, ``exclude`` and ``weight``; the paths of their documents begin
                with the name, and they join those that the storage has already. None is what ``storage`` was made
                from; without a storage the folders of ``[collections]`` in the user's own configuration.
            storage: Where the index lives; ``FOLDER/.contextual`` by default.
            embed_model: ``"local"``, ``"e5"`` (many languages), ``"none"`` (keywords alone), ``"ollama:MODEL"``,
                ``"openai:MODEL"``, another name of docs/embeddings.md, or any LlamaIndex embedding. By default what
                the index was made with, else ``"local"``.
            context: ``"off"``, ``"headings"`` (or ``"headers"``), ``"pattern"``, ``"llm"``, or a generator of your own.
                By default what the index was made with, else ``"headings"``.
            node_parser: Any LlamaIndex node parser; by default ours, sized for the embedding. Like readers and a
                generator of your own it is not written down: whoever refreshes the index gives it again.
            readers: LlamaIndex readers by suffix, e.g. ``{".pdf": PDFReader()}``.
            reindex: What happens when settings differ from those the index was made with. ``"auto"``: parser and
                context are applied to everything at the next refresh, another embedding model is an error;
                ``"error"``: any difference is one; ``"ignore"``: what is indexed stays as it is; ``"all"``: another
                embedding model too is applied to everything, in a file beside the index that replaces it at the end.
            config: A configuration file, or what :func:`load_configuration` read, or a function that reads it for a
                folder. By default ``contextual.toml`` in the folder, where there is one; of a folder that you do not
                trust only what docs/security.md lists as safe. Arguments come before it, and it comes before what the
                index was made with.
            **options: ``files``, which files of the folder are read; ``show_context_to_llm``, whether an answering LLM
                sees contexts; ``create=False``, so that an index that does not exist is an error; ``lock_timeout``,
                seconds to wait while another process writes. All others are of the context generator, e.g. ``llm=``, or
                say which metadata is embedded beside a context: ``keep_keys`` and ``leave_out_keys`` of
                :class:`ContextualNodePostprocessor`.

        Raises:
            SettingError: A setting is wrong.
            FingerprintError: The index was made with another embedding model.
            StorageError: The storage cannot be read.
        """
        create, lock_timeout = bool(options.pop("create", True)), options.pop("lock_timeout", 0.0)
        files, shown = options.pop("files", None), options.pop("show_context_to_llm", None)
        settings = resolve_settings(
            folder,
            storage=storage,
            embed_model=embed_model,
            context=context,
            context_options=options,
            show_context_to_llm=shown,
            node_parser=node_parser,
            files=files,
            readers=readers,
            reindex=reindex,
            lock_timeout=lock_timeout,
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

    def __copy__(self) -> Self:
        """Another handle on what is open: a copy of an index is a copy of nothing on disk."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        return copy

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
        """The documents; of several folders, the storage of their index."""
        return self.settings.folders.root

    @property
    def collections(self) -> dict[str, Path]:
        """The several folders by name; none where the index is of one."""
        return {name: one.folder for name, one in self.settings.folders.collections.items()}

    def place(self, path: str) -> Path:
        """Return where a document is, by its path."""
        return self.settings.folders.place(path)

    @property
    def storage(self) -> Path:
        """Where the index lives."""
        return self.settings.layout.root

    @property
    def exists(self) -> bool:
        """Whether anything has been indexed yet."""
        return self.settings.exists

    def refresh(
        self,
        source: str | Path | Iterable[Document] | None = None,
        *,
        show_progress: bool = False,
        retry_contexts: bool = True,
        confirm: bool = False,
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

        Raises:
            ConfirmationError: It would delete or pay for more than that.
            LockedError: Another process is writing.
            FingerprintError: The settings differ and ``reindex`` does not allow it, or an object that made the index
                was not given again.
            EmbeddingError: The model failed; what was finished is kept.
            StorageError: The disk is full, or the storage cannot be written or trusted.
        """
        from llama_index_contextual.app.index.refresh import refresh_index  # what a question needs not is not imported

        return refresh_index(
            self._storage,
            source,
            show_progress=show_progress,
            retry_contexts=retry_contexts,
            confirm=confirm,
        )

    async def arefresh(self, source: str | Path | Iterable[Document] | None = None, **options: Any) -> RefreshReport:
        """:meth:`refresh` without blocking the event loop."""
        return await asyncio.to_thread(self.refresh, source, **options)

    def freshness(self, budget: float = PATIENCE) -> Freshness:
        """Return how far the index is behind its folder; nothing is written, and unchanged files are not read.

        Args:
            budget: Seconds after which the look ends, with what it has seen.

        Raises:
            StorageError: The database cannot be read.
        """
        return look_at(self.settings, self._storage.documents(), budget)

    def estimate(self) -> ContextEstimate:
        """Costs of contexts for the whole folder, without making any; those in the cache cost nothing.

        A file that cannot be read is left out, with a line in the log.
        """
        documents, pipeline = readable_documents(self.settings.reading), self.settings.pipeline
        estimate: ContextEstimate = pipeline.contexts.estimate(pipeline.parse(documents), documents)
        return estimate

    def estimate_embedding(self) -> EmbeddingEstimate:
        """Estimate of what a refresh would embed and how long that takes, where contexts cost nothing.

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
            writer.finish()
            return count

    def forget(self, collection: str) -> int:
        """Take one of several folders out of the index, with its documents; return how many. The files stay.

        Raises:
            SettingError: The index has no such folder, or no other.
        """
        folders = self.settings.folders
        folders.check([collection])
        if len(folders.collections) == 1:
            raise SettingError(f"{collection!r} is the only folder of the index. Cure: delete {self.storage}.")
        with self._storage.writing() as writer:
            keys = [key for key in writer.documents if key.startswith(f"{collection}/")]
            del folders.collections[collection], self.settings.remembered.choices["collections"][collection]
            writer.delete(keys)
            writer.finish()
        return len(keys)

    def status(self, *, check: bool = False) -> IndexStatus:
        """What the index holds, made with which settings, and how far behind the folder it is; nothing is changed.

        Args:
            check: Whether everything is read, and files, databases and caches are compared: ``problems`` names what
                does not agree.

        Raises:
            StorageError: There is no index, or it is damaged.
        """
        settings = self.settings
        plan, failed, _ = inspection.planned(settings, self._storage.documents())
        settings.require_index()

        def work(view: IndexView) -> IndexStatus:
            found = inspection.problems(settings, view, plan, failed) if check else None
            return inspection.status(settings, view, Pending.of(plan, failed), found)

        return self._storage.reader.ask(work)

    def pending(self) -> Pending:
        """What a refresh would do, and which files it could not read."""
        plan, failed, _ = inspection.planned(self.settings, self._storage.documents())
        return Pending.of(plan, failed)

    def preview(self, path: str | Path) -> Preview:
        """Return the chunks that a file has with this index's settings; a notebook draws them as a page.

        The file is read as it is now, and nothing is indexed. Where contexts cost something, free ones stand in.

        Args:
            path: A file of the folder, relative to it or absolute.

        Raises:
            DocumentError: The file cannot be read, or is not in the folder.
        """
        from llama_index_contextual.app.preview import preview_of

        pipeline = self.settings.pipeline
        place = Path(path) if Path(path).is_absolute() else self.settings.folders.place(Path(path).as_posix())
        documents = self.settings.reading.load_file(place.resolve())
        return preview_of(*documents, pipeline.parser, pipeline.contexts)
