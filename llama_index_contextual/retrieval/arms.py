"""The arms of a fusion: their names, weights and filters, and their answers to a question, all at once."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import warnings
from collections.abc import Iterable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.vector_store import VectorIndexRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import BaseNode, QueryBundle
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual.errors import (
    ContextualWarning,
    DamagedError,
    FingerprintError,
    RetrievalError,
    SettingError,
    StorageError,
    amount,
)
from llama_index_contextual.keyword import Candidate
from llama_index_contextual.retrieval.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrieval.fusion import Mode, Ranking
from llama_index_contextual.retrieval.stores import call, run
from llama_index_contextual.retrieval.vector import ContextualVectorRetriever
from llama_index_contextual.watching import in_thread, step

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterator, Sequence

    from llama_index.core.schema import NodeWithScore
    from llama_index.core.vector_stores.types import MetadataFilters

logger = logging.getLogger(__name__)
KEYWORD_WEIGHT: Final = 0.6


@dataclass(frozen=True, slots=True, eq=False)
class Arm:
    """A retriever as one of several that answer a question.

    Args:
        name: A short one that no other arm has.
        weight: Its share of the whole; the weights of all arms sum to 1.
        retriever: Answers.
    """

    name: str
    weight: float
    retriever: BaseRetriever

    @property
    def is_keyword(self) -> bool:
        """Whether it matches words, which ``kind == "keyword"`` declares, or is a BM25 retriever."""
        return _is_keyword(self.retriever)

    @property
    def ours(self) -> ContextualBM25Retriever | ContextualVectorRetriever | None:
        """The retriever if it answers with ids, so that of a pool of 100 candidates 10 nodes are read."""
        arm = self.retriever
        return arm if isinstance(arm, ContextualBM25Retriever | ContextualVectorRetriever) else None

    @property
    def has_filters(self) -> bool:
        """Whether it leaves out some nodes."""
        return getattr(self.retriever, "filters", None) is not None

    @property
    def computes(self) -> bool:
        """Whether it computes in a thread, so that an event loop has nothing to wait for."""
        return self.ours is not None and not getattr(self.ours, "asks_async", False)

    def filtered(self, filters: MetadataFilters | None) -> Arm:
        """An arm that returns only what the filters admit."""
        return replace(self, retriever=cast("Any", self.retriever).with_filters(filters))

    def without_filters(self) -> Arm | None:
        """An arm over all chunks; None where it is not ours, or its scores are not comparable."""
        if self.ours is None or (isinstance(self.ours, ContextualVectorRetriever) and not self.ours.gives_cosines):
            return None
        view = copy.copy(self.ours)
        view.filters = None
        return replace(self, retriever=view)


def checked_retrievers(retrievers: object) -> list[BaseRetriever]:
    """The arms as a list.

    Raises:
        SettingError: They are not a sequence of retrievers, or there is none.
    """
    arms = list(retrievers) if isinstance(retrievers, Iterable) else []
    if not arms or not all(isinstance(arm, BaseRetriever) for arm in arms):
        kinds = f"[{', '.join(type(arm).__name__ for arm in arms)}]" if arms else type(retrievers).__name__
        cure = "one at least, as in ContextualFusionRetriever([index.as_retriever(), ...])"
        raise SettingError(f"retrievers={kinds} is not a list of retrievers. Cure: {cure}.")
    return arms


def arms_of(retrievers: Sequence[BaseRetriever], weights: Sequence[float] | None) -> list[Arm]:
    """Retrievers as arms, with distinct names and weights that sum to 1.

    A name is the retriever's ``name``, "bm25", "vector", or its class. By default keyword arms share
    :data:`KEYWORD_WEIGHT` and the others the rest.

    Raises:
        SettingError: Arms and weights differ in number, a weight is negative or not finite, or all are 0.
    """
    if weights is None:
        keyword = [_is_keyword(retriever) for retriever in retrievers]
        shares = {True: KEYWORD_WEIGHT, False: 1 - KEYWORD_WEIGHT}
        weights = [shares[kind] / keyword.count(kind) for kind in keyword]
    weights = [amount("retriever_weights", weight, zero=True) for weight in weights]
    if len(weights) != len(retrievers) or not sum(weights):
        cure = f"Cure: a number for each of {len(retrievers)} retrievers, not all 0."
        raise SettingError(f"retriever_weights={weights} cannot work. {cure}")
    names, total = [name_of(retriever) for retriever in retrievers], sum(weights)
    numbers = [f" {names[: at + 1].count(name)}" if names.count(name) > 1 else "" for at, name in enumerate(names)]
    pairs = zip(map("".join, zip(names, numbers, strict=True)), weights, retrievers, strict=True)
    return [Arm(name, weight / total, retriever) for name, weight, retriever in pairs]


def default_mode(retrievers: Sequence[BaseRetriever], weights: object, k: object) -> str:
    """The mode for arms: learned for those that the model was trained on, else by ranks."""
    trained = keyword_of(retrievers) is not None and len({_is_keyword(retriever) for retriever in retrievers}) > 1
    mode = Mode.LEARNED if trained and weights is None and k is None else FUSION_MODES.RECIPROCAL_RANK
    return str(mode.value)


def keyword_of(retrievers: Iterable[BaseRetriever]) -> ContextualBM25Retriever | None:
    """The first keyword retriever of ours."""
    return next((retriever for retriever in retrievers if isinstance(retriever, ContextualBM25Retriever)), None)


def _is_keyword(retriever: object) -> bool:
    return getattr(retriever, "kind", None) == "keyword" or isinstance(retriever, BM25Retriever)


def name_of(retriever: Any) -> str:
    """Name of a retriever as an arm: its ``name``, "bm25", "vector", or its class."""
    name = getattr(retriever, "name", None)
    if isinstance(name, str):
        return name
    if isinstance(retriever, BM25Retriever):
        return "bm25"
    is_vector = isinstance(retriever, (ContextualVectorRetriever, VectorIndexRetriever))
    return "vector" if is_vector else type(retriever).__name__


# Answers


class ArmAnswer(NamedTuple):
    """The answer of an arm to some queries.

    Args:
        arm: The arm.
        numbers: Those of the queries, 0 for the original.
        found: The candidates of each query, best first.
        error: With which the arm failed.
    """

    arm: Arm
    numbers: list[int]
    found: list[list[Candidate]]
    error: Exception | None = None


@contextmanager
def shared_snapshot(arms: Iterable[Arm]) -> Iterator[None]:
    """Let the arms answer a question from one state of their stores; a store without one fails when it is searched."""
    with ExitStack() as stack:
        for retriever in (arm.ours for arm in arms):
            if retriever is not None:
                with suppress(Exception):
                    stack.enter_context(retriever.snapshot())
        yield


async def ask_arms(
    arms: Sequence[Arm], queries: Sequence[QueryBundle], pool: int, mode: object, *, on_loop: bool
) -> list[ArmAnswer]:
    """The answers of all arms, which are asked at once.

    The first query goes to every arm, variants to those that match words, and the sentences of a message to the others.

    Keyword arms compute for about a millisecond, and Python runs one thread at a time, so the caller's thread asks them
    and the last of the others. One more thread would win nothing, and on a busy machine each change of threads costs
    several milliseconds.
    """

    def ask(arm: Arm, *, on_loop: bool) -> Coroutine[Any, Any, ArmAnswer]:
        numbers = [at for at in range(len(queries)) if not at or arm.is_keyword is (mode is not Mode.MESSAGE)]
        # Copies, because LlamaIndex's retrievers write the embedding into a query.
        return _answer(arm, numbers, [replace(queries[at]) for at in numbers], pool, on_loop=on_loop)

    if on_loop:
        return list(await asyncio.gather(*(ask(arm, on_loop=True) for arm in arms)))
    in_threads = [arm for arm in arms if not arm.is_keyword][:-1]
    running = {arm: in_thread(lambda one: run(ask(one, on_loop=False)), arm) for arm in in_threads}
    answers = {arm: await ask(arm, on_loop=False) for arm in arms if arm not in running}
    return [answers[arm] if arm in answers else running[arm].result() for arm in arms]


async def _answer(arm: Arm, numbers: list[int], queries: list[QueryBundle], pool: int, *, on_loop: bool) -> ArmAnswer:
    """The answer of an arm; whatever it raises is one."""
    retriever: Any = arm.retriever
    try:
        with step("arm", arm=name_of(retriever), query=0, queries=len(queries)) as facts:
            if isinstance(retriever, ContextualVectorRetriever):
                hits = await retriever.candidates(queries, pool, on_loop=on_loop)
                found = [_best_highest(one) for one in hits]
            elif isinstance(retriever, ContextualBM25Retriever):
                found = [await call(retriever.candidates, query, pool, on_loop=on_loop) for query in queries]
            else:
                found = [_plain(arm, await _retrieve(retriever, query, on_loop=on_loop), pool) for query in queries]
            facts["candidates"] = sum(map(len, found))
    except Exception as error:  # noqa: BLE001  the answers of the other arms stand
        return ArmAnswer(arm, numbers, [], error)
    return ArmAnswer(arm, numbers, found)


async def _retrieve(retriever: Any, query: QueryBundle, *, on_loop: bool) -> list[NodeWithScore]:
    """The hits of a retriever of another package; in a thread of its own where it would block the event loop."""
    if not on_loop:
        return retriever.retrieve(query)  # type: ignore[no-any-return]
    if _blocks(retriever):
        return await asyncio.wrap_future(in_thread(retriever.retrieve, query))
    return await retriever.aretrieve(query)  # type: ignore[no-any-return]


def _blocks(retriever: Any) -> bool:
    """Whether a retriever of another package would compute on the event loop, as LlamaIndex's default does."""
    if type(retriever)._aretrieve is BaseRetriever._aretrieve:  # noqa: SLF001  it tells which one would run
        return True
    store = getattr(retriever, "_vector_store", None)
    return isinstance(store, BasePydanticVectorStore) and type(store).aquery is BasePydanticVectorStore.aquery


