"""Rankings of single retrievers, and their fusion: by ranks, by scores, or by learned features.

Learned fusion adds up features in log-odds, so each summand shows how much a feature supports a
candidate. ``benchmarks/train.py`` trains the weights on questions with known answers. The figures
are in ``benchmarks/results/fusion.md``.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES

from llama_index_contextual.retrievers.bm25_index import TermScores
from llama_index_contextual.retrievers.chunk_info import ChunkInfoIndex, Chunks
from llama_index_contextual.retrievers.features import FEATURES, Candidates, Feature, Query
from llama_index_contextual.retrievers.terms import query_groups
from llama_index_contextual.retrievers.vector import E5, MINILM
from llama_index_contextual.utils.errors import SettingError
from llama_index_contextual.utils.language import detect_language
from llama_index_contextual.utils.tokens import share_spelled

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import date

    from llama_index_contextual.retrievers.arrays import Floats
    from llama_index_contextual.retrievers.base import Candidate
    from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
    from llama_index_contextual.retrievers.node_index import KeywordView

_DEVIATIONS = 3  # standard deviations on each side of the mean that become the range 0 to 1

MIN_SCORE = 1e-6  # learned scores stay greater than 0
# The share of a query's letters in words of the English vocabulary that gives its vectors full
# trust.
_KNOWN_SHARE = 0.5
_MIN_TRUST = 0.2  # vectors still separate chunks that words cannot separate
# The trust in multilingual-e5 for a query that is not English, if words match. It is 1 higher if no
# word matches.
_E5_TRUST = 0.8
# The share of a query's information that matches if the query and the notes have the same language.
_MATCHED = 0.25


class KeywordMember(NamedTuple):
    """The keyword retriever of a fusion, with its name in the fusion."""

    name: str
    retriever: ContextualBM25Retriever


class Mode(str, Enum):
    """The modes of fusion in addition to LlamaIndex's.

    In these modes a model ranks, and weights only apply among retrievers of the same kind.
    """

    LEARNED = "learned"
    MESSAGE = "message"


MODES = tuple(mode.value for modes in (FUSION_MODES, Mode) for mode in modes)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The answer of one retriever to one query.

    Attributes:
        retriever: The name of the retriever.
        query_number: The number of the query. The original query is 0.
        weight: The share of the ranking in the fusion.
        node_ids: The ids, best first and without duplicates.
        scores: The score of each node, in descending order.
        unfiltered_count: The number of first nodes that are the best of all chunks, whatever the
            filters. Their scores set the scale, so that filters change no score.
        is_keyword: Whether the retriever matches words.
        model: The embedding whose cosines are the scores. "" is an embedding without calibration,
            and None means that the retriever does not report one.
    """

    retriever: str
    query_number: int
    weight: float
    node_ids: Sequence[str]
    scores: Floats
    unfiltered_count: int
    is_keyword: bool = False
    model: str | None = None

    @property
    def unfiltered_scores(self) -> Floats:
        """Return the scores of the best of all chunks, which set the scale."""
        return self.scores[: self.unfiltered_count]

    def score_of(self, node_id: str, missing: float) -> float:
        """Return the score of a node, or ``missing`` if the retriever did not return it."""
        if node_id not in self.node_ids:
            return missing
        return float(self.scores[self.node_ids.index(node_id)])


class Credit(NamedTuple):
    """A summand in the score of a hit, from a retriever or a feature.

    Attributes:
        name: The name of the retriever or feature.
        value: The score by the retriever, or the value of the feature.
        credit: The summand.
        query: The number of the query that the retriever answered.
        rank: The rank in the answer of the retriever, from 1. None for a feature.
    """

    name: str
    value: float
    credit: float
    query: int = 0
    rank: int | None = None


class FeatureColumn(NamedTuple):
    """The values of a feature and its summands in the scores, by row."""

    name: str
    values: Floats
    credits: Floats


