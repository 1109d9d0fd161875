"""The retrievers of a fusion, with names and weights, and their answers to a query."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.vector_store import VectorIndexRetriever
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual.retrievers.base import PoolRetriever, falling
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.bm25_index import Candidate, Pool
from llama_index_contextual.retrievers.rankings import Mode, Ranking, in_ranks
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
    from collections.abc import Mapping

    from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle

KEYWORD_WEIGHT: Final = 0.6
# What calls the synchronous method and so blocks the event loop.
_BLOCKING: Final = (BaseRetriever._aretrieve, BasePydanticVectorStore.aquery)  # noqa: SLF001


@dataclass(frozen=True, slots=True, eq=False)
class WeightedRetriever:
    """A retriever of a fusion.

    Attributes:
        name: A short name that no other retriever of the fusion has.
        weight: Its share of the fusion; the weights of all retrievers sum to 1.
        retriever: The retriever.
        is_keyword: Whether it matches words: ``kind == "keyword"`` declares it, and every BM25
            retriever does.
    """

    name: str
    weight: float
    retriever: BaseRetriever
    is_keyword: bool

    @property
    def has_filters(self) -> bool:
        """Return whether the retriever leaves out some nodes."""
        return getattr(self.retriever, "filters", None) is not None

    @property
    def keeps_scores(self) -> bool:
        """Return whether the filters of the retriever change no score."""
        return not self.has_filters or getattr(self.retriever, "keeps_scores", False)

    @property
    def is_awaited(self) -> bool:
        """Return whether the retriever does more than compute, so that it has to be awaited."""
        return not isinstance(self.retriever, PoolRetriever) or self.retriever.asks_async

    def with_filters(self, filters: MetadataFilters | None) -> WeightedRetriever:
        """Return a view that returns only nodes that match the filters.

        Raises:
            SettingError: The retriever cannot be filtered.
        """
        if not hasattr(self.retriever, "with_filters"):
            raise SettingError(
                f"Retriever {self.name!r} has no with_filters(). Create it with its filters."
            )
        return replace(self, retriever=self.retriever.with_filters(filters))


def weighted_retrievers(
    retrievers: object, weights: Sequence[float] | None
) -> list[WeightedRetriever]:
    """Return retrievers with distinct names and with weights that sum to 1.

    A name is the retriever's ``name``, "bm25", "vector", or its class. By default keyword
    retrievers share :data:`KEYWORD_WEIGHT` and the others share the remainder.

    Raises:
        SettingError: The retrievers are no list or an empty one, or the weights cannot work.
    """
    members = list(retrievers) if isinstance(retrievers, Iterable) else []
    if not members or not all(isinstance(member, BaseRetriever) for member in members):
        kinds = ", ".join(type(member).__name__ for member in members)
        given = f"[{kinds}]" if isinstance(retrievers, Iterable) else type(retrievers).__name__
        raise SettingError(
            f"`retrievers` must be a list of at least one retriever (got {given}). "
            "Pass at least one, as in ContextualFusionRetriever([index.as_retriever(), ...])."
        )
    are_keyword = [_is_keyword(member) for member in members]
    if weights is None:
        share_of_kind = {True: KEYWORD_WEIGHT, False: 1 - KEYWORD_WEIGHT}
        weights = [share_of_kind[kind] / are_keyword.count(kind) for kind in are_keyword]
    weights = [amount("retriever_weights", weight, zero=True) for weight in weights]
    total = sum(weights)
    if len(weights) != len(members) or not total:
        raise SettingError(
            f"`retriever_weights` must be a number for each of the {len(members)} "
            "retrievers, not all 0 "
            f"(got {weights})."
        )
    names = [_name_of(member) for member in members]
    weighted = []
    for place, member in enumerate(members):
        name = names[place]
        if names.count(name) > 1:
            name = f"{name} {names[: place + 1].count(name)}"
        weight = weights[place] / total
        weighted.append(WeightedRetriever(name, weight, member, are_keyword[place]))
    return weighted


def keyword_retriever_of(
    members: Iterable[WeightedRetriever],
) -> tuple[str, ContextualBM25Retriever] | None:
    """Return the name and the retriever of the first keyword retriever of this package."""
    for member in members:
        if isinstance(member.retriever, ContextualBM25Retriever):
            return member.name, member.retriever
    return None


def _is_keyword(retriever: BaseRetriever) -> bool:
    return isinstance(retriever, BM25Retriever) or getattr(retriever, "kind", None) == "keyword"


def _name_of(retriever: BaseRetriever) -> str:
    name = getattr(retriever, "name", None)
    if isinstance(name, str):
        return name
    if isinstance(retriever, BM25Retriever):
        return "bm25"
    if isinstance(retriever, ContextualVectorRetriever | VectorIndexRetriever):
        return "vector"
    return type(retriever).__name__


# Answers


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of all retrievers to all queries.

    Attributes:
        rankings: One for each retriever and query.
        admitted: The ids of the nodes that may be returned. Rankings hold more where these set the
        scale of scores.
        nodes: The nodes that came with the answers.
        notes: A line for each retriever that failed.
    """

    rankings: Sequence[Ranking]
    admitted: frozenset[str]
    nodes: Mapping[str, BaseNode]
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Request:
    """The request to the retrievers of a fusion.

    Attributes:
        queries: The original query first. Every retriever gets that, retrievers that match words
            get variants, and the others get the sentences of a message.
        pool: The most candidates of each retriever.
        least: How many nodes will be returned at most.
        mode: How the answers will be fused.
        admitted: The ids that satisfy the operators of the query; None for all.
    """

    queries: Sequence[QueryBundle]
    pool: int
    least: int
    mode: object
    admitted: frozenset[str] | None

    def queries_for(self, member: WeightedRetriever) -> list[QueryBundle]:
        """Return copies of a retriever's queries.

        LlamaIndex's retrievers write the embedding into them.
        """
        gets_all = member.is_keyword is not (self.mode is Mode.MESSAGE)
        return [replace(query) for query in (self.queries if gets_all else self.queries[:1])]

    def is_compared(self, members: Sequence[WeightedRetriever]) -> bool:
        """Return whether scores are compared with those of all chunks: filters change none."""
        return isinstance(self.mode, Mode) and all(member.keeps_scores for member in members)


