"""``RecencyPostprocessor`` in place of ``FixedRecencyPostprocessor``."""

from __future__ import annotations

import asyncio

from llama_index.core.postprocessor import FixedRecencyPostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from notes import ids
from side_by_side import comparison, refusal

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


compared = comparison(FixedRecencyPostprocessor, RecencyPostprocessor)


@compared(gives=["a", "b", "c", "d", "e"])
def test_equal_hits_come_newest_first_however_old(kind):
    return order(kind)


@compared(gives=["a", "b"])
def test_top_k_cuts(cls):
    return order(cls, top_k=2)


@compared(gives=["a", "b"])
def test_async_gives_the_same(cls):
    hits = [
        NodeWithScore(node=TextNode(id_=name, text=name, metadata={"date": day}), score=0.5)
        for name, day in DAYS.items()
    ]
    return ids(asyncio.run(cls(top_k=2).apostprocess_nodes(hits, query_bundle=QueryBundle("q"))))


@compared(gives=["b", "a"])
def test_the_date_can_have_another_key(cls):
    return order(cls, {"a": ("day", "2026-01-01"), "b": ("day", "2026-02-01")}, date_key="day")


@compared(gives=["b", "a"])
def test_months_in_words(cls):
    return order(cls, {"a": "January 2, 2026", "b": "March 1, 2026"})


@compared(gives=["b", "a"])
def test_months_in_words_day_first(cls):
    return order(cls, {"a": "2 Jan 2026", "b": "1 Mar 2026"})


@compared(gives=["b", "a"])
def test_iso_with_a_time(cls):
    return order(cls, {"a": "2026-01-02T10:00:00", "b": "2026-01-02T12:00:00"})


@compared(gives=["b", "a"])
def test_seconds_since_the_epoch(cls):
    return order(cls, {"a": 1_760_000_000, "b": 1_770_000_000})


@compared(gives=3)
def test_it_can_be_serialized_and_read_back(cls):
    return cls.from_dict(cls(top_k=3).to_dict()).top_k


@compared(stock=1, ours=5, differs="recency-top-k")
def test_without_top_k(cls):
    return len(order(cls, top_k=cls().top_k))


@compared(stock=["b", "a"], ours=["a", "b"], differs="recency-relevance")
def test_a_much_better_old_hit(cls):
    return order(cls, {"a": "2026-01-01", "b": "2026-02-01"}, {"a": 0.9, "b": 0.1})


@compared(stock="KeyError", ours="['b', 'a']", differs="recency-undated")
def test_a_note_without_a_date(cls):
    return refusal(lambda: order(cls, {"a": "2026-01-01", "b": ("path", "people.md")}))


@compared(stock=["b", "a"], ours=["a", "b"], differs="recency-guesses")
def test_an_ambiguous_date(cls):
    return order(cls, {"a": "04/09/2026", "b": "05/01/2026"}, {"a": 0.5, "b": 0.5})
