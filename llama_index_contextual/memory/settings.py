"""The settings of memory, which are also settings of the application."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from llama_index_contextual.utils.errors import Checked


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class MemorySettings(Checked, BaseModel):
    """The settings of a ``MemoryContext``.

    Raises:
        SettingError: A value is out of range or unknown.
    """

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    enabled: bool = True
    """Whether memory answers at all."""

    max_results: int = Field(4, ge=1, le=100_000)
    """The largest number of hits in a digest."""

    max_tokens: int = Field(600, ge=1, le=10**9)
    """The length limit of a digest in tokens. The first hit is always shown."""

    include_recency: bool = True
    """Whether to prefer newer notes among hits of nearly equal score, and to put the newest
    statement about a subject first. Messages that name a date ignore this."""

    half_life_days: float = Field(30.0, gt=0, le=1_000_000)
    """The age in days at which the recency factor of a dated note is one half."""

    recency_weight: float = Field(0.1, ge=0, le=1)
    """The largest share of a score that age can remove, 0 to 1."""

    ranking: Literal["learned", "derived"] = "learned"
    """``learned`` compares hits by a trained model, ``derived`` by formulas."""

    min_relevance: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = "auto"
    """The lowest relevance of a hit, 0 to 1. 0 leaves out none. `auto` means 0.05 with the
    embeddings `local` and `e5`, and 0 with any other."""

    evergreen: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = Field(
        ("MEMORY.md",), max_length=2000
    )
    """Patterns of paths that never age."""
