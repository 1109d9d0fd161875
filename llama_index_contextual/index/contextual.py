"""`ContextualIndex`: a folder of documents that can be asked, kept up to date at the least cost."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from llama_index.core.query_engine import RetrieverQueryEngine
from tqdm import tqdm

from llama_index_contextual.embedding_choice import model_id, resolve_embedding
from llama_index_contextual.errors import FingerprintError, SettingError, StorageError
from llama_index_contextual.index.pipeline import NodePipeline, default_parser
from llama_index_contextual.index.refresh import Refresh
from llama_index_contextual.index.report import RefreshReport
from llama_index_contextual.index.retrieval import IndexArm
from llama_index_contextual.index.sources import document_sources, file_sources
from llama_index_contextual.index.state import Views
from llama_index_contextual.postprocessor.contextual import ContextualNodePostprocessor
from llama_index_contextual.retrievers import ContextualFusionRetriever
from llama_index_contextual.retrievers.hybrid import KEYWORD_WEIGHT
from llama_index_contextual.storage.files import FileRules, find_files
from llama_index_contextual.storage.fingerprint import differences
from llama_index_contextual.storage.layout import DEFAULT_NAME, Layout
from llama_index_contextual.storage.lock import WriteLock
from llama_index_contextual.storage.manifest import Manifest, load_manifest, save_manifest, write_atomically
from llama_index_contextual.storage.vectors import VectorCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from chromadb.api import ClientAPI
    from llama_index.core.base.base_query_engine import BaseQueryEngine
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.node_parser import NodeParser
    from llama_index.core.readers.base import BaseReader
    from llama_index.core.schema import Document
    from llama_index.core.vector_stores import MetadataFilters
    from typing_extensions import Self

    from llama_index_contextual.context.base import ContextGenerator
    from llama_index_contextual.index.retrieval import Arm
    from llama_index_contextual.index.sources import Source
    from llama_index_contextual.storage.fingerprint import Fingerprint

DEFAULT_COLLECTION: Final = "contextual"
Reindex = Literal["auto", "error", "ignore", "all"]


@dataclass(frozen=True, slots=True)
class _Options:
    files: FileRules
    readers: Mapping[str, BaseReader]
    reindex: Reindex
    lock_timeout: float
    client: ClientAPI | None


class ContextualIndex:
    """A folder of documents, indexed with contexts, kept up to date, and asked.

    ::

        with ContextualIndex.open("docs") as index:
            print(index.refresh())
            for hit in index.as_retriever().retrieve("How do I pin a version?"):
                print(hit.node.metadata["path"], hit.node.metadata["start_line"], hit.node.text)

    Chroma holds the nodes; everything else in the storage folder is derived from it or from the files. One process
    writes at a time; readers in other processes notice what it wrote. An object may be used by many threads.
    """

    def __init__(
        self, folder: Path, layout: Layout, embedding: BaseEmbedding, pipeline: NodePipeline, options: _Options
    ) -> None:
        self._folder = folder
        self._layout = layout
        self._embedding = embedding
        self._pipeline = pipeline
        self._options = options
        self._lock = WriteLock(layout.lock, options.lock_timeout)
        self._views = Views(layout, options.client, lambda: self._manifest().collection)

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        storage: str | Path | None = None,
        embed_model: str | BaseEmbedding = "local",
        context: str | ContextGenerator = "headings",
        node_parser: NodeParser | None = None,
        files: FileRules | None = None,
        readers: Mapping[str, BaseReader] | None = None,
        reindex: Reindex = "auto",
        show_context_to_llm: bool = False,
        create: bool = True,
        lock_timeout: float = 0.0,
        client: ClientAPI | None = None,
        **context_options: Any,
    ) -> ContextualIndex:
        """Open the index of a folder; nothing is read or embedded before :meth:`refresh`.

        Args:
            folder: The documents.
            storage: Where the index lives; ``FOLDER/.contextual`` by default.
            embed_model: ``"local"``, ``"ollama:MODEL"``, ``"openai:MODEL"``, or any LlamaIndex embedding.
            context: ``"off"``, ``"headings"``, ``"pattern"``, ``"llm"``, or a generator of your own.
            node_parser: Any LlamaIndex node parser; by default ours, sized for the embedding.
            files: Which files of the folder are read.
            readers: LlamaIndex readers by suffix, e.g. ``{".pdf": PDFReader()}``.
            reindex: What happens when settings differ from those the index was made with. ``"auto"``: parser and
                context are applied to everything at the next refresh, another embedding model is an error;
                ``"error"``: any difference is one; ``"ignore"``: what is indexed stays as it is; ``"all"``: another
                embedding model too is applied to everything.
            show_context_to_llm: Whether an answering LLM sees contexts.
            create: Whether an index that does not exist may be made; False is an error then.
            lock_timeout: Seconds to wait while another process writes.
            client: A Chroma client to use instead of the local one, e.g. ``chromadb.HttpClient(...)``, which lets
                several processes write.
            **context_options: Settings of the context generator, e.g. ``llm=``.

        Raises:
            SettingError: A setting is wrong.
            FingerprintError: The index was made with another embedding model.
            StorageError: The storage cannot be read.
        """
        root = Path(folder).expanduser().resolve()
        if not root.is_dir():
            raise SettingError(f"folder={str(folder)!r} is no folder. Cure: name one that exists.")
        if reindex not in ("auto", "error", "ignore", "all"):
            raise SettingError(f"reindex={reindex!r} is not known. Cure: 'auto', 'error', 'ignore' or 'all'.")
        layout = Layout(Path(storage).expanduser().resolve() if storage else root / DEFAULT_NAME)
        embedding = resolve_embedding(embed_model)
        contexts = ContextualNodePostprocessor(context, show_context_to_llm=show_context_to_llm, **context_options)
        pipeline = NodePipeline(node_parser or default_parser(embedding), contexts)
        options = _Options(files or FileRules(), dict(readers or {}), reindex, lock_timeout, client)
        index = cls(root, layout, embedding, pipeline, options)
        index._check(create=create)
        return index

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of Chroma and of the context generator; what was written is safe already."""
        self._views.close()
        if self._pipeline.contexts.generator is not None:
            self._pipeline.contexts.generator.close()

    @property
    def folder(self) -> Path:
        """The documents."""
        return self._folder

    @property
    def storage(self) -> Path:
        """Where the index lives."""
        return self._layout.root

    def refresh(
        self, source: str | Path | Iterable[Document] | None = None, *, show_progress: bool = False
    ) -> RefreshReport:
        """Bring the index up to date; only chunks whose embedded text is new are embedded.

        Args:
            source: None for the whole folder; a folder or file inside it, outside of which nothing is deleted; or
                documents, which deletes nothing. Documents need an id that you set, or ``metadata["path"]``.
            show_progress: Whether to draw a progress bar that counts documents.

        Raises:
            LockedError: Another process is writing.
            FingerprintError: The settings differ and ``reindex`` does not allow it.
            EmbeddingError: The model failed; what was finished is kept.
            StorageError: The disk is full, or the storage cannot be written or trusted.
        """
        started = time.monotonic()
        report = RefreshReport()
        sources, covered = self._sources(source, report)
        blocked = [problem.path for problem in report.failed]
        self._layout.create()
        with self._lock.hold(), self._views.reading() as view:
            manifest = self._manifest()
            fingerprint = self._fingerprint()
            report.differences = differences(manifest.fingerprint, fingerprint.as_dict())
            cache = VectorCache(self._layout.vectors, model_id(self._embedding))
            bar = tqdm(total=len(sources), desc="Indexing", unit="doc", disable=not show_progress, leave=False)
            try:
                work = Refresh(
                    store=view.store,
                    cache=cache,
                    pipeline=self._pipeline,
                    embedding=self._embedding,
                    settings=fingerprint.nodes_hash,
                    manifest=replace(manifest, fingerprint=fingerprint.as_dict()),
                    save=self._save,
                    progress=lambda done: bar.update(done) and None,
                    report=report,
                )
                final = work.run(sources, covered=covered, blocked=blocked)
            finally:
                bar.close()
                cache.close()
            self._views.wrote(rebuild=True)
            report.chunks = view.store.count()
        report.context_sources = _sum_contexts(final)
        report.seconds = time.monotonic() - started
        return report

    async def arefresh(
        self, source: str | Path | Iterable[Document] | None = None, *, show_progress: bool = False
    ) -> RefreshReport:
        """Do the same as :meth:`refresh`, without blocking the event loop."""
        return await asyncio.to_thread(self.refresh, source, show_progress=show_progress)

    def delete(self, ref_doc_id: str) -> int:
        """Take a document out of the index; returns how many chunks went.

        Args:
            ref_doc_id: Its path relative to the folder, or the id that was given. A file that is still in the folder
                comes back with the next refresh of it.
        """
        with self._lock.hold(), self._views.reading() as view:
            ids = [item.id for items in view.store.of_entries([ref_doc_id]).values() for item in items]
            manifest = self._manifest()
            kept = {key: entry for key, entry in manifest.documents.items() if key != ref_doc_id}
            view.store.delete(ids)
            self._save(manifest.next_generation(documents=kept))
            self._views.wrote(rebuild=True)
        return len(ids)

    def as_retriever(
        self, similarity_top_k: int = 10, *, filters: MetadataFilters | None = None, **options: Any
    ) -> ContextualFusionRetriever:
        """A retriever that fuses vectors and BM25 over the newest state of the index, whoever wrote it.

        Args:
            similarity_top_k: How many chunks to return.
            filters: LlamaIndex metadata filters, e.g. on ``path`` or ``date_ts``.
            **options: More settings of :class:`ContextualFusionRetriever`.
        """
        arms: list[BaseRetriever] = [
            IndexArm("vector", self._arm("vector"), filters),
            IndexArm("bm25", self._arm("keyword"), filters),
        ]
        options.setdefault("retriever_weights", (1 - KEYWORD_WEIGHT, KEYWORD_WEIGHT))
        return ContextualFusionRetriever(arms, similarity_top_k=similarity_top_k, **options)

    def as_query_engine(self, llm: Any = None, *, similarity_top_k: int = 5, **options: Any) -> BaseQueryEngine:
        """A query engine that answers from the index; ``llm`` defaults to LlamaIndex's ``Settings.llm``."""
        known = signature(ContextualFusionRetriever.__init__).parameters
        retrieving = {key: options.pop(key) for key in list(options) if key in known or key == "filters"}
        retriever = self.as_retriever(similarity_top_k, **retrieving)
        return RetrieverQueryEngine.from_args(retriever, llm=llm, **options)

    def _arm(self, name: str) -> Callable[[], AbstractContextManager[Arm]]:
        @contextmanager
        def current() -> Iterator[Arm]:
            with self._views.reading() as view:
                yield getattr(view.arms(self._embedding), name)

        return current

    def _sources(
        self, source: str | Path | Iterable[Document] | None, report: RefreshReport
    ) -> tuple[list[Source], str | None]:
        """What to index, and which part of the folder that covers (None: no part of it)."""
        if source is not None and not isinstance(source, str | Path):
            return document_sources(source, self._folder, report.failed), None
        below = self._below(source)
        rules = self._options.files
        rules = replace(rules, include=(*rules.include, *(f"*{suffix}" for suffix in self._options.readers)))
        found = find_files(self._folder, rules, below=below, exclude=self._layout.root)
        report.failed.extend(found.problems)
        return file_sources(found.files, self._options.readers, report.failed), below

    def _below(self, source: str | Path | None) -> str:
        if source is None:
            return ""
        path = Path(source).expanduser()
        path = path.resolve() if path.is_absolute() or path.exists() else (self._folder / path).resolve()
        if not path.is_relative_to(self._folder):
            raise SettingError(f"{source} is outside of {self._folder}. Cure: open an index for that folder.")
        if not path.exists():
            raise SettingError(f"{source} does not exist. Cure: refresh the folder it was in, and it is forgotten.")
        below = path.relative_to(self._folder).as_posix()
        return "" if below == "." else below

    def _fingerprint(self) -> Fingerprint:
        reading = {"readers": {suffix: type(reader).__name__ for suffix, reader in self._options.readers.items()}}
        return self._pipeline.fingerprint({"model": model_id(self._embedding)}, reading)

    def _manifest(self) -> Manifest:
        return load_manifest(self._layout.manifest) or Manifest(collection=DEFAULT_COLLECTION)

    def _save(self, manifest: Manifest) -> None:
        save_manifest(self._layout.manifest, manifest)
        write_atomically(self._layout.generation, str(manifest.generation).encode())
        self._views.wrote(rebuild=False)

    def _check(self, *, create: bool) -> None:
        """Refuse what cannot work before any file is read."""
        manifest = load_manifest(self._layout.manifest)
        if manifest is None:
            if not create:
                raise StorageError(
                    f"there is no index in {self._layout.root}. Cure: llama-index-contextual index {self._folder}"
                )
            return
        stored, given = manifest.fingerprint.get("embedding", {}), self._fingerprint().embedding
        if stored and stored != given and self._options.reindex not in ("ignore", "all"):
            raise FingerprintError(
                f"the index in {self._layout.root} was made with the embedding {stored['model']}, not with "
                f"{given['model']}: their vectors do not compare. Cure: choose the former, another storage=, or embed "
                "everything again with reindex='all'."
            )
        found = differences(manifest.fingerprint, self._fingerprint().as_dict())
        if found and self._options.reindex == "error":
            raise FingerprintError(
                f"the index in {self._layout.root} was made with other settings: {'; '.join(map(str, found))}. "
                "Cure: the former settings, or reindex='auto'."
            )


def _sum_contexts(manifest: Manifest) -> dict[str, int]:
    total: Counter[str] = Counter()
    for entry in manifest.documents.values():
        total.update(entry.contexts)
    return dict(sorted(total.items()))
