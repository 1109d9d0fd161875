"""One run of a language model over the chunks of many documents."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import MetadataMode
from llama_index.core.utils import get_tokenizer

from llama_index_contextual.context import models
from llama_index_contextual.context.answers import refusal, split_answers
from llama_index_contextual.context.base import ContextProgress
from llama_index_contextual.context.calls import CallFailedError, ContextOverflowError, ask
from llama_index_contextual.context.events import (
    ContextCallEvent,
    ContextRunEndEvent,
    ContextRunStartEvent,
    dispatcher,
)
from llama_index_contextual.context.prompt import describe_chunks, messages
from llama_index_contextual.context.usage import ContextUsage, Tokens
from llama_index_contextual.context.window import Window, batches, shown
from llama_index_contextual.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from llama_index.core.llms import LLM
    from llama_index.core.prompts import BasePromptTemplate
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.context.base import DocumentChunks, Progress, SourceDocument
    from llama_index_contextual.context.cache import ContextCache
    from llama_index_contextual.context.calls import Answer, CircuitBreaker, Patience

CHARS_PER_TOKEN: Final = 3  # few, so that what is reserved suffices in any language with an alphabet
INSTRUCTION_TOKENS: Final = 250
_MARK_TOKENS: Final = 30  # around each chunk
_SAFETY: Final = 0.9  # our tokenizer is not the model's
_MAX_SHRINKS: Final = 4
_GIVE_UP_BATCHES: Final = 2  # batches in a row whose answers could not be matched to chunks


@dataclass(slots=True)
class Learned:
    """What earlier runs found out about a model, because an index asks for contexts file by file.

    Attributes:
        room: Tokens of a document that its server takes, where that was less than the LLM said.
        size: 1 where it cannot answer about several chunks at once.
    """

    room: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a run needs to know; :class:`LLMContextGenerator` documents the fields."""

    source: str
    llm: LLM
    prompt: BasePromptTemplate
    cache: ContextCache
    breaker: CircuitBreaker
    life: models.SignOfLife
    learned: Learned
    patience: Patience
    batch_size: int
    num_workers: int
    excerpt_chars: int | None
    chunk_timeout: float
    reading_rate: float
    probe_timeout: float
    max_output_tokens: int
    context_window: int | None
    max_calls: int | None
    max_tokens: int | None
    fallback_only: bool


@lru_cache(maxsize=64)
def count_tokens(text: str) -> int:
    """Count tokens as LlamaIndex does; the same document is counted for each of its calls."""
    return len(get_tokenizer()(text))


