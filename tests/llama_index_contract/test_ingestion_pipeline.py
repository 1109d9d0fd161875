"""An ``IngestionPipeline`` with our steps in place of stock ones: caches, document stores, upserts.

Many cases are LlamaIndex's own. ``steps()`` returns a parser and a step after it: an extractor, or
our contexts. Workers are tested in ``tests/context/test_pipelines.py``, because LlamaIndex's
``SentenceSplitter`` never returned from them here.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core import Document, Settings, VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.extractors import TitleExtractor
from llama_index.core.ingestion import DocstoreStrategy, IngestionCache, IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.readers import ReaderConfig, StringIterableReader
from llama_index.core.schema import TransformComponent
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from side_by_side import comparison, refusal

from llama_index_contextual import ContextualNodePostprocessor, HeadingAwareMarkdownNodeParser

UPSERTS, ONLY = DocstoreStrategy.UPSERTS, DocstoreStrategy.DUPLICATES_ONLY
EMBED = MockEmbedding(embed_dim=4)


def stock():
    return [
        SentenceSplitter(chunk_size=25, chunk_overlap=0, include_prev_next_rel=True),
        TitleExtractor(llm=MockLLM()),
    ]


def ours():
    return [
        HeadingAwareMarkdownNodeParser(chunk_size=25, chunk_overlap=0),
        ContextualNodePostprocessor(),
    ]


class Raises(TransformComponent):
    def __call__(self, nodes: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a step that fails")


def docs(*texts, **metadata):
    return [
        Document(text=text, doc_id=str(number), metadata=metadata)
        for number, text in enumerate(texts, 1)
    ]


def pages(*texts):
    return [
        Document(
            text=text, id_=f"p{number}", metadata={"file_path": "r.pdf", "page_label": str(number)}
        )
        for number, text in enumerate(texts, 1)
    ]


def pipeline(steps, strategy=None, *more, store=None, **given):
    """Return a pipeline, with a document store if there is a strategy."""
    if strategy is not None:
        given = {"docstore": SimpleDocumentStore(), "docstore_strategy": strategy, **given}
    return IngestionPipeline(transformations=[*steps(), *more], vector_store=store, **given)


def held(store):
    """Return how many vectors a store contains for each document."""
    ids = list(store.data.text_id_to_ref_doc_id.values())
    return {document_id: ids.count(document_id) for document_id in sorted(set(ids))}


def runs(steps, *batches, strategy=UPSERTS):
    """Return what a vector store contains after some runs."""
    store = SimpleVectorStore()
    line = pipeline(steps, strategy, EMBED, store=store)
    for batch in batches:
        line.run(documents=batch)
    return held(store), len(store.data.embedding_dict)


def lengths(steps, strategy, *batches):
    line = pipeline(steps, strategy)
    return [len(line.run(documents=batch)) for batch in batches], len(line.docstore.docs)


def saved(steps, tmp_path="pipeline"):
    line = pipeline(steps, ONLY)
    line.run(documents=docs("one", "two", "one"))
    line.persist(tmp_path)
    other = pipeline(steps, ONLY)
    other.load(tmp_path)
    return [node.text for node in other.run(documents=docs("one", "two", "three"))]


def gone(steps):
    store = SimpleVectorStore()
    line = pipeline(steps, DocstoreStrategy.UPSERTS_AND_DELETE, EMBED, store=store)
    line.run(documents=docs("one", "two"))
    line.run(documents=docs("one"))
    return held(store)


def deleted(steps, id_):
    """Return what remains of four pages, two of them equal, after one is deleted."""
    index = VectorStoreIndex([], embed_model=EMBED, transformations=steps())
    for page in pages("Costs rise.", "Left blank.", "Costs fall.", "Left blank."):
        index.insert(page)
    index.delete_ref_doc(id_)
    return held(index.vector_store)


THREE = {"1": 1, "2": 1, "3": 1}
FOUR = pages("Costs rise.", "Left blank.", "Costs fall.", "Left blank.")
EACH = {"p1": 1, "p2": 1, "p3": 1, "p4": 1}


@pytest.fixture(autouse=True)
def _working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


compared = comparison(stock, ours)


@compared()
def test_documents_come_from_readers_too(steps):
    reader = ReaderConfig(
        reader=StringIterableReader(), reader_kwargs={"texts": ["This is a test."]}
    )
    line = IngestionPipeline(
        readers=[reader], documents=docs("Another one."), transformations=steps()
    )
    return sorted(node.text for node in line.run())


@compared(gives=[("1", "one"), ("2", "two")])
def test_nodes_name_their_documents(steps):
    return [
        (node.ref_doc_id, node.text) for node in pipeline(steps).run(documents=docs("one", "two"))
    ]


@compared(gives=["one", "two"])
def test_arun_gives_what_run_gives(steps):
    return [node.text for node in asyncio.run(pipeline(steps).arun(documents=docs("one", "two")))]


@compared(gives=[])
def test_nothing_in_nothing_out(steps):
    return pipeline(steps).run(documents=[])


@compared(gives=([2, 0], 2))
def test_duplicates_are_left_out(steps):
    return lengths(steps, ONLY, docs("one", "two"), docs("one"))


@compared(gives=([2], 2))
def test_duplicates_in_one_run_are_left_out(steps):
    return lengths(steps, ONLY, docs("a", "a", "b"))


@compared(gives=([1, 1], 1))
def test_a_changed_text_is_read_again(steps):
    return lengths(steps, ONLY, docs("one"), docs("test"))


@compared(gives=["three"])
def test_a_pipeline_is_saved_and_loaded(kind):
    return saved(kind)


@compared(gives=True)
def test_a_cache_gives_the_same_nodes(steps):
    """Return whether a second run takes the nodes of the first from the cache."""
    line = pipeline(steps, cache=IngestionCache())
    first, second = (line.run(documents=docs("one", "two")) for _ in range(2))
    return [a.node_id for a in first] == [b.node_id for b in second]


@compared(gives=("RuntimeError", None))
def test_a_step_that_fails_leaves_no_document_behind(steps):
    line = pipeline(steps, ONLY, Raises())
    return refusal(lambda: line.run(documents=docs("one"))), line.docstore.get_node(
        "1", raise_error=False
    )


@compared(gives=(["text"], {"1": 1}))
def test_a_changed_key_is_stored(steps):
    store = SimpleVectorStore()
    line = pipeline(steps, UPSERTS, EMBED, store=store)
    line.run(documents=docs("one", category="code"))
    changed_nodes = line.run(documents=docs("one", category="text"))
    return [node.metadata["category"] for node in changed_nodes], held(store)


@compared(gives={"1": 1})
def test_documents_that_are_gone_are_deleted(kind):
    return gone(kind)


@compared(gives=({"1": 1, "2": 1}, 2))
def test_an_upsert_replaces(steps):
    return runs(steps, docs("one", "two"), docs("new", "two"))


@compared(gives=({"1": 1, "2": 1, "3": 1}, 3))
def test_equal_documents_keep_a_vector_each(steps):
    return runs(steps, docs("a", "a", "a"))


@compared(gives=(EACH, 4))
def test_equal_pages_keep_a_vector_each(steps):
    return runs(steps, FOUR)


@compared(gives=(EACH, 4))
def test_equal_pages_one_by_one_keep_a_vector_each(steps):
    return runs(steps, *[[page] for page in FOUR])


@compared(gives=(EACH, 4))
def test_an_upsert_of_a_page_leaves_the_equal_one(steps):
    return runs(steps, FOUR, pages("Costs rise.", "New."))


@compared(gives={"p1": 1, "p2": 1, "p3": 1})
def test_deleting_a_page_leaves_the_equal_one(steps):
    return deleted(steps, "p4")


@compared(gives=([False, True, True], {"1": 1, "2": 1, "3": 1}))
def test_refresh_ref_docs(steps):
    index = VectorStoreIndex.from_documents(
        docs("one", "two"), embed_model=EMBED, transformations=steps()
    )
    changed = index.refresh_ref_docs(docs("one", "two, changed", "three"))
    return changed, held(index.vector_store)


@compared(gives={"1": 1, "2": 1})
def test_as_settings_transformations(steps):
    kept = Settings.transformations
    Settings.transformations = steps()
    try:
        return held(
            VectorStoreIndex.from_documents(docs("one", "two"), embed_model=EMBED).vector_store
        )
    finally:
        Settings.transformations = kept


@compared(stock=False, ours=True, differs="lasting-ids")
def test_ids_on_a_second_run(steps):
    first, second = (
        pipeline(steps, disable_cache=True).run(documents=docs("one", "two")) for _ in range(2)
    )
    return [node.node_id for node in first] == [node.node_id for node in second]
