"""The tests that every store has to pass: whoever writes another one adds it to STORES."""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from llama_index.core import Document
from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from llama_index_contextual.index.writer import Writer

from llama_index_contextual.errors import ContextualWarning, FingerprintError, SettingError, StorageError
from llama_index_contextual.local_embedding import LocalEmbedding

ROOT = Path(__file__).resolve().parents[2]
STORES = [
    "chroma",
    pytest.param("chroma server", marks=pytest.mark.server),
    pytest.param("qdrant server", marks=pytest.mark.server),
]
TAGGED = "---\ntags: [travel, Plans]\n---\n# Journey\n\nWe go to Lisbon by train. The getUserName function stays.\n"


@pytest.fixture(params=STORES)
def store(request):
    """What ``vector_store=`` is given."""
    if request.param == "chroma server":
        return f"chroma:{request.getfixturevalue('chroma_server')}"
    if request.param == "qdrant server":
        return f"qdrant:{request.getfixturevalue('qdrant_server')}"
    return request.param


@pytest.fixture
def elsewhere(request, store):
    """Where an index in Chroma's folder may move to."""
    return store if store != "chroma" else f"qdrant:{request.getfixturevalue('qdrant_server')}"


@pytest.fixture
def index(opened, folder, store):
    """An index over the folder and one tagged note."""
    (folder / "journey.md").write_text(TAGGED, "utf-8")
    made = opened(vector_store=store)
    made.refresh()
    return made


def paths(hits):
    return [hit.node.metadata["path"] for hit in hits]


def texts(index, question="Cookie", **settings):
    return {hit.node.text for hit in index.as_retriever(50, **settings).retrieve(question)}


def only(key, value, operator=FilterOperator.EQ):
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


# A refresh


def test_files_that_are_added_changed_moved_and_deleted(index, folder):
    (folder / "faq.md").write_text("# FAQ\n\nWhy is it slow? Because of the network.\n", "utf-8")
    (folder / "new.md").write_text("# New\n\nParsnips are new here.\n", "utf-8")
    (folder / "memory/2026-04-09.md").rename(folder / "memory/2026-04-10.md")
    (folder / "guide.md").unlink()
    report = index.refresh()
    assert (report.added, report.changed, report.deleted) == (["new.md"], ["faq.md"], ["guide.md"])
    assert report.moved == [("memory/2026-04-09.md", "memory/2026-04-10.md")]
    assert index.verify().ok, str(index.verify())
    now = texts(index, "parsnips network installer release")
    assert any("Parsnips" in text for text in now)
    assert any("network" in text for text in now)
    assert not any("cold" in text or "installer" in text for text in now)
    again = index.refresh()
    assert (again.embedded, again.skipped, again.changed) == (0, 5, [])


def test_an_edit_above_a_chunk_moves_its_lines_and_embeds_nothing_of_it(index, folder):
    (folder / "journey.md").write_text(TAGGED.replace("# Journey\n", "\n\n# Journey\n"), "utf-8")
    report = index.refresh()
    assert (report.embedded, report.relocated) == (0, 1)
    (hit,) = [one for one in index.as_retriever(9).retrieve("Lisbon") if one.node.metadata["path"] == "journey.md"]
    assert hit.node.metadata["start_line"] == 6


def test_documents_by_hand_come_and_go(index):
    index.refresh([Document(text="Zebras sleep standing.", id_="by-hand", metadata={"note": None})])
    assert "Zebras sleep standing." in texts(index, "zebras")
    assert index.delete("by-hand") == 1
    assert "Zebras sleep standing." not in texts(index, "zebras")
    assert index.verify().ok


# Questions


def test_each_arm_and_their_fusion_answer(index):
    retriever = index.as_retriever(3)
    vector, keyword = retriever.retrievers
    assert paths(vector.retrieve("Which vegetable does the animal eat?"))[0] == "memory/2026-01-28.md"
    assert paths(keyword.retrieve("the name of a user"))[0] == "journey.md", "our analyzer splits identifiers"
    assert {hit.score for hit in keyword.retrieve("qqqq")} == {0}
    assert paths(retriever.retrieve("Cookie"))[0] == "memory/2026-01-28.md"
    for hit in retriever.retrieve("Lisbon"):
        assert hit.node.text in (index.folder / hit.node.metadata["path"]).read_text("utf-8")


def test_scores_of_the_vector_arm_are_cosines(index, embedding):
    vector, _ = index.as_retriever(3).retrievers
    (best, *_) = vector.retrieve("Cookie")
    with index._storage.reader.reading() as view:
        rows = {row.node.node_id: row for page in view.store.rows() for row in page}
    stored = np.array(rows[best.node.node_id].vector)
    asked = np.array(embedding.get_query_embedding("Cookie"))
    assert best.score == pytest.approx(stored @ asked / np.linalg.norm(stored) / np.linalg.norm(asked), abs=1e-4)


