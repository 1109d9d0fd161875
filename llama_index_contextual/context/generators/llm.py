"""Contexts from a language model that reads the whole document."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from anyio.from_thread import start_blocking_portal
from llama_index.core import Settings
from llama_index.core.llms import LLM
from llama_index.core.utils import iter_batch

from llama_index_contextual.context import answers, base, calls, prompts
from llama_index_contextual.context.cache import CachedContext, CacheSource, ContextCache
from llama_index_contextual.context.documents import text_of
from llama_index_contextual.context.generators.pattern import PatternContextGenerator
from llama_index_contextual.utils import errors, metadata
from llama_index_contextual.utils.errors import SettingError, one_of, whole
from llama_index_contextual.utils.text import short_hash

if TYPE_CHECKING:
    from llama_index.core.prompts import BasePromptTemplate
    from llama_index.core.schema import BaseNode

ModelSource: TypeAlias = "LLM | Callable[[], LLM] | None"
_REVISION = 1  # increase it when the same prompt and model would give other contexts
_USUAL_TOKENS = 40  # of a context with its number
_EXCERPT_TOKENS = 160  # the most that a chunk takes in the prompt, in any alphabet
_CHUNK_TOKENS = _EXCERPT_TOKENS + calls.OUTPUT_TOKENS
_INSTRUCTION_TOKENS = 300
_SAFETY = 0.9  # of the window, because the model's tokenizer differs from ours
_PLAIN = (str, int, float, list, tuple, dict, type(None))  # data that identifies a model
_WORKERS = 4  # concurrent calls to a server on another machine


class LLMContextGenerator(base.ContextGenerator):
    """Add one or two sentences per chunk, by a language model that reads the whole document.

    The sentences follow the pattern context.

    Each prompt contains the document first and then several of its chunks, so that a server with a
    prefix cache processes a document only once. Sentences are stored as soon as their call returns.
    A chunk without a sentence gets the ``fallback``, and the next run asks again if the model
    failed to answer. One :class:`ContextualWarning` at the end of a run says how many chunks got
    the fallback, and why.

    Args:
        llm: Any LlamaIndex LLM, or a function that returns one when it is first needed. None means
            ``Settings.llm``, which must have been set. The LLM's own settings determine the timeout
            and the context window. A document that exceeds the window is replaced by its outline
            and the text around the chunks.
        prompt: A text or template that contains ``{document}`` and, after it, ``{chunks}``.
            ``{count}``, ``{path}``, ``{title}`` and ``{date}`` are optional. By default there is
            one prompt for prose and one for source code.
        cache: Where contexts are stored: a SQLite file, any LlamaIndex ``BaseKVStore``, or False
            for no cache. The default is a file in LlamaIndex's cache folder.
        fallback: The replacement for a missing context: ``"pattern"``, or None.
        batch_size: Chunks per call.
        num_workers: Concurrent calls. The default is 1 for a server on this machine and 4
            otherwise.
        max_calls: The maximum number of requests over all runs of this process, including retries.
            The remaining chunks then fail, and a later run continues with them.

    Raises:
        SettingError: A setting has an invalid value.
    """

    name = "llm"
    description = (
        "the pattern context, then one or two sentences by a language model that reads the document"
    )
    free: ClassVar[bool] = False

    def __init__(
        self,
        llm: ModelSource = None,
        *,
        prompt: str | BasePromptTemplate | None = None,
        cache: CacheSource = None,
        fallback: str | None = "pattern",
        batch_size: int = 8,
        num_workers: int | None = None,
        max_calls: int | None = None,
    ) -> None:
        source: object = llm
        if not (source is None or isinstance(source, LLM) or callable(source)):
            raise SettingError(
                "`llm` must be a LlamaIndex LLM, such as llm=Ollama(model='qwen3:0.6b') "
                f"(got {llm!r}). Saved settings contain only the model's name, so pass the model "
                "again."
            )
        one_of("fallback", fallback, (PatternContextGenerator.name, None))
        self.fallback = fallback
        self.batch_size = whole("batch_size", batch_size)
        self.num_workers = None if num_workers is None else whole("num_workers", num_workers)
        self.max_calls = None if max_calls is None else whole("max_calls", max_calls, least=0)
        self.prompts = prompts.PROMPTS if prompt is None else (prompts.check_prompt(prompt),)
        self.cache = ContextCache(cache, self._answer_version)
        self.usage = base.ContextUsage()
        self.calls = calls.ModelCalls(self.usage, self.max_calls)
        self._source = llm
        self._llm: LLM | None = None
        # Read the name now, because a field of the model can be a counter that changes later.
        if isinstance(llm, LLM):
            self._model_name: str | None = model_name(llm)
        else:
            self._model_name = getattr(llm, "model_name", None)

    def __getstate__(self) -> dict[str, Any]:
        # Pickle a copy, because pickling a LlamaIndex component deletes its clients from the live
        # object.
        source = self._source.model_copy() if isinstance(self._source, LLM) else self._source
        return {**self.__dict__, "_source": source, "_llm": None}

    @property
    def llm(self) -> LLM:
        """Return the model, created at its first use, or ``Settings.llm`` if none was passed."""
        if self._llm is None:
            source = self._source
            model = source if source is None or isinstance(source, LLM) else source()
            self._llm = model or Settings._llm  # noqa: SLF001  Settings.llm would take OpenAI's paid default
        if self._llm is None:
            raise SettingError(
                "No language model is set. Pass a LlamaIndex LLM, such as "
                "llm=Ollama(model='qwen3:0.6b'), or set Settings.llm."
            )
        return self._llm

    @property
    def model_name(self) -> str:  # type: ignore[override]
        """Return the model's name, such as ``qwen3:0.6b``; "" if no model is known yet."""
        if self._model_name is None and (self._source or Settings._llm):  # noqa: SLF001  as above
            self._model_name = model_name(self.llm)
        return self._model_name or ""

    @property
    def source(self) -> str:
        """Return the model and the generator of the text before it: ``llm:qwen3:0.6b+pattern``."""
        return f"{self._model_source}+{PatternContextGenerator.name}"

    @property
    def version(self) -> str:  # type: ignore[override]
        """Return a hash of the model, the prompts and the version of the pattern context."""
        return short_hash(
            [self._model_source, _REVISION, *self.prompts, PatternContextGenerator.version]
        )

    def available(self) -> bool:
        """Return False if the model's server has just failed several times in a row."""
        return not self.calls.is_paused

    @property
    def _model_source(self) -> str:
        """Return the source of the model's sentences, such as ``llm:qwen3:0.6b``."""
        return f"{self.name}:{self.model_name}"

    def _answer_version(self, document: base.SourceDocument) -> str:
        """Return a hash of the model and the prompt for a document, as a key for cached answers."""
        prompt = prompts.prompt_for(document, self.prompts)
        return short_hash([self._model_source, _REVISION, prompt])

    def generate(
        self, nodes: Sequence[BaseNode], document: base.SourceDocument
    ) -> Sequence[str | base.ChunkContext | None]:
        """Return one context per node of a document."""
        return self.generate_all([base.DocumentChunks(document, tuple(nodes))])[0]

    def generate_all(
        self, batches: Sequence[base.DocumentChunks], progress: base.Progress | None = None
    ) -> base.Contexts:
        """Return the contexts of several documents, with ``num_workers`` concurrent calls.

        Raises:
            StorageError: The cache cannot be read. No request has been sent.
        """
        run = _Run(self, batches, progress)
        # Use a separate event loop, because this thread can already have one, as in a notebook.
        with start_blocking_portal() as portal:
            portal.call(run.ask)
        return run.contexts()

    async def agenerate_all(
        self, batches: Sequence[base.DocumentChunks], progress: base.Progress | None = None
    ) -> base.Contexts:
        """Run :meth:`generate_all` without blocking. Cancelling it stops further requests."""
        run = await asyncio.to_thread(_Run, self, batches, progress)
        await run.ask()
        return await asyncio.to_thread(run.contexts)

    def estimate(self, batches: Sequence[base.DocumentChunks]) -> base.ContextEstimate:
        """Return what a run over these chunks would cost, without a request about them."""
        return _Run(self, batches, None).estimate()

    def at_query_time(self) -> base.ContextGenerator | None:
        """Return the fallback, because a language model would keep the query waiting."""
        return PatternContextGenerator() if self.fallback else None

    def options(self) -> dict[str, Any]:
        """Return the settings as plain data, with the model's name but never its API key."""
        options = {
            "llm": None if self._source is None else self.model_name,
            "prompt": None if self.prompts == prompts.PROMPTS else self.prompts[0],
            "cache": self.cache.place,
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "max_calls": self.max_calls,
        }
        set_options = {name: value for name, value in options.items() if value is not None}
        return {**set_options, "fallback": self.fallback}

    def state(self) -> str:
        """Return an id of the last run in which the model failed to answer.

        A new id makes a pipeline's cache run the step again.
        """
        return self.calls.failed_run

    def close(self) -> None:
        """Close the cache's file."""
        self.cache.close()


