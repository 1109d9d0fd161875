"""The retriever that fuses several others: its settings, and its methods for LlamaIndex."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

from llama_index.core import Settings
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms.utils import resolve_llm
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES, QUERY_GEN_PROMPT
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle

from llama_index_contextual.retrievers.any_store import run
from llama_index_contextual.retrievers.arms import Arm, arms_of, keyword_of
from llama_index_contextual.retrievers.explanation import AUTO, Explanation, MinScore
from llama_index_contextual.retrievers.filters import check_filters
from llama_index_contextual.retrievers.learned import MODES, Mode
from llama_index_contextual.retrievers.question import Question, answer_question
from llama_index_contextual.utils.errors import SettingError, amount, one_of, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.llms import LLM
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.vector_stores.types import MetadataFilters
    from typing_extensions import Self


RRF_K: Final = 20.0
POOL: Final = 100  # candidates per arm, whatever the top-k, so that a top 5 is a prefix of a top 20


class ContextualFusionRetriever(QueryFusionRetriever):
    """Retrieve with several retrievers, the arms, and fuse what they find by weight.

    Each arm proposes a pool of fixed size, whatever ``similarity_top_k`` is, so the top 5 is a prefix of the top 20.
    Ties break by node id; a node counts once by its id. An arm without scores counts by its order, and where a keyword
    arm says 0 its node earns nothing. Scores are the fused scores normalised over the pool, so the best has 1. Learned
    fusion multiplies them by the relevance of the best: how likely it is that the index answers the question, 0 to 1.
    Postprocessors such as a recency decay act on scores before the cut. :meth:`explain` gives the relevance of each hit
    in every mode.

    Where one of the arms is a :class:`ContextualBM25Retriever`, the whole answer obeys a query's operators:
    ``"exact phrase"``, ``path:`` and ``tag:``, as :mod:`llama_index_contextual.retrievers.query` reads them.

    Args:
        retrievers: The arms. Ours answer with ids and read only the nodes that are returned; others with their own
            ``similarity_top_k``.
        retriever_weights: One an arm, in any scale. Default: keyword arms share .6, the others .4 (measured on three
            sets); equal weights if there is one kind only.
        mode: ``"learned"``: a line of a few numbers, trained on questions with known answers. It compares scores, and
            reads how much of the question is found, how near its words stand to each other, whether a chunk is of a day
            that the question names, and whether the question is the name of a document; weights only divide between
            arms of one kind. ``"message"``: another one
            for what people tell an assistant; it ranks sessions, and reads their age
            (:mod:`llama_index_contextual.retrievers.sessions`). ``"reciprocal_rerank"``,
            ``"relative_score"``, ``"dist_based_score"``, ``"simple"``: as LlamaIndex names them; weights count.
            Default: learned where a :class:`ContextualBM25Retriever` and an arm of another kind are fused and neither
            weights nor ``rrf_k`` are set, else reciprocal ranks, which fit arms of any kind.
        rrf_k: RRF's constant: small values favour the top ranks. 60 is the original paper's.
        similarity_top_k: Nodes to return.
        candidate_pool: Candidates an arm proposes; at least ``similarity_top_k``.
        num_queries: Above 1, an LLM writes ``num_queries - 1`` variants of the query for the keyword arms, because
            variants widen keywords and blur vectors; at 1 no LLM is resolved.
        node_postprocessors: Applied to the whole pool before the cut.
        min_score: Hits less relevant than this are dropped, before postprocessors: 0 to 1, as ``explain()`` shows it.
            Hits of unknown relevance stay. Default: 0, which drops none, because an engine wants the best there is.
            ``"auto"`` abstains as the command line and MCP do, where relevance was measured: with the local embedding,
            a :class:`ContextualBM25Retriever`, and neither filters nor operators.
        llm: Writes query variants; default ``Settings.llm`` when it is needed.
        query_gen_prompt: Asks the LLM for variants, with ``{num_queries}`` and ``{query}``.
        use_async: Part of LlamaIndex's interface; arms answer at the same time either way.

    Raises:
        SettingError: A setting cannot work.
        RetrievalError: All arms failed. Where some did, the others answer, with a ``ContextualWarning``.
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
        rrf_k: float | None = None,
        candidate_pool: int = POOL,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (),
        min_score: MinScore = 0.0,
    ) -> None:
        self.arms = arms_of(retrievers, retriever_weights)
        is_trained = keyword_of(self.retrievers) is not None and not all(
            arm.is_keyword for arm in self.arms
        )
        is_learned = is_trained and retriever_weights is None and rrf_k is None
        mode = mode or (Mode.LEARNED if is_learned else FUSION_MODES.RECIPROCAL_RANK)
        one_of("mode", mode, MODES)
        # Not QueryFusionRetriever.__init__: it resolves Settings.llm even for num_queries=1, an error without a key.
        maps = [
            getattr(one, "object_map", {}) for one in self.retrievers
        ]  # PGRetriever never calls its base class
        BaseRetriever.__init__(
            self,
            callback_manager=callback_manager,
            objects=objects,
            object_map={
                key: obj
                for objects_of in (*maps, object_map or {})
                for key, obj in objects_of.items()
            },
            verbose=verbose,
        )
        self.mode: Any = Mode(mode) if mode in {*Mode} else FUSION_MODES(mode)
        self.rrf_k = amount("rrf_k", RRF_K if rrf_k is None else rrf_k, zero=True)
        self.similarity_top_k = whole("similarity_top_k", similarity_top_k)
        self.candidate_pool = max(whole("candidate_pool", candidate_pool), self.similarity_top_k)
        self.num_queries = whole("num_queries", num_queries)  # the original query is one
        self.node_postprocessors = list(node_postprocessors)
        self.min_score = (
            min_score if min_score == AUTO else amount("min_score", min_score, zero=True, most=1)
        )
        self.query_gen_prompt = query_gen_prompt or QUERY_GEN_PROMPT
        self._chosen_llm = llm

    @property
    def _llm(self) -> LLM:  # type: ignore[override]  # LlamaIndex sets an attribute, and so needs a key
        return resolve_llm(self._chosen_llm) if self._chosen_llm else Settings.llm

    @property
    def retrievers(self) -> list[BaseRetriever]:
        """The arms."""
        return [arm.retriever for arm in self.arms]

    def with_filters(self, filters: MetadataFilters | None) -> ContextualFusionRetriever:
        """A view whose arms return only what the filters admit; it shares every index.

        A filter leaves chunks out and changes no score, where the arms are ours and the fusion is learned.

        Raises:
            SettingError: An arm cannot be filtered, or the filters are not LlamaIndex's.
        """
        check_filters(filters)
        stiff = [arm.name for arm in self.arms if not hasattr(arm.retriever, "with_filters")]
        if stiff:
            raise SettingError(
                f"Arms {stiff} have no with_filters(). Cure: give them their filters when you make them."
            )
        return self.with_arms([arm.filtered(filters) for arm in self.arms])

    def with_arms(self, arms: list[Arm]) -> Self:
        """A view with other arms."""
        view = copy.copy(self)
        view.arms = arms
        return view

    # Answers

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return run(self._answer(query_bundle, on_loop=False)).nodes

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return (await self._answer(query_bundle, on_loop=True)).nodes

    def explain(self, query: str | QueryBundle) -> Explanation:
        """The answer of ``retrieve`` with the reasons for each hit."""
        return run(self._answer(query, is_explained=True, on_loop=False))

    async def aexplain(self, query: str | QueryBundle) -> Explanation:
        """The explanation of :meth:`explain`, without blocking the event loop."""
        return await self._answer(query, is_explained=True, on_loop=True)

    async def _answer(
        self, query: str | QueryBundle, *, is_explained: bool = False, on_loop: bool
    ) -> Explanation:
        """The answer to a query, and to the variants of it that an LLM writes."""
        queries = [query if isinstance(query, QueryBundle) else QueryBundle(query)]
        if self.num_queries > 1:
            text = queries[0].query_str
            queries += await self._aget_queries(text) if on_loop else self._get_queries(text)
        question = Question(queries=tuple(queries), is_explained=is_explained)
        return await answer_question(self, question, on_loop=on_loop)
