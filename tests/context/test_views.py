"""The views of nodes show all metadata of a pipeline, except what a context repeats."""

from __future__ import annotations

import pytest
from llama_index.core import Document, SimpleDirectoryReader
from llama_index.core.extractors import KeywordExtractor
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualNodePostprocessor,
    HeadingAwareMarkdownNodeParser,
)
from llama_index_contextual.context.base import ChunkContext, ContextGenerator
from llama_index_contextual.context.views import remove_context

BROUGHT = {
    "author": "Ana",
    "url": "http://intranet/gateway",
    "category": "networking",
    "page_label": "3",
}
TEXT = "# Gateway\n\nThe default is 60.\n"


class Says(ContextGenerator):
    """A generator that returns the same text for every chunk."""

    name, version = "says", "1"

    def __init__(self, text):
        self.text = text

    def generate(self, nodes, document):
        return [self.text for _ in nodes]


def document(**metadata):
    return Document(text=TEXT, metadata={**BROUGHT, **metadata})


def shown(node, mode=MetadataMode.EMBED):
    """Return the keys that a view shows. No value in these tests has a line break."""
    return [
        line.partition(": ")[0] for line in node.get_metadata_str(mode).splitlines() if ": " in line
    ]


def run(*steps, **metadata):
    [node] = IngestionPipeline(transformations=list(steps)).run(documents=[document(**metadata)])
    return node


@pytest.mark.parametrize(
    "parser", [SentenceSplitter(), MarkdownNodeParser(), HeadingAwareMarkdownNodeParser()]
)
@pytest.mark.parametrize("context", ["headings", "pattern"])
def test_metadata_shown_by_a_pipeline_stays_in_each_view(parser, context):
    place = {"path": "docs/gateway.md", "file_name": "gateway.md", "title": "Gateway"}
    plain = run(parser, KeywordExtractor(llm=MockLLM(max_tokens=3)), **place)
    node = run(
        parser,
        KeywordExtractor(llm=MockLLM(max_tokens=3)),
        ContextualNodePostprocessor(context),
        **place,
    )
    repeated = {"path", "file_name", "title", "header_path"}
    assert shown(node) == [*(key for key in shown(plain) if key not in repeated), "context"]
    assert {"excerpt_keywords", *BROUGHT} <= set(shown(node))
    assert node.get_content(MetadataMode.LLM) == plain.get_content(MetadataMode.LLM)
    assert node.get_content(MetadataMode.NONE) == plain.get_content(MetadataMode.NONE)


def test_an_extractor_after_the_context_is_shown_too():
    node = run(
        SentenceSplitter(),
        ContextualNodePostprocessor(),
        KeywordExtractor(llm=MockLLM(max_tokens=3)),
    )
    assert "excerpt_keywords" in shown(node)
    assert "excerpt_keywords" in shown(node, MetadataMode.LLM)


@pytest.mark.parametrize("retriever", [BM25Retriever, ContextualBM25Retriever])
def test_a_keyword_index_finds_metadata_of_documents(retriever):
    other_nodes = [TextNode(text=f"Other words {number}.") for number in range(5)]
    node = run(SentenceSplitter(), ContextualNodePostprocessor())
    hits = retriever.from_defaults(nodes=[*other_nodes, node], similarity_top_k=1).retrieve(
        "networking intranet"
    )
    assert [hit.node.node_id for hit in hits] == [node.node_id]


def test_at_query_time_the_copies_show_it_too():
    node = run(SentenceSplitter(), file_path="/srv/docs/gateway.md")
    [hit] = ContextualNodePostprocessor().postprocess_nodes([NodeWithScore(node=node, score=1.0)])
    assert shown(hit.node) == [*BROUGHT, "context"]
    assert shown(hit.node, MetadataMode.LLM) == [*BROUGHT, "file_path"]
    assert shown(node) == [*BROUGHT, "file_path"]


@pytest.mark.parametrize(
    "place", [{"path": "0042.md"}, {"file_path": "/srv/0042.md", "file_name": "0042.md"}]
)
def test_an_id_for_keywords_is_not_embedded(place):
    node = run(SentenceSplitter(), ContextualNodePostprocessor(root="/srv"), **place)
    assert shown(node) == [*BROUGHT]
    [hit] = ContextualBM25Retriever([node]).retrieve("0042")
    assert hit.score > 0


@pytest.mark.parametrize(
    ("key", "value", "context", "stays"),
    [
        ("path", "docs/gateway.md", "Document: docs/gateway.md", False),
        ("path", "docs/gateway.md", "Document: gateway.md", True),
        ("file_path", "/srv/docs/gateway.md", "Document: docs/gateway.md", False),
        ("file_path", r"C:\docs\gateway.md", "Document: docs/gateway.md", False),
        ("file_path", "/srv/docs/gateway.md", "About timeouts.", True),
        ("title", "The  Gateway", "Document: a.md > the gateway", False),
        ("title", "Net", "Document: network.md", True),  # whole words
        ("header_path", "/Gateway/Timeout/", "Document: a.md > Gateway > Timeout", False),
        ("header_path", "/", "Document: a.md", False),  # LlamaIndex's for no heading
        ("header_path", "Gateway > Timeout", "Document: a.md > … > Timeout", False),
        ("header_path", "Gateway > Timeout", "Document: a.md > Gateway", True),
        ("date", "2026-01-28", "Document: a.md\nWednesday, 28 January 2026", False),
        ("date", "2026-01-28", "From file: log/2026-01-28.py.", False),
        (
            "date",
            "2026-01-28T10:11:12",
            "Document: a.md\nWednesday, 28 January 2026",
            True,
        ),  # the hour is not said
        ("date", "early", "Document: a.md", True),
        ("date", "2026-02-31", "Document: a.md", True),  # no day, so it has no words
        ("author", "Ana", "Document: ana.md", True),  # a chance
    ],
)
def test_only_values_in_the_context_are_left_out(key, value, context, stays):
    node = TextNode(text="x", metadata={key: value})
    ContextualNodePostprocessor(Says(context))([node])
    assert (f"{key}: {value}" in node.get_content(MetadataMode.EMBED)) is stays
    assert f"{key}: {value}" in node.get_content(MetadataMode.LLM)


