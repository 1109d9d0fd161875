"""Ask several retrievers at once, fuse their answers by weight, and explain the result."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from llama_index.core import Settings
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms.utils import resolve_llm
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES, QUERY_GEN_PROMPT
from llama_index.core.schema import BaseNode, IndexNode, NodeWithScore, QueryBundle

from llama_index_contextual.checks import amount, one_of, whole
from llama_index_contextual.errors import SettingError
from llama_index_contextual.keyword.filters import check_filters
from llama_index_contextual.metadata import citation_of
from llama_index_contextual.retrievers.arms import (
    ArmAnswer,
    ArmQuery,
    Plan,
    arm_names,
    arm_weights,
    as_bundles,
    ask_arms,
    ask_arms_async,
    asks_to_plan,
    checked_arms,
    default_mode,
    gives_ids,
    is_keyword,
    keyword_arm,
    one_look,
    plan_queries,
    rank_answers,
    report_failures,
)
from llama_index_contextual.retrievers.explain import Explanation, Step, hits_of, noted, scores_of
from llama_index_contextual.retrievers.fusion import FusedPool, Mode, fuse
from llama_index_contextual.retrievers.learned import Words, fuse_learned, words_of
from llama_index_contextual.retrievers.neighbours import Reach, checked_reach, expand_hits
from llama_index_contextual.retrievers.relevance import (
    AUTO,
    Least,
    checked_least,
    evidence_of,
    least_relevance,
    relevance,
)
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever
from llama_index_contextual.text import counted
from llama_index_contextual.watching import step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import date

    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.llms import LLM
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.retrievers.fusion import Fused, Ranking

RRF_K: Final = 20.0
POOL: Final = 100  # candidates per arm, whatever the top-k, so that a top 5 is a prefix of a top 20


@dataclass(frozen=True, slots=True)
class FusedAnswer:
    """Hold the nodes that are returned, the pool that they come from, and what postprocessors did to scores, by id."""

    nodes: list[NodeWithScore]
    pool: FusedPool
    steps: dict[str, list[Step]]


class ContextualFusionRetriever(QueryFusionRetriever):
    """Retrieve with several retrievers, the arms, and fuse what they find by weight.

    Each arm proposes a pool of fixed size, whatever ``similarity_top_k`` is, so the top 5 is a prefix of the top 20.
    Ties break by node id; a node counts once by its id. An arm without scores counts by its order, and where a keyword
    arm says 0 its node earns nothing. Scores are the fused scores normalised over the pool, so the best has 1. Learned
    fusion multiplies them by the relevance of the best: how likely it is that the index answers the question, 0 to 1.
    Postprocessors such as a recency decay act on scores before the cut. :meth:`explain` gives the relevance of each hit
    in every mode.

    Where one of the arms is a :class:`ContextualBM25Retriever`, the whole answer obeys a query's operators:
    ``"exact phrase"``, ``-not``, ``path:`` and ``tag:``, as :mod:`llama_index_contextual.keyword.query` reads them.

    Args:
        retrievers: The arms. Ours answer with ids and read only the nodes that are returned; others with their own
            ``similarity_top_k``.
        retriever_weights: One an arm, in any scale. Default: keyword arms share .6, the others .4 (measured on three
            sets); equal weights if there is one kind only.
        mode: ``"learned"``: a model of five numbers, trained on questions with known answers. It compares scores, and
            looks at how much of the question is found, how near its words stand to each other, and whether a chunk is
            of a day that the question names; weights only divide between arms of one kind. ``"reciprocal_rerank"``,
            ``"relative_score"``, ``"dist_based_score"``, ``"simple"``: as LlamaIndex names them; weights count.
            Default: learned where a :class:`ContextualBM25Retriever` and an arm of another kind are fused and neither
            weights nor ``rrf_k`` are given, else reciprocal ranks, which fit arms of any kind.
        rrf_k: RRF's constant: small values favour the top ranks. 60 is the original paper's.
        similarity_top_k: Nodes to return.
        candidate_pool: Candidates an arm proposes; at least ``similarity_top_k``.
        num_queries: Above 1, an LLM writes ``num_queries - 1`` variants of the query; at 1 no LLM is resolved.
        variants: Which arms get variants: ``"keyword"`` (variants widen keywords and blur vectors) or ``"all"``.
        agreement_boost: Factor for nodes that at least two queries found.
        node_postprocessors: Applied to the whole pool before the cut.
        arm_timeout: Seconds that an arm may take; None waits.
        on_arm_failure: ``"warn"`` answers from the other arms with a ``ContextualWarning``; ``"raise"`` raises.
        expand: So many adjacent chunks on each side of a hit, or ``"section"`` for all of its section; hits whose
            surroundings touch become one citation.
        min_score: Hits less relevant than this are dropped, before postprocessors: 0 to 1, as ``explain()`` shows it.
            Hits of unknown relevance stay. Default: 0, which drops none, because an engine wants the best there is.
            ``"auto"`` abstains as the command line and MCP do, where relevance was measured: with the local embedding,
            a :class:`ContextualBM25Retriever`, and neither filters nor operators.
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
        mode: str | None = None,
        rrf_k: float | None = None,
        similarity_top_k: int = 10,
        candidate_pool: int = POOL,
        num_queries: int = 1,
        variants: Literal["keyword", "all"] = "keyword",
        agreement_boost: float = 1.15,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (),
        arm_timeout: float | None = None,
        on_arm_failure: Literal["warn", "raise"] = "warn",
        expand: Reach = 0,
        min_score: Least = 0.0,
        llm: LLM | str | None = None,
        query_gen_prompt: str | None = None,
        use_async: bool = True,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
    ) -> None:
        arms = checked_arms(retrievers)
        one_of("variants", variants, ("keyword", "all"))
        one_of("on_arm_failure", on_arm_failure, ("warn", "raise"))
        mode = mode or default_mode(arms, retriever_weights, rrf_k)
        one_of("mode", mode, tuple(one.value for one in Mode))
        # Not QueryFusionRetriever.__init__: it resolves Settings.llm even for num_queries=1, an error without a key.
        maps = [arm.object_map for arm in arms]
        BaseRetriever.__init__(
            self,
            callback_manager=callback_manager,
            objects=objects,
            object_map={key: obj for one in (*maps, object_map or {}) for key, obj in one.items()},
            verbose=verbose,
        )
        self.mode = cast("Any", Mode.LEARNED if mode == Mode.LEARNED else FUSION_MODES(mode))
        self.rrf_k = amount("rrf_k", RRF_K if rrf_k is None else rrf_k, zero=True)
        self.similarity_top_k = whole("similarity_top_k", similarity_top_k)
        self.candidate_pool = whole("candidate_pool", candidate_pool)
        if self.candidate_pool < self.similarity_top_k:
            sizes = f"similarity_top_k={similarity_top_k}, candidate_pool={candidate_pool}"
            raise SettingError(f"{sizes}. Cure: 1 <= similarity_top_k <= candidate_pool.")
        self.num_queries = whole("num_queries", num_queries)  # the original query is one
        self.variants = variants
        self.agreement_boost = amount("agreement_boost", agreement_boost)
        self.node_postprocessors = list(node_postprocessors)
        self.arm_timeout = None if arm_timeout is None else amount("arm_timeout", arm_timeout)
        self.on_arm_failure = on_arm_failure
        self.expand = checked_reach(expand)
        self.min_score = checked_least("min_score", min_score)
        self.query_gen_prompt = query_gen_prompt or QUERY_GEN_PROMPT
        self.use_async = use_async
        # Memory says these of a view of its own: from which day "last week" counts (None: the day it is), and what a
        # relevant hit holds of the question (None: all of it).
        self.today: date | None = None
        self.subject: str | None = None
        self._retrievers = arms
        self._retriever_weights = arm_weights(arms, retriever_weights)
        self._names = arm_names(arms)
        self._given_llm = llm

    @property
    def _llm(self) -> LLM:  # type: ignore[override]  # LlamaIndex sets an attribute, and so needs a key
        return resolve_llm(self._given_llm) if self._given_llm else Settings.llm

    @property
    def arms(self) -> dict[str, float]:
        """Return the name and the weight of each arm."""
        return dict(zip(self._names, self._retriever_weights, strict=True))

    @property
    def retrievers(self) -> list[BaseRetriever]:
        """Return the arms."""
        return list(self._retrievers)

    def with_filters(self, filters: MetadataFilters | None) -> ContextualFusionRetriever:
        """Return a view whose arms return only what the filters admit; it shares every index.

        Raises:
            SettingError: An arm cannot be filtered, or the filters are not LlamaIndex's.
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
        found = self._answer(self._bundles(query_bundle))
        return found.nodes or self._first_nodes(query_bundle, found)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = await self._aanswer(await self._abundles(query_bundle))
        return found.nodes or await asyncio.to_thread(self._first_nodes, query_bundle, found)

    def _first_nodes(self, query: QueryBundle, found: FusedAnswer) -> list[NodeWithScore]:
        """Return what the keyword arm gives where no arm found anything: an engine has to answer "Hello!", too."""
        keyword = keyword_arm(self._retrievers)
        if keyword is None or self.min_score or found.pool.fused:
            return []
        return keyword.retrieve(query)[: self.similarity_top_k]

    def retrieve_queries(self, queries: Sequence[str | QueryBundle]) -> list[NodeWithScore]:
        """Answer a query together with variants of it, the original first; no LLM is asked.

        Variants reach the arms that ``variants`` names; nodes that at least two queries found are boosted.
        """
        return self._answer(as_bundles(queries)).nodes

    async def aretrieve_queries(self, queries: Sequence[str | QueryBundle]) -> list[NodeWithScore]:
        """Do the same as :meth:`retrieve_queries` without blocking the event loop."""
        return (await self._aanswer(as_bundles(queries))).nodes

    def explain(self, *queries: str | QueryBundle) -> Explanation:
        """Return the answer of ``retrieve`` (or ``retrieve_queries``) with the reasons for each hit."""
        bundles = as_bundles(queries)
        return self._explanation(self._answer(self._bundles(bundles[0]) if len(bundles) == 1 else bundles, why=True))

    async def aexplain(self, *queries: str | QueryBundle) -> Explanation:
        """Do the same as :meth:`explain` without blocking the event loop."""
        bundles = as_bundles(queries)
        found = await self._aanswer(await self._abundles(bundles[0]) if len(bundles) == 1 else bundles, why=True)
        return await asyncio.to_thread(self._explanation, found)

    def _bundles(self, query: QueryBundle) -> list[QueryBundle]:
        return [query, *(self._get_queries(query.query_str) if self.num_queries > 1 else [])]

    async def _abundles(self, query: QueryBundle) -> list[QueryBundle]:
        return [query, *(await self._aget_queries(query.query_str) if self.num_queries > 1 else [])]

    def _search(self, queries: list[QueryBundle], *, why: bool) -> tuple[FusedPool, list[NodeWithScore]]:
        """Ask the arms, fuse their answers and read the nodes, all in one state of what the arms read."""
        with one_look(self._retrievers):
            plan = plan_queries(queries, self._retrievers)
            asked = plan.arm_queries(self.variants)
            answers = ask_arms(asked, self.candidate_pool, self.arm_timeout)
            return self._found(plan, asked, answers, why=why)

    def _answer(self, queries: list[QueryBundle], *, why: bool = False) -> FusedAnswer:
        pool, found = self._search(queries, why=why)
        steps: dict[str, list[Step]] = {}
        for postprocessor in self.node_postprocessors:
            before = scores_of(found)
            given = postprocessor.postprocess_nodes(found, query_bundle=queries[0])
            found = noted(steps, postprocessor.class_name(), before, given)
        return FusedAnswer(self._cut(found), pool, steps)

    async def _aanswer(self, queries: list[QueryBundle], *, why: bool = False) -> FusedAnswer:
        if all(map(gives_ids, self._retrievers)):  # all of them compute
            pool, found = await asyncio.to_thread(self._search, queries, why=why)
        else:
            pool, found = await self._asearch(queries, why=why)
        steps: dict[str, list[Step]] = {}
        for postprocessor in self.node_postprocessors:
            before = scores_of(found)
            given = await postprocessor.apostprocess_nodes(found, query_bundle=queries[0])
            found = noted(steps, postprocessor.class_name(), before, given)
        nodes = await asyncio.to_thread(self._cut, found) if self.expand else self._cut(found)
        return FusedAnswer(nodes, pool, steps)

    async def _asearch(self, queries: list[QueryBundle], *, why: bool) -> tuple[FusedPool, list[NodeWithScore]]:
        if asks_to_plan(queries[0], self._retrievers):
            plan = await asyncio.to_thread(plan_queries, queries, self._retrievers)
        else:
            plan = Plan(queries, self._retrievers)
        asked = plan.arm_queries(self.variants)
        answers = await ask_arms_async(asked, self.candidate_pool, self.arm_timeout)
        return await asyncio.to_thread(self._found, plan, asked, answers, why=why)

    def _found(
        self, plan: Plan, asked: list[ArmQuery], answers: list[ArmAnswer], *, why: bool
    ) -> tuple[FusedPool, list[NodeWithScore]]:
        """Fuse the answers and read the nodes that are needed; ``why`` notes where scores come from."""
        with step("fusion", mode=Mode(self.mode).value, rankings=len(asked)) as facts:
            pool = self._pool(plan, asked, answers, why=why)
            facts["candidates"] = len(pool.fused)
        return pool, self._load(pool)

    def _pool(self, plan: Plan, asked: list[ArmQuery], answers: list[ArmAnswer], *, why: bool) -> FusedPool:
        strict = self.on_arm_failure == "raise"
        notes = report_failures(asked, answers, self._names, timeout=self.arm_timeout, strict=strict)
        if (admitted := plan.admitted) is not None:  # for arms that do not evaluate operators
            answers = [a if isinstance(a, Exception) else [c for c in a if c.node_id in admitted] for a in answers]
        rankings = rank_answers(asked, answers, self._names, self._retriever_weights, self.candidate_pool)
        answered = {one.arm for one in rankings}
        arms = {name: arm for name, arm in zip(self._names, plan.arms, strict=True) if name in answered}
        fused = self._fused(plan.queries[0].query_str, arms, rankings, why=why)
        query, keyword = plan.queries[0].query_str, keyword_arm(arms.values())
        cosines, local = _cosines(arms, rankings)
        best = fused[0].node_id if fused else ""
        evidence = evidence_of(query, best, cosines, keyword, local=local, subject=self.subject)
        likely, measured = relevance(evidence), evidence.measured and not plan.narrowed
        least = least_relevance(self.min_score, measured=measured)
        # Scores of some modes are below 0: where nothing is asked of them they stay.
        whole = likely is None or not least or (self.min_score == AUTO and likely >= least)
        kept = [one for one in fused if whole or (likely or 0.0) * one.score >= least]
        notes += tuple(self._left_out(fused[len(kept) :], likely, least)) if why else ()
        notes += ("no chunk passes the filters",) if why and not fused and plan.filters_vectors else ()
        given = {c.node_id: c.node for a in answers if not isinstance(a, Exception) for c in a if c.node is not None}
        said, unknown = (*plan.notes, *notes), str(keyword.unknown(query)) if why and keyword is not None else ""
        shown = tuple(plan.queries), tuple(kept), given, said, plan.operators
        return FusedPool(*shown, likely, measured, evidence, unknown)

    def _left_out(self, fused: Sequence[Fused], likely: float | None, least: float) -> Iterator[str]:
        """Count the hits that are less relevant than they have to be, and name the best of them."""
        if fused:
            node = self._nodes([fused[0].node_id]).get(fused[0].node_id)
            place = "" if node is None else f", {citation_of(node.metadata) or node.node_id},"
            said = f"has a relevance of {(likely or 0.0) * fused[0].score:.3f}, below min_score={least:g}"
            yield f"left out {counted(len(fused), 'hit')}: the best{place} {said}"

    def _fused(
        self, query: str, arms: Mapping[str, BaseRetriever], rankings: list[Ranking], *, why: bool
    ) -> list[Fused]:
        boost = self.agreement_boost
        if (mode := Mode(self.mode)) is not Mode.LEARNED:
            return fuse(rankings, mode=mode, k=self.rrf_k, pool=self.candidate_pool, agreement_boost=boost)
        words: Words | None = None
        if (keyword := keyword_arm(arms.values())) is not None:
            ids = list(dict.fromkeys(one.node_id for ranking in rankings for one in ranking.candidates))
            name = next(name for name, arm in arms.items() if arm is keyword)
            words = words_of(query, name, keyword, ids, self.today)
        kinds = {name: is_keyword(arm) for name, arm in arms.items()}
        return fuse_learned(rankings, kinds, words, agreement_boost=boost, why=why)

    def _load(self, pool: FusedPool) -> list[NodeWithScore]:
        """Read nodes of the pool: all where postprocessors want to see them, else as many as are returned.

        Where a node vanished since the arms answered, the next one moves up.
        """
        cut = None if self.node_postprocessors else self.similarity_top_k
        scale = 1.0 if pool.relevance is None or Mode(self.mode) is not Mode.LEARNED else pool.relevance
        nodes: dict[str, BaseNode] = dict(pool.given)
        found: list[NodeWithScore] = []
        wanted = list(pool.fused)
        while wanted and (cut is None or len(found) < cut):
            size = len(wanted) if cut is None else cut - len(found)
            batch, wanted = wanted[:size], wanted[size:]
            nodes.update(self._nodes(one.node_id for one in batch if one.node_id not in nodes))
            held = ((nodes[one.node_id], scale * one.score) for one in batch if one.node_id in nodes)
            found += [NodeWithScore(node=node, score=score) for node, score in held]
        return found

    def _nodes(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Read nodes by id from the arms; keyword arms come first, because they have nodes in memory."""
        able = [arm for arm in self._retrievers if gives_ids(arm)]
        missing, nodes = list(node_ids), dict[str, BaseNode]()
        for arm in sorted(able, key=lambda arm: not is_keyword(arm)):
            if missing:
                nodes.update(arm.nodes(missing))
                missing = [node_id for node_id in missing if node_id not in nodes]
        return nodes

    def _cut(self, found: list[NodeWithScore]) -> list[NodeWithScore]:
        best = found[: self.similarity_top_k]
        return expand_hits(best, self.expand, self._nodes) if self.expand else best

    def _explanation(self, answer: FusedAnswer) -> Explanation:
        pool, queries = answer.pool, tuple(query.query_str for query in answer.pool.queries)
        keyword = next((cast("Any", arm) for arm in self._retrievers if hasattr(arm, "evidence")), None)
        ids = [one.node.node_id for one in answer.nodes]
        terms = keyword.evidence(" ".join(queries), ids) if keyword is not None else {}
        arms = zip(self._names, self._retrievers, strict=True)
        vectors = {name for name, arm in arms if not is_keyword(arm)}
        fused = {one.node_id: one for one in pool.fused}
        hits = hits_of(answer.nodes, fused, answer.steps, terms, vectors, pool.relevance)
        judged = pool.relevance, pool.measured, pool.evidence, pool.unknown
        size = len(pool.fused)
        return Explanation(
            queries, self.arms, self.mode.value, self.rrf_k, hits, size, pool.warnings, pool.operators, *judged
        )


def _cosines(arms: Mapping[str, BaseRetriever], rankings: Sequence[Ranking]) -> tuple[dict[str, float], bool]:
    """Return what the first vector arm gave for the question, by id, and whether it has the local model's cosines."""
    vectors = ((name, arm) for name, arm in arms.items() if isinstance(arm, ContextualVectorRetriever))
    name, arm = next(vectors, ("", None))
    answers = (one.candidates for one in rankings if one.query == 0 and one.arm == name)
    found = {one.node_id: one.score for candidates in answers for one in candidates if one.score is not None}
    return found, arm is not None and arm.gives_local_cosines
