"""Damage to any file of the storage.

It raises a plain error with a hint, and a refresh repairs it.
"""

import random
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from llama_index.core import MockEmbedding
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters
from storage import content_file, copy_indexed, storage_of

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.index import query
from llama_index_contextual.utils.errors import DamagedError, StorageError


class Letters(MockEmbedding):
    def _get_text_embeddings(self, texts):
        return [
            [float(len(text)), *(float(text.count(letter)) for letter in "aeiou"), 1.0]
            for text in texts
        ]

    def _get_query_embedding(self, query):
        return self._get_text_embeddings([query])[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with a whole index, to be copied."""
    folder = tmp_path_factory.mktemp("whole") / "docs"
    folder.mkdir()
    for number in range(30):
        text = "\n\n".join(
            f"## Part {part}\n\n" + f"word{number} word{part} " * 40 for part in range(3)
        )
        (folder / f"{number}.md").write_text(f"# Page {number}\n\n{text}\n")
    with ContextualIndex.open(folder, embed_model=Letters(7, model_name="letters")) as index:
        index.refresh()
    return folder


def opened(folder, **settings):
    return ContextualIndex.open(folder, embed_model=Letters(7, model_name="letters"), **settings)


def answers(index):
    return [
        (hit.node.node_id, hit.node.text, round(hit.score, 5))
        for hit in index.as_retriever(3).retrieve("word7 word2")
    ]


def files_of(storage):
    return sorted(
        file
        for file in storage.rglob("*")
        if file.is_file() and file.stat().st_size and file.suffix != ".lock"
    )


@pytest.fixture(autouse=True)
def content_cache():
    """Keep what the module's index embedded: its copies need not embed it again."""
    return content_file()


def flip(file, rng):
    content = bytearray(file.read_bytes())
    for _ in range(rng.choice((1, 8, 200))):
        content[rng.randrange(len(content))] = rng.randrange(256)
    file.write_bytes(content)


def cut(file, rng):
    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])


def remove(file, _rng):
    file.unlink()


def fill(file, rng):
    file.write_bytes(rng.randbytes(5000))


def attempt(work):
    """Do something that may fail, if the error names the command that fixes it."""
    try:
        return work()
    except StorageError as error:
        assert "Run: " in str(error)  # noqa: PT017  whether it fails is chance
        return None


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [*range(16), 1011]
)  # 1011: a page of nodes is all zeros, and no page is malformed
def test_a_damaged_storage_answers_right_or_says_what_mends_it_and_is_made_whole(
    whole, tmp_path, seed
):
    rng = random.Random(seed)  # noqa: S311  reproducible, not secret
    with opened(whole) as index:
        expected = answers(index)
    folder = copy_indexed(whole, tmp_path / "docs")
    file = rng.choice(files_of(storage_of(folder)))
    rng.choice((flip, flip, cut, remove, fill))(file, rng)
    with opened(folder) as index:
        assert attempt(lambda: answers(index)) in (None, expected), file.name
        attempt(index.status)
        attempt(lambda: index.status(check=True))
        index.refresh()
    with opened(folder) as index:
        verification = index.status(check=True)
        assert verification.ok, f"{file.name}: {verification}"
        assert verification.documents == 30
        assert answers(index) == expected


def test_a_question_of_which_one_retriever_alone_meets_damage_gets_the_error_and_no_half_answer(
    whole, monkeypatch
):
    def damaged(*_, **__):
        raise DamagedError("index.sqlite3 is damaged. Run: llama-index-contextual index")

    monkeypatch.setattr(query.IndexView, "keyword_query", damaged)
    with (
        opened(whole) as index,
        pytest.raises(DamagedError, match="Run: llama-index-contextual index"),
    ):
        answers(index)


def database_of(folder):
    return closing(sqlite3.connect(storage_of(folder) / "index.sqlite3"))


STRANGE = {
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON chunks BEGIN DELETE FROM documents; END",
    "a view": "CREATE VIEW v AS SELECT 1",
    "a table": "CREATE TABLE more (x)",
    "an index over an expression": "CREATE INDEX i ON chunks (lower(text))",
    "a generated column": "ALTER TABLE chunks ADD COLUMN g TEXT AS (upper(text))",
    "no table": "DROP TABLE chunks",
    "another text": "UPDATE chunks SET text = replace(text, 'word7', 'word8')",
    "metadata that are no JSON": "UPDATE chunks SET metadata = '{'",
    "metadata that are no object": "UPDATE chunks SET metadata = '7'",
    "other fields": "UPDATE chunks SET fields = x'00'",
    "a state that is none": "UPDATE state SET value = '[1]'",
    "a state that is no JSON": "UPDATE state SET value = '{'",
}


