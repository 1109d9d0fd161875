"""An ``IngestionPipeline`` with our steps where stock ones stood: caches, document stores, upserts, workers.

Many cases are LlamaIndex's own. ``steps()`` are a parser and a step after it: an extractor, or our contexts.
Workers are in ``tests/test_pipelines.py``: LlamaIndex's ``SentenceSplitter`` never came back from them here.
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
from side_by_side import Case, compare, refusal

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
    """A pipeline with a document store where it has a strategy."""
    if strategy is not None:
        given = {"docstore": SimpleDocumentStore(), "docstore_strategy": strategy, **given}
    return IngestionPipeline(transformations=[*steps(), *more], vector_store=store, **given)


def held(store):
    """How many vectors a store has of each document."""
    ids = list(store.data.text_id_to_ref_doc_id.values())
    return {one: ids.count(one) for one in sorted(set(ids))}


def runs(steps, *batches, strategy=UPSERTS):
    """What a vector store holds after some runs."""
    store = SimpleVectorStore()
    line = pipeline(steps, strategy, EMBED, store=store)
    for batch in batches:
        line.run(documents=batch)
    return held(store), len(store.data.embedding_dict)


def lengths(steps, strategy, *batches):
    line = pipeline(steps, strategy)
    return [len(line.run(documents=batch)) for batch in batches], len(line.docstore.docs)


def from_a_reader(steps):
    reader = ReaderConfig(
        reader=StringIterableReader(), reader_kwargs={"texts": ["This is a test."]}
    )
    line = IngestionPipeline(
        readers=[reader], documents=docs("Another one."), transformations=steps()
    )
    return sorted(node.text for node in line.run())


def references(steps):
    return [
        (node.ref_doc_id, node.text) for node in pipeline(steps).run(documents=docs("one", "two"))
    ]


def asynchronously(steps):
    return [node.text for node in asyncio.run(pipeline(steps).arun(documents=docs("one", "two")))]


def saved(steps, tmp_path="pipeline"):
    line = pipeline(steps, ONLY)
    line.run(documents=docs("one", "two", "one"))
    line.persist(tmp_path)
    other = pipeline(steps, ONLY)
    other.load(tmp_path)
    return [node.text for node in other.run(documents=docs("one", "two", "three"))]


def cached(steps):
    """Whether a second run takes the nodes of the first from the cache."""
    line = pipeline(steps, cache=IngestionCache())
    first, second = (line.run(documents=docs("one", "two")) for _ in range(2))
    return [a.node_id for a in first] == [b.node_id for b in second]


def failing(steps):
    line = pipeline(steps, ONLY, Raises())
    return refusal(lambda: line.run(documents=docs("one"))), line.docstore.get_node(
        "1", raise_error=False
    )


def metadata_changed(steps):
    store = SimpleVectorStore()
    line = pipeline(steps, UPSERTS, EMBED, store=store)
    line.run(documents=docs("one", category="code"))
    again = line.run(documents=docs("one", category="text"))
    return [node.metadata["category"] for node in again], held(store)


def gone(steps):
    store = SimpleVectorStore()
    line = pipeline(steps, DocstoreStrategy.UPSERTS_AND_DELETE, EMBED, store=store)
    line.run(documents=docs("one", "two"))
    line.run(documents=docs("one"))
    return held(store)


def deleted(steps, id_):
    """What is left after one of four pages is deleted, of which two are equal."""
    index = VectorStoreIndex([], embed_model=EMBED, transformations=steps())
    for page in pages("Costs rise.", "Left blank.", "Costs fall.", "Left blank."):
        index.insert(page)
    index.delete_ref_doc(id_)
    return held(index.vector_store)


def refreshed(steps):
    index = VectorStoreIndex.from_documents(
        docs("one", "two"), embed_model=EMBED, transformations=steps()
    )
    changed = index.refresh_ref_docs(docs("one", "two, changed", "three"))
    return changed, held(index.vector_store)


def in_default_settings(steps):
    kept = Settings.transformations
    Settings.transformations = steps()
    try:
        return held(
            VectorStoreIndex.from_documents(docs("one", "two"), embed_model=EMBED).vector_store
        )
    finally:
        Settings.transformations = kept


def ids_again(steps):
    first, second = (
        pipeline(steps, disable_cache=True).run(documents=docs("one", "two")) for _ in range(2)
    )
    return [node.node_id for node in first] == [node.node_id for node in second]


THREE = {"1": 1, "2": 1, "3": 1}
FOUR = pages("Costs rise.", "Left blank.", "Costs fall.", "Left blank.")
EACH = {"p1": 1, "p2": 1, "p3": 1, "p4": 1}
CASES = [
    Case("documents come from readers, too", from_a_reader),
    Case("nodes name their documents", references, gives=[("1", "one"), ("2", "two")]),
    Case("arun gives what run gives", asynchronously, gives=["one", "two"]),
    Case("nothing in, nothing out", lambda steps: pipeline(steps).run(documents=[]), gives=[]),
    Case(
        "duplicates are left out",
        lambda steps: lengths(steps, ONLY, docs("one", "two"), docs("one")),
        ([2, 0], 2),
    ),
    Case(
        "duplicates in one run are, too",
        lambda steps: lengths(steps, ONLY, docs("a", "a", "b")),
        ([2], 2),
    ),
    Case(
        "a changed text is read again",
        lambda steps: lengths(steps, ONLY, docs("one"), docs("test")),
        ([1, 1], 1),
    ),
    Case("a pipeline is saved and loaded", saved, gives=["three"]),
    Case("a cache gives the same nodes", cached, gives=True),
    Case("a step that fails leaves no document behind", failing, gives=("RuntimeError", None)),
    Case("a changed key is stored", metadata_changed, gives=(["text"], {"1": 1})),
    Case("documents that are gone are deleted", gone, gives={"1": 1}),
    Case(
        "an upsert replaces",
        lambda steps: runs(steps, docs("one", "two"), docs("new", "two")),
        ({"1": 1, "2": 1}, 2),
    ),
    Case(
        "equal documents keep a vector each",
        lambda steps: runs(steps, docs("a", "a", "a")),
        ({"1": 1, "2": 1, "3": 1}, 3),
    ),
    Case("equal pages keep a vector each", lambda steps: runs(steps, FOUR), (EACH, 4)),
    Case("one by one, too", lambda steps: runs(steps, *[[page] for page in FOUR]), (EACH, 4)),
    Case(
        "an upsert of a page leaves the equal one",
        lambda steps: runs(steps, FOUR, pages("Costs rise.", "New.")),
        (EACH, 4),
    ),
    Case(
        "deleting a page leaves the equal one",
        lambda steps: deleted(steps, "p4"),
        gives={"p1": 1, "p2": 1, "p3": 1},
    ),
    Case("refresh_ref_docs", refreshed, gives=([False, True, True], {"1": 1, "2": 1, "3": 1})),
    Case("as Settings.transformations", in_default_settings, gives={"1": 1, "2": 1}),
    Case("ids on a second run", ids_again, stock=False, gives=True, differs="lasting-ids"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ingestion_pipeline(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compare(case, stock, ours)
