"""From what a user gave, the configuration and what the index says to the settings of an index."""

from __future__ import annotations

import shlex
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from llama_index.core.node_parser import NodeParser
from llama_index.core.readers.base import BaseReader

from llama_index_contextual.checks import amount
from llama_index_contextual.config import Configuration, load_configuration
from llama_index_contextual.context.llm.model import without_credentials
from llama_index_contextual.documents import DocumentReader
from llama_index_contextual.documents.files import SOURCE_INCLUDE, FileRules, default_include
from llama_index_contextual.embedding import model_id, resolve_embedding
from llama_index_contextual.errors import ContextualWarning, DamagedError, SettingError, StorageError
from llama_index_contextual.index.database import Database, DatabaseKVStore
from llama_index_contextual.index.pipeline import NodePipeline, default_parser
from llama_index_contextual.index.recipe import (
    UnwritableError,
    is_own,
    read_files,
    read_object,
    read_options,
    trusted_choices,
    written_files,
    written_generator,
    written_options,
    written_parser,
    written_reader,
)
from llama_index_contextual.index.rescue import readable_state
from llama_index_contextual.index.settings import POLICIES, IndexSettings, Reindex, Remembered
from llama_index_contextual.index.state import DEFAULT_NAME, IndexState, Layout, state_of
from llama_index_contextual.postprocessor.contextual import ContextualNodePostprocessor
from llama_index_contextual.vector_stores.stores import EMBEDDED, resolve_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.storage.kvstore.types import BaseKVStore

    from llama_index_contextual.context.base import ContextGenerator
    from llama_index_contextual.index.state import Choices
    from llama_index_contextual.vector_stores.stores import Store


_OPTIONS: Final = ("llm", "prompt", "fallback")  # of a language model's contexts, that may be objects


def resolve_settings(
    folder: str | Path | None,
    *,
    storage: str | Path | None,
    embed_model: str | BaseEmbedding | None,
    context: str | ContextGenerator | None,
    context_options: dict[str, Any],
    show_context_to_llm: bool | None,
    node_parser: NodeParser | None,
    files: FileRules | None,
    readers: Mapping[str, BaseReader] | None,
    reindex: Reindex,
    lock_timeout: float,
    database: str | None,
    vector_store: Any,
    config: str | Path | Configuration | Callable[[Path], Configuration] | None,
) -> IndexSettings:
    """Make the settings of an index from what :meth:`ContextualIndex.open` was given, which says what each is.

    Raises:
        SettingError: One is wrong.
        StorageError: The storage is of another folder.
    """
    if reindex not in POLICIES:
        raise SettingError(f"is not known. Cure: one of {', '.join(map(repr, POLICIES))}.", reindex=reindex)
    lock_timeout = amount("lock_timeout", lock_timeout, zero=True, endless=True)
    root, layout = _places(folder, storage)
    if callable(config):
        said = config(root)
    else:
        said = config if isinstance(config, Configuration) else load_configuration(root, file=config)
    place = _database(database or said.store.database, layout, root)
    state = _checked(_state(place), place, layout, root)
    choices, asked = trusted_choices(state, root)
    given = {
        "embed_model": embed_model or said.said("embedding.model"),
        "parser": node_parser or said.chunks.explicit(),
        "chunks": node_parser or said.chunks.explicit(),
        "files": files,
        "readers": readers,
        "vector_store": vector_store or said.said("store.place"),
        **dict.fromkeys(("context", "context_options", "llm"), context or said.said("context.mode")),
    }
    refused = [name for name in asked if given.get(name) is None or given[name] == {}]
    if refused:
        warnings.warn(
            f"the index in {layout.root} says {', '.join(refused)}, which counts only from you, and it is not known to "
            f"be yours: not obeyed. Cure: llama-index-contextual trust {root}, if it is; or give it again.",
            ContextualWarning,
            stacklevel=4,
        )
    chosen = _Chosen(state, said, Remembered(refused=refused), choices)
    embedding, kept = chosen.embedding(embed_model), DatabaseKVStore(place)
    contexts = chosen.contexts(context, context_options, show_context_to_llm, kept)
    return IndexSettings(
        root,
        layout,
        embedding,
        NodePipeline(chosen.parser(node_parser, embedding), contexts),
        chosen.files(files, contexts),
        chosen.readers(readers),
        DocumentReader(**said.documents.explicit(), conversions=kept, keep=False),
        reindex,
        lock_timeout,
        place,
        chosen.store(vector_store, layout),
        said.store.exact_limit,
        chosen.remembered,
        said,
    )


