"""One run of a language model over the chunks of many documents: what is missing is asked for, checked and stored.

:meth:`Run.estimate` plans the same calls and adds up what they would cost. It does not ask the model.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import MetadataMode
from tenacity import AsyncRetrying, retry_if_exception

from llama_index_contextual.context.answers import refusal, split_answers
from llama_index_contextual.context.models import (
    context_window,
    is_local,
    marks_cache,
    model_name,
    probe,
    retries_by_itself,
)
from llama_index_contextual.context.prompts import FilledPrompt, calls_of, count_tokens
from llama_index_contextual.context.requests import (
    NO_ANSWER,
    Answer,
    CallFailedError,
    CircuitBreaker,
    ContextOverflowError,
    LLMOptions,
    RunRecord,
    may_pass,
    send,
)
from llama_index_contextual.context.usage import PRICES_OF, ContextEstimate, Prices, Tokens, list_prices
from llama_index_contextual.errors import StorageError
from llama_index_contextual.metadata import DATE, HEADER_PATH, TITLE, value_of
from llama_index_contextual.service import pause

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from llama_index.core.llms import LLM

    from llama_index_contextual.context.base import DocumentChunks
    from llama_index_contextual.context.cache import ContextCache
    from llama_index_contextual.context.prompts import PromptBudget, Prompts

ATTEMPTS: Final = 3  # of a request while its server is busy or away
READING_RATE: Final = 200.0  # tokens a second: how fast a model reads its prompt at least
_MAX_SHRINKS: Final = 4
_CONTEXT_TOKENS: Final = 40  # of a usual context with its number
_LOCAL_WRITING: Final = 20.0  # tokens a second that a model on this machine writes
_REMOTE_READING, _REMOTE_WRITING = 5000.0, 60.0


@dataclass(slots=True)
class Lookup:
    """The cached contexts of a document's chunks; a run fills in the missing ones."""

    batch: DocumentChunks
    contexts: list[str | None]
    missing: list[int]  # indexes of the chunks that the model is to be asked about
    gave_up: list[str]  # reasons of chunks that are not asked about again


