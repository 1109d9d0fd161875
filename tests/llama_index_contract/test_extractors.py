"""Pipelines with LlamaIndex's extractors, with and without the step that writes contexts.

What the extractors showed stays visible.
"""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.extractors import (
    KeywordExtractor,
    QuestionsAnsweredExtractor,
    SummaryExtractor,
    TitleExtractor,
)
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.core.schema import MetadataMode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.retrievers.bm25 import BM25Retriever
from side_by_side import compare, comparison

from llama_index_contextual import ContextualNodePostprocessor

OURS = {"context", "context_source", "context_version"}
TEXT = (
    f"# Harbour\n\n{'Ships wait for the tide. ' * 12}\n\n## Pilots\n\n{'Pilots come aboard. ' * 12}"
)


def llm():
    return MockLLM(max_tokens=2)  # "text text"


def documents(**metadata):
    return [
        Document(
            text=TEXT,
            id_="doc",
            metadata={"author": "Ana", "category": "sea", "page_label": "3", **metadata},
        )
    ]


def pipeline(*steps):
    splitter = SentenceSplitter(
        chunk_size=90, chunk_overlap=0, id_func=lambda number, _: str(number)
    )
    return IngestionPipeline(transformations=[splitter, *steps])


def nodes(*steps, **metadata):
    return pipeline(*steps).run(documents=documents(**metadata))


def shown(made, mode):
    """Return the keys and values that a view shows besides text and context, for each node."""
    lines = (node.get_metadata_str(mode).splitlines() for node in made)
    return [
        [line for line in node_lines if line.partition(": ")[0] not in OURS and ": " in line]
        for node_lines in lines
    ]


def embedded(made):
    return shown(made, MetadataMode.EMBED)


def prompted(made):
    return [node.get_content(metadata_mode=MetadataMode.LLM) for node in made]


EXTRACTORS = {
    "keywords": lambda **options: KeywordExtractor(llm=llm(), **options),
    "summaries": lambda **options: SummaryExtractor(
        llm=llm(), summaries=["self", "prev"], **options
    ),
    "questions": lambda **options: QuestionsAnsweredExtractor(llm=llm(), **options),
    "titles": lambda **options: TitleExtractor(llm=llm(), **options),
}


def excluded(steps):
    [node, *_] = pipeline(*steps).run(documents=documents())
    node.excluded_embed_metadata_keys.append("author")
    for step in steps:
        step([node])
    return embedded([node])


def hidden_by_the_document(steps, attribute):
    [document] = documents()
    setattr(document, attribute, ["author"])
    made = pipeline(*steps).run(documents=[document])
    return [embedded(made), prompted(made)]


def templates(steps):
    [document] = documents()
    document.metadata_template, document.metadata_separator = "{key}={value}", " | "
    document.text_template = "{metadata_str} --- {content}"
    made = pipeline(*steps).run(documents=[document])
    return [node.get_content(metadata_mode=MetadataMode.LLM) for node in made]


def hits(steps, question):
    made = nodes(*steps) + pipeline().run(
        documents=[Document(text=f"Other words {n}.", id_=str(n)) for n in range(9)]
    )
    return [
        hit.get_content()
        for hit in BM25Retriever.from_defaults(nodes=made, similarity_top_k=3).retrieve(question)
    ]


def links(steps):
    return [
        (node.node_id, node.ref_doc_id, node.start_char_idx, node.end_char_idx, node.text)
        for node in nodes(*steps)
    ] + [
        (kind.name, link.node_id)
        for node in nodes(*steps)
        for kind, link in node.relationships.items()
    ]


def markdown(steps):
    made = IngestionPipeline(transformations=[MarkdownNodeParser(), *steps]).run(
        documents=documents(path="a.md")
    )
    return embedded(made)


compared = comparison([], [ContextualNodePostprocessor()])


@pytest.mark.parametrize(("name", "make"), EXTRACTORS.items())
def test_metadata_extracted_before_a_context_are_in_prompts(name, make):
    compare(lambda steps: prompted(nodes(make(), *steps)), [], [ContextualNodePostprocessor()])


@pytest.mark.parametrize(("name", "make"), EXTRACTORS.items())
def test_metadata_extracted_after_a_context_are_embedded(name, make):
    compare(lambda steps: embedded(nodes(*steps, make())), [], [ContextualNodePostprocessor()])


