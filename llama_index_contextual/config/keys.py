"""Which settings there are: each key of ``contextual.toml``, with its meaning, its limits and its default.

A value that nobody said is None here. Then the index decides, or else the default. The declarations also make the
options' names in messages, the commented file and the reference page.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from llama_index_contextual.config.declaring import (
    MOST_DAYS,
    MOST_HITS,
    MOST_PROCESSES,
    MOST_TOKENS,
    Mode,
    Section,
    Texts,
    setting,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

MAX_DESCRIPTION: Final = 300  # characters: it stands in every chunk below it


class Files(Section):
    """Which files of the folder are read."""

    include: Texts | None = setting(
        "Patterns of the files to read, as in a `.gitignore`.",
        "(Markdown and plain text; with the mode `pattern` source code, too)",
        option="--include",
        example=("*.md", "*.txt"),
        min_length=1,
        safe=True,
    )
    exclude: Texts | None = setting(
        "Patterns of files and folders to leave out.",
        (),
        python="ignore",
        option="--exclude",
        example=("drafts/",),
        safe=True,
    )
    gitignore: bool | None = setting("Whether `.gitignore` files are obeyed.", default=True)
    hidden: bool | None = setting("Whether names that start with a dot are read.", default=False)
    follow_symlinks: bool | None = setting("Whether symbolic links are followed.", default=False)
    max_bytes: int | None = setting("Larger files are reported and not read.", 10_000_000, ge=1, le=10**12)


class Documents(Section):
    """What converts documents that are no text; which converters there are, docs/documents.md says."""

    pdf: Literal["pdfium", "kreuzberg"] | None = setting("What reads PDF.", "pdfium", safe=True)
    docx: Literal["python", "kreuzberg"] | None = setting("What reads Word.", "python", safe=True)
    pptx: Literal["python", "kreuzberg"] | None = setting("What reads PowerPoint.", "python", safe=True)
    html: Literal["python", "kreuzberg"] | None = setting("What reads HTML.", "python", safe=True)
    epub: Literal["python", "kreuzberg"] | None = setting("What reads EPUB.", "python", safe=True)
    eml: Literal["python", "kreuzberg"] | None = setting("What reads mail.", "python", safe=True)
    seconds: float | None = setting("The most seconds that the conversion of a file takes.", 60.0, gt=0, le=86_400)
    megabytes: int | None = setting("The most memory that it takes, in MB.", 2000, ge=200, le=10**6)

    def given(self) -> dict[str, Any]:
        """Return the values that were said, by the names of ``DocumentReader``."""
        said: dict[str, Any] = super().given()
        limits: dict[str, Any] = {key: said.pop(key) for key in ("seconds", "megabytes") if key in said}
        readers = {f".{kind}": name for kind, name in said.items()}
        return {**limits, "readers": {**readers, **({".htm": said["html"]} if "html" in said else {})}}


class Chunks(Section):
    """How files are cut. Sizes are in tokens."""

    size: int | None = setting(
        "The most tokens of a chunk.",
        "(what the embedding reads less room for a context; 400 where that is unknown)",
        python="chunk_size",
        option="--chunk-size",
        example=192,
        ge=1,
        safe=True,
        le=MOST_TOKENS,
    )
    overlap: int | None = setting(
        "The most tokens that a chunk repeats of the one before it.",
        "(a fifth of the size)",
        python="chunk_overlap",
        option="--overlap",
        example=38,
        ge=0,
        safe=True,
        le=MOST_TOKENS,
    )
    min_size: int | None = setting(
        "Smaller sections join a neighbour.",
        "(an eighth of the size)",
        python="min_chunk_size",
        example=24,
        ge=0,
        safe=True,
        le=MOST_TOKENS,
    )
    max_size: int | None = setting(
        "The most tokens of what cannot be cut, such as one long line.",
        "(twice the size)",
        python="max_chunk_size",
        example=384,
        ge=1,
        safe=True,
        le=MOST_TOKENS,
    )
    markdown_suffixes: Texts | None = setting(
        "Suffixes of the files that are Markdown; `*` is any. Other files have paragraphs and no headings.",
        "(`.md`, `.markdown`, `.mdown`, `.mkd`, `.mdx`, `.mdc`, `.qmd`, `.rmd`, and names without a suffix)",
        example=(".md", ".txt"),
        safe=True,
    )
    tokenizer: Literal["cl100k", "minilm", "estimate"] | None = setting(
        "What counts the tokens.", "(minilm with the local embedding, else cl100k)", example="cl100k", safe=True
    )


class LLM(Section):
    """The language model of the mode `llm`."""

    model: str | None = setting(
        "`ollama:MODEL`, `openai:MODEL` or `openai:MODEL@http://HOST/v1`.",
        "(qwen3:0.6b on this machine's Ollama)",
        python="llm",
        option="--llm",
        example="ollama:qwen3:0.6b",
        min_length=1,
    )
    prompt: str | None = setting(
        "A template with `{document}` and after it `{chunks}`, or the file that holds it.",
        "(the one in docs/contexts.md)",
        option="--prompt",
        example="prompt.txt",
        min_length=1,
    )
    batch_size: int | None = setting("Chunks per call.", 8, option="--batch-size", ge=1, le=1000)
    workers: int | None = setting(
        "Calls at a time.",
        "(1 for a server on this machine, else 4)",
        python="num_workers",
        option="--workers",
        example=4,
        ge=1,
        le=1000,
    )
    timeout: float | None = setting(
        "Seconds that a call may take for each chunk.", 5.0, python="chunk_timeout", option="--timeout", gt=0, le=86_400
    )
    max_calls: int | None = setting(
        "The most calls.", "(no limit)", option="--max-calls", example=1000, ge=0, le=10**12
    )
    max_tokens: int | None = setting("The most tokens, in and out.", "(no limit)", example=1_000_000, ge=0, le=10**15)
    context_window: int | None = setting("Tokens that the model takes.", "(what it says)", example=8192, ge=1, le=10**9)
    fallback_only: bool | None = setting(
        "Use the contexts in the cache and never call the model.", default=False, option="--fallback-only"
    )
    reuse: Literal["chunk", "document"] | None = setting(
        "Whether a context outlives edits elsewhere in its document (`chunk`) or is made anew (`document`).", "chunk"
    )

    def given(self) -> dict[str, Any]:
        """Return the values that were said, by the names of ``LLMContextGenerator``, which has one for all waiting."""
        said = super().given()
        patience = {"chunk_timeout": said.pop("chunk_timeout")} if "chunk_timeout" in said else None
        return said if patience is None else {**said, "patience": patience}


class Context(Section):
    """What each chunk is given back."""

    mode: Mode | None = setting(
        "`off`, `headings` (or `headers`), `pattern` or `llm`.",
        "headings",
        option="--context",
        example="headings",
        safe=("off", "headings", "headers", "pattern"),
    )
    show_to_llm: bool | None = setting(
        "Whether an answering model sees contexts.", default=False, python="show_context_to_llm", safe=True
    )
    llm: LLM = LLM()


class Store(Section):
    """Where the index is kept."""

    database: str | None = setting(
        "`postgresql://USER@HOST/DATABASE#NAME`, where several machines share an index.",
        "(a file in the storage folder)",
        option="--database",
        example="postgresql://notes@127.0.0.1/notes",
        min_length=1,
    )
    place: str | None = setting(
        "Vector store: `chroma` in the storage folder, `chroma:http://HOST:PORT` or `qdrant:http://HOST:PORT`.",
        "chroma",
        python="vector_store",
        option="--store",
        min_length=1,
        safe=("chroma",),
    )
    exact_limit: int | None = setting(
        "Chunks up to which a question is compared with every vector; in a larger index the store's graph answers.",
        100_000,
        ge=0,
        le=10**9,
    )


class Ray(Section):
    """How many processes `--workers ray` has for each kind of work."""

    parse: int | None = setting(
        "Processes that parse files and make free contexts.",
        "(one for every eight that embed)",
        example=1,
        ge=1,
        le=MOST_PROCESSES,
    )
    contexts: int | None = setting(
        "Processes that ask the language model, each as many calls at a time as `context.llm.workers` says.",
        "(one on each machine)",
        example=1,
        ge=1,
        le=MOST_PROCESSES,
    )
    embed: int | None = setting(
        "Processes that embed.", "(one for each CPU that is left)", example=4, ge=1, le=MOST_PROCESSES
    )


class Embedding(Section):
    """What makes the vectors."""

    model: str | None = setting(
        "`local`, `e5` (many languages), `none` (keywords alone), `ollama:MODEL`, `openai:MODEL`, `huggingface:MODEL`, "
        "`voyage:MODEL`, `jina:MODEL` or `llamacpp:NAME@URL`.",
        "local",
        python="embed_model",
        option="--embed-model",
        min_length=1,
        safe=("local", "e5", "none"),
    )


class Retrieval(Section):
    """How questions are answered."""

    top_k: int | None = setting(
        "Hits of a search.",
        "(5 on the command line, 10 in Python)",
        option="--top-k",
        example=5,
        ge=1,
        safe=True,
        le=MOST_HITS,
    )
    per_file: int | None = setting(
        "The most hits of one file.", "(no limit)", option="--per-file", example=1, ge=1, safe=True, le=MOST_HITS
    )
    min_score: float | None = setting(
        "The relevance that a hit needs, 0 to 1; 0 shows all hits.",
        "(0 in Python; 0.05 on the command line, or 0 with filters or another embedding)",
        option="--min-score",
        example=0.05,
        ge=0,
        le=1,
        safe=True,
    )
    recency: bool | None = setting(
        "Whether newer notes win among near equals.", default=False, option="--recency", safe=True
    )
    half_life_days: float | None = setting(
        "Days after which the recency factor is a half.", 30.0, gt=0, safe=True, le=MOST_DAYS
    )
    fusion: Literal["learned", "reciprocal_rerank", "relative_score", "dist_based_score"] | None = setting(
        "How the hits of both arms become one ranking.",
        "(learned; reciprocal_rerank with `keyword_weight`)",
        python="mode",
        example="learned",
        safe=True,
    )
    keyword_weight: float | None = setting(
        "The share of the keyword arm in the fusion, 0 to 1; vectors have the rest. Learned fusion has no use for it.",
        0.6,
        ge=0,
        le=1,
        safe=True,
    )
    rerank: str | None = setting(
        "A reranker: `cohere:MODEL`, `jina:MODEL`, `llama.cpp:http://HOST`, `fastembed:MODEL`, "
        "`sentence-transformers:MODEL`, or a language model that is asked to rank: `llm` (that of the contexts), "
        "`ollama:MODEL`, `openai:MODEL`.",
        "(none)",
        option="--rerank",
        example="fastembed:BAAI/bge-reranker-base",
        min_length=1,
    )


class Memory(Section):
    """How notes answer an agent."""

    enabled: bool | None = setting("Whether memory answers at all.", default=True, option="--enabled", safe=True)
    refresh: Literal["auto", "never", "wait"] | None = setting(
        "Whether a question brings the index up to date: in the background, never, or before the answer.",
        "(auto for mcp, never for context)",
        option="--refresh",
        example="auto",
        safe=True,
    )
    max_results: int | None = setting(
        "The most hits of a digest.", 4, option="--max-results", ge=1, safe=True, le=MOST_HITS
    )
    max_tokens: int | None = setting("The most tokens of a digest.", 600, ge=1, safe=True, le=MOST_TOKENS)
    recency: bool | None = setting(
        "Whether newer notes win among near equals.",
        default=True,
        python="include_recency",
        option="--recency",
        safe=True,
    )
    half_life_days: float | None = setting(
        "Days after which a dated note's recency factor is a half.",
        30.0,
        option="--half-life-days",
        gt=0,
        safe=True,
        le=MOST_DAYS,
    )
    recency_weight: float | None = setting(
        "The share of a score that age may take, 0 to 1.", 0.1, ge=0, le=1, safe=True
    )
    recency_floor: float | None = setting("The least recency factor, 0 to 1.", 0.0, ge=0, le=1, safe=True)
    date_boost: float | None = setting(
        "The gain of a note of a day that the message names, as a share of its score.", 0.5, ge=0, safe=True, le=1000
    )
    min_relevance: float | None = setting(
        "How likely a hit has to answer the message, 0 to 1; 0 leaves out none.",
        "(0.05, or 0 with another embedding, as for a search)",
        option="--min-relevance",
        example=0.1,
        ge=0,
        le=1,
        safe=True,
    )
    candidate_pool: int | None = setting("Hits that are ranked before the cut.", 50, ge=1, safe=True, le=MOST_HITS)
    evergreen: Texts | None = setting("Patterns of notes that never age.", ("MEMORY.md",), safe=True)
    languages: Texts | None = setting(
        "Languages of the messages: bundled names, or YAML files.",
        ("en", "es", "zh", "ja"),
        safe=("en", "es", "zh", "ja"),
    )
    commands: Texts | None = setting(
        "Messages that begin with such a command are never looked up: patterns of the first word.", ("/*",), safe=True
    )

    def given(self) -> dict[str, Any]:
        """Return the values that were said, by the names of ``MemorySettings``, which has no ``refresh``."""
        return {key: value for key, value in super().given().items() if key != "refresh"}


class Configuration(BaseModel):
    """The settings of a folder, as far as somebody said them. The others are None."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: Files = Files()
    documents: Documents = Documents()
    chunks: Chunks = Chunks()
    context: Context = Context()
    embedding: Embedding = Embedding()
    store: Store = Store()
    ray: Ray = Ray()
    retrieval: Retrieval = Retrieval()
    memory: Memory = Memory()
    descriptions: dict[str, str] = Field(
        {}, description='What a folder holds, as in `"api/" = "REST reference"`.', json_schema_extra={"safe": True}
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


def fields_of(section: type[BaseModel] = Configuration, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every key with its declaration, in the order of the file."""
    for name, info in section.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from fields_of(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info
