"""What both the keyword index of nodes and the view of a database are made of: filters over rows, words."""

from __future__ import annotations

import numpy as np
import pytest
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual.keyword import holding_words
from llama_index_contextual.keyword.bm25_index import Bm25Index
from llama_index_contextual.keyword.filters import REF_DOC_ID, WORDS, Column, admits, admitted

FAR = 2**40
TEXTS = {
    3: "The database of plums.",
    FAR: "Plums: a database, databases and dates.",
    FAR + 1: "La organización de las ciruelas",
    FAR + 9: "Nothing of it",
}


@pytest.fixture
def engine():
    engine = Bm25Index()
    for row, text in TEXTS.items():  # each in a segment of its own, until they are merged
        engine = engine.with_texts([row], [text])
    return engine


def texts_of(rows):
    return (TEXTS[row] for row in rows.tolist())


@pytest.mark.parametrize(
    ("operator", "value", "expected"),
    [
        ("contains", "plums database", [3, FAR]),
        ("text_match", "database of plums", [3]),
        ("text_match", "DATABASE, and dates", []),
        ("text_match", "a database", [FAR]),
        ("contains", "zebra plums", []),
        ("contains", "…", []),
    ],
)
def test_rows_that_hold_the_words_of_a_filter(engine, operator, value, expected):
    one = MetadataFilter(key=WORDS, value=value, operator=operator)
    assert holding_words(engine, one, texts_of).tolist() == expected


METADATA = [
    {REF_DOC_ID: "a.md", "tag": "x", "n": 1},
    {REF_DOC_ID: "b.md", "doc_id": "own", "n": 2.0},
    {REF_DOC_ID: "c.md", "tag": ["x", "y"]},
    {REF_DOC_ID: None},
]


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
def test_filters_over_columns_admit_the_rows_that_they_admit_one_by_one(filters):
    def column_of(key):
        values = [one.get(key) for one in METADATA]
        return Column.encode(values)

    rows = np.array([3, FAR, FAR + 1, FAR + 9])
    for condition in ("and", "not"):
        wanted = MetadataFilters(filters=[MetadataFilter(**filters)], condition=condition)
        found = admitted(wanted, rows, column_of, lambda _: rows[:0])
        expected = [row for row, one in zip(rows.tolist(), METADATA, strict=True) if admits(wanted, one)]
        assert found.tolist() == expected


def test_words_and_metadata_are_combined(engine):
    rows = engine.rows
    words = MetadataFilter(key=WORDS, value="database", operator="contains")
    tag = MetadataFilter(key="tag", value="x", operator="contains")
    column = Column.encode([one.get("tag") for one in METADATA])

    def found(condition):
        filters = MetadataFilters(filters=[words, tag], condition=condition)
        return admitted(filters, rows, lambda _: column, lambda one: holding_words(engine, one, texts_of)).tolist()

    assert found("and") == [3]
    assert found("or") == [3, FAR, FAR + 1]
