"""Why each hit is one, as text and as data, and how likely an index answers a question at all.

A fused score ranks: something is best even where nothing answers. Relevance is a logistic model that tells questions
with known answers from keyboard mash, other languages, other subjects, and questions whose answer was taken out of the
index. Like learned fusion it is a sum in log-odds, so each summand says how much a piece of evidence speaks for an
answer. ``benchmarks/relevance.py`` trains ``relevance.json``; ``benchmarks/results/relevance.md`` has the figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from llama_index_contextual.retrievers.arms import Arm, keyword_of
from llama_index_contextual.retrievers.learned import Credit, Ranking, Table, shipped_weights
from llama_index_contextual.retrievers.query import unknown_words_note
from llama_index_contextual.retrievers.vector import E5, MINILM, ContextualVectorRetriever
from llama_index_contextual.utils.metadata import HEADER_PATH, citation_of, value_of
from llama_index_contextual.utils.text import printable_lines, readable
from llama_index_contextual.utils.tokens import is_spelled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from llama_index.core.schema import NodeWithScore

    from llama_index_contextual.retrievers.bm25_index import TermEvidence


_SNIPPET: Final = 60  # characters
_TERMS: Final = 6
AUTO: Final = "auto"
LEAST: Final = 0.05  # loses no first hit of either arm; see benchmarks/results/relevance.md
# Whose cosines were measured: their model's name in relevance.json, and what unrelated texts have at least.
_MEASURED: Final = {MINILM: ("local", 0.0), E5: ("e5", 0.7)}
_OTHER_WORDS: Final = (
    0.5  # the best hit holds less of a question's words than this: it may be in other words
)
_BY_VECTORS: Final = (
    0.3  # relevance of a question in other words at most: of those few have an answer
)
_TENTH: Final = 9
_NAMED: Final = 0.95  # relevance at least of a question that is the name of what was found

MinScore: TypeAlias = float | Literal["auto"]


def min_score_for(chosen: MinScore, *, is_calibrated: bool) -> float:
    """The relevance that a hit needs as a number.

    Args:
        chosen: The user's choice, for each hit; ``"auto"`` is ours, for a question's best hit alone: the first hit of
            an arm may stand far down in the fusion.
        is_calibrated: Whether it is known what relevance means here: with cosines of a local model, a keyword arm of
            ours, and neither filters nor operators, because who narrows a search wants what is there. Elsewhere
            ``"auto"`` leaves out nothing.
    """
    return float(chosen) if chosen != AUTO else LEAST if is_calibrated else 0.0


class Evidence(NamedTuple):
    """What speaks for an answer, of a question's best hit.

    Args:
        nearest: The highest cosine of the vector arm's answer; None without a vector arm.
        farthest: The lowest; of models that were not measured it stands for texts that have nothing in common.
        cosine: That of the best hit; the lowest where the vector arm has not found it.
        words: Share of the question's words that the best hit holds, weighted by rarity; None without a keyword arm.
        lead: By what share the best keyword score exceeds the tenth, 0 to 1; 1 where fewer chunks hold a word. The
            words of a subject are in many places, an answer stands out.
        model: Whose cosines they are: all-MiniLM-L6-v2's, multilingual-e5's, or "" for others, which were not measured.
        spelled: Whether any word of the question is in a language that the model reads.
    """

    nearest: float | None = None
    farthest: float = 0.0
    cosine: float = 0.0
    words: float | None = None
    lead: float = 0.0
    model: str = MINILM
    spelled: bool = True

    @property
    def is_calibrated(self) -> bool:
        """Whether it was measured what relevance means for such arms."""
        return self.model in _MEASURED and self.nearest is not None and self.words is not None

    def features(self) -> dict[str, float]:
        """The numbers that the model weighs; cosines are stretched from that of unrelated texts to 1."""
        _, zero = _MEASURED.get(self.model, ("", self.farthest))
        scale = max(1 - zero, 1e-6)
        return {
            "nearest": ((self.nearest or 0.0) - zero) / scale,
            "cosine": (self.cosine - zero) / scale,
            "words": self.words or 0.0,
            "lead": (self.words or 0.0) * self.lead,  # nonsense with one rare word stands out, too
        }


class Judgement(NamedTuple):
    """How likely an index answers a question.

    Args:
        relevance: 0 to 1; None where that is not known.
        is_calibrated: Whether it was measured what relevance means for such arms and such a question.
        evidence: What the relevance is computed from.
        unknown_words: A line on the words of the question that the index does not know; "" where it knows all.
    """

    relevance: float | None = None
    is_calibrated: bool = False
    evidence: Evidence | None = None
    unknown_words: str = ""


def relevance(
    evidence: Evidence, weights: Mapping[str, Mapping[str, float]] | None = None
) -> float | None:
    """The likelihood that an index answers a question, 0 to 1; None where nothing is known of it.

    A question in other words than those of the notes ("crash" for "outage") has only its vector to speak for it. So the
    model of vectors alone judges it, too, and can lift it to 0.3: it is not left out, and it is not trusted.

    Args:
        evidence: What speaks for an answer.
        weights: Of each model; default those of the package.
    """
    shipped, features = weights or shipped_weights("relevance"), evidence.features()

    def chance(model: str) -> float:
        its = shipped[model]
        odds = math.fsum(
            [its["constant"], *(its.get(key, 0.0) * value for key, value in features.items())]
        )
        return 1 / (1 + math.exp(-odds))

    vectors, _ = _MEASURED.get(evidence.model, ("other", 0.0))
    if evidence.nearest is None:
        return None if evidence.words is None else chance("words")
    if evidence.words is None:
        return chance(vectors)
    both = chance(f"{vectors} and words")
    in_other_words = evidence.spelled and evidence.words < _OTHER_WORDS
    return max(both, min(chance(vectors), _BY_VECTORS)) if in_other_words else both


def judge(
    text: str, subject: str, arms: Sequence[Arm], rankings: Sequence[Ranking], table: Table
) -> Judgement:
    """The judgement of a question by its best candidate.

    It is the first, or of the first three the one that holds most of the subject, which a relevant hit holds of the
    question: "What did we decide about retries?" finds other decisions, too.
    """
    keyword = keyword_of(arm.retriever for arm in arms)
    vector = next(
        (arm.retriever for arm in arms if isinstance(arm.retriever, ContextualVectorRetriever)),
        None,
    )
    originals = {one.arm: one for one in rankings if one.query == 0}
    answers = {id(arm.retriever): originals.get(arm.name) for arm in arms}
    matches, nearest = answers.get(id(keyword)), answers.get(id(vector))
    ids, best, words, unknown = list(table.ranked())[: 3 if subject else 1], 0, None, ""
    if keyword is not None:
        terms = keyword.term_scores(subject or text, ids)
        shares = terms.shares() or []
        unknown = unknown_words_note(text, terms) if 0 in terms.frequencies else ""
        best, words = (
            max(range(len(shares)), key=shares.__getitem__, default=0),
            max(shares, default=0.0),
        )
    scores = [] if matches is None else matches.in_ranks[1][: matches.compared].tolist()
    lead = 1 - (scores[_TENTH] if len(scores) > _TENTH else 0.0) / scores[0] if any(scores) else 0.0
    model = "" if vector is None else vector.cosines_of
    evidence = Evidence(
        words=words, lead=lead, spelled=model == E5 or is_spelled(text), model=model
    )
    if nearest is not None and nearest.candidates:
        cosines = dict(zip(*(part[: nearest.compared] for part in nearest.in_ranks), strict=True))
        low, high = float(min(cosines.values())), float(max(cosines.values()))
        cosine = float(cosines.get(ids[best], low)) if ids else low
        evidence = evidence._replace(nearest=high, farthest=low, cosine=cosine)
    likely = relevance(evidence)
    if likely is not None and ids and any(one.arm == "names" for one in table.credits_of(ids[0])):
        likely = max(likely, _NAMED)
    return Judgement(likely, evidence.is_calibrated, evidence, unknown)


# Reasons


@dataclass(frozen=True, slots=True)
class Hit:
    """One hit and its reasons.

    Args:
        rank: From 1.
        node: The node with its final score.
        fused: The fused score, which postprocessors may have changed; None where one of them brought the node.
        credits: What each arm or feature adds to the fused score.
        relevance: How likely it answers the question, 0 to 1; None where that is not known.
        terms: Query terms that it holds, with their rarity; most important first.
    """

    rank: int
    node: NodeWithScore
    fused: float | None
    credits: tuple[Credit, ...] = ()
    relevance: float | None = None
    terms: tuple[TermEvidence, ...] = ()

    @property
    def node_id(self) -> str:
        """The node's id."""
        return self.node.node.node_id

    @property
    def score(self) -> float:
        """The final score."""
        return self.node.score or 0.0

    @property
    def source(self) -> str:
        """``path#L3-L5`` or ``path#page=12`` where the metadata say so, else the node's id."""
        return citation_of(self.node.node.metadata) or self.node_id

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain = ("rank", "node_id", "source", "score", "fused", "relevance")
        return {
            **{name: getattr(self, name) for name in plain},
            "header_path": value_of(self.node.node.metadata, HEADER_PATH),
            "credits": [credit._asdict() for credit in self.credits],
            "terms": [term._asdict() for term in self.terms],
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that led to an answer.

    ``print(explanation)`` shows a line a hit, ``to_dict`` gives data.

    Args:
        queries: The original query first, then its variants.
        operators: Operators of the query that the answer obeys, such as ``path:notes/``.
        arms: Name and weight of each arm.
        mode: How the arms were fused.
        left_out: How many candidates are not relevant enough.
        warnings: What was degraded, ignored or left out: arms that failed, operators that nothing satisfies, hits that
            are less relevant than they have to be.
        judgement: How likely the index answers the question at all.
        hits: Best first.
    """

    queries: tuple[str, ...]
    operators: tuple[str, ...]
    arms: dict[str, float]
    mode: str
    left_out: int
    warnings: tuple[str, ...]
    judgement: Judgement
    hits: tuple[Hit, ...] = ()

    @property
    def relevance(self) -> float | None:
        """The relevance of the index to the question, 0 to 1; None where that is not known."""
        return self.judgement.relevance

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The warnings and the line on unknown words."""
        return tuple(filter(None, [*self.warnings, self.judgement.unknown_words]))

    @property
    def nodes(self) -> list[NodeWithScore]:
        """The answer itself, as ``retrieve`` gives it."""
        return [hit.node for hit in self.hits]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            **{name: list(getattr(self, name)) for name in ("queries", "operators", "warnings")},
            **{name: getattr(self, name) for name in ("arms", "mode", "relevance")},
            "evidence": self.judgement.evidence and self.judgement.evidence._asdict(),
            "unknown": self.judgement.unknown_words,
            "hits": [hit.to_dict() for hit in self.hits],
        }

    def __str__(self) -> str:
        arms = ", ".join(f"{name} {weight:.2f}" for name, weight in self.arms.items())
        question = " ".join((" | ".join(self.queries), *self.operators))
        heading = f"{question}   ({self.mode}; {arms})"
        lines = [heading, *map(_line_of, self.hits), *(f"! {remark}" for remark in self.remarks)]
        return printable_lines(lines)

    __repr__ = __str__  # whole nodes would fill the screen


def _line_of(hit: Hit) -> str:
    """A hit and its reasons: ranks and what each arm or feature adds, terms with their frequencies."""
    reasons = []
    for one in hit.credits:
        place = f" #{one.rank} {one.score:.3f}" if one.rank else ""
        added = f" {one.credit:+.2f}" if round(one.credit, 2) else ""
        reasons += [f"{one.arm}{place}{added}"] * bool(place or added)
    reasons += [f"{term.term} ({term.document_frequency})" for term in hit.terms[:_TERMS]]
    text = " ".join(readable(hit.node.node.get_content()).split())
    shown = text if len(text) <= _SNIPPET else text[: _SNIPPET - 1] + "…"
    relevance = "" if hit.relevance is None else f"  relevance {hit.relevance:.2f}"
    return f"{hit.rank}  {hit.score:.3f}{relevance}  {hit.source}  [{'; '.join(reasons)}]  {shown}"
