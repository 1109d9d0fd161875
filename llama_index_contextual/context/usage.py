"""What contexts cost: counted while they are made, foreseen before, and told to LlamaIndex's instrumentation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.events import BaseEvent

from llama_index_contextual.checks import amount

dispatcher = get_dispatcher("llama_index_contextual.context")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of calls, as the server counted them; ``cached`` are those of ``prompt`` that it had read before."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        cached = self.cached + other.cached
        return Tokens(self.prompt + other.prompt, cached, self.completion + other.completion)


@dataclass(frozen=True, slots=True)
class Prices:
    """Money per million tokens, in any currency."""

    prompt: float
    completion: float
    cached: float | None = None

    def __post_init__(self) -> None:
        for name in ("prompt", "completion", *(("cached",) if self.cached is not None else ())):
            amount(name, getattr(self, name), zero=True)

    def of(self, tokens: Tokens) -> float:
        """Return the price of some tokens; cached ones cost as much as the others where their price is unknown."""
        cached = self.prompt if self.cached is None else self.cached
        fresh = tokens.prompt - tokens.cached
        return (fresh * self.prompt + tokens.cached * cached + tokens.completion * self.completion) / 1e6


@dataclass(slots=True)
class ContextUsage:
    """What a generator has done since it was made.

    Attributes:
        chunks: Chunks that it was asked about.
        from_cache: Those whose context was in the cache.
        generated: Those whose context the model gave.
        failed: Those that got none from it, by reason.
        calls: Requests that were sent, repeated ones included.
        retries: Requests that were sent again after an error.
        tokens: As the server counted them; zero where it does not count.
        uncounted: Tokens of the calls where it does not count, by LlamaIndex's tokenizer.
        seconds: Time spent waiting for the model, summed over concurrent calls.
    """

    chunks: int = 0
    from_cache: int = 0
    generated: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    retries: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    seconds: float = 0.0
    uncounted: int = 0


@dataclass(frozen=True, slots=True)
class ContextEstimate:
    """What a run would cost at most, if nothing fails.

    Attributes:
        chunks: Chunks without a context of this model and prompt.
        from_cache: Those whose context is in the cache and costs nothing.
        calls: Requests.
        tokens: By LlamaIndex's tokenizer, which is not the model's own; ``cached`` counts what a server with a prefix
            cache reads only once.
        seconds: At a usual speed of reading and writing, one call after the other.
        price: At the given prices; None without them.
    """

    chunks: int
    from_cache: int
    calls: int
    tokens: Tokens
    seconds: float
    price: float | None = None


class ContextRunStartEvent(BaseEvent):
    """Contexts are about to be generated."""

    source: str
    documents: int
    chunks: int
    from_cache: int

    @classmethod
    def class_name(cls) -> str:
        """Return the event's name."""
        return "ContextRunStartEvent"


class ContextCallEvent(BaseEvent):
    """A model has answered, or has failed to answer (``error`` says how)."""

    source: str
    document: str
    chunks: int
    accepted: int
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    error: str = ""

    @classmethod
    def class_name(cls) -> str:
        """Return the event's name."""
        return "ContextCallEvent"


class ContextRunEndEvent(BaseEvent):
    """Contexts have been generated; ``failed`` counts the chunks without, by reason."""

    source: str
    generated: int
    from_cache: int
    failed: dict[str, int]

    @classmethod
    def class_name(cls) -> str:
        """Return the event's name."""
        return "ContextRunEndEvent"
