"""The tests that every engine of vectors has to pass: whoever writes another one adds it to ENGINES."""

from __future__ import annotations

import uuid

import chromadb
import numpy as np
import pytest
from qdrant_client import QdrantClient

from llama_index_contextual.app.vector_stores.engine import StoreDamagedError, catch_up
from llama_index_contextual.app.vector_stores.stores import resolve_store
from llama_index_contextual.errors import FingerprintError, StorageError

DIMENSIONS = 24
FIRST = 5  # row number of the first vector
APART = 30
CROWD = 3000
# Share of the true nearest that has to be found: in Chroma's graph a few places are such that no other leads to them.
LEAST = {"chroma": 0.97, "chroma server": 0.97, "chroma client": 0.97, "qdrant server": 1, "qdrant client": 1}
NOTHING = np.empty(0, np.int64)
IDENTITY = "6b1f0a52-7b3c-4c4e-9d58-4dc09e1f9f4f"
ENGINES = [
    "chroma",
    pytest.param("chroma server", marks=pytest.mark.server),
    pytest.param("qdrant server", marks=pytest.mark.server),
    "chroma client",
    "qdrant client",
]


def setting_of(kind, request):
    """What ``vector_store=`` is given; a collection of its own for each test."""
    if kind.endswith("server"):
        name = kind.split()[0]
        return f"{name}:{request.getfixturevalue(name + '_server')}#test-{uuid.uuid4().hex}"
    if kind == "chroma client":
        folder = request.getfixturevalue("tmp_path") / "theirs"
        return chromadb.PersistentClient(str(folder), settings=chromadb.Settings(anonymized_telemetry=False))
    return QdrantClient(":memory:") if kind == "qdrant client" else kind


@pytest.fixture(params=ENGINES)
def kind(request):
    return request.param


@pytest.fixture
def store(kind, request, tmp_path):
    return resolve_store(setting_of(kind, request), tmp_path / "chroma", 100_000)


@pytest.fixture
def engine(store):
    engine = store.open(IDENTITY)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def vectors():
    """Vectors around one centre and some apart, which come first."""
    rng = np.random.default_rng(7)
    crowd = rng.standard_normal((CROWD, DIMENSIONS)) * 0.15 + rng.standard_normal(DIMENSIONS)
    apart = rng.standard_normal((APART, DIMENSIONS))
    return np.concatenate([apart, crowd]).astype(np.float32)


def rows_of(vectors):
    return np.arange(FIRST, FIRST + len(vectors))


def brute(rows, vectors, question, top_k):
    """Rows and cosines in float64, ties by row."""
    wide = np.asarray(vectors, np.float64)
    scores = wide @ question / (np.linalg.norm(wide, axis=1) * np.linalg.norm(question))
    order = np.lexsort((rows, -scores))[:top_k]
    return rows[order].tolist(), scores[order].tolist()


def answer(engine, *question):
    rows, scores = engine.nearest(*question)
    assert (rows.dtype, scores.dtype) == (np.int64, np.float64)
    return rows.tolist(), scores.tolist()


def found(engine, vectors, question, top_k, among=None):
    """Share of the true nearest rows that it finds; the scores of all that it finds are their cosines."""
    question = question.astype(np.float32)
    rows, scores = engine.nearest(question, top_k, among)
    every = rows_of(vectors) if among is None else among
    assert len(rows) == top_k
    assert not set(rows.tolist()) - set(every.tolist())
    own, cosines = brute(rows, vectors[rows - FIRST], question, top_k)
    assert rows.tolist() == own
    assert scores.tolist() == pytest.approx(cosines, abs=1e-6)
    best, _ = brute(every, vectors[every - FIRST], question, top_k)
    return len({*best} & {*own}) / top_k


def test_what_is_near_is_found_and_scored_exactly_with_filters_too(engine, kind, vectors):
    """One test, as writing takes longer than asking."""
    rows = rows_of(vectors)
    engine.upsert(rows, vectors * np.float32(3))
    assert engine.rows().tolist() == rows.tolist()
    assert engine.count() == len(rows)
    rng = np.random.default_rng(8)
    places = [*range(0, APART, 3), *range(APART, CROWD, 300)]
    questions = [vectors[place] + rng.standard_normal(DIMENSIONS) * 0.05 for place in places]
    for among in (None, rows[::97], rows[:APART], rows[::2], rows[1:]):
        assert np.mean([found(engine, vectors, question, 10, among) for question in questions]) >= LEAST[kind]
    assert answer(engine, vectors[0], 5, NOTHING) == answer(engine, vectors[0], 0) == ([], [])
    assert answer(engine, vectors[0], 5, np.array([9, 999_999]))[0] == [9]
    assert answer(engine, vectors[0], 5, np.array([999_999])) == ([], [])


def test_more_rows_than_a_store_takes_with_a_question_are_filtered_too(engine, kind, vectors, monkeypatch):
    for name in ("chroma._IDS", "qdrant._IDS", "qdrant._LOCAL_IDS"):
        monkeypatch.setattr(f"llama_index_contextual.app.vector_stores.{name}", 50)
    monkeypatch.setattr("llama_index_contextual.app.vector_stores.engine._WIDE", 100)
    rows = rows_of(vectors)
    engine.upsert(rows, vectors)
    for among in (rows[:120], rows[APART:], rows[::3]):  # those apart are not near those of the crowd
        shares = [found(engine, vectors, vectors[place], 9, among) for place in (0, *range(APART, APART + 20))]
        assert np.mean(shares) >= LEAST[kind]


