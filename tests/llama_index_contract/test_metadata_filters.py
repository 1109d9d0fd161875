"""Filters of ``ContextualVectorRetriever`` and of ``VectorIndexRetriever`` on
``SimpleVectorStore``.

``tests/retrievers/test_any_store.py`` tests the same for our class on Chroma, Qdrant and LanceDB,
where the stock class differs from store to store.
"""

from __future__ import annotations

import pytest
from core_version import needs_core
from llama_index.core.retrievers import VectorIndexRetriever
from llama_index.core.vector_stores.types import FilterCondition, MetadataFilter, MetadataFilters
from notes import index, names
from side_by_side import compare, comparison, refusal

from llama_index_contextual import ContextualVectorRetriever

ALL = ["budget", "cat", "dog", "freeze", "gateway", "meeting"]


def filters_of(*filters, condition=FilterCondition.AND):
    return MetadataFilters(filters=list(filters), condition=condition)


def hits(make, filters):
    return names(make(index(), filters=filters, similarity_top_k=9).retrieve("carrots"))


def filter_on(key, operator, value=None):
    return MetadataFilter(key=key, operator=operator, value=value)


compared = comparison(VectorIndexRetriever, ContextualVectorRetriever)
a_missing_key_matches = needs_core(
    "0.14.23", "the stock class finds no node without the key for `!=` and `nin`"
)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        pytest.param(filters_of(filter_on("team", "==", "net")), ["dog", "gateway"], id="=="),
        pytest.param(filters_of(filter_on("n", "==", 3)), ["budget"], id="== a number"),
        pytest.param(filters_of(filter_on("n", "==", 3.0)), ["budget"], id="== 3.0"),
        pytest.param(
            filters_of(filter_on("done", "==", 1)), ["dog", "freeze", "gateway"], id="== 1 of true"
        ),
        pytest.param(
            filters_of(filter_on("done", "==", 0)), ["budget", "cat", "meeting"], id="== 0 of false"
        ),
        pytest.param(
            filters_of(filter_on("done", "!=", 1)), ["budget", "cat", "meeting"], id="!= 1 of true"
        ),
        pytest.param(
            filters_of(filter_on("team", "!=", "net")),
            ["budget", "cat", "freeze", "meeting"],
            id="!=",
        ),
        pytest.param(
            filters_of(filter_on("owner", "!=", "dog@example.org")),
            ["budget", "cat", "freeze", "gateway", "meeting"],
            id="!= of a missing key",
            marks=a_missing_key_matches,
        ),
        pytest.param(filters_of(filter_on("n", ">", 3)), ["freeze", "meeting"], id=">"),
        pytest.param(filters_of(filter_on("n", ">=", 3)), ["budget", "freeze", "meeting"], id=">="),
        pytest.param(filters_of(filter_on("n", "<", 1)), ["dog"], id="<"),
        pytest.param(filters_of(filter_on("n", "<=", 1)), ["cat", "dog"], id="<="),
        pytest.param(
            filters_of(filter_on("team", "<", "nf")), ["dog", "freeze", "gateway"], id="< of a text"
        ),
        pytest.param(
            filters_of(filter_on("team", "in", ["ops", "web"])),
            ["budget", "cat", "meeting"],
            id="in",
        ),
        pytest.param(
            filters_of(filter_on("n", "in", [0, 5, 9])), ["dog", "meeting"], id="in numbers"
        ),
        pytest.param(
            filters_of(filter_on("team", "in", "ops,web")),
            ["budget", "cat", "meeting"],
            id="in a text",
        ),
        pytest.param(
            filters_of(filter_on("team", "nin", ["ops", "web"])),
            ["dog", "freeze", "gateway"],
            id="nin",
        ),
        pytest.param(
            filters_of(filter_on("owner", "nin", ["x"])),
            ALL,
            id="nin of a missing key",
            marks=a_missing_key_matches,
        ),
        pytest.param(filters_of(filter_on("tags", "contains", "dog")), ["dog"], id="contains"),
        pytest.param(
            filters_of(filter_on("team", "contains", "work")),
            ["freeze"],
            id="contains a part of a text",
        ),
        pytest.param(
            filters_of(filter_on("tags", "any", ["dog", "cat"])), ["cat", "dog"], id="any"
        ),
        pytest.param(filters_of(filter_on("tags", "all", ["a", "cat"])), ["cat"], id="all"),
        pytest.param(
            filters_of(filter_on("team", "text_match", "work")), ["freeze"], id="text_match"
        ),
        pytest.param(
            filters_of(filter_on("team", "text_match_insensitive", "WORK")),
            ["freeze"],
            id="text_match_insensitive",
        ),
        pytest.param(filters_of(filter_on("owner", "is_empty")), ["budget"], id="is_empty"),
        pytest.param(
            filters_of(filter_on("ref_doc_id", "==", "doc1")),
            ["budget", "cat", "meeting"],
            id="a document",
        ),
        pytest.param(
            filters_of(filter_on("team", "==", "net"), filter_on("n", ">", 1)),
            ["gateway"],
            id="and",
        ),
        pytest.param(
            filters_of(
                filter_on("team", "==", "ops"), filter_on("n", "<", 1), condition=FilterCondition.OR
            ),
            ["budget", "dog"],
            id="or",
        ),
        pytest.param(
            filters_of(
                filter_on("team", "==", "net"),
                filter_on("n", ">", 3),
                condition=FilterCondition.NOT,
            ),
            ["budget", "cat"],
            id="not",
        ),
        pytest.param(filters_of(), ALL, id="no filter in the list"),
    ],
)
def test_both_return_the_same(filters, expected):
    compare(
        lambda make: hits(make, filters),
        VectorIndexRetriever,
        ContextualVectorRetriever,
        gives=expected,
    )


@compared(stock=["dog", "freeze", "gateway"], ours=["freeze"], differs="filters-in-text")
def test_in_a_text_of_which_a_value_is_a_part(make):
    return hits(make, filters_of(filter_on("team", "in", "network")))


@compared(stock="ValueError", ours="['dog', 'gateway']", differs="filters-nested")
def test_filters_in_filters(make):
    return refusal(lambda: hits(make, filters_of(filters_of(filter_on("team", "==", "net")))))


@compared(stock="TypeError", ours="[]", differs="filters-types")
def test_a_text_compared_with_a_number(make):
    return refusal(lambda: hits(make, filters_of(filter_on("team", ">", 3))))
