"""Several retrievers as one: asked at once, fused by weight, explained."""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any, Literal, cast

from llama_index.core import Settings
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms.utils import resolve_llm
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES, QUERY_GEN_PROMPT
from llama_index.core.schema import BaseNode, IndexNode, NodeWithScore, QueryBundle

from llama_index_contextual.checks import amount, whole
from llama_index_contextual.errors import SettingError
from llama_index_contextual.retrievers.arm_settings import (
    KEYWORD_WEIGHT,
    POOL,
    RRF_K,
    arm_names,
    arm_weights,
    check_choice,
    check_timeout,
    checked_reach,
    checked_sizes,
    is_keyword,
)
from llama_index_contextual.retrievers.arms import Answer, Question, ask, ask_async
from llama_index_contextual.retrievers.candidates import CandidateRetriever
from llama_index_contextual.retrievers.explain import Explanation, Step, explanation_of
from llama_index_contextual.retrievers.filters import check_filters
from llama_index_contextual.retrievers.fusion import Mode, fuse
from llama_index_contextual.retrievers.neighbours import Reach, expand_hits
from llama_index_contextual.retrievers.pooling import (
    Found,
    Pool,
    as_bundles,
    in_order,
    note_steps,
    own_copy,
    rank_answers,
    report_failures,
    scores_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.llms import LLM
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.vector_stores.types import MetadataFilters

__all__ = ["KEYWORD_WEIGHT", "ContextualFusionRetriever"]


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
            Ranks fit arms of any kind. For a cosine and a BM25 arm ``"dist_based_score"`` was better (mean of three
            sets: recall@5 74.2 instead of 74.0, MRR 63.7 instead of 61.3).
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
        expand: So many adjacent chunks on each side of a hit, or ``"section"`` for all of its section; hits whose
            surroundings touch become one citation.
        llm: Writes query variants; default ``Settings.llm`` when it is needed.
        query_gen_prompt: Asks the LLM for variants, with ``{num_queries}`` and ``{query}``.
        use_async: Part of LlamaIndex's interface; arms are asked at once either way.

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
        expand: Reach = 0,
        llm: LLM | str | None = None,
        query_gen_prompt: str | None = None,
        use_async: bool = True,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
    ) -> None:
        arms = list(retrievers)
        if not arms:
            raise SettingError("retrievers=[] is empty. Cure: at least one retriever.")
        check_choice("variants", variants, ("keyword", "all"))
        check_choice("on_arm_failure", on_arm_failure, ("warn", "raise"))
        check_choice("mode", mode, tuple(one.value for one in FUSION_MODES))
        check_timeout(arm_timeout)
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
        self.rrf_k = amount("rrf_k", rrf_k, zero=True)
        self.similarity_top_k, self.candidate_pool = checked_sizes(similarity_top_k, candidate_pool)
        self.num_queries = whole("num_queries", num_queries)  # the original query is one
        self.variants = variants
        self.agreement_boost = amount("agreement_boost", agreement_boost)
        self.node_postprocessors = list(node_postprocessors)
        self.arm_timeout = arm_timeout
        self.on_arm_failure = on_arm_failure
        self.count_unscored = count_unscored
        self.expand = checked_reach(expand)
        self.query_gen_prompt = query_gen_prompt or QUERY_GEN_PROMPT
        self.use_async = use_async
        self._retrievers = arms
        self._retriever_weights = arm_weights(arms, retriever_weights)
        self._names = arm_names(arms)
        self._given_llm = llm

    @property
    def _llm(self) -> LLM:  # type: ignore[override]  # LlamaIndex sets an attribute, and so needs a key
        return resolve_llm(self._given_llm) if self._given_llm else Settings.llm

    @property
    def arms(self) -> dict[str, float]:
        """Name and weight of each arm."""
        return dict(zip(self._names, self._retriever_weights, strict=True))

    @property
    def retrievers(self) -> list[BaseRetriever]:
        """The arms."""
        return list(self._retrievers)

    def with_filters(self, filters: MetadataFilters | None) -> ContextualFusionRetriever:
        """A view whose arms return only what the filters admit; shares every index.

        Raises:
            SettingError: An arm cannot be filtered, or the filters are none of LlamaIndex's.
        """
        check_filters(filters)
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
        return self._answer(self._bundles(query_bundle)).nodes

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return (await self._aanswer(await self._abundles(query_bundle))).nodes

    def retrieve_queries(self, queries: Sequence[str | QueryBundle]) -> list[NodeWithScore]:
        """Answer a query together with variants of it, the original first; no LLM is asked.

        Variants reach the arms that ``variants`` names; nodes that at least two queries found are boosted.
        """
        return self._answer(as_bundles(queries)).nodes

    async def aretrieve_queries(self, queries: Sequence[str | QueryBundle]) -> list[NodeWithScore]:
        """:meth:`retrieve_queries` off the event loop."""
        return (await self._aanswer(as_bundles(queries))).nodes

    def explain(self, *queries: str | QueryBundle) -> Explanation:
        """The same answer as ``retrieve`` (or ``retrieve_queries``), with the reasons for each hit."""
        bundles = as_bundles(queries)
        return self._explanation(self._answer(self._bundles(bundles[0]) if len(bundles) == 1 else bundles))

    async def aexplain(self, *queries: str | QueryBundle) -> Explanation:
        """:meth:`explain` off the event loop."""
        bundles = as_bundles(queries)
        found = await self._aanswer(await self._abundles(bundles[0]) if len(bundles) == 1 else bundles)
        return await asyncio.to_thread(self._explanation, found)

    # How they are made

    def _bundles(self, query: QueryBundle) -> list[QueryBundle]:
        return [query, *(self._get_queries(query.query_str) if self.num_queries > 1 else [])]

    async def _abundles(self, query: QueryBundle) -> list[QueryBundle]:
        return [query, *(await self._aget_queries(query.query_str) if self.num_queries > 1 else [])]

    def _answer(self, queries: list[QueryBundle]) -> Found:
        questions = self._questions(queries)
        pool = self._pool(queries, questions, ask(questions, self.candidate_pool, self.arm_timeout))
        found = self._load(pool)
        steps: dict[str, list[Step]] = {}
        for postprocessor in self.node_postprocessors:
            before = scores_of(found)
            found = in_order(postprocessor.postprocess_nodes(found, query_bundle=queries[0]))
            note_steps(steps, postprocessor, before, found)
        return Found(self._cut(found), pool, steps)

    async def _aanswer(self, queries: list[QueryBundle]) -> Found:
        questions = self._questions(queries)
        pool = self._pool(queries, questions, await ask_async(questions, self.candidate_pool, self.arm_timeout))
        found = await asyncio.to_thread(self._load, pool)
        steps: dict[str, list[Step]] = {}
        for postprocessor in self.node_postprocessors:
            before = scores_of(found)
            found = in_order(await postprocessor.apostprocess_nodes(found, query_bundle=queries[0]))
            note_steps(steps, postprocessor, before, found)
        return Found(await asyncio.to_thread(self._cut, found), pool, steps)

    def _questions(self, queries: list[QueryBundle]) -> list[Question]:
        """Every query for every arm that gets it."""
        return [
            Question(number, position, arm, own_copy(query))
            for position, query in enumerate(queries)
            for number, arm in enumerate(self._retrievers)
            if position == 0 or self.variants == "all" or is_keyword(arm)
        ]

    def _pool(self, queries: list[QueryBundle], questions: list[Question], answers: list[Answer]) -> Pool:
        notes = report_failures(
            questions, answers, self._names, timeout=self.arm_timeout, strict=self.on_arm_failure == "raise"
        )
        fused = fuse(
            rank_answers(questions, answers, self._names, self._retriever_weights, self.candidate_pool),
            mode=Mode(self.mode.value),
            k=self.rrf_k,
            pool=self.candidate_pool,
            agreement_boost=self.agreement_boost,
            count_unscored=self.count_unscored,
        )
        given = {c.node_id: c.node for a in answers if not isinstance(a, Exception) for c in a if c.node is not None}
        return Pool(tuple(queries), tuple(fused), given, notes)

    def _load(self, pool: Pool) -> list[NodeWithScore]:
        """Nodes of the pool: all where postprocessors want to see them, else as many as are returned.

        Where a node vanished since the arms answered, the next one moves up.
        """
        cut = None if self.node_postprocessors else self.similarity_top_k
        nodes: dict[str, BaseNode] = dict(pool.given)
        found: list[NodeWithScore] = []
        wanted = list(pool.fused)
        while wanted and (cut is None or len(found) < cut):
            size = len(wanted) if cut is None else cut - len(found)
            batch, wanted = wanted[:size], wanted[size:]
            nodes.update(self._nodes(one.node_id for one in batch if one.node_id not in nodes))
            found += [NodeWithScore(node=nodes[one.node_id], score=one.score) for one in batch if one.node_id in nodes]
        return found

    def _nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Nodes by id from the arms that read them; keyword arms first, which have them in memory."""
        able = [arm for arm in self._retrievers if isinstance(arm, CandidateRetriever)]
        missing, nodes = list(node_ids), dict[str, BaseNode]()
        for arm in sorted(able, key=lambda arm: not is_keyword(arm)):
            if missing:
                nodes.update(arm.nodes(missing))
                missing = [node_id for node_id in missing if node_id not in nodes]
        return nodes

    def _cut(self, found: list[NodeWithScore]) -> list[NodeWithScore]:
        best = found[: self.similarity_top_k]
        return expand_hits(best, self.expand, self._nodes) if self.expand else best

    def _explanation(self, found: Found) -> Explanation:
        queries = tuple(query.query_str for query in found.pool.queries)
        keyword = next((cast("Any", arm) for arm in self._retrievers if hasattr(arm, "evidence")), None)
        ids = [one.node.node_id for one in found.nodes]
        terms = keyword.evidence(" ".join(queries), ids) if keyword else {}
        arms = zip(self._names, self._retrievers, strict=True)
        return explanation_of(
            found,
            arms=self.arms,
            vectors={name for name, arm in arms if not is_keyword(arm)},
            mode=self.mode.value,
            k=self.rrf_k,
            terms=terms,
        )
