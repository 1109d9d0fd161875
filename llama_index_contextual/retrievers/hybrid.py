"""Several retrievers as one: asked at once, fused by weight, explained."""

from __future__ import annotations

import asyncio
import copy
import logging
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from llama_index.core import Settings
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms.utils import resolve_llm
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES, QUERY_GEN_PROMPT
from llama_index.core.schema import BaseNode, IndexNode, NodeWithScore, QueryBundle
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual.errors import ContextualWarning, RetrievalError, SettingError
from llama_index_contextual.retrievers.arms import Answer, Question, ask, ask_async
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.candidates import CandidateRetriever
from llama_index_contextual.retrievers.explain import Explanation, Hit, Step
from llama_index_contextual.retrievers.fusion import Fused, Mode, Ranking, fuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.llms import LLM
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.vector_stores.types import MetadataFilters

logger = logging.getLogger(__name__)

KEYWORD_WEIGHT: Final = 0.6
RRF_K: Final = 20.0
POOL: Final = 100


@dataclass(frozen=True, slots=True)
class _Pool:
    """What the arms proposed, fused: everything before postprocessors and the cut."""

    queries: tuple[QueryBundle, ...]
    fused: tuple[Fused, ...]
    given: dict[str, BaseNode]  # nodes that arms handed over
    warnings: tuple[str, ...]


