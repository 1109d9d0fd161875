"""`MemoryContext`: a digest of what notes say about a message. Gate, search, rank, then quote.

Any LlamaIndex retriever will do: one that is no fusion of this package becomes the only retriever
of such a fusion. Only retrievers of this package know how likely an index answers a message at
all, so hits of others are never held back.
"""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from llama_index_contextual.memory import gate, ranking
from llama_index_contextual.memory.digest import MemoryDigest, MemoryEntry, on_one_line
from llama_index_contextual.memory.settings import MemorySettings
from llama_index_contextual.memory.snippets import with_snippets
from llama_index_contextual.postprocessors.recency import RecencyPostprocessor
from llama_index_contextual.retrievers.asking import Question, keyword_retriever_of
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

_POOL: Final = 50  # hits that are ranked before the cut
_MESSAGE_POOL: Final = 100  # further chunks of a session rank far behind its first
_MAX_SEARCH_RESULTS: Final = 100_000
_TOKENS_PER_SEARCH_HIT: Final = 150  # as in a full digest of four
_DOUBTFUL: Final = 0.5  # a digest warns of a lower relevance
_RRF_K: Final = 20.0  # for hits of which only the rank is known
# The least score of a hit for a question, as a share of the best. What has less is padding, and
# leaving it out costs no recall@10 on LoCoMo notes.
_MIN_SCORE_SHARE: Final = 0.3


class IndexLike(Protocol):
    """An index that gives a retriever, such as ``ContextualIndex``."""

    def as_retriever(self, *, similarity_top_k: int) -> BaseRetriever:
        """Return a retriever of so many nodes."""


class _Answer(NamedTuple):
    """What a search returned: the explanation of the retriever, and the hits, best first."""

    explanation: Explanation
    hits: list[MemoryEntry]


def gate_digest(message: str) -> MemoryDigest | None:
    """Return the digest of a message that needs no memory, without a search; None for others."""
    reason = gate.gate(message, lexicon_of(message))
    return MemoryDigest(applicable=False, reason=reason) if reason else None


