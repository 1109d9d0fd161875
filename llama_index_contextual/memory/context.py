"""`MemoryContext`: a digest of the notes about a message, made by a gate, a search and a ranking.

Any LlamaIndex retriever can be the source. A retriever that is not a ``ContextualFusionRetriever``
is wrapped in one. Only the retrievers of this package estimate how likely an index answers a
message, so hits of other retrievers are never left out as irrelevant.
"""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from llama_index_contextual.memory import gate, ranking
from llama_index_contextual.memory.digest import MemoryDigest, MemoryEntry, on_one_line
from llama_index_contextual.memory.settings import MemorySettings
from llama_index_contextual.memory.snippets import with_snippets
from llama_index_contextual.postprocessors.recency import RecencyPostprocessor
from llama_index_contextual.retrievers.asking import Question, keyword_member_of
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.query import days_filter
from llama_index_contextual.retrievers.query_dates import lexicon_of
from llama_index_contextual.retrievers.rankings import Mode
from llama_index_contextual.retrievers.terms import query_groups, terms_of
from llama_index_contextual.utils.errors import SettingError, refuse_unknown, whole
from llama_index_contextual.utils.metadata import period_of
from llama_index_contextual.utils.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.retrievers.explanation import Explanation
    from llama_index_contextual.utils.dates import NamedDate

_POOL = 50  # hits that are ranked before the cut to max_results
_MESSAGE_POOL = 100  # for a message, the later chunks of a session rank far below its first
_MAX_SEARCH_RESULTS = 100_000
_TOKENS_PER_SEARCH_HIT = 150  # as in a digest of four hits and 600 tokens
_DOUBTFUL = 0.5  # a digest warns if the relevance is lower
_RRF_K = 20.0  # for hits of which only the rank is known
# The lowest score of a hit for a question, as a share of the best score. Hits below it are padding:
# leaving them out costs no recall@10 on LoCoMo notes.
_MIN_SCORE_SHARE = 0.3


class IndexLike(Protocol):
    """An index that can create a retriever, such as ``ContextualIndex``."""

    def as_retriever(self, *, similarity_top_k: int) -> BaseRetriever:
        """Return a retriever that returns ``similarity_top_k`` nodes."""


class _Answer(NamedTuple):
    """The result of a search: the retriever's explanation, and the hits, best first."""

    explanation: Explanation
    hits: list[MemoryEntry]


def gate_digest(message: str) -> MemoryDigest | None:
    """Return the empty digest of a message that needs no memory. None means that it may need it."""
    reason = gate.reason_to_skip(message, lexicon_of(message))
    return MemoryDigest(applicable=False, reason=reason) if reason else None


