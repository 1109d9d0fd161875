"""One run of a language model over documents: what the cache has; prompts; answers, checked and stored; contexts.

An estimate adds up the same prompts and asks nobody.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from llama_index.core.schema import MetadataMode
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt

from llama_index_contextual.context import models, prompts
from llama_index_contextual.context.base import (
    MAX_CHARS,
    ChunkContext,
    ContextEstimate,
    ContextProgress,
    DocumentChunks,
    Tokens,
    in_words,
)
from llama_index_contextual.errors import ContextualWarning, StorageError
from llama_index_contextual.metadata import DATE, HEADER_PATH, TITLE, value_of
from llama_index_contextual.service import pause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.context.base import Contexts, Progress, SourceDocument

_counting = threading.Lock()  # of generators that several threads ask
ATTEMPTS: Final = 3  # of a request while its server is busy or away
_MARK_CACHE: Final = ("anthropic", "bedrock_converse")  # cache only what a cache point in the prompt marks
_MAX_FAILURES: Final = 3  # of a chunk, before it is left alone
_TIMELY_TOKENS: Final = 6000  # of a prompt that a model reads within its timeout; a longer one has more time
_CONTEXT_TOKENS: Final = 40  # of a usual context with its number
_SPEEDS: Final = {True: (200.0, 20.0), False: (5000.0, 60.0)}  # tokens a second, read and written; of a local server
_PER_CHUNK: Final = 160  # tokens: an excerpt in any language with an alphabet, and the marks around it
_INSTRUCTION_TOKENS: Final = 300
_SAFETY: Final = 0.9  # our tokenizer is not the model's


def divided(tokens: int, batch_size: int, output_tokens: int) -> tuple[int, int]:
    """How many chunks a call has at most, and how many tokens of a document it may show.

    Args:
        tokens: The model's window.
        batch_size: Chunks of a call at most.
        output_tokens: Tokens of a context at most.
    """
    per_chunk = _PER_CHUNK + output_tokens
    size = max(1, min(batch_size, tokens // 2 // per_chunk))
    return size, max(1, int((tokens - size * per_chunk - _INSTRUCTION_TOKENS) * _SAFETY), tokens // 8)


class Kept(NamedTuple):
    """The record of a chunk: its context, or why and how many times the model gave none."""

    text: str | None = None
    reason: str = ""
    times: int = 0


class _Document(NamedTuple):
    """A document, and the records of its chunks."""

    batch: DocumentChunks
    records: list[Kept]

    def missing(self) -> list[int]:
        """The indexes of the chunks that the model is to be asked about."""
        return [at for at, one in enumerate(self.records) if one.text is None and one.times < _MAX_FAILURES]


class Run:
    """One run of an ``LLMContextGenerator``, whose file imports this one, over some documents."""

    def __init__(self, generator: Any, batches: Sequence[DocumentChunks], progress: Progress | None) -> None:
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
            generator.failed_run = uuid4().hex

    def contexts(self) -> Contexts:
        """The contexts of all chunks, after one warning where chunks fell back."""
        generator, results = self._generator, [self._composed(document) for document in self._documents]
        sources = [context.source for contexts in results for context in contexts if context is not None]
        if fallen := Counter(source for source in sources if source != generator.name):
            have = "has" if fallen.total() == 1 else "have"
            why = f", because: {in_words(self._failed)}" if self._failed else ""
            _warn(
                f"{fallen.total()} of {len(sources)} chunks {have} no context from {generator.name} but fell back "
                f"({in_words(fallen)}){why}. The next run asks for them again, unless another process reads them from "
                "a pipeline's cache."
            )
        return results

    def _composed(self, document: _Document) -> list[ChunkContext | None]:
        """The free contexts with the model's sentences; after the cache, so that they can change for nothing.

        Where there is no sentence, the fallback's context stands in.
        """
        generator, nodes, source = self._generator, document.batch.nodes, document.batch.document
        nothing: list[ChunkContext | None] = [None] * len(nodes)
        contexts = generator.stand_in.generate(nodes, source) if generator.stand_in else nothing
        free = generator.beside.generate(nodes, source) if generator.beside else nothing
        name, version = generator.name, generator.version
        for index, (record, beside) in enumerate(zip(document.records, free, strict=True)):
            if (sentence := record.text) is not None:
                above, lexical = ("", "") if beside is None else (beside.text, beside.lexical)
                text = "\n".join(filter(None, [_shortened(above, sentence), sentence]))
                contexts[index] = ChunkContext(text, name, lexical, version)
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
        options, llm = self._options, self._generator.llm
        window = options.context_window or models.context_window(llm)
        self._size, self._window = divided(window, options.batch_size, options.max_output_tokens)

    def _split(self, document: _Document, indexes: list[int]) -> list[list[int]]:
        """Split some chunks of a document, by their indexes, into those of one call each."""
        nodes, remaining = document.batch.nodes, iter(indexes)
        groups = prompts.calls_of([nodes[at] for at in indexes], document.batch.document, self._size, self._window)
        return [[next(remaining) for _ in group] for group in groups]

    def _prompt(self, document: _Document, group: list[int]) -> prompts.FilledPrompt:
        nodes, source, generator = document.batch.nodes, document.batch.document, self._generator
        prompt = prompts.prompt_for(source, generator.prompts)
        return prompts.fill_prompt(prompt, [nodes[index] for index in group], source, nodes, self._window)

    async def _ask_about(self, document: _Document, missing: list[int], opened: asyncio.Semaphore) -> None:
        """Ask about one document's chunks: a first call alone, which the server's cache keeps for the others."""

        async def in_turn(group: list[int]) -> None:
            async with self._slots:  # with whatever must be asked again, while the server still has the document
                await self._group(document, group)

        async with opened:
            first, *others = self._split(document, missing)
            await in_turn(first)
            await models.gather(map(in_turn, others))

    async def _group(self, document: _Document, group: list[int]) -> None:
        """Ask about some chunks in one call."""
        try:
            answer = await self._answer(document, group)
        except models.CallFailedError as error:
            self._note_failed(error.reason, len(group))
        else:
            await self._accept(document, group, answer)

    async def _answer(self, document: _Document, group: list[int]) -> str:
        """The answer to one prompt, which is sent again after an error that may pass."""
        server, llm, prompt = self._generator.server, self._llm, self._prompt(document, group)
        if server.is_down:
            raise models.CallFailedError(models.NO_ANSWER, fatal=False)
        tokens, most = prompt.tokens, self._options.max_output_tokens * len(group)
        messages = prompt.messages(cache_point=llm.class_name().casefold().startswith(_MARK_CACHE))
        timeout = self._options.timeout * max(1.0, tokens / _TIMELY_TOKENS)
        attempts = 1 if getattr(llm, "max_retries", 0) else ATTEMPTS  # its client tries again by itself
        is_transient = retry_if_exception(lambda error: getattr(error, "transient", False))
        try:
            async for attempt in AsyncRetrying(
                stop=stop_after_attempt(attempts), wait=pause, retry=is_transient, reraise=True
            ):
                with attempt:
                    self._count(calls=1)
                    answer, spent = await models.send(llm, messages, timeout, most)
        except models.CallFailedError as error:
            server.call_ended(failed=error.fatal)
            raise
        server.call_ended(failed=False)
        self._count(tokens=Tokens(tokens, 0, prompts.count_tokens(answer)) if spent == Tokens() else spent)
        return answer

    async def _accept(self, document: _Document, group: list[int], answer: str) -> None:
        """Take the contexts out of an answer, store them, and ask again about the chunks that it left out."""
        answers, source, nodes = (
            prompts.split_answers(answer, len(group)),
            document.batch.document,
            document.batch.nodes,
        )
        prompt = prompts.prompt_for(source, self._generator.prompts)
        omitted = [index for number, index in enumerate(group, 1) if number not in answers and len(group) > 1]
        kept = [(answers.get(number), index) for number, index in enumerate(group, 1) if index not in omitted]
        for context, index in kept:
            reason = "malformed" if answer.strip() else "empty"
            if context is not None:
                text = nodes[index].get_content(metadata_mode=MetadataMode.NONE)
                reason = prompts.refusal(context, text, _known(nodes[index], source), prompt) or ""
            times = document.records[index].times + 1
            document.records[index] = Kept(None, reason, times) if reason else Kept(context)
        records = [(nodes[index], document.records[index]) for _, index in kept]
        try:
            await asyncio.to_thread(self._generator.cache.keep, records, source)
        except StorageError as error:  # a full disk: what is paid for is used all the same
            _warn(f"The generated contexts are used, and could not be kept everywhere: {error}")
        refused = [record.reason for _, record in records if record.text is None]
        self._count(generated=len(records) - len(refused))
        self._note_done(len(records) - len(refused))
        for reason in refused:
            self._note_failed(reason, 1)
        for index in omitted:
            await self._group(document, [index])

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


def _warn(message: str) -> None:
    warnings.warn(message, ContextualWarning, stacklevel=4)


def _known(node: BaseNode, document: SourceDocument) -> str:
    """What the model knew besides the chunk: the document's text, path, title, day and the chunk's sections."""
    metadata = {**document.metadata, **node.metadata}
    values = (str(value_of(metadata, key) or "") for key in (TITLE, DATE, HEADER_PATH))
    return "\n".join([document.text, document.path, *values])


def _shortened(text: str, sentence: str) -> str:
    """A free context within the room that a sentence leaves; its first line says most."""
    room = max(MAX_CHARS - len(sentence), MAX_CHARS // 4)
    return text if len(text) <= room else f"{text.partition(chr(10))[0][: room - 1].rstrip()}…"
