"""A folder and an index that cannot be written are searched.

Each is mounted for reading only, for one process.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from storage import storage_of

ROOT = Path(__file__).parents[3]
MOUNT = 'D=$1; shift; mount --bind "$D" "$D" && mount -o remount,ro,bind "$D" && exec "$@"'
ALL = """
import json, sys
from pathlib import Path
from llama_index_contextual import MemoryContext
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.utils.errors import StorageError
folder, question, said = Path(sys.argv[1]), "Which vegetable does Cookie like?", {}
with ContextualIndex.open(folder) as index:
    said["search"] = index.as_retriever(1).retrieve(question)[0].node.text
    said["filtered"] = len(index.as_retriever().retrieve("path:guide.md version"))
    said["memory"] = MemoryContext(index).get(question).markdown
    said["status"] = index.status().chunks
    said["verify"] = str(index.status(check=True))
    said["nodes"] = len(index.nodes())
    said["get"] = index.read("faq.md")
    said["list"] = len(index.files())
    said["work"] = len(index.status().pending.to_index)
    try:
        index.refresh()
    except StorageError as error:
        said["refresh"] = str(error)
print(json.dumps(said))
"""


@cache
def how():
    """The command that mounts a folder for one process; None where this user may not."""
    if shutil.which("unshare") is None:
        return None
    for options in (["-m"], ["-rm"]):
        command = ["unshare", *options, "sh", "-c", MOUNT, "sh"]
        if (
            subprocess.run([*command, "/tmp", "true"], capture_output=True, check=False).returncode  # noqa: S108, S603
            == 0
        ):
            return command
    return None


def read_only(part, *command, temporary):
    """Run Python where a folder is read-only."""
    if how() is None:
        pytest.skip(
            "unshare and mount are not allowed here, so nothing can be made read-only "
            "for the superuser"
        )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    line = [*how(), str(part), sys.executable, *map(str, command)]
    return subprocess.run(line, capture_output=True, text=True, check=False, env=environment)  # noqa: S603


def assert_search_works(folder, temporary):
    """Assert that the command finds a note while its index cannot be written."""
    command = ("-m", "llama_index_contextual", "search", "Cookie's carrots", "-f", folder)
    done = read_only(storage_of(folder), *command, temporary=temporary)
    assert "loves carrots" in done.stdout, done.stderr


@pytest.fixture
def temporary(tmp_path):
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


@pytest.mark.process
def test_an_index_that_cannot_be_written_is_read_in_every_way(opened, folder, temporary):
    with opened(embed_model=None) as index:
        index.refresh()
    done = read_only(storage_of(folder), "-c", ALL, folder, temporary=temporary)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert "carrots" in said["search"]
    assert "carrots" in said["memory"]
    assert said["filtered"] == 1
    assert ({said["status"], said["nodes"], said["list"]}, said["work"]) == ({4}, 0)
    assert said["verify"].endswith("checked     files, databases and caches agree")
    assert said["get"].startswith("# FAQ")
    assert "cannot be written" in said["refresh"]
    assert "Make the folder writable" in said["refresh"]
    assert list(temporary.glob("llama-index-contextual-*")) == [], "nothing is copied"


@pytest.mark.process
def test_a_read_only_folder_is_indexed_without_an_option(folder, temporary):
    before = sorted(folder.rglob("*"))
    for command in (["index", folder], ["search", "Cookie's carrots", "-f", folder]):
        done = read_only(folder, "-m", "llama_index_contextual", *command, temporary=temporary)
        assert done.returncode == 0, done.stderr
    assert "loves carrots" in done.stdout
    assert sorted(folder.rglob("*")) == before


@pytest.mark.process
def test_the_command_line_searches_a_read_only_index_and_a_refresh_does_not_write_into_a_copy(
    opened, folder, temporary
):
    with opened(embed_model=None) as index:
        index.refresh()
    assert_search_works(folder, temporary)
    (folder / "new.md").write_text("# New\n\nZebras sleep standing.\n")
    storage = storage_of(folder)
    done = read_only(storage, "-m", "llama_index_contextual", "index", folder, temporary=temporary)
    assert done.returncode == 1, done.stdout
    assert f"{storage} cannot be written" in done.stderr
    assert "Make the folder writable" in done.stderr
    with opened(embed_model=None) as index:
        assert index.refresh().added == ["new.md"]
        assert index.status(check=True).ok


@pytest.mark.process
async def test_agents_search_a_read_only_index(opened, folder, temporary):
    clients = pytest.importorskip("mcp_clients")
    if how() is None:
        pytest.skip("unshare and mount are not allowed here")
    with opened(embed_model=None) as index:
        index.refresh()
    (folder / "later.md").write_text("# Later\n\nNot indexed.\n")
    server = clients.stdio(folder)
    server.args, server.command = (
        [*how()[1:], str(storage_of(folder)), server.command, *server.args],
        how()[0],
    )
    server.env["TMPDIR"] = str(temporary)
    async with clients.mcp.Client(clients.stdio_client(server)) as client:
        asked = "Which vegetable does Cookie like?"
        assert "loves carrots" in await clients.text_of(client, "memory_context", message=asked)
        await clients.wait_for(client, "Cookie", "could not be brought up to date")


@pytest.mark.process
def test_what_a_killed_writer_left_in_the_log_is_read_where_nothing_can_be_written(
    opened, folder, temporary
):
    writer = (
        "import os, sys; from llama_index_contextual.app import ContextualIndex\n"
        "index = ContextualIndex.open(sys.argv[1], embed_model='none')\n"
        "index.refresh(); index.delete('faq.md'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", writer, str(folder)], check=False)  # noqa: S603  our own script
    assert (storage_of(folder) / "index.sqlite3-wal").stat().st_size
    assert_search_works(folder, temporary)
    assert list(temporary.iterdir()) == [], "nothing is copied"


def test_what_one_user_indexes_others_may_read(opened, folder):
    before = os.umask(0o022)
    try:
        with opened() as index:
            index.refresh()
    finally:
        os.umask(before)
    hidden = [
        path.name
        for path in storage_of(folder).rglob("*")
        if path.is_file() and not path.stat().st_mode & stat.S_IROTH
    ]
    assert hidden == []
