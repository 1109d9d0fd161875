"""Ask a retriever for a pool of hits, each with its score, the queries that found it, and the reasons.

Any LlamaIndex retriever will do: what is no fusion of ours becomes the one arm of such a fusion. Only ours know how
likely an index answers a message at all, so memory does not abstain from the hits of others.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import MetadataMode
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.dates import epoch_seconds
from llama_index_contextual.errors import SettingError
from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.keyword.dates_in_text import find_dates
from llama_index_contextual.keyword.lexicon import lexicon
from llama_index_contextual.keyword.query import parse_query
from llama_index_contextual.metadata import DATE_TS, PATH, TAGS
from llama_index_contextual.postprocessor import RecencyPostprocessor
from llama_index_contextual.retrievers import ContextualBM25Retriever, ContextualFusionRetriever
from llama_index_contextual.retrievers.hybrid import search_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.memory.message import Query
    from llama_index_contextual.retrievers import Hit
    from llama_index_contextual.retrievers.pipeline import Search
    from llama_index_contextual.retrievers.relevance import Least

_K: Final = 20.0  # RRF's constant, for hits of which only the rank is known
_FEW_NODES: Final = 50


@dataclass(frozen=True, slots=True)
class PoolHit:
    """One hit of the pool."""

    node: BaseNode
    score: float
    """How likely it answers the message, 0 to 1; where that is not known, a share of the best hit's score."""
    queries: tuple[str, ...] = ("original",)
    """Kinds of the queries that found it."""
    agreement: float = 1.0
    """What its odds were multiplied by because at least two queries found it."""
    cosine: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    """Matched query terms as the analyzer writes them, and how rare each is."""


@dataclass(frozen=True, slots=True)
class HitPool:
    """What a retriever proposed."""

    hits: tuple[PoolHit, ...] = ()
    relevance: float | None = None
    """How likely the best hit answers the message, 0 to 1; None where the retriever does not tell."""
    measured: bool = False
    """Whether it was measured what relevance means for this retriever."""
    notes: tuple[str, ...] = ()
    """What was degraded, ignored, corrected or left out."""
    unknown: str = ""
    """A line on the words of the message that no note holds; "" where all are known."""


