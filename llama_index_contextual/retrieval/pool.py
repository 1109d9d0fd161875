"""Fuse the answers of arms into one pool, judge it, and leave out what is not relevant enough.

A filter leaves chunks out and changes no score. So where the arms are ours and something narrows the question, the
same question goes to all chunks, too. All that is compared (the spread of an arm's scores, the best hit, the tenth)
is taken from that answer.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import BaseNode, NodeWithScore

from llama_index_contextual.errors import ContextualWarning
from llama_index_contextual.keyword import unknown_words_note
from llama_index_contextual.metadata import citation_of, day_of
from llama_index_contextual.retrieval.arms import Arm, keyword_of
from llama_index_contextual.retrieval.asking import ArmAnswer, arm_queries, ask_arms, rankings_of, report_failures
from llama_index_contextual.retrieval.code import repeats
from llama_index_contextual.retrieval.duplicates import NearDuplicates
from llama_index_contextual.retrieval.fusion import Fused, Mode, Ranking, fuse, in_ranks, shipped_weights, stretch
from llama_index_contextual.retrieval.learned import fuse_learned, with_signals
from llama_index_contextual.retrieval.question import Fusion, ParsedQuestion, Pool, Question
from llama_index_contextual.retrieval.relevance import AUTO, Judgement, evidence_of, min_score_for, relevance
from llama_index_contextual.retrieval.sessions import fuse_sessions, sessions_of
from llama_index_contextual.retrieval.signals import signals_of, text_signals, trust_in
from llama_index_contextual.retrieval.vector import ContextualVectorRetriever
from llama_index_contextual.text import counted
from llama_index_contextual.watching import step

if TYPE_CHECKING:
    from llama_index_contextual.retrieval.bm25 import ContextualBM25Retriever

_COMPARED: Final = 100  # results among which a text counts once
_NAMED: Final = 0.95  # relevance at least of a question that is the name of what was found


def fuse_answers(fusion: Fusion, question: Question, parsed: ParsedQuestion, answers: list[ArmAnswer]) -> Pool:
    """Return one pool of all answers, without what is not relevant enough."""
    with step("fusion", mode=fusion.mode.value, rankings=len(answers)) as facts:
        notes = report_failures(answers)
        rankings = rankings_of(answers, fusion.candidate_pool, parsed.admitted)
        names = {ranking.arm for ranking in rankings}
        arms = [arm for arm in parsed.arms if arm.name in names]
        if (everything := _unfiltered(fusion, question, parsed, arms)) is None:
            fused = ranked = _rank(fusion, question, parsed, arms, rankings)
        else:
            wanted = {one.node_id for ranking in rankings for one in ranking.candidates}
            arms, rankings = everything.arms, everything.extended_by(rankings)
            ranked = _rank(fusion, question, parsed, arms, rankings)
            fused = [one for one in ranked if one.node_id in wanted]
        pool = Pool(_judged(question, parsed, arms, rankings, ranked), fused, notes=tuple(notes))
        pool = _without_irrelevant(fusion, question, pool)
        pool = _with_filter_notes(question, parsed, pool)
        facts["candidates"] = len(pool.fused)
    brought = {one.node_id: one.node for answer in answers for one in answer.candidates if one.node is not None}
    return replace(pool, nodes=brought)


@dataclass(frozen=True, slots=True)
class _Everything:
    """Arms without filters, and what they answer."""

    arms: list[Arm]
    rankings: list[Ranking]

    def extended_by(self, others: Iterable[Ranking]) -> list[Ranking]:
        """Return the rankings with candidates of filtered ones that are in none of them, which are not compared."""
        known = {one.node_id for ranking in self.rankings for one in ranking.candidates}
        more = {
            (other.arm, other.query): [one for one in other.candidates if one.node_id not in known] for other in others
        }
        return [
            replace(
                one, candidates=[*one.candidates, *more.get((one.arm, one.query), ())], compared=len(one.candidates)
            )
            for one in self.rankings
        ]


def _unfiltered(fusion: Fusion, question: Question, parsed: ParsedQuestion, arms: Sequence[Arm]) -> _Everything | None:
    """Return the answers without filters; None where nothing is filtered, or that is not comparable."""
    if not (question.compares_all and fusion.mode.is_learned and any(arm.has_filters for arm in arms)):
        return None
    free = [one for arm in arms if (one := arm.without_filters()) is not None]
    if len(free) < len(arms):
        return None
    queries = arm_queries(free, parsed.queries, to_keywords=fusion.mode is not Mode.MESSAGE)
    answers = ask_arms(queries, fusion.candidate_pool)
    failed = any(answer.error is not None for answer in answers)
    return None if failed else _Everything(free, rankings_of(answers, fusion.candidate_pool, None))


def _rank(
    fusion: Fusion, question: Question, parsed: ParsedQuestion, arms: Sequence[Arm], rankings: Sequence[Ranking]
) -> list[Fused]:
    """Fuse rankings in the mode of the retriever."""
    if not fusion.mode.is_learned:
        return fuse(rankings, mode=fusion.mode, k=fusion.rrf_k, pool=fusion.candidate_pool)
    text, is_message = parsed.queries[0].query_str, fusion.mode is Mode.MESSAGE
    keyword = keyword_of(arm.retriever for arm in arms)
    signals, ids = None, list[str]()
    if keyword is not None:
        name = next(arm.name for arm in arms if arm.retriever is keyword)
        # The sentences of a message are no questions of their own: they speak for what the whole of it finds.
        whole = [ranking for ranking in rankings if not is_message or ranking.query == 0]
        ids = list(dict.fromkeys(one.node_id for ranking in whole for one in ranking.candidates))
        signals = signals_of(text, name, keyword, ids, question.today, is_message=is_message)
    kinds = {arm.name: arm.is_keyword for arm in arms}
    models = {arm.name: model for arm in arms if (model := getattr(arm.retriever, "cosines_of", ""))}
    trust = trust_in(models, text, rankings, signals)
    if is_message and keyword is not None and signals is not None:
        today = question.today or datetime.now().astimezone().date()
        sessions = sessions_of(keyword, ids, today, half_life_days=question.half_life_days, ageless=question.ageless)
        # Reasons are for what is shown, and postprocessors may show any of them.
        most = (None if fusion.node_postprocessors else fusion.similarity_top_k) if question.is_explained else 0
        return fuse_sessions(rankings, kinds, signals, sessions, trust, explained=most)
    fused = fuse_learned(rankings, kinds, signals, trust=trust, explained=question.is_explained)
    return fused if keyword is None else _with_texts(text, keyword, fused, rankings, kinds, question)


def _with_texts(
    text: str,
    keyword: ContextualBM25Retriever,
    fused: list[Fused],
    rankings: Sequence[Ranking],
    kinds: Mapping[str, bool],
    question: Question,
) -> list[Fused]:
    """Return candidates with the signals that are read in their texts."""
    vector = next((one for one in rankings if not kinds[one.arm] and one.query == 0), None)
    ids, scores = ([], []) if vector is None else in_ranks(vector)
    stretched = stretch(scores, Mode.LEARNED, None if vector is None else vector.compared).tolist()
    prose, code, paths = text_signals(text, keyword, fused, dict(zip(ids, stretched, strict=True)))
    weights = {**shipped_weights("learned"), **shipped_weights("code"), "further chunk": -1.0}
    fused = with_signals(fused, {**prose, **code}, weights, explained=question.is_explained)
    further = repeats(paths, [one.node_id for one in fused], text) if code else {}
    return with_signals(fused, {"further chunk": further}, weights, explained=question.is_explained)


def _judged(
    question: Question,
    parsed: ParsedQuestion,
    arms: Sequence[Arm],
    rankings: Sequence[Ranking],
    ranked: Sequence[Fused],
) -> Judgement:
    """Return the judgement of a question by its best candidate."""
    text, keyword = parsed.queries[0].query_str, keyword_of(arm.retriever for arm in arms)
    vector = next((arm.retriever for arm in arms if isinstance(arm.retriever, ContextualVectorRetriever)), None)
    cosines, scores = (_scores(arms, rankings, one) for one in (vector, keyword))
    best = _most_likely(question, keyword, ranked)
    evidence = evidence_of(
        text,
        best,
        cosines,
        keyword,
        list(scores.values()),
        model="" if vector is None else vector.cosines_of,
        subject=question.subject,
    )
    likely = relevance(evidence)
    if likely is not None and ranked and ranked[0].is_named:
        likely = max(likely, _NAMED)
    is_narrowed = bool(parsed.operators) or any(arm.has_filters for arm in parsed.arms)
    unknown = unknown_words_note(keyword.unknown(text)) if keyword is not None and question.is_explained else ""
    return Judgement(likely, evidence.is_calibrated and not is_narrowed, evidence, unknown)


def _most_likely(question: Question, keyword: ContextualBM25Retriever | None, ranked: Sequence[Fused]) -> str:
    """Return the id of the hit by which an answer is judged; "" without hits.

    It is the first, or of the first three the one that holds most of the subject: "What did we decide about retries?"
    finds other decisions, too.
    """
    ids = [one.node_id for one in ranked[:3]]
    shares = keyword.term_scores(question.subject, ids).shares() if keyword is not None and question.subject else None
    return max(zip(shares, ids, strict=True), key=lambda pair: pair[0])[1] if shares else next(iter(ids), "")


def _scores(arms: Sequence[Arm], rankings: Sequence[Ranking], retriever: object) -> dict[str, float]:
    """Return the scores of the arm with a retriever for the question itself, by id, best first."""
    names = {arm.name for arm in arms if arm.retriever is retriever}
    compared = (one.compared_candidates for one in rankings if one.query == 0 and one.arm in names)
    return {one.node_id: one.score for candidates in compared for one in candidates if one.score is not None}


def _without_irrelevant(fusion: Fusion, question: Question, pool: Pool) -> Pool:
    """Leave out candidates that are less relevant than they have to be, and note the best of them."""
    least = min_score_for(fusion.min_score, is_calibrated=pool.judgement.is_calibrated)
    likely = 0.0 if pool.judgement.relevance is None else pool.judgement.relevance
    # Scores of some modes are below 0: without a minimum they stay.
    if not least or pool.judgement.relevance is None or (fusion.min_score == AUTO and likely >= least):
        return pool
    kept = [one for one in pool.fused if likely * one.score >= least]
    count, notes = len(pool.fused) - len(kept), pool.notes
    if question.is_explained and count:
        best = pool.fused[len(kept)]
        node = read_nodes(fusion.arms, [best.node_id]).get(best.node_id)
        place = "" if node is None else f", {citation_of(node.metadata) or node.node_id},"
        reason = f"has a relevance of {likely * best.score:.3f}, below min_score={least:g}"
        notes = (*notes, f"left out {counted(count, 'hit')}: the best{place} {reason}")
    return replace(pool, fused=kept, left_out=count, notes=notes)


def _with_filter_notes(question: Question, parsed: ParsedQuestion, pool: Pool) -> Pool:
    """Note filters that admit nothing; vector arms find something whatever the question is, unless nothing passes."""
    filtered = [arm for arm in parsed.arms if arm.has_filters]
    if not filtered or pool.fused:
        return pool
    keyword = keyword_of(arm.retriever for arm in filtered)
    parts = keyword.filters_that_admit_none() if keyword is not None else []
    together = ": each admits some, together they admit none" if keyword is not None else ""
    note = f"no chunk passes the filters{': none has ' if parts else together}{', '.join(parts)}"
    if question.is_explained and (parts or not all(arm.is_keyword for arm in filtered)):
        return replace(pool, notes=(*pool.notes, note))
    if parts and keyword is not None and (keys := keyword.keys_that_no_node_has()):
        message = f"no chunk has {', '.join(map(repr, keys))}, which the filters ask for"
        warnings.warn(f"Query {question.queries[0].query_str!r}: {message}.", ContextualWarning, stacklevel=2)
    return pool


def results_of(fusion: Fusion, pool: Pool) -> list[NodeWithScore]:
    """Return the nodes of a pool: all where postprocessors read them, else as many as are returned.

    Where a node vanished since the arms answered, the next one moves up. In learned modes a node that nearly repeats
    the text of another one comes behind all others, with a score that is not higher than theirs. Notes of different
    days repeat nothing: each is news of its day.
    """
    compared = _COMPARED if fusion.mode.is_learned else 0
    met, again = defaultdict[Any, NearDuplicates](NearDuplicates), list[NodeWithScore]()
    most = len(pool.fused) if fusion.node_postprocessors else fusion.similarity_top_k
    scale = 1.0 if pool.judgement.relevance is None or not fusion.mode.is_learned else pool.judgement.relevance
    results, rest = list[NodeWithScore](), pool.fused
    while rest and len(results) < most:
        size = most - len(results)
        batch, rest = rest[:size], rest[size:]
        missing = [one.node_id for one in batch if one.node_id not in pool.nodes]
        nodes = {**pool.nodes, **read_nodes(fusion.arms, missing)}
        for one in batch:
            if (node := nodes.get(one.node_id)) is not None:
                is_new = len(results) >= compared or not met[day_of(node.metadata)].has(node.get_content())
                (results if is_new else again).append(NodeWithScore(node=node, score=scale * one.score))
    lowest = results[-1].score if results else 0.0
    for hit in again[: most - len(results)]:
        results.append(NodeWithScore(node=hit.node, score=min(hit.score or 0.0, lowest or 0.0)))
    return results


def read_nodes(arms: Iterable[Arm], node_ids: Iterable[str]) -> dict[str, BaseNode]:
    """Return nodes by id, from keyword arms first, because they have nodes in memory."""
    missing, nodes = list(node_ids), dict[str, BaseNode]()
    for arm in sorted(arms, key=lambda arm: not arm.is_keyword):
        if missing and arm.ours is not None:
            nodes |= arm.ours.nodes(missing)
            missing = [node_id for node_id in missing if node_id not in nodes]
    return nodes
