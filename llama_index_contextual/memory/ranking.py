"""Settings of memory, the hits of a search, and their orders: by score, by age, by the formulas of the source.

``ranking="derived"`` is the ranking of ``memory_context`` as its authors describe it. The queries are the message, its
keywords, and the names in it. A chunk has the best of its scores over these queries. Age halves the score of a note
with a date in its path at each half-life, and a chunk that two or more queries found gains 15 %.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from llama_index.core.schema import NodeWithScore
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from llama_index_contextual.errors import Checked
from llama_index_contextual.keyword import HAS_CJK, split_words
from llama_index_contextual.memory.digest import is_seen
from llama_index_contextual.metadata import path_of
from llama_index_contextual.retrieval import Judgement, NearDuplicates, RecencyPostprocessor
from llama_index_contextual.retrieval.recency import decay
from llama_index_contextual.text import date_from_path

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import date, datetime

    from typing_extensions import Self

    from llama_index_contextual.keyword import Lexicon
    from llama_index_contextual.memory.digest import PoolHit

MAX_QUERY_CHARS: Final = 500
MAX_KEYWORDS: Final = 5
OVERLAP_BOOST: Final = 1.15

_POSSESSIVE: Final = re.compile(r"['’]s?$")
_SENTENCE_ENDS: Final = ".!?\u2026:\u3002\uff01\uff1f"
_OPENINGS: Final = " \t\r\n\"'\u201c\u201d\u2018\u2019([\u00bf\u00a1*_>-"  # before a word that begins a sentence


def _as_number(value: Any) -> Any:
    if isinstance(value, bool):  # which pydantic takes for 0 or 1
        raise ValueError("input should be a number")  # noqa: TRY004  pydantic knows no other
    return value.item() if hasattr(value, "item") else value  # numpy's


_Number = BeforeValidator(_as_number)
_Share = Annotated[float, _Number, Field(ge=0, le=1)]
_Texts = Annotated[tuple[str, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


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
        ranking: How a digest orders its hits: ``"learned"`` searches for the message once and compares by a trained
            model; ``"derived"`` searches for it, its keywords and its names, and multiplies by age and by agreement.
        min_relevance: How likely a hit has to answer the message, 0 to 1; 0 leaves out none; ``"auto"`` is 0.05, or 0
            with another embedding than the local one.
        evergreen: Patterns of notes that never age.

    Raises:
        SettingError: A value cannot work.
    """

    model_config = ConfigDict(frozen=True)

    enabled: bool = True
    max_results: Annotated[int, _Number, Field(ge=1, le=100_000)] = 4
    max_tokens: Annotated[int, _Number, Field(ge=1, le=10**9)] = 600
    include_recency: bool = True
    half_life_days: Annotated[float, _Number, Field(gt=0, le=1_000_000)] = 30.0
    recency_weight: _Share = 0.1
    ranking: Literal["learned", "derived"] = "learned"
    min_relevance: _Share | Literal["auto"] = "auto"
    evergreen: _Texts = ("MEMORY.md",)

    def changed(self, **values: Any) -> Self:
        """The same with other values, which are checked.

        Raises:
            SettingError: A value cannot work.
        """
        explicit = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**explicit, **values}) if values else self


# One of 1 multiplies scores plainly, and little is left of the notes before the last ones.
_MOST_WEIGHT: Final = 0.999


@dataclass(frozen=True, slots=True)
class HitPool:
    """Hits of a search.

    Args:
        hits: Best first.
        judgement: How likely the best hit answers the message.
        notes: What was degraded, ignored, or left out.
        queries: The text, and the sentences of a message.
        left_out: How many more were found, which are not relevant enough.
    """

    hits: tuple[PoolHit, ...] = ()
    judgement: Judgement = field(default_factory=Judgement)
    notes: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    left_out: int = 0


def best_first(hits: Collection[PoolHit]) -> list[PoolHit]:
    """The hits by score, then by id."""
    return sorted(hits, key=lambda one: (-one.score, one.id))


