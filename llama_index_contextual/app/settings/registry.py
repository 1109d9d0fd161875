"""All settings of the application, with their types, limits, defaults and meanings.

Environment variables, command line options and the reference page are made from :data:`SETTINGS`.
To add a setting, add an entry to this list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter

from llama_index_contextual.app.settings import names
from llama_index_contextual.context import registry
from llama_index_contextual.memory.settings import MemorySettings
from llama_index_contextual.utils.errors import SettingError

FOLDER_FILE = "contextual.toml"  # the settings file of a folder
MAX_DESCRIPTION = 300  # characters; a description is part of every context below it
LANGUAGE_MODELS = "`ollama:MODEL`, `openai:MODEL` or `openai:MODEL@http://HOST/v1`"


def _refuse_bool(value: Any) -> Any:
    """Refuse true and false, which pydantic would read as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("Input should be a number")  # noqa: TRY004  pydantic reports no other error
    return value


def _split_text(value: Any) -> Any:
    """Split a text at commas, because an environment variable can only contain a text."""
    if not isinstance(value, str):
        return value
    parts = (part.strip() for part in value.split(","))
    return [part for part in parts if part]


def _embedding(name: Any) -> Any:
    """Check the name of an embedding."""
    names.embedding_name(name)
    return name


def _language_model(name: Any) -> Any:
    """Check the name of a language model."""
    names.language_model_name(name)
    return name


def _as_one_line(text: Any) -> Any:
    return " ".join(text.split()) if isinstance(text, str) else text


def _context_name(value: Any) -> str:
    """Return the registered name of a context generator."""
    try:
        return registry.context_name(value)
    except SettingError as error:
        names = ", ".join(map(repr, registry.names()))
        raise ValueError(f"Input should be one of {names}") from error


_Number = BeforeValidator(_refuse_bool)
Hits = Annotated[int, _Number, Field(ge=1, le=100_000)]
Calls = Annotated[int, _Number, Field(ge=1, le=1000)]
Size = Annotated[int, _Number, Field(ge=1, le=10**9)]
ChunkSize = Annotated[int, _Number, Field(ge=20, le=10**9)]
Limit = Annotated[int, _Number, Field(ge=0, le=10**15)]
Share = Annotated[float, _Number, Field(ge=0, le=1)]
Days = Annotated[float, _Number, Field(gt=0, le=1_000_000)]
Seconds = Annotated[float, _Number, Field(gt=0, le=86_400)]
Name = Annotated[str, Field(min_length=1)]
Embedding = Annotated[str, BeforeValidator(_embedding)]
LanguageModel = Annotated[str, BeforeValidator(_language_model)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_split_text), Field(max_length=2000)]
Line = Annotated[str, Field(max_length=MAX_DESCRIPTION), BeforeValidator(_as_one_line)]
Context = Annotated[str, BeforeValidator(_context_name)]
Refreshing = Literal["auto", "never", "wait"]  # in the background, never, or before the answer


