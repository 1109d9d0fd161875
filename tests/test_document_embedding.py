from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core import Document
from llama_index.core.ingestion import IngestionPipeline
from servers import served

from llama_index_contextual import HeadingAwareMarkdownNodeParser
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.settings.embeddings import (
    EmbedDocuments,
    JinaDocumentEmbedding,
    VoyageDocumentEmbedding,
)
from llama_index_contextual.app.settings.models import model_id, resolve_embedding
from llama_index_contextual.utils.errors import EmbeddingError, SettingError

KEY = "a-key-that-nobody-may-see"


class Vendor(BaseHTTPRequestHandler):
    """Speaks the HTTP that Voyage and Jina document. A chunk's vector is its own words and a tenth of its company's."""

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body, self.headers["Authorization"]))
        fault = self.server.faults.pop(0) if self.server.faults else None
        if isinstance(fault, int):
            self._answer(json.dumps({"detail": "no"}).encode(), fault)
        elif isinstance(fault, bytes):
            self._answer(fault)
        elif fault == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"data": [')
        else:
            self._answer(json.dumps(self._made(body), allow_nan=True).encode())

    def _answer(self, content, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(content)

    def _made(self, body):
        if self.path == "/v1/contextualizedembeddings":
            groups = [
                {"object": "list", "index": at, "data": items(texts, together=True)}
                for at, texts in enumerate(body["inputs"])
            ]
            return {
                "object": "list",
                "data": groups,
                "model": body["model"],
                "usage": {"total_tokens": 1},
            }
        assert self.path == "/v1/embeddings"
        return {
            "model": body["model"],
            "object": "list",
            "data": items(body["input"], together=body["late_chunking"]),
        }


def items(texts, *, together):
    own = np.array([words(text) for text in texts])
    vectors = own + own.mean(axis=0) / 10 if together else own
    made = [
        {"object": "embedding", "embedding": list(v), "index": at} for at, v in enumerate(vectors)
    ]
    return made[::-1]  # the order is in the index


def words(text):
    vector = np.full(16, 1e-3)
    for word in text.split():
        vector[hashlib.sha256(word.encode()).digest()[0] % 16] += 1
    return vector


@pytest.fixture
def vendor(monkeypatch):
    monkeypatch.setenv("VOYAGE_API_KEY", KEY)
    monkeypatch.setenv("JINA_API_KEY", KEY)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Vendor)
    server.asked, server.faults = [], []
    with served(server) as url:
        server.url = f"{url}/v1"
        yield server


def voyage(vendor, **settings):
    return VoyageDocumentEmbedding(base_url=vendor.url, **settings)


@given(st.lists(st.text(max_size=60), max_size=60))
def test_every_chunk_is_in_one_window_and_no_window_is_too_long(chunks):
    windows = VoyageDocumentEmbedding(window_tokens=100).windows(chunks)
    assert [chunk for window in windows for chunk in window] == chunks
    assert all(sum(len(chunk.encode()) // 3 + 1 for chunk in window) <= 100 for window in windows)


def test_a_chunk_beyond_the_window_is_an_error_that_says_so(vendor):
    with pytest.raises(
        EmbeddingError, match=r"a chunk of a document has about .* the model reads 100"
    ):
        voyage(vendor, window_tokens=100).embed_document(["short", "long " * 200])


def test_voyage_is_asked_as_its_documentation_says(vendor):
    made = voyage(vendor, dimensions=256)
    alone = made.embed_document(["apples are red"])[0]
    together = made.embed_document(["apples are red", "pears grow", "so do plums"])
    assert not np.allclose(alone, together[0])
    assert np.argmax(np.array(together) @ made.get_query_embedding("pears grow")) == 1
    path, body, authorization = vendor.asked[1]
    assert (path, authorization) == ("/v1/contextualizedembeddings", f"Bearer {KEY}")
    assert body == {
        "inputs": [["apples are red", "pears grow", "so do plums"]],
        "model": "voyage-context-3",
        "input_type": "document",
        "output_dimension": 256,
    }
    assert vendor.asked[2][1]["input_type"] == "query"
    assert vendor.asked[2][1]["inputs"] == [["pears grow"]]


def test_jina_is_asked_as_its_documentation_says(vendor):
    made = JinaDocumentEmbedding(base_url=vendor.url)
    together = made.embed_document(["apples are red", "pears grow"])
    assert np.argmax(np.array(together) @ made.get_query_embedding("pears grow")) == 1
    assert [path for path, _, _ in vendor.asked] == ["/v1/embeddings"] * 2
    assert vendor.asked[0][1] == {
        "model": "jina-embeddings-v3",
        "task": "retrieval.passage",
        "late_chunking": True,
        "input": ["apples are red", "pears grow"],
    }
    assert (vendor.asked[1][1]["task"], vendor.asked[1][1]["late_chunking"]) == (
        "retrieval.query",
        False,
    )


def test_a_long_document_goes_in_windows(vendor):
    chunks = [f"chunk{at} " * 10 for at in range(40)]
    vectors = voyage(vendor, window_tokens=400).embed_document(chunks)
    assert len(vectors) == 40
    asked = [body["inputs"][0] for _, body, _ in vendor.asked]
    assert len(asked) > 2
    assert [text for texts in asked for text in texts] == chunks


@pytest.mark.parametrize("fault", [429, 500, 503, "cut", b"<html>busy</html>"])
def test_what_passes_is_asked_again(vendor, fault, monkeypatch):
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _seconds: None)
    vendor.faults += [fault, fault]
    assert len(voyage(vendor).embed_document(["a", "b"])) == 2
    assert len(vendor.asked) == 3


@pytest.mark.parametrize(
    "answer",
    ['{"error": {"message": "quota"}}', '{"data": null}', '{"data": [{"index": 0}]}', "[]"],
)
def test_an_answer_without_vectors_is_shown(vendor, answer, monkeypatch):
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _seconds: None)
    vendor.faults += [answer.encode()] * 9
    with pytest.raises(
        EmbeddingError, match=re.escape(f"no vectors are in its answer {answer!r}. Cure: ")
    ):
        voyage(vendor).embed_document(["a"])


def test_what_stays_is_an_error_that_shows_no_key(vendor, monkeypatch):
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _seconds: None)
    vendor.faults += [503] * 9
    with pytest.raises(EmbeddingError, match="failed: HTTP 503") as busy:
        voyage(vendor).embed_document(["a"])
    vendor.faults[:] = [401]
    with pytest.raises(EmbeddingError, match="failed: HTTP 401") as refused:
        voyage(vendor).embed_document(["a"])
    assert KEY not in f"{busy.value}{refused.value}{voyage(vendor)!r}{voyage(vendor).to_dict()}"