class ContextualFusionRetriever(QueryFusionRetriever):
    """Hybrid retrieval: weighted fusion of any retrievers.

    Each arm proposes a pool of fixed size, whatever ``similarity_top_k`` is, so the top 5 is a prefix of the top 20;
    ties break by node id; a node counts once by its id; a zero or missing score earns nothing. Scores are the fused
    scores normalised over the pool: the best has 1, each is greater than 0 (RECIPROCAL_RANK), and postprocessors such
    as a recency decay act on them before the cut. They rank; they are no measure of relevance: for that
    :meth:`explain` gives the cosine and the matched terms.

    Args:
        retrievers: The arms. Ours answer with ids and read only the nodes that are returned; others with their own
            ``similarity_top_k``.
        retriever_weights: One an arm, in any scale. Default: keyword arms share .6, the others .4 (measured on three
            sets); equal weights if there is one kind only.
        mode: ``"reciprocal_rerank"``, ``"relative_score"``, ``"dist_based_score"``, ``"simple"``; weights count in all.
        rrf_k: RRF's constant: small values favour the top ranks. 60 is the original paper's.
        similarity_top_k: Nodes to return.
        candidate_pool: Candidates an arm proposes; at least ``similarity_top_k``.
        num_queries: Above 1, an LLM writes ``num_queries - 1`` variants of the query; at 1 no LLM is resolved.
        variants: Which arms get variants: ``"keyword"`` (variants widen keywords and blur vectors) or ``"all"``.
        agreement_boost: Factor for nodes that at least two queries found.
        node_postprocessors: Applied to the whole pool before the cut.
        arm_timeout: Seconds that an arm may take; None waits.
        on_arm_failure: ``"warn"`` answers from the other arms with a ``ContextualWarning``; ``"raise"`` raises.
        count_unscored: Let zero and missing scores earn credit, as LlamaIndex does.
        llm: Writes query variants; default ``Settings.llm`` when it is needed.

    Raises:
        SettingError: A setting cannot work.
        RetrievalError: All arms failed; or one did and ``on_arm_failure="raise"``.
    """

    def __init__(
        self,
        retrievers: Sequence[BaseRetriever],
        *,
        retriever_weights: Sequence[float] | None = None,
        mode: str = FUSION_MODES.RECIPROCAL_RANK,
        rrf_k: float = RRF_K,
        similarity_top_k: int = 10,
        candidate_pool: int = POOL,
        num_queries: int = 1,
        variants: Literal["keyword", "all"] = "keyword",
        agreement_boost: float = 1.15,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (),
        arm_timeout: float | None = None,
        on_arm_failure: Literal["warn", "raise"] = "warn",
        count_unscored: bool = False,
        llm: LLM | str | None = None,
        query_gen_prompt: str | None = None,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
    ) -> None:
        arms = list(retrievers)
        _check_weights(arms, retriever_weights)
        _check_sizes(rrf_k, similarity_top_k, candidate_pool, num_queries)
        # Not QueryFusionRetriever.__init__: it resolves Settings.llm even for num_queries=1, an error without a key.
        maps = [arm.object_map for arm in arms]
        BaseRetriever.__init__(
            self,
            callback_manager=callback_manager,
            objects=objects,
            object_map={key: obj for one in (*maps, object_map or {}) for key, obj in one.items()},
            verbose=verbose,
        )
        self.mode = FUSION_MODES(mode)
        self.rrf_k = rrf_k
        self.similarity_top_k = similarity_top_k
        self.candidate_pool = candidate_pool
        self.num_queries = num_queries
        self.variants = variants
        self.agreement_boost = agreement_boost
        self.node_postprocessors = list(node_postprocessors)
        self.arm_timeout = arm_timeout
        self.on_arm_failure = on_arm_failure
        self.count_unscored = count_unscored
        self.query_gen_prompt = query_gen_prompt or QUERY_GEN_PROMPT
        self.use_async = True
        self._retrievers = arms
        self._retriever_weights = _weights(arms, retriever_weights)
        self._names = _names(arms)
        self._given_llm = llm

    @property
    def _llm(self) -> LLM:  # type: ignore[override]  # LlamaIndex sets an attribute, and so needs a key
        return resolve_llm(self._given_llm) if self._given_llm else Settings.llm

    @property
    def arms(self) -> dict[str, float]:
        """Name and weight of each arm."""
        return dict(zip(self._names, self._retriever_weights, strict=True))

    def with_filters(self, filters: MetadataFilters | None) -> ContextualFusionRetriever:
        """A view whose arms return only what the filters admit; shares every index.

        Raises:
            SettingError: An arm cannot be filtered.
        """
        stiff = [
            name for name, arm in zip(self._names, self._retrievers, strict=True) if not hasattr(arm, "with_filters")
        ]
        if stiff:
            raise SettingError(
                f"Arms {stiff} have no with_filters(). Cure: give them their filters when you make them."
            )
        view = copy.copy(self)
        view.__dict__["_retrievers"] = [cast("Any", arm).with_filters(filters) for arm in self._retrievers]
        return view

    # Answers

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._answer(self._bundles(query_bundle, self._get_queries))[0]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        bundles = self._bundles(query_bundle, None)
        if self.num_queries > 1:
            bundles += await self._aget_queries(query_bundle.query_str)
        return (await self._aanswer(bundles))[0]

    def retrieve_queries(self, queries: Sequence[str | QueryBundle]) -> list[NodeWithScore]:
        """Answer a query together with variants of it, the original first; no LLM is asked.

        Variants reach the arms that ``variants`` names, and nodes that at least two queries found are boosted.
        """
        return self._answer(_as_bundles(queries))[0]

    async def aretrieve_queries(self, queries: Sequence[str | QueryBundle]) -> list[NodeWithScore]:
        """:meth:`retrieve_queries` off the event loop."""
        return (await self._aanswer(_as_bundles(queries)))[0]

    def explain(self, *queries: str | QueryBundle) -> Explanation:
        """The same answer as ``retrieve`` (or ``retrieve_queries``), with the reasons for each hit."""
        bundles = _as_bundles(queries)
        if len(bundles) == 1:
            bundles = self._bundles(bundles[0], self._get_queries)
        found, pool, steps = self._answer(bundles)
        return self._explanation(found, pool, steps)

    async def aexplain(self, *queries: str | QueryBundle) -> Explanation:
        """:meth:`explain` off the event loop."""
        bundles = _as_bundles(queries)
        if len(bundles) == 1 and self.num_queries > 1:
            bundles += await self._aget_queries(bundles[0].query_str)
        found, pool, steps = await self._aanswer(bundles)
        return await asyncio.to_thread(self._explanation, found, pool, steps)

    # How they are made

    def _bundles(self, query: QueryBundle, generate: Any) -> list[QueryBundle]:
        return [query, *(generate(query.query_str) if generate and self.num_queries > 1 else [])]

    def _answer(self, queries: list[QueryBundle]) -> tuple[list[NodeWithScore], _Pool, dict[str, list[Step]]]:
        questions = self._questions(queries)
        pool = self._pool(queries, questions, ask(questions, self.candidate_pool, self.arm_timeout))
        found = self._load(pool, None if self.node_postprocessors else self.similarity_top_k)
        steps: dict[str, list[Step]] = {}
        for postprocessor in self.node_postprocessors:
            before = _scores(found)
            found = _ordered(postprocessor.postprocess_nodes(found, query_bundle=queries[0]))
            _note(steps, postprocessor, before, found)
        return found[: self.similarity_top_k], pool, steps

    async def _aanswer(self, queries: list[QueryBundle]) -> tuple[list[NodeWithScore], _Pool, dict[str, list[Step]]]:
        questions = self._questions(queries)
        pool = self._pool(queries, questions, await ask_async(questions, self.candidate_pool, self.arm_timeout))
        cut = None if self.node_postprocessors else self.similarity_top_k
        found = await asyncio.to_thread(self._load, pool, cut)
        steps: dict[str, list[Step]] = {}
        for postprocessor in self.node_postprocessors:
            before = _scores(found)
            found = _ordered(await postprocessor.apostprocess_nodes(found, query_bundle=queries[0]))
            _note(steps, postprocessor, before, found)
        return found[: self.similarity_top_k], pool, steps

    def _questions(self, queries: list[QueryBundle]) -> list[Question]:
        """Every query for every arm that gets it, keyword arms last: the caller's own thread asks the last."""
        questions = [
            Question(number, position, arm, _copy(query))
            for position, query in enumerate(queries)
            for number, arm in enumerate(self._retrievers)
            if position == 0 or self.variants == "all" or isinstance(arm, BM25Retriever)
        ]
        return sorted(questions, key=lambda one: isinstance(one.retriever, BM25Retriever))

    def _pool(self, queries: list[QueryBundle], questions: list[Question], answers: list[Answer]) -> _Pool:
        noted = self._failures(questions, answers)
        good = [(q, a) for q, a in zip(questions, answers, strict=True) if not isinstance(a, Exception)]
        asked = [question.arm for question, _ in good]
        present = sum(self._retriever_weights[arm] for arm in set(asked)) or 1.0
        rankings = [
            # An arm's weight is shared by its queries, so variants do not make an arm more important.
            Ranking(
                self._names[question.arm],
                question.query,
                self._retriever_weights[question.arm] / present / asked.count(question.arm),
                answer[: self.candidate_pool],
            )
            for question, answer in good
        ]
        fused = fuse(
            rankings,
            mode=Mode(self.mode.value),
            k=self.rrf_k,
            pool=self.candidate_pool,
            agreement_boost=self.agreement_boost,
            count_unscored=self.count_unscored,
        )
        given = {one.node_id: one.node for _, answer in good for one in answer if one.node is not None}
        return _Pool(tuple(queries), tuple(fused), given, noted)

    def _failures(self, questions: list[Question], answers: list[Answer]) -> tuple[str, ...]:
        failed = [(q, a) for q, a in zip(questions, answers, strict=True) if isinstance(a, Exception)]
        if not failed:
            return ()
        noted = tuple(dict.fromkeys(f"arm {self._names[q.arm]!r} {_reason(a, self.arm_timeout)}" for q, a in failed))
        first = next(a for _, a in failed)
        if len(failed) == len(questions):
            raise RetrievalError(f"No retrieval arm could answer: {'; '.join(noted)}") from first
        if self.on_arm_failure == "raise":
            raise RetrievalError(
                f"{'; '.join(noted)}. Cure: on_arm_failure='warn' answers from the other arms."
            ) from first
        for note in noted:
            message = f"Retrieval degraded: {note}; the other arms answered."
            logger.warning(message)
            warnings.warn(message, ContextualWarning, stacklevel=2)
        return noted

    def _load(self, pool: _Pool, cut: int | None) -> list[NodeWithScore]:
        """Nodes of the pool's best. Where one vanished since the arms answered, the next moves up."""
        nodes: dict[str, BaseNode] = dict(pool.given)
        found: list[NodeWithScore] = []
        wanted = list(pool.fused)
        while wanted and (cut is None or len(found) < cut):
            size = len(wanted) if cut is None else cut - len(found)
            batch, wanted = wanted[:size], wanted[size:]
            for arm in self._loaders:
                if missing := [one.node_id for one in batch if one.node_id not in nodes]:
                    nodes.update(arm.nodes(missing))
            found += [NodeWithScore(node=nodes[one.node_id], score=one.score) for one in batch if one.node_id in nodes]
        return found

    @property
    def _loaders(self) -> list[CandidateRetriever]:
        """Arms that read nodes, those with nodes in memory first."""
        able = [arm for arm in self._retrievers if isinstance(arm, CandidateRetriever)]
        return sorted(able, key=lambda arm: not isinstance(arm, ContextualBM25Retriever))

    def _explanation(self, found: list[NodeWithScore], pool: _Pool, steps: dict[str, list[Step]]) -> Explanation:
        fused = {one.node_id: one for one in pool.fused}
        terms = self._terms(pool.queries, [one.node.node_id for one in found])
        vectors = {
            n for n, arm in zip(self._names, self._retrievers, strict=True) if not isinstance(arm, BM25Retriever)
        }
        hits = []
        for rank, one in enumerate(found, start=1):
            node_id = one.node.node_id
            why = fused.get(node_id)
            cosines = [c.score for c in why.credits if c.arm in vectors and c.query == 0] if why else []
            hits.append(
                Hit(
                    rank,
                    one,
                    why,
                    max(cosines, default=None),
                    tuple(terms.get(node_id, ())),
                    tuple(steps.get(node_id, ())),
                )
            )
        queries = tuple(query.query_str for query in pool.queries)
        return Explanation(queries, self.arms, self.mode.value, self.rrf_k, tuple(hits), len(pool.fused), pool.warnings)

    def _terms(self, queries: Sequence[QueryBundle], node_ids: list[str]) -> dict[str, list[Any]]:
        text = " ".join(query.query_str for query in queries)
        arm = next((arm for arm in self._retrievers if isinstance(arm, ContextualBM25Retriever)), None)
        return {} if arm is None else dict(arm.evidence(text, node_ids))


