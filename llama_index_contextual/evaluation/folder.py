"""Compare kinds of context on a folder: each kind is indexed, and all indexes are asked the same questions."""

from __future__ import annotations

import tempfile
import warnings
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.context import ChunkContext, ContextGenerator
from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.evaluation.comparison import TOP_K, Comparison, Measured, check_top_k, measure
from llama_index_contextual.index import ContextualIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.context.base import SourceDocument
    from llama_index_contextual.evaluation.questions import Question
    from llama_index_contextual.index.files import FileRules

CONTEXTS: Final = ("off", "headings", "pattern")  # those that cost nothing
BASELINE: Final = "text alone"
LIKENESS: Final = "chunks alike"
_NAMED: Final = 3  # questions that a warning names


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
    :class:`ContextualIndex`. Differences are to "text alone". The context "off" embeds the metadata that LlamaIndex
    embeds by itself: here path and header path. "Chunks alike" is the mean cosine of two chunks of an index, -1 to 1.
    Contexts whose words are in all chunks push it up, and recall down. The files are those of the folder's own index.

    Args:
        folder: The documents.
        questions: Questions and the places of their answers. See :func:`load_questions`.
        contexts: Some of ``"off"``, ``"headings"``, ``"pattern"``, ``"llm"``. The contexts of ``"llm"`` are kept in the
            folder's own ``.contextual``, where its index finds them again.
        embed_model: As for :meth:`ContextualIndex.open`.
        storage: A folder that keeps the indexes, so that a second run embeds only what changed. By default they are
            made in a temporary folder and deleted.
        top_k: Numbers of hits to count.
        say: Called with a line before each index is made.
        show_progress: Whether to draw progress bars on stderr.
        **options: More of :meth:`ContextualIndex.open`. Those of a context, such as ``llm=``, are for ``"llm"``.

    Raises:
        SettingError: A setting is wrong, or there are no documents or questions.
    """
    counted = check_top_k(top_k)
    options = {"files": _files(folder, options), **options}
    rows: list[Measured] = []
    with _storage(storage) as root:
        for kind in dict.fromkeys([BASELINE, *contexts]):
            if say is not None:
                say(f"Indexing {folder}: {kind}")
            chosen = _options_for(kind, folder, {"embed_model": embed_model, **options})
            with ContextualIndex.open(folder, storage=root / kind.replace(" ", "-"), **chosen) as index:
                _fill(index, show_progress=show_progress)
                hybrid = index.as_retriever(max(counted))
                if kind == BASELINE:
                    _warn_of_lost_gold(index.nodes(), questions)
                    rows.append(measure(f"{BASELINE}, vectors alone", hybrid.retrievers[0], questions, counted))
                rows.append(measure(kind, hybrid, questions, counted, notes={LIKENESS: index.likeness()}))
    return Comparison(tuple(questions), counted, tuple(rows), BASELINE)


@contextmanager
def _storage(given: str | Path | None) -> Iterator[Path]:
    if given is not None:
        yield Path(given).expanduser()
        return
    with tempfile.TemporaryDirectory(prefix="contextual-evaluation-") as folder:
        yield Path(folder)


def _files(folder: str | Path, options: dict[str, Any]) -> FileRules:
    """Return the rules for all rows. Each kind of context has a default of its own, and rows must not differ by it."""
    shown = {key: options[key] for key in ("files", "config") if key in options}
    return ContextualIndex.open(folder, reindex="ignore", **shown).settings.files


def _options_for(kind: str, folder: str | Path, options: dict[str, Any]) -> dict[str, Any]:
    common = signature(ContextualIndex.open).parameters
    rest = {key: value for key, value in options.items() if key in common}
    if kind == "llm":  # the generator of the folder's own index, whose cache keeps what was paid for
        own = ContextualIndex.open(folder, context=kind, **{**options, "reindex": "ignore"})
        return {"context": own.settings.pipeline.contexts.generator, **rest}
    return {"context": _TextAlone() if kind == BASELINE else kind, **rest}


class _TextAlone(ContextGenerator):
    """An empty context. It hides the metadata that would be embedded without a context."""

    name = "none"
    version = "1"

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:  # noqa: ARG002
        return [ChunkContext("", self.name, version=self.version) for _ in nodes]


def _fill(index: ContextualIndex, *, show_progress: bool) -> None:
    report = index.refresh(show_progress=show_progress)
    if report.failed:
        warnings.warn(
            f"{len(report.failed)} files could not be read, e.g. {report.failed[0]}", ContextualWarning, stacklevel=3
        )
    if not report.chunks:
        raise SettingError(f"{index.settings.folder} holds no files to index. Cure: choose a folder of Markdown files.")


def _warn_of_lost_gold(nodes: Sequence[BaseNode], questions: Sequence[Question]) -> None:
    """Warn of answers that no chunk holds: the path or the quotation is wrong, or the text is in two chunks."""
    missing = {question.text: set(question.gold) for question in questions}
    for node in nodes:
        for question in questions:
            missing[question.text] -= question.covered_by(node)
    lost = [f"{text!r} ({next(iter(passages))})" for text, passages in missing.items() if passages]
    if lost:
        warnings.warn(
            f"{len(lost)} questions have answers that no chunk holds, and count as not found: "
            f"{'; '.join(lost[:_NAMED])}{' …' if len(lost) > _NAMED else ''}. Cure: correct path and lines, and quote "
            "only a few words as text.",
            ContextualWarning,
            stacklevel=3,
        )