def _places(folder: str | Path | None, storage: str | Path | None) -> tuple[Path, Layout]:
    """Return the folder of the documents, and the storage."""
    if folder is None and storage is None:
        raise SettingError(
            "no folder is named, and no storage. Cure: name a folder, or the storage folder of an index."
        )
    root = None if folder is None else Path(folder).expanduser().resolve()
    layout = Layout(Path(storage).expanduser().resolve() if storage else cast("Path", root) / DEFAULT_NAME)
    layout.refuse_links()
    if root is None:
        state = _state(_database(None, layout, layout.root))
        if not state.folder:
            raise SettingError("does not say of which folder it is. Cure: name the folder too.", storage=str(storage))
        root = Path(state.folder)
        if layout.root != root / DEFAULT_NAME and not is_own(state, root):
            raise SettingError(
                f"says that it is of the folder {str(root)!r}, and it is not known to be yours. Cure: name the folder "
                "too.",
                storage=str(storage),
            )
    if not root.is_dir():
        raise SettingError("is no folder. Cure: name one that exists.", folder=str(folder or root))
    if layout.root == root:
        raise SettingError("is the folder of the documents. Cure: another one, or none.", storage=str(storage))
    return root, layout


def _database(address: str | None, layout: Layout, root: Path) -> Database:
    elsewhere = layout.root != root / DEFAULT_NAME
    storage = ["--storage", str(layout.root)] if elsewhere else []
    return Database(address or layout.database, shlex.join(["llama-index-contextual", "index", str(root), *storage]))


def _state(database: Database) -> IndexState:
    """Return what an index says of itself; of a damaged one what can be read of it."""
    if not database.exists:
        return IndexState()
    try:
        with database.reading() as snapshot:
            return state_of(snapshot.state, database.name, "refresh")
    except DamagedError:
        return IndexState() if database.file is None else state_of(readable_state(database.file), database.name, "")


def stored_state(folder: Path, storage: Path | None) -> IndexState:
    """Return what the index of a folder says of itself; an empty state where there is none."""
    layout = Layout((storage or folder / DEFAULT_NAME).expanduser().resolve())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextualWarning)  # of what the folder's file says, and is not obeyed
        address = load_configuration(folder).store.database
    return _state(_database(address, layout, folder))


