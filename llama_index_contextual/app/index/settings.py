"""Settings of an index, from arguments, the configuration and the state of the index.

LlamaIndex is imported only when an object is made from settings. ``status`` needs no such object,
and is five times as fast without the import.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from llama_index_contextual import __version__
from llama_index_contextual.app.folder import formats
from llama_index_contextual.app.folder.sources import FolderReader
from llama_index_contextual.app.folder.walk import (
    SOURCE_INCLUDE,
    Discovery,
    FileRules,
    default_include,
)
from llama_index_contextual.app.index.database import Database
from llama_index_contextual.app.index.storage import Layout, content_file, places
from llama_index_contextual.app.settings.loading import load_configuration
from llama_index_contextual.app.settings.registry import SETTINGS, Configuration
from llama_index_contextual.utils.errors import (
    DamagedError,
    FingerprintError,
    SettingError,
    without_credentials,
)
from llama_index_contextual.utils.text import short_hash, storable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.node_parser import NodeParser

    from llama_index_contextual.app.folder.convert import DocumentReader
    from llama_index_contextual.app.folder.folders import Folders
    from llama_index_contextual.app.index.caches import Caches
    from llama_index_contextual.app.index.content_cache import ContentCache
    from llama_index_contextual.app.index.rows import IndexState
    from llama_index_contextual.context.postprocessor import ContextualNodePostprocessor

PAID = "llm:"  # prefix of the source of paid contexts
_REMEMBERED = (
    "embed_model",
    "context",
    "show_context_to_llm",
    "files",
    "chunks",
    "context_options",
)
_MODELS = ("embed_model", "context_options.llm")


@dataclass(frozen=True, eq=False)
class IndexSettings:
    """The arguments of :meth:`ContextualIndex.open`, completed.

    Settings without an argument come from the configuration, the index or defaults.

    Attributes:
        folders: The folders of the documents.
        layout: The storage folder.
        database: The database of the index.
        configuration: All settings that are not objects.
        objects: The arguments that are objects, by name.
        context_options: The options of the context generator.
        reindex: Whether another embedding model may replace that of the index.
    """

    folders: Folders
    layout: Layout
    database: Database
    configuration: Configuration
    objects: Mapping[str, Any]
    context_options: Mapping[str, Any]
    reindex: bool

    @cached_property
    def embedding(self) -> BaseEmbedding:
        """Return the embedding model."""
        from llama_index_contextual.app.settings.models import resolve_embedding

        named = self.configuration["embed_model"]
        return resolve_embedding(
            self.objects.get("embed_model") or named, self.configuration["timeout"]
        )

    @property
    def model_id(self) -> str:
        """Return the identity of the embedding model."""
        from llama_index_contextual.app.settings.models import model_id

        return model_id(self.embedding)

    @cached_property
    def parser(self) -> NodeParser:
        """Return the node parser."""
        from llama_index_contextual.app.index.chunking import default_parser

        return self.objects.get("node_parser") or default_parser(
            self.embedding, self.configuration.table("chunks")
        )

    @cached_property
    def contexts(self) -> ContextualNodePostprocessor:
        """Return the step that writes contexts."""
        from llama_index_contextual.context.postprocessor import ContextualNodePostprocessor

        options = dict(self.context_options)
        context = self.objects.get("context", self.configuration["context"])
        if context == "llm":
            from llama_index_contextual.app.settings.models import named_model

            named = {**self.configuration.table("context_options"), **options}
            named["llm"] = named_model(
                named.get("llm"), named.get("batch_size", 8), self.configuration["timeout"]
            )
            options = {"cache": self.content_cache, **named}
        show = self.configuration["show_context_to_llm"]
        descriptions = self.configuration["descriptions"]
        return ContextualNodePostprocessor(
            context, show_context_to_llm=show, descriptions=descriptions, **options
        )

    @cached_property
    def content_cache(self) -> ContentCache:
        """Return the cache of vectors, contexts and conversions for all folders."""
        from llama_index_contextual.app.index.content_cache import ContentCache

        return ContentCache(content_file(), scope=str(self.folders.root))

    @cached_property
    def caches(self) -> Caches:
        """Return the cache of arrays that are derived from the index."""
        from llama_index_contextual.app.index.caches import Caches
        from llama_index_contextual.app.settings.embeddings import NoEmbedding

        model = "" if isinstance(self.embedding, NoEmbedding) else self.model_id
        return Caches(self.layout.cache, model)

    @cached_property
    def folder_reader(self) -> FolderReader:
        """Return the reader of the folders, with the rules and readers for their files."""
        kind = self.contexts.context if "context" in self.objects else self.configuration["context"]
        rules = FileRules(include=default_include() + (SOURCE_INCLUDE if kind == "pattern" else ()))
        rules = rules.changed(**self.configuration.table("files"))
        return FolderReader(
            self.folders,
            rules,
            dict(self.objects.get("readers", {})),
            self.converter,
            self.layout.excluded,
        )

    def find_files(self, below: str = "") -> Discovery:
        """Find the files to read in the folder or below a sub-folder, and the skipped ones."""
        return self.folder_reader.find(below, known=self.database.documents())

    def converter(self, *, keep: bool = False) -> DocumentReader:
        """Return the reader of files that are not plain text.

        Args:
            keep: Whether it caches converted files.
        """
        from llama_index_contextual.app.folder.convert import DocumentReader

        return DocumentReader(conversions=self.content_cache, keep=keep)

    def close(self) -> None:
        """See :meth:`ContextualIndex.close`."""
        self.database.close()
        cached = vars(self)
        if "content_cache" in cached:
            self.content_cache.close()
        if "contexts" in cached and self.contexts.generator is not None:
            self.contexts.generator.close()

    @property
    def paid_source(self) -> str | None:
        """Return the ``context_source`` of contexts that cost something; None if none do."""
        generator = self.contexts.generator
        return None if generator is None or generator.free else generator.source

    @property
    def exists(self) -> bool:
        """Return whether anything has been indexed; True if the database is damaged."""
        try:
            return bool(self.database.state().settings)
        except DamagedError:
            return True

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Return all settings that shape nodes and vectors, by ``section.key``.

        The section ``parser`` has the class and the settings of the parser, ``context`` the name
        and the version of the generator (a hash of its prompt, model and settings), ``embedding``
        the model, ``reading`` the converters and readers of files, and ``files`` the file rules.
        """
        parser = self.parser
        contexts = self.contexts
        readers = sorted(self.folder_reader.readers.items())
        fields = type(parser).model_fields.keys() - {"callback_manager", "id_func"}
        values = {
            "parser.class": type(parser).__name__,
            **{f"parser.{name}": getattr(parser, name) for name in sorted(fields)},
            "parser.revision": getattr(type(parser), "revision", None),
            "context.generator": contexts.fingerprint,
            "context.show_to_llm": contexts.show_context_to_llm,
            "embedding.model": self.model_id,
            "reading.revision": formats.REVISION,
            "reading.readers": {name: type(reader).__name__ for name, reader in readers},
            **{f"files.{name}": value for name, value in self.folder_reader.rules},
        }
        return dict(json.loads(json.dumps(values, default=_name_of)))

    @property
    def inputs(self) -> str:
        """Return the hash of all inputs of the fingerprint; "" if some of them are objects."""
        needs_model = self.configuration["context"] == "llm"
        is_named = "context_options.llm" in self.configuration.values
        has_object = self.objects or self.context_options
        if has_object or (needs_model and not is_named):  # without a name, it is LlamaIndex's model
            return ""
        descriptions = sorted(self.configuration["descriptions"].items())
        return short_hash([__version__, self._choices, descriptions])

    def fingerprint_for(self, state: IndexState) -> dict[str, Any]:
        """Return the fingerprint. It is read from ``state`` if its inputs are the same."""
        if state.inputs and state.inputs == self.inputs:
            return state.settings
        return self.fingerprint

    def differences(self, state: IndexState) -> list[str]:
        """Return lines on the settings that differ from those that an index was made with."""
        stored = state.settings
        if not stored:
            return []
        current = self.fingerprint_for(state)
        differences = []
        for key in sorted({*stored, *current}):
            before = stored.get(key)
            after = current.get(key)
            if before != after:
                differences.append(f"{key}: {before!r} → {after!r}")
        return differences

    def replaces(self, state: IndexState) -> bool:
        """Return whether a refresh replaces the index, because another model made its vectors.

        Raises:
            FingerprintError: Another model made them, and ``reindex`` is False.
        """
        if not state.settings or state.model == self.model_id:
            return False
        if self.reindex:
            return True
        # Without this option, the command would use the former model.
        name = self.configuration.values.get("embed_model")
        model = f" --embed-model {shlex.quote(name)}" if name else ""
        raise FingerprintError(
            f"the index in {self.layout.root} was made with the embedding {state.model}, not with "
            f"{self.model_id}. Vectors of different models cannot be compared. Use the former "
            "embedding or another storage folder, or embed everything again: reindex=True in "
            f"Python, or {self.layout.refresh_command}{model} --yes"
        )

    @property
    def _choices(self) -> dict[str, Any]:
        choices = {}
        for key, value in self.configuration.values.items():
            if key.partition(".")[0] in _REMEMBERED:
                shown = without_credentials(value) if key in _MODELS else value
                choices[key] = SETTINGS[key].plain(shown)
        return choices

    def written(self) -> dict[str, Any]:
        """Return the settings that the state of an index contains."""
        folders = {name: str(folder) for name, folder in self.folders.by_name.items()}
        values = {
            "settings": self.fingerprint,
            "choices": self._choices,
            "inputs": self.inputs,
            "folders": folders,
        }
        return dict(json.loads(storable(json.dumps(values, ensure_ascii=False))[0]))


