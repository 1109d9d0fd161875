"""The arms of a fusion: their names, weights and filters, and their answers to a question, all at once."""

from __future__ import annotations

import asyncio
import copy
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.vector_store import VectorIndexRetriever
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual.retrievers.any_store import PoolRetriever, run
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.bm25_index import Candidate
from llama_index_contextual.retrievers.learned import Mode, Ranking
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever
from llama_index_contextual.utils.errors import (
    ContextualWarning,
    DamagedError,
    FingerprintError,
    RetrievalError,
    SettingError,
    StorageError,
    amount,
)
from llama_index_contextual.utils.tracing import in_thread

if TYPE_CHECKING:
    from collections.abc import Coroutine

KEYWORD_WEIGHT: Final = 0.6
_BLOCKING: Final = (BaseRetriever._aretrieve, BasePydanticVectorStore.aquery)  # noqa: SLF001  they call the other one


@dataclass(frozen=True, slots=True, eq=False)
class Arm:
    """A retriever as one of several that answer a question.

    Args:
        name: A short one that no other arm has.
        weight: Its share of the whole; the weights of all arms sum to 1.
        retriever: Answers.
        is_keyword: Whether it matches words, which ``kind == "keyword"`` declares, or is a BM25 retriever.
    """

    name: str
    weight: float
    retriever: BaseRetriever
    is_keyword: bool

    @property
    def ours(self) -> PoolRetriever | None:
        """The retriever if it is one of ours."""
        return self.retriever if isinstance(self.retriever, PoolRetriever) else None

    @property
    def has_filters(self) -> bool:
        """Whether it leaves out some nodes."""
        return getattr(self.retriever, "filters", None) is not None

    def filtered(self, filters: MetadataFilters | None) -> Arm:
        """An arm that returns only what the filters admit."""
        return replace(self, retriever=cast("Any", self.retriever).with_filters(filters))

    def without_filters(self) -> Arm | None:
        """An arm over all chunks; None where it is not ours, or its scores are not comparable."""
        if self.ours is None or not self.ours.is_comparable:
            return None
        view = copy.copy(self.ours)
        view.filters = None
        return replace(self, retriever=view)


def arms_of(retrievers: object, weights: Sequence[float] | None) -> list[Arm]:
    """Retrievers as arms, with distinct names and weights that sum to 1.

    A name is the retriever's ``name``, "bm25", "vector", or its class. By default keyword arms share
    :data:`KEYWORD_WEIGHT` and the others the rest.

    Raises:
        SettingError: The retrievers are none or no list, arms and weights differ in number, a weight is negative or not
            finite, or all are 0.
    """
    arms = list(retrievers) if isinstance(retrievers, Iterable) else []
    if not arms or not all(isinstance(arm, BaseRetriever) for arm in arms):
        kinds = (
            f"[{', '.join(type(arm).__name__ for arm in arms)}]"
            if arms
            else type(retrievers).__name__
        )
        cure = "one at least, as in ContextualFusionRetriever([index.as_retriever(), ...])"
        raise SettingError(f"retrievers={kinds} is not a list of retrievers. Cure: {cure}.")
    kinds_of = [
        getattr(arm, "kind", None) == "keyword" or isinstance(arm, BM25Retriever) for arm in arms
    ]
    if weights is None:
        shares = {True: KEYWORD_WEIGHT, False: 1 - KEYWORD_WEIGHT}
        weights = [shares[kind] / kinds_of.count(kind) for kind in kinds_of]
    weights = [amount("retriever_weights", weight, zero=True) for weight in weights]
    if len(weights) != len(arms) or not sum(weights):
        raise SettingError(
            f"`retriever_weights` must be a number for each of the {len(arms)} retrievers, not all 0 "
            f"(got {weights})."
        )
    names, total = [_name_of(arm) for arm in arms], sum(weights)
    numbers = [
        f" {names[: at + 1].count(name)}" if names.count(name) > 1 else ""
        for at, name in enumerate(names)
    ]
    pairs = zip(names, numbers, weights, arms, kinds_of, strict=True)
    return [
        Arm(name + number, weight / total, arm, kind) for name, number, weight, arm, kind in pairs
    ]


def keyword_of(retrievers: Iterable[BaseRetriever]) -> ContextualBM25Retriever | None:
    """The first keyword retriever of ours."""
    return next(
        (retriever for retriever in retrievers if isinstance(retriever, ContextualBM25Retriever)),
        None,
    )


def _name_of(retriever: Any) -> str:
    is_vector = isinstance(retriever, (ContextualVectorRetriever, VectorIndexRetriever))
    default = (
        "bm25"
        if isinstance(retriever, BM25Retriever)
        else "vector"
        if is_vector
        else type(retriever).__name__
    )
    name = getattr(retriever, "name", None)
    return name if isinstance(name, str) else default


# Answers


