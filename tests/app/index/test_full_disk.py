"""A disk that is really full, and one that is really read-only.

A tiny tmpfs, where this machine lets us mount one.
"""

import shutil
import subprocess

import pytest
from llama_index.core import MockEmbedding

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.utils.errors import StorageError


@pytest.fixture
def tiny(tmp_path):
    """Return a function that mounts three megabytes, or mounts them again with other options.

    The test is skipped where mounting is not allowed.
    """
    mount, where = shutil.which("mount"), tmp_path / "tiny"
    where.mkdir()
    if mount is None:
        pytest.skip("there is no mount command here")

    def remount(options, *, first=False):
        kind = ["-t", "tmpfs"] if first else []
        options = options if first else f"remount,{options}"
        done = subprocess.run(  # noqa: S603
            [mount, *kind, "-o", options, "tmpfs", str(where)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
        return where

    remount("size=3m", first=True)
    yield remount
    # Lazily: after the refusals a file may be held open until it is collected.
    subprocess.run([shutil.which("umount"), "--lazy", str(where)], check=True)  # noqa: S603


@pytest.mark.process
def test_a_full_disk_is_named_and_free_space_is_all_that_is_needed(tiny, tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(300):
        text = "\n\n".join(
            f"## Part {part}\n\n" + f"Word{number * part} stands in {number}. " * 30
            for part in range(4)
        )
        (folder / f"{number}.md").write_text(f"# Page {number}\n\n{text}\n", "utf-8")
    settings = {"storage": tiny("size=3m") / "index", "embed_model": MockEmbedding(384)}
    for _ in range(2):  # the second one finds the disk full
        with (
            pytest.raises(StorageError, match=r"Free space"),
            ContextualIndex.open(folder, **settings) as index,
        ):
            index.refresh()
    tiny("size=200m")
    with ContextualIndex.open(folder, **settings) as index:
        index.refresh()
        verification = index.status(check=True)
    assert verification.ok, str(verification)
    assert verification.documents == 300


def test_read_only_storage_is_named(tiny, tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "page.md").write_text("# Page\n\nSome words.\n", "utf-8")
    settings = {"storage": tiny("size=60m") / "index", "embed_model": MockEmbedding(8)}
    with ContextualIndex.open(folder, **settings) as index:
        index.refresh()
    (folder / "page.md").write_text("# Page\n\nOther words.\n", "utf-8")
    tiny("ro")
    with (
        pytest.raises(StorageError, match="writable"),
        ContextualIndex.open(folder, **settings) as index,
    ):
        index.refresh()
    tiny("rw")
    with ContextualIndex.open(folder, **settings) as index:
        assert index.refresh().changed == ["page.md"]
        assert index.status(check=True).ok


def test_questions_need_no_disk_space(tiny, tmp_path):
    folder, place = tmp_path / "docs", tiny("size=3m")
    folder.mkdir()
    (folder / "page.md").write_text("# Page\n\nSome words.\n", "utf-8")
    settings = {"storage": place / "index", "embed_model": MockEmbedding(8)}
    with ContextualIndex.open(folder, **settings) as index:
        index.refresh()
    with pytest.raises(OSError, match="No space left"):
        (place / "rest").write_bytes(bytes(4_000_000))
    before = {path: path.read_bytes() for path in (place / "index").rglob("*") if path.is_file()}
    with ContextualIndex.open(folder, **settings) as index:
        assert [hit.node.text for hit in index.as_retriever().retrieve("words")] == [
            "# Page\n\nSome words."
        ]
        assert index.status(check=True).ok
    assert before == {
        path: path.read_bytes() for path in (place / "index").rglob("*") if path.is_file()
    }
    (folder / "page.md").write_text("# Page\n\nOther words.\n", "utf-8")
    with (
        pytest.raises(StorageError, match="Free space"),
        ContextualIndex.open(folder, **settings) as index,
    ):
        index.refresh()
