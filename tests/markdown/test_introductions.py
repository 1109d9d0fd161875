"""A paragraph that introduces a list, fence, table or quote stays with it where the budget forces a cut nearby.

Each page is also read with a full stop in place of the colon: then it introduces nothing, and the cut moves.
"""

import pytest

from llama_index_contextual.chunking import ChunkSettings, split_markdown

BEFORE = "The first paragraph. " * 12  # 36 words: more than half of the budget
AFTER = "The last paragraph. " * 10
INTRODUCTION = "Do it as follows"
INTRODUCED = {
    "list": "\n".join(f"- item {n} of the list" for n in range(5)),
    "numbered list": "\n".join(f"{n}. item of the list" for n in range(1, 6)),
    "outline": "- one of the items\n  - below it more of them\n- two of the items\n  - below it more again",
    "fence": "```sh\nmake one two three four\nmake five six seven eight\nmake nine ten eleven twelve\nmake x y z\n```",
    "tildes": "~~~\nmake one two three four\nmake five six seven eight\nmake nine ten eleven twelve\nmake x y z\n~~~",
    "indented code": "    make one two three four\n" * 4 + "    make five",
    "table": "| one | two |\n|---|---|\n| a | b |\n| c | d |\n| e | f |",
    "quote": "> Nobody has ever said anything as wise as what is quoted here, in two lines\n"
    "> of words, which are well chosen, and well put.",
}


def chunks(text, **more):
    given = ChunkSettings(**{"chunk_size": 60, "chunk_overlap": 0, "min_chunk_size": 8, "tokenizer": str.split} | more)
    return [text[span.start : span.end] for span in split_markdown(text, settings=given)]


PLACES = [(what, "\n\n") for what in INTRODUCED]
# Right under a paragraph, an indented line is no code and a row with bars no table.
PLACES += [(what, "\n") for what in INTRODUCED if what not in {"indented code", "table"}]


@pytest.mark.parametrize(("what", "gap"), PLACES)
def test_the_cut_is_before_the_introduction(what, gap):
    introduced = f"{INTRODUCTION}:{gap}{INTRODUCED[what]}"
    found = chunks(f"{BEFORE}\n\n{introduced}\n\n{AFTER}")
    assert found[0] == BEFORE.strip()
    assert found[1].startswith(introduced)


@pytest.mark.parametrize("what", INTRODUCED)
def test_what_introduces_nothing_stays_with_what_is_before(what):
    found = chunks(f"{BEFORE}\n\n{INTRODUCTION}.\n\n{INTRODUCED[what]}\n\n{AFTER}")
    assert found[0].endswith(f"{INTRODUCTION}.")
    assert found[1].startswith(INTRODUCED[what])


def test_an_introduction_with_emphasis_or_a_trailing_space_counts_too():
    for introduction in (f"{INTRODUCTION}: ", f"**{INTRODUCTION}**:", f"[{INTRODUCTION}](x):"):
        found = chunks(f"{BEFORE}\n\n{introduction}\n\n{INTRODUCED['fence']}\n\n{AFTER}")
        assert [chunk.split("\n")[0] for chunk in found[:2]] == [BEFORE.strip(), introduction]


def test_a_list_is_cut_between_items_before_it_loses_its_introduction():
    few = "The first paragraph. " * 8  # 24 words: a cut before the introduction would leave a small chunk
    items = "\n".join(f"- item {n} of the long list" for n in range(12))
    found = chunks(f"{few}\n\n{INTRODUCTION}:\n\n{items}\n\n{AFTER}")
    assert f"{INTRODUCTION}:\n\n- item 0" in found[0]
    assert found[1].startswith("- item ")


def test_only_a_preference_where_both_do_not_fit():
    """The budget is exact: an introduction and a fence that do not fit together are parted, the fence stays whole."""
    fence = "```sh\n" + "make one two three four\n" * 11 + "```"
    found = chunks(f"{INTRODUCTION}:\n\n{fence}\n\n{AFTER}")
    assert found[:2] == [f"{INTRODUCTION}:", fence]


def test_overlap_does_not_part_them_either():
    text = f"{BEFORE}\n\n{INTRODUCTION}:\n\n{INTRODUCED['fence']}\n\n{AFTER}"
    found = chunks(text, chunk_overlap=12)
    assert f"{INTRODUCTION}:\n\n{INTRODUCED['fence']}" in found[1]


@pytest.mark.parametrize("what", ["fence", "tildes", "indented code", "table"])
def test_a_small_chunk_before_the_cut_is_better_than_a_parted_introduction(what):
    few = "The first paragraph. " * 6 + "Yes, indeed."  # 20 words: under half of the budget
    introduced = f"{INTRODUCTION}:\n\n{INTRODUCED[what]}"
    found = chunks(f"{few}\n\n{introduced}\n\n{AFTER}", chunk_size=44)
    assert found[0] == few
    assert found[1].startswith(introduced)


def test_overlap_gives_way_before_an_item_loses_its_paragraph():
    item = "- name of the field\n\n  " + "The field says what it says. " * 5
    text = "The first paragraph is long. " * 6 + f"\n\n{item}\n\n{AFTER}"
    found = chunks(text, chunk_size=37, chunk_overlap=7, min_chunk_size=4)
    assert item.strip() in found


def test_a_full_width_colon_introduces_too():
    text = f"{BEFORE}\n\n次のようにします\N{FULLWIDTH COLON}\n\n{INTRODUCED['list']}\n\n{AFTER}"
    assert chunks(text)[0] == BEFORE.strip()
    assert chunks(text.replace("\N{FULLWIDTH COLON}", "。"))[0] != BEFORE.strip()
