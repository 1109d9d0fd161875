from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import TextNode

from llama_index_contextual.keyword.dates import NamedDate
from llama_index_contextual.memory import MemorySettings
from llama_index_contextual.memory.ranking import entries_of, estimate_tokens, rank, select
from llama_index_contextual.memory.search import HitPool, PoolHit
from llama_index_contextual.retrieval import NearDuplicates

DAY = date(2026, 4, 9)
NAMED = (NamedDate(DAY, DAY, "yesterday", 0),)


def hit(name, score, **more):
    return PoolHit(TextNode(id_=name, text=f"says {name}", metadata={"path": f"{name}.md"}), score, **more)


def test_a_note_of_a_named_day_counts_wherever_it_was_found():
    pool = HitPool((hit("best", 0.8), hit("2026-04-09", 0.5, reasons=("age +0.50 (1 day)",))), 0.8)
    dated = HitPool((hit("2026-04-09", 0.6), hit("2026-04-10", 0.5)), 0.6)
    ranked = rank(pool, dated, NAMED, None, MemorySettings(date_boost=1.0))
    # .5 twice; among the notes of its day .6 x .6 is less
    assert [one.id for one in ranked] == ["2026-04-09", "best", "2026-04-10"]
    assert ranked[0].score == pytest.approx(1.0)
    assert ranked[0].reasons == ("age +0.50 (1 day)", "named date x2.00")


def test_a_raised_score_orders_hits_and_is_1_at_most_in_an_entry():
    chosen = select([hit("a", 1.8), hit("b", 1.15)], MemorySettings(), least=0.2)
    assert [one.score for one in chosen] == [1.8, 1.15]
    assert [one.score for one in entries_of(chosen, (), str.split, 500)] == [1.0, 1.0]
    assert [one.score for one in entries_of([hit("a", 0.4)], (), str.split, 500)] == [0.4]


@pytest.mark.parametrize(
    ("relevance", "has_subject", "least", "shown"),
    [
        (0.8, True, 0.1, ["best", "2026-04-09"]),
        (0.2, True, 0.1, ["best", "2026-04-09"]),
        (0.09, True, 0.1, []),
        (0.02, True, 0.1, []),
        (0.02, False, 0.1, ["2026-04-09"]),  # "what did we do yesterday?"
        (0.02, True, None, ["best", "2026-04-09", "padding"]),  # a retriever that does not tell
    ],
)
def test_what_is_hardly_relevant_is_left_out(relevance, has_subject, least, shown):
    found = (hit("best", relevance), hit("2026-04-09", 0.4 * relevance), hit("padding", 0.2 * relevance))
    ranked = rank(HitPool(found), HitPool(), NAMED, None, MemorySettings())
    chosen = select(ranked, MemorySettings(), least=least, has_subject=has_subject)
    assert [one.id for one in chosen] == shown


def near_duplicates(texts):
    met = NearDuplicates()
    return {position for position, text in enumerate(texts) if met.has(text)}


def test_near_duplicates_are_dropped_after_the_first():
    texts = [
        "JC's dog Cookie loves carrots and hates ginger, he told us at dinner on Wednesday",
        "JC's dog Cookie loves carrots and hates ginger, he told us at dinner on  wednesday!",
        "JC's cat hates carrots",
        "",
        "",
    ]
    assert near_duplicates(texts) == {1, 4}


@given(st.lists(st.text(max_size=30), max_size=8))
def test_the_first_text_is_never_a_duplicate(texts):
    dropped = near_duplicates(texts)
    assert 0 not in dropped
    assert near_duplicates([text for position, text in enumerate(texts) if position not in dropped]) == set()


def test_tokens_are_estimated_for_every_script():
    assert (estimate_tokens(""), estimate_tokens("ginger tea"), estimate_tokens("生姜茶")) == (0, 3, 3)
