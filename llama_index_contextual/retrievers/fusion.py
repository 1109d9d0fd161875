"""The retriever that fuses others.

Its settings, and the walk of a question: parse, ask, rank, cut, explain.
"""

from __future__ import annotations

import asyncio
import copy
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from llama_index.core import Settings
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms.utils import resolve_llm
from llama_index.core.prompts import PromptTemplate
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES, QUERY_GEN_PROMPT
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle

from llama_index_contextual.retrievers import asking
from llama_index_contextual.retrievers.base import PoolRetriever
from llama_index_contextual.retrievers.filters import check_filters
from llama_index_contextual.retrievers.question import (
    Question,
    RankingSettings,
    best_nodes,
    explain,
    parse,
    rank,
)
from llama_index_contextual.retrievers.rankings import MODES, Mode
from llama_index_contextual.retrievers.relevance import AUTO, MinScore
from llama_index_contextual.utils.errors import amount, one_of, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.llms import LLM
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.prompts.mixin import PromptDictType
    from llama_index.core.vector_stores.types import MetadataFilters
    from typing_extensions import Self

    from llama_index_contextual.retrievers.asking import Answers, WeightedRetriever
    from llama_index_contextual.retrievers.explanation import Explanation
    from llama_index_contextual.retrievers.question import RankedPool

RRF_K: Final = 20.0
POOL: Final = (
    100  # candidates of each retriever, whatever the top-k, so that a top 5 is a prefix of a top 20
)