PoolsOrError: TypeAlias = list[Pool] | Exception


def ask(members: Sequence[WeightedRetriever], request: Request) -> Answers:
    """Ask all retrievers and return their answers.

    Keyword retrievers compute for about a millisecond, so the calling thread asks them and the last
    of the others.

    Raises:
        DamagedError: The database of a retriever is damaged.
        FingerprintError: The vectors of a retriever come from another model.
        StorageError: All failed, the first with this error of its storage.
        RetrievalError: All failed in other ways.
    """
    is_compared = request.is_compared(members)
    in_threads = [member for member in members if not member.is_keyword][:-1]
    running = {member: in_thread(_pools_of, member, request, is_compared) for member in in_threads}
    pools = {
        member: _pools_of(member, request, is_compared)
        for member in members
        if member not in running
    }
    pools |= {member: future.result() for member, future in running.items()}
    return _collect(members, [pools[member] for member in members], request, is_compared)


async def aask(members: Sequence[WeightedRetriever], request: Request) -> Answers:
    """Return what :func:`ask` returns; each retriever is awaited by its own method, all at once."""
    is_compared = request.is_compared(members)
    pools = await asyncio.gather(*(_apools_of(member, request, is_compared) for member in members))
    return _collect(members, pools, request, is_compared)


def _pools_of(member: WeightedRetriever, request: Request, is_compared: bool) -> PoolsOrError:
    """Return the hits of a retriever for each of its queries, or the error that it raised."""
    queries = request.queries_for(member)
    try:
        if not isinstance(member.retriever, PoolRetriever):
            answers = [member.retriever.retrieve(query) for query in queries]
            return [_foreign_pool(member, answer) for answer in answers]
        if is_compared:
            pools = member.retriever.pools(queries, request.pool, request.least)
        else:
            candidates = member.retriever.candidates(queries, request.pool)
            pools = [Pool(hits, hits) for hits in candidates]
    except Exception as error:  # noqa: BLE001  the other retrievers answer
        return error
    return [Pool(falling(pool.matching), falling(pool.unfiltered)) for pool in pools]


async def _apools_of(
    member: WeightedRetriever, request: Request, is_compared: bool
) -> PoolsOrError:
    """Return what :func:`_pools_of` returns.

    A retriever that would block the event loop runs in a thread.
    """
    retriever: Any = member.retriever
    its_store = getattr(retriever, "_vector_store", None)
    its_methods = {type(retriever)._aretrieve, getattr(type(its_store), "aquery", None)}  # noqa: SLF001
    if not isinstance(retriever, PoolRetriever) and its_methods.isdisjoint(_BLOCKING):
        try:
            answers = [await retriever.aretrieve(query) for query in request.queries_for(member)]
        except Exception as error:  # noqa: BLE001  the other retrievers answer
            return error
        return [_foreign_pool(member, answer) for answer in answers]
    if isinstance(retriever, PoolRetriever) and retriever.asks_async:
        try:
            queries = request.queries_for(member)
            candidates = await retriever.acandidates(queries, request.pool)
        except Exception as error:  # noqa: BLE001  the other retrievers answer
            return error
        return [Pool(hits, hits) for hits in map(falling, candidates)]
    return await asyncio.wrap_future(in_thread(_pools_of, member, request, is_compared))


