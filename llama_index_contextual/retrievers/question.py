"""The steps of a question.

Parse its operators, rank what the retrievers answer, load the nodes, give the reasons.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import TYPE_CHECKING

from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle

from llama_index_contextual.retrievers import asking, learned, rankings, relevance
from llama_index_contextual.retrievers.explanation import Explanation, Hit
from llama_index_contextual.retrievers.query import parse_query
from llama_index_contextual.retrievers.rankings import Mode, ScoreTable
from llama_index_contextual.retrievers.sessions import HALF_LIFE_DAYS, fuse_sessions, sentences_of
from llama_index_contextual.utils.errors import ContextualWarning
from llama_index_contextual.utils.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_contextual.retrievers.asking import Answers, WeightedRetriever
    from llama_index_contextual.retrievers.bm25_index import TermEvidence
    from llama_index_contextual.retrievers.chunk_info import ChunkInfo
    from llama_index_contextual.retrievers.relevance import Judgement, MinScore


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question with settings beyond LlamaIndex's interface.

    Attributes:
        queries: The query, then its variants, or the sentences of a message.
        is_explained: Whether reasons are collected, which takes as long as the fusion.
        subject: What a relevant hit holds of the query; empty for all of it.
        today: The day from which "last week" and the ages of sessions count.
        half_life_days: After so many days a session counts a fourth as new.
        evergreen: Patterns of paths that never age.
        operators: The operators of the query that are obeyed.
        admitted: Ids of the nodes that satisfy the operators; None for all.
        notes: What was ignored.
    """

    queries: tuple[QueryBundle, ...]
    is_explained: bool = False
    subject: str = ""
    today: date = field(default_factory=lambda: datetime.now().astimezone().date())
    half_life_days: float = HALF_LIFE_DAYS
    evergreen: Sequence[str] = ()
    operators: tuple[str, ...] = ()
    admitted: frozenset[str] | None = None
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the query without its operators."""
        return self.queries[0].query_str


@dataclass(frozen=True, slots=True)
class RankedPool:
    """The candidates of a question that are relevant enough.

    Attributes:
        table: All candidates and what their scores are made of.
        scores: Fused scores by id, best first, of those that are relevant enough.
        also_at: For a candidate, citations of the candidates with the same text that it stands for.
        explanation: Everything but the hits.
    """

    table: ScoreTable
    scores: Mapping[str, float]
    also_at: Mapping[str, tuple[str, ...]]
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class RankingSettings:
    """Settings of a fusion that the ranking reads.

    :class:`ContextualFusionRetriever` documents them.
    """

    mode: Mode | FUSION_MODES
    rrf_k: float
    candidate_pool: int
    min_score: MinScore


def parse(
    members: Sequence[WeightedRetriever], question: Question, mode: Mode | FUSION_MODES
) -> tuple[Sequence[WeightedRetriever], Question]:
    """Return retrievers that obey the operators of a question, and the question without them.

    Operators that no node satisfies are ignored. The sentences of a message are further queries.
    """
    members, question = _obey_operators(members, question)
    if mode is Mode.MESSAGE:
        sentences = [QueryBundle(sentence) for sentence in sentences_of(question.text)]
        question = replace(question, queries=(*question.queries, *sentences))
    return members, question


def _obey_operators(
    members: Sequence[WeightedRetriever], question: Question
) -> tuple[Sequence[WeightedRetriever], Question]:
    keywords = asking.keyword_retriever_of(members)
    if keywords is None:
        return members, question
    _, retriever = keywords
    parsed = parse_query(question.text)
    if not parsed.operators:
        return members, question
    plain_query = replace(question.queries[0], query_str=parsed.text)
    question = replace(question, queries=(plain_query, *question.queries[1:]))
    admitted = frozenset(retriever.selected_ids(parsed.filters))
    if not admitted:
        note = f"nothing matches {' '.join(parsed.operators)}, which was therefore ignored"
        warnings.warn(f"Query {question.text!r}: {note}.", ContextualWarning, stacklevel=2)
        return members, replace(question, notes=(note,))
    obeying = []
    for member in members:
        obeys = getattr(member.retriever, "obeys_operators", False)
        obeying.append(member.with_filters(parsed.filters) if obeys else member)
    return obeying, replace(question, operators=parsed.operators, admitted=admitted)


def rank(
    members: Sequence[WeightedRetriever],
    question: Question,
    answers: Answers,
    settings: RankingSettings,
) -> RankedPool:
    """Return the candidates in their order, without those that are not relevant enough."""
    table, info = _fuse(members, question, answers, settings)
    judgement = relevance.judge(question.text, question.subject, members, answers.rankings, table)
    if question.operators or any(member.has_filters for member in members):
        judgement = judgement._replace(is_calibrated=False)
    candidates = table.best_first()
    scores = {node_id: candidates[node_id] for node_id in candidates if node_id in answers.admitted}
    relevant = _relevant(scores, settings.min_score, judgement)
    notes = [*question.notes, *answers.notes]
    if len(relevant) < len(scores):
        notes.append(_note_on_left_out(scores, relevant, settings.min_score, judgement))
    if not scores and question.is_explained:
        notes += _notes_on_filters(members)
    also_at = _twins(relevant, info)
    explanation = Explanation(
        queries=tuple(query.query_str for query in question.queries),
        operators=question.operators,
        retrievers={member.name: member.weight for member in members},
        mode=settings.mode.value,
        left_out=len(scores) - len(relevant),
        warnings=tuple(notes),
        judgement=judgement,
    )
    return RankedPool(
        table, {node_id: relevant[node_id] for node_id in also_at}, also_at, explanation
    )


def _fuse(
    members: Sequence[WeightedRetriever],
    question: Question,
    answers: Answers,
    settings: RankingSettings,
) -> tuple[ScoreTable, Mapping[str, ChunkInfo | None]]:
    """Return the fused candidates, and what is known of each, if anything is."""
    keywords = asking.keyword_retriever_of(members)
    if isinstance(settings.mode, FUSION_MODES):
        pool = settings.candidate_pool
        table = rankings.fuse(answers.rankings, mode=settings.mode, k=settings.rrf_k, pool=pool)
        return table, {}
    if settings.mode is Mode.MESSAGE and keywords is not None:
        table, info = fuse_sessions(
            question.text,
            answers.rankings,
            keywords,
            question.today,
            half_life_days=question.half_life_days,
            evergreen=question.evergreen,
        )
    else:
        table, info = learned.fuse_learned(
            question.text, question.today, answers.rankings, keywords, answers.admitted
        )
    return table, dict(zip(table.node_ids, info, strict=True))


def _relevant(
    scores: Mapping[str, float], min_score: MinScore, judgement: Judgement
) -> Mapping[str, float]:
    """Return the scores of the candidates that are relevant enough; without a minimum, all."""
    least = relevance.min_score_for(min_score, is_calibrated=judgement.is_calibrated)
    likelihood = judgement.relevance
    if not least or likelihood is None:
        return scores
    if min_score == relevance.AUTO and likelihood >= least:
        return scores
    return {node_id: score for node_id, score in scores.items() if likelihood * score >= least}


def _note_on_left_out(
    scores: Mapping[str, float],
    relevant: Mapping[str, float],
    min_score: MinScore,
    judgement: Judgement,
) -> str:
    least = relevance.min_score_for(min_score, is_calibrated=judgement.is_calibrated)
    best = max(score for node_id, score in scores.items() if node_id not in relevant)
    return (
        f"left out {counted(len(scores) - len(relevant), 'hit')}: the best has a relevance of "
        f"{(judgement.relevance or 0.0) * best:.3f}, below min_score={least:g}"
    )


def _notes_on_filters(members: Sequence[WeightedRetriever]) -> list[str]:
    """Return what no chunk passes.

    Vector retrievers return something for every query, unless nothing passes.
    """
    filtered = [member for member in members if member.has_filters]
    keywords = asking.keyword_retriever_of(filtered)
    empty_filters = keywords[1].empty_filters() if keywords else []
    if empty_filters:
        return [f"no chunk passes the filters: none has {', '.join(empty_filters)}"]
    if all(member.is_keyword for member in filtered):
        return []
    return ["no chunk passes the filters"]


def _twins(
    scores: Mapping[str, float], info: Mapping[str, ChunkInfo | None]
) -> dict[str, tuple[str, ...]]:
    """Return the first candidate of each text, with citations of the others.

    Notes of different days have no twins.
    """
    first_with: dict[object, str] = {}
    citations = {}
    for node_id in scores:
        chunk = info.get(node_id)
        if chunk is None or chunk.text_hash is None:
            citations[node_id] = list[str]()
            continue
        first = first_with.setdefault((chunk.text_hash, chunk.day), node_id)
        if first == node_id:
            citations[node_id] = []
        else:
            citations[first].append(chunk.citation or node_id)
    return {node_id: tuple(dict.fromkeys(places)) for node_id, places in citations.items()}


def best_nodes(
    members: Sequence[WeightedRetriever],
    pool: RankedPool,
    nodes: Mapping[str, BaseNode],
    size: int,
) -> list[NodeWithScore]:
    """Return the best nodes with their scores.

    Where a node has vanished since the retrievers answered, the next one moves up.

    Args:
        members: The retrievers, which load the nodes.
        pool: The ranked candidates.
        nodes: Nodes that are loaded already.
        size: How many.
    """
    scale = 1.0
    if pool.explanation.mode in {*Mode} and pool.explanation.relevance is not None:
        scale = pool.explanation.relevance
    results: list[NodeWithScore] = []
    remaining = list(pool.scores)
    while remaining and len(results) < size:
        batch = remaining[: size - len(results)]
        remaining = remaining[len(batch) :]
        loaded = asking.read_nodes(members, [node_id for node_id in batch if node_id not in nodes])
        for node_id in batch:
            node = nodes.get(node_id) or loaded.get(node_id)
            if node is not None:
                results.append(NodeWithScore(node=node, score=scale * pool.scores[node_id]))
    return results


def explain(
    members: Sequence[WeightedRetriever],
    question: Question,
    pool: RankedPool,
    results: Sequence[NodeWithScore],
) -> Explanation:
    """Return the answer: the results as hits, with reasons where the question asks for them."""
    hits = [
        Hit(rank=0, node=result, also_at=pool.also_at.get(result.node.node_id, ()))
        for result in results
    ]
    if question.is_explained:
        hits = _with_reasons(members, pool, hits)
    return replace(pool.explanation, hits=tuple(hits))


def _with_reasons(
    members: Sequence[WeightedRetriever], pool: RankedPool, hits: Sequence[Hit]
) -> list[Hit]:
    likelihood = pool.explanation.relevance
    keywords = asking.keyword_retriever_of(members)
    terms: list[list[TermEvidence]] = [[] for _ in hits]
    if keywords is not None:
        text = " ".join(pool.explanation.queries)
        terms = keywords[1].term_scores(text, [hit.node_id for hit in hits]).evidence()
    explained = []
    for place, hit in enumerate(hits):
        fused = pool.scores.get(hit.node_id)
        hit_relevance = None
        if likelihood is not None and fused is not None:
            hit_relevance = likelihood * max(fused, 0.0)
        explained.append(
            replace(
                hit,
                rank=place + 1,
                fused=fused,
                credits=pool.table.credits_of(hit.node_id),
                relevance=hit_relevance,
                terms=tuple(terms[place]),
            )
        )
    return explained
