"""`MemoryContext`: what notes have to do with a message, as a digest: gate, search, then the digest of what was found.

Any LlamaIndex retriever will do: what is no fusion of ours becomes the one arm of such a fusion. Only ours know how
likely an index answers a message at all, so memory does not abstain from the hits of others.
"""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from llama_index.core.schema import BaseNode, MetadataMode, QueryBundle

from llama_index_contextual.errors import SettingError, whole
from llama_index_contextual.keyword import DAYS_AFTER, Analyzer, check_filters, days_filter, lexicon_of, parse_query
from llama_index_contextual.memory import ranking
from llama_index_contextual.memory.digest import MemoryDigest, MemoryEntry, MemorySettings, entries_of, on_one_line
from llama_index_contextual.memory.gate import (
    MAX_MESSAGE,
    ParsedMessage,
    by_formulas,
    clean_message,
    derive_queries,
    gate,
    read_message,
)
from llama_index_contextual.metadata import day_of
from llama_index_contextual.retrieval import (
    ContextualFusionRetriever,
    Judgement,
    Mode,
    Question,
    RecencyPostprocessor,
    answer_question,
    keyword_of,
    min_score_for,
    run,
)
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.retrieval import Explanation, Hit

Now = datetime | date | None

_POOL: Final = 50  # hits that are ranked before the cut
_SURE: Final = 0.5  # a digest warns of hits that are less relevant
_SEARCH_TOKENS: Final = 150  # of each hit of a search, as in a full digest of four
_K: Final = 20.0  # RRF's constant, for hits of which only the rank is known
_LEAST_SHARE: Final = 0.3  # of the best hit's score; what has less is padding, and costs no recall@10 on LoCoMo notes
_DATED_SHARE: Final = 0.6  # being first among the notes of a named day is worth less than being first among all
_MOST_WEIGHT: Final = 0.999  # of age: one of 1 multiplies scores plainly, and leaves little but the last notes


class _Found(NamedTuple):
    """Hits of a search, best first, with what is known of the whole answer."""

    hits: list[MemoryEntry] = []  # noqa: RUF012  never changed
    judgement: Judgement = Judgement()
    notes: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    left_out: int = 0


