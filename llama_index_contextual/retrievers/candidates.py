"""A query and its candidates as the features of the ranking read them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import date

    from llama_index_contextual.retrievers.arrays import Floats
    from llama_index_contextual.retrievers.chunk_info import ChunkInfo
    from llama_index_contextual.retrievers.terms import Group


@dataclass(frozen=True)
class Query:
    """A query as the features read it.

    Attributes:
        text: The query without its operators.
        today: The day from which "last week" counts.
        groups: Its distinct terms, each with its alternatives.
        idf: The rarity of each term; 0 where no keyword retriever tells it.
    """

    text: str
    today: date
    groups: Sequence[Group]
    idf: Floats

    @cached_property
    def information(self) -> float:
        """Return the summed rarity of all terms, which no BM25 score exceeds."""
        return float(sum(self.idf.tolist()))

    @cached_property
    def is_question(self) -> bool:
        """Return whether the query is prose, which is about more than a name."""
        return "?" in self.text

    @cached_property
    def columns(self) -> Mapping[str, list[int]]:
        """Return the places of each alternative among the terms."""
        columns = defaultdict[str, list[int]](list)
        for column, group in enumerate(self.groups):
            for term in group:
                columns[term].append(column)
        return columns


@dataclass(frozen=True)
class Candidates:
    """The union of the retrievers' answers, one row per node.

    Where no keyword retriever describes the nodes, what it would tell is 0.

    Attributes:
        node_ids: Ids in row order.
        vector_scores: Stretched scores of the vector retrievers, times the trust in them, by their
        weights.
        keyword_scores: The same for the keyword retrievers.
        matched: BM25 as a share of the information of the query.
        term_counts: How often each node holds each term, shape (rows, terms).
        nearness: How near to each other neighbouring terms stand, 0 to 1.
        info: What is known of each chunk, None for one that the store has lost.
        named: The best chunk of each document whose name the query is, and the value of that name.
        admitted: The ids that the filters admit.
        cosines: Stretched scores of the vector retriever, 0 for a node that it did not return.
    """

    node_ids: Sequence[str]
    vector_scores: Floats
    keyword_scores: Floats
    matched: Floats
    term_counts: Floats
    nearness: Floats
    info: Sequence[ChunkInfo | None]
    named: Mapping[str, float]
    admitted: Collection[str]
    cosines: Floats

    @cached_property
    def described(self) -> Sequence[tuple[int, ChunkInfo]]:
        """Return the row and the info of each chunk that has one."""
        return [(row, info) for row, info in enumerate(self.info) if info is not None]

    @cached_property
    def code_files(self) -> Mapping[str, Sequence[int]]:
        """Return the rows of each file of source code."""
        rows = defaultdict[str, list[int]](list)
        for row, info in self.described:
            if info.is_code:
                rows[info.path].append(row)
        return rows
