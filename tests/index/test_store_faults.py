"""What goes wrong with a store elsewhere: a clear message with its cure, nothing lost, and the next run goes on."""

import json
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter
from llama_index.vector_stores.qdrant import QdrantVectorStore
from llama_index_contextual.index.writer import Writer
from llama_index_contextual.retrievers.qdrant import DENSE, SPARSE
from qdrant_client import QdrantClient, models
from qdrant_stand_in import qdrant_stand_in
from servers import chroma_run, free_port, served

from llama_index_contextual.errors import (
    ContextualWarning,
    FingerprintError,
    MissingExtraError,
    SettingError,
    StorageError,
)
from llama_index_contextual.index import move
from llama_index_contextual.keyword import SparseEncoder
from llama_index_contextual.local_embedding import LocalEmbedding

pytestmark = pytest.mark.server

NOWHERE = "http://127.0.0.1:1"


class _Older(BaseHTTPRequestHandler):
    """A server that knows none of the requests of today, as one of another version does."""

    answer = (404, {"detail": "Not Found"})

    def do_GET(self):
        self.send_response(self.answer[0])
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(self.answer[1]).encode())

    do_POST = do_PUT = do_GET  # noqa: N815  the names that http.server calls

    def log_message(self, *_):
        pass


@contextmanager
def older_server():
    with served(ThreadingHTTPServer(("127.0.0.1", 0), _Older)) as url:
        yield url


@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_a_server_that_is_not_there_is_an_error_and_leaves_no_index(opened, folder, kind, run):
    store = f"{kind}:{NOWHERE}"
    with pytest.raises(StorageError, match=rf"{NOWHERE}.*Cure: start it"):
        opened(vector_store=store).refresh()
    done = run("index", folder, "--store", store)
    assert (done.returncode, "Cure: start it" in done.stderr) == (1, True)
    assert opened().refresh().added, "another place may be chosen"


@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_a_server_of_another_version_is_an_error(opened, kind):
    with older_server() as url, pytest.raises(StorageError, match=rf"{url}.*Cure"):
        opened(vector_store=f"{kind}:{url}").refresh()


@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_a_server_that_ends_and_comes_back_costs_nothing(opened, folder, kind, tmp_path, monkeypatch):
    port, server, write = free_port(), ExitStack(), Writer.write
    serve = partial(chroma_run, tmp_path / "server") if kind == "chroma" else qdrant_stand_in
    index = opened(vector_store=f"{kind}:{server.enter_context(serve(port))}")
    index.refresh()
    (folder / "new.md").write_text("# New\n\nParsnips are new.\n", "utf-8")

    def ending(self, *arguments, **options):
        server.close()
        write(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "write", ending)
        with pytest.raises(StorageError, match=r"does not answer.*Cure"):
            index.refresh()
    for question in (index.status, index.verify, lambda: index.as_retriever().retrieve("Cookie")):
        with pytest.raises(StorageError, match=r"does not answer.*Cure"):
            question()
    with serve(port):  # the stand-in for Qdrant comes back empty
        report = index.refresh()
        assert report.embedded == 0, "vectors are kept before the server is asked"
        assert "new.md" in report.added
        assert index.verify().ok
        assert index.as_retriever().retrieve("Cookie")


def test_a_server_that_lost_its_data_is_filled_again_from_the_cache(opened, tmp_path, caplog):
    port = free_port()
    with chroma_run(tmp_path / "server", port) as url:
        index = opened(vector_store=f"chroma:{url}")
        chunks = index.refresh().chunks
    index.close()
    with chroma_run(tmp_path / "another", port):
        report = opened().refresh()
        assert (report.chunks, report.embedded) == (chunks, 0)
        assert opened().verify().ok
    assert "lost" in caplog.text


@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_another_machine_takes_over_what_is_there_and_sees_each_change(opened, folder, kind, request, tmp_path):
    place = f"{kind}:{request.getfixturevalue(f'{kind}_server')}#two-machines"
    here = opened(vector_store=place)
    here.refresh()
    there = opened(vector_store=place, storage=tmp_path / "there")
    assert there.as_retriever(1).retrieve("Cookie"), "reading needs no refresh of its own"
    assert there.refresh().embedded == 0
    assert not (tmp_path / "there/chroma").exists()
    (folder / "faq.md").write_text("# FAQ\n\nWhy is it slow? Because of the kettle.\n", "utf-8")
    here.refresh()
    found = there.as_retriever(1).retrieve("kettle")[0].node.text
    assert found == (folder / "faq.md").read_text("utf-8").strip(), "as many chunks as before, and another text"
    (folder / "guide.md").unlink()
    assert there.refresh().deleted == ["guide.md"]
    assert here.refresh().embedded == 0
    assert here.verify().ok
    assert there.verify().ok


