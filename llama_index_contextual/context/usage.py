"""What contexts cost: usage, prices, estimates, and the event that LlamaIndex's instrumentation gets."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Final
from uuid import uuid4
from weakref import finalize

from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.events import BaseEvent
from pydantic import TypeAdapter

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
        """Return the price of some tokens; cached ones cost as much as the others where their price is unknown."""
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
    """Return what a provider asked for a model in :data:`PRICES_OF`; None for a model that is not in the table."""
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
        """Return what the counted tokens have cost, in dollars by our table; None where no price is known."""
        return None if self.prices is None else self.prices.of(self.tokens)

    def __add__(self, other: ContextUsage) -> ContextUsage:
        names = [part.name for part in fields(self) if part.name != "prices"]
        sums: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in names}
        return ContextUsage(**sums, prices=self.prices or other.prices)


class UsageOfCopies:
    """What copies of a generator in other processes have used, as those of ``IngestionPipeline.run(num_workers=2)``.

    Each copy keeps its numbers in a file of a temporary folder, which the original makes when it is first pickled and
    which goes with it. A copy on another machine has no such folder, and its numbers stay there.
    """

    def __init__(self, folder: str | None = None, process: int | None = None) -> None:
        self._folder, self._original = folder, os.getpid() if process is None else process
        self._name = uuid4().hex

    def __reduce__(self) -> tuple[Any, ...]:
        if self._folder is None:
            self._folder = mkdtemp(prefix="llama-index-contextual-")
            finalize(self, _remove, self._folder, self._original)
        return _copy_of, (self._folder, self._original)

    def store(self, usage: ContextUsage) -> None:
        """Write down what this copy has used so far; does nothing in the process of the original."""
        if self._folder is not None and self._original != os.getpid() and Path(self._folder).is_dir():
            unfinished, file = Path(self._folder, self._name), Path(self._folder, f"{self._name}.json")
            unfinished.write_bytes(TypeAdapter(ContextUsage).dump_json(usage))
            unfinished.replace(file)

    def total(self) -> ContextUsage:
        """Return what all copies have written down."""
        total = ContextUsage()
        if self._folder is not None and self._original == os.getpid():
            for file in Path(self._folder).glob("*.json"):
                total += TypeAdapter(ContextUsage).validate_json(file.read_bytes())
        return total


def _copy_of(folder: str, original: int) -> UsageOfCopies:
    return UsageOfCopies() if original == os.getpid() else UsageOfCopies(folder, original)


def _remove(folder: str, original: int) -> None:
    if original == os.getpid():  # a forked child has the object, too
        rmtree(folder, ignore_errors=True)


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
    """A model has answered, or has failed to answer (``error`` says how); ``source`` is the generator's name."""

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
        return cls.__name__
