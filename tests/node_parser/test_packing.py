"""How blocks and sentences are packed into chunks, and how chunks overlap."""

import re
import textwrap

import pytest
from llama_index.core import Document

from llama_index_contextual import HeadingAwareMarkdownNodeParser
from llama_index_contextual.node_parser.packing import ChunkSettings, split_markdown

SENTENCE = "A sentence of seven words stands here."  # 8 tokens
FENCE = "```python\n" + "value = compute(1, 2)\n" * 60 + "```"
TABLE = "| id | name |\n|---|---|" + "\n| 1 | of the ship |" * 60


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


@pytest.mark.parametrize("block", [FENCE, TABLE], ids=["fence", "table"])
def test_no_chunk_repeats_lines_of_a_fence_or_table(block):
    texts, overlaps = pieces(block, chunk_overlap=30)
    assert len(texts) > 2
    assert set(overlaps) == {""}


def test_no_chunk_begins_inside_a_sentence_of_the_chunk_before():
    texts, overlaps = pieces("word " * 400, chunk_overlap=30)
    assert len(texts) > 2
    assert set(overlaps) == {""}


@pytest.mark.parametrize(("words", "is_cut"), [(150, False), (200, False), (201, True)])
def test_a_sentence_of_up_to_twice_the_chunk_size_stays_whole(words, is_cut):
    texts, _ = pieces("word " * words, tokenizer=str.split)
    assert (len(texts) > 1) == is_cut


