"""`MemoryContext`: what notes have to do with a message, as a digest: gate, search, then the digest of what was found.

Any LlamaIndex retriever will do: what is no fusion of ours becomes the one arm of such a fusion. Only ours know how
likely an index answers a message at all, so memory does not abstain from the hits of others.
"""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from llama_index_contextual.memory import gate, ranking
from llama_index_contextual.memory.digest import (
    MemoryDigest,
    MemoryEntry,
    MemorySettings,
    on_one_line,
)
from llama_index_contextual.postprocessors.recency import RecencyPostprocessor
from llama_index_contextual.retrievers.any_store import run
from llama_index_contextual.retrievers.arms import keyword_of
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.learned import Mode
from llama_index_contextual.retrievers.query import days_filter
from llama_index_contextual.retrievers.query_dates import lexicon_of
from llama_index_contextual.retrievers.question import Question, answer_question
from llama_index_contextual.retrievers.terms import query_groups, terms_of
from llama_index_contextual.utils.errors import whole
from llama_index_contextual.utils.metadata import day_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.retrievers.explanation import Explanation

    Hits = list[MemoryEntry]
    Found = tuple[Explanation, Hits]

_POOL: Final = 50  # hits that are ranked before the cut
_SURE: Final = 0.5  # a digest warns of hits that are less relevant
_SEARCH_TOKENS: Final = 150  # of each hit of a search, as in a full digest of four
_K: Final = 20.0  # RRF's constant, for hits of which only the rank is known
_LEAST_SHARE: Final = (
    0.3  # of the best hit's score; what has less is padding, and costs no recall@10 on LoCoMo notes
)
_MOST_WEIGHT: Final = (
    0.999  # of age: one of 1 multiplies scores plainly, and leaves little but the last notes
)


def gate_digest(message: str) -> MemoryDigest | None:
    """The digest of a message that needs no memory, without asking an index; None for any other message."""
    reason = gate.gate(message, lexicon_of(message))
    return MemoryDigest(applicable=False, reason=reason) if reason else None