def _plain(arm: Arm, results: Sequence[NodeWithScore], pool: int) -> list[Candidate]:
    """Candidates of an arm, best first; those without a score come last, in the arm's order.

    A score of 0 of an arm that matches words means that nothing matches. Where all scores of another arm are 0, it has
    none.
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
    """Hits of a store, which come best first, with scores that fall: distances, as of FAISS, rise."""
    scores = [candidate.score for candidate in candidates if candidate.score is not None]
    if len(scores) < len(candidates) or not scores or scores[0] >= scores[-1] or scores != sorted(scores):
        return candidates
    return [Candidate(hit.node_id, -score, hit.node) for hit, score in zip(candidates, scores, strict=True)]


def rankings_of(answers: Sequence[ArmAnswer], pool: int, admitted: Collection[str] | None) -> list[Ranking]:
    """The rankings of the arms that answered; their weights sum to 1 again where others failed.

    Args:
        answers: Of all arms to all queries.
        pool: Candidates of each that count.
        admitted: Ids that a query's operators admit, for arms that do not evaluate them; None for all.
    """
    good = [answer for answer in answers if answer.error is None]
    present, rankings = sum(answer.arm.weight for answer in good) or 1.0, list[Ranking]()
    for arm, numbers, found, _ in good:
        weight = arm.weight / present / len(numbers)  # shared, so that variants do not make an arm more important
        for number, candidates in zip(numbers, found, strict=True):
            kept = candidates if admitted is None else [one for one in candidates if one.node_id in admitted]
            model = getattr(arm.retriever, "cosines_of", "")
            rankings.append(Ranking(arm.name, number, weight, kept[:pool], None, arm.is_keyword, model))
    return sorted(rankings, key=lambda one: one.query)


def report_failures(answers: Sequence[ArmAnswer]) -> list[str]:
    """Warn of arms that failed, and return the warnings.

    Raises:
        DamagedError: One met damage of the database, which may have lost what the others did not find, either.
        FingerprintError: The vectors of one are another model's.
        StorageError: All failed with the same error of the storage, which names the cure.
        RetrievalError: All failed in other ways.
    """
    failed = [(answer.arm.name, answer.error) for answer in answers if answer.error is not None]
    notes = list(dict.fromkeys(f"arm {name!r} failed: {type(error).__name__}: {error}" for name, error in failed))
    for _, error in failed:
        if isinstance(error, DamagedError | FingerprintError):
            raise error
    if failed and len(failed) == len(answers):
        first = failed[0][1]
        if isinstance(first, StorageError) and len({str(error) for _, error in failed}) == 1:
            raise first
        raise RetrievalError(f"No retrieval arm could answer: {'; '.join(notes)}") from first
    for note in notes:
        message = f"Retrieval degraded: {note}; the other arms answered."
        logger.warning(message)
        warnings.warn(message, ContextualWarning, stacklevel=2)
    return notes


def read_nodes(arms: Iterable[Arm], node_ids: Iterable[str]) -> dict[str, BaseNode]:
    """Nodes by id, from keyword arms first, because they have nodes in memory."""
    missing, nodes = list(node_ids), dict[str, BaseNode]()
    for arm in sorted(arms, key=lambda arm: not arm.is_keyword):
        if missing and arm.ours is not None:
            nodes |= arm.ours.nodes(missing)
            missing = [node_id for node_id in missing if node_id not in nodes]
    return nodes
