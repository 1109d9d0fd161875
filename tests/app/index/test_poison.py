"""A bad answer of an embedding server neither blocks an index nor loses what was paid for."""

import math
from typing import ClassVar

import numpy as np
import pytest
from llama_index.core import Document, MockEmbedding

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.folder import sources
from llama_index_contextual.app.index.content_cache import ContentCache
from llama_index_contextual.app.index.embedder import BATCH_TEXTS, vector_problem
from llama_index_contextual.utils.errors import EmbeddingError, FingerprintError


class Server(MockEmbedding):
    """A model that is right except in calls that ``wrong`` names and for texts with a word."""

    wrong: ClassVar[dict] = {}
    word: str = ""
    answer: object = None
    calls: int = 0
    texts: int = 0

    def _vector(self, text):
        return [float(len(text)), *(float(text.count(letter)) for letter in "aeiou"), 1.0]

    def _get_text_embeddings(self, texts):
        self.calls += 1
        self.texts += len(texts)
        if self.calls in self.wrong:
            return [self.wrong[self.calls] for _ in texts]
        return [
            self.answer if self.word and self.word in text else self._vector(text) for text in texts
        ]

    def _get_query_embedding(self, query):
        return self._vector(query)


BAD = {
    "not a number": [math.nan] * 7,
    "infinite": [math.inf] + [1.0] * 6,
    "too large for a store": [1e300] * 7,
    "too large for its own length": [1e30] * 7,
    "empty": [],
    "of another dimension": [1.0] * 5,
    "all zeros": [0.0] * 7,
}


@pytest.fixture
def server():
    return Server(7, model_name="server")


@pytest.fixture
def index(folder, server):
    with ContextualIndex.open(folder, embed_model=server) as opened:
        yield opened


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
def test_a_bad_vector_affects_its_document_alone_and_is_requested_by_the_next_refresh(
    index, server, answer
):
    server.word, server.answer = "Cookie", answer
    report = index.refresh()
    [problem] = report.failed
    assert problem.path == "memory/2026-01-28.md"
    assert "Morning" in problem.reason
    assert "cannot be used" in problem.reason
    assert (len(report.added), report.chunks) == (3, 3)
    assert index.status(check=True).ok
    server.word = ""
    second_report = index.refresh()
    assert (second_report.added, second_report.failed, second_report.embedded) == (
        ["memory/2026-01-28.md"],
        [],
        1,
    )
    assert "carrots" in index.as_retriever(1).retrieve("Cookie carrots")[0].node.text


def test_a_model_that_gives_nothing_usable_is_named(folder):
    server = Server(7, model_name="server", word=" ", answer=[0.0] * 7)
    for number in range(20):
        (folder / f"page{number}.md").write_text(f"# Page {number}\n\nSome words.\n")
    with ContextualIndex.open(folder, embed_model=server) as index:
        with pytest.raises(
            EmbeddingError,
            match=r"no usable vector for any of 16 texts.*all its numbers are 0.*Check the model",
        ):
            index.refresh()
        assert not index.exists


def test_a_long_error_of_a_model_becomes_one_short_line(folder):
    class Talkative(MockEmbedding):
        def _get_text_embeddings(self, texts):
            raise ValueError("line\n" * 1_000_000)

    with (
        ContextualIndex.open(folder, embed_model=Talkative(embed_dim=7)) as index,
        pytest.raises(EmbeddingError) as it,
    ):
        index.refresh()
    assert "(ValueError: line line line" in str(it.value)
    assert len(str(it.value)) < 600


def test_queries_and_texts_of_other_lengths_are_refused(folder):
    class Two(Server):
        def _get_query_embedding(self, query):
            return [1.0, 2.0]

    with ContextualIndex.open(folder, embed_model=Two(7, model_name="two")) as index:
        index.refresh([Document(text=f"text {n}", id_=f"d{n}") for n in range(10)])
        with pytest.raises(
            FingerprintError, match="a vector of 2 dimensions cannot be compared with vectors of 7"
        ):
            index.as_retriever().retrieve("text")