class ScoreTable:
    """The candidates with their scores, and the summands of the scores.

    The table has one row per node, sorted by id.

    Args:
        rankings: The rankings. All their nodes are candidates.

    Attributes:
        node_ids: The ids in row order.
        row_of: The row of each id.
        raw: The sum of all credits. In the learned modes it is in log-odds.
        scores: The sums as shares of the best sum.
        rankings: Each ranking, with its credit for each of its nodes.
        features: The values and credits of each feature.
    """

    def __init__(self, rankings: Sequence[Ranking]) -> None:
        unique_ids = {node_id for ranking in rankings for node_id in ranking.node_ids}
        self.node_ids = sorted(unique_ids)
        self.raw: Floats = np.zeros(len(self.node_ids))
        self.scores: Floats = self.raw
        self.rankings = [(ranking, np.zeros(len(ranking.scores))) for ranking in rankings]
        self.features: list[FeatureColumn] = []
        self.row_of = {node_id: row for row, node_id in enumerate(self.node_ids)}

    def by_row(
        self,
        ranking: Ranking,
        values: Floats,
        missing: float = 0.0,
    ) -> Floats:
        """Return the values of a ranking's nodes by row.

        Nodes that are not candidates are left out.
        """
        spread = np.full(len(self.node_ids) + 1, missing)
        spread[[self.row_of.get(node_id, -1) for node_id in ranking.node_ids]] = values
        return spread[:-1]

    @cached_property
    def best_first(self) -> Mapping[str, float]:
        """Return the score of each candidate by id, best first. Ties are broken by id."""
        order = np.argsort(-self.scores, kind="stable").tolist()
        scores = self.scores.tolist()
        return {self.node_ids[row]: scores[row] for row in order}

    def has_feature(self, node_id: str, name: str) -> bool:
        """Return whether a feature has a value other than 0 for a node."""
        row = self.row_of.get(node_id)
        columns = [column for column in self.features if column.name == name]
        return row is not None and any(column.values[row] for column in columns)

    def credits_of(self, node_id: str) -> tuple[Credit, ...]:
        """Return the summands in the score of a node. They are empty if it is not a candidate."""
        row = self.row_of.get(node_id)
        if row is None:
            return ()
        parts: list[Credit] = []
        for ranking, credit in self.rankings:
            if node_id in ranking.node_ids:
                index = ranking.node_ids.index(node_id)
                score = float(ranking.scores[index])
                parts.append(
                    Credit(
                        ranking.retriever,
                        score,
                        float(credit[index]),
                        ranking.query_number,
                        index + 1,
                    )
                )
        for feature in self.features:
            if feature.values[row]:
                value = float(feature.values[row])
                parts.append(Credit(feature.name, value, float(feature.credits[row])))
        return tuple(parts)


def rank_candidates(candidates: Sequence[Candidate]) -> tuple[list[str], Floats]:
    """Return the ids and the scores of the candidates, best first, each node at its best rank.

    Candidates without a score follow in their order and get the lowest score. If no candidate has a
    score, scores descend evenly from 1.
    """
    scored: dict[str, float] = {}
    unscored: dict[str, None] = {}
    for node_id, score, _ in candidates:
        if score is None or math.isnan(score):
            unscored[node_id] = None
        elif node_id not in scored or score > scored[node_id]:
            scored[node_id] = score
    best_first = sorted((-score, node_id) for node_id, score in scored.items())
    best_ids = [node_id for _, node_id in best_first]
    scores = [scored[node_id] for node_id in best_ids]
    last_ids = [node_id for node_id in unscored if node_id not in scored]
    if scores:
        scores += [scores[-1]] * len(last_ids)
    else:
        scores = [1 - index / len(last_ids) for index in range(len(last_ids))]
    return best_ids + last_ids, np.array(scores, dtype=np.float64)


def stretch(
    scores: Floats,
    scale: Floats,
    *,
    by_range: bool = False,
) -> Floats:
    """Return the scores, stretched linearly so that the mean ± 3 standard deviations become 0 to 1.

    Scores below 0 become 0. If all scores are equal, they become 1.

    Args:
        scores: The scores of a ranking.
        scale: The scores that set the scale.
        by_range: Whether to map the lowest and the highest score to 0 and 1 instead.
    """
    low = float(scale.min(initial=math.inf))
    high = float(scale.max(initial=-math.inf))
    if low < high and not by_range:
        mean = float(scale.mean())
        spread = _DEVIATIONS * float(scale.std())
        low = mean - spread
        high = mean + spread
    if low >= high:
        return np.ones(len(scores))
    return np.maximum((scores - low) / (high - low), 0.0)


# By ranks or by scores


def fuse(
    rankings: Sequence[Ranking],
    *,
    mode: FUSION_MODES,
    k: float,
    pool: int,
) -> ScoreTable:
    """Fuse rankings by ranks or by scores.

    Args:
        rankings: The answers of all retrievers to all queries.
        mode: RECIPROCAL_RANK adds ``weight / (k + rank)``, with ranks from 1. RELATIVE_SCORE adds
            weighted scores, stretched to 0 to 1. DIST_BASED_SCORE does the same for the range of
            mean ± 3 standard deviations. SIMPLE uses the largest weighted score.
        k: The constant of reciprocal ranks.
        pool: The largest number of nodes in a ranking. Reciprocal ranks are normalized by it, so
            that a score means the same for any number of candidates.
    """
    table = ScoreTable([ranking for ranking in rankings if ranking.weight > 0])
    if not table.node_ids:
        return table
    largest: Floats = np.full(len(table.node_ids), -np.inf)
    for ranking, credit in table.rankings:
        credit[:] = ranking.weight * _shares(ranking, mode, k)
        table.raw += table.by_row(ranking, credit)
        largest = np.maximum(largest, table.by_row(ranking, credit, missing=-np.inf))
    floor = 0.0
    if mode is FUSION_MODES.SIMPLE:
        table.raw = largest
    if mode is FUSION_MODES.RECIPROCAL_RANK:
        # Subtract the score of the first rank beyond the pool. All candidates are above it.
        floor = min(ranking.weight for ranking, _ in table.rankings) / (k + pool + 1)
    lifted = table.raw - floor
    best = float(lifted.max())
    table.scores = lifted / best if best > 0 else lifted
    return table


