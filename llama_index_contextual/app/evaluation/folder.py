"""Measure contexts on a folder, with an index for each and the same questions."""

from __future__ import annotations

import tempfile
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core.storage.kvstore import SimpleKVStore

from llama_index_contextual.app.evaluation.comparison import (
    RANK_DEPTH,
    TOP_K,
    Comparison,
    checked_depths,
    compare,
)
from llama_index_contextual.app.index.index import ContextualIndex
from llama_index_contextual.app.settings.embeddings import NoEmbedding
from llama_index_contextual.context import registry
from llama_index_contextual.context.base import ContextGenerator, SourceDocument
from llama_index_contextual.utils.errors import ContextualWarning, SettingError
from llama_index_contextual.utils.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from llama_index.core.llms import LLM
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.app.evaluation.questions import Question

BASELINE = "text alone"
_METADATA = "LlamaIndex metadata"  # LlamaIndex embeds metadata if there is no context
_MAX_NAMED = 3  # answers that a warning names


def evaluate(
    folder: str | Path,
    questions: Sequence[Question],
    *,
    contexts: Iterable[str] | None = None,
    storage: str | Path | None = None,
    top_k: Iterable[int] = TOP_K,
    say: Callable[[str], object] = lambda _: None,
    show_progress: bool = False,
    llm: str | LLM | None = None,
    **options: Any,
) -> Comparison:
    """Index a folder with its text alone and with contexts, and run the same questions on each.

    All rows have the same files, chunks, embedding and retriever. Differences are relative to "text
    alone". ``"off"`` is the row "LlamaIndex metadata", which embeds the metadata that LlamaIndex
    embeds by default: the path and the header path. Each text is embedded only once.

    Args:
        folder: The documents.
        questions: Questions and the places of their answers. See :func:`load_questions`.
        contexts: Names of context generators, or ``"off"``. Default: those that cost nothing. The
            contexts of ``"llm"`` are kept in the content cache, and every index of the folder
            reuses them.
        storage: A folder that keeps the indexes, so that a second run embeds only changes. Default:
            a temporary folder, which is deleted.
        top_k: Numbers of hits to measure recall at.
        say: A function that is called with an estimate, and with a line before each index.
        show_progress: Whether to show progress bars on stderr.
        llm: The language model for the contexts of ``"llm"``. Default: that of the settings.
        **options: Further arguments of :meth:`ContextualIndex.open`.

    Raises:
        SettingError: A setting is not valid, or there are no documents or questions.
        ContextError: The key of the language model is missing or refused.
    """
    depths = checked_depths(questions, top_k)
    settings = ContextualIndex.open(folder, **options, reindex=True).settings
    embedding = settings.embedding
    if not isinstance(embedding, NoEmbedding):
        embedding = embedding.model_copy(update={"embeddings_cache": SimpleKVStore()})
    # The default files depend on the context, but all rows need the same files.
    options |= {
        "files": settings.folder_reader.rules,
        "embed_model": embedding,
        "node_parser": settings.parser,
    }
    contexts_of_rows = _contexts_of_rows(folder, contexts, llm, options)
    with ExitStack() as stack:
        if storage is None:
            temporary = tempfile.TemporaryDirectory(prefix="contextual-evaluation-")
            storage = stack.enter_context(temporary)
        root = Path(storage).expanduser()
        indexes = dict[str, ContextualIndex]()
        for name, context in contexts_of_rows.items():
            opened = ContextualIndex.open(
                folder,
                **options,
                context=context,
                storage=root / name,
                config=settings.configuration.values,
            )
            indexes[name] = stack.enter_context(opened)
        say(_work_in_words(indexes))
        for name, index in indexes.items():
            say(f"Indexing {folder}: {name}")
            # No confirmation is needed, because the user chose the contexts.
            report = index.refresh(show_progress=show_progress, confirm=True)
            if name == BASELINE:
                for failure in report.failed:
                    warnings.warn(f"could not be read: {failure}", ContextualWarning, stacklevel=2)
                _check_answers(index.nodes(), questions, folder)
        most_hits = max(*depths, RANK_DEPTH)
        retrievers = {name: index.as_retriever(most_hits) for name, index in indexes.items()}
        return compare(retrievers, questions, top_k=depths)


def _contexts_of_rows(
    folder: str | Path,
    contexts: Iterable[str] | None,
    llm: str | LLM | None,
    options: Mapping[str, Any],
) -> dict[str, str | ContextGenerator]:
    """Return the context of each row of the table, by its name."""
    if contexts is None:
        kinds = [name for name in registry.names() if registry.is_free(name)]
    else:
        kinds = [registry.context_name(name) for name in contexts]
    rows: dict[str, str | ContextGenerator] = {BASELINE: _TextAlone()}
    for kind in kinds:
        rows[_METADATA if kind == "off" else kind] = kind
    if "llm" in rows:  # its contexts are cached for the folder
        model: dict[str, Any] = {"llm": llm} if llm else {}
        paid = ContextualIndex.open(folder, **options, context="llm", reindex=True, **model)
        rows["llm"] = paid.settings.contexts.generator or "llm"
    return rows


class _TextAlone(ContextGenerator):
    """A generator of empty contexts, so that neither contexts nor metadata are embedded."""

    name = "text alone"
    embeds_metadata = False

    def generate(
        self,
        nodes: Sequence[BaseNode],
        document: SourceDocument,  # noqa: ARG002
    ) -> list[str]:
        return ["" for _ in nodes]


def _work_in_words(indexes: Mapping[str, ContextualIndex]) -> str:
    """Return the work of an evaluation in words: documents and calls of a language model."""
    documents = counted(len(indexes[BASELINE].files()), "document")
    text = f"{documents} in {len(indexes)} indexes"
    for index in indexes.values():
        if index.settings.paid_source:
            cost = index.estimate()
            calls = counted(cost.calls, "call")
            text += f"; {calls}, about {cost.tokens.prompt:,} tokens in"
    return text


def _check_answers(
    nodes: Sequence[BaseNode], questions: Sequence[Question], folder: str | Path
) -> None:
    """Warn of answers that no chunk contains.

    Then the path or the text is wrong, or the text is divided between two chunks.

    Raises:
        SettingError: No chunk contains any answer, or there are no chunks.
    """
    if not nodes:
        raise SettingError(
            f"{folder} contains no files to index. Choose a folder of Markdown files."
        )
    lost = list[str]()
    for question in questions:
        covered = {passage for node in nodes for passage in question.covered_by(node)}
        lost += [
            f"{question.text!r} ({passage})" for passage in question.gold if passage not in covered
        ]
    if not lost:
        return
    named = "; ".join(lost[:_MAX_NAMED]) + (" …" if len(lost) > _MAX_NAMED else "")
    message = (
        f"{counted(len(lost), 'answer')} in no chunk: {named}. Use paths relative to the folder, "
        "and short texts."
    )
    if len(lost) == sum(len(question.gold) for question in questions):
        raise SettingError(message)
    warnings.warn(message, ContextualWarning, stacklevel=3)
