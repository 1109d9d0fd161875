"""How notes answer an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from llama_index_contextual.errors import Checked

if TYPE_CHECKING:
    from typing_extensions import Self

MOST_HITS: Final = 100_000


def _as_number(value: Any) -> Any:
    if isinstance(value, bool):  # which pydantic takes for 0 or 1
        raise ValueError("input should be a number")  # noqa: TRY004  pydantic knows no other
    return value.item() if hasattr(value, "item") else value  # numpy's


_Number = BeforeValidator(_as_number)
Hits = Annotated[int, _Number, Field(ge=1, le=MOST_HITS)]
Share = Annotated[float, _Number, Field(ge=0, le=1)]
Texts = Annotated[tuple[str, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


class MemorySettings(Checked, BaseModel):
    """How notes answer an agent.

    Attributes:
        enabled: Whether memory answers at all.
        max_results: The most hits of a digest.
        max_tokens: The most tokens of a digest; its first hit is shown whatever it costs.
        include_recency: Whether newer notes win among near equals. Where a message names a date, that counts instead.
        half_life_days: Days after which a dated note's recency factor is a half.
        recency_weight: The share of a score that age may take, 0 to 1. benchmarks/results/memory.md: a weight of 0.1
            costs 0.1 points of recall@4; one of 1, as the source has it, 34.
        ranking: How a digest orders its hits: ``"learned"`` asks the message once and compares by a trained model;
            ``"derived"`` asks it, its keywords and its names, and multiplies by age and by agreement. By
            benchmarks/results/memory_rankings.md the second finds less on every set.
        date_boost: The gain of a note of a day that the message names, as a share of its score.
        min_relevance: How likely a hit has to answer the message, 0 to 1; 0 leaves out none; ``"auto"`` is 0.05, or 0
            with another embedding than the local one.
        candidate_pool: Hits that are ranked before the cut, where ``max_results`` is not more.
        evergreen: Patterns of notes that never age.
        commands: Messages that begin with such a command are never looked up: patterns of the first word.

    Raises:
        SettingError: A value cannot work.
    """

    model_config = ConfigDict(frozen=True)

    enabled: bool = True
    max_results: Hits = 4
    max_tokens: Annotated[int, _Number, Field(ge=1, le=10**9)] = 600
    include_recency: bool = True
    half_life_days: Annotated[float, _Number, Field(gt=0, le=1_000_000)] = 30.0
    recency_weight: Share = 0.1
    ranking: Literal["learned", "derived"] = "learned"
    date_boost: Annotated[float, _Number, Field(ge=0, le=1000)] = 0.5
    min_relevance: Share | Literal["auto"] = "auto"
    candidate_pool: Hits = 50
    evergreen: Texts = ("MEMORY.md",)
    commands: Texts = ("/*",)

    def changed(self, **values: Any) -> Self:
        """The same with other values, which are checked.

        Raises:
            SettingError: A value cannot work.
        """
        explicit = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**explicit, **values}) if values else self
