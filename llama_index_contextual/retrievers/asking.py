"""Ask the retrievers of a fusion a question, and collect their answers."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import TYPE_CHECKING, TypeAlias

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.vector_store import VectorIndexRetriever
from llama_index.core.vector_stores.types import BasePydanticVectorStore, MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual.retrievers.base import Candidate, Pool, PoolRetriever
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.rankings import KeywordMember, Ranking, rank_candidates
from llama_index_contextual.retrievers.sessions import HALF_LIFE_DAYS
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
from llama_index_contextual.utils.text import counted
from llama_index_contextual.utils.tracing import in_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle

KEYWORD_WEIGHT = 0.6
_VECTOR_RETRIEVERS = (ContextualVectorRetriever, VectorIndexRetriever)
# These methods call their synchronous twin, which blocks the event loop.
_BLOCKING = (BaseRetriever._aretrieve, BasePydanticVectorStore.aquery)  # noqa: SLF001


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question with settings beyond LlamaIndex's interface.

    Attributes:
        queries: The query, followed by its variants.
        is_explained: Whether to collect reasons, which takes as long as the fusion.
        subject: The part of the query that a relevant hit must contain. Empty means the whole
            query.
        today: The day from which "last week" and the ages of sessions are calculated.
        half_life_days: The half-life of sessions in days. A session of this age has a quarter of
            the recency of a new session.
        evergreen: Patterns of paths that never age.
    """

    queries: tuple[QueryBundle, ...]
    is_explained: bool = False
    subject: str = ""
    today: date = field(default_factory=lambda: datetime.now().astimezone().date())
    half_life_days: float = HALF_LIFE_DAYS
    evergreen: Sequence[str] = ()


# The retrievers


@dataclass(frozen=True, slots=True, eq=False)
class WeightedRetriever:
    """A retriever of a fusion.

    Attributes:
        name: A short name, unique in the fusion.
        weight: Its share of the fusion. The weights of all retrievers sum to 1.
        retriever: The retriever.
        is_keyword: Whether it matches words, like every BM25 retriever. Other retrievers declare it
            by ``kind = "keyword"``.
    """

    name: str
    weight: float
    retriever: BaseRetriever
    is_keyword: bool

    @property
    def has_filters(self) -> bool:
        """Return whether the retriever has filters."""
        return getattr(self.retriever, "filters", None) is not None

    @property
    def keeps_scores(self) -> bool:
        """Return whether the scores are the same as without filters."""
        return not self.has_filters or getattr(self.retriever, "keeps_scores", False)

    @property
    def needs_await(self) -> bool:
        """Return whether the retriever does input or output, so that it should be awaited."""
        return not isinstance(self.retriever, PoolRetriever) or self.retriever.has_async_query

    def with_filters(self, filters: MetadataFilters | None) -> WeightedRetriever:
        """Return a copy with further filters.

        Raises:
            SettingError: The retriever cannot be filtered.
        """
        if not hasattr(self.retriever, "with_filters"):
            raise SettingError(
                f"Retriever {self.name!r} has no with_filters(). Create it with its filters."
            )
        return replace(self, retriever=self.retriever.with_filters(filters))

    def with_operators(self, filters: MetadataFilters | None) -> WeightedRetriever:
        """Return a copy with the filters of query operators if it can apply them, else itself."""
        applies = getattr(self.retriever, "applies_operators", False)
        return self.with_filters(filters) if applies else self


