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
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle

from llama_index_contextual.errors import ContextualWarning
from llama_index_contextual.keyword import Candidate, TermEvidence, parse_query, unknown_words_note
from llama_index_contextual.metadata import day_of
from llama_index_contextual.retrieval.arms import (
    Arm,
    ArmAnswer,
    ask_arms,
    keyword_of,
    rankings_of,
    read_nodes,
    report_failures,
    shared_snapshot,
)
from llama_index_contextual.retrieval.explain import (
    AUTO,
    Explanation,
    Hit,
    Judgement,
    MinScore,
    Step,
    judge,
    min_score_for,
)
from llama_index_contextual.retrieval.fusion import Fused, Mode, Ranking, Table, candidate_ids, fuse, fuse_learned
from llama_index_contextual.retrieval.sessions import HALF_LIFE_DAYS, fuse_sessions, sentences_of
from llama_index_contextual.retrieval.signals import NearDuplicates, read_pool
from llama_index_contextual.retrieval.stores import call, run
from llama_index_contextual.text import counted
from llama_index_contextual.watching import step

if TYPE_CHECKING:
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from typing_extensions import Self

_COMPARED: Final = 100  # results among which a text counts once


class Fusion(Protocol):
    """What is read of a :class:`~llama_index_contextual.ContextualFusionRetriever`."""

    arms: list[Arm]
    mode: Any
    rrf_k: float
    similarity_top_k: int
    candidate_pool: int
    node_postprocessors: list[BaseNodePostprocessor]
    min_score: MinScore

    def with_arms(self, arms: list[Arm]) -> Self:
        """A view with other arms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, with settings of memory beyond LlamaIndex's interface, and what :func:`parse` finds in it.

    Args:
        queries: The question, its variants, and in the mode for messages its sentences.
        is_explained: Whether reasons are collected, which takes as long as the fusion.
        subject: What a relevant hit holds of the question; "" for all of it.
        today: From which "last week" and the ages of a message's sessions count; None for the present day.
        half_life_days: After so many days a message's session counts half as new.
        ageless: Globs of paths whose sessions have no age.
        compares_all: Whether the scores of filtered chunks are those that they have among all chunks.
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
    compares_all: bool = True
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
        judgement: How likely the index answers the question.
        fused: The relevant ones, best first.
        nodes: Those that the arms brought.
        left_out: How many candidates are not relevant enough.
        notes: What was degraded or left out.
    """

    table: Table
    judgement: Judgement
    fused: Sequence[Fused]
    nodes: Mapping[str, BaseNode]
    left_out: int
    notes: tuple[str, ...]


async def answer_question(fusion: Fusion, question: Question, *, on_loop: bool) -> Explanation:
    """The answer to a question, with reasons where it asks for them; with ``on_loop`` the event loop is not blocked."""
    query, steps = question.queries[0], dict[str, list[Step]]()
    question, pool, results = await _search(fusion, question, on_loop=on_loop)
    for one in fusion.node_postprocessors:
        before = {result.node.node_id: result.score or 0.0 for result in results}
        if on_loop:
            results = await one.apostprocess_nodes(results, query_bundle=query)
        else:
            results = one.postprocess_nodes(results, query_bundle=query)
        for result in results:
            old, new = before.get(result.node.node_id, 0.0), result.score or 0.0
            change = Step(one.class_name(), old, new, new / old if old else 0.0)
            steps.setdefault(result.node.node_id, []).append(change)
        if all(result.score is not None for result in results):  # else the order of the postprocessor stays
            results = sorted(results, key=lambda result: -(result.score or 0.0))
    return await call(_explained, fusion, question, pool, results[: fusion.similarity_top_k], steps, on_loop=on_loop)


async def _search(fusion: Fusion, question: Question, *, on_loop: bool) -> tuple[Question, Pool, list[NodeWithScore]]:
    """The question without operators, its candidates, and the nodes; in one state of the stores where all compute."""
    if on_loop and all(arm.computes for arm in fusion.arms):
        return await asyncio.to_thread(lambda: run(_search(fusion, question, on_loop=False)))
    with nullcontext() if on_loop else shared_snapshot(fusion.arms):
        fusion, question = await call(parse, fusion, question, on_loop=on_loop)
        answers = await ask_arms(fusion.arms, question.queries, fusion.candidate_pool, fusion.mode, on_loop=on_loop)
        pool = await call(fuse_answers, fusion, question, answers, on_loop=on_loop)
        return question, pool, await call(cut, fusion, pool, on_loop=on_loop)


# Parse


