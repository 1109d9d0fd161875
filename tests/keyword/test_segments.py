"""Segments of a keyword index: merged, they answer as if they had been built at once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import TextNode

from llama_index_contextual.keyword import KeywordIndex
from llama_index_contextual.keyword import index as keyword_index
from llama_index_contextual.keyword.persistence import load_index, save_index
from llama_index_contextual.keyword.segments import merge_segments

WORDS = ("apple", "pear", "plum", "quince")


def note(number, words):
    return TextNode(id_=f"note-{number}", text=" ".join(words), metadata={"part": number % 3})


texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=6), min_size=1, max_size=8)


@given(parts=st.lists(texts, min_size=1, max_size=4), data=st.data())
def test_a_merged_segment_is_that_of_the_documents_that_are_left(parts, data):
    index, number, added = KeywordIndex(), 0, []
    for part in parts:
        nodes = [note(number := number + 1, words) for words in part]
        index.add(nodes)
        added += nodes
    gone = {node.node_id for node in added if data.draw(st.booleans())}
    left = [node for node in added if node.node_id not in gone]
    index.delete(gone)
    once = KeywordIndex()
    once.add(left)
    segments = index.snapshot.segments
    if not left:
        assert segments == ()
        return
    merged, expected = merge_segments(segments), once.snapshot.segments[0]
    assert merged.ids == expected.ids
    assert merged.lengths.tolist() == expected.lengths.tolist()
    for word in WORDS:
        for one, other in zip(
            merged.entries(index.snapshot.terms.number(term := index.analyzer.tokens(word)[0])),
            expected.entries(once.snapshot.terms.number(term)),
            strict=True,
        ):
            assert one.tolist() == other.tolist()
            assert one.dtype == other.dtype
    for row in range(len(merged)):
        assert merged.records[row] == expected.records[row]
        assert merged.order[row].tolist() == expected.order[row].tolist()
        assert merged.columns.value("part", row) == expected.columns.value("part", row)


def test_segments_from_disk_whose_terms_have_other_numbers_merge_with_new_ones(tmp_path):
    kept = KeywordIndex()
    kept.add([note(1, ("quince", "plum")), note(2, ("pear",))])
    kept.add([note(3, ("plum", "pear", "plum"))])
    kept.delete(["note-1"])
    save_index(kept, tmp_path)
    index, _ = load_index(tmp_path)
    index.add([note(4, ("quince", "apple"))])
    merged = merge_segments(index.snapshot.segments)
    plum = index.snapshot.terms.number(index.analyzer.tokens("plum")[0])
    assert merged.ids == ("note-2", "note-3", "note-4")
    assert [part.tolist() for part in merged.entries(plum)] == [[1], [2]]


def test_large_segments_are_merged_no_more(monkeypatch):
    monkeypatch.setattr(keyword_index, "_SMALLEST", 4)
    monkeypatch.setattr(keyword_index, "_LARGEST", 64)
    index = KeywordIndex()
    for start in range(0, 1000, 4):
        index.add([note(number, (WORDS[number % 4],)) for number in range(start, start + 4)])
    sizes = [len(segment) for segment in index.snapshot.segments]
    assert sum(sizes) == 1000
    assert sizes[:15] == [64] * 15
    assert len(sizes) <= 15 + 3 * 3
    pears = index.snapshot.terms.number(index.analyzer.tokens("pear")[0])
    assert np.sum([len(segment.entries(pears)[0]) for segment in index.snapshot.segments]) == 250