def test_explanations_name_terms_arms_and_relevance(index):
    explained = index.as_retriever(3).explain("dog Cookie carrots")
    (best, *_) = explained.hits
    assert {term.term for term in best.terms} == {"dog", "cooki", "carrot"}
    assert all(term.document_frequency == 1 for term in best.terms)
    assert best.relevance > 0.3
    assert best.credit("bm25").rank == best.credit("vector").rank == 1
    assert best.fused.credits[-1].arm == "nearness"


def test_newer_notes_win_where_recency_is_asked_for(index, folder):
    for day in ("2020-01-05", "2026-04-20"):
        (folder / f"memory/{day}.md").write_text("# Standup\n\nThe kettle broke again.\n", "utf-8")
    index.refresh()
    found = paths(index.as_retriever(2, recency=400).retrieve("kettle broke"))
    assert found == ["memory/2026-04-20.md", "memory/2020-01-05.md"]


FILTERS = {
    "path": (only("path", "faq.md"), {"faq.md"}),
    "paths": (only("path", ["faq.md", "guide.md"], FilterOperator.IN), {"faq.md", "guide.md"}),
    "no path": (only("path", ["faq.md"], FilterOperator.NIN), {"guide.md", "journey.md", "1", "4"}),
    "another path": (only("path", "faq.md", FilterOperator.NE), {"guide.md", "journey.md", "1", "4"}),
    "part of a path": (only("path", "MEMORY/", FilterOperator.TEXT_MATCH_INSENSITIVE), {"1", "4"}),
    "part of a path as it is": (only("path", "MEMORY/", FilterOperator.TEXT_MATCH), set()),
    "tag": (only("tags", "plans", FilterOperator.TEXT_MATCH_INSENSITIVE), {"journey.md"}),
    "a tag of a list": (only("tags", ["travel", "else"], FilterOperator.ANY), {"journey.md"}),
    "no tag": (only("tags", None, FilterOperator.IS_EMPTY), {"faq.md", "guide.md", "1", "4"}),
    "day": (only("date", "2026-01-28"), {"1"}),
    "days as text": (only("date", "2026-02-01", FilterOperator.GT), {"4"}),
    "days as numbers": (only("date_ts", 1769904000, FilterOperator.LT), {"1"}),
    "a line": (only("start_line", 1.0), {"guide.md", "faq.md", "1", "4"}),
    "a key that no node has": (only("colour", "red"), set()),
    "not a key that no node has": (
        only("colour", "red", FilterOperator.NE),
        {"guide.md", "faq.md", "journey.md", "1", "4"},
    ),
    "one or the other": (
        MetadataFilters(
            filters=[MetadataFilter(key="path", value="faq.md"), MetadataFilter(key="date", value="2026-01-28")],
            condition=FilterCondition.OR,
        ),
        {"faq.md", "1"},
    ),
    "neither": (
        MetadataFilters(
            filters=[MetadataFilter(key="path", value="faq.md"), MetadataFilter(key="date", value="2026-01-28")],
            condition=FilterCondition.NOT,
        ),
        {"guide.md", "journey.md", "4"},
    ),
    "nested": (
        MetadataFilters(
            filters=[
                only("path", "memory", FilterOperator.CONTAINS),
                MetadataFilters(
                    filters=[MetadataFilter(key="date", value="2026-01-28")], condition=FilterCondition.NOT
                ),
            ]
        ),
        {"4"},
    ),
}
SHORT = {"memory/2026-01-28.md": "1", "memory/2026-04-09.md": "4"}


@pytest.mark.parametrize("name", FILTERS)
def test_both_arms_obey_a_filter_in_the_same_way(index, name):
    filters, wanted = FILTERS[name]
    vector, keyword = index.as_retriever(50, filters=filters).retrievers
    everything = "installer lock.toml slow cold Cookie release Lisbon version cache Friday"
    for arm in (vector, keyword):
        assert {SHORT.get(path, path) for path in paths(arm.retrieve(everything))} <= wanted
    assert {SHORT.get(path, path) for path in paths(vector.retrieve(everything))} == wanted
    with index._storage.reader.reading() as view:
        ids = view.store.search(index._storage.reader.keyword_search(view)).selected_ids(filters)
        nodes = index._storage.reader.keyword_search(view).nodes(ids)
    assert {SHORT.get(node.metadata["path"], node.metadata["path"]) for node in nodes.values()} == wanted
    assert len(nodes) == len(ids)