class Options(dict[str, Any]):
    """Settings by key from command line options. Errors name the option."""


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        key: The name, with the table that contains the setting: ``"chunks.chunk_size"``.
        kind: The type of the value, with limits.
        default: The default value; None if it is computed.
        meaning: One sentence, with the unit.
        computed: The default in words, if it is computed.
        flags: The command line option, with its short form or its negation.
        harmless: Whether the file of a folder may set it, or the values that such a file may set.
            A setting that names a server, a model on a server, a storage folder, a path or a secret
            is not harmless. Neither is one that lets the index read more files than by default.
    """

    key: str
    kind: Any
    default: Any
    meaning: str
    computed: str = ""
    flags: str = ""
    harmless: bool | tuple[str, ...] | Callable[[Any], bool] = False

    @property
    def name(self) -> str:
        """Return the name without the table."""
        return self.key.rpartition(".")[2]

    @property
    def table(self) -> str:
        """Return the name of the table that contains the setting, or ""."""
        return self.key.rpartition(".")[0]

    @property
    def option(self) -> str:
        """Return the long command line option, or ""."""
        return self.flags.split(" ")[0].partition("/")[0]

    @property
    def is_table(self) -> bool:
        """Return whether the value is a table whose keys the user chooses."""
        return isinstance(self.default, dict)

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """Return the adapter that parses and checks values."""
        return TypeAdapter(self.kind)

    def plain(self, value: Any) -> Any:
        """Return a value as plain data, as in a settings file."""
        return self.adapter.dump_python(value, mode="json", by_alias=True, exclude_defaults=True)

    def is_harmless(self, value: Any) -> bool:
        """Return whether the file of a folder may set this value."""
        if callable(self.harmless):
            return self.harmless(value)
        return self.harmless if isinstance(self.harmless, bool) else value in self.harmless


def _memory_setting(name: str, reader: BeforeValidator | None = None, flags: str = "") -> Setting:
    """Return a memory setting, with the type and meaning that the plug-in declares.

    Args:
        name: The name of the setting in the plug-in.
        reader: A validator that runs before those of the plug-in.
        flags: The command line option.
    """
    declared = MemorySettings.model_fields[name]
    kind: Any = Annotated[declared.annotation, declared]
    if reader is not None:
        kind = Annotated[kind, reader]
    meaning = " ".join((declared.description or "").split())
    return Setting(f"memory.{name}", kind, declared.default, meaning, flags=flags, harmless=True)


_ALL = (
    Setting(
        "context",
        Context,
        "headings",
        "The context written into each chunk: "
        f"{', '.join(f'`{name}`' for name in registry.names())}.",
        flags="--context",
        harmless=registry.is_free,
    ),
    Setting(
        "embed_model",
        Embedding,
        "local",
        "The embedding: `local`, `e5` (many languages), `none` (keywords only), `ollama:MODEL`, "
        "`openai:MODEL`, `openai:MODEL@URL` or `huggingface:MODEL`.",
        flags="--embed-model",
        harmless=names.LOCAL_EMBEDDINGS,
    ),
    Setting(
        "timeout",
        Seconds,
        60.0,
        "Seconds of silence after which a request to a model server fails.",
    ),
    Setting(
        "show_context_to_llm",
        bool,
        default=False,
        meaning="Whether a language model that answers questions sees contexts.",
        harmless=True,
    ),
    Setting(
        "files.include",
        Annotated[Texts, Field(min_length=1)],
        None,
        "Patterns of the files to read, as in a `.gitignore`.",
        flags="--include",
        harmless=True,
        computed="Markdown and plain text; also source code with the context `pattern`",
    ),
    Setting(
        "files.exclude",
        Texts,
        (),
        "Patterns of files and folders to leave out.",
        flags="--exclude",
        harmless=True,
    ),
    Setting(
        "files.gitignore", bool, default=True, meaning="Whether `.gitignore` files are obeyed."
    ),
    Setting(
        "files.hidden",
        bool,
        default=False,
        meaning="Whether files and folders whose names start with a dot are read.",
    ),
    Setting(
        "files.max_bytes",
        Size,
        10_000_000,
        "The largest file in bytes; larger files are reported and not read.",
    ),
    Setting(
        "chunks.chunk_size",
        ChunkSize,
        None,
        "The largest chunk in tokens.",
        "what the embedding reads, minus space for a context; 400 if that is unknown, and for "
        "source code",
        "--chunk-size",
        harmless=True,
    ),
    Setting(
        "chunks.chunk_overlap",
        Limit,
        None,
        "The largest overlap with the chunk before, in tokens.",
        "a fifth of the size",
        harmless=True,
    ),
    Setting(
        "context_options.llm",
        LanguageModel,
        None,
        f"The language model for contexts and answers: {LANGUAGE_MODELS}.",
        "qwen3:0.6b on this machine's Ollama",
        "--llm",
    ),
    Setting(
        "context_options.prompt",
        Name,
        None,
        "A template with `{document}` followed by `{chunks}`.",
        "the prompt in the guide to contexts",
    ),
    Setting("context_options.batch_size", Calls, 8, "Chunks per call."),
    Setting(
        "context_options.num_workers",
        Calls,
        None,
        "Simultaneous calls.",
        "1 for a server on this machine, else 4",
    ),
    Setting("context_options.max_calls", Limit, None, "The largest number of calls.", "no limit"),
    Setting(
        "retrieval.top_k",
        Hits,
        None,
        "The number of hits of a search.",
        "5 on the command line, 10 in Python",
        "--top-k -k",
        harmless=True,
    ),
    Setting(
        "retrieval.per_file",
        Limit,
        2,
        "The largest number of hits from one file that `search` shows; 0 means no limit.",
        flags="--per-file",
        harmless=True,
    ),
    Setting(
        "retrieval.min_score",
        Share,
        None,
        "The lowest relevance of a hit, 0 to 1; 0 shows all hits.",
        "0 in Python; 0.05 on the command line, or 0 with filters or another embedding",
        "--min-score",
        harmless=True,
    ),
    Setting(
        "retrieval.recency",
        bool,
        default=False,
        meaning="Whether newer notes come first among hits of nearly equal score.",
        flags="--recency/--no-recency",
        harmless=True,
    ),
    Setting(
        "retrieval.half_life_days",
        Days,
        30.0,
        "Days after which the recency factor is one half.",
        harmless=True,
    ),
    _memory_setting("max_results", _Number, "--max-results -k"),
    _memory_setting("max_tokens", _Number),
    _memory_setting("min_relevance", _Number, "--min-relevance"),
    _memory_setting("include_recency", flags="--recency/--no-recency"),
    _memory_setting("evergreen", BeforeValidator(_split_text)),
    Setting(
        "memory.refresh",
        Refreshing,
        None,
        "When a question refreshes the index: `auto` in the background, `wait` before the answer, "
        "or `never`.",
        "auto for mcp, never for context",
        "--refresh",
        harmless=True,
    ),
    Setting(
        "descriptions",
        dict[str, Line],
        {},
        'What a folder or file contains, as in `"api/" = "REST reference"`; part of every '
        "context below it.",
        harmless=True,
    ),
)
SETTINGS: dict[str, Setting] = {setting.key: setting for setting in _ALL}
TABLES = frozenset(
    setting.table or setting.key for setting in _ALL if setting.table or setting.is_table
)


@dataclass(frozen=True)
class Configuration:
    """The settings of a folder.

    Attributes:
        values: The validated values of the settings that are set, by key.
        origins: The origin of each value: a file, a variable, an option or the index.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        """Return the value of a setting, or its default."""
        return self.values[key] if key in self.values else SETTINGS[key].default

    def table(self, name: str) -> dict[str, Any]:
        """Return the values that are set in a table, by name."""
        return {
            SETTINGS[key].name: value
            for key, value in self.values.items()
            if SETTINGS[key].table == name
        }