def test_all_that_tie_with_the_last_come_too(engine, vectors):
    engine.upsert(np.arange(1, 151), np.tile(vectors[:1], (150, 1)))
    engine.upsert(np.array([500, 501]), np.stack([vectors[1], np.zeros(DIMENSIONS, np.float32)]))
    near, scores = answer(engine, vectors[0], 3)
    assert near == list(range(1, 151))
    assert scores[0] == pytest.approx(1, abs=1e-6)
    assert len(set(scores)) == 1
    assert answer(engine, vectors[1], 1)[0] == [500]
    rows, scores = answer(engine, vectors[0], 200)
    assert scores[rows.index(501)] == 0


def test_rows_come_go_and_are_replaced(engine, store, vectors):
    assert engine.rows().tolist() == []
    assert engine.count() == 0
    assert answer(engine, vectors[0], 3) == ([], [])
    engine.delete(np.array([1]))
    engine.clear()
    engine.upsert(NOTHING, vectors[:0])
    engine.upsert(np.array([3, 1, 2]), vectors[:3])
    engine.upsert(np.array([2, 9]), vectors[3:5])
    engine.delete(np.array([3, 777]))
    assert engine.rows().tolist() == [1, 2, 9]
    assert [answer(engine, vectors[place], 1)[0] for place in (1, 3, 4)] == [[1], [2], [9]]
    engine.close()
    another = store.open(IDENTITY)
    assert another.rows().tolist() == [1, 2, 9]
    assert answer(another, vectors[3], 1)[0] == [2]
    another.clear()
    assert another.count() == 0
    another.upsert(np.array([4]), [[1.0, 2.0]] @ np.eye(2, dtype=np.float32))
    assert answer(another, [1.0, 2.0], 3)[0] == [4]
    another.close()


def test_what_another_one_writes_is_seen(engine, store, vectors):
    engine.upsert(np.arange(1, 301), vectors[:300])
    assert answer(engine, vectors[7], 1)[0] == [8]
    another = store.open(IDENTITY)
    another.delete(np.arange(1, 150))
    another.upsert(np.arange(301, 401), vectors[300:400])
    assert answer(engine, vectors[350], 1)[0] == [351]
    assert 8 not in answer(engine, vectors[7], 300)[0]
    assert engine.rows().tolist() == list(range(150, 401))
    another.clear()
    another.upsert(np.arange(1, 4), vectors[:3])
    assert answer(engine, vectors[2], 1)[0] == [3]
    another.close()


def test_other_dimensions_are_refused(engine, vectors):
    engine.upsert(np.arange(1, 4), vectors[:3])
    with pytest.raises(FingerprintError, match=r"3\b.*Cure"):
        engine.nearest([1.0, 2.0, 3.0], 1)
    with pytest.raises(FingerprintError, match=r"3\b.*Cure"):
        engine.upsert(np.array([9]), np.ones((1, 3), np.float32))
    assert engine.rows().tolist() == [1, 2, 3]


def test_an_engine_of_another_database_is_left_alone(engine, store, vectors):
    """Two that fill one collection would delete each other's rows; a folder of ours has one database only."""
    engine.upsert(np.arange(1, 4), vectors[:3])
    other = store.open("another")
    if store.name == "chroma":
        with pytest.raises(StoreDamagedError, match="another database"):
            other.rows()
        catch_up(other, np.array([7]), lambda rows: [(rows, vectors[rows])])
        assert other.rows().tolist() == [7]
    elif "#" in store.name:
        for ask in (other.rows, other.count, other.clear, lambda: other.nearest(vectors[0], 1)):
            with pytest.raises(StorageError, match=r"is not of this index.*unharmed.*Cure"):
                ask()
        with pytest.raises(StorageError, match=r"is not of this index"):
            other.upsert(np.array([9]), vectors[:1])
        assert engine.rows().tolist() == [1, 2, 3]
    else:  # its name is another one
        assert other.rows().tolist() == []
    other.close()


# Catching up


class Database:
    """Vectors by row, and which of them were asked for."""

    def __init__(self, vectors):
        self.vectors, self.asked = vectors, []

    def __call__(self, rows):
        self.asked += rows.tolist()
        for start in range(0, len(rows), 700):
            yield rows[start : start + 700], self.vectors[rows[start : start + 700]]


def test_catching_up_deletes_and_adds_and_reads_no_more_than_that(engine, vectors):
    database = Database(vectors)
    catch_up(engine, np.arange(1, 2501), database)
    assert sorted(database.asked) == engine.rows().tolist() == list(range(1, 2501))
    database.asked.clear()
    wanted = np.array([*range(1, 2500, 2), 2600, 2601])
    catch_up(engine, wanted, database)
    assert (database.asked, engine.rows().tolist()) == ([2600, 2601], wanted.tolist())
    catch_up(engine, wanted, database)
    assert database.asked == [2600, 2601]
    catch_up(engine, NOTHING, database)
    assert engine.count() == 0


def test_rows_of_a_writer_who_is_ahead_stay(engine, vectors):
    database = Database(vectors)
    catch_up(engine, np.arange(1, 60), database)
    catch_up(engine, np.arange(20, 50), database, newest=55)
    assert engine.rows().tolist() == [*range(20, 50), *range(56, 60)]


def test_another_embedding_has_other_rows_and_dimensions(engine, vectors):
    catch_up(engine, np.arange(1, 60), Database(vectors))
    catch_up(engine, np.arange(60, 90), Database(vectors[:, :7]))
    assert engine.rows().tolist() == list(range(60, 90))
    assert answer(engine, vectors[70, :7], 1)[0] == [70]
