"""What has become of a run's chunks and calls: counted, held against its budgets, and told to whoever follows it."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from llama_index_contextual.context.base import ContextProgress
from llama_index_contextual.context.calls import CallFailedError
from llama_index_contextual.context.capacity import count_tokens
from llama_index_contextual.context.events import (
    ContextCallEvent,
    ContextRunEndEvent,
    ContextRunStartEvent,
    dispatcher,
)
from llama_index_contextual.context.usage import Tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_index_contextual.context.base import Progress, SourceDocument
    from llama_index_contextual.context.calls import Answer
    from llama_index_contextual.context.settings import RunSettings
    from llama_index_contextual.context.usage import ContextUsage
    from llama_index_contextual.errors import StorageError


class Ledger:
    """The books of one run.

    Args:
        settings: Name of the model, and budgets.
        usage: Counts what the run does; shared with the generator's earlier runs, and so are the budgets.
        progress: Told whenever a chunk is done.

    Attributes:
        failed: Chunks that got no context, by reason.
        cache_error: Why contexts could not be kept, where that is so.
    """

    def __init__(self, settings: RunSettings, usage: ContextUsage, progress: Progress | None) -> None:
        self._settings, self._usage, self._progress = settings, usage, progress
        self.failed: Counter[str] = Counter()
        self.cache_error: StorageError | None = None
        self._done = self._total = self._cached = 0
        self._reserved = 0  # tokens of the prompts that are being read

    def start(self, *, documents: int, chunks: int, cached: int) -> None:
        """Open the books: so many chunks are asked for, and so many of them are in the cache."""
        self._total, self._cached = chunks, cached
        self._usage.chunks += chunks
        self._usage.from_cache += cached
        dispatcher.event(
            ContextRunStartEvent(source=self._settings.source, documents=documents, chunks=chunks, from_cache=cached)
        )
        self.done(0)

    def end(self) -> None:
        """Close them."""
        self._usage.failed.update(self.failed)
        made = self._total - self._cached - sum(self.failed.values())
        dispatcher.event(
            ContextRunEndEvent(
                source=self._settings.source, generated=made, from_cache=self._cached, failed=dict(self.failed)
            )
        )

    def done(self, chunks: int) -> None:
        """Say that so many more chunks are done, with a context or without."""
        self._done += chunks
        if self._progress is not None:
            failed = sum(self.failed.values())
            self._progress(ContextProgress(self._done + self._cached, self._total, self._cached, failed))

    def fail(self, reason: str, chunks: int) -> None:
        """Give up some chunks."""
        if chunks:
            self.failed[reason] += chunks
            self.done(chunks)

    def check_budget(self, prompt_tokens: int) -> None:
        """Refuse a request that the budgets do not cover.

        Raises:
            CallFailedError: Calls or tokens are used up, those of requests under way included.
        """
        settings, used = self._settings, self._usage
        if settings.max_calls is not None and used.calls >= settings.max_calls:
            raise CallFailedError(f"max_calls={settings.max_calls} reached", fatal=False)
        spent = used.tokens.prompt + used.tokens.completion + used.uncounted + self._reserved
        if settings.max_tokens is not None and spent + prompt_tokens > settings.max_tokens:
            raise CallFailedError(f"max_tokens={settings.max_tokens} reached", fatal=False)

    @contextlib.contextmanager
    def sending(self, prompt_tokens: int) -> Iterator[None]:
        """Count a request, and its prompt against the budget until its server says what it took."""
        self._usage.calls += 1
        self._reserved += prompt_tokens
        try:
            yield
        finally:
            self._reserved -= prompt_tokens

    def another_attempt(self) -> bool:
        """Count one more attempt at a request that failed; False where the budget does not cover it."""
        if self._settings.max_calls is not None and self._usage.calls >= self._settings.max_calls:
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

    def call_failed(self, document: SourceDocument, chunks: int, error: CallFailedError) -> None:
        """Tell of a call that was not answered."""
        self._tell(document, chunks, None, error=error.reason)

    def call_answered(self, document: SourceDocument, chunks: int, answer: Answer, *, accepted: int) -> None:
        """Count and tell a call that was answered, and how many contexts it gave."""
        self._usage.generated += accepted
        self._tell(document, chunks, answer, accepted=accepted)

    def _tell(
        self, document: SourceDocument, chunks: int, answer: Answer | None, *, accepted: int = 0, error: str = ""
    ) -> None:
        tokens = Tokens() if answer is None else answer.tokens
        dispatcher.event(
            ContextCallEvent(
                source=self._settings.source,
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
