"""The settings of memory, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.checks import amount, whole
from llama_index_contextual.errors import SettingError
from llama_index_contextual.keyword.lexicon import DEFAULT_LANGUAGES, lexicon
from llama_index_contextual.memory.message import DEFAULT_COMMANDS
from llama_index_contextual.retrievers.relevance import AUTO, Least, checked_least

if TYPE_CHECKING:
    from collections.abc import Mapping

# benchmarks/results/memory.md: costs 0.2 points of recall@4; a weight of 1, as the source has it, costs 31
RECENCY_WEIGHT: Final = 0.1
RECENCY_FLOOR: Final = 0.0


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """How memory answers.

    Raises:
        SettingError: A value cannot work; the message names it.
    """

    enabled: bool = True
    """False: every message is answered with one line that says so."""
    max_results: int = 4
    """Most hits of a digest."""
    max_tokens: int = 600
    """Most LLM tokens of a digest, estimated; the first hit is shown whatever it costs."""
    include_recency: bool = True
    """Let newer notes win among near equals. Where a message names a date, that date counts instead."""
    half_life_days: float = 30.0
    recency_weight: float = RECENCY_WEIGHT
    """How much of a score age may take, 0 to 1."""
    recency_floor: float = RECENCY_FLOOR
    """The least that the decay falls to, 0 to 1."""
    date_boost: float = 0.5
    """What a note of a day that the message names gains, as a share of its score."""
    min_relevance: Least = AUTO
    """How likely a hit has to answer the message, 0 to 1; 0 leaves out none. ``"auto"`` is what a search asks for."""
    candidate_pool: int = 50
    """Hits that are ranked before the cut."""
    evergreen: tuple[str, ...] = ("MEMORY.md",)
    """Globs of paths that never age."""
    languages: tuple[str, ...] = DEFAULT_LANGUAGES
    """Names of bundled languages, or paths of YAML files like theirs."""
    commands: tuple[str, ...] = DEFAULT_COMMANDS
    """Slash commands, as globs over the whole first token of a message."""

    @classmethod
    def configured(cls, said: Mapping[str, Any]) -> MemorySettings:
        """Return the settings that a configuration says; who asks there for 120 hits need not know of their pool.

        Raises:
            SettingError: A value cannot work.
        """
        pool = max(said.get("candidate_pool", cls().candidate_pool), said.get("max_results", 0))
        return cls(**{**said, "candidate_pool": pool})

    def __post_init__(self) -> None:
        for name in ("max_results", "max_tokens", "candidate_pool"):
            object.__setattr__(self, name, whole(name, getattr(self, name)))
        for name in ("recency_weight", "recency_floor"):
            amount(name, getattr(self, name), zero=True, most=1)
        checked_least("min_relevance", self.min_relevance)
        amount("date_boost", self.date_boost, zero=True)
        amount("half_life_days", self.half_life_days)
        if self.max_results > self.candidate_pool:
            raise SettingError(
                f"max_results={self.max_results} exceeds candidate_pool={self.candidate_pool}. Cure: a larger pool"
            )
        lexicon(self.languages)  # an unknown language fails here, not at the first message