class PoolSearch:
    """Asks a retriever for pools: all queries in one call, of which derived ones reach keyword arms only.

    Args:
        source: A retriever, or anything with ``as_retriever(similarity_top_k=…)`` such as ``ContextualIndex``.
        pool: Most hits.
    """

    def __init__(self, source: Any, pool: int) -> None:
        is_index = hasattr(source, "as_retriever") and not hasattr(source, "retrieve")
        retriever = source.as_retriever(similarity_top_k=pool) if is_index else source
        if not hasattr(retriever, "retrieve"):
            raise SettingError(
                f"MemoryContext({source!r}) has nothing to ask. Cure: an index or a retriever, as in "
                f"MemoryContext(ContextualIndex.open({source!r}))"
            )
        if not isinstance(retriever, ContextualFusionRetriever):
            retriever = ContextualFusionRetriever([retriever], on_arm_failure="raise")
        self._index = source if is_index else None
        self._pool = pool
        self._fusion = retriever

    @property
    def _keyword_arm(self) -> Any | None:
        return next((arm for arm in self._fusion.retrievers if hasattr(arm, "document_frequency")), None)

    @property
    def analyzer(self) -> Analyzer:
        """What cuts texts into terms: the keyword arm's."""
        found = getattr(self._keyword_arm, "analyzer", None)
        return found if isinstance(found, Analyzer) else Analyzer()

    @property
    def can_filter(self) -> bool:
        """Whether it can be asked of some notes only; if not, it finds none of them."""
        return self._index is not None or all(hasattr(arm, "with_filters") for arm in self._fusion.retrievers)

    def terms(self, text: str) -> Collection[str]:
        """Cut a text into terms as the index does."""
        return self.analyzer.tokens(text)

    def alternatives(self, text: str) -> Sequence[tuple[str, ...]]:
        """Cut a query into terms, each with what it may be in other languages; the first stands for all."""
        return self.analyzer.query_groups(text)

    def rarity(self, word: str) -> float | None:
        """Give the share of nodes that lack a word; None in an index so small that shares mean nothing."""
        arm = self._keyword_arm
        if arm is None or len(arm) < _FEW_NODES:
            return None
        return 1 - min(arm.document_frequency(word).values(), default=0) / len(arm)

    def plain(self, text: str) -> str:
        """Return a text without the operators that the keyword arm reads, which are none of its words."""
        arm = self._keyword_arm
        return parse_query(text, arm.analyzer).text if isinstance(arm, ContextualBM25Retriever) else text

    def search(
        self,
        queries: Sequence[Query],
        filters: MetadataFilters | None = None,
        *,
        subject: str = "",
        today: date | None = None,
        least: Least = 0.0,
    ) -> HitPool:
        """Ask all queries at once, of all notes or of those that the filters admit.

        Args:
            queries: The original first.
            filters: Notes that may be found.
            subject: What a relevant note holds of the original; default all of it.
            today: From which "last week" counts; default the day it is.
            least: The relevance that a hit needs. A digest leaves that to its ranking, which knows of named days.
        """
        search = self._search(queries, filters, subject, today, least)
        return HitPool() if search is None else self._hits(search.run(), queries)

    async def asearch(
        self,
        queries: Sequence[Query],
        filters: MetadataFilters | None = None,
        *,
        subject: str = "",
        today: date | None = None,
        least: Least = 0.0,
    ) -> HitPool:
        """Do the same off the event loop."""
        search = await asyncio.to_thread(self._search, queries, filters, subject, today, least)
        return HitPool() if search is None else await asyncio.to_thread(self._hits, await search.arun(), queries)

    def _search(
        self, queries: Sequence[Query], filters: MetadataFilters | None, subject: str, today: date | None, least: Least
    ) -> Search | None:
        """Return a search for the pool among what filters admit; None where the arms cannot do that."""
        if filters is None:
            fusion = self._fusion
        elif self._index is not None:
            fusion = self._index.as_retriever(similarity_top_k=self._pool, filters=filters)
        elif self.can_filter:
            fusion = self._fusion.with_filters(filters)
        else:
            return None
        # Recency is left to memory: applied twice it would count twice.
        others = [one for one in fusion.node_postprocessors if not isinstance(one, RecencyPostprocessor)]
        return search_of(
            fusion,
            [query.text for query in queries],
            explained=True,
            similarity_top_k=self._pool,
            candidate_pool=max(self._pool, fusion.candidate_pool),
            node_postprocessors=others,
            subject=subject or None,
            today=today,
            min_score=least,
        )

    def _hits(self, search: Search, queries: Sequence[Query]) -> HitPool:
        explanation = search.explanation()
        kinds = {query.text: query.kind for query in queries}
        ordered = [kinds.get(text, "original") for text in explanation.queries]
        groups = None if self._keyword_arm is not None else self.alternatives(queries[0].text)
        # A reranker of the user's has the last word on the order, and its scores may mean anything.
        reranked = bool(search.node_postprocessors)
        likely = 1.0 if explanation.relevance is None else explanation.relevance
        hits = tuple(
            PoolHit(
                hit.node.node,
                likely * (_by_place(hit) if reranked or hit.fused is None else max(hit.fused.score, 0.0)),
                _found_by(hit, ordered),
                1.0 if hit.fused is None or reranked else hit.fused.boost,
                hit.cosine,
                {term.term: term.idf for term in hit.terms} if groups is None else self._held(hit.node.node, groups),
            )
            for hit in explanation
        )
        return HitPool(hits, explanation.relevance, explanation.measured, explanation.warnings, explanation.unknown)

    def _held(self, node: BaseNode, groups: Sequence[tuple[str, ...]]) -> dict[str, float]:
        """Say which query terms a node holds, all equally rare, where no keyword arm tells."""
        held = set(self.terms(node.get_content(metadata_mode=MetadataMode.EMBED)))
        return {group[0]: 1.0 for group in groups if held.intersection(group)}


def _by_place(hit: Hit) -> float:
    """Score a hit by its rank alone."""
    return (_K + 1) / (_K + hit.rank)


def _found_by(hit: Hit, kinds: Sequence[str]) -> tuple[str, ...]:
    found = {one.query for one in hit.fused.credits if one.rank} if hit.fused else set()
    return tuple(kinds[query] for query in sorted(found)) or ("original",)


# Which notes


def note_filters(*, path: str = "", tag: str = "", since: str = "", until: str = "") -> MetadataFilters | None:
    """Make LlamaIndex's metadata filters from what an agent writes; None where it writes nothing.

    Args:
        path: Part of a note's path, in any case.
        tag: Part of one of its tags, in any case.
        since: Its first day, as ``2026-04-09`` or in words (``last week``). A note without a date is left out.
        until: Its last day.

    Raises:
        SettingError: A day is none, or the first comes after the last.
    """
    first, last = _day("since", since), _day("until", until)
    if first and last and first > last:
        raise SettingError("are in the wrong order. Cure: exchange them.", since=since, until=until)
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
    """Return the day that a text names: of ``last week`` its first for ``since``, its last for ``until``."""
    if not text.strip():
        return None
    with contextlib.suppress(ValueError):
        return date.fromisoformat(text.strip())
    [named] = find_dates(text, date.today(), lexicon())[:1] or [None]  # noqa: DTZ011  the user's own day
    if named is None:
        raise SettingError("is no date. Cure: write it as 2026-04-09, or in words: last week, in May.", **{name: text})
    return named.first if name == "since" else named.last
