"""A question: three plain functions, parse, fuse and cut, over a small frozen query.

:func:`answer_question` goes ``parse → ask (arms.py) → fuse → cut → postprocessors``. It is a coroutine:
with ``on_loop=False`` it waits for nothing, and :func:`~.retrieval.stores.run` gives its result at once.

A filter leaves chunks out and changes no score. So where the arms are ours and something narrows the question, the
same question goes to all chunks, too. All that is compared (the spread of an arm's scores, the best hit, the tenth)
is taken from that answer.
"""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle

from llama_index_contextual.errors import ContextualWarning
from llama_index_contextual.keyword import parse_query, unknown_words_note
from llama_index_contextual.metadata import citation_of, day_of
from llama_index_contextual.retrieval.arms import (
    Arm,
    ArmAnswer,
    ask_arms,
    copy_of,
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
    evidence_of,
    min_score_for,
    relevance,
)
from llama_index_contextual.retrieval.fusion import Fused, Mode, Ranking, candidate_ids, fuse, fuse_learned, trust_in
from llama_index_contextual.retrieval.sessions import HALF_LIFE_DAYS, fuse_sessions, sentences_of
from llama_index_contextual.retrieval.signals import read_pool
from llama_index_contextual.retrieval.stores import call, run
from llama_index_contextual.retrieval.vector import ContextualVectorRetriever
from llama_index_contextual.text import counted
from llama_index_contextual.watching import step

if TYPE_CHECKING:
    from llama_index.core.postprocessor.types import BaseNodePostprocessor

_COMPARED: Final = 100  # results among which a text counts once
_SAME: Final = 0.8  # Jaccard similarity of word pairs from which two chunks are nearly equal
_ALIKE: Final = 0.5  # that of their words, below which their pairs are not compared
_WORD: Final = re.compile(r"\w+")
_NAMED: Final = 0.95  # relevance at least of a question that is the name of what was found


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """Settings of a fusion retriever; see :class:`~llama_index_contextual.ContextualFusionRetriever`."""

    arms: tuple[Arm, ...]
    mode: Mode
    rrf_k: float
    similarity_top_k: int
    candidate_pool: int
    node_postprocessors: Sequence[BaseNodePostprocessor] = ()
    min_score: MinScore = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, with settings of memory beyond LlamaIndex's interface.

    Args:
        queries: The question, then its variants.
        is_explained: Whether reasons are collected, which takes as long as the fusion.
        subject: What a relevant hit holds of the question; "" for all of it.
        today: From which "last week" and the ages of a message's sessions count; None for the present day.
        half_life_days: After so many days a message's session counts half as new.
        ageless: Globs of paths whose sessions have no age.
        compares_all: Whether the scores of filtered chunks are those that they have among all chunks.
    """

    queries: tuple[QueryBundle, ...]
    is_explained: bool = False
    subject: str = ""
    today: date | None = None
    half_life_days: float = HALF_LIFE_DAYS
    ageless: Sequence[str] = ()
    compares_all: bool = True


@dataclass(frozen=True, slots=True)
class ParsedQuestion:
    """The queries of a question without their operators.

    Args:
        queries: The question, its variants, and in the mode for messages its sentences.
        arms: The arms, which evaluate the operators where they can.
        operators: The operators that are obeyed.
        admitted: Ids of the nodes that satisfy the operators; None for all.
        notes: Operators that are ignored.
    """

    queries: tuple[QueryBundle, ...]
    arms: tuple[Arm, ...]
    operators: tuple[str, ...] = ()
    admitted: frozenset[str] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pool:
    """All relevant candidates of the arms.

    Args:
        judgement: How likely the index answers the question.
        fused: Best first.
        nodes: Those that the arms brought.
        left_out: How many candidates are not relevant enough.
        notes: What was degraded or left out.
    """

    judgement: Judgement
    fused: Sequence[Fused]
    nodes: Mapping[str, BaseNode]
    left_out: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The results of a question, and how they came about; ``steps`` are the effects of postprocessors, by node id."""

    fusion: Fusion
    question: Question
    parsed: ParsedQuestion
    pool: Pool
    results: list[NodeWithScore]
    steps: dict[str, list[Step]]