class MemoryContext:
    """Turn a user's message into a digest of notes about it; into nothing for small talk.

    ::

        memory = MemoryContext(ContextualIndex.open("notes"))
        print(memory.get("does JC like ginger?").markdown)

    Thread-safe. It keeps no state between messages; ``seen=`` leaves out what was shown already.

    Args:
        source: A ``ContextualIndex``, a retriever of this package, or any other of LlamaIndex,
            whose hits are never left out, because their relevance is not known.
        enabled: Whether memory answers at all. Of this and every further setting, None takes the
            value of the index's configuration, else the default of :class:`MemorySettings`.
        max_results: The most hits of a digest.
        max_tokens: The most tokens of a digest. Its first hit is shown whatever it costs.
        include_recency: Whether age counts: newer notes win among near equals, and the newest
            statement about a subject comes first. A date in the message counts instead.
        half_life_days: Days after which the recency factor of a dated note is a half.
        recency_weight: The share of a score that age may take, 0 to 1.
        ranking: ``"learned"`` searches once and compares hits by a trained model. ``"derived"``
            searches for the message, its keywords and its names, and multiplies the scores by
            factors for age and agreement.
        min_relevance: The probability with which a hit has to answer the message, 0 to 1. 0 keeps
            all hits; ``"auto"`` is 0.05, or 0 with another embedding than the local one.
        evergreen: Patterns of paths that never age.
        **unknown: Refused by name.

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
        named_keywords = keyword_retriever_of(retriever.members)
        self._keywords = named_keywords[1] if named_keywords else None
        self._can_filter = all(hasattr(part, "with_filters") for part in retriever.retrievers)

    def get(
        self, message: str, *, seen: Collection[str] = (), now: datetime | date | None = None
    ) -> MemoryDigest:
        """Return the digest for a message.

        Args:
            message: What the user wrote.
            seen: Ids or citations of hits that were shown before. They are left out.
            now: The present. Default: the clock's.
        """
        if not isinstance(message, str):
            raise SettingError(f"`message` must be a text (got {type(message).__name__}).")
        if not self.settings.enabled:
            reason = "memory is switched off (enabled is false)"
            return MemoryDigest(applicable=False, reason=reason, notes=(f"{reason.capitalize()}.",))
        closed = gate_digest(message)
        if closed is not None:
            return closed
        now = now or datetime.now().astimezone()
        if self.settings.ranking == "derived":
            return self._derived(message, seen, now)
        return self._learned(message, seen, now)

    async def aget(
        self, message: str, *, seen: Collection[str] = (), now: datetime | date | None = None
    ) -> MemoryDigest:
        """Return the digest of :meth:`get` without blocking the event loop."""
        return await asyncio.to_thread(self.get, message, seen=seen, now=now)

    def search(
        self, query: str, *, max_results: int = 10, filters: MetadataFilters | None = None
    ) -> MemoryDigest:
        """Return the hits of a precise query: no gate, no recency.

        Args:
            query: What is searched for.
            max_results: The most hits.
            filters: Notes that may be found. :func:`note_filters` makes them from path, tag and
                days.

        Raises:
            SettingError: A setting is out of range, or the source of this memory cannot filter.
        """
        hits = self.find(query, max_results=max_results, filters=filters)
        return _with_quotations(hits, query, max_results * _TOKENS_PER_SEARCH_HIT)

    def find(
        self, query: str, *, max_results: int, filters: MetadataFilters | None = None
    ) -> MemoryDigest:
        """Return the hits of :meth:`search` without quotations, for callers that show few of them.

        A note suggests names and words of the notes for those that none of them contains.
        """
        limit = whole("max_results", max_results, most=_MAX_SEARCH_RESULTS)
        answer = self._search(
            query, filters, min_relevance=self.settings.min_relevance, max_results=limit
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
        parsed = gate.read_message(message, lexicon_of(message), _day(now))
        is_question = parsed.form == "question"
        answer = self._answer(parsed, _day(now))
        hits = answer.hits
        if is_question and settings.min_relevance and hits:
            min_score = _MIN_SCORE_SHARE * hits[0].score
            hits = [hit for hit in hits if hit.score >= min_score]
        # "What was the timeout in March?" asks for what is older.
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
        answers = [self._search(query, min_relevance=settings.min_relevance) for query in queries]
        pools = [answer.hits for answer in answers]
        today = _day(now) if settings.include_recency else None
        ranked = ranking.by_formulas(pools, today, settings.half_life_days)
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
        aged = recency.aged([NodeWithScore(node=hit.node, score=hit.score) for hit in hits])
        return ranking.best_first(
            replace(hit, score=score) for hit, (score, _) in zip(hits, aged, strict=True)
        )

    # Search

    def _answer(self, parsed: gate.ParsedMessage, today: date) -> _Answer:
        """Return the answer to a message; of one that names days alone, the notes of these days."""
        question: dict[str, Any] = {
            "is_message": parsed.form == "message",
            "subject": parsed.subject,
            "today": today,
        }
        if parsed.dates and not parsed.has_subject and self._can_filter:
            first = min(named.first for named in parsed.dates)
            last = max(named.last for named in parsed.dates)
            answer = self._search(parsed.text, days_filter(first, last), **question)
            if answer.hits:
                return answer
        return self._search(parsed.text, min_relevance=self.settings.min_relevance, **question)

    def _search(
        self,
        text: str,
        filters: MetadataFilters | None = None,
        *,
        is_message: bool = False,
        min_relevance: float | Literal["auto"] = 0.0,
        max_results: int = 0,
        **question: Any,
    ) -> _Answer:
        """Return the answer to a query.

        Args:
            text: The query.
            filters: Notes that may be found.
            is_message: Whether to rank the sessions that the text continues, where the retriever
                is one of this package.
            min_relevance: The relevance that a hit needs.
            max_results: The most hits, if that is more than the pool.
            **question: Further fields of :class:`~llama_index_contextual.retrievers.Question`.
        """
        settings = self.settings
        retriever = copy.copy(self._fusion)
        if filters is not None:
            retriever = self._fusion.with_filters(filters)
        if is_message and retriever.mode is Mode.LEARNED:
            retriever.mode = Mode.MESSAGE
        pool = _MESSAGE_POOL if is_message else _POOL
        retriever.similarity_top_k = max(pool, max_results, settings.max_results)
        retriever.candidate_pool = max(retriever.similarity_top_k, retriever.candidate_pool)
        # Memory applies recency itself. Applied twice it would count twice.
        postprocessors = [
            step
            for step in retriever.node_postprocessors
            if not isinstance(step, RecencyPostprocessor)
        ]
        retriever.node_postprocessors = postprocessors
        retriever.min_score = min_relevance
        parsed = Question(
            queries=(QueryBundle(text),),
            is_explained=True,
            half_life_days=settings.half_life_days,
            evergreen=settings.evergreen if settings.include_recency else ("*",),
            **question,
        )
        explanation = retriever.answer(parsed)
        hits = self._entries_of(text, explanation, only_ranks_count=bool(postprocessors))
        return _Answer(explanation, ranking.best_first(hits))

    def _entries_of(
        self, text: str, explanation: Explanation, *, only_ranks_count: bool
    ) -> list[MemoryEntry]:
        """Return the hits of an answer with their scores and matched terms.

        Args:
            text: The query.
            explanation: The answer.
            only_ranks_count: Whether a postprocessor, such as a reranker, gave scores that may mean
                anything.
        """
        term_groups = query_groups(text)
        entries = []
        for hit in explanation:
            node = hit.node.node
            if self._keywords is not None:
                terms = {match.term: match.idf for match in hit.terms}
            else:  # nothing tells which term is rare
                held_terms = set(terms_of(node.get_content(metadata_mode=MetadataMode.EMBED)))
                terms = {group[0]: 1.0 for group in term_groups if not held_terms.isdisjoint(group)}
            score = hit.relevance
            if score is None or only_ranks_count:
                score = (explanation.relevance or 1.0) * (_RRF_K + 1) / (_RRF_K + hit.rank)
            entries.append(MemoryEntry(node, score, terms, also_at=hit.also_at))
        return entries

    def _digest(
        self, answer: _Answer, chosen: Sequence[MemoryEntry], notes: Sequence[str] = ()
    ) -> MemoryDigest:
        """Return the digest of chosen hits, with notes on what it does not cover."""
        explanation = answer.explanation
        judgement = explanation.judgement
        is_doubtful = (
            judgement.is_calibrated
            and bool(explanation.hits)
            and (judgement.relevance or 1.0) < _DOUBTFUL
        )
        all_notes = [*notes, *explanation.warnings]
        # Unknown words of a long message only matter where it finds little.
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
    message: str, named_dates: Sequence[NamedDate], chosen: Sequence[MemoryEntry]
) -> list[str]:
    """Return notes on a message that was cut, and on named dates of which no hit is."""
    notes = []
    named_periods = [named.period for named in named_dates]
    periods = list(filter(None, (period_of(hit.node.metadata) for hit in chosen)))
    overlaps = [period.overlaps(named) for period in periods for named in named_periods]
    if overlaps and not any(overlaps):
        named_days = " or ".join(named.isoformat() for named in named_periods)
        notes.append(f"none of these is of {named_days}")
    if len(message) > gate.MAX_MESSAGE:
        notes.append(f"of the message the first {gate.MAX_MESSAGE:,} characters were read")
    return notes


def _configured(source: Any) -> dict[str, Any]:
    """Return the settings of memory in the configuration of an index."""
    configuration = getattr(getattr(source, "settings", None), "configuration", None)
    values = configuration.table("memory") if configuration is not None else {}
    return {name: values[name] for name in MemorySettings.model_fields if name in values}
