"""Names and words of an index that are spelled nearly like those of a query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

from llama_index_contextual.retrievers.words import words_of
from llama_index_contextual.utils.language import fold

_LEAST_CHARACTERS: Final = 4  # shorter words are near too many others
_MOST_DIFFERENCE: Final = 2  # characters by which a similar word is longer or shorter
_LEAST_SIMILARITY: Final = 0.75  # as difflib measures it: "dikstra" and "dijkstra" have .93
_MOST_SIMILAR: Final = 3  # words that are named for a word


@dataclass(frozen=True)
class Vocabulary:
    """The words and the names of an index.

    Attributes:
        words: The words as they are written, by their folded form.
        names: The names of documents and the titles of their headings.
    """

    words: Mapping[str, str]
    names: Sequence[str]

    @classmethod
    def of(cls, texts: Iterable[str], names: Iterable[str]) -> Vocabulary:
        """Return the vocabulary of texts and names."""
        written: dict[str, str] = {}
        distinct_names = list(dict.fromkeys(names))
        for text in (*distinct_names, *texts):
            for word in words_of(text):
                written.setdefault(_plain(word), word)
        return cls(written, distinct_names)

    def suggest(self, query: str, limit: int = 5) -> list[str]:
        """Return names and words that a misspelt query may mean, best first; none if all are known.

        Example:
            >>> Vocabulary.of(["A short path."], ["Dijkstra's Algorithm"]).suggest("dikstra")
            ["Dijkstra's Algorithm", 'Dijkstra']
        """
        words = dict.fromkeys(_plain(word) for word in words_of(query))
        unknown = [word for word in words if word not in self.words]
        similar = {word: self._similar(word) for word in unknown if len(word) >= _LEAST_CHARACTERS}
        similarity: dict[str, float] = {}
        for matches in similar.values():
            similarity |= matches
        if not similarity:
            return []
        names = self._names_with(similarity, {word for word in words if word in self.words})
        nearest = sorted(similarity, key=lambda word: (-similarity[word], word))
        return list(dict.fromkeys([*names, *(self._as_written(word) for word in nearest)]))[:limit]

    def _similar(self, word: str) -> dict[str, float]:
        """Return the known words that are most similar to a word, with their similarity."""
        matcher = SequenceMatcher(autojunk=False)
        matcher.set_seq2(word)
        lengths = range(len(word) - _MOST_DIFFERENCE, len(word) + _MOST_DIFFERENCE + 1)
        letters = set(word)
        similarity = {}
        for known in self.words:
            if len(known) not in lengths or len(letters.difference(known)) > _MOST_DIFFERENCE:
                continue
            matcher.set_seq1(known)
            if matcher.quick_ratio() >= _LEAST_SIMILARITY:
                ratio = matcher.ratio()
                if ratio >= _LEAST_SIMILARITY:
                    similarity[known] = ratio
        best = sorted(similarity, key=lambda known: (-similarity[known], known))[:_MOST_SIMILAR]
        return {known: similarity[known] for known in best}

    def _names_with(self, similarity: Mapping[str, float], known: set[str]) -> list[str]:
        """Return the names with similar words.

        Those with most words of the query, short ones first.
        """
        ranked = []
        for name in self.names:
            words = {_plain(word) for word in words_of(name)}
            nearest = max((similarity[word] for word in words if word in similarity), default=0.0)
            if nearest:
                ranked.append((-len(words & known), -nearest, len(words), name))
        return [name for *_, name in sorted(ranked)]

    def _as_written(self, word: str) -> str:
        written = self.words[word]
        return written.removesuffix("'s").removesuffix("\u2019s")


def _plain(word: str) -> str:
    """Return a word as words are compared: folded, without a possessive ending."""
    return fold(word).removesuffix("'s")
