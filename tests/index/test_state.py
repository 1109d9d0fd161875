"""What is true of a whole index comes back as it was; nonsense is named, and the next refresh mends it."""

import contextlib

import pytest
from state_table import change_layout, change_state, state_in

from llama_index_contextual.app.folder import sources
from llama_index_contextual.app.settings.loading import load_configuration
from llama_index_contextual.errors import ContextualError, StorageError


def test_it_is_read_as_it_was_written_and_a_refresh_without_work_writes_nothing(opened, folder, monkeypatch):
    monkeypatch.setattr(sources, "_SETTLED", 0)  # else the times of files are noted once two seconds have passed
    index = opened()
    assert index.settings.state().settings == {}
    index.refresh()
    state, written = index.settings.state(), state_in(folder / ".contextual")
    assert (state.settings, state.folders) == (index.settings.fingerprint, {"": {"path": str(folder)}})
    assert (state.complete, state.identity) == (True, written["identity"])
    assert opened().refresh().skipped == 4
    assert state_in(folder / ".contextual") == written


DAMAGED = {
    "another shape": {"settings": []},
    "an unknown field": {"x": 1},
    "text for a number": {"change": "x"},
    "a list for choices": {"choices": []},
    "no Unicode": {"identity": "\ud800"},
}


@pytest.mark.parametrize("values", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_named_with_a_cure_that_mends_it(opened, folder, values):
    opened().refresh()
    change_state(folder / ".contextual", **values)
    with opened() as index:
        with pytest.raises(StorageError, match=r"index\.sqlite3 is damaged .*Cure: llama-index-contextual index"):
            index.status()
        index.refresh()
        assert index.status(check=True).ok


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
def test_whatever_it_says_an_error_is_of_this_package(opened, folder, values):
    opened().refresh()
    change_state(folder / ".contextual", **values)
    for use in (
        lambda index: index.freshness(5.0),
        lambda index: index.settings.differences(index.settings.state()),
        lambda index: index.as_retriever().retrieve("installer"),
        lambda index: index.refresh(),
    ):
        with contextlib.suppress(ContextualError), opened() as index:  # any other one fails the test
            use(index)


def test_a_newer_layout_asks_for_an_upgrade_and_is_not_written(opened, folder):
    opened().refresh()
    change_layout(folder / ".contextual" / "index.sqlite3", 99)
    before = state_in(folder / ".contextual")
    with pytest.raises(StorageError, match=r"layout 99, this package reads up to \d+\. Cure: upgrade"):
        opened().refresh()
    assert state_in(folder / ".contextual") == before


def test_an_index_of_another_layout_is_made_anew_and_nothing_is_embedded_twice(opened, folder, run):
    with opened(config=load_configuration(folder, options={"chunks.chunk_size": 90})) as index:
        index.refresh()
    change_layout(folder / ".contextual" / "index.sqlite3", 0)
    asked = run("search", "carrots", "--folder", folder)
    assert "is damaged (its layout is 0 instead of" in asked.stderr
    done = run("index", folder)
    assert "5 chunks: 4 added; 0 embedded" in done.stdout
    assert "its layout is 0 instead of" in done.stderr
    assert "set aside as index.sqlite3.damaged" in done.stderr
    assert state_in(folder / ".contextual")["choices"]["chunks.chunk_size"] == 90, "what was chosen is kept"
    with opened() as index:
        assert index.refresh().skipped == 4


def test_paid_values_of_another_layout_are_named_and_made_anew(opened, folder, run):
    with opened() as index:
        index.refresh()
    change_layout(folder / ".contextual" / "paid.sqlite3", 2)
    done = run("index", folder)
    assert "paid.sqlite3 was damaged, and is set aside as paid.sqlite3.damaged" in done.stderr
    with opened() as index:
        assert index.status(check=True).ok
