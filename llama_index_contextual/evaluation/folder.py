"""Compare kinds of context on a folder: each kind is indexed, and all indexes are asked the same questions."""

from __future__ import annotations

import tempfile
import time
import warnings
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.context import ChunkContext, ContextGenerator, LLMContextGenerator
from llama_index_contextual.embedding import NoEmbedding
from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.evaluation.comparison import (
    RANK_DEPTH,
    TOP_K,
    Comparison,
    Measured,
    check_questions,
    check_top_k,
    measure,
)
from llama_index_contextual.evaluation.need import parts_of
from llama_index_contextual.evaluation.questions import answers_of
from llama_index_contextual.index import ContextualIndex
from llama_index_contextual.retrievers import ContextualVectorRetriever
from llama_index_contextual.sqlite_store import SQLiteKVStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.context.base import SourceDocument
    from llama_index_contextual.evaluation.questions import Question

CONTEXTS: Final = ("off", "headings", "pattern")  # those that cost nothing
BASELINE: Final = "text alone"
_ROWS: Final = {"off": "LlamaIndex metadata"}  # what is embedded where no context is written
LIKENESS: Final = "chunks alike"
_NAMED: Final = 3  # questions that a warning names
_SAMPLE: Final = 8  # texts that are embedded to see how fast it goes


def evaluate(
    folder: str | Path,
    questions: Sequence[Question],
    *,
    contexts: Iterable[str] = CONTEXTS,
    embed_model: str | BaseEmbedding | None = None,
    storage: str | Path | None = None,
    top_k: Iterable[int] = TOP_K,
    say: Callable[[str], object] | None = None,
    show_progress: bool = False,
    **options: Any,
) -> Comparison:
    """Index a folder with its text alone and with each kind of context, and ask every index the same questions.

    Every row has the same chunks and the same embedding. All rows but "vectors alone" use the hybrid retriever of
    :class:`ContextualIndex`. Differences are to "text alone". ``"off"`` is the row "LlamaIndex metadata": what
    LlamaIndex embeds by itself, here path and header path. "Chunks alike" is the mean cosine of two chunks of an index,
    -1 to 1. Contexts whose words are in all chunks push it up, and recall down. The files are those of the folder's
    own index. Every different text is embedded once. Without an embedding all rows are of keywords alone, and have no
    cosine.

    Args:
        folder: The documents.
        questions: Questions and the places of their answers. See :func:`load_questions`.
        contexts: Some of ``"off"``, ``"headings"``, ``"pattern"``, ``"llm"``. The contexts of ``"llm"`` are kept in the
            folder's own ``.contextual``, where its index finds them again.
        embed_model: As for :meth:`ContextualIndex.open`.
        storage: A folder that keeps the indexes, so that a second run embeds only what changed. By default they are
            made in a temporary folder and deleted.
        top_k: Numbers of hits to count.
        say: Called with an estimate first, and with a line before each index is made.
        show_progress: Whether to draw progress bars on stderr.
        **options: More of :meth:`ContextualIndex.open`. Those of a context, such as ``llm=``, are for ``"llm"``.

    Raises:
        SettingError: A setting is wrong, or there are no documents or questions.
        ContextError: The key of the language model is missing or refused.
    """
    counted = check_top_k(top_k)
    check_questions(questions)
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="contextual-evaluation-")))
        root = temporary if storage is None else Path(storage).expanduser()
        shared = _shared(folder, {"embed_model": embed_model, **options}, temporary / "embeddings.sqlite3")
        if shared["embed_model"].embeddings_cache is not None:
            stack.callback(shared["embed_model"].embeddings_cache.close)
        indexes = {}  # all are opened before any is filled: a wrong setting must not cost the work of those before it
        for kind in dict.fromkeys([BASELINE, *contexts]):
            chosen = _options_for(kind, folder, {**options, **shared})
            index = ContextualIndex.open(folder, storage=root / kind.replace(" ", "-"), **chosen)
            indexes[kind] = stack.enter_context(index)
        if say is not None:
            say(_estimate(indexes))
        rows: list[Measured] = []
        parts: dict[str, tuple[bool, ...]] = {}
        for kind, index in indexes.items():
            if say is not None:
                say(f"Indexing {folder}: {_ROWS.get(kind, kind)}")
            _fill(index, show_progress=show_progress)
            hybrid = index.as_retriever(max(*counted, RANK_DEPTH))
            vectors = next((arm for arm in hybrid.retrievers if isinstance(arm, ContextualVectorRetriever)), None)
            if kind == BASELINE:
                nodes = index.nodes()
                _warn_of_lost_gold(nodes, questions)
                parts = parts_of(questions, nodes)
                if vectors is not None:
                    rows.append(measure(f"{BASELINE}, vectors alone", vectors, questions, counted))
            notes = {LIKENESS: index.likeness()} if vectors is not None else {}
            rows.append(measure(_ROWS.get(kind, kind), hybrid, questions, counted, notes=notes))
    return Comparison(tuple(questions), counted, tuple(rows), BASELINE, parts)