@pytest.mark.parametrize("block", [FENCE, TABLE], ids=["fence", "table"])
def test_a_kept_fence_or_table_can_be_eight_times_the_chunk_size(block):
    text = f"Words before it.\n\n{block}\n\nWords after it.\n"
    [whole] = split_markdown(block, settings=ChunkSettings(chunk_size=10_000))
    smallest_size = -(-whole.tokens // 8)
    assert block in pieces(text, chunk_size=smallest_size, keep_blocks=True)[0]
    assert block not in pieces(text, chunk_size=smallest_size - 1, keep_blocks=True)[0]
    assert block not in pieces(text, chunk_size=smallest_size)[0]


def test_a_paragraph_is_not_split_if_the_chunk_can_end_before_it():
    paragraph = " ".join([SENTENCE] * 5)  # 40 tokens
    texts, _ = pieces("\n\n".join([paragraph] * 7))
    assert [text.count(SENTENCE) for text in texts] == [10, 10, 10, 5]


def test_a_chunk_is_at_least_half_full_where_sentences_allow_it():
    long_paragraph = "This sentence has five words. " * 30
    texts, _ = pieces(f"{'word ' * 30}\n\n{long_paragraph}", tokenizer=str.split)
    assert len(texts[0].split()) == 100


@pytest.mark.parametrize(("words", "first_chunk"), [(49, 99), (50, 50)])
def test_a_chunk_ends_with_a_paragraph_that_fills_half_of_it(words, first_chunk):
    long_paragraph = "This sentence has five words. " * 30
    texts, _ = pieces(f"{'word ' * words}\n\n{long_paragraph}", tokenizer=str.split)
    assert len(texts[0].split()) == first_chunk


def test_a_chunk_that_cannot_be_half_full_ends_with_the_last_sentence_that_fits():
    paragraph = f"{'word ' * 29}end. {'word ' * 79}end."
    texts, _ = pieces(f"{'word ' * 10}\n\n{paragraph}", tokenizer=str.split)
    assert [len(text.split()) for text in texts] == [40, 80]


def test_an_overlap_that_leaves_no_space_for_the_next_sentence_is_left_out():
    long_sentence = f"{'word ' * 94}end."
    texts, overlaps = pieces(
        f"{'This sentence has five words. ' * 20}\n\n{long_sentence}",
        chunk_overlap=20,
        tokenizer=str.split,
    )
    assert texts[-1] == long_sentence
    assert overlaps[-1] == ""


def test_no_chunk_begins_with_the_whole_chunk_before():
    first = f"{'word ' * 59}end."
    texts, _ = pieces(
        f"{first}\n\n{'This sentence has five words. ' * 30}",
        chunk_overlap=70,
        tokenizer=str.split,
    )
    assert texts[0] == first
    assert not texts[1].startswith(first)


def test_a_paragraph_is_cut_where_it_does_not_fit_below_all_of_its_headings():
    headings = f"# {'word ' * 10}\n\n## Two\n\n"  # 13 tokens
    text = f"{headings}{'This sentence has five words. ' * 18}"  # 90 tokens
    texts, _ = pieces(text, tokenizer=str.split)
    assert max(len(chunk.split()) for chunk in texts) <= 100


def test_headings_without_text_share_chunks():
    text = "\n\n".join(f"# Heading {number} of the guide" for number in range(40))
    texts, _ = pieces(text, chunk_size=20, tokenizer=str.split)
    assert [chunk.count("#") for chunk in texts] == [3] * 13 + [1]


def test_no_chunk_exceeds_the_size_if_a_tokenizer_also_counts_breaks_between_paragraphs():
    def words_and_breaks(text):
        return re.findall(r"\S+|\n\n(?=\S)", text)

    paragraph = " ".join([SENTENCE] * 2)  # 14 words
    texts, _ = pieces("\n\n".join([paragraph] * 30), tokenizer=words_and_breaks)
    assert {len(words_and_breaks(text)) for text in texts[:-1]} == {6 * 15 - 1}


def test_a_word_is_cut_into_pieces_that_fit_whatever_a_character_costs():
    def four_tokens_for_each_character(text):
        return 4 * text

    texts, _ = pieces("x" * 100, chunk_size=40, tokenizer=four_tokens_for_each_character)
    assert {len(text) for text in texts} == {10}


def test_a_rule_is_never_cut():
    rule = "-" * 70
    texts, _ = pieces(f"Words.\n\n{rule}\n\nWords.", chunk_size=30, tokenizer=len)
    assert any(rule in text for text in texts)


def test_an_overlap_has_no_sentences_of_html():
    html = f"<div>\n{'Few words.' * 8}\n</div>"
    texts, overlaps = pieces(f"{html}\n\n" * 8, chunk_overlap=10)
    assert len(texts) > 2
    assert set(overlaps) == {""}


def test_a_table_below_a_heading_that_is_kept_names_its_header_row():
    text = f"## Crew\n\n{TABLE}"
    settings = ChunkSettings(chunk_size=100, chunk_overlap=0, keep_blocks=True)
    [span] = split_markdown(text, settings=settings)
    assert span.tokens > 100
    assert span.continues == "| id | name |"


def test_a_chunk_whose_overlap_has_the_header_row_does_not_name_it_again():
    rows = "".join(f"| {number} | some more words |\n" for number in range(8))
    text = f"Five words are up here.\n\nRows:\n\n| a | b |\n|---|---|\n{rows}"
    settings = ChunkSettings(40, 30, min_chunk_size=0, tokenizer=str.split)
    _, second, third = split_markdown(text, settings=settings)
    assert text[second.start :].startswith("Rows:")
    assert (second.continues, third.continues) == ("", "| a | b |")


def test_the_end_of_a_fence_is_not_a_chunk():
    fence = "```\n" + "five words stand right here\n" * 5 + "```"
    texts, _ = pieces(fence, chunk_size=10, tokenizer=str.split)
    assert texts[-1] == "five words stand right here\n```"


def test_a_long_word_is_not_split_if_words_before_it_fill_half_a_chunk():
    texts, _ = pieces("abcd " * 12 + "x" * 60 + " abcd" * 30, tokenizer=len)
    assert any("x" * 60 in text for text in texts)


def test_the_header_row_on_later_pieces_of_a_table_is_bounded():
    table = f"| {'name ' * 200} | id |\n|---|---|\n" + "| of the ship | 1 |\n" * 60
    spans = split_markdown(table, settings=ChunkSettings(chunk_size=100, chunk_overlap=0))
    assert {len(span.continues) for span in spans[1:]} == {300}


def test_a_heading_stays_with_a_sentence_that_fills_twice_a_chunk():
    text = f"## Two\n\n{'word ' * 17}end."  # 20 tokens
    assert pieces(text, chunk_size=10, tokenizer=str.split)[0] == [text]


def test_a_heading_stays_with_the_words_of_a_longer_sentence():
    text = f"## Two\n\n{'word ' * 18}end."  # 21 tokens
    texts, _ = pieces(text, chunk_size=10, tokenizer=str.split)
    assert texts[0].startswith("## Two\n\nword word")
    assert len(texts) > 1


def test_encoded_bytes_among_words_are_not_split():
    picture = "data:image/png;base64," + "iVBORw0KGgo9" * 40
    texts, _ = pieces(f"{'word ' * 30}{picture}{' word' * 30}", chunk_size=10, tokenizer=str.split)
    assert any(picture in text for text in texts)


def test_white_space_that_is_text_in_markdown_is_not_a_chunk():
    texts, _ = pieces("abcdefghi.\n\n" + "\x1c" * 4, chunk_size=12, tokenizer=len)
    assert texts == ["abcdefghi."]


def test_an_overlap_does_not_begin_with_a_rule():
    text = f"## One\n\n---\n\nA few short words.\n\n{'word ' * 14}end.\n"
    texts, _ = pieces(text, chunk_size=20, chunk_overlap=15, tokenizer=str.split)
    assert [chunk[:5] for chunk in texts] == ["## On", "A few"]


LARGE_SECTION = "## Income\n\nHere are four words.\n\n" + "These are five more words. " * 8


def spans_of_merged_sections(small_section, **settings):
    text = f"# Report\n\n## Bank\n\n{small_section}\n\n{LARGE_SECTION}"
    given = ChunkSettings(min_chunk_size=0, min_section_size=20, tokenizer=str.split, **settings)
    return [(text[span.start : span.end], span) for span in split_markdown(text, settings=given)]


def test_a_chunk_that_begins_with_the_heading_of_a_merged_section_has_its_path_and_no_overlap():
    twelve_words = "Six words of the first part. " * 2
    text, span = spans_of_merged_sections(twelve_words, chunk_size=17, chunk_overlap=10)[1]
    assert text.startswith("## Income")
    assert [heading.title for heading in span.path] == ["Report", "Income"]


def test_a_chunk_that_begins_inside_a_section_has_its_path_although_it_ends_in_another():
    last_words = "These are the last words."
    income = f"{LARGE_SECTION}These are five more words. {last_words}"
    text = f"# Report\n\n{income}\n\n## Bank\n\nSix words of the last part.\n"
    settings = ChunkSettings(17, 0, min_chunk_size=0, min_section_size=20, tokenizer=str.split)
    last = split_markdown(text, settings=settings)[-1]
    assert text[last.start : last.end].startswith(last_words)
    assert [heading.title for heading in last.path] == ["Report", "Income"]
    assert [heading.title for heading in last.open_path] == ["Report", "Bank"]


def test_an_overlap_does_not_reach_over_the_heading_of_a_merged_section():
    six_words = "Six words of the first part."
    spans = spans_of_merged_sections(six_words, chunk_size=24, chunk_overlap=20)
    texts = [text for text, _ in spans]
    assert six_words in texts[0]
    assert "Here are four words." in texts[0]
    assert texts[1].startswith("Here are four words.")


@pytest.mark.parametrize("between", ["", "---\n\n"], ids=["text", "a rule and text"])
def test_a_heading_is_not_a_chunk_without_the_text_below_it(between):
    texts, _ = pieces(f"# Guide\n\n{between}{'word ' * 99}", tokenizer=str.split)
    assert len(texts) == 1


def test_a_rule_is_not_a_chunk_without_the_text_above_it():
    texts, _ = pieces(f"{'word ' * 100}\n\n---\n\nWords.", tokenizer=str.split)
    assert [text[-3:] for text in texts] == ["---", "ds."]


def test_two_rules_in_a_row_end_the_chunk_above():
    texts, _ = pieces("She sails.\n\n---\n\n---\n\nShe rests.")
    assert texts == ["She sails.\n\n---\n\n---", "She rests."]


def test_a_list_stays_with_the_words_that_introduce_it():
    items = "- five words of an item\n" * 10
    text = f"{'word ' * 55}\n\nThey are as follows:\n\n{items}"
    texts, _ = pieces(text, tokenizer=str.split)
    assert texts[1].startswith("They are as follows:")


def test_a_list_with_tabs_is_split_before_the_first_line_of_an_item():
    text = "- Top.\n" + "\t- first line of it\n\tsecond line of it\n" * 30
    texts, _ = pieces(text, chunk_size=40, tokenizer=str.split)
    assert len(texts) > 3
    assert {chunk.split("\n")[0] for chunk in texts[1:]} == {"\t- first line of it"}


@pytest.mark.parametrize("size", [60, 80, 100, 110])
def test_a_list_is_split_before_an_outer_item(size):
    item = f"- {SENTENCE}\n  - {SENTENCE}\n  - {SENTENCE}\n"
    texts, _ = pieces(item * 12, chunk_size=size)
    assert len(texts) > 2
    assert all(text.startswith("- ") for text in texts)


@pytest.mark.parametrize("size", range(16, 60))
def test_a_table_keeps_its_head_and_first_row_and_a_fence_its_ends(size):
    table = "| id | name of it |\n|----|----|\n" + "| 1 | of the ship |\n" * 30
    texts, _ = pieces(table, chunk_size=size)
    assert len(texts) > 1
    assert texts[0].count("\n") >= 2
    fence = "```python\n" + "value = compute(1, 2)\n" * 30 + "```"
    texts, _ = pieces(fence, chunk_size=size)
    assert len(texts) > 1
    assert texts[0] != "```python"
    assert texts[-1] != "```"


def test_only_the_first_line_of_a_fence_stays_with_the_next():
    line = "five words stand right here\n"
    texts, _ = pieces(f"```\n{line}{line}{line}```", chunk_size=8, tokenizer=str.split)
    assert texts[0] == f"```\n{line}".strip()


def test_an_endless_sentence_is_split_between_words():
    texts, _ = pieces("harbour " * 400)
    assert len(texts) > 2
    assert {word for text in texts for word in text.split()} == {"harbour"}


def test_a_chunk_has_the_headings_above_its_first_words():
    below = " ".join([SENTENCE] * 2)
    text = f"# Log\n\n{SENTENCE}\n\n## Ships\n\n{below}\n\n## Crews\n\n{below}\n"
    [span] = split_markdown(text, settings=ChunkSettings(chunk_size=400, min_section_size=200))
    assert [heading.title for heading in span.path] == ["Log"]
    assert [heading.title for heading in span.open_path] == ["Log", "Crews"]
    siblings = f"## Ships\n\n{below}\n\n## Crews\n\n{below}\n"
    [span] = split_markdown(siblings, settings=ChunkSettings(chunk_size=400, min_section_size=200))
    assert span.path == ()


@pytest.mark.parametrize(
    ("settings", "count"),
    [({"markdown": True}, 2), ({"markdown": False}, 1)],
    ids=["Markdown", "plain"],
)
def test_a_plain_text_has_no_headings(settings, count):
    text = f"# Ships\n\n{SENTENCE}\n\n# Crews\n\n{SENTENCE}\n"
    assert len(split_markdown(text, settings=ChunkSettings(), **settings)) == count


def test_a_plain_text_is_split_between_paragraphs_and_not_between_lines():
    paragraph = "\n".join([SENTENCE] * 6)  # 48 tokens
    text = "\n\n".join([paragraph] * 6)
    spans = split_markdown(
        text, settings=ChunkSettings(chunk_size=120, chunk_overlap=0), markdown=False
    )
    assert {text[span.start : span.end] for span in spans} == {f"{paragraph}\n\n{paragraph}"}


@pytest.mark.parametrize("markdown", [True, False], ids=["Markdown", "plain"])
def test_a_text_without_blank_lines_is_split_between_lines(markdown):
    sentence_counts = [3, 4, 3, 4, 3, 4, 6]
    lines = [" ".join([SENTENCE] * count) for count in sentence_counts]
    text = "\n".join(lines)
    settings = ChunkSettings(chunk_size=100, chunk_overlap=0)
    spans = split_markdown(text, settings=settings, markdown=markdown)
    texts = [text[span.start : span.end] for span in spans]
    assert texts == ["\n".join(lines[:3]), "\n".join(lines[3:6]), lines[6]]


def test_a_wrapped_text_is_split_between_sentences():
    text = " ".join(["All Ships Of The Fleet Sail Home Today."] * 60)
    texts, _ = pieces(textwrap.fill(text, width=70))
    assert len(texts) > 2
    assert all(part.endswith("Today.") for part in texts)


@pytest.mark.parametrize(
    ("above", "count"), [("The ship is in now", 2), ("The ship is in then", 1)]
)
def test_a_line_goes_on_with_the_line_above_if_its_first_word_would_not_have_fit_there(
    above, count
):
    widest = "Seventh day of the voyage."  # 18 + 1 + 7 characters
    texts, _ = pieces(f"{above}\n{widest}", chunk_size=30, tokenizer=len)
    assert len(texts) == count


def test_a_line_that_begins_with_a_small_letter_goes_on_with_the_sentence_above():
    texts, _ = pieces("The ship sails home,\nand the crew sleeps now.\n" * 40)
    assert len(texts) > 2
    assert all(part.endswith("sleeps now.") for part in texts)


def test_a_plain_text_keeps_the_indentation_of_its_first_line():
    text = "\n\n    Tea at four.\n  Milk.\n"
    [span] = split_markdown(text, markdown=False)
    assert text[span.start : span.end] == "    Tea at four.\n  Milk."


def test_a_text_that_is_read_as_plain_text_has_no_headings():
    text = f"# Ships\n\n{SENTENCE}\n\n# Crews\n\n{SENTENCE}\n"
    [node] = HeadingAwareMarkdownNodeParser(semantic=False)([Document(text=text)])
    assert (node.text, node.metadata["header_path"]) == (text.strip(), "")


def test_a_byte_order_mark_is_not_text():
    assert split_markdown("\ufeff") == []
    [span] = split_markdown("\ufeffTea at four.")
    assert span.start == 1


def test_a_picture_alone_is_not_a_chunk():
    data = "A" * 4000
    assert split_markdown(f"![](data:image/png;base64,{data})\n") == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("# Ships\n\n## Aurora\n\nShe sails.\n\n## Bergen\n\nShe rests.\n", 1),
        ("# Ships\n\n## Aurora\n\nShe sails.\n\n# Crews\n\n## Ann\n\nShe rests.\n", 2),
        ("# Ships\n\nShe sails.\n\n---\n\nShe rests.\n", 2),
        ("# Log\n\n## 2026-01-05\n\nShe sails.\n\n## 2026-01-06\n\nShe rests.\n", 2),
        ("# Log\n\n## 2026-01-05\n\nShe sails.\n\n## Plans\n\nShe rests.\n", 2),
    ],
    ids=["siblings", "other parents", "a rule", "other days", "no day"],
)
def test_small_sections_merge_with_siblings_of_the_same_date_but_not_across_a_rule(text, count):
    assert len(pieces(text, min_section_size=60)[0]) == count
