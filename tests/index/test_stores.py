"""The tests that an index has to pass with every store: whoever writes another one adds it to STORES."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from llama_index.core import Document
from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual.app.index.engines import Engines
from llama_index_contextual.app.settings.local import LocalEmbedding
from llama_index_contextual.app.vector_stores.chroma import ChromaVectors
from llama_index_contextual.errors import ContextualWarning, FingerprintError
from llama_index_contextual.matrix import Matrix

ROOT = Path(__file__).resolve().parents[2]
LIMIT = "LLAMA_INDEX_CONTEXTUAL_EXACT_LIMIT"
STORES = [
    "matrix",
    "chroma",
    "own",
    pytest.param("chroma server", marks=pytest.mark.server),
    pytest.param("qdrant server", marks=pytest.mark.server),
]
TAGGED = "---\ntags: [travel, Plans]\n---\n# Journey\n\nWe go to Lisbon by train. The getUserName function stays.\n"


class Own:
    """Vectors in this process: a store as a user may write one."""

    def __init__(self):
        self.matrix = Matrix()
        self.written = 0

    def rows(self):
        return self.matrix.rows

    def count(self):
        return len(self.matrix)

    def upsert(self, rows, vectors):
        self.matrix = self.matrix.with_rows(rows, vectors)
        self.written += len(rows)

    def delete(self, rows):
        self.matrix = self.matrix.without(rows)

    def nearest(self, question, top_k, among=None):
        return self.matrix.nearest(question, top_k, among)

    def clear(self):
        self.matrix = Matrix()

    def close(self):
        """Keep all."""


def setting_of(kind, request):
    """What ``vector_store=`` is given."""
    if kind.endswith(" server"):
        name = kind.split()[0]
        return f"{name}:{request.getfixturevalue(name + '_server')}"
    return Own() if kind == "own" else "chroma"


@pytest.fixture(params=STORES)
def kind(request, monkeypatch):
    """A store. Up to the limit the matrix stands in for Chroma, so there is no limit where Chroma is to answer."""
    if request.param.startswith("chroma"):
        monkeypatch.setenv(LIMIT, "0")
    return request.param


@pytest.fixture
def store(kind, request):
    return setting_of(kind, request)


@pytest.fixture
def index(opened, folder, store, kind, monkeypatch):
    """An index over the folder and one tagged note; its store answers, and no other engine."""
    (folder / "journey.md").write_text(TAGGED, "utf-8")
    index = opened(vector_store=store)
    index.refresh()
    other = "store" if kind == "matrix" else "matrix"
    monkeypatch.setattr(Engines, other, lambda *_: None if kind == "matrix" else pytest.fail("the matrix was asked"))
    return index


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
    stored = np.array(embedding.get_text_embedding(best.node.get_content("embed")))
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


def test_both_arms_obey_each_filter_in_the_same_way(index):
    everything = "installer lock.toml slow cold Cookie release Lisbon version cache Friday"
    for name, (filters, wanted) in FILTERS.items():
        vector, keyword = index.as_retriever(50, filters=filters).retrievers
        assert {SHORT.get(path, path) for path in paths(vector.retrieve(everything))} == wanted, name
        assert {SHORT.get(path, path) for path in paths(keyword.retrieve(everything))} <= wanted, name


OPERATORS = {
    "release path:memory/": {"memory/2026-01-28.md", "memory/2026-04-09.md"},
    "Lisbon tag:plans": {"journey.md"},
    '"cookie loves carrots"': {"memory/2026-01-28.md"},
    '"loves cookie carrots" dog': {"guide.md", "faq.md", "journey.md", "memory/2026-01-28.md", "memory/2026-04-09.md"},
    "Cookie release -friday": {"guide.md", "faq.md", "journey.md", "memory/2026-01-28.md"},
}


@pytest.mark.filterwarnings(f"ignore::{ContextualWarning.__module__}.{ContextualWarning.__name__}")
def test_operators_of_a_query_are_obeyed(index):
    for query, wanted in OPERATORS.items():
        assert set(paths(index.as_retriever(50).retrieve(query))) == wanted, query


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


def test_verify_finds_what_a_store_lacks_and_a_refresh_puts_it_there(opened, folder, store, kind):
    if kind == "matrix":
        pytest.skip("a matrix is not a store")
    index = opened(vector_store=store)
    index.refresh()
    engine = index.settings.store.open(index._storage.reader.ask(lambda view: view.snapshot.state.identity))
    engine.delete(engine.rows()[:1])
    engine.close()
    assert any("The store lacks 1 chunk" in problem for problem in index.verify().problems)
    assert index.refresh().embedded == 0
    assert index.verify().ok, str(index.verify())


def test_another_embedding_fills_the_store_again(opened, store, kind):
    index = opened(vector_store=store)
    index.refresh()
    other = Three(threads=1, model_name="three")
    with pytest.raises(FingerprintError, match="made with the embedding"):
        opened(vector_store=store, embed_model=other)
    replaced = opened(vector_store=store, embed_model=other, reindex="all")
    replaced.refresh()
    assert replaced.verify().ok, str(replaced.verify())
    assert texts(replaced)
    vector, keyword = index.as_retriever().retrievers
    with pytest.raises(FingerprintError, match="made with the embedding LocalEmbedding:three"):
        vector.retrieve("Cookie")
    assert keyword.retrieve("Cookie")


class Three(LocalEmbedding):
    """Vectors of three numbers."""

    def _get_text_embeddings(self, texts):
        return [[1.0, float(len(text)), 3.0] for text in texts]

    def _get_query_embedding(self, query):
        return [float(len(query)), 2.0, 3.0]


# Several processes


CHILD = """
import os, sys
from llama_index_contextual.app.settings.local import LocalEmbedding
from llama_index_contextual.app.index import ContextualIndex
folder, work = sys.argv[1:3]
index = ContextualIndex.open(folder, embed_model=LocalEmbedding(threads=1))
{work}
"""
KILLED = """
from llama_index_contextual.app.vector_stores import engine as seam
seam._PAGE = 1
left = [2]
engine = index.settings.store.open(index._storage.reader.ask(lambda view: view.snapshot.state.identity))
plain = type(engine).upsert
def dying(self, rows, vectors):
    left[0] -= 1
    if not left[0]:
        os._exit(9)
    plain(self, rows, vectors)
