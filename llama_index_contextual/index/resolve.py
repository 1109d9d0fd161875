"""From what a user gave, the configuration and what the index says to the settings of an index."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from llama_index.core.node_parser import NodeParser
from llama_index.core.readers.base import BaseReader

from llama_index_contextual.config import Configuration, load_configuration
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

    from llama_index_contextual.context.base import ContextGenerator
    from llama_index_contextual.index.state import Choices
    from llama_index_contextual.vector_stores.stores import Store


_OPTIONS: Final = ("llm", "prompt", "fallback")  # of a language model's contexts, that may be objects


def resolve_settings(
    folder: str | Path | Mapping[str, Any] | None,
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
    folders, layout = _places(folder, storage)
    root = folders.root
    if callable(config):
        config = config(root)
    elif not isinstance(config, Configuration):
        config = load_configuration(root, file=config)
    place = _database(database or config.database, layout, folders)
    state = _checked(_state(place), place, layout, folders)
    choices, untrusted = trusted_choices(state, root)
    explicit = {
        "embed_model": embed_model or config.get("embed_model"),
        "parser": node_parser or config.chunks.explicit(),
        "chunks": node_parser or config.chunks.explicit(),
        "files": files,
        "readers": readers,
        "vector_store": vector_store or config.get("vector_store"),
        **dict.fromkeys(("context", "context_options"), context or config.get("context")),
    }
    refused = [name for name in untrusted if explicit.get(name) is None or explicit[name] == {}]
    if refused:
        warnings.warn(
            f"the index in {layout.root} says {', '.join(refused)}, which counts only from you, and it is not known to "
            f"be yours: not obeyed. Cure: llama-index-contextual trust {root}, if it is; or give it again.",
            ContextualWarning,
            stacklevel=4,
        )
    chosen = _Chosen(state, config, Remembered(refused=refused), choices)
    folders = chosen.folders(folders)
    embedding, cache = chosen.embedding(embed_model), DatabaseKVStore(place)
    contexts = chosen.contexts(context, context_options, show_context_to_llm, cache)
    return IndexSettings(
        folders,
        layout,
        embedding,
        NodePipeline(chosen.parser(node_parser, embedding), contexts),
        chosen.files(files, contexts),
        chosen.readers(readers),
        DocumentReader(**config.documents.explicit(), conversions=cache, keep=False),
        reindex,
        lock_timeout,
        place,
        chosen.store(vector_store, layout),
        chosen.remembered,
        config,
    )


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
    """Each setting by precedence: what was given, the configuration, what the index was made with, the default."""

    state: IndexState
    config: Configuration
    remembered: Remembered
    choices: Choices
    descriptions: dict[str, str] = field(default_factory=dict)

    def _first(self, argument: Any, key: str, name: str, default: Any) -> Any:
        """Return the first that says a setting: an argument, the configuration, the index, the default."""
        return next(filter(None, (argument, self.config.get(key), self.choices.get(name))), default)

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
        lost = argument in self.state.unremembered
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

    def embedding(self, argument: str | BaseEmbedding | None) -> BaseEmbedding:
        model = self._first(argument, "embed_model", "embed_model", "local")
        embedding = resolve_embedding(model)
        if isinstance(model, str):
            self._remember("embed_model", without_credentials(model))
        else:
            named = (
                name for name in ("local", "e5", "none") if model_id(resolve_embedding(name)) == model_id(embedding)
            )
            self._remember("embed_model", next(named, None))
        return embedding

    def store(self, argument: Any, layout: Layout) -> Store:
        """Return what keeps the vectors beside the matrix; it is derived, so another one may be named at any time."""
        place = self._first(argument, "vector_store", "vector_store", EMBEDDED)
        store = resolve_store(place, layout.chroma, self.config.exact_limit)
        self._remember("vector_store", None if store.name == EMBEDDED else store.name)
        return store

    def contexts(
        self,
        argument: str | ContextGenerator | None,
        options: dict[str, Any],
        show_to_llm: bool | None,
        cache: BaseKVStore,
    ) -> ContextualNodePostprocessor:
        shows = (show_to_llm, self.config.get("show_context_to_llm"), self.choices.get("show_context_to_llm"))
        shown = bool(next((one for one in shows if one is not None), False))
        self._remember("show_context_to_llm", shown)
        former = self.choices.get("context")
        context = argument or self.config.get("context")
        if context is None:
            if self._is_missing("context"):
                return ContextualNodePostprocessor("off")  # questions need none
            context = former or "headings"
        more: dict[str, Any] = {
            "show_context_to_llm": shown,
            "descriptions": {**self.config.descriptions, **self.descriptions},
        }
        if isinstance(context, dict):
            self._remember("context", context)
            return ContextualNodePostprocessor(generator=context, **more)
        if not isinstance(context, str):
            self._remember_object("context", "context", lambda: written_generator(context))
            return ContextualNodePostprocessor(context, **more, **options)
        if context == "llm":
            options = {**read_options(self.config.context_options.explicit()), **options}
        if context == former:
            options = {**read_options(self.choices.get("context_options", {})), **options}
        if context == "llm" and [name for name in _OPTIONS if name not in options and self._is_missing(name)]:
            return ContextualNodePostprocessor("off")
        self._remember("context", context)
        written, unwritten = written_options(options)
        self._remember("context_options", written)
        self.remembered.unremembered.extend(unwritten)
        if context == "llm":  # paid for, so kept with the index
            options = {"cache": cache, **options}
        return ContextualNodePostprocessor(context, **more, **options)

    def parser(self, argument: NodeParser | None, embedding: BaseEmbedding) -> NodeParser:
        if argument is not None:
            self._remember_object("parser", "node_parser", lambda: written_object(argument, NodeParser))
            return argument
        explicit, former = self.config.chunks.explicit(), self.choices.get("parser")
        if not explicit and not self._is_missing("node_parser") and former:
            try:
                parser: NodeParser = read_object(former, NodeParser)
            except UnwritableError:
                self.remembered.missing.append("node_parser")
            else:
                self._remember("parser", former)
                return parser
        chunks = {**self.choices.get("chunks", {}), **explicit}
        self._remember("chunks", chunks)
        return default_parser(embedding, chunks)

    def files(self, argument: FileRules | None, contexts: ContextualNodePostprocessor) -> FileRules:
        source = SOURCE_INCLUDE if contexts.context == "pattern" else ()
        default = FileRules(include=default_include() + source)
        rules = argument or default.changed(**{**self.choices.get("files", {}), **self.config.files.explicit()})
        self._remember("files", {key: one for key, one in rules if one != getattr(default, key)})
        return rules

    def readers(self, argument: Mapping[str, BaseReader] | None) -> dict[str, BaseReader]:
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
