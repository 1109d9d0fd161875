"""The arms of a fusion: their kind, names and weights, what each of them is asked, and how all are asked at once."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import warnings
from collections.abc import Iterable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.vector_store import VectorIndexRetriever
from llama_index.core.schema import QueryBundle
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual.errors import ContextualWarning, RetrievalError, SettingError, StorageError
from llama_index_contextual.keyword.query import may_be_misspelled, parse_query
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.fusion import Mode, Ranking
from llama_index_contextual.retrievers.search import Candidate
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever
from llama_index_contextual.watching import in_thread, step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from llama_index.core.schema import NodeWithScore

    from llama_index_contextual.retrievers.search import CandidateRetriever

logger = logging.getLogger(__name__)

KEYWORD_WEIGHT: Final = 0.6


def is_keyword(arm: object) -> bool:
    """Return whether an arm matches words: it says so (``arm.kind == "keyword"``), or it is a BM25 retriever."""
    return getattr(arm, "kind", None) == "keyword" or isinstance(arm, BM25Retriever)


def gives_ids(arm: BaseRetriever) -> TypeGuard[CandidateRetriever]:
    """Return whether an arm answers with ids. ``isinstance`` would tell, too, but is slow with a protocol."""
    return hasattr(arm, "candidates") and hasattr(arm, "nodes")


def checked_arms(retrievers: object) -> list[BaseRetriever]:
    """Return the arms as a list.

    Raises:
        SettingError: They are not a sequence of retrievers; the message says what was probably meant.
    """
    kind = type(retrievers).__name__
    if isinstance(retrievers, BaseRetriever):
        raise SettingError(f"retrievers={kind} is a single retriever. Cure: a list, ContextualFusionRetriever([...]).")
    if hasattr(retrievers, "as_retriever") or not isinstance(retrievers, Iterable):
        cure = "[index.as_retriever()]" if hasattr(retrievers, "as_retriever") else "a list of retrievers"
        raise SettingError(f"retrievers={kind} is not a list of retrievers. Cure: {cure}.")
    arms = list(retrievers)
    if not arms:
        raise SettingError("retrievers=[] is empty. Cure: at least one retriever.")
    for arm in arms:
        if not isinstance(arm, BaseRetriever):
            cure = "its as_retriever()" if hasattr(arm, "as_retriever") else "a LlamaIndex retriever"
            raise SettingError(f"retrievers hold a {type(arm).__name__}, which is not a retriever. Cure: {cure}.")
    return arms


def arm_names(arms: Sequence[BaseRetriever]) -> list[str]:
    """Return a short distinct name for each arm: its own ``name``, "bm25", "vector", or its class."""
    plain = [_name(arm) for arm in arms]
    seen: dict[str, int] = {}
    names = []
    for name in plain:
        seen[name] = seen.get(name, 0) + 1
        names.append(name if plain.count(name) == 1 else f"{name} {seen[name]}")
    return names


def _name(arm: Any) -> str:
    own = getattr(arm, "name", None)
    if isinstance(own, str):
        return own
    if isinstance(arm, BM25Retriever):
        return "bm25"
    return "vector" if isinstance(arm, (ContextualVectorRetriever, VectorIndexRetriever)) else type(arm).__name__


def arm_weights(arms: Sequence[BaseRetriever], given: Sequence[float] | None) -> list[float]:
    """Return weights that sum to 1; by default keyword arms share :data:`KEYWORD_WEIGHT` and the others the rest.

    Raises:
        SettingError: Arms and weights differ in number, a weight is negative or not finite, or all are 0.
    """
    if given is not None and (len(given) != len(arms) or not all(map(_is_weight, given)) or sum(given) <= 0):
        raise SettingError(
            f"retriever_weights={list(given)} cannot work. Cure: a finite number for each of {len(arms)} retrievers, "
            "none negative and not all 0."
        )
    if given is None:
        keyword = [is_keyword(arm) for arm in arms]
        shares = {True: KEYWORD_WEIGHT, False: 1 - KEYWORD_WEIGHT}
        given = [shares[kind] / keyword.count(kind) for kind in keyword]
    return [weight / sum(given) for weight in given]


def _is_weight(value: object) -> bool:
    return isinstance(value, int | float | np.floating | np.integer) and bool(0 <= value < math.inf)


def default_mode(arms: Sequence[BaseRetriever], weights: object, k: object) -> Mode:
    """Return the mode for arms: learned for those that the model was trained on, else by ranks."""
    kinds = {is_keyword(arm) for arm in arms}
    trained = keyword_arm(arms) is not None and len(kinds) > 1
    return Mode.LEARNED if trained and weights is None and k is None else Mode.RECIPROCAL_RANK


@dataclass(frozen=True, slots=True, eq=False)
class ArmQuery:
    """Hold one query for one arm.

    Args:
        arm: Number of the arm.
        query: Number of the query.
        retriever: The arm.
        bundle: The arm's own copy of the query, because LlamaIndex's retrievers write the embedding into it.
    """

    arm: int
    query: int
    retriever: BaseRetriever
    bundle: QueryBundle


@dataclass(frozen=True, slots=True)
class Plan:
    """Say how a query with operators is answered.

    Args:
        queries: The original without operators, then its variants.
        arms: Those that evaluate the operators by themselves return nothing else.
        operators: As they were written.
        admitted: Ids of the nodes that satisfy the operators; None for all.
        notes: What was ignored or corrected.
    """

    queries: list[QueryBundle]
    arms: list[BaseRetriever]
    operators: tuple[str, ...] = ()
    admitted: frozenset[str] | None = None
    notes: tuple[str, ...] = ()

    @property
    def narrowed(self) -> bool:
        """Return whether operators or filters leave out nodes."""
        return bool(self.operators) or any(getattr(arm, "filters", None) is not None for arm in self.arms)

    @property
    def filters_vectors(self) -> bool:
        """Return whether an arm has filters that finds something whatever is asked, unless they admit nothing."""
        return any(getattr(arm, "filters", None) is not None and not is_keyword(arm) for arm in self.arms)

    def arm_queries(self, variants: str) -> list[ArmQuery]:
        """Return every query for every arm that gets it; variants reach "all" arms or "keyword" arms."""
        return [
            ArmQuery(number, position, arm, own_copy(query))
            for position, query in enumerate(self.queries)
            for number, arm in enumerate(self.arms)
            if position == 0 or variants == "all" or is_keyword(arm)
        ]


def asks_to_plan(query: QueryBundle, arms: Sequence[BaseRetriever]) -> bool:
    """Return whether planning has to ask an index: which nodes satisfy operators, or what a strange word may mean."""
    keyword, text = keyword_arm(arms), query.query_str
    return keyword is not None and (may_be_misspelled(text) or bool(parse_query(text, keyword.analyzer).operators))


def plan_queries(queries: list[QueryBundle], arms: list[BaseRetriever]) -> Plan:
    """Read the operators of the original query and correct its misspelled words; every change is a note and a warning.

    Operators that no node satisfies are ignored. A word is misspelled where neither the index nor a dictionary knows it
    and the index knows one that differs by a letter.
    """
    keyword = keyword_arm(arms)
    if keyword is None:
        return Plan(queries, arms)
    plan = _obeying(queries, arms, keyword)
    text = plan.queries[0].query_str
    meant, note = keyword.unknown(text).corrected(text) if may_be_misspelled(text) else (text, "")
    if note:  # a vector that came with the question is of what was typed
        plan = replace(plan, queries=[QueryBundle(meant), *plan.queries[1:]], notes=(*plan.notes, note))
    for one in plan.notes:
        warnings.warn(f"Query {queries[0].query_str!r}: {one}.", ContextualWarning, stacklevel=2)
    return plan


def _obeying(queries: list[QueryBundle], arms: list[BaseRetriever], keyword: ContextualBM25Retriever) -> Plan:
    """Return the plan that the operators of the original query ask for."""
    parsed = parse_query(queries[0].query_str, keyword.analyzer)
    if not parsed.operators:
        return Plan(queries, arms)
    admitted = frozenset(keyword.selected_ids(parsed.filters))
    original = own_copy(queries[0])
    original.query_str = parsed.text
    if not admitted:
        note = f"nothing matches {' '.join(parsed.operators)}, which was therefore ignored"
        return Plan([original, *queries[1:]], arms, notes=(note,))
    chosen = [
        cast("Any", arm).with_filters(parsed.filters) if getattr(arm, "filters_words", False) else arm for arm in arms
    ]
    return Plan([original, *queries[1:]], chosen, parsed.operators, admitted)


def keyword_arm(arms: Iterable[BaseRetriever]) -> ContextualBM25Retriever | None:
    """Return the first keyword arm of ours."""
    return next((arm for arm in arms if isinstance(arm, ContextualBM25Retriever)), None)


@contextmanager
def one_look(arms: Iterable[BaseRetriever]) -> Iterator[None]:
    """Have the arms answer a question from one state of what they read.

    One that cannot look says so when it is asked.
    """
    with ExitStack() as stack:
        for arm in arms:
            if (looking := getattr(arm, "looking", None)) is not None:
                with suppress(Exception):
                    stack.enter_context(looking())
        yield


ArmAnswer = list[Candidate] | Exception


def ask_arms(queries: Sequence[ArmQuery], pool: int, timeout: float | None) -> list[ArmAnswer]:
    """Ask all at once and wait; return answers in order of the queries, an exception for an arm that failed or is late.

    Without a time limit the caller's own thread asks the arms of :func:`_together`.
    """
    own = _together(queries) if timeout is None else []
    running = {one: _start([one], pool) for one in queries if one not in own}
    done = {one: _attempt(one, pool) for one in own}
    deadline = None if timeout is None else time.monotonic() + timeout
    return [done[one] if one in done else _result(running[one], deadline) for one in queries]


async def ask_arms_async(queries: Sequence[ArmQuery], pool: int, timeout: float | None) -> list[ArmAnswer]:
    """Do the same as :func:`ask_arms` on an event loop, which is not blocked."""
    own = _together([one for one in queries if _blocks(one.retriever)]) if timeout is None else []
    group = _start(own, pool) if own else None
    apart = [one for one in queries if one not in own]
    tasks = [asyncio.wait_for(_ask_one_async(one, pool), timeout) for one in apart]
    answers = [_as_answer(answer) for answer in await asyncio.gather(*tasks, return_exceptions=True)]
    found = dict(zip(apart, answers, strict=True))
    if group is not None:
        together: list[ArmAnswer] = await asyncio.wrap_future(group)
        found |= dict(zip(own, together, strict=True))
    return [found[one] for one in queries]


def _together(queries: Sequence[ArmQuery]) -> list[ArmQuery]:
    """Return the queries that one thread asks one after the other: those of keyword arms, and the last of the others.

    Keyword arms compute for about a millisecond, and Python runs one thread at a time. One more thread would win
    nothing, and on a busy machine each change of threads costs several milliseconds.
    """
    quick = [one for one in queries if is_keyword(one.retriever)]
    others = [one for one in queries if one not in quick]
    return quick + others[-1:]


def _start(queries: Sequence[ArmQuery], pool: int) -> Future[list[ArmAnswer]]:
    return in_thread(lambda: [_attempt(one, pool) for one in queries])


def _attempt(one: ArmQuery, pool: int) -> ArmAnswer:
    try:
        return _ask_one(one, pool)
    except Exception as error:  # noqa: BLE001  whatever an arm raises, the others' answers stand
        return error


def _result(future: Future[list[ArmAnswer]], deadline: float | None) -> ArmAnswer:
    try:
        return future.result(None if deadline is None else max(0.0, deadline - time.monotonic()))[0]
    except Exception as error:  # noqa: BLE001  a TimeoutError, of which Python 3.10 has three kinds
        return error


def _as_answer(answer: Any) -> ArmAnswer:
    if isinstance(answer, BaseException) and not isinstance(answer, Exception):
        raise answer
    return answer  # type: ignore[no-any-return]


def _ask_one(one: ArmQuery, pool: int) -> list[Candidate]:
    retriever = one.retriever
    with _told(one) as facts:
        if gives_ids(retriever):
            found = retriever.candidates(one.bundle, pool)
        else:
            found = _plain(retriever, retriever.retrieve(one.bundle), pool)
        facts["candidates"] = len(found)
    return found


async def _ask_one_async(one: ArmQuery, pool: int) -> ArmAnswer:
    if _blocks(one.retriever):
        return (await asyncio.wrap_future(_start([one], pool)))[0]
    with _told(one) as facts:
        found = _plain(one.retriever, await one.retriever.aretrieve(one.bundle), pool)
        facts["candidates"] = len(found)
    return found


def _told(one: ArmQuery) -> AbstractContextManager[dict[str, str | int | float]]:
    return step("arm", arm=_name(one.retriever), query=one.query)


def _blocks(retriever: BaseRetriever) -> bool:
    """Return whether a retriever would compute on the event loop: ours, LlamaIndex's default, and any on Chroma."""
    if gives_ids(retriever):
        return True
    if type(retriever)._aretrieve is BaseRetriever._aretrieve:  # noqa: SLF001  it says which one would run
        return True
    store = getattr(retriever, "_vector_store", None)
    return isinstance(store, BasePydanticVectorStore) and type(store).aquery is BasePydanticVectorStore.aquery


