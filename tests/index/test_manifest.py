"""The manifest survives what happens to files."""

import errno
import os
import signal
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import pytest

from llama_index_contextual.errors import StorageError
from llama_index_contextual.index import manifest as module
from llama_index_contextual.index.manifest import Entry, Manifest, load_manifest, save_manifest
from llama_index_contextual.index.pipeline import Difference, differences
from llama_index_contextual.index.state import write_atomically

MANIFEST = Manifest(
    collection="contextual",
    fingerprint={"parser": {"chunk_size": 1}},
    generation=3,
    documents={"a é.md": Entry("1", "s", nodes=2)},
)


@pytest.fixture
def forgotten(monkeypatch):
    """Callable: what is loaded next is read from the disk."""
    return lambda: monkeypatch.setattr(module, "_latest", None)


def test_it_comes_back_as_it_was(tmp_path, forgotten):
    path = tmp_path / "manifest.json"
    assert load_manifest(path) is None
    save_manifest(path, MANIFEST)
    forgotten()
    assert load_manifest(path) == MANIFEST
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]


def test_what_this_process_wrote_is_not_parsed_again_but_what_another_wrote_is(tmp_path):
    path, other = tmp_path / "manifest.json", tmp_path / "other.json"
    save_manifest(other, replace(MANIFEST, generation=4))
    save_manifest(path, MANIFEST)
    assert load_manifest(path) is MANIFEST
    other.replace(path)  # as another process puts its own in place
    assert load_manifest(path).generation == 4


def test_many_documents_are_written_in_parts(tmp_path, forgotten):
    path = tmp_path / "manifest.json"
    documents = {f"{number}.md": Entry(f"{number:064}", "s", contexts={"headings": number}) for number in range(20_500)}
    manifest = Manifest("contextual", documents=documents)
    tracemalloc.start()
    save_manifest(path, manifest)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    forgotten()
    assert load_manifest(path) == manifest
    assert peak < path.stat().st_size / 2, "it is never in memory as a whole"


DAMAGED = {
    "torn": b'{"version": 1, "docu',
    "no JSON": b"\x00\xff",
    "another shape": b"[]",
    "an unknown field": b'{"version": 1, "collection": "contextual", "documents": {}, "x": 1}',
    "a field missing": b'{"version": 1, "documents": {}}',
    "text for a number": b'{"version": 2, "collection": "contextual", "documents": {}, "generation": "x"}',
    "a list for choices": b'{"version": 2, "collection": "contextual", "documents": {}, "choices": []}',
    "a collection of nobody's": b'{"version": 2, "collection": "../x", "documents": {}}',
    "no Unicode": b'{"version": 2, "collection": "contextual", "documents": {"\\ud800": {}}}',
    "an entry of another shape": b'{"version": 1, "collection": "contextual", "documents": {"a": 3}}',
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_named_with_a_cure(tmp_path, data):
    path = tmp_path / "manifest.json"
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"manifest.json is damaged .*Cure: delete it"):
        load_manifest(path)


def test_a_newer_storage_asks_for_an_upgrade(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_bytes(b'{"version": 99}')
    with pytest.raises(StorageError, match=r"storage version 99.*upgrade"):
        load_manifest(path)


def test_a_full_disk_harms_nothing(tmp_path, monkeypatch):
    path = tmp_path / "manifest.json"
    save_manifest(path, MANIFEST)

    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"No space left on device.*unharmed.*Cure: free space"):
        save_manifest(path, Manifest("contextual-2"))
    assert load_manifest(path) == MANIFEST
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]


def test_differences_name_the_setting_and_both_values():
    stored = {"parser": {"chunk_size": 400, "overlap": 80}, "context": {"generator": "headings@1"}}
    given = {"parser": {"chunk_size": 200, "overlap": 80}, "context": {"generator": "headings@1"}}
    assert differences(stored, given) == [Difference("parser.chunk_size", 400, 200)]
    assert str(differences(stored, given)[0]) == "parser.chunk_size: 400 → 200"
    assert differences({}, given) == []


def test_a_write_that_is_interrupted_between_parts_leaves_the_old_file_alone(tmp_path):
    def parts():
        yield b"new"
        raise KeyboardInterrupt

    path = tmp_path / "manifest.json"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, parts())
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("manifest.json", b"old")]


KILLED = """
import os, signal, sys
from pathlib import Path
from llama_index_contextual.index.state import write_atomically

def parts():
    yield b"new"
    os.kill(os.getpid(), signal.SIGKILL)

write_atomically(Path(sys.argv[1]), parts())
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no such signal")
@pytest.mark.kill
@pytest.mark.parametrize("name", ["manifest.json", "generation"])
def test_what_a_killed_write_leaves_goes_with_the_next_refresh(folder, opened, name):
    storage = folder / ".contextual"
    opened().refresh()
    (storage / f".{name}.mine").touch()  # no name that a write makes
    before = {one.name for one in storage.iterdir()}
    subprocess.run([sys.executable, "-c", KILLED, storage / name], check=False)  # noqa: S603  our own script
    assert len(list(storage.iterdir())) == len(before) + 1
    opened().refresh()
    assert {one.name for one in storage.iterdir()} == before
