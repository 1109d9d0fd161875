"""``RecencyPostprocessor`` where ``FixedRecencyPostprocessor`` stood."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core.postprocessor import FixedRecencyPostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from notes import ids
from side_by_side import Case, compare, refusal

from llama_index_contextual import RecencyPostprocessor

DAYS = {
    "c": "2026-01-02",
    "a": "2026-03-09",
    "b": "2026-01-30",
    "d": "2001-01-02",
    "e": "2001-01-01",
}


def order(cls, dates=DAYS, scores=None, **settings):
    hits = [
        NodeWithScore(
            node=TextNode(id_=name, text=name, metadata=dict([key_value(value)])),
            score=(scores or {}).get(name, 0.5),
        )
        for name, value in dates.items()
    ]
    return ids(
        cls(**{"top_k": 9} | settings).postprocess_nodes(hits, query_bundle=QueryBundle("q"))
    )


def key_value(value):
    return value if isinstance(value, tuple) else ("date", value)


def awaited(cls):
    hits = [
        NodeWithScore(node=TextNode(id_=name, text=name, metadata={"date": day}), score=0.5)
        for name, day in DAYS.items()
    ]
    return ids(asyncio.run(cls(top_k=2).apostprocess_nodes(hits, query_bundle=QueryBundle("q"))))


CASES = [
    Case("equal hits come newest first, however old", order, gives=["a", "b", "c", "d", "e"]),
    Case("top_k cuts", lambda cls: order(cls, top_k=2), gives=["a", "b"]),
    Case("async gives the same", awaited, gives=["a", "b"]),
    Case(
        "another key holds the date",
        lambda cls: order(
            cls, {"a": ("day", "2026-01-01"), "b": ("day", "2026-02-01")}, date_key="day"
        ),
        gives=["b", "a"],
    ),
    Case(
        "months in words",
        lambda cls: order(cls, {"a": "January 2, 2026", "b": "March 1, 2026"}),
        gives=["b", "a"],
    ),
    Case(
        "months in words, day first",
        lambda cls: order(cls, {"a": "2 Jan 2026", "b": "1 Mar 2026"}),
        gives=["b", "a"],
    ),
    Case(
        "ISO with a time",
        lambda cls: order(cls, {"a": "2026-01-02T10:00:00", "b": "2026-01-02T12:00:00"}),
        gives=["b", "a"],
    ),
    Case(
        "seconds since the epoch",
        lambda cls: order(cls, {"a": 1_760_000_000, "b": 1_770_000_000}),
        gives=["b", "a"],
    ),
    Case(
        "it is written down and read back",
        lambda cls: cls.from_dict(cls(top_k=3).to_dict()).top_k,
        gives=3,
    ),
    Case(
        "without top_k",
        lambda cls: len(order(cls, top_k=cls().top_k)),
        stock=1,
        gives=5,
        differs="recency-top-k",
    ),
    Case(
        "a much better old hit",
        lambda cls: order(cls, {"a": "2026-01-01", "b": "2026-02-01"}, {"a": 0.9, "b": 0.1}),
        stock=["b", "a"],
        gives=["a", "b"],
        differs="recency-relevance",
    ),
    Case(
        "a note without a date",
        lambda cls: refusal(lambda: order(cls, {"a": "2026-01-01", "b": ("path", "people.md")})),
        stock="KeyError",
        gives="['b', 'a']",
        differs="recency-undated",
    ),
    Case(
        "a date that may be of April or of September",
        lambda cls: order(cls, {"a": "04/09/2026", "b": "05/01/2026"}, {"a": 0.5, "b": 0.5}),
        stock=["b", "a"],
        gives=["a", "b"],
        differs="recency-guesses",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_recency_postprocessor(case):
    compare(case, FixedRecencyPostprocessor, RecencyPostprocessor)
