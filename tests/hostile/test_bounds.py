"""A storage that somebody else made takes bounded memory, runs nothing, and is rebuilt."""

import contextlib
import json
import sqlite3
import subprocess
import sys
import zlib
from contextlib import closing
from pathlib import Path

import pytest
from storage import storage_of

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.index import rows
from llama_index_contextual.memory.context import MemoryContext
from llama_index_contextual.tools.definitions import TOOLS, NoteTools
from llama_index_contextual.utils import sqlite_file
from llama_index_contextual.utils.errors import ContextualError, DamagedError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "page.md").write_text("# Page\n\nThe gateway waits 60 seconds.\n", "utf-8")
    with ContextualIndex.open(folder, embed_model="none") as index:
        index.refresh()
    return folder


def tamper(folder, sql, *values):
    with closing(sqlite3.connect(storage_of(folder) / "index.sqlite3")) as database, database:
        database.create_function("checksum", -1, sqlite_file.checksum_of)
        database.execute(sql, values)
        database.execute(
            "UPDATE chunks SET checksum = checksum(node_id, coalesce(ref_doc_id, ''), "
            "text, metadata, embed_hash, "
            "context_source, fields)"
        )


def is_repaired(folder, caplog):
    with ContextualIndex.open(folder) as index:
        index.refresh()
        assert index.status(check=True).ok
        assert "60 seconds" in index.as_retriever().retrieve("gateway")[0].node.text
    return "set aside as index.sqlite3.damaged" in caplog.text


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("text", b"\xff\xfe"),
        ("metadata", "[]"),
        ("metadata", "{"),
        ("metadata", "[" * 100_000),
        ("metadata", '{"start_line": "x", "page_label": "' + "9" * 5000 + '"}'),
    ],
)
def test_a_row_of_another_type_does_not_crash_a_tool(folder, column, value):
    tamper(folder, f"UPDATE chunks SET {column} = ?", value)  # noqa: S608  a name of this file
    with ContextualIndex.open(folder) as index:
        tools = NoteTools(index.notes, MemoryContext(index))
        calls = {
            "list": {},
            "grep": {"pattern": "gateway"},
            "read": {"path": "a name"},
            "retrieve": {"query": "gateway"},
            "memory_context": {"message": "What does the gateway wait for?"},
        }
        for tool in TOOLS:
            with contextlib.suppress(ContextualError):
                tool.call(tools, calls[tool.name])
        with contextlib.suppress(DamagedError):
            index.status(check=True)


def test_a_state_with_an_impossible_path_is_damage(folder, caplog):
    path = storage_of(folder) / "index.sqlite3"
    with closing(sqlite3.connect(path)) as database, database:
        [(text,)] = database.execute("SELECT value FROM state").fetchall()
        text = json.dumps({**json.loads(text), "folders": {"": "\0"}})
        database.execute(
            "UPDATE state SET value = ?, checksum = ?", [text, sqlite_file.checksum_of(text)]
        )
    assert is_repaired(folder, caplog)


def test_a_few_bytes_do_not_become_gigabytes(folder, caplog, monkeypatch):
    monkeypatch.setattr(rows, "MAX_FIELDS_BYTES", 100_000)
    tamper(folder, "UPDATE chunks SET fields = ?", zlib.compress(b"[" + b" " * 1_000_000 + b"]"))
    with (
        ContextualIndex.open(folder) as index,
        pytest.raises(DamagedError, match="exceed 100,000 bytes"),
    ):
        index.as_retriever().retrieve("gateway")
    assert is_repaired(folder, caplog)


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
def test_a_bomb_in_an_index_does_not_raise_the_memory_of_a_search(folder):
    compressor = zlib.compressobj(1)
    bomb = b"".join(compressor.compress(bytes(10**7)) for _ in range(100)) + compressor.flush()
    tamper(folder, "UPDATE chunks SET fields = ?", bomb)
    # ru_maxrss would count the memory of the process that started this one.
    code = (
        "import sys; from llama_index_contextual.app.cli import main\n"
        "sys.argv[1:] = ['search', 'gateway', '-f', sys.argv[1]]\n"
        "try:\n    main()\n"
        "finally:\n    print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    done = subprocess.run(  # noqa: S603  our own script
        [sys.executable, "-c", code, str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "is damaged" in done.stderr
    assert int(done.stdout.split()[-1]) < 600_000, "kilobytes, of 1 GB"


UNREADABLE = {
    "fields that are no node": zlib.compress(b"[1]"),
    "fields of another class": zlib.compress(b'{"__type__": "9", "__data__": {}}'),
    "deep fields": zlib.compress(b"[" * 100_000),
    "cut fields": zlib.compress(b"{" * 1000)[:-3],
}


@pytest.mark.parametrize("fields", UNREADABLE.values(), ids=UNREADABLE)
def test_the_suggested_command_repairs_damage_that_a_check_misses(folder, caplog, fields):
    tamper(folder, "UPDATE chunks SET fields = ?", fields)
    with (
        ContextualIndex.open(folder) as index,
        pytest.raises(DamagedError, match="Run: llama-index-contextual index"),
    ):
        index.as_retriever().retrieve("gateway")
    assert is_repaired(folder, caplog)


STRANGE = {
    "a trigger": "CREATE TRIGGER sqlite_x AFTER INSERT ON chunks BEGIN SELECT 1; END",
    "a view": "CREATE VIEW sqlite_x AS SELECT 1",
    "a table": "CREATE TABLE sqlite_x (a)",
    "an index": "CREATE INDEX sqlite_x ON chunks (text)",
}


@pytest.mark.parametrize("sql", STRANGE.values(), ids=STRANGE)
def test_a_foreign_object_in_the_schema_is_refused_whatever_its_name(folder, caplog, sql):
    with closing(sqlite3.connect(storage_of(folder) / "index.sqlite3")) as database, database:
        database.execute(sql.replace("sqlite_x", "x"))
        database.executescript(
            "PRAGMA writable_schema=ON; UPDATE sqlite_master SET name = 'sqlite_x',"
            "tbl_name = replace(tbl_name, 'x', 'x'), sql = replace(sql, ' x ', ' "
            "sqlite_x ') WHERE name = 'x'"
        )
    with (
        ContextualIndex.open(folder) as index,
        pytest.raises(DamagedError, match=r"unexpected .*sqlite_x|malformed"),
    ):
        index.as_retriever().retrieve("gateway")
    assert is_repaired(folder, caplog)


@pytest.mark.skipif(not hasattr(sqlite_file.os, "statvfs"), reason="no such count on this system")
def test_a_search_needs_no_free_inodes(folder, monkeypatch):
    class Full:
        f_files = 1000
        f_favail = 0
        f_bavail = 10**9
        f_frsize = 4096

    monkeypatch.setattr(sqlite_file.os, "statvfs", lambda _: Full)
    before = sorted(storage_of(folder).iterdir())
    with ContextualIndex.open(folder) as index:
        assert "60 seconds" in index.as_retriever().retrieve("gateway")[0].node.text
    assert sorted(storage_of(folder).iterdir()) == before
