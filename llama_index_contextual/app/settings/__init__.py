"""Which settings there are: each with its name, its limits, its default and its meaning.

Variables, options of the command line and the page of the documentation are made from :data:`SETTINGS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter

from llama_index_contextual.utils.text import absolute_path

CONFIGURATION: Final = "contextual.toml"  # the settings of a folder, in it
MAX_DESCRIPTION: Final = 300  # characters: it stands in every chunk below it
LANGUAGE_MODELS: Final = "`ollama:MODEL`, `openai:MODEL` or `openai:MODEL@http://HOST/v1`"


def _as_number(value: Any) -> Any:
    if isinstance(value, bool):  # which pydantic takes for 0 or 1
        raise ValueError("a number")  # noqa: TRY004  pydantic knows no other
    return value


def _as_list(value: Any) -> Any:
    """A text as a list: an environment variable has no other way to hold one."""
    return (
        [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, str)
        else value
    )


def _as_place(path: Any) -> Path:
    if not path or not isinstance(path, str | Path):  # "" would be the working directory
        raise ValueError("name a folder")
    return absolute_path(path)


def _as_one_line(text: Any) -> Any:
    return " ".join(text.split()) if isinstance(text, str) else text


_Number = BeforeValidator(_as_number)
Hits = Annotated[int, _Number, Field(ge=1, le=100_000)]
Calls = Annotated[int, _Number, Field(ge=1, le=1000)]
Size = Annotated[int, _Number, Field(ge=1, le=10**9)]
Limit = Annotated[int, _Number, Field(ge=0, le=10**15)]
Share = Annotated[float, _Number, Field(ge=0, le=1)]
Days = Annotated[float, _Number, Field(gt=0, le=1_000_000)]
Seconds = Annotated[float, _Number, Field(gt=0, le=86_400)]
Name = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_as_list), Field(max_length=2000)]
Line = Annotated[str, Field(max_length=MAX_DESCRIPTION), BeforeValidator(_as_one_line)]
# "headers" is another name of "headings"; false, as YAML reads off, is "off".
Context = Annotated[
    Literal["off", "headings", "pattern", "llm"],
    BeforeValidator(
        lambda value: {"headers": "headings", "false": "off"}.get(str(value).lower(), value)
    ),
]
Refreshing = Literal["auto", "never", "wait"]  # in the background, never, or before the answer


class Collection(BaseModel, frozen=True, extra="forbid"):
    """One of several folders of an index.

    Attributes:
        path: Where it is.
        description: What it holds, in one line, or "".
        include: Patterns of the files to read, as ``[files]`` has them; none for those of the index.
        exclude: Patterns to leave out, beside those of the index.
    """

    path: Annotated[Path, BeforeValidator(_as_place)]
    description: Line = ""
    include: Texts = ()
    exclude: Texts = ()


class Options(dict[str, Any]):
    """Settings by key, from options of the command line, by which errors name them."""


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        key: Its name, after that of its table where it is in one: ``"chunks.chunk_size"``.
        kind: The type of its values, with limits.
        default: What holds where nobody sets it; None where it is computed.
        meaning: One sentence, with the unit.
        computed: The default in words, where it is computed.
        flags: The option of the command line that sets it, with its short form or its negation.
        harmless: Whether a folder's own file may set it, or the values that it may set. What names a server, a model
            on one, a store, a path, a secret, or more files than are read by default is not harmless.
    """

    key: str
    kind: Any
    default: Any
    meaning: str
    computed: str = ""
    flags: str = ""
    harmless: bool | tuple[str | bool, ...] = False

    @property
    def name(self) -> str:
        """The name without that of its table."""
        return self.key.rpartition(".")[2]

    @property
    def table(self) -> str:
        """The table that it is in; "" where it is in none."""
        return self.key.rpartition(".")[0]

    @property
    def option(self) -> str:
        """The option of the command line; "" where there is none."""
        return self.flags.split(" ")[0].partition("/")[0]

    @property
    def is_table(self) -> bool:
        """Whether its value is a table of names that the user chooses."""
        return isinstance(self.default, dict)

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """The reader and checker of values."""
        return TypeAdapter(self.kind)

    def plain(self, value: Any) -> Any:
        """A value as a file holds it."""
        return self.adapter.dump_python(value, mode="json", by_alias=True, exclude_defaults=True)

    def is_harmless(self, value: Any) -> bool:
        """Whether a folder's own file may set this value."""
        return self.harmless if isinstance(self.harmless, bool) else value in self.harmless


