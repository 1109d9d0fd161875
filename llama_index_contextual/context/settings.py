"""What a run of a language model over the chunks of documents needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_index_contextual.context import models

if TYPE_CHECKING:
    from llama_index.core.llms import LLM
    from llama_index.core.prompts import BasePromptTemplate

    from llama_index_contextual.context.cache import ContextCache
    from llama_index_contextual.context.calls import CircuitBreaker, Patience
    from llama_index_contextual.context.capacity import Learned


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

    def timeout(self, chunks: int, prompt_tokens: int) -> float:
        """Seconds that a call about so many chunks may take."""
        alone = self.chunk_timeout * chunks + prompt_tokens / self.reading_rate
        return alone * self.num_workers if models.is_local(self.llm) else alone  # it answers one after the other