def model_name(llm: LLM) -> str:
    """Return the name of a model, or its class with a hash, without calling its server.

    Raises:
        SettingError: The model has no name and has attributes that are not plain data, so two such
            models could not be told apart.
    """
    name = getattr(llm, "model", None)
    with contextlib.suppress(Exception):  # each integration has its own exceptions
        name = name or llm.metadata.model_name
    if isinstance(name, str) and name not in ("", "unknown"):
        return name
    state = {**llm.__dict__, **(llm.__pydantic_private__ or {})}
    own = {key: state[key] for key in state if key not in LLM.model_fields and "key" not in key}
    if not all(isinstance(value, _PLAIN) for value in own.values()):
        raise SettingError(
            f"`llm` {type(llm).__qualname__!r} has no name, so contexts of two such models could "
            "not be told apart. Give it a model_name in its metadata, or a field named model."
        )
    return f"{llm.class_name()}#{short_hash(own)[:8]}"


class _Document(NamedTuple):
    """A document with its chunks, and the record of each chunk's context."""

    source: base.SourceDocument
    nodes: Sequence[BaseNode]
    known: list[CachedContext]

    def missing(self) -> list[int]:
        """Return the indexes of the chunks that no call has contained."""
        return [index for index, record in enumerate(self.known) if record == CachedContext()]

    def without_context(self) -> int:
        """Return the number of chunks without a context."""
        return sum(not record.text for record in self.known)


