"""One run of a language model over the chunks of many documents."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from llama_index_contextual.context import models
from llama_index_contextual.context.capacity import Capacity
from llama_index_contextual.context.inquiry import Inquiry, Todo
from llama_index_contextual.context.ledger import Ledger
from llama_index_contextual.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.context.base import DocumentChunks, Progress
    from llama_index_contextual.context.settings import RunSettings
    from llama_index_contextual.context.usage import ContextUsage


class Run:
    """Contexts for the chunks of some documents: from the cache, else from the model.

    Args:
        settings: How.
        usage: Counts what the run does; shared with the generator's earlier runs.
        progress: Told whenever a chunk is done.

    Attributes:
        ledger: What came of it.
    """

    def __init__(self, settings: RunSettings, usage: ContextUsage, progress: Progress | None) -> None:
        self.settings = settings
        self.ledger = Ledger(settings, usage, progress)

    async def __call__(self, documents: Sequence[DocumentChunks]) -> list[list[str | None]]:
        """Give one context per chunk; None where there is none."""
        results = await asyncio.to_thread(self._from_cache, documents)
        todo = [
            Todo(batch.document, batch.nodes, [i for i, text in enumerate(found) if text is None], found)
            for batch, found in zip(documents, results, strict=True)
        ]
        chunks, missing = sum(len(found) for found in results), sum(len(one.missing) for one in todo)
        self.ledger.start(documents=len(documents), chunks=chunks, cached=chunks - missing)
        if missing:
            await self._generate([one for one in todo if one.missing])
        if self.ledger.failed:
            await asyncio.to_thread(self._mark_failed)
        self.ledger.end()
        return results

    def _from_cache(self, documents: Sequence[DocumentChunks]) -> list[list[str | None]]:
        return [self.settings.cache.find(batch.nodes, batch.document) for batch in documents]

    async def _generate(self, todo: Sequence[Todo]) -> None:
        reason = await asyncio.to_thread(self._why_not)
        if reason is not None:
            for one in todo:
                self.ledger.fail(reason, len(one.missing))
            return
        tokens = self.settings.context_window
        if tokens is None:
            tokens = await asyncio.to_thread(models.context_window, self.settings.llm)
        await Inquiry(self.settings, Capacity(self.settings, tokens), self.ledger)(todo)

    def _why_not(self) -> str | None:
        """Give the reason why the model is not to be asked, or None where it may be."""
        if self.settings.fallback_only:
            return "fallback_only"
        return self.settings.life.missing(self.settings.llm, self.settings.probe_timeout)

    def _mark_failed(self) -> None:
        try:
            self.settings.cache.mark_failed()
        except StorageError as error:
            self.ledger.cache_error = error
