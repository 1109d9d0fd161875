"""Kinds of context on a folder of one's own: each is indexed, and all are asked the same questions."""

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
from llama_index_contextual.storage.layout import DEFAULT_NAME, Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.context.base import SourceDocument
    from llama_index_contextual.evaluation.questions import Question

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
    """Index a folder with nothing but its text, and with each kind of context; ask each index, and say what it found.

    Every row has the same chunks and embedding, and but for "vectors alone" the hybrid retriever of
    :class:`ContextualIndex`; differences are to "text alone". The context "off" is not nothing: it is the metadata that
    LlamaIndex embeds, here path and header path. "Chunks alike" is the mean cosine of two chunks of an index, from -1
    to 1: contexts of phrases that all chunks share push it up, and recall down.

    Args:
        folder: The documents.
        questions: What to ask, and where the answers stand; see :func:`load_questions`.
        contexts: Some of ``"off"``, ``"headings"``, ``"pattern"``, ``"llm"``. What ``"llm"`` pays for is kept in the
            folder's own ``.contextual``, where an index finds it again.
        embed_model: As for :meth:`ContextualIndex.open`.
        storage: Keeps the indexes, a folder each, so that a second run embeds only what changed. By default they are
            made in a temporary folder and deleted.
        top_k: How many hits are counted.
        say: Called with a line before each index is made.
        show_progress: Whether to draw progress bars on stderr.
        **options: More of :meth:`ContextualIndex.open`; those of a context, such as ``llm=``, are for ``"llm"``.

    Raises:
        SettingError: A setting is wrong, or there are no documents or questions.
    """
    counted = check_top_k(top_k)
    rows: list[Measured] = []
    with _storage(storage) as root:
        for kind in dict.fromkeys([BASELINE, *contexts]):
            if say is not None:
                say(f"Indexing {folder}: {kind}")
            mine = {"embed_model": embed_model, **_options_for(kind, Path(folder), options)}
            with ContextualIndex.open(folder, storage=root / kind.replace(" ", "-"), **mine) as index:
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


def _options_for(kind: str, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    if kind == "llm":
        cache = Layout(folder.expanduser().resolve() / DEFAULT_NAME).contexts
        return {"context": kind, "cache": str(cache), **options}
    common = signature(ContextualIndex.open).parameters
    rest = {key: value for key, value in options.items() if key in common}
    return {"context": _TextAlone() if kind == BASELINE else kind, **rest}


class _TextAlone(ContextGenerator):
    """A context of no words hides the metadata that would be embedded without one."""

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
        raise SettingError(f"{index.settings.folder} holds no files to index. Cure: a folder of Markdown.")


def _warn_of_lost_gold(nodes: Sequence[BaseNode], questions: Sequence[Question]) -> None:
    """Say which answers are nowhere: a path or quotation that is wrong, or a text that no chunk holds as a whole."""
    missing = {question.text: set(question.gold) for question in questions}
    for node in nodes:
        for question in questions:
            missing[question.text] -= question.covered_by(node)
    lost = [f"{text!r} ({next(iter(passages))})" for text, passages in missing.items() if passages]
    if lost:
        warnings.warn(
            f"{len(lost)} questions have answers that no chunk holds, and count as not found: "
            f"{'; '.join(lost[:_NAMED])}{' …' if len(lost) > _NAMED else ''}. Cure: see that path and lines are right "
            "and that the text is a short quotation.",
            ContextualWarning,
            stacklevel=3,
        )
