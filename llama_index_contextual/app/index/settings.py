"""Settings of an index, checked against those that it was made with, and what makes nodes of its documents."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.app.folder.formats import suffix_of
from llama_index_contextual.app.settings.embeddings import embedding_limit, model_id
from llama_index_contextual.app.settings.late_chunking import DocumentEmbedding
from llama_index_contextual.app.settings.schema import SETTINGS
from llama_index_contextual.app.store.locking import Layout, WriteLock
from llama_index_contextual.chunking import HeadingAwareMarkdownNodeParser
from llama_index_contextual.errors import DamagedError, FingerprintError, StorageError, without_credentials
from llama_index_contextual.text import MARKDOWN_SUFFIXES, short_hash
from llama_index_contextual.watching import step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.node_parser import NodeParser
    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.app.folder.sources import Reading
    from llama_index_contextual.app.folder.walk import Folders
    from llama_index_contextual.app.settings.schema import Configuration
    from llama_index_contextual.app.store.database import Database, IndexState
    from llama_index_contextual.app.store.paid import PaidStore
    from llama_index_contextual.context import LLMContextGenerator, Progress
    from llama_index_contextual.retrieval import ContextualNodePostprocessor


PAID: Final = "llm:"  # how the source of a context begins that was paid for
LARGEST: Final = 400  # tokens of a chunk, however many more an embedding reads
# Of an embedding's window, kept free for the context. A context of the Kubernetes pages ("Document: path > title >
# section") is 30 word pieces at the median and 60 at most of them.
CONTEXT_RESERVE: Final = 64
_REMEMBERED: Final = ("embed_model", "context", "show_context_to_llm", "files", "chunks", "context_options")
_MODELS: Final = ("embed_model", "context_options.llm")
_OF_A_FOLDER: Final = {"markdown_suffixes": MARKDOWN_SUFFIXES, "typed_front_matter": True}


def default_parser(embedding: BaseEmbedding, chosen: Mapping[str, Any] | None = None) -> HeadingAwareMarkdownNodeParser:
    """The parser whose chunks and their contexts fit what the embedding reads, counted in its own tokens.

    A folder holds other files than Markdown, so their suffixes say which are. The proportions are those of the defaults
    (400 tokens, 80 of overlap, 50 at least), which hold where the embedding's limit is not known. A model that reads
    more does not get larger chunks: smaller ones found more in the same number of characters.

    Args:
        embedding: The embedding of the index.
        chosen: Settings of the parser that come before these.
    """
    known, settings = embedding_limit(embedding), {**_OF_A_FOLDER, **(chosen or {})}
    if known is not None and settings.get("tokenizer", known[0]) == known[0]:
        tokenizer, limit = known
        size = min(max(limit - CONTEXT_RESERVE, limit // 2), LARGEST)
        settings = {"chunk_size": size, "tokenizer": tokenizer, **settings}
    if "chunk_size" in settings:
        size = settings["chunk_size"]
        settings = {"chunk_overlap": size // 5, "min_chunk_size": size // 8, **settings}
    if isinstance(embedding, DocumentEmbedding):  # each chunk sees its neighbours already
        settings = {**settings, "chunk_overlap": (chosen or {}).get("chunk_overlap", 0)}
    return HeadingAwareMarkdownNodeParser(**settings)


@dataclass(frozen=True, slots=True)
class NodePipeline:
    """Parser and contexts: from documents to nodes with contexts."""

    parser: NodeParser
    contexts: ContextualNodePostprocessor

    @property
    def paid_source(self) -> str | None:
        """The ``context_source`` of contexts that cost something, or None where contexts are free or off."""
        generator = self.contexts.generator
        return None if generator is None or generator.free else generator.name

    @property
    def model(self) -> LLMContextGenerator | None:
        """The generator that asks a language model, where there is one."""
        if self.paid_source is None:
            return None
        from llama_index_contextual.context import LLMContextGenerator

        generator = self.contexts.generator
        return generator if isinstance(generator, LLMContextGenerator) else None

    def parse(self, documents: Sequence[Document]) -> list[BaseNode]:
        """The nodes of some documents, without contexts; all pages of a file together."""
        return self.parser.get_nodes_from_documents(documents)

    def contextualize(
        self, nodes: Sequence[BaseNode], documents: Sequence[Document], progress: Progress | None = None
    ) -> None:
        """Write contexts into the nodes of some documents, all at once: calls for several go to a model together."""
        if nodes:
            with step("context", source=self.contexts.fingerprint, documents=len(documents), chunks=len(nodes)):
                self.contexts(nodes, documents, progress=progress)


@dataclass(frozen=True)
class IndexSettings:
    """The arguments of :meth:`ContextualIndex.open`, completed by the configuration, the index's own, and defaults.

    Attributes:
        reading: Folder, file rules and readers.
        layout: The storage folder.
        embedding: Makes vectors.
        pipeline: Makes nodes.
        database: The index.
        paid: What cost money.
        configuration: All settings that are not objects.
        reindex: Whether another embedding model replaces that of the index.
    """

    reading: Reading
    layout: Layout
    embedding: BaseEmbedding
    pipeline: NodePipeline
    database: Database
    paid: PaidStore
    configuration: Configuration
    reindex: bool

    def state(self) -> IndexState:
        """State of the whole index; see :meth:`Database.state`."""
        return self.database.state()

    @property
    def exists(self) -> bool:
        """Whether anything has been indexed yet; it has where the database is damaged."""
        try:
            return bool(self.state().settings)
        except DamagedError:
            return True

    def require_index(self, state: IndexState) -> None:
        """Refuse to read an index that does not exist.

        Raises:
            StorageError: There is none.
        """
        if state.settings:
            return
        if writer := WriteLock(self.layout.root).other_writer():
            raise StorageError(f"{self.database.path} is being made by {writer}. Cure: wait a moment, then try again.")
        if Layout(folder := self.folders.root).database.is_file():
            raise StorageError(
                f"{folder} is where an index is kept, and no folder of documents. Cure: --storage {folder} "
                "(storage= in Python) in place of the folder."
            )
        if self.folders.missing_folders_message:
            raise StorageError(f"{self.folders.missing_folders_message}, nor is its index. Cure: put it back.")
        raise StorageError(f"there is no index in {self.database.path}. Cure: {self.database.cure}")

    @property
    def folders(self) -> Folders:
        """The documents."""
        return self.reading.folders

    @property
    def made_with(self) -> Callable[[str], str]:
        """Function of a path or id: the hash of all that makes the nodes of that document.

        That is the settings of today, and what converts the document.
        """
        readers, mark_of = self.reading.readers, self.reading.converter.mark
        shaping = {key: one for key, one in self.fingerprint.items() if not key.startswith(("embedding.", "files."))}
        nodes = short_hash(shaping)

        def made_with(key: str) -> str:
            mark = "" if readers and suffix_of(key) in readers else mark_of(key)
            return short_hash([nodes, mark]) if mark else nodes

        return made_with

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Everything that shapes nodes and vectors, and which files are read: ``section.key`` to value.

        ``parser``: class and settings. ``context``: name and version of the generator; the version is a hash of its
        prompt, model and settings. ``embedding``: the model. ``reading``: what turns files into documents.
        """
        parser, contexts = self.pipeline.parser, self.pipeline.contexts
        fields = type(parser).model_fields.keys() - {"callback_manager", "id_func"}
        readers = {suffix: type(reader).__name__ for suffix, reader in sorted(self.reading.readers.items())}
        return {
            "parser.class": type(parser).__name__,
            **{f"parser.{name}": _plain(getattr(parser, name)) for name in sorted(fields)},
            "parser.revision": getattr(type(parser), "revision", None),
            "context.generator": contexts.fingerprint,
            "context.show_to_llm": contexts.show_context_to_llm,
            **{f"context.{name}": list(keys) for name, keys in contexts.key_lists().items() if keys},
            "embedding.model": model_id(self.embedding),
            "reading.readers": readers,
            **{f"files.{name}": _plain(value) for name, value in self.reading.rules},
        }

    def differences(self, state: IndexState) -> list[str]:
        """The settings that differ from those an index was made with."""
        stored, now = state.settings, self.fingerprint
        return [
            f"{key}: {stored.get(key)!r} → {now.get(key)!r}"
            for key in sorted({*stored, *now})
            if stored and stored.get(key) != now.get(key)
        ]

    def other_model(self, state: IndexState) -> bool:
        """Whether the vectors of an index are another model's."""
        return bool(state.settings) and state.model != model_id(self.embedding)

    def check(self, state: IndexState) -> None:
        """Refuse an embedding that does not fit an index.

        Raises:
            FingerprintError: It is another one than made the index, and is not to replace it.
        """
        if self.reindex or not self.other_model(state):
            return
        # Without a model the command would take the former one.
        name = self.configuration.values.get("embed_model")
        model = f" --embed-model {shlex.quote(name)}" if name else ""
        raise FingerprintError(
            f"the index in {self.layout.root} was made with the embedding {state.model}, not with "
            f"{model_id(self.embedding)}: their vectors do not compare. Cure: choose the former, another storage "
            f"folder, or embed everything again: reindex=True in Python, or {self.database.cure}{model} --yes"
        )

    def replaces_paid_contexts(self, state: IndexState) -> bool:
        """Whether other contexts take the place of those that a language model made."""
        former = str(state.settings.get("context.generator", ""))
        return former.startswith(PAID) and former != self.pipeline.contexts.fingerprint

    def written(self) -> dict[str, Any]:
        """What an index remembers of its settings."""
        values, collections = self.configuration.values, SETTINGS["collections"].plain(self.folders.collections)
        return {
            "settings": self.fingerprint,
            "choices": {
                key: SETTINGS[key].plain(without_credentials(value) if key in _MODELS else value)
                for key, value in values.items()
                if key.partition(".")[0] in _REMEMBERED
            },
            "folders": collections or {"": {"path": str(self.folders.root)}},
        }


def _plain(value: Any) -> Any:
    """A value as JSON has it: a callable by its name, anything unknown by its class."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return getattr(value, "__qualname__", None) or type(value).__qualname__
