"""Sections with different dates stay apart; also fences, tables and rules in special cases."""

import pytest
from llama_index.core import Document

from llama_index_contextual import ContextualNodePostprocessor, HeadingAwareMarkdownNodeParser
from llama_index_contextual.node_parser.packing import ChunkSettings, split_markdown

JOURNAL = "# Journal\n\n" + "".join(
    f"## 2026-11-{day}\n\nFact of the {day}th.\n\n" for day in (18, 19, 20)
)


def nodes(text, **settings):
    return HeadingAwareMarkdownNodeParser(**settings)([Document(text=text)])


def words(text, **settings):
    given = ChunkSettings(
        **{"chunk_overlap": 0, "min_chunk_size": 0, "tokenizer": str.split} | settings
    )
    return [text[span.start : span.end] for span in split_markdown(text, settings=given)]


def test_each_day_is_a_chunk_with_its_date_however_short_it_is():
    chunks = nodes(JOURNAL, min_section_size=300)
    assert [node.metadata["date"] for node in chunks] == ["2026-11-18", "2026-11-19", "2026-11-20"]
    assert all(f"Fact of the {node.metadata['date'][-2:]}th." in node.text for node in chunks)
    assert chunks[0].text.startswith("# Journal")  # a bare heading belongs to what follows
    assert chunks[1].metadata["header_path"] == "Journal > 2026-11-19"


def test_two_entries_of_one_day_are_two_chunks_with_that_date():
    text = "## 2026-11-18 morning\n\nRain.\n\n## 2026-11-18 evening\n\nSun.\n"
    for settings in ({}, {"min_section_size": 300}):
        assert [node.metadata["date"] for node in nodes(text, **settings)] == ["2026-11-18"] * 2


def test_an_undated_section_joins_no_dated_one():
    text = "Notes of a week.\n\n## 2026-11-18\n\nRain.\n\n### Tasks\n\nNone.\n\n## Ideas\n\nMany.\n"
    chunks = nodes(text, min_section_size=100)
    assert [node.metadata.get("date") for node in chunks] == [None, "2026-11-18", None]
    assert "None." in chunks[1].text  # a section under the day's heading belongs to that day


@pytest.mark.parametrize(
    ("above", "path"),
    [
        ("# Journal", "2026-03-01"),
        ("# 2026\n\n# March", "2026-03-01"),
        ("# Journal\n\n## March", "Journal > 2026-03-01"),
    ],
)
def test_titles_above_the_first_dated_heading_do_not_change_its_date(above, path):
    level = "##" if ">" in path else "#"
    [chunk] = nodes(f"{above}\n\n{level} 2026-03-01\n\nRain.\n")
    assert (chunk.metadata["date"], chunk.metadata["header_path"]) == ("2026-03-01", path)


def test_empty_days_stay_apart():
    chunks = nodes("# Journal\n\n## 2026-11-18\n\n## 2026-11-19\n\nSun.\n\n## 2026-11-20\n")
    assert [node.metadata["date"] for node in chunks] == ["2026-11-18", "2026-11-19", "2026-11-20"]


def test_a_sentence_stays_whole_however_long_the_text_before_its_heading():
    sentence = "This sentence has a few more words than a chunk should have."
    text = f"{'word ' * 90}\n\n## 2026-11-18\n## 2026-11-19\n\n{sentence}\n"
    assert words(text, chunk_size=10)[-1].endswith(sentence)


def test_a_rule_ends_a_chunk():
    text = "# Notes\n\n---\n\nOne.\n\n---\n\nTwo.\n\n***\n\n## Three\n\nThree.\n"
    assert words(text, min_chunk_size=20) == [
        "# Notes\n\n---\n\nOne.\n\n---",
        "Two.\n\n***",
        "## Three\n\nThree.",
    ]
    assert {node.metadata["header_path"] for node in nodes(text)} == {"Notes", "Notes > Three"}


