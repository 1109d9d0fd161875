"""The key-value store for contexts, which survives crashes of its process."""

from __future__ import annotations

import contextlib
import pickle
import sqlite3
import threading

import pytest
from llama_index.core.schema import TextNode
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.core.storage.kvstore.types import BaseKVStore

from llama_index_contextual.context.base import SourceDocument
from llama_index_contextual.context.cache import CachedContext, ContextCache, SQLiteKVStore
from llama_index_contextual.utils import sqlite_file
from llama_index_contextual.utils.errors import StorageError


@pytest.fixture
def store(tmp_path):
    store = SQLiteKVStore(tmp_path / "folder" / "contexts.sqlite")
    yield store
    store.close()


@pytest.fixture(params=["sqlite", "simple"])
def any_store(request, store):
    """Return our store and LlamaIndex's own, which must behave the same."""
    return store if request.param == "sqlite" else SimpleKVStore()


def test_the_store_behaves_like_that_of_llamaindex(any_store):
    assert isinstance(any_store, BaseKVStore)
    assert any_store.get("a") is None
    any_store.put("a", {"text": "eins \U0001f6a2"})
    any_store.put("a", {"text": "half a character: \ud83d"})
    any_store.put("a", {"text": "zwei"})
    any_store.put("a", {"text": "elsewhere"}, collection="other")
    any_store.put_all([("b", {"n": 1}), ("c", {"n": [1, None]})])
    assert any_store.get("a") == {"text": "zwei"}
    assert any_store.get_all() == {"a": {"text": "zwei"}, "b": {"n": 1}, "c": {"n": [1, None]}}
    assert any_store.get_all("other") == {"a": {"text": "elsewhere"}}
    assert (any_store.delete("b"), any_store.delete("b")) == (True, False)


async def test_async_is_the_same(any_store):
    await any_store.aput("a", {"n": 1})
    await any_store.aput_all([("b", {"n": 2})])
    assert await any_store.aget("a") == {"n": 1}
    assert await any_store.aget_all() == {"a": {"n": 1}, "b": {"n": 2}}
    assert await any_store.adelete("a")
    assert await any_store.aget("a") is None


def test_another_process_sees_a_write_at_once(store):
    store.put("a", {"n": 1})
    assert SQLiteKVStore(store.path).get("a") == {"n": 1}  # nothing was closed or persisted


def test_a_pickled_store_opens_the_same_file(store):
    store.put("a", {"n": 1})
    assert pickle.loads(pickle.dumps(store)).get("a") == {"n": 1}  # noqa: S301


def test_a_closed_store_opens_again(store):
    store.put("a", {"n": 1})
    store.close()
    assert store.get("a") == {"n": 1}


