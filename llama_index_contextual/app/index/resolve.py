"""From arguments, the configuration and the state of an index to its settings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.prompts import PromptTemplate

from llama_index_contextual.app.folder.convert import DocumentReader
from llama_index_contextual.app.folder.sources import Reading
from llama_index_contextual.app.folder.walk import SOURCE_INCLUDE, FileRules, Folders, default_include
from llama_index_contextual.app.index.settings import IndexSettings, NodePipeline, default_parser
from llama_index_contextual.app.places import command_line, places, remembered
from llama_index_contextual.app.settings.embeddings import resolve_embedding
from llama_index_contextual.app.settings.loading import (
    checked_value,
    load_configuration,
    with_remembered,
)
from llama_index_contextual.app.settings.schema import SETTINGS, Configuration
from llama_index_contextual.app.store.database import Database
from llama_index_contextual.app.store.paid import PaidStore
from llama_index_contextual.context import LLM, context_name
from llama_index_contextual.errors import ContextualWarning
from llama_index_contextual.retrieval import ContextualNodePostprocessor

if TYPE_CHECKING:
    from collections.abc import Callable

_OF_SEVERAL: Final = {"files.include", "files.exclude", "descriptions"}  # settings of each of several folders


def open_settings(
    folder: str | Path | Mapping[str, Any] | None,
    storage: str | Path | None,
    config: str | Path | Configuration | Callable[[Path], Configuration] | None,
    context_options: dict[str, Any],
    *,
    reindex: bool,
    **arguments: Any,
) -> IndexSettings:
    """The settings of an index.

    Args:
        folder: As :meth:`ContextualIndex.open` takes it, as are the others.
        storage: The same.
        config: The same.
        context_options: The same.
        reindex: The same.
        **arguments: Its other arguments; None is not set.

    Raises:
        SettingError: One is wrong.
        StorageError: The storage is of another folder.
    """
    folders, layout = places(folder, storage)
    if callable(config):
        config = config(folders.root)
    elif not isinstance(config, Configuration):
        config = load_configuration(folders.root, file=config)
    passed = {name: value for name, value in arguments.items() if value is not None}
    replaced = {name for name in ("embed_model", "context") if not isinstance(passed.get(name, ""), str | bool)}
    replaced |= {"files"} & passed.keys()  # by objects: settings of these names count no more
    values = _values_of(passed, context_options)
    config = replace(config, values={**_without(config.values, replaced), **values})
    database = Database(layout.database, command_line(folders, layout))
    config = with_remembered(config, _without(remembered(folders, layout, database), replaced))
    folders, descriptions = _described(folders)
    embedding = resolve_embedding(passed.get("embed_model") or config["embed_model"], config["timeout"])
    paid = PaidStore(layout.paid, database.cure)
    context: Any = passed["context"] if "context" in replaced else context_name(config["context"])
    options = context_options
    if context == LLM:
        from llama_index_contextual.app.settings.llm import named_model  # httpx, which few questions need

        named = named_model({**config.table("context_options"), **options})
        options = {"cache": paid, "timeout": config["timeout"], **named}  # kept with the index
    contexts = ContextualNodePostprocessor(
        context,
        show_context_to_llm=config["show_context_to_llm"],
        descriptions={**config["descriptions"], **descriptions},
        **options,
    )
    rules = FileRules(include=default_include() + (SOURCE_INCLUDE if contexts.context == "pattern" else ()))
    rules = rules.changed(**config.table("files"))
    readers, converter = dict(passed.get("readers", {})), DocumentReader(conversions=paid, keep=False)
    parser = passed.get("node_parser") or default_parser(embedding, config.table("chunks"))
    return IndexSettings(
        Reading(folders, rules, readers, converter, layout.root),
        layout,
        embedding,
        NodePipeline(parser, contexts),
        database,
        paid,
        config,
        reindex,
    )


def _values_of(passed: Mapping[str, Any], context_options: Mapping[str, Any]) -> dict[str, Any]:
    """Those arguments that are settings, by key."""
    values = {key: passed[key] for key in ("embed_model", "context") if isinstance(passed.get(key), str | bool)}
    if "show_context_to_llm" in passed:
        values["show_context_to_llm"] = passed["show_context_to_llm"]
    if rules := passed.get("files"):
        usual = FileRules(include=rules.include, exclude=rules.exclude)
        values |= {"files.include": rules.include, "files.exclude": rules.exclude}
        values |= {f"files.{name}": one for name, one in rules if one != getattr(usual, name)}
    for name, value in context_options.items():
        plain = value.template if isinstance(value, PromptTemplate) else value
        if f"context_options.{name}" in SETTINGS and isinstance(plain, str | int | float):
            values[f"context_options.{name}"] = plain
    return {key: checked_value(key, value) for key, value in values.items()}


def _without(values: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Settings without those of some names or tables."""
    return {key: value for key, value in values.items() if not {key, key.partition(".")[0]} & names}


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
