"""Test cases as data.

``cases/*.md`` contain an input, a line ``%%% expected``, and one line for each chunk.
"""

import warnings
from bisect import bisect_right
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from llama_index_contextual.node_parser.blocks import mask
from llama_index_contextual.node_parser.front_matter import read_front_matter
from llama_index_contextual.node_parser.node_metadata import line_ends
from llama_index_contextual.node_parser.packing import ChunkSettings, split_markdown
from llama_index_contextual.node_parser.sections import outline_of
from llama_index_contextual.utils.errors import ContextualWarning, SettingError

CASES = sorted((Path(__file__).parent / "cases").glob("*.md"))
SMALL = ChunkSettings(chunk_size=60, chunk_overlap=0, min_chunk_size=8, keep_blocks=False)


def described(text, span):
    """Return a chunk on one line."""
    ends = line_ends(text)
    first, last = bisect_right(ends, span.start) + 1, bisect_right(ends, span.end - 1) + 1
    facts = [f"L{first}-L{last}", span.kind, " / ".join(heading.title for heading in span.path)]
    if span.continues:
        facts.append(f"continues {span.continues}")
    if span.tokens > SMALL.chunk_size:
        facts.append("over the budget")
    return " | ".join(facts)


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_case(case, newline):
    text, expected = case.read_text(encoding="utf-8").split("\n%%% expected\n")
    text = text.replace("\n", newline)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextualWarning)  # of front matter that cannot be read
        spans = split_markdown(text, settings=SMALL)
    assert [described(text, span) for span in spans] == expected.splitlines()


def test_a_large_fence_is_split_between_lines_and_later_pieces_know_their_language():
    code = "```python\n" + "".join(f"value_{n} = compute({n})\n" for n in range(40)) + "```\n"
    spans = split_markdown(
        code, settings=ChunkSettings(chunk_size=100, chunk_overlap=0, keep_blocks=False)
    )
    assert len(spans) > 1
    assert [span.continues for span in spans] == ["", *["python"] * (len(spans) - 1)]
    assert all(code[span.start - 1] == "\n" for span in spans[1:])
    assert not any(span.tokens > 100 for span in spans)


def test_a_large_table_is_split_between_rows_and_later_pieces_know_their_header():
    table = "| id | name |\n|----|------|\n" + "".join(f"| {n} | name {n} |\n" for n in range(60))
    spans = split_markdown(
        table, settings=ChunkSettings(chunk_size=100, chunk_overlap=0, keep_blocks=False)
    )
    assert len(spans) > 1
    assert {span.continues for span in spans[1:]} == {"| id | name |"}
    assert all(table[span.start : span.end].startswith("|") for span in spans)


QUOTED = {
    "wrapped": "\n".join(
        f"> Number {n} is quoted here. Number {n} ends\n> here as well." for n in range(30)
    ),
    "on one line": "> On one line there is a sentence. " + "Another one stands here. " * 40,
}


@pytest.mark.parametrize(
    ("how", "starts"), [("wrapped", "> Number"), ("on one line", ("> On", "Another"))]
)
def test_a_chunk_of_a_quote_starts_where_it_still_reads_as_a_quote(how, starts):
    """``Number 9 ends`` above ``> here as well`` would be a paragraph above a quote."""
    text = f"Words before it. They are few.\n\n{QUOTED[how]}\n\n" + "After it come words. " * 20
    spans = split_markdown(
        text, settings=ChunkSettings(chunk_size=150, chunk_overlap=30, min_chunk_size=8)
    )
    inside = [
        span for span in spans if text.index(">") < span.start + span.overlap < text.index("After")
    ]
    assert any(span.overlap for span in inside)
    assert all(text.startswith(starts, span.start) for span in inside)


def test_front_matter_that_is_not_yaml_is_read_line_by_line():
    text = (
        "---\ntitle: Avatar: The Last Airbender\ncreated: 2019-05-05\nauthor: @me\n"
        'alias: "open\nsummary: one\n'
        "goes on here\ntags: [a, b]\n# a comment\n---\n\nText.\n"
    )
    with pytest.warns(
        ContextualWarning,
        match=r"page.md cannot be read as YAML and is read line by line: line 2: mapping values",
    ):
        front = read_front_matter(text, "page.md")
    assert text[front.end :] == "\nText.\n"
    assert front.values == {
        "title": "Avatar: The Last Airbender",
        "created": "2019-05-05",
        "author": "@me",
        "alias": "open",
        "summary": "one goes on here",
        "tags": ["a", "b"],
    }


