"""One run of a language model over documents: what the cache has; prompts; answers, checked and stored; contexts.

An estimate adds up the same prompts and asks nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.utils import iter_batch
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt

from llama_index_contextual.context import base, prompts
from llama_index_contextual.context.cache import Kept
from llama_index_contextual.context.headings import PatternContextGenerator
from llama_index_contextual.utils import errors
from llama_index_contextual.utils import metadata as meta
from llama_index_contextual.utils.errors import ContextualWarning
from llama_index_contextual.utils.tracing import in_thread

if TYPE_CHECKING:
    from llama_index.core.llms import LLM, ChatMessage

    from llama_index_contextual.context.base import Contexts, Progress, SourceDocument

ATTEMPTS: Final = 3  # of a request while its server is busy or away
_USUAL_TOKENS: Final = 40  # of a context with its number
_CHUNK_TOKENS: Final = (
    160 + base.OUTPUT_TOKENS
)  # an excerpt in any alphabet, marks around it, its context
_INSTRUCTION_TOKENS: Final = 300
_SAFETY: Final = 0.9  # our tokenizer is not the model's
_TAKE_MAX_TOKENS: Final = (
    "openai",
    "anthropic",
    "openailike",
    "mistral",
    "groq",
    "together",
    "openrouter",
)
_MARK_CACHE: Final = (
    "anthropic",
    "bedrock_converse",
)  # cache only what a cache point in the prompt marks
_FAILURES: Final = 3  # calls in a row, after which no other is sent for a while
_PAUSE: Final = 30.0  # seconds of that while


class _Document(NamedTuple):
    """A document, and the records of its chunks."""

    batch: base.DocumentChunks
    records: list[Kept]

    def missing(self) -> list[int]:
        """The indexes of the chunks that the model is to be asked about."""
        return [at for at, one in enumerate(self.records) if one == Kept()]


class Run:
    """One run of an ``LLMContextGenerator``, whose file imports this one, over some documents."""

    def __init__(
        self, generator: Any, batches: Sequence[base.DocumentChunks], progress: Progress | None
    ) -> None:
        self._generator, self._progress = generator, progress
        self._failed: Counter[str] = Counter()
        self._documents = [
            _Document(one, generator.cache.find(one.nodes, one.document)) for one in batches
        ]
        self._records = [record for document in self._documents for record in document.records]
        self._done = self._cached = sum(record.text is not None for record in self._records)

    async def ask(self) -> None:
        """Ask the model about the chunks that have no context, and store what it gives."""
        self._note(0)
        for record in self._records:
            if record.reason:
                self._note(1, f"{record.reason}, as before")
        to_ask = [
            (document, missing) for document in self._documents if (missing := document.missing())
        ]
        if to_ask:
            await asyncio.to_thread(self._prepare)
            self._slots, opened = asyncio.Semaphore(self._workers), asyncio.Semaphore(self._workers)
            await asyncio.gather(*(self._ask_about(*one, opened) for one in to_ask))

    def contexts(self) -> Contexts:
        """The contexts of all chunks, after one warning where chunks fell back."""
        results = [self._composed(document) for document in self._documents]
        fallen = sum(
            record.text is None for document in self._documents for record in document.records
        )
        if fallen and self._generator.fallback:
            have, why = "has" if fallen == 1 else "have", base.in_words(self._failed)
            _warn(
                f"{fallen} of {len(self._records)} chunks {have} no context from {self._generator.name} but fell back, "
                f"because: {why}. Where it did not answer, the next run asks again, unless another process reads "
                "the chunks from a pipeline's cache."
            )
        return results

    def _composed(self, document: _Document) -> list[base.ChunkContext | None]:
        """The free contexts, with the model's sentences; after the cache, so that they can change for nothing."""
        name, version, contexts = (
            self._generator.name,
            self._generator.version,
            list[base.ChunkContext | None](),
        )
        free = PatternContextGenerator().generate(document.batch.nodes, document.batch.document)
        for record, context in zip(document.records, free, strict=True):
            if record.text is not None and context is not None:
                text = "\n".join(filter(None, [context.text, record.text]))
                contexts.append(base.ChunkContext(text, name, context.lexical, version))
            else:
                contexts.append(context if self._generator.fallback else None)
        return contexts

    def estimate(self) -> base.ContextEstimate:
        """The costs of the run: its prompts are made and added up."""
        self._prepare()
        total, calls, chunks = base.Tokens(), 0, 0
        for document in self._documents:
            before, missing = "", document.missing()
            chunks += len(missing)
            for group in iter_batch(missing, self._size):
                prompt = self._prompt(document, group)
                cached = prompts.count_tokens(prompt.document) if prompt.document == before else 0
                total += base.Tokens(prompt.tokens, cached, len(group) * _USUAL_TOKENS)
                before, calls = prompt.document, calls + 1
        return base.ContextEstimate(
            chunks, self._cached, calls, total, _is_local(self._generator.llm)
        )

    def _prepare(self) -> None:
        """Divide the model's window; this may ask its server, so never call it on an event loop."""
        llm = self._generator.llm
        self._workers = self._generator.num_workers or (1 if _is_local(llm) else 4)
        window = context_window(llm)
        self._size = max(1, min(self._generator.batch_size, window // 2 // _CHUNK_TOKENS))
        room = int((window - self._size * _CHUNK_TOKENS - _INSTRUCTION_TOKENS) * _SAFETY)
        self._window = max(1, room, window // 8)

    def _prompt(self, document: _Document, group: list[int]) -> prompts.FilledPrompt:
        nodes, source, generator = document.batch.nodes, document.batch.document, self._generator
        prompt = prompts.prompt_for(source, generator.prompts)
        return prompts.fill_prompt(
            prompt, [nodes[index] for index in group], source, nodes, self._window
        )

    async def _ask_about(
        self, document: _Document, missing: list[int], opened: asyncio.Semaphore
    ) -> None:
        """Ask about one document's chunks: a first call alone, which the server's cache keeps for the others."""

        async def in_turn(group: list[int]) -> None:
            async with (
                self._slots
            ):  # with whatever must be asked again, while the server still has the document
                await self._ask_group(document, group)

        async with opened:
            first, *others = iter_batch(missing, self._size)
            await in_turn(first)
            await asyncio.gather(*map(in_turn, others))

    async def _ask_group(self, document: _Document, group: list[int]) -> None:
        """Ask about some chunks in one call."""
        try:
            answer = await self._answer(document, group)
        except errors.ContextError as error:
            self._generator.failed_run = uuid4().hex
            self._note(len(group), str(error))
        else:
            await self._accept(document, group, answer)

    async def _answer(self, document: _Document, group: list[int]) -> str:
        """The answer to one prompt, which is sent again after an error that may pass.

        Raises:
            ContextError: There is none.
        """
        generator, llm, prompt = self._generator, self._generator.llm, self._prompt(document, group)
        kind = llm.class_name().casefold()
        messages = prompt.messages(cache_point=kind.startswith(_MARK_CACHE))
        limit = (
            {"max_tokens": base.OUTPUT_TOKENS * len(group)}
            if kind.startswith(_TAKE_MAX_TOKENS)
            else {}
        )
        attempts = (
            1 if getattr(llm, "max_retries", 0) else ATTEMPTS
        )  # its client tries again by itself
        stop, retry = stop_after_attempt(attempts), retry_if_exception(errors.may_pass)
        retrying = AsyncRetrying(stop=stop, wait=errors.pause, retry=retry, reraise=True)
        try:
            response: Any = await retrying(self._call, messages, limit)
        except errors.ContextError:
            raise
        except Exception as error:  # each integration has errors of its own
            generator.failures += errors.status_of(error) not in errors.ABOUT_PROMPT
            generator.paused_until = (
                time.monotonic() + _PAUSE if generator.failures >= _FAILURES else 0.0
            )
            raise errors.ContextError(errors.reason_of(error)) from error
        generator.failures = 0
        answer, spent = response.message.content or "", _tokens_of(response)
        spent = (
            spent if spent.prompt else base.Tokens(prompt.tokens, 0, prompts.count_tokens(answer))
        )
        generator.usage.tokens += spent
        return answer

    async def _call(self, messages: Sequence[ChatMessage], limit: dict[str, int]) -> Any:
        """Send one request.

        Raises:
            ContextError: It would exceed ``max_calls``, or the server has just failed several times in a row.
        """
        generator, usage, llm = self._generator, self._generator.usage, self._generator.llm
        if generator.max_calls is not None and usage.calls >= generator.max_calls:
            raise errors.ContextError(f"max_calls={generator.max_calls} reached")
        if not generator.available():
            raise errors.ContextError("server does not answer")
        usage.calls += 1
        try:
            return await asyncio.wrap_future(in_thread(partial(llm.chat, messages, **limit)))
        except NotImplementedError:  # it has async methods alone
            return await llm.achat(messages, **limit)

    async def _accept(self, document: _Document, group: list[int], answer: str) -> None:
        """Take the contexts out of an answer and store them; chunks without one are asked about again, one by one.

        One that has none then is left alone until its text, the model or the prompt changes.
        """
        source, nodes, again, kept = (
            document.batch.document,
            document.batch.nodes,
            list[int](),
            list[int](),
        )
        answers, prompt = (
            prompts.split_answers(answer, len(group)),
            prompts.prompt_for(source, self._generator.prompts),
        )
        for number, index in enumerate(group, 1):
            context, text = (
                answers.get(number, ""),
                nodes[index].get_content(metadata_mode=MetadataMode.NONE),
            )
            reason = prompts.refusal(context, text, _known(nodes[index], source), prompt)
            if reason and len(group) > 1:
                again.append(index)
                continue
            document.records[index] = Kept(None, reason) if reason else Kept(context)
            if context:
                kept.append(index)
            else:  # no answer at all, as where thoughts took all tokens
                self._generator.failed_run = uuid4().hex
            if reason:
                self._note(1, reason)
        records = [(nodes[index], document.records[index]) for index in kept]
        try:
            await asyncio.to_thread(self._generator.cache.keep, records, source)
        except errors.StorageError as error:  # a full disk: what is paid for is used all the same
            _warn(f"The generated contexts are used, and could not be kept everywhere: {error}")
        good = sum(record.text is not None for _, record in records)
        self._generator.usage.generated += good
        self._note(good)
        for index in again:
            await self._ask_group(document, [index])

    def _note(self, chunks: int, reason: str = "") -> None:
        """Count chunks that are done; with a reason, those that got no context."""
        if reason:
            self._generator.usage.failed[reason] += chunks
            self._failed[reason] += chunks
        self._done += chunks
        if self._progress is not None:
            self._progress(base.ContextProgress(self._done, len(self._records)))


def _warn(message: str) -> None:
    warnings.warn(message, ContextualWarning, stacklevel=4)


def _known(node: BaseNode, document: SourceDocument) -> str:
    """What the model knew besides the chunk: the document's text, path, title, day and the chunk's sections."""
    metadata = {**document.metadata, **node.metadata}
    values = (
        str(meta.value_of(metadata, key) or "") for key in (meta.TITLE, meta.DATE, meta.HEADER_PATH)
    )
    return "\n".join([document.text, document.path, *values])


def context_window(llm: LLM) -> int:
    """The tokens that a model takes; this may ask its server, so never call it on an event loop."""
    with contextlib.suppress(
        Exception
    ):  # any integration's own error, when its server does not answer
        if (window := int(llm.metadata.context_window)) > 0:
            return window
    return base.DEFAULT_WINDOW


def _is_local(llm: LLM) -> bool:
    """Whether a model's server is this machine, which reads one prompt at a time."""
    url = getattr(llm, "api_base", None) or getattr(llm, "base_url", None)
    return urlsplit(str(url)).hostname in ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104


def _tokens_of(response: Any) -> base.Tokens:
    """The token counts of a LlamaIndex chat response, in OpenAI's, Anthropic's and Ollama's forms."""

    def get(source: Any, *names: str) -> Any:
        values = (
            source.get(name) if isinstance(source, dict) else getattr(source, name, None)
            for name in names
        )
        return next((value for value in values if value is not None), None)

    usage = get(getattr(response, "raw", None), "usage")
    cached = get(get(usage, "prompt_tokens_details"), "cached_tokens") or get(
        usage, "cache_read_input_tokens"
    )
    counts = (
        get(usage, "prompt_tokens", "input_tokens"),
        cached,
        get(usage, "completion_tokens", "output_tokens"),
    )
    return base.Tokens(*(count if isinstance(count, int) else 0 for count in counts))
