"""The exact heading contexts of nodes."""

from __future__ import annotations

import pytest
from llama_index.core import Document
from llama_index.core.node_parser import MarkdownNodeParser
from llama_index.core.schema import TextNode

from llama_index_contextual.context.base import DocumentChunks, SourceDocument
from llama_index_contextual.context.generators.headings import HeadingContextGenerator, is_id
from llama_index_contextual.context.registry import resolve_generator
from llama_index_contextual.utils.dates import date_in_words
from llama_index_contextual.utils.errors import SettingError
from llama_index_contextual.utils.metadata import heading_titles

DOCUMENT = SourceDocument(id="1", path="memory/2026-01-28.md", text="")


def describe(metadata, document=DOCUMENT, **settings):
    [context] = HeadingContextGenerator(**settings).generate(
        [TextNode(text="text", metadata=metadata)], document
    )
    return context.text


CASES = {
    "path and headings": (
        {"header_path": "Morning Check-in > Task Updates"},
        "Document: memory/2026-01-28.md > Morning Check-in > Task Updates",
    ),
    "no headings": ({}, "Document: memory/2026-01-28.md"),
    "date in words": (
        {"header_path": "Work", "date": "2026-01-28"},
        "Document: memory/2026-01-28.md > Work\nWednesday, 28 January 2026",
    ),
    "impossible date": ({"date": "2026-02-31"}, "Document: memory/2026-01-28.md"),
    "title from front matter": (
        {"title": "A plan", "header_path": "Work"},
        "Document: memory/2026-01-28.md > Work\nA plan",
    ),
    "title of several lines": (
        {"title": "A\n  plan", "header_path": "Work"},
        "Document: memory/2026-01-28.md > Work\nA plan",
    ),
    "title that a heading says": (
        {"title": "work", "header_path": "Work"},
        "Document: memory/2026-01-28.md > Work",
    ),
    "title that the file name says": ({"title": "2026-01-28"}, "Document: memory/2026-01-28.md"),
    "later piece of a table": (
        {"header_path": "Pods", "continues": "| name | age |"},
        "Document: memory/2026-01-28.md > Pods\n| name | age |",
    ),
    "LlamaIndex's own header path": (
        {"header_path": "/Guide/Install/"},
        "Document: memory/2026-01-28.md > Guide > Install",
    ),
    "a heading of our parser that looks like it": (
        {"header_path": "/api/v1/", "heading_level": 1},
        "Document: memory/2026-01-28.md > /api/v1/",
    ),
    "LlamaIndex's own, at the top": ({"header_path": "/"}, "Document: memory/2026-01-28.md"),
    "newline in a heading": (
        {"header_path": "One\nline"},
        "Document: memory/2026-01-28.md > One line",
    ),
    "braces are no fields": (
        {"header_path": "{path} {0}"},
        "Document: memory/2026-01-28.md > {path} {0}",
    ),
}


@pytest.mark.parametrize(("metadata", "expected"), CASES.values(), ids=CASES)
def test_context_of_a_chunk(metadata, expected):
    assert describe(metadata) == expected


def test_a_chunk_has_the_title_of_its_document_unless_it_has_its_own():
    document = DOCUMENT._replace(metadata={"title": "A plan"})
    assert describe({}, document).endswith("\nA plan")
    assert describe({"title": "Another"}, document).endswith("\nAnother")


def test_a_long_title_ends_in_an_ellipsis():
    *_, title = describe({"title": "endless " * 1000}).splitlines()
    assert title.startswith("endless endless")
    assert title.endswith("…")
    assert len(title) <= 300


def test_without_known_facts_there_is_no_context():
    assert describe({}, SourceDocument(id="1", path="", text="")) == ""


IDS = (
    "urteil-001.md scan0012.pdf 0042.txt 1.md 第3章.md IMG_20240312.jpg 2009/17.md "
    "3f2504e0-4f89-11d3.md"
)
NAMES = (
    "a.md 石油.md GPT-4.md chapter-3.md report-2024.md deadbeef.md urteile/urteil-001.md "
    "RFC_2119_on.md"
)


@pytest.mark.parametrize("path", [*IDS.split(), *NAMES.split(), ""])
def test_a_path_without_words_is_an_id(path):
    assert is_id(path) is (path in IDS.split())


@pytest.mark.parametrize("kind", ["headings", "pattern"])
def test_an_id_alone_is_only_for_keywords_and_is_embedded_with_other_facts(kind):
    source = SourceDocument(id="1", path="urteil-001.md", text="Im Namen des Volkes.")
    more = (
        {},
        {"header_path": "Gründe"},
        {"title": "Miete"},
        {"date": "2026-01-28"},
        {"continues": "| a |"},
    )
    nodes = [TextNode(text="Im Namen des Volkes.", metadata=metadata) for metadata in more]
    alone, *with_other_facts = resolve_generator(kind).generate(nodes, source)
    assert alone.text == ""
    assert alone.lexical.startswith("Document: urteil-001.md")
    assert all(context.text.startswith("Document: urteil-001.md") for context in with_other_facts)


def test_a_long_breadcrumb_keeps_the_path_and_the_innermost_heading():
    words = describe({"header_path": f"{'Outer heading ' * 20} > Middle > Own"})
    assert words == "Document: memory/2026-01-28.md > … > Middle > Own"


def test_an_endless_heading_ends_in_an_ellipsis():
    words = describe({"header_path": "endless " * 1000})
    assert len(words) == len("Document: ") + 300
    assert words.endswith("…")


def test_nodes_of_llamaindex_own_parser_get_contexts():
    document = Document(
        text="# Guide\n\nHello.\n\n## Install\n\nRun it.\n", metadata={"file_name": "guide.md"}
    )
    nodes = MarkdownNodeParser().get_nodes_from_documents([document])
    source = SourceDocument(id=document.doc_id, path="guide.md", text=document.text)
    contexts = HeadingContextGenerator().generate(nodes, source)
    assert [context.text for context in contexts] == [
        "Document: guide.md",
        "Document: guide.md > Guide",
    ]


async def test_async_contexts_are_the_same():
    nodes = [TextNode(text="text", metadata={"header_path": "A"})]
    generator = HeadingContextGenerator()
    assert await generator.agenerate_all([DocumentChunks(DOCUMENT, tuple(nodes))]) == [
        generator.generate(nodes, DOCUMENT)
    ]


@pytest.mark.parametrize(("spec", "kind"), [("off", None), (None, None), ("headings", "headings")])
def test_one_setting_chooses(spec, kind):
    generator = resolve_generator(spec)
    assert (generator and generator.name) == kind


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("heading", {}, "'headings'"),
        ("headings", {"tempate": "x"}, "does not take tempate. It takes no options."),
        ("pattern", {"max_symbols": 9}, "does not take max_symbols. It takes no options."),
        (["headings"], {}, r"must be one of .*\['headings'\]"),
        ("off", {"template": "x"}, "It takes no options."),
        ("headings", {"llm": "ollama:x"}, "does not take llm. Use context='llm'"),
        (
            "off",
            {"llm": "ollama:x", "batch_size": 2},
            "does not take batch_size, llm. Use context='llm'",
        ),
        (HeadingContextGenerator(), {"template": "x"}, "already made"),
    ],
)
def test_a_wrong_setting_is_named_with_a_hint(spec, options, message):
    with pytest.raises(SettingError, match=message):
        resolve_generator(spec, **options)


def test_dates_and_header_paths_of_odd_types():
    assert date_in_words(None) == ""
    assert date_in_words("soon") == ""
    assert heading_titles({}) == []
    assert heading_titles({"header_path": 7}) == []