class MemoryContext:
    """Turns a user's message into a digest of notes about it, or into nothing within microseconds.

    ::

        memory = MemoryContext(ContextualIndex.open("notes"))
        print(memory.get("does JC like ginger?").markdown)

    Thread-safe; it keeps no state between messages (give ``seen=`` to leave out what was shown already).

    Args:
        source: A ``ContextualIndex``, one of our retrievers, or any other of LlamaIndex (which does not tell how
            relevant its hits are, so that they are never held back).
        **settings: Those of :class:`MemorySettings`. Default: of the configuration of the index.

    Raises:
        SettingError: A setting cannot work.
    """

    def __init__(self, source: Any, **settings: Any) -> None:
        self.settings = MemorySettings(**{**_configured(source), **settings})
        is_index = hasattr(source, "as_retriever") and not hasattr(source, "retrieve")
        retriever = source.as_retriever(similarity_top_k=_POOL) if is_index else source
        if not isinstance(retriever, ContextualFusionRetriever):
            retriever = ContextualFusionRetriever([retriever])
        self._fusion, self._keywords = retriever, keyword_of(retriever.retrievers)
        self._can_filter = all(hasattr(arm, "with_filters") for arm in retriever.retrievers)

    def get(
        self, message: str, *, seen: Collection[str] = (), now: datetime | date | None = None
    ) -> MemoryDigest:
        """The digest for a message.

        Args:
            message: What the user wrote.
            seen: Ids or citations of hits that were shown before; they are left out.
            now: The present; default the clock's.
        """
        if not self.settings.enabled:
            reason = "memory is switched off (enabled is false)"
            return MemoryDigest(applicable=False, reason=reason, notes=(f"{reason.capitalize()}.",))
        if (closed := gate_digest(message)) is not None:
            return closed
        now = now or datetime.now().astimezone()
        today = now.date() if isinstance(now, datetime) else now
        if self.settings.ranking == "derived":
            return self._derived(gate.clean_message(message[: gate.MAX_MESSAGE]), seen, today)
        parsed = gate.read_message(message, lexicon_of(message), today)
        found, ranked = self._ranked(parsed, now, today)
        unseen, is_message = ranking.unseen_hits(ranked, seen), parsed.form == "message"
        chosen = ranking.without_repetitions(
            unseen, self.settings.max_results, by_session=is_message
        )
        if not parsed.dates:  # "what was the timeout in March?" asks for what is older
            chosen = ranking.unseen_hits(ranking.newest_first(chosen, ranked, terms_of), seen)
        shown = tuple(
            "/".join(dict.fromkeys([one.first.isoformat(), one.last.isoformat()]))
            for one in parsed.dates
        )
        days = [day for one in chosen if (day := day_of(one.node.metadata)) is not None]
        is_other = (
            days
            and parsed.dates
            and all(named.distance(day) for named in parsed.dates for day in days)
        )
        notes = [f"none of these is of {' or '.join(shown)}"] if is_other else []
        if len(message) > gate.MAX_MESSAGE:
            notes.append(f"of the message the first {gate.MAX_MESSAGE:,} characters were read")
        digest = self._digest(parsed.text, found, ranked, chosen, notes)
        return replace(digest, form=parsed.form, dates=shown)

    def _derived(self, text: str, seen: Collection[str], today: date) -> MemoryDigest:
        """The digest of ``ranking="derived"``."""
        settings, queries = self.settings, gate.derive_queries(text, lexicon_of(text))
        pools = [self._search(query, least=settings.min_relevance) for query in queries]
        (best, _), hits = (
            max(pools, key=lambda pool: pool[0].relevance or 0.0),
            [hits for _, hits in pools],
        )
        ranked = gate.by_formulas(
            hits, today if settings.include_recency else None, settings.half_life_days
        )
        chosen = ranking.without_repetitions(
            ranking.unseen_hits(ranked, seen), settings.max_results
        )
        return replace(self._digest(text, best, ranked, chosen, []), queries=queries)

    def _ranked(self, parsed: gate.ParsedMessage, now: datetime | date, today: date) -> Found:
        """The answer to a message, and its hits in their order."""
        settings, is_question = self.settings, parsed.form == "question"
        question: dict[str, Any] = {
            "is_message": not is_question,
            "subject": parsed.subject,
            "today": today,
        }
        days, hits = (
            [end for one in parsed.dates for end in (one.first, one.last)],
            list[MemoryEntry](),
        )
        if (
            days and not parsed.has_subject and self._can_filter
        ):  # the answer is whatever the notes of that day hold
            found, hits = self._search(parsed.text, days_filter(min(days), max(days)), **question)
        if not hits:
            found, hits = self._search(parsed.text, least=settings.min_relevance, **question)
        if settings.min_relevance and is_question:
            hits = [one for one in hits if one.score >= _LEAST_SHARE * hits[0].score]
        if settings.include_recency and is_question and not parsed.dates:
            weight = min(settings.recency_weight, _MOST_WEIGHT)
            age = {
                "half_life_days": settings.half_life_days,
                "evergreen": settings.evergreen,
                "now": now,
            }
            scored = [NodeWithScore(node=one.node, score=one.score) for one in hits]
            aged = zip(hits, RecencyPostprocessor(weight=weight, **age).aged(scored), strict=True)
            hits = ranking.best_first([replace(one, score=score) for one, (score, _) in aged])
        return found, hits

    async def aget(
        self, message: str, *, seen: Collection[str] = (), now: datetime | date | None = None
    ) -> MemoryDigest:
        """The digest of :meth:`get`, off the event loop."""
        return await asyncio.to_thread(self.get, message, seen=seen, now=now)

    def search(
        self, query: str, *, max_results: int = 10, filters: MetadataFilters | None = None
    ) -> MemoryDigest:
        """The hits of a precise query: no gate, no recency.

        Args:
            query: What is searched for.
            max_results: Most hits.
            filters: Notes that may be found; :func:`note_filters` makes them from path, tag and days.

        Raises:
            SettingError: A setting cannot work, or the source of this memory cannot filter.
        """
        most = whole("max_results", max_results, most=100_000)
        found, hits = self._search(query, filters, least=self.settings.min_relevance, most=most)
        chosen = ranking.without_repetitions(hits, most)
        digest = self._digest(
            gate.clean_message(query), found, hits, chosen, [], _SEARCH_TOKENS * most
        )
        return replace(digest, queries=(query,))

    def _search(
        self,
        text: str,
        filters: MetadataFilters | None = None,
        *,
        is_message: bool = False,
        least: float | Literal["auto"] = 0.0,
        most: int = 0,
        **question: Any,
    ) -> Found:
        """The answer to a query, and its hits, best first.

        Args:
            text: The query.
            filters: Notes that may be found.
            is_message: Whether sessions are found that it goes on with, where the retriever is one of ours.
            least: The relevance that a hit needs.
            most: Most hits, if that is more than 50.
            **question: More of :class:`~llama_index_contextual.retrieval.Question`.
        """
        settings = self.settings
        view = copy.copy(self._fusion) if filters is None else self._fusion.with_filters(filters)
        if is_message and view.mode is Mode.LEARNED:
            view.mode = Mode.MESSAGE
        pool = (
            2 * _POOL if is_message else _POOL
        )  # of a session further chunks stand far behind the first
        view.similarity_top_k = max(pool, most, settings.max_results)
        view.candidate_pool = max(view.similarity_top_k, view.candidate_pool)
        # Recency is left to memory: applied twice it would count twice.
        others = [
            one for one in view.node_postprocessors if not isinstance(one, RecencyPostprocessor)
        ]
        view.node_postprocessors, view.min_score = others, least
        question["half_life_days"] = settings.half_life_days
        question["ageless"] = settings.evergreen if settings.include_recency else ("*",)
        parsed = Question(queries=(QueryBundle(text),), is_explained=True, **question)
        explanation = run(answer_question(view, parsed, on_loop=False))
        groups, hits = query_groups(text) if self._keywords is None else [], list[MemoryEntry]()
        for hit in explanation:
            terms = {term.term: term.idf for term in hit.terms}
            if groups:  # all are equally rare, where no keyword arm tells
                held = set(terms_of(hit.node.node.get_content(metadata_mode=MetadataMode.EMBED)))
                terms = {group[0]: 1.0 for group in groups if held.intersection(group)}
            score = hit.relevance
            if (
                score is None or others
            ):  # the scores of a reranker may mean anything: its order counts
                score = (explanation.relevance or 1.0) * (_K + 1) / (_K + hit.rank)
            hits.append(MemoryEntry(hit.node.node, score, terms))
        return explanation, ranking.best_first(hits)

    def _digest(
        self,
        text: str,
        found: Explanation,
        ranked: Hits,
        chosen: Hits,
        notes: list[str],
        tokens: int = 0,
    ) -> MemoryDigest:
        """The digest of chosen hits, with what it does not cover."""
        entries = ranking.entries_of(
            chosen, query_groups(text), terms_of, tokens or self.settings.max_tokens
        )
        judgement, notes = found.judgement, [*notes, *found.warnings]
        is_doubtful = (
            judgement.is_calibrated and bool(found.hits) and (judgement.relevance or 1.0) < _SURE
        )
        if (
            is_doubtful or not entries
        ):  # of a message's many words those that no note has matter where it finds little
            notes += filter(None, [judgement.unknown_words])
        if is_doubtful and entries:
            notes.append(f"the notes may not answer this, relevance {judgement.relevance:.2f}")
        reason = (
            "found"
            if entries
            else "nothing relevant enough"
            if found.left_out or ranked
            else "nothing found"
        )
        return MemoryDigest(
            applicable=True,
            reason=reason,
            entries=entries,
            queries=found.queries,
            notes=tuple(f"Search: {on_one_line(note)}." for note in notes),
            left_out=found.left_out + len(ranked) - len(entries),
        )


def _configured(source: Any) -> dict[str, Any]:
    """Settings of memory of an index."""
    configuration = getattr(getattr(source, "settings", None), "configuration", None)
    memory: dict[str, Any] = configuration.table("memory") if configuration is not None else {}
    return {name: value for name, value in memory.items() if name in MemorySettings.model_fields}
