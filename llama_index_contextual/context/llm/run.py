"""One run of a language model over the chunks of many documents: what is missing is asked for, checked and kept.

:func:`estimate` plans the same calls and adds up what they would cost. It does not ask the model.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import MetadataMode

from llama_index_contextual.context.llm.answers import refusal, split_answers
from llama_index_contextual.context.llm.books import Books
from llama_index_contextual.context.llm.model import (
    NO_ANSWER,
    context_window,
    is_local,
    marks_cache,
    model_name,
    retries_by_itself,
)
from llama_index_contextual.context.llm.prompt import FilledPrompt, batches, count_tokens
from llama_index_contextual.context.llm.request import CallFailedError, ContextOverflowError, ask
from llama_index_contextual.context.usage import PRICES_OF, ContextEstimate, Prices, Tokens, list_prices
from llama_index_contextual.errors import StorageError
from llama_index_contextual.metadata import DATE, HEADER_PATH, TITLE, value_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from llama_index.core.llms import LLM
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.context.base import DocumentChunks, Progress, SourceDocument
    from llama_index_contextual.context.cache import ContextCache
    from llama_index_contextual.context.llm.model import ServerWatch
    from llama_index_contextual.context.llm.prompt import PromptBudget, Prompts
    from llama_index_contextual.context.llm.request import Answer, Caller, Patience
    from llama_index_contextual.context.usage import ContextUsage

_MAX_SHRINKS: Final = 4
_CONTEXT_TOKENS: Final = 40  # of a usual context with its number
_LOCAL_WRITING: Final = 20.0  # tokens a second that a model on this machine writes
_REMOTE_READING, _REMOTE_WRITING = 5000.0, 60.0


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a run needs to know; :class:`LLMContextGenerator` documents the settings.

    ``budget``, ``server`` and ``usage`` are shared with the earlier and later runs of the same generator.
    """

    source: str
    llm: LLM
    caller: Caller
    prompts: Prompts
    version: str
    cache: ContextCache
    budget: PromptBudget
    server: ServerWatch
    usage: ContextUsage
    patience: Patience
    num_workers: int
    max_output_tokens: int
    context_window: int | None
    max_calls: int | None
    max_tokens: int | None
    fallback_only: bool
    retry: bool

    def divide_window(self) -> None:
        """Divide the model's window; this may ask its server, so never call it on an event loop."""
        self.budget.divide(self.context_window or context_window(self.llm))


@dataclass(slots=True)
class Todo:
    """A document with chunks that have no context yet; ``found`` is filled in, and what is to be remembered noted."""

    document: SourceDocument
    nodes: Sequence[BaseNode]
    missing: list[int]
    found: list[str | None]
    left_alone: list[str]


def todo_of(settings: RunSettings, batch: DocumentChunks) -> Todo:
    """Look up what the cache has of a document's chunks; those that were left alone are not asked about again."""
    nodes, document = batch.nodes, batch.document
    found = settings.cache.find(nodes, document)
    missing = [index for index, text in enumerate(found) if text is None]
    failed: list[str | None] = [None] * len(missing)
    if not settings.retry:
        failed = settings.cache.left_alone([nodes[index] for index in missing], document)
    ask_about = [index for index, reason in zip(missing, failed, strict=True) if reason is None]
    return Todo(document, nodes, ask_about, found, list(filter(None, failed)))