def _plain(arm: BaseRetriever, found: Sequence[NodeWithScore], pool: int) -> list[Candidate]:
    """Return what an arm answered, best first; what has no score comes last, in the arm's order.

    Where an arm that matches words says 0, nothing matches. Where another arm says 0 of everything, it has no scores.
    """
    if is_keyword(arm):
        found = [one for one in found if one.score != 0]
    scores = [None if one.score is None or math.isnan(one.score) else one.score for one in found]
    if not any(scores):
        scores = [None] * len(found)
    pairs = sorted(zip(found, scores, strict=True), key=lambda pair: math.inf if pair[1] is None else -pair[1])
    return [Candidate(one.node.node_id, score, one.node) for one, score in pairs[:pool]]


def rank_answers(
    queries: Sequence[ArmQuery], answers: Sequence[ArmAnswer], names: Sequence[str], weights: Sequence[float], size: int
) -> list[Ranking]:
    """Return the rankings of the arms that answered; their weights sum to 1 again where others failed."""
    good = [(q, a) for q, a in zip(queries, answers, strict=True) if not isinstance(a, Exception)]
    asked = [one.arm for one, _ in good]
    present = sum(weights[arm] for arm in set(asked)) or 1.0
    return [
        # An arm's weight is shared by its queries, so that variants do not make it more important.
        Ranking(names[q.arm], q.query, weights[q.arm] / present / asked.count(q.arm), answer[:size])
        for q, answer in good
    ]


