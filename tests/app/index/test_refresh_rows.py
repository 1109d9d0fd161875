"""Which documents a refresh reports and which rows it updates, without an embedding."""

import pytest
from llama_index.core import Document

from llama_index_contextual.app.folder import sources
from llama_index_contextual.app.index.database import Snapshot


def test_each_chunk_gets_its_context(index):
    contexts = {node.metadata["path"]: node.metadata["context"] for node in index.nodes()}
    assert contexts["faq.md"] == "Document: faq.md > FAQ"
    assert len(contexts) == 4


def test_only_objects_made_with_other_settings_have_to_be_passed_again(index, opened):
    index.refresh([Document(text="Zebras sleep.", id_="zebras")])
    assert index.refresh().failed == []
    (index.folder / "faq.md").unlink()
    other = opened(embed_model="none", context="off")
    [problem] = other.refresh().failed
    assert problem.path == "zebras"
    assert problem.reason.endswith("Pass the document again.")
    assert other.refresh([Document(text="Zebras sleep.", id_="zebras")]).failed == []
    assert other.refresh().failed == []


def test_documents_that_failed_are_reported_in_the_order_of_their_paths(index, opened):
    index.refresh([Document(text="Zebras sleep.", id_="b-zebras")])
    for name in ("a.md", "c.md"):
        (index.folder / name).write_bytes(b"# Bad\n\0\0\0")
    report = opened(embed_model="none", context="off").refresh()
    assert [problem.path for problem in report.failed] == ["a.md", "b-zebras", "c.md"]


def test_a_touched_file_gets_its_new_times_and_keeps_its_chunks(index, monkeypatch):
    monkeypatch.setattr(sources, "_SETTLED", -(10**12))  # as if the files had long been written
    index.refresh()
    before = index.documents()["faq.md"]
    (index.folder / "faq.md").touch()
    report = index.refresh()
    after = index.documents()["faq.md"]
    assert (report.skipped, report.work) == (4, "")
    assert after.stamp != before.stamp
    assert after._replace(stamp="") == before._replace(stamp="")


def test_a_file_that_can_be_read_again_has_no_failure(index):
    file = index.folder / "faq.md"
    text = file.read_text()
    file.write_bytes(b"# Bad\n\0\0\0")
    [problem] = index.refresh().failed
    row = index.documents()["faq.md"]
    assert (problem.path, problem.reason) == ("faq.md", row.failed)
    assert row.nodes == 1
    file.write_text(text)
    assert index.refresh().failed == []
    assert index.documents()["faq.md"].failed == ""


def test_a_refresh_without_changes_does_not_write_the_remembered_settings(index, monkeypatch):
    index.refresh()
    written = []
    monkeypatch.setattr(
        type(index.settings.layout), "remember_settings", lambda *_: written.append(1)
    )
    index.refresh()
    assert written == []


def test_the_settings_of_an_index_are_remembered_beside_it(opened):
    index = opened(embed_model="none", config={"chunks.chunk_size": 100})
    index.refresh()
    remembered = index.settings.layout.remembered_settings()
    state = index.settings.database.state()
    assert remembered["choices"]["chunks.chunk_size"] == 100
    assert remembered["folders"] == {"": str(index.folder)}
    assert (remembered["identity"], remembered["change"]) == (state.identity, state.change)


@pytest.mark.usefixtures("index")
def test_contexts_of_the_same_generator_need_no_confirmation(opened, monkeypatch):
    monkeypatch.setattr(Snapshot, "context_sources", lambda _: {"llm:model": 5})
    other = opened(embed_model="none", config={"chunks.chunk_size": 100})
    assert len(other.refresh().outdated) == 4
