"""Filters of ``ContextualVectorRetriever`` and of ``VectorIndexRetriever`` on ``SimpleVectorStore``.

``tests/retrievers/test_any_store.py`` asks the same of ours on Chroma, Qdrant and LanceDB, where the stock class
differs from store to store.
"""

from __future__ import annotations

import pytest
from llama_index.core.retrievers import VectorIndexRetriever
from llama_index.core.vector_stores.types import FilterCondition, MetadataFilter, MetadataFilters
from notes import index, names
from side_by_side import Case, compare, refusal

from llama_index_contextual import ContextualVectorRetriever

ALL = ["budget", "cat", "dog", "freeze", "gateway", "meeting"]


def hits(make, *filters, condition=FilterCondition.AND):
    wanted = MetadataFilters(filters=list(filters), condition=condition)
    return names(make(index(), filters=wanted, similarity_top_k=9).retrieve("carrots"))


def one(key, operator, value=None):
    return MetadataFilter(key=key, operator=operator, value=value)


def same(name, *filters, condition=FilterCondition.AND, gives):
    return Case(name, lambda make: hits(make, *filters, condition=condition), gives=gives)


CASES = [
    same("==", one("team", "==", "net"), gives=["dog", "gateway"]),
    same("== a number", one("n", "==", 3), gives=["budget"]),
    same("== 3.0", one("n", "==", 3.0), gives=["budget"]),
    same("== 1 of true", one("done", "==", 1), gives=["dog", "freeze", "gateway"]),
    same("== 0 of false", one("done", "==", 0), gives=["budget", "cat", "meeting"]),
    same("!= 1 of true", one("done", "!=", 1), gives=["budget", "cat", "meeting"]),
    same("!=", one("team", "!=", "net"), gives=["budget", "cat", "freeze", "meeting"]),
    same(
        "!= of a missing key",
        one("owner", "!=", "dog@example.org"),
        gives=["budget", "cat", "freeze", "gateway", "meeting"],
    ),
    same(">", one("n", ">", 3), gives=["freeze", "meeting"]),
    same(">=", one("n", ">=", 3), gives=["budget", "freeze", "meeting"]),
    same("<", one("n", "<", 1), gives=["dog"]),
    same("<=", one("n", "<=", 1), gives=["cat", "dog"]),
    same("< of a text", one("team", "<", "nf"), gives=["dog", "freeze", "gateway"]),
    same("in", one("team", "in", ["ops", "web"]), gives=["budget", "cat", "meeting"]),
    same("in numbers", one("n", "in", [0, 5, 9]), gives=["dog", "meeting"]),
    same("in a text", one("team", "in", "ops,web"), gives=["budget", "cat", "meeting"]),
    Case(
        "in a text of which a value is a part",
        lambda make: hits(make, one("team", "in", "network")),
        stock=["dog", "freeze", "gateway"],
        gives=["freeze"],
        differs="filters-in-text",
    ),
    same("nin", one("team", "nin", ["ops", "web"]), gives=["dog", "freeze", "gateway"]),
    same("nin of a missing key", one("owner", "nin", ["x"]), gives=ALL),
    same("contains", one("tags", "contains", "dog"), gives=["dog"]),
    same("contains a part of a text", one("team", "contains", "work"), gives=["freeze"]),
    same("any", one("tags", "any", ["dog", "cat"]), gives=["cat", "dog"]),
    same("all", one("tags", "all", ["a", "cat"]), gives=["cat"]),
    same("text_match", one("team", "text_match", "work"), gives=["freeze"]),
    same("text_match_insensitive", one("team", "text_match_insensitive", "WORK"), gives=["freeze"]),
    same("is_empty", one("owner", "is_empty"), gives=["budget"]),
    same("a document", one("ref_doc_id", "==", "doc1"), gives=["budget", "cat", "meeting"]),
    same("and", one("team", "==", "net"), one("n", ">", 1), gives=["gateway"]),
    same(
        "or",
        one("team", "==", "ops"),
        one("n", "<", 1),
        condition=FilterCondition.OR,
        gives=["budget", "dog"],
    ),
    same(
        "not",
        one("team", "==", "net"),
        one("n", ">", 3),
        condition=FilterCondition.NOT,
        gives=["budget", "cat"],
    ),
    same("no filter in the list", gives=ALL),
    Case(
        "filters in filters",
        lambda make: refusal(
            lambda: hits(make, MetadataFilters(filters=[one("team", "==", "net")]))
        ),
        stock="ValueError",
        gives="['dog', 'gateway']",
        differs="filters-nested",
    ),
    Case(
        "a text compared with a number",
        lambda make: refusal(lambda: hits(make, one("team", ">", 3))),
        stock="TypeError",
        gives="[]",
        differs="filters-types",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_metadata_filters(case):
    compare(case, VectorIndexRetriever, ContextualVectorRetriever)