def aged_hits(ranked: Sequence[PoolHit], settings: MemorySettings, now: datetime) -> list[PoolHit]:
    """Hits whose scores are lowered by the age of their notes, best first."""
    recency = RecencyPostprocessor(
        half_life_days=settings.half_life_days,
        weight=min(settings.recency_weight, _MOST_WEIGHT),
        evergreen=settings.evergreen,
        now=now,
    )
    hits = {one.id: one for one in ranked}
    aged = []
    for why in recency.explain([NodeWithScore(node=one.node, score=one.score) for one in ranked]):
        reason = f"recency x{why.multiplier:.2f} ({why.age_days:.0f} days, {why.reason})" if why.multiplier != 1 else ""
        one = hits[why.node_id]
        aged.append(replace(one, score=why.score_after, reasons=(*one.reasons, *filter(None, [reason]))))
    return best_first(aged)


def fresh_hits(ranked: Sequence[PoolHit], most: int, seen: Collection[str] = ()) -> list[PoolHit]:
    """The best hits without near-duplicates and those that were shown before."""
    unseen = [one for one in ranked if not is_seen(one, seen)]
    repeated = NearDuplicates()
    return [one for one in unseen[: 4 * most] if not repeated.has(one.node.get_content())][:most]


# By the formulas of the source


def derive_queries(message: str, lexicon: Lexicon) -> tuple[str, ...]:
    """Queries of a message: its first 500 characters, its keywords, and its names.

    The keywords are the five best words: those that are repeated, then the longest, in the message's order; names and
    stop words are none. A query that repeats an earlier one is left out.

    Args:
        message: A message, without pasted code and digests.
        lexicon: Stop words of its languages.
    """
    original = message.strip()[:MAX_QUERY_CHARS].rstrip()
    names = _names(original, lexicon)
    known = {name.casefold() for name in names}
    counts = Counter(
        word
        for word in (_POSSESSIVE.sub("", word).casefold() for word in split_words(original))
        if not (lexicon.is_stop_word(word) or word in known or (len(word) == 1 and not HAS_CJK.match(word)))
    )
    best = set(sorted(counts, key=lambda word: (-counts[word], -len(word)))[:MAX_KEYWORDS])
    keywords = [word for word in counts if word in best]
    queries = dict[tuple[str, ...], str]()
    for text in (original, " ".join(keywords), " ".join(names)):
        if words := tuple(map(str.casefold, split_words(text))):
            queries.setdefault(words, text)
    return tuple(queries.values())


def _names(text: str, lexicon: Lexicon) -> list[str]:
    """Words that are written as names: capitals only, or a capital inside a sentence."""
    names = dict[str, None]()
    for match in re.finditer(r"[^\W\d_][\w'’-]*", text):
        word = _POSSESSIVE.sub("", match[0])
        is_acronym = len(word) > 1 and word.isupper()
        before = text[: match.start()].rstrip(_OPENINGS)
        between = text[len(before) : match.start()]
        begins_sentence = not before or "\n" in between or (before[-1] in _SENTENCE_ENDS and between[:1].isspace())
        if is_acronym or (word[:1].isupper() and not begins_sentence and not lexicon.is_stop_word(word)):
            names[word] = None
    return list(names)


def derived_score(scores: Sequence[float], age_days: float | None, half_life_days: float = 30.0) -> float:
    """The score of a chunk.

    Args:
        scores: Its score for each query that found it.
        age_days: The age of its note; None for a note without a date in its path, and where age does not count.
        half_life_days: The age at which a score is halved.
    """
    score = max(scores) * (1.0 if age_days is None else decay(max(age_days, 0.0), half_life_days))
    return score * (OVERLAP_BOOST if len(scores) > 1 else 1.0)


def by_formulas(pools: Sequence[HitPool], today: date, settings: MemorySettings) -> list[PoolHit]:
    """Hits of all queries by :func:`derived_score`, best first; only a date in a path has an age."""
    ranked = []
    for one in {hit.id: hit for pool in reversed(pools) for hit in pool.hits}.values():
        scores = [hit.score for pool in pools for hit in pool.hits if hit.id == one.id]
        day = date_from_path(path_of(one.node.metadata)) if settings.include_recency else None
        age = None if day is None else float((today - day).days)
        reasons = [f"found by {len(scores)} queries x{OVERLAP_BOOST}"] if len(scores) > 1 else []
        reasons += [] if age is None else [f"{age:.0f} days old"]
        score = derived_score(scores, age, settings.half_life_days)
        ranked.append(replace(one, score=score, reasons=(*one.reasons, *reasons)))
    return best_first(ranked)
