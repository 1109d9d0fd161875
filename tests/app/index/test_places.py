"""Indexes are in the user's data directory, one place for each folder.

What was paid for is cached for all folders.
"""

import json
import os
import shutil
import sqlite3
import tempfile
import time
import warnings
from contextlib import closing

import numpy as np
import pytest
from llama_index.core import Document, SimpleDirectoryReader
from storage import content_file, storage_of

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.folder.walk import default_include
from llama_index_contextual.app.index.content_cache import ContentCache
from llama_index_contextual.utils.errors import ContextualWarning, StorageError
from llama_index_contextual.utils.sqlite_file import checksum_of

pytestmark = pytest.mark.filterwarnings(
    "always::llama_index_contextual.utils.errors.ContextualWarning"
)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", ["index", "search", "status", "config"])
def test_a_folder_gets_nothing_from_its_index(folder, run, command):
    before = contents(folder)
    assert run("index", folder).returncode == 0
    arguments = {"search": ["carrots", "-f", folder]}.get(command, [folder])
    assert run(command, *arguments).returncode == 0
    assert contents(folder) == before
    assert (storage_of(folder) / "index.sqlite3").is_file()


def test_the_variable_chooses_the_place_of_all_indexes(folder, tmp_path, monkeypatch, run):
    chosen = tmp_path / "chosen"
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_STORAGE", str(chosen))
    assert run("index", folder).returncode == 0
    [index] = (chosen / "indexes").iterdir()
    assert {path.name for path in index.iterdir()} >= {"index.sqlite3", "settings.json", "cache"}
    assert (chosen / "content.sqlite3").is_file()
    assert chosen.stat().st_mode & 0o077 == 0, "texts of a user are not for others"


@pytest.mark.skipif(os.name == "nt", reason="rights are others there")
def test_what_is_kept_of_texts_is_for_the_user_alone(opened, folder, tmp_path, monkeypatch):
    """The first index may have a place of its own; others may be able to read the data folder."""
    for name in ("missing", "public"):
        data = tmp_path / name
        monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_STORAGE", str(data))
        if name == "public":
            data.mkdir(mode=0o755)
        with opened(storage=tmp_path / f"storage-{name}") as index:
            index.refresh()
        with opened() as index:
            index.refresh()
            log = content_file().with_name("content.sqlite3-wal")
            for path in (content_file(), log, data / "indexes", index.storage):
                if path.exists():
                    assert path.stat().st_mode & 0o077 == 0, path
        assert (name == "public") == bool(data.stat().st_mode & 0o077)


def test_a_folder_that_was_replaced_is_told_in_a_new_process(folder, opened, run, monkeypatch):
    """What the comparison imports takes longer than the time that an answer waits for it."""
    with opened() as index:
        index.refresh()
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "faq.md").write_text("# FAQ\n\nOther words now.\n")
    done = run("search", "carrots", "-f", folder)
    assert "4 files changed since; run index" in done.stderr

    def slow():
        time.sleep(0.3)
        return default_include()

    monkeypatch.setattr("llama_index_contextual.app.index.settings.default_include", slow)
    with opened() as index:
        assert index.freshness().changed == 4


_POISON = (
    ("a number", 3),
    ("text", "{"),
    ("a list", "[1]"),
    ("deep", "[" * 100_000),
    ("odd bytes", b"\0\1\2"),
    ("not numbers", np.full(384, np.nan, "<f4").tobytes()),
    ("zero", bytes(4 * 384)),
    ("endless", np.full(384, np.inf, "<f4").tobytes()),
    ("an object", '{"text": 5, "reason": [], "parts": 3, "metadata": []}'),
    ("parts", '{"parts": [["a"], 3], "metadata": {}}'),
    ("another object", '{"problem": 7}'),
)


