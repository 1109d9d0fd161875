"""Helpers for texts: names of files, tags, lines, code, and safe terminal output."""

from __future__ import annotations

import pytest

from llama_index_contextual.utils import text as text_utils
from llama_index_contextual.utils.errors import ContextualWarning


@pytest.mark.parametrize(
    ("number", "noun", "counted"),
    [
        (1, "chunk", "1 chunk"),
        (0, "chunk", "0 chunks"),
        (2000, "chunk", "2,000 chunks"),
        (2, "index", "2 indexes"),
    ],
)
def test_a_number_is_written_with_its_noun(number, noun, counted):
    assert text_utils.counted(number, noun) == counted


def test_distinct_names_are_suggested():
    assert text_utils.did_you_mean(["b", "a", "b"]) == "Did you mean: b, a?"
    assert text_utils.did_you_mean([]) == ""


@pytest.mark.parametrize(
    ("path", "is_markdown"),
    [
        ("a/NOTES.MD", True),
        ("rules.mdc", True),
        ("a.py", False),
        ("Release 2.0", True),
        ("README", True),
        (".md", True),
        ("", True),
    ],
)
def test_markdown_is_known_by_the_name_of_its_file(path, is_markdown):
    assert text_utils.is_markdown(path) == is_markdown
    assert text_utils.is_markdown(path, ("*",))
    assert not text_utils.is_markdown(path, ())


def test_digits_of_other_scripts_are_read_as_ascii_digits():
    assert text_utils.plain_digits("\u0663 and \uff13, \u00bd") == "3 and 3, \u00bd"


def test_lone_surrogates_are_replaced_with_a_warning():
    with pytest.warns(ContextualWarning, match=r"^a\.md contains lone surrogates"):
        assert text_utils.without_surrogates("a\ud800b", "a.md") == "a\ufffdb"


def test_nuls_and_surrogates_are_replaced_and_counted():
    assert text_utils.storable("a\0b\ud800\0") == ("a\ufffdb\ufffd\ufffd", 3)
    assert text_utils.storable("é") == ("é", 0)


def test_a_hash_depends_on_values_and_not_on_the_order_of_keys():
    first = text_utils.short_hash({"a": 1, "b": [2]})
    assert first == text_utils.short_hash({"b": [2], "a": 1})
    assert first != text_utils.short_hash({"a": 1, "b": [3]})
    assert len(first) == 16


def test_a_terminal_shows_control_characters_and_moves_no_cursor():
    text = "a\x1b[2J\r\nb\t\x7f\x9b\u202e\u200b"
    assert text_utils.printable(text) == "a␛[2J\nb\t␡\\x9b\\u202e"
    assert text_utils.printable(text, one_line=True) == "a␛[2J␤b ␡\\x9b\\u202e"
    assert text_utils.printable_lines(["a\nb", "c"]) == "a␤b\nc"


def test_lines_end_as_in_citations():
    text = "a\r\nb\rc\nd\x0ce\u2028f"
    assert list(text_utils.lines_of(text)) == ["a\r\n", "b\r", "c\n", "d\x0ce\u2028f"]


@pytest.mark.parametrize(
    ("link", "text"),
    [
        ("[[Name]]", ""),
        ("[[Name|Text ]]", "Text"),
        ("[[Name#Heading\\|Text]]", "Text"),
        ("![[a.png|400x300]]", ""),
        ("![[a.png|400]]", ""),
        ("![[a.png|A chart]]", "A chart"),
        ("[[Name|400]]", "400"),
    ],
)
def test_the_text_of_a_wiki_link_is_not_the_size_of_a_picture(link, text):
    assert text_utils.wiki_text(text_utils.WIKI_LINK.fullmatch(link)) == text


# Tags and code


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("A #tea and (#Milk/oat).", ["tea", "Milk/oat"]),
        ("#tea #Tea #tea/", ["tea"]),
        ("#1 and #2026-04 and #v2", ["v2"]),
        ("a#b and [c](#d) and {: #e}", []),
        ("`#code`\n\n```\n#code\n```\n\n#text", ["text"]),
        ("> #quoted", []),
        ("    #code", []),
        ("- item\n    #tag", ["tag"]),
        ("- item\n\nText.\n\n    #code", []),
        ("1. item\n\t#tag", ["tag"]),
    ],
)
def test_tags_are_read_as_in_obsidian(text, tags):
    assert text_utils.inline_tags(text) == tags


def test_code_is_replaced_by_spaces():
    text = "a `b c` d\n~~~\ne f\n~~~\ng"
    assert text_utils.without_code(text) == "a       d\n   \n   \n   \ng"


# Encoded bytes


def test_a_part_of_a_text_begins_or_ends_inside_encoded_bytes():
    run = "aB3x" * 40
    text = f"before {run} after"
    assert text_utils.encoded_runs(text) == [(7, 7 + len(run))]
    assert text_utils.readable(text) == "before … after"
    assert text_utils.readable(text, 9) == "… after"
    assert text_utils.readable(text, 0, 9) == "before …"
    assert text_utils.readable(text, 0, 7) == "before "
    assert text_utils.readable(text, 7 + len(run)) == " after"


@pytest.mark.parametrize(
    "text",
    [
        "0123456789abcdef" * 8,  # a SHA-512
        "0123456789" * 20,
        "abcdefghij" * 20,
        "aBcDeFgHiJ" * 20,
        "some-long-slug-2026-" * 10,
    ],
    ids=["checksum", "number", "letters", "no digits", "words"],
)
def test_what_people_search_for_is_not_encoded_bytes(text):
    assert text_utils.encoded_runs(text) == []
