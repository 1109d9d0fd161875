"""Ask several retrievers at once, fuse their answers by weight, and explain the result."""

from __future__ import annotations

import asyncio
import copy
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from llama_index.core import Settings
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms.utils import resolve_llm
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES, QUERY_GEN_PROMPT
from llama_index.core.schema import BaseNode, IndexNode, NodeWithScore, QueryBundle

from llama_index_contextual.checks import amount, whole
from llama_index_contextual.errors import ContextualWarning, SettingError
from llama_index_contextual.keyword.filters import check_filters
from llama_index_contextual.keyword.query import parse_query
from llama_index_contextual.retrievers.arms import (
    ArmAnswer,
    ArmQuery,
    arm_names,
    arm_weights,
    ask_arms,
    ask_arms_async,
    is_keyword,
    own_copy,
    rank_answers,
    report_failures,
)
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.explain import Explanation, Step, hits_of
from llama_index_contextual.retrievers.fusion import Fused, Mode, Ranking, fuse
from llama_index_contextual.retrievers.learned import Words, fuse_learned
from llama_index_contextual.retrievers.neighbours import Reach, expand_hits
from llama_index_contextual.retrievers.relevance import nearness_in, relevance
from llama_index_contextual.retrievers.search import CandidateRetriever
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever
from llama_index_contextual.watching import step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.llms import LLM
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.vector_stores.types import MetadataFilters

RRF_K: Final = 20.0
POOL: Final = 100  # candidates per arm, whatever the top-k, so that a top 5 is a prefix of a top 20


@dataclass(frozen=True, slots=True)
class FusedPool:
    """Hold what the arms proposed, fused: everything before postprocessors and the cut.

    Args:
        queries: The original, then its variants.
        fused: Best first.
        given: Nodes that arms handed over with their answer.
        warnings: What was degraded or ignored.
        operators: Operators of the query that the answer obeys.
    """

    queries: tuple[QueryBundle, ...]
    fused: tuple[Fused, ...]
    given: dict[str, BaseNode]
    warnings: tuple[str, ...]
    operators: tuple[str, ...]


class _Plan(NamedTuple):
    """Say how a query with operators is answered.

    Args:
        queries: Without operators.
        arms: Those that evaluate the operators by themselves return nothing else.
        operators: As they were written.
        admitted: Ids of the nodes that satisfy the operators; None for all.
        notes: What was ignored.
    """

    queries: list[QueryBundle]
    arms: list[BaseRetriever]
    operators: tuple[str, ...] = ()
    admitted: frozenset[str] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FusedAnswer:
    """Hold the nodes that are returned, the pool that they come from, and what postprocessors did to scores, by id."""

    nodes: list[NodeWithScore]
    pool: FusedPool
    steps: dict[str, list[Step]]


