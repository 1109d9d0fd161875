"""A section with text of its own starts a chunk. Sections without a sentence join a neighbour."""

import pytest
from llama_index.core import Document
from llama_index.core.schema import MetadataMode

from llama_index_contextual import ContextualNodePostprocessor, HeadingAwareMarkdownNodeParser
from llama_index_contextual.utils.metadata import HEADER_PATH


def chunks(text, path="a.md", **settings):
    """Return the header path and the text of each chunk."""
    document = Document(text=text, metadata={"path": path})
    nodes = HeadingAwareMarkdownNodeParser(**settings)([document])
    return [(node.metadata[HEADER_PATH], node.text) for node in nodes]


MEMORY = """# MEMORY.md - Long-term Memory

## Preferences
- Jani prefers X
- Default to Y

## Projects
### Project A
Details about A...

### Project B
Details about B...

## Decisions
| Date | Decision | Rationale |
|------|----------|-----------|
| 2026-01-30 | Used Redis | Performance needs |
"""


def test_each_section_of_a_memory_file_is_a_chunk_that_starts_with_its_headings():
    title = "MEMORY.md - Long-term Memory"
    paths_and_texts = chunks(MEMORY, "MEMORY.md")
    assert [(path, text.split("\n")[0]) for path, text in paths_and_texts] == [
        (f"{title} > Preferences", f"# {title}"),
        (f"{title} > Projects > Project A", "## Projects"),
        (f"{title} > Projects > Project B", "### Project B"),
        (f"{title} > Decisions", "## Decisions"),
    ]
    assert "Used Redis" in paths_and_texts[-1][1]


def test_each_section_of_a_daily_note_is_a_chunk_with_its_date():
    text = (
        "# 2026-01-31\n\n## Morning standup\n- Discussed X\n- Decided Y\n\n"
        "## Research: Topic\nFound that...\n\n## Code: Feature\n```typescript\n// Notes\n```\n"
    )
    document = Document(text=text, metadata={"path": "memory/2026-01-31.md"})
    nodes = HeadingAwareMarkdownNodeParser()([document])
    assert [node.metadata[HEADER_PATH] for node in nodes] == [
        "2026-01-31 > Morning standup",
        "2026-01-31 > Research: Topic",
        "2026-01-31 > Code: Feature",
    ]
    assert {node.metadata["date"] for node in nodes} == {"2026-01-31"}


def test_a_small_section_is_embedded_with_the_headings_above_it():
    sentence = "The default value is 60 and can be adjusted via the config file."
    text = f"# Morning Check-in\n\nAll is well.\n\n## Task Updates\n\n{sentence}\n"
    document = Document(text=text, metadata={"path": "memory/2026-01-28.md"})
    nodes = ContextualNodePostprocessor()(HeadingAwareMarkdownNodeParser()([document]))
    embedded = nodes[-1].get_content(MetadataMode.EMBED)
    assert "Document: memory/2026-01-28.md > Morning Check-in > Task Updates" in embedded
    assert nodes[-1].text == f"## Task Updates\n\n{sentence}"
    assert "All is well." not in embedded


TEXTLESS = [
    "",
    "#project #idea/new",
    "Tags: #project, #idea",
    "[[Home]] | [[Index|All notes]]",
    "[Previous](a.md) | [Next](b.md)",
    "- [[Plugin A]]\n- [[Plugin B]]",
    "Next: [[Chapter 2]]",
    "**See also**: [[Chapter 2]]",
    "![](diagram.png)",
    "<br>\n\n<!-- to be written -->",
    "---",
    "https://example.com/page",
    "[1]: https://example.com/page",
    "1. [[First]]\n2. [[Second]]",
]


@pytest.mark.parametrize("block", TEXTLESS)
def test_a_section_without_a_sentence_joins_a_neighbour(block):
    above = f"# Guide\n\n## Links\n\n{block}\n\n## Install\n\nRun the installer.\n"
    [(path, text)] = chunks(above)
    assert path == "Guide > Install"
    assert text.startswith("# Guide")
    below = f"# Guide\n\n## Install\n\nRun the installer.\n\n## Links\n\n{block}\n"
    [(path, text)] = chunks(below)
    assert (path, text) == ("Guide > Install", below.strip())


@pytest.mark.parametrize("block", TEXTLESS[1:])
def test_a_top_section_without_a_sentence_does_not_change_the_path(block):
    assert [path for path, _ in chunks(f"{block}\n\n# Guide\n\nRun it.\n")] == ["Guide"]


@pytest.mark.parametrize("block", [block for block in TEXTLESS if block != "---"])
def test_text_without_a_sentence_below_a_rule_joins_the_text_above(block):
    assert len(chunks(f"# Guide\n\nRun the installer.\n\n---\n\n{block}\n")) == 1


@pytest.mark.parametrize(
    "block",
    [
        "Done.",
        "- Called [[Jani]]",
        "42",
        "`make install`",
        "| a | b |\n|---|---|\n| 1 | 2 |",
        "```\nmake\n```",
        "> Quoted.",
        "See [[Chapter 2]] for details.",
        "$$x^2$$",
        "漢字",
        "Status: open",
    ],
)
def test_a_short_section_with_a_sentence_is_a_chunk(block):
    text = f"# Guide\n\n## Short\n\n{block}\n\n## Install\n\nRun the installer.\n"
    assert [path for path, _ in chunks(text)] == ["Guide > Short", "Guide > Install"]


def test_a_long_list_of_links_is_a_chunk():
    links = "\n".join(f"- [[Plugin number {number}]]" for number in range(30))
    text = f"# Guide\n\n## Plugins\n\n{links}\n\n## Install\n\nRun the installer.\n"
    assert [path for path, _ in chunks(text)] == ["Guide > Plugins", "Guide > Install"]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_prose_between_two_rules_at_the_top_is_not_front_matter(newline):
    text = "---\n\nNote: this page is old.\n\n---\n\n# Guide\n\nRun it.\n".replace("\n", newline)
    document = Document(text=text, metadata={"path": "a.md"})
    nodes = HeadingAwareMarkdownNodeParser()([document])
    assert "Note: this page is old." in nodes[0].text
    assert "note" not in nodes[0].metadata
    real = "---\nnote: new\n\n---\n\n# Guide\n\nRun it.\n".replace("\n", newline)
    [node] = HeadingAwareMarkdownNodeParser()([Document(text=real, metadata={"path": "a.md"})])
    assert node.metadata["note"] == "new"


@pytest.mark.parametrize("size", [60, 100])
def test_no_small_remainder_of_a_section_is_left(size):
    sentence = "A sentence of seven words stands here."  # 8 tokens
    text = "\n\n".join([sentence] * 14)
    paths_and_texts = chunks(text, chunk_size=size, chunk_overlap=0, min_chunk_size=25)
    counts = [chunk.count("sentence") for _, chunk in paths_and_texts]
    assert sum(counts) == 14
    assert len(counts) > 1
    assert counts[-1] >= 3  # 2 of them are fewer than 25 tokens