class Run:
    """Contexts for the chunks of some documents: from the cache, else from the model.

    Args:
        settings: How.
        progress: Told whenever a chunk is done.

    Attributes:
        books: What came of it.
    """

    def __init__(self, settings: RunSettings, progress: Progress | None) -> None:
        self._settings = settings
        self.books = Books(
            settings.source, settings.usage, progress, max_calls=settings.max_calls, max_tokens=settings.max_tokens
        )
        self._documents = asyncio.Semaphore(settings.num_workers * settings.caller.servers)
        self._calls = asyncio.Semaphore(settings.num_workers * settings.caller.servers)

    async def __call__(self, documents: Sequence[DocumentChunks]) -> list[list[str | None]]:
        """Return one context per chunk; None where there is none, which the books give the reason of."""
        todo = await asyncio.to_thread(lambda: [todo_of(self._settings, batch) for batch in documents])
        chunks, cached = (
            sum(len(one.nodes) for one in todo),
            sum(text is not None for one in todo for text in one.found),
        )
        self.books.start(documents=len(documents), chunks=chunks, cached=cached)
        for one in todo:
            for reason in one.left_alone:
                self.books.fail(f"{reason}, 3 times", 1)
        if any(one.missing for one in todo):
            await self._generate([one for one in todo if one.missing])
        if self.books.may_change:
            await asyncio.to_thread(self._in_cache, self._settings.cache.mark_failed, self._settings.version)
        self.books.end()
        return [one.found for one in todo]

    def _in_cache(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except StorageError as error:  # a full disk: what is paid for is used all the same
            self.books.cache_error = error

    async def _generate(self, todo: Sequence[Todo]) -> None:
        reason = await asyncio.to_thread(self._why_not)
        if reason is not None:
            for one in todo:
                self.books.fail(reason, len(one.missing), for_now=True)
            return
        await asyncio.to_thread(self._settings.divide_window)
        await _all(self._document(one) for one in todo)

    def _why_not(self) -> str | None:
        """Return the reason why the model is not to be asked, or None where it may be."""
        settings = self._settings
        if settings.fallback_only:
            return "fallback_only"
        return settings.server.why_not(lambda: settings.caller.probe(settings.patience.probe_timeout))

    async def _document(self, todo: Todo) -> None:
        """Ask about one document's chunks: a first call alone, which the server's cache keeps for the others."""
        async with self._documents:
            first, *rest = self._split(todo, todo.missing)
            await self._in_turn(todo, first)
            left = [index for group in rest for index in group]
            await _all(self._in_turn(todo, group) for group in self._split(todo, left))

    def _split(self, todo: Todo, indexes: list[int]) -> list[list[int]]:
        by_node = {id(todo.nodes[index]): index for index in indexes}
        budget, nodes = self._settings.budget, [todo.nodes[index] for index in indexes]
        return [
            [by_node[id(node)] for node in group] for group in batches(nodes, todo.document, budget.size, budget.window)
        ]

    async def _in_turn(self, todo: Todo, group: list[int]) -> None:
        async with self._calls:  # with whatever must be asked again, while the server still has the document in mind
            await self._group(todo, group)

    async def _group(self, todo: Todo, group: list[int], shrinks: int = 0) -> None:
        budget = self._settings.budget
        if len(group) > budget.size:  # the model turned out to be no good at batches while this one waited
            for index in group:
                await self._group(todo, [index])
            return
        window = budget.window
        try:
            answer = await self._ask(todo, [todo.nodes[index] for index in group])
        except ContextOverflowError as error:
            if shrinks == _MAX_SHRINKS:
                await self._refused(todo, dict.fromkeys(group, error.reason))
                return
            budget.shrink(window, error.window)
            for part in self._split(todo, group):
                await self._group(todo, part, shrinks + 1)
            return
        except CallFailedError as error:
            self.books.fail(error.reason, len(group), for_now=True)
            return
        await self._accept(todo, group, answer)

    async def _ask(self, todo: Todo, nodes: list[BaseNode]) -> Answer:
        settings, books, server = self._settings, self.books, self._settings.server
        prompt = settings.prompts.of(todo.document)
        filled = FilledPrompt.about(nodes, todo.document, todo.nodes, settings.budget.window, prompt)
        tokens = filled.tokens
        books.check_budget(tokens)
        if not server.allows_call():
            raise CallFailedError(NO_ANSWER, fatal=False)
        waiting = settings.num_workers if is_local(settings.llm) else 1  # it answers one after the other
        send = partial(
            settings.caller.send,
            filled.messages(cache_point=marks_cache(settings.llm)),
            settings.patience.timeout(len(nodes), tokens, waiting),
            settings.max_output_tokens * len(nodes),
        )
        attempts = 1 if retries_by_itself(settings.llm) else settings.patience.attempts
        try:
            with books.sending(tokens):
                answer = await ask(send, attempts=attempts, patience=settings.patience, another=books.another_attempt)
        except CallFailedError as error:
            server.call_ended(failed=error.fatal)
            books.call(todo.document, len(nodes), error=error.reason)
            raise
        server.call_ended(failed=False)
        books.charge(answer, tokens)
        return answer

    async def _accept(self, todo: Todo, group: list[int], answer: Answer) -> None:
        contexts = split_answers(answer.text, len(group))
        if len(group) > 1:
            self._settings.budget.note_batch(matched=bool(contexts))
        good, again, reasons = [], [], {}
        for number, index in enumerate(group, 1):
            context = contexts.get(number)
            if context is None:
                again.append(index)
            elif (reason := self._refusal(context, todo, index)) is not None:
                reasons[index] = reason
            else:
                todo.found[index] = context
                good.append((todo.nodes[index], context))
        await asyncio.to_thread(self._in_cache, self._settings.cache.keep, good, todo.document)
        self.books.call(todo.document, len(group), answer, accepted=len(good))
        if len(group) == 1 and again:
            reasons, again = {group[0]: "malformed" if answer.text.strip() else "empty"}, []
        await self._refused(todo, reasons)
        self.books.done(len(good))
        for index in again:
            await self._group(todo, [index])

    def _refusal(self, context: str, todo: Todo, index: int) -> str | None:
        """Return why a context cannot be used. The model knew the document's text, path, title, day and sections."""
        node, document = todo.nodes[index], todo.document
        shared = {**document.metadata, **node.metadata}
        said = (value_of(shared, key) for key in (TITLE, DATE, HEADER_PATH))
        known = [document.text, document.path, *(str(value or "") for value in said)]
        prompt = self._settings.prompts.texts(document)[0]
        return refusal(context, node.get_content(metadata_mode=MetadataMode.NONE), "\n".join(known), prompt)

    async def _refused(self, todo: Todo, reasons: dict[int, str]) -> None:
        """Give up chunks of which the model said nothing of use, and remember that for later runs."""
        noted = [(todo.nodes[index], reason) for index, reason in reasons.items()]
        await asyncio.to_thread(self._in_cache, self._settings.cache.note_failed, noted, todo.document)
        for reason in reasons.values():
            self.books.fail(reason, 1, for_now=True)


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


def estimate(
    settings: RunSettings, documents: Sequence[DocumentChunks], prices: Prices | None = None
) -> ContextEstimate:
    """Return what a run would cost: its calls are planned and added up, and the model is not asked.

    Args:
        settings: The run's.
        documents: What it would be about.
        prices: Per million tokens.
    """
    settings.divide_window()
    budget, total, calls, calls_again = settings.budget, Tokens(), 0, 0
    todo = [todo_of(settings, batch) for batch in documents]
    for one in todo:
        before, prompt = "", settings.prompts.of(one.document)
        missing = [one.nodes[index] for index in one.missing]
        for group in batches(missing, one.document, budget.size, budget.window) if missing else ():
            filled = FilledPrompt.about(group, one.document, one.nodes, budget.window, prompt)
            again = count_tokens(filled.document) if filled.document == before else 0
            total += Tokens(filled.tokens, again, len(group) * min(_CONTEXT_TOKENS, settings.max_output_tokens))
            before, calls = filled.document, calls + 1
            calls_again += len(group) if len(group) > 1 else 0
    local, model = is_local(settings.llm), model_name(settings.llm)
    price, priced_by = _price(total, prices, model, local=local)
    return ContextEstimate(
        chunks=sum(len(one.missing) for one in todo),
        from_cache=sum(text is not None for one in todo for text in one.found),
        calls=calls,
        tokens=total,
        seconds=_seconds(settings, total, local=local),
        price=price,
        priced_by=priced_by,
        model=model,
        local=local,
        calls_again=calls_again,
    )


def _seconds(settings: RunSettings, tokens: Tokens, *, local: bool) -> float:
    """Return how long reading and writing takes: a server here does one call after the other, another several."""
    reading, writing = (settings.patience.reading_rate, _LOCAL_WRITING) if local else (_REMOTE_READING, _REMOTE_WRITING)
    alone = (tokens.prompt - tokens.cached) / reading + tokens.completion / writing
    return alone if local else alone / settings.num_workers


def _price(tokens: Tokens, given: Prices | None, model: str, *, local: bool) -> tuple[float | None, str]:
    if given is not None:
        return given.of(tokens), "given"
    if local:
        return 0.0, "local"
    listed = list_prices(model)
    return (None, "") if listed is None else (listed.of(tokens), f"list of {PRICES_OF}")
