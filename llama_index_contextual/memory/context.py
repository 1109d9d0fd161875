"""`MemoryContext`: what notes have to say about a message."""

from __future__ import annotations

import asyncio
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from llama_index_contextual.errors import SettingError, whole
from llama_index_contextual.keyword import DAYS_AFTER, check_filters, lexicon_of
from llama_index_contextual.memory.current import newer_values_first, newest_first
from llama_index_contextual.memory.derived import derive_queries, rank_derived
from llama_index_contextual.memory.digest import DISABLED, Current, MemoryDigest, on_one_line
from llama_index_contextual.memory.gate import MAX_MESSAGE, ParsedMessage, clean_message, gate, read_message
from llama_index_contextual.memory.ranking import entries_of, is_seen, left_out, rank, select
from llama_index_contextual.memory.search import HitPool, PoolHit, PoolSearch, days_filter
from llama_index_contextual.memory.settings import MOST_HITS, MemorySettings
from llama_index_contextual.metadata import day_of
from llama_index_contextual.retrieval import AUTO, RecencyPostprocessor, min_score_for

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from llama_index.core.vector_stores.types import MetadataFilters

Now = datetime | date | None

_CUT_NOTE: Final = f"Message: only its first {MAX_MESSAGE:,} characters were read."
_ANY: Final = 1e-6  # where a question is relevant enough, its hits differ by their share of the best alone
_SURE: Final = 0.5  # a digest says of hits that are less relevant that they may not answer
_SEARCH_TOKENS: Final = 150  # of each hit of a search, as in a full digest of four


def gate_digest(message: str, settings: MemorySettings) -> MemoryDigest | None:
    """Return the digest of a message that needs no memory, without asking an index; None for any other message."""
    if not settings.enabled:
        return MemoryDigest(applicable=False, reason=DISABLED)
    reason = gate(message, lexicon_of(message), commands=settings.commands)
    return MemoryDigest(applicable=False, reason=reason) if reason else None


