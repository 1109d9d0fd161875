"""The configuration of a folder: one file that Python, the command line and the MCP server read alike.

The file is ``contextual.toml`` in the folder, or the table ``[tool.llama-index-contextual]`` of its
``pyproject.toml``. A value is taken from the first place that says it: an argument in Python, an option of the command
line, an environment variable (``LLAMA_INDEX_CONTEXTUAL_CHUNKS__SIZE``), the file, the index, the default.

This module knows the first four places below the argument. Where none of them says a value, it is None here, and the
index or the default decides.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError, field_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from llama_index_contextual.errors import SettingError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

FILE: Final = "contextual.toml"
TABLE: Final = ("tool", "llama-index-contextual")
MAX_DESCRIPTION: Final = 300  # characters: it stands in every chunk below it
PREFIX: Final = "LLAMA_INDEX_CONTEXTUAL_"
_OLDER_VARIABLES: Final = {f"{PREFIX}EMBED_MODEL": "embedding.model"}


def _list(value: Any) -> Any:
    """Read one text as a list: an environment variable has no other way to hold one."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _mode(value: Any) -> Any:
    return "headings" if value == "headers" else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_list)]
Mode = Annotated[Literal["off", "headings", "pattern", "llm"], BeforeValidator(_mode)]


def _setting(
    meaning: str, default: Any = None, *, python: str = "", option: str = "", example: Any = None, **limits: Any
) -> Any:
    """Declare a key.

    Args:
        meaning: One sentence for the reference and for the commented file.
        default: What holds where nobody says it. Text in parentheses describes a default that is computed.
        python: The name that Python gives it, if another.
        option: The option of the command line that sets it.
        example: A value for the commented file, where the default is none.
        **limits: Of pydantic, such as ``ge=1``.
    """
    shown = {"default": default, "python": python, "option": option, "example": example}
    return Field(None, description=meaning, json_schema_extra=shown, **limits)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def given(self) -> dict[str, Any]:
        """Return the values that were said, by their names in Python."""
        fields = type(self).model_fields
        said = {key: getattr(self, key) for key in fields if not isinstance(getattr(self, key), _Section)}
        return {shown_of(fields[key])["python"] or key: value for key, value in said.items() if value is not None}


class Files(_Section):
    """Which files of the folder are read."""

    include: Texts | None = _setting(
        "Patterns of the files to read, as in a `.gitignore`.",
        "(Markdown and plain text; with the mode `pattern` source code, too)",
        option="--include",
        example=("*.md", "*.txt"),
        min_length=1,
    )
    exclude: Texts | None = _setting(
        "Patterns of files and folders to leave out.", (), python="ignore", option="--exclude", example=("drafts/",)
    )
    gitignore: bool | None = _setting("Whether `.gitignore` files are obeyed.", default=True)
    hidden: bool | None = _setting("Whether names that start with a dot are read.", default=False)
    follow_symlinks: bool | None = _setting("Whether symbolic links are followed.", default=False)
    max_bytes: int | None = _setting("Larger files are reported and not read.", 10_000_000, ge=1)


class Chunks(_Section):
    """How files are cut. Sizes are in tokens."""

    size: int | None = _setting(
        "The most tokens of a chunk.",
        "(what the embedding reads less room for a context; 400 where that is unknown)",
        python="chunk_size",
        option="--chunk-size",
        example=192,
        ge=1,
    )
    overlap: int | None = _setting(
        "The most tokens that a chunk repeats of the one before it.",
        "(a fifth of the size)",
        python="chunk_overlap",
        option="--overlap",
        example=38,
        ge=0,
    )
    min_size: int | None = _setting(
        "Smaller sections join a neighbour.", "(an eighth of the size)", python="min_chunk_size", example=24, ge=0
    )
    max_size: int | None = _setting(
        "The most tokens of what cannot be cut, such as one long line.",
        "(twice the size)",
        python="max_chunk_size",
        example=384,
        ge=1,
    )
    tokenizer: Literal["cl100k", "minilm", "estimate"] | None = _setting(
        "What counts the tokens.", "(minilm with the local embedding, else cl100k)", example="cl100k"
    )