def weighted_retrievers(
    retrievers: object, weights: Sequence[float] | None
) -> list[WeightedRetriever]:
    """Return the retrievers with unique names and with weights that sum to 1.

    The name is the retriever's ``name``, "bm25", "vector" or the name of its class. By default,
    keyword retrievers share :data:`KEYWORD_WEIGHT` and all other retrievers share the remainder.

    Raises:
        SettingError: The retrievers are not a list or the list is empty, or the weights are
            invalid.
    """
    members = list(retrievers) if isinstance(retrievers, Iterable) else []
    if not members or not all(isinstance(member, BaseRetriever) for member in members):
        kinds = ", ".join(type(member).__name__ for member in members)
        given = f"[{kinds}]" if isinstance(retrievers, Iterable) else type(retrievers).__name__
        raise SettingError(
            f"`retrievers` must be a list of at least one retriever (got {given}). "
            "Pass retrievers, as in ContextualFusionRetriever([index.as_retriever(), ...])."
        )
    are_keyword = [_is_keyword(member) for member in members]
    if weights is None:
        share_of_kind = {True: KEYWORD_WEIGHT, False: 1 - KEYWORD_WEIGHT}
        weights = [share_of_kind[kind] / are_keyword.count(kind) for kind in are_keyword]
    weights = [amount("retriever_weights", weight, zero=True) for weight in weights]
    total = sum(weights)
    if len(weights) != len(members) or not total:
        raise SettingError(
            f"`retriever_weights` must have one number per retriever, not all 0 (got {weights} "
            f"for {counted(len(members), 'retriever')})."
        )
    names = [_name_of(member) for member in members]
    weighted = []
    for index, member in enumerate(members):
        name = names[index]
        if names.count(name) > 1:
            name = f"{name} {names[: index + 1].count(name)}"
        weight = weights[index] / total
        weighted.append(WeightedRetriever(name, weight, member, are_keyword[index]))
    return weighted


def keyword_member_of(
    members: Iterable[WeightedRetriever],
) -> KeywordMember | None:
    """Return the first keyword retriever of this package, with its name in the fusion, or None."""
    for member in members:
        if isinstance(member.retriever, ContextualBM25Retriever):
            return KeywordMember(member.name, member.retriever)
    return None


def _is_keyword(retriever: BaseRetriever) -> bool:
    return isinstance(retriever, BM25Retriever) or getattr(retriever, "kind", None) == "keyword"


def _name_of(retriever: BaseRetriever) -> str:
    name = getattr(retriever, "name", None)
    if isinstance(name, str):
        return name
    if isinstance(retriever, BM25Retriever):
        return "bm25"
    if isinstance(retriever, _VECTOR_RETRIEVERS):
        return "vector"
    return type(retriever).__name__


# Answers


