"""Ask a retriever for a pool of hits, with what each query found and the evidence for each hit.

Ours answers everything at once and explains itself. Any other LlamaIndex retriever is asked once a query. It gives no
evidence, so memory does not abstain from its hits.
"""

from __future__ import annotations

import asyncio
import copy
import math
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import MetadataMode
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.dates import epoch_seconds
from llama_index_contextual.errors import SettingError
from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.keyword.query import parse_query
from llama_index_contextual.metadata import DATE_TS, PATH, TAGS
from llama_index_contextual.postprocessor import RecencyPostprocessor
from llama_index_contextual.retrievers import ContextualBM25Retriever, ContextualFusionRetriever

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import BaseNode, NodeWithScore

    from llama_index_contextual.memory.message import Query
    from llama_index_contextual.retrievers import Explanation, Hit

_DERIVED_SHARE: Final = 0.6  # what a derived query counts where a retriever has no keyword arm with a weight of its own
_K: Final = 20.0  # RRF's constant for retrievers that are not ours
_FEW_NODES: Final = 50
_MOST_TERMS: Final = 8  # a long message need not be covered whole


@dataclass(frozen=True, slots=True)
class PoolHit:
    """One hit of the pool."""

    node: BaseNode
    scores: Mapping[str, float]
    """Kind of each query that found it, and the score there."""
    cosine: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    """Matched query terms as the analyzer writes them, and how rare each is."""


@dataclass(frozen=True, slots=True)
class HitPool:
    """What a retriever proposed."""

    hits: tuple[PoolHit, ...] = ()
    best: float = 1.0
    """The score of a hit that would be first in every arm for the original query."""
    query_weight: float | None = None
    """Rarity of all terms of the message's subject together; None where the index does not tell."""
    subject: frozenset[str] = frozenset()
    """These terms."""
    has_vectors: bool = False


def search_over(source: Any, pool: int) -> PlainSearch:
    """Adapt a retriever, or anything with ``as_retriever(similarity_top_k=…)`` such as ``ContextualIndex``."""
    is_index = hasattr(source, "as_retriever") and not hasattr(source, "retrieve")
    retriever = source.as_retriever(similarity_top_k=pool) if is_index else source
    if not hasattr(retriever, "retrieve"):
        raise SettingError(
            f"MemoryContext({source!r}) has nothing to ask. Cure: an index or a retriever, as in "
            f"MemoryContext(ContextualIndex.open({source!r}))"
        )
    if isinstance(retriever, ContextualFusionRetriever):
        return FusionSearch(retriever, pool, source if is_index else None)
    return PlainSearch(retriever)


class PlainSearch:
    """Any LlamaIndex retriever, asked once a query; only ranks count, since its scores may mean anything."""

    def __init__(self, retriever: BaseRetriever) -> None:
        self._retriever = retriever

    @property
    def analyzer(self) -> Analyzer:
        """What cuts texts into terms."""
        return Analyzer()

    @property
    def can_filter(self) -> bool:
        """Whether it can be asked of some notes only; if not, it finds none of them."""
        return False

    def terms(self, text: str) -> Collection[str]:
        """Cut a text into terms as the index does."""
        return self.analyzer.tokens(text)

    def alternatives(self, text: str) -> Sequence[tuple[str, ...]]:
        """Cut a query into terms, each with what it may be in other languages; the first stands for all."""
        return self.analyzer.query_groups(text)

    def rarity(self, word: str) -> float | None:  # noqa: ARG002
        """Give the share of nodes that lack a word, 1 if all do; None where the index does not tell."""
        return None

    def unknown(self, text: str) -> str:  # noqa: ARG002
        """Say which words of a text no node holds; "" where the index knows all, or does not tell."""
        return ""

    def search(self, queries: Sequence[Query], filters: MetadataFilters | None = None) -> HitPool:
        """Ask all queries, of all notes or of those that the filters admit."""
        if filters is not None:
            return HitPool()
        return self._merged(queries, [self._retriever.retrieve(query.text) for query in queries])

    async def asearch(self, queries: Sequence[Query], filters: MetadataFilters | None = None) -> HitPool:
        """Do the same off the event loop."""
        if filters is not None:
            return HitPool()
        return self._merged(queries, [await self._retriever.aretrieve(query.text) for query in queries])

    def _merged(self, queries: Sequence[Query], answers: Sequence[Sequence[NodeWithScore]]) -> HitPool:
        nodes: dict[str, BaseNode] = {}
        scores: dict[str, dict[str, float]] = {}
        for query, answer in zip(queries, answers, strict=True):
            share = 1.0 if query.kind == "original" else _DERIVED_SHARE
            for rank, hit in enumerate(answer, start=1):
                nodes.setdefault(hit.node.node_id, hit.node)
                scores.setdefault(hit.node.node_id, {}).setdefault(query.kind, share / (_K + rank))
        groups = self.alternatives(queries[0].text)
        hits = []
        for node_id, node in nodes.items():
            held = set(self.terms(node.get_content(metadata_mode=MetadataMode.EMBED)))
            terms = {group[0]: 1.0 for group in groups if held.intersection(group)}
            hits.append(PoolHit(node, scores[node_id], None, terms))
        return HitPool(tuple(hits), 1 / (_K + 1))