class MemoryContext:
    """Turns a user's message into a digest of what notes say about it, or into nothing within microseconds.

    ::

        memory = MemoryContext(ContextualIndex.open("notes"))
        print(memory.get("does JC like ginger?").markdown)

    Thread-safe; it keeps no state between messages (give ``seen=`` to leave out what was shown already).

    Args:
        source: A ``ContextualIndex``, one of our retrievers, or any other of LlamaIndex (which does not say how
            relevant its hits are, so that they are never held back).
        settings: See :class:`MemorySettings`. Default: what the configuration of the index says.
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
        self._search = PoolSearch(source, self.settings)

    def get(self, message: str, *, seen: Collection[str] = (), now: Now = None) -> MemoryDigest:
        """Return the digest for a message.

        Args:
            message: What the user wrote.
            seen: Ids or citations of hits that were shown before; they are left out.
            now: The present; default the clock's.
        """
        if (closed := gate_digest(message, self.settings)) is not None:
            return closed
        present = self._now(now)
        if self.settings.ranking == "derived":
            return self._derived(message, seen, present)
        parsed, how = self._read(message, present)
        pool = self._search.search(parsed.text, **how)
        dated = (
            self._search.search(parsed.text, _days(parsed), compares_all=False, **how) if parsed.dates else HitPool()
        )
        return self._digest(parsed, pool, dated, seen, present)

    async def aget(self, message: str, *, seen: Collection[str] = (), now: Now = None) -> MemoryDigest:
        """Return the digest of :meth:`get`, off the event loop."""
        return await asyncio.to_thread(self.get, message, seen=seen, now=now)

    def search(self, query: str, *, max_results: int = 10, filters: MetadataFilters | None = None) -> MemoryDigest:
        """Return the hits of a precise query: no gate, no recency.

        Args:
            query: What to look for.
            max_results: Most hits.
            filters: Notes that may be found; :func:`note_filters` makes them from path, tag and days.

        Raises:
            SettingError: A setting cannot work, or the source of this memory cannot filter.
        """
        settings = self._for_search(max_results, filters)
        pool = self._search.search(query, filters, least=settings.min_relevance)
        return self._searched(query, pool, settings)

    async def asearch(
        self, query: str, *, max_results: int = 10, filters: MetadataFilters | None = None
    ) -> MemoryDigest:
        """Return the hits of :meth:`search`, off the event loop."""
        return await asyncio.to_thread(self.search, query, max_results=max_results, filters=filters)

    def _now(self, now: Now) -> datetime:
        now = now or (datetime.now().astimezone() if self._clock is None else self._clock())
        if not isinstance(now, datetime):
            now = datetime(now.year, now.month, now.day)  # noqa: DTZ001  the zone follows
        return now if now.tzinfo else now.astimezone()

    def _read(self, message: str, now: datetime) -> tuple[ParsedMessage, dict[str, Any]]:
        """Return the parsed message, and the arguments of a search for it."""
        parsed = read_message(message, lexicon_of(message), now.date(), plain=self._search.plain)
        return parsed, {"form": parsed.form, "subject": parsed.subject, "today": now.date()}

    def _digest(
        self, parsed: ParsedMessage, pool: HitPool, dated: HitPool, seen: Collection[str], now: datetime
    ) -> MemoryDigest:
        settings = self.settings
        recency = None
        if settings.include_recency and not pool.aged:
            recency = RecencyPostprocessor(
                half_life_days=settings.half_life_days,
                weight=settings.recency_weight,
                evergreen=settings.evergreen,
                now=now,
            )
        ranked = rank(pool, dated, parsed.dates, recency, settings)
        least = min_score_for(settings.min_relevance, is_calibrated=pool.judgement.is_calibrated)
        judged = None if pool.judgement.relevance is None or not least else least
        if judged and settings.min_relevance == AUTO and (pool.judgement.relevance or 0.0) >= judged:
            judged = _ANY
        analyzer, current = self._search.analyzer, dict[str, Current]()
        terms, groups = analyzer.tokens, analyzer.query_groups(parsed.text)
        days = tuple(_shown(named.first, named.last) for named in parsed.dates)
        ordered = ranked
        if parsed.form == "question" and not parsed.dates:
            ordered = newer_values_first(ranked, parsed.text, terms)
        chosen = select(ordered, settings, least=judged, seen=seen, has_subject=parsed.has_subject)
        if not parsed.dates:  # "what was the timeout in March?" asks for what is older
            chosen, current = newest_first(chosen, ranked, terms)
            chosen = [one for one in chosen if not is_seen(one, seen)]
        entries = entries_of(chosen, groups, terms, settings.max_tokens, current)
        notes = [*([_CUT_NOTE] if parsed.is_cut else []), *map(_note, pool.notes)]
        notes += [_note(f"none of these is of {' or '.join(days)}")] if _elsewhen(chosen, parsed) else []
        doubt = _low_relevance_note(pool)
        if doubt or not entries:  # of the many words of a message those that no note has matter where it finds little
            notes += map(_note, filter(None, [pool.judgement.unknown_words, doubt if entries else ""]))
        if ranked and not chosen and judged and ranked[0].score < judged:
            notes.append(_note(left_out(ranked, judged)))
        reason = "found" if entries else ("nothing relevant enough" if ranked else "nothing found")
        return MemoryDigest(
            applicable=True,
            reason=reason,
            entries=entries,
            form=parsed.form,
            queries=pool.queries,
            dates=days,
            notes=tuple(notes),
            left_out=len(ranked) - len(entries),
        )

    def _derived(self, message: str, seen: Collection[str], now: datetime) -> MemoryDigest:
        """Return the digest of ``ranking="derived"``; it is empty where no query has a relevant hit."""
        settings, text = self.settings, clean_message(message[:MAX_MESSAGE])
        queries = derive_queries(text, lexicon_of(message))
        pools = [self._search.search(query) for query in queries]
        ranked = rank_derived(pools, now.date(), settings.half_life_days if settings.include_recency else None)
        known = [one for pool in pools if (one := pool.judgement.relevance) is not None]
        calibrated = bool(pools) and pools[0].judgement.is_calibrated
        least = min_score_for(settings.min_relevance, is_calibrated=calibrated) if pools else 0.0
        chosen = select(ranked if not known or max(known) >= least else [], settings, seen=seen)
        groups = self._search.analyzer.query_groups(text)
        entries = entries_of(chosen, groups, self._search.analyzer.tokens, settings.max_tokens)
        reason = "found" if entries else ("nothing relevant enough" if ranked else "nothing found")
        notes = [_CUT_NOTE] if len(message) > MAX_MESSAGE else []
        notes += [_note(note) for pool in pools for note in pool.notes]
        left_out = len(ranked) - len(entries)
        return MemoryDigest(
            applicable=True, reason=reason, entries=entries, queries=queries, notes=tuple(notes), left_out=left_out
        )

    def _for_search(self, max_results: int, filters: MetadataFilters | None) -> MemorySettings:
        check_filters(filters)
        if filters is not None and not self._search.can_filter:
            raise SettingError(
                "this memory's retriever cannot filter. Cure: MemoryContext over a ContextualIndex, or over a "
                "ContextualFusionRetriever of arms that can."
            )
        most = whole("max_results", max_results, most=MOST_HITS)
        return self.settings.changed(max_results=min(most, self._search.pool), max_tokens=_SEARCH_TOKENS * most)

    def _searched(self, query: str, pool: HitPool, settings: MemorySettings) -> MemoryDigest:
        ranked = rank(pool, HitPool(), (), None, settings)
        chosen = select(ranked, settings)
        analyzer = self._search.analyzer
        groups = analyzer.query_groups(clean_message(query))
        entries = entries_of(chosen, groups, analyzer.tokens, settings.max_tokens)
        reason = "found" if entries else "nothing found"
        notes = tuple(map(_note, filter(None, (*pool.notes, pool.judgement.unknown_words, _low_relevance_note(pool)))))
        left_out = pool.left_out + len(ranked) - len(entries)
        return MemoryDigest(
            applicable=True, reason=reason, entries=entries, queries=(query,), notes=notes, left_out=left_out
        )


def _note(text: str) -> str:
    """Return a remark of a search as a line below the hits."""
    return f"Search: {on_one_line(text)}."


def _low_relevance_note(pool: HitPool) -> str:
    """Return a remark where hits hardly answer, and relevance is calibrated; else ""."""
    if (
        not pool.hits
        or not pool.judgement.is_calibrated
        or pool.judgement.relevance is None
        or pool.judgement.relevance >= _SURE
    ):
        return ""
    return f"the notes may not answer this, relevance {pool.judgement.relevance:.2f}"


def _days(parsed: ParsedMessage) -> MetadataFilters:
    """Admit the first and the last day that a message names, with the days after it in which notes speak of it."""
    first, last = min(one.first for one in parsed.dates), max(one.last for one in parsed.dates)
    return days_filter(first, last + timedelta(days=min(DAYS_AFTER, (date.max - last).days)))


def _elsewhen(chosen: Sequence[PoolHit], parsed: ParsedMessage) -> bool:
    """Return whether a message names a day, and what was found for it is of other days."""
    days = [day for one in chosen if (day := day_of(one.node.metadata)) is not None]
    return bool(days) and bool(parsed.dates) and all(named.distance(day) for named in parsed.dates for day in days)


def _shown(first: date, last: date) -> str:
    return first.isoformat() if first == last else f"{first.isoformat()}/{last.isoformat()}"


def _configured(source: Any) -> MemorySettings:
    """Return the settings of memory of an index, else the defaults."""
    configuration = getattr(getattr(source, "settings", None), "configuration", None)
    memory: dict[str, Any] = configuration.table("memory") if configuration is not None else {}
    return MemorySettings(**{name: value for name, value in memory.items() if name in MemorySettings.model_fields})
