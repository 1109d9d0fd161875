"""What the keyword index of nodes and the view of a database share: filters over rows, words."""

from __future__ import annotations

import numpy as np
import pytest
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual.retrievers.filters import (
    ItemFilter,
    WordsFilter,
    matching_rows,
    metadata_match,
)
from llama_index_contextual.retrievers.node_index import KeywordIndex
from llama_index_contextual.utils.metadata import REF_DOC_ID

FAR = 2**40
TEXTS = {
    "a": "The database of plums.",
    "b": "Plums: a database, databases and dates.",
    "c": "La organización de las ciruelas",
    "d": "Nothing of it",
}
METADATA = [
    {REF_DOC_ID: "a.md", "tag": "x", "n": 1},
    {REF_DOC_ID: "b.md", "doc_id": "own", "n": 2.0},
    {REF_DOC_ID: "c.md", "tag": ["x", "y"]},
    {REF_DOC_ID: None},
]


@pytest.fixture
def state():
    index = KeywordIndex()
    for (name, text), metadata in zip(
        TEXTS.items(), METADATA, strict=True
    ):  # one by one, so that there are two parts
        index.add(
            [
                TextNode(
                    id_=name, text=text, metadata=metadata, excluded_embed_metadata_keys=[*metadata]
                )
            ]
        )
    return index.state


@pytest.mark.parametrize(
    ("operator", "value", "expected"),
    [
        ("contains", "plums database", ["a", "b"]),
        ("text_match", "database of plums", ["a"]),
        ("text_match", "DATABASE, and dates", []),
        ("text_match", "a database", ["b"]),
        ("contains", "zebra plums", []),
        ("contains", "…", []),
    ],
)
def test_rows_with_the_words_of_a_filter(state, operator, value, expected):
    words = WordsFilter(value=value, operator=operator)
    assert state.matching_ids(MetadataFilters(filters=[words])) == expected


@pytest.mark.parametrize(
    "filters",
    [
        {"key": "doc_id", "value": "a.md"},
        {"key": "doc_id", "value": "own"},
        {"key": "doc_id", "value": "b.md"},
        {"key": "document_id", "value": ["a.md", "b.md"], "operator": "in"},
        {"key": "nowhere", "value": None, "operator": "is_empty"},
        {"key": "nowhere", "value": 1, "operator": "!="},
        {"key": "n", "value": 1, "operator": ">"},
        {"key": "tag", "value": "x", "operator": "contains"},
    ],
)
def test_filters_over_columns_match_the_same_rows_one_by_one(filters):
    def column_of(key):
        return [metadata.get(key) for metadata in METADATA]

    rows = np.array([3, FAR, FAR + 1, FAR + 9])
    for condition in ("and", "not"):
        metadata_filters = MetadataFilters(filters=[MetadataFilter(**filters)], condition=condition)
        matching = matching_rows(metadata_filters, rows, column_of, lambda _: rows[:0])
        expected = [
            row
            for row, metadata in zip(rows.tolist(), METADATA, strict=True)
            if metadata_match(metadata_filters, metadata)
        ]
        assert matching.tolist() == expected


def test_words_and_metadata_are_combined(state):
    words = WordsFilter(value="database", operator="contains")
    tag = MetadataFilter(key="tag", value="x", operator="contains")
    assert state.matching_ids(MetadataFilters(filters=[words, tag], condition="and")) == ["a"]
    assert state.matching_ids(MetadataFilters(filters=[words, tag], condition="or")) == [
        "a",
        "b",
        "c",
    ]


def test_filters_with_equal_fields_are_told_apart_by_their_class(state):
    for make, expected in ((MetadataFilter, []), (ItemFilter, ["a"]), (MetadataFilter, [])):
        part = make(key="tag", value="X")
        assert state.matching_ids(MetadataFilters(filters=[part])) == expected


def test_a_limited_number_of_filter_results_is_cached(state):
    for number in range(200):
        part = MetadataFilter(key="n", value=number)
        state.matching_ids(MetadataFilters(filters=[part]))
    assert 0 < len(state.cached_values) <= 64