class LLM(_Section):
    """The language model of the mode `llm`."""

    model: str | None = _setting(
        "`ollama:MODEL`, `openai:MODEL` or `openai:MODEL@http://HOST/v1`.",
        "(qwen3:0.6b on this machine's Ollama)",
        python="llm",
        option="--llm",
        example="ollama:qwen3:0.6b",
        min_length=1,
    )
    prompt: str | None = _setting(
        "A template with `{document}` and after it `{chunks}`, or the file that holds it.",
        "(the one in docs/contexts.md)",
        option="--prompt",
        example="prompt.txt",
        min_length=1,
    )
    batch_size: int | None = _setting("Chunks per call.", 8, option="--batch-size", ge=1)
    workers: int | None = _setting(
        "Calls at a time.",
        "(1 for a server on this machine, else 4)",
        python="num_workers",
        option="--workers",
        example=4,
        ge=1,
    )
    timeout: float | None = _setting(
        "Seconds that a call may take for each chunk.", 5.0, python="chunk_timeout", option="--timeout", gt=0
    )
    max_calls: int | None = _setting("The most calls.", "(no limit)", option="--max-calls", example=1000, ge=0)
    max_tokens: int | None = _setting("The most tokens, in and out.", "(no limit)", example=1_000_000, ge=0)
    context_window: int | None = _setting("Tokens that the model takes.", "(what it says)", example=8192, ge=1)
    fallback_only: bool | None = _setting(
        "Use the contexts in the cache and never call the model.", default=False, option="--fallback-only"
    )
    reuse: Literal["chunk", "document"] | None = _setting(
        "Whether a context outlives edits elsewhere in its document (`chunk`) or is made anew (`document`).", "chunk"
    )

    def given(self) -> dict[str, Any]:
        """Return the values that were said, by the names of ``LLMContextGenerator``, which has one for all waiting."""
        said = super().given()
        patience = {"chunk_timeout": said.pop("chunk_timeout")} if "chunk_timeout" in said else None
        return said if patience is None else {**said, "patience": patience}


class Context(_Section):
    """What each chunk is given back."""

    mode: Mode | None = _setting(
        "`off`, `headings` (or `headers`), `pattern` or `llm`.", "headings", option="--context", example="headings"
    )
    show_to_llm: bool | None = _setting(
        "Whether an answering model sees contexts.", default=False, python="show_context_to_llm"
    )
    llm: LLM = LLM()


class Embedding(_Section):
    """What makes the vectors."""

    model: str | None = _setting(
        "`local`, `ollama:MODEL`, `openai:MODEL` or `huggingface:MODEL`.",
        "local",
        python="embed_model",
        option="--embed-model",
        min_length=1,
    )


class Retrieval(_Section):
    """How questions are answered."""

    top_k: int | None = _setting(
        "Hits of a search.", "(5 on the command line, 10 in Python)", option="--top-k", example=5, ge=1
    )
    per_file: int | None = _setting("The most hits of one file.", "(no limit)", option="--per-file", example=1, ge=1)
    recency: bool | None = _setting("Whether newer notes win among near equals.", default=False, option="--recency")
    half_life_days: float | None = _setting("Days after which the recency factor is a half.", 30.0, gt=0)
    rerank: str | None = _setting(
        "A reranker: `huggingface:MODEL` (a cross-encoder), `ollama:MODEL` or `openai:MODEL` (asked to rank).",
        "(none)",
        option="--rerank",
        example="huggingface:BAAI/bge-reranker-base",
        min_length=1,
    )


class Memory(_Section):
    """How notes answer an agent."""

    enabled: bool | None = _setting("Whether memory answers at all.", default=True, option="--enabled")
    refresh: Literal["auto", "never", "wait"] | None = _setting(
        "Whether a question brings the index up to date: in the background, never, or before the answer.",
        "(auto for mcp, never for context)",
        option="--refresh",
        example="auto",
    )
    max_results: int | None = _setting("The most hits of a digest.", 4, option="--max-results", ge=1)
    max_tokens: int | None = _setting("The most tokens of a digest.", 600, ge=1)
    recency: bool | None = _setting(
        "Whether newer notes win among near equals.", default=True, python="include_recency", option="--recency"
    )
    half_life_days: float | None = _setting(
        "Days after which a dated note's recency factor is a half.", 30.0, option="--half-life-days", gt=0
    )
    recency_weight: float | None = _setting("The share of a score that age may take, 0 to 1.", 0.1, ge=0, le=1)
    recency_floor: float | None = _setting("The least recency factor, 0 to 1.", 0.0, ge=0, le=1)
    date_boost: float | None = _setting(
        "The gain of a note of a day that the message names, as a share of its score.", 0.5, ge=0
    )
    min_evidence: float | None = _setting(
        "The evidence (cosine plus share of matched words) that a hit needs; 0 shows all hits.",
        0.55,
        option="--min-evidence",
        ge=0,
    )
    candidate_pool: int | None = _setting("Hits that are ranked before the cut.", 50, ge=1)
    evergreen: Texts | None = _setting("Patterns of notes that never age.", ("MEMORY.md",))
    languages: Texts | None = _setting(
        "Languages of the messages: bundled names, or YAML files.", ("en", "es", "zh", "ja")
    )
    commands: Texts | None = _setting(
        "Slash commands that are never looked up.", "(those of common agents)", example=("/help",)
    )

    def given(self) -> dict[str, Any]:
        """Return the values that were said, by the names of ``MemorySettings``, which has no ``refresh``."""
        return {key: value for key, value in super().given().items() if key != "refresh"}


