"""Settings of an index: from arguments, the configuration and its state; checked against those that made it."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.prompts import PromptTemplate

from llama_index_contextual.app.folder.convert import DocumentReader
from llama_index_contextual.app.folder.formats import suffix_of
from llama_index_contextual.app.folder.sources import Reading
from llama_index_contextual.app.folder.walk import SOURCE_INCLUDE, FileRules, default_include
from llama_index_contextual.app.places import command_line, places, remembered
from llama_index_contextual.app.settings.late_chunking import DocumentEmbedding
from llama_index_contextual.app.settings.loading import checked_value, load_configuration, with_remembered
from llama_index_contextual.app.settings.models import embedding_limit, model_id, resolve_embedding
from llama_index_contextual.app.settings.schema import SETTINGS, Configuration
from llama_index_contextual.app.store.database import Database
from llama_index_contextual.app.store.paid import PaidStore
from llama_index_contextual.chunking import HeadingAwareMarkdownNodeParser
from llama_index_contextual.context import LLM, context_name
from llama_index_contextual.errors import (
    ContextualWarning,
    DamagedError,
    FingerprintError,
    StorageError,
    without_credentials,
)
from llama_index_contextual.retrieval import ContextualNodePostprocessor
from llama_index_contextual.text import MARKDOWN_SUFFIXES, short_hash

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.node_parser import NodeParser

    from llama_index_contextual.app.folder import Folders
    from llama_index_contextual.app.store import Layout
    from llama_index_contextual.app.store.rows import IndexState
    from llama_index_contextual.context import LLMContextGenerator

PAID: Final = "llm:"  # how the source of a context begins that was paid for
LARGEST: Final = 400  # tokens of a chunk, however many more an embedding reads
# Of an embedding's window, kept free for the context. A context of the Kubernetes pages ("Document: path > title >
# section") is 30 word pieces at the median and 60 at most of them.
CONTEXT_RESERVE: Final = 64
_REMEMBERED: Final = ("embed_model", "context", "show_context_to_llm", "files", "chunks", "context_options")
_MODELS: Final = ("embed_model", "context_options.llm")
_OF_A_FOLDER: Final = {"markdown_suffixes": MARKDOWN_SUFFIXES, "typed_front_matter": True}
_OF_SEVERAL: Final = {"files.include", "files.exclude", "descriptions"}  # settings of each of several folders


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


@dataclass(frozen=True)
class IndexSettings:
    """The arguments of :meth:`ContextualIndex.open`, completed by the configuration, the index's own, and defaults.

    Attributes:
        reading: Folder, file rules and readers.
        layout: The storage folder.
        embedding: Makes vectors.
        parser: Makes nodes.
        contexts: Makes their contexts.
        database: The index.
        paid: What cost money.
        configuration: All settings that are not objects.
        reindex: Whether another embedding model replaces that of the index.
    """

    reading: Reading
    layout: Layout
    embedding: BaseEmbedding
    parser: NodeParser
    contexts: ContextualNodePostprocessor
    database: Database
    paid: PaidStore
    configuration: Configuration
    reindex: bool

    @property
    def folders(self) -> Folders:
        """The documents."""
        return self.reading.folders

    @property
    def paid_source(self) -> str | None:
        """The ``context_source`` of contexts that cost something, or None where contexts are free or off."""
        generator = self.contexts.generator
        return None if generator is None or generator.free else generator.name

    @property
    def model(self) -> LLMContextGenerator | None:
        """The generator that asks a language model, where there is one."""
        generator: Any = self.contexts.generator
        return generator if hasattr(generator, "require_key") else None

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
        if not state.settings:
            raise StorageError(f"there is no index in {self.database.path}. Cure: {self.database.cure}")

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
        parser, contexts = self.parser, self.contexts
        fields = type(parser).model_fields.keys() - {"callback_manager", "id_func"}
        return {
            "parser.class": type(parser).__name__,
            **{f"parser.{name}": _plain(getattr(parser, name)) for name in sorted(fields)},
            "parser.revision": getattr(type(parser), "revision", None),
            "context.generator": contexts.fingerprint,
            "context.show_to_llm": contexts.show_context_to_llm,
            **{f"context.{name}": list(keys) for name, keys in contexts.key_lists().items() if keys},
            "embedding.model": model_id(self.embedding),
            "reading.readers": {name: type(one).__name__ for name, one in sorted(self.reading.readers.items())},
            **{f"files.{name}": _plain(value) for name, value in self.reading.rules},
        }

    def differences(self, state: IndexState) -> list[str]:
        """The settings that differ from those an index was made with."""
        stored, now = state.settings, self.fingerprint
        keys = sorted({*stored, *now}) if stored else []
        return [f"{key}: {stored.get(key)!r} → {now.get(key)!r}" for key in keys if stored.get(key) != now.get(key)]

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


def open_settings(
    folder: str | Path | Mapping[str, Any] | None,
    storage: str | Path | None,
    config: str | Path | Configuration | Callable[[Path], Configuration] | None,
    *,
    reindex: bool,
    passed: Mapping[str, Any],
    context_options: Mapping[str, Any],
) -> IndexSettings:
    """The settings of an index.

    Args:
        folder: As :meth:`ContextualIndex.open` takes it, as are the others.
        storage: The same.
        config: The same.
        reindex: The same.
        passed: Its other arguments; None is not set.
        context_options: The same.

    Raises:
        SettingError: One is wrong.
        StorageError: The storage is of another folder.
    """
    folders, layout = places(folder, storage)
    if callable(config):
        config = config(folders.root)
    elif not isinstance(config, Configuration):
        config = load_configuration(folders.root, file=config)
    passed = {name: value for name, value in passed.items() if value is not None}
    replaced = {name for name in ("embed_model", "context") if not isinstance(passed.get(name, ""), str | bool)}
    replaced |= {"files"} & passed.keys()  # by objects: settings of these names count no more
    values = {**_without(config.values, replaced), **_values_of(passed, context_options)}
    database = Database(layout.database, command_line(folders, layout))
    stored = _without(remembered(folders, layout, database), replaced)
    config = with_remembered(replace(config, values=values), stored)
    folders, descriptions = _described(folders)
    embedding = resolve_embedding(passed.get("embed_model") or config["embed_model"], config["timeout"])
    paid = PaidStore(layout.paid, database.cure)
    context: Any = passed["context"] if "context" in replaced else context_name(config["context"])
    options = dict(context_options)
    if context == LLM:
        from llama_index_contextual.app.settings.models import named_model

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
    converter = DocumentReader(conversions=paid, keep=False)
    reading = Reading(folders, rules, dict(passed.get("readers", {})), converter, layout.root)
    parser = passed.get("node_parser") or default_parser(embedding, config.table("chunks"))
    return IndexSettings(reading, layout, embedding, parser, contexts, database, paid, config, reindex)


def _values_of(passed: Mapping[str, Any], context_options: Mapping[str, Any]) -> dict[str, Any]:
    """Those arguments that are settings, by key."""
    values = {key: passed[key] for key in ("embed_model", "context") if isinstance(passed.get(key), str | bool)}
    if "show_context_to_llm" in passed:
        values["show_context_to_llm"] = passed["show_context_to_llm"]
    if rules := passed.get("files"):
        chosen = {"include", "exclude", *rules.model_fields_set}
        values |= {f"files.{name}": value for name, value in rules if name in chosen}
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
            cure = "say it by options or in your own settings"
            text = f"{config.file}: {', '.join(others)} not obeyed in an index of several folders. Cure: {cure}."
            warnings.warn(text, ContextualWarning, stacklevel=4)
        descriptions |= {f"{name}/{key.lstrip('/.')}": text for key, text in values.get("descriptions", {}).items()}
        if collection.description:
            descriptions[f"{name}/"] = collection.description
        include = collection.include or values.get("files.include", ())
        exclude = (*values.get("files.exclude", ()), *collection.exclude)
        collections[name] = collection.model_copy(update={"include": include, "exclude": exclude})
    return replace(folders, collections=collections), descriptions
