"""A search: the way of one question through parse → ask → fuse → cut."""

from __future__ import annotations

import asyncio
import warnings
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle

from llama_index_contextual.errors import ContextualWarning
from llama_index_contextual.keyword import parse_query, unknown_words_note
from llama_index_contextual.metadata import citation_of
from llama_index_contextual.retrieval.arms import (
    Arm,
    ArmAnswer,
    ask_arms,
    ask_arms_async,
    keyword_of,
    one_look,
    own_copy,
    queries_for,
    rankings_of,
    report_failures,
)
from llama_index_contextual.retrieval.explain import Explanation, Hit, Step
from llama_index_contextual.retrieval.fusion import Fused, Mode, Ranking, fuse
from llama_index_contextual.retrieval.learned import fuse_learned, trust_in, words_of
from llama_index_contextual.retrieval.messages import HALF_LIFE_DAYS, fuse_sessions, sentences_of, sessions_of
from llama_index_contextual.retrieval.neighbours import expand_hits
from llama_index_contextual.retrieval.relevance import AUTO, Evidence, evidence_of, least_relevance, relevance
from llama_index_contextual.retrieval.vector import ContextualVectorRetriever
from llama_index_contextual.text import counted
from llama_index_contextual.watching import step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from datetime import date

    from llama_index.core.postprocessor.types import BaseNodePostprocessor

    from llama_index_contextual.retrieval.bm25 import ContextualBM25Retriever
    from llama_index_contextual.retrieval.neighbours import Reach
    from llama_index_contextual.retrieval.relevance import Least

    Writer = Callable[[str], list[QueryBundle]]
    AsyncWriter = Callable[[str], Awaitable[list[QueryBundle]]]