async def answer_question(fusion: Fusion, question: Question, *, on_loop: bool) -> Answer:
    """The answer to a question; with ``on_loop`` it does not block the event loop."""
    query, steps = question.queries[0], dict[str, list[Step]]()
    parsed, pool, results = await _search(fusion, question, on_loop=on_loop)
    for one in fusion.node_postprocessors:
        before = {result.node.node_id: result.score or 0.0 for result in results}
        if on_loop:
            results = await one.apostprocess_nodes(results, query_bundle=query)
        else:
            results = one.postprocess_nodes(results, query_bundle=query)
        for result in results:
            change = Step(one.class_name(), before.get(result.node.node_id, 0.0), result.score or 0.0)
            steps.setdefault(result.node.node_id, []).append(change)
        if all(result.score is not None for result in results):  # else the order of the postprocessor stays
            results = sorted(results, key=lambda result: -(result.score or 0.0))
    return Answer(fusion, question, parsed, pool, results[: fusion.similarity_top_k], steps)


async def _search(
    fusion: Fusion, question: Question, *, on_loop: bool
) -> tuple[ParsedQuestion, Pool, list[NodeWithScore]]:
    """The question without operators, its candidates, and the nodes; in one state of the stores where all compute."""
    if on_loop and all(arm.computes for arm in fusion.arms):
        return await asyncio.to_thread(lambda: run(_search(fusion, question, on_loop=False)))
    with nullcontext() if on_loop else shared_snapshot(fusion.arms):
        parsed = await call(parse, fusion, question, on_loop=on_loop)
        answers = await ask_arms(parsed.arms, parsed.queries, fusion.candidate_pool, fusion.mode, on_loop=on_loop)
        fused = await call(fuse_answers, fusion, question, parsed, answers, on_loop=on_loop)
        return parsed, fused, await call(cut, fusion, fused, on_loop=on_loop)


# Parse


def parse(fusion: Fusion, question: Question) -> ParsedQuestion:
    """A question without its operators; those that no node satisfies are ignored, and noted."""
    queries, arms, keyword = question.queries, fusion.arms, keyword_of(arm.retriever for arm in fusion.arms)
    operators, admitted, notes = tuple[str, ...](), None, list[str]()
    query = None if keyword is None else parse_query(queries[0].query_str, keyword.analyzer, keyword.may_exclude)
    if keyword is not None and query is not None and query.operators:
        queries = (copy_of(queries[0], query.text), *queries[1:])
        admitted = frozenset(keyword.selected_ids(query.filters)) or None
        if admitted:
            operators = query.operators
            excluded = [one for one in operators if one.startswith("-")]
            notes += [f"{' and '.join(excluded)} leaves chunks out"] if excluded else []
            arms = tuple(arm.filtered(query.filters) if arm.ours and arm.ours.filters_words else arm for arm in arms)
        else:
            notes.append(f"nothing matches {' '.join(query.operators)}, which was therefore ignored")
            warnings.warn(f"Query {question.queries[0].query_str!r}: {notes[0]}.", ContextualWarning, stacklevel=2)
    if fusion.mode is Mode.MESSAGE:
        queries += tuple(map(QueryBundle, sentences_of(queries[0].query_str)))
    return ParsedQuestion(queries, arms, operators, admitted, tuple(notes))


# Fuse