class MemoryContext:
    """Turn a user's message into a digest of the notes about it. Small talk gets an empty digest.

    ::

        memory = MemoryContext(ContextualIndex.open("notes"))
        print(memory.get("does JC like ginger?").markdown)

    A setting that is None has the value in the configuration of the index, else the default of
    :class:`MemorySettings`.

    Instances are thread-safe and keep no state between messages. Pass ``seen=`` to leave out hits
    that were shown before.

    Args:
        source: A ``ContextualIndex`` or any LlamaIndex retriever. The relevance of hits is only
            known for retrievers of this package. Hits of other retrievers are never left out.
        enabled: Whether memory answers at all.
        max_results: The largest number of hits in a digest.
        max_tokens: The length limit of a digest in tokens. The first hit is always shown.
        include_recency: Whether to prefer newer notes among hits of nearly equal score, and to put
            the newest statement about a subject first. Messages that name a date ignore this.
        half_life_days: The age in days at which the recency factor of a dated note is one half.
        recency_weight: The largest share of a score that age can remove, 0 to 1.
        ranking: ``"learned"`` searches once and compares hits by a trained model. ``"derived"``
            searches for the message, its keywords and its names, and multiplies the scores by
            factors for age and agreement.
        min_relevance: The lowest probability that a hit answers the message, 0 to 1. 0 keeps all
            hits. ``"auto"`` means 0.05 with the embeddings ``local`` and ``e5``, and 0 with any
            other.
        evergreen: Patterns of paths that never age.
        **unknown: Rejected with an error that names them.

    Raises:
        SettingError: A setting is unknown or out of range.
    """

    def __init__(
        self,
        source: IndexLike | BaseRetriever,
        *,
        enabled: bool | None = None,
        max_results: int | None = None,
        max_tokens: int | None = None,
        include_recency: bool | None = None,
        half_life_days: float | None = None,
        recency_weight: float | None = None,
        ranking: Literal["learned", "derived"] | None = None,
        min_relevance: float | Literal["auto"] | None = None,
        evergreen: str | Sequence[str] | None = None,
        **unknown: Any,
    ) -> None:
        refuse_unknown("MemoryContext", unknown, MemorySettings.model_fields)
        passed = {
            "enabled": enabled,
            "max_results": max_results,
            "max_tokens": max_tokens,
            "include_recency": include_recency,
            "half_life_days": half_life_days,
            "recency_weight": recency_weight,
            "ranking": ranking,
            "min_relevance": min_relevance,
            "evergreen": evergreen,
        }
        given = {name: value for name, value in passed.items() if value is not None}
        self.settings = MemorySettings(**{**_configured(source), **given})
        if isinstance(source, BaseRetriever):
            retriever = source
        elif hasattr(source, "as_retriever"):
            retriever = source.as_retriever(similarity_top_k=_POOL)
        else:
            raise SettingError(
                "`source` must be a ContextualIndex, another index with as_retriever(), or a "
                f"retriever (got {type(source).__name__})."
            )
        if not isinstance(retriever, ContextualFusionRetriever):
            retriever = ContextualFusionRetriever([retriever])
        self._fusion = retriever
        keywords = keyword_member_of(retriever.members)
        self._keywords = keywords.retriever if keywords else None
        self._can_filter = all(hasattr(part, "with_filters") for part in retriever.retrievers)

    def get(
        self,
        message: str,
        *,
        seen: Collection[str] = (),
        now: datetime | date | None = None,
    ) -> MemoryDigest:
        """Return the digest for a message.

        Args:
            message: The user's message.
            seen: Ids or citations of hits that were shown before. They are left out.
            now: The present time. None uses the clock.
        """
        if not isinstance(message, str):
            raise SettingError(f"`message` must be a text (got {type(message).__name__}).")
        if not self.settings.enabled:
            reason = "memory is switched off (enabled is false)"
            return MemoryDigest(applicable=False, reason=reason, notes=(f"{reason.capitalize()}.",))
        empty = gate_digest(message)
        if empty is not None:
            return empty
        now = now or datetime.now().astimezone()
        if self.settings.ranking == "derived":
            return self._derived(message, seen, now)
        return self._learned(message, seen, now)

    async def aget(
        self,
        message: str,
        *,
        seen: Collection[str] = (),
        now: datetime | date | None = None,
    ) -> MemoryDigest:
        """Like :meth:`get`, but without blocking the event loop."""
        return await asyncio.to_thread(self.get, message, seen=seen, now=now)

    def search(
        self,
        query: str,
        *,
        max_results: int = 10,
        filters: MetadataFilters | None = None,
    ) -> MemoryDigest:
        """Return the hits of a precise query, without the gate and without recency.

        Args:
            query: The query.
            max_results: The largest number of hits.
            filters: Limits the search to some notes. :func:`note_filters` creates filters from a
                path, a tag and days.

        Raises:
            SettingError: A setting is out of range, or the source cannot filter.
        """
        hits = self.find(query, max_results=max_results, filters=filters)
        return _with_quotations(hits, query, max_results * _TOKENS_PER_SEARCH_HIT)

    def find(
        self,
        query: str,
        *,
        max_results: int,
        filters: MetadataFilters | None = None,
    ) -> MemoryDigest:
        """Return the hits of :meth:`search` without quotations, for callers that show few of them.

        For words that no note contains, the digest suggests similar words of the notes.
        """
        limit = whole("max_results", max_results, most=_MAX_SEARCH_RESULTS)
        answer = self._search(
            self._question(query),
            filters,
            min_relevance=self.settings.min_relevance,
            max_results=limit,
        )
        digest = self._digest(answer, ranking.without_repetitions(answer.hits, limit))
        unknown_words = answer.explanation.judgement.unknown_words
        if self._keywords is None or not unknown_words or not digest.notes:
            return digest
        hint = did_you_mean(self._keywords.suggest(query))
        return replace(digest, notes=(*digest.notes, hint)) if hint else digest

    # Rankings

    def _learned(self, message: str, seen: Collection[str], now: datetime | date) -> MemoryDigest:
        """Return the digest of ``ranking="learned"``."""
        settings = self.settings
        parsed = gate.parse_message(message, lexicon_of(message), _day(now))
        is_question = parsed.form == "question"
        answer = self._answer(parsed, _day(now))
        hits = answer.hits
        if is_question and settings.min_relevance and hits:
            min_score = _MIN_SCORE_SHARE * hits[0].score
            hits = [hit for hit in hits if hit.score >= min_score]
        # A question such as "What was the timeout in March?" asks for older notes.
        newest_wins = is_question and settings.include_recency and not parsed.dates
        if newest_wins:
            hits = self._aged(hits, now)
        chosen = ranking.without_repetitions(
            ranking.unseen_hits(hits, seen),
            settings.max_results,
            by_session=not is_question,
            keep_newest=newest_wins,
        )
        if newest_wins:
            subject = ranking.subject_of(parsed.text, parsed.subject, hits)
            chosen = ranking.newest_first(chosen, subject, settings.evergreen)
        notes = _notes_on(message, parsed.dates, chosen)
        digest = replace(
            self._digest(answer._replace(hits=hits), chosen, notes),
            form=parsed.form,
            dates=tuple(named.period.isoformat() for named in parsed.dates),
        )
        return _with_quotations(digest, parsed.text, settings.max_tokens)

    def _derived(self, message: str, seen: Collection[str], now: datetime | date) -> MemoryDigest:
        """Return the digest of ``ranking="derived"``."""
        settings = self.settings
        text = gate.clean_message(message[: gate.MAX_MESSAGE])
        queries = gate.derive_queries(text, lexicon_of(text))
        answers = [
            self._search(self._question(query), min_relevance=settings.min_relevance)
            for query in queries
        ]
        pools = [answer.hits for answer in answers]
        today = _day(now) if settings.include_recency else None
        ranked = ranking.rank_by_formulas(pools, today, settings.half_life_days)
        best = max(answers, key=lambda answer: answer.explanation.relevance or 0.0)
        unseen = ranking.unseen_hits(ranked, seen)
        chosen = ranking.without_repetitions(unseen, settings.max_results)
        digest = replace(self._digest(best._replace(hits=ranked), chosen), queries=queries)
        return _with_quotations(digest, text, settings.max_tokens)

    def _aged(self, hits: Sequence[MemoryEntry], now: datetime | date) -> list[MemoryEntry]:
        """Return the hits with scores reduced by their age, best first."""
        recency = RecencyPostprocessor(
            half_life_days=self.settings.half_life_days,
            weight=self.settings.recency_weight,
            evergreen=self.settings.evergreen,
            now=now,
        )
        nodes = [NodeWithScore(node=hit.node, score=hit.score) for hit in hits]
        pairs = zip(hits, recency.aged_scores(nodes), strict=True)
        return ranking.best_first(replace(hit, score=aged.score) for hit, aged in pairs)

    # Search

    def _answer(self, parsed: gate.ParsedMessage, today: date) -> _Answer:
        """Return the answer to a message. If it names only days, return the notes of these days."""
        question = replace(self._question(parsed.text), subject=parsed.subject, today=today)
        is_message = parsed.form == "message"
        if parsed.dates and not parsed.has_subject and self._can_filter:
            first = min(named.first for named in parsed.dates)
            last = max(named.last for named in parsed.dates)
            notes_of_days = days_filter(first, last)
            answer = self._search(question, notes_of_days, is_message=is_message)
            if answer.hits:
                return answer
        min_relevance = self.settings.min_relevance
        return self._search(question, is_message=is_message, min_relevance=min_relevance)

    def _question(self, text: str) -> Question:
        """Return a query in the form that a fusion answers, with the settings of memory."""
        settings = self.settings
        return Question(
            queries=(QueryBundle(text),),
            is_explained=True,
            half_life_days=settings.half_life_days,
            evergreen=settings.evergreen if settings.include_recency else ("*",),
        )

    def _search(
        self,
        question: Question,
        filters: MetadataFilters | None = None,
        *,
        is_message: bool = False,
        min_relevance: float | Literal["auto"] = 0.0,
        max_results: int = 0,
    ) -> _Answer:
        """Return the answer to a question.

        Args:
            question: The question.
            filters: Limits the search to some notes.
            is_message: Whether the text continues a conversation, so that sessions are ranked.
            min_relevance: The lowest relevance of a hit.
            max_results: The number of hits to search for, if it is larger than the pool.
        """
        retriever = copy.copy(self._fusion)
        if filters is not None:
            retriever = self._fusion.with_filters(filters)
        if is_message and retriever.mode is Mode.LEARNED:
            retriever.mode = Mode.MESSAGE
        pool = _MESSAGE_POOL if is_message else _POOL
        retriever.similarity_top_k = max(pool, max_results, self.settings.max_results)
        retriever.candidate_pool = max(retriever.similarity_top_k, retriever.candidate_pool)
        # Memory applies recency itself, and it must not be applied twice.
        postprocessors = [
            step
            for step in retriever.node_postprocessors
            if not isinstance(step, RecencyPostprocessor)
        ]
        retriever.node_postprocessors = postprocessors
        retriever.min_score = min_relevance
        explanation = retriever.answer(question)
        text = question.queries[0].query_str
        hits = self._entries_of(text, explanation, uses_ranks=bool(postprocessors))
        return _Answer(explanation, ranking.best_first(hits))

    def _entries_of(
        self,
        text: str,
        explanation: Explanation,
        *,
        uses_ranks: bool,
    ) -> list[MemoryEntry]:
        """Return the hits of an answer with their scores and matched terms.

        Args:
            text: The query.
            explanation: The answer.
            uses_ranks: Whether to score hits by rank, because the scores of a postprocessor, such
                as a reranker, have an unknown scale.
        """
        term_groups = query_groups(text)
        entries = []
        for hit in explanation:
            node = hit.node.node
            if self._keywords is not None:
                terms = {match.term: match.idf for match in hit.terms}
            else:  # without a keyword index, it is not known which terms are rare
                node_terms = set(terms_of(node.get_content(metadata_mode=MetadataMode.EMBED)))
                terms = {group[0]: 1.0 for group in term_groups if not node_terms.isdisjoint(group)}
            score = hit.relevance
            if score is None or uses_ranks:
                score = (explanation.relevance or 1.0) * (_RRF_K + 1) / (_RRF_K + hit.rank)
            entries.append(MemoryEntry(node, score, terms, also_at=hit.also_at))
        return entries

    def _digest(
        self,
        answer: _Answer,
        chosen: Sequence[MemoryEntry],
        notes: Sequence[str] = (),
    ) -> MemoryDigest:
        """Return the digest of the chosen hits, with notes on its limits."""
        explanation = answer.explanation
        judgement = explanation.judgement
        is_doubtful = (
            judgement.is_calibrated
            and bool(explanation.hits)
            and (judgement.relevance or 1.0) < _DOUBTFUL
        )
        all_notes = [*notes, *explanation.warnings]
        # A long message often has unknown words. They only matter if the search finds little.
        if judgement.unknown_words and (is_doubtful or not chosen):
            all_notes.append(judgement.unknown_words)
        if is_doubtful and chosen:
            all_notes.append(f"the notes may not answer this, relevance {judgement.relevance:.2f}")
        if chosen:
            reason = "found"
        elif explanation.left_out or answer.hits:
            reason = "nothing relevant enough"
        else:
            reason = "nothing found"
        return MemoryDigest(
            applicable=True,
            reason=reason,
            entries=tuple(chosen),
            queries=explanation.queries,
            notes=tuple(f"Search: {on_one_line(note)}." for note in all_notes),
            left_out=explanation.left_out + len(answer.hits) - len(chosen),
        )