@pytest.mark.parametrize("sql", STRANGE.values(), ids=STRANGE)
def test_changed_rows_are_refused_by_questions_and_repaired_by_a_refresh(
    whole, tmp_path, sql, caplog
):
    folder = copy_indexed(whole, tmp_path / "docs")
    with database_of(folder) as database, database:
        database.executescript(sql)
    with (
        opened(folder) as index,
        pytest.raises(DamagedError, match="Run: llama-index-contextual index"),
    ):
        answers(index)
    with opened(folder) as index:
        assert index.refresh().embedded == 0
        assert index.status(check=True).ok
        assert len(answers(index)) == 3
    assert "is set aside as index.sqlite3.damaged" in caplog.text


UNNOTICED_BY_SQLITE = {
    "a path": "UPDATE chunks SET metadata = replace(metadata, '8.md', '9.md')",
    "a document": "UPDATE chunks SET ref_doc_id = '9.md' WHERE ref_doc_id = '8.md'",
    "a setting": "UPDATE state SET value = replace(value, 'headings', 'feadings')",
}


@pytest.mark.parametrize("sql", UNNOTICED_BY_SQLITE.values(), ids=UNNOTICED_BY_SQLITE)
@pytest.mark.parametrize("key", ["path", "doc_id"])
def test_a_filter_takes_no_value_that_is_not_as_it_was_written(whole, tmp_path, sql, key):
    folder = copy_indexed(whole, tmp_path / "docs")
    filters = MetadataFilters(filters=[MetadataFilter(key=key, value="8.md")])
    with opened(folder) as index:
        assert index.as_retriever(3, filters=filters).retrieve("word7 word2")
    with database_of(folder) as database, database:
        database.executescript(sql)
    with (
        opened(folder) as index,
        pytest.raises(DamagedError, match="Run: llama-index-contextual index"),
    ):
        index.as_retriever(3, filters=filters).retrieve("word7 word2")


def test_a_refresh_does_not_wait_until_the_cache_is_on_disk(whole, tmp_path, monkeypatch):
    """What a power failure cuts off the cache is derived again.

    Waiting for the disk would cost a refresh of one note thirteen waits, one for each file.
    """
    folder = copy_indexed(whole, tmp_path / "docs")
    monkeypatch.setattr("os.fsync", lambda _: pytest.fail("it waits"))
    (folder / "3.md").write_text("# Page 3\n\nAnother text.\n")
    with opened(folder) as index:
        assert index.refresh().changed == ["3.md"]
    with opened(folder) as index:
        assert index.status(check=True).ok


TWO_CHUNKS = "IN (SELECT id FROM chunks LIMIT 2)"
LOST = {
    "vectors": f"UPDATE vectors SET value = zeroblob(28) WHERE chunk {TWO_CHUNKS}",  # noqa: S608
    "vectors that went": f"DELETE FROM vectors WHERE chunk {TWO_CHUNKS}",  # noqa: S608
    "all vectors": "DELETE FROM vectors",
    "vectors of another text": "UPDATE vectors SET (value, checksum) = (SELECT value, checksum FROM vectors LIMIT 1)",  # noqa: E501
    "chunks that went": f"DELETE FROM chunks WHERE id {TWO_CHUNKS}",  # noqa: S608
    "no state": "DELETE FROM state",
}


@pytest.mark.parametrize("sql", LOST.values(), ids=LOST)
@pytest.mark.parametrize("without_arrays", [True, False])
def test_what_is_lost_is_found_by_a_check_and_made_again_by_a_refresh(
    whole, tmp_path, sql, without_arrays
):
    folder = copy_indexed(whole, tmp_path / "docs")
    if without_arrays:
        shutil.rmtree(storage_of(folder) / "cache")
    with database_of(folder) as database, database:
        database.execute(sql)
    with opened(folder) as index:
        assert attempt(lambda: index.status(check=True)) is None
    with opened(folder) as index:
        attempt(lambda: answers(index))
        assert index.refresh().embedded == 0, "the content cache has the vectors"
        assert index.status(check=True).ok
        assert index.status(check=True).documents == 30
        assert answers(index)


