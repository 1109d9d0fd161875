"""A forged rollback journal deletes a file of the user when SQLite opens the database beside it."""

import contextlib
import os
import signal
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from command_line import run_process
from storage import content_file, storage_of

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.context.cache import SQLiteKVStore
from llama_index_contextual.utils.errors import StorageError

pytestmark = pytest.mark.filterwarnings(
    "always::llama_index_contextual.utils.errors.ContextualWarning"
)
ROOT = Path(__file__).parents[2]
MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
SECTOR = 512
PAGE = 8192


def plant_journal(database, victim):
    """Write a journal beside a database that names a file as its super-journal."""
    name = os.fsencode(victim)
    pages = database.stat().st_size // PAGE if database.exists() else 1
    header = MAGIC + struct.pack(">IIIII", 0, 0, pages, SECTOR, PAGE)
    page_of_name = struct.pack(">I", (1 << 30) // PAGE + 1)
    ending = struct.pack(">II", len(name), sum(struct.pack(f"{len(name)}b", *name)) & 0xFFFFFFFF)
    journal = database.with_name(f"{database.name}-journal")
    journal.write_bytes(header.ljust(SECTOR, b"\0") + page_of_name + name + ending + MAGIC)
    return journal


@pytest.fixture
def thesis(tmp_path):
    """Return a file of the user."""
    file = tmp_path / "thesis.tex"
    file.write_text("Years of work.")
    return file


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "page.md").write_text("# Page\n\nThe gateway waits 60 seconds.\n", "utf-8")
    with ContextualIndex.open(folder, embed_model="none", storage=tmp_path / "named") as index:
        index.refresh()
    with ContextualIndex.open(folder, embed_model="none") as index:
        index.refresh()
    SQLiteKVStore(content_file()).put("key", {"text": "words"})
    return folder