def fuse_answers(fusion: Fusion, question: Question, parsed: ParsedQuestion, answers: list[ArmAnswer]) -> Pool:
    """One pool of all answers, without what is not relevant enough."""
    with step("fusion", mode=fusion.mode.value, rankings=len(answers)) as facts:
        notes = report_failures(answers)
        rankings = rankings_of(answers, fusion.candidate_pool, parsed.admitted)
        arms, wanted = [answer.arm for answer in answers if answer.error is None], None
        if everything := _unfiltered(fusion, question, parsed, arms):
            wanted = set(candidate_ids(rankings))
            arms, rankings = everything[0], _extended(everything[1], rankings)
        fused = _rank(fusion, question, parsed, arms, rankings)
        judgement = _judged(question, parsed, arms, rankings, fused)
        fused = fused if wanted is None else [one for one in fused if one.node_id in wanted]
        kept = _relevant(fusion, judgement, fused)
        left_out = len(fused) - len(kept)
        if question.is_explained and left_out:
            notes.append(_left_out_note(fusion, judgement, fused[len(kept)], left_out))
        if not kept:
            notes += _filter_notes(question, parsed)
        facts["candidates"] = len(kept)
    every = (one for answer in answers for candidates in answer.found for one in candidates)
    nodes = {one.node_id: one.node for one in every if one.node is not None}
    return Pool(judgement, kept, nodes, left_out, tuple(notes))


def _unfiltered(
    fusion: Fusion, question: Question, parsed: ParsedQuestion, arms: Sequence[Arm]
) -> tuple[list[Arm], list[Ranking]] | None:
    """Arms without filters and their rankings; None where nothing is filtered, or that is not comparable."""
    if not (question.compares_all and fusion.mode.is_learned and any(arm.has_filters for arm in arms)):
        return None
    free = [one for arm in arms if (one := arm.without_filters()) is not None]
    if len(free) < len(arms):
        return None
    answers = run(ask_arms(free, parsed.queries, fusion.candidate_pool, fusion.mode, on_loop=False))
    failed = any(answer.error is not None for answer in answers)
    return None if failed else (free, rankings_of(answers, fusion.candidate_pool, None))


def _extended(rankings: Sequence[Ranking], filtered: Sequence[Ranking]) -> list[Ranking]:
    """Rankings with candidates of filtered ones that are in none of them, which are not compared."""
    known = set(candidate_ids(rankings))
    more = {(one.arm, one.query): [hit for hit in one.candidates if hit.node_id not in known] for one in filtered}
    return [
        replace(one, candidates=[*one.candidates, *more.get((one.arm, one.query), ())], compared=len(one.candidates))
        for one in rankings
    ]


def _rank(
    fusion: Fusion, question: Question, parsed: ParsedQuestion, arms: Sequence[Arm], rankings: Sequence[Ranking]
) -> list[Fused]:
    """Rankings fused in the mode of the retriever."""
    # Reasons are for what is shown, and postprocessors may show any of them.
    explained = (None if fusion.node_postprocessors else fusion.similarity_top_k) if question.is_explained else 0
    if not fusion.mode.is_learned:
        return fuse(rankings, mode=fusion.mode, k=fusion.rrf_k, pool=fusion.candidate_pool, explained=explained)
    text, is_message, reads = parsed.queries[0].query_str, fusion.mode is Mode.MESSAGE, None
    if (keyword := keyword_of(arm.retriever for arm in arms)) is not None:
        name = next(arm.name for arm in arms if arm.retriever is keyword)
        # The sentences of a message are no questions of their own: they speak for what the whole of it finds.
        ids = candidate_ids(one for one in rankings if not is_message or one.query == 0)
        reads = read_pool(text, name, keyword, ids, is_message=is_message)
    kinds = {arm.name: arm.is_keyword for arm in arms}
    models = {arm.name: model for arm in arms if (model := getattr(arm.retriever, "cosines_of", ""))}
    settings: dict[str, Any] = {"trust": trust_in(models, text, rankings, reads), "explained": explained}
    if reads is None or not is_message:
        return fuse_learned(text, rankings, kinds, reads, today=question.today, **settings)
    settings |= {"half_life_days": question.half_life_days, "ageless": question.ageless}
    today = question.today or datetime.now().astimezone().date()
    return fuse_sessions(text, rankings, kinds, reads, today, **settings)


