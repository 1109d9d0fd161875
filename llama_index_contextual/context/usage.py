"""Costs of contexts: usage, prices, estimates, and an event for LlamaIndex's instrumentation."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.events import BaseEvent

from llama_index_contextual.errors import amount

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
        """The price of some tokens; cached ones cost as much as the others where their price is unknown."""
        cached = self.prompt if self.cached is None else self.cached
        fresh = tokens.prompt - tokens.cached
        return (fresh * self.prompt + tokens.cached * cached + tokens.completion * self.completion) / 1e6


PRICES_OF: Final = "October 2026"
# Dollars per million tokens: prompt, completion, cached prompt. Of the models that suit contexts.
_PRICES: Final = {
    "claude-haiku-4-5": (1.0, 5.0, 0.1), "claude-haiku-5-5": (0.1, 0.5, 0.01), "claude-sonnet-5-5": (2.0, 10.0, 0.1),
    "gpt-4.1": (2.0, 8.0, 0.5), "gpt-4.1-mini": (0.4, 1.6, 0.1), "gpt-4.1-nano": (0.1, 0.4, 0.025),
    "gpt-4o-mini": (0.15, 0.6, 0.075), "gpt-5-mini": (0.25, 2.0, 0.025), "gpt-5-nano": (0.05, 0.4, 0.005),
    "gpt-5.4-mini": (0.75, 4.5, 0.075), "gpt-5.4-nano": (0.2, 1.25, 0.02),
}  # fmt: skip
_DATED_MODEL: Final = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2})$")


def list_prices(model: str) -> Prices | None:
    """A provider's prices of a model in :data:`PRICES_OF`; None for a model that is not in the table."""
    prices = _PRICES.get(_DATED_MODEL.sub("", model))
    return None if prices is None else Prices(*prices)


@dataclass(slots=True)
class ContextUsage:
    """What a generator has done since it was made.

    Attributes:
        chunks: Chunks that it was asked about.
        from_cache: Those whose context was in the cache.
        generated: Those whose context the model gave.
        failed: Those that got none from it, by reason; those that were left alone by the last reason and "3 times".
        calls: Requests that were sent, repeated ones included.
        retries: Requests that were sent again after an error.
        tokens: As the server counted them; zero where it does not count.
        uncounted: Tokens of the calls where it does not count, by LlamaIndex's tokenizer.
        seconds: Time spent waiting for the model, summed over concurrent calls.
        prices: Of the model, where its provider is paid and its prices are known.
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
    prices: Prices | None = None

    @property
    def price(self) -> float | None:
        """Dollars that the counted tokens cost by the table of list prices; None where no price is known."""
        return None if self.prices is None else self.prices.of(self.tokens)


@dataclass(frozen=True, slots=True)
class ContextEstimate:
    """What a run would cost, if nothing fails.

    Attributes:
        chunks: Chunks without a context of this model and prompt.
        from_cache: Those whose context is in the cache and costs nothing.
        calls: Requests.
        tokens: By LlamaIndex's tokenizer, which is not the model's own; ``cached`` counts what a server with a prefix
            cache reads only once. ``completion`` counts contexts of a usual length.
        seconds: At a usual speed of such a server.
        price: In the currency of the prices; None where none is known.
        priced_by: Where the prices are from: ``"given"``, ``"local"`` (a server on this machine costs nothing),
            ``"list of October 2026"`` (dollars), or empty.
        model: The model's name; empty where none is needed.
        local: Whether its server is on this machine.
        calls_again: Requests beside those at most: each chunk that an answer leaves out is asked about alone.
    """

    chunks: int
    from_cache: int = 0
    calls: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    seconds: float = 0.0
    price: float | None = None
    priced_by: str = ""
    model: str = ""
    local: bool = False
    calls_again: int = 0


class ContextCallEvent(BaseEvent):
    """One call of a model: an answer, or ``error``; ``source`` is the generator's name."""

    source: str
    document: str
    chunks: int
    accepted: int = 0
    seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    error: str = ""

    @classmethod
    def class_name(cls) -> str:
        """The event's name."""
        return cls.__name__
