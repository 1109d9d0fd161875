"""The steps of an answer, as plain functions: parse a question, fuse the answers of the arms (pool.py), cut.

A question goes ``parse → ask (arms.py) → fuse_answers → postprocessors → cut``. A flow is that
way, written once: it yields each piece of work that may block as a pair of calls, one for a thread and one for an event
loop, and :func:`run` and :func:`arun` drive it.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

from llama_index.core.schema import NodeWithScore, QueryBundle

from llama_index_contextual.errors import ContextualWarning
from llama_index_contextual.keyword import parse_query
from llama_index_contextual.retrieval.arms import keyword_of
from llama_index_contextual.retrieval.asking import (
    ArmAnswer,
    aask_arms,
    arm_queries,
    ask_arms,
    copy_of,
    shared_snapshot,
)
from llama_index_contextual.retrieval.explain import Explanation, Hit, Step
from llama_index_contextual.retrieval.fusion import Mode
from llama_index_contextual.retrieval.pool import fuse_answers, results_of
from llama_index_contextual.retrieval.question import Fusion, ParsedQuestion, Pool, Question
from llama_index_contextual.retrieval.sessions import sentences_of

Work = tuple[Callable[[], Any], Callable[[], Awaitable[Any]]]
Variants = tuple[Callable[[str], list[QueryBundle]], Callable[[str], Awaitable[list[QueryBundle]]]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The results of a question, and how they came about."""

    fusion: Fusion
    question: Question
    parsed: ParsedQuestion
    pool: Pool
    results: list[NodeWithScore]
    steps: dict[str, list[Step]]
    """What postprocessors did to scores, by node id."""


# The way of a question


def answer_flow(fusion: Fusion, question: Question, variants: Variants | None) -> Generator[Work, Any, Answer]:
    """Yield the pieces of work of an answer, and return it.

    Args:
        fusion: How it is answered.
        question: What is asked.
        variants: Write more queries, in a thread and on an event loop; None for none.
    """
    text = question.queries[0].query_str
    if variants is not None:
        write, awrite = variants
        question = replace(question, queries=(*question.queries, *(yield (lambda: write(text), lambda: awrite(text)))))
    parsed, pool, results = yield (lambda: _search(fusion, question), lambda: _asearch(fusion, question))
    steps: dict[str, list[Step]] = {}
    for one in fusion.node_postprocessors:
        before = {result.node.node_id: result.score or 0.0 for result in results}
        results = yield (
            lambda: one.postprocess_nodes(results, query_bundle=question.queries[0]),  # noqa: B023  called at once
            lambda: one.apostprocess_nodes(results, query_bundle=question.queries[0]),  # noqa: B023
        )
        for result in results:
            change = Step(one.class_name(), before.get(result.node.node_id, 0.0), result.score or 0.0)
            steps.setdefault(result.node.node_id, []).append(change)
        if all(result.score is not None for result in results):  # else the order of the postprocessor stays
            results = sorted(results, key=lambda result: -(result.score or 0.0))
    return Answer(fusion, question, parsed, pool, results[: fusion.similarity_top_k], steps)


def run(flow: Generator[Work, Any, Answer]) -> Answer:
    """Do the work of a flow in this thread."""
    result = None
    while True:
        try:
            work, _ = flow.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        result = work()


async def arun(flow: Generator[Work, Any, Answer]) -> Answer:
    """Do the work of a flow without blocking the event loop."""
    result = None
    while True:
        try:
            _, work = flow.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        result = await work()


Searched = tuple[ParsedQuestion, Pool, list[NodeWithScore]]


def _search(fusion: Fusion, question: Question) -> Searched:
    """Parse, ask and fuse, all in one state of the stores."""
    with shared_snapshot(fusion.arms):
        parsed = parse(fusion, question)
        answers = ask_arms(_queries_of(fusion, parsed), fusion.candidate_pool)
        return _fused(fusion, question, parsed, answers)