def report_failures(
    queries: Sequence[ArmQuery],
    answers: Sequence[ArmAnswer],
    names: Sequence[str],
    *,
    timeout: float | None,
    strict: bool,
) -> tuple[str, ...]:
    """Warn of arms that failed or were late, and return the warnings.

    Raises:
        StorageError: All failed with the same error of the storage, which names the cure.
        RetrievalError: All failed in other ways, or one did and ``strict`` is set.
    """
    failed = [(q, a) for q, a in zip(queries, answers, strict=True) if isinstance(a, Exception)]
    if not failed:
        return ()
    notes = tuple(dict.fromkeys(f"arm {names[q.arm]!r} {_reason(a, timeout)}" for q, a in failed))
    first = next(error for _, error in failed)
    if len(failed) == len(queries):
        if isinstance(first, StorageError) and len({str(error) for _, error in failed}) == 1:
            raise first
        raise RetrievalError(f"No retrieval arm could answer: {'; '.join(notes)}") from first
    if strict:
        raise RetrievalError(f"{'; '.join(notes)}. Cure: on_arm_failure='warn' answers from the other arms.") from first
    for note in notes:
        message = f"Retrieval degraded: {note}; the other arms answered."
        logger.warning(message)
        warnings.warn(message, ContextualWarning, stacklevel=2)
    return notes


def _reason(error: Exception, timeout: float | None) -> str:
    # concurrent.futures and asyncio have TimeoutErrors of their own on Python 3.10.
    late = isinstance(error, (TimeoutError, asyncio.TimeoutError)) or type(error).__name__ == "TimeoutError"
    return f"took longer than {timeout:g} s" if late and timeout else f"failed: {type(error).__name__}: {error}"


def own_copy(query: QueryBundle) -> QueryBundle:
    """Return a copy for one arm, because LlamaIndex's retrievers write the embedding into their bundle."""
    return QueryBundle(
        query.query_str,
        image_path=query.image_path,
        custom_embedding_strs=query.custom_embedding_strs,
        embedding=query.embedding,
    )


def as_bundles(queries: Sequence[str | QueryBundle]) -> list[QueryBundle]:
    """Return the bundles of distinct queries, in order."""
    bundles = [query if isinstance(query, QueryBundle) else QueryBundle(query) for query in queries]
    unique = {bundle.query_str: bundle for bundle in reversed(bundles)}
    return [unique.pop(bundle.query_str) for bundle in bundles if bundle.query_str in unique]