@dataclass(slots=True, kw_only=True, eq=False)
class Search:
    """A question, how it is to be answered, and what each step has made of it.

    :meth:`run` and :meth:`arun` take the steps, once each. The settings are those of
    :class:`~llama_index_contextual.ContextualFusionRetriever` where nothing else is said.

    Args:
        queries: The original, then its variants.
        arms: Whom to ask.
        writers: Write variants of the original, in this thread or on an event loop; None adds none.
        explained: Note where scores come from and what was left out, which takes as long as the fusion.
        subject: What a relevant hit holds of the question; None for all of it.
        today: From which "last week" and the ages of a message's sessions count; None for the day it is.
        half_life_days: After so many days a message's session counts half as new.
        ageless: Globs of paths whose sessions have no age.
    """

    queries: list[QueryBundle]
    arms: list[Arm]
    mode: Mode
    rrf_k: float
    similarity_top_k: int
    candidate_pool: int
    variants: str
    node_postprocessors: Sequence[BaseNodePostprocessor]
    expand: Reach
    min_score: Least
    writers: tuple[Writer, AsyncWriter] | None = None
    explained: bool = False
    subject: str | None = None
    today: date | None = None
    half_life_days: float = HALF_LIFE_DAYS
    ageless: Sequence[str] = ()

    # What the steps make: parse …
    parsed: list[QueryBundle] = field(init=False)
    """The queries without operators."""
    obeying: list[Arm] = field(init=False)
    """The arms; those that evaluate the operators by themselves return nothing else."""
    operators: tuple[str, ...] = ()
    admitted: frozenset[str] | None = None
    """Ids of the nodes that satisfy the operators; None for all."""
    notes: list[str] = field(default_factory=list)
    """What was degraded, ignored or left out."""
    # … fuse …
    fused: list[Fused] = field(default_factory=list)
    """The pool: all that the arms proposed and that is relevant enough, best first."""
    left_out: int = 0
    """How many were not relevant enough."""
    evidence: Evidence = field(default_factory=Evidence)
    relevance: float | None = None
    measured: bool = False
    unknown: str = ""
    # … and cut.
    nodes: dict[str, BaseNode] = field(default_factory=dict)
    results: list[NodeWithScore] = field(default_factory=list)
    steps: dict[str, list[Step]] = field(default_factory=dict)
    """What postprocessors did to scores, by node id."""

    def run(self) -> Search:
        """Take all steps."""
        if self.writers is not None:
            self.queries += self.writers[0](self.queries[0].query_str)
        self._search()
        for postprocessor in self.node_postprocessors:
            before = self._scores()
            results = postprocessor.postprocess_nodes(self.results, query_bundle=self.queries[0])
            self._note(postprocessor.class_name(), before, results)
        self._cut()
        return self

    async def arun(self) -> Search:
        """Take all steps without blocking the event loop."""
        if self.writers is not None:
            self.queries += await self.writers[1](self.queries[0].query_str)
        if all(arm.ours is not None for arm in self.arms):  # all of them compute
            await asyncio.to_thread(self._search)
        else:
            await asyncio.to_thread(self._parse)
            queries = queries_for(self.obeying, self.parsed, self._reached)
            answers = await ask_arms_async(queries, self.candidate_pool)
            await asyncio.to_thread(self._fuse, answers)
        for postprocessor in self.node_postprocessors:
            before = self._scores()
            results = await postprocessor.apostprocess_nodes(self.results, query_bundle=self.queries[0])
            self._note(postprocessor.class_name(), before, results)
        await asyncio.to_thread(self._cut) if self.expand else self._cut()
        return self

    def _search(self) -> None:
        """Parse, ask, fuse and read the nodes, all in one state of what the arms read."""
        with one_look(self.arms):
            self._parse()
            queries = queries_for(self.obeying, self.parsed, self._reached)
            self._fuse(ask_arms(queries, self.candidate_pool))

    # Parse

    def _parse(self) -> None:
        """Read the operators of the original query; those that no node satisfies are ignored, and noted."""
        self.parsed, self.obeying = list(self.queries), self.arms
        keyword = keyword_of(arm.retriever for arm in self.arms)
        if keyword is None:
            return
        query = parse_query(self.queries[0].query_str, keyword.analyzer)
        if query.operators:
            admitted = frozenset(keyword.selected_ids(query.filters))
            if admitted:
                self.operators, self.admitted = query.operators, admitted
            else:
                self.notes.append(f"nothing matches {' '.join(query.operators)}, which was therefore ignored")
            self.parsed[0] = own_copy(self.queries[0], query.text)
        if self.operators:
            self.obeying = [arm.obeying(query.filters) for arm in self.arms]
        if self.mode is Mode.MESSAGE:
            self.parsed += map(QueryBundle, sentences_of(self.parsed[0].query_str))
        for note in self.notes:
            warnings.warn(f"Query {self.queries[0].query_str!r}: {note}.", ContextualWarning, stacklevel=2)

    @property
    def _reached(self) -> str:
        """Which arms get the queries after the first: those of a message are its sentences."""
        return "vector" if self.mode is Mode.MESSAGE else self.variants

    # Fuse

    def _fuse(self, answers: list[ArmAnswer]) -> None:
        """Make one pool of the answers, judge it, and read the nodes that are needed."""
        with step("fusion", mode=self.mode.value, rankings=len(answers)) as facts:
            self.notes += report_failures(answers)
            rankings = rankings_of(answers, self.candidate_pool, self.admitted)
            names = {ranking.arm for ranking in rankings}
            arms = [arm for arm in self.obeying if arm.name in names]
            keyword = keyword_of(arm.retriever for arm in arms)
            self.fused = self._fused(arms, keyword, rankings)
            self._judge(arms, keyword, rankings)
            facts["candidates"] = len(self.fused)
        self.nodes = {
            candidate.node_id: candidate.node
            for answer in answers
            for candidate in answer.candidates
            if candidate.node is not None
        }
        self._load()

    def _fused(
        self, arms: Sequence[Arm], keyword: ContextualBM25Retriever | None, rankings: Sequence[Ranking]
    ) -> list[Fused]:
        if not self.mode.is_learned:
            return fuse(rankings, mode=self.mode, k=self.rrf_k, pool=self.candidate_pool)
        query, words = self.parsed[0].query_str, None
        if keyword is not None:
            # The sentences of a message are no questions of their own: they speak for what the whole of it finds.
            whole = [ranking for ranking in rankings if self.mode is Mode.LEARNED or ranking.query == 0]
            ids = list(dict.fromkeys(candidate.node_id for ranking in whole for candidate in ranking.candidates))
            name = next(arm.name for arm in arms if arm.retriever is keyword)
            words = words_of(query, name, keyword, ids, self.today, near=self.mode is Mode.LEARNED)
        kinds = {arm.name: arm.is_keyword for arm in arms}
        models = {arm.name: model for arm in arms if (model := getattr(arm.retriever, "cosines_of", ""))}
        trust = trust_in(models, query, rankings, words)
        if self.mode is Mode.MESSAGE and keyword is not None and words is not None:
            today = self.today or datetime.now().astimezone().date()
            sessions = sessions_of(keyword, ids, today, half_life_days=self.half_life_days, ageless=self.ageless)
            # Reasons are for what is shown, and postprocessors may show any of them.
            most = (None if self.node_postprocessors else self.similarity_top_k) if self.explained else 0
            return fuse_sessions(rankings, kinds, words, sessions, trust, explained=most)
        return fuse_learned(rankings, kinds, words, trust=trust, explained=self.explained)

    def _most_likely(self, keyword: ContextualBM25Retriever | None) -> str:
        """Return the id of the hit by which an answer is judged; "" without hits.

        It is the first, or of the first three the one that holds most of the subject: "What did we decide about
        retries?" finds other decisions, too.
        """
        ids = [place.node_id for place in self.fused[:3]]
        shares = keyword.term_scores(self.subject, ids).shares() if keyword is not None and self.subject else None
        return max(zip(shares, ids, strict=True), key=lambda pair: pair[0])[1] if shares else next(iter(ids), "")

    def _judge(self, arms: Sequence[Arm], keyword: ContextualBM25Retriever | None, rankings: Sequence[Ranking]) -> None:
        """Say how likely the best of the pool answers, and leave out what is less relevant than it has to be."""
        query, best = self.parsed[0].query_str, self._most_likely(keyword)
        cosines, model = _cosines(arms, rankings)
        scores = list(_scores(arms, rankings, keyword).values())
        self.evidence = evidence_of(query, best, cosines, keyword, scores, model=model, subject=self.subject)
        self.relevance = relevance(self.evidence)
        filtered = [arm for arm in self.obeying if arm.has_filters]
        self.measured = self.evidence.measured and not self.operators and not filtered
        least = least_relevance(self.min_score, measured=self.measured)
        likely = 0.0 if self.relevance is None else self.relevance
        # Scores of some modes are below 0: where nothing is asked of them they stay.
        if least and self.relevance is not None and not (self.min_score == AUTO and likely >= least):
            pool = self.fused
            self.fused = [place for place in pool if likely * place.score >= least]
            self.left_out = len(pool) - len(self.fused)
            if self.explained and len(self.fused) < len(pool):
                self.notes.append(self._left_out(pool[len(self.fused) :], likely, least))
        if filtered and not self.fused:
            self._note_filters(keyword, has_vectors=not all(arm.is_keyword for arm in filtered))
        if self.explained:
            self.unknown = "" if keyword is None else unknown_words_note(keyword.unknown(query))

    def _note_filters(self, keyword: ContextualBM25Retriever | None, *, has_vectors: bool) -> None:
        """Say that filters admit nothing. A vector arm finds something whatever is asked, unless they admit nothing."""
        parts = keyword.filters_that_admit_none() if keyword is not None else []
        together = ": each admits some, together they admit none" if keyword is not None else ""
        note = f"no chunk passes the filters{': none has ' if parts else together}{', '.join(parts)}"
        if self.explained and (parts or has_vectors):
            self.notes.append(note)
        elif parts and keyword is not None and (keys := keyword.keys_that_no_node_has()):
            message = f"no chunk has {', '.join(map(repr, keys))}, which the filters ask for"
            warnings.warn(f"Query {self.queries[0].query_str!r}: {message}.", ContextualWarning, stacklevel=2)

    def _left_out(self, fused: Sequence[Fused], likely: float, least: float) -> str:
        """Count hits that are not relevant enough, and name the best of them."""
        node = self._read([fused[0].node_id]).get(fused[0].node_id)
        place = "" if node is None else f", {citation_of(node.metadata) or node.node_id},"
        reason = f"has a relevance of {likely * fused[0].score:.3f}, below min_score={least:g}"
        return f"left out {counted(len(fused), 'hit')}: the best{place} {reason}"

    # Cut

    def _load(self) -> None:
        """Read nodes of the pool: all where postprocessors want to see them, else as many as are returned.

        Where a node vanished since the arms answered, the next one moves up.
        """
        cut = len(self.fused) if self.node_postprocessors else self.similarity_top_k
        scale = 1.0 if self.relevance is None or not self.mode.is_learned else self.relevance
        rest = self.fused
        while rest and len(self.results) < cut:
            size = cut - len(self.results)
            batch, rest = rest[:size], rest[size:]
            self.nodes |= self._read(place.node_id for place in batch if place.node_id not in self.nodes)
            present = [place for place in batch if place.node_id in self.nodes]
            self.results += [
                NodeWithScore(node=self.nodes[place.node_id], score=scale * place.score) for place in present
            ]

    def _read(self, node_ids: Iterable[str]) -> dict[str, BaseNode]:
        """Read nodes by id from the arms; keyword arms come first, because they have nodes in memory."""
        missing, nodes = list(node_ids), dict[str, BaseNode]()
        for arm in sorted(self.arms, key=lambda arm: not arm.is_keyword):
            if missing and arm.ours is not None:
                nodes |= arm.ours.nodes(missing)
                missing = [node_id for node_id in missing if node_id not in nodes]
        return nodes

    def _scores(self) -> dict[str, float]:
        return {result.node.node_id: result.score or 0.0 for result in self.results}

    def _note(self, name: str, before: dict[str, float], results: list[NodeWithScore]) -> None:
        """Take over what a postprocessor made of the results, best first, and note what it did to each score.

        The order of a postprocessor that gives no scores stays.
        """
        for result in results:
            change = Step(name, before.get(result.node.node_id, 0.0), result.score or 0.0)
            self.steps.setdefault(result.node.node_id, []).append(change)
        scored = all(result.score is not None for result in results)
        self.results = sorted(results, key=lambda result: -(result.score or 0.0)) if scored else list(results)

    def _cut(self) -> None:
        self.results = self.results[: self.similarity_top_k]
        if self.expand:
            self.results = expand_hits(self.results, self.expand, self._read)

    def explanation(self) -> Explanation:
        """Return the results of an explained search with the reasons for each."""
        queries = tuple(query.query_str for query in self.parsed)
        keyword = keyword_of(arm.retriever for arm in self.arms)
        ids = [result.node.node_id for result in self.results]
        terms: Any = {} if keyword is None else keyword.evidence(" ".join(queries), ids)
        vectors = {arm.name for arm in self.arms if not arm.is_keyword}
        fused = {place.node_id: place for place in self.fused}
        hits = []
        for rank, result in enumerate(self.results, start=1):
            node_id = result.node.node_id
            place = fused.get(node_id)
            earned = () if place is None else place.credits
            cosines = [credit.score for credit in earned if credit.query == 0 and credit.arm in vectors]
            likely = None if self.relevance is None or place is None else self.relevance * max(place.score, 0.0)
            reasons = tuple(terms.get(node_id, ())), tuple(self.steps.get(node_id, ()))
            hits.append(Hit(rank, result, place, max(cosines, default=None), likely, *reasons))
        return Explanation(
            queries,
            {arm.name: arm.weight for arm in self.arms},
            self.mode.value,
            self.rrf_k,
            hits=tuple(hits),
            pool_size=len(self.fused),
            warnings=tuple(self.notes),
            operators=self.operators,
            relevance=self.relevance,
            measured=self.measured,
            evidence=self.evidence,
            unknown=self.unknown,
        )


def _cosines(arms: Sequence[Arm], rankings: Sequence[Ranking]) -> tuple[dict[str, float], str]:
    """Return what the first vector arm gave for the question, by id, and whose cosines these are."""
    vectors = (arm.retriever for arm in arms if isinstance(arm.retriever, ContextualVectorRetriever))
    first = next(vectors, None)
    return _scores(arms, rankings, first), "" if first is None else first.cosines_of


def _scores(arms: Sequence[Arm], rankings: Sequence[Ranking], retriever: object) -> dict[str, float]:
    """Return what the arm with a retriever gave for the question, by id, best first."""
    names = {arm.name for arm in arms if arm.retriever is retriever}
    answers = (ranking.candidates for ranking in rankings if ranking.query == 0 and ranking.arm in names)
    candidates = (candidate for answer in answers for candidate in answer)
    return {candidate.node_id: candidate.score for candidate in candidates if candidate.score is not None}
