"""The reads of a keyword arm beside its hits: nodes, values, term scores, unknown words."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_contextual.keyword import (
    Analyzer,
    TermEvidence,
    both,
    filter_in_words,
    having,
    keys_of,
    tag_of,
    unknown_words,
)
from llama_index_contextual.metadata import INLINE_TAGS, TAGS
from llama_index_contextual.text.tokens import is_spelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.keyword import Group, Nearness, TermScores
    from llama_index_contextual.retrieval.search import KeywordSearch, StoreReader

_READ_FOR_FLAGS: Final = 50  # chunks that are read for a flag
_NEAREST: Final = 3  # tags that a message names
_AROUND: Final = "`'\"()[]{}.,;:!?"


class KeywordReads:
    """The reads of a keyword arm; those of a class with a reader, an analyzer and filters."""

    analyzer: Analyzer
    filters: MetadataFilters | None
    _reader: StoreReader[KeywordSearch]

    def snapshot(self) -> AbstractContextManager[None]:
        """Return a context in which everything that is read comes from one state of the store."""
        return self._reader.snapshot()

    def __len__(self) -> int:
        return self._reader.ask(lambda store: store.count())

    @property
    def node_ids(self) -> list[str]:
        """Ids of the nodes that this view may return."""
        return self.selected_ids()

    def selected_ids(self, filters: MetadataFilters | None = None) -> list[str]:
        """Return the ids of the nodes that these filters and this view's own admit."""
        all_filters = both(self.filters, filters)
        return self._reader.ask(lambda store: store.selected_ids(all_filters))

    def filters_that_admit_none(self) -> list[str]:
        """Return those of this view's filters that no node passes, in words; each is tried by itself."""
        parts = self.filters.filters if self.filters is not None and self.filters.condition == "and" else []
        alone = {filter_in_words(part): MetadataFilters(filters=[part]) for part in parts}

        def work(store: KeywordSearch) -> list[str]:
            return [words + _nearest_tags(store, part) for words, part in alone.items() if not store.count(part)]

        return self._reader.ask(work)

    def keys_that_no_node_has(self) -> list[str]:
        """Return the metadata keys that this view's filters name and no node has."""
        return self._reader.ask(lambda store: [key for key in keys_of(self.filters) if not store.count(having(key))])

    def nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Return new node objects for those of the ids that are indexed."""
        ids = list(node_ids)
        return self._reader.ask(lambda store: store.nodes(ids))

    def term_scores(self, text: str, node_ids: Iterable[str]) -> TermScores:
        """Return the share of each term of a query in the score of each node."""
        groups, ids = groups_of(self.analyzer, text), list(node_ids)
        return self._reader.ask(lambda store: store.term_scores(groups, ids))

    def nearness(self, text: str, node_ids: Iterable[str]) -> Nearness:
        """Return the nearness of neighbouring words of a query in each node."""
        groups, ids = groups_of(self.analyzer, text), list(node_ids)
        return self._reader.ask(lambda store: store.nearness(groups, ids))

    def values(self, key: str, node_ids: Iterable[str]) -> dict[str, Any]:
        """Return the nodes' values of a metadata key without reading the nodes; None where one has none."""
        ids = list(node_ids)
        return self._reader.ask(lambda store: store.values(key, ids))

    def texts(self, node_ids: Iterable[str]) -> dict[str, str]:
        """Return the texts of those of the nodes that are indexed."""
        ids = list(node_ids)
        return self._reader.ask(lambda store: store.texts(ids))

    def document_frequency(self, text: str) -> dict[str, int]:
        """Return for each term of a text how many nodes of the index hold it: 1 is rare, 0 is unknown."""
        terms = self.term_scores(text, [])
        return {group[0]: frequency for group, frequency in zip(terms.groups, terms.frequencies, strict=True)}

    def unknown(self, text: str) -> list[str]:
        """Return the words of a text that no node holds."""

        def work(store: KeywordSearch) -> list[str]:
            terms = store.term_scores(groups_of(self.analyzer, text), [])
            missing = [group for group, number in zip(terms.groups, terms.frequencies, strict=True) if not number]
            return unknown_words(text, self.analyzer, missing)

        return self._reader.ask(work)

    def may_exclude(self, word: str) -> bool:
        """Return whether ``-word`` can be an operator: it is a word of English or the index, and no flag in a chunk."""

        def work(store: KeywordSearch) -> bool:
            hits = store.keyword_query(groups_of(self.analyzer, word), _READ_FOR_FLAGS)
            texts = store.texts(hit.node_id for hit in hits).values()
            flag = f"-{word}"
            written = any(flag in text and flag in (part.strip(_AROUND) for part in text.split()) for text in texts)
            return (bool(hits) or is_spelled(word)) and not written

        return self._reader.ask(work)

    def evidence(self, text: str, node_ids: Iterable[str]) -> dict[str, list[TermEvidence]]:
        """Return the terms of a query that each node holds, most important first; [] for a node that holds none."""
        ids = list(dict.fromkeys(node_ids))
        return dict(zip(ids, self.term_scores(text, ids).evidence(), strict=True))


@lru_cache(maxsize=64)
def groups_of(analyzer: Analyzer, text: str) -> Sequence[Group]:
    """Return the terms of a query, which a fusion needs three times for each question."""
    return tuple(analyzer.query_groups(text))


def _nearest_tags(store: KeywordSearch, filters: MetadataFilters) -> str:
    """The tags of an index that are nearest to the tag of a filter, as the end of a sentence; "" for other filters."""
    tag = tag_of(filters.filters[0])
    if tag is None:
        return ""
    ids = store.selected_ids()
    values = [value for key in (TAGS, INLINE_TAGS) for value in store.values(key, ids).values() if value]
    listed = [value if isinstance(value, list | tuple) else str(value).split(",") for value in values]
    counts = Counter(str(one).strip() for several in listed for one in several)
    near = get_close_matches(tag, counts, _NEAREST, 0.5) or [one for one, _ in counts.most_common(_NEAREST)]
    return f" (tags that there are: {', '.join(near)})" if near else " (nothing has a tag)"
