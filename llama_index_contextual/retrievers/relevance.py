"""Estimate the probability that an index answers a query at all.

A fused score only ranks: one hit is always the best, even if none answers the query. Relevance is a
logistic model that distinguishes questions with known answers from random letters, other languages,
other subjects, and questions whose answer was removed from the index. Like learned fusion, it is a
sum in log-odds. ``benchmarks/relevance.py`` trains its weights. The figures are in
``benchmarks/results/relevance.md``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from llama_index_contextual.retrievers.features import NameFeature
from llama_index_contextual.retrievers.query import unknown_words_note
from llama_index_contextual.retrievers.rankings import shipped_weights
from llama_index_contextual.retrievers.vector import E5, MINILM
from llama_index_contextual.utils.text import counted
from llama_index_contextual.utils.tokens import is_spelled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_contextual.retrievers.rankings import (
        KeywordData,
        KeywordMember,
        Ranking,
        ScoreTable,
    )

AUTO: Literal["auto"] = "auto"
MIN_RELEVANCE = 0.05  # loses no first hit of any retriever; see benchmarks/results/relevance.md
# The embeddings with calibrated cosines, each with its name in the weights and the cosine of
# unrelated texts.
_CALIBRATED = {MINILM: ("local", 0.0), E5: ("e5", 0.7)}
_OTHER_WORDS = 0.5  # with fewer of its words in the best hit, a query may use other words
_MAX_BY_VECTORS = 0.3  # few queries in other words than the notes have an answer
_COMPARED_INDEX = 9  # the best keyword score is compared with that of the tenth hit
_MIN_NAMED = 0.95  # if the query is the name of the first hit
_CLOSE_HITS = 3  # first hits of which the one that contains most of the subject is judged
_TINY = 1e-6

MinScore: TypeAlias = float | Literal["auto"]


class Evidence(NamedTuple):
    """The evidence that the best hit answers a query.

    Attributes:
        nearest: The highest cosine of the vector retriever. None without a vector retriever.
        farthest: The lowest cosine. For an embedding without calibration, it is taken as the cosine
            of unrelated texts.
        cosine: The cosine of the best hit, or the lowest if the vector retriever did not return it.
        words: The share of the query's words in the best hit, weighted by rarity. None without a
            keyword retriever.
        lead: The lead of the best keyword score over the tenth, as a share of the best, 0 to 1. It
            is 1 if fewer than ten chunks match. The words of a subject are in many chunks, but an
            answer stands out.
        model: The embedding of the cosines, or "" if it has no calibration.
        spelled: Whether any word of the query is in the vocabulary of the embedding.
    """

    nearest: float | None = None
    farthest: float = 0.0
    cosine: float = 0.0
    words: float | None = None
    lead: float = 0.0
    model: str = MINILM
    spelled: bool = True

    @property
    def is_calibrated(self) -> bool:
        """Return whether relevance is calibrated for these retrievers."""
        return self.model in _CALIBRATED and self.nearest is not None and self.words is not None

    def features(self) -> dict[str, float]:
        """Return the features of the model.

        Cosines are stretched so that unrelated texts have 0.
        """
        _, zero = _CALIBRATED.get(self.model, ("", self.farthest))
        scale = max(1 - zero, _TINY)
        words = self.words or 0.0
        return {
            "nearest": ((self.nearest or 0.0) - zero) / scale,
            "cosine": (self.cosine - zero) / scale,
            "words": words,
            "lead": words * self.lead,  # nonsense with one rare word has a high lead, too
        }


class Judgement(NamedTuple):
    """The relevance of the best hit of a query.

    Attributes:
        relevance: The probability that the index answers the query, 0 to 1. None means unknown.
        is_calibrated: Whether relevance is calibrated for these retrievers and this query.
        evidence: The evidence from which relevance is computed.
        unknown_words: A note that names the words that are not in the index, or "".
    """

    relevance: float | None = None
    is_calibrated: bool = False
    evidence: Evidence | None = None
    unknown_words: str = ""


def relevance(
    evidence: Evidence, weights: Mapping[str, Mapping[str, float]] | None = None
) -> float | None:
    """Return the probability that an index answers a query, 0 to 1. None means unknown.

    For a query in other words than the notes ("crash" for "outage"), the only evidence is its
    vector. Such a query is also judged by the model of vectors alone, which can raise the relevance
    to 0.3: enough to keep the hits, but not to trust them.

    Args:
        evidence: The evidence for an answer.
        weights: The weights of each model. None uses those of the package.
    """
    weights = weights or shipped_weights("relevance")
    vectors, _ = _CALIBRATED.get(evidence.model, ("other", 0.0))
    features = evidence.features()
    if evidence.nearest is None:
        return None if evidence.words is None else _likelihood(features, weights["words"])
    by_vectors = _likelihood(features, weights[vectors])
    if evidence.words is None:
        return by_vectors
    combined = _likelihood(features, weights[f"{vectors} and words"])
    if evidence.spelled and evidence.words < _OTHER_WORDS:
        return max(combined, min(by_vectors, _MAX_BY_VECTORS))
    return combined


def _likelihood(features: Mapping[str, float], weights: Mapping[str, float]) -> float:
    summands = [weights.get(name, 0.0) * value for name, value in features.items()]
    log_odds = math.fsum([weights["constant"], *summands])
    return 1 / (1 + math.exp(-log_odds))


def judge(
    text: str,
    subject: str,
    rankings: Sequence[Ranking],
    table: ScoreTable,
    keywords: KeywordMember | None,
    keyword_data: KeywordData | None,
) -> Judgement:
    """Return the relevance of the best candidate.

    Args:
        text: The query.
        subject: The part of the query that a relevant hit must contain. "What did we decide about
            retries?" also finds other decisions, so its subject is "retries?". Of the first three
            candidates, the one that contains most of the subject is judged. Empty means the whole
            query.
        rankings: The answers of the retrievers.
        table: The fused candidates.
        keywords: The keyword retriever, or None.
        keyword_data: The data of the keyword index about the candidates. None if it was not read.
    """
    best_ids = list(table.best_first)[: _CLOSE_HITS if subject else 1]
    judged_id = best_ids[0] if best_ids else ""
    is_named = table.has_feature(judged_id, NameFeature.name)
    originals = {ranking.retriever: ranking for ranking in rankings if ranking.query_number == 0}
    evidence = Evidence(model="", spelled=is_spelled(text))
    unknown_words = ""

    # Judge the words of the query.
    if keywords is not None:
        if subject or keyword_data is None:
            terms = keywords.retriever.term_scores(subject or text, best_ids)
        else:
            terms = keyword_data.terms.of_nodes(table.node_ids, best_ids)
        if 0 in terms.frequencies:
            unknown_words = unknown_words_note(text, terms)
        shares = terms.shares() or []
        words = max(shares, default=0.0)
        if shares:
            judged_id = best_ids[shares.index(words)]
        evidence = evidence._replace(words=words, lead=_lead(originals.get(keywords.name)))

    # Judge the vector of the query.
    vectors = [ranking for ranking in originals.values() if ranking.model is not None]
    if vectors and vectors[0].unfiltered_count:
        ranking = vectors[0]
        farthest = float(ranking.unfiltered_scores[-1])
        evidence = evidence._replace(
            nearest=float(ranking.scores[0]),
            farthest=farthest,
            cosine=max(ranking.score_of(judged_id, farthest), farthest),
            model=ranking.model or "",
            spelled=ranking.model == E5 or evidence.spelled,
        )
    likelihood = relevance(evidence)
    if likelihood is not None and is_named:
        likelihood = max(likelihood, _MIN_NAMED)
    return Judgement(likelihood, evidence.is_calibrated, evidence, unknown_words)


def _lead(ranking: Ranking | None) -> float:
    """Return the lead of the best score over the tenth, as a share of the best."""
    if ranking is None or not ranking.unfiltered_scores.any():
        return 0.0
    has_tenth = ranking.unfiltered_count > _COMPARED_INDEX
    tenth = float(ranking.scores[_COMPARED_INDEX]) if has_tenth else 0.0
    return 1 - tenth / float(ranking.scores[0])


def relevant_scores(
    scores: Mapping[str, float], min_score: MinScore, judgement: Judgement
) -> tuple[Mapping[str, float], str]:
    """Return the scores of the candidates that are relevant enough, and a note on all others.

    Args:
        scores: The score of each candidate, best first.
        min_score: The lowest relevance of a hit. ``"auto"`` leaves out hits below
            :data:`MIN_RELEVANCE`, but only if the best hit is below it, because the first hit of a
            retriever can have a low rank in the fusion. It leaves out nothing if relevance is not
            calibrated.
        judgement: The relevance of the best candidate. If it is unknown, all candidates stay.
    """
    if judgement.relevance is None:
        return scores, ""
    if min_score != AUTO:
        threshold = float(min_score)
    else:
        is_left_out = judgement.is_calibrated and judgement.relevance < MIN_RELEVANCE
        threshold = MIN_RELEVANCE if is_left_out else 0.0
    if not threshold:
        return scores, ""
    likelihood = judgement.relevance
    relevant = {
        node_id: score for node_id, score in scores.items() if likelihood * score >= threshold
    }
    left_out = [score for node_id, score in scores.items() if node_id not in relevant]
    if not left_out:
        return relevant, ""
    return relevant, (
        f"left out {counted(len(left_out), 'hit')}: the best has a relevance of "
        f"{likelihood * max(left_out):.3f}, below min_score={threshold:g}"
    )
