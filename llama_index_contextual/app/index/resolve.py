"""From what a user gave, the configuration and what the index says to the settings of an index."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from llama_index.core.prompts import PromptTemplate

from llama_index_contextual.app.folder.convert import DocumentReader
from llama_index_contextual.app.folder.folders import Folders, collections_of
from llama_index_contextual.app.folder.sources import Reading
from llama_index_contextual.app.folder.walk import SOURCE_INCLUDE, FileRules, default_include
from llama_index_contextual.app.index.pipeline import (
    NodePipeline,
    default_parser,
    is_plain,
    parser_settings,
    plain_generator,
)
from llama_index_contextual.app.index.settings import (
    IndexSettings,
    Reindex,
    Remembered,
    command_line,
)
from llama_index_contextual.app.settings.embeddings import model_id, resolve_embedding
from llama_index_contextual.app.settings.loading import is_harmless, load_configuration, user_storage, with_remembered
from llama_index_contextual.app.settings.schema import SETTINGS, Configuration
from llama_index_contextual.app.store.database import Database
from llama_index_contextual.app.store.locking import DEFAULT_NAME, Layout
from llama_index_contextual.app.store.paid import SETTINGS as KEPT_SETTINGS
from llama_index_contextual.app.store.paid import PaidStore
from llama_index_contextual.app.store.schema import IndexState, state_of
from llama_index_contextual.chunking import HeadingAwareMarkdownNodeParser
from llama_index_contextual.context import LLM, OFF, ContextGenerator, context_name
from llama_index_contextual.errors import (
    ContextualWarning,
    DamagedError,
    SettingError,
    StorageError,
    amount,
    one_of,
    without_credentials,
)
from llama_index_contextual.retrieval import ContextualNodePostprocessor

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.node_parser import NodeParser

_TABLE: Final = "context_options"
_CHUNKS: Final = ("chunk_size", "chunk_overlap")
_MODELS: Final = ("local", "e5", "none")  # embeddings that may be given as an object or by name


def resolve_settings(
    folder: str | Path | Mapping[str, Any] | None,
    *,
    storage: str | Path | None,
    reindex: Reindex,
    lock_timeout: float,
    config: str | Path | Configuration | Callable[[Path], Configuration] | None,
    **arguments: Any,
) -> IndexSettings:
    """Make the settings of an index from the arguments of :meth:`ContextualIndex.open`; None is not said.

    Raises:
        SettingError: One is wrong.
        StorageError: The storage is of another folder.
    """
    one_of("reindex", reindex, get_args(Reindex))
    lock_timeout = amount("lock_timeout", lock_timeout, zero=True, endless=True)
    folders, layout = _places(folder, storage)
    if callable(config):
        config = config(folders.root)
    elif not isinstance(config, Configuration):
        config = load_configuration(folders.root, file=config)
    database = _database(layout, folders)
    state = _checked(_state(database), database, layout, folders)
    choices = {key: value for key, value in state.choices.items() if is_harmless(key, value)}
    refused = [key for key in state.choices if key not in choices and not _is_explicit(key, arguments, config)]
    missing = {key: kind for key, kind in state.objects.items() if not _is_explicit(key, arguments, config)}
    config = with_remembered(config, choices)
    folders, descriptions = _described(folders)
    embedding, cache = (
        resolve_embedding(arguments["embed_model"] or config["embed_model"], config["timeout"]),
        PaidStore(layout.paid, database.cure),
    )
    context, options = _context(arguments, config, choices)
    if any(key.startswith("context") for key in missing):
        context, options = OFF, {}  # questions need none
    shown = arguments["show_context_to_llm"]
    made = options
    if context == LLM:
        from llama_index_contextual.app.settings.llm import named_model  # httpx, which few questions need

        made = {
            "cache": cache,
            "timeout": config["timeout"],
            **named_model(options),
        }  # paid for, so kept with the index
    contexts = ContextualNodePostprocessor(
        context,
        show_context_to_llm=config["show_context_to_llm"] if shown is None else bool(shown),
        descriptions={**config["descriptions"], **descriptions},
        **made,
    )
    rules = FileRules(include=default_include() + (SOURCE_INCLUDE if contexts.context == "pattern" else ()))
    settings = IndexSettings(
        Reading(
            folders,
            arguments["files"] or rules.changed(**config.table("files")),
            dict(arguments["readers"] or {}),
            DocumentReader(conversions=cache, keep=False),
            layout.root,
        ),
        layout,
        embedding,
        NodePipeline(arguments["node_parser"] or default_parser(embedding, config.table("chunks")), contexts),
        reindex,
        lock_timeout,
        database,
        cache,
        Remembered(missing=missing, refused=refused),
        config,
    )
    _remember(settings, arguments, options, rules)
    return settings


def _is_explicit(key: str, arguments: Mapping[str, Any], config: Configuration) -> bool:
    """Return whether the user says now what an index remembers under a key, or what stands in its place."""
    (table, _, name), chosen = key.rpartition("."), config.values
    if key == "collections":
        return True  # else they were refused
    if key.startswith("context"):
        return arguments["context"] is not None or "context" in chosen or name in arguments["context_options"]
    if table == "chunks" or key == "node_parser":
        return bool(arguments["node_parser"] or config.table("chunks"))
    return key in chosen or arguments.get(table or key) is not None


def _context(
    arguments: Mapping[str, Any], config: Configuration, choices: Mapping[str, Any]
) -> tuple[str | ContextGenerator, dict[str, Any]]:
    """Return the kind of contexts, or their generator, and its options: arguments before all others."""
    argument, options = arguments["context"], dict(arguments["context_options"])
    context = (
        argument
        if isinstance(argument, ContextGenerator)
        else context_name(config["context"] if argument is None else argument)
    )
    if context == choices.get("context"):  # with options that are no settings
        more = {key: value for key, value in choices.items() if key.startswith(f"{_TABLE}.") and key not in SETTINGS}
        options = {**{key.partition(".")[2]: value for key, value in more.items()}, **options}
    if context == LLM:
        options = {**config.table(_TABLE), **options}
    return context, options


def _remember(
    settings: IndexSettings, arguments: Mapping[str, Any], options: Mapping[str, Any], rules: FileRules
) -> None:
    """Note what a refresh writes down: plain settings by their keys, and of objects of Python the class."""
    choices, objects = settings.remembered.choices, settings.remembered.objects
    model = arguments["embed_model"] or settings.configuration["embed_model"]
    if not isinstance(model, str):
        same = (name for name in _MODELS if model_id(resolve_embedding(name)) == model_id(settings.embedding))
        model = next(same, "")
    if model:
        choices["embed_model"] = without_credentials(model)
    if settings.pipeline.contexts.show_context_to_llm:
        choices["show_context_to_llm"] = True
    if collections := settings.folders.collections:
        choices["collections"] = SETTINGS["collections"].plain(collections)
    choices |= {f"files.{name}": value for name, value in settings.reading.rules if value != getattr(rules, name)}
    if settings.reading.readers:
        objects["readers"] = ", ".join(
            f"{suffix}: {type(one).__name__}" for suffix, one in settings.reading.readers.items()
        )
    _remember_parser(settings, is_object=arguments["node_parser"] is not None)
    _remember_context(settings, arguments["context"], options)


def _remember_parser(settings: IndexSettings, *, is_object: bool) -> None:
    """Note how documents are cut: by settings where these make the parser again."""
    chunks, parser = settings.configuration.table("chunks"), settings.pipeline.parser
    if is_object:
        chunks = {name: value for name in _CHUNKS if (value := getattr(parser, name, None)) is not None}
        if not _is_made_by(chunks, parser, settings.embedding):
            chunks, settings.remembered.objects["node_parser"] = {}, type(parser).__name__
    settings.remembered.choices |= {f"chunks.{name}": value for name, value in chunks.items()}


def _remember_context(
    settings: IndexSettings, generator: str | ContextGenerator | None, options: Mapping[str, Any]
) -> None:
    """Note the generator of contexts and its options, a prompt as its text.

    Keys and stores are not noted: a key belongs into the environment, and a store is given or is the index's own.
    """
    choices, objects = settings.remembered.choices, settings.remembered.objects
    if not isinstance(generator, ContextGenerator):
        choices["context"] = settings.pipeline.contexts.context
    elif written := plain_generator(generator):
        choices |= {"context" if name == "spec" else f"{_TABLE}.{name}": value for name, value in written.items()}
    else:
        objects["context"] = type(generator).__name__
    for name in sorted(options.keys() - {"api_key", "cache", "timeout"}):
        value = options[name].template if isinstance(options[name], PromptTemplate) else options[name]
        if is_plain(value):
            choices[f"{_TABLE}.{name}"] = without_credentials(value) if name == "llm" and value else value
        else:
            objects[f"{_TABLE}.{name}"] = type(value).__name__


def _is_made_by(chunks: Mapping[str, Any], parser: NodeParser, embedding: BaseEmbedding) -> bool:
    """Return whether settings make a parser again."""
    if not isinstance(parser, HeadingAwareMarkdownNodeParser) or not all(map(is_plain, chunks.values())):
        return False
    again = default_parser(embedding, chunks)
    return again.id_func == parser.id_func and parser_settings(again) == parser_settings(parser)


def _described(folders: Folders) -> tuple[Folders, dict[str, str]]:
    """Return several folders with what their own configuration says of their files, and their descriptions by path.

    What else a folder's own configuration says is named.
    """
    collections = {}
    descriptions: dict[str, str] = {}
    for name, collection in folders.collections.items():
        config = load_configuration(collection.folder)
        values = {key: value for key, value in config.values.items() if config.origins[key] == str(config.file)}
        if others := sorted(values.keys() - {"files.include", "files.exclude", "descriptions"}):
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
    """Return where the documents are, and the storage."""
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
    folders = _recorded(layout, folder if isinstance(folder, Mapping) else None) if root is None else Folders(root)
    if not folders.collections and not folders.root.is_dir():
        raise SettingError("is no folder. Cure: name one that exists.", folder=str(folder or folders.root))
    if not folders.collections and layout.root == folders.root:
        raise SettingError("is the folder of the documents. Cure: another one, or none.", storage=str(storage))
    return folders, layout


def _recorded(layout: Layout, more: Mapping[str, Any] | None) -> Folders:
    """Return the folders that an index says it is of, with more of them."""
    state, storage = _state(_database(layout, Folders(layout.root))), str(layout.root)
    former, more = state.choices.get("collections", {}), more or {}
    if not state.folder and not former and not more:
        raise SettingError("does not say of which folder it is. Cure: name the folder too.", storage=storage)
    root = Path(state.folder or layout.root)
    together = {**former, **more}
    return Folders(layout.root, collections_of(together)) if together else Folders(root)


def _database(layout: Layout, folders: Folders) -> Database:
    return Database(layout.database, command_line("index", folders, layout))


def _state(database: Database) -> IndexState:
    """State of an index; of a lost or damaged one the settings that are kept beside it."""
    with contextlib.suppress(DamagedError):
        state = database.state()
        if state.settings:
            return state
    with contextlib.suppress(StorageError, ValueError):  # chosen for an index that was lost
        kept = PaidStore(Layout(database.file.parent).paid, database.cure).get_many(["index"], KEPT_SETTINGS)
        return state_of(kept.get("index", {}))
    return IndexState()


def has_several(storage: Path) -> bool:
    """Return whether there is an index of several folders in a storage."""
    layout = Layout(storage.expanduser().resolve())
    return bool(_state(_database(layout, Folders(layout.root))).choices.get("collections"))


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
    if layout.root != root / DEFAULT_NAME:
        raise StorageError(
            f"the index in {layout.root} is of the folder {former}, not of {root}. Cure: name that folder or none, or "
            "choose another storage folder for this one."
        )
    return state
