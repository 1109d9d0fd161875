"""Settings of an index, checked against those that it was made with, and what makes nodes of its documents."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.app.folder.formats import suffix_of
from llama_index_contextual.app.settings.embeddings import embedding_limit, model_id
from llama_index_contextual.app.settings.late_chunking import DocumentEmbedding
from llama_index_contextual.app.settings.loading import USER_FILE, user_folder
from llama_index_contextual.app.settings.schema import SETTINGS
from llama_index_contextual.app.store.locking import DEFAULT_NAME, Layout, WriteLock
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


@dataclass(frozen=True, slots=True)
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
        objects: The class of each Python object that makes the index, by argument.
        lacking: Why a refresh would make everything again with other settings than those of the index; "" else.
        reindex: Whether another embedding model replaces that of the index.
    """

    reading: Reading
    layout: Layout
    embedding: BaseEmbedding
    pipeline: NodePipeline
    database: Database
    paid: PaidStore
    configuration: Configuration
    objects: dict[str, str]
    lacking: str
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

    def require_index(self, state: IndexState | None = None) -> None:
        """Refuse to read an index that does not exist.

        Args:
            state: What is true of it, where that was read already.

        Raises:
            StorageError: There is none.
        """
        if (state or self.state()).settings:
            return
        if writer := WriteLock(self.database.path.parent).other_writer():
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
        fingerprint, readers, mark_of = self.fingerprint, self.reading.readers, self.reading.converter.mark
        nodes = short_hash([fingerprint[section] for section in ("parser", "context", "reading")])

        def made_with(key: str) -> str:
            mark = "" if readers and suffix_of(key) in readers else mark_of(key)
            return short_hash([nodes, mark]) if mark else nodes

        return made_with

    @property
    def fingerprint(self) -> dict[str, dict[str, Any]]:
        """Everything that shapes nodes and vectors, and which files are read, by section.

        ``parser``: class and settings. ``context``: name and version of the generator; the version is a hash of its
        prompt, model and settings. ``embedding``: the model. ``reading``: what turns files into documents.
        """
        parser, contexts = self.pipeline.parser, self.pipeline.contexts
        fields = sorted(type(parser).model_fields.keys() - {"callback_manager", "id_func"})
        return {
            "parser": {
                "class": type(parser).__name__,
                **{name: _plain(getattr(parser, name)) for name in fields},
                "revision": getattr(type(parser), "revision", None),
            },
            "context": {
                "generator": contexts.fingerprint,
                "show_to_llm": contexts.show_context_to_llm,
                **{name: list(keys) for name, keys in contexts.key_lists().items() if keys},
            },
            "embedding": {"model": model_id(self.embedding)},
            "reading": {
                "readers": {suffix: type(reader).__name__ for suffix, reader in sorted(self.reading.readers.items())}
            },
            "files": {name: _plain(value) for name, value in self.reading.rules},
        }

    def differences(self, state: IndexState) -> list[str]:
        """The settings that differ from those an index was made with."""
        stored, now = state.settings, self.fingerprint
        return [
            f"{section}.{key}: {old!r} → {new!r}"
            for section in sorted(now.keys() & stored.keys())
            for key in sorted({*stored[section], *now[section]})
            if (old := stored[section].get(key)) != (new := now[section].get(key))
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
        name = self.configuration["embed_model"] if "embed_model" not in self.objects else ""
        model = f" --embed-model {shlex.quote(name)}" if name else ""
        raise FingerprintError(
            f"the index in {self.layout.root} was made with the embedding {state.model}, not with "
            f"{model_id(self.embedding)}: their vectors do not compare. Cure: choose the former, another storage "
            f"folder, or embed everything again: reindex=True in Python, or {self.database.cure}{model} --yes"
        )

    def check_writing(self) -> None:
        """Refuse to write an index without the settings that made it.

        Raises:
            FingerprintError: An object that made it, or a setting that counts only from the user, is not set now.
        """
        if self.lacking:
            raise FingerprintError(f"the index in {self.layout.root} was made with {self.lacking}")

    def pays_again(self, state: IndexState) -> bool:
        """Whether contexts that a language model made are to be made again, by another model or prompt."""
        former = str((state.settings.get("context") or {}).get("generator", ""))
        paid = self.pipeline.paid_source is not None and former.startswith(PAID)
        return paid and former != self.pipeline.contexts.fingerprint

    def written(self) -> dict[str, Any]:
        """What the state of an index keeps of these settings."""
        several, values = self.folders.collections, self.configuration.values
        choices = {
            key: without_credentials(value) if key in _MODELS else SETTINGS[key].plain(value)
            for key, value in values.items()
            if key.partition(".")[0] in _REMEMBERED
        }
        return {
            "settings": self.fingerprint,
            "choices": {**choices, **({"collections": SETTINGS["collections"].plain(several)} if several else {})},
            "objects": self.objects,
            "folder": "" if self.folders.collections else str(self.folders.root),
        }


def lacking_message(root: object, refused: Sequence[str], missing: Mapping[str, str]) -> str:
    """Settings that made an index and are not set now, with the cure; "" for none.

    Args:
        root: The folder.
        refused: Keys that count only from the user.
        missing: Classes of objects, by argument.
    """
    again = "a refresh would make everything again with others"
    if refused:
        return (
            f"settings that count only from you ({', '.join(refused)}): {again}. Cure: set them again, by options or "
            f'under [folders."{root}"] in {user_folder() / USER_FILE}.'
        )
    if missing:
        names = {key.rpartition(".")[2]: kind for key, kind in missing.items()}
        return (
            f"objects of Python, which are not written down ({', '.join(map('='.join, names.items()))}), and was "
            f"opened without them: {again}. Cure: ContextualIndex.open(…, {'=…, '.join(names)}=…)"
        )
    return ""


def command_line(folders: Folders, layout: Layout) -> str:
    """The command that refreshes an index, to be pasted into a shell."""
    folder = [] if folders.collections else [str(folders.root)]
    storage = [] if layout.root == folders.root / DEFAULT_NAME else ["--storage", str(layout.root)]
    return shlex.join(["llama-index-contextual", "index", *folder, *storage])


def _plain(value: Any) -> Any:
    """A value as JSON has it: a callable by its name, anything unknown by its class."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return getattr(value, "__qualname__", None) or type(value).__qualname__
