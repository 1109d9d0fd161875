"""Contexts from a language model that reads the whole document: its settings, and what stands beside its sentences."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Final

from llama_index.core.prompts.mixin import PromptMixin

from llama_index_contextual.context.base import MAX_CHARS, ChunkContext, ContextGenerator, DocumentChunks
from llama_index_contextual.context.cache import OBJECT, ContextCache, open_store
from llama_index_contextual.context.free import FREE
from llama_index_contextual.context.models import Connection, is_local, model_name, require_key
from llama_index_contextual.context.prompts import PromptBudget, Prompts, check_prompt
from llama_index_contextual.context.requests import Caller, CircuitBreaker, RunRecord
from llama_index_contextual.context.run import LLMSettings, Run
from llama_index_contextual.context.usage import ContextEstimate, ContextUsage, Prices, UsageOfCopies, list_prices
from llama_index_contextual.errors import ContextualWarning
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
        llm: ``"ollama:qwen3:0.6b"``, ``"openai:gpt-4.1-mini"``, ``"openai:MODEL@http://HOST/v1"``, or any LlamaIndex
            LLM. None takes ``Settings.llm`` where that has been set, else qwen3:0.6b on this machine's Ollama.
        cache: Where contexts are kept: a file (SQLite), any LlamaIndex ``BaseKVStore``, or False. By default a
            file in LlamaIndex's cache folder.
        prompt: A text or template with ``{document}`` and after it ``{chunks}``; ``{count}``, ``{path}``, ``{title}``,
            ``{date}`` and, after the document, ``{section}`` can be in it. By default there is one for prose and one
            for source code.
        api_key: For a model given by name; by default the provider's environment variable.
        **settings: Those of ``[context_options]`` in docs/settings.md, which says what each is, and those below.
        chunk_timeout: Beside it there is the time in which the prompt is read. Where several calls wait for a server on
            this machine, each may take longer.
        max_calls: Over all runs, further attempts included (not those that an LLM object's client makes by itself);
            what is left then fails, and a later run goes on with it. Each process of a pipeline's ``num_workers``
            counts its own. ``max_tokens`` likewise.
        context_window: A longer document is shown as its outline and what surrounds the chunks.
        beside: Which free context stands before the model's sentence: ``"pattern"`` (of source code file, class and
            names, of other documents the breadcrumb), ``"headings"``, or None for the sentence alone.
        fallback: Which free context stands in where the model gives none: ``"pattern"``, ``"headings"``, or None.
        attempts: How often a request is sent when the server is busy or fails. An LLM object whose client tries again
            by itself is asked once.
        max_output_tokens: Tokens per context.
        retry: Ask again about chunks that got no context three times. Otherwise they are left alone until their text,
            the model or the prompt changes.

    Raises:
        SettingError: A setting cannot work.
    """

    free: ClassVar[bool] = False

    def __init__(
        self,
        llm: str | LLM | None = None,
        *,
        prompt: str | BasePromptTemplate | None = None,
        cache: str | os.PathLike[str] | BaseKVStore | bool | None = None,
        api_key: str | None = None,
        **settings: Any,
    ) -> None:
        self._connection, self.settings = Connection(llm, api_key), LLMSettings(**settings)
        beside, fallback = self.settings.beside, self.settings.fallback
        self._free, self._stand_in = (None if kind is None else FREE[kind]() for kind in (beside, fallback))
        self.prompts = Prompts() if prompt is None else Prompts(*[check_prompt(prompt)] * 2)
        self.cache = ContextCache(open_store(cache), self._answer_versions, self.settings.reuse)
        self._copies = UsageOfCopies()
        self._reset()

    def _reset(self) -> None:
        """Begin to count and to learn about the server anew, as each copy does."""
        settings = self.settings
        self.server, self.budget = CircuitBreaker(), PromptBudget(settings.batch_size, settings.max_output_tokens)
        self.own_usage = ContextUsage()
        self.last_failures: Mapping[str, int] = {}
        self.cache_error: StorageError | None = None
        self.caller: Caller | None = None  # sends the requests; None: this process

    def __repr__(self) -> str:
        return f"LLMContextGenerator({self.name!r}, version={self.version!r})"

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key != "caller"}
        return {**state, "_connection": copy(self._connection)}  # so that copies do not close each other's loop

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def llm(self) -> LLM:
        """Return the model, which is made when it is first needed."""
        return self._connection.llm(*self._room)

    @property
    def _room(self) -> tuple[int | None, int]:
        """Return the tokens that the model takes and writes."""
        return self.settings.context_window, self.settings.max_output_tokens * self.settings.batch_size

    @property
    def name(self) -> str:  # type: ignore[override]
        """Return ``llm:``, the model's name, and what stands beside its sentences: ``llm:qwen3:0.6b+pattern``."""
        return f"{self._model}+{self.settings.beside}" if self.settings.beside else self._model

    @property
    def _model(self) -> str:
        model = self._connection.model
        return f"llm:{model_name(model if isinstance(model, str) else self.llm)}"

    @property
    def version(self) -> str:
        """Return a hash of model, prompts, length and what stands beside; timeouts and such change no context."""
        beside = None if self._free is None else self._free.version
        return short_hash([self._model, _REVISION, *self.prompts.texts(), self.settings.max_output_tokens, beside])

    def _answer_versions(self, document: SourceDocument) -> list[str]:
        """Return hashes of what the model is asked about a document; its answers are stored under them."""
        texts = self.prompts.texts(document)
        return [short_hash([self._model, _REVISION, text, self.settings.max_output_tokens]) for text in texts]

    @property
    def usage(self) -> ContextUsage:
        """Return calls, tokens and chunks since it was made; those of copies in other processes count once they end."""
        return self.own_usage + self._copies.total()

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:
        """Return one context per node of a document."""
        return self.generate_all([DocumentChunks(document, tuple(nodes))])[0]

    def generate_all(self, batches: Sequence[DocumentChunks], progress: Progress | None = None) -> Contexts:
        """Return the contexts of several documents, ``num_workers`` calls at a time.

        Raises:
            StorageError: The cache cannot be read; nothing has been asked for yet.
        """
        future = self._start(batches, progress)
        try:
            return self._warned(future.result())
        finally:
            future.cancel()  # where the wait was interrupted

    async def agenerate_all(self, batches: Sequence[DocumentChunks], progress: Progress | None = None) -> Contexts:
        """Do the same without blocking the event loop; when it is cancelled, so are the requests."""
        return self._warned(await asyncio.wrap_future(self._start(batches, progress)))

    def _start(self, batches: Sequence[DocumentChunks], progress: Progress | None) -> Future[Contexts]:
        return self._connection.start(self.llm, self._run, batches, progress)

    async def _run(self, batches: Sequence[DocumentChunks], progress: Progress | None) -> Contexts:
        self.own_usage.prices = None if is_local(self.llm) else list_prices(model_name(self.llm))
        run = self._new_run(progress)
        try:
            sentences = await run(batches)
        finally:
            self._copies.store(self.own_usage)
        self.last_failures, self.cache_error = run.record.failed, run.cache_error
        return await asyncio.to_thread(lambda: list(map(self._composed, batches, sentences)))

    def _new_run(self, progress: Progress | None) -> Run:
        llm, record = self.llm, RunRecord(self.name, self.own_usage, progress, self.settings)
        caller = self.caller or Caller(llm)
        parts = self.cache, self.prompts, self.budget, self.server
        return Run(self.settings, llm, caller, *parts, record, self.version)

    def _composed(self, batch: DocumentChunks, sentences: Sequence[str | None]) -> list[ChunkContext | None]:
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

    def _warned(self, results: Contexts) -> Contexts:
        """Warn once of all chunks that fell back, and of contexts that could not be stored; return the contexts."""
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
            message = f"What was generated is used, and could not be kept everywhere: {self.cache_error}"
            warnings.warn(message, ContextualWarning, stacklevel=3)
        return results

    def model_by_name(self) -> tuple[str, int | None, int] | None:
        """Return what another process makes the model from: name, window, tokens to write; None for an object."""
        name = self._connection.by_name()
        return None if name is None else (name, *self._room)

    def estimate(self, batches: Sequence[DocumentChunks], prices: Prices | None = None) -> ContextEstimate:
        """Return what a run over these chunks would cost, without asking the model about them."""
        return self._new_run(None).estimate(batches, prices)

    def require_key(self) -> None:
        """Raise a ContextError where no call can succeed, because the key is missing or refused."""
        if not self.settings.fallback_only:
            require_key(self.llm, "no context can be made")

    def config(self) -> dict[str, Any]:
        """Return the settings as plain data: names instead of objects, and no key."""
        store = self.cache.store
        cache = False if store is None else f"{OBJECT}{type(store).__name__}"
        if isinstance(store, SQLiteKVStore):
            cache = str(store.path)
        plain = self.settings.model_dump(exclude={"llm", "prompt"})
        return {"spec": "llm", "llm": self._connection.config(), "cache": cache, **plain}

    def at_query_time(self) -> ContextGenerator | None:
        """Return the fallback: a model would keep a query waiting."""
        return self._stand_in

    def state(self) -> str:
        """Return a mark of the last run that left chunks without a context; without a cache, of this object's runs."""
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
    """Return a free context within what a sentence leaves of the room; its first line says most."""
    room = max(MAX_CHARS - len(sentence), MAX_CHARS // 4)
    return text if len(text) <= room else f"{text.partition(chr(10))[0][: room - 1].rstrip()}…"
