"""A refresh shows how far it is in a terminal, and nothing where nobody asks."""

import sys

import pytest

from llama_index_contextual.app import ContextualIndex


@pytest.fixture
def folder(tmp_path):
    for number in range(40):
        (tmp_path / f"page{number}.md").write_text(
            f"# Page {number}\n\nTea of day {number} was green.\n", "utf-8"
        )
    return tmp_path


def test_in_a_terminal_a_bar_counts_documents(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with ContextualIndex.open(folder, embed_model="none") as index:
        index.refresh(show_progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Indexing" in err
    assert "40/40" in err


def test_nothing_is_shown_where_nobody_asks_or_nothing_is_to_do(folder, capsys):
    with ContextualIndex.open(folder, embed_model="none") as index:
        index.refresh()
        index.refresh(show_progress=True)
    assert capsys.readouterr().err == ""
