"""One writer at a time; a process that dies releases the lock."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from llama_index_contextual.app.index.storage import Layout
from llama_index_contextual.utils.errors import LockedError, StorageError

pytestmark = pytest.mark.process

HOLD = """
import sys, time
from pathlib import Path
from llama_index_contextual.app.index.storage import Layout
with Layout(Path(sys.argv[1])).hold():
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def other_writer(tmp_path):
    """Another process that holds the lock ``tmp_path/write.lock``."""
    path = tmp_path / "write.lock"
    with subprocess.Popen(  # noqa: S603  our own script
        [sys.executable, "-c", HOLD, str(path.parent)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process, path
        process.kill()


def test_a_second_process_is_refused(other_writer):
    _, path = other_writer
    with (
        pytest.raises(LockedError, match=r"is writing the index at .*Wait until it ends"),
        Layout(path.parent).hold(),
    ):
        pass


def test_a_killed_writer_leaves_no_lock(other_writer):
    process, path = other_writer
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with Layout(path.parent).hold():
        pass


def test_an_index_that_another_process_writes_is_refused_and_can_be_written_afterwards(
    other_writer, folder, opened
):
    process, path = other_writer
    with pytest.raises(LockedError, match="another process is writing"):
        opened(storage=path.parent).refresh()
    process.kill()
    process.wait()
    assert opened(storage=path.parent).refresh().chunks == 4


def test_threads_of_one_process_take_turns(tmp_path):
    lock = Layout(tmp_path)
    inside, most = 0, 0

    def work():
        nonlocal inside, most
        for _ in range(20):
            with lock.hold():
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"), Layout(tmp_path / "file").hold():
        pass
