"""Tell the questions that need context from those that do not, and say what contexts give each of the two.

A mean over all questions hides what contexts are for: most questions of public sets repeat words of the very chunk that
answers them. Two rules find the others. The first looks at the words that a context adds, so it favours contexts by its
nature. The second looks at the question and at titles only.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from llama_index_contextual.dates import parse_date
from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.metadata import DATE, PATH, TITLE, heading_titles

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from llama_index.core.schema import BaseNode

NEEDED: Final = 0.15  # of a question's word weight
_DRAWS: Final = 2000  # of the bootstrap


@dataclass(frozen=True, slots=True)
class Avoided:
    """Failures that contexts avoid, in per cent of those without contexts; below 0 where they add failures.

    Attributes:
        questions: How many questions there are.
        percent: For each k, of the recall that was missing without contexts the part that is found with them.
        low: Lower end of its 95 % interval (paired bootstrap over the questions).
        high: Upper end.
    """

    questions: int
    percent: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


class ContextNeed:
    """Two rules that say whether a question needs context, for the chunks of one index.

    Args:
        nodes: All chunks; text, path and headings are read, contexts are not.
        analyzer: What splits texts into words.
    """

    def __init__(self, nodes: Sequence[BaseNode], analyzer: Analyzer | None = None) -> None:
        self._analyzer = analyzer or Analyzer()
        self._texts = {node.node_id: set(self._analyzer.tokens(node.get_content())) for node in nodes}
        self._places = {node.node_id: set(self._analyzer.tokens(_place(node))) for node in nodes}
        counts = Counter(word for words in self._texts.values() for word in words)
        self._rarity = {word: math.log(1 + len(nodes) / count) for word, count in counts.items()}

    def share(self, question: str, gold: Sequence[BaseNode]) -> float:
        """Return the share of the question's word weight that only the path or the headings of its answer hold.

        A word weighs ln(1 + chunks / chunks that hold it); words in no chunk's text weigh nothing. Of several gold
        chunks the one whose text holds the most weight is taken as the answer.

        Args:
            question: The question.
            gold: The chunks that answer it, at least one.

        Returns:
            0 to 1. From :data:`NEEDED` on, context counts as needed.
        """
        weights = {word: self._rarity.get(word, 0.0) for word in set(self._analyzer.query_tokens(question))}
        total = sum(weights.values())
        if not total:
            return 0.0
        best = max(gold, key=lambda node: sum(weights[word] for word in weights.keys() & self._texts[node.node_id]))
        only = (weights.keys() & self._places[best.node_id]) - self._texts[best.node_id]
        return sum(weights[word] for word in only) / total

    def names(self, question: str, gold: Sequence[BaseNode]) -> bool:
        """Tell whether the question names the file, the title, a heading or the day of a chunk that answers it.

        A name counts when the question has all of its words. Names of one word do not count: "overview" names nothing.
        """
        words = set(self._analyzer.query_tokens(question))
        return any(len(name) > 1 and name <= words for node in gold for name in map(self._words, _names(node)))

    def lacking(self) -> float:
        """Return the share of chunks whose text holds no rare word of their own path and headings, 0 to 1.

        A word is rare when less than a tenth of the chunks have it in text, path or headings. Chunks without a rare
        word in path and headings do not count.
        """
        counts = Counter(word for key, text in self._texts.items() for word in text | self._places[key])
        common = {word for word, count in counts.items() if count >= len(self._texts) / 10}
        rare = {key: place - common for key, place in self._places.items() if place - common}
        return sum(not (words & self._texts[key]) for key, words in rare.items()) / max(1, len(rare))

    def _words(self, name: str) -> set[str]:
        return set(self._analyzer.tokens(name))


def failures_avoided(without: npt.ArrayLike, with_contexts: npt.ArrayLike) -> Avoided:
    """Compare the recalls of the same questions without and with contexts.

    Args:
        without: Recalls from 0 to 1, shape ``(questions, k)``.
        with_contexts: The same, with contexts.
    """
    before, after = np.asarray(without, float), np.asarray(with_contexts, float)
    if not len(before):
        return Avoided(0, (), (), ())
    drawn = np.random.default_rng(0).integers(len(before), size=(_DRAWS, len(before)))
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = 100 * (1 - (1 - after[drawn].mean(axis=1)) / (1 - before[drawn].mean(axis=1)))
        percent = 100 * (1 - (1 - after.mean(axis=0)) / (1 - before.mean(axis=0)))
    parts = np.where(np.isfinite(parts), parts, 0.0)  # nothing failed, so nothing was avoided
    percent = np.where(np.isfinite(percent), percent, 0.0)
    low, high = np.percentile(parts, [2.5, 97.5], axis=0)
    return Avoided(len(before), tuple(percent.tolist()), tuple(low.tolist()), tuple(high.tolist()))


def _place(node: BaseNode) -> str:
    return " \n".join([str(node.metadata.get(PATH, "")), *heading_titles(node.metadata)])


def _names(node: BaseNode) -> list[str]:
    """Names of a chunk's document, sections and day."""
    path = str(node.metadata.get(PATH, ""))
    stem = path.rsplit("/", 1)[-1].rsplit(".", 1)[0]
    names = [stem, str(node.metadata.get(TITLE, "")), *heading_titles(node.metadata)]
    day = parse_date(node.metadata.get(DATE))
    return [*names, day.isoformat()[:10]] if day else names
