"""What goes wrong with an engine of vectors: the error is plain, and what is damaged is derived again."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from chromadb.api.models.Collection import Collection
from qdrant_client import QdrantClient
from qdrant_stand_in import qdrant_stand_in
from servers import chroma_run, free_port, served

from llama_index_contextual.app.vector_stores.engine import StoreDamagedError, catch_up
from llama_index_contextual.app.vector_stores.stores import resolve_store
from llama_index_contextual.errors import MissingExtraError, SettingError, StorageError

ROOT = Path(__file__).resolve().parents[2]
IDENTITY = "6b1f0a52-7b3c-4c4e-9d58-4dc09e1f9f4f"
NOWHERE = "http://127.0.0.1:1"
VECTORS = np.random.default_rng(7).standard_normal((9000, 16)).astype(np.float32)


def vectors_of(rows):
    yield rows, VECTORS[rows]


@pytest.fixture
def opened(tmp_path):
    """Callable: opens an engine of a setting, by default Chroma in a folder; all are closed at the end."""
    engines = []

    def open_engine(setting="chroma", folder=tmp_path / "chroma"):
        engines.append(resolve_store(setting, folder, 100_000).open(IDENTITY))
        return engines[-1]

    yield open_engine
    for engine in engines:
        engine.close()


def assert_whole(engine, wanted):
    assert engine.rows().tolist() == list(wanted)
    for row in list(wanted)[:: len(wanted) // 20]:
        assert engine.nearest(VECTORS[row], 1)[0].tolist() == [row]


# Settings


def test_the_store_has_the_name_that_the_setting_says(tmp_path):
    for setting in ("chroma", "chroma:http://h:1", "qdrant:https://h#notes-2024"):
        store = resolve_store(setting, tmp_path, 9)
        assert (store.name, store.is_shared) == (setting, setting != "chroma")
    assert resolve_store("chroma:http://h:1/", tmp_path, 9).name == "chroma:http://h:1"


@pytest.mark.parametrize(
    "setting",
    ["", "faiss", "chroma:", "chroma:localhost:8000", "chroma:http://h#a b", "chroma:http://h#", "qdrant:{}", None, []],
)
def test_what_names_no_store_is_refused(tmp_path, setting):
    """No setting names a folder for Qdrant, whose local mode would unpickle what is in it."""
    with pytest.raises(SettingError, match=r"names no store|keeps no vectors"):
        resolve_store(setting.format(tmp_path / "q") if setting else setting, tmp_path, 9)
    assert not (tmp_path / "q").exists()


def test_a_password_in_an_address_is_refused(tmp_path):
    with pytest.raises(SettingError, match="password"):
        resolve_store("qdrant:http://ada:secret@h", tmp_path, 9)


def test_an_engine_of_ones_own_is_taken(opened):
    own = opened()
    assert opened(own) is own


def test_a_missing_extra_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'llama-index-contextual\[qdrant\]'"):
        resolve_store(f"qdrant:{NOWHERE}", tmp_path, 9)


# Servers


class _Older(BaseHTTPRequestHandler):
    """A server of another version: what it has said since has another form."""

    answer = (410, b'{"error": "Unimplemented"}')

    def log_message(self, *_):
        """Keep the test output clean."""

    def do_GET(self):
        status, data = self.answer
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET  # noqa: N815


@contextmanager
def older_server():
    with served(ThreadingHTTPServer(("127.0.0.1", 0), _Older)) as url:
        yield url


def asks(engine):
    return [
        engine.rows,
        engine.count,
        partial(engine.nearest, VECTORS[0], 3),
        partial(engine.upsert, np.array([1]), VECTORS[:1]),
        partial(engine.delete, np.array([1])),
        engine.clear,
    ]


@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_a_server_that_is_not_there_is_an_error(opened, kind):
    for ask in asks(opened(f"{kind}:{NOWHERE}")):
        with pytest.raises(StorageError, match=rf"{NOWHERE}.*unharmed.*Cure: start it") as caught:
            ask()
        assert not isinstance(caught.value, StoreDamagedError)


@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_a_server_of_another_version_is_an_error(opened, kind):
    with older_server() as url, pytest.raises(StorageError, match=rf"{url}.*Cure"):
        opened(f"{kind}:{url}").rows()


def test_an_older_qdrant_server_is_refused(opened, monkeypatch):
    monkeypatch.setattr(_Older, "answer", (200, b'{"title": "qdrant - vector search engine", "version": "1.15.3"}'))
    with older_server() as url, pytest.raises(StorageError, match=r"has version 1\.15\.3.*Cure: 1\.16 or later"):
        opened(f"qdrant:{url}").rows()


@pytest.mark.server
@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_a_server_that_ends_and_comes_back_without_its_data_is_filled_again(opened, kind, tmp_path):
    port, wanted = free_port(), np.arange(1, 200)
    serve = {"chroma": lambda name: chroma_run(tmp_path / name, port), "qdrant": lambda _: qdrant_stand_in(port)}[kind]
    with serve("one") as url:
        engine = opened(f"{kind}:{url}")
        catch_up(engine, wanted, vectors_of)
        assert_whole(engine, wanted)
    for ask in asks(engine):
        with pytest.raises(StorageError, match=r"does not answer.*unharmed.*Cure") as caught:
            ask()
        assert not isinstance(caught.value, StoreDamagedError)
    with serve("another"):
        with pytest.raises(StoreDamagedError, match=r"lost the collection.*Cure"):
            engine.nearest(VECTORS[0], 1)
        catch_up(engine, wanted, vectors_of)
        assert_whole(engine, wanted)


def test_a_local_client_of_qdrant_is_asked_by_one_thread_at_a_time(opened, monkeypatch):
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

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # Qdrant's own, of what the local mode lacks
        engine = opened(client)
        engine.upsert(np.arange(1, 50), VECTORS[1:50])
        monkeypatch.setattr(client, "query_points", watched(client.query_points))
        with ThreadPoolExecutor(6) as pool:
            hits = list(pool.map(lambda row: engine.nearest(VECTORS[row], 1)[0].tolist(), range(1, 9)))
    assert hits == [[row] for row in range(1, 9)]
    assert together
    assert not any(together)


# A folder


@pytest.mark.process
def test_nothing_of_a_stranger_is_read_from_the_working_directory(tmp_path):
    """Chroma would read ``.env`` there, which can name any class to import."""
    (tmp_path / ".env").write_text("CHROMA_API_IMPL=os.system\nALLOW_RESET=true\n", "utf-8")
    script = (
        "from pathlib import Path; import numpy as np\n"
        "from llama_index_contextual.app.vector_stores.stores import resolve_store\n"
        "engine = resolve_store('chroma', Path('chroma'), 9).open('x'); engine.upsert(np.array([3]), np.ones((1, 4)))\n"
        "print(engine.rows(), engine._client._client.get_settings().anonymized_telemetry)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.stdout.strip(), done.returncode) == ("[3] False", 0), done.stderr


def test_a_question_makes_no_folder(opened, tmp_path):
    engine = opened()
    assert engine.count() == len(engine.rows()) == len(engine.nearest(VECTORS[0], 3)[0]) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(opened, tmp_path):
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(StorageError, match=r"file.*Cure"):
        opened(folder=tmp_path / "file" / "chroma").upsert(np.array([1]), VECTORS[:1])


@pytest.mark.long
def test_places_that_are_dead_do_not_grow_for_ever(opened, tmp_path, monkeypatch, caplog):
    """Chroma never frees the place of a deleted vector, and each one slows it down."""
    monkeypatch.setattr("llama_index_contextual.app.vector_stores.chroma._LEAST_DEAD", 100)
    engine, sizes = opened(), []
    for start in range(1, 6001, 500):
        catch_up(engine, np.arange(start, start + 1000), vectors_of)
        sizes.append(sum(path.stat().st_size for path in (tmp_path / "chroma").rglob("*.bin")))
    assert_whole(engine, range(start, start + 1000))
    assert max(sizes) < 4 * sizes[0]
    assert "only" in caplog.text


HARMS = {
    "cut": lambda data, _: data[: len(data) // 2],
    "empty": lambda data, _: b"",
    "noise": lambda data, rng: rng.randbytes(len(data)),
    "gone": lambda data, _: None,
}


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["chroma.sqlite3", "data_level0.bin", "header.bin", "index_metadata.pickle", "length.bin"]
)
@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_folder_is_derived_again(opened, tmp_path, name, harm):
    wanted = np.arange(1, 600)
    engine = opened()
    catch_up(engine, wanted, vectors_of)
    engine.close()
    (path,) = (tmp_path / "chroma").rglob(name)
    data = HARMS[harm](path.read_bytes(), random.Random(3))  # noqa: S311  reproducible, not secret
    path.unlink() if data is None else path.write_bytes(data)
    try:
        engine.nearest(VECTORS[0], 3)
    except StorageError as error:
        assert "Cure" in str(error)  # noqa: PT017  whether a question fails depends on what it needs
    catch_up(engine, wanted, vectors_of)
    assert_whole(engine, wanted)


WRITER = """
import sys, time
from pathlib import Path
import numpy as np
from llama_index_contextual.app.vector_stores.engine import catch_up
from llama_index_contextual.app.vector_stores.stores import resolve_store
vectors = np.random.default_rng(7).standard_normal((9000, 16)).astype(np.float32)
engine = resolve_store("chroma", Path(sys.argv[1]), 9).open(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for start in range(1, 1500, 150):
    catch_up(engine, np.arange(start, start + 900), lambda rows: [(rows, vectors[rows])])
print("done", flush=True)
"""


@contextmanager
def writer(folder):
    command = [sys.executable, "-c", WRITER, str(folder), IDENTITY]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:  # noqa: S603
        try:
            assert process.stdout.readline() == "ready\n"
            process.stdin.write("go\n")
            process.stdin.flush()
            yield process
        finally:
            process.kill()


@pytest.mark.process
def test_a_question_while_another_process_writes_is_answered(opened, tmp_path):
    """By rows that were there at one time or another, best first."""
    engine, wanted = opened(), np.arange(1, 901)
    catch_up(engine, wanted, vectors_of)
    asked = 0
    with writer(tmp_path / "chroma") as process:
        while process.poll() is None:
            rows, scores = engine.nearest(VECTORS[asked % 3000 + 1], 10)
            assert len(rows) in (0, 10)
            assert np.all(np.diff(scores) <= 0)
            asked += 1
        assert process.stdout.read() == "done\n"
    assert asked > 10
    assert_whole(engine, range(1351, 2251))


@pytest.mark.kill
@pytest.mark.parametrize("seed", range(6))
def test_what_a_killed_process_left_is_caught_up(opened, tmp_path, seed):
    with writer(tmp_path / "chroma") as process:
        time.sleep(random.Random(seed).random() * 2)  # noqa: S311  reproducible, not secret
        process.kill()
    wanted = np.arange(500, 1700)
    engine = opened()
    catch_up(engine, wanted, vectors_of)
    assert_whole(engine, wanted)


def test_a_write_that_was_killed_is_derived_again(opened, tmp_path, caplog):
    """Rows that the graph has and Chroma's database lacks: whoever asks for one gets an error, and nobody else."""
    wanted = np.arange(1, 600)
    engine = opened()
    catch_up(engine, wanted, vectors_of)
    engine.close()
    stamp = tmp_path / "chroma" / "written"
    stamp.write_text(json.dumps([json.loads(stamp.read_text("utf-8"))[0], None]), "utf-8")
    with closing(sqlite3.connect(tmp_path / "chroma" / "chroma.sqlite3")) as database, database:
        database.execute("DELETE FROM embeddings WHERE embedding_id = '300'")
    engine = opened()
    with pytest.raises(StoreDamagedError, match=r"did not end.*Nothing is lost\. Cure: refresh"):
        engine.nearest(VECTORS[5], 1)
    catch_up(engine, wanted, vectors_of)
    assert "did not end" in caplog.text
    assert_whole(engine, wanted)
    assert engine.nearest(VECTORS[300], 1)[0].tolist() == [300]


def test_a_write_that_was_interrupted_goes_on(opened, caplog):
    engine = opened()

    def interrupted(rows):
        yield rows[:100], VECTORS[rows[:100]]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catch_up(engine, np.arange(1, 600), interrupted)
    engine.close()
    catch_up(engine, np.arange(1, 600), vectors_of)
    assert_whole(engine, range(1, 600))
    assert not caplog.text, "nothing was derived again"


def test_a_write_that_failed_is_derived_again(opened, caplog, monkeypatch):
    """What of it Chroma has kept, and where, it does not say."""
    engine, wanted = opened(), np.arange(1, 600)
    catch_up(engine, wanted[:300], vectors_of)
    with monkeypatch.context() as patch:
        patch.setattr(Collection, "modify", lambda *_, **__: 1 / 0)
        with pytest.raises(StorageError, match=r"could not write vectors.*Cure"):
            catch_up(engine, wanted, vectors_of)
    catch_up(engine, wanted, vectors_of)
    assert "did not end" in caplog.text
    assert_whole(engine, wanted)