DAMAGED_CACHE = {
    "a value": "UPDATE kept SET value = zeroblob(28) WHERE rowid < 3",
    "two values that went": "DELETE FROM kept WHERE rowid < 3",
    "a table that went": "DROP TABLE kept",
    "another layout": "PRAGMA user_version = 2",
    "a trigger": "CREATE TRIGGER sqlite_x AFTER INSERT ON kept BEGIN DELETE FROM kept; END",
}


@pytest.mark.parametrize(("name", "sql"), DAMAGED_CACHE.items())
def test_a_damaged_content_cache_is_repaired_by_the_next_refresh(
    tmp_path, caplog, monkeypatch, name, sql
):
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_STORAGE", str(tmp_path / "data"))
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.md").write_text(f"# Page {number}\n\nSome words {number * 'a'}.\n")
    with opened(folder) as index:
        assert index.refresh().embedded == 5
    with closing(sqlite3.connect(content_file(), isolation_level=None)) as database:
        database.executescript(sql.replace("sqlite_x", "x"))
        if name == "a trigger":  # SQLite refuses such a name unless the schema is written by hand
            database.executescript(
                "PRAGMA writable_schema=ON;"
                "UPDATE sqlite_master SET name = 'sqlite_x', sql = replace(sql, 'x "
                "AFTER', 'sqlite_x AFTER')"
                "WHERE type = 'trigger'"
            )
    shutil.rmtree(storage_of(folder))
    lost = {"a value": 2, "two values that went": 2, "a table that went": 5, "another layout": 5}
    with opened(folder) as index:
        assert index.refresh().embedded == lost.get(name, 5)
        assert index.status(check=True).ok
    assert ("set aside as content.sqlite3.damaged" in caplog.text) == (
        name not in ("a value", "two values that went")
    )
    shutil.rmtree(storage_of(folder))
    with opened(folder) as index:
        assert index.refresh().embedded == 0


def test_a_newer_index_is_neither_read_nor_set_aside(whole, tmp_path):
    folder = copy_indexed(whole, tmp_path / "docs")
    with database_of(folder) as database, database:
        database.executescript("PRAGMA user_version=99; CREATE TABLE more (x)")
    with pytest.raises(StorageError, match=r"layout 99.*Upgrade"):
        opened(folder)
    assert not list(storage_of(folder).glob("*.damaged"))


@pytest.mark.parametrize("harm", ["damaged", "deleted"])
def test_settings_that_were_chosen_outlive_the_index(whole, tmp_path, harm):
    folder = copy_indexed(whole, tmp_path / "docs")
    with opened(folder, config={"chunks.chunk_size": 60}) as index:
        chunks = index.refresh().chunks
    if harm == "damaged":
        with database_of(folder) as database, database:
            database.execute("CREATE VIEW v AS SELECT 1")
    else:
        (storage_of(folder) / "index.sqlite3").unlink()
    with opened(folder) as index:
        report = index.refresh()
        assert (report.chunks, report.embedded) == (chunks, 0)


def test_fifty_threads_may_ask_at_once(whole):
    with opened(whole) as index, ThreadPoolExecutor(50) as pool:
        together = threading.Barrier(50)

        def ask(_):
            with index._reader.snapshot() as view:
                together.wait(30)
                return len(view.rows)

        assert set(pool.map(ask, range(50))) == {index.status().chunks}


def attempt_all(index):
    return list(index.nodes()), answers(index)


def test_nothing_is_read_of_a_database_whose_end_is_cut_off(whole, tmp_path):
    content = (storage_of(whole) / "index.sqlite3").read_bytes()
    for length in range(2600, len(content), 8192):  # within each page
        folder = copy_indexed(whole, tmp_path / str(length))
        (storage_of(folder) / "index.sqlite3").write_bytes(content[:length])
        shutil.rmtree(storage_of(folder) / "cache")
        with (
            opened(folder) as index,
            pytest.raises(DamagedError, match="Run: llama-index-contextual index"),
        ):
            attempt_all(index)
    with opened(folder) as index:
        assert index.refresh().embedded == 0
        assert len({node.ref_doc_id for node in index.nodes()}) == 30