def _judged(
    question: Question, parsed: ParsedQuestion, arms: Sequence[Arm], rankings: Sequence[Ranking], fused: Sequence[Fused]
) -> Judgement:
    """The judgement of a question by its best candidate.

    It is the first, or of the first three the one that holds most of the subject: "What did we decide about retries?"
    finds other decisions, too.
    """
    text, keyword = parsed.queries[0].query_str, keyword_of(arm.retriever for arm in arms)
    vector = next((arm.retriever for arm in arms if isinstance(arm.retriever, ContextualVectorRetriever)), None)
    ids, shares = [one.node_id for one in fused[: 3 if question.subject else 1]], list[float]()
    if keyword is not None:
        shares = keyword.term_scores(question.subject or text, ids).shares() or []
    best = max(range(len(shares)), key=shares.__getitem__, default=0)
    originals = {one.arm: one for one in rankings if one.query == 0}
    of_retriever = {id(arm.retriever): originals.get(arm.name) for arm in arms}
    evidence = evidence_of(
        text,
        next(iter(ids[best:]), ""),
        of_retriever.get(id(vector)),
        of_retriever.get(id(keyword)),
        None if keyword is None else max(shares, default=0.0),
        model="" if vector is None else vector.cosines_of,
    )
    likely = relevance(evidence)
    if likely is not None and fused and fused[0].is_named:
        likely = max(likely, _NAMED)
    is_narrowed = bool(parsed.operators) or any(arm.has_filters for arm in parsed.arms)
    unknown = unknown_words_note(keyword.unknown(text)) if keyword is not None and question.is_explained else ""
    return Judgement(likely, evidence.is_calibrated and not is_narrowed, evidence, unknown)


def _relevant(fusion: Fusion, judgement: Judgement, fused: list[Fused]) -> list[Fused]:
    """Candidates that are as relevant as they have to be, best first."""
    least, likely = min_score_for(fusion.min_score, is_calibrated=judgement.is_calibrated), judgement.relevance
    # Scores of some modes are below 0: without a minimum they stay.
    if not least or likely is None or (fusion.min_score == AUTO and likely >= least):
        return fused
    return [one for one in fused if likely * one.score >= least]


def _left_out_note(fusion: Fusion, judgement: Judgement, best: Fused, count: int) -> str:
    """The number of candidates that are left out, and the best of them."""
    least = min_score_for(fusion.min_score, is_calibrated=judgement.is_calibrated)
    node = read_nodes(fusion.arms, [best.node_id]).get(best.node_id)
    place = "" if node is None else f", {citation_of(node.metadata) or node.node_id},"
    reason = f"has a relevance of {(judgement.relevance or 0.0) * best.score:.3f}, below min_score={least:g}"
    return f"left out {counted(count, 'hit')}: the best{place} {reason}"


def _filter_notes(question: Question, parsed: ParsedQuestion) -> list[str]:
    """Filters that admit nothing; vector arms find something whatever the question is, unless nothing passes."""
    filtered = [arm for arm in parsed.arms if arm.has_filters]
    keyword = keyword_of(arm.retriever for arm in filtered)
    if not filtered:
        return []
    parts, keys = keyword.empty_filters() if keyword is not None else ([], [])
    if question.is_explained and (parts or not all(arm.is_keyword for arm in filtered)):
        together = ": each admits some, together they admit none" if keyword is not None else ""
        return [f"no chunk passes the filters{': none has ' if parts else together}{', '.join(parts)}"]
    if parts and keys:
        message = f"no chunk has {', '.join(map(repr, keys))}, which the filters ask for"
        warnings.warn(f"Query {question.queries[0].query_str!r}: {message}.", ContextualWarning, stacklevel=2)
    return []


# Cut