def without_logs(database):
    """Move all of a database into its file: SQLite ignores the journal while a log exists."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")


def test_sqlite_itself_obeys_such_a_journal(tmp_path, thesis):
    """The tests below would prove nothing otherwise."""
    database = tmp_path / "any.sqlite3"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(f"PRAGMA page_size={PAGE}")
        connection.execute("CREATE TABLE t (x)")
    plant_journal(database, thesis)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("SELECT * FROM t").fetchall()
    assert not thesis.exists()


COMMANDS = {
    "search": ["search", "gateway", "-f", "FOLDER"],
    "status": ["status", "FOLDER"],
    "status --check": ["status", "--check", "FOLDER"],
    "context": ["context", "what does the gateway do?", "-f", "FOLDER"],
    "index": ["index", "FOLDER"],
    "index --dry-run": ["index", "--dry-run", "FOLDER"],
    "preview": ["preview", "FOLDER/page.md", "-f", "FOLDER"],
    "ask": ["ask", "gateway?", "-f", "FOLDER", "--llm", "ollama:x@http://127.0.0.1:1"],
    "config": ["config", "FOLDER"],
    "cache": ["cache"],
}
SERVERS = {"mcp": ["mcp", "FOLDER"], "serve": ["serve", "FOLDER", "--port", "0"]}


def filled(command, folder, storage):
    place = ["--storage", storage] if storage and command[0] != "cache" else []
    return [str(part).replace("FOLDER", str(folder)) for part in (*command, *place)]


@pytest.fixture(params=["default", "named", "content", "inside"])
def planted(request, folder, thesis, tmp_path):
    """Plant a journal beside a database, and return the storage for a command, or None."""
    storages = {"named": tmp_path / "named", "inside": folder / ".contextual"}
    storage = storages.get(request.param)
    database = {
        "default": storage_of(folder) / "index.sqlite3",
        "named": tmp_path / "named" / "index.sqlite3",
        "content": content_file(),
        "inside": folder / ".contextual" / "index.sqlite3",
    }[request.param]
    if request.param == "inside":
        database.parent.mkdir()
        database.write_bytes(content_file().read_bytes())
    without_logs(database)
    plant_journal(database, thesis)
    return None if request.param == "inside" else storage


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_no_command_obeys_it(planted, folder, thesis, run, command):
    done = run(*filled(command, folder, planted))
    assert thesis.exists()
    if done.returncode == 1 and "ollama" not in done.stderr and "127.0.0.1" not in done.stderr:
        assert "-journal is not a file of this package" in done.stderr


@pytest.mark.process
@pytest.mark.parametrize("command", SERVERS.values(), ids=SERVERS)
def test_no_server_obeys_it(planted, folder, thesis, command):
    line = [sys.executable, "-m", "llama_index_contextual", *filled(command, folder, planted)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(  # noqa: S603  our own command
        line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as server:
        try:
            server.communicate(timeout=6)
        except subprocess.TimeoutExpired:
            server.send_signal(signal.SIGINT)
            try:
                server.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                server.kill()
    assert thesis.exists()


@pytest.mark.parametrize("has_database", [True, False])
def test_a_store_of_the_plug_in_does_not_obey_it(tmp_path, thesis, has_database):
    path = tmp_path / "project" / "contexts.sqlite3"
    path.parent.mkdir()
    if has_database:
        with closing(SQLiteKVStore(path)) as store:
            store.put("a", {"n": 1})
        without_logs(path)
    plant_journal(path, thesis)
    for use in (lambda store: store.get("a"), lambda store: store.put("a", {"n": 2})):
        # Without a database, a read returns nothing and raises no error.
        with closing(SQLiteKVStore(path)) as store, contextlib.suppress(StorageError):
            use(store)
    assert thesis.exists()


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_a_file_of_the_user_is_not_taken_for_a_log(tmp_path, thesis, suffix, kind):
    path = tmp_path / "contexts.sqlite3"
    with closing(SQLiteKVStore(path)) as store:
        store.put("a", {"n": 1})
    log = path.with_name(f"{path.name}{suffix}")
    log.unlink(missing_ok=True)
    if kind == "link":
        log.symlink_to(thesis)
    else:
        log.hardlink_to(thesis)
    for use in (lambda store: store.get("a"), lambda store: store.put("a", {"n": 2})):
        with closing(SQLiteKVStore(path)) as store, pytest.raises(StorageError, match=suffix):
            use(store)
    assert thesis.read_text() == "Years of work."


@pytest.mark.process
def test_an_index_never_has_a_journal(tmp_path):
    """A killed process would leave it behind, and the index would refuse it."""
    script = """
import sqlite3, sys, os
from pathlib import Path
from llama_index_contextual.app import ContextualIndex
folder, storage = map(Path, sys.argv[1:])
def look(event, arguments):
    if event in ("open", "os.rename", "os.remove", "os.link", "sqlite3.connect"):
        assert not [path for path in storage.glob("*-journal")], "a journal"
sys.addaudithook(look)
with ContextualIndex.open(folder, embed_model="none", storage=storage) as index:
    index.refresh()
    (folder / "b.md").write_text("# B")
    index.refresh()
    index.delete("b.md")
"""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("# A\n\nWords.\n")
    done = subprocess.run(  # noqa: S603  our own script
        [sys.executable, "-c", script, str(folder), str(tmp_path / "storage")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_database_that_would_write_journals_is_refused(tmp_path):
    path = tmp_path / "contexts.sqlite3"
    with closing(SQLiteKVStore(path)) as store:
        store.put("a", {"n": 1})
    without_logs(path)
    with pytest.raises(StorageError, match="journal mode is delete"):
        SQLiteKVStore(path).get("a")


@pytest.mark.process
def test_the_command_line_in_a_process_names_the_journal(folder, thesis):
    database = storage_of(folder) / "index.sqlite3"
    without_logs(database)
    journal = plant_journal(database, thesis)
    done = run_process("search", "gateway", "-f", folder)
    assert done.returncode == 1
    assert f"{journal} is not a file of this package" in done.stderr
    assert thesis.exists()
