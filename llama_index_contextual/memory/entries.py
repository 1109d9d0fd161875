"""Entries of a digest: the snippets of its hits within a budget of tokens."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

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
from llama_index_contextual.text import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import date

    from llama_index_contextual.memory.current import PoolHit

_WIDE: Final = re.compile(r"[^\u0000-\u024f]")  # beyond Latin scripts
_LEAST_TOKENS: Final = 20  # fewer of a hit tell nothing


def is_seen(one: PoolHit, seen: Collection[str]) -> bool:
    """Whether a hit was shown before, by its id or its citation."""
    return bool(seen) and (one.id in seen or _entry(one, "", None).citation in seen)


def entries_of(
    chosen: Sequence[PoolHit],
    groups: Sequence[tuple[str, ...]],
    terms: Callable[[str], Collection[str]],
    max_tokens: int,
    current: Mapping[str, Current],
) -> tuple[MemoryEntry, ...]:
    """Entries whose snippets share the budget; what one leaves goes to those after it.

    Args:
        chosen: Best first.
        groups: The query's terms with their alternatives.
        terms: Cuts a text into terms.
        max_tokens: For all lines together, estimated. Where it is short, later hits are left out; the first never is.
        current: By id what a hit has of a fact that has changed.
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
        now = current.get(one.id)
        share = left // (len(chosen) - position) - estimate_tokens(_entry(one, "", None, now).block)
        if share < _LEAST_TOKENS and entries:
            break
        limit = int(max(share, _LEAST_TOKENS) * len(text) / max(1, estimate_tokens(text)))
        snippet, day = choose_snippet(text, weights, terms, limit=limit)
        if now is not None and now.text not in snippet:
            snippet = now.text
        entries.append(_entry(one, visible(snippet), day, now))
        left -= estimate_tokens(entries[-1].block)
    return tuple(entries)


def _entry(one: PoolHit, snippet: str, day: date | None, current: Current | None = None) -> MemoryEntry:
    metadata, document = one.node.metadata, one.node.ref_doc_id or ""
    day = day or day_of(metadata)
    start, end = (
        value if isinstance(value := value_of(metadata, key), int) else None for key in (START_LINE, END_LINE)
    )
    return MemoryEntry(
        id=one.id,
        place=Place(path_of(metadata) or document or one.id, start, end, str(metadata.get(PAGE_LABEL) or ""), document),
        snippet=snippet,
        score=round(min(one.score, 1.0), 6),
        date=day.isoformat() if day else None,
        header_path=on_one_line(str(value_of(metadata, HEADER_PATH) or "")),
        cosine=None if one.cosine is None else round(one.cosine, 4),
        matched_terms=tuple(term.rsplit(":", 1)[-1] for term in one.terms),  # without the analyzer's language
        reasons=one.reasons,
        current=current,
    )


def estimate_tokens(text: str) -> int:
    """Estimated LLM tokens without a tokenizer: four characters each, one character each beyond Latin scripts."""
    wide = 0 if text.isascii() else len(_WIDE.findall(text))
    return wide + -(-(len(text) - wide) // 4)
