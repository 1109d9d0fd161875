"""The signals of candidates beyond their scores: what a keyword arm of ours and the metadata of chunks tell.

========== ==========================================================================================================
match      BM25 as a share of the summed rarity (idf) of the question's words: how much of the question is found
nearness   how near to each other the question's neighbouring words stand, weighted by their rarity
date       1 on a day that the question names, less over the week after it
opening    share of the question's words, by rarity, in the headings with which the chunk begins
names      1 for the best chunk of a document whose name (file, title, alias) is the question, 0.5 for a heading
========== ==========================================================================================================

They mean the same for every question, and are 0 for all candidates where there is no keyword arm of ours. A vector arm
counts for less where its model knows little of the question's language: see :func:`trust_in`.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from llama_index_contextual.keyword import closeness, find_dates, lexicon_of
from llama_index_contextual.metadata import DATE, PATH
from llama_index_contextual.retrieval.code import code_signals, is_code
from llama_index_contextual.retrieval.learned import Signals
from llama_index_contextual.retrieval.names import named_documents, opening_of
from llama_index_contextual.retrieval.vector import E5, MINILM
from llama_index_contextual.text import parse_day, tell_language
from llama_index_contextual.text.tokens import share_spelled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from llama_index_contextual.keyword import TermScores
    from llama_index_contextual.retrieval.bm25 import ContextualBM25Retriever
    from llama_index_contextual.retrieval.fusion import Fused, Ranking

_READ: Final = 50  # candidates whose texts are read, of prose
_KNOWN: Final = 0.5  # of a question's letters: with so many in words that it knows, the English model is at home
_LEAST_TRUST: Final = 0.2  # its vectors still tell apart what words do not
_E5_TRUST: Final = 0.8  # of multilingual-e5 where the words are found, beside English; where none is, one more
_FOUND: Final = 0.25  # of the question's rarity: so much is found where question and notes speak one language


def signals_of(
    query: str,
    name: str,
    arm: ContextualBM25Retriever,
    node_ids: Sequence[str],
    today: date | None = None,
    *,
    is_message: bool = False,
) -> Signals:
    """Return the signals of some candidates.

    Args:
        query: The question.
        name: The arm's.
        arm: The keyword arm.
        node_ids: The candidates.
        today: From which "last week" counts; default the present day.
        is_message: Whether nearness and names are left out: nearness takes long for a long text.
    """
    near_ids = [] if is_message else list(node_ids)
    nearness = arm.nearness(query, near_ids)
    dates = find_dates(query, today or datetime.now().astimezone().date(), lexicon_of(query))
    days = arm.values(DATE, node_ids) if dates else {}
    shares = {
        "nearness": dict(zip(near_ids, nearness.shares.tolist(), strict=True)),
        "date": {node_id: closeness(parse_day(value), dates) for node_id, value in days.items() if value},
    }
    return Signals(name, nearness.weight, shares, named_documents(query, arm, near_ids))


def text_signals(
    query: str, arm: ContextualBM25Retriever, fused: Sequence[Fused], vectors: Mapping[str, float]
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]], dict[str, str]]:
    """Return the signals that are read in the texts of candidates: of prose, of source files, and these files' paths.

    Args:
        query: The question.
        arm: The keyword arm.
        fused: The candidates, best first.
        vectors: The stretched scores of the vector arm.
    """
    order = [one.node_id for one in fused]
    paths = {node_id: str(value or "") for node_id, value in arm.values(PATH, order).items()}
    code = {node_id: path for node_id, path in paths.items() if is_code(path)}
    prose = [node_id for node_id in order[:_READ] if node_id not in code]
    texts = arm.texts([*prose, *code])
    terms = arm.term_scores(query, [])
    openings = {
        node_id: share
        for node_id in prose
        if (heading := opening_of(texts.get(node_id, "")))
        and (share := _share_of(terms, frozenset(arm.analyzer.tokens(heading))))
    }
    of_code = code_signals(query, arm.analyzer, code, texts, vectors, order) if code else {}
    return {"opening": openings}, of_code, code


def _share_of(terms: TermScores, held: frozenset[str]) -> float:
    """Return the share of a question's terms, weighted by rarity, that are among others: at least two of several."""
    both = [idf for idf, group in zip(terms.idfs, terms.groups, strict=True) if held & {*group}]
    return 0.0 if len(both) < min(2, len(terms.groups)) else sum(both) / (sum(terms.idfs) or 1.0)


def trust_in(
    models: Mapping[str, str], query: str, rankings: Sequence[Ranking], signals: Signals | None
) -> dict[str, float]:
    """Return the factors for scores of arms, by the arm's name; those of other arms are 1.

    The vectors of all-MiniLM-L6-v2 count by the share of the question that its vocabulary knows: all for an English
    question, a fifth for a Japanese one. Those of multilingual-e5 count all for an English question, and less for one
    in another language, where words find more. They count for more, and the keywords for less, where no chunk holds
    much of the question: it may be in another language than the notes. No answers are needed to know either.
    Figures: ``benchmarks/results/languages.md``.

    Args:
        models: Of vector arms whose model is known, by the arm's name; see ``ContextualVectorRetriever.cosines_of``.
        query: The question.
        rankings: What the arms answered.
        signals: Of the keyword arm; None where there is none.
    """
    trust = {name: english_trust(query) for name, model in models.items() if model == MINILM}
    if signals and signals.weight and (multilingual := [name for name, model in models.items() if model == E5]):
        scores = (one.score or 0.0 for ranking in rankings if ranking.arm == signals.arm for one in ranking.candidates)
        share_found = min(max(scores, default=0.0) / signals.weight / _FOUND, 1.0)
        least = 1.0 if tell_language(query) == "en" else _E5_TRUST
        trust |= {signals.arm: share_found, **dict.fromkeys(multilingual, max(least, _E5_TRUST + 1 - share_found))}
    return trust


def english_trust(query: str) -> float:
    """Return the weight of vectors of all-MiniLM-L6-v2 for a question, 0.2 to 1: 1 where it is in English."""
    return max(_LEAST_TRUST, min(1.0, share_spelled(query) / _KNOWN))