OPERATORS = {
    "release path:memory/": {"memory/2026-01-28.md", "memory/2026-04-09.md"},
    "Lisbon tag:plans": {"journey.md"},
    '"cookie loves carrots"': {"memory/2026-01-28.md"},
    '"loves cookie carrots" dog': {"guide.md", "faq.md", "journey.md", "memory/2026-01-28.md", "memory/2026-04-09.md"},
    "Cookie release -friday": {"guide.md", "faq.md", "journey.md", "memory/2026-01-28.md"},
}


@pytest.mark.parametrize("query", OPERATORS)
@pytest.mark.filterwarnings(f"ignore::{ContextualWarning.__module__}.{ContextualWarning.__name__}")
def test_operators_of_a_query_are_obeyed(index, query):
    assert set(paths(index.as_retriever(50).retrieve(query))) == OPERATORS[query]


# What the index says of itself


def test_status_verify_export_and_nodes(index, tmp_path):
    status = index.status()
    assert (status.documents, status.chunks, status.complete) == (5, len(index.nodes()), True)
    assert not status.pending.any
    assert index.verify().ok
    assert index.export(tmp_path / "all.jsonl") == status.chunks
    texts_of_lines = {json.loads(line)["text"] for line in (tmp_path / "all.jsonl").read_text("utf-8").splitlines()}
    assert texts_of_lines == {node.text for node in index.nodes()}
    assert -1 <= index.likeness().mean <= 1


def test_verify_finds_what_is_missing(index):
    with index._storage.reader.reading() as view:
        view.store.delete([index.nodes()[0].node_id])
    assert any("the manifest says" in problem for problem in index.verify().problems)


def test_another_embedding_is_refused_and_the_index_answers_on(index, opened, store):
    other = LocalEmbedding(threads=1, model_name="other")
    with pytest.raises(FingerprintError, match="made with the embedding"):
        opened(vector_store=store, embed_model=other)
    assert texts(index)
    replaced = opened(vector_store=store, embed_model=other, reindex="all")
    replaced.refresh()
    assert replaced.verify().ok
    vector, keyword = index.as_retriever().retrievers
    with pytest.raises(FingerprintError, match="made with the embedding LocalEmbedding:other"):
        vector.retrieve("Cookie")
    assert keyword.retrieve("Cookie")


def test_the_index_remembers_where_it_is(index, opened, store):
    assert texts(opened()) == texts(index)
    assert opened().settings.place.name == store
    with pytest.raises(FingerprintError, match="is kept in"):
        opened(vector_store="chroma:http://127.0.0.1:1#elsewhere").refresh()


# Several at once


CHILD = """
import os, sys
from llama_index_contextual.local_embedding import LocalEmbedding
from llama_index_contextual.index import ContextualIndex
folder, work = sys.argv[1:3]
index = ContextualIndex.open(folder, embed_model=LocalEmbedding(threads=1))
{work}
"""
KILLED = """
from llama_index_contextual.index import batches, writer
batches.GROUP = batches.BATCH_CHUNKS = 1
step, count = work.split(":")
left = [int(count)]
def dying(method):
    def call(self, *arguments, **options):
        left[0] -= 1
        if not left[0]:
            os._exit(9)
        return method(self, *arguments, **options)
    return call
setattr(writer.Writer, step, dying(getattr(writer.Writer, step)))
index.refresh()
"""
READS = """
hits = index.as_retriever(50).retrieve(work)
print(*sorted(hit.node.text.splitlines()[-1] for hit in hits), sep="|")
"""


