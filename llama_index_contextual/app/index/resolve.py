"""From arguments, the configuration and the state of an index to its settings."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from llama_index.core.prompts import PromptTemplate

from llama_index_contextual.app.folder.convert import DocumentReader
from llama_index_contextual.app.folder.sources import Reading
from llama_index_contextual.app.folder.walk import SOURCE_INCLUDE, FileRules, Folders, collections_of, default_include
from llama_index_contextual.app.index.settings import (
    IndexSettings,
    NodePipeline,
    command_line,
    default_parser,
    lacking_message,
)
from llama_index_contextual.app.settings.embeddings import resolve_embedding
from llama_index_contextual.app.settings.loading import (
    checked_value,
    is_harmless,
    load_configuration,
    user_storage,
    with_remembered,
)
from llama_index_contextual.app.settings.schema import SETTINGS, Configuration
from llama_index_contextual.app.store.database import Database, IndexState, state_of
from llama_index_contextual.app.store.locking import DEFAULT_NAME, Layout
from llama_index_contextual.app.store.paid import SETTINGS as KEPT_SETTINGS
from llama_index_contextual.app.store.paid import PaidStore
from llama_index_contextual.context import LLM, OFF, context_name
from llama_index_contextual.errors import ContextualWarning, DamagedError, SettingError, StorageError
from llama_index_contextual.retrieval import ContextualNodePostprocessor

if TYPE_CHECKING:
    from collections.abc import Callable

_TABLE: Final = "context_options"
_OF_SEVERAL: Final = {"files.include", "files.exclude", "descriptions"}  # settings of each of several folders


def resolve_settings(
    folder: str | Path | Mapping[str, Any] | None,
    *,
    storage: str | Path | None,
    reindex: bool,
    config: str | Path | Configuration | Callable[[Path], Configuration] | None,
    **arguments: Any,
) -> IndexSettings:
    """The settings of an index.

    Args:
        folder: As :meth:`ContextualIndex.open` takes it, as are the next three.
        storage: The same.
        reindex: The same.
        config: The same.
        **arguments: Its other arguments and options; None is not set.

    Raises:
        SettingError: One is wrong.
        StorageError: The storage is of another folder.
    """
    folders, layout = _places(folder, storage)
    if callable(config):
        config = config(folders.root)
    elif not isinstance(config, Configuration):
        config = load_configuration(folders.root, file=config)
    passed = {name: value for name, value in arguments.items() if value is not None}
    config, objects = _with_arguments(config, passed)
    database = _database(layout, folders)
    state = _checked(_state(database), database, layout, folders)
    explicit = config.values.keys() | objects.keys() | passed.keys()
    choices = {key: value for key, value in state.choices.items() if is_harmless(key, value)}
    refused = [key for key in sorted(state.choices.keys() - choices) if not _is_set(key, explicit | {"collections"})]
    lost = state.objects.keys() - {"embed_model"}  # whose vectors are compared
    missing = {key: state.objects[key] for key in sorted(lost) if not _is_set(key, explicit)}
    replaced = {"embed_model", "context"} & objects.keys() | {"files"} & passed.keys()
    left = {key: value for key, value in choices.items() if not {key, key.partition(".")[0]} & replaced}
    config = with_remembered(config, left)
    folders, descriptions = _described(folders)
    embedding = resolve_embedding(passed.get("embed_model") or config["embed_model"], config["timeout"])
    paid = PaidStore(layout.paid, database.cure)
    context = passed["context"] if "context" in objects else context_name(config["context"])
    options = {key.rpartition(".")[2]: value for key, value in passed.items() if key.startswith(_TABLE)}
    if any(key.startswith("context") for key in missing):
        context, options = OFF, {}  # questions need none
    if context == LLM:
        from llama_index_contextual.app.settings.llm import named_model  # httpx, which few questions need

        named = named_model({**config.table(_TABLE), **options})
        options = {"cache": paid, "timeout": config["timeout"], **named}  # kept with the index
    contexts = ContextualNodePostprocessor(
        context,
        show_context_to_llm=config["show_context_to_llm"],
        descriptions={**config["descriptions"], **descriptions},
        **options,
    )
    rules = FileRules(include=default_include() + (SOURCE_INCLUDE if contexts.context == "pattern" else ()))
    return IndexSettings(
        Reading(
            folders,
            rules.changed(**config.table("files")),
            dict(passed.get("readers", {})),
            DocumentReader(conversions=paid, keep=False),
            layout.root,
        ),
        layout,
        embedding,
        NodePipeline(passed.get("node_parser") or default_parser(embedding, config.table("chunks")), contexts),
        database,
        paid,
        config,
        objects,
        lacking_message(folders.root, refused, missing),
        reindex,
    )


def _with_arguments(config: Configuration, passed: dict[str, Any]) -> tuple[Configuration, dict[str, str]]:
    """The configuration with those arguments that are settings, and the classes of the others, which are objects.

    The options of the generator get the names that they have as settings.
    """
    known = {"embed_model", "context", "node_parser", "files", "readers", "show_context_to_llm"}
    for name in passed.keys() - known:
        passed[f"{_TABLE}.{name}"] = passed.pop(name)
    values, objects = dict[str, Any](), dict[str, str]()
    for key, value in passed.items():
        plain = value.template if isinstance(value, PromptTemplate) else value
        if key == "files":
            usual = FileRules(include=value.include, exclude=value.exclude)
            values |= {"files.include": value.include, "files.exclude": value.exclude}
            others = {name: one for name, one in value if one != getattr(usual, name)}
            values |= {f"files.{name}": one for name, one in others.items()}
        elif key == "readers":
            readers = ", ".join(f"{suffix}: {type(one).__name__}" for suffix, one in value.items())
            objects |= {key: readers} if readers else {}
        elif key in SETTINGS and isinstance(plain, str | int | float):
            values[key] = plain
        elif key.partition(".")[2] not in ("api_key", "cache", "timeout"):
            objects[key] = type(value).__name__
    checked = {key: checked_value(key, value) for key, value in values.items()}
    replaced = objects.keys() | {"files"} & passed.keys()
    kept = {key: value for key, value in config.values.items() if not {key, key.partition(".")[0]} & replaced}
    return replace(config, values={**kept, **checked}), objects


def _is_set(key: str, explicit: set[str]) -> bool:
    """Whether the user sets now what made an index under a key, or what stands in its place."""
    if key.startswith("context"):
        return "context" in explicit or key in explicit
    if key == "node_parser" or key.startswith("chunks."):
        return any(one == "node_parser" or one.startswith("chunks.") for one in explicit)
    return key in explicit


def _described(folders: Folders) -> tuple[Folders, dict[str, str]]:
    """Several folders with the file rules of their own configuration, and their descriptions by path."""
    collections = {}
    descriptions: dict[str, str] = {}
    for name, collection in folders.collections.items():
        config = load_configuration(collection.folder)
        values = {key: value for key, value in config.values.items() if config.origins[key] == str(config.file)}
        if others := sorted(values.keys() - _OF_SEVERAL):
            warnings.warn(
                f"{config.file}: {', '.join(others)} not obeyed in an index of several folders. Cure: say it by "
                "options or in your own settings.",
                ContextualWarning,
                stacklevel=4,
            )
        descriptions |= {f"{name}/{key.lstrip('/.')}": text for key, text in values.get("descriptions", {}).items()}
        if collection.description:
            descriptions[f"{name}/"] = collection.description
        include = collection.include or values.get("files.include", ())
        exclude = (*values.get("files.exclude", ()), *collection.exclude)
        collections[name] = collection.model_copy(update={"include": include, "exclude": exclude})
    return replace(folders, collections=collections), descriptions


def _places(folder: str | Path | Mapping[str, Any] | None, storage: str | Path | None) -> tuple[Folders, Layout]:
    """Where the documents are, and the storage."""
    if folder is None and storage is None:
        storage = user_storage()
        named = load_configuration(storage)["collections"]  # of the user's own file and the environment
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
    folders = _recorded(layout, folder if isinstance(folder, Mapping) else {}) if root is None else Folders(root)
    if not folders.collections and not folders.root.is_dir():
        raise SettingError("is no folder. Cure: name one that exists.", folder=str(folder or folders.root))
    if not folders.collections and layout.root == folders.root:
        raise SettingError("is the folder of the documents. Cure: another one, or none.", storage=str(storage))
    return folders, layout


def _recorded(layout: Layout, more: Mapping[str, Any]) -> Folders:
    """The folders of an index by its own state, with more of them."""
    state = _state(_database(layout, Folders(layout.root)))
    together = {**state.choices.get("collections", {}), **more}
    if not state.folder and not together:
        raise SettingError("does not say of which folder it is. Cure: name the folder too.", storage=str(layout.root))
    return Folders(layout.root, collections_of(together)) if together else Folders(Path(state.folder))


def _database(layout: Layout, folders: Folders) -> Database:
    return Database(layout.database, command_line(folders, layout))


def _state(database: Database) -> IndexState:
    """State of an index; of a lost or damaged one the settings that are kept beside it."""
    with contextlib.suppress(DamagedError):
        state = database.state()
        if state.settings:
            return state
    with contextlib.suppress(StorageError, ValueError):  # of an index that was lost
        kept = PaidStore(Layout(database.path.parent).paid, database.cure).get("index", KEPT_SETTINGS)
        return state_of(kept or {})
    return IndexState()


def has_several(storage: Path) -> bool:
    """Whether there is an index of several folders in a storage."""
    layout = Layout(storage.expanduser().resolve())
    return bool(_state(_database(layout, Folders(layout.root))).choices.get("collections"))


def _checked(state: IndexState, database: Database, layout: Layout, folders: Folders) -> IndexState:
    """Refuse the index of another folder."""
    root, several = folders.root, ", ".join(state.choices.get("collections", ()))
    if several and not folders.collections:
        raise StorageError(
            f"the index in {database.path} is of several folders ({several}), and not of {root} alone. Cure: name none "
            "of them, or choose another storage folder for this one."
        )
    former = Path(state.folder) if state.folder else root
    # A folder that is not there was moved together with its index, or is of another machine.
    if former != root and former.is_dir() and layout.root != root / DEFAULT_NAME:
        raise StorageError(
            f"the index in {layout.root} is of the folder {former}, not of {root}. Cure: name that folder or none, or "
            "choose another storage folder for this one."
        )
    return state