def _checked(state: IndexState, database: Database, layout: Layout, root: Path) -> IndexState:
    """Refuse the index of another folder."""
    former = Path(state.folder) if state.folder else root
    if former == root or not former.is_dir():  # both were moved together, or it is of another machine
        return state
    if database.shared:
        raise StorageError(
            f"the index in {database.name} is of the folder {former}, not of {root}. Cure: name that folder, or give "
            "this one an index of its own, by an address that ends in #NAME."
        )
    if layout.root != root / DEFAULT_NAME:
        raise StorageError(
            f"the index in {layout.root} is of the folder {former}, not of {root}. Cure: name that folder or none, or "
            "choose another storage folder for this one."
        )
    return state


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Each setting by precedence: what was given, the configuration, what the index was made with, the default."""

    state: IndexState
    said: Configuration
    remembered: Remembered
    choices: Choices

    def _known(self, name: str) -> Any:
        return self.choices.get(name)

    def _remember(self, name: str, value: Any) -> None:
        if value:
            self.remembered.choices[name] = value  # type: ignore[literal-required]  # one of Choices' names

    def _is_missing(self, name: str) -> bool:
        """Note that a setting which could not be written down was not given now."""
        lost = name in self.state.unremembered
        if lost:
            self.remembered.missing.append(name)
            self.remembered.unremembered.append(name)
        return lost

    def embedding(self, given: str | BaseEmbedding | None) -> BaseEmbedding:
        model = given or self.said.said("embedding.model") or self._known("embed_model") or "local"
        embedding = resolve_embedding(model)
        if isinstance(model, str):
            self._remember("embed_model", without_credentials(model))
        else:
            known = (
                name for name in ("local", "e5", "none") if model_id(resolve_embedding(name)) == model_id(embedding)
            )
            self._remember("embed_model", next(known, None))
        return embedding

    def store(self, given: Any, layout: Layout) -> Store:
        """Return what keeps the vectors beside the matrix; it is derived, so another one may be named at any time."""
        place = given or self.said.said("store.place") or self._known("vector_store") or EMBEDDED
        store = resolve_store(place, layout.chroma, self.said.store.exact_limit)
        self._remember("vector_store", None if store.name == EMBEDDED else store.name)
        return store

    def contexts(
        self,
        given: str | ContextGenerator | None,
        options: dict[str, Any],
        show_to_llm: bool | None,
        kept: BaseKVStore,
    ) -> ContextualNodePostprocessor:
        if show_to_llm is None:
            show_to_llm = self.said.said("context.show_to_llm")
        shown = bool(self._known("show_context_to_llm") if show_to_llm is None else show_to_llm)
        self._remember("show_context_to_llm", shown)
        context = given or self.said.said("context.mode")
        if context is None:
            if self._is_missing("context"):
                return ContextualNodePostprocessor("off")  # questions need none
            context = self._known("context") or "headings"
        former, configured = {}, {}
        if isinstance(context, str) and context == self._known("context"):
            former = {"llm": self._known("llm"), **(self._known("context_options") or {})}
            former = read_options({key: value for key, value in former.items() if value is not None})
        if context == "llm":
            configured = read_options(self.said.context.llm.explicit())
        options = {**former, **configured, **options}
        return self._made(context, options, kept, shown=shown)

    def _made(
        self,
        context: str | ContextGenerator | dict[str, Any],
        options: dict[str, Any],
        kept: BaseKVStore,
        *,
        shown: bool,
    ) -> ContextualNodePostprocessor:
        lost = [] if context != "llm" else [name for name in _OPTIONS if name not in options and self._is_missing(name)]
        if lost:
            return ContextualNodePostprocessor("off")
        descriptions = self.said.descriptions
        if isinstance(context, str):
            self._remember("context", context)
            written, unwritten = written_options(options)
            self._remember("context_options", written)
            self.remembered.unremembered.extend(unwritten)
        if context == "llm":  # paid for, so kept with the index
            options = {"cache": kept, **options}
        if isinstance(context, dict):
            self._remember("context", context)
            return ContextualNodePostprocessor(generator=context, show_context_to_llm=shown, descriptions=descriptions)
        made = ContextualNodePostprocessor(context, show_context_to_llm=shown, descriptions=descriptions, **options)
        if not isinstance(context, str):
            try:
                self._remember("context", written_generator(context))
            except UnwritableError:
                self.remembered.unremembered.append("context")
        return made

    def parser(self, given: NodeParser | None, embedding: BaseEmbedding) -> NodeParser:
        chunks = {**(self._known("chunks") or {}), **self.said.chunks.explicit()}
        if given is not None:
            try:
                self._remember("parser", written_parser(given))
            except UnwritableError:
                self.remembered.unremembered.append("node_parser")
            return given
        former = self._known("parser")
        if not self.said.chunks.explicit() and not self._is_missing("node_parser") and former:
            try:
                parser: NodeParser = read_object(former, NodeParser)
            except UnwritableError:
                self.remembered.missing.append("node_parser")
            else:
                self._remember("parser", former)
                return parser
        self._remember("chunks", chunks)
        return default_parser(embedding, chunks)

    def files(self, given: FileRules | None, contexts: ContextualNodePostprocessor) -> FileRules:
        default = (
            FileRules(include=default_include() + SOURCE_INCLUDE) if contexts.context == "pattern" else FileRules()
        )
        rules = given or replace(default, **{**read_files(self._known("files") or {}), **self.said.files.explicit()})
        self._remember("files", written_files(rules, default))
        return rules

    def readers(self, given: Mapping[str, BaseReader] | None) -> dict[str, BaseReader]:
        if given is not None:
            try:
                self._remember("readers", {suffix: written_reader(reader) for suffix, reader in given.items()})
            except UnwritableError:
                self.remembered.unremembered.append("readers")
            return dict(given)
        former = self._known("readers") or {}
        try:
            readers = {suffix: read_object(written, BaseReader) for suffix, written in former.items()}
        except UnwritableError:
            self.remembered.missing.append("readers")
            return {}
        self._remember("readers", former)
        self._is_missing("readers")
        return readers
