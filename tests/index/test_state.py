"""What is true of a whole index comes back as it was; nonsense is named, and the next refresh mends it."""

import sqlite3
from contextlib import closing

import pytest
from state_table import change_state, state_in

from llama_index_contextual.app.folder import sources
from llama_index_contextual.app.index.pipeline import differences
from llama_index_contextual.errors import StorageError


def test_it_is_read_as_it_was_written_and_a_refresh_without_work_writes_nothing(opened, folder, monkeypatch):
    monkeypatch.setattr(sources, "_SETTLED", 0)  # else the times of files are noted once two seconds have passed
    index = opened()
    assert index.settings.state().settings == {}
    index.refresh()
    state, written = index.settings.state(), state_in(folder / ".contextual")
    assert (state.settings, state.folder) == (index.settings.fingerprint, str(folder))
    assert (state.complete, state.layout, state.identity) == (True, 3, written["identity"])
    assert opened().refresh().skipped == 4
    assert state_in(folder / ".contextual") == written


DAMAGED = {
    "another shape": {"settings": []},
    "an unknown field": {"x": 1},
    "text for a number": {"change": "x"},
    "a list for choices": {"choices": []},
    "no model": {"settings": {"embedding": {"name": "x"}}},
    "no Unicode": {"folder": "\ud800"},
}


@pytest.mark.parametrize("values", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_named_with_a_cure_that_mends_it(opened, folder, values):
    opened().refresh()
    change_state(folder / ".contextual", **values)
    with opened() as index:
        with pytest.raises(StorageError, match=r"index\.sqlite3 is damaged .*Cure: llama-index-contextual index"):
            index.status()
        index.refresh()
        assert index.verify().ok


def test_a_newer_layout_asks_for_an_upgrade_and_is_not_written(opened, folder):
    opened().refresh()
    change_state(folder / ".contextual", layout=99)
    before = state_in(folder / ".contextual")
    with pytest.raises(StorageError, match=r"layout 99, this package reads up to 3\. Cure: upgrade"):
        opened().refresh()
    assert state_in(folder / ".contextual") == before


def test_who_has_an_index_open_notices_that_its_layout_is_newer_by_now(opened, folder):
    index = opened()
    index.refresh()
    retriever = index.as_retriever(1)
    assert retriever.retrieve("installer")
    change_state(folder / ".contextual", layout=99)
    for use in (lambda: retriever.retrieve("installer"), index.status, index.refresh):
        with pytest.raises(StorageError, match=r"layout 99, .*Cure: upgrade .*, then start this process again"):
            use()


def test_an_index_of_an_earlier_layout_is_made_anew_and_nothing_is_embedded_twice(opened, folder, run):
    opened().refresh()
    storage = folder / ".contextual"
    with closing(sqlite3.connect(storage / "index.sqlite3")) as database:
        vectors = database.execute("SELECT hash, vector FROM vectors").fetchall()
    model = opened().settings.fingerprint["embedding"]["model"]
    for file in storage.glob("index.sqlite3*"):
        file.unlink()
    with closing(sqlite3.connect(storage / "cache.sqlite3")) as former, former:
        former.execute(
            "CREATE TABLE vectors (model TEXT, hash TEXT, vector BLOB, PRIMARY KEY (model, hash)) WITHOUT ROWID"
        )
        former.executemany("INSERT INTO vectors VALUES (?, ?, ?)", [(model, *row) for row in vectors])
        former.execute("CREATE TABLE kv (collection TEXT, key TEXT, value TEXT)")
        former.execute("""INSERT INTO kv VALUES ('contexts', 'key', '{"text": "paid for"}')""")
    (storage / "manifest.json").write_text("{}")
    asked = run("search", "carrots", "--folder", folder)
    assert "is of an earlier layout. Cure: llama-index-contextual index" in asked.stderr
    with opened() as index:
        report = index.refresh()
        assert (report.embedded, report.reused) == (0, report.chunks)
        with index.settings.database.reading() as snapshot:
            assert snapshot.values("contexts", None) == {"key": {"text": "paid for"}}
    assert not [path.name for path in storage.iterdir() if path.name in ("manifest.json", "cache.sqlite3")]


def test_a_database_of_an_earlier_layout_is_made_anew_and_nothing_is_embedded_twice(opened, folder, run):
    opened().refresh()
    change_state(folder / ".contextual", layout=1, choices={"chunks": {"chunk_size": 90}}, unremembered=[])
    asked = run("search", "carrots", "--folder", folder)
    assert "is of an earlier layout. Cure: llama-index-contextual index" in asked.stderr
    done = run("index", folder)
    assert "4 chunks, 0 embedded, 4 reused" in done.stdout + done.stderr
    assert "of an earlier layout, and is set aside" in done.stderr
    assert "The settings that made it are lost. Cure: give those again" in done.stderr
    assert state_in(folder / ".contextual")["layout"] == 3
    with opened() as index:
        assert index.refresh().skipped == 4


def test_differences_name_the_setting_and_both_values():
    stored = {"parser": {"chunk_size": 400, "overlap": 80}, "context": {"generator": "headings@1"}}
    given = {"parser": {"chunk_size": 200, "overlap": 80}, "context": {"generator": "headings@1"}}
    assert differences(stored, given) == ["parser.chunk_size: 400 → 200"]
    assert differences({}, given) == []