def parse(fusion: Fusion, question: Question) -> tuple[Fusion, Question]:
    """A question without its operators, and arms that obey them; those that no node satisfies are ignored."""
    text, keyword = question.text, keyword_of(arm.retriever for arm in fusion.arms)
    query = None if keyword is None else parse_query(text, keyword.analyzer, keyword.may_exclude)
    if keyword is not None and query is not None and query.operators:
        queries = (replace(question.queries[0], query_str=query.text), *question.queries[1:])
        if admitted := frozenset(keyword.selected_ids(query.filters)):
            excluded = [one for one in query.operators if one.startswith("-")]
            notes = [f"{' and '.join(excluded)} leaves chunks out"] if excluded else []
            question = replace(question, operators=query.operators, admitted=admitted)
            arms = (arm.filtered(query.filters) if arm.ours and arm.ours.filters_words else arm for arm in fusion.arms)
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


def fuse_answers(fusion: Fusion, question: Question, answers: list[ArmAnswer]) -> Pool:
    """One pool of all answers, without what is not relevant enough."""
    with step("fusion", mode=fusion.mode.value, rankings=len(answers)) as facts:
        notes = [*question.notes, *report_failures(answers)]
        rankings = rankings_of(answers, fusion.candidate_pool, question.admitted)
        wanted, answered = set(candidate_ids(rankings)), [answer.arm for answer in answers if answer.error is None]
        arms, rankings = _compared(fusion, question, answered, rankings)
        table = _rank(fusion, question, arms, rankings)
        fused = table.ranked()
        judgement = judge(question.text, question.subject, arms, rankings, table, fused)
        is_narrowed = bool(question.operators) or any(arm.has_filters for arm in fusion.arms)
        judgement = judgement._replace(is_calibrated=judgement.is_calibrated and not is_narrowed)
        fused = fused if arms is answered else [one for one in fused if one.node_id in wanted]
        least, likely = min_score_for(fusion.min_score, is_calibrated=judgement.is_calibrated), judgement.relevance
        kept = fused  # scores of some modes are below 0: without a minimum they stay
        if least and likely is not None and not (fusion.min_score == AUTO and likely >= least):
            kept = [one for one in fused if likely * one.score >= least]
        left_out = len(fused) - len(kept)
        if question.is_explained:
            if left_out:
                reason = f"has a relevance of {(likely or 0.0) * fused[len(kept)].score:.3f}, below min_score={least:g}"
                notes.append(f"left out {counted(left_out, 'hit')}: the best {reason}")
            elif not kept:
                notes += _filter_notes(fusion)
            if (keyword := keyword_of(arm.retriever for arm in arms)) is not None:
                terms = keyword.term_scores(question.text, [])
                unknown = unknown_words_note(question.text, keyword.analyzer, terms)
                judgement = judgement._replace(unknown_words=unknown)
        facts["candidates"] = len(kept)
    every = (one for answer in answers for candidates in answer.found for one in candidates)
    nodes = {one.node_id: one.node for one in every if one.node is not None}
    return Pool(table, judgement, kept, nodes, left_out, tuple(notes))


def _compared(
    fusion: Fusion, question: Question, arms: list[Arm], rankings: list[Ranking]
) -> tuple[list[Arm], list[Ranking]]:
    """Arms without filters, and their rankings with candidates of the filtered ones that are in none of them.

    Where nothing is filtered, or that is not comparable, the same arms and rankings.
    """
    is_comparable = question.compares_all and isinstance(fusion.mode, Mode) and any(arm.has_filters for arm in arms)
    free = [one for arm in arms if (one := arm.without_filters()) is not None] if is_comparable else []
    if len(free) < len(arms):
        return arms, rankings
    answers = run(ask_arms(free, question.queries, fusion.candidate_pool, fusion.mode, on_loop=False))
    if any(answer.error is not None for answer in answers):
        return arms, rankings
    every, more = rankings_of(answers, fusion.candidate_pool, None), dict[tuple[str, int], list[Candidate]]()
    known = set(candidate_ids(every))
    for ranking in rankings:
        more[ranking.arm, ranking.query] = [hit for hit in ranking.candidates if hit.node_id not in known]
    extended = (([*one.candidates, *more.get((one.arm, one.query), ())], one) for one in every)
    return free, [replace(one, candidates=hits, compared=len(one.candidates)) for hits, one in extended]