class FusionSearch(PlainSearch):
    """Our hybrid retriever: one call for all queries; derived ones reach the keyword arms only."""

    def __init__(self, retriever: ContextualFusionRetriever, pool: int, index: Any | None = None) -> None:
        self._index = index
        self._pool = pool
        self._fusion = self._widened(retriever)

    def _widened(self, retriever: ContextualFusionRetriever) -> ContextualFusionRetriever:
        """Return the pool instead of the cut, and leave recency to memory: applied twice it would count twice."""
        view = copy.copy(retriever)
        view.mode = FUSION_MODES.RECIPROCAL_RANK  # its scores can be told apart by query
        view.similarity_top_k = self._pool
        view.candidate_pool = max(self._pool, retriever.candidate_pool)
        view.min_score = 0.0  # memory weighs the evidence of each hit by itself
        view.node_postprocessors = [
            one for one in retriever.node_postprocessors if not isinstance(one, RecencyPostprocessor)
        ]
        return view

    @property
    def _keyword_arm(self) -> Any | None:
        return next((arm for arm in self._fusion.retrievers if hasattr(arm, "document_frequency")), None)

    @property
    def analyzer(self) -> Analyzer:
        """What the keyword arm cuts texts with."""
        found = getattr(self._keyword_arm, "analyzer", None)
        return found if isinstance(found, Analyzer) else Analyzer()

    @property
    def can_filter(self) -> bool:
        """Whether its arms take filters."""
        return self._index is not None or all(hasattr(arm, "with_filters") for arm in self._fusion.retrievers)

    def rarity(self, word: str) -> float | None:
        """Give the share of nodes that lack a word; None in an index so small that shares mean nothing."""
        arm = self._keyword_arm
        if arm is None or len(arm) < _FEW_NODES:
            return None
        return 1 - min(arm.document_frequency(word).values(), default=0) / len(arm)

    def unknown(self, text: str) -> str:
        """Say which words of a text no node holds."""
        arm = self._keyword_arm
        if not isinstance(arm, ContextualBM25Retriever):
            return ""
        return arm.unknown(parse_query(text, arm.analyzer).text)  # without operators, which are no words

    def search(self, queries: Sequence[Query], filters: MetadataFilters | None = None) -> HitPool:
        """Ask all queries at once."""
        retriever = self._restricted(filters)
        return (
            self._explained(retriever.explain(*(query.text for query in queries)), queries) if retriever else HitPool()
        )

    async def asearch(self, queries: Sequence[Query], filters: MetadataFilters | None = None) -> HitPool:
        """Do the same off the event loop."""
        retriever = await asyncio.to_thread(self._restricted, filters)
        if retriever is None:
            return HitPool()
        explanation = await retriever.aexplain(*(query.text for query in queries))
        return await asyncio.to_thread(self._explained, explanation, queries)

    def _restricted(self, filters: MetadataFilters | None) -> ContextualFusionRetriever | None:
        """Restrict to notes that filters admit; None where the retriever's arms cannot."""
        if filters is None:
            return self._fusion
        if self._index is not None:
            return self._widened(self._index.as_retriever(similarity_top_k=self._pool, filters=filters))
        return self._fusion.with_filters(filters) if self.can_filter else None

    def _explained(self, explanation: Explanation, queries: Sequence[Query]) -> HitPool:
        kinds = {query.text: query.kind for query in queries}
        ordered = [kinds.get(text, "original") for text in explanation.queries]
        # A reranker of the user's has the last word on the order, and its scores may mean anything.
        reranked = bool(self._fusion.node_postprocessors)
        hits = tuple(
            PoolHit(
                hit.node.node,
                {"original": 1 / (explanation.k + hit.rank)} if reranked else _scores(hit, explanation, ordered),
                hit.cosine,
                {term.term: term.idf for term in hit.terms},
            )
            for hit in explanation
        )
        best = 1 / (explanation.k + 1) if reranked or explanation.mode == "reciprocal_rerank" else 1.0
        vectors = any(one.cosine is not None for one in hits)
        weights = self._term_weights(queries[0])
        if weights is None:
            return HitPool(hits, best, has_vectors=vectors)
        heaviest = sorted(weights.values(), reverse=True)[:_MOST_TERMS]
        return HitPool(hits, best, math.fsum(heaviest), frozenset(weights), has_vectors=vectors)

    def _term_weights(self, query: Query) -> dict[str, float] | None:
        """Say how rare each term of a query's subject is; None without a keyword arm."""
        arm = self._keyword_arm
        if arm is None:
            return None
        aside = {term for group in self.alternatives(query.asides) for term in group}
        groups = self.alternatives(query.text)
        subject = {group[0] for group in groups if aside.isdisjoint(group)} or {group[0] for group in groups}
        return {
            term: math.log(1 + (len(arm) - df + 0.5) / (df + 0.5))
            for term, df in arm.document_frequency(query.text).items()
            if term in subject
        }


