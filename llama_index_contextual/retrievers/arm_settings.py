"""What a fusion needs to know of its arms: their kind, their names, their weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llama_index.core.indices.vector_store import VectorIndexRetriever
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual.checks import amount, whole
from llama_index_contextual.errors import SettingError
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.base.base_retriever import BaseRetriever

    from llama_index_contextual.retrievers.neighbours import Reach

KEYWORD_WEIGHT: Final = 0.6
RRF_K: Final = 20.0
POOL: Final = 100  # candidates per arm, whatever the top-k, so that a top 5 is a prefix of a top 20


def is_keyword(arm: BaseRetriever) -> bool:
    """Whether an arm matches words: it says so (``arm.kind == "keyword"``), or it is a BM25 retriever."""
    return getattr(arm, "kind", None) == "keyword" or isinstance(arm, BM25Retriever)


def arm_names(arms: Sequence[BaseRetriever]) -> list[str]:
    """A short distinct name an arm: its own ``name``, "bm25", "vector", or its class."""
    plain = [_name(arm) for arm in arms]
    seen: dict[str, int] = {}
    names = []
    for name in plain:
        seen[name] = seen.get(name, 0) + 1
        names.append(name if plain.count(name) == 1 else f"{name} {seen[name]}")
    return names


def _name(arm: Any) -> str:
    own = getattr(arm, "name", None)
    if isinstance(own, str):
        return own
    if isinstance(arm, BM25Retriever):
        return "bm25"
    return "vector" if isinstance(arm, (ContextualVectorRetriever, VectorIndexRetriever)) else type(arm).__name__


def arm_weights(arms: Sequence[BaseRetriever], given: Sequence[float] | None) -> list[float]:
    """Weights that sum to 1; by default keyword arms share :data:`KEYWORD_WEIGHT` and the others the rest.

    Raises:
        SettingError: There is not one weight an arm, one is negative or no finite number, or all are 0.
    """
    if given is not None and (len(given) != len(arms) or not all(map(_is_weight, given)) or sum(given) <= 0):
        raise SettingError(
            f"retriever_weights={list(given)} cannot work. Cure: a finite number for each of {len(arms)} retrievers, "
            "none negative and not all 0."
        )
    if given is None:
        keyword = [is_keyword(arm) for arm in arms]
        shares = {True: KEYWORD_WEIGHT, False: 1 - KEYWORD_WEIGHT}
        given = [shares[kind] / keyword.count(kind) for kind in keyword]
    return [weight / sum(given) for weight in given]


def _is_weight(value: object) -> bool:
    return isinstance(value, int | float | np.floating | np.integer) and bool(0 <= value < math.inf)


def checked_sizes(top_k: object, pool: object) -> tuple[int, int]:
    """How many nodes are returned, and of how many candidates an arm.

    Raises:
        SettingError: They cannot work, by themselves or together.
    """
    returned, proposed = whole("similarity_top_k", top_k), whole("candidate_pool", pool)
    if proposed < returned:
        raise SettingError(
            f"similarity_top_k={top_k}, candidate_pool={pool}. Cure: 1 <= similarity_top_k <= candidate_pool."
        )
    return returned, proposed


def checked_reach(expand: object) -> Reach:
    """How much surrounds a hit; a SettingError where ``expand`` says nothing of that."""
    if expand == "section":
        return "section"
    try:
        return whole("expand", expand, least=0)
    except SettingError:
        raise SettingError(
            f"expand={expand!r} cannot work. Cure: a number of chunks, 0 for none, or 'section'."
        ) from None


def check_timeout(arm_timeout: object) -> None:
    """Raise a SettingError for a time limit that no arm can keep, or that is none."""
    try:
        amount("arm_timeout", 1.0 if arm_timeout is None else arm_timeout)
    except SettingError:
        raise SettingError(
            f"arm_timeout={arm_timeout!r} cannot work. Cure: seconds, above 0, or None to wait."
        ) from None


def check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raise a SettingError for a value that is none of those allowed."""
    if value not in allowed:
        raise SettingError(f"{name}={value!r}. Cure: one of {', '.join(map(repr, allowed))}.")