def _foreign_pool(member: WeightedRetriever, results: Sequence[NodeWithScore]) -> Pool:
    """Return the hits of a retriever of another package.

    A score of 0 of a retriever that matches words means that nothing matches. Where all scores of
    another retriever are 0, it has none.
    """
    if member.is_keyword:
        results = [result for result in results if result.score != 0]
    has_scores = any(result.score for result in results)
    candidates = []
    for result in results:
        score = result.score if has_scores else None
        candidates.append(Candidate(result.node.node_id, score, result.node))
    if isinstance(member.retriever, VectorIndexRetriever):
        candidates = falling(candidates)
    return Pool(candidates, candidates)


def _collect(
    members: Sequence[WeightedRetriever],
    answers: Sequence[PoolsOrError],
    request: Request,
    is_compared: bool,
) -> Answers:
    """Return the rankings of all retrievers that answered."""
    admitted = set[str]()
    compared_ids = set[str]()
    nodes: dict[str, BaseNode] = {}
    pairs: list[tuple[WeightedRetriever, list[Pool]]] = []
    for member, answer in zip(members, answers, strict=True):
        if isinstance(answer, Exception):
            continue
        kept = []
        for hits in answer:
            matching = hits.matching[: request.pool]
            if request.admitted is not None:
                matching = [hit for hit in matching if hit.node_id in request.admitted]
            unfiltered = hits.unfiltered[: request.pool] if is_compared else matching
            kept.append(Pool(matching, unfiltered))
            admitted.update(hit.node_id for hit in matching)
            compared_ids.update(hit.node_id for hit in unfiltered)
            nodes.update({hit.node_id: hit.node for hit in matching if hit.node is not None})
        pairs.append((member, kept))

    rankings = []
    for member, kept in pairs:
        for number, hits in enumerate(kept):
            # What only a filter brings into the pool is scored, and changes no score of another.
            added = [hit for hit in hits.matching if hit.node_id not in compared_ids]
            node_ids, scores = in_ranks([*hits.unfiltered, *added])
            ranking = Ranking(
                retriever=member.name,
                query=number,
                # The weight is shared, so that variants do not make a retriever more important.
                weight=member.weight / len(kept),
                node_ids=node_ids,
                scores=scores,
                compared=len(node_ids) - len(added),
                is_keyword=member.is_keyword,
                model=getattr(member.retriever, "cosines_of", ""),
            )
            rankings.append(ranking)
    return Answers(rankings, frozenset(admitted), nodes, _notes_on(members, answers))


def _notes_on(members: Sequence[WeightedRetriever], answers: Sequence[PoolsOrError]) -> list[str]:
    """Return a line for each retriever that failed, with a warning.

    Raise the error where the others cannot answer.
    """
    errors: list[Exception] = []
    notes: list[str] = []
    for member, answer in zip(members, answers, strict=True):
        if isinstance(answer, Exception):
            errors.append(answer)
            notes.append(f"retriever {member.name!r} failed: {type(answer).__name__}: {answer}")
    have_all_failed = len(errors) == len(members)
    for error in errors:
        if isinstance(error, DamagedError | FingerprintError):
            raise error
        if have_all_failed and isinstance(error, StorageError):
            raise error
    if have_all_failed:
        raise RetrievalError(f"All retrievers failed: {'; '.join(notes)}") from errors[0]
    for note in notes:
        warnings.warn(
            f"{note[0].upper()}{note[1:]}. The results come from the other retrievers.",
            ContextualWarning,
            stacklevel=2,
        )
    return notes


def read_nodes(
    members: Iterable[WeightedRetriever], node_ids: Sequence[str]
) -> dict[str, BaseNode]:
    """Return nodes by id, from keyword retrievers first, which have nodes in memory."""
    nodes: dict[str, BaseNode] = {}
    for member in sorted(members, key=lambda member: not member.is_keyword):
        missing = [node_id for node_id in node_ids if node_id not in nodes]
        if missing and isinstance(member.retriever, PoolRetriever):
            nodes |= member.retriever.nodes(missing)
    return nodes
