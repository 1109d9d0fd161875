"""Names and words of an index that are spelled nearly like those of a query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
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
        words_by_end: The folded words by their length and their first or last letter.
        names_by_word: The names of documents and the titles of their headings by folded word.
    """

    words: Mapping[str, str]
    words_by_end: Mapping[tuple[int, str], Sequence[str]]
    names_by_word: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, texts: Iterable[str], names: Iterable[str]) -> Vocabulary:
        """Return the vocabulary of texts and names."""
        distinct_names = list(dict.fromkeys(names))
        names_by_word = defaultdict(list)
        for name in distinct_names:
            for word in _plain_words(name):
                names_by_word[word].append(name)

        distinct_words: dict[str, None] = {}
        for text in chain(distinct_names, texts):
            distinct_words.update(dict.fromkeys(words_of(text)))
        words: dict[str, str] = {}
        for word in distinct_words:
            words.setdefault(_plain(word), word)

        words_by_end = defaultdict(list)
        for word in filter(None, words):
            for letter in {word[0], word[-1]}:
                words_by_end[len(word), letter].append(word)
        return cls(words, words_by_end, names_by_word)

    def suggest(self, query: str, limit: int = 5) -> list[str]:
        """Return names and words that a misspelt query may mean, best first; none if all are known.

        Words of asking, such as "what", are not taken for misspelt ones.

        Example:
            >>> Vocabulary.of(["A short path."], ["Dijkstra's Algorithm"]).suggest("dikstra")
            ["Dijkstra's Algorithm", 'Dijkstra']
        """
        words = _plain_words(query)
        similar: list[str] = []
        for word in words:
            is_unknown = word not in self.words and len(word) >= _LEAST_CHARACTERS
            if is_unknown and not has_stop_words(word):
                similar += self._similar(word)
        if not similar:
            return []
        names = self._names_with(similar, self.words.keys() & set(words))
        written = [self._as_written(word) for word in similar]
        return list(dict.fromkeys([*names, *written]))[:limit]

    def _similar(self, word: str) -> list[str]:
        """Return the known words that are most similar to a word, best first.

        They have about its length, most of its letters, and its first or its last letter.
        """
        letters = set(word)
        candidates = set[str]()
        lengths = range(len(word) - _MOST_DIFFERENCE, len(word) + _MOST_DIFFERENCE + 1)
        for length in lengths:
            for letter in (word[0], word[-1]):
                for known in self.words_by_end.get((length, letter), ()):
                    if len(letters.difference(known)) <= _MOST_DIFFERENCE:
                        candidates.add(known)
        return get_close_matches(word, candidates, _MOST_SIMILAR, _LEAST_SIMILARITY)

    def _names_with(self, similar: Sequence[str], known: set[str]) -> list[str]:
        """Return the names with similar words.

        Those with most words of the query come first, then those with the most similar word, then
        short ones.
        """
        names = chain.from_iterable(self.names_by_word.get(word, ()) for word in similar)
        ranked = []
        for name in dict.fromkeys(names):
            words = set(_plain_words(name))
            best_rank = min(rank for rank, word in enumerate(similar) if word in words)
            ranked.append((-len(words & known), best_rank, len(words), name))
        return [name for *_, name in sorted(ranked)]

    def _as_written(self, word: str) -> str:
        written = self.words[word]
        return written.removesuffix("'s").removesuffix("\u2019s")


def _plain_words(text: str) -> list[str]:
    """Return the distinct words of a text as words are compared, in their order."""
    return list(dict.fromkeys(map(_plain, words_of(text))))


def _plain(word: str) -> str:
    """Return a word as words are compared: folded, without a possessive ending."""
    return fold(word).removesuffix("'s")