def test_two_folders_on_one_server_do_not_meet(opened, folder, chroma_server, tmp_path):
    place = f"chroma:{chroma_server}"
    first = opened(vector_store=place)
    chunks = first.refresh().chunks
    other = tmp_path / "other"
    other.mkdir()
    (other / "faq.md").write_text("# Theirs\n\nAnother page of that name.\n", "utf-8")
    second = opened(other, vector_store=place)
    assert second.refresh().chunks == 1
    assert first.status().chunks == chunks
    assert first.verify().ok


@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_vectors_of_another_model_are_never_mixed(opened, kind, request, tmp_path):
    place = f"{kind}:{request.getfixturevalue(f'{kind}_server')}#of-one-model"
    opened(vector_store=place).refresh()
    other = LocalEmbedding(threads=1, model_name="other")
    for work in (lambda index: index.refresh(), lambda index: index.as_retriever().retrievers[0].retrieve("Cookie")):
        with pytest.raises(FingerprintError, match=r"made with the embedding.*Cure"):
            work(opened(vector_store=place, storage=tmp_path / "stranger", embed_model=other))
    assert opened().verify().ok


@pytest.mark.parametrize(
    "place",
    [
        "croma",
        "chroma:",
        "chroma:localhost:8000",
        "chroma:http://h#a b",
        "chroma:http://h#notes-2024",
        "elastic:http://h",
        7,
    ],
)
def test_what_names_no_place_is_an_error(opened, place):
    with pytest.raises(SettingError, match=r"no place for an index. Cure: one of chroma, chroma:http"):
        opened(vector_store=place)


def test_a_password_is_not_written_down(opened):
    with pytest.raises(SettingError, match=r"password.*Cure: pass a client"):
        opened(vector_store="chroma:http://ada:secret@127.0.0.1:1")


def test_a_store_of_ones_own_has_to_be_given_again(opened, chroma_server):
    import chromadb

    port = int(chroma_server.rpartition(":")[2])
    client = chromadb.HttpClient("127.0.0.1", port, settings=chromadb.Settings(anonymized_telemetry=False))
    opened(vector_store=client).refresh()
    with pytest.raises(FingerprintError, match=r"given as an object. Cure: ContextualIndex.open"):
        opened()
    assert opened(vector_store=client).verify().ok


def test_the_configuration_chooses_and_a_change_of_it_is_no_silent_one(opened, folder, chroma_server, run):
    (folder / "contextual.toml").write_text(f'[store]\nplace = "chroma:{chroma_server}"\n', "utf-8")
    assert run("trust", folder).returncode == 0
    assert run("index", folder).returncode == 0
    assert not (folder / ".contextual/chroma").exists()
    (folder / "contextual.toml").write_text('[store]\nplace = "chroma"\n', "utf-8")
    done = run("search", "Cookie", "--folder", folder)
    assert (done.returncode, "is kept in" in done.stderr) == (1, True)
    assert run("status", folder).returncode == 0, "what only looks takes the index as it is"
    (folder / "contextual.toml").unlink()
    assert "Cookie" in run("search", "Cookie", "--folder", folder).stdout


# Qdrant


def test_an_older_qdrant_server_is_refused(opened, monkeypatch):
    monkeypatch.setattr(_Older, "answer", (200, {"title": "qdrant - vector search engine", "version": "1.15.3"}))
    with older_server() as url, pytest.raises(StorageError, match=r"has version 1\.15\.3.*Cure: 1\.16 or later"):
        opened(vector_store=f"qdrant:{url}").refresh()