@pytest.mark.parametrize("value", [pytest.param(value, id=name) for name, value in _POISON])
def test_a_value_that_the_package_did_not_write_counts_as_absent(opened, folder, fake_model, value):
    llm = {"context": "llm", "llm": fake_model.llm}
    (folder / "page.html").write_text("<html><body><h1>Zebras</h1><p>Sleep.</p></body></html>")
    with opened(**llm) as index:
        made = index.refresh()
    with closing(ContentCache(content_file())) as cache:
        for collection, key in cache.rows("SELECT collection, key FROM kept"):
            checksum = checksum_of(
                collection, key, value if isinstance(value, bytes) else str(value)
            )
            cache.insert([(collection, key, value, checksum)])
    shutil.rmtree(storage_of(folder))
    with opened(**llm) as index:
        report = index.refresh()
        assert (report.failed, report.chunks) == ([], made.chunks)
        assert report.context_sources == made.context_sources
        [hit] = index.as_retriever(1).retrieve("Zebras sleep")
        assert "Zebras" in hit.node.text
        assert hit.score > 0


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs another user")
def test_a_place_that_may_not_be_read_is_named(folder, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    for path in (tmp_path, *tmp_path.parents):
        if path.is_relative_to(tempfile.gettempdir()):
            path.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(StorageError, match="cannot be read"):
            ContextualIndex.open(folder, storage=closed / "index")
    finally:
        os.seteuid(0)


def test_an_index_inside_its_folder_is_ignored_and_a_line_says_so(folder, run):
    inside = folder / ".contextual"
    inside.mkdir()
    (inside / "index.sqlite3").write_bytes(b"SQLite format 3\0" + b"\0" * 5000)
    before = contents(folder)
    for command in (["index", folder], ["search", "carrots", "-f", folder], ["status", folder]):
        done = run(*command)
        assert done.returncode == 0
        assert f"Ignored {inside}: an index inside the folder" in done.stderr
    assert contents(folder) == before
    with pytest.warns(ContextualWarning, match="Ignored"):
        ContextualIndex.open(folder).close()


def test_an_index_inside_its_folder_is_opened_where_the_user_names_it(folder, opened):
    inside = folder / ".contextual"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with opened(storage=inside) as index:
            assert index.refresh().documents == 4
        with opened(storage=inside) as index:
            assert index.refresh().skipped == 4


@pytest.mark.parametrize("how", ["renamed", "copied", "restored"])
def test_a_folder_that_was_moved_is_neither_embedded_nor_paid_for_again(
    opened, folder, fake_model, how
):
    llm = {"context": "llm", "llm": fake_model.llm}
    parts = (f"## Part {part}\n\n" + f"Words of part {part}. " * 60 for part in range(4))
    (folder / "long.md").write_text("# Long\n\n" + "\n\n".join(parts))
    with opened(**llm) as index:
        made = index.refresh()
    fake_model.requests.clear()
    target = folder.with_name("moved")
    if how == "copied":
        shutil.copytree(folder, target)
    else:
        folder.rename(target)
    if how == "restored":
        target.rename(folder)
        target = folder
        shutil.rmtree(storage_of(folder))
    with opened(target, **llm) as index:
        report = index.refresh()
        assert (report.embedded, report.chunks) == (0, made.chunks)
        assert report.context_sources == made.context_sources
        assert fake_model.requests == []
    with (target / "long.md").open("a") as file:
        file.write("\n## New\n\n" + "New words here. " * 90)
    with opened(target, **llm) as index:
        edited = index.refresh()
    [request] = fake_model.requests
    asked = request.prompt.partition("<chunk")[2]
    assert 0 < edited.embedded < 4, "an edit after the move costs what is new"
    assert "New words" in asked
    assert "Words of part 0" not in asked


def test_conversions_are_kept_for_all_folders(opened, folder, monkeypatch):
    (folder / "page.html").write_text(
        "<html><body><h1>Zebras</h1><p>Sleep standing.</p></body></html>"
    )
    with opened() as index:
        index.refresh()
    monkeypatch.setattr(
        "llama_index_contextual.app.folder.convert._PROCESS.convert",
        lambda *_: pytest.fail("again"),
    )
    target = folder.rename(folder.with_name("moved"))
    with opened(target) as index:
        assert index.refresh().failed == []
        assert "page.html" in index.documents()


def test_a_context_is_not_that_of_the_same_path_in_another_folder(opened, tmp_path, fake_model):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        text = f"# {name}\n\nAbout {name}.\n\n## License\n\n" + "The same words in both. " * 40
        (tmp_path / name / "README.md").write_text(text)
        fake_model.requests.clear()
        with opened(tmp_path / name, context="llm", llm=fake_model.llm) as index:
            index.refresh()
        assert name in str(fake_model.requests)


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links on this system")
def test_a_folder_behind_a_link_is_one_folder(opened, folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(folder, target_is_directory=True)
    documents = SimpleDirectoryReader(link, recursive=True).load_data()
    uris = [
        Document(
            text=document.text, metadata={"file_path": f"file://{document.metadata['file_path']}"}
        )
        for document in documents
    ]
    with opened(link) as index:
        index.refresh(uris)
        index.refresh(documents)
        assert sorted(index.documents()) == sorted(index.files())
        report = index.refresh()
        assert report.added == []
        assert report.documents == 4
    with opened(folder) as index:
        assert index.refresh().skipped == 4, "the same index"


def test_the_cache_is_shown_and_pruned_and_every_index_goes_on(opened, folder, run):
    with opened() as index:
        chunks = index.refresh().chunks
    shown = json.loads(run("cache", "--json").stdout)
    assert shown["file"] == str(content_file())
    assert shown["kinds"]["vectors"]["entries"] == chunks
    assert f"vectors      {chunks}" in run("cache").stdout
    assert f"{chunks} values deleted" in run("cache", "--prune", "0").stderr
    assert json.loads(run("cache", "--json").stdout)["kinds"] == {}
    shutil.rmtree(storage_of(folder) / "cache")
    with opened() as index:
        assert index.status(check=True).ok
        assert "carrots" in index.as_retriever(1).retrieve("Cookie carrots")[0].node.text
        (folder / "guide.md").write_text((folder / "guide.md").read_text() + "\nOne more line.\n")
        assert index.refresh().embedded == 1, "the others are in the index"


def test_a_refresh_keeps_the_cache_within_its_size(opened, monkeypatch):
    monkeypatch.setattr(ContentCache.prune, "__defaults__", (1000,))
    with opened() as index:
        assert index.refresh().embedded > 0
        assert index.settings.content_cache.contents() == {}


def test_the_oldest_entries_go_first_and_contexts_last(tmp_path):
    with closing(ContentCache(tmp_path / "content.sqlite3")) as cache:
        cache.put("context", {"text": "x" * 1000}, "contexts")
        cache.put_rows("vectors:a", [(str(number), bytes(1500)) for number in range(4000)])
        before = cache.used_bytes()
        deleted = cache.prune(before // 2, shrink=True)
        assert cache.used_bytes() <= before // 2
        assert 1000 <= deleted < 4000
        assert cache.get("context", "contexts") is not None
        kept = {int(key) for key, _ in cache.get_rows("vectors:a", None)}
        assert min(kept) == deleted
        assert cache.path.stat().st_size <= before // 2 + 100_000


@pytest.mark.parametrize("backwards", [False, True])
def test_an_old_copy_of_the_database_is_noticed_whatever_the_clock_says(
    opened, folder, monkeypatch, backwards
):
    with opened() as index:
        index.refresh()
        before = set(index._reader.ask(lambda view: view.snapshot.rows()).tolist())
    database = storage_of(folder) / "index.sqlite3"
    copy = database.read_bytes()
    (folder / "new.md").write_text("# New\n\nWalruses whistle at night.\n")
    with opened() as index:
        index.refresh()
        lost = set(index._reader.ask(lambda view: view.snapshot.rows()).tolist()) - before
    database.write_bytes(copy)
    if backwards:
        monkeypatch.setattr("time.time_ns", lambda: 1)
        monkeypatch.setattr("time.time", lambda: 0.0)
    with opened() as index:
        problems = index.status(check=True).problems
        assert any("older than the last refresh" in problem for problem in problems)
    (folder / "new.md").write_text("# New\n\nOtters juggle small stones.\n")
    with opened() as index:
        index.refresh()
        rows = set(index._reader.ask(lambda view: view.snapshot.rows()).tolist())
        assert not lost & rows
        assert "Otters" in index.as_retriever(1).retrieve("Who juggles stones?")[0].node.text
        assert index.status(check=True).ok


def test_the_settings_beside_an_index_are_data(opened, folder):
    with opened() as index:
        index.refresh()
    (storage_of(folder) / "index.sqlite3").unlink()
    for text in (
        "[" * 100_000,
        "[]",
        "{",
        '{"folders": 3}',
        '{"choices": {"embed_model": "ollama:x@http://127.0.0.1:1"}}',
    ):
        (storage_of(folder) / "settings.json").write_text(text)
        with opened(embed_model=None) as index:
            assert index.settings.configuration["embed_model"] == "local"


def test_a_database_says_in_its_schema_that_vectors_are_part_of_it(opened, folder):
    with opened() as index:
        chunks = index.refresh().chunks
    with closing(sqlite3.connect(storage_of(folder) / "index.sqlite3")) as database:
        assert database.execute("SELECT count(*) FROM vectors").fetchone() == (chunks,)
