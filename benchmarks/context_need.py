"""Which questions need context, by two rules, and the failures that contexts avoid for them.

A mean over all questions hides what contexts are for: most questions of public sets repeat words of the very chunk that
answers them. The first rule looks at the words that a context adds, so it favours contexts by its nature. The second
looks at the question and at titles only.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.metadata import DATE, PATH, TITLE, heading_titles, path_of
from llama_index_contextual.text import parse_date

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.app.evaluation.comparison import Interval, Recalls

NEEDED = 0.15  # of a question's word weight


def failures_avoided(before: npt.ArrayLike, after: npt.ArrayLike) -> list[Interval | None]:
    """Part of the recall missing in ``before`` that ``after`` finds, in per cent, as ``(mean, low, high)`` for each k.

    Both have the shape ``(questions, k)``. None where nothing is missing.
    """
    before, after = np.asarray(before, float), np.asarray(after, float)
    if not len(before):  # a part of a set that has no question
        return [None] * before.shape[1]
    sample = np.random.default_rng(0).integers(len(before), size=(2000, len(before)))
    avoided = _avoided(before.mean(axis=0), after.mean(axis=0)).tolist()
    ends = np.percentile(_avoided(before[sample].mean(axis=1), after[sample].mean(axis=1)), [2.5, 97.5], axis=0)
    fails = before.min(axis=0) < 1
    shares = zip(avoided, *ends.tolist(), strict=True)
    return [share if is_failing else None for share, is_failing in zip(shares, fails, strict=True)]


def _avoided(before: Recalls, after: Recalls) -> Recalls:
    with np.errstate(divide="ignore", invalid="ignore"):
        percent = 100 * (1 - (1 - after) / (1 - before))
    return np.where(np.isfinite(percent), percent, 0.0)  # a resample without failures has none to avoid


def signed(ends: Interval | None) -> str:
    """Avoided failures as a cell of a table."""
    return "nothing failed" if ends is None else "{:+.0f} [{:+.0f}, {:+.0f}]".format(*ends)


class ContextNeed:
    """Two rules that say whether a question needs context, for the chunks of one index."""

    def __init__(self, nodes: Sequence[BaseNode]) -> None:
        self._analyzer = Analyzer()
        self._texts = {node.node_id: self._words(node.get_content()) for node in nodes}
        self._places = {
            node.node_id: self._words("\n".join([path_of(node.metadata), *heading_titles(node.metadata)]))
            for node in nodes
        }
        counts = Counter(word for words in self._texts.values() for word in words)
        self._rarity = {word: math.log(1 + len(nodes) / count) for word, count in counts.items()}

    def share(self, question: str, gold: Sequence[BaseNode]) -> float:
        """The share of the question's word weight that only the path or the headings of its answer hold, 0 to 1.

        A word weighs ln(1 + chunks / chunks that hold it); words in no chunk's text weigh nothing. Of several gold
        chunks the one whose text holds the most weight is taken as the answer.
        """
        weights = {word: self._rarity.get(word, 0.0) for word in set(self._analyzer.query_tokens(question))}
        answer = max(gold, key=lambda node: sum(weights[word] for word in weights.keys() & self._texts[node.node_id]))
        missing = (weights.keys() & self._places[answer.node_id]) - self._texts[answer.node_id]
        return sum(weights[word] for word in missing) / (sum(weights.values()) or 1)

    def names(self, question: str, gold: Sequence[BaseNode]) -> bool:
        """Whether the question has all words of the file's name, the title, a heading or the day of its answer.

        Names of one word do not count: "overview" names nothing.
        """
        words = set(self._analyzer.query_tokens(question))
        return any(len(name) > 1 and name <= words for node in gold for name in map(self._words, _names(node)))

    def _words(self, text: str) -> set[str]:
        return set(self._analyzer.tokens(text))


def _names(node: BaseNode) -> list[str]:
    stem = str(node.metadata.get(PATH, "")).rsplit("/", 1)[-1].rsplit(".", 1)[0]
    day = parse_date(node.metadata.get(DATE))
    days = [day.isoformat()[:10]] if day else []
    return [stem, str(node.metadata.get(TITLE, "")), *heading_titles(node.metadata), *days]