class _Run:
    """One run of a generator, which reads the cache, asks the model, and stores its answers."""

    def __init__(
        self,
        generator: LLMContextGenerator,
        batches: Sequence[base.DocumentChunks],
        progress: base.Progress | None,
    ) -> None:
        self._generator = generator
        self._progress = progress
        self._failed: Counter[str] = Counter()
        self._documents = [
            _Document(source, nodes, generator.cache.find(nodes, source))
            for source, nodes in batches
        ]
        self._total = sum(len(document.nodes) for document in self._documents)
        self._cached = self._total - self._without_context()
        self._done = self._cached
        self._batch_size = 1
        self._window = 1

    def _without_context(self) -> int:
        return sum(document.without_context() for document in self._documents)

    async def ask(self) -> None:
        """Ask the model about the chunks without a context, and store its answers."""
        self._note_done(0)
        for document in self._documents:
            self._generator.cache.renew(document.nodes, document.source, document.known)
            for record in document.known:
                if record.reason:
                    self._note_failed(1, f"{record.reason}, as before")

        waiting = [document for document in self._documents if document.missing()]
        if not waiting:
            return
        await asyncio.to_thread(self._divide_window)
        workers = self._workers()
        slots = asyncio.Semaphore(workers)
        open_documents = asyncio.Semaphore(workers)
        tasks = [self._ask_about(document, slots, open_documents) for document in waiting]
        await asyncio.gather(*tasks)

    async def _ask_about(
        self, document: _Document, slots: asyncio.Semaphore, open_documents: asyncio.Semaphore
    ) -> None:
        """Ask about a document. The first call runs alone, to fill the server's prefix cache."""

        async def ask_in_turn(group: list[int]) -> None:
            async with slots:
                await self._ask_group(document, group)

        async with open_documents:
            first, *following = iter_batch(document.missing(), self._batch_size)
            await ask_in_turn(first)
            await asyncio.gather(*map(ask_in_turn, following))

    async def _ask_group(self, document: _Document, group: list[int]) -> None:
        """Ask about some chunks in one call, then singly about each without a usable context.

        A chunk whose own call gives no usable context is not sent again until its text, the
        model or the prompt changes.
        """
        model_calls = self._generator.calls
        prompt = self._prompt(document, group)
        try:
            answer = await model_calls.answer(self._generator.llm, prompt, len(group))
        except errors.ContextError as error:
            model_calls.note_failed_run()
            self._note_failed(len(group), str(error))
            return
        contexts = answers.split_answers(answer, len(group))
        answered = []
        repeated = []
        for number, index in enumerate(group, 1):
            context = contexts.get(number, "")
            reason = self._refusal(document, index, context)
            if reason and len(group) > 1:
                repeated.append(index)
                continue
            document.known[index] = CachedContext("" if reason else context, reason)
            if reason:
                self._note_failed(1, reason)
            if context:
                answered.append(index)
            else:  # an empty answer, as when thoughts use up all tokens
                model_calls.note_failed_run()
        await self._store(document, answered)
        for index in repeated:
            await self._ask_group(document, [index])

    def _refusal(self, document: _Document, index: int, context: str) -> str:
        """Return the reason to reject the context of a chunk, or ""."""
        node = document.nodes[index]
        prompt = prompts.prompt_for(document.source, self._generator.prompts)
        known_text = _known_text(node, document.source)
        return answers.refusal(context, text_of(node), known_text, prompt)

    async def _store(self, document: _Document, indexes: Sequence[int]) -> None:
        """Store the records of chunks, and count their contexts."""
        records = [(document.nodes[index], document.known[index]) for index in indexes]
        try:
            await asyncio.to_thread(self._generator.cache.keep, records, document.source)
        except errors.StorageError as error:  # such as a full disk
            _warn(f"The contexts are used but could not be stored: {error}")
        usable = sum(record.text != "" for _, record in records)
        self._generator.usage.generated += usable
        self._note_done(usable)

    def contexts(self) -> base.Contexts:
        """Return the contexts of all chunks, after one warning if any chunk got the fallback."""
        missing = self._without_context()
        if missing and self._generator.fallback:
            _warn(
                f"{missing} of {self._total} chunks fell back to the pattern context: "
                f"{self._generator.source} gave none ({base.in_words(self._failed)}). If the model "
                "failed to answer, the next run asks again, unless another process reads the "
                "chunks from a pipeline's cache."
            )
        return [self._composed(document) for document in self._documents]

    def _composed(self, document: _Document) -> list[base.ChunkContext | None]:
        """Return the pattern contexts followed by the model's sentences.

        They are joined here and not in the cache, so that a new pattern context needs no new call.
        """
        pattern = PatternContextGenerator()
        contexts: list[base.ChunkContext | None] = []
        pattern_contexts = pattern.generate(document.nodes, document.source)
        for record, pattern_context in zip(document.known, pattern_contexts, strict=True):
            if record.text:
                text = f"{pattern_context.text}\n{record.text}".lstrip("\n")
                contexts.append(pattern_context._replace(text=text))
            elif self._generator.fallback:
                contexts.append(pattern_context._replace(made_by=pattern))
            else:
                contexts.append(None)
        return contexts

    def estimate(self) -> base.ContextEstimate:
        """Return the cost of the run, by counting the tokens of its prompts."""
        self._divide_window()
        tokens = base.Tokens()
        requests = 0
        chunks = 0
        for document in self._documents:
            missing = document.missing()
            chunks += len(missing)
            previous = ""
            for group in iter_batch(missing, self._batch_size):
                prompt = self._prompt(document, group)
                is_cached = prompt.document == previous
                cached = prompts.count_tokens(prompt.document) if is_cached else 0
                tokens += base.Tokens(prompt.tokens, cached, len(group) * _USUAL_TOKENS)
                previous = prompt.document
                requests += 1
        is_local = calls.is_local(self._generator.llm)
        return base.ContextEstimate(chunks, self._cached, requests, tokens, is_local)

    def _divide_window(self) -> None:
        """Set the number of chunks per call and the space for the document in a prompt.

        Do not call this on an event loop, because it may send a request to the model's server.
        """
        llm = self._generator.llm
        window = calls.context_window(llm)
        self._batch_size = max(1, min(self._generator.batch_size, window // 2 // _CHUNK_TOKENS))
        for_document = window - self._batch_size * _CHUNK_TOKENS - _INSTRUCTION_TOKENS
        self._window = max(1, int(for_document * _SAFETY), window // 8)

    def _workers(self) -> int:
        """Return the number of concurrent calls."""
        default = 1 if calls.is_local(self._generator.llm) else _WORKERS
        return self._generator.num_workers or default

    def _prompt(self, document: _Document, group: list[int]) -> prompts.FilledPrompt:
        source = document.source
        prompt = prompts.prompt_for(source, self._generator.prompts)
        nodes = [document.nodes[index] for index in group]
        return prompts.fill_prompt(prompt, nodes, source, document.nodes, self._window)

    def _note_failed(self, chunks: int, reason: str) -> None:
        self._generator.usage.failed[reason] += chunks
        self._failed[reason] += chunks
        self._note_done(chunks)

    def _note_done(self, chunks: int) -> None:
        self._done += chunks
        if self._progress is not None:
            self._progress(base.ContextProgress(self._done, self._total))


def _warn(message: str) -> None:
    warnings.warn(message, errors.ContextualWarning, stacklevel=4)


def _known_text(node: BaseNode, document: base.SourceDocument) -> str:
    """Return the text that the model saw besides the chunk: the document and facts about it."""
    values = {**document.metadata, **node.metadata}
    keys = (metadata.TITLE, metadata.DATE, metadata.HEADER_PATH)
    facts = [metadata.text_value(values, key) for key in keys]
    return "\n".join([document.text, document.path, *facts])
