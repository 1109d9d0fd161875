"""Contexts from a language model that reads the whole document.

A run is one flow: what the cache has; prompts about the other chunks; answers, checked and stored; the free context
before each sentence. An estimate adds up the same prompts and asks nobody.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections import Counter
from dataclasses import asdict
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from llama_index.core.llms import LLM
from llama_index.core.schema import MetadataMode
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt

from llama_index_contextual.context import models, prompts
from llama_index_contextual.context.answers import refusal, split_answers
from llama_index_contextual.context.base import (
    MAX_CHARS,
    ChunkContext,
    ContextEstimate,
    ContextGenerator,
    ContextProgress,
    ContextUsage,
    DocumentChunks,
    Tokens,
)
from llama_index_contextual.context.cache import UNUSABLE, ContextCache, Kept, open_store
from llama_index_contextual.context.free import FREE
from llama_index_contextual.errors import ContextualWarning, StorageError, one_of, refuse_unknown
from llama_index_contextual.metadata import DATE, HEADER_PATH, TITLE, value_of
from llama_index_contextual.service import pause
from llama_index_contextual.text import counted, short_hash

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from llama_index.core.prompts import BasePromptTemplate
    from llama_index.core.schema import BaseNode
    from llama_index.core.storage.kvstore.types import BaseKVStore

    from llama_index_contextual.context.base import Contexts, Progress, SourceDocument

_REVISION: Final = 1  # raise it when the same prompt and model would give other contexts
_counting = threading.Lock()  # of generators that several threads ask
ATTEMPTS: Final = 3  # of a request while its server is busy or away
_MARK_CACHE: Final = ("anthropic", "bedrock_converse")  # cache only what a cache point in the prompt marks
_MAX_FAILURES: Final = 3  # of a chunk, before it is left alone
_TIMELY_TOKENS: Final = 6000  # of a prompt that a model reads within its timeout; a longer one has more time
_CONTEXT_TOKENS: Final = 40  # of a usual context with its number
_SPEEDS: Final = {True: (200.0, 20.0), False: (5000.0, 60.0)}  # tokens a second, read and written; of a local server


class LLMContextGenerator(ContextGenerator):
    """One or two sentences per chunk from a language model that is shown the document.

    The document comes first in each prompt and its chunks after it, several to a call, so that a server with a prefix
    cache reads a document once. A sentence is stored as soon as its call returns. A chunk that got none is None in the
    result, or has the context of ``fallback`` meanwhile; the next run asks about it again, at most three times. Each
    context says who made it. One :class:`ContextualWarning` at the end of a run says how many chunks fell back, and
    why.

    Args:
        llm: Any LlamaIndex LLM, or what makes one when it is first needed. None takes ``Settings.llm``, where that has
            been set.
        prompt: A text or template with ``{document}`` and after it ``{chunks}``; ``{count}``, ``{path}``, ``{title}``
            and ``{date}`` can be in it. By default there is one for prose and one for source code.
        cache: Where contexts are kept: a file (SQLite), any LlamaIndex ``BaseKVStore``, or False. By default a
            file in LlamaIndex's cache folder.
        beside: Which free context stands before the model's sentence: ``"pattern"`` (of source code file, class and
            names, of other documents the breadcrumb), ``"headings"``, or None for the sentence alone.
        fallback: Which free context stands in where the model gives none: ``"pattern"``, ``"headings"``, or None.
        **options: Settings of the calls, as :class:`LLMOptions` names them.

    Raises:
        SettingError: A setting cannot work.
    """

    free: ClassVar[bool] = False

    def __init__(
        self,
        llm: models.ModelSource = None,
        *,
        prompt: str | BasePromptTemplate | None = None,
        cache: str | os.PathLike[str] | BaseKVStore | bool | None = None,
        beside: str | None = "pattern",
        fallback: str | None = None,
        **options: Any,
    ) -> None:
        models.check_source(llm)
        for name, value in (("beside", beside), ("fallback", fallback)):
            one_of(name, value, (*FREE, None))
        taken = {*signature(LLMContextGenerator).parameters, *models.LLMOptions.__dataclass_fields__}
        refuse_unknown("context='llm'", options, taken - {"options"})
        self.source, self.options = llm, models.LLMOptions(**options)
        # Now: a field may count what the model does later.
        self._model_name = models.model_name(llm) if isinstance(llm, LLM) else getattr(llm, "model_name", None)
        self._llm: LLM | None = None
        self.beside, self.stand_in = (None if kind is None else FREE[kind]() for kind in (beside, fallback))
        self.prompts = prompts.PROMPTS if prompt is None else (prompts.check_prompt(prompt),)
        self.cache = ContextCache(open_store(cache), self._answer_version)
        self.budget = prompts.PromptBudget(self.options.batch_size, self.options.max_output_tokens)
        self.server, self.usage = models.Server(), ContextUsage()

    def __getstate__(self) -> dict[str, Any]:
        # Pickling a LlamaIndex component deletes its clients from the live object: give it a copy to do that to.
        source = self.source.model_copy() if isinstance(self.source, LLM) else self.source
        return {**self.__dict__, "source": source, "_llm": None}

    @property
    def llm(self) -> LLM:
        """The model, which is made when it is first needed."""
        if self._llm is None:
            self._llm = models.make_model(self.source)
        return self._llm

    @property
    def model_name(self) -> str:  # type: ignore[override]
        """The model's name, such as ``qwen3:0.6b``; a source that makes its model later may have it before."""
        if self._model_name is None:
            self._model_name = models.model_name(self.llm)
        return self._model_name

    @property
    def name(self) -> str:  # type: ignore[override]
        """``llm:``, the model's name, and the kind that stands beside its sentences: ``llm:qwen3:0.6b+pattern``."""
        return f"llm:{self.model_name}" + (f"+{self.beside.name}" if self.beside else "")

    @property
    def version(self) -> str:  # type: ignore[override]
        """A hash of model, prompts, length and what stands beside; timeouts and such change no context."""
        tokens, beside = self.options.max_output_tokens, self.beside and self.beside.version
        return short_hash([f"llm:{self.model_name}", _REVISION, *self.prompts, tokens, beside])

    def _answer_version(self, document: SourceDocument) -> str:
        """A hash of the question about a document; answers are stored under it."""
        prompt = prompts.prompt_for(document, self.prompts)
        return short_hash([f"llm:{self.model_name}", _REVISION, prompt, self.options.max_output_tokens])

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:
        """One context per node of a document."""
        return self.generate_all([DocumentChunks(document, tuple(nodes))])[0]

    def generate_all(self, batches: Sequence[DocumentChunks], progress: Progress | None = None) -> Contexts:
        """The contexts of several documents, ``num_workers`` calls at a time.

        Raises:
            StorageError: The cache cannot be read; nothing has been asked for yet.
        """
        run = _Run(self, batches, progress)
        models.run_sync(run.ask())
        return run.contexts()

    async def agenerate_all(self, batches: Sequence[DocumentChunks], progress: Progress | None = None) -> Contexts:
        """The contexts of several documents, without blocking the event loop; cancelling it cancels the requests."""
        run = await asyncio.to_thread(_Run, self, batches, progress)
        await run.ask()
        return await asyncio.to_thread(run.contexts)

    def estimate(self, batches: Sequence[DocumentChunks]) -> ContextEstimate:
        """The costs of a run over these chunks, without a question to the model about them."""
        return _Run(self, batches, None).estimate()

    def available(self) -> bool:
        """Whether the model's server answers; a question about its models, which costs nothing."""
        return self.server.problem(self.llm, self.options.timeout) is None

    def require_key(self) -> None:
        """Raise a ContextError where no call can succeed, because the key is missing or refused."""
        models.require_key(self.llm, "no context can be made")

    def config(self) -> dict[str, Any]:
        """The settings as plain data: the model's name instead of the model, and no key."""
        llm = None if self.source is None else f"{models.OBJECT}{self.model_name}"
        kinds = {"beside": self.beside and self.beside.name, "fallback": self.stand_in and self.stand_in.name}
        return {"spec": "llm", "llm": llm, **kinds, **asdict(self.options)}

    def at_query_time(self) -> ContextGenerator | None:
        """The fallback: a model would keep a query waiting."""
        return self.stand_in

    def state(self) -> str:
        """A mark of the last run that left chunks without a context; without a cache, of this object's runs."""
        return self.cache.state(self.version)

    def close(self) -> None:
        """Close the cache's file."""
        self.cache.close()


