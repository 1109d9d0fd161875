"""Which settings there are: each with its name, its limits and its default.

The name is the same in ``contextual.toml``, in variables and in Python: those above the tables and those of
``[context_options]`` are arguments of ``ContextualIndex.open``.

A default of None is computed, or the index decides. A value that nobody said comes from the index, where that
remembers one, else it is the default.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PrivateAttr

from llama_index_contextual.app.config.declaring import (
    Calls,
    Days,
    Gain,
    Hits,
    Limit,
    Name,
    Seconds,
    Section,
    Setting,
    Share,
    Size,
    Texts,
    setting,
    settings_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Refreshing = Literal["auto", "never", "wait"]  # in the background, never, or before the answer
Reuse = Literal["chunk", "document"]
MAX_DESCRIPTION: Final = 300  # characters: it stands in every chunk below it


class Files(Section):
    """Which files of the folder are read."""

    include: Annotated[Texts, Field(min_length=1)] | None = setting(
        "Patterns of the files to read, as in a `.gitignore`.",
        computed="Markdown and plain text; with the context `pattern` source code, too",
        example=("*.md", "*.txt"),
        flags="--include",
        safe=True,
    )
    exclude: Texts = setting(
        "Patterns of files and folders to leave out.", (), example=("drafts/",), flags="--exclude", safe=True
    )
    gitignore: bool = setting("Whether `.gitignore` files are obeyed.", default=True)
    hidden: bool = setting("Whether names that start with a dot are read.", default=False)
    follow_symlinks: bool = setting("Whether symbolic links are followed.", default=False)
    # All 1,568 pages of the Kubernetes documentation are 11 MB.
    max_bytes: Size = setting("Larger files are reported and not read.", 10_000_000)


class Documents(Section):
    """What converting a file may take."""

    seconds: Seconds = setting("The most seconds that the conversion of a file takes.", 60.0)
    megabytes: Annotated[int, Field(ge=200, le=10**6)] = setting("The most memory that it takes, in MB.", 2000)


class Chunks(Section):
    """How files are cut. Sizes are in tokens."""

    folder_may_say: ClassVar[bool] = True

    chunk_size: Size | None = setting(
        "The most tokens of a chunk.",
        computed="what the embedding reads less room for a context; 400 where that is unknown",
        example=192,
        flags="--chunk-size",
    )
    chunk_overlap: Limit | None = setting(
        "The most tokens that a chunk repeats of the one before it.",
        computed="a fifth of the size",
        example=38,
        flags="--overlap",
    )
    min_chunk_size: Limit | None = setting(
        "Smaller sections join a neighbour.", computed="an eighth of the size", example=24
    )
    markdown_suffixes: Texts | None = setting(
        "Suffixes of the files that are Markdown; `*` is any. Other files have paragraphs and no headings.",
        computed="`.md`, `.markdown`, `.mdown`, `.mkd`, `.mdx`, `.mdc`, `.qmd`, `.rmd`, and names without a suffix",
        example=(".md", ".txt"),
    )
    tokenizer: Literal["cl100k", "minilm", "e5"] | None = setting(
        "What counts the tokens: `minilm`, `e5` or `cl100k`.",
        computed="those of the embedding, where they are known; minilm with `none`; else cl100k",
        example="cl100k",
        flags="--tokenizer",
    )


class ContextOptions(Section):
    """The language model of the context `llm`."""

    llm: Name | None = setting(
        "`ollama:MODEL`, `openai:MODEL` or `openai:MODEL@http://HOST/v1`.",
        computed="qwen3:0.6b on this machine's Ollama",
        example="ollama:qwen3:0.6b",
        flags="--llm",
    )
    prompt: Name | None = setting(
        "A template with `{document}` and after it `{chunks}`, or the file that holds it.",
        computed="the one on the page of contexts",
        example="prompt.txt",
        flags="--prompt",
    )
    batch_size: Calls = setting("Chunks per call.", 8, flags="--batch-size")
    num_workers: Calls | None = setting(
        "Calls at a time.", computed="1 for a server on this machine, else 4", example=4, flags="--workers"
    )
    chunk_timeout: Seconds = setting("Seconds that a call may take for each chunk.", 5.0, flags="--timeout")
    max_calls: Limit | None = setting("The most calls.", computed="no limit", example=1000, flags="--max-calls")
    max_tokens: Limit | None = setting("The most tokens, in and out.", computed="no limit", example=1_000_000)
    context_window: Size | None = setting("Tokens that the model takes.", computed="what it says", example=8192)
    fallback_only: bool = setting(
        "Use the contexts in the cache and never call the model.", default=False, flags="--fallback-only"
    )
    reuse: Reuse = setting(
        "Whether a context outlives edits elsewhere in its document (`chunk`) or is made anew (`document`).", "chunk"
    )


class Retrieval(Section):
    """How questions are answered."""

    folder_may_say: ClassVar[bool] = True

    top_k: Hits | None = setting(
        "Hits of a search.", computed="5 on the command line, 10 in Python", example=5, flags="--top-k -k"
    )
    per_file: Hits | None = setting("The most hits of one file.", computed="no limit", example=1, flags="--per-file")
    min_score: Share | None = setting(
        "The relevance that a hit needs, 0 to 1; 0 shows all hits.",
        computed="0 in Python; 0.05 on the command line, or 0 with filters or another embedding",
        example=0.05,
        flags="--min-score",
    )
    recency: bool = setting("Whether newer notes win among near equals.", default=False, flags="--recency/--no-recency")
    half_life_days: Days = setting("Days after which the recency factor is a half.", 30.0)
    mode: Literal["learned", "reciprocal_rerank", "relative_score", "dist_based_score"] | None = setting(
        "How the hits of both arms become one ranking.",
        computed="learned; reciprocal_rerank with `keyword_weight`",
        example="learned",
    )
    keyword_weight: Share = setting(
        "The share of the keyword arm in the fusion, 0 to 1; vectors have the rest. Learned fusion has no use for it.",
        0.6,
    )
    rerank: Name | None = setting(
        "A reranker: `cohere:MODEL`, `jina:MODEL`, `llama.cpp:http://HOST`, `fastembed:MODEL`, "
        "`sentence-transformers:MODEL`, or a language model that is asked to rank: `llm` (that of the contexts), "
        "`ollama:MODEL`, `openai:MODEL`.",
        computed="none",
        example="fastembed:BAAI/bge-reranker-base",
        flags="--rerank",
        safe=False,
    )


class MemorySettings(Section):
    """How notes answer an agent."""

    folder_may_say: ClassVar[bool] = True

    enabled: bool = setting("Whether memory answers at all.", default=True, flags="--enabled/--disabled")
    max_results: Hits = setting("The most hits of a digest.", 4, flags="--max-results -k")
    max_tokens: Size = setting("The most tokens of a digest; its first hit is shown whatever it costs.", 600)
    include_recency: bool = setting(
        "Whether newer notes win among near equals. Where a message names a date, that counts instead.",
        default=True,
        flags="--recency/--no-recency",
    )
    half_life_days: Days = setting(
        "Days after which a dated note's recency factor is a half.", 30.0, flags="--half-life-days"
    )
    # benchmarks/results/memory.md: a weight of 0.1 costs 0.1 points of recall@4; one of 1, as the source has it, 34
    recency_weight: Share = setting("The share of a score that age may take, 0 to 1.", 0.1)
    # benchmarks/results/memory_rankings.md: derived finds less on every set
    ranking: Literal["learned", "derived"] = setting(
        "How a digest orders its hits: `learned` asks the message once and compares scores by a trained model; "
        "`derived` asks it, its keywords and its names, and multiplies by age and by agreement.",
        "learned",
    )
    date_boost: Gain = setting("The gain of a note of a day that the message names, as a share of its score.", 0.5)
    min_relevance: Share | Literal["auto"] = setting(
        "How likely a hit has to answer the message, 0 to 1; 0 leaves out none; `auto` is what a search asks for, "
        "0.05, or 0 with another embedding.",
        "auto",
        flags="--min-relevance",
    )
    candidate_pool: Hits = setting("Hits that are ranked before the cut, where `max_results` is not more.", 50)
    evergreen: Texts = setting("Patterns of notes that never age.", ("MEMORY.md",))
    languages: Texts = setting(
        "Languages of the messages: bundled names, or YAML files. With the default, German, French, Italian, Dutch, "
        "Portuguese and Russian count, too, where a message is in them.",
        ("en", "es", "zh", "ja"),
        safe=("en", "es", "zh", "ja", "de", "fr", "it", "nl", "pt", "ru"),
    )
    commands: Texts = setting(
        "Messages that begin with such a command are never looked up: patterns of the first word.", ("/*",)
    )


class Memory(MemorySettings):
    """The same, and what brings the index up to date."""

    refresh: Refreshing | None = setting(
        "Whether a question brings the index up to date: in the background, never, or before the answer.",
        computed="auto for mcp, never for context",
        example="auto",
        flags="--refresh",
    )


def _one_line(descriptions: dict[str, str]) -> dict[str, str]:
    if long := next((path for path, text in descriptions.items() if len(text) > MAX_DESCRIPTION), None):
        raise ValueError(f"the description of {long!r} is longer than {MAX_DESCRIPTION} characters; say it in fewer")
    return {path: " ".join(text.split()) for path, text in descriptions.items() if text.split()}


def _place(path: str | Path) -> Path:
    if not path or not isinstance(path, str | Path):  # "" would be the working directory
        raise ValueError("name a folder")
    return Path(path).expanduser().resolve()


class Collection(BaseModel, frozen=True, extra="forbid"):
    """One of several folders of an index.

    Attributes:
        folder: Where it is; settings call it ``path``.
        description: What it holds, in one line, or "".
        include: Patterns of the files to read, as ``[files]`` has them; none for those of the index.
        exclude: Patterns to leave out, beside those of the index.
        weight: The scores of its hits are multiplied by it, 0 to 1.
    """

    folder: Annotated[Path, BeforeValidator(_place)] = Field(alias="path")
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION)] = ""
    include: Texts = ()
    exclude: Texts = ()
    weight: Share = 1.0


class Configuration(Section):
    """The settings of a folder: the values that somebody said, and defaults."""

    context: Annotated[
        Literal["off", "headings", "pattern", "llm"],
        BeforeValidator(lambda value: "headings" if value == "headers" else value),
    ] = setting(
        "What each chunk is given back: `off`, `headings` (or `headers`), `pattern` or `llm`.",
        "headings",
        flags="--context",
        safe=("off", "headings", "headers", "pattern"),
    )
    show_context_to_llm: bool = setting("Whether an answering model sees contexts.", default=False, safe=True)
    embed_model: Name = setting(
        "What makes the vectors: `local`, `e5` (many languages), `none` (keywords alone), `ollama:MODEL`, "
        "`openai:MODEL`, `openai:MODEL@URL`, `huggingface:MODEL`, `voyage:MODEL`, `jina:MODEL` or `llamacpp:NAME@URL`.",
        "local",
        flags="--embed-model",
        safe=("local", "e5", "none"),
    )
    files: Files = Files()
    documents: Documents = Documents()
    chunks: Chunks = Chunks()
    context_options: ContextOptions = ContextOptions()
    retrieval: Retrieval = Retrieval()
    memory: Memory = Memory()
    descriptions: Annotated[dict[str, str], AfterValidator(_one_line)] = setting(
        'What a folder or file holds, as in `"api/" = "REST reference"`: a part of every context below it.',
        {},
        example={"api/": "REST reference of the billing service"},
        safe=True,
    )
    collections: dict[str, Collection] = setting(
        'Folders that share one index, as in `notes = { path = "~/notes" }`. Your own file names them.',
        {},
        example={"notes": {"path": "~/notes"}},
    )

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

    def said(self) -> dict[str, Any]:
        """Return the values that somebody said, by key."""
        return {key: value for key in SETTINGS if (value := self.get(key)) is not None}

    def get(self, key: str) -> Any:
        """Return the value of a setting by its key; None where nobody said one."""
        table, _, name = key.rpartition(".")
        section: Section = getattr(self, table) if table else self
        return getattr(section, name) if name in section.model_fields_set else None


SETTINGS: Final[dict[str, Setting]] = {setting.key: setting for setting in settings_of(Configuration)}


def descriptions_of(descriptions: Mapping[str, str], path: str) -> list[str]:
    """Return what is said of a file and of the folders that it is in, as ``api: REST reference``, outermost first.

    Args:
        descriptions: By path of a folder or file, with or without a slash at its end; ``"/"`` is the whole folder.
        path: Of the file, relative to the folder of the documents, with ``/``.
    """
    known = sorted((key.strip("/."), text) for key, text in descriptions.items())
    return [
        f"{key}: {text}" if key else text for key, text in known if not key or path == key or path.startswith(f"{key}/")
    ]
