"""Tell the questions that need context from those that do not.

A mean over all questions hides what contexts are for: most questions of public sets repeat words of the very chunk that
answers them. Two rules find the others. The first looks at the words that a context adds, so it favours contexts by its
nature. The second looks at the question and at titles only.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from llama_index_contextual.dates import parse_date
from llama_index_contextual.evaluation.questions import answers_of
from llama_index_contextual.keyword import Analyzer
from llama_index_contextual.metadata import DATE, PATH, TITLE, heading_titles, place_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.evaluation.questions import Question

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
    named = [bool(gold) and need.names(text, gold) for text, gold in golds]
    parts = {}
    for mask, name, others in ((needed, "context needed", "elsewhere"), (named, "place named", "not named")):
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
        answer = max(gold, key=lambda node: sum(weights[word] for word in weights.keys() & self._texts[node.node_id]))
        missing = (weights.keys() & self._places[answer.node_id]) - self._texts[answer.node_id]
        return sum(weights[word] for word in missing) / (sum(weights.values()) or 1)

    def names(self, question: str, gold: Sequence[BaseNode]) -> bool:
        """Tell whether the question names the file, the title, a heading or the day of a chunk that answers it.

        A name counts when the question has all of its words. Names of one word do not count: "overview" names nothing.
        """
        words = set(self._analyzer.query_tokens(question))
        return any(len(name) > 1 and name <= words for node in gold for name in map(self._words, _names(node)))

    def _words(self, text: str) -> set[str]:
        return set(self._analyzer.tokens(text))


def _names(node: BaseNode) -> list[str]:
    """Return the names of a chunk's document, sections and day."""
    stem = str(node.metadata.get(PATH, "")).rsplit("/", 1)[-1].rsplit(".", 1)[0]
    day = parse_date(node.metadata.get(DATE))
    days = [day.isoformat()[:10]] if day else []
    return [stem, str(node.metadata.get(TITLE, "")), *heading_titles(node.metadata), *days]
