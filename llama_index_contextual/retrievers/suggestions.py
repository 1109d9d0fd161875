"""Suggest names and words of an index for the misspelt words of a query."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain

from llama_index_contextual.retrievers.terms import has_stop_words
from llama_index_contextual.retrievers.words import words_of
from llama_index_contextual.utils.language import fold

_MIN_CHARACTERS = 4  # shorter words are similar to too many words
_MAX_DIFFERENCE = 2  # difference in length, and characters that a similar word can lack
_MIN_SIMILARITY = 0.75  # by difflib; "dikstra" and "dijkstra" have 0.93
_MAX_SIMILAR = 3  # similar words for each unknown word
_MAX_SUGGESTIONS = 5


@dataclass(frozen=True)
class Vocabulary:
    """The words and the names of an index.

    Attributes:
        words: The words as written, by their folded form.
        words_by_end: The folded words by their length and their first or last letter.
        names_by_word: The names of documents and their headings, by the folded words in them.
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
        for word in words:
            for letter in {word[0], word[-1]}:
                words_by_end[len(word), letter].append(word)
        return cls(words, words_by_end, names_by_word)

    def suggest(self, query: str, found_words: Iterable[str] = ()) -> list[str]:
        """Return names and words that a misspelt query could mean, best first.

        The list is empty if all words are known. Stop words such as "what" count as known.

        Args:
            query: The query.
            found_words: Its words that the index contains in another form, such as "jumping" for
                "jumped". They count as known, too.

        Example:
            >>> Vocabulary.of(["A short path."], ["Dijkstra's Algorithm"]).suggest("dikstra")
            ["Dijkstra's Algorithm", 'Dijkstra']
        """
        words = _plain_words(query)
        other_forms = set(map(_plain, found_words))
        similar: list[str] = []
        for word in words:
            is_known = word in self.words or word in other_forms or has_stop_words(word)
            if not is_known and len(word) >= _MIN_CHARACTERS:
                similar += self._similar(word)
        if not similar:
            return []
        names = self._names_with(similar, self.words.keys() & set(words))
        written = [self._as_written(word) for word in similar]
        return list(dict.fromkeys([*names, *written]))[:_MAX_SUGGESTIONS]

    def _similar(self, word: str) -> list[str]:
        """Return the known words that are most similar to a word, best first.

        They have about the same length, most of its letters, and its first or last letter.
        """
        letters = set(word)
        candidates = set[str]()
        lengths = range(len(word) - _MAX_DIFFERENCE, len(word) + _MAX_DIFFERENCE + 1)
        for length in lengths:
            for letter in (word[0], word[-1]):
                for known in self.words_by_end.get((length, letter), ()):
                    if len(letters.difference(known)) <= _MAX_DIFFERENCE:
                        candidates.add(known)
        return get_close_matches(word, candidates, _MAX_SIMILAR, _MIN_SIMILARITY)

    def _names_with(self, similar: Sequence[str], known: set[str]) -> list[str]:
        """Return the names that contain similar words.

        They are sorted by the number of known words of the query, then by the similarity of the
        word, then by length (shortest first).
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
    """Return the distinct words of a text in order, in the form in which words are compared."""
    return list(dict.fromkeys(map(_plain, words_of(text))))


def _plain(word: str) -> str:
    """Return the form in which words are compared: folded, without a possessive ending."""
    return fold(word).removesuffix("'s")
