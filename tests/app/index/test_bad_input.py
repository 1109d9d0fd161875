"""A file that cannot be indexed is named in a clear message, and the other files are indexed."""

import errno
import os
from pathlib import Path

import pytest
from llama_index.core import Document, MockEmbedding
from llama_index.core.readers.base import BaseReader
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.folder import sources
from llama_index_contextual.app.index import BackgroundRefresh, background
from llama_index_contextual.app.settings import local as onnx
from llama_index_contextual.app.settings.local import LocalEmbedding
from llama_index_contextual.utils.errors import (
    DocumentError,
    EmbeddingError,
    FingerprintError,
    MissingExtraError,
    StorageError,
)

BAD_FILES = {
    "binary named .md": (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "failed", "it is binary"),
    "50 MB": (b"x" * 50_000_000, "failed", "max_bytes=10,000,000"),
    "Latin-1 bytes": (
        "# Café\n\nÀ bientôt.\n".encode("latin-1"),
        "repaired",
        "read as Windows-1252",
    ),
    "a lone surrogate": (b"# A\n\nbroken \xed\xa0\x80 here\n", "repaired", "U+FFFD"),
}


@pytest.mark.parametrize(("data", "where", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_named_and_the_rest_is_indexed(opened, folder, data, where, message):
    (folder / "bad.md").write_bytes(data)
    report = opened().refresh()
    [problem] = getattr(report, where)
    assert problem.path == "bad.md"
    assert message in problem.reason
    assert {"faq.md", "guide.md"} <= set(report.added)
    assert ("bad.md" in report.added) == (where == "repaired")


def test_an_unreadable_file_keeps_what_the_index_had_of_it(opened, folder, monkeypatch):
    index = opened()
    index.refresh()
    real = sources.read_file

    def refuse(path, *args, **options):
        if str(path).endswith("faq.md"):
            raise DocumentError("it cannot be read (Permission denied).")
        return real(path, *args, **options)

    monkeypatch.setattr(sources, "read_file", refuse)
    report = index.refresh()
    assert [str(problem) for problem in report.failed] == [
        "faq.md: it cannot be read (Permission denied)."
    ]
    assert (report.deleted, report.skipped) == ([], 3)
    assert "cache is cold" in index.as_retriever(1).retrieve("Why is it slow?")[0].node.text


def test_status_and_verify_say_why_a_file_is_not_indexed(opened, folder, monkeypatch):
    index, locked = opened(), folder / "locked.md"
    (folder / "bad.md").write_bytes(b"# Bad\n\0\0\0")
    index.refresh()
    (folder / "guide.md").write_bytes(b"# Bad, too\n\0\0\0")
    index.refresh()
    locked.write_text("# Locked\n", "utf-8")
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path).name != "locked.md" and access(path, mode)
    )
    status = index.status()
    assert {
        problem.path: problem.reason.partition(",")[0] for problem in status.pending.failed
    } == {
        "bad.md": "it is binary (it contains NUL bytes)",
        "guide.md": "it is binary (it contains NUL bytes)",
        "locked.md": "it cannot be read (Permission denied).",
    }
    assert "to refresh  3 not indexed\nnot indexed bad.md: it is binary" in str(status)
    assert index.status(check=True).ok


@pytest.mark.parametrize("was_text", [False, True])
def test_an_index_is_not_behind_because_of_a_file_that_cannot_be_read(
    opened, folder, monkeypatch, was_text
):
    index, bad = opened(), folder / "bad.md"
    if was_text:
        bad.write_text("# Good\n", "utf-8")
    index.refresh()
    bad.write_bytes(b"# Bad\n\0\0\0")
    assert index.freshness(10).changed == 1
    index.refresh()
    assert str(index.freshness(10)) == ""
    status, change = index.status(), index.settings.database.state().change
    assert ([problem.path for problem in status.pending.failed], status.pending.work) == (
        ["bad.md"],
        "1 not indexed",
    )
    assert status.documents == 4 + was_text, "what the index had of it stays"
    monkeypatch.setattr(background, "_LOOK_SECONDS", 0)
    keeper = BackgroundRefresh(index, patience=10)
    assert not keeper.look()
    assert index.settings.database.state().change == change, "nothing was done"
    bad.write_text("# Mended\n", "utf-8")
    assert index.freshness(10).changed == 1
    assert index.refresh().failed == []
    assert not index.status().pending.failed


