"""Every command, and whether it writes: the storage and the folder are hashed before and after."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from storage import copy_indexed, storage_of

from llama_index_contextual.app import ContextualIndex

NOTES = Path(__file__).parents[3] / "examples" / "notes"


def state(folder):
    """Return a hash of every file below a folder, without locks and SQLite's empty log.

    For Chroma's database it returns all rows except those that note when it was opened. It leaves
    out Chroma's vector files: with few vectors they are empty, and Chroma fills them with noise
    whenever it reads them.
    """
    contents = {}
    for file in sorted(folder.rglob("*")):
        if file.name == "chroma.sqlite3":
            with contextlib.closing(sqlite3.connect(file)) as database:
                contents[file] = [
                    line for line in database.iterdump() if "acquire_write" not in line
                ]
        elif (
            file.is_file()
            and ".lock" not in file.name
            and file.suffix != ".bin"
            and not file.name.endswith("-shm")
        ):
            if file.name.endswith("-wal") and not file.stat().st_size:
                continue
            contents[file] = hashlib.sha256(file.read_bytes()).hexdigest()
    return contents


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("writes") / "notes"
    shutil.copytree(NOTES / "docs", folder)
    with ContextualIndex.open(folder, context="pattern") as index:
        index.refresh()
    return folder


@pytest.fixture
def folder(made, tmp_path):
    """An index, and a file that has changed since."""
    copy_indexed(made, tmp_path / "notes")
    (tmp_path / "notes" / "gateway.md").write_text(
        "# Gateway\n\nThe default timeout is 61 now.\n", "utf-8"
    )
    return tmp_path / "notes"


QUESTION = "What is the default timeout of the gateway?"


@pytest.mark.parametrize(
    ("command", "writes"),
    [
        (["search", QUESTION, "-f", "{}"], False),
        (["search", QUESTION, "-f", "{}", "--explain", "--recency", "--per-file", "1"], False),
        (["context", QUESTION, "-f", "{}"], False),
        (["context", QUESTION, "-f", "{}", "--refresh", "never"], False),
        (["context", QUESTION, "-f", "{}", "--refresh", "wait"], True),
        (["status", "{}"], False),
        (["status", "{}", "--check"], False),
        (["config", "{}"], False),
        (["preview", "{}/gateway.md"], False),
        (["index", "{}", "--dry-run"], False),
        (["index", "{}"], True),
    ],
    ids=lambda value: " ".join(value[:1] + value[2:]) if isinstance(value, list) else "",
)
def test_only_the_commands_that_say_so_write(run, folder, command, writes):
    before = state(folder), state(storage_of(folder))
    done = run(*(part.format(folder) for part in command))
    assert done.returncode in (0, 3), done.stderr
    assert (state(storage_of(folder)) != before[1]) is writes
    assert state(folder) == before[0]


def test_a_question_says_how_far_the_index_is_behind(run, folder):
    for command in (["search", QUESTION], ["context", QUESTION]):
        done = run(*command, "-f", folder)
        assert "1 file changed since; run index" in done.stderr
        assert "is 61 now" not in done.stdout
    done = run("context", QUESTION, "-f", folder, "--refresh", "wait")
    assert "is 61 now" in done.stdout
    assert done.stderr == ""


def test_a_search_from_another_folder_does_not_replace_the_storage(run, tmp_path, monkeypatch):
    notes, storage, elsewhere = tmp_path / "notes", tmp_path / "storage", tmp_path / "elsewhere"
    shutil.copytree(NOTES / "docs", notes)
    elsewhere.mkdir()
    (elsewhere / "other.md").write_text("# Other\n\nNothing of the gateway.\n", "utf-8")
    assert run("index", notes, "--storage", storage).returncode == 0
    monkeypatch.chdir(elsewhere)
    for refresh in ("never", "auto", "wait"):
        assert (
            "gateway.md#L"
            in run("context", QUESTION, "--storage", storage, "--refresh", refresh).stdout
        )
    before = state(storage)
    assert "gateway.md#L" in run("search", QUESTION, "--storage", storage).stdout
    for command in (
        ["search", QUESTION, "-f", elsewhere],
        ["context", QUESTION, "-f", elsewhere],
        ["index", elsewhere],
    ):
        done = run(*command, "--storage", storage)
        assert done.returncode == 1, command
        assert f"belongs to {notes}" in done.stderr
    assert state(storage) == before


def test_a_command_that_would_delete_much_asks_first(run, folder):
    done = run("index", folder, "--include", "*.none")
    assert done.returncode == 1
    assert "--yes" in done.stderr
    assert run("index", folder, "--include", "*.none", "--yes").returncode == 0


@pytest.mark.process
def test_watching_indexes_what_changes(tmp_path, run):
    (tmp_path / "a.md").write_text("# Morning\n\nCookie loves carrots.\n")
    # A test run in the background has SIGINT ignored.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from llama_index_contextual.app.cli import main; main()"
    command = [sys.executable, "-c", code, "index", str(tmp_path), "--watch"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, env=buffered, **pipes) as watcher:  # noqa: S603
        assert any("1 added" in line for line in watcher.stdout)
        assert any("waiting for changes" in line for line in watcher.stderr)
        (tmp_path / "b.part").write_text("# Evening\n\nThe piano is tuned in May.\n")
        (tmp_path / "b.part").rename(
            tmp_path / "b.md"
        )  # at once: a look between two writes would find it empty
        assert any("1 added" in line for line in watcher.stdout)
        assert "b.md" in run("search", "piano", "-f", tmp_path).stdout
        watcher.send_signal(signal.SIGINT)
        assert watcher.wait(30) == 0
