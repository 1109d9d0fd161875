"""What a run cost, and what one would cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from llama_index_contextual.checks import amount


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of calls, as the server counted them; ``cached`` are those of ``prompt`` that it had read before."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.prompt + other.prompt, self.cached + other.cached, self.completion + other.completion
        )  # fmt: skip


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
        """Price of some tokens; cached ones cost as much as the others unless a price of theirs is known."""
        cached = self.prompt if self.cached is None else self.cached
        fresh = tokens.prompt - tokens.cached
        return (fresh * self.prompt + tokens.cached * cached + tokens.completion * self.completion) / 1e6


@dataclass(slots=True)
class ContextUsage:
    """What a generator did since it was made, or since its ``usage`` was last reset.

    Attributes:
        chunks: Chunks that it was asked about.
        from_cache: Those whose context was in the cache.
        generated: Those whose context the model gave.
        failed: Those that got none from it, by reason.
        calls: Requests that were sent, tries again included.
        retries: Requests that were sent again after an error.
        tokens: As the server counted them; zero where it does not say.
        uncounted: Tokens of the calls where it does not say, by LlamaIndex's tokenizer.
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
        from_cache: Those whose context is in the cache, and costs nothing.
        calls: Requests.
        tokens: By LlamaIndex's tokenizer, which is not the model's own; ``cached`` counts what a server with a prefix
            cache need not read again.
        seconds: At the reading and writing rates that the generator was given, one call after the other.
        price: At the given prices; None without.
    """

    chunks: int
    from_cache: int
    calls: int
    tokens: Tokens
    seconds: float
    price: float | None = None


def read_tokens(response: Any) -> Tokens:
    """Read the token counts of a LlamaIndex chat response: OpenAI's, Anthropic's and Ollama's forms."""
    raw = getattr(response, "raw", None)
    usage = _get(raw, "usage")
    if _get(usage, "input_tokens") is not None:  # Anthropic counts what it read from its cache beside, not among
        cached = _int(usage, "cache_read_input_tokens")
        written = _int(usage, "cache_creation_input_tokens")
        return Tokens(_int(usage, "input_tokens") + cached + written, cached, _int(usage, "output_tokens"))
    cached = _int(_get(usage, "prompt_tokens_details"), "cached_tokens")
    return Tokens(_int(usage, "prompt_tokens"), cached, _int(usage, "completion_tokens"))


def _get(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, dict) else getattr(source, name, None)


def _int(source: Any, name: str) -> int:
    value = _get(source, name)
    return value if isinstance(value, int) else 0