def _shares(
    ranking: Ranking,
    mode: FUSION_MODES,
    k: float,
) -> Floats:
    """Return the share of each node of a ranking, before it is weighted."""
    if mode is FUSION_MODES.RECIPROCAL_RANK:
        return 1 / (k + np.arange(1.0, len(ranking.scores) + 1))
    if mode is FUSION_MODES.SIMPLE:
        return ranking.scores
    by_range = mode is FUSION_MODES.RELATIVE_SCORE
    return stretch(ranking.scores, ranking.scores, by_range=by_range)


# By learned features


@cache
def shipped_weights(section: str) -> Any:
    """Return the weights of a model in the package: ``messages`` or ``relevance``."""
    return json.loads(files(__package__).joinpath("weights.json").read_text("utf-8"))[section]


def fuse_learned(
    text: str,
    today: date,
    rankings: Sequence[Ranking],
    keywords: KeywordMember | None,
    matching_ids: frozenset[str],
    features: Sequence[Feature] = FEATURES,
) -> tuple[ScoreTable, KeywordData]:
    """Return the candidates, scored by the sum of all features, and their data from the index.

    A score is a share of the best sum. Scores descend about as slowly as those of reciprocal ranks,
    so a recency decay has about the same effect on both.

    Args:
        text: The query.
        today: The day that "last week" is relative to.
        rankings: The answers of all retrievers to all queries.
        keywords: The keyword retriever, or None.
        matching_ids: The ids of the nodes that match the filters.
        features: The features.
    """
    table = ScoreTable(rankings)
    keyword_data = read_candidates(text, keywords, table.node_ids, matching_ids)
    query, candidates = query_and_candidates(
        text, today, rankings, table, keyword_data, matching_ids
    )
    score_candidates(query, candidates, table, features)
    return table, keyword_data


def score_candidates(
    query: Query,
    candidates: Candidates,
    table: ScoreTable,
    features: Sequence[Feature],
) -> None:
    """Fill a table with the log-odds that each candidate answers the query, and their shares.

    Raises:
        SettingError: A feature does not return one finite number per candidate.
    """
    for feature in features:
        values = np.asarray(feature.values(query, candidates), np.float64)
        if values.shape != candidates.scores.shape:
            raise _wrong_values(feature.name, f"an array of the shape {values.shape}")
        column = FeatureColumn(feature.name, values, feature.weight * values)
        table.features.append(column)
        candidates.scores = candidates.scores + column.credits
    if not np.isfinite(candidates.scores).all():
        for column in table.features:
            if not np.isfinite(column.credits).all():
                raise _wrong_values(column.name, "NaN or infinity")
    table.raw = candidates.scores
    best = float(table.raw.max(initial=0.0))
    if best > 0:
        table.scores = np.maximum(table.raw / best, MIN_SCORE)
    else:
        table.scores = np.ones(len(table.node_ids))


def _wrong_values(name: str, values: str) -> SettingError:
    return SettingError(
        f"The method values() of the feature {name!r} must return one finite number per candidate "
        f"(got {values})."
    )


@dataclass(frozen=True, slots=True)
class KeywordData:
    """The data of the keyword index about the candidates of a query.

    Attributes:
        retriever: The name of the keyword retriever.
        terms: The terms of the query and their counts in each candidate.
        nearness: How close together neighbouring terms are in each candidate.
        chunks: The stored descriptions of the candidates.
        named: The id of the best chunk of each document that the query names, with the value of the
            name.
    """

    retriever: str
    terms: TermScores
    nearness: Floats
    chunks: Chunks
    named: Mapping[str, float]