@pytest.mark.parametrize(("name", "make"), EXTRACTORS.items())
def test_metadata_extracted_before_a_context_are_embedded(name, make):
    compare(lambda steps: embedded(nodes(make(), *steps)), [], [ContextualNodePostprocessor()])


@compared()
def test_metadata_of_documents_are_embedded(steps):
    return embedded(nodes(*steps, url="http://a/b"))


@compared()
def test_metadata_of_documents_are_in_prompts(steps):
    return prompted(nodes(*steps, file_path="/srv/harbour.md"))


@compared()
def test_only_the_text_is_displayed(steps):
    return [node.get_content() for node in nodes(*steps)]


@compared()
def test_ids_offsets_and_links_stay(kind):
    return links(kind)


@compared()
def test_a_key_that_is_excluded_later_stays_excluded(kind):
    return excluded(kind)


@compared()
def test_keys_that_a_document_excludes(steps):
    return hidden_by_the_document(steps, "excluded_embed_metadata_keys")


@compared()
def test_keys_that_it_hides_from_prompts(steps):
    return hidden_by_the_document(steps, "excluded_llm_metadata_keys")


@compared()
def test_keys_that_an_extractor_excludes_after_a_context(steps):
    made = pipeline(*steps).run(documents=documents())
    extracted = asyncio.run(
        EXTRACTORS["keywords"]().aprocess_nodes(
            made, excluded_embed_metadata_keys=["excerpt_keywords"]
        )
    )
    for step in steps:  # again, as in a second run
        step(extracted)
    return [embedded(extracted), prompted(extracted)]


@compared()
def test_the_templates_of_a_document_make_the_views(kind):
    return templates(kind)


@compared()
def test_the_template_of_an_extractor_stays(steps):
    return nodes(EXTRACTORS["titles"](), *steps)[0].text_template


@compared()
def test_an_extractor_that_rewrites_no_template(steps):
    return prompted(nodes(EXTRACTORS["keywords"](disable_template_rewrite=True), *steps))


@compared()
def test_an_extractor_that_works_on_copies(steps):
    return embedded(nodes(EXTRACTORS["keywords"](in_place=False), *steps))


@compared()
def test_bm25retriever_finds_metadata_of_documents(steps):
    return sorted(hits(steps, "sea"))


@compared(gives=[3, 0])
def test_a_document_that_is_unchanged_gives_no_nodes(steps):
    ingestion = pipeline(*steps)
    ingestion.docstore = SimpleDocumentStore()
    return [len(ingestion.run(documents=documents())) for _ in range(2)]


@compared()
def test_the_cache_of_a_pipeline_gives_the_same_nodes(steps):
    ingestion = pipeline(*steps)
    return [[node.node_id for node in ingestion.run(documents=documents())] for _ in range(2)]


@compared()
def test_vectorstoreindex_makes_the_same_nodes(steps):
    index = VectorStoreIndex.from_documents(
        documents(), transformations=pipeline(*steps).transformations, embed_model=MockEmbedding(8)
    )
    return sorted(hit.node_id for hit in index.as_retriever(similarity_top_k=9).retrieve("x"))


@compared()
def test_arun_gives_what_run_gives(steps):
    return embedded(
        asyncio.run(pipeline(EXTRACTORS["keywords"](), *steps).arun(documents=documents()))
    )


@compared()
def test_a_context_of_another_step_stays(steps):
    return [node.metadata["context"] for node in nodes(*steps, context="x")]


@compared()
def test_headings_of_markdownnodeparser_are_in_prompts(steps):
    made = IngestionPipeline(transformations=[MarkdownNodeParser(), *steps]).run(
        documents=documents()
    )
    return prompted(made)


@compared(
    stock=["author: Ana", "category: sea", "page_label: 3", "file_path: /srv/sea/harbour.md"],
    ours=["author: Ana", "category: sea", "page_label: 3"],
    differs="said-once",
)
def test_a_path_that_the_context_contains(steps):
    return embedded(nodes(*steps, file_path="/srv/sea/harbour.md"))[0]


@compared(
    stock=["header_path: /", "header_path: /Harbour/"],
    ours=["page_label: 3"] * 2,
    differs="said-once",
)
def test_headings_of_markdownnodeparser_that_the_context_contains(steps):
    return [lines[-1] for lines in markdown(steps)]
