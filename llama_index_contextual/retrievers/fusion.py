"""The retriever that fuses the results of other retrievers.

It answers a question in these steps: apply its operators, ask the retrievers, fuse their answers,
judge the best hit, leave out irrelevant hits, load the nodes, and explain the hits.
"""

from __future__ import annotations

import asyncio
import copy
import warnings
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llama_index.core import Settings
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms.utils import resolve_llm
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import PromptTemplate
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES, QUERY_GEN_PROMPT
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle

from llama_index_contextual.retrievers import asking, rankings, relevance
from llama_index_contextual.retrievers.asking import Question, Request
from llama_index_contextual.retrievers.base import PoolRetriever
from llama_index_contextual.retrievers.explanation import Explanation, Hit
from llama_index_contextual.retrievers.features import FEATURES, checked_features
from llama_index_contextual.retrievers.filters import check_filters
from llama_index_contextual.retrievers.query import parse_query
from llama_index_contextual.retrievers.rankings import MODES, Mode, ScoreTable, fuse_learned
from llama_index_contextual.retrievers.relevance import AUTO, MinScore
from llama_index_contextual.retrievers.sessions import fuse_sessions, sentences_of
from llama_index_contextual.utils.errors import ContextualWarning, amount, objects_of, one_of, whole
from llama_index_contextual.utils.tracing import traced

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.llms import LLM
    from llama_index.core.prompts.mixin import PromptDictType
    from llama_index.core.vector_stores.types import MetadataFilters
    from typing_extensions import Self

    from llama_index_contextual.retrievers.asking import Answers, WeightedRetriever
    from llama_index_contextual.retrievers.chunk_info import Chunks
    from llama_index_contextual.retrievers.features import Feature
    from llama_index_contextual.retrievers.rankings import KeywordData

RRF_K = 20.0
# The number of candidates of each retriever does not depend on the top-k, so that a top 5 is a
# prefix of a top 20.
POOL = 100
_BEHIND = (
    "The keyword retriever lacks nodes that another retriever returned, so they rank low. "
    "Pass new nodes to ContextualBM25Retriever.add()."
)