def test_threads_share_a_store(store):
    threads = [
        threading.Thread(target=lambda n=n: [store.put(f"{n}-{i}", {"n": i}) for i in range(20)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.get_all()) == 80


def test_many_keys_at_once(store):
    store.put_all([(str(n), {"n": n}) for n in range(1200)])
    assert len(store.get_many(map(str, range(1300)))) == 1200


def test_a_file_that_is_not_a_database_is_named_with_a_hint(tmp_path):
    path = tmp_path / "contexts.sqlite"
    path.write_text("no database, but a letter to Ana " * 50)
    with pytest.raises(StorageError, match=r"contexts\.sqlite is damaged .*Use another file"):
        SQLiteKVStore(path).get("a")


def test_a_lock_of_another_program_is_named(store, monkeypatch):
    monkeypatch.setattr(sqlite_file, "_BUSY_SECONDS", 0.1)
    store.put("a", {"n": 1})
    store.close()
    with contextlib.closing(sqlite3.connect(store.path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageError, match=r"database is locked.*Close the other program"):
            store.put("a", {"n": 2})
    assert store.get("a") == {"n": 1}


def test_a_folder_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="then try again"):
        SQLiteKVStore(tmp_path / "file" / "contexts.sqlite").put("a", {})


def test_reading_creates_no_file(tmp_path):
    store = SQLiteKVStore(tmp_path / "contexts.sqlite")
    assert (store.get("a"), store.get_all()) == (None, {})
    assert list(tmp_path.iterdir()) == []


def test_a_write_is_all_or_nothing(store):
    with pytest.raises(StorageError, match="Use another file"):
        store.put_all([("a", {"n": 1}), (None, {"n": 2})])
    assert store.get_all() == {}


def test_a_value_that_was_changed_in_the_file_is_treated_as_absent(store):
    store.put_all([("a", {"text": "eins"}), ("b", {"text": "zwei"})])
    with contextlib.closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("UPDATE kept SET value = replace(value, 'eins', 'drei')")
    assert store.get_all() == {"b": {"text": "zwei"}}


@pytest.mark.parametrize("written", ["[1]", "no JSON", "5", b"\xff"])
def test_a_value_that_is_not_an_object_is_treated_as_absent(store, written):
    store.put_rows("contexts", [("a", written)])
    assert store.get_all("contexts") == {}


def test_deleting_from_a_store_without_a_file_creates_none(tmp_path):
    assert SQLiteKVStore(tmp_path / "contexts.sqlite").delete("a") is False
    assert list(tmp_path.iterdir()) == []


def test_a_key_is_deleted_from_its_collection_alone(store):
    store.put("a", {"n": 1}, collection="rooms")
    store.put("a", {"n": 2})
    store.put("b", {"n": 3})
    assert store.delete("a")
    assert store.get_all() == {"b": {"n": 3}}
    assert store.get_all("rooms") == {"a": {"n": 1}}


NODE = TextNode(text="It rained.")


def document(path, text="It rained."):
    return SourceDocument("1", path, text)


@pytest.fixture
def folders(tmp_path):
    """Return the caches of two folders that share one file."""
    caches = []
    for name in ("harbour", "airport"):
        store = SQLiteKVStore(tmp_path / "contexts.sqlite")
        store.scope = name
        caches.append(ContextCache(store, lambda _: "version"))
    yield caches
    for cache in caches:
        cache.close()


def test_equal_paths_of_two_folders_share_no_context(folders):
    harbour, airport = folders
    harbour.keep([(NODE, CachedContext("Of the harbour."))], document("README.md"))
    edited = document("README.md", "It rained. Then it snowed.")
    assert harbour.find([NODE], edited) == [CachedContext("Of the harbour.")]
    assert airport.find([NODE], edited) == [CachedContext()]


def test_a_context_from_another_folder_survives_an_edit_once_it_is_renewed(folders):
    harbour, airport = folders
    harbour.keep([(NODE, CachedContext("Of the harbour."))], document("README.md"))
    [copied] = airport.find([NODE], document("README.md"))
    assert copied == CachedContext("Of the harbour.")
    airport.renew([NODE], document("README.md"), [copied])
    edited = document("README.md", "It rained. Then it snowed.")
    assert airport.find([NODE], edited) == [copied]


@pytest.fixture
def cache():
    return ContextCache(SimpleKVStore(), lambda _: "version")


WRITTEN = CachedContext("Of the harbour.")
REFUSED = CachedContext("", "copy")


def test_a_document_without_a_path_is_known_by_its_id(cache):
    cache.keep([(NODE, WRITTEN)], SourceDocument("1", "", "It rained."))
    for document_id, expected in (("1", WRITTEN), ("2", CachedContext())):
        edited = SourceDocument(document_id, "", "It rained. Then it snowed.")
        assert cache.find([NODE], edited) == [expected]


def test_a_context_counts_before_a_refusal_and_a_refusal_before_nothing(cache):
    cache.keep([(NODE, REFUSED)], document("a.md", "It rained. Then it snowed."))
    assert cache.find([NODE], document("a.md")) == [REFUSED]
    cache.keep([(NODE, WRITTEN)], document("b.md", "It rained. Then it hailed."))
    for path, text in (("a.md", "hailed"), ("b.md", "snowed")):
        edited = document(path, f"It rained. Then it {text}.")
        assert cache.find([NODE], edited) == [WRITTEN]


def test_a_context_belongs_to_the_model_and_the_prompt_that_made_it():
    store = SimpleKVStore()
    versions = [ContextCache(store, lambda _, version=version: version) for version in "ab"]
    versions[0].keep([(NODE, WRITTEN)], document("a.md"))
    assert [cache.find([NODE], document("a.md")) for cache in versions] == [
        [WRITTEN],
        [CachedContext()],
    ]


@pytest.mark.parametrize("value", [{"text": 5}, {"reason": ["copy"]}, {}, ["It rained."], "It"])
def test_a_value_of_another_program_is_no_context(cache, monkeypatch, value):
    monkeypatch.setattr(cache.store, "get", lambda *_: value)
    assert cache.find([NODE], document("a.md")) == [CachedContext()]


def test_closing_a_cache_closes_its_file(tmp_path, monkeypatch):
    closed = []
    cache = ContextCache(tmp_path / "contexts.sqlite", lambda _: "version")
    monkeypatch.setattr(cache.store, "close", lambda: closed.append("file"))
    cache.close()
    assert closed == ["file"]


def test_nothing_is_written_for_no_chunks(tmp_path):
    ContextCache(tmp_path / "contexts.sqlite", lambda _: "version").keep([], document("a.md"))
    assert list(tmp_path.iterdir()) == []


def test_by_default_contexts_are_in_the_cache_folder_of_llamaindex(monkeypatch, tmp_path):
    monkeypatch.setenv("LLAMA_INDEX_CACHE_DIR", str(tmp_path))
    cache = ContextCache(None, lambda _: "version")
    assert cache.store.path == tmp_path / "contextual" / "contexts.sqlite3"
    assert cache.place is None


def test_the_place_of_a_cache_is_plain_data(tmp_path):
    def version(_):
        return "version"

    assert ContextCache(where=False, version_of=version).place is False
    assert ContextCache(tmp_path / "a.sqlite", version).place == str(tmp_path / "a.sqlite")
    assert ContextCache(SimpleKVStore(), version).place == {"store": "SimpleKVStore"}
