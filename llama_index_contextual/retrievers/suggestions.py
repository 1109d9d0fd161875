"""Names and words of an index that are spelled nearly like those of a query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from llama_index_contextual.retrievers.terms import has_stop_words
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

        Words of asking, such as "what", are not taken for misspelt ones.

        Example:
            >>> Vocabulary.of(["A short path."], ["Dijkstra's Algorithm"]).suggest("dikstra")
            ["Dijkstra's Algorithm", 'Dijkstra']
        """
        words = list(dict.fromkeys(_plain(word) for word in words_of(query)))
        similar: list[str] = []
        for word in words:
            is_unknown = word not in self.words and len(word) >= _LEAST_CHARACTERS
            if is_unknown and not has_stop_words(word):
                similar += self._similar(word)
        if not similar:
            return []
        names = self._names_with(similar, self.words.keys() & words)
        written = [self._as_written(word) for word in similar]
        return list(dict.fromkeys([*names, *written]))[:limit]

    def _similar(self, word: str) -> list[str]:
        """Return the known words that are most similar to a word, best first."""
        letters = set(word)
        candidates = [
            known
            for known in self.words
            if abs(len(known) - len(word)) <= _MOST_DIFFERENCE
            and len(letters.difference(known)) <= _MOST_DIFFERENCE
        ]
        return get_close_matches(word, candidates, _MOST_SIMILAR, _LEAST_SIMILARITY)

    def _names_with(self, similar: Sequence[str], known: set[str]) -> list[str]:
        """Return the names with similar words.

        Those with most words of the query come first, then those with the most similar word, then
        short ones.
        """
        ranked = []
        for name in self.names:
            words = {_plain(word) for word in words_of(name)}
            ranks = [rank for rank, word in enumerate(similar) if word in words]
            if ranks:
                ranked.append((-len(words & known), ranks[0], len(words), name))
        return [name for *_, name in sorted(ranked)]

    def _as_written(self, word: str) -> str:
        written = self.words[word]
        return written.removesuffix("'s").removesuffix("\u2019s")


def _plain(word: str) -> str:
    """Return a word as words are compared: folded, without a possessive ending."""
    return fold(word).removesuffix("'s")