def _rank(fusion: Fusion, question: Question, arms: Sequence[Arm], rankings: Sequence[Ranking]) -> Table:
    """Rankings fused in the mode of the retriever."""
    if not isinstance(fusion.mode, Mode):
        return fuse(rankings, mode=fusion.mode, k=fusion.rrf_k, pool=fusion.candidate_pool)
    text, is_message, reads = question.text, fusion.mode is Mode.MESSAGE, None
    if (keyword := keyword_of(arm.retriever for arm in arms)) is not None:
        name = next(arm.name for arm in arms if arm.retriever is keyword)
        # The sentences of a message are no questions of their own: they speak for what the whole of it finds.
        ids = candidate_ids(one for one in rankings if not is_message or one.query == 0)
        reads = read_pool(text, name, keyword, ids, is_message=is_message)
    if reads is None or not is_message:
        return fuse_learned(text, rankings, reads, today=question.today)
    ages: dict[str, Any] = {"half_life_days": question.half_life_days, "ageless": question.ageless}
    return fuse_sessions(text, rankings, reads, question.today or datetime.now().astimezone().date(), **ages)


def _filter_notes(fusion: Fusion) -> list[str]:
    """Filters that admit nothing; vector arms find something whatever the question is, unless nothing passes."""
    filtered = [arm for arm in fusion.arms if arm.has_filters]
    keyword = keyword_of(arm.retriever for arm in filtered)
    parts = [] if keyword is None else keyword.empty_filters()
    if not parts and all(arm.is_keyword for arm in filtered):
        return []
    together = ": each admits some, together they admit none" if keyword is not None else ""
    return [f"no chunk passes the filters{': none has ' if parts else together}{', '.join(parts)}"]


# Cut


def cut(fusion: Fusion, pool: Pool) -> list[NodeWithScore]:
    """The nodes of a pool: all where postprocessors read them, else as many as are returned.

    Where a node vanished since the arms answered, the next one moves up. In learned modes a node that nearly repeats
    the text of another one comes behind all others, with a score that is not higher than theirs. Notes of different
    days repeat nothing: each is news of its day.
    """
    is_learned = isinstance(fusion.mode, Mode)
    compared, met = _COMPARED * is_learned, NearDuplicates()
    again, results, rest = list[NodeWithScore](), list[NodeWithScore](), pool.fused
    most = len(pool.fused) if fusion.node_postprocessors else fusion.similarity_top_k
    scale = 1.0 if pool.judgement.relevance is None or not is_learned else pool.judgement.relevance
    while rest and len(results) < most:
        size = most - len(results)
        batch, rest = rest[:size], rest[size:]
        missing = [one.node_id for one in batch if one.node_id not in pool.nodes]
        nodes = {**pool.nodes, **read_nodes(fusion.arms, missing)}
        for one in batch:
            if (node := nodes.get(one.node_id)) is not None:
                is_new = len(results) >= compared or not met.has(node.get_content(), partial(day_of, node.metadata))
                (results if is_new else again).append(NodeWithScore(node=node, score=scale * one.score))
    lowest = results[-1].score or 0.0 if results else 0.0
    for hit in again[: most - len(results)]:
        results.append(NodeWithScore(node=hit.node, score=min(hit.score or 0.0, lowest)))
    return results


def _explained(
    fusion: Fusion, question: Question, pool: Pool, results: Sequence[NodeWithScore], steps: Mapping[str, list[Step]]
) -> Explanation:
    """The results of a question; with the reasons for each where it asks for them."""
    queries, ids = tuple(query.query_str for query in question.queries), [result.node.node_id for result in results]
    hits, likely, terms = list[Hit](), pool.judgement.relevance, [list[TermEvidence]()] * len(ids)
    keyword = keyword_of(arm.retriever for arm in fusion.arms) if question.is_explained else None
    if keyword is not None:
        terms = keyword.term_scores(" ".join(queries), ids).evidence()
    vectors = {arm.name for arm in fusion.arms if not arm.is_keyword}
    places = {one.node_id: one for one in pool.fused}
    for rank, (node_id, result, held) in enumerate(zip(ids, results, terms, strict=True), start=1):
        place = places.get(node_id)
        if place is not None and question.is_explained:
            place = pool.table.explained(place)
        earned = () if place is None else place.credits
        cosines = [credit.score for credit in earned if credit.query == 0 and credit.arm in vectors]
        relevant = None if likely is None or place is None else likely * max(place.score, 0.0)
        hits.append(
            Hit(rank, result, place, max(cosines, default=None), relevant, tuple(held), tuple(steps.get(node_id, ())))
        )
    return Explanation(
        queries,
        {arm.name: arm.weight for arm in fusion.arms},
        fusion.mode.value,
        fusion.rrf_k,
        hits=tuple(hits),
        pool_size=len(pool.fused),
        warnings=pool.notes,
        operators=question.operators,
        judgement=pool.judgement,
        left_out=pool.left_out,
    )
