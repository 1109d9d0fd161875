"""What a graph loses is measured on a sample, and said once, with a cure."""

from __future__ import annotations

import uuid
import warnings

import chromadb
import numpy as np
import pytest
from llama_index.core.schema import QueryBundle
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual.errors import ContextualWarning
from llama_index_contextual.retrieval import ContextualVectorRetriever
from llama_index_contextual.retrieval.chroma import TOP, found_share, losses, made_questions

CROWD, APART = 3000, 60


@pytest.fixture(scope="module")
def vectors():
    """60 vectors apart from one another, then 3,000 around one centre."""
    rng = np.random.default_rng(3)
    crowd = rng.standard_normal(384) + 0.3 * rng.standard_normal((CROWD, 384))
    return np.concatenate([rng.standard_normal((APART, 384)), crowd]).astype(np.float32)


@pytest.fixture
def collection(tmp_path):
    """Callable: makes a collection of vectors, the first 60 of which are of a document each."""
    client = chromadb.PersistentClient(str(tmp_path))

    def make(vectors, **hnsw):
        made = client.create_collection(f"c{uuid.uuid4().hex}", embedding_function=None, configuration={"hnsw": hnsw})
        names = [f"note {min(number, APART)}" for number in range(len(vectors))]
        metadata = [{"ref_doc_id": name} for name in names]
        for start in range(0, len(vectors), 1500):
            part = slice(start, start + 1500)
            ids = [f"{number:05}" for number in range(*part.indices(len(vectors)))]
            made.add(ids=ids, embeddings=vectors[part], metadatas=metadata[part])
        return made

    return make


@pytest.mark.parametrize("space", ["cosine", "l2", "ip"])
def test_a_graph_that_loses_neighbours_is_noticed_in_every_space(vectors, collection, space):
    graph = collection(vectors, space=space, max_neighbors=4, ef_construction=8, ef_search=10)
    assert "it missed one that is near" in losses(graph)


@pytest.mark.parametrize("space", ["cosine", "l2", "ip"])
def test_a_graph_that_finds_all_is_not(vectors, collection, space):
    longer = np.random.default_rng(4).uniform(0.5, 2, (1500, 1)) if space != "ip" else 1.0
    even = np.random.default_rng(5).standard_normal((1500, 16)) * longer
    assert losses(collection(even.astype(np.float32), space=space, ef_construction=400, ef_search=400)) is None
    assert losses(collection(vectors[:199], space=space)) is None
    assert losses(collection(vectors[:0], space=space)) is None


def test_a_retriever_warns_once_and_answers(vectors, collection, embedding):
    graph = collection(vectors, space="cosine", max_neighbors=4, ef_construction=8, ef_search=10)
    retriever = ContextualVectorRetriever(ChromaVectorStore(chroma_collection=graph), embedding)
    question = QueryBundle("", embedding=vectors[0].tolist())
    with pytest.warns(ContextualWarning, match=r'loses what is near.*Cure: .*"max_neighbors": 64'):
        assert len(retriever.candidates(question, 10)) == 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(retriever.with_filters(None).candidates(question, 10)) == 10


def test_a_collection_that_cannot_be_looked_at_answers_all_the_same(vectors, collection, embedding, monkeypatch):
    graph = collection(vectors, space="cosine", max_neighbors=4, ef_construction=8, ef_search=10)
    retriever = ContextualVectorRetriever(ChromaVectorStore(chroma_collection=graph), embedding)
    monkeypatch.setattr(type(graph), "count", lambda _: (_ for _ in ()).throw(RuntimeError("away")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(retriever.candidates(QueryBundle("", embedding=vectors[0].tolist()), 10)) == 10


def test_the_share_that_is_found_counts_equals_and_nothing_else(vectors):
    twins = np.concatenate([vectors[:200], vectors[:1], vectors[:1]])
    ids = [str(number) for number in range(len(twins))]
    pages = [(ids[:90], twins[:90]), (ids[90:], twins[90:])]
    questions = made_questions(vectors[:5])
    units = twins / np.linalg.norm(twins, axis=1, keepdims=True)
    true = [[ids[row] for row in np.argsort(-(units @ question))[:TOP]] for question in questions]
    assert found_share(pages, questions, true) == 1.0
    assert found_share(pages, questions, [answer[:-1] for answer in true]) == pytest.approx(0.9)
    assert found_share(pages, questions, [["nothing", *answer[1:]] for answer in true]) == pytest.approx(0.9)
    assert found_share(pages, questions[:1], [["0", "0", "0", *true[0][3:]]]) == pytest.approx(0.8)
    assert found_share([], questions, [[]] * len(questions)) == 1.0
    assert found_share([(ids[:3], twins[:3])], questions, [["0", "1", "2"]] * len(questions)) == 1.0
