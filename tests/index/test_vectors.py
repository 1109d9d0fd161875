"""Vectors that were paid for stay."""

import sqlite3

import pytest

from llama_index_contextual.errors import ContextualWarning
from llama_index_contextual.index.vector_cache import VectorCache
from llama_index_contextual.sqlite_store import SQLiteKVStore


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache.sqlite3"


def test_vectors_survive_reopening_and_belong_to_their_model(path):
    cache = VectorCache(path, "model-a")
    cache.put({"h1": [0.5, 1.0], "h2": [0.25, 0.0]})
    cache.close()
    assert VectorCache(path, "model-a").get(["h1", "h3"]) == {"h1": [0.5, 1.0]}
    assert VectorCache(path, "model-b").get(["h1"]) == {}


def test_many_hashes_are_asked_for_at_once(path):
    cache = VectorCache(path, "m")
    cache.put({f"h{i}": [float(i + 1)] for i in range(3000)})
    assert len(cache.get([f"h{i}" for i in range(5000)])) == 3000


def test_what_is_not_needed_goes_and_other_models_stay(path):
    cache, other = VectorCache(path, "m"), VectorCache(path, "n")
    cache.put({"a": [1.0], "b": [2.0]})
    other.put({"a": [3.0]})
    assert cache.keep_only(["b", "zzz"]) == 1
    assert cache.get(["a", "b"]) == {"b": [2.0]}
    assert other.get(["a"]) == {"a": [3.0]}


def test_a_file_full_of_garbage_is_set_aside(path):
    path.write_bytes(b"this is no database" * 1000)
    with pytest.warns(ContextualWarning, match="is damaged"):
        cache = VectorCache(path, "m")
    cache.put({"a": [1.0]})
    assert cache.get(["a"]) == {"a": [1.0]}
    assert list(path.parent.glob("cache.sqlite3.damaged*"))


@pytest.mark.filterwarnings("ignore:.*is damaged")
@pytest.mark.parametrize("use", ["get", "put", "count", "keep"])
def test_a_file_with_damage_inside_is_set_aside_when_that_is_met(path, use):
    cache = VectorCache(path, "m")
    cache.put({f"h{i}": [float(i)] * 100 for i in range(500)})
    cache.close()
    content = path.read_bytes()
    path.write_bytes(content[:8192] + b"\xff" * (len(content) - 8192))  # the header and the schema are whole
    cache = VectorCache(path, "m")
    if use == "get":
        assert cache.get(["h1", "h499"]) == {}
    elif use == "count":
        assert len(cache) == 0
    elif use == "keep":
        assert cache.keep_only(["h1"]) == 0
    cache.put({"a": [1.0]})
    assert cache.get(["a"]) == {"a": [1.0]}
    assert list(path.parent.glob("cache.sqlite3.damaged*"))


def test_caches_of_earlier_versions_are_moved_over_and_cost_nothing_again(path, tmp_path):
    vectors, contexts = tmp_path / "vectors.sqlite3", tmp_path / "contexts.sqlite3"
    with sqlite3.connect(vectors) as database:
        database.execute(
            "CREATE TABLE vectors (model TEXT, hash TEXT, vector BLOB, PRIMARY KEY (model, hash)) WITHOUT ROWID"
        )
        database.execute("INSERT INTO vectors VALUES ('m', 'a', ?)", (b"\0\0\x80?\0\0\0@",))
    database.close()
    paid = SQLiteKVStore(contexts)
    paid.put("key", {"text": "paid for"}, "contexts")
    paid.close()
    cache = VectorCache(path, "m", [vectors, contexts])
    assert cache.get(["a"]) == {"a": [1.0, 2.0]}
    cache.close()
    assert SQLiteKVStore(path).get("key", "contexts") == {"text": "paid for"}
    assert [file.name for file in tmp_path.iterdir() if not file.name.startswith("cache.sqlite3")] == []