class ContextualFusionRetriever(BaseRetriever):
    """Retrieve with several retrievers and fuse their results by weight.

    Each retriever proposes a pool of fixed size, whatever ``similarity_top_k`` is, so the top 5 is
    a prefix of the top 20. Ties break by node id; a node counts once by its id. A retriever without
    scores counts by its order, and where a keyword retriever returns 0 its node earns nothing.
    Scores are the fused scores normalized over the pool, so the best has 1. Learned fusion
    multiplies them by the relevance of the best: how likely it is that the index answers the
    question, 0 to 1. Postprocessors such as a recency decay act on scores before the cut.
    :meth:`explain` returns the relevance of each hit in every mode.

    Where one of the retrievers is a :class:`ContextualBM25Retriever`, the whole answer obeys the
    operators of a query, as :mod:`llama_index_contextual.retrievers.query` reads them.

    Args:
        retrievers: The retrievers. Those of this package answer with ids and read only the nodes
            that are returned; others answer with their own ``similarity_top_k``.
        retriever_weights: One for each retriever, in any scale. Default: keyword retrievers share
            .6 and the others .4 (measured on three sets); equal weights if there is one kind only.
        mode: ``"learned"``: a weighted sum of features, trained on questions with known answers;
            weights only divide between retrievers of one kind. ``"message"``: the same for what
            people tell an assistant; it ranks sessions and reads their age.
            ``"reciprocal_rerank"``, ``"relative_score"``, ``"dist_based_score"``, ``"simple"``: as
            LlamaIndex names them; weights count. Default: learned where a
            :class:`ContextualBM25Retriever` and a retriever of another kind are fused and neither
            weights nor ``rrf_k`` are set, else reciprocal ranks, which fit retrievers of any kind.
        filters: Nodes that may be returned, for all retrievers.
        rrf_k: The constant of reciprocal ranks: small values favour the top ranks. 60 is the
        original paper's.
        similarity_top_k: The most nodes to return.
        candidate_pool: Candidates that each retriever proposes; at least ``similarity_top_k``.
        num_queries: Above 1, a language model writes ``num_queries - 1`` variants of the query for
            the keyword retrievers, because variants widen keywords and blur vectors; at 1 no
            language model is resolved.
        node_postprocessors: Applied to the whole pool before the cut.
        min_score: Hits less relevant than this are dropped, before postprocessors: 0 to 1, as
            :meth:`explain` shows it. Hits of unknown relevance stay. Default: 0, which drops none,
            because an engine wants the best there is. ``"auto"`` abstains as the command line and
            MCP do, where relevance was measured: with the local embedding, a
            :class:`ContextualBM25Retriever`, and neither filters nor operators.
        llm: Writes query variants; default ``Settings.llm`` when it is needed.
        query_gen_prompt: Asks the language model for variants, with ``{num_queries}`` and
        ``{query}``.
        use_async: Part of LlamaIndex's interface; retrievers answer at the same time either way.

    Raises:
        SettingError: A setting cannot work.
        RetrievalError: All retrievers failed. Where some did, the others answer, with a
            ``ContextualWarning``.
    """

    def __init__(
        self,
        retrievers: Sequence[BaseRetriever],
        llm: LLM | str | None = None,
        query_gen_prompt: str | None = None,
        mode: str | None = None,
        similarity_top_k: int = 10,
        num_queries: int = 1,
        use_async: bool = True,  # noqa: ARG002
        verbose: bool = False,
        callback_manager: CallbackManager | None = None,
        objects: list[IndexNode] | None = None,
        object_map: dict[str, Any] | None = None,
        retriever_weights: Sequence[float] | None = None,
        *,
        filters: MetadataFilters | None = None,
        rrf_k: float | None = None,
        candidate_pool: int = POOL,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (),
        min_score: MinScore = 0.0,
    ) -> None:
        self.members = asking.weighted_retrievers(retrievers, retriever_weights)
        if filters is not None:
            check_filters(filters)
            self.members = [member.with_filters(filters) for member in self.members]
        objects_by_id: dict[str, Any] = {}
        for retriever in self.retrievers:
            objects_by_id |= getattr(retriever, "object_map", {})  # PGRetriever has none
        super().__init__(
            callback_manager=callback_manager,
            objects=objects,
            object_map=objects_by_id | (object_map or {}),
            verbose=verbose,
        )
        if mode is None:
            has_defaults = retriever_weights is None and rrf_k is None
            has_keywords = asking.keyword_retriever_of(self.members) is not None
            are_mixed = not all(member.is_keyword for member in self.members)
            is_learned = has_defaults and has_keywords and are_mixed
            mode = Mode.LEARNED if is_learned else FUSION_MODES.RECIPROCAL_RANK
        one_of("mode", mode, MODES)
        self.mode: Mode | FUSION_MODES = Mode(mode) if mode in {*Mode} else FUSION_MODES(mode)
        self.rrf_k = amount("rrf_k", RRF_K if rrf_k is None else rrf_k, zero=True)
        self.similarity_top_k = whole("similarity_top_k", similarity_top_k)
        self.candidate_pool = max(whole("candidate_pool", candidate_pool), self.similarity_top_k)
        self.num_queries = whole("num_queries", num_queries)  # the original query included
        self.node_postprocessors = list(node_postprocessors)
        self.min_score: MinScore = AUTO
        if min_score != AUTO:
            self.min_score = amount("min_score", min_score, zero=True, most=1)
        self.query_gen_prompt = query_gen_prompt or QUERY_GEN_PROMPT
        self._llm = llm

    @property
    def retrievers(self) -> list[BaseRetriever]:
        """Return the retrievers that are fused."""
        return [member.retriever for member in self.members]

    def with_filters(self, filters: MetadataFilters | None) -> Self:
        """Return a view that returns only nodes that match the filters; it shares every index.

        Where the retrievers read stores of this package and the fusion is learned, a filter changes
        no score. A store of another package is queried once, and the scale of its scores is that of
        the nodes that match.

        Raises:
            SettingError: A retriever cannot be filtered, or the filters are not LlamaIndex's.
        """
        check_filters(filters)
        view = copy.copy(self)
        view.members = [member.with_filters(filters) for member in self.members]
        return view

    def explain(self, query: str | QueryBundle) -> Explanation:
        """Return the answer of ``retrieve`` with the reasons for each hit."""
        return self.answer(Question(queries=self._queries(query), is_explained=True))

    async def aexplain(self, query: str | QueryBundle) -> Explanation:
        """Return what :meth:`explain` returns, without blocking the event loop."""
        queries = await self._aqueries(query)
        return await self.aanswer(Question(queries=queries, is_explained=True))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self.answer(Question(queries=self._queries(query_bundle))).nodes

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        queries = await self._aqueries(query_bundle)
        return (await self.aanswer(Question(queries=queries))).nodes

    # The walk of a question

    def answer(self, question: Question) -> Explanation:
        """Return the answer to a question, with reasons where it asks for them."""
        pool, results = self._search(question)
        for postprocessor in self.node_postprocessors:
            results = _resorted(postprocessor.postprocess_nodes(results, question.queries[0]))
        return explain(self.members, question, pool, results[: self.similarity_top_k])

    async def aanswer(self, question: Question) -> Explanation:
        """Return what :meth:`answer` returns, without blocking the event loop.

        Where all retrievers compute, a thread asks them. Otherwise each is awaited.
        """
        if any(member.is_awaited for member in self.members):
            members, question = await asyncio.to_thread(parse, self.members, question, self.mode)
            answers = await asking.aask(members, self._request(question))
            pool, results = await asyncio.to_thread(self._rank, members, question, answers)
        else:
            pool, results = await asyncio.to_thread(self._search, question)
        for postprocessor in self.node_postprocessors:
            processed = await postprocessor.apostprocess_nodes(results, question.queries[0])
            results = _resorted(processed)
        results = results[: self.similarity_top_k]
        return await asyncio.to_thread(explain, self.members, question, pool, results)

    def _search(self, question: Question) -> tuple[RankedPool, list[NodeWithScore]]:
        """Return the ranked candidates and the best nodes, all from one state of each store."""
        with ExitStack() as stack:
            for member in self.members:
                if isinstance(member.retriever, PoolRetriever):
                    stack.enter_context(member.retriever.snapshot())
            members, question = parse(self.members, question, self.mode)
            answers = asking.ask(members, self._request(question))
            return self._rank(members, question, answers)

    def _request(self, question: Question) -> asking.Request:
        return asking.Request(
            queries=question.queries,
            pool=self.candidate_pool,
            least=self.similarity_top_k,
            mode=self.mode,
            admitted=question.admitted,
        )

    def _rank(
        self, members: Sequence[WeightedRetriever], question: Question, answers: Answers
    ) -> tuple[RankedPool, list[NodeWithScore]]:
        """Return the ranked candidates, and nodes.

        All where postprocessors read them, else as many as are returned.
        """
        settings = RankingSettings(self.mode, self.rrf_k, self.candidate_pool, self.min_score)
        pool = rank(members, question, answers, settings)
        size = len(pool.scores) if self.node_postprocessors else self.similarity_top_k
        return pool, best_nodes(members, pool, answers.nodes, size)

    # Variants of a query

    def _queries(self, query: str | QueryBundle) -> tuple[QueryBundle, ...]:
        """Return a query and the variants that a language model writes."""
        original = query if isinstance(query, QueryBundle) else QueryBundle(query)
        if self.num_queries == 1:
            return (original,)
        response = self._resolve_llm().complete(self._variants_prompt(original))
        return (original, *self._variants_in(response.text))

    async def _aqueries(self, query: str | QueryBundle) -> tuple[QueryBundle, ...]:
        """Return what :meth:`_queries` returns, with the language model awaited."""
        original = query if isinstance(query, QueryBundle) else QueryBundle(query)
        if self.num_queries == 1:
            return (original,)
        response = await self._resolve_llm().acomplete(self._variants_prompt(original))
        return (original, *self._variants_in(response.text))

    def _resolve_llm(self) -> LLM:
        return resolve_llm(self._llm) if self._llm else Settings.llm

    def _variants_prompt(self, query: QueryBundle) -> str:
        return self.query_gen_prompt.format(num_queries=self.num_queries - 1, query=query.query_str)

    def _variants_in(self, text: str) -> list[QueryBundle]:
        """Return the first variants in the answer of a language model, one a line."""
        lines = [line.strip() for line in text.strip("`").split("\n") if line.strip()]
        return [QueryBundle(line) for line in lines[: self.num_queries - 1]]

    def _get_prompts(self) -> PromptDictType:
        return {"query_gen_prompt": PromptTemplate(self.query_gen_prompt)}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        prompt = prompts.get("query_gen_prompt")
        if isinstance(prompt, PromptTemplate):
            self.query_gen_prompt = prompt.template


def _resorted(results: list[NodeWithScore]) -> list[NodeWithScore]:
    """Return the results of a postprocessor by score; where one has none, their order stays."""
    if any(result.score is None for result in results):
        return results
    return sorted(results, key=lambda result: -(result.score or 0.0))