def read_candidates(
    text: str,
    keywords: KeywordMember | None,
    node_ids: Sequence[str],
    matching_ids: frozenset[str],
    *,
    with_nearness: bool = True,
) -> KeywordData:
    """Read the data that features need from one state of the keyword index.

    Args:
        text: The query.
        keywords: The keyword retriever. None returns empty data.
        node_ids: The ids of the candidates.
        matching_ids: The ids of the nodes that match the filters.
        with_nearness: Whether to compute the nearness of terms, which is slow for long queries.
    """
    size = len(node_ids)
    if keywords is None:
        terms = TermScores((), (), (), np.zeros((size, 0)), np.zeros((size, 0)))
        unknown = ChunkInfoIndex().read(np.zeros(size, np.int64))
        return KeywordData("", terms, np.zeros(size), unknown, {})
    retriever = keywords.retriever

    def read(store: KeywordView) -> KeywordData:
        scopes: list[Collection[int] | None] = [None]
        if retriever.filters is not None or not matching_ids.issuperset(node_ids):
            scopes.append(set(store.rows_of(matching_ids).values()))
        named: dict[str, float] = {}
        for rows in scopes:
            for chunk, value in retriever.named_chunks(store, text, rows).items():
                named[chunk.node_id] = value
        groups = query_groups(text)
        terms, nearness, chunks = store.describe(groups, node_ids, with_nearness)
        return KeywordData(keywords.name, terms, nearness, chunks, named)

    return retriever.reader.ask(read)


def query_and_candidates(
    text: str,
    today: date,
    rankings: Sequence[Ranking],
    table: ScoreTable,
    keyword_data: KeywordData,
    matching_ids: frozenset[str],
) -> tuple[Query, Candidates]:
    """Return the query and the candidates in the form that features need."""
    nothing: Floats = np.zeros(len(table.node_ids))
    trust = trust_in(text, rankings, keyword_data)
    keyword_weight = sum(ranking.weight for ranking in rankings if ranking.is_keyword)
    vector_weight = sum(ranking.weight for ranking in rankings if not ranking.is_keyword)
    keyword_scores = nothing.copy()
    vector_scores = nothing.copy()
    cosines = nothing
    matched = nothing
    for ranking in rankings:
        if not ranking.weight:
            continue
        values = table.by_row(ranking, stretch(ranking.scores, ranking.unfiltered_scores))
        trust_in_retriever = trust.get(ranking.retriever, 1.0)
        if ranking.is_keyword:
            keyword_scores += trust_in_retriever * (ranking.weight / keyword_weight) * values
        else:
            vector_scores += trust_in_retriever * (ranking.weight / vector_weight) * values
            cosines = values
        if ranking.query_number == 0 and ranking.retriever == keyword_data.retriever:
            matched = table.by_row(ranking, matched_shares(ranking, keyword_data))
    query = Query(text, today, keyword_data.terms.groups, np.array(keyword_data.terms.idfs))
    candidates = Candidates(
        node_ids=table.node_ids,
        vector_scores=vector_scores,
        keyword_scores=keyword_scores,
        matched=matched,
        term_counts=keyword_data.terms.counts,
        nearness=keyword_data.nearness,
        chunks=keyword_data.chunks,
        named=keyword_data.named,
        matching_ids=matching_ids,
        cosines=cosines,
        scores=nothing,
    )
    return query, candidates


def matched_shares(ranking: Ranking, keyword_data: KeywordData) -> Floats:
    """Return the BM25 scores of a ranking as shares of the query's information."""
    information = math.fsum(keyword_data.terms.idfs) or math.inf
    return ranking.scores / information


# Trust in embeddings


def trust_in(
    text: str,
    rankings: Sequence[Ranking],
    keyword_data: KeywordData,
) -> dict[str, float]:
    """Return factors for the scores of retrievers by name. Retrievers without one have factor 1.

    The factor of all-MiniLM-L6-v2 depends on the share of the query that is in its vocabulary: 1
    for an English query, 0.2 for a Japanese one. The factor of multilingual-e5 is 1 for an English
    query and lower for other languages, in which words match better. If no chunk contains much of
    the query, the notes may be in another language. The factor of multilingual-e5 is then higher
    and that of keywords lower. The figures are in ``benchmarks/results/languages.md``.
    """
    trust: dict[str, float] = {}
    for ranking in rankings:
        if ranking.model == MINILM:
            known_share = share_spelled(text) / _KNOWN_SHARE
            trust[ranking.retriever] = max(_MIN_TRUST, min(1.0, known_share))
    multilingual = [ranking.retriever for ranking in rankings if ranking.model == E5]
    if multilingual and any(keyword_data.terms.idfs):
        best_matches = [
            float(matched_shares(ranking, keyword_data).max(initial=0.0))
            for ranking in rankings
            if ranking.retriever == keyword_data.retriever
        ]
        matched = min(max(best_matches, default=0.0) / _MATCHED, 1.0)
        least_trust = 1.0 if detect_language(text) == "en" else _E5_TRUST
        trust[keyword_data.retriever] = matched
        trust.update(dict.fromkeys(multilingual, max(least_trust, _E5_TRUST + 1 - matched)))
    return trust
