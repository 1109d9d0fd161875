"""Realistic pipelines from documents to hits, on each kind of vector store."""

from __future__ import annotations

from contextlib import nullcontext

import chromadb
import pytest
from hashed_words import HashedWords
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.readers.base import BaseReader
from llama_index.core.schema import MetadataMode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.vector_stores.chroma import ChromaVectorStore
from llama_index.vector_stores.lancedb import LanceDBVectorStore
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import QdrantClient

from llama_index_contextual import (
    ContextualNodePostprocessor,
    HeadingAwareMarkdownNodeParser,
    MemoryContext,
)
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.utils.metadata import citation_of

PAGES = [
    "# Report\n\n## Costs\n\nThe rent of the office rises in May.",
    "And the price of power falls in June.\n\n### Travel\n\nFlights are booked early.",
    "Left blank.",
    "Trains are booked late.",
    "Left blank.",
]


@pytest.fixture(params=["simple", "chroma", "qdrant", "lance"])
def store(request, tmp_path):
    if request.param == "simple":
        yield SimpleVectorStore()
    elif request.param == "chroma":
        client = chromadb.PersistentClient(
            str(tmp_path), settings=chromadb.Settings(anonymized_telemetry=False)
        )
        yield ChromaVectorStore(chroma_collection=client.create_collection("pages"))
        client.close()
    elif request.param == "qdrant":
        client = QdrantClient(path=str(tmp_path / "qdrant"))
        yield QdrantVectorStore("pages", client=client)
        client.close()
    else:
        yield LanceDBVectorStore(uri=str(tmp_path / "lance"))


def pages(texts=PAGES, **more):
    """Return the output of a converter: the Markdown of each page, with the name of its file."""
    labels = [str(number) for number in range(1, len(texts) + 1)]
    return [
        Document(
            text=text,
            id_=f"{more.get('tenant', 'report')}-{page}",
            metadata={"file_path": "d/report.pdf", "page_label": page, **more},
        )
        for text, page in zip(texts, labels, strict=True)
    ]


def steps():
    return [HeadingAwareMarkdownNodeParser(min_chunk_size=0), ContextualNodePostprocessor()]


def index_of(store, documents=()):
    """Return the index over a store.

    A store that keeps no text, such as LlamaIndex's default, keeps it in a document store.
    """
    return VectorStoreIndex.from_documents(
        list(documents),
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=HashedWords(),
        transformations=steps(),
    )


def retrieved_nodes(index, query, top_k=1):
    return [hit.node for hit in index.as_retriever(similarity_top_k=top_k).retrieve(query)]


def deleting(store):
    """Return a context that expects a deletion to succeed or, with LanceDB, to fail.

    LlamaIndex's adapter of LanceDB quotes a document's id as LanceDB quotes a column.
    """
    if isinstance(store, LanceDBVectorStore):
        return pytest.raises(ValueError, match="No field named")
    return nullcontext()


def blank(index):
    """Return the blank pages that a search finds."""
    hits = [
        node
        for node in retrieved_nodes(index, "Left blank", 20)
        if node.get_content() == "Left blank."
    ]
    return sorted((node.metadata.get("tenant"), node.metadata["page_label"]) for node in hits)


def test_pages_through_a_converter(store):
    index = index_of(store, pages())
    [node] = retrieved_nodes(index, "price of power in June")
    assert node.metadata["header_path"] == "Report > Costs"
    assert citation_of(node.metadata) == "d/report.pdf#page=2"
    assert "report.pdf > Report > Costs" in node.get_content(MetadataMode.EMBED)
    assert "page_label: 2" in node.get_content(MetadataMode.LLM)
    assert PAGES[1][node.start_char_idx : node.end_char_idx] == node.get_content()
    [node] = retrieved_nodes(index, "Trains are booked late")
    assert node.metadata["header_path"] == "Report > Costs > Travel"