def test_a_rule_below_the_first_paragraph_ends_a_chunk():
    assert words("One.\n\n---\n\nTwo.\n") == ["One.\n\n---", "Two."]


@pytest.mark.parametrize(("min_chunk_size", "count"), [(4, 3), (5, 2)])
def test_many_tags_are_text(min_chunk_size, count):
    text = "## One\n\nFew words.\n\n## Two\n\n#a #b #c #d\n\n## Three\n\nFew words.\n"
    assert len(words(text, min_chunk_size=min_chunk_size)) == count


def test_a_rule_right_below_a_heading_does_not_end_a_chunk():
    text = "## One\n\n---\n\nFew words.\n\n## Two\n\n---\n\nFew words.\n"
    assert len(words(text, min_section_size=60)) == 1


@pytest.mark.parametrize(
    ("heading", "day"),
    [
        ("2026-03-01 Follow-up on the 2026-02-20 outage", "2026-03-01"),
        ("2026-03-02: plan for the 2026-06-30 release", "2026-03-02"),
        ("2026-03-03 (was 2026-02-27)", "2026-03-03"),
        ("21.01.2024", "2024-01-21"),
        ("Standup, 3.4.2026", "2026-04-03"),
        ("Release v1.2.2024", None),
        ("31.02.2024", None),
    ],
)
def test_the_first_date_of_a_heading_is_its_day(heading, day):
    [node] = nodes(f"# Log\n\n## {heading}\n\nDisk replaced.\n")
    assert node.metadata.get("date") == day


def test_an_undated_section_has_no_date_in_its_context():
    text = (
        "# 2024-02-29\n\nDentist.\n\n# Ideas\n\nA birdhouse.\n\n# 2024-03-05\n\nRain.\n\n# "
        "Recipes\n\nSoup.\n"
    )
    chunks = ContextualNodePostprocessor()(nodes(text, min_chunk_size=1))
    assert [(node.metadata.get("date"), "2024" in node.metadata["context"]) for node in chunks] == [
        ("2024-02-29", True),
        (None, False),
        ("2024-03-05", True),
        (None, False),
    ]


@pytest.mark.parametrize(
    ("front", "day"),
    [
        ("created: 2019-05-05\ndue: 2030-01-01", "2019-05-05"),
        ("due: 2030-01-01\nupdated: 2029-01-01", None),
        ("date: 2020-01-01\ncreated: 2019-05-05", "2020-01-01"),
        ("created: soon\ndate created: 2019-05-05T10:00", "2019-05-05"),
        ("due: 2030-01-01\ncreatedAt: 'February 29, 2024'", "2024-02-29"),
        ("date created: Thursday, February 29th 2024, 10:15:00 am", "2024-02-29"),
        ("publishDate: 20240229", "2024-02-29"),
        ("data: 29 de fevereiro de 2024", "2024-02-29"),
        ("data: s3://bucket/2019/01/02/x.parquet\ncreated: 2024-02-29", "2024-02-29"),
        ("created: 2024-02-29\ndata: 2019-01-01", "2024-02-29"),
        ("erstellt am: 29.02.2024", "2024-02-29"),
        ("日付: 2024年2月29日", "2024-02-29"),
        ("date: [[2024-02-29]]", "2024-02-29"),
        ("creation-date: [2024-02-29]", "2024-02-29"),
        ("created: 1709164800", "2024-02-29"),
        ("pubDatetime: 2024-02-29T10:00:00Z", "2024-02-29"),
        ("published_on: 2030-01-01\ncreated-on: 2024-02-29", "2024-02-29"),
        ("date: 28 February to 2 March 2024", "2024-02-28"),
        ("date: 2024-02", "2024-02-01/2024-02-29"),
        ("date: 2024-W09", "2024-02-26/2024-03-03"),
        ("date: Q1 2024", "2024-01-01/2024-03-31"),
        ("date:\n  created: 2024-02-29\n  updated: 2030-01-01", "2024-02-29"),
        ("date:\u00a02024-02-29", "2024-02-29"),
        ("title: Plan\ncreated:2024-02-29", "2024-02-29"),
        ("title: Avatar: The Last Airbender\ncreated: 2019-05-05\ndue: 2030-01-01", "2019-05-05"),
    ],
)
@pytest.mark.filterwarnings("ignore::llama_index_contextual.utils.errors.ContextualWarning")
def test_the_date_in_front_matter_is_that_of_the_note(front, day):
    [node] = nodes(f"---\n{front}\n---\n\nWater.\n")
    assert (node.metadata.get("date"), node.metadata["header_path"]) == (day, "")


