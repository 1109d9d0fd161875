"""Contexts from a language model that reads the whole document: its settings, and what stands beside its sentences."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from copy import copy
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Final

from llama_index.core.prompts import PromptTemplate
from llama_index.core.prompts.mixin import PromptMixin

from llama_index_contextual.context.base import MAX_CHARS, ChunkContext, ContextGenerator, DocumentChunks
from llama_index_contextual.context.cache import OBJECT, ContextCache, open_store
from llama_index_contextual.context.free import FREE
from llama_index_contextual.context.models import Connection, is_local, model_name, probe, require_key
from llama_index_contextual.context.prompts import PromptBudget, Prompts, check_prompt, plain_text
from llama_index_contextual.context.requests import CircuitBreaker, LLMOptions, RunRecord
from llama_index_contextual.context.run import Run
from llama_index_contextual.context.usage import ContextEstimate, ContextUsage, Prices, list_prices
from llama_index_contextual.errors import ContextualWarning, one_of
from llama_index_contextual.sqlite_store import SQLiteKVStore
from llama_index_contextual.text import short_hash

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from llama_index.core.llms import LLM
    from llama_index.core.prompts import BasePromptTemplate
    from llama_index.core.prompts.mixin import PromptDictType, PromptMixinType
    from llama_index.core.schema import BaseNode
    from llama_index.core.storage.kvstore.types import BaseKVStore

    from llama_index_contextual.context.base import Contexts, Progress, SourceDocument
    from llama_index_contextual.context.models import ModelSource
    from llama_index_contextual.errors import StorageError

_REVISION: Final = 1  # raise it when the same prompt and model would give other contexts
_PROSE, _CODE = "context_prompt", "code_context_prompt"
_NEXT: Final = " The next run asks for them again."
_NEXT_OF_THIS: Final = (
    " The next run of this object asks for them again. Another process does not know of them: if it loads this "
    "IngestionPipeline's own cache, it takes them for final. Cure: cache= for the contexts, too, or fallback=None."
)


class LLMContextGenerator(ContextGenerator, PromptMixin):
    """One or two sentences per chunk from a language model that is shown the document.

    The document comes first in each prompt and its chunks after it, several to a call, so that a server with a prefix
    cache reads a document once. A context is stored as soon as its call returns. A chunk that got none is None in the
    result, or has the context of ``fallback`` meanwhile; the next run asks about it again. Each context says who made
    it. :attr:`last_failures` counts the reasons, and one :class:`ContextualWarning` at the end of a run says how many
    chunks fell back.

    Args:
        llm: Any LlamaIndex LLM, or what makes one when it is first needed. None takes ``Settings.llm``, where that has
            been set.
        prompt: A text or template with ``{document}`` and after it ``{chunks}``; ``{count}``, ``{path}``, ``{title}``,
            ``{date}`` and, after the document, ``{section}`` can be in it. By default there is one for prose and one
            for source code.
        cache: Where contexts are kept: a file (SQLite), any LlamaIndex ``BaseKVStore``, or False. By default a
            file in LlamaIndex's cache folder.
        beside: Which free context stands before the model's sentence: ``"pattern"`` (of source code file, class and
            names, of other documents the breadcrumb), ``"headings"``, or None for the sentence alone.
        fallback: Which free context stands in where the model gives none: ``"pattern"``, ``"headings"``, or None.
        options: How the model is asked.

    Raises:
        SettingError: A setting cannot work.
    """

    free: ClassVar[bool] = False

    def __init__(
        self,
        llm: ModelSource = None,
        *,
        prompt: str | BasePromptTemplate | None = None,
        cache: str | os.PathLike[str] | BaseKVStore | bool | None = None,
        beside: str | None = "pattern",
        fallback: str | None = None,
        options: LLMOptions | None = None,
    ) -> None:
        for name, value in (("beside", beside), ("fallback", fallback)):
            one_of(name, value, (*FREE, None))
        self._connection, self.options = Connection(llm), options or LLMOptions()
        self.beside, self.fallback = beside, fallback
        self._free, self._stand_in = (None if kind is None else FREE[kind]() for kind in (beside, fallback))
        self.prompts = Prompts() if prompt is None else Prompts(*[check_prompt(prompt)] * 2)
        self.cache = ContextCache(open_store(cache), self._answer_version, self.options.reuse)
        self._reset()

    def _reset(self) -> None:
        """Begin to count and to learn about the server anew, as each copy does."""
        options = self.options
        self.server, self.budget = CircuitBreaker(), PromptBudget(options.batch_size, options.max_output_tokens)
        self._usage = ContextUsage()
        self.last_failures: Mapping[str, int] = {}
        self.cache_error: StorageError | None = None

    def __repr__(self) -> str:
        return f"LLMContextGenerator({self.name!r}, version={self.version!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": copy(self._connection)}  # so that copies do not close each other's loop

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def llm(self) -> LLM:
        """The model, which is made when it is first needed."""
        return self._connection.llm

    @property
    def model_name(self) -> str:
        """The model's name, such as ``qwen3:0.6b``."""
        return self._connection.model_name

    @property
    def name(self) -> str:  # type: ignore[override]
        """``llm:``, the model's name, and the kind that stands beside its sentences: ``llm:qwen3:0.6b+pattern``."""
        return f"llm:{self.model_name}+{self.beside}" if self.beside else f"llm:{self.model_name}"

    @property
    def version(self) -> str:
        """A hash of model, prompts, length and what stands beside; timeouts and such change no context."""
        beside = None if self._free is None else self._free.version
        texts = map(plain_text, self.prompts)
        return short_hash([f"llm:{self.model_name}", _REVISION, *texts, self.options.max_output_tokens, beside])

    def _answer_version(self, document: SourceDocument) -> str:
        """A hash of the question about a document; answers are stored under it."""
        text = self.prompts.text(document)
        return short_hash([f"llm:{self.model_name}", _REVISION, text, self.options.max_output_tokens])

    @property
    def usage(self) -> ContextUsage:
        """Calls, tokens and chunks since it was made. Copies in other processes count their own."""
        return self._usage

    def available(self) -> bool:
        """Whether the model's server answers; a question about its models, which costs nothing."""
        return self.server.why_not(lambda: probe(self.llm)) is None

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:
        """One context per node of a document."""
        return self.generate_all([DocumentChunks(document, tuple(nodes))])[0]

    def generate_all(self, batches: Sequence[DocumentChunks], progress: Progress | None = None) -> Contexts:
        """The contexts of several documents, ``num_workers`` calls at a time.

        Raises:
            StorageError: The cache cannot be read; nothing has been asked for yet.
        """
        future = self._start(batches, progress)
        try:
            return self._with_warnings(future.result())
        finally:
            future.cancel()  # where the wait was interrupted

    async def agenerate_all(self, batches: Sequence[DocumentChunks], progress: Progress | None = None) -> Contexts:
        """The contexts of several documents, without blocking the event loop; cancelling it cancels the requests."""
        return self._with_warnings(await asyncio.wrap_future(self._start(batches, progress)))

    def _start(self, batches: Sequence[DocumentChunks], progress: Progress | None) -> Future[Contexts]:
        return self._connection.start(self._run, batches, progress)

    async def _run(self, batches: Sequence[DocumentChunks], progress: Progress | None) -> Contexts:
        self._usage.prices = None if is_local(self.llm) else list_prices(model_name(self.llm))
        run = self._new_run(progress)
        sentences = await run(batches)
        self.last_failures, self.cache_error = run.record.failed, run.cache_error
        return await asyncio.to_thread(lambda: list(map(self._compose, batches, sentences)))

    def _new_run(self, progress: Progress | None) -> Run:
        record = RunRecord(self.name, self._usage, progress, (self.options.max_calls, self.options.max_tokens))
        return Run(self.options, self.llm, self.cache, self.prompts, self.budget, self.server, record, self.version)

    def _compose(self, batch: DocumentChunks, sentences: Sequence[str | None]) -> list[ChunkContext | None]:
        """Put the free contexts before the model's sentences; after the cache, so that they can change for nothing.

        Where there is no sentence, the fallback's context stands in.
        """
        nothing: list[ChunkContext | None] = [None] * len(sentences)
        free = nothing if self._free is None else self._free.generate(batch.nodes, batch.document)
        contexts = nothing
        if self._stand_in is not None and None in sentences:
            contexts = self._stand_in.generate(batch.nodes, batch.document)
        name, version = self.name, self.version
        for index, (sentence, beside) in enumerate(zip(sentences, free, strict=True)):
            if sentence is not None:
                lines = [sentence] if beside is None else [_shortened(beside.text, sentence), sentence]
                lexical = "" if beside is None else beside.lexical
                contexts[index] = ChunkContext("\n".join(filter(None, lines)), name, lexical, version)
        return contexts

    def _with_warnings(self, results: Contexts) -> Contexts:
        """The contexts, after one warning of all chunks that fell back, and one where some could not be stored."""
        sources = [context.source for contexts in results for context in contexts if context is not None]
        if fallen := Counter(source for source in sources if source != self.name):
            others = ", ".join(f"{count} {source}" for source, count in fallen.most_common())
            reasons = ", ".join(f"{count} {reason}" for reason, count in Counter(self.last_failures).most_common())
            warnings.warn(
                f"{fallen.total()} of {len(sources)} chunks {'has' if fallen.total() == 1 else 'have'} no context from "
                f"{self.name} but fell back ({others}){f', because: {reasons}' if reasons else ''}."
                f"{_NEXT_OF_THIS if self.cache.store is None else _NEXT}",
                ContextualWarning,
                stacklevel=3,
            )
        if self.cache_error is not None:
            message = f"The generated contexts are used, and could not be kept everywhere: {self.cache_error}"
            warnings.warn(message, ContextualWarning, stacklevel=3)
        return results

    def estimate(self, batches: Sequence[DocumentChunks], prices: Prices | None = None) -> ContextEstimate:
        """The costs of a run over these chunks, without a question to the model about them."""
        return self._new_run(None).estimate(batches, prices)

    def require_key(self) -> None:
        """Raise a ContextError where no call can succeed, because the key is missing or refused."""
        if not self.options.fallback_only:
            require_key(self.llm, "no context can be made")

    def config(self) -> dict[str, Any]:
        """The settings as plain data: names instead of objects, and no key."""
        store = self.cache.store
        cache = False if store is None else f"{OBJECT}{type(store).__name__}"
        if isinstance(store, SQLiteKVStore):
            cache = str(store.path)
        llm = None if self._connection.source is None else f"{OBJECT}{self.model_name}"
        custom = self.prompts.prose if isinstance(self.prompts.prose, PromptTemplate) else None
        prompt = None if custom is None or self.prompts == Prompts() else custom.template
        plain = {"cache": cache, "beside": self.beside, "fallback": self.fallback, "prompt": prompt}
        return {"spec": "llm", "llm": llm, **plain, **asdict(self.options)}

    def at_query_time(self) -> ContextGenerator | None:
        """The fallback: a model would keep a query waiting."""
        return self._stand_in

    def state(self) -> str:
        """A mark of the last run that left chunks without a context; without a cache, of this object's runs."""
        return self.cache.state(self.version)

    def close(self) -> None:
        """Close the cache's file and end the thread."""
        self.cache.close()
        self._connection.close()

    def _get_prompts(self) -> PromptDictType:
        return {_PROSE: self.prompts.prose, _CODE: self.prompts.code}

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        prose, code = prompts.get(_PROSE, self.prompts.prose), prompts.get(_CODE, self.prompts.code)
        self.prompts = Prompts(check_prompt(prose), check_prompt(code))


def _shortened(text: str, sentence: str) -> str:
    """A free context within the room that a sentence leaves; its first line says most."""
    room = max(MAX_CHARS - len(sentence), MAX_CHARS // 4)
    return text if len(text) <= room else f"{text.partition(chr(10))[0][: room - 1].rstrip()}…"
