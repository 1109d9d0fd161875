import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.memory.ranking import estimate_tokens, merge_scores, near_duplicates


def test_the_best_query_counts_and_agreement_is_a_tiebreaker():
    merged, agreed = merge_scores([{"a": 0.5, "b": 0.6}, {"a": 0.2, "c": 0.1}, {"a": 0.1}])
    assert agreed == {"a"}
    assert merged == pytest.approx({"a": 0.5 * 1.15, "b": 0.6, "c": 0.1})  # 1.15 once, however many agree


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
