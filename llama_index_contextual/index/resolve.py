"""From what a user gave, the configuration and what the index says to the settings of an index."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from llama_index.core.node_parser import NodeParser
from llama_index.core.readers.base import BaseReader

from llama_index_contextual.config import Configuration, load_configuration
from llama_index_contextual.config.places import completed
from llama_index_contextual.config.trust import user_storage
from llama_index_contextual.documents import DocumentReader
from llama_index_contextual.documents.files import SOURCE_INCLUDE, FileRules, default_include
from llama_index_contextual.documents.folders import Folders, collections_of
from llama_index_contextual.embeddings import model_id, resolve_embedding
from llama_index_contextual.errors import (
    ContextualWarning,
    DamagedError,
    SettingError,
    StorageError,
    amount,
    one_of,
    without_credentials,
)
from llama_index_contextual.index.database import Database, DatabaseKVStore
from llama_index_contextual.index.pipeline import NodePipeline, default_parser
from llama_index_contextual.index.recipe import (
    UnwritableError,
    is_own,
    read_object,
    read_options,
    trusted_choices,
    written_generator,
    written_object,
    written_options,
)
from llama_index_contextual.index.rescue import readable_state
from llama_index_contextual.index.settings import POLICIES, IndexSettings, Reindex, Remembered, command_line
from llama_index_contextual.index.state import DEFAULT_NAME, IndexState, Layout, state_of
from llama_index_contextual.postprocessor.contextual import ContextualNodePostprocessor
from llama_index_contextual.vector_stores.stores import EMBEDDED, resolve_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.storage.kvstore.types import BaseKVStore

    from llama_index_contextual.index.state import Choices
    from llama_index_contextual.vector_stores.stores import Store


_OPTIONS: Final = ("llm", "prompt", "fallback")  # of a language model's contexts, that may be objects


def resolve_settings(
    folder: str | Path | Mapping[str, Any] | None,
    *,
    storage: str | Path | None,
    reindex: Reindex,
    lock_timeout: float,
    config: str | Path | Configuration | Callable[[Path], Configuration] | None,
    **arguments: Any,
) -> IndexSettings:
    """Make the settings of an index from what :meth:`ContextualIndex.open` was given, which says what each is.

    Args:
        folder: The documents.
        storage: Where the index lives.
        reindex: What happens when settings differ from those of the index.
        lock_timeout: Seconds to wait while another process writes.
        config: The configuration, or where it is read.
        **arguments: The others; None is not said.

    Raises:
        SettingError: One is wrong.
        StorageError: The storage is of another folder.
    """
    one_of("reindex", reindex, POLICIES)
    lock_timeout = amount("lock_timeout", lock_timeout, zero=True, endless=True)
    folders, layout = _places(folder, storage)
    if callable(config):
        config = config(folders.root)
    elif not isinstance(config, Configuration):
        config = load_configuration(folders.root, file=config)
    database = _database(arguments["database"] or config.database, layout, folders)
    state = _checked(_state(database), database, layout, folders)
    choices, untrusted = trusted_choices(state, folders.root)
    refused = [name for name in untrusted if not _is_said(name, arguments, config)]
    if refused:
        warnings.warn(
            f"the index in {layout.root} says {', '.join(refused)}, which counts only from you, and it is not known to "
            f"be yours: not obeyed. Cure: llama-index-contextual trust {folders.root}, if it is; or give it again.",
            ContextualWarning,
            stacklevel=3,
        )
    chosen = _Chosen(arguments, completed(config, choices), choices, state.unremembered, Remembered(refused=refused))
    folders, embedding, cache = chosen.folders(folders), chosen.embedding(), DatabaseKVStore(database)
    contexts = chosen.contexts(cache)
    return IndexSettings(
        folders,
        layout,
        embedding,
        NodePipeline(chosen.parser(embedding), contexts),
        chosen.files(contexts),
        chosen.readers(),
        DocumentReader(**config.documents.explicit(), conversions=cache, keep=False),
        reindex,
        lock_timeout,
        database,
        chosen.store(layout),
        chosen.remembered,
        chosen.config,
    )


def _is_said(name: str, arguments: Mapping[str, Any], config: Configuration) -> bool:
    """Return whether the user says now what an index remembers under a name."""
    if name in ("parser", "chunks"):
        return bool(arguments["node_parser"] or config.chunks.explicit())
    if name in ("context", "context_options"):
        return bool(arguments["context"] or config.get("context"))
    if name in ("embed_model", "vector_store"):
        return bool(arguments[name] or config.get(name))
    return name in ("files", "readers") and arguments[name] is not None


def _places(folder: str | Path | Mapping[str, Any] | None, storage: str | Path | None) -> tuple[Folders, Layout]:
    """Return where the documents are, and the storage."""
    if folder is None and storage is None:
        storage = user_storage()
        named = load_configuration(storage).collections  # of the user's own file and the environment
        if not named:
            raise SettingError(
                "no folder is named, and no storage. Cure: name a folder, or the storage folder of an index."
            )
        return Folders(storage, collections_of(named)), Layout(storage)
    if isinstance(folder, Mapping) and storage is None:
        raise SettingError("an index of several folders is in none of them. Cure: name a storage folder.")
    root = None if folder is None or isinstance(folder, Mapping) else Path(folder).expanduser().resolve()
    layout = Layout(Path(storage).expanduser().resolve() if storage else cast("Path", root) / DEFAULT_NAME)
    layout.refuse_links()
    folders = _recorded(layout, folder if isinstance(folder, Mapping) else None) if root is None else Folders(root)
    if not folders.collections and not folders.root.is_dir():
        raise SettingError("is no folder. Cure: name one that exists.", folder=str(folder or folders.root))
    if not folders.collections and layout.root == folders.root:
        raise SettingError("is the folder of the documents. Cure: another one, or none.", storage=str(storage))
    return folders, layout


def _recorded(layout: Layout, more: Mapping[str, Any] | None) -> Folders:
    """Return the folders that an index says it is of, with more of them."""
    state, storage = _state(_database(None, layout, Folders(layout.root))), str(layout.root)
    former = state.choices.get("collections", {})
    if not state.folder and not former and not more:
        raise SettingError("does not say of which folder it is. Cure: name the folder too.", storage=storage)
    root = Path(state.folder or layout.root)
    if (former or (state.folder and layout.root != root / DEFAULT_NAME)) and not is_own(state, root):
        named = ", ".join(str(one.get("path")) for one in former.values()) or str(root)
        raise SettingError(
            f"says that it is of the folder {named!r}, and it is not known to be yours. Cure: name the folder too.",
            storage=storage,
        )
    if more and state.folder:
        raise SettingError(f"has the index of {root} alone. Cure: another one", storage=storage)
    together = {**former, **(more or {})}
    return Folders(layout.root, collections_of(together)) if together else Folders(root)


def _database(address: str | None, layout: Layout, folders: Folders) -> Database:
    return Database(address or layout.database, command_line("index", folders, layout))


def _state(database: Database) -> IndexState:
    """Return what an index says of itself; of a damaged one what can be read of it."""
    try:
        return database.state()
    except DamagedError:
        return IndexState() if database.file is None else state_of(readable_state(database.file))


def has_several(storage: Path) -> bool:
    """Return whether there is an index of several folders in a storage."""
    layout = Layout(storage.expanduser().resolve())
    return bool(_state(_database(None, layout, Folders(layout.root))).choices.get("collections"))


def stored_state(folder: Path, storage: Path | None) -> IndexState:
    """Return what the index of a folder says of itself; an empty state where there is none."""
    layout = Layout((storage or folder / DEFAULT_NAME).expanduser().resolve())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextualWarning)  # of what the folder's file says, and is not obeyed
        address = load_configuration(folder).database
    return _state(_database(address, layout, Folders(folder)))


def _checked(state: IndexState, database: Database, layout: Layout, folders: Folders) -> IndexState:
    """Refuse the index of another folder."""
    root, several = folders.root, ", ".join(state.choices.get("collections", ()))
    if several and not folders.collections:
        raise StorageError(
            f"the index in {database.name} is of several folders ({several}), and not of {root} alone. Cure: name none "
            "of them, or choose another storage folder for this one."
        )
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
    """Each setting by precedence: an argument, the configuration, what the index was made with, the default.

    Attributes:
        arguments: Of :meth:`ContextualIndex.open`; None is not said.
        config: What the configuration says, and for settings of which it says nothing what the index does.
        choices: What the index says; objects as they are written down.
        lost: Names of the arguments with which the index was made and that could not be written down.
        remembered: What is to be written down.
        descriptions: Those of several folders.
    """

    arguments: Mapping[str, Any]
    config: Configuration
    choices: Choices
    lost: list[str]
    remembered: Remembered
    descriptions: dict[str, str] = field(default_factory=dict)

    def _remember(self, name: str, value: Any) -> None:
        if value:
            self.remembered.choices[name] = value  # type: ignore[literal-required]  # one of Choices' names

    def _remember_object(self, name: str, argument: str, write: Callable[[], Any]) -> None:
        """Write an object down, or else the name of the argument that it was."""
        try:
            self._remember(name, write())
        except UnwritableError:
            self.remembered.unremembered.append(argument)

    def _is_missing(self, argument: str) -> bool:
        """Note that an argument which could not be written down was not given now."""
        lost = argument in self.lost
        if lost:
            self.remembered.missing.append(argument)
            self.remembered.unremembered.append(argument)
        return lost

    def folders(self, folders: Folders) -> Folders:
        """Return several folders with what their own configuration says of their files; the rest of it is named."""
        self._remember("collections", {name: one.to_dict() for name, one in folders.collections.items()})
        collections = {}
        for name, one in folders.collections.items():
            own = load_configuration(one.folder)
            said = {key: own.get(key) for key, place in own.origins.items() if place.startswith(f"{own.file}:")}
            if others := sorted(said.keys() - {"files.include", "files.exclude", "descriptions"}):
                warnings.warn(
                    f"{own.file}: {', '.join(others)} not obeyed in an index of several folders. Cure: say it by "
                    "options or in your own settings.",
                    ContextualWarning,
                    stacklevel=5,
                )
            self.descriptions.update(
                {f"{name}/{key.lstrip('/.')}": text for key, text in said.get("descriptions", {}).items()}
            )
            if one.description:
                self.descriptions[f"{name}/"] = one.description
            include = one.include or said.get("files.include", ())
            exclude = (*said.get("files.exclude", ()), *one.exclude)
            collections[name] = one.model_copy(update={"include": include, "exclude": exclude})
        return replace(folders, collections=collections)

    def embedding(self) -> BaseEmbedding:
        model = self.arguments["embed_model"] or self.config.embed_model
        embedding = resolve_embedding(model)
        if isinstance(model, str):
            self._remember("embed_model", without_credentials(model))
        else:
            names = (
                name for name in ("local", "e5", "none") if model_id(resolve_embedding(name)) == model_id(embedding)
            )
            self._remember("embed_model", next(names, None))
        return embedding

    def store(self, layout: Layout) -> Store:
        """Return what keeps the vectors beside the matrix; it is derived, so another one may be named at any time."""
        place = self.arguments["vector_store"] or self.config.vector_store
        store = resolve_store(place, layout.chroma, self.config.exact_limit)
        self._remember("vector_store", None if store.name == EMBEDDED else store.name)
        return store

    def contexts(self, cache: BaseKVStore) -> ContextualNodePostprocessor:
        shown = self.arguments["show_context_to_llm"]
        shown = self.config.show_context_to_llm if shown is None else bool(shown)
        self._remember("show_context_to_llm", shown)
        descriptions = {**self.config.descriptions, **self.descriptions}
        make = partial(ContextualNodePostprocessor, show_context_to_llm=shown, descriptions=descriptions)
        former, options = self.choices.get("context"), dict(self.arguments["context_options"])
        context = self.arguments["context"] or self.config.get("context")
        if context is None:
            if self._is_missing("context"):
                return ContextualNodePostprocessor("off")  # questions need none
            context = former or "headings"  # of an index, a generator that was written down
        if isinstance(context, dict):
            self._remember("context", context)
            return make(generator=context)
        if not isinstance(context, str):
            self._remember_object("context", "context", lambda: written_generator(context))
            return make(context, **options)
        if context == "llm":
            options = {**read_options(self.config.context_options.explicit()), **options}
        if context == former:  # with options that are no settings
            options = {**read_options(self.choices.get("context_options", {})), **options}
        if context == "llm" and [name for name in _OPTIONS if name not in options and self._is_missing(name)]:
            return ContextualNodePostprocessor("off")
        self._remember("context", context)
        written, unwritten = written_options(options)
        self._remember("context_options", written)
        self.remembered.unremembered.extend(unwritten)
        if context == "llm":  # paid for, so kept with the index
            options = {"cache": cache, **options}
        return make(context, **options)

    def parser(self, embedding: BaseEmbedding) -> NodeParser:
        argument = self.arguments["node_parser"]
        if argument is not None:
            self._remember_object("parser", "node_parser", lambda: written_object(argument, NodeParser))
            return cast("NodeParser", argument)
        chunks, former = self.config.chunks.explicit(), self.choices.get("parser")
        if not chunks and not self._is_missing("node_parser") and former:
            try:
                parser: NodeParser = read_object(former, NodeParser)
            except UnwritableError:
                self.remembered.missing.append("node_parser")
            else:
                self._remember("parser", former)
                return parser
        self._remember("chunks", chunks)
        return default_parser(embedding, chunks)

    def files(self, contexts: ContextualNodePostprocessor) -> FileRules:
        source = SOURCE_INCLUDE if contexts.context == "pattern" else ()
        default = FileRules(include=default_include() + source)
        rules: FileRules = self.arguments["files"] or default.changed(**self.config.files.explicit())
        self._remember("files", {name: value for name, value in rules if value != getattr(default, name)})
        return rules

    def readers(self) -> dict[str, BaseReader]:
        argument = self.arguments["readers"]
        if argument is not None:
            self._remember_object(
                "readers", "readers", lambda: {key: written_object(one, BaseReader) for key, one in argument.items()}
            )
            return dict(argument)
        former = self.choices.get("readers", {})
        try:
            readers = {suffix: read_object(written, BaseReader) for suffix, written in former.items()}
        except UnwritableError:
            self.remembered.missing.append("readers")
            return {}
        self._remember("readers", former)
        self._is_missing("readers")
        return readers