def window_for(settings: RunSettings, tokens: int) -> tuple[Window, int]:
    """Divide a model's window between the document and the rest.

    Returns:
        The room for the document, and how many chunks a call can have at most.
    """
    excerpt = (settings.excerpt_chars or 2000) // CHARS_PER_TOKEN
    per_chunk = excerpt + settings.max_output_tokens + _MARK_TOKENS
    size = max(1, min(settings.batch_size, tokens // 2 // per_chunk))
    room = int((tokens - size * per_chunk - INSTRUCTION_TOKENS) * _SAFETY)
    return Window(max(room, tokens // 8), count_tokens), size


class Run:
    """Contexts for the chunks of some documents: from the cache, else from the model.

    Args:
        settings: How.
        usage: Counts what the run does; shared with the generator's earlier runs.
        progress: Told whenever a chunk is done.
    """

    def __init__(self, settings: RunSettings, usage: ContextUsage, progress: Progress | None) -> None:
        self.settings, self.usage, self._progress = settings, usage, progress
        self.failed: Counter[str] = Counter()
        self.cache_error: StorageError | None = None
        self._done = self._total = self._cached = 0
        self._window = Window(0, count_tokens)
        self._size = settings.batch_size
        self._unmatched_batches = 0
        self._reserved = 0  # tokens of the prompts that are being read
        self._calls = asyncio.Semaphore(settings.num_workers)

    async def __call__(self, documents: Sequence[DocumentChunks]) -> list[list[str | None]]:
        """Give one context per chunk; None where there is none."""
        results = await asyncio.to_thread(self._from_cache, documents)
        self._total = sum(len(found) for found in results)
        self._cached = sum(text is not None for found in results for text in found)
        todo = [
            _Todo(batch.document, batch.nodes, [i for i, text in enumerate(found) if text is None], found)
            for batch, found in zip(documents, results, strict=True)
        ]
        todo = [one for one in todo if one.missing]
        self._start(len(documents))
        if todo:
            await self._generate(todo)
        if self.failed:
            await asyncio.to_thread(self._mark_failed)
        self.usage.failed.update(self.failed)
        made = self._total - self._cached - sum(self.failed.values())
        dispatcher.event(
            ContextRunEndEvent(
                source=self.settings.source, generated=made, from_cache=self._cached, failed=dict(self.failed)
            )
        )
        return results

    def _from_cache(self, documents: Sequence[DocumentChunks]) -> list[list[str | None]]:
        return [self.settings.cache.find(batch.nodes, batch.document) for batch in documents]

    def _start(self, documents: int) -> None:
        self.usage.chunks += self._total
        self.usage.from_cache += self._cached
        dispatcher.event(
            ContextRunStartEvent(
                source=self.settings.source, documents=documents, chunks=self._total, from_cache=self._cached
            )
        )
        self._report(0)

    async def _generate(self, todo: list[_Todo]) -> None:
        if self.settings.fallback_only:
            reason: str | None = "fallback_only"
        else:
            reason = await asyncio.to_thread(self.settings.life.missing, self.settings.llm, self.settings.probe_timeout)
        if reason is not None:
            for one in todo:
                self._fail(reason, len(one.missing))
            return
        tokens = self.settings.context_window
        if tokens is None:
            tokens = await asyncio.to_thread(models.context_window, self.settings.llm)
        self._window, self._size = window_for(self.settings, tokens)
        learned = self.settings.learned
        self._window = replace(self._window, tokens=min(self._window.tokens, learned.room or self._window.tokens))
        self._size = min(self._size, learned.size or self._size)
        gate = asyncio.Semaphore(self.settings.num_workers)
        await _all(self._document(one, gate) for one in todo)

    async def _document(self, todo: _Todo, gate: asyncio.Semaphore) -> None:
        """Ask about one document's chunks: a first call alone, which the server's cache keeps for the others."""
        async with gate:
            first, *rest = self._split(todo, todo.missing)
            await self._in_turn(todo, first)
            left = [index for group in rest for index in group]
            await _all(self._in_turn(todo, group) for group in self._split(todo, left))

    def _split(self, todo: _Todo, indexes: list[int]) -> list[list[int]]:
        by_node = {id(todo.nodes[index]): index for index in indexes}
        nodes = [todo.nodes[index] for index in indexes]
        groups = batches(nodes, todo.document, self._size, self._window)
        return [[by_node[id(node)] for node in group] for group in groups]

    async def _in_turn(self, todo: _Todo, group: list[int]) -> None:
        async with self._calls:  # with whatever must be asked again, while the server still has the document in mind
            await self._group(todo, group)

    async def _group(self, todo: _Todo, group: list[int], shrinks: int = 0) -> None:
        if len(group) > self._size:  # the model turned out to be no good at batches while this one waited
            for index in group:
                await self._group(todo, [index])
            return
        nodes = [todo.nodes[index] for index in group]
        window = self._window
        try:
            answer = await self._ask(todo, nodes)
        except ContextOverflowError as error:
            if shrinks == _MAX_SHRINKS:
                self._fail(error.reason, len(group))
                return
            self._shrink(window, error.window)
            for part in self._split(todo, group):
                await self._group(todo, part, shrinks + 1)
            return
        except CallFailedError as error:
            self._fail(error.reason, len(group))
            return
        await self._accept(todo, group, answer)

    async def _accept(self, todo: _Todo, group: list[int], answer: Answer) -> None:
        contexts = split_answers(answer.text, len(group))
        if len(group) > 1:
            self._unmatched_batches = 0 if contexts else self._unmatched_batches + 1
            if self._unmatched_batches >= _GIVE_UP_BATCHES:
                self._size = self.settings.learned.size = 1
        good, again, reasons = [], [], []
        for number, index in enumerate(group, 1):
            context = contexts.get(number)
            if context is None:
                again.append(index)
                continue
            text = todo.nodes[index].get_content(metadata_mode=MetadataMode.NONE)
            reason = refusal(context, text, todo.document.text)
            if reason is None:
                todo.found[index] = context
                good.append((todo.nodes[index], context))
            else:
                reasons.append(reason)
        await asyncio.to_thread(self._keep, good, todo.document)
        self._called(todo, len(group), answer, accepted=len(good))
        for reason in reasons:
            self._fail(reason, 1)
        self._report(len(good))
        if len(group) == 1:
            self._fail("malformed" if answer.text.strip() else "empty", len(again))
        else:
            for index in again:
                await self._group(todo, [index])

    async def _ask(self, todo: _Todo, nodes: list[BaseNode]) -> Answer:
        settings = self.settings
        document = shown(nodes, todo.document, todo.nodes, self._window)
        chunks = describe_chunks(nodes, settings.excerpt_chars)
        prompt_tokens = count_tokens(document) + count_tokens(chunks) + INSTRUCTION_TOKENS
        marked = models.marks_cache(settings.llm)
        prompt = messages(settings.prompt, document, chunks, len(nodes), cache_point=marked)
        timeout = settings.chunk_timeout * len(nodes) + prompt_tokens / settings.reading_rate
        if models.is_local(settings.llm):
            timeout *= settings.num_workers  # it answers one after the other
        self._check(prompt_tokens)
        self._sent(1)
        self._reserved += prompt_tokens
        try:
            answer = await ask(
                settings.llm,
                prompt,
                timeout=timeout,
                max_tokens=settings.max_output_tokens * len(nodes),
                patience=settings.patience,
            )
        except CallFailedError as error:
            settings.breaker.record(failed=error.fatal)
            self._tried(error.attempts)
            self._called(todo, len(nodes), None, error=error.reason)
            raise
        finally:
            self._reserved -= prompt_tokens
        settings.breaker.record(failed=False)
        self._tried(answer.attempts)
        self.usage.tokens += answer.tokens
        self.usage.seconds += answer.seconds
        return answer

    def _sent(self, requests: int) -> None:
        self.usage.calls += requests

    def _tried(self, attempts: int) -> None:
        self._sent(attempts - 1)
        self.usage.retries += attempts - 1

    def _check(self, prompt_tokens: int) -> None:
        settings, used = self.settings, self.usage
        if settings.max_calls is not None and used.calls >= settings.max_calls:
            raise CallFailedError(f"max_calls={settings.max_calls} reached", fatal=False)
        spent = used.tokens.prompt + used.tokens.completion + self._reserved
        if settings.max_tokens is not None and spent + prompt_tokens > settings.max_tokens:
            raise CallFailedError(f"max_tokens={settings.max_tokens} reached", fatal=False)
        if not settings.breaker.allows():
            raise CallFailedError("server does not answer", fatal=False)

    def _shrink(self, used: Window, said: int | None) -> None:
        if used is not self._window:  # another call has done it
            return
        smaller = replace(used, tokens=max(1, used.tokens * 2 // 3))
        if said is not None:
            window, self._size = window_for(self.settings, said)
            smaller = min(window, smaller, key=lambda one: one.tokens)
        self._window = smaller
        self.settings.learned.room = smaller.tokens

    def _keep(self, contexts: list[tuple[BaseNode, str]], document: SourceDocument) -> None:
        try:
            self.settings.cache.keep(contexts, document)
        except StorageError as error:  # a full disk: what is paid for is used all the same
            self.cache_error = error

    def _mark_failed(self) -> None:
        try:
            self.settings.cache.mark_failed()
        except StorageError as error:
            self.cache_error = error

    def _fail(self, reason: str, chunks: int) -> None:
        if chunks:
            self.failed[reason] += chunks
            self._report(chunks)

    def _report(self, chunks: int) -> None:
        self._done += chunks
        if self._progress is not None:
            failed = sum(self.failed.values())
            self._progress(ContextProgress(self._done + self._cached, self._total, self._cached, failed))

    def _called(self, todo: _Todo, chunks: int, answer: Answer | None, *, accepted: int = 0, error: str = "") -> None:
        tokens = Tokens() if answer is None else answer.tokens
        self.usage.generated += accepted
        dispatcher.event(
            ContextCallEvent(
                source=self.settings.source,
                document=todo.document.path or todo.document.id,
                chunks=chunks,
                accepted=accepted,
                seconds=0.0 if answer is None else answer.seconds,
                prompt_tokens=tokens.prompt,
                cached_tokens=tokens.cached,
                completion_tokens=tokens.completion,
                error=error,
            )
        )


@dataclass(slots=True)
class _Todo:
    """A document with chunks that have no context yet; ``found`` is filled in."""

    document: SourceDocument
    nodes: Sequence[BaseNode]
    missing: list[int]
    found: list[str | None]


async def _all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all; when one fails or the wait is cancelled, cancel the others and their requests."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
