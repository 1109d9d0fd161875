"""What is measured of answers: recall, ranks, failures avoided with 95 % intervals; and which questions need context.

A mean over all questions hides what contexts are for: most questions of public sets repeat words of the very chunk that
answers them. Two rules find the others. The first looks at the words that a context adds, so it favours contexts by its
nature. The second looks at the question and at titles only.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from llama_index_contextual.app.evaluation.questions import answers_of
from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.metadata import DATE, PATH, TITLE, heading_titles, place_of
from llama_index_contextual.text import parse_date

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy.typing as npt
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.app.evaluation.questions import Question


Recalls: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Interval: TypeAlias = tuple[float, float, float]

_RESAMPLES: Final = 2000  # of the bootstrap


def interval(values: npt.ArrayLike) -> list[Interval]:
    """Mean and 95 % bootstrap interval of each column, as ``(mean, low, high)``.

    Args:
        values: Shape ``(questions, k)``, at least one question. For a paired interval give differences.
    """
    points = np.asarray(values, float)
    return _with_ends(points.mean(axis=0), points[_resamples(len(points))].mean(axis=1))


def failures_avoided(without: npt.ArrayLike, with_contexts: npt.ArrayLike) -> list[Interval | None]:
    """Compare the recalls of the same questions without and with contexts.

    Args:
        without: Recalls from 0 to 1, shape ``(questions, k)``.
        with_contexts: The same, with contexts.

    Returns:
        For each k, of the recall that is missing without contexts the part that is found with them, in per cent, with
        the ends of its 95 % interval (paired bootstrap over the questions). Below 0 where contexts add failures. None
        where nothing is missing without them. Empty without questions.
    """
    before, after = np.asarray(without, float), np.asarray(with_contexts, float)
    if not len(before):
        return []
    sample = _resamples(len(before))
    shares = _with_ends(
        _avoided(before.mean(axis=0), after.mean(axis=0)),
        _avoided(before[sample].mean(axis=1), after[sample].mean(axis=1)),
    )
    fails = before.min(axis=0) < 1
    return [share if is_failing else None for share, is_failing in zip(shares, fails, strict=True)]


def _avoided(before: Recalls, after: Recalls) -> Recalls:
    with np.errstate(divide="ignore", invalid="ignore"):
        percent = 100 * (1 - (1 - after) / (1 - before))
    return np.where(np.isfinite(percent), percent, 0.0)  # a resample without failures has none to avoid


def _resamples(count: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(0).integers(count, size=(_RESAMPLES, count))


def _with_ends(values: Recalls, resampled: Recalls) -> list[Interval]:
    low, high = np.percentile(resampled, [2.5, 97.5], axis=0)
    return list(zip(values.tolist(), low.tolist(), high.tolist(), strict=True))


def recall_at(k: int, hits: Sequence[Collection[object]], gold: Collection[object]) -> float:
    """The share of the gold items that the first k hits cover, 0 to 1.

    Anthropic's contextual retrieval evaluation calls the mean of this over all queries *pass@k*.

    Args:
        k: How many hits count, at least 1.
        hits: For each hit, best first, the gold items that it covers. Other items are ignored.
        gold: The items to find, at least one.

    Raises:
        ValueError: ``k`` is less than 1 or ``gold`` is empty.
    """
    if k < 1 or not gold:
        raise ValueError(f"recall needs k >= 1 and at least one gold item, got k={k} and {len(gold)} items")
    items = set(gold)
    return len(items & set().union(*hits[:k])) / len(items)


def mean_reciprocal_rank(
    hits_of_queries: Sequence[Sequence[Collection[object]]], golds: Sequence[Collection[object]]
) -> float:
    """The mean over queries of 1 / rank of the first hit that covers a gold item, or 0 where none does.

    Args:
        hits_of_queries: For each query its hits, as :func:`recall_at` takes them.
        golds: For each query its gold items.

    Raises:
        ValueError: There are no queries, or not as many as gold sets.
    """
    if not golds or len(golds) != len(hits_of_queries):
        raise ValueError(f"need one gold set per query, got {len(hits_of_queries)} queries and {len(golds)} gold sets")
    ranks = (
        next((1 / rank for rank, hit in enumerate(hits, 1) if set(gold) & set(hit)), 0.0)
        for hits, gold in zip(hits_of_queries, golds, strict=True)
    )
    return sum(ranks) / len(golds)


def ndcg(k: int, hits_of_queries: Sequence[Sequence[Collection[object]]], golds: Sequence[Collection[object]]) -> float:
    """The mean normalised discounted cumulative gain of the first k hits, 0 to 1.

    A hit gains 1 where it covers a gold item that no hit before it covered. So a second chunk with the same line gains
    nothing, and a chunk with two gold lines is as good as it can be. Where each hit covers one gold item of its own,
    this is the nDCG of trec_eval with gains of 0 and 1.

    Args:
        k: How many hits count.
        hits_of_queries: For each query its hits, as :func:`recall_at` takes them.
        golds: For each query its gold items, at least one.
    """
    return float(np.mean([_ndcg(hits[:k], set(gold), k) for hits, gold in zip(hits_of_queries, golds, strict=True)]))


def _ndcg(hits: Sequence[Collection[object]], gold: set[object], k: int) -> float:
    gain, needed, missing = 0.0, len(gold), set(gold)
    for rank, hit in enumerate(hits, 1):
        if new := missing & set(hit):
            gain += 1 / math.log2(rank + 1)
            needed -= len(new) - 1  # items that stand in one chunk need one hit
            missing -= new
    return gain / sum(1 / math.log2(rank + 1) for rank in range(1, min(k, needed) + 1))


NEEDED: Final = 0.15  # of a question's word weight
PARTS_REMARK: Final = (
    f"Context needed: at least {NEEDED:.0%} of a question's word weight is only in path or headings of its answer. "
    "This rule looks at the words that contexts add. Place named: the question has all words of the file's name, a "
    "heading or the day."
)


def parts_of(questions: Sequence[Question], nodes: Sequence[BaseNode]) -> dict[str, tuple[bool, ...]]:
    """Split questions by both rules.

    Args:
        questions: Questions with known answers. One whose answer no chunk holds needs no context and names nothing.
        nodes: All chunks of an index.

    Returns:
        By the name of a part, for each question whether it is in the part: "context needed" and "elsewhere" by the
        first rule, "place named" and "not named" by the second.
    """
    need = ContextNeed(nodes)
    golds = [
        (question.text, list({node.node_id: node for holders in passages.values() for node in holders}.values()))
        for question, passages in answers_of(questions, nodes)
    ]
    needed = [bool(gold) and need.share(text, gold) >= NEEDED for text, gold in golds]
    names_place = [bool(gold) and need.names(text, gold) for text, gold in golds]
    parts = {}
    for mask, name, others in ((needed, "context needed", "elsewhere"), (names_place, "place named", "not named")):
        parts[name], parts[others] = tuple(mask), tuple(not is_in for is_in in mask)
    return parts


class ContextNeed:
    """Two rules that say whether a question needs context, for the chunks of one index.

    Args:
        nodes: All chunks; text, path and headings are read, contexts are not.
    """

    def __init__(self, nodes: Sequence[BaseNode]) -> None:
        self._analyzer = Analyzer()
        self._texts = {node.node_id: self._words(node.get_content()) for node in nodes}
        self._places = {node.node_id: self._words(place_of(node.metadata)) for node in nodes}
        counts = Counter(word for words in self._texts.values() for word in words)
        self._rarity = {word: math.log(1 + len(nodes) / count) for word, count in counts.items()}

    def share(self, question: str, gold: Sequence[BaseNode]) -> float:
        """The share of the question's word weight that only the path or the headings of its answer hold.

        A word weighs ln(1 + chunks / chunks that hold it); words in no chunk's text weigh nothing. Of several gold
        chunks the one whose text holds the most weight is taken as the answer.

        Args:
            question: The question.
            gold: The chunks that answer it, at least one.

        Returns:
            0 to 1. From :data:`NEEDED` on, context counts as needed.
        """
        weights = {word: self._rarity.get(word, 0.0) for word in set(self._analyzer.query_tokens(question))}
        answer = max(gold, key=lambda node: sum(weights[word] for word in weights.keys() & self._texts[node.node_id]))
        missing = (weights.keys() & self._places[answer.node_id]) - self._texts[answer.node_id]
        return sum(weights[word] for word in missing) / (sum(weights.values()) or 1)

    def names(self, question: str, gold: Sequence[BaseNode]) -> bool:
        """Whether the question names the file, the title, a heading or the day of a chunk that answers it.

        A name counts when the question has all of its words. Names of one word do not count: "overview" names nothing.
        """
        words = set(self._analyzer.query_tokens(question))
        return any(len(name) > 1 and name <= words for node in gold for name in map(self._words, _names(node)))

    def _words(self, text: str) -> set[str]:
        return set(self._analyzer.tokens(text))


def _names(node: BaseNode) -> list[str]:
    """The names of a chunk's document, sections and day."""
    stem = str(node.metadata.get(PATH, "")).rsplit("/", 1)[-1].rsplit(".", 1)[0]
    day = parse_date(node.metadata.get(DATE))
    days = [day.isoformat()[:10]] if day else []
    return [stem, str(node.metadata.get(TITLE, "")), *heading_titles(node.metadata), *days]