@dataclass
class Run:
    """Contexts for the chunks of some documents: from the cache, else from the model.

    Attributes:
        options: How the model is asked.
        llm: The model.
        cache: The contexts of all runs.
        prompts: For prose and for source code.
        budget: How much goes into a call; all runs of a generator learn it together, and so they do of the server.
        server: Whether the server is there.
        record: Progress and costs.
        version: Of the contexts; under it the cache keeps that a run left chunks without one.
        cache_error: Why contexts could not be stored; None where they were.
    """

    options: LLMOptions
    llm: LLM
    cache: ContextCache
    prompts: Prompts
    budget: PromptBudget
    server: CircuitBreaker
    record: RunRecord
    version: str
    cache_error: StorageError | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._local = is_local(self.llm)
        self._workers = self.options.num_workers or (1 if self._local else 4)
        self._documents, self._calls = asyncio.Semaphore(self._workers), asyncio.Semaphore(self._workers)

    async def __call__(self, documents: Sequence[DocumentChunks]) -> list[list[str | None]]:
        """One context per chunk; None where there is none, for a reason that the record gives."""
        record = self.record
        lookups = await asyncio.to_thread(lambda: list(map(self._look_up, documents)))
        chunks = sum(len(lookup.contexts) for lookup in lookups)
        cached = sum(context is not None for lookup in lookups for context in lookup.contexts)
        record.start(chunks=chunks, cached=cached)
        for reason in [reason for lookup in lookups for reason in lookup.gave_up]:
            record.fail(f"{reason}, 3 times", 1, again=False)
        to_ask = [lookup for lookup in lookups if lookup.missing]
        obstacle = await asyncio.to_thread(self._obstacle) if to_ask else None
        if obstacle is not None:
            for lookup in to_ask:
                record.fail(obstacle, len(lookup.missing))
        elif to_ask:
            await asyncio.to_thread(self._divide_window)
            await _all(map(self._document, to_ask))
        if record.may_change:
            await self._store(self.cache.mark_failed, self.version)
        return [lookup.contexts for lookup in lookups]

    def _look_up(self, batch: DocumentChunks) -> Lookup:
        contexts = self.cache.find(batch.nodes, batch.document)
        missing = [index for index, context in enumerate(contexts) if context is None]
        reasons: list[str | None] = [None] * len(missing)
        if not self.options.retry:
            reasons = self.cache.gave_up_reasons([batch.nodes[index] for index in missing], batch.document)
        to_ask = [index for index, reason in zip(missing, reasons, strict=True) if reason is None]
        return Lookup(batch, contexts, to_ask, list(filter(None, reasons)))

    async def _store(self, work: Callable[..., object], *arguments: Any) -> None:
        try:
            await asyncio.to_thread(work, *arguments)
        except StorageError as error:  # a full disk: what is paid for is used all the same
            self.cache_error = error

    def _obstacle(self) -> str | None:
        """Why the model is not to be asked, or None; this may ask its server."""
        if self.options.fallback_only:
            return "fallback_only"
        return self.server.why_not(lambda: probe(self.llm))

    async def _document(self, lookup: Lookup) -> None:
        """Ask about one document's chunks: a first call alone, which the server's cache keeps for the others."""
        async with self._documents:
            first, *others = self._split(lookup, lookup.missing)
            await self._in_turn(lookup, first)
            indexes = [index for group in others for index in group]
            # Split again: the first answer may have taught how much goes into a call.
            await _all(self._in_turn(lookup, group) for group in self._split(lookup, indexes))

    async def _in_turn(self, lookup: Lookup, group: list[int]) -> None:
        async with self._calls:  # with whatever must be asked again, while the server still has the document in mind
            await self._group(lookup, group)

    async def _group(self, lookup: Lookup, group: list[int], shrinks: int = 0) -> None:
        """Ask about some chunks in one call, or in several where it turns out that one does not do."""
        if len(group) > self.budget.size:  # the model turned out to be no good at batches while this one waited
            for index in group:
                await self._group(lookup, [index])
            return
        window = self.budget.window
        try:
            answer = await self._ask(lookup, group)
        except ContextOverflowError as error:
            if shrinks == _MAX_SHRINKS:
                await self._refuse(lookup, dict.fromkeys(group, error.reason))
                return
            self.budget.shrink(window, error.window)
            for part in self._split(lookup, group):
                await self._group(lookup, part, shrinks + 1)
        except CallFailedError as error:
            self.record.fail(error.reason, len(group))
        else:
            await self._accept(lookup, group, answer)

    async def _ask(self, lookup: Lookup, group: list[int]) -> Answer:
        """Send one request, again after an error that may pass."""
        options, record, prompt = self.options, self.record, self._prompt(lookup, group)
        if not self.server.allows_call():
            raise CallFailedError(NO_ANSWER, fatal=False)
        tokens = prompt.tokens
        waiting = self._workers if self._local else 1  # it answers one after the other
        messages = prompt.messages(cache_point=marks_cache(self.llm))
        timeout = (options.chunk_timeout * len(group) + tokens / READING_RATE) * waiting
        attempts = 1 if retries_by_itself(self.llm) else ATTEMPTS
        retrying = AsyncRetrying(
            stop=lambda state: state.attempt_number >= attempts or not record.another_attempt(),
            wait=pause,
            retry=retry_if_exception(may_pass),
            reraise=True,
        )
        with record.request(tokens):
            started = time.monotonic()
            try:
                most = options.max_output_tokens * len(group)
                answer: Answer = await retrying(send, self.llm, messages, timeout, most)
            except CallFailedError as error:
                self.server.call_ended(failed=error.fatal)
                record.call(lookup.batch.document, len(group), Answer(), error=error.reason)
                raise
        self.server.call_ended(failed=False)
        uncounted = 0 if answer.tokens != Tokens() else tokens + count_tokens(answer.text)
        return replace(answer, uncounted=uncounted, seconds=time.monotonic() - started)

    async def _accept(self, lookup: Lookup, group: list[int], answer: Answer) -> None:
        """Take the contexts out of an answer, store them, and ask again about the chunks that it left out."""
        answers = split_answers(answer.text, len(group))
        if len(group) > 1:
            self.budget.note_batch(matched=bool(answers))
        contexts = {index: answers[number] for number, index in enumerate(group, 1) if number in answers}
        reasons = {index: self._refusal(context, lookup, index) for index, context in contexts.items()}
        refused = {index: reason for index, reason in reasons.items() if reason is not None}
        omitted = [index for index in group if index not in contexts]
        if len(group) == 1 and omitted:
            refused, omitted = {group[0]: "malformed" if answer.text.strip() else "empty"}, []
        accepted = [(index, context) for index, context in contexts.items() if index not in refused]
        self.record.call(lookup.batch.document, len(group), answer, accepted=len(accepted))
        for index, context in accepted:
            lookup.contexts[index] = context
        pairs = [(lookup.batch.nodes[index], context) for index, context in accepted]
        await self._store(self.cache.keep, pairs, lookup.batch.document)
        await self._refuse(lookup, refused)
        self.record.done(len(accepted))
        for index in omitted:
            await self._group(lookup, [index])

    def _refusal(self, context: str, lookup: Lookup, index: int) -> str | None:
        """Why a context cannot be used, or None. The model knew the document's text, path, title, day and sections."""
        node, document = lookup.batch.nodes[index], lookup.batch.document
        metadata = {**document.metadata, **node.metadata}
        values = (value_of(metadata, key) for key in (TITLE, DATE, HEADER_PATH))
        source = "\n".join([document.text, document.path, *(str(value or "") for value in values)])
        prompt = self.prompts.text(document)
        return refusal(context, node.get_content(metadata_mode=MetadataMode.NONE), source, prompt)

    async def _refuse(self, lookup: Lookup, reasons: dict[int, str]) -> None:
        """Give up chunks without a usable answer, and store that for later runs."""
        pairs = [(lookup.batch.nodes[index], reason) for index, reason in reasons.items()]
        await self._store(self.cache.note_failed, pairs, lookup.batch.document)
        for reason in reasons.values():
            self.record.fail(reason, 1)

    def _divide_window(self) -> None:
        """Divide the model's window; this may ask its server, so never call it on an event loop."""
        self.budget.divide(self.options.context_window or context_window(self.llm))

    def _split(self, lookup: Lookup, indexes: list[int]) -> list[list[int]]:
        """Split some chunks of a document, by their indexes, into those of one call each."""
        nodes, budget = lookup.batch.nodes, self.budget
        groups = calls_of([nodes[index] for index in indexes], lookup.batch.document, budget.size, budget.window)
        remaining = iter(indexes)
        return [[next(remaining) for _ in group] for group in groups]

    def _prompt(self, lookup: Lookup, group: list[int]) -> FilledPrompt:
        nodes, document = lookup.batch.nodes, lookup.batch.document
        chunks = [nodes[index] for index in group]
        return FilledPrompt.about(chunks, document, nodes, self.budget.window, self.prompts.of(document))

    def estimate(self, documents: Sequence[DocumentChunks], prices: Prices | None) -> ContextEstimate:
        """The costs of the run: its calls are planned and added up, and the model is not asked."""
        self._divide_window()
        total, calls, calls_again = Tokens(), 0, 0
        lookups = list(map(self._look_up, documents))
        for lookup in lookups:
            before = ""
            for group in self._split(lookup, lookup.missing):
                prompt = self._prompt(lookup, group)
                cached = count_tokens(prompt.document) if prompt.document == before else 0
                total += Tokens(
                    prompt.tokens, cached, len(group) * min(_CONTEXT_TOKENS, self.options.max_output_tokens)
                )
                before, calls = prompt.document, calls + 1
                calls_again += len(group) if len(group) > 1 else 0
        model, local = model_name(self.llm), self._local
        reading = READING_RATE if local else _REMOTE_READING
        writing = _LOCAL_WRITING if local else _REMOTE_WRITING
        seconds = (total.prompt - total.cached) / reading + total.completion / writing
        listed = Prices(0, 0) if local else list_prices(model)
        rates = prices or listed
        return ContextEstimate(
            chunks=sum(len(lookup.missing) for lookup in lookups),
            from_cache=sum(context is not None for lookup in lookups for context in lookup.contexts),
            calls=calls,
            tokens=total,
            seconds=seconds if local else seconds / self._workers,  # a local server does one call after the other
            price=None if rates is None else rates.of(total),
            priced_by="given" if prices else "local" if local else f"list of {PRICES_OF}" if listed else "",
            model=model,
            local=local,
            calls_again=calls_again,
        )


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run several coroutines at once. When one fails, cancel the others with their requests, and raise its error."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