@dataclass(frozen=True, slots=True)
class Request:
    """A question in the form that the retrievers of a fusion get.

    Attributes:
        members: The retrievers, with the filters of the query's operators.
        keywords: The keyword retriever among them, or None.
        text: The query without its operators.
        queries: The text, followed by further queries. All retrievers get the text. Only keyword
            retrievers get the variants of a query, and only other retrievers the sentences of a
            message.
        operators: The operators of the query that are applied.
        operator_matches: The ids of the nodes that match the operators. None means all nodes.
        notes: Notes about operators that were ignored.
        size: The largest number of candidates of each retriever.
        min_matching: The number of nodes to return. Stores with fewer matching hits are queried
            again.
        is_message: Whether the further queries are sentences of a message.
        needs_unfiltered: Whether the best of all chunks, whatever the filters, set the scale of
            scores, so that filters change no score.
        is_filtered: Whether any retriever has filters, including those of operators.
    """

    members: Sequence[WeightedRetriever]
    keywords: KeywordMember | None
    text: str
    queries: Sequence[QueryBundle]
    operators: tuple[str, ...]
    operator_matches: Collection[str] | None
    notes: Sequence[str]
    size: int
    min_matching: int
    is_message: bool
    needs_unfiltered: bool
    is_filtered: bool

    def queries_for(self, member: WeightedRetriever) -> list[QueryBundle]:
        """Return the queries for a retriever.

        They are copies, because LlamaIndex's retrievers write the embedding into them.
        """
        gets_all = member.is_keyword is not self.is_message
        return [replace(query) for query in (self.queries if gets_all else self.queries[:1])]


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of all retrievers to all queries.

    Attributes:
        rankings: The answer of each retriever to each query.
        matching_ids: The ids of the nodes that match all filters and operators. Rankings can
            contain further nodes, which only set the scale of scores.
        nodes: The nodes that came with the answers.
        notes: A line for each retriever that failed.
    """

    rankings: Sequence[Ranking]
    matching_ids: frozenset[str]
    nodes: Mapping[str, BaseNode]
    notes: Sequence[str]


PoolsOrError: TypeAlias = list[Pool] | Exception


def ask(request: Request) -> Answers:
    """Ask all retrievers and return their answers.

    Each retriever runs in a thread of its own, except for the keyword retrievers, which take about
    a millisecond, and the last other retriever. These run in the calling thread.

    Raises:
        DamagedError: The database of a retriever is damaged.
        FingerprintError: The vectors of a retriever come from another model.
        StorageError: All retrievers failed, and one of them with this error.
        RetrievalError: All retrievers failed with other errors.
    """
    in_threads = [member for member in request.members if not member.is_keyword][:-1]
    running = {member: in_thread(_pools_of, member, request) for member in in_threads}
    here = [member for member in request.members if member not in running]
    answers = {member: _pools_of(member, request) for member in here}
    answers |= {member: future.result() for member, future in running.items()}
    return _collect(request, answers)


async def aask(request: Request) -> Answers:
    """Like :func:`ask`, but await the asynchronous methods of all retrievers at the same time."""
    answers = await asyncio.gather(*(_apools_of(member, request) for member in request.members))
    return _collect(request, dict(zip(request.members, answers, strict=True)))


def _pools_of(member: WeightedRetriever, request: Request) -> PoolsOrError:
    """Return the hits of a retriever for each of its queries, or the error that it raises."""
    queries = request.queries_for(member)
    try:
        if not isinstance(member.retriever, PoolRetriever):
            return [_foreign_pool(member, member.retriever.retrieve(query)) for query in queries]
        if request.needs_unfiltered:
            return member.retriever.pools(queries, request.size, request.min_matching)
        candidates = member.retriever.candidates(queries, request.size)
        return [Pool(hits, hits) for hits in candidates]
    except Exception as error:  # noqa: BLE001  the other retrievers answer
        return error


async def _apools_of(member: WeightedRetriever, request: Request) -> PoolsOrError:
    """Like :func:`_pools_of`, but in a thread only if the retriever would block the event loop."""
    retriever = member.retriever
    queries = request.queries_for(member)
    try:
        if isinstance(retriever, ContextualVectorRetriever) and retriever.has_async_query:
            candidates = await retriever.acandidates(queries, request.size)
            return [Pool(hits, hits) for hits in candidates]
        if not isinstance(retriever, PoolRetriever) and not _blocks(retriever):
            return [_foreign_pool(member, await retriever.aretrieve(query)) for query in queries]
    except Exception as error:  # noqa: BLE001  the other retrievers answer
        return error
    return await asyncio.wrap_future(in_thread(_pools_of, member, request))


def _blocks(retriever: BaseRetriever) -> bool:
    """Return whether the asynchronous method of a retriever blocks the event loop."""
    store = getattr(retriever, "_vector_store", None)
    methods = {type(retriever)._aretrieve, getattr(type(store), "aquery", None)}  # noqa: SLF001
    return not methods.isdisjoint(_BLOCKING)


def _foreign_pool(member: WeightedRetriever, results: Sequence[NodeWithScore]) -> Pool:
    """Return the hits of a retriever of another package.

    If a keyword retriever scores a node 0, no word matches, so the node is left out. If all scores
    of another retriever are 0, they are treated as missing.
    """
    if member.is_keyword:
        results = [result for result in results if result.score != 0]
    has_scores = any(result.score for result in results)
    candidates = []
    for result in results:
        score = result.score if has_scores else None
        candidates.append(Candidate(result.node.node_id, score, result.node))
    return Pool(candidates, candidates)


def _collect(request: Request, answers: Mapping[WeightedRetriever, PoolsOrError]) -> Answers:
    """Return the rankings of all retrievers that answered."""
    notes = _notes_on({member.name: answers[member] for member in request.members})
    pools: dict[WeightedRetriever, list[Pool]] = {}
    for member in request.members:
        answer = answers[member]
        if not isinstance(answer, Exception):
            pools[member] = [_cut(pool, member, request) for pool in answer]
    all_pools = [pool for pools_of_member in pools.values() for pool in pools_of_member]
    hits = [hit for pool in all_pools for hit in pool.matching]
    unfiltered_ids = {hit.node_id for pool in all_pools for hit in pool.unfiltered}

    rankings = []
    for member, pools_of_member in pools.items():
        for number, pool in enumerate(pools_of_member):
            # Hits that are only in the pool because of a filter must not change the other scores.
            added = [hit for hit in pool.matching if hit.node_id not in unfiltered_ids]
            node_ids, scores = rank_candidates([*pool.unfiltered, *added])
            ranking = Ranking(
                retriever=member.name,
                query_number=number,
                # The queries share the weight, so variants do not make a retriever more important.
                weight=member.weight / len(pools_of_member),
                node_ids=node_ids,
                scores=scores,
                unfiltered_count=len(node_ids) - len(added),
                is_keyword=member.is_keyword,
                model=getattr(member.retriever, "cosines_of", None),
            )
            rankings.append(ranking)
    return Answers(
        rankings=rankings,
        matching_ids=frozenset(hit.node_id for hit in hits),
        nodes={hit.node_id: hit.node for hit in hits if hit.node is not None},
        notes=notes,
    )


def _cut(pool: Pool, member: WeightedRetriever, request: Request) -> Pool:
    """Return the pool cut to the requested size, without nodes that the operators leave out."""
    if isinstance(member.retriever, _VECTOR_RETRIEVERS):
        pool = Pool(_descending(pool.matching), _descending(pool.unfiltered))
    matching = pool.matching[: request.size]
    if request.operator_matches is not None:
        matching = [hit for hit in matching if hit.node_id in request.operator_matches]
    return Pool(matching, pool.unfiltered[: request.size] if request.needs_unfiltered else matching)


def _descending(candidates: list[Candidate]) -> list[Candidate]:
    """Return the hits of a store with descending scores. If they ascend, they are distances.

    Distances are negated.
    """
    scores = [candidate.score for candidate in candidates if candidate.score is not None]
    if not scores or len(scores) < len(candidates):
        return candidates
    if scores[0] >= scores[-1] or scores != sorted(scores):
        return candidates
    return [
        Candidate(candidate.node_id, -score, candidate.node)
        for candidate, score in zip(candidates, scores, strict=True)
    ]


def _notes_on(answers: Mapping[str, PoolsOrError]) -> list[str]:
    """Warn about each retriever that failed, and return a line for each.

    If the other retrievers cannot answer instead, the error is raised.
    """
    errors = {name: answer for name, answer in answers.items() if isinstance(answer, Exception)}
    notes = [
        f"retriever {name!r} failed: {type(error).__name__}: {error}"
        for name, error in errors.items()
    ]
    have_all_failed = len(errors) == len(answers)
    fatal = (DamagedError, FingerprintError, *([StorageError] if have_all_failed else []))
    for error in errors.values():
        if isinstance(error, fatal):
            raise error
    if have_all_failed:
        raise RetrievalError(f"All retrievers failed: {'; '.join(notes)}") from errors.popitem()[1]
    for note in notes:
        warnings.warn(
            f"{note[0].upper()}{note[1:]}. The results come from the other retrievers.",
            ContextualWarning,
            stacklevel=2,
        )
    return notes


def load_nodes(
    members: Sequence[WeightedRetriever],
    node_ids: Sequence[str],
    known: Mapping[str, BaseNode],
    size: int,
) -> dict[str, BaseNode]:
    """Load the first nodes and return them by id.

    Keyword retrievers come first, because they have their nodes in memory. If a node was
    deleted since the retrievers answered, the next node takes its place.

    Args:
        members: The retrievers, which load the nodes.
        node_ids: The ids, best first.
        known: Nodes that are already loaded, by id.
        size: The number of nodes to return.
    """
    nodes: dict[str, BaseNode] = {}
    remaining = list(node_ids)
    while remaining and len(nodes) < size:
        batch = remaining[: size - len(nodes)]
        remaining = remaining[len(batch) :]
        loaded = {node_id: known[node_id] for node_id in batch if node_id in known}
        for member in sorted(members, key=lambda member: not member.is_keyword):
            missing = [node_id for node_id in batch if node_id not in loaded]
            if missing and isinstance(member.retriever, PoolRetriever):
                loaded |= member.retriever.nodes(missing)
        nodes |= {node_id: loaded[node_id] for node_id in batch if node_id in loaded}
    return nodes