def nodes_hash(fingerprint: Mapping[str, Any]) -> str:
    """Return the hash of the settings in a fingerprint that shape the nodes of a document."""
    node_settings = {
        key: value
        for key, value in fingerprint.items()
        if not key.startswith(("embedding.", "files."))
    }
    return short_hash(node_settings)


def _name_of(value: Any) -> str:
    """Return the name of a function, or of the class of any other object."""
    return getattr(value, "__qualname__", None) or type(value).__qualname__


def open_settings(
    folder: str | Path | Mapping[str, str | Path] | None,
    storage: str | Path | None,
    config: Mapping[str, Any] | None,
    *,
    reindex: bool = False,
    passed: Mapping[str, Any] | None = None,
    context_options: Mapping[str, Any] | None = None,
) -> IndexSettings:
    """Return the settings of an index.

    Args:
        folder: See :meth:`ContextualIndex.open`.
        storage: See there.
        config: See there.
        reindex: See there.
        passed: The other arguments by name. None means not set.
        context_options: See there.

    Raises:
        SettingError: A setting is not valid.
        StorageError: The storage belongs to another folder.
    """
    folders, layout, state = places(folder, storage)
    options = dict(context_options or {})
    own_settings = {key: options.pop(key) for key in SETTINGS.keys() & options.keys()}
    _refuse_settings_of_tables(options)

    # Arguments with plain values are settings. The other ones are objects, which replace settings.
    given = {name: value for name, value in (passed or {}).items() if value is not None}
    arguments = _plain_values(given, options)
    arguments |= {key: value for key, value in own_settings.items() if value is not None}
    objects = {
        name: value for name, value in given.items() if name != "files" and name not in arguments
    }
    replaced = {*objects, "files"} if "files" in given else set(objects)
    configuration = load_configuration(
        folders.root, config, arguments=arguments, remembered=state.choices, replaced=replaced
    )
    database = Database(layout.database, layout.fix)
    return IndexSettings(folders, layout, database, configuration, objects, options, reindex)


def _refuse_settings_of_tables(options: Mapping[str, Any]) -> None:
    """Raise a SettingError for settings of a table, such as ``chunk_size``."""
    for key in SETTINGS:
        table, _, name = key.rpartition(".")
        if name in options and table not in {"", "context_options"}:
            raise SettingError(
                f"ContextualIndex.open does not take {name}. Pass "
                f"config={{{key!r}: {options[name]!r}}}."
            )


def _plain_values(given: Mapping[str, Any], context_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of arguments that are settings, by key."""
    values = {
        key: given[key]
        for key in ("embed_model", "context")
        if isinstance(given.get(key), str | bool)
    }
    rules = given.get("files")
    if rules:
        chosen = {"include", "exclude", *rules.model_fields_set}
        values |= {f"files.{name}": value for name, value in rules if name in chosen}
    for name, value in context_options.items():
        plain = getattr(value, "template", value)  # a PromptTemplate has a plain text
        if f"context_options.{name}" in SETTINGS and isinstance(plain, str | int | float):
            values[f"context_options.{name}"] = plain
    return values
