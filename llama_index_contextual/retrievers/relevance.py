"""How likely an index answers a query at all.

A fused score ranks: something is best even where nothing answers. Relevance is a logistic model
that tells questions with known answers from keyboard mash, other languages, other subjects, and
questions whose answer was taken out of the index. Like learned fusion it is a sum in log-odds.
``benchmarks/relevance.py`` trains its weights; ``benchmarks/results/relevance.md`` has the figures.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from llama_index_contextual.retrievers.features import NameFeature
from llama_index_contextual.retrievers.query import unknown_words_note
from llama_index_contextual.retrievers.rankings import shipped_weights
from llama_index_contextual.retrievers.vector import E5, MINILM
from llama_index_contextual.utils.text import counted
from llama_index_contextual.utils.tokens import is_spelled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
    from llama_index_contextual.retrievers.rankings import KeywordReads, Ranking, ScoreTable

AUTO: Final = "auto"
LEAST: Final = 0.05  # loses no first hit of any retriever; see benchmarks/results/relevance.md
# Embeddings whose cosines were measured: their name in the weights, and the cosine of unrelated
# texts.
_MEASURED: Final = {MINILM: ("local", 0.0), E5: ("e5", 0.7)}
_OTHER_WORDS: Final = 0.5  # the best hit holds less of a query than this: it may be in other words
# The most relevance of a query in other words: few of those have an answer.
_BY_VECTORS: Final = 0.3
_COMPARED_PLACE: Final = 9  # the best keyword score is compared with that of the tenth hit
_NAMED: Final = 0.95  # the least relevance of a query that is the name of the first hit
_CLOSE_HITS: Final = 3  # of these the one that holds most of the subject is judged
_TINY: Final = 1e-6

MinScore: TypeAlias = float | Literal["auto"]


class Evidence(NamedTuple):
    """What speaks for an answer, of the best hit of a query.

    Attributes:
        nearest: The highest cosine of the vector retriever; None without one.
        farthest: The lowest. For embeddings that were not measured it stands for texts that have
        nothing in common.
        cosine: The cosine of the best hit; the lowest where the vector retriever did not return it.
        words: The share of the query's words that the best hit holds, by rarity; None without a
        keyword retriever.
        lead: By what share the best keyword score exceeds the tenth, 0 to 1; 1 where fewer chunks
            hold a word. The words of a subject are in many places, an answer stands out.
        model: The embedding whose cosines they are, empty for one that was not measured.
        spelled: Whether any word of the query is in a language that the model reads.
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
        """Return whether it was measured what relevance means for such retrievers."""
        return self.model in _MEASURED and self.nearest is not None and self.words is not None

    def features(self) -> dict[str, float]:
        """Return the numbers that the model weighs.

        Cosines are stretched from that of unrelated texts to 1.
        """
        _, zero = _MEASURED.get(self.model, ("", self.farthest))
        scale = max(1 - zero, _TINY)
        words = self.words or 0.0
        return {
            "nearest": ((self.nearest or 0.0) - zero) / scale,
            "cosine": (self.cosine - zero) / scale,
            "words": words,
            "lead": words * self.lead,  # nonsense with one rare word stands out, too
        }


class Judgement(NamedTuple):
    """How likely an index answers a query.

    Attributes:
        relevance: 0 to 1; None where it is not known.
        is_calibrated: Whether it was measured what relevance means for such retrievers and such a
        query.
        evidence: What the relevance is computed from.
        unknown_words: A line on the words of the query that the index does not know; empty where it
            knows all.
    """

    relevance: float | None = None
    is_calibrated: bool = False
    evidence: Evidence | None = None
    unknown_words: str = ""