def _scores(hit: Hit, explanation: Explanation, kinds: Sequence[str]) -> dict[str, float]:
    """Score a hit for each query by itself: fusion splits an arm's weight among its queries, which is undone here."""
    scores: dict[str, float] = {}
    if hit.fused is None:  # a postprocessor of the user's brought it
        return {"original": hit.score}
    for credit in hit.fused.credits:
        kind = kinds[credit.query]
        earned = credit.credit
        if explanation.mode == "reciprocal_rerank":
            earned = explanation.arms[credit.arm] / (explanation.k + credit.rank)
        scores[kind] = scores.get(kind, 0.0) + earned
    return scores


# Which notes


def note_filters(*, path: str = "", tag: str = "", since: str = "", until: str = "") -> MetadataFilters | None:
    """Make LlamaIndex's metadata filters from what an agent writes; None where it writes nothing.

    Args:
        path: Part of a note's path, in any case.
        tag: Part of one of its tags, in any case.
        since: Its first day, as ``2026-04-09``. A note without a date is left out.
        until: Its last day.

    Raises:
        SettingError: A day is none, or the first comes after the last.
    """
    first, last = _day("since", since), _day("until", until)
    if first and last and first > last:
        raise SettingError(f"since={since!r} comes after until={until!r}. Cure: exchange them.")
    found: list[MetadataFilter | MetadataFilters] = [
        MetadataFilter(key=key, value=part, operator=FilterOperator.TEXT_MATCH_INSENSITIVE)
        for key, part in ((PATH, path.strip()), (TAGS, tag.strip().removeprefix("#")))
        if part
    ]
    found += days_filter(first, last).filters
    return MetadataFilters(filters=found) if found else None


def days_filter(first: date | None, last: date | None) -> MetadataFilters:
    """Admit dated notes from some days, both included; None leaves that end open."""
    ends = ((first, FilterOperator.GTE), (last, FilterOperator.LTE))
    return MetadataFilters(
        filters=[
            MetadataFilter(key=DATE_TS, value=epoch_seconds(day), operator=how) for day, how in ends if day is not None
        ]
    )


def _day(name: str, text: str) -> date | None:
    try:
        return date.fromisoformat(text.strip()) if text.strip() else None
    except ValueError:
        raise SettingError(f"{name}={text!r} is no date. Cure: write it as 2026-04-09.") from None