def test_a_date_in_passing_does_not_change_that_of_a_dated_note():
    day = "# 2024-02-29\n\n## Plan for 2024-06-30\n\nPaint.\n\n## 2024-03-01: more\n\nRain.\n"
    assert [node.metadata["date"] for node in nodes(day)] == ["2024-02-29", "2024-03-01"]
    front = "---\ndate: 2024-02-29\n---\n\n# Plan for 2024-06-30\n\nPaint.\n"
    assert nodes(front)[0].metadata["date"] == "2024-02-29"
    assert nodes("# Plan for 2024-06-30\n\nPaint.\n")[0].metadata["date"] == "2024-06-30"


def test_a_section_that_is_large_enough_is_a_chunk_alone():
    large = "## Large\n\n" + "These are five more words. " * 8
    text = (
        f"# Notes\n\n## One\n\nFew words.\n\n## Two\n\nFew words.\n\n{large}\n\n## Last\n\n"
        "Few words.\n"
    )
    chunks = words(text, chunk_size=200, min_section_size=20)
    assert [part.split("\n")[0] for part in chunks] == ["# Notes", "## Large"]
    assert chunks[1].endswith("## Last\n\nFew words."), "a small last section joins what precedes"


def section_of(number_of_words):
    return f"## Part\n\n{'word ' * (number_of_words - 2)}\n\n"


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((30, 30), [60]),
        ((60, 40), [100]),
        ((60, 41), [60, 41]),
        ((60, 60), [60, 60]),
        ((80, 20), [100]),
        ((85, 20), [85, 20]),
        ((30, 30, 30, 30), [90, 30]),
        ((60, 40, 30), [100, 30]),
        ((40, 65), [40, 65]),
    ],
)
def test_small_sections_merge_up_to_the_size_of_a_chunk(sizes, expected):
    text = "".join(map(section_of, sizes))
    chunks = words(text, chunk_size=100, min_section_size=70)
    assert [len(chunk.split()) for chunk in chunks] == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((19, 19), [38]), ((20, 20), [20, 20]), ((20, 19), [39]), ((19, 20), [19, 20])],
)
def test_a_section_of_the_smallest_size_is_not_merged_with_another(sizes, expected):
    chunks = words("".join(map(section_of, sizes)), chunk_size=100, min_section_size=20)
    assert [len(chunk.split()) for chunk in chunks] == expected


def test_a_section_is_not_split_to_fill_the_chunk_of_a_small_one_before_it():
    text = f"{section_of(40)}{section_of(32)}{'word ' * 33}"
    chunks = words(text, chunk_size=100, min_section_size=70)
    assert [len(chunk.split()) for chunk in chunks] == [40, 65]


def test_a_section_that_must_be_split_starts_with_the_small_one_before_it():
    rows = "".join(f"| {number} | some more words |\n" for number in range(40))
    text = f"# Report\n\n## Bank\n\nFew words.\n\n### Income\n\n| a | b |\n|---|---|\n{rows}"
    chunks = words(text, chunk_size=100, min_section_size=20)
    assert "Few words." in chunks[0]
    assert "| 0 | some more words |" in chunks[0]
    assert len(chunks) > 1