def relevance(
    evidence: Evidence, weights: Mapping[str, Mapping[str, float]] | None = None
) -> float | None:
    """Return the likelihood that an index answers a query, 0 to 1; None where it is not known.

    A query in other words than those of the notes ("crash" for "outage") has only its vector to
    speak for it. So the model of vectors alone judges it, too, and can lift it to 0.3: it is not
    left out, and it is not trusted.

    Args:
        evidence: What speaks for an answer.
        weights: The weights of each model; default those of the package.
    """
    weights = weights or shipped_weights("relevance")
    vectors, _ = _MEASURED.get(evidence.model, ("other", 0.0))
    features = evidence.features()
    if evidence.nearest is None:
        return None if evidence.words is None else _likelihood(features, weights["words"])
    by_vectors = _likelihood(features, weights[vectors])
    if evidence.words is None:
        return by_vectors
    combined = _likelihood(features, weights[f"{vectors} and words"])
    if evidence.spelled and evidence.words < _OTHER_WORDS:
        return max(combined, min(by_vectors, _BY_VECTORS))
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
    keywords: tuple[str, ContextualBM25Retriever] | None,
    reads: KeywordReads | None,
) -> Judgement:
    """Return how likely the index answers a query, by its best candidate.

    Args:
        text: The query.
        subject: What a relevant hit holds of the query: "What did we decide about retries?" finds
            other decisions, too. Of the first three candidates the one that holds most of it is
            judged. Empty for the whole query.
        rankings: The answers of the retrievers.
        table: The fused candidates.
        keywords: The name of a keyword retriever and the retriever; None where there is none.
        reads: What it knows of the candidates; None where it has to be asked.
    """
    best_ids = list(table.best_first)[: _CLOSE_HITS if subject else 1]
    best_id = best_ids[0] if best_ids else ""
    is_named = table.has_feature(best_id, NameFeature.name)
    originals = {ranking.retriever: ranking for ranking in rankings if ranking.query == 0}
    evidence = Evidence(model="", spelled=is_spelled(text))
    unknown_words = ""

    # The words of the query.
    if keywords is not None:
        name, retriever = keywords
        if subject or reads is None:
            terms = retriever.term_scores(subject or text, best_ids)
        else:
            terms = reads.terms.of_nodes(table.node_ids, best_ids)
        if 0 in terms.frequencies:
            unknown_words = unknown_words_note(text, terms)
        shares = terms.shares() or []
        words = max(shares, default=0.0)
        if shares:
            best_id = best_ids[shares.index(words)]
        evidence = evidence._replace(words=words, lead=_lead(originals.get(name)))

    # Its vector.
    vectors = [ranking for ranking in originals.values() if ranking.model is not None]
    if vectors and vectors[0].compared:
        ranking = vectors[0]
        farthest = float(ranking.compared_scores[-1])
        evidence = evidence._replace(
            nearest=float(ranking.scores[0]),
            farthest=farthest,
            cosine=max(ranking.score_of(best_id, farthest), farthest),
            model=ranking.model or "",
            spelled=ranking.model == E5 or evidence.spelled,
        )
    likelihood = relevance(evidence)
    if likelihood is not None and is_named:
        likelihood = max(likelihood, _NAMED)
    return Judgement(likelihood, evidence.is_calibrated, evidence, unknown_words)


def _lead(ranking: Ranking | None) -> float:
    """Return by what share the best score exceeds the tenth."""
    if ranking is None or not ranking.compared_scores.any():
        return 0.0
    has_tenth = ranking.compared > _COMPARED_PLACE
    tenth = float(ranking.scores[_COMPARED_PLACE]) if has_tenth else 0.0
    return 1 - tenth / float(ranking.scores[0])


def relevant_scores(
    scores: Mapping[str, float], min_score: MinScore, judgement: Judgement
) -> tuple[Mapping[str, float], str]:
    """Return the scores of the candidates that are relevant enough, and a note on the others.

    Args:
        scores: The score of each candidate, best first.
        min_score: The relevance that each hit needs; 0 for none. ``"auto"`` stands for
            :data:`LEAST`, for the best hit of a query alone: the first hit of a retriever may stand
            far down in the fusion. Where relevance is not calibrated, it leaves out nothing.
        judgement: How relevant the best candidate is. Candidates of unknown relevance stay.
    """
    if judgement.relevance is None:
        return scores, ""
    if min_score != AUTO:
        least = float(min_score)
    else:
        is_left_out = judgement.is_calibrated and judgement.relevance < LEAST
        least = LEAST if is_left_out else 0.0
    if not least:
        return scores, ""
    relevances = {node_id: judgement.relevance * score for node_id, score in scores.items()}
    relevant = {node_id: score for node_id, score in scores.items() if relevances[node_id] >= least}
    left_out = [value for node_id, value in relevances.items() if node_id not in relevant]
    if not left_out:
        return relevant, ""
    return relevant, (
        f"left out {counted(len(left_out), 'hit')}: the best has a relevance of "
        f"{max(left_out):.3f}, below min_score={least:g}"
    )
