"""The state of an index is read as it was written.

An invalid state is named, and the next refresh repairs it.
"""

import contextlib
import json
import sqlite3
import subprocess
import sys

import pytest
from llama_index.core import Document
from state_table import change_layout, change_state, state_in
from storage import storage_of

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.folder import sources
from llama_index_contextual.app.index import settings, status
from llama_index_contextual.node_parser.parser import HeadingAwareMarkdownNodeParser
from llama_index_contextual.utils.errors import ContextualError, DamagedError, StorageError


def test_the_state_is_read_as_written_and_a_refresh_without_work_writes_nothing(
    opened, folder, monkeypatch
):
    monkeypatch.setattr(
        sources, "_SETTLED", 0
    )  # else the times of files are noted once two seconds have passed
    index = opened()
    assert index.settings.database.state().settings == {}
    index.refresh()
    state, written = index.settings.database.state(), state_in(storage_of(folder))
    assert (state.settings, state.folders) == (
        index.settings.fingerprint,
        {"": str(folder)},
    )
    assert state.identity == written["identity"]
    assert opened().refresh().skipped == 4
    assert state_in(storage_of(folder)) == written


DAMAGED = {
    "another shape": {"settings": []},
    "an unknown field": {"x": 1},
    "text for a number": {"change": "x"},
    "a list for choices": {"choices": []},
    "no Unicode": {"identity": "\ud800"},
}