def _check_weights(arms: list[BaseRetriever], weights: Sequence[float] | None) -> None:
    if not arms:
        raise SettingError("retrievers=[] is empty. Cure: at least one retriever.")
    if weights is not None and (len(weights) != len(arms) or min(weights) < 0 or sum(weights) <= 0):
        raise SettingError(f"retriever_weights={list(weights)}: one for each of {len(arms)} retrievers, none negative.")


def _check_sizes(k: float, top_k: int, pool: int, num_queries: int) -> None:
    if k < 0:
        raise SettingError(f"rrf_k={k} must not be negative.")
    if top_k < 1 or pool < top_k:
        raise SettingError(
            f"similarity_top_k={top_k}, candidate_pool={pool}. Cure: 1 <= similarity_top_k <= candidate_pool."
        )
    if num_queries < 1:
        raise SettingError(f"num_queries={num_queries} must be at least 1: the original query.")


def _weights(arms: Sequence[BaseRetriever], given: Sequence[float] | None) -> list[float]:
    """Weights that sum to 1."""
    if given is None:
        keyword = [isinstance(arm, BM25Retriever) for arm in arms]
        shares = {True: KEYWORD_WEIGHT, False: 1 - KEYWORD_WEIGHT}
        given = [shares[kind] / keyword.count(kind) for kind in keyword]
    return [weight / sum(given) for weight in given]


