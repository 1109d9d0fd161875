"""Pipelines with LlamaIndex's extractors, without the step that writes contexts and with it: what they showed stays."""

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
from side_by_side import Case, compare

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
    """What a view shows beside the text, without the context: the keys and values of each node."""
    lines = (one.get_metadata_str(mode).splitlines() for one in made)
    return [
        [line for line in found if line.partition(": ")[0] not in OURS and ": " in line]
        for found in lines
    ]


def embedded(made):
    return shown(made, MetadataMode.EMBED)


def prompted(made):
    return [one.get_content(metadata_mode=MetadataMode.LLM) for one in made]


EXTRACTORS = {
    "keywords": lambda **options: KeywordExtractor(llm=llm(), **options),
    "summaries": lambda **options: SummaryExtractor(
        llm=llm(), summaries=["self", "prev"], **options
    ),
    "questions": lambda **options: QuestionsAnsweredExtractor(llm=llm(), **options),
    "titles": lambda **options: TitleExtractor(llm=llm(), **options),
}


def excluded(steps):
    [one, *_] = pipeline(*steps).run(documents=documents())
    one.excluded_embed_metadata_keys.append("author")
    for step in steps:
        step([one])
    return embedded([one])


def hidden_by_the_document(steps, attribute):
    [document] = documents()
    setattr(document, attribute, ["author"])
    made = pipeline(*steps).run(documents=[document])
    return [embedded(made), prompted(made)]


def extractor_that_hides(steps):
    made = pipeline(*steps).run(documents=documents())
    found = asyncio.run(
        EXTRACTORS["keywords"]().aprocess_nodes(
            made, excluded_embed_metadata_keys=["excerpt_keywords"]
        )
    )
    for step in steps:  # again, as in a second run
        step(found)
    return [embedded(found), prompted(found)]


def templates(steps):
    [document] = documents()
    document.metadata_template, document.metadata_separator = "{key}={value}", " | "
    document.text_template = "{metadata_str} --- {content}"
    made = pipeline(*steps).run(documents=[document])
    return [one.get_content(metadata_mode=MetadataMode.LLM) for one in made]


def hits(steps, question):
    made = nodes(*steps) + pipeline().run(
        documents=[Document(text=f"Other words {n}.", id_=str(n)) for n in range(9)]
    )
    return [
        hit.get_content()
        for hit in BM25Retriever.from_defaults(nodes=made, similarity_top_k=3).retrieve(question)
    ]


def twice(steps):
    one = pipeline(*steps)
    one.docstore = SimpleDocumentStore()
    return [len(one.run(documents=documents())) for _ in range(2)]


def from_an_index(steps):
    index = VectorStoreIndex.from_documents(
        documents(), transformations=pipeline(*steps).transformations, embed_model=MockEmbedding(8)
    )
    return sorted(hit.node_id for hit in index.as_retriever(similarity_top_k=9).retrieve("x"))


def links(steps):
    return [
        (one.node_id, one.ref_doc_id, one.start_char_idx, one.end_char_idx, one.text)
        for one in nodes(*steps)
    ] + [
        (kind.name, link.node_id)
        for one in nodes(*steps)
        for kind, link in one.relationships.items()
    ]


def cached(steps):
    one = pipeline(*steps)
    return [[node.node_id for node in one.run(documents=documents())] for _ in range(2)]


def markdown(steps):
    made = IngestionPipeline(transformations=[MarkdownNodeParser(), *steps]).run(
        documents=documents(path="a.md")
    )
    return embedded(made)


def markdown_prompt(steps):
    made = IngestionPipeline(transformations=[MarkdownNodeParser(), *steps]).run(
        documents=documents()
    )
    return prompted(made)


CASES = [
    *(
        case
        for name, make in EXTRACTORS.items()
        for case in (
            Case(
                f"{name} found before a context are embedded",
                lambda steps, m=make: embedded(nodes(m(), *steps)),
            ),
            Case(
                f"{name} found after a context are embedded",
                lambda steps, m=make: embedded(nodes(*steps, m())),
            ),
            Case(
                f"{name} found before a context are in prompts",
                lambda steps, m=make: prompted(nodes(m(), *steps)),
            ),
        )
    ),
    Case(
        "what documents brought is embedded",
        lambda steps: embedded(nodes(*steps, url="http://a/b")),
    ),
    Case(
        "what documents brought is in prompts",
        lambda steps: prompted(nodes(*steps, file_path="/srv/harbour.md")),
    ),
    Case(
        "what is displayed is the text", lambda steps: [one.get_content() for one in nodes(*steps)]
    ),
    Case("ids, offsets and links stay", links),
    Case("a key that is excluded later stays so", excluded),
    Case(
        "keys that a document excludes",
        lambda steps: hidden_by_the_document(steps, "excluded_embed_metadata_keys"),
    ),
    Case(
        "keys that it hides from prompts",
        lambda steps: hidden_by_the_document(steps, "excluded_llm_metadata_keys"),
    ),
    Case("keys that an extractor excludes after a context", extractor_that_hides),
    Case("the templates of a document make the views", templates),
    Case(
        "an extractor's template stays",
        lambda steps: nodes(EXTRACTORS["titles"](), *steps)[0].text_template,
    ),
    Case(
        "an extractor that rewrites no template",
        lambda steps: prompted(
            nodes(EXTRACTORS["keywords"](disable_template_rewrite=True), *steps)
        ),
    ),
    Case(
        "an extractor that works on copies",
        lambda steps: embedded(nodes(EXTRACTORS["keywords"](in_place=False), *steps)),
    ),
    Case("BM25Retriever finds what documents brought", lambda steps: sorted(hits(steps, "sea"))),
    Case("a document that is unchanged gives no nodes", twice, gives=[3, 0]),
    Case("a pipeline's cache gives the same nodes", cached),
    Case("VectorStoreIndex makes the same nodes", from_an_index),
    Case(
        "arun gives what run gives",
        lambda steps: embedded(
            asyncio.run(pipeline(EXTRACTORS["keywords"](), *steps).arun(documents=documents()))
        ),
    ),
    Case(
        "a context of another step stays",
        lambda steps: [one.metadata["context"] for one in nodes(*steps, context="x")],
    ),
    Case("headings of MarkdownNodeParser are in prompts", markdown_prompt),
    Case(
        "a path that the context says",
        lambda steps: embedded(nodes(*steps, file_path="/srv/sea/harbour.md"))[0],
        stock=["author: Ana", "category: sea", "page_label: 3", "file_path: /srv/sea/harbour.md"],
        gives=["author: Ana", "category: sea", "page_label: 3"],
        differs="said-once",
    ),
    Case(
        "headings of MarkdownNodeParser that the context says",
        lambda steps: [lines[-1] for lines in markdown(steps)],
        stock=["header_path: /", "header_path: /Harbour/"],
        gives=["page_label: 3"] * 2,
        differs="said-once",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_extractors(case):
    compare(case, [], [ContextualNodePostprocessor()])
