"""What becomes of a run's chunks and calls: counted, held against its limits, and told to whoever follows it."""

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
    from llama_index_contextual.errors import StorageError


class Books:
    """The books of one run.

    Args:
        source: Name of the contexts, which events say.
        usage: What the generator has used in all its runs, which the limits count.
        progress: Told whenever a chunk is done.
        max_calls: Requests at most; None for any number.
        max_tokens: Tokens at most, likewise.

    Attributes:
        failed: Chunks that got no context, by reason.
        cache_error: Why contexts could not be kept, where that is so.
        may_change: Whether another run asks about some of them again.
    """

    def __init__(
        self,
        source: str,
        usage: ContextUsage,
        progress: Progress | None,
        *,
        max_calls: int | None,
        max_tokens: int | None,
    ) -> None:
        self._source, self._usage, self._progress = source, usage, progress
        self._max_calls, self._max_tokens = max_calls, max_tokens
        self.failed: Counter[str] = Counter()
        self.cache_error: StorageError | None = None
        self.may_change = False
        self._done = self._total = self._cached = 0
        self._reserved = 0  # tokens of the prompts that are being read

    def start(self, *, documents: int, chunks: int, cached: int) -> None:
        """Open the books: so many chunks are asked for, and so many of them are in the cache."""
        self._total, self._cached = chunks, cached
        self._usage.chunks += chunks
        self._usage.from_cache += cached
        dispatcher.event(
            ContextRunStartEvent(source=self._source, documents=documents, chunks=chunks, from_cache=cached)
        )
        self.done(0)

    def end(self) -> None:
        """Close them."""
        self._usage.failed.update(self.failed)
        made = self._total - self._cached - sum(self.failed.values())
        dispatcher.event(
            ContextRunEndEvent(source=self._source, generated=made, from_cache=self._cached, failed=dict(self.failed))
        )

    def done(self, chunks: int) -> None:
        """Say that so many more chunks are done, with a context or without."""
        self._done += chunks
        if self._progress is not None:
            failed = sum(self.failed.values())
            self._progress(ContextProgress(self._done + self._cached, self._total, self._cached, failed))

    def fail(self, reason: str, chunks: int, *, for_now: bool = False) -> None:
        """Give up some chunks; ``for_now`` means that the next run asks about them again."""
        if chunks:
            self.failed[reason] += chunks
            self.may_change |= for_now
            self.done(chunks)

    def check_budget(self, prompt_tokens: int) -> None:
        """Refuse a request that the limits do not cover.

        Raises:
            CallFailedError: Calls or tokens are used up, those of requests under way included.
        """
        used = self._usage
        if self._max_calls is not None and used.calls >= self._max_calls:
            raise CallFailedError(f"max_calls={self._max_calls} reached", fatal=False)
        spent = used.tokens.prompt + used.tokens.completion + used.uncounted + self._reserved
        if self._max_tokens is not None and spent + prompt_tokens > self._max_tokens:
            raise CallFailedError(f"max_tokens={self._max_tokens} reached", fatal=False)

    @contextlib.contextmanager
    def sending(self, prompt_tokens: int) -> Iterator[None]:
        """Count a request, and its prompt against the limit until its server says what it took."""
        self._usage.calls += 1
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
        """Count what an answer took, whatever it is worth; where its server does not say, by our own count."""
        self._usage.tokens += answer.tokens
        if answer.tokens == Tokens():
            self._usage.uncounted += prompt_tokens + count_tokens(answer.text)
        self._usage.seconds += answer.seconds

    def call(
        self, document: SourceDocument, chunks: int, answer: Answer | None = None, *, accepted: int = 0, error: str = ""
    ) -> None:
        """Count and tell of a call: how many contexts its answer gave, or why it was not answered."""
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