@pytest.mark.parametrize(
    "body",
    [b"[]", b"{}", b'{"data": []}', b'{"data": [{"data": [{"index": 0}]}]}', b"3"]
    + [
        b'{"data": [{"data": [{"index": 0, "embedding": %b}]}]}' % one
        for one in (b"[NaN, 1]", b"[0, 0]", b"null")
    ],
)
def test_an_answer_that_cannot_be_used_fails_its_file_and_is_never_kept(vendor, tmp_path, body):
    (tmp_path / "a.md").write_text("# Pears\n\nGreen.\n")
    with ContextualIndex.open(tmp_path, embed_model=voyage(vendor)) as index:
        vendor.faults.append(body)
        with suppress(EmbeddingError):
            assert index.refresh().failed
        assert index.refresh().added == ["a.md"]


def test_a_missing_key_names_its_variable(vendor, monkeypatch):
    monkeypatch.delenv("VOYAGE_API_KEY")
    with pytest.raises(SettingError, match="set the environment variable VOYAGE_API_KEY"):
        voyage(vendor).embed_document(["a"])
    assert not vendor.asked


@pytest.mark.parametrize(
    ("spec", "class_name"),
    [("voyage:voyage-context-3", "Voyage"), ("jina:jina-embeddings-v3", "Jina")],
)
def test_a_string_chooses_them(spec, class_name):
    chosen = resolve_embedding(f"{spec}@http://127.0.0.1:9/v1")
    assert chosen.class_name() == f"{class_name}DocumentEmbedding"
    assert chosen.base_url == "http://127.0.0.1:9/v1"
    assert model_id(chosen).startswith(f"{class_name}DocumentEmbedding:{spec.split(':')[1]}#")