class Configuration(BaseModel):
    """The settings of a folder, as far as somebody said them. The others are None."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: Files = Files()
    chunks: Chunks = Chunks()
    context: Context = Context()
    embedding: Embedding = Embedding()
    retrieval: Retrieval = Retrieval()
    memory: Memory = Memory()
    descriptions: dict[str, str] = Field({}, description='What a folder holds, as in `"api/" = "REST reference"`.')

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _file: Path | None = PrivateAttr(default=None)

    @property
    def origins(self) -> dict[str, str]:
        """Where each value that was said comes from, by key: ``"--chunk-size"``, ``"contextual.toml:4"``."""
        return dict(self._origins)

    @property
    def file(self) -> Path | None:
        """The file that was read, or None."""
        return self._file

    @field_validator("descriptions")
    @classmethod
    def _one_line(cls, value: dict[str, str]) -> dict[str, str]:
        if long := next((path for path, text in value.items() if len(text) > MAX_DESCRIPTION), None):
            raise ValueError(
                f"the description of {long!r} is longer than {MAX_DESCRIPTION} characters; say it in fewer"
            )
        return {path: " ".join(text.split()) for path, text in value.items() if text.split()}


def descriptions_of(descriptions: Mapping[str, str], path: str) -> list[str]:
    """Return what is said of a file and of the folders that it is in, as ``api: REST reference``, outermost first.

    Args:
        descriptions: By path of a folder or file, with or without a slash at its end; ``"/"`` is the whole folder.
        path: Of the file, relative to the folder of the documents, with ``/``.
    """
    said = sorted((key.strip("/."), text) for key, text in descriptions.items())
    return [
        f"{key}: {text}" if key else text for key, text in said if not key or path == key or path.startswith(f"{key}/")
    ]


class _Variables(Configuration, BaseSettings):
    """The same keys as environment variables."""

    model_config = SettingsConfigDict(extra="forbid", env_prefix=PREFIX, env_nested_delimiter="__")


def load_configuration(
    folder: str | Path, *, file: str | Path | None = None, options: Mapping[str, Any] | None = None
) -> Configuration:
    """Read the configuration of a folder.

    Args:
        folder: The documents. ``contextual.toml`` is looked for in it, then a table of its ``pyproject.toml``.
        file: Another file to read instead of those.
        options: Values that come before all others, by key (``"chunks.size"``). None counts as not said.

    Raises:
        SettingError: The file cannot be read, or a value of any place cannot work. The message names file and line, or
            the option, or the environment variable.
    """
    path = _find(Path(folder).expanduser(), file)
    text, table = _read(path)
    where = {key: _line(path, text, key) for key, _ in _flat(table)} if path else {}
    places = [
        (table, where),
        _environment(),
        ({key: value for key, value in (options or {}).items() if value is not None}, None),
    ]
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for values, names in places:
        flat = dict(_flat(values))
        merged.update(flat)
        origins.update({key: names[key] if names is not None else _option(key) for key in flat})
    try:
        configuration = Configuration(**_nested(merged))
    except ValidationError as error:
        raise SettingError(" ".join(_explanation(found, origins) for found in error.errors())) from error
    configuration = _with_prompt(configuration, origins, path)
    configuration._origins, configuration._file = origins, path  # noqa: SLF001  our own
    return configuration


def _find(folder: Path, file: str | Path | None) -> Path | None:
    if file is not None:
        path = Path(file).expanduser()
        if not path.is_file():
            raise SettingError(f"{path} is no file. Cure: name a configuration file, or write one: {CURE}")
        return path
    if (folder / FILE).is_file():
        return folder / FILE
    project = folder / "pyproject.toml"
    return project if project.is_file() and f"[{'.'.join(TABLE)}" in _text(project) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} cannot be read: {error}. Cure: make it a readable file in UTF-8.") from error


def _read(path: Path | None) -> tuple[str, dict[str, Any]]:
    if path is None:
        return "", {}
    text = _text(path)
    try:
        table: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        place = f"{path}:{line[1]}" if line else str(path)
        raise SettingError(f"{place} is not TOML: {error}. Cure: correct that line.") from error
    for part in TABLE if path.name == "pyproject.toml" else ():
        table = table.get(part, {})
    return text, table


def _environment() -> tuple[dict[str, Any], dict[str, str]]:
    """Return what environment variables say, and the variable of each key."""
    values = dict(_flat(EnvSettingsSource(_Variables)()))
    variables = {key: PREFIX + key.replace(".", "__").upper() for key in values}
    for variable, key in _OLDER_VARIABLES.items():
        if os.environ.get(variable) and key not in values:
            values[key], variables[key] = os.environ[variable], variable
    return values, variables


def _with_prompt(configuration: Configuration, origins: Mapping[str, str], path: Path | None) -> Configuration:
    """Read the prompt where its value names a file, relative to the configuration file that says so."""
    prompt = configuration.context.llm.prompt
    if prompt is None or "{" in prompt:
        return configuration
    said_in_file = path is not None and origins["context.llm.prompt"].startswith(f"{path}:")
    file = (path.parent if path and said_in_file else Path()) / prompt
    llm = configuration.context.llm.model_copy(update={"prompt": _text(file)})
    return configuration.model_copy(update={"context": configuration.context.model_copy(update={"llm": llm})})


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values; ``descriptions`` is one value."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key != "descriptions":
            yield from _flat(value, f"{key}.")
        elif value != {}:
            yield key, value


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, last = key.split(".")
        table = nested
        for parent in parents:
            table = table.setdefault(parent, {}) if isinstance(table.get(parent, {}), dict) else {}
        table[last] = value
    return nested


def _line(path: Path, text: str, key: str) -> str:
    """Return ``file:line`` of a key, as far as a look at tables and keys tells it."""
    table, found = "", 1
    wanted = ".".join((*(TABLE if path.name == "pyproject.toml" else ()), key))
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            table = _unquoted(header[1]) + "."
            found = number if wanted.startswith(table) or wanted + "." == table else found
        elif (said := re.match(r"\s*([\w.\"'/ -]+?)\s*=", line)) and wanted == table + _unquoted(said[1]):
            return f"{path}:{number}"
    return f"{path}:{found}"


def _unquoted(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def _option(key: str) -> str:
    return next((shown_of(info)["option"] for name, info in fields_of() if name == key), "") or key


def _explanation(error: Any, origins: Mapping[str, str]) -> str:
    parts = [str(part) for part in error["loc"] if not isinstance(part, int)]
    key = next((".".join(parts[:count]) for count in range(len(parts), 0, -1) if _known(parts[:count], origins)), "")
    place = next((where for name, where in origins.items() if name == key or name.startswith(f"{key}.")), "")
    named = key if ":" in place else ""  # a file and its line; an option or a variable names the key itself
    shown = f"{place}: {named}" if named else place
    if error["type"] == "extra_forbidden":
        *section, _ = parts
        known = [name.removeprefix(".".join((*section, ""))) for name, _ in fields_of() if _is_in(name, section)]
        sections = list(dict.fromkeys(name.split(".")[0] for name in known)) or list(Configuration.model_fields)
        return f"{shown} is not known. Cure: use one of {', '.join(sections)}."
    message = error["msg"].removeprefix("Value error, ")
    return f"{shown}={error['input']!r} cannot work. Cure: {message[:1].lower()}{message[1:]}."


def _known(parts: list[str], origins: Mapping[str, str]) -> bool:
    key = ".".join(parts)
    return any(name == key or name.startswith(f"{key}.") for name in origins)


def _is_in(key: str, section: list[str]) -> bool:
    return key.split(".")[: len(section)] == section


def shown_of(info: FieldInfo) -> dict[str, Any]:
    """Return what :func:`_setting` was told of a key, besides its meaning."""
    extra = info.json_schema_extra
    return extra if isinstance(extra, dict) else {"default": {}, "python": "", "option": "", "example": None}


def fields_of(section: type[BaseModel] = Configuration, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every key with its declaration, in the order of the file."""
    for name, info in section.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from fields_of(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info


CURE: Final = "llama-index-contextual config --init"