def test_a_refresh_of_a_part_forgets_no_failure_elsewhere(opened, folder):
    index = opened()
    (folder / "bad.md").write_bytes(b"# Bad\n\0\0\0")
    index.refresh()
    index.refresh([Document(text="By hand.", id_="by-hand")])
    assert str(index.freshness(10)) == ""
    (folder / "bad.md").unlink()
    index.refresh()
    assert not index.status().pending.failed


def test_what_could_not_be_read_for_a_moment_is_indexed_later(opened, folder, monkeypatch):
    index, note, real = opened(), folder / "on a drive.md", os.open
    index.refresh()
    note.write_text("# On a drive\n\nThe projector is in room 7.\n", "utf-8")
    away = True

    def opens(path, *args, **kwargs):
        if away and str(path).endswith(note.name):
            raise OSError(errno.EIO, "Input/output error")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", opens)
    assert [str(problem) for problem in index.refresh().failed] == [
        "on a drive.md: it cannot be read (Input/output error)."
    ]
    assert index.freshness(10).changed == 1, "its size and times will be the same"
    away = False
    assert index.refresh().added == ["on a drive.md"]
    note.write_text("# On a drive\n\nThe projector is in room 8.\n", "utf-8")
    away = True
    report = index.refresh()
    assert ([problem.path for problem in report.failed], report.deleted) == (["on a drive.md"], [])
    assert "room 7" in index.as_retriever(1).retrieve("Where is the projector?")[0].node.text, (
        "what it had stays"
    )
    away = False
    assert index.refresh().changed == ["on a drive.md"]
    assert "room 8" in index.as_retriever(1).retrieve("Where is the projector?")[0].node.text


class FirstByte(BaseReader):
    """A reader that turns any file into a sentence about its first byte."""

    def load_data(self, file):
        return [Document(text=f"It begins with byte {file.read_bytes()[0]}.")]


def test_a_file_that_counts_as_binary_is_indexed_once_its_suffix_has_a_reader(opened, folder):
    (folder / "scan.md").write_bytes(b"\x89PNG\0")
    (folder / "scan.pdf").write_bytes(b"%PDF\0")
    with opened() as index:
        assert [problem.path for problem in index.refresh().failed] == ["scan.md", "scan.pdf"]
    index = opened(readers={".md": FirstByte(), ".pdf": FirstByte()})
    report = index.refresh()
    assert (report.failed, sorted(report.added)) == ([], ["scan.md", "scan.pdf"])
    assert (
        "byte 137"
        in index.as_retriever(1).retrieve("Which scan begins with byte 137?")[0].node.text
    )
    assert str(index.freshness(10)) == ""


def test_an_estimate_leaves_out_what_cannot_be_read_and_names_it(opened, folder, caplog):
    index = opened()
    chunks = index.estimate().chunks
    (folder / "bad.md").write_bytes(b"# Bad\n\0\0\0")
    assert index.estimate().chunks == chunks
    assert "Left out: bad.md: it is binary" in caplog.text


@pytest.mark.parametrize("text", ["", "\n\n  \n", "---\n# nothing\n---\n"])
def test_a_file_without_text_is_indexed_as_nothing(opened, tmp_path, text):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/empty.md").write_text(text)
    index = opened(tmp_path / "empty")
    report = index.refresh()
    assert (report.added, report.chunks, report.failed) == (["empty.md"], 0, [])
    assert index.refresh().skipped == 1
    assert index.as_retriever().retrieve("anything") == []


def test_an_empty_folder_is_an_empty_index(opened, tmp_path):
    (tmp_path / "nothing").mkdir()
    index = opened(tmp_path / "nothing")
    assert str(index.refresh()).startswith("0 documents")
    assert index.as_retriever().retrieve("anything") == []