_ALL: Final = (
    Setting(
        "context", Context, "headings",
        "What each chunk is given back: `off`, `headings` (or `headers`), `pattern` or `llm`.",
        flags="--context", harmless=("off", "headings", "headers", "pattern", False),
    ),
    Setting(
        "embed_model", Name, "local",
        "What makes the vectors: `local`, `e5` (many languages), `none` (keywords alone), `ollama:MODEL`, "
        "`openai:MODEL`, `openai:MODEL@URL`, `huggingface:MODEL`, `voyage:MODEL` or `jina:MODEL`.",
        flags="--embed-model", harmless=("local", "e5", "none"),
    ),
    Setting("timeout", Seconds, 60.0, "Seconds without an answer after which the server of a model is given up."),
    Setting(
        "show_context_to_llm", bool, default=False, meaning="Whether an answering model sees contexts.", harmless=True
    ),
    Setting(
        "files.include", Annotated[Texts, Field(min_length=1)], None,
        "Patterns of the files to read, as in a `.gitignore`.", flags="--include", harmless=True,
        computed="Markdown and plain text; with the context `pattern` source code, too",
    ),
    Setting(
        "files.exclude", Texts, (), "Patterns of files and folders to leave out.", flags="--exclude", harmless=True
    ),
    Setting("files.gitignore", bool, default=True, meaning="Whether `.gitignore` files are obeyed."),
    Setting("files.hidden", bool, default=False, meaning="Whether names that start with a dot are read."),
    Setting("files.max_bytes", Size, 10_000_000, "Larger files are reported and not read."),
    Setting(
        "chunks.chunk_size", Annotated[int, _Number, Field(ge=20, le=10**9)], None, "The most tokens of a chunk.",
        "what the embedding reads less room for a context; 400 where that is unknown, and for source code",
        "--chunk-size", harmless=True,
    ),
    Setting(
        "chunks.chunk_overlap", Limit, None, "The most tokens that a chunk repeats of the one before it.",
        "a fifth of the size", harmless=True,
    ),
    Setting(
        "context_options.llm", Name, None, f"The language model of contexts and answers: {LANGUAGE_MODELS}.",
        "qwen3:0.6b on this machine's Ollama", "--llm",
    ),
    Setting(
        "context_options.prompt", Name, None,
        "A template with `{document}` and after it `{chunks}`, or the file that holds it.",
        "the one on the page of contexts",
    ),
    Setting("context_options.batch_size", Calls, 8, "Chunks per call."),
    Setting("context_options.num_workers", Calls, None, "Calls at a time.", "1 for a server on this machine, else 4"),
    Setting("context_options.max_calls", Limit, None, "The most calls.", "no limit"),
    Setting(
        "retrieval.top_k", Hits, None, "Hits of a search.", "5 on the command line, 10 in Python", "--top-k -k",
        harmless=True,
    ),
    Setting(
        "retrieval.per_file", Limit, 2, "The most hits of one file that `search` shows; 0 is no limit.",
        flags="--per-file", harmless=True,
    ),
    Setting(
        "retrieval.min_score", Share, None, "The relevance that a hit needs, 0 to 1; 0 shows all hits.",
        "0 in Python; 0.05 on the command line, or 0 with filters or another embedding", "--min-score", harmless=True,
    ),
    Setting(
        "retrieval.recency", bool, default=False, meaning="Whether newer notes win among near equals.",
        flags="--recency/--no-recency", harmless=True,
    ),
    Setting("retrieval.half_life_days", Days, 30.0, "Days after which the recency factor is a half.", harmless=True),
    Setting("memory.max_results", Hits, 4, "The most hits of a digest.", flags="--max-results -k", harmless=True),
    Setting(
        "memory.max_tokens", Size, 600, "The most tokens of a digest; its first hit is shown whatever it costs.",
        harmless=True,
    ),
    Setting(
        "memory.min_relevance", Share | Literal["auto"], "auto",
        "How likely a hit has to answer the message, 0 to 1; 0 leaves out none; `auto` is what a search asks for, "
        "0.05, or 0 with another embedding.",
        flags="--min-relevance", harmless=True,
    ),
    Setting(
        "memory.include_recency", bool, default=True, meaning=
        "Whether newer notes win among near equals, where a message names no date.",
        flags="--recency/--no-recency", harmless=True,
    ),
    Setting("memory.evergreen", Texts, ("MEMORY.md",), "Patterns of notes that never age.", harmless=True),
    Setting(
        "memory.refresh", Refreshing, None,
        "Whether a question brings the index up to date: in the background, never, or before the answer.",
        "auto for mcp, never for context", "--refresh", harmless=True,
    ),
    Setting(
        "descriptions", dict[str, Line], {},
        'What a folder or file holds, as in `"api/" = "REST reference"`: a part of every context below it.',
        harmless=True,
    ),
)  # fmt: skip
SETTINGS: Final[dict[str, Setting]] = {setting.key: setting for setting in _ALL}
TABLES: Final = frozenset(
    setting.table or setting.key for setting in _ALL if setting.table or setting.is_table
)


@dataclass(frozen=True)
class Configuration:
    """The settings of a folder.

    Attributes:
        values: Those that are set, by key, as :attr:`Setting.kind` has them.
        origins: The place that sets each: a file, a variable, an option or the index.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        """The value of a setting, or its default."""
        return self.values[key] if key in self.values else SETTINGS[key].default

    def table(self, name: str) -> dict[str, Any]:
        """The values of a table that are set, by name."""
        return {
            SETTINGS[key].name: value
            for key, value in self.values.items()
            if SETTINGS[key].table == name
        }