async def _asearch(fusion: Fusion, question: Question) -> Searched:
    if all(arm.computes for arm in fusion.arms):
        return await asyncio.to_thread(_search, fusion, question)
    parsed = await asyncio.to_thread(parse, fusion, question)
    answers = await aask_arms(_queries_of(fusion, parsed), fusion.candidate_pool)
    return await asyncio.to_thread(_fused, fusion, question, parsed, answers)


def _fused(fusion: Fusion, question: Question, parsed: ParsedQuestion, answers: list[ArmAnswer]) -> Searched:
    pool = fuse_answers(fusion, question, parsed, answers)
    return parsed, pool, results_of(fusion, pool)


def _queries_of(fusion: Fusion, parsed: ParsedQuestion) -> list[Any]:
    """Return every query for every arm that gets it: variants reach keyword arms, sentences of a message the others."""
    return arm_queries(parsed.arms, parsed.queries, to_keywords=fusion.mode is not Mode.MESSAGE)


# Parse


def parse(fusion: Fusion, question: Question) -> ParsedQuestion:
    """Return a question without its operators; those that no node satisfies are ignored, and noted."""
    queries, arms, keyword = question.queries, fusion.arms, keyword_of(arm.retriever for arm in fusion.arms)
    operators: tuple[str, ...] = ()
    admitted: frozenset[str] | None = None
    notes: list[str] = []
    if keyword is not None:
        query = parse_query(queries[0].query_str, keyword.analyzer, keyword.may_exclude)
        if query.operators:
            admitted = frozenset(keyword.selected_ids(query.filters)) or None
            operators = query.operators if admitted else ()
            if not operators:
                notes.append(f"nothing matches {' '.join(query.operators)}, which was therefore ignored")
            queries = (copy_of(queries[0], query.text), *queries[1:])
        if operators:
            arms = tuple(arm.with_query_filters(query.filters) for arm in arms)
    if fusion.mode is Mode.MESSAGE:
        queries += tuple(map(QueryBundle, sentences_of(queries[0].query_str)))
    for note in notes:
        warnings.warn(f"Query {question.queries[0].query_str!r}: {note}.", ContextualWarning, stacklevel=2)
    excluded = [one for one in operators if one.startswith("-")]
    notes += [f"{' and '.join(excluded)} leaves chunks out"] if excluded else []
    return ParsedQuestion(queries, arms, operators, admitted, tuple(notes))


def explanation_of(answer: Answer) -> Explanation:
    """Return the results of an explained question with the reasons for each."""
    fusion, pool = answer.fusion, answer.pool
    queries = tuple(query.query_str for query in answer.parsed.queries)
    keyword = keyword_of(arm.retriever for arm in fusion.arms)
    ids = [result.node.node_id for result in answer.results]
    terms: Any = {} if keyword is None else keyword.evidence(" ".join(queries), ids)
    vectors = {arm.name for arm in fusion.arms if not arm.is_keyword}
    places = {one.node_id: one for one in pool.fused}
    hits = []
    for rank, result in enumerate(answer.results, start=1):
        node_id = result.node.node_id
        place = places.get(node_id)
        earned = () if place is None else place.credits
        cosines = [credit.score for credit in earned if credit.query == 0 and credit.arm in vectors]
        likely = (
            None
            if pool.judgement.relevance is None or place is None
            else pool.judgement.relevance * max(place.score, 0.0)
        )
        reasons = tuple(terms.get(node_id, ())), tuple(answer.steps.get(node_id, ()))
        hits.append(Hit(rank, result, place, max(cosines, default=None), likely, *reasons))
    return Explanation(
        queries,
        {arm.name: arm.weight for arm in fusion.arms},
        fusion.mode.value,
        fusion.rrf_k,
        hits=tuple(hits),
        pool_size=len(pool.fused),
        warnings=(*answer.parsed.notes, *pool.notes),
        operators=answer.parsed.operators,
        judgement=pool.judgement,
    )