@pytest.mark.parametrize("values", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_named_with_a_command_that_repairs_it(opened, folder, values):
    opened().refresh()
    change_state(storage_of(folder), **values)
    with opened() as index:
        with pytest.raises(
            StorageError,
            match=r"(?s)index\.sqlite3 is damaged .*Run: llama-index-contextual index",
        ):
            index.status()
        index.refresh()
        assert index.status(check=True).ok


def test_documents_that_are_passed_to_a_damaged_index_are_indexed(opened, folder):
    opened(embed_model="none").refresh()
    change_state(storage_of(folder), settings=[])
    index = opened(embed_model="none")
    assert index.refresh([Document(text="Zebras sleep.", id_="zebras")]).added == ["zebras"]


def test_a_deletion_from_a_damaged_index_is_refused_and_deletes_nothing(opened, folder):
    opened(embed_model="none").refresh()
    database = storage_of(folder) / "index.sqlite3"
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE chunks SET text = 'changed' WHERE text LIKE '%Cookie%'")
    index = opened(embed_model="none")
    with pytest.raises(StorageError, match=r"is damaged .*Run: llama-index-contextual index"):
        index.delete("guide.md")
    assert "guide.md" in index.documents()


ODD = {
    "a number for folders": {"folders": 3},
    "a number for a path": {"folders": {"": {"path": 3}}},
    "a folder without a path": {"folders": {"": {}}},
    "a list for the model": {"settings": {"embedding.model": ["x"]}},
    "no model": {"settings": {"=model": "x"}},
    "a list for a size": {"choices": {"chunks.chunk_size": ["x"]}},
    "a list for several folders": {"folders": {"notes": ["x"]}},
}


@pytest.mark.parametrize("values", ODD.values(), ids=ODD)
def test_any_invalid_state_raises_an_error_of_this_package(opened, folder, values):
    opened().refresh()
    change_state(storage_of(folder), **values)
    for use in (
        lambda index: index.freshness(5.0),
        lambda index: index.settings.differences(index.settings.database.state()),
        lambda index: index.as_retriever().retrieve("installer"),
        lambda index: index.refresh(),
    ):
        with (
            contextlib.suppress(ContextualError),
            opened() as index,
        ):  # any other one fails the test
            use(index)


def test_a_newer_layout_asks_for_an_upgrade_and_is_not_written(opened, folder):
    opened().refresh()
    change_layout(storage_of(folder) / "index.sqlite3", 99)
    before = state_in(storage_of(folder))
    with pytest.raises(
        StorageError, match=r"layout 99, but this package reads up to \d+\. Upgrade"
    ):
        opened().refresh()
    assert state_in(storage_of(folder)) == before


def test_an_index_of_another_layout_is_made_anew_and_nothing_is_embedded_twice(opened, folder, run):
    with opened(config={"chunks.chunk_size": 90}) as index:
        index.refresh()
    change_layout(storage_of(folder) / "index.sqlite3", 0)
    asked = run("search", "carrots", "--folder", folder)
    assert "is damaged (its layout is 0 instead of" in asked.stderr
    done = run("index", folder)
    assert "4 chunks: 4 added; 0 embedded" in done.stdout
    assert "its layout is 0 instead of" in done.stderr
    assert "set aside as index.sqlite3.damaged" in done.stderr
    assert state_in(storage_of(folder))["choices"]["chunks.chunk_size"] == 90, (
        "what was chosen is kept"
    )
    with opened() as index:
        assert index.refresh().skipped == 4


@pytest.mark.parametrize(
    ("layout", "problem"),
    [(9, "was made by an older version of this package"), (0, "unexpected index 'by_text'")],
)
def test_only_a_file_with_a_layout_is_said_to_be_of_an_older_version(
    opened, folder, layout, problem
):
    opened().refresh()
    file = storage_of(folder) / "index.sqlite3"
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP INDEX chunks_of_document")
        connection.execute("CREATE INDEX by_text ON chunks (text)")
    change_layout(file, layout)
    with opened() as index, pytest.raises(DamagedError, match=problem):
        index.as_retriever().retrieve("carrots")
    with opened() as index:
        assert index.refresh().embedded == 0
        assert index.as_retriever().retrieve("carrots")


def loaded_by(*arguments):
    """The modules of LlamaIndex that a command imports, and what it prints."""
    script = (
        "import sys; from llama_index_contextual.app.cli import app; app(sys.argv[1:], "
        "standalone_mode=False); "
        "print([name for name in sys.modules if name.startswith('llama_index.core')], "
        "file=sys.stderr)"
    )
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    return done.stderr.splitlines()[-1], json.loads(done.stdout)


@pytest.mark.process
def test_a_status_needs_no_llama_index_and_is_that_of_python(folder, run):
    run("index", folder, "--chunk-size", 90)
    (folder / "faq.md").write_text("# FAQ\n\nIs it slow? No.\n", "utf-8")
    modules, shown = loaded_by("status", folder, "--json")
    assert modules == "[]", "LlamaIndex takes more than a second"
    with ContextualIndex.open(folder) as index:
        assert shown == json.loads(json.dumps(index.status().to_dict()))
    assert (shown["pending"]["changed"], shown["pending"]["outdated"], shown["differences"]) == (
        ["faq.md"],
        [],
        [],
    )


OTHER = {
    "a size": "[chunks]\nchunk_size = 60\n",
    "a kind of context": 'context = "off"\n',
    "a description": '[descriptions]\n"memory/" = "A diary"\n',
    "other files": '[files]\nexclude = ["memory/"]\n',
}


@pytest.mark.parametrize("text", OTHER.values(), ids=OTHER)
def test_a_status_names_the_settings_that_are_others_now(folder, run, text):
    run("index", folder)
    (folder / "contextual.toml").write_text(text, "utf-8")
    with ContextualIndex.open(folder) as index:
        status, report = index.status(), index.refresh()
        assert status.differences
        assert (status.pending.outdated, status.pending.deleted) == (
            report.outdated,
            report.deleted,
        )
        assert report.outdated or report.deleted
        assert index.status().differences == []


def test_a_status_beside_another_version_compares_what_the_settings_make(folder, run, monkeypatch):
    run("index", folder)
    before = HeadingAwareMarkdownNodeParser.revision
    monkeypatch.setattr(settings, "__version__", "99")
    monkeypatch.setattr(HeadingAwareMarkdownNodeParser, "revision", 99)
    with ContextualIndex.open(folder) as index:
        assert index.status().differences == [f"parser.revision: {before} → 99"]
        assert len(index.status().pending.outdated) == 4


def test_a_status_names_the_languages_of_all_documents(opened, folder):
    (folder / "faq.md").write_text(
        "# Fragen\n\nWarum ist es so langsam? Weil der Zwischenspeicher noch leer ist.\n", "utf-8"
    )
    index = opened(embed_model="none")
    index.refresh()
    assert set(index.status().languages) == {"de", "en"}


def test_a_file_that_could_never_be_indexed_is_not_missed_when_it_is_gone(opened, folder):
    (folder / "bad.md").write_bytes(b"# Bad\n\0\0\0")
    index = opened(embed_model="none")
    assert index.refresh().documents == index.status().documents == 4
    (folder / "bad.md").unlink()
    assert index.status().pending.deleted == []
    report = index.refresh()
    assert (report.deleted, report.documents) == ([], 4)
    assert "bad.md" not in index.settings.database.documents()


def test_a_report_counts_the_documents_that_are_left(opened, folder):
    index = opened(embed_model="none")
    index.refresh()
    (folder / "faq.md").unlink()
    (folder / "new.md").write_text("# New\n\nA zebra.\n")
    (folder / "more.md").write_text("# More\n\nA lion.\n")
    assert index.refresh().documents == len(index.documents()) == 5


def test_the_languages_are_those_of_a_bounded_sample(opened, monkeypatch):
    sizes = []
    monkeypatch.setattr(status, "_SAMPLE_SIZE", 3)
    monkeypatch.setattr(status, "shares_of_languages", lambda texts: sizes.append([*texts]) or {})
    index = opened(embed_model="none")
    assert index.refresh().chunks == 4
    index.status()
    assert [len(texts) for texts in sizes] == [2]