def gate_digest(message: str) -> MemoryDigest | None:
    """The digest of a message that needs no memory, without asking an index; None for any other message."""
    reason = gate(message, lexicon_of(message))
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
        settings: See :class:`MemorySettings`. Default: those of the configuration of the index.
        clock: The present, for recency and for words such as "yesterday"; default the system's, in local time.
        **changes: Single settings.

    Raises:
        SettingError: A setting cannot work.
    """

    def __init__(
        self,
        source: Any,
        settings: MemorySettings | None = None,
        *,
        clock: Callable[[], datetime] | None = None,
        **changes: Any,
    ) -> None:
        self.settings = (settings or _configured(source)).changed(**changes)
        self._clock = clock
        is_index = hasattr(source, "as_retriever") and not hasattr(source, "retrieve")
        retriever = source.as_retriever(similarity_top_k=_POOL) if is_index else source
        if not hasattr(retriever, "retrieve"):
            raise SettingError(
                f"MemoryContext({source!r}) has nothing to ask. Cure: an index or a retriever, as in "
                f"MemoryContext(ContextualIndex.open({source!r}))"
            )
        if not isinstance(retriever, ContextualFusionRetriever):
            retriever = ContextualFusionRetriever([retriever])
        self._fusion, self._keywords = retriever, keyword_of(retriever.retrievers)
        self._analyzer = Analyzer() if self._keywords is None else self._keywords.analyzer
        self._can_filter = all(hasattr(arm, "with_filters") for arm in retriever.retrievers)

    def get(self, message: str, *, seen: Collection[str] = (), now: Now = None) -> MemoryDigest:
        """The digest for a message.

        Args:
            message: What the user wrote.
            seen: Ids or citations of hits that were shown before; they are left out.
            now: The present; default the clock's.
        """
        settings, moment = self.settings, self._moment(now)
        if not settings.enabled:
            reason = "memory is switched off (enabled is false)"
            return MemoryDigest(applicable=False, reason=reason, notes=(f"{reason.capitalize()}.",))
        if (closed := gate_digest(message)) is not None:
            return closed
        if settings.ranking == "derived":
            return self._derived(clean_message(message[:MAX_MESSAGE]), seen, moment.date())
        parsed = read_message(message, lexicon_of(message), moment.date(), plain=self._plain)
        found, ranked = self._ranked(parsed, moment)
        is_timeless = parsed.form == "question" and not parsed.dates
        ordered = ranking.newer_values_first(ranked, parsed.text, self._analyzer.tokens) if is_timeless else ranked
        chosen = ranking.fresh_hits(ordered, settings.max_results, seen)
        if not parsed.dates:  # "what was the timeout in March?" asks for what is older
            newest = ranking.newest_first(chosen, ranked, self._analyzer.tokens)
            chosen = [one for one in newest if not ranking.is_seen(one, seen)]
        shown = tuple("/".join(dict.fromkeys([one.first.isoformat(), one.last.isoformat()])) for one in parsed.dates)
        notes = [f"Message: only its first {MAX_MESSAGE:,} characters were read."] if parsed.is_cut else []
        days = [day for one in chosen if (day := day_of(one.node.metadata)) is not None]
        if days and parsed.dates and all(named.distance(day) for named in parsed.dates for day in days):
            notes.append(_note(f"none of these is of {' or '.join(shown)}"))
        digest = self._digest(parsed.text, found, ranked, chosen, settings)
        return replace(digest, form=parsed.form, dates=shown, notes=(*notes, *digest.notes))

    def _derived(self, text: str, seen: Collection[str], today: date) -> MemoryDigest:
        """The digest of ``ranking="derived"``; it is empty where no query has a relevant hit."""
        settings, queries = self.settings, derive_queries(text, lexicon_of(text))
        pools = [self._search(query) for query in queries]
        best = max(pools, key=lambda one: one.judgement.relevance or 0.0)
        likely, least = best.judgement.relevance, self._least_score(best)
        hits = [pool.hits for pool in pools] if likely is None or likely >= least else []
        ranked = by_formulas(hits, today if settings.include_recency else None, settings.half_life_days)
        digest = self._digest(text, best, ranked, ranking.fresh_hits(ranked, settings.max_results, seen), settings)
        return replace(digest, queries=queries)

    def _ranked(self, parsed: ParsedMessage, moment: datetime) -> tuple[_Found, list[MemoryEntry]]:
        """Hits for a message among all notes and among those of the days that it names, and their order."""
        settings, is_question = self.settings, parsed.form == "question"
        question: dict[str, Any] = {"form": parsed.form, "subject": parsed.subject, "today": moment.date()}
        first = min((one.first for one in parsed.dates), default=date.min)
        last = max((one.last for one in parsed.dates), default=date.max)
        found = _Found()
        if parsed.dates and not parsed.has_subject:  # the notes of that day are the answer, whatever they are about
            found = self._search(parsed.text, days_filter(first, last), **question)
        if not found.hits:
            found = self._search(parsed.text, least=settings.min_relevance, **question)
        hits, least = {one.id: one for one in found.hits}, self._least_score(found)
        if parsed.dates and parsed.has_subject:  # notes of the named days, and of those in which notes speak of them
            days = days_filter(first, last + timedelta(days=min(DAYS_AFTER, (date.max - last).days)))
            for one in self._search(parsed.text, days, compares_all=False, **question).hits:
                score = _DATED_SHARE * one.score
                if score >= (0.0 if hits else least) and (one.id not in hits or hits[one.id].score < score):
                    hits[one.id] = replace(one, score=score)
        ranked = ranking.best_first(hits.values())
        if least and is_question and found.judgement.relevance is not None:
            ranked = [one for one in ranked if one.score >= _LEAST_SHARE * ranked[0].score]
        if settings.include_recency and is_question and not parsed.dates:
            weight = min(settings.recency_weight, _MOST_WEIGHT)
            age = {"half_life_days": settings.half_life_days, "evergreen": settings.evergreen, "now": moment}
            ranked = ranking.aged_hits(ranked, RecencyPostprocessor(weight=weight, **age))
        return found, ranked

    def _least_score(self, found: _Found) -> float:
        return min_score_for(self.settings.min_relevance, is_calibrated=found.judgement.is_calibrated)

    async def aget(self, message: str, *, seen: Collection[str] = (), now: Now = None) -> MemoryDigest:
        """The digest of :meth:`get`, off the event loop."""
        return await asyncio.to_thread(self.get, message, seen=seen, now=now)

    def search(self, query: str, *, max_results: int = 10, filters: MetadataFilters | None = None) -> MemoryDigest:
        """The hits of a precise query: no gate, no recency.

        Args:
            query: What is searched for.
            max_results: Most hits.
            filters: Notes that may be found; :func:`note_filters` makes them from path, tag and days.

        Raises:
            SettingError: A setting cannot work, or the source of this memory cannot filter.
        """
        check_filters(filters)
        if filters is not None and not self._can_filter:
            raise SettingError(
                "this memory's retriever cannot filter. Cure: MemoryContext over a ContextualIndex, or over a "
                "ContextualFusionRetriever of arms that can."
            )
        most = whole("max_results", max_results, most=100_000)
        settings = self.settings.changed(max_results=most, max_tokens=_SEARCH_TOKENS * most)
        found = self._search(query, filters, least=settings.min_relevance, most=most)
        ranked = ranking.best_first(found.hits)
        digest = self._digest(clean_message(query), found, ranked, ranking.fresh_hits(ranked, most), settings)
        return replace(digest, queries=(query,))

    def _moment(self, now: Now) -> datetime:
        now = now or (datetime.now().astimezone() if self._clock is None else self._clock())
        if not isinstance(now, datetime):
            now = datetime(now.year, now.month, now.day)  # noqa: DTZ001  the zone follows
        return now if now.tzinfo else now.astimezone()

    def _plain(self, text: str) -> str:
        """A text without the operators that the keyword arm reads, which are none of its words."""
        return text if self._keywords is None else parse_query(text, self._analyzer).text

    def _search(
        self,
        text: str,
        filters: MetadataFilters | None = None,
        *,
        form: str = "question",
        least: float | Literal["auto"] = 0.0,
        most: int = 0,
        **question: Any,
    ) -> _Found:
        """Hits among all notes, or those that the filters admit; none where the arms cannot filter.

        Args:
            text: The query.
            filters: Notes that may be found.
            form: ``"message"``: sessions that it goes on with are found, where the retriever is one of ours.
            least: The relevance that a hit needs.
            most: Most hits, if that is more than 50.
            **question: More of :class:`~llama_index_contextual.retrieval.Question`.
        """
        if filters is not None and not self._can_filter:
            return _Found()
        retriever = self._fusion if filters is None else self._fusion.with_filters(filters)
        settings, view = self.settings, copy.copy(retriever)
        is_message = form == "message" and view.mode is Mode.LEARNED
        view.mode = Mode.MESSAGE if is_message else view.mode
        view.similarity_top_k = max(_POOL, most, settings.max_results)
        view.candidate_pool = max(view.similarity_top_k, view.candidate_pool)
        # Recency is left to memory: applied twice it would count twice.
        others = [one for one in view.node_postprocessors if not isinstance(one, RecencyPostprocessor)]
        view.node_postprocessors, view.min_score = others, least
        question["half_life_days"] = settings.half_life_days
        question["ageless"] = settings.evergreen if settings.include_recency else ("*",)
        parsed = Question(queries=(QueryBundle(text),), is_explained=True, **question)
        explanation = run(answer_question(view, parsed, on_loop=False))
        groups = self._analyzer.query_groups(text) if self._keywords is None else None
        hits = [
            MemoryEntry(
                hit.node.node,
                _score_of(hit, explanation, is_ranked=bool(others)),
                None if hit.cosine is None else round(hit.cosine, 4),
                {term.term: term.idf for term in hit.terms} if groups is None else self._held(hit.node.node, groups),
                _reasons(hit) if is_message else (),
            )
            for hit in explanation
        ]
        return _Found(hits, explanation.judgement, explanation.warnings, explanation.queries, explanation.left_out)

    def _held(self, node: BaseNode, groups: Sequence[tuple[str, ...]]) -> dict[str, float]:
        """Query terms that a node holds, all equally rare, where no keyword arm tells."""
        held = set(self._analyzer.tokens(node.get_content(metadata_mode=MetadataMode.EMBED)))
        return {group[0]: 1.0 for group in groups if held.intersection(group)}

    def _digest(
        self,
        text: str,
        found: _Found,
        ranked: Sequence[MemoryEntry],
        chosen: Sequence[MemoryEntry],
        settings: MemorySettings,
    ) -> MemoryDigest:
        """The digest of chosen hits, with what it does not cover."""
        entries = entries_of(chosen, self._analyzer.query_groups(text), self._analyzer.tokens, settings.max_tokens)
        judgement, notes = found.judgement, [*found.notes]
        likely = judgement.relevance if judgement.is_calibrated and found.hits else None
        is_doubtful = likely is not None and likely < _SURE
        if is_doubtful or not entries:  # of a message's many words those that no note has matter where it finds little
            notes += filter(None, [judgement.unknown_words])
        if is_doubtful and entries:
            notes.append(f"the notes may not answer this, relevance {likely:.2f}")
        reason = "found" if entries else "nothing relevant enough" if found.left_out or ranked else "nothing found"
        return MemoryDigest(
            applicable=True,
            reason=reason,
            entries=entries,
            queries=found.queries,
            notes=tuple(map(_note, notes)),
            left_out=found.left_out + len(ranked) - len(entries),
        )


def _configured(source: Any) -> MemorySettings:
    """Settings of memory of an index, else the defaults."""
    configuration = getattr(getattr(source, "settings", None), "configuration", None)
    memory: dict[str, Any] = configuration.table("memory") if configuration is not None else {}
    return MemorySettings(**{name: value for name, value in memory.items() if name in MemorySettings.model_fields})


def _score_of(hit: Hit, explanation: Explanation, *, is_ranked: bool) -> float:
    """Relevance of a hit; a reranker of the user's has the last word on the order, and its scores may mean anything."""
    likely = 1.0 if explanation.relevance is None else explanation.relevance
    return likely * ((_K + 1) / (_K + hit.rank) if is_ranked or hit.fused is None else max(hit.fused, 0.0))


def _reasons(hit: Hit) -> tuple[str, ...]:
    """Evidence for the session of a hit, in log-odds."""
    evidence = [one for one in hit.credits if not one.rank]
    days = {one.arm: f" ({counted(int(one.score), 'day')})" for one in evidence if one.arm == "age" and one.score >= 0}
    return tuple(f"{one.arm} {one.credit:+.2f}{days.get(one.arm, '')}" for one in evidence)


def _note(text: str) -> str:
    """A remark of a search as a line below the hits."""
    return f"Search: {on_one_line(text)}."
