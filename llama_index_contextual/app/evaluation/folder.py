"""Compare settings on a folder: each is indexed, and all indexes answer the same questions."""

from __future__ import annotations

import tempfile
import warnings
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from llama_index.core.storage.kvstore import SimpleKVStore

from llama_index_contextual.app.evaluation.comparison import (
    RANK_DEPTH,
    TOP_K,
    Comparison,
    RetrieverScores,
    check_asking,
    measure,
)
from llama_index_contextual.app.index import ContextualIndex
from llama_index_contextual.app.settings.embeddings import NoEmbedding, model_id
from llama_index_contextual.app.settings.loading import load_configuration
from llama_index_contextual.context import ChunkContext, ContextGenerator, context_name
from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.metadata import EVERY_KEY
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.app.evaluation.questions import Question
    from llama_index_contextual.context import SourceDocument

CONTEXTS: Final = ("off", "headings", "pattern")  # those that cost nothing
BASELINE: Final = "text alone"
_METADATA: Final = "LlamaIndex metadata"  # what is embedded where no context is written
_NAMED: Final = 3  # questions that a warning names


def evaluate(
    folder: str | Path,
    questions: Sequence[Question],
    *,
    contexts: Iterable[str] = CONTEXTS,
    variants: Mapping[str, str | Path] | None = None,
    storage: str | Path | None = None,
    top_k: Iterable[int] = TOP_K,
    say: Callable[[str], object] = lambda _: None,
    show_progress: bool = False,
    **options: Any,
) -> Comparison:
    """Index a folder with its text alone and with other settings, and ask every index the same questions.

    The rows of contexts have the same files, chunks and embedding, and all use the retriever of
    :class:`ContextualIndex`. Differences are to "text alone". ``"off"`` is the row "LlamaIndex
    metadata": what LlamaIndex embeds by itself, here path and header path. Every different text is embedded once.

    Args:
        folder: The documents.
        questions: Questions and the places of their answers. See :func:`load_questions`.
        contexts: Some of ``"off"``, ``"headings"`` (or ``"headers"``), ``"pattern"``, ``"llm"``. The contexts of
            ``"llm"`` are kept in the folder's own ``.contextual``, where its index finds them again.
        variants: More rows by name: each a file like ``contextual.toml``, which comes before the folder's own. It may
            set anything but files: chunk sizes, the embedding, contexts, a reranker.
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
    depths = check_asking(questions, top_k)
    most = max(*depths, RANK_DEPTH)
    with ExitStack() as stack:
        rows = _Rows(folder, storage, options, stack)
        # All are opened before any is filled: a wrong setting must not cost the work of those before it.
        # Beside an empty context all metadata can be left out of what is embedded.
        rows.open(BASELINE, context=EmptyContextGenerator(), leave_out_keys=[EVERY_KEY])
        for kind in dict.fromkeys(map(context_name, contexts)):
            rows.open(_METADATA if kind == "off" else kind, context=kind, **(options if kind == "llm" else {}))
        for name, file in (variants or {}).items():
            rows.open_variant(name, file)
        say(rows.work())
        scores: list[RetrieverScores] = []
        for name, index in rows.indexes.items():
            say(f"Indexing {folder}: {name}")
            report = index.refresh(show_progress=show_progress, confirm=True)  # it is chosen on purpose
            for failure in report.failed if name == BASELINE else ():
                warnings.warn(f"could not be read: {failure}", ContextualWarning, stacklevel=2)
            if not (nodes := index.nodes()):
                raise SettingError(f"{folder} holds no files to index. Cure: choose a folder of Markdown files.")
            if not isinstance(index.settings.embedding, NoEmbedding):
                for question in questions:  # else the times would tell which row came first
                    index.settings.embedding.get_query_embedding(question.text)
            if name == BASELINE:
                _warn_of_lost_answers(nodes, questions)
            scores.append(measure(name, index.as_retriever(most), questions, depths, len(nodes)))
    return Comparison(tuple(questions), depths, tuple(scores), BASELINE)


class EmptyContextGenerator(ContextGenerator):
    """Contexts without a word."""

    name, version = "empty", "1"

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:  # noqa: ARG002
        """One empty context per node."""
        return [ChunkContext("", self.name, version=self.version) for _ in nodes]


class _Rows:
    """Indexes of one folder by different settings, apart from its own index. Each text is embedded once.

    Args:
        folder: The documents.
        storage: Where the indexes are kept; None for a temporary folder.
        options: Of :meth:`ContextualIndex.open`.
        stack: Closes and deletes what is made.
    """

    def __init__(
        self, folder: str | Path, storage: str | Path | None, options: Mapping[str, Any], stack: ExitStack
    ) -> None:
        self.indexes: dict[str, ContextualIndex] = {}
        self._folder, self._stack = Path(folder), stack
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="contextual-evaluation-"))
        self._root = Path(storage or temporary).expanduser()
        self._embeddings: dict[str, BaseEmbedding] = {}
        general = {key: options[key] for key in ("files", "config", "embed_model") if key in options}
        settings = ContextualIndex.open(folder, **general, reindex=True).settings
        # Each kind of context has default files of its own, but rows must not differ by their files.
        known = {*signature(ContextualIndex.open).parameters, "files", "keep_keys", "leave_out_keys"}
        chosen = {"files": settings.reading.rules, "embed_model": settings.embedding}
        self._options = {key: value for key, value in options.items() if key in known} | chosen
        self._known = known

    def open(self, name: str, **changes: Any) -> None:
        """Open an index with the settings of the folder's own index, but for some.

        Contexts that were paid for are kept with the folder's own index.
        """
        target = ContextualIndex.open(self._folder, **{**self._options, **changes, "reindex": True}).settings
        if target.pipeline.model is not None:
            target.pipeline.model.require_key()
        settings = {
            **self._options,
            **{key: value for key, value in changes.items() if key in self._known},
            "storage": self._root / quote(name, safe=" "),
            "context": target.pipeline.contexts.generator or "off",
            "node_parser": target.pipeline.parser,
            "embed_model": self._remembering(target.embedding),
            "config": target.configuration,
        }
        self.indexes[name] = self._stack.enter_context(ContextualIndex.open(self._folder, **settings))

    def open_variant(self, name: str, file: str | Path) -> None:
        """Open the index of the folder's settings with those of a file before them."""
        if name in self.indexes or not name.strip():
            raise SettingError(f"the variant {name!r} has no name of its own. Cure: one besides {list(self.indexes)}.")
        config = load_configuration(self._folder, file=self._options.get("config"), over=file)
        has_embedding = config.origins.get("embed_model") == str(Path(file).expanduser())
        self.open(name, config=config, node_parser=None, **({"embed_model": None} if has_embedding else {}))

    def _remembering(self, embedding: BaseEmbedding) -> BaseEmbedding:
        """An embedding that embeds each text once; each model has a cache of its own, whose keys are texts."""
        if isinstance(embedding, NoEmbedding):
            return embedding
        key = model_id(embedding)
        if key not in self._embeddings:
            self._embeddings[key] = embedding.model_copy(update={"embeddings_cache": SimpleKVStore()})
        return self._embeddings[key]

    def work(self) -> str:
        """The work of a run: chunks, minutes of embedding, calls. Embeds a few texts."""
        estimate = self.indexes[BASELINE].estimate_embedding()
        minutes = max((estimate.seconds or 0.0) * len(self.indexes) / 60, 1)
        took = "as long as the server takes" if estimate.seconds is None else f"at most {minutes:.0f} min of embedding"
        paid = [index.estimate() for index in self.indexes.values() if index.settings.pipeline.paid_source]
        calls = "".join(f"; {counted(cost.calls, 'call')}, about {cost.tokens.prompt:,} tokens in" for cost in paid)
        return f"{counted(estimate.chunks, 'chunk')} in {len(self.indexes)} indexes: {took}{calls}"


def _warn_of_lost_answers(nodes: Sequence[BaseNode], questions: Sequence[Question]) -> None:
    """Warn of answers that no chunk holds: the path or the quotation is wrong, or the text is in two chunks.

    Raises:
        SettingError: That is so of all of them, and nothing can be measured.
    """
    lost = []
    for question in questions:
        found = {passage for node in nodes for passage in question.covered_by(node)}
        lost += [f"{question.text!r} ({passage})" for passage in question.gold if passage not in found]
    if not lost:
        return
    named = f"{'; '.join(lost[:_NAMED])}{' …' if len(lost) > _NAMED else ''}"
    message = (
        f"{counted(len(lost), 'answer')} in no chunk: {named}. Cure: paths relative to the folder, few words as text"
    )
    if len(lost) == sum(len(question.gold) for question in questions):
        raise SettingError(message)
    warnings.warn(message, ContextualWarning, stacklevel=3)