def test_any_ingestion_pipeline_embeds_documents_whole(vendor):
    texts = ["# Apples\n\nRed.\n\n# Pears\n\nGreen.", "# Plums\n\nBlue.\n\n# Figs\n\nBrown."]
    documents = [Document(text=text, id_=str(at)) for at, text in enumerate(texts)]
    parser = HeadingAwareMarkdownNodeParser(chunk_size=8, chunk_overlap=0, min_chunk_size=1)
    nodes = IngestionPipeline(
        transformations=[parser, EmbedDocuments(embed_model=voyage(vendor))]
    ).run(documents=documents)
    assert [len(body["inputs"][0]) for _, body, _ in vendor.asked] == [2, 2]
    assert all(len(node.embedding) == 16 for node in nodes)


def test_an_index_needs_the_key_and_says_so_plainly(vendor, tmp_path, monkeypatch, run):
    monkeypatch.delenv("VOYAGE_API_KEY")
    (tmp_path / "a.md").write_text("# Pears\n\nGreen.\n")
    command = "index", tmp_path, "--embed-model", f"voyage:voyage-context-3@{vendor.url}"
    message = "error: the embedding voyage-context-3 needs a key. Cure: set the environment variable VOYAGE_API_KEY.\n"
    assert run(*command).stderr == message
    monkeypatch.setenv("VOYAGE_API_KEY", KEY)
    assert run(*command).returncode == 0
    monkeypatch.delenv("VOYAGE_API_KEY")
    assert run(*command).returncode == 0, "nothing is new"
    (tmp_path / "b.md").write_text("# Plums\n\nBlue.\n")
    assert run(*command).stderr.endswith(message)


def test_an_index_of_a_folder_embeds_each_document_whole(vendor, tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    sections = [f"# Section {at}\n\n{f'word{at} ' * 300}\n\n" for at in range(9)]
    (notes / "long.md").write_text("".join(sections))
    (notes / "short.md").write_text("# Pears\n\nGreen.\n")
    with ContextualIndex.open(notes, embed_model=f"voyage:voyage-context-3@{vendor.url}") as index:
        assert index.refresh().embedded == index.refresh().chunks
        documents = [
            body["inputs"][0] for _, body, _ in vendor.asked if body["input_type"] == "document"
        ]
        assert sorted(map(len, documents)) == [1, index.status().chunks - 1]
        assert index.as_retriever().retrieve("word3 word3")[0].node.metadata["path"] == "long.md"
        asked = len(vendor.asked)
        (notes / "long.md").write_text(
            "".join([*sections[:-1], "# Section 8\n\nedited9 edited9\n"])
        )
        assert index.refresh().embedded > 5  # all chunks of the window, in one request
        assert len(vendor.asked) == asked + 1
        assert index.status(check=True).ok


def test_an_edit_of_a_long_document_embeds_its_window_only(vendor, tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    sections = [f"# Section {at}\n\n{f'word{at} ' * 200}\n\n" for at in range(20)]
    (notes / "long.md").write_text("".join(sections))
    with ContextualIndex.open(notes, embed_model=voyage(vendor, window_tokens=3000)) as index:
        first = index.refresh()
        asked = len(vendor.asked)
        (notes / "long.md").write_text(
            "".join([*sections[:-1], f"# Section 19\n\n{'other19 ' * 200}\n"])
        )
        again = index.refresh()
        assert 0 < again.embedded < first.embedded / 2
        assert len(vendor.asked) == asked + 1


def test_a_chunk_that_is_too_long_fails_its_file_alone(vendor, tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "long.md").write_text("# Long\n\n" + "word " * 2000)
    (notes / "short.md").write_text("# Pears\n\nGreen.\n")
    with ContextualIndex.open(notes, embed_model=voyage(vendor, window_tokens=200)) as index:
        report = index.refresh()
        assert [problem.path for problem in report.failed] == ["long.md"]
        assert report.added == ["short.md"]


async def test_async_gives_the_same(vendor):
    made = voyage(vendor)
    assert await made.aget_query_embedding("pears") == made.get_query_embedding("pears")
    assert await made.aget_text_embedding("pears") == made.embed_document(["pears"])[0]
