"""Learned fusion: a weighted sum of features, which was trained on questions with known answers.

The sum is in log-odds, so each summand tells how much a feature speaks for a candidate.
``benchmarks/train.py`` trains the weights; ``benchmarks/results/fusion.md`` has the figures.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from llama_index_contextual.retrievers.bm25_index import TermScores
from llama_index_contextual.retrievers.features import FEATURES, Candidates, Feature, Query
from llama_index_contextual.retrievers.rankings import FeatureColumn, ScoreTable, stretch
from llama_index_contextual.retrievers.terms import query_groups
from llama_index_contextual.retrievers.vector import E5, MINILM
from llama_index_contextual.utils.language import tell_language
from llama_index_contextual.utils.tokens import share_spelled

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import date

    from llama_index_contextual.retrievers.arrays import Floats
    from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
    from llama_index_contextual.retrievers.chunk_info import ChunkInfo
    from llama_index_contextual.retrievers.node_index import KeywordView
    from llama_index_contextual.retrievers.rankings import Ranking

LEAST: Final = 1e-6  # learned scores stay greater than 0
# With so many of its letters in known words, a question is one for the English model.
_KNOWN_SHARE: Final = 0.5
_LEAST_TRUST: Final = 0.2  # vectors still tell apart what words do not
# Of multilingual-e5 where words match, beside English; where none does, 1 more.
_E5_TRUST: Final = 0.8
# Of the information of a query: so much matches where query and notes speak one language.
_MATCHED: Final = 0.25


@cache
def shipped_weights(section: str) -> Any:
    """Return the weights of a model that comes with the package: ``messages`` or ``relevance``."""
    return json.loads(files(__package__).joinpath("weights.json").read_text("utf-8"))[section]


def fuse_learned(
    text: str,
    today: date,
    rankings: Sequence[Ranking],
    keywords: tuple[str, ContextualBM25Retriever] | None,
    admitted: frozenset[str],
    features: Sequence[Feature] = FEATURES,
) -> tuple[ScoreTable, KeywordReads]:
    """Return the candidates scored by the sum of all features, and what is known of them.

    A score is a share of the best sum: it falls about as slowly as by ranks, so that a recency
    decay weighs as much.

    Args:
        text: The query.
        today: The day from which "last week" counts.
        rankings: The answers of all retrievers to all queries.
        keywords: The name of a keyword retriever and the retriever; None where there is none.
        admitted: The ids that the filters admit.
        features: The reasons to rank a candidate higher or lower.
    """
    table = ScoreTable(rankings)
    reads = read_candidates(text, keywords, table.node_ids, admitted)
    query, candidates = collect(text, today, rankings, table, reads, admitted)
    score_candidates(query, candidates, table, features)
    return table, reads


def score_candidates(
    query: Query, candidates: Candidates, table: ScoreTable, features: Sequence[Feature]
) -> None:
    """Score the candidates in a table: the log-odds that each answers the query, and its share."""
    for feature in features:
        values = feature.values(query, candidates)
        column = FeatureColumn(feature.name, values, feature.weight * values)
        table.features.append(column)
        candidates.scores = candidates.scores + column.credits
    table.raw = candidates.scores
    best = float(table.raw.max(initial=0.0))
    if best > 0:
        table.scores = np.maximum(table.raw / best, LEAST)
    else:
        table.scores = np.ones(len(table.node_ids))


# From rankings to candidates


@dataclass(frozen=True, slots=True)
class KeywordReads:
    """What a keyword retriever knows of the candidates of a query.

    Attributes:
        retriever: The name of the keyword retriever.
        terms: The terms of the query and their counts in each candidate.
        nearness: How near to each other neighbouring terms stand in each candidate.
        info: What is known of each candidate.
        named: The best chunk of each document whose name the query is, and the value of that name.
    """

    retriever: str
    terms: TermScores
    nearness: Floats
    info: Sequence[ChunkInfo | None]
    named: Mapping[str, float]


def read_candidates(
    text: str,
    keywords: tuple[str, ContextualBM25Retriever] | None,
    node_ids: Sequence[str],
    admitted: frozenset[str],
    *,
    with_nearness: bool = True,
) -> KeywordReads:
    """Read what the features need from a keyword retriever, all from one state of its index.

    Args:
        text: The query.
        keywords: The name of the retriever and the retriever; None where there is none: then
            nothing is known.
        node_ids: The candidates.
        admitted: The ids that the filters admit.
        with_nearness: Whether the text is short enough for the nearness of its words.
    """
    size = len(node_ids)
    if keywords is None:
        terms = TermScores((), (), (), np.zeros((size, 0)), np.zeros((size, 0)))
        return KeywordReads("", terms, np.zeros(size), [None] * size, {})
    name, retriever = keywords

    def read(store: KeywordView) -> KeywordReads:
        scopes: list[Collection[int] | None] = [None]
        if retriever.filters is not None or not admitted.issuperset(node_ids):
            scopes.append(set(store.rows_of(admitted).values()))
        named: dict[str, float] = {}
        for rows in scopes:
            for chunk, value in retriever.named(store, text, rows).items():
                named[chunk.node_id] = value
        groups = query_groups(text)
        return KeywordReads(name, *store.describe(groups, node_ids, with_nearness), named)

    return retriever.ask(read)


def collect(
    text: str,
    today: date,
    rankings: Sequence[Ranking],
    table: ScoreTable,
    reads: KeywordReads,
    admitted: frozenset[str],
) -> tuple[Query, Candidates]:
    """Return the query and the candidates of some rankings as the features read them."""
    nothing = np.zeros(len(table.node_ids))
    trust = trust_in(text, rankings, reads)
    weight_of_kind = Counter[bool]()
    for ranking in rankings:
        weight_of_kind[ranking.is_keyword] += ranking.weight  # type: ignore[assignment]
    scores_of_kind = {True: nothing.copy(), False: nothing.copy()}
    cosines = matched = nothing
    for ranking in rankings:
        if not ranking.weight:
            continue
        values = table.spread(ranking, stretch(ranking.scores, ranking.compared_scores))
        share = ranking.weight / weight_of_kind[ranking.is_keyword]
        scores_of_kind[ranking.is_keyword] += trust.get(ranking.retriever, 1.0) * share * values
        if not ranking.is_keyword:
            cosines = values
        if ranking.query == 0 and ranking.retriever == reads.retriever:
            matched = table.spread(ranking, matched_shares(ranking, reads))
    query = Query(text, today, reads.terms.groups, np.array(reads.terms.idfs))
    candidates = Candidates(
        node_ids=table.node_ids,
        vector_scores=scores_of_kind[False],
        keyword_scores=scores_of_kind[True],
        matched=matched,
        term_counts=reads.terms.counts,
        nearness=reads.nearness,
        info=reads.info,
        named=reads.named,
        admitted=admitted,
        cosines=cosines,
        scores=nothing,
    )
    return query, candidates


def matched_shares(ranking: Ranking, reads: KeywordReads) -> Floats:
    """Return the BM25 scores of a ranking as shares of the information of the query."""
    information = math.fsum(reads.terms.idfs) or math.inf
    return np.minimum(ranking.scores / information, 1.0)


# Trust in embeddings


def trust_in(text: str, rankings: Sequence[Ranking], reads: KeywordReads) -> dict[str, float]:
    """Return factors for the scores of retrievers by name; those of other retrievers are 1.

    The vectors of all-MiniLM-L6-v2 count by the share of the query that its vocabulary knows: fully
    for an English query, a fifth for a Japanese one. Those of multilingual-e5 count fully for an
    English query, and less in another language, where words match better. They count more, and
    keywords less, where no chunk contains much of the query: it may be in another language than the
    notes. ``benchmarks/results/languages.md`` has the figures.
    """
    trust: dict[str, float] = {}
    for ranking in rankings:
        if ranking.model == MINILM:
            known_share = share_spelled(text) / _KNOWN_SHARE
            trust[ranking.retriever] = max(_LEAST_TRUST, min(1.0, known_share))
    multilingual = [ranking.retriever for ranking in rankings if ranking.model == E5]
    if multilingual and any(reads.terms.idfs):
        best_matches = [
            float(matched_shares(ranking, reads).max(initial=0.0))
            for ranking in rankings
            if ranking.retriever == reads.retriever
        ]
        matched = min(max(best_matches, default=0.0) / _MATCHED, 1.0)
        least = 1.0 if tell_language(text) == "en" else _E5_TRUST
        trust[reads.retriever] = matched
        trust.update(dict.fromkeys(multilingual, max(least, _E5_TRUST + 1 - matched)))
    return trust