def _names(arms: Sequence[BaseRetriever]) -> list[str]:
    """A short distinct name an arm: bm25, vector, or its class."""
    plain = [_name(arm) for arm in arms]
    seen: dict[str, int] = {}
    names = []
    for name in plain:
        seen[name] = seen.get(name, 0) + 1
        names.append(name if plain.count(name) == 1 else f"{name} {seen[name]}")
    return names


def _name(arm: BaseRetriever) -> str:
    if isinstance(arm, BM25Retriever):
        return "bm25"
    name = type(arm).__name__
    return "vector" if name in {"ContextualVectorRetriever", "VectorIndexRetriever"} else name


def _reason(error: Exception, timeout: float | None) -> str:
    late = isinstance(error, (TimeoutError, asyncio.TimeoutError)) or type(error).__name__ == "TimeoutError"
    return f"took longer than {timeout:g} s" if late and timeout else f"failed: {type(error).__name__}: {error}"


def _copy(query: QueryBundle) -> QueryBundle:
    return QueryBundle(
        query.query_str,
        image_path=query.image_path,
        custom_embedding_strs=query.custom_embedding_strs,
        embedding=query.embedding,
    )


def _as_bundles(queries: Sequence[str | QueryBundle]) -> list[QueryBundle]:
    bundles = [query if isinstance(query, QueryBundle) else QueryBundle(query) for query in queries]
    unique = {bundle.query_str: bundle for bundle in reversed(bundles)}
    return [unique.pop(bundle.query_str) for bundle in bundles if bundle.query_str in unique]


def _scores(found: Sequence[NodeWithScore]) -> dict[str, float]:
    return {one.node.node_id: one.score or 0.0 for one in found}


def _ordered(found: Sequence[NodeWithScore]) -> list[NodeWithScore]:
    """Best first. Stable, so a postprocessor that reorders without scores keeps its order."""
    if any(one.score is None for one in found):
        return list(found)
    return sorted(found, key=lambda one: -(one.score or 0.0))


def _note(
    steps: dict[str, list[Step]],
    postprocessor: BaseNodePostprocessor,
    before: dict[str, float],
    found: Sequence[NodeWithScore],
) -> None:
    for one in found:
        old = before.get(one.node.node_id, 0.0)
        steps.setdefault(one.node.node_id, []).append(Step(postprocessor.class_name(), old, one.score or 0.0))
