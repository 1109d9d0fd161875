"""What goes wrong with a store: questions are answered, nothing is lost, and the next refresh fills it."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from llama_index.core.schema import MetadataMode
from qdrant_client import QdrantClient
from qdrant_stand_in import qdrant_stand_in
from servers import chroma_run, free_port

from llama_index_contextual.app.index.engines import Engines
from llama_index_contextual.app.vector_stores import chroma_clients
from llama_index_contextual.errors import SettingError, StorageError

LIMIT = "LLAMA_INDEX_CONTEXTUAL_EXACT_LIMIT"
NOWHERE = "http://127.0.0.1:1"
STOOD_IN = "Every vector is compared, because the store"


@pytest.fixture(autouse=True)
def graphs(monkeypatch):
    """Chroma answers at any size."""
    monkeypatch.setenv(LIMIT, "0")


def nearest(index, question="Cookie"):
    vector, _ = index.as_retriever(1).retrievers
    return vector.retrieve(question)[0].node.text


def assert_filled(index, monkeypatch):
    """The store itself answers, and holds what it should."""
    assert index.verify().ok, str(index.verify())
    with monkeypatch.context() as patch:
        patch.setattr(Engines, "matrix", lambda *_: pytest.fail("the matrix was asked"))
        assert "Cookie" in nearest(index)


@pytest.mark.server
@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_a_server_that_is_not_there_is_an_error_and_what_is_indexed_answers(opened, folder, kind, run):
    index = opened(vector_store=f"{kind}:{NOWHERE}")
    with pytest.raises(StorageError, match=rf"{NOWHERE}.*What is indexed is unharmed\. Cure: start it"):
        index.refresh()
    assert "Cookie" in nearest(index)
    done = run("index", folder)
    assert (done.returncode, "Cure: start it" in done.stderr) == (1, True)
    assert opened(vector_store="chroma").refresh().embedded == 0
    assert opened().verify().ok


@pytest.mark.server
@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_a_server_that_ends_and_comes_back_empty_costs_nothing(opened, folder, kind, tmp_path, monkeypatch, caplog):
    port, server = free_port(), ExitStack()
    serve = qdrant_stand_in if kind == "qdrant" else lambda port: chroma_run(Path(tmp_path / next(names)), port)
    names = iter(["first", "second"])
    index = opened(vector_store=f"{kind}:{server.enter_context(serve(port))}")
    index.refresh()
    assert_filled(index, monkeypatch)
    server.close()
    (folder / "new.md").write_text("# New\n\nParsnips are new.\n", "utf-8")
    with pytest.raises(StorageError, match=r"does not answer.*What is indexed is unharmed\. Cure"):
        index.refresh()
    assert "Parsnips" in nearest(index, "parsnips")
    assert f"{STOOD_IN} does not answer" in caplog.text
    assert any("does not answer" in problem for problem in index.verify().problems)
    assert index.status().chunks == len(index.nodes())
    caplog.clear()
    with serve(port):
        assert "Parsnips" in nearest(opened(), "parsnips")
        assert STOOD_IN in caplog.text
        assert index.refresh().embedded == 0
        assert_filled(index, monkeypatch)
        assert_filled(opened(), monkeypatch)


def test_a_damaged_folder_of_chroma_is_stood_in_for_and_filled_again(opened, folder, monkeypatch, caplog):
    opened().refresh()
    index = opened()
    assert_filled(index, monkeypatch)
    index.close()
    (folder / ".contextual/chroma/chroma.sqlite3").write_bytes(b"nothing of a database" * 500)
    for again in (index, opened()):
        assert "Cookie" in nearest(again)
    assert f"{STOOD_IN} does not answer" in caplog.text
    assert any("damaged" in problem for problem in opened().verify().problems)
    assert index.refresh().embedded == 0
    assert_filled(opened(), monkeypatch)


def test_a_folder_of_chroma_that_is_gone_is_filled_again(opened, folder, monkeypatch, caplog):
    opened().refresh()
    (folder / ".contextual/chroma").rename(folder / ".contextual/elsewhere")
    index = opened()
    assert "Cookie" in nearest(index)
    assert "the store has lost some. Cure: refresh" in caplog.text
    assert not (folder / ".contextual/chroma").exists(), "a question writes nothing"
    assert index.refresh().embedded == 0
    assert_filled(opened(), monkeypatch)


@pytest.mark.server
@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_two_folders_on_one_server_do_not_meet(opened, folder, kind, request, tmp_path):
    place = f"{kind}:{request.getfixturevalue(f'{kind}_server')}"
    first = opened(vector_store=place)
    first.refresh()
    other = tmp_path / "other"
    other.mkdir()
    (other / "faq.md").write_text("# Theirs\n\nAnother page of that name.\n", "utf-8")
    second = opened(other, vector_store=place)
    second.refresh()
    assert "Another page" in nearest(second)
    assert "Cookie" in nearest(first)
    assert first.verify().ok
    assert second.verify().ok


@pytest.mark.server
@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_a_collection_of_another_index_is_left_alone(opened, folder, kind, request, tmp_path, monkeypatch):
    place = f"{kind}:{request.getfixturevalue(f'{kind}_server')}#notes"
    first = opened(vector_store=place)
    first.refresh()
    second = opened(vector_store=place, storage=tmp_path / "second")
    with pytest.raises(
        StorageError, match=r"'notes' of \w+ is not of this index\. It is unharmed\. Cure: another name"
    ):
        second.refresh()
    assert "Cookie" in nearest(second)
    assert_filled(first, monkeypatch)


def test_what_names_no_store_is_an_error(opened, folder, tmp_path, run):
    with pytest.raises(SettingError, match=r"names no store\. Cure: one of chroma, chroma:http"):
        opened(vector_store=f"qdrant:{tmp_path}/q")
    done = run("index", folder, "--store", f"qdrant:{tmp_path}/q")
    assert (done.returncode, "names no store" in done.stderr) == (1, True)
    assert not (tmp_path / "q").exists(), "Qdrant's local mode would unpickle what is in a folder"


@pytest.mark.server
def test_the_configuration_chooses_and_a_change_of_it_embeds_nothing(opened, folder, chroma_server, run, trusted):
    (folder / "contextual.toml").write_text(f'vector_store = "chroma:{chroma_server}"\n', "utf-8")
    trusted(folder)
    assert run("index", folder).returncode == 0
    assert not (folder / ".contextual/chroma").exists()
    (folder / "contextual.toml").write_text('vector_store = "chroma"\n', "utf-8")
    trusted(folder)
    assert "Cookie" in run("search", "Cookie", "--folder", folder).stdout
    assert opened().refresh().embedded == 0
    assert (folder / ".contextual/chroma").exists()


def test_a_client_of_qdrant_that_is_given_is_filled_and_asked_exactly(opened, embedding, monkeypatch):
    client = QdrantClient(":memory:")
    index = opened(vector_store=client)
    index.refresh()
    assert_filled(index, monkeypatch)
    assert opened(vector_store=QdrantClient(":memory:")).refresh().embedded == 0, "another client is empty"
    asked = np.array(embedding.get_query_embedding("Cookie"))
    vector, _ = index.as_retriever(4).retrievers
    cosines = {
        hit.node.node_id: np.array(embedding.get_text_embedding(hit.node.get_content("embed"))) @ asked
        for hit in vector.retrieve("Cookie")
    }
    assert {hit.node.node_id: hit.score for hit in vector.retrieve("Cookie")} == pytest.approx(cosines, abs=1e-4)


def test_where_its_folder_cannot_be_written_every_vector_is_compared(opened, folder, monkeypatch, caplog):
    """Chroma writes whenever it opens a folder."""
    with opened() as index:
        index.refresh()
        expected = nearest(index)
    files = {path: path.read_bytes() for path in (folder / ".contextual/chroma").rglob("*") if path.is_file()}
    monkeypatch.setattr(  # the superuser, as whom tests may run, may write everywhere
        chroma_clients.FileLock, "acquire", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "no"))
    )
    with opened() as index:
        assert nearest(index) == expected
    assert f"{STOOD_IN} does not answer: {folder / '.contextual' / 'chroma'} cannot be written" in caplog.text
    assert {path: path.read_bytes() for path in files} == files


@pytest.mark.parametrize("limit", ["0", "1000"], ids=["chroma", "matrix"])
def test_an_older_copy_of_the_database_that_was_put_back_and_written_again_has_engines_of_its_own(
    opened, folder, monkeypatch, limit
):
    """What came after the copy has the same numbers as what was lost with it."""
    monkeypatch.setenv(LIMIT, limit)
    with opened() as index:
        index.refresh()
    file, page = folder / ".contextual/index.sqlite3", folder / "new.md"
    copy = file.read_bytes()
    page.write_text("# Zebras\n\nZebras graze at dawn.\n", "utf-8")
    with opened() as index:
        index.refresh()
    file.write_bytes(copy)
    page.write_text("# Boats\n\nSubmarines dive at dusk.\n", "utf-8")
    with opened() as index:
        index.refresh()
        assert index.verify().ok
        [node] = [one for one in index.nodes() if "Submarines" in one.text]
        embedding = index.settings.embedding.get_text_embedding(node.get_content(metadata_mode=MetadataMode.EMBED))
        [[nearest_one]] = index._storage.reader.ask(lambda view: view.dense_queries([embedding], 1))
        assert (nearest_one.node_id, nearest_one.score) == (node.node_id, pytest.approx(1.0, abs=1e-3))
        assert words(index, "submarines")[0].text == node.text
        assert not any(hit.score for hit in words(index, "zebras"))


def words(index, question):
    [_, arm] = index._storage.reader.arms(None)
    return arm.retrieve(question)
