"""What goes wrong with a store elsewhere: a clear message with its cure, nothing lost, and the next run goes on."""

import threading
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from servers import _free_port, chroma_run

from llama_index_contextual.embedding import LocalEmbedding
from llama_index_contextual.errors import FingerprintError, SettingError, StorageError
from llama_index_contextual.index.writer import Writer

NOWHERE = "http://127.0.0.1:1"


class _Older(BaseHTTPRequestHandler):
    """A server that knows none of the requests of today, as one of another version does."""

    def do_GET(self):
        self.send_response(404)
        self.end_headers()
        self.wfile.write(b'{"detail":"Not Found"}')

    do_POST = do_PUT = do_GET  # noqa: N815  the names that http.server calls

    def log_message(self, *_):
        pass


@contextmanager
def older_server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Older)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("kind", ["chroma"])
def test_a_server_that_is_not_there_is_an_error_and_leaves_no_index(opened, folder, kind, run):
    store = f"{kind}:{NOWHERE}"
    with pytest.raises(StorageError, match=rf"{NOWHERE}.*Cure: start it"):
        opened(vector_store=store).refresh()
    done = run("index", folder, "--store", store)
    assert (done.returncode, "Cure: start it" in done.stderr) == (1, True)
    assert opened().refresh().added, "another place may be chosen"


@pytest.mark.parametrize("kind", ["chroma"])
def test_a_server_of_another_version_is_an_error(opened, kind):
    with older_server() as url, pytest.raises(StorageError, match=rf"{url}.*Cure"):
        opened(vector_store=f"{kind}:{url}").refresh()


def test_a_server_that_ends_and_comes_back_costs_nothing(opened, folder, tmp_path, monkeypatch):
    port, server, write = _free_port(), ExitStack(), Writer.write
    index = opened(vector_store=f"chroma:{server.enter_context(chroma_run(tmp_path / 'server', port))}")
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
    with chroma_run(tmp_path / "server", port):
        report = index.refresh()
        assert (report.added, report.embedded) == (["new.md"], 0), "the vector was kept before the server was asked"
        assert index.verify().ok
        assert index.as_retriever().retrieve("Cookie")


def test_a_server_that_lost_its_data_is_filled_again_from_the_cache(opened, tmp_path, caplog):
    port = _free_port()
    with chroma_run(tmp_path / "server", port) as url:
        index = opened(vector_store=f"chroma:{url}")
        chunks = index.refresh().chunks
    index.close()
    with chroma_run(tmp_path / "another", port):
        report = opened().refresh()
        assert (report.chunks, report.embedded) == (chunks, 0)
        assert opened().verify().ok
    assert "lost" in caplog.text


def test_another_machine_takes_over_what_is_there_and_sees_each_change(opened, folder, chroma_server, tmp_path):
    place = f"chroma:{chroma_server}#two-machines"
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


@pytest.mark.parametrize("kind", ["chroma"])
def test_vectors_of_another_model_or_length_are_never_mixed(opened, kind, chroma_server, tmp_path):
    place = f"{kind}:{chroma_server}#of-one-model"
    opened(vector_store=place).refresh()
    other = LocalEmbedding(threads=1, model_name="other")
    stranger = opened(vector_store=place, storage=tmp_path / "stranger", embed_model=other)
    with pytest.raises(FingerprintError, match=r"made with the embedding.*Cure"):
        stranger.refresh()
    with pytest.raises(FingerprintError, match=r"made with the embedding.*Cure"):
        stranger.as_retriever().retrievers[0].retrieve("Cookie")
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
    with pytest.raises(SettingError, match=r"vector_store=.*Cure: one of chroma, chroma:http"):
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
    assert run("index", folder).returncode == 0
    assert not (folder / ".contextual/chroma").exists()
    (folder / "contextual.toml").write_text('[store]\nplace = "chroma"\n', "utf-8")
    done = run("search", "Cookie", "--folder", folder)
    assert (done.returncode, "is kept in" in done.stderr) == (1, True)
    assert run("status", folder).returncode == 0, "what only looks takes the index as it is"
    (folder / "contextual.toml").unlink()
    assert "Cookie" in run("search", "Cookie", "--folder", folder).stdout