class ContextualFusionRetriever(BaseRetriever):
    """Retrieve with several retrievers and fuse their results by weight.

    Each retriever proposes a fixed number of candidates, whatever ``similarity_top_k`` is, so the
    first 5 hits are the same whether you ask for 5 or for 20. Ties are broken by node id. If a
    retriever returns no scores, its order is used. A score of 0 from a keyword retriever means that
    nothing matches.

    Scores are shares of the best fused score. Learned fusion multiplies them by the relevance of
    the best hit: the estimated probability, 0 to 1, that it answers the question. :meth:`explain`
    returns the relevance of each hit in every mode. Postprocessors, such as a recency decay, change
    the scores of the whole pool before it is cut to ``similarity_top_k``.

    If a :class:`ContextualBM25Retriever` is among the retrievers, queries can contain the operators
    ``"a phrase"``, ``path:`` and ``tag:``. All hits then satisfy them.

    Args:
        retrievers: The retrievers. Those of this package answer with ids, so that only the returned
            nodes are loaded. All others answer with their own ``similarity_top_k``.
        retriever_weights: The weight of each retriever, in any scale. Default: keyword retrievers
            share 0.6 and all others share 0.4. If there is only one kind, the weights are equal.
        mode: How to fuse. ``"learned"`` is a weighted sum of features, trained on questions with
            known answers. ``retriever_weights`` then only apply among retrievers of the same kind.
            ``"message"`` is the same for messages to an assistant. It ranks whole sessions and
            prefers newer ones. ``"reciprocal_rerank"``, ``"relative_score"``,
            ``"dist_based_score"`` and ``"simple"`` are LlamaIndex's modes, with weights. Default:
            learned if a :class:`ContextualBM25Retriever` and a retriever of another kind are fused
            and neither weights nor ``rrf_k`` are set, else reciprocal ranks, which fit retrievers
            of any kind.
        filters: Metadata filters for the returned nodes, for all retrievers.
        rrf_k: The constant of reciprocal ranks. Small values favour the top ranks. Default: 20.
            The original paper uses 60.
        similarity_top_k: The largest number of nodes to return.
        candidate_pool: The number of candidates of each retriever, at least ``similarity_top_k``.
        num_queries: If above 1, a language model writes ``num_queries - 1`` variants of the query
            for the keyword retrievers. At 1, no language model is used.
        node_postprocessors: Postprocessors for the whole pool, before it is cut.
        min_score: The lowest relevance of a hit, 0 to 1, as :meth:`explain` shows it. Hits below it
            are left out before postprocessors. Hits of unknown relevance stay. Default: 0, which
            leaves out none, because a query engine needs the best available nodes. ``"auto"``
            abstains like the command line and MCP if relevance is calibrated: with a
            :class:`ContextualBM25Retriever` and the vectors of all-MiniLM-L6-v2 or multilingual-e5,
            and without filters or operators.
        features: The features that learned fusion adds up. Add your own with
            ``(*FEATURES, MyFeature())``. ``FEATURES`` is in
            ``llama_index_contextual.retrievers.features``.
        llm: The language model for query variants. Default: ``Settings.llm``.
        query_gen_prompt: The prompt for query variants, with ``{num_queries}`` and ``{query}``.
        use_async: Part of LlamaIndex's interface. The retrievers run concurrently in any case.

    Raises:
        SettingError: A setting is invalid.
        RetrievalError: All retrievers failed. If only some fail, the results come from the others,
            with a ``ContextualWarning``.
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
        features: Sequence[Feature] = FEATURES,
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
            has_keywords = asking.keyword_member_of(self.members) is not None
            are_mixed = not all(member.is_keyword for member in self.members)
            is_learned = has_defaults and has_keywords and are_mixed
            mode = Mode.LEARNED if is_learned else FUSION_MODES.RECIPROCAL_RANK
        one_of("mode", mode, MODES)
        self.mode: Mode | FUSION_MODES = Mode(mode) if mode in {*Mode} else FUSION_MODES(mode)
        self.rrf_k = amount("rrf_k", RRF_K if rrf_k is None else rrf_k, zero=True)
        self.similarity_top_k = whole("similarity_top_k", similarity_top_k)
        self.candidate_pool = max(whole("candidate_pool", candidate_pool), self.similarity_top_k)
        self.num_queries = whole("num_queries", num_queries)  # the original query included
        self.node_postprocessors = objects_of(
            BaseNodePostprocessor,  # type: ignore[type-abstract]
            node_postprocessors,
            "node_postprocessors",
            "node postprocessors",
            "Pass [RecencyPostprocessor()], or another postprocessor of LlamaIndex.",
        )
        self.min_score: MinScore = AUTO
        if min_score != AUTO:
            self.min_score = amount("min_score", min_score, zero=True, most=1)
        self.features = checked_features(features)
        self.query_gen_prompt = query_gen_prompt or QUERY_GEN_PROMPT
        self._llm = llm

    @property
    def retrievers(self) -> list[BaseRetriever]:
        """Return the retrievers that are fused."""
        return [member.retriever for member in self.members]

    def with_filters(self, filters: MetadataFilters | None) -> Self:
        """Return a copy with further filters. It shares the indexes of this retriever.

        In learned fusion, filters change no score of nodes in stores of this package. For a store
        of another package, the scale of scores is that of the matching nodes.

        Raises:
            SettingError: A retriever cannot be filtered, or the filters are not LlamaIndex filters.
        """
        check_filters(filters)
        view = copy.copy(self)
        view.members = [member.with_filters(filters) for member in self.members]
        return view

    def explain(self, query: str | QueryBundle) -> Explanation:
        """Return the answer of ``retrieve`` with the reasons for each hit."""
        return self.answer(Question(queries=self._queries(query), is_explained=True))

    async def aexplain(self, query: str | QueryBundle) -> Explanation:
        """Like :meth:`explain`, but without blocking the event loop."""
        queries = await asyncio.to_thread(self._queries, query)
        return await self.aanswer(Question(queries=queries, is_explained=True))

    @traced
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        answer = self.answer(Question(queries=self._queries(query_bundle)))
        return [hit.node for hit in answer.hits]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        queries = await asyncio.to_thread(self._queries, query_bundle)
        answer = await self.aanswer(Question(queries=queries))
        return [hit.node for hit in answer.hits]

    # The steps of an answer

    def answer(self, question: Question) -> Explanation:
        """Return the answer to a question, with reasons if it asks for them."""
        explanation = self._search(question)
        if self.node_postprocessors:
            results = explanation.nodes
            for postprocessor in self.node_postprocessors:
                results = _resorted(postprocessor.postprocess_nodes(results, question.queries[0]))
            explanation = explanation.with_results(results[: self.similarity_top_k])
        return self._with_terms(explanation) if question.is_explained else explanation

    async def aanswer(self, question: Question) -> Explanation:
        """Like :meth:`answer`, but without blocking the event loop.

        If no retriever does input or output, one thread asks all. Otherwise they are awaited.
        """
        if any(member.needs_await for member in self.members):
            request = await asyncio.to_thread(self._parse, question)
            answers = await asking.aask(request)
            explanation = await asyncio.to_thread(self._rank, question, request, answers)
        else:
            explanation = await asyncio.to_thread(self._search, question)
        if self.node_postprocessors:
            results = explanation.nodes
            for postprocessor in self.node_postprocessors:
                processed = await postprocessor.apostprocess_nodes(results, question.queries[0])
                results = _resorted(processed)
            explanation = explanation.with_results(results[: self.similarity_top_k])
        if question.is_explained:
            explanation = await asyncio.to_thread(self._with_terms, explanation)
        return explanation

    def _search(self, question: Question) -> Explanation:
        """Return the hits before postprocessors, read from one consistent state of each store."""
        with ExitStack() as stack:
            for member in self.members:
                if isinstance(member.retriever, PoolRetriever):
                    stack.enter_context(member.retriever.reader.snapshot())
            request = self._parse(question)
            return self._rank(question, request, asking.ask(request))

    def _parse(self, question: Question) -> Request:
        """Return the request for the retrievers, with operators turned into filters.

        Operators that no node satisfies are ignored. The sentences of a message are further
        queries.
        """
        members = self.members
        query, *further = question.queries
        operators: tuple[str, ...] = ()
        operator_matches: Collection[str] | None = None
        notes = []

        # Turn the operators into filters, if there is a keyword retriever to check them.
        parsed = parse_query(query.query_str)
        keywords = asking.keyword_member_of(members) if parsed.operators else None
        if keywords is not None:
            query = replace(query, query_str=parsed.text)
            matching_ids = frozenset(keywords.retriever.matching_ids(parsed.filters))
            if matching_ids:
                operators = parsed.operators
                operator_matches = matching_ids
                members = [member.with_operators(parsed.filters) for member in members]
            else:
                notes = [f"ignored {' '.join(parsed.operators)}, because no node matches"]
                warnings.warn(
                    f"Query {parsed.text!r}: {notes[0]}.", ContextualWarning, stacklevel=2
                )

        if self.mode is Mode.MESSAGE:
            further += map(QueryBundle, sentences_of(query.query_str))
        is_learned = isinstance(self.mode, Mode)
        return Request(
            members=members,
            keywords=asking.keyword_member_of(members),
            text=query.query_str,
            queries=(query, *further),
            operators=operators,
            operator_matches=operator_matches,
            notes=notes,
            size=self.candidate_pool,
            min_matching=self.similarity_top_k,
            is_message=self.mode is Mode.MESSAGE,
            needs_unfiltered=is_learned and all(member.keeps_scores for member in members),
            is_filtered=any(member.has_filters for member in members),
        )

    def _rank(self, question: Question, request: Request, answers: Answers) -> Explanation:
        """Return the hits that are relevant enough, best first.

        Without postprocessors, these are at most ``similarity_top_k`` hits.
        """
        table, keyword_data = self._fuse(question, request, answers)
        judgement = relevance.judge(
            request.text, question.subject, answers.rankings, table, request.keywords, keyword_data
        )
        if request.is_filtered:
            judgement = judgement._replace(is_calibrated=False)

        # Leave out hits that are not relevant enough or have the same text as a better hit.
        best_first = table.best_first.items()
        scores = {
            node_id: score for node_id, score in best_first if node_id in answers.matching_ids
        }
        relevant, note = relevance.relevant_scores(scores, self.min_score, judgement)
        duplicates: Mapping[str, Sequence[int]] = {}
        unique_ids = list(relevant)
        if keyword_data is not None:
            unique_ids, duplicates = _without_duplicates(unique_ids, table, keyword_data.chunks)

        # Load the nodes. In learned fusion, the relevance of the best hit is a factor of scores.
        size = len(unique_ids) if self.node_postprocessors else self.similarity_top_k
        nodes = asking.load_nodes(request.members, unique_ids, answers.nodes, size)
        likelihood = judgement.relevance
        factor = 1.0
        if isinstance(self.mode, Mode) and likelihood is not None:
            factor = likelihood
        hits = []
        for rank, (node_id, node) in enumerate(nodes.items(), start=1):
            score = scores[node_id]
            hit = Hit(
                rank=rank,
                node=NodeWithScore(node=node, score=factor * score),
                fused=score,
                credits=table.credits_of(node_id) if question.is_explained else (),
                relevance=None if likelihood is None else likelihood * max(score, 0.0),
            )
            if keyword_data is not None and node_id in duplicates:
                also_at = _citations_of(duplicates[node_id], table, keyword_data.chunks)
                hit = replace(hit, also_at=also_at)
            hits.append(hit)

        notes = [*request.notes, *answers.notes, *filter(None, [note])]
        if keyword_data is not None and _is_behind(answers, table, keyword_data.chunks):
            notes.append(_BEHIND)
            warnings.warn(_BEHIND, ContextualWarning, stacklevel=2)
        if not scores and question.is_explained:
            notes += _notes_on_filters(request.members)
        return Explanation(
            queries=tuple(query.query_str for query in request.queries),
            operators=request.operators,
            retrievers={member.name: member.weight for member in request.members},
            mode=self.mode.value,
            left_out=len(scores) - len(relevant),
            warnings=tuple(notes),
            judgement=judgement,
            hits=tuple(hits),
        )

    def _fuse(
        self, question: Question, request: Request, answers: Answers
    ) -> tuple[ScoreTable, KeywordData | None]:
        """Return the fused candidates, and what the keyword index knows of them.

        The latter is None if the fusion is not learned.
        """
        if isinstance(self.mode, FUSION_MODES):
            table = rankings.fuse(
                answers.rankings, mode=self.mode, k=self.rrf_k, pool=self.candidate_pool
            )
            return table, None
        if request.is_message and request.keywords is not None:
            return fuse_sessions(
                request.text,
                answers.rankings,
                request.keywords,
                question.today,
                half_life_days=question.half_life_days,
                evergreen=question.evergreen,
            )
        return fuse_learned(
            request.text,
            question.today,
            answers.rankings,
            request.keywords,
            answers.matching_ids,
            self.features,
        )

    def _with_terms(self, explanation: Explanation) -> Explanation:
        """Return the answer with the terms of the query that each hit contains."""
        keywords = asking.keyword_member_of(self.members)
        if keywords is None:
            return explanation
        node_ids = [hit.node_id for hit in explanation.hits]
        terms = keywords.retriever.term_scores(" ".join(explanation.queries), node_ids).evidence()
        hits = zip(explanation.hits, terms, strict=True)
        return replace(
            explanation,
            hits=tuple(replace(hit, terms=tuple(terms_of_hit)) for hit, terms_of_hit in hits),
        )

    # Variants of a query

    def _queries(self, query: str | QueryBundle) -> tuple[QueryBundle, ...]:
        """Return the query, followed by the variants that a language model writes."""
        original = query if isinstance(query, QueryBundle) else QueryBundle(query)
        number = self.num_queries - 1
        if not number:
            return (original,)
        prompt = self.query_gen_prompt.format(num_queries=number, query=original.query_str)
        llm = resolve_llm(self._llm) if self._llm else Settings.llm
        lines = llm.complete(prompt).text.strip("`").split("\n")
        variants = [line.strip() for line in lines if line.strip()]
        return (original, *map(QueryBundle, variants[:number]))

    def _get_prompts(self) -> PromptDictType:
        return {"query_gen_prompt": PromptTemplate(self.query_gen_prompt)}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        prompt = prompts.get("query_gen_prompt")
        if isinstance(prompt, PromptTemplate):
            self.query_gen_prompt = prompt.template


def _resorted(results: list[NodeWithScore]) -> list[NodeWithScore]:
    """Return the results of a postprocessor by score. If any has no score, the order is kept."""
    if any(result.score is None for result in results):
        return results
    return sorted(results, key=lambda result: -(result.score or 0.0))


def _without_duplicates(
    node_ids: Sequence[str], table: ScoreTable, chunks: Chunks
) -> tuple[list[str], Mapping[str, Sequence[int]]]:
    """Return the first candidate with each text, and the rows of further ones by its id.

    Notes with the same text and different days are all kept.
    """
    unique_ids = []
    first_with: dict[tuple[int, int], str] = {}
    duplicates = defaultdict[str, list[int]](list)
    texts = list(zip(chunks.hashes.tolist(), chunks.days.tolist(), strict=True))
    for node_id in node_ids:
        row = table.row_of[node_id]
        text_hash, _ = texts[row]
        first = first_with.setdefault(texts[row], node_id) if text_hash else node_id
        if first == node_id:
            unique_ids.append(node_id)
        else:
            duplicates[first].append(row)
    return unique_ids, duplicates


def _citations_of(rows: Sequence[int], table: ScoreTable, chunks: Chunks) -> tuple[str, ...]:
    """Return the distinct citations of candidates. One without a path is cited by its id."""
    citations = [chunks.info(row).citation or table.node_ids[row] for row in rows]
    return tuple(dict.fromkeys(citations))


def _is_behind(answers: Answers, table: ScoreTable, chunks: Chunks) -> bool:
    """Return whether the keyword index lacks some nodes of a retriever, but not all of them.

    A retriever of which it has no node reads other documents.
    """
    if chunks.is_known.all():
        return False
    for ranking in answers.rankings:
        rows = [table.row_of[node_id] for node_id in ranking.node_ids]
        is_known = chunks.is_known[rows]
        if is_known.any() and not is_known.all():
            return True
    return False


def _notes_on_filters(members: Sequence[WeightedRetriever]) -> list[str]:
    """Return a note that names the filters that no chunk matches, or nothing if some chunk does.

    A vector retriever returns hits for every query, so without hits no chunk matches its filters.
    """
    filtered = [member for member in members if member.has_filters]
    keywords = asking.keyword_member_of(filtered)
    empty_filters = keywords.retriever.empty_filters() if keywords else []
    if empty_filters:
        return [f"no chunk matches the filters: none has {', '.join(empty_filters)}"]
    if all(member.is_keyword for member in filtered):
        return []
    return ["no chunk matches the filters"]