@pytest.mark.skipif(os.name == "nt", reason="there a backslash is in no name")
def test_a_name_with_a_backslash_poses_as_no_other_path(opened, folder):
    (folder / "people").mkdir()
    (folder / "people" / "boss.md").write_text("# Boss\n\nSays no to zebras.\n")
    (folder / "people\\boss.md").write_text("# Boss\n\nSays yes to zebras.\n")
    (folder / "a\\b").mkdir()
    (folder / "a\\b" / "c.md").write_text("Zebras, too.\n")
    with opened() as index:
        reason = "its name has a backslash. Rename it."
        failed = {problem.path: problem.reason for problem in index.refresh().failed}
        assert failed == {"people\\boss.md": reason, "a\\b": reason}
        [hit] = [
            hit
            for hit in index.as_retriever().retrieve("zebras boss")
            if "zebras" in hit.node.text.lower()
        ]
        assert hit.node.metadata["path"] == "people/boss.md"


def test_circular_links_do_not_loop(opened, folder):
    (folder / "memory/loop").symlink_to(folder)
    (folder / "self.md").symlink_to(folder / "self.md")
    report = opened().refresh()
    assert len(report.added) == 4
    assert [problem.path for problem in report.failed] == ["self.md"]


def test_a_document_with_a_lone_surrogate_is_cleaned(opened):
    index = opened()
    index.refresh(
        [Document(text="zebra \ud800 stripes", id_="z", metadata={"path": "z.md", "by": "\udfff"})]
    )
    node = index.as_retriever(1).retrieve("zebra stripes")[0].node
    assert node.text == "zebra \ufffd stripes"
    assert node.metadata["by"] == "\ufffd"


def test_a_metadata_key_may_be_any_text(opened):
    keys = [
        "",
        "$x",
        "#x",
        "#",
        "#document",
        "$and",
        "chroma:document",
        "a.b",
        " $x",
        "é",
        "a$#",
        'a"b',
        "a\\b",
    ]
    index = opened()
    report = index.refresh(
        [Document(id_=f"d{n}", text="zebra", metadata={key: n}) for n, key in enumerate(keys)]
    )
    assert (len(report.added), report.failed) == (len(keys), [])
    for number, key in enumerate(keys):
        [hit] = index.as_retriever(
            filters=MetadataFilters(filters=[MetadataFilter(key=key, value=number)])
        ).retrieve("zebra")
        assert hit.node.metadata[key] == number


def test_another_embedding_is_refused_before_anything_is_read(opened):
    opened().refresh()
    with pytest.raises(
        FingerprintError,
        match=r"made with the embedding LocalEmbedding.*not with MockEmbedding.*Use the former",
    ):
        opened(embed_model=MockEmbedding(8, model_name="other"))


def test_a_missing_extra_names_what_to_install(folder, monkeypatch):
    onnx.session.cache_clear()
    monkeypatch.setattr(onnx, "find_spec", lambda _name: None)
    with (
        ContextualIndex.open(folder, embed_model=LocalEmbedding()) as index,
        pytest.raises(
            (MissingExtraError, EmbeddingError), match=r"llama-index-contextual\[local\]"
        ),
    ):
        index.refresh()
    monkeypatch.undo()
    onnx.session.cache_clear()


def test_a_model_that_fails_half_way_loses_only_its_batch(opened, folder):
    class Failing(MockEmbedding):
        def _get_text_embeddings(self, texts):
            if any("Zebra" in text for text in texts):
                raise ConnectionError("server went away")
            return super()._get_text_embeddings(texts)

    index = opened(embed_model=Failing(8, model_name="m"))
    index.refresh()
    (folder / "zebra.md").write_text("# Zebra\n")
    with pytest.raises(EmbeddingError, match=r"ConnectionError: server went away.*Check the model"):
        index.refresh()
    assert len(index.as_retriever().retrieve("installer carrots release cache")) > 0
    (folder / "zebra.md").write_text("# Horse\n\nwith stripes\n")
    report = index.refresh()
    assert (report.added, report.skipped) == (["zebra.md"], 4)


def test_a_folder_that_is_gone_empties_no_index_and_is_not_made_again(opened, folder, tmp_path):
    index = opened(storage=tmp_path / "elsewhere")
    chunks = index.refresh().chunks
    folder.rename(tmp_path / "unmounted")
    with pytest.raises(StorageError, match=r"docs is no longer there\. Put it back"):
        index.refresh()
    assert not folder.exists()
    assert len(index.as_retriever(50).retrieve("cookie")) == chunks