def test_a_missing_extra_names_it(opened, monkeypatch):
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    for loaded in ("llama_index_contextual.index.qdrant", "llama_index_contextual.retrievers.qdrant"):
        monkeypatch.delitem(sys.modules, loaded, raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'llama-index-contextual\[qdrant\]'"):
        opened(vector_store=f"qdrant:{NOWHERE}")


@pytest.mark.parametrize("place", ["qdrant:{}", "qdrant:{}#notes", "qdrant:file://{}", "chroma:{}"])
def test_no_setting_names_a_folder_for_qdrant_which_would_unpickle_what_is_in_it(opened, folder, tmp_path, run, place):
    place = place.format(tmp_path / "q")
    with pytest.raises(SettingError, match=r"names no place for an index\. Cure: one of chroma, chroma:http"):
        opened(vector_store=place)
    assert "names no place" in run("index", folder, "--store", place).stderr
    assert not (tmp_path / "q").exists()


def test_a_chunk_in_qdrant_whose_bits_flipped_is_an_error(opened):
    client = QdrantClient(":memory:")
    index = opened(vector_store=client)
    index.refresh()
    [name] = [one.name for one in client.get_collections().collections]
    client.set_payload(name, {"_node_content": "{"}, models.Filter())
    for look in (lambda: opened(vector_store=client).nodes(), lambda: index.as_retriever().retrieve("Cookie")):
        with pytest.raises(StorageError, match=r"holds a chunk that cannot be read.*Cure: "):
            look()


def test_a_collection_of_another_program_or_length_is_left_alone(opened, tmp_path, qdrant_server):
    place, other = f"qdrant:{qdrant_server}", QdrantClient(qdrant_server)
    other.create_collection("theirs", {"one": models.VectorParams(size=3, distance=models.Distance.DOT)})
    sizes = {DENSE: models.VectorParams(size=3, distance=models.Distance.COSINE)}
    other.create_collection("short", vectors_config=sizes, sparse_vectors_config={SPARSE: models.SparseVectorParams()})
    other.close()
    with pytest.raises(StorageError, match=r"'theirs' of Qdrant is not one of an index.*Cure"):
        opened(vector_store=f"{place}#theirs").refresh()
    with pytest.raises(FingerprintError, match=r"vectors of 3 dimensions, and these have 384.*Cure"):
        opened(vector_store=f"{place}#short", storage=tmp_path / "second").refresh()
    assert opened(vector_store=f"{place}#ours", storage=tmp_path / "third").refresh().added


def test_ids_that_qdrant_does_not_take_and_chunks_without_words_are_kept(opened, qdrant_server):
    index = opened(vector_store=f"qdrant:{qdrant_server}", node_parser=SentenceSplitter(id_func=_numbered))
    index.refresh([Document(text="Zebras sleep standing.", id_="one"), Document(text="的 …", id_="two")])
    assert {node.node_id for node in index.nodes()} == {"one/0", "two/0"}
    vector, keyword = index.as_retriever(5).retrievers
    assert {hit.node.node_id for hit in vector.retrieve("zebras")} == {"one/0", "two/0"}
    assert [hit.node.node_id for hit in keyword.retrieve("zebras")] == ["one/0"]
    assert index.verify().ok, str(index.verify())


def _numbered(number, document):
    return f"{document.node_id}/{number}"


def test_the_stock_class_of_llamaindex_reads_what_is_in_qdrant(opened, embedding):
    client = QdrantClient(":memory:")
    with opened(vector_store=client) as index:
        index.refresh()
        wanted = {node.node_id: (node.text, node.metadata) for node in index.nodes()}
    [name] = [one.name for one in client.get_collections().collections]
    encoder = SparseEncoder()
    functions = {"sparse_doc_fn": encoder.documents, "sparse_query_fn": encoder.queries}
    stock = QdrantVectorStore(name, client, enable_hybrid=True, **functions)
    assert {node.node_id: (node.text, node.metadata) for node in stock.get_nodes()} == wanted
    for mode in ("default", "sparse", "hybrid"):
        retriever = VectorStoreIndex.from_vector_store(stock, embed_model=embedding).as_retriever(
            vector_store_query_mode=mode, similarity_top_k=1, sparse_top_k=1, hybrid_top_k=1
        )
        assert [hit.node.metadata["path"] for hit in retriever.retrieve("dog Cookie")] == ["memory/2026-01-28.md"]
    stock.client.close()


def test_a_local_client_of_qdrant_that_is_given_is_asked_by_one_thread_at_a_time(opened, monkeypatch):
    client, busy, together = QdrantClient(":memory:"), threading.Lock(), []

    def watched(method):
        def call(*arguments, **options):
            together.append(not busy.acquire(blocking=False))
            try:
                time.sleep(0.02)
                return method(*arguments, **options)
            finally:
                if not together[-1]:
                    busy.release()

        return call

    with warnings.catch_warnings(), opened(vector_store=client) as index:
        warnings.simplefilter("error", UserWarning)  # Qdrant's own, that the local mode has no payload indexes
        index.refresh()
        monkeypatch.setattr(client, "query_points", watched(client.query_points))
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(index.as_retriever().retrieve, ["green tea", "the guide", "an answer", "why slow"] * 2))
    assert together
    assert not any(together)


def test_an_index_has_moved_even_where_the_old_place_cannot_be_cleared(opened, qdrant_server, monkeypatch):
    index = opened()
    index.refresh()

    def away(*_):
        raise StorageError("the server does not answer")

    monkeypatch.setattr(move, "_leave", away)
    with pytest.warns(ContextualWarning, match="has moved, and what it left in the old place"):
        index.move(f"qdrant:{qdrant_server}")
    assert index.settings.place.name == index.status().store == f"qdrant:{qdrant_server}"
    assert index.verify().ok