class Searched(ContextGenerator):
    """A generator with different texts for vectors and for keyword search."""

    name = "searched"

    def generate(self, nodes, document):
        return [ChunkContext("About limits.", lexical="The gateway of docs") for _ in nodes]


def test_a_title_that_only_keyword_search_reads_stays_embedded_and_a_path_does_not():
    node = TextNode(text="x", metadata={"title": "The gateway", "path": "docs"})
    ContextualNodePostprocessor(Searched())([node])
    assert shown(node) == ["title", "context"]


def test_off_still_embeds_the_headings_of_another_parser():
    node = TextNode(text="x", metadata={"header_path": "/Gateway/"})
    ContextualNodePostprocessor("off")([node])
    assert shown(node) == ["header_path"]


def test_a_title_of_our_parser_is_not_repeated_and_the_documents_own_stays():
    node = TextNode(text="x", metadata={"title": "Net", "contextual_title": "Gateway"})
    ContextualNodePostprocessor(Says("Document: gateway.md"))([node])
    assert shown(node) == ["title", "context"]


def test_an_empty_context_hides_nothing():
    node = TextNode(text="x", metadata={"path": "a.md", "header_path": "/"})
    ContextualNodePostprocessor(Says(""))([node])
    assert shown(node) == ["path", "header_path"]


def test_keys_that_a_user_excluded_stay_excluded():
    before = document(internal="i", late="l", path="a.md")
    before.excluded_embed_metadata_keys = ["internal"]
    [node] = SentenceSplitter()([before])
    ContextualNodePostprocessor()([node])
    node.excluded_embed_metadata_keys.append(
        "late"
    )  # as LlamaIndex's extractors do after a context
    ContextualNodePostprocessor("pattern")([node])
    assert shown(node) == [*BROUGHT, "context"]
    ContextualNodePostprocessor("off")([node])
    assert node.excluded_embed_metadata_keys == ["internal", "late"]
    assert node.excluded_llm_metadata_keys == []


def test_keys_that_simple_directory_reader_hides_stay_hidden(tmp_path):
    (tmp_path / "gateway.md").write_text(TEXT)
    [node] = SentenceSplitter()(SimpleDirectoryReader(str(tmp_path)).load_data())
    assert {"file_name", "file_type", "file_size", "creation_date"} <= set(node.metadata)
    ContextualNodePostprocessor()([node])
    assert shown(node) == ["context"]
    assert shown(node, MetadataMode.LLM) == ["file_path"]


@pytest.mark.parametrize("key", ["context", "context_source", "context_version", "lexical_context"])
def test_a_key_of_a_document_keeps_its_value_and_ours_gets_another_name(key):
    step = ContextualNodePostprocessor("pattern")
    node = run(HeadingAwareMarkdownNodeParser(), path="a.md", **{key: "finance"})
    before = node.to_dict()
    for _ in range(2):
        step([node])
        assert node.metadata[key] == "finance"
        assert f"{key}: finance" in node.get_content(MetadataMode.EMBED)
        assert f"{key}: finance" in node.get_content(MetadataMode.LLM)
        assert f"contextual_{key}" in node.metadata
        assert "Document: a.md > Gateway" in node.get_content(MetadataMode.EMBED)
        assert "Document: a.md > Gateway" not in node.get_content(MetadataMode.LLM)
    ContextualNodePostprocessor("off")([node])
    assert f"{key}: finance" in node.get_content(MetadataMode.EMBED)
    remove_context(node)
    assert node.to_dict() == before


def test_tags_of_front_matter_are_read_once_and_tags_of_a_document_stay():
    text = "---\ntags: [blue]\ndescription: All of it\n---\n# A\n\nOne.\n\n# B\n\nTwo.\n"
    parser = HeadingAwareMarkdownNodeParser(min_chunk_size=0)
    untagged = Document(text=text)
    tagged = Document(text=text, metadata={"tags": "red"})
    for document, expected in ((untagged, ["context"]), (tagged, ["tags", "context"])):
        nodes = ContextualNodePostprocessor()(parser([document]))
        assert [shown(node) for node in nodes] == [expected] * 2
        assert all({"tags", "description"} <= set(shown(node, MetadataMode.LLM)) for node in nodes)
    index = ContextualBM25Retriever(ContextualNodePostprocessor()(parser([untagged])))
    assert [hit.node.get_content() for hit in index.retrieve("blue")] == ["# A\n\nOne."]


class TextAlone(Says):
    """A generator that allows only its context to be embedded with the text."""

    name = "text alone"
    embeds_metadata = False


@pytest.mark.parametrize("context", ["About timeouts.", ""])
def test_a_generator_can_exclude_all_other_metadata_from_embedding(context):
    node = TextNode(text="x", metadata={**BROUGHT, "path": "a.md"})
    ContextualNodePostprocessor(TextAlone(context))([node])
    assert shown(node) == (["context"] if context else [])
    assert shown(node, MetadataMode.LLM) == [*BROUGHT, "path"]
    ContextualNodePostprocessor("off")([node])
    assert shown(node) == [*BROUGHT, "path"]
