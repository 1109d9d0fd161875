"""How blocks and sentences are packed into chunks, and where a chunk overlaps the one before it."""

import pytest

from llama_index_contextual.node_parser.packing import ChunkSettings, split_markdown

SENTENCE = "A sentence of seven words stands here."  # 8 tokens


def pieces(text, **settings):
    """Return the texts of the chunks, and those of their overlaps."""
    defaults = {"chunk_size": 100, "chunk_overlap": 0, "min_chunk_size": 0}
    spans = split_markdown(text, settings=ChunkSettings(**(defaults | settings)))
    texts = [text[span.start : span.end] for span in spans]
    overlaps = [text[span.start : span.start + span.overlap].strip() for span in spans]
    return texts, overlaps


@pytest.mark.parametrize(("overlap", "sentences"), [(7, 0), (8, 1), (15, 1), (20, 2)])
def test_an_overlap_has_as_many_whole_sentences_as_fit(overlap, sentences):
    _, overlaps = pieces("\n\n".join([SENTENCE] * 40), chunk_overlap=overlap)
    assert {part.count(SENTENCE) for part in overlaps[1:]} == {sentences}


def test_the_last_sentences_of_a_paragraph_are_the_overlap_of_the_next():
    paragraph = " ".join([*["Few words."] * 10, SENTENCE])
    _, overlaps = pieces("\n\n".join([paragraph] * 8), chunk_overlap=10)
    assert set(overlaps[1:]) == {SENTENCE}


@pytest.mark.parametrize(
    "block",
    [
        "```python\n" + "value = compute(1, 2)\n" * 60 + "```",
        "| id | name |\n|---|---|\n" + "| 1 | of the ship |\n" * 60,
    ],
    ids=["fence", "table"],
)
def test_no_chunk_begins_with_lines_that_another_has_of_the_same_fence_or_table(block):
    texts, overlaps = pieces(block, chunk_overlap=30)
    assert len(texts) > 2
    assert set(overlaps) == {""}


def test_no_chunk_begins_inside_a_sentence_of_the_chunk_before():
    texts, overlaps = pieces("word " * 400, chunk_overlap=30)
    assert len(texts) > 2
    assert set(overlaps) == {""}


@pytest.mark.parametrize(
    ("words", "is_cut"), [(150, False), (199, False), (250, True), (390, True)]
)
def test_a_sentence_of_up_to_two_chunks_stays_whole(words, is_cut):
    texts, _ = pieces("word " * words)
    assert (len(texts) > 1) == is_cut


@pytest.mark.parametrize(("lines", "is_cut"), [(60, False), (85, False), (95, True)])
def test_a_fence_that_is_kept_may_have_eight_chunks(lines, is_cut):
    fence = "```python\n" + "value = compute(1, 2)\n" * lines + "```"
    texts, _ = pieces(fence, keep_blocks=True)
    assert (len(texts) > 1) == is_cut
    assert len(pieces(fence)[0]) > 1


def test_a_paragraph_is_not_cut_where_the_chunk_may_end_before_it():
    paragraph = " ".join([SENTENCE] * 5)  # 40 tokens
    texts, _ = pieces("\n\n".join([paragraph] * 7))
    assert [text.count(SENTENCE) for text in texts] == [10, 10, 10, 5]


def test_a_list_is_cut_before_an_outer_item():
    item = f"- {SENTENCE}\n  - {SENTENCE}\n  - {SENTENCE}\n"
    texts, _ = pieces(item * 12)
    assert len(texts) > 2
    assert all(text.startswith("- ") for text in texts)