def child(script, *arguments):
    command = [sys.executable, "-c", CHILD.replace("{work}", script), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603


@pytest.mark.kill
@pytest.mark.parametrize("place", ["write:2", "record:2", "commit:2"])
def test_a_kill_between_two_writes_is_finished_by_the_next_refresh(index, folder, place):
    for number in range(4):
        (folder / f"more{number}.md").write_text(f"# More\n\nNumber {number} came.\n", "utf-8")
    (folder / "faq.md").write_text("# FAQ\n\nIt is slow because of the network.\n", "utf-8")
    (folder / "guide.md").unlink()
    index.close()
    assert child(KILLED, folder, place).returncode == 9
    index.refresh()
    assert index.verify().ok, str(index.verify())
    assert sorted(index.manifest().documents) == sorted(index.files())
    assert not any("installer" in text or "cold" in text for text in texts(index, "installer cold"))


@pytest.mark.process
def test_readers_see_what_another_process_wrote(index, folder):
    index.close()  # a folder of Qdrant is of one process at a time
    reader = child(READS, folder, "kettle")
    assert "kettle" not in reader.stdout, reader.stderr
    (folder / "faq.md").write_text("# FAQ\n\nThe kettle is slow.\n", "utf-8")
    assert child("index.refresh()", folder, "").returncode == 0
    assert "The kettle is slow." in {text.splitlines()[-1] for text in texts(index, "kettle")}
    index.close()
    assert "The kettle is slow." in child(READS, folder, "kettle").stdout


def test_a_write_that_fails_keeps_what_was(index, folder, monkeypatch):
    before = texts(index)
    (folder / "faq.md").write_text("# FAQ\n\nAnother answer.\n", "utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "write", lambda *_, **__: (_ for _ in ()).throw(OSError("no room")))
        with pytest.raises(OSError, match="no room"):
            index.refresh()
    assert texts(index) == before
    index.refresh()
    assert index.verify().ok


# From one to another


def test_an_index_moves_there_and_back_and_embeds_nothing(opened, folder, elsewhere):
    index = opened()
    index.refresh()
    index.refresh([Document(text="Zebras sleep standing.", id_="by-hand")])
    before, chunks = texts(index), index.status().chunks
    reader = opened()
    assert texts(reader) == before
    assert index.move(elsewhere) == chunks
    assert index.settings.place.name == index.status().store == elsewhere
    assert not (folder / ".contextual/chroma").exists()
    assert texts(index) == texts(opened()) == before
    with pytest.raises(FingerprintError, match="is kept in"):
        texts(reader)
    again = index.refresh()
    assert (again.embedded, again.skipped) == (0, 4)
    assert index.verify().ok, str(index.verify())
    index.move("chroma")
    assert texts(opened()) == before
    assert opened().verify().ok


MOVED = """
from llama_index_contextual.index import move
step, place = work.split()
setattr(move, step, lambda *_: os._exit(9))
index.move(place)
"""


@pytest.mark.kill
@pytest.mark.parametrize("step", ["_kept_in", "save_manifest", "_leave"])
def test_a_move_that_is_killed_leaves_one_whole_index_and_can_be_done_again(opened, folder, elsewhere, step):
    index = opened()
    index.refresh()
    before = texts(index)
    index.close()
    assert child(MOVED, folder, f"{step} {elsewhere}").returncode == 9
    after = opened()
    assert after.settings.place.name == (elsewhere if step == "_leave" else "chroma")
    assert texts(after) == before
    assert after.verify().ok, str(after.verify())
    if step != "_leave":
        after.move(elsewhere)
    assert texts(opened()) == before
    opened().refresh()
    assert not (folder / ".contextual/chroma").exists()
    assert not (folder / ".contextual/moving.json").exists()
    assert child(MOVED, folder, "_leave chroma").returncode == 9
    back = opened()
    assert back.settings.place.name == "chroma"
    back.move(elsewhere)  # where the nodes of before still are
    assert texts(opened()) == before
    assert not (folder / ".contextual/moving.json").exists()


def test_a_move_leaves_what_is_there_already(opened, folder, elsewhere, tmp_path, run):
    taken = f"theirs_{secrets.token_hex(4)}"
    with opened(vector_store=f"{elsewhere}#{taken}", storage=tmp_path / "theirs") as theirs:
        theirs.refresh()
    index = opened()
    index.refresh()
    with pytest.raises(StorageError, match=rf"has a collection '{taken}' already. It is unharmed. Cure: another name"):
        index.move(f"{elsewhere}#{taken}")
    with pytest.raises(SettingError, match="is where the index is"):
        index.move("chroma")
    assert texts(index)
    index.close()
    done = run("move", folder, "--to", "nowhere")
    assert (done.returncode, "'nowhere' names no place for an index. Cure:" in done.stderr) == (1, True)
    assert "--store" not in done.stderr
    done = run("move", folder, "--to", elsewhere)
    assert (done.returncode, "nothing was embedded" in done.stdout) == (0, True)
    assert opened(storage=tmp_path / "theirs").verify().ok


# What another store is asked for, directly


def test_rows_hold_what_was_written(index):
    with index._storage.reader.reading() as view:
        store, stored = view.store, {item.id: item for item in view.store.all()}
        rows = [row for page in store.rows() for row in page]
        assert {row.node.node_id: row.metadata for row in rows} == {
            id_: dict(one.metadata) for id_, one in stored.items()
        }
        assert {row.node.text for row in rows} == {text for _, text in store.all_with_text()}
        assert len(rows) == store.count()
        assert all(len(row.vector) == 384 for row in rows)
        assert {id_ for ids, page in store.vectors() for id_, _ in zip(ids, page, strict=True)} == set(stored)
        some = sorted(stored)[:2]
        assert [sorted(ids) for ids, _ in store.vectors([*some, "nothing"])] == [some]
        assert store.without_vectors() == []
        by_entry = store.of_entries(["guide.md", "nothing.md"])
        assert set(by_entry) == {"guide.md"}
        assert {one.id for one in by_entry["guide.md"]} == {i for i, one in stored.items() if one.entry == "guide.md"}
