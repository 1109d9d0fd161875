"""All examples of the CommonMark and GFM specifications, compared with markdown-it-py.

The comparison covers top-level headings (lines, level, rendered title), code blocks (lines, info
string) and tables (lines). Examples that differ are in ``DIFFERENCES`` with the reason.
"""

import re

import pytest
from markdown_it import MarkdownIt
from markdown_it.common.utils import unescapeAll

from llama_index_contextual.node_parser.blocks import mask
from llama_index_contextual.node_parser.sections import outline_of

PARSER = MarkdownIt("commonmark").enable("table")
KINDS = {"heading_open": "heading", "fence": "code", "code_block": "code", "table_open": "table"}
HTML_HEADINGS = "".join(f"<h{level}>lorem</h{level}>\n\n" for level in range(1, 7))[:-1]
DIFFERENCES = {
    HTML_HEADINGS: "ours are headings: converters write them",
    "# [Foo]\n[foo]: /url\n> bar\n": "the brackets of a link that is defined elsewhere stay in a title",  # noqa: E501
}


def trimmed(lines, first, last):
    """Return the end of a block without the blank lines that some parsers include."""
    while last > first and (last > len(lines) or not lines[last - 1].strip(" \t>")):
        last -= 1
    return first, last


def rendered(tokens):
    """Return the title without markup, with breaks as spaces."""
    parts = []
    for token in tokens:
        if token.children:
            parts.append(rendered(token.children))
        elif token.type in {"text", "code_inline"}:
            parts.append(token.content)
        elif token.type.endswith("break"):
            parts.append(" ")
    return "".join(parts)


def theirs(text):
    lines = text.split("\n")
    blocks = set()
    tokens = PARSER.parse(text)
    for number, token in enumerate(tokens):
        kind = KINDS.get(token.type)
        if kind is None or (kind == "heading" and token.level):
            continue
        detail = ""
        if kind == "heading":
            detail = (int(token.tag[1]), rendered(tokens[number + 1].children))
        elif token.type == "fence":
            detail = unescapeAll(token.info).strip()  # as its renderer does
        blocks.add((kind, *trimmed(lines, *token.map), detail))
    return blocks


def ours(text):
    masked = mask(text)
    lines = masked.split("\n")
    outline = outline_of(text)

    def place(start, end):
        return trimmed(
            lines, masked.count("\n", 0, start), masked.count("\n", 0, max(start, end - 1)) + 1
        )

    blocks = {
        ("heading", *place(heading.start, heading.end), (heading.level, heading.title))
        for heading in outline.headings
    }
    atoms = {mark.atom for mark in outline.marks if mark.atom}
    return blocks | {(atom.kind, *place(atom.start, atom.end), atom.info) for atom in atoms}


def examples(folder):
    """Return all examples of a specification."""
    texts = [path.read_bytes().decode("utf-8") for path in sorted(folder.glob("*.txt"))]
    markdown_examples = [
        example.replace("→", "\t")
        for text in texts
        for example in re.findall(
            r"^`{32} example[^\n]*\n(.*?)^\.$", text, re.DOTALL | re.MULTILINE
        )
    ]
    assert len(markdown_examples) > 600
    return markdown_examples


@pytest.mark.parametrize("folder", ["commonmark", "gfm"])
def test_headings_code_and_tables_agree_with_markdown_it(data, folder):
    pairs = {
        example: (ours(example), theirs(example)) for example in examples(data("markdown") / folder)
    }
    assert sum(bool(other) for _, other in pairs.values()) > 100, "too few examples to compare"
    assert {
        example for example, (mine, other) in pairs.items() if mine != other
    } == DIFFERENCES.keys() & pairs.keys()
