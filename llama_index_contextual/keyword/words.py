"""Words of nodes: what the keyword engine reads of a node, filters on words, and the spelling of a word."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import numpy as np
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.types import FilterOperator

from llama_index_contextual.metadata import FRONT_MATTER, LEXICAL_CONTEXT, value_of
from llama_index_contextual.text import fold, normalise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from llama_index.core.vector_stores.types import MetadataFilter

    from llama_index_contextual.keyword.engine import KeywordEngine
    from llama_index_contextual.keyword.evidence import Ints

    Texts = Callable[[Ints], Iterable[str]]  # the texts of rows, as lexical_text gives them, in the order of the rows

_MORE_WORDS: Final = (LEXICAL_CONTEXT, FRONT_MATTER)
_MOST_READ: Final = 5000  # texts that are read for a phrase; beyond them its words need not be adjacent
_LIKE: Final = 0.8  # of 1: the stems of "databse" and "database" are alike by 0.92, those of "acount" and "account" too
_MEANT: Final = 0.75  # as alike is the word itself
_READ: Final = 10  # texts that are read for the forms of a word
_COMPARED: Final = range(4, 41)  # letters of a word that is compared with others
_LONGER: Final = 3  # letters that the stem of what was meant may have more or less
_SINGLE_WORD: Final = re.compile(r"\w+")


def lexical_text(node: BaseNode) -> str:
    """Return what BM25 reads of a node: the EMBED view and, after it, the lexical context and the front matter."""
    text = node.get_content(metadata_mode=MetadataMode.EMBED)
    return "\n".join([text, *(str(value) for key in _MORE_WORDS if (value := value_of(node.metadata, key)))])


def spaced(text: str) -> str:
    """Return the folded words of a text, each between single spaces."""
    return f" {' '.join(fold(word) for word in _SINGLE_WORD.findall(normalise(text)))} "


def holding_words(engine: KeywordEngine, words_filter: MetadataFilter, texts: Texts) -> Ints:
    """Return the rows that hold the words of a filter on ``WORDS``, for TEXT_MATCH side by side."""
    rows = engine.holding(engine.analyzer.query_groups(str(words_filter.value)))
    if words_filter.operator != FilterOperator.TEXT_MATCH or len(rows) > _MOST_READ:
        return rows
    phrase = spaced(str(words_filter.value))
    side_by_side = (phrase in spaced(text) for text in texts(rows))
    return rows[np.fromiter(side_by_side, dtype=np.bool_, count=len(rows))]


def word_like(engine: KeywordEngine, word: str, texts: Texts, language: str = "") -> str | None:
    """Return the word of some text that is spelled most like a word; None where none is nearly the same.

    Terms are stems, so the word is read from texts that hold the term. Only terms that begin with the same letter and
    are about as long are compared, because a typing error rarely is in the first letter.

    Args:
        engine: Whose terms are compared.
        word: As it was typed.
        texts: Gives the texts of rows.
        language: Of the question. In another one than English only words of texts in it are meant: the Spanish "crear"
            is no misspelled "clear".
    """
    wanted, analyzer = fold(word), engine.analyzer
    if not wanted.isalpha() or len(wanted) not in _COMPARED:
        return None
    stems = {wanted, *(term.rpartition(":")[2] for term in analyzer.query_tokens(word))}
    prefixes: tuple[str, ...] = ("", *(f"{code}:" for code in analyzer.languages))  # of terms in the other languages
    if analyzer.language == "auto" and language not in ("", analyzer.languages[0]):
        prefixes = (f"{language}:",)
    near = {
        stem: term
        for prefix in prefixes
        for term in engine.terms(prefix + wanted[0])
        if (stem := term.rpartition(":")[2])[:1] == wanted[0] and abs(len(stem) - len(wanted)) <= _LONGER
    }
    alike = {near[term_stem] for stem in sorted(stems) for term_stem in get_close_matches(stem, near, 2, _LIKE)}
    words: set[str] = set()
    for term in alike:
        forms = {
            form for text in texts(engine.holding([(term,)])[:_READ]) for form in _SINGLE_WORD.findall(normalise(text))
        }
        words.update(fold(form) for form in forms if term in analyzer.query_tokens(form))
    return next(iter(get_close_matches(wanted, sorted(words), 1, _MEANT)), None)
