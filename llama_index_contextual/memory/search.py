"""Ask a retriever for a pool of hits, each with its score and the reasons.

Any LlamaIndex retriever will do: what is no fusion of ours becomes the one arm of such a fusion. Only ours know how
likely an index answers a message at all, so memory does not abstain from the hits of others.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import MetadataMode, QueryBundle
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.errors import SettingError
from llama_index_contextual.keyword import (
    Analyzer,
    find_dates,
    having,
    item_filter,
    lexicon_of,
    parse_query,
    tag_filter,
)
from llama_index_contextual.metadata import COLLECTION, DATE_TS, PATH, TAGS, typed
from llama_index_contextual.retrieval import (
    Answer,
    ContextualFusionRetriever,
    Judgement,
    Mode,
    Question,
    RecencyPostprocessor,
    answer_flow,
    explanation_of,
    keyword_of,
    run,
)
from llama_index_contextual.text import counted, epoch_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.memory.settings import MemorySettings
    from llama_index_contextual.retrieval import Hit, MinScore

_CONDITION: Final = re.compile(r"([^=<>!~]{1,100})(!=|<=|>=|==|=|<|>|~)(?![=<>])([^\n]{0,300})")
_OPERATORS: Final = {
    "=": FilterOperator.EQ,
    "==": FilterOperator.EQ,
    "!=": FilterOperator.NE,
    "<": FilterOperator.LT,
    "<=": FilterOperator.LTE,
    ">": FilterOperator.GT,
    ">=": FilterOperator.GTE,
    "~": FilterOperator.TEXT_MATCH_INSENSITIVE,
}
_K: Final = 20.0  # RRF's constant, for hits of which only the rank is known


@dataclass(frozen=True, slots=True)
class PoolHit:
    """One hit; ranking puts another with a new score in its place."""

    node: BaseNode
    score: float
    """How likely it answers the message; where that is not known, a share of the best hit's score. Ranking may raise it
    above 1."""
    cosine: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    """Matched query terms as the analyzer writes them, and how rare each is."""
    reasons: tuple[str, ...] = ()
    """What spoke for its session, where the text was taken for a message, and what changed its score."""
    on_named_day: bool = False
    """Whether its note is of a day that the message names."""

    @property
    def id(self) -> str:
        """The node's id."""
        return self.node.node_id


@dataclass(frozen=True, slots=True)
class HitPool:
    """What a retriever proposed."""

    hits: tuple[PoolHit, ...] = ()
    judgement: Judgement = field(default_factory=Judgement)
    """How likely the best hit answers the message."""
    notes: tuple[str, ...] = ()
    """What was degraded, ignored, or left out."""
    queries: tuple[str, ...] = ()
    """The queries: the text, and the sentences of a message."""
    aged: bool = False
    """Whether the ages of sessions count in the scores."""
    left_out: int = 0
    """How many more were found, which are not relevant enough."""


class PoolSearch:
    """Asks a retriever for pools.

    Args:
        source: A retriever, or anything with ``as_retriever(similarity_top_k=…)`` such as ``ContextualIndex``.
        settings: How many hits, and how the sessions of messages age.
    """

    def __init__(self, source: Any, settings: MemorySettings) -> None:
        pool = max(settings.candidate_pool, settings.max_results)
        is_index = hasattr(source, "as_retriever") and not hasattr(source, "retrieve")
        retriever = source.as_retriever(similarity_top_k=pool) if is_index else source
        if not hasattr(retriever, "retrieve"):
            raise SettingError(
                f"MemoryContext({source!r}) has nothing to ask. Cure: an index or a retriever, as in "
                f"MemoryContext(ContextualIndex.open({source!r}))"
            )
        if not isinstance(retriever, ContextualFusionRetriever):
            retriever = ContextualFusionRetriever([retriever])
        self.pool = pool
        self._fusion, self._keywords = retriever, keyword_of(retriever.retrievers)
        self._aging: dict[str, Any] = {
            "half_life_days": settings.half_life_days,
            "ageless": settings.evergreen if settings.include_recency else ("*",),
        }

    @property
    def analyzer(self) -> Analyzer:
        """What cuts texts into terms: the keyword arm's."""
        return Analyzer() if self._keywords is None else self._keywords.analyzer

    @property
    def can_filter(self) -> bool:
        """Whether it can search some notes only; if not, it finds none of them."""
        return all(hasattr(arm, "with_filters") for arm in self._fusion.retrievers)

    def plain(self, text: str) -> str:
        """Return a text without the operators that the keyword arm reads, which are none of its words."""
        return text if self._keywords is None else parse_query(text, self.analyzer).text

    def search(
        self,
        text: str,
        filters: MetadataFilters | None = None,
        *,
        form: str = "question",
        subject: str = "",
        today: date | None = None,
        least: MinScore = 0.0,
        compares_all: bool = True,
    ) -> HitPool:
        """Ask all notes, or those that the filters admit; nothing is found where the arms cannot filter.

        Args:
            text: The query.
            filters: Notes that may be found.
            form: ``"message"``: sessions that it goes on with are found, where the retriever is one of ours.
            subject: What a relevant note holds of the text; default all of it.
            today: From which "last week" and ages count; default the day it is.
            least: The relevance that a hit needs. A digest leaves that to its ranking, which knows of named days.
            compares_all: Whether scores are those among all notes, and not among those that the filters admit.
        """
        if filters is not None and not self.can_filter:
            return HitPool()
        fusion = self._fusion if filters is None else self._fusion.with_filters(filters)
        # Recency is left to memory: applied twice it would count twice.
        others = [one for one in fusion.node_postprocessors if not isinstance(one, RecencyPostprocessor)]
        settings = fusion.fusion
        is_message = form == "message" and settings.mode is Mode.LEARNED
        settings = replace(
            settings,
            mode=Mode.MESSAGE if is_message else settings.mode,
            similarity_top_k=self.pool,
            candidate_pool=max(self.pool, settings.candidate_pool),
            node_postprocessors=others,
            min_score=least,
        )
        question = Question(
            queries=(QueryBundle(text),),
            is_explained=True,
            subject=subject,
            today=today,
            compares_all=compares_all,
            **self._aging,
        )
        return self._hits(run(answer_flow(settings, question, None)), text)

    def _hits(self, answer: Answer, text: str) -> HitPool:
        explanation, is_message = explanation_of(answer), answer.fusion.mode is Mode.MESSAGE
        groups = None if self._keywords is not None else self.analyzer.query_groups(text)
        # A reranker of the user's has the last word on the order, and its scores may mean anything.
        reranked = bool(answer.fusion.node_postprocessors)
        likely = 1.0 if explanation.relevance is None else explanation.relevance
        hits = tuple(
            PoolHit(
                hit.node.node,
                likely * ((_K + 1) / (_K + hit.rank) if reranked or hit.fused is None else max(hit.fused.score, 0.0)),
                hit.cosine,
                {term.term: term.idf for term in hit.terms} if groups is None else self._held(hit.node.node, groups),
                _reasons(hit) if is_message else (),
            )
            for hit in explanation
        )
        return HitPool(
            hits,
            explanation.judgement,
            explanation.warnings,
            explanation.queries,
            is_message,
            answer.pool.left_out,
        )

    def _held(self, node: BaseNode, groups: Sequence[tuple[str, ...]]) -> dict[str, float]:
        """Return the query terms that a node holds, all equally rare, where no keyword arm tells."""
        held = set(self.analyzer.tokens(node.get_content(metadata_mode=MetadataMode.EMBED)))
        return {group[0]: 1.0 for group in groups if held.intersection(group)}


