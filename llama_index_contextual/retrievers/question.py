"""A question: three plain functions, parse, fuse and cut, over a small frozen query.

:func:`answer_question` goes ``parse → ask (arms.py) → fuse → cut → postprocessors``. It is a coroutine:
with ``on_loop=False`` it waits for nothing, and :func:`~.retrieval.stores.run` gives its result at once.

A filter leaves chunks out and changes no score. So where the arms are ours and something narrows the question, the
same question goes to all chunks, too. All that is compared (the spread of an arm's scores, the best hit, the tenth)
is taken from that answer.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, Final, NamedTuple, TypeAlias

from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle

from llama_index_contextual.retrievers.any_store import call, run
from llama_index_contextual.retrievers.arms import Arm, ask_arms, keyword_of, read_nodes
from llama_index_contextual.retrievers.bm25_index import TermEvidence
from llama_index_contextual.retrievers.explanation import (
    AUTO,
    Explanation,
    Hit,
    judge,
    min_score_for,
)
from llama_index_contextual.retrievers.features import NearDuplicates, read_pool
from llama_index_contextual.retrievers.learned import (
    Mode,
    Ranking,
    Table,
    candidate_ids,
    fuse,
    fuse_learned,
)
from llama_index_contextual.retrievers.query import parse_query
from llama_index_contextual.retrievers.sessions import HALF_LIFE_DAYS, fuse_sessions, sentences_of
from llama_index_contextual.utils.errors import ContextualWarning
from llama_index_contextual.utils.text import counted

Fusion: TypeAlias = Any  # a ContextualFusionRetriever, whose file imports this one
_COMPARED: Final = 100  # results among which a text counts once


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, with settings of memory beyond LlamaIndex's interface, and what :func:`parse` finds in it.

    Args:
        queries: The question, its variants, and in the mode for messages its sentences.
        is_explained: Whether reasons are collected, which takes as long as the fusion.
        subject: What a relevant hit holds of the question; "" for all of it.
        today: From which "last week" and the ages of a message's sessions count; None for the present day.
        half_life_days: After so many days a message's session counts a fourth as new.
        ageless: Globs of paths whose sessions have no age.
        operators: The operators that are obeyed.
        admitted: Ids of the nodes that satisfy the operators; None for all.
        notes: Operators that are ignored.
    """

    queries: tuple[QueryBundle, ...]
    is_explained: bool = False
    subject: str = ""
    today: date | None = None
    half_life_days: float = HALF_LIFE_DAYS
    ageless: Sequence[str] = ()
    operators: tuple[str, ...] = ()
    admitted: frozenset[str] | None = None
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The question itself."""
        return self.queries[0].query_str


class Pool(NamedTuple):
    """All relevant candidates of the arms.

    Args:
        table: All candidates with their features.
        scores: Fused scores of the relevant ones by id, best first.
        nodes: Those that the arms brought.
        explanation: Without hits.
    """

    table: Table
    scores: Mapping[str, float]
    nodes: Mapping[str, BaseNode]
    explanation: Explanation


async def answer_question(fusion: Fusion, question: Question, *, on_loop: bool) -> Explanation:
    """The answer to a question, with reasons where it asks for them; with ``on_loop`` the event loop is not blocked."""
    query = question.queries[0]
    pool, results = await _search(fusion, question, on_loop=on_loop)
    for one in fusion.node_postprocessors:
        if on_loop:
            results = await one.apostprocess_nodes(results, query_bundle=query)
        else:
            results = one.postprocess_nodes(results, query_bundle=query)
        if all(
            result.score is not None for result in results
        ):  # else the order of the postprocessor stays
            results = sorted(results, key=lambda result: -(result.score or 0.0))
    results = results[: fusion.similarity_top_k]
    hits = (
        await call(_hits_of, fusion, pool, results, on_loop=on_loop)
        if question.is_explained
        else ()
    )
    return replace(pool.explanation, hits=hits or tuple(Hit(0, one, None) for one in results))


async def _search(
    fusion: Fusion, question: Question, *, on_loop: bool
) -> tuple[Pool, list[NodeWithScore]]:
    """The candidates of a question, and the nodes; in one state of the stores where all compute."""
    # Arms of ours compute, unless their store has a query of its own for an event loop.
    if on_loop and all(arm.ours is not None and not arm.ours.asks_async for arm in fusion.arms):
        return await asyncio.to_thread(lambda: run(_search(fusion, question, on_loop=False)))
    with ExitStack() as stack:
        for retriever in (
            () if on_loop else (arm.ours for arm in fusion.arms if arm.ours is not None)
        ):
            stack.enter_context(retriever.snapshot())
        fusion, question = await call(parse, fusion, question, on_loop=on_loop)
        answers = await ask_arms(
            fusion.arms, question.queries, fusion.candidate_pool, fusion.mode, on_loop=on_loop
        )
        pool = await call(fuse_answers, fusion, question, *answers, on_loop=on_loop)
        return pool, await call(cut, fusion, pool, on_loop=on_loop)


# Parse


def parse(fusion: Fusion, question: Question) -> tuple[Fusion, Question]:
    """A question without its operators, and arms that obey them; those that no node satisfies are ignored."""
    text, keyword = question.text, keyword_of(arm.retriever for arm in fusion.arms)
    query = None if keyword is None else parse_query(text)
    if keyword is not None and query is not None and query.operators:
        queries = (replace(question.queries[0], query_str=query.text), *question.queries[1:])
        if admitted := frozenset(keyword.selected_ids(query.filters)):
            excluded = [one for one in query.operators if one.startswith("-")]
            notes = (
                [f"{' and '.join(excluded)} leave{'s' * (len(excluded) == 1)} chunks out"]
                if excluded
                else []
            )
            question = replace(question, operators=query.operators, admitted=admitted)
            arms = (
                arm.filtered(query.filters) if arm.ours and arm.ours.filters_words else arm
                for arm in fusion.arms
            )
            fusion = fusion.with_arms(list(arms))
        else:
            notes = [f"nothing matches {' '.join(query.operators)}, which was therefore ignored"]
            warnings.warn(f"Query {text!r}: {notes[0]}.", ContextualWarning, stacklevel=2)
        question = replace(question, queries=queries, notes=tuple(notes))
    if fusion.mode is Mode.MESSAGE:
        sentences = map(QueryBundle, sentences_of(question.text))
        question = replace(question, queries=(*question.queries, *sentences))
    return fusion, question


# Fuse


def fuse_answers(
    fusion: Fusion, question: Question, rankings: list[Ranking], notes: Sequence[str]
) -> Pool:
    """One pool of all rankings, without what is not relevant enough."""
    notes, admitted = [*question.notes, *notes], question.admitted
    if admitted is not None:  # arms of other packages do not obey operators
        among = (
            [one for one in ranking.candidates if one.node_id in admitted] for ranking in rankings
        )
        rankings = [
            replace(one, candidates=hits) for one, hits in zip(rankings, among, strict=True)
        ]
    nodes = {
        one.node_id: one.node
        for ranking in rankings
        for one in ranking.candidates
        if one.node is not None
    }
    wanted, (arms, rankings) = {*candidate_ids(rankings)}, _compared(fusion, question, rankings)
    table = _rank(fusion, question, arms, rankings, wanted)
    judgement = judge(question.text, question.subject, arms, rankings, table)
    if question.operators or any(arm.has_filters for arm in fusion.arms):
        judgement = judgement._replace(is_calibrated=False)
    least, likely = (
        min_score_for(fusion.min_score, is_calibrated=judgement.is_calibrated),
        judgement.relevance,
    )
    scores = {node_id: score for node_id, score in table.ranked().items() if node_id in wanted}
    kept = scores  # those of some modes are below 0: without a minimum they stay
    if least and likely is not None and not (fusion.min_score == AUTO and likely >= least):
        kept = {node_id: score for node_id, score in scores.items() if likely * score >= least}
        if len(kept) < len(scores):
            best = likely * next(score for node_id, score in scores.items() if node_id not in kept)
            reason = f"the best has a relevance of {best:.3f}, below min_score={least:g}"
            notes.append(f"left out {counted(len(scores) - len(kept), 'hit')}: {reason}")
    if not scores and question.is_explained:
        notes += _filter_notes(fusion)
    explanation = Explanation(
        queries=tuple(query.query_str for query in question.queries),
        operators=question.operators,
        arms={arm.name: arm.weight for arm in fusion.arms},
        mode=fusion.mode.value,
        left_out=len(scores) - len(kept),
        warnings=tuple(notes),
        judgement=judgement,
    )
    return Pool(table, kept, nodes, explanation)


def _compared(
    fusion: Fusion, question: Question, rankings: list[Ranking]
) -> tuple[Sequence[Arm], list[Ranking]]:
    """Arms without filters, and their rankings with candidates of the filtered ones that are in none of them.

    Where nothing is filtered, or that is not comparable, the same arms and rankings.
    """
    arms = fusion.arms
    is_comparable = isinstance(fusion.mode, Mode) and any(arm.has_filters for arm in arms)
    free = (
        [one for arm in arms if (one := arm.without_filters()) is not None] if is_comparable else []
    )
    if len(free) < len(arms):
        return arms, rankings
    every, _ = run(
        ask_arms(free, question.queries, fusion.candidate_pool, fusion.mode, on_loop=False)
    )
    known, admitted = (
        {*candidate_ids(every)},
        {(one.arm, one.query): one.candidates for one in rankings},
    )
    for at, ranking in enumerate(every):
        more = [
            hit
            for hit in admitted.get((ranking.arm, ranking.query), ())
            if hit.node_id not in known
        ]
        every[at] = replace(
            ranking, candidates=[*ranking.candidates, *more], compared=len(ranking.candidates)
        )
    return free, every


def _rank(
    fusion: Fusion,
    question: Question,
    arms: Sequence[Arm],
    rankings: Sequence[Ranking],
    wanted: Collection[str],
) -> Table:
    """Rankings fused in the mode of the retriever."""
    if not isinstance(fusion.mode, Mode):
        return fuse(rankings, mode=fusion.mode, k=fusion.rrf_k, pool=fusion.candidate_pool)
    text, is_message, reads = question.text, fusion.mode is Mode.MESSAGE, None
    if (keyword := keyword_of(arm.retriever for arm in arms)) is not None:
        name = next(arm.name for arm in arms if arm.retriever is keyword)
        # The sentences of a message are no questions of their own: they speak for what the whole of it finds.
        ids = candidate_ids(one for one in rankings if not is_message or one.query == 0)
        reads = read_pool(text, name, keyword, ids, wanted, is_message=is_message)
    if reads is None or not is_message:
        return fuse_learned(text, rankings, reads, today=question.today)
    ages: dict[str, Any] = {"half_life_days": question.half_life_days, "ageless": question.ageless}
    return fuse_sessions(
        text, rankings, reads, question.today or datetime.now().astimezone().date(), **ages
    )


def _filter_notes(fusion: Fusion) -> list[str]:
    """Filters that admit nothing; vector arms find something whatever the question is, unless nothing passes."""
    filtered = [arm for arm in fusion.arms if arm.has_filters]
    keyword = keyword_of(arm.retriever for arm in filtered)
    if keyword is not None and (parts := keyword.empty_filters()):
        return [f"no chunk passes the filters: none has {', '.join(parts)}"]
    return [] if all(arm.is_keyword for arm in filtered) else ["no chunk passes the filters"]


# Cut


def cut(fusion: Fusion, pool: Pool) -> list[NodeWithScore]:
    """The nodes of a pool: all where postprocessors read them, else as many as are returned.

    Where a node vanished since the arms answered, the next one moves up. In learned modes a node that nearly repeats
    the text of another one comes behind all others, with a score that is not higher than theirs. Notes of different
    days repeat nothing: each is news of its day.
    """
    is_learned, met, rest = isinstance(fusion.mode, Mode), NearDuplicates(), list(pool.scores)
    again, results = list[NodeWithScore](), list[NodeWithScore]()
    most = len(rest) if fusion.node_postprocessors else fusion.similarity_top_k
    scale = (
        pool.explanation.relevance if is_learned and pool.explanation.relevance is not None else 1.0
    )
    while rest and len(results) < most:
        batch, rest = rest[: most - len(results)], rest[most - len(results) :]
        nodes = {
            **pool.nodes,
            **read_nodes(fusion.arms, [one for one in batch if one not in pool.nodes]),
        }
        for node_id in batch:
            if (node := nodes.get(node_id)) is not None:
                hit = NodeWithScore(node=node, score=scale * pool.scores[node_id])
                is_compared = is_learned and len(results) < _COMPARED
                is_again = is_compared and met.has(node.get_content(), node.metadata)
                (again if is_again else results).append(hit)
    lowest = results[-1].score or 0.0 if results else 0.0
    for hit in again[: most - len(results)]:
        results.append(NodeWithScore(node=hit.node, score=min(hit.score or 0.0, lowest)))
    return results


def _hits_of(fusion: Fusion, pool: Pool, results: Sequence[NodeWithScore]) -> tuple[Hit, ...]:
    """The results of a question with the reasons for each."""
    ids, hits, likely = (
        [one.node.node_id for one in results],
        list[Hit](),
        pool.explanation.relevance,
    )
    terms, keyword = (
        [list[TermEvidence]()] * len(ids),
        keyword_of(arm.retriever for arm in fusion.arms),
    )
    if keyword is not None:
        terms = keyword.term_scores(" ".join(pool.explanation.queries), ids).evidence()
    for rank, (node_id, result, held) in enumerate(zip(ids, results, terms, strict=True), start=1):
        fused, credits_ = pool.scores.get(node_id), pool.table.credits_of(node_id)
        relevant = None if likely is None or fused is None else likely * max(fused, 0.0)
        hits.append(Hit(rank, result, fused, credits_, relevant, tuple(held)))
    return tuple(hits)