def test_equal_pages_one_by_one_and_one_of_them_deleted(store):
    index = index_of(store)
    for page in pages():
        index.insert(page)
    assert blank(index) == [(None, "3"), (None, "5")]
    with deleting(store):
        index.delete_ref_doc("report-5")
        assert blank(index) == [(None, "3")]


def test_two_tenants_in_one_store(store):
    index = index_of(store, [*pages(tenant="a"), *pages(tenant="b")])
    expected = [(tenant, page) for tenant in "ab" for page in "35"]
    assert blank(index) == expected
    with deleting(store):
        index.update_ref_doc(pages([*PAGES[:4], "No longer."], tenant="b")[4])
        assert blank(index) == expected[:3]


def test_upserts_by_a_pipeline(store):
    """A second run that changes one page keeps the other pages, including equal ones."""
    line = IngestionPipeline(
        transformations=[*steps(), HashedWords()],
        vector_store=store,
        docstore=SimpleDocumentStore(),
    )
    first = line.run(documents=pages())
    assert len({node.node_id for node in first}) == len(first)
    with deleting(store):
        second = line.run(documents=pages([*PAGES[:4], "Filled at last."]))
        assert [node.get_content() for node in second] == ["Filled at last."]
        if isinstance(store, SimpleVectorStore):  # it keeps vectors but no texts
            assert sorted(store.data.text_id_to_ref_doc_id.values()) == [
                f"report-{page}" for page in (1, 2, 2, 3, 4, 5)
            ]
            return
        index = VectorStoreIndex.from_vector_store(store, embed_model=HashedWords())
        assert blank(index) == [(None, "3")]
        assert retrieved_nodes(index, "Filled at last")[0].metadata["page_label"] == "5"


@pytest.mark.process
def test_workers_that_share_the_pages_of_a_file():
    """Equal pages keep a node each.

    The first page of a worker's share has no heading above it.
    """
    line = IngestionPipeline(transformations=steps())
    nodes = line.run(documents=pages(PAGES[:4]), num_workers=2)
    assert [node.metadata["page_label"] for node in nodes] == ["1", "2", "2", "3", "4"]
    assert len({node.node_id for node in nodes}) == 5
    paths = [node.metadata["header_path"] for node in nodes]
    assert paths == ["Report > Costs", "Report > Costs", "Report > Costs > Travel", "", ""]
    assert {
        node.node_id
        for node in IngestionPipeline(transformations=steps()).run(documents=pages(PAGES[:4]))
    } == {node.node_id for node in nodes}, "who parses changes no id"


class OfPages(BaseReader):
    """A reader that returns each page of a file, as a converter does."""

    def load_data(self, file, **_):
        texts = file.read_text("utf-8").split("\f")
        labels = range(1, len(texts) + 1)
        return [
            Document(text=text, metadata={"page_label": str(n)})
            for n, text in zip(labels, texts, strict=True)
        ]


@pytest.mark.parametrize(
    ("suffixes", "headings"), [((".md", ".pdf"), "Report > Costs"), ((".md",), "")]
)
def test_pages_in_the_index_of_a_folder(tmp_path, suffixes, headings):
    (tmp_path / "report.pdf").write_text("\f".join(PAGES), "utf-8")
    parser = HeadingAwareMarkdownNodeParser(markdown_suffixes=suffixes)
    settings = {"embed_model": HashedWords(), "node_parser": parser, "readers": {".pdf": OfPages()}}
    with ContextualIndex.open(tmp_path, **settings) as index:
        assert index.refresh().failed == []
        [hit, *_] = index.as_retriever(5).retrieve("price of power in June")
        assert hit.node.metadata["header_path"] == headings
        assert citation_of(hit.node.metadata) == "report.pdf#page=2"
        assert hit.node.metadata["context"].startswith("Document: report.pdf")
        assert (
            "#page" not in hit.node.metadata["context"]
        )  # a number that says nothing about the text, and matches others
        digest = MemoryContext(index).search("price of power in June")
        assert digest.entries[0].citation == "report.pdf#page=2"
        assert index.refresh().changed == []