def _with_quotations(digest: MemoryDigest, query: str, max_tokens: int) -> MemoryDigest:
    """Return the digest with a quotation for each hit, and without hits that do not fit."""
    entries = with_snippets(digest.entries, query_groups(query), max_tokens)
    left_out = digest.left_out + len(digest.entries) - len(entries)
    return replace(digest, entries=entries, left_out=left_out)


def _day(now: datetime | date) -> date:
    return now.date() if isinstance(now, datetime) else now


def _notes_on(
    message: str,
    named_dates: Sequence[NamedDate],
    chosen: Sequence[MemoryEntry],
) -> list[str]:
    """Return notes for a message that was cut, and for named dates that match no hit."""
    notes = []
    named_periods = [named.period for named in named_dates]
    periods = list(filter(None, (period_of(hit.node.metadata) for hit in chosen)))
    overlaps = [period.overlaps(named) for period in periods for named in named_periods]
    if overlaps and not any(overlaps):
        named_days = " or ".join(named.isoformat() for named in named_periods)
        notes.append(f"none of these notes is dated {named_days}")
    if len(message) > gate.MAX_MESSAGE:
        notes.append(f"only the first {gate.MAX_MESSAGE:,} characters of the message were read")
    return notes


def _configured(source: Any) -> dict[str, Any]:
    """Return the memory settings in the configuration of an index."""
    configuration = getattr(getattr(source, "settings", None), "configuration", None)
    values = configuration.table("memory") if configuration is not None else {}
    return {name: values[name] for name in MemorySettings.model_fields if name in values}