@pytest.mark.parametrize(
    "block",
    [
        "Note: this is text\nthat: goes: on\nand on\nand on",
        "# Odd\n- x: [\n",
        "key: " + "[" * 60 + "]" * 60,
    ],
)
def test_a_block_that_cannot_be_read_stays_text_without_headings(block):
    text = f"---\n{block}\n---\n\nText.\n"
    with pytest.warns(
        ContextualWarning, match=r"page.md cannot be read as YAML and is kept as text"
    ):
        front = read_front_matter(text, "page.md")
    assert (front.end, front.unread) == (0, text.index("\nText"))
    [span] = split_markdown(text, settings=SMALL._replace(chunk_size=1000), front=front)
    assert (span.start, span.path) == (0, ())


@pytest.mark.parametrize(
    "front",
    [
        '---\ntags: "#a #b/c"\n---',
        "\n---\ntags: #a #b/c\n---",
        "---\ntags: a, b/c\n---",
        "---\ntag: a, b/c\n---",
        "---\ntags: [a, b/c]\n---",
        "---\ntags: [#a, b/c]\n---",
        '---\ntags: ["#a", "#b/c"]\n---',
        "---\ntags: \n- a\n- '#b/c'\n---",
        "---\ntags:\n  - #a\n  - b/c\n---",
        '+++\ntags = ["a", "b/c"]\n+++',
    ],
)
@pytest.mark.filterwarnings("ignore::llama_index_contextual.utils.errors.ContextualWarning")
def test_tags_of_front_matter_in_each_form(front):
    assert read_front_matter(f"{front}\n\nWater.\n").tags() == "a, b/c"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("---\ntitle: Plain\n---\nx", "Plain"),
        ('---\r\nTitle: "Quoted: yes"\r\n---\r\nx', "Quoted: yes"),
        ("+++\ntitle = 'Toml'\n+++\nx", "Toml"),
        ("\ufeff---\ntitle: After a mark\n...\nx", "After a mark"),
        ("---\ndate: 2026-02-31\ntitle: Impossible\n---\n", "Impossible"),
        ("---\nJust words between rules\n---\nx", ""),
        ("x\n---\ntitle: In the middle\n---\n", ""),
        ("---\n---\nx", ""),
    ],
)
def test_front_matter(text, title):
    assert read_front_matter(text).text("title") == title


def test_headings_and_atoms_agree_with_markdown_it(data):
    """On real pages, both parsers see the same lines as headings, fences and tables."""
    parser = MarkdownIt("commonmark").enable("table").disable(["inline"])
    pages = sorted((data("kubernetes-docs") / "corpus").glob("*.md"))[::15]
    pages += sorted((data("markdown") / "rust-book").rglob("*.md"))[::5]
    for page in pages:
        text = page.read_bytes().decode("utf-8")
        body = read_front_matter(text).end
        masked, outline = mask(text, body), outline_of(text, body)
        theirs = {
            (token.type.removesuffix("_open"), token.map[0])
            for token in parser.parse(masked)
            if token.map
            and (
                token.type in {"fence", "table_open"}
                or (token.type == "heading_open" and not token.level)
            )
        }
        starts = [heading.start for heading in outline.headings]
        ours = {("heading", masked.count("\n", 0, start)) for start in starts}
        ours |= {
            ("table" if atom.kind == "table" else "fence", masked.count("\n", 0, atom.start))
            for atom in (mark.atom for mark in outline.marks if mark.atom)
            if atom.kind == "table"
            or masked[atom.start : atom.end].lstrip(" >-*0123456789.").startswith(("```", "~~~"))
        }
        assert ours == theirs, page.name


def test_a_tokenizer_can_return_a_number():
    text = "# One\n\n" + "Some words stand here. " * 40
    listing = split_markdown(
        text, settings=ChunkSettings(chunk_size=50, chunk_overlap=0, tokenizer=str.split)
    )
    given = ChunkSettings(chunk_size=50, chunk_overlap=0, tokenizer=lambda part: len(part.split()))
    assert split_markdown(text, settings=given) == listing


def test_a_tokenizer_that_returns_nothing_useful_is_named():
    given = ChunkSettings(chunk_size=50, chunk_overlap=0, tokenizer=lambda part: None)
    with pytest.raises(SettingError, match="it returned NoneType"):
        split_markdown("Some words.", settings=given)


def test_a_padded_table_is_as_large_as_a_plain_one():
    rows = "".join(f"| tide {number}{' ' * 150} | {number} |\n" for number in range(12))
    text = f"# Tides\n\n| name{' ' * 152} | number |\n| {'-' * 156} | ------ |\n{rows}"
    assert (
        len(split_markdown(text, settings=ChunkSettings(chunk_size=128, tokenizer="minilm"))) == 1
    )
    spans = split_markdown(
        text,
        settings=ChunkSettings(
            chunk_size=48, chunk_overlap=0, min_chunk_size=0, tokenizer="minilm"
        ),
    )
    assert {span.continues for span in spans[1:]} == {"| name | number |"}