def _reasons(hit: Hit) -> tuple[str, ...]:
    """Return the reasons for the session of a hit, in log-odds."""
    why = {one.arm: one for one in (hit.fused.credits if hit.fused else ()) if not one.rank}
    notes = dict.fromkeys(why, "")
    if "age" in why:
        notes["age"] = f" ({counted(int(why['age'].score), 'day')})" if why["age"].score >= 0 else " (no day)"
    for name in notes.keys() & {"session vector", "session keyword"}:
        notes[name] = f" ({counted(int(why[name].score), 'chunk')})"
    return tuple(f"{name} {one.credit:+.2f}{notes[name]}" for name, one in why.items())


# Which notes


def note_filters(
    *,
    path: str = "",
    tag: str = "",
    since: str = "",
    until: str = "",
    collections: Sequence[str] = (),
    where: Sequence[str] = (),
) -> MetadataFilters | None:
    """Make LlamaIndex's metadata filters from what an agent writes; None where it writes nothing.

    Args:
        path: Part of a note's path, in any case.
        tag: One of its tags, in any case, or one above it: ``health`` for ``health/running``.
        since: Its first day, as ``2026-04-09`` or in words (``last week``). A note without a date is left out.
        until: Its last day.
        collections: Names of folders, of an index of several: one of them is the note's.
        where: What its front matter says, all of it: ``status=open``, ``rating>=4``, ``topics=ml`` (an item of a
            list), ``due<2026-05-01``, ``status!=done``, ``author~smith`` (a part), ``author=`` (nothing said).

    Raises:
        SettingError: A day is none, the first comes after the last, or a condition cannot be read.
    """
    first, last = _day("since", since), _day("until", until)
    if first and last and first > last:
        raise SettingError("are in the wrong order. Cure: exchange them.", since=since, until=until)
    filters: list[MetadataFilter | MetadataFilters] = [_condition(condition) for condition in where]
    if path.strip():
        filters.append(MetadataFilter(key=PATH, value=path.strip(), operator=FilterOperator.TEXT_MATCH_INSENSITIVE))
    if tag.strip():
        filters.append(tag_filter(tag))
    if collections:
        filters.append(MetadataFilter(key=COLLECTION, value=[*collections], operator=FilterOperator.IN))
    filters += days_filter(first, last).filters
    return MetadataFilters(filters=filters) if filters else None


def _condition(text: str) -> MetadataFilter | MetadataFilters:
    """Return the filter that a condition on front matter asks for."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise SettingError("is no condition. Cure: KEY=VALUE, or with !=, <, <=, >, >= or ~ (a part).", where=text)
    key, operator, value = match[1].strip().lower(), match[2], match[3].strip()
    if key == TAGS and operator == "=" and value:
        return tag_filter(value)
    if not value and operator in ("=", "!="):
        return (
            having(key) if operator == "!=" else MetadataFilter(key=key, value=None, operator=FilterOperator.IS_EMPTY)
        )
    wanted = value if operator == "~" else typed(value)
    wanted = int(wanted) if isinstance(wanted, bool) else wanted  # LlamaIndex's filters take no booleans
    return item_filter(key, wanted, _OPERATORS[operator])


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
    [named] = find_dates(text, date.today(), lexicon_of(text))[:1] or [None]  # noqa: DTZ011  the user's own day
    if named is None:
        raise SettingError("is no date. Cure: write it as 2026-04-09, or in words: last week, in May.", **{name: text})
    return named.first if name == "since" else named.last
