"""Ask the arms of a fusion all at once, in threads or on an event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import warnings
from collections.abc import Iterable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.vector_store import VectorIndexRetriever
from llama_index.core.schema import QueryBundle
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from llama_index_contextual.errors import ContextualWarning, DamagedError, RetrievalError, StorageError
from llama_index_contextual.keyword import Candidate
from llama_index_contextual.retrieval.arms import Arm, name_of
from llama_index_contextual.retrieval.fusion import Ranking
from llama_index_contextual.retrieval.vector import ContextualVectorRetriever
from llama_index_contextual.watching import in_thread, step

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from llama_index.core.schema import NodeWithScore


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class ArmQuery:
    """One query for one arm.

    Args:
        arm: The arm.
        number: Of the query; 0 is the original.
        bundle: The arm's own copy of the query, because LlamaIndex's retrievers write the embedding into it.
    """

    arm: Arm
    number: int
    bundle: QueryBundle


class ArmAnswer(NamedTuple):
    """What an arm answered to a query, best first, or the error with which it failed."""

    query: ArmQuery
    candidates: list[Candidate]
    error: Exception | None = None


def arm_queries(arms: Sequence[Arm], queries: Sequence[QueryBundle], *, to_keywords: bool) -> list[ArmQuery]:
    """Return the first query for every arm, and the others for keyword arms, or for those that are none."""
    return [
        ArmQuery(arm, number, copy_of(query))
        for number, query in enumerate(queries)
        for arm in arms
        if number == 0 or arm.is_keyword is to_keywords
    ]


def copy_of(query: QueryBundle, text: str | None = None) -> QueryBundle:
    """Return a copy of a query, optionally with another text."""
    return QueryBundle(
        query.query_str if text is None else text,
        image_path=query.image_path,
        custom_embedding_strs=query.custom_embedding_strs,
        embedding=query.embedding,
    )


@contextmanager
def shared_snapshot(arms: Iterable[Arm]) -> Iterator[None]:
    """Let the arms answer a question from one state of their stores; a store without one fails when it is asked."""
    with ExitStack() as stack:
        for retriever in (arm.ours for arm in arms):
            if retriever is not None:
                with suppress(Exception):
                    stack.enter_context(retriever.snapshot())
        yield


def ask_arms(queries: Sequence[ArmQuery], pool: int) -> list[ArmAnswer]:
    """Ask all at once and wait; return answers in order of the queries.

    The caller's own thread asks the arms of :func:`_together`.
    """
    requests = _requests(queries)
    together = _together(requests)
    running = [in_thread(_attempt, request, pool) for request in requests if request not in together]
    answers = [answer for request in together for answer in _attempt(request, pool)]
    answers += [answer for future in running for answer in future.result()]
    return sorted(answers, key=lambda answer: queries.index(answer.query))


async def aask_arms(queries: Sequence[ArmQuery], pool: int) -> list[ArmAnswer]:
    """Ask all at once without blocking the event loop; return answers in order of the queries."""
    parts = await asyncio.gather(*(_attempt_async(request, pool) for request in _requests(queries)))
    return sorted((answer for part in parts for answer in part), key=lambda answer: queries.index(answer.query))


def _requests(queries: Sequence[ArmQuery]) -> list[list[ArmQuery]]:
    """Return queries as requests: those of an arm that answers several at once are one."""
    requests: list[list[ArmQuery]] = []
    shared: dict[Arm, list[ArmQuery]] = {}
    for query in queries:
        if (queries_of_arm := shared.get(query.arm)) is not None:
            queries_of_arm.append(query)
            continue
        requests.append([query])
        if isinstance(query.arm.retriever, ContextualVectorRetriever):
            shared[query.arm] = requests[-1]
    return requests


def _together(requests: Sequence[list[ArmQuery]]) -> list[list[ArmQuery]]:
    """Return the requests that one thread makes one after the other: those to keyword arms, and the last of the others.

    Keyword arms compute for about a millisecond, and Python runs one thread at a time. One more thread would win
    nothing, and on a busy machine each change of threads costs several milliseconds.
    """
    quick = [request for request in requests if request[0].arm.is_keyword]
    others = [request for request in requests if request not in quick]
    return quick + others[-1:]


def _attempt(request: list[ArmQuery], pool: int) -> list[ArmAnswer]:
    first, bundles = request[0], [query.bundle for query in request]
    try:
        with step("arm", arm=name_of(first.arm.retriever), query=first.number, queries=len(request)) as facts:
            ours = first.arm.ours
            if ours is None:
                candidates = [_plain(first.arm, first.arm.retriever.retrieve(first.bundle), pool)]
            elif isinstance(ours, ContextualVectorRetriever):
                candidates = list(map(_best_highest, ours.candidates_of_each(bundles, pool)))
            else:
                candidates = [ours.candidates(first.bundle, pool)]
            facts["candidates"] = sum(map(len, candidates))
    except Exception as error:  # noqa: BLE001  whatever an arm raises, the others' answers stand
        return _failed(request, error)
    return list(map(ArmAnswer, request, candidates))


async def _attempt_async(request: list[ArmQuery], pool: int) -> list[ArmAnswer]:
    first = request[0]
    try:
        if _blocks(first.arm):
            return await asyncio.wrap_future(in_thread(_attempt, request, pool))
        with step("arm", arm=name_of(first.arm.retriever), query=first.number, queries=len(request)) as facts:
            if isinstance(first.arm.retriever, ContextualVectorRetriever):
                bundles = [query.bundle for query in request]
                candidates = list(map(_best_highest, await first.arm.retriever.acandidates_of_each(bundles, pool)))
            else:
                candidates = [_plain(first.arm, await first.arm.retriever.aretrieve(first.bundle), pool)]
            facts["candidates"] = sum(map(len, candidates))
    except Exception as error:  # noqa: BLE001  as above
        return _failed(request, error)
    return list(map(ArmAnswer, request, candidates))


def _failed(request: Sequence[ArmQuery], error: Exception) -> list[ArmAnswer]:
    return [ArmAnswer(query, [], error) for query in request]


def _blocks(arm: Arm) -> bool:
    """Return whether an arm would compute on the event loop, as LlamaIndex's default does."""
    retriever = arm.retriever
    if arm.ours is not None:
        return not arm.asks_async
    if type(retriever)._aretrieve is BaseRetriever._aretrieve:  # noqa: SLF001  it says which one would run
        return True
    store = getattr(retriever, "_vector_store", None)
    return isinstance(store, BasePydanticVectorStore) and type(store).aquery is BasePydanticVectorStore.aquery