def _shared(folder: str | Path, options: dict[str, Any], cache: Path) -> dict[str, Any]:
    """Return what all rows share: the files, and an embedding that embeds each text once.

    Each kind of context has default files of its own, but rows must not differ by their files.
    """
    shown: dict[str, Any] = {key: options[key] for key in ("files", "config", "embed_model") if key in options}
    settings = ContextualIndex.open(folder, reindex="ignore", **shown).settings
    embedding = settings.embedding
    if not isinstance(embedding, NoEmbedding):
        embedding = embedding.model_copy(update={"embeddings_cache": SQLiteKVStore(cache)})
    return {"files": settings.files, "embed_model": embedding}


def _estimate(indexes: Mapping[str, ContextualIndex]) -> str:
    """Return what a run will cost: chunks, minutes of embedding, calls of a language model. Embeds a few texts."""
    estimates = {_ROWS.get(kind, kind): index.estimate() for kind, index in indexes.items()}
    chunks = estimates[BASELINE].chunks
    sample = [f"{number} {'How long does the gateway wait? ' * 20}" for number in range(_SAMPLE)]
    model = indexes[BASELINE].settings.embedding
    started = time.monotonic()
    if not isinstance(model, NoEmbedding):
        model.get_text_embedding_batch(sample)
    minutes = (time.monotonic() - started) / _SAMPLE * chunks * len(indexes) / 60
    calls = [
        f"; {kind}: {found.calls} calls, at most {found.tokens.prompt:,} tokens in and {found.tokens.completion:,} out"
        for kind, found in estimates.items()
        if found.calls
    ]
    embedding = f"about {minutes:.0f} min" if minutes > 1 else "less than a minute"
    return f"{chunks} chunks in {len(indexes)} indexes: {embedding} of embedding at most{''.join(calls)}"


def _options_for(kind: str, folder: str | Path, options: dict[str, Any]) -> dict[str, Any]:
    common = signature(ContextualIndex.open).parameters
    rest = {key: value for key, value in options.items() if key in common}
    if kind == "llm":  # the generator of the folder's own index, whose cache keeps what was paid for
        own = ContextualIndex.open(folder, context=kind, **{**options, "reindex": "ignore"})
        generator = own.settings.pipeline.contexts.generator
        model = getattr(generator, "first", generator)
        if isinstance(model, LLMContextGenerator):
            model.require_key()
        return {"context": generator, **rest}
    return {"context": _TextAlone() if kind == BASELINE else kind, **rest}


class _TextAlone(ContextGenerator):
    """An empty context. It hides the metadata that would be embedded without a context."""

    name = "none"
    version = "1"

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:  # noqa: ARG002
        return [ChunkContext("", self.name, version=self.version) for _ in nodes]


def _fill(index: ContextualIndex, *, show_progress: bool) -> None:
    report = index.refresh(show_progress=show_progress, confirm=True)  # what is evaluated is chosen on purpose
    if report.failed:
        warnings.warn(
            f"{len(report.failed)} files could not be read, e.g. {report.failed[0]}", ContextualWarning, stacklevel=3
        )
    if not report.chunks:
        raise SettingError(f"{index.settings.folder} holds no files to index. Cure: choose a folder of Markdown files.")


def _warn_of_lost_gold(nodes: Sequence[BaseNode], questions: Sequence[Question]) -> None:
    """Warn of answers that no chunk holds: the path or the quotation is wrong, or the text is in two chunks."""
    answers = answers_of(questions, nodes)
    lost = [
        f"{question.text!r} ({next(passage for passage, held in found.items() if not held)})"
        for question, found in answers
        if not all(found.values())
    ]
    if lost:
        warnings.warn(
            f"{len(lost)} questions have answers that no chunk holds, and count as not found: "
            f"{'; '.join(lost[:_NAMED])}{' …' if len(lost) > _NAMED else ''}. Cure: correct path and lines, and quote "
            "only a few words as text.",
            ContextualWarning,
            stacklevel=3,
        )
