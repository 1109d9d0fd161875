"""What a run has done: counted, kept within its limits, and reported to whoever follows it."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from llama_index_contextual.context.base import ContextProgress
from llama_index_contextual.context.llm.prompt import count_tokens
from llama_index_contextual.context.llm.request import CallFailedError
from llama_index_contextual.context.usage import (
    ContextCallEvent,
    ContextRunEndEvent,
    ContextRunStartEvent,
    Tokens,
    dispatcher,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_index_contextual.context.base import Progress, SourceDocument
    from llama_index_contextual.context.llm.request import Answer
    from llama_index_contextual.context.usage import ContextUsage


class Books:
    """The books of one run: ``source`` is the generator's name, ``usage`` what it has used in all its runs.

    Attributes:
        failed: Chunks that got no context, by reason.
        may_change: Whether another run asks about some of them again.
    """

    def __init__(
        self, source: str, usage: ContextUsage, progress: Progress | None, max_calls: int | None, max_tokens: int | None
    ) -> None:
        self._source, self._usage, self._progress = source, usage, progress
        self._max_calls, self._max_tokens = max_calls, max_tokens
        self.failed: Counter[str] = Counter()
        self.may_change = False
        self._done = self._total = self._cached = 0
        self._reserved = 0  # tokens of the prompts that are being read

    def start(self, *, documents: int, chunks: int, cached: int) -> None:
        """Note that a run begins, and how many of its chunks have a context in the cache."""
        self._total, self._cached = chunks, cached
        self._usage.chunks += chunks
        self._usage.from_cache += cached
        counts = {"documents": documents, "chunks": chunks, "from_cache": cached}
        dispatcher.event(ContextRunStartEvent(source=self._source, **counts))
        self.done(0)

    def end(self) -> None:
        """Note that the run has ended."""
        self._usage.failed.update(self.failed)
        generated, failed = self._total - self._cached - self.failed.total(), dict(self.failed)
        dispatcher.event(
            ContextRunEndEvent(source=self._source, generated=generated, from_cache=self._cached, failed=failed)
        )

    def done(self, chunks: int) -> None:
        """Note that so many more chunks are done, with a context or without."""
        self._done += chunks
        if self._progress is not None:
            done = self._done + self._cached
            self._progress(ContextProgress(done, self._total, self._cached, self.failed.total()))

    def fail(self, reason: str, chunks: int, *, again: bool = True) -> None:
        """Note that chunks got no context; ``again`` means that the next run asks about them."""
        self.failed[reason] += chunks
        self.may_change |= again
        self.done(chunks)

    @contextlib.contextmanager
    def request(self, prompt_tokens: int) -> Iterator[None]:
        """Count a request; its prompt counts against the limit until its server says how long it was.

        Raises:
            CallFailedError: Calls or tokens are used up, those of requests under way included.
        """
        usage = self._usage
        if self._max_calls is not None and usage.calls >= self._max_calls:
            raise CallFailedError(f"max_calls={self._max_calls} reached", fatal=False)
        tokens = usage.tokens.prompt + usage.tokens.completion + usage.uncounted + self._reserved + prompt_tokens
        if self._max_tokens is not None and tokens > self._max_tokens:
            raise CallFailedError(f"max_tokens={self._max_tokens} reached", fatal=False)
        usage.calls += 1
        self._reserved += prompt_tokens
        try:
            yield
        finally:
            self._reserved -= prompt_tokens

    def another_attempt(self) -> bool:
        """Count one more attempt at a request that failed; return False where the limit does not cover it."""
        if self._max_calls is not None and self._usage.calls >= self._max_calls:
            return False
        self._usage.calls += 1
        self._usage.retries += 1
        return True

    def charge(self, answer: Answer, prompt_tokens: int) -> None:
        """Count what an answer took, whatever it is worth; by LlamaIndex's tokenizer where its server does not say."""
        self._usage.tokens += answer.tokens
        if answer.tokens == Tokens():
            self._usage.uncounted += prompt_tokens + count_tokens(answer.text)
        self._usage.seconds += answer.seconds

    def call(
        self, document: SourceDocument, chunks: int, answer: Answer | None = None, *, accepted: int = 0, error: str = ""
    ) -> None:
        """Report a call: how many contexts its answer gave, or why there was no answer."""
        self._usage.generated += accepted
        tokens = Tokens() if answer is None else answer.tokens
        dispatcher.event(
            ContextCallEvent(
                source=self._source,
                document=document.path or document.id,
                chunks=chunks,
                accepted=accepted,
                seconds=0.0 if answer is None else answer.seconds,
                prompt_tokens=tokens.prompt,
                cached_tokens=tokens.cached,
                completion_tokens=tokens.completion,
                error=error,
            )
        )