class _Run:
    """One run of a generator over some documents."""

    def __init__(
        self, generator: LLMContextGenerator, batches: Sequence[DocumentChunks], progress: Progress | None
    ) -> None:
        self._generator, self._options, self._progress = generator, generator.options, progress
        self._failed: Counter[str] = Counter()
        self._is_final = True
        self._documents = [_Document(one, generator.cache.find(one.nodes, one.document)) for one in batches]
        self._records = [record for document in self._documents for record in document.records]
        self._done = self._cached = sum(record.text is not None for record in self._records)

    async def ask(self) -> None:
        """Ask the model about the chunks that have no context, and store what it gives."""
        generator = self._generator
        self._count(chunks=len(self._records), from_cache=self._cached)
        self._note_done(0)
        if lost := sum(record.reason == UNUSABLE for record in self._records):
            message = f"{counted(lost, 'stored context')} cannot be used any more, and the model is asked again."
            warnings.warn(message, ContextualWarning, stacklevel=2)
        for record in self._records:
            if record.times >= _MAX_FAILURES:
                self._note_failed(f"{record.reason}, {record.times} times", 1, again=False)
        to_ask = [(document, missing) for document in self._documents if (missing := document.missing())]
        if not to_ask:
            return
        obstacle = await asyncio.to_thread(lambda: generator.server.problem(generator.llm, self._options.timeout))
        if obstacle is not None:
            self._note_failed(obstacle, sum(len(missing) for _, missing in to_ask))
        else:
            await asyncio.to_thread(self._divide_window)
            async with models.connected(generator.source) as self._llm:
                self._slots, opened = asyncio.Semaphore(self._workers), asyncio.Semaphore(self._workers)
                await models.gather(self._ask_about(*one, opened) for one in to_ask)
        if not self._is_final:
            await self._store(generator.cache.mark_failed, generator.version)

    def contexts(self) -> Contexts:
        """The contexts of all chunks, after one warning where chunks fell back."""
        generator, results = self._generator, [self._composed(document) for document in self._documents]
        sources = [context.source for contexts in results for context in contexts if context is not None]
        if fallen := Counter(source for source in sources if source != generator.name):
            others = ", ".join(f"{count} {source}" for source, count in fallen.most_common())
            reasons = ", ".join(f"{count} {reason}" for reason, count in self._failed.most_common())
            have, why = "has" if fallen.total() == 1 else "have", f", because: {reasons}" if reasons else ""
            again = " of this object asks for them again; another process takes them for final without cache="
            warnings.warn(
                f"{fallen.total()} of {len(sources)} chunks {have} no context from {generator.name} but fell back "
                f"({others}){why}. The next run{' asks for them again' if generator.cache.store else again}.",
                ContextualWarning,
                stacklevel=4,
            )
        return results

    def _composed(self, document: _Document) -> list[ChunkContext | None]:
        """The free contexts with the model's sentences; after the cache, so that they can change for nothing.

        Where there is no sentence, the fallback's context stands in.
        """
        generator, batch = self._generator, document.batch
        sentences = [record.text for record in document.records]
        contexts: list[ChunkContext | None] = [None] * len(sentences)
        if generator.stand_in is not None and None in sentences:
            contexts = generator.stand_in.generate(batch.nodes, batch.document)
        name, version = generator.name, generator.version
        free = generator.beside.generate(batch.nodes, batch.document) if generator.beside else [None] * len(sentences)
        for index, (sentence, beside) in enumerate(zip(sentences, free, strict=True)):
            if sentence is not None:
                lines = filter(None, ["" if beside is None else _shortened(beside.text, sentence), sentence])
                contexts[index] = ChunkContext("\n".join(lines), name, beside.lexical if beside else "", version)
        return contexts

    def estimate(self) -> ContextEstimate:
        """The costs of the run: its prompts are made and added up."""
        generator, total, calls, chunks = self._generator, Tokens(), 0, 0
        self._divide_window()
        for document in self._documents:
            before, missing = "", document.missing()
            for group in self._split(document, missing):
                prompt = self._prompt(document, group)
                cached = prompts.count_tokens(prompt.document) if prompt.document == before else 0
                written = len(group) * min(_CONTEXT_TOKENS, self._options.max_output_tokens)
                total += Tokens(prompt.tokens, cached, written)
                before, calls = prompt.document, calls + 1
            chunks += len(missing)
        local = models.is_local(generator.llm)
        reading, writing = _SPEEDS[local]
        seconds = (total.prompt - total.cached) / reading + total.completion / writing
        seconds /= 1 if local else self._workers  # a local server does one call after the other
        return ContextEstimate(chunks, self._cached, calls, total, seconds, generator.model_name, local)

    @property
    def _workers(self) -> int:
        return self._options.num_workers or (1 if models.is_local(self._generator.llm) else 4)

    def _divide_window(self) -> None:
        """Divide the model's window; this may ask its server, so never call it on an event loop."""
        self._generator.budget.divide(self._options.context_window or models.context_window(self._generator.llm))

    def _split(self, document: _Document, indexes: list[int]) -> list[list[int]]:
        """Split some chunks of a document, by their indexes, into those of one call each."""
        nodes, budget = document.batch.nodes, self._generator.budget
        chosen = [nodes[index] for index in indexes]
        groups, remaining = prompts.calls_of(chosen, document.batch.document, budget.size, budget.window), iter(indexes)
        return [[next(remaining) for _ in group] for group in groups]

    def _prompt(self, document: _Document, group: list[int]) -> prompts.FilledPrompt:
        nodes, source, generator = document.batch.nodes, document.batch.document, self._generator
        prompt, window = prompts.prompt_for(source, generator.prompts), generator.budget.window
        return prompts.fill_prompt(prompt, [nodes[index] for index in group], source, nodes, window)

    async def _ask_about(self, document: _Document, missing: list[int], opened: asyncio.Semaphore) -> None:
        """Ask about one document's chunks: a first call alone, which the server's cache keeps for the others."""
        async with opened:
            first, *others = self._split(document, missing)
            await self._in_turn(document, first)
            indexes = [index for group in others for index in group]
            # Split again: the first answer may have taught how much goes into a call.
            await models.gather(self._in_turn(document, group) for group in self._split(document, indexes))

    async def _in_turn(self, document: _Document, group: list[int]) -> None:
        async with self._slots:  # with whatever must be asked again, while the server still has the document in mind
            await self._group(document, group)

    async def _group(self, document: _Document, group: list[int]) -> None:
        """Ask about some chunks in one call, or in several where it turns out that one does not do."""
        budget = self._generator.budget
        if len(group) <= budget.size:  # else a prompt turned out to be too long while this one waited
            window = budget.window
            try:
                answer = await self._answer(document, group)
            except models.CallFailedError as error:
                if error.reason != models.TOO_LONG or not budget.shrink(window):
                    self._note_failed(error.reason, len(group))
                    return
            else:
                await self._accept(document, group, answer)
                return
        for part in self._split(document, group):
            await self._group(document, part)

    async def _answer(self, document: _Document, group: list[int]) -> str:
        """The answer to one prompt, which is sent again after an error that may pass."""
        server, llm, prompt = self._generator.server, self._llm, self._prompt(document, group)
        if server.is_down:
            raise models.CallFailedError(models.NO_ANSWER, fatal=False)
        tokens = prompt.tokens
        messages = prompt.messages(cache_point=llm.class_name().casefold().startswith(_MARK_CACHE))
        timeout = self._options.timeout * max(1.0, tokens / _TIMELY_TOKENS)
        attempts = 1 if getattr(llm, "max_retries", 0) else ATTEMPTS  # its client tries again by itself
        try:
            async for attempt in AsyncRetrying(
                stop=stop_after_attempt(attempts),
                wait=pause,
                retry=retry_if_exception(lambda error: getattr(error, "transient", False)),
                reraise=True,
            ):
                with attempt:
                    self._count(calls=1)
                    most = self._options.max_output_tokens * len(group)
                    answer, spent = await models.send(llm, messages, timeout, most)
        except models.CallFailedError as error:
            server.call_ended(failed=error.fatal)
            raise
        server.call_ended(failed=False)
        self._count(tokens=Tokens(tokens, 0, prompts.count_tokens(answer)) if spent == Tokens() else spent)
        return answer

    async def _accept(self, document: _Document, group: list[int], answer: str) -> None:
        """Take the contexts out of an answer, store them, and ask again about the chunks that it left out."""
        answers = split_answers(answer, len(group))
        omitted: list[int] = []
        records: list[tuple[BaseNode, Kept]] = []
        for number, index in enumerate(group, 1):
            context, node = answers.get(number), document.batch.nodes[index]
            if context is None and len(group) > 1:
                omitted.append(index)
                continue
            reason = "malformed" if answer.strip() else "empty"
            if context is not None:
                reason = self._refusal(context, node, document.batch.document) or ""
            record = Kept(None, reason, document.records[index].times + 1) if reason else Kept(context)
            document.records[index] = record
            records.append((node, record))
        await self._store(self._generator.cache.keep, records, document.batch.document)
        refused = [record.reason for _, record in records if record.text is None]
        self._count(generated=len(records) - len(refused))
        self._note_done(len(records) - len(refused))
        for reason in refused:
            self._note_failed(reason, 1)
        for index in omitted:
            await self._group(document, [index])

    def _refusal(self, context: str, node: BaseNode, document: SourceDocument) -> str | None:
        """Why a context cannot be used, or None. The model knew the document's text, path, title, day and sections."""
        metadata = {**document.metadata, **node.metadata}
        values = (str(value_of(metadata, key) or "") for key in (TITLE, DATE, HEADER_PATH))
        known = "\n".join([document.text, document.path, *values])
        prompt = prompts.prompt_for(document, self._generator.prompts)
        return refusal(context, node.get_content(metadata_mode=MetadataMode.NONE), known, prompt)

    async def _store(self, work: Callable[..., object], *arguments: Any) -> None:
        try:
            await asyncio.to_thread(work, *arguments)
        except StorageError as error:  # a full disk: what is paid for is used all the same
            message = f"The generated contexts are used, and could not be kept everywhere: {error}"
            warnings.warn(message, ContextualWarning, stacklevel=2)

    def _count(self, **amounts: Any) -> None:
        """Add to the generator's usage, by the names of its fields.

        Raises:
            CallFailedError: One more call would exceed ``max_calls``.
        """
        usage, most = self._generator.usage, self._options.max_calls
        with _counting:
            if "calls" in amounts and most is not None and usage.calls >= most:
                raise models.CallFailedError(f"max_calls={most} reached", fatal=False)
            for name, amount in amounts.items():
                setattr(usage, name, getattr(usage, name) + amount)

    def _note_failed(self, reason: str, chunks: int, *, again: bool = True) -> None:
        """Count chunks that got no context; ``again`` means that the next run asks about them."""
        self._count(failed=Counter({reason: chunks}))
        self._failed[reason] += chunks
        self._is_final &= not again
        self._note_done(chunks)

    def _note_done(self, chunks: int) -> None:
        self._done += chunks
        if self._progress is not None:
            self._progress(ContextProgress(self._done, len(self._records), self._cached))


class _Document(NamedTuple):
    """A document, and the records of its chunks."""

    batch: DocumentChunks
    records: list[Kept]

    def missing(self) -> list[int]:
        """The indexes of the chunks that the model is to be asked about."""
        return [at for at, one in enumerate(self.records) if one.text is None and one.times < _MAX_FAILURES]


def _shortened(text: str, sentence: str) -> str:
    """A free context within the room that a sentence leaves; its first line says most."""
    room = max(MAX_CHARS - len(sentence), MAX_CHARS // 4)
    return text if len(text) <= room else f"{text.partition(chr(10))[0][: room - 1].rstrip()}…"