def test_vectors_of_a_large_document_are_kept_as_they_come(index, server):
    document = Document(
        text="\n\n".join(f"# Part {n}\n\n{'word ' * 150}{n}" for n in range(200)), id_="large"
    )
    real = Server._get_text_embeddings

    def fail_at_last(self, texts):
        if self.texts >= 2 * BATCH_TEXTS:
            raise ConnectionError("gone")
        return real(self, texts)

    Server._get_text_embeddings = fail_at_last
    try:
        with pytest.raises(EmbeddingError, match="gone"):
            index.refresh([document])
    finally:
        Server._get_text_embeddings = real
    report = index.refresh([document])
    assert report.chunks - report.embedded >= 2 * BATCH_TEXTS


def test_pages_with_the_same_label_are_pages_of_their_own(index):
    class Pages:
        def load_data(self, file):
            return [
                Document(text=f"Page {label} of {file.name}", metadata={"page_label": label})
                for label in ("i", "i", "1")
            ]

    (index.folder / "book.pdf").write_bytes(b"x")
    (index.folder / "other.pdf").write_bytes(b"y")
    with ContextualIndex.open(
        index.folder, embed_model=index.settings.embedding, readers={".pdf": Pages()}
    ) as pages:
        report = pages.refresh()
        assert report.failed == []
        assert report.chunks == 4 + 2 * 3
        assert pages.status(check=True).ok
        ids = {node.ref_doc_id for node in pages.nodes("book.pdf")}
        assert ids == {"book.pdf#i", "book.pdf#i#2", "book.pdf#1"}


def test_duplicate_ids_of_chunks_affect_their_document_alone(folder, server):
    class SameId(type(ContextualIndex.open(folder, embed_model=server).settings.parser)):
        def get_nodes_from_documents(self, documents, **options):
            nodes = super().get_nodes_from_documents(documents, **options)
            for node in nodes:
                node.id_ = "always" if documents[0].metadata["path"] == "faq.md" else node.node_id
            return [*nodes, *nodes] if documents[0].metadata["path"] == "faq.md" else nodes

    with ContextualIndex.open(folder, embed_model=server, node_parser=SameId()) as index:
        report = index.refresh()
        assert [problem.path for problem in report.failed] == ["faq.md"]
        assert len(report.added) == 3


def test_a_file_that_changes_while_it_is_indexed_and_back_is_read_again(index, monkeypatch):
    """A branch is switched and switched back.

    The index must not take one version for the other.
    """
    index.refresh()
    page = index.folder / "faq.md"
    first, second = "# FAQ\n\nThe answer is one.\n", "# FAQ\n\nThe answer is two.\n"
    page.write_text(first)
    seen = sources.file_sources

    def then_switched(*arguments):
        file_sources = seen(*arguments)
        page.write_text(second)
        return file_sources

    monkeypatch.setattr(sources, "file_sources", then_switched)
    index.refresh()
    monkeypatch.undo()
    page.write_text(first)
    assert index.refresh().changed == ["faq.md"]
    assert "one" in "".join(node.text for node in index.nodes())


@pytest.mark.parametrize("vector", BAD.values(), ids=BAD)
def test_what_is_wrong_with_a_vector_is_said(vector):
    assert vector_problem(vector, 7)
    assert vector_problem([1.0] * 7, 7) == ""


def test_a_new_index_takes_no_cached_vectors_of_another_length(index, monkeypatch):
    def of_another_length(_, __, hashes):
        return {key: np.ones(3, np.float32) for key in hashes}

    monkeypatch.setattr(ContentCache, "vectors", of_another_length)
    report = index.refresh()
    assert (report.failed, report.embedded) == ([], report.chunks)
    assert index.as_retriever(1).retrieve("Cookie")