def cut(fusion: Fusion, pool: Pool) -> list[NodeWithScore]:
    """The nodes of a pool: all where postprocessors read them, else as many as are returned.

    Where a node vanished since the arms answered, the next one moves up. In learned modes a node that nearly repeats
    the text of another one comes behind all others, with a score that is not higher than theirs. Notes of different
    days repeat nothing: each is news of its day.
    """
    compared = _COMPARED if fusion.mode.is_learned else 0
    met, again, results, rest = NearDuplicates(), list[NodeWithScore](), list[NodeWithScore](), pool.fused
    most = len(pool.fused) if fusion.node_postprocessors else fusion.similarity_top_k
    scale = 1.0 if pool.judgement.relevance is None or not fusion.mode.is_learned else pool.judgement.relevance
    while rest and len(results) < most:
        size = most - len(results)
        batch, rest = rest[:size], rest[size:]
        nodes = {
            **pool.nodes,
            **read_nodes(fusion.arms, (one.node_id for one in batch if one.node_id not in pool.nodes)),
        }
        for one in batch:
            if (node := nodes.get(one.node_id)) is not None:
                is_new = len(results) >= compared or not met.has(node.get_content(), partial(day_of, node.metadata))
                (results if is_new else again).append(NodeWithScore(node=node, score=scale * one.score))
    lowest = results[-1].score or 0.0 if results else 0.0
    for hit in again[: most - len(results)]:
        results.append(NodeWithScore(node=hit.node, score=min(hit.score or 0.0, lowest)))
    return results


class NearDuplicates:
    """The texts so far, each with a function for its kind: texts of different kinds are not equal."""

    def __init__(self) -> None:
        self._texts: list[tuple[str, frozenset[str], Callable[[], object]]] = []

    def has(self, text: str, kind: Callable[[], object] = lambda: None) -> bool:
        """Whether a text is nearly equal to one of those so far; if not, it is one of them from now on."""
        words = frozenset(text.casefold().split())
        for other, words_of_other, kind_of_other in self._texts:
            alike = text == other or similarity(words, words_of_other) >= _ALIKE
            if alike and similarity(_pairs(text), _pairs(other)) >= _SAME and kind() == kind_of_other():
                return True
        self._texts.append((text, words, kind))
        return False


def similarity(some: frozenset[Any], others: frozenset[Any]) -> float:
    """Jaccard similarity: the share of what two sets hold that both hold."""
    both = len(some & others)
    return both / ((len(some) + len(others) - both) or 1)


def _pairs(text: str) -> frozenset[tuple[str, ...]]:
    words = _WORD.findall(text.casefold())
    return frozenset(pairwise(words)) or frozenset([tuple(words)])


def explanation_of(found: Answer) -> Explanation:
    """The results of an explained question with the reasons for each."""
    fusion, pool, likely = found.fusion, found.pool, found.pool.judgement.relevance
    queries = tuple(query.query_str for query in found.parsed.queries)
    keyword, ids = keyword_of(arm.retriever for arm in fusion.arms), [result.node.node_id for result in found.results]
    terms = [[]] * len(ids) if keyword is None else keyword.term_scores(" ".join(queries), ids).evidence()
    vectors = {arm.name for arm in fusion.arms if not arm.is_keyword}
    places, hits = {one.node_id: one for one in pool.fused}, list[Hit]()
    for rank, (result, of_hit) in enumerate(zip(found.results, terms, strict=True), start=1):
        place = places.get(result.node.node_id)
        earned = () if place is None else place.credits
        cosines = [credit.score for credit in earned if credit.query == 0 and credit.arm in vectors]
        relevant = None if likely is None or place is None else likely * max(place.score, 0.0)
        steps = tuple(found.steps.get(result.node.node_id, ()))
        hits.append(Hit(rank, result, place, max(cosines, default=None), relevant, tuple(of_hit), steps))
    return Explanation(
        queries,
        {arm.name: arm.weight for arm in fusion.arms},
        fusion.mode.value,
        fusion.rrf_k,
        hits=tuple(hits),
        pool_size=len(pool.fused),
        warnings=(*found.parsed.notes, *pool.notes),
        operators=found.parsed.operators,
        judgement=pool.judgement,
    )
