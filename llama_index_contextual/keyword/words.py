"""Words of nodes: the text that BM25 reads of a node, and filters on words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.types import FilterOperator

from llama_index_contextual.errors import SettingError
from llama_index_contextual.metadata import FRONT_MATTER, LEXICAL_CONTEXT, value_of
from llama_index_contextual.text import fold, normalise, readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_index.core.vector_stores.types import MetadataFilter

    from llama_index_contextual.keyword.bm25_index import Bm25Index
    from llama_index_contextual.keyword.evidence import Ints

    Texts = Callable[[Ints], Iterable[str]]  # the texts of rows, as lexical_text gives them, in the order of the rows

_MORE_WORDS: Final = (LEXICAL_CONTEXT, FRONT_MATTER)
_MOST_READ: Final = 5000  # texts that are read for a phrase; beyond them its words need not be adjacent
_SINGLE_WORD: Final = re.compile(r"\w+")


def lexical_text(node: BaseNode) -> str:
    """Text of a node that BM25 reads: the EMBED view and, after it, the lexical context and the front matter."""
    text = readable(node.get_content(metadata_mode=MetadataMode.EMBED))
    return "\n".join([text, *(str(value) for key in _MORE_WORDS if (value := value_of(node.metadata, key)))])


def spaced(text: str) -> str:
    """Return the folded words of a text, each between single spaces."""
    return f" {' '.join(fold(word) for word in _SINGLE_WORD.findall(normalise(text)))} "


def holding_words(engine: Bm25Index, words_filter: MetadataFilter, texts: Texts) -> Ints:
    """Return the rows that hold the words of a filter on ``WORDS``, for TEXT_MATCH side by side."""
    rows = engine.holding(engine.analyzer.query_groups(str(words_filter.value)))
    if words_filter.operator != FilterOperator.TEXT_MATCH or len(rows) > _MOST_READ:
        return rows
    phrase = spaced(str(words_filter.value))
    side_by_side = (phrase in spaced(text) for text in texts(rows))
    return rows[np.fromiter(side_by_side, dtype=np.bool_, count=len(rows))]


def checked_nodes(nodes: object) -> list[BaseNode]:
    """Return nodes as a list.

    Raises:
        SettingError: They are anything else; the message says what was probably meant.
    """
    kind = type(nodes).__name__
    if hasattr(nodes, "nodes") and hasattr(nodes, "as_retriever"):  # a ContextualIndex
        raise SettingError(f"nodes={kind} is an index. Cure: its as_retriever(), or nodes=index.nodes().")
    for name, mark in (("index", "as_retriever"), ("docstore", "docs"), ("vector_store", "stores_text")):
        if hasattr(nodes, mark):
            cure = f"ContextualBM25Retriever.from_defaults({name}=...)"
            raise SettingError(f"nodes={kind} is not a list of nodes. Cure: {cure}.")
    if isinstance(nodes, str | BaseNode) or not isinstance(nodes, Iterable):
        raise SettingError(f"nodes={kind} is not a list of nodes. Cure: a list of LlamaIndex nodes.")
    result = list(nodes)
    wrong = next((node for node in result if not isinstance(node, BaseNode)), None)
    if wrong is not None:
        cure = "TextNode(text=...) for each text" if isinstance(wrong, str) else "LlamaIndex nodes"
        raise SettingError(f"nodes hold a {type(wrong).__name__}. Cure: {cure}.")
    return result