async def ask_arms(
    arms: Sequence[Arm], queries: Sequence[QueryBundle], pool: int, mode: object, *, on_loop: bool
) -> tuple[list[Ranking], list[str]]:
    """The rankings of all arms, which are asked at once, and a note on each that failed.

    The first query goes to every arm, variants to those that match words, and the sentences of a message to the others.

    Keyword arms compute for about a millisecond, and Python runs one thread at a time, so the caller's thread asks them
    and the last of the others. One more thread would win nothing, and on a busy machine each change of threads costs
    several milliseconds.

    Raises:
        DamagedError: One met damage of the database, which may have lost what the others did not find, either.
        FingerprintError: The vectors of one are another model's.
        StorageError: All failed, the first with this error of the storage, which names the cure.
        RetrievalError: All failed in other ways.
    """

    def ask(arm: Arm) -> Coroutine[Any, Any, list[Ranking] | Exception]:
        numbers = [
            at
            for at in range(len(queries))
            if not at or arm.is_keyword is (mode is not Mode.MESSAGE)
        ]
        # Copies, because LlamaIndex's retrievers write the embedding into a query.
        return _answer(arm, {at: replace(queries[at]) for at in numbers}, pool, on_loop=on_loop)

    if on_loop:
        answers = await asyncio.gather(*map(ask, arms))
    else:
        in_threads = [arm for arm in arms if not arm.is_keyword][:-1]
        running = {arm: in_thread(lambda one: run(ask(one)), arm) for arm in in_threads}
        here = {arm: await ask(arm) for arm in arms if arm not in running}
        answers = [here[arm] if arm in here else running[arm].result() for arm in arms]
    failed = {
        arm.name: one for arm, one in zip(arms, answers, strict=True) if isinstance(one, Exception)
    }
    return [one for answer in answers if isinstance(answer, list) for one in answer], _notes_on(
        failed, len(arms)
    )


async def _answer(
    arm: Arm, queries: dict[int, QueryBundle], pool: int, *, on_loop: bool
) -> list[Ranking] | Exception:
    """The rankings of an arm, one for each query by its number; whatever it raises is its answer, too."""
    retriever: Any = arm.retriever
    try:
        if isinstance(retriever, PoolRetriever):
            hits = await retriever.candidates([*queries.values()], pool, on_loop=on_loop)
            found = [_best_highest(one) for one in hits]
        else:
            found = [
                _plain(arm, await _retrieve(retriever, one, on_loop=on_loop))
                for one in queries.values()
            ]
    except Exception as error:  # noqa: BLE001  the answers of the other arms stand
        return error
    # The weight is shared, so that variants do not make an arm more important.
    weight, model = arm.weight / len(queries), getattr(retriever, "cosines_of", "")
    pairs = zip(queries, found, strict=True)
    return [
        Ranking(arm.name, number, weight, hits[:pool], None, arm.is_keyword, model)
        for number, hits in pairs
    ]


async def _retrieve(retriever: Any, query: QueryBundle, *, on_loop: bool) -> list[NodeWithScore]:
    """The hits of a retriever of another package; in a thread of its own where it would block the event loop."""
    if not on_loop:
        return retriever.retrieve(query)  # type: ignore[no-any-return]
    its_query = getattr(type(getattr(retriever, "_vector_store", None)), "aquery", None)
    if {type(retriever)._aretrieve, its_query}.isdisjoint(_BLOCKING):  # noqa: SLF001
        return await retriever.aretrieve(query)  # type: ignore[no-any-return]
    return await asyncio.wrap_future(in_thread(retriever.retrieve, query))


def _plain(arm: Arm, results: Sequence[NodeWithScore]) -> list[Candidate]:
    """Candidates of an arm of another package.

    A score of 0 of an arm that matches words means that nothing matches. Where all scores of another arm are 0, it has
    none.
    """
    if arm.is_keyword:
        results = [one for one in results if one.score != 0]
    has_scores = any(one.score for one in results)
    found = [
        Candidate(one.node.node_id, one.score if has_scores else None, one.node) for one in results
    ]
    return _best_highest(found) if isinstance(arm.retriever, VectorIndexRetriever) else found


def _best_highest(candidates: list[Candidate]) -> list[Candidate]:
    """Hits of a store, which come best first, with scores that fall: distances, as of FAISS, rise."""
    scores = [candidate.score for candidate in candidates if candidate.score is not None]
    if (
        len(scores) < len(candidates)
        or not scores
        or scores[0] >= scores[-1]
        or scores != sorted(scores)
    ):
        return candidates
    return [
        Candidate(hit.node_id, -score, hit.node)
        for hit, score in zip(candidates, scores, strict=True)
    ]


def _notes_on(failed: dict[str, Exception], number: int) -> list[str]:
    """Lines on arms that failed, with a warning for each, or the error of all."""
    notes = [
        f"arm {name!r} failed: {type(error).__name__}: {error}" for name, error in failed.items()
    ]
    are_all = len(failed) == number
    for error in failed.values():
        if isinstance(error, DamagedError | FingerprintError) or (
            are_all and isinstance(error, StorageError)
        ):
            raise error
    if are_all:
        raise RetrievalError(f"No retrieval arm could answer: {'; '.join(notes)}") from next(
            iter(failed.values())
        )
    for note in notes:
        warnings.warn(
            f"Retrieval degraded: {note}; the other arms answered.", ContextualWarning, stacklevel=2
        )
    return notes


def read_nodes(arms: Iterable[Arm], node_ids: Sequence[str]) -> dict[str, BaseNode]:
    """Nodes by id, from keyword arms first, because they have nodes in memory."""
    nodes = dict[str, BaseNode]()
    for arm in sorted(arms, key=lambda arm: not arm.is_keyword):
        if arm.ours is not None and (missing := [one for one in node_ids if one not in nodes]):
            nodes |= arm.ours.nodes(missing)
    return nodes
