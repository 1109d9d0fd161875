"""Near-duplicates, and the estimate of tokens."""

from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import TextNode

from llama_index_contextual.memory.digest import MemoryEntry
from llama_index_contextual.memory.ranking import entries_of, estimate_tokens
from llama_index_contextual.retrieval import NearDuplicates


def test_a_raised_score_is_1_at_most_in_an_entry():
    hits = [MemoryEntry(TextNode(id_="a", text="tea"), score) for score in (1.8, 0.4)]
    assert [one.score for one in entries_of(hits, (), str.split, 500)] == [1.0, 0.4]


def near_duplicates(texts):
    met = NearDuplicates()
    return {position for position, text in enumerate(texts) if met.has(text, {})}


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
