"""Order hits, abstain, leave out repetitions, cut. Pure functions."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from llama_index.core.schema import NodeWithScore

from llama_index_contextual.keyword import DAYS_AFTER, closeness
from llama_index_contextual.memory.digest import Current, MemoryEntry, Place, on_one_line, visible
from llama_index_contextual.memory.snippet import choose_snippet
from llama_index_contextual.metadata import (
    END_LINE,
    FRONT_MATTER,
    HEADER_PATH,
    PAGE_LABEL,
    START_LINE,
    day_of,
    path_of,
    value_of,
)
from llama_index_contextual.retrieval import NearDuplicates
from llama_index_contextual.text import counted, readable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import date

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.keyword import NamedDate
    from llama_index_contextual.memory.search import HitPool, PoolHit
    from llama_index_contextual.memory.settings import MemorySettings
    from llama_index_contextual.retrieval import RecencyPostprocessor

_LEAST_SHARE: Final = 0.3  # of the best hit's score; what has less is padding, and costs no recall@10 on LoCoMo notes
_DATED_SHARE: Final = 0.6  # being first among the notes of a named day is worth less than being first among all
_WIDE: Final = re.compile(r"[^\u0000-\u024f]")  # beyond Latin scripts
_LEAST_TOKENS: Final = 20  # fewer of a hit tell nothing


def rank(
    pool: HitPool,
    dated: HitPool,
    dates: Sequence[NamedDate],
    recency: RecencyPostprocessor | None,
    settings: MemorySettings,
) -> list[PoolHit]:
    """Order what was found: by score, times the named date or else recency.

    Args:
        pool: What was found.
        dated: What was found among notes of the named days.
        dates: The dates that the message names.
        recency: Applied where no date is named; None leaves it out.
        settings: Boosts.
    """
    hits = {one.id: one for one in (*dated.hits, *pool.hits)}
    of_all = {one.id: one.score for one in pool.hits}
    of_days = {one.id: _DATED_SHARE * one.score for one in dated.hits}
    scores = {node_id: max(of_all.get(node_id, 0.0), of_days.get(node_id, 0.0)) for node_id in hits}
    reasons = dict[str, str]()
    if dates:
        scores, reasons = _by_date(hits, scores, dates, settings.date_boost)
    elif recency is not None:
        scores, reasons = _by_age(hits, scores, recency)
    ranked = [
        replace(
            hit,
            score=scores[node_id],
            reasons=(*hit.reasons, *filter(None, [reasons.get(node_id)])),
            on_named_day=_on_named_day(hit.node, dates),
        )
        for node_id, hit in hits.items()
    ]
    return sorted(ranked, key=lambda one: (-one.score, one.id))


def _by_date(
    hits: Mapping[str, PoolHit], scores: Mapping[str, float], dates: Sequence[NamedDate], boost: float
) -> tuple[dict[str, float], dict[str, str]]:
    """Raise notes of the named days, and say so."""
    factors = {node_id: 1 + boost * closeness(day_of(hits[node_id].node.metadata), dates) for node_id in scores}
    raised = {node_id: score * factors[node_id] for node_id, score in scores.items()}
    return raised, {node_id: f"named date x{factor:.2f}" for node_id, factor in factors.items() if factor > 1}


def _by_age(
    hits: Mapping[str, PoolHit], scores: Mapping[str, float], recency: RecencyPostprocessor
) -> tuple[dict[str, float], dict[str, str]]:
    """Lower old notes, and say so."""
    explained = recency.explain(
        [NodeWithScore(node=hits[node_id].node, score=score) for node_id, score in scores.items()]
    )
    reasons = {
        why.node_id: f"recency x{why.multiplier:.2f} ({why.age_days:.0f} days, {why.reason})"
        for why in explained
        if why.multiplier != 1
    }
    return {why.node_id: why.score_after for why in explained}, reasons


def select(
    ranked: Sequence[PoolHit],
    settings: MemorySettings,
    *,
    least: float | None = None,
    seen: Collection[str] = (),
    has_subject: bool = True,
) -> list[PoolHit]:
    """Leave out padding, near-duplicates and hits that were seen before; cut to the limit.

    Args:
        ranked: Best first.
        settings: How many hits there may be.
        least: The relevance that a hit needs; None where nothing is left out, as of a retriever that does not tell how
            relevant its hits are.
        seen: Ids or citations to leave out.
        has_subject: Whether the message has keywords or names. "What did we do yesterday?" has none, so the notes of
            that day are its answer whatever they say.
    """
    if least is not None:
        relevant = [one for one in ranked if one.score >= least or (one.on_named_day and not has_subject)]
        ranked = [one for one in relevant if one.score >= _LEAST_SHARE * relevant[0].score]
    unseen = [one for one in ranked if not is_seen(one, seen)]
    kept = unseen[: 4 * settings.max_results]
    repeated = NearDuplicates()
    fresh = [one for one in kept if not repeated.has(one.node.get_content())]
    return fresh[: settings.max_results]


def is_seen(one: PoolHit, seen: Collection[str]) -> bool:
    """Whether a hit was shown before, by its id or its citation."""
    return bool(seen) and (one.id in seen or _entry(one, "", None).citation in seen)


def left_out(ranked: Sequence[PoolHit], least: float) -> str:
    """Count hits that are less relevant than they have to be, and name the best of them."""
    best = ranked[0]
    what = f"left out {counted(len(ranked), 'hit')}: the best, {_entry(best, '', None).citation},"
    return f"{what} has a relevance of {best.score:.3f}, below min_relevance={least:g}"


def entries_of(
    chosen: Sequence[PoolHit],
    groups: Sequence[tuple[str, ...]],
    terms: Callable[[str], Collection[str]],
    max_tokens: int,
    current: Mapping[str, Current] | None = None,
) -> tuple[MemoryEntry, ...]:
    """Make entries whose snippets share the budget; what one leaves goes to those after it.

    Args:
        chosen: Best first.
        groups: The query's terms with their alternatives.
        terms: Cuts a text into terms.
        max_tokens: For all lines together, estimated. Where it is short, later hits are left out; the first never is.
        current: By id what a hit says of a fact that has changed.
    """
    entries: list[MemoryEntry] = []
    left = max_tokens
    for position, one in enumerate(chosen):
        weights = {
            alternative: one.terms[group[0]] for group in groups for alternative in group if group[0] in one.terms
        }
        text = readable(one.node.get_content())
        properties = str(one.node.metadata.get(FRONT_MATTER) or "")
        if weights.keys() & set(terms(properties)):  # "birthday: 1991-05-02" may be what is asked for
            text = "\n\n".join([*properties.split("; "), text])
        now = (current or {}).get(one.id)
        bare = _entry(one, "", None, now)
        share = left // (len(chosen) - position) - estimate_tokens(bare.block)
        if share < _LEAST_TOKENS:
            if entries:
                break
            share = _LEAST_TOKENS
        chars_a_token = len(text) / max(1, estimate_tokens(text))
        snippet, day = choose_snippet(text, weights, terms, limit=int(share * chars_a_token))
        if now is not None and now.text not in snippet:
            snippet = now.text
        entry = _entry(one, visible(snippet), day, now)
        left -= estimate_tokens(entry.block)
        entries.append(entry)
    return tuple(entries)


def _on_named_day(node: BaseNode, dates: Sequence[NamedDate]) -> bool:
    """Whether a note is of a day, or a week at most, that the message names; "in 2023" is no such thing."""
    day = day_of(node.metadata)
    return day is not None and any(
        one.first <= day <= one.last and (one.last - one.first).days < DAYS_AFTER for one in dates
    )


def _entry(one: PoolHit, snippet: str, day: date | None, current: Current | None = None) -> MemoryEntry:
    metadata = one.node.metadata
    day = day or day_of(one.node.metadata)
    return MemoryEntry(
        id=one.id,
        place=Place(
            path=path_of(metadata) or one.node.ref_doc_id or one.id,
            start_line=_line(metadata, START_LINE),
            end_line=_line(metadata, END_LINE),
            page=str(metadata.get(PAGE_LABEL) or ""),
            document=one.node.ref_doc_id or "",
        ),
        snippet=snippet,
        score=round(min(one.score, 1.0), 6),  # a named day or a second query may raise it above
        date=day.isoformat() if day else None,
        header_path=on_one_line(str(value_of(metadata, HEADER_PATH) or "")),
        cosine=None if one.cosine is None else round(one.cosine, 4),
        matched_terms=tuple(term.rsplit(":", 1)[-1] for term in one.terms),  # without the analyzer's language
        reasons=one.reasons,
        current=current,
    )


def _line(metadata: Mapping[str, object], key: str) -> int | None:
    value = value_of(metadata, key)
    return value if isinstance(value, int) else None


def estimate_tokens(text: str) -> int:
    """Estimate LLM tokens without a tokenizer: four characters each, one character each beyond Latin scripts."""
    wide = 0 if text.isascii() else len(_WIDE.findall(text))
    return wide + -(-(len(text) - wide) // 4)
