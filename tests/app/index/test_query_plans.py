"""SQLite answers questions and refreshes by its indexes, so that no time is spent on all chunks."""

from __future__ import annotations

import pytest

from llama_index_contextual.app.index.database import Snapshot, Transaction


@pytest.fixture
def plans(opened, folder, monkeypatch):
    """Return a function that returns the steps of all statements of some work on an index."""
    statements = set()
    fetch = Snapshot.fetch
    run = Transaction._run

    def recorded_fetch(snapshot, query, values=()):
        statements.add(query)
        return fetch(snapshot, query, values)

    def recorded_run(transaction, statement, rows):
        statements.add(statement)
        return run(transaction, statement, rows)

    index = opened()
    index.refresh()
    index.settings.database.check()  # the next refresh would read every row for it
    monkeypatch.setattr(Snapshot, "fetch", recorded_fetch)
    monkeypatch.setattr(Transaction, "_run", recorded_run)

    def steps_of(work):
        statements.clear()
        work(index)
        texts = sorted(statements)
        with index.settings.database.reading() as snapshot:
            return [
                step
                for text in texts
                for *_, step in fetch(
                    snapshot, f"EXPLAIN QUERY PLAN {text}", [None] * text.count("?")
                )
            ]

    return steps_of


def scans_of(table, steps):
    return [step for step in steps if step.startswith(f"SCAN {table}")]


def test_a_question_scans_no_table_of_chunks_or_documents(plans):
    steps = plans(lambda index: index.as_retriever(3).retrieve("Which vegetable does Cookie like?"))
    assert any(step.startswith("SEARCH chunks USING INTEGER PRIMARY KEY") for step in steps)
    assert scans_of("chunks", steps) == scans_of("vectors", steps) == []
    assert scans_of("documents", steps) == []


@pytest.mark.parametrize("change", ["nothing", "a changed page", "a deleted page"])
def test_a_refresh_reads_the_rows_of_no_unchanged_chunk(plans, folder, change):
    if change == "a changed page":
        (folder / "faq.md").write_text("# FAQ\n\nWhy is it slow? Because zebras sleep.\n", "utf-8")
    if change == "a deleted page":
        (folder / "faq.md").unlink()
    steps = plans(lambda index: index.refresh())
    assert len(steps) > 1
    scans = [*scans_of("chunks", steps), *scans_of("vectors", steps)]
    assert [step for step in scans if "USING COVERING INDEX" not in step] == []