def _plain(arm: Arm, results: Sequence[NodeWithScore], pool: int) -> list[Candidate]:
    """Return the candidates of an arm, best first; those without a score come last, in the arm's order.

    Where an arm that matches words says 0, nothing matches. Where another arm says 0 of everything, it has no scores.
    """
    if arm.is_keyword:
        results = [result for result in results if result.score != 0]
    scores = [None if result.score is None or math.isnan(result.score) else result.score for result in results]
    if not any(scores):
        scores = [None] * len(results)
    candidates = [
        Candidate(result.node.node_id, score, result.node) for result, score in zip(results, scores, strict=True)
    ]
    if isinstance(arm.retriever, VectorIndexRetriever):
        candidates = _best_highest(candidates)
    return sorted(candidates, key=lambda hit: math.inf if hit.score is None else -hit.score)[:pool]


def _best_highest(candidates: list[Candidate]) -> list[Candidate]:
    """Return the hits of a store, which come best first, with scores that fall: distances, as of FAISS, rise."""
    scores = [candidate.score for candidate in candidates if candidate.score is not None]
    if len(scores) < len(candidates) or not scores or scores[0] >= scores[-1] or scores != sorted(scores):
        return candidates
    return [Candidate(hit.node_id, -score, hit.node) for hit, score in zip(candidates, scores, strict=True)]


def rankings_of(answers: Sequence[ArmAnswer], pool: int, admitted: Collection[str] | None) -> list[Ranking]:
    """Return the rankings of the arms that answered; their weights sum to 1 again where others failed.

    Args:
        answers: Of all arms to all queries.
        pool: Candidates of each that count.
        admitted: Ids that a query's operators admit, for arms that do not evaluate them; None for all.
    """
    good = [answer for answer in answers if answer.error is None]
    arms = [answer.query.arm for answer in good]
    present = sum(arm.weight for arm in dict.fromkeys(arms)) or 1.0
    rankings = []
    for answer in good:
        arm, candidates = answer.query.arm, answer.candidates
        if admitted is not None:
            candidates = [candidate for candidate in candidates if candidate.node_id in admitted]
        # An arm's weight is shared by its queries, so that variants do not make it more important.
        weight = arm.weight / present / arms.count(arm)
        rankings.append(Ranking(arm.name, answer.query.number, weight, candidates[:pool]))
    return rankings


def report_failures(answers: Sequence[ArmAnswer]) -> list[str]:
    """Warn of arms that failed, and return the warnings.

    Raises:
        DamagedError: One met damage of the database, which may have lost what the others did not find, either.
        StorageError: All failed with the same error of the storage, which names the cure.
        RetrievalError: All failed in other ways.
    """
    errors = [answer.error for answer in answers if answer.error is not None]
    if not errors:
        return []
    for error in errors:
        if isinstance(error, DamagedError):
            raise error
    failed = [
        f"arm {answer.query.arm.name!r} failed: {type(answer.error).__name__}: {answer.error}"
        for answer in answers
        if answer.error is not None
    ]
    notes = list(dict.fromkeys(failed))
    if len(errors) == len(answers):
        if isinstance(errors[0], StorageError) and len({str(error) for error in errors}) == 1:
            raise errors[0]
        raise RetrievalError(f"No retrieval arm could answer: {'; '.join(notes)}") from errors[0]
    for note in notes:
        message = f"Retrieval degraded: {note}; the other arms answered."
        logger.warning(message)
        warnings.warn(message, ContextualWarning, stacklevel=2)
    return notes
