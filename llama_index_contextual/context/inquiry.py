"""Asking a model about the chunks of documents: several at once, and again where an answer does not do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import MetadataMode

from llama_index_contextual.context import models
from llama_index_contextual.context.answers import refusal, split_answers
from llama_index_contextual.context.calls import CallFailedError, ContextOverflowError, ask
from llama_index_contextual.context.prompt import messages
from llama_index_contextual.context.question import Question
from llama_index_contextual.context.window import batches
from llama_index_contextual.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.context.base import SourceDocument
    from llama_index_contextual.context.calls import Answer
    from llama_index_contextual.context.capacity import Capacity
    from llama_index_contextual.context.ledger import Ledger
    from llama_index_contextual.context.settings import RunSettings

_MAX_SHRINKS: Final = 4


@dataclass(slots=True)
class Todo:
    """A document with chunks that have no context yet; ``found`` is filled in."""

    document: SourceDocument
    nodes: Sequence[BaseNode]
    missing: list[int]
    found: list[str | None]


class Inquiry:
    """Asks until each chunk has a context, or a reason in the ledger why it has none.

    Args:
        settings: How.
        capacity: How much goes into a call, which the answers may change.
        ledger: What comes of it.
    """

    def __init__(self, settings: RunSettings, capacity: Capacity, ledger: Ledger) -> None:
        self._settings, self._capacity, self._ledger = settings, capacity, ledger
        self._documents = asyncio.Semaphore(settings.num_workers)
        self._calls = asyncio.Semaphore(settings.num_workers)

    async def __call__(self, todo: Sequence[Todo]) -> None:
        """Ask about some documents' chunks; what is accepted is in the cache when its call returns."""
        await _all(self._document(one) for one in todo)

    async def _document(self, todo: Todo) -> None:
        """Ask about one document's chunks: a first call alone, which the server's cache keeps for the others."""
        async with self._documents:
            first, *rest = self._split(todo, todo.missing)
            await self._in_turn(todo, first)
            left = [index for group in rest for index in group]
            await _all(self._in_turn(todo, group) for group in self._split(todo, left))

    def _split(self, todo: Todo, indexes: list[int]) -> list[list[int]]:
        by_node = {id(todo.nodes[index]): index for index in indexes}
        nodes = [todo.nodes[index] for index in indexes]
        groups = batches(nodes, todo.document, self._capacity.size, self._capacity.window)
        return [[by_node[id(node)] for node in group] for group in groups]

    async def _in_turn(self, todo: Todo, group: list[int]) -> None:
        async with self._calls:  # with whatever must be asked again, while the server still has the document in mind
            await self._group(todo, group)

    async def _group(self, todo: Todo, group: list[int], shrinks: int = 0) -> None:
        if len(group) > self._capacity.size:  # the model turned out to be no good at batches while this one waited
            for index in group:
                await self._group(todo, [index])
            return
        nodes = [todo.nodes[index] for index in group]
        window = self._capacity.window
        try:
            answer = await self._ask(todo, nodes)
        except ContextOverflowError as error:
            if shrinks == _MAX_SHRINKS:
                self._ledger.fail(error.reason, len(group))
                return
            self._capacity.shrink(window, error.window)
            for part in self._split(todo, group):
                await self._group(todo, part, shrinks + 1)
            return
        except CallFailedError as error:
            self._ledger.fail(error.reason, len(group))
            return
        await self._accept(todo, group, answer)

    async def _ask(self, todo: Todo, nodes: list[BaseNode]) -> Answer:
        settings, ledger, window = self._settings, self._ledger, self._capacity.window
        question = Question.about(nodes, todo.document, todo.nodes, window, settings.excerpt_chars)
        tokens = question.tokens
        marked = models.marks_cache(settings.llm)
        prompt = messages(settings.prompt, question.document, question.chunks, len(nodes), cache_point=marked)
        ledger.check_budget(tokens)
        if not settings.breaker.allows():
            raise CallFailedError("server does not answer", fatal=False)
        try:
            with ledger.sending(tokens):
                answer = await ask(
                    settings.llm,
                    prompt,
                    timeout=settings.timeout(len(nodes), tokens),
                    max_tokens=settings.max_output_tokens * len(nodes),
                    patience=settings.patience,
                    another=ledger.another_attempt,
                )
        except CallFailedError as error:
            settings.breaker.record(failed=error.fatal)
            ledger.call_failed(todo.document, len(nodes), error)
            raise
        settings.breaker.record(failed=False)
        ledger.charge(answer, tokens)
        return answer

    async def _accept(self, todo: Todo, group: list[int], answer: Answer) -> None:
        contexts = split_answers(answer.text, len(group))
        if len(group) > 1:
            self._capacity.note_batch(matched=bool(contexts))
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
        self._ledger.call_answered(todo.document, len(group), answer, accepted=len(good))
        for reason in reasons:
            self._ledger.fail(reason, 1)
        self._ledger.done(len(good))
        if len(group) == 1:
            self._ledger.fail("malformed" if answer.text.strip() else "empty", len(again))
        else:
            for index in again:
                await self._group(todo, [index])

    def _keep(self, contexts: list[tuple[BaseNode, str]], document: SourceDocument) -> None:
        try:
            self._settings.cache.keep(contexts, document)
        except StorageError as error:  # a full disk: what is paid for is used all the same
            self._ledger.cache_error = error


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