class ContextualFusionRetriever(QueryFusionRetriever):
    """Retrieve with several retrievers, the arms, and fuse what they find by weight.

    Each arm proposes a pool of fixed size, whatever ``similarity_top_k`` is, so the top 5 is a prefix of the top 20.
    Ties break by node id; a node counts once by its id; a zero or missing score earns nothing. Scores are the fused
    scores normalised over the pool: the best has 1, and each is greater than 0 (by ranks and learned). Postprocessors
    such as a recency decay act on them before the cut. Scores rank hits and do not measure relevance, which
    :meth:`explain` gives beside the cosine and the matched terms, and which ``min_score`` cuts by.

    Where one of the arms is a :class:`ContextualBM25Retriever`, the whole answer obeys a query's operators:
    ``"exact phrase"``, ``-not``, ``path:`` and ``tag:``, as :mod:`llama_index_contextual.keyword.query` reads them.

    Args:
        retrievers: The arms. Ours answer with ids and read only the nodes that are returned; others with their own
            ``similarity_top_k``.
        retriever_weights: One an arm, in any scale. Default: keyword arms share .6, the others .4 (measured on three
            sets); equal weights if there is one kind only.
        mode: ``"learned"``: a model of four numbers, trained on questions with known answers. It compares scores, and
            looks at how much of the question is found and how near its words stand to each other; weights only divide
            between arms of one kind. ``"reciprocal_rerank"``, ``"relative_score"``, ``"dist_based_score"``,
            ``"simple"``: as LlamaIndex names them; weights count. Default: learned where a
            :class:`ContextualBM25Retriever` and an arm of another kind are fused and neither weights nor ``rrf_k`` are
            given, else reciprocal ranks, which fit arms of any kind.
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
        min_score: Hits less relevant than this are dropped, before postprocessors: 0 to 1, as ``explain()`` shows it.
            Hits of unknown relevance stay. 0.05 drops most of what has nothing to do with a query, 0.1 nearly all.
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
        count_unscored: bool = False,
        expand: Reach = 0,
        min_score: float = 0.0,
        llm: LLM | str | None = None,
        query_gen_prompt: str | None = None,
        use_async: bool = True,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        verbose: bool = False,
    ) -> None:
        arms = checked_arms(retrievers)
        check_choice("variants", variants, ("keyword", "all"))
        check_choice("on_arm_failure", on_arm_failure, ("warn", "raise"))
        mode = mode or default_mode(arms, retriever_weights, rrf_k)
        check_choice("mode", mode, tuple(one.value for one in Mode))
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
        self.mode = cast("Any", Mode.LEARNED if mode == Mode.LEARNED else FUSION_MODES(mode))
        self.rrf_k = amount("rrf_k", RRF_K if rrf_k is None else rrf_k, zero=True)
        self.similarity_top_k, self.candidate_pool = checked_sizes(similarity_top_k, candidate_pool)
        self.num_queries = whole("num_queries", num_queries)  # the original query is one
        self.variants = variants
        self.agreement_boost = amount("agreement_boost", agreement_boost)
        self.node_postprocessors = list(node_postprocessors)
        self.arm_timeout = arm_timeout
        self.on_arm_failure = on_arm_failure
        self.count_unscored = count_unscored
        self.expand = checked_reach(expand)
        self.min_score = amount("min_score", min_score, zero=True, most=1)
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
        return self._answer(self._bundles(query_bundle)).nodes

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return (await self._aanswer(await self._abundles(query_bundle))).nodes

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
        return self._explanation(self._answer(self._bundles(bundles[0]) if len(bundles) == 1 else bundles))

    async def aexplain(self, *queries: str | QueryBundle) -> Explanation:
        """Do the same as :meth:`explain` without blocking the event loop."""
        bundles = as_bundles(queries)
        found = await self._aanswer(await self._abundles(bundles[0]) if len(bundles) == 1 else bundles)
        return await asyncio.to_thread(self._explanation, found)

    # How they are made

    def _bundles(self, query: QueryBundle) -> list[QueryBundle]:
        return [query, *(self._get_queries(query.query_str) if self.num_queries > 1 else [])]

    async def _abundles(self, query: QueryBundle) -> list[QueryBundle]:
        return [query, *(await self._aget_queries(query.query_str) if self.num_queries > 1 else [])]

    def _answer(self, queries: list[QueryBundle]) -> FusedAnswer:
        plan = self._plan(queries)
        asked = self._arm_queries(plan)
        pool = self._fused(plan, asked, ask_arms(asked, self.candidate_pool, self.arm_timeout))
        found = self._load(pool)
        steps: dict[str, list[Step]] = {}
        for postprocessor in self.node_postprocessors:
            before = scores_of(found)
            found = in_order(postprocessor.postprocess_nodes(found, query_bundle=queries[0]))
            note_steps(steps, postprocessor, before, found)
        return FusedAnswer(self._cut(found), pool, steps)

    async def _aanswer(self, queries: list[QueryBundle]) -> FusedAnswer:
        plan = await asyncio.to_thread(self._plan, queries)
        asked = self._arm_queries(plan)
        answers = await ask_arms_async(asked, self.candidate_pool, self.arm_timeout)
        pool = await asyncio.to_thread(self._fused, plan, asked, answers)
        found = await asyncio.to_thread(self._load, pool)
        steps: dict[str, list[Step]] = {}
        for postprocessor in self.node_postprocessors:
            before = scores_of(found)
            found = in_order(await postprocessor.apostprocess_nodes(found, query_bundle=queries[0]))
            note_steps(steps, postprocessor, before, found)
        return FusedAnswer(await asyncio.to_thread(self._cut, found), pool, steps)

    def _plan(self, queries: list[QueryBundle]) -> _Plan:
        """Read the operators of the original query; ignore them where no node satisfies them."""
        keyword = next((arm for arm in self._retrievers if isinstance(arm, ContextualBM25Retriever)), None)
        parsed = keyword and parse_query(queries[0].query_str, keyword.analyzer)
        if keyword is None or not parsed or not parsed.operators:
            return _Plan(queries, self._retrievers)
        admitted = frozenset(keyword.selected_ids(parsed.filters))
        if not admitted:
            note = f"nothing matches {' '.join(parsed.operators)}, which was therefore ignored"
            warnings.warn(f"Query {queries[0].query_str!r}: {note}.", ContextualWarning, stacklevel=2)
            return _Plan(queries, self._retrievers, notes=(note,))
        arms = [
            cast("Any", arm).with_filters(parsed.filters) if getattr(arm, "filters_words", False) else arm
            for arm in self._retrievers
        ]
        original = own_copy(queries[0])
        original.query_str = parsed.text
        return _Plan([original, *queries[1:]], arms, parsed.operators, admitted)

    def _arm_queries(self, plan: _Plan) -> list[ArmQuery]:
        """Return every query for every arm that gets it."""
        return [
            ArmQuery(number, position, arm, own_copy(query))
            for position, query in enumerate(plan.queries)
            for number, arm in enumerate(plan.arms)
            if position == 0 or self.variants == "all" or is_keyword(arm)
        ]

    def _fused(self, plan: _Plan, asked: list[ArmQuery], answers: list[ArmAnswer]) -> FusedPool:
        with step("fusion", mode=str(Mode(self.mode).value), rankings=len(asked)) as facts:
            pool = self._pool(plan, asked, answers)
            facts["candidates"] = len(pool.fused)
        return pool

    def _pool(self, plan: _Plan, asked: list[ArmQuery], answers: list[ArmAnswer]) -> FusedPool:
        notes = report_failures(
            asked, answers, self._names, timeout=self.arm_timeout, strict=self.on_arm_failure == "raise"
        )
        if (admitted := plan.admitted) is not None:  # for arms that do not evaluate operators
            answers = [
                answer if isinstance(answer, Exception) else [one for one in answer if one.node_id in admitted]
                for answer in answers
            ]
        rankings = rank_answers(asked, answers, self._names, self._retriever_weights, self.candidate_pool)
        mode = Mode(self.mode)
        if mode is Mode.LEARNED:
            fused = self._learned(plan, rankings)
        else:
            fused = fuse(
                rankings,
                mode=mode,
                k=self.rrf_k,
                pool=self.candidate_pool,
                agreement_boost=self.agreement_boost,
                count_unscored=self.count_unscored,
            )
        if self.min_score:
            fused = [
                one
                for one in self._with_relevance(plan.queries[0], fused, fused)
                if one.relevance is None or one.relevance >= self.min_score
            ]
        given = {c.node_id: c.node for a in answers if not isinstance(a, Exception) for c in a if c.node is not None}
        return FusedPool(tuple(plan.queries), tuple(fused), given, (*plan.notes, *notes), plan.operators)

    def _learned(self, plan: _Plan, rankings: list[Ranking]) -> list[Fused]:
        """Fuse by the model; the first keyword arm of ours that answered tells how near words stand to each other."""
        arms = dict(zip(self._names, plan.arms, strict=True))
        answered = {one.arm for one in rankings}
        ours = (n for n, arm in arms.items() if n in answered and isinstance(arm, ContextualBM25Retriever))
        words: Words | None = None
        if name := next(ours, None):
            ids = sorted({one.node_id for ranking in rankings for one in ranking.candidates})
            found = cast("ContextualBM25Retriever", arms[name]).nearness(plan.queries[0].query_str, ids)
            words = Words(name, found.weight, dict(zip(ids, found.shares.tolist(), strict=True)))
        kinds = {name: is_keyword(arm) for name, arm in arms.items()}
        return fuse_learned(rankings, kinds, words, agreement_boost=self.agreement_boost)

    def _with_relevance(self, query: QueryBundle, hits: Sequence[Fused], pool: Sequence[Fused]) -> list[Fused]:
        """Return hits of a pool with their relevance; a mode's own relevance stays."""
        unknown = [one.node_id for one in hits if one.relevance is None]
        keyword = next((arm for arm in self._retrievers if isinstance(arm, ContextualBM25Retriever)), None)
        shares = keyword.term_scores(query.query_str, unknown).shares() if keyword and unknown else None
        words = dict(zip(unknown, shares or [], strict=False))
        arms = zip(self._names, self._retrievers, strict=True)
        near = nearness_in(pool, {name for name, arm in arms if isinstance(arm, ContextualVectorRetriever)})
        return [
            one
            if one.relevance is not None
            else one._replace(relevance=relevance(near.get(one.node_id), words.get(one.node_id)))
            for one in hits
        ]

    def _load(self, pool: FusedPool) -> list[NodeWithScore]:
        """Read nodes of the pool: all where postprocessors want to see them, else as many as are returned.

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
        """Read nodes by id from the arms; keyword arms come first, because they have nodes in memory."""
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

    def _explanation(self, answer: FusedAnswer) -> Explanation:
        queries = tuple(query.query_str for query in answer.pool.queries)
        keyword = next((cast("Any", arm) for arm in self._retrievers if hasattr(arm, "evidence")), None)
        ids = [one.node.node_id for one in answer.nodes]
        terms = keyword.evidence(" ".join(queries), ids) if keyword else {}
        arms = zip(self._names, self._retrievers, strict=True)
        vectors = {name for name, arm in arms if not is_keyword(arm)}
        returned = [one for one in answer.pool.fused if one.node_id in set(ids)]
        fused = {one.node_id: one for one in self._with_relevance(answer.pool.queries[0], returned, answer.pool.fused)}
        hits = hits_of(answer.nodes, fused, answer.steps, terms, vectors)
        pool = answer.pool
        return Explanation(
            queries, self.arms, self.mode.value, self.rrf_k, hits, len(pool.fused), pool.warnings, pool.operators
        )


def as_bundles(queries: Sequence[str | QueryBundle]) -> list[QueryBundle]:
    """Return the bundles of distinct queries, in order."""
    bundles = [query if isinstance(query, QueryBundle) else QueryBundle(query) for query in queries]
    unique = {bundle.query_str: bundle for bundle in reversed(bundles)}
    return [unique.pop(bundle.query_str) for bundle in bundles if bundle.query_str in unique]


def scores_of(found: Sequence[NodeWithScore]) -> dict[str, float]:
    """Return scores by node id, 0 for a missing score."""
    return {one.node.node_id: one.score or 0.0 for one in found}


def in_order(found: Sequence[NodeWithScore]) -> list[NodeWithScore]:
    """Return nodes best first; the order of a postprocessor that gives no scores is kept."""
    if any(one.score is None for one in found):
        return list(found)
    return sorted(found, key=lambda one: -(one.score or 0.0))


def note_steps(
    steps: dict[str, list[Step]],
    postprocessor: BaseNodePostprocessor,
    before: dict[str, float],
    found: Sequence[NodeWithScore],
) -> None:
    """Write down what a postprocessor did to each score."""
    for one in found:
        old = before.get(one.node.node_id, 0.0)
        steps.setdefault(one.node.node_id, []).append(Step(postprocessor.class_name(), old, one.score or 0.0))


def default_mode(arms: Sequence[BaseRetriever], weights: object, k: object) -> Mode:
    """Return the mode for arms: learned for those that the model was trained on, else by ranks."""
    kinds = {is_keyword(arm) for arm in arms}
    ours = any(isinstance(arm, ContextualBM25Retriever) for arm in arms)
    return Mode.LEARNED if ours and len(kinds) > 1 and weights is None and k is None else Mode.RECIPROCAL_RANK


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


def checked_sizes(top_k: object, pool: object) -> tuple[int, int]:
    """Return how many nodes are returned, and how many candidates each arm proposes.

    Raises:
        SettingError: They cannot work, by themselves or together.
    """
    returned, proposed = whole("similarity_top_k", top_k), whole("candidate_pool", pool)
    if proposed < returned:
        raise SettingError(
            f"similarity_top_k={top_k}, candidate_pool={pool}. Cure: 1 <= similarity_top_k <= candidate_pool."
        )
    return returned, proposed


def checked_reach(expand: object) -> Reach:
    """Return how much surrounds a hit; raise a SettingError for anything but a number or "section"."""
    if expand == "section":
        return "section"
    try:
        return whole("expand", expand, least=0)
    except SettingError:
        raise SettingError(
            f"expand={expand!r} cannot work. Cure: a number of chunks, 0 for none, or 'section'."
        ) from None


def check_timeout(arm_timeout: object) -> None:
    """Raise a SettingError for a time limit that is not a number of seconds above 0."""
    try:
        amount("arm_timeout", 1.0 if arm_timeout is None else arm_timeout)
    except SettingError:
        raise SettingError(
            f"arm_timeout={arm_timeout!r} cannot work. Cure: seconds, above 0, or None to wait."
        ) from None


def check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raise a SettingError for a value that is not allowed."""
    if value not in allowed:
        raise SettingError(f"{name}={value!r}. Cure: one of {', '.join(map(repr, allowed))}.")
