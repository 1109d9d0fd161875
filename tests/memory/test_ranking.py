"""Near-duplicates, and the estimate of tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import TextNode

from llama_index_contextual.memory.digest import MemoryEntry
from llama_index_contextual.memory.ranking import (
    best_first,
    unseen_hits,
    without_repetitions,
)
from llama_index_contextual.memory.snippets import estimate_tokens, with_snippets


def test_a_raised_score_is_1_at_most_in_an_entry():
    hits = [MemoryEntry(TextNode(id_="a", text="tea"), score) for score in (1.8, 0.4)]
    assert [entry.score for entry in with_snippets(hits, (), 500)] == [1.0, 0.4]


def test_hits_with_equal_scores_are_sorted_by_id():
    scores = {"b": 0.5, "c": 0.9, "a": 0.5}
    hits = [MemoryEntry(TextNode(id_=name, text="tea"), score) for name, score in scores.items()]
    assert [hit.id for hit in best_first(hits)] == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("seen", "unseen"),
    [
        ([], ["a", "b"]),
        (["a"], ["b"]),
        (["a.md#L3-L5"], ["b"]),
        (["a.md#L1-L5"], ["b"]),  # with its front matter
        (["a.md"], ["a", "b"]),
    ],
)
def test_a_hit_that_was_shown_is_recognized_by_its_id_or_citations(seen, unseen):
    lines = {"start_line": 3, "end_line": 5}
    hits = [
        MemoryEntry(TextNode(id_=name, text="tea", metadata={"path": f"{name}.md", **lines}), 1.0)
        for name in "ab"
    ]
    assert [hit.id for hit in unseen_hits(hits, seen)] == unseen


def test_texts_that_only_differ_in_case_are_repetitions():
    assert near_duplicates(["Tea is at four.", "TEA IS AT FOUR."]) == {1}


def near_duplicates(texts):
    """Return the positions of the texts that repeat an earlier one."""
    hits = [
        MemoryEntry(TextNode(id_=str(position), text=text), 1.0)
        for position, text in enumerate(texts)
    ]
    kept = {hit.id for hit in without_repetitions(hits, len(hits))}
    return {position for position in range(len(texts)) if str(position) not in kept}


def test_near_duplicates_are_dropped_after_the_first():
    texts = [
        "JC's dog Cookie loves carrots and hates ginger, he told us at dinner on Wednesday",
        "JC's dog Cookie loves carrots and hates ginger, he told us at dinner on  wednesday!",
        "JC's cat hates carrots",
        "",
        "",
    ]
    assert near_duplicates(texts) == {1, 4}


def test_texts_with_four_of_five_word_pairs_in_common_are_repetitions():
    words = "tea is at four on Sundays"
    assert near_duplicates([words, "tea is at four on"]) == {1}
    assert near_duplicates([words, "tea is at four"]) == set()


def test_the_next_chunk_of_a_session_replaces_a_repeated_one():
    plan, packing, lunch = (
        "day one: the wall, by cable car",
        "we packed on Friday",
        "lunch was noodles",
    )
    chunks = [
        ("a", plan),
        ("b", plan),
        ("c", lunch),
        ("b", packing),
        ("b", "we packed twice"),
        ("a", "the visa came"),
    ]
    hits = [
        MemoryEntry(TextNode(text=text, metadata={"path": f"{name}.md"}), 1.0 / place)
        for place, (name, text) in enumerate(chunks, 1)
    ]
    chosen = without_repetitions(hits, 3, by_session=True)
    assert [(entry.path, entry.node.text) for entry in chosen] == [
        ("a.md", plan),
        ("b.md", packing),
        ("c.md", lunch),
    ]
    assert [entry.node.text for entry in without_repetitions(hits, 3)] == [plan, lunch, packing], (
        "a question asks for chunks"
    )


def test_a_session_with_a_hit_gets_no_replacement():
    chunks = [("a", "the plan"), ("a", "the plan"), ("c", "lunch"), ("a", "the visa came")]
    hits = [
        MemoryEntry(TextNode(text=text, metadata={"path": f"{name}.md"}), 1.0 / place)
        for place, (name, text) in enumerate(chunks, 1)
    ]
    chosen = without_repetitions(hits, 2, by_session=True)
    assert [entry.node.text for entry in chosen] == ["the plan", "lunch"]


def test_two_days_in_a_note_are_two_sessions():
    chunks = [("05", "the plan"), ("06", "the plan"), ("07", "lunch"), ("06", "we packed")]
    hits = [
        MemoryEntry(TextNode(text=text, metadata={"path": "log.md", "date": f"2026-04-{day}"}), 1.0)
        for day, text in chunks
    ]
    chosen = without_repetitions(hits, 2, by_session=True)
    assert [entry.node.text for entry in chosen] == ["the plan", "we packed"]


def test_a_hit_names_the_places_of_equal_texts_but_not_of_similar_ones():
    texts = {"a": "Tea is at four on Sundays.", "d": "Tea  is at four on Sundays."}
    texts |= dict.fromkeys("bc", texts["a"])
    hits = [
        MemoryEntry(TextNode(text=texts[name], metadata={"path": f"{name}.md"}), 1.0)
        for name in "abcd"
    ]
    [hit] = without_repetitions(hits, 4)
    assert hit.also_at == ("b.md", "c.md")


@given(st.lists(st.text(max_size=30), max_size=8))
def test_the_first_text_is_never_a_duplicate(texts):
    dropped = near_duplicates(texts)
    assert 0 not in dropped
    assert (
        near_duplicates([text for position, text in enumerate(texts) if position not in dropped])
        == set()
    )


def test_tokens_are_estimated_for_every_script():
    assert (estimate_tokens(""), estimate_tokens("ginger tea"), estimate_tokens("生姜茶")) == (
        0,
        3,
        3,
    )


def test_later_hits_can_use_the_budget_that_a_short_hit_left():
    long_text = "The tea is green, and the cup is blue. " * 60
    texts = {"a": "Tea.", "b": "Tea at five.", "c": long_text}
    hits = [MemoryEntry(TextNode(id_=name, text=text), 1.0) for name, text in texts.items()]
    *_, last = with_snippets(hits, (), 300)
    assert estimate_tokens(last.snippet) > 200


@pytest.mark.parametrize("max_tokens", [150, 400])
def test_all_lines_together_stay_within_the_budget(max_tokens):
    long_text = "The tea is green, and the cup is blue. " * 60
    hits = [MemoryEntry(TextNode(id_=name, text=f"{name}. {long_text}"), 1.0) for name in "abcd"]
    entries = with_snippets(hits, (), max_tokens)
    lengths = [estimate_tokens(entry.block) for entry in entries]
    assert len(entries) == 4
    assert max_tokens / 2 < sum(lengths) <= max_tokens * 1.1


def test_a_hit_has_the_date_of_the_heading_above_its_quotation():
    node = TextNode(
        text="## 2026-01-05\n\nTea is at four.", metadata={"path": "log.md", "date": "2026-04-01"}
    )
    [entry] = with_snippets([MemoryEntry(node, 1.0, {"tea": 1.0})], (("tea",),), 100)
    assert entry.date == "2026-01-05"