type(engine).upsert = dying
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
def test_a_kill_while_a_store_is_filled_is_finished_by_the_next_refresh(index, folder, kind):
    if kind in ("matrix", "own"):
        pytest.skip("nothing of it is outside of the process")
    for number in range(4):
        (folder / f"more{number}.md").write_text(f"# More\n\nNumber {number} came.\n", "utf-8")
    (folder / "guide.md").unlink()
    index.close()
    done = child(KILLED, folder, "")
    assert done.returncode == 9, done.stderr
    assert index.refresh().embedded == 0
    assert index.verify().ok, str(index.verify())
    assert sorted(index.documents()) == sorted(index.files())
    assert not any("installer" in text for text in texts(index, "installer"))


@pytest.mark.process
def test_readers_see_what_another_process_wrote(index, folder, kind):
    if kind == "own":
        pytest.skip("nothing of it is outside of the process")
    reader = child(READS, folder, "kettle")
    assert (reader.returncode, "kettle" in reader.stdout) == (0, False), reader.stderr
    (folder / "faq.md").write_text("# FAQ\n\nThe kettle is slow.\n", "utf-8")
    done = child("index.refresh()", folder, "")
    assert done.returncode == 0, done.stderr
    assert "The kettle is slow." in {text.splitlines()[-1] for text in texts(index, "kettle")}
    assert "The kettle is slow." in child(READS, folder, "kettle").stdout


# From one to another


def test_another_store_is_filled_by_the_next_refresh_and_nothing_is_embedded(opened, store, kind, embedding):
    index = opened()
    index.refresh()
    index.refresh([Document(text="Zebras sleep standing.", id_="by-hand")])
    before = texts(index)
    there = opened(vector_store=store)
    assert texts(there) == before, "before it is filled, the matrix answers"
    report = there.refresh()
    assert (report.embedded, report.skipped, report.changed) == (0, 4, [])
    assert there.verify().ok, str(there.verify())
    with pytest.MonkeyPatch.context() as patch:
        if kind != "matrix":
            patch.setattr(Engines, "matrix", lambda *_: pytest.fail("the matrix was asked"))
        assert texts(there) == before
    if kind != "own":
        assert opened().settings.store.name == store, "an index remembers its store"
    back = opened(vector_store="chroma")
    assert back.refresh().embedded == 0
    assert texts(back) == before
    assert back.verify().ok


def test_a_store_of_ones_own_gets_what_is_new_and_no_more(opened, folder):
    own = Own()
    index = opened(vector_store=own)
    chunks = index.refresh().chunks
    (folder / "new.md").write_text("# New\n\nParsnips are new here.\n", "utf-8")
    index.refresh()
    assert (own.count(), own.written) == (chunks + 1, chunks + 1)


def test_up_to_the_limit_the_matrix_answers_for_chroma_and_no_file_of_it_is_made(opened, folder, monkeypatch):
    index = opened()
    chunks = index.refresh().chunks
    chroma = folder / ".contextual/chroma"
    assert not chroma.exists()
    monkeypatch.setenv(LIMIT, str(chunks - 1))
    beyond = opened()
    beyond.refresh()
    assert chroma.exists()
    asked, plain = [], ChromaVectors.nearest
    monkeypatch.setattr(ChromaVectors, "nearest", lambda *given: asked.append(1) or plain(*given))
    assert texts(beyond) == texts(index)
    assert asked == [1]
