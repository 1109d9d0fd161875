"""What a run would cost, foreseen without asking the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_contextual.context.capacity import count_tokens, window_for
from llama_index_contextual.context.question import Question
from llama_index_contextual.context.usage import ContextEstimate, Tokens
from llama_index_contextual.context.window import batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.context.base import DocumentChunks
    from llama_index_contextual.context.settings import RunSettings
    from llama_index_contextual.context.usage import Prices


def estimate(
    settings: RunSettings,
    documents: Sequence[DocumentChunks],
    window: int,
    writing_rate: float,
    prices: Prices | None = None,
) -> ContextEstimate:
    """Plan the calls of a run and add them up.

    Args:
        settings: The run's.
        documents: What it would be about.
        window: Tokens that the model takes.
        writing_rate: Tokens a second that the model writes.
        prices: Per million tokens.
    """
    room, size = window_for(settings, window)
    total, chunks, cached, calls = Tokens(), 0, 0, 0
    for batch in documents:
        found = settings.cache.find(batch.nodes, batch.document)
        missing = [node for node, text in zip(batch.nodes, found, strict=True) if text is None]
        chunks, cached = chunks + len(missing), cached + len(found) - len(missing)
        before = ""
        for group in batches(missing, batch.document, size, room) if missing else ():
            question = Question.about(group, batch.document, batch.nodes, room, settings.excerpt_chars)
            again = count_tokens(question.document) if question.document == before else 0
            total += Tokens(question.tokens, again, len(group) * settings.max_output_tokens)
            before, calls = question.document, calls + 1
    seconds = (total.prompt - total.cached) / settings.reading_rate + total.completion / writing_rate
    return ContextEstimate(chunks, cached, calls, total, seconds, None if prices is None else prices.of(total))
