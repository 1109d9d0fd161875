"""An index in PostgreSQL: the same answers as in a file, several writers at once, and a server that goes away."""

import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hashed_words import HashedWords
from llama_index.core import Document
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters

from llama_index_contextual.app.index import ContextualIndex, vectors, writing
from llama_index_contextual.app.index.database import Database
from llama_index_contextual.errors import (
    ContextualWarning,
    FingerprintError,
)

pytestmark = pytest.mark.server


def seen(hits):
    return [(hit.node.node_id, hit.node.text, hit.node.metadata, round(hit.score, 6)) for hit in hits]


def where(key, value, operator="=="):
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


FILTERS = [
    where("path", "faq.md"),
    where("path", ["faq.md", "guide.md"], "in"),
    where("start_line", 1, ">="),
    where("tags", "b", "contains"),
    where("1", "one"),
    where('a "quoted" key', 1),
    where("big", 10**30),
    where("exact", 0.1 + 0.2),
    where("größe", "x"),
    where("absent", None, "is_empty"),
]


def test_what_is_found_is_what_a_file_finds(opened, address, tmp_path):
    metadata = {"tags": "a, b", "1": "one", 'a "quoted" key': 1, "big": 10**30, "exact": 0.1 + 0.2, "größe": "x"}
    document = Document(text="Cookie is a dog.", id_="given", metadata=metadata)
    indexes = [opened(), opened(storage=tmp_path / "shared", database=address)]
    answers = []
    for index in indexes:
        report = index.refresh()
        index.refresh([document])
        assert index.verify().ok
        retrievers = [index.as_retriever(), *(index.as_retriever(filters=filters) for filters in FILTERS)]
        answers.append(
            {
                "chunks": report.chunks,
                "hits": [seen(one.retrieve("How do I pin a version?")) for one in retrievers],
                "documents": sorted(index.documents()),
                "status": index.status().chunks,
            }
        )
        index.delete("given")
        assert sorted(index.documents()) == sorted(set(answers[-1]["documents"]) - {"given"})
        assert index.verify().ok
    assert answers[0] == answers[1]
    assert all(answers[1]["hits"])
    assert not (tmp_path / "shared" / "index.sqlite3").exists()


def test_another_machine_embeds_nothing_and_follows(folder, address, tmp_path, model):
    with ContextualIndex.open(folder, storage=tmp_path / "a", embed_model=model, database=address) as first:
        first.refresh()
        with ContextualIndex.open(folder, storage=tmp_path / "b", embed_model=model, database=address) as second:
            assert second.refresh().embedded == 0
            wanted = seen(first.as_retriever().retrieve("carrots"))
            assert seen(second.as_retriever().retrieve("carrots")) == wanted
            (folder / "new.md").write_text("# New\n\nCarrots carrots carrots.\n", "utf-8")
            assert first.refresh().added == ["new.md"]
            assert second.as_retriever().retrieve("carrots")[0].node.metadata["path"] == "new.md"
            second.delete("faq.md")
            assert "faq.md" not in first.documents()


def test_contexts_that_were_paid_for_are_kept_there(folder, address, tmp_path, fake_model, model):
    settings = {"embed_model": model, "context": "llm", "llm": fake_model.llm, "database": address}
    with ContextualIndex.open(folder, storage=tmp_path / "a", **settings) as index:
        report = index.refresh()
        assert report.context_sources == {"llm:fake+pattern": report.chunks}
        asked = len(fake_model.requests)
        for key in index.documents():
            index.delete(key)
    with ContextualIndex.open(folder, storage=tmp_path / "b", **settings) as index:
        assert index.refresh().context_sources == report.context_sources
    assert len(fake_model.requests) == asked > 0


def test_another_embedding_takes_over_at_the_end(folder, address, model, monkeypatch):
    with ContextualIndex.open(folder, embed_model=model, database=address) as former:
        former.refresh()
        former.refresh([Document(text="Given by hand: parsnips.", id_="given")])
        with pytest.raises(FingerprintError, match="reindex='all'"):
            ContextualIndex.open(folder, embed_model=HashedWords(model_name="other"), database=address)
        other = HashedWords(model_name="other")
        with ContextualIndex.open(folder, embed_model=other, database=address, reindex="all") as index:
            switch = writing.Writer._promote

            def looked(writer):
                assert former.as_retriever().retrieve("carrots")
                switch(writer)

            monkeypatch.setattr(writing.Writer, "_promote", looked)
            index.refresh()
            assert index.verify().ok
            assert "given" in index.documents()
            assert index.as_retriever().retrieve("parsnips")[0].node.metadata["path"] == "given"
        with pytest.warns(ContextualWarning, match="was made with the embedding .*other"):
            former.as_retriever().retrieve("carrots")


def test_an_index_on_chroma_is_given_contexts_in_it(folder, address, model, tmp_path):
    import chromadb

    collection = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False)).create_collection("old")
    texts = ["Pin a version in lock.toml.", "A page with a NUL \x00 in it."]
    collection.add(ids=["a", "b"], documents=texts, embeddings=[[1.0], [1.0]], metadatas=[{"path": "guide.md"}] * 2)
    index, report = ContextualIndex.contextualize(collection, folder, embed_model=model, database=address)
    with index:
        assert report.chunks == 2
        assert index.verify().ok
        assert {node.text for node in index.nodes()} == {texts[0], "A page with a NUL \ufffd in it."}


@pytest.mark.parametrize("shared", [False, True], ids=["a file", "PostgreSQL"])
def test_characters_that_no_database_keeps_are_replaced_and_reported(folder, request, model, shared):
    address = request.getfixturevalue("address") if shared else None
    documents = [
        Document(text="a\x00b \ud800 carrots", id_="nul", metadata={"x\x00": "y\x00\ud800", "path": "c\\u0000"}),
        Document(text="sound", id_="sound", metadata={"x": 10**30, "nan": float("nan"), "far": float("inf")}),
        Document(text="bad", id_="id\x00"),
        Document(text="bad", id_="id\ud800"),
    ]
    with ContextualIndex.open(folder, embed_model=model, database=address) as index:
        report = index.refresh(documents)
        assert report.added == ["nul", "sound"]
        assert [(one.path, one.reason) for one in report.repaired] == [
            ("nul", "2 NUL character(s) or lone surrogate(s) replaced by U+FFFD")
        ]
        assert [one.path for one in report.failed] == ["document 2", "document 3"]
        assert all("id_=" in one.reason for one in report.failed)
        nodes = {node.ref_doc_id: node for node in index.nodes()}
        assert nodes["nul"].text == "a\ufffdb \ufffd carrots"
        assert nodes["nul"].metadata["x\ufffd"] == "y\ufffd\ufffd"
        assert nodes["sound"].metadata["x"] == 10**30
        assert (nodes["sound"].metadata["nan"], nodes["sound"].metadata["far"]) == ("NaN", "Infinity")
        assert index.as_retriever(filters=where("x\ufffd", "y\ufffd\ufffd")).retrieve("carrots")
        with pytest.warns(ContextualWarning, match="no chunk has 'x"):
            assert index.as_retriever(filters=where("x\x00", "y\x00")).retrieve("carrots\x00") == []
        assert index._storage.reader.ask(lambda view: view.nodes(["a\x00", "a\ud800"])) == {}
        assert index.refresh(documents).unchanged == ["nul", "sound"]
        assert index.verify().ok


WRITER = """
    import sys
    sys.path[:0] = {paths!r}
    from hashed_words import HashedWords
    from llama_index.core import Document
    from llama_index_contextual.app.index import ContextualIndex

    name, address, folder, storage = sys.argv[1:]
    model = HashedWords(model_name="hashed")
    with ContextualIndex.open(folder, storage=storage, embed_model=model, database=address) as index:
        print("READY", flush=True)
        sys.stdin.readline()
        for number in range({rounds}):
            own = Document(text=f"{{name}} wrote page {{number}}. " * 40, id_=f"{{name}}-{{number}}")
            both = Document(text=f"version {{name}} {{number}}. " * 300, id_="both")
            report = index.refresh([own, both])
            assert not report.failed, report.failed
"""


def writers(tmp_path, address, names, rounds):
    """Start processes that all write at the same time once they are told to."""
    paths = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    script = tmp_path / "writer.py"
    script.write_text(textwrap.dedent(WRITER.format(paths=paths, rounds=rounds)), "utf-8")
    (tmp_path / "notes").mkdir()
    processes = []
    for name in names:
        command = [sys.executable, str(script), name, address, str(tmp_path / "notes"), str(tmp_path / name)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes.append(subprocess.Popen(command, text=True, **pipes))  # noqa: S603
    for process in processes:
        assert process.stdout.readline() == "READY\n", process.stderr.read()
    return processes


def test_two_processes_write_at_once_and_a_reader_sees_whole_documents(tmp_path, address, model):
    """Whichever comes first makes the database; what both write is of one of them as a whole."""
    rounds = 5
    processes = writers(tmp_path, address, ["one", "two"], rounds)
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    looks = 0
    with ContextualIndex.open(
        tmp_path / "notes", storage=tmp_path / "reader", embed_model=model, database=address
    ) as index:
        while any(process.poll() is None for process in processes):
            if not index.exists:
                continue
            with index._storage.reader.reading() as view:
                rows = view.snapshot.documents()
                nodes = view.snapshot.nodes_of(list(rows))
            assert {key: len(some) for key, some in nodes.items()} == {key: row.nodes for key, row in rows.items()}
            if "both" in nodes:
                assert len({" ".join(one.text.split()[:3]) for one in nodes["both"]}) == 1
            hits = index.as_retriever().retrieve("who wrote page 1?")
            assert all(hit.node.text for hit in hits)
            looks += 1
            time.sleep(0.1)
        for process in processes:
            assert process.wait() == 0, process.stderr.read()
        assert looks > 1
        names = {f"{name}-{number}" for name in ("one", "two") for number in range(rounds)} | {"both"}
        assert set(index.documents()) == names
        assert index.verify().ok
        last = index.as_retriever(filters=where("path", "two-4")).retrieve("page")
        assert {hit.node.metadata["path"] for hit in last} == {"two-4"}


def test_processes_that_make_the_same_index_at_the_same_instant_make_one(address):
    databases = [Database(address, "") for _ in range(6)]
    start = threading.Barrier(len(databases))

    def make(database):
        start.wait()
        database.create()
        with database.reading() as snapshot:
            return snapshot.state.identity

    with ThreadPoolExecutor(len(databases)) as pool:
        assert len(set(pool.map(make, databases))) == 1
    for database in databases:
        database.close()


def test_who_waited_for_another_writer_sees_what_that_one_wrote(address):
    first, second = Database(address, ""), Database(address, "")
    first.create()
    done = []

    def change():
        with second.writing() as transaction:
            transaction.put_values("c", {"key": 1})
            transaction.count_change()
            done.append(transaction.state.change)

    with first.writing() as transaction:
        transaction.count_change()
        number = transaction.state.change
        thread = threading.Thread(target=change)
        thread.start()
        thread.join(0.5)
        assert not done
    thread.join()
    assert done[0] > number
    first.close()
    second.close()


@pytest.fixture
def at_once(monkeypatch):
    """Callable: has something happen when the next refresh has embedded a batch and has not written it yet."""

    def arrange(other):
        waiting, embed = [other], vectors.Vectorizer.embed

        def meanwhile(self, chunks, *progress):
            embedded = embed(self, chunks, *progress)
            if waiting:
                waiting.pop()()
            return embedded

        monkeypatch.setattr(vectors.Vectorizer, "embed", meanwhile)

    return arrange


def test_vectors_that_another_process_forgot_before_they_had_nodes_are_made_again(
    folder, address, model, at_once, asked
):
    with ContextualIndex.open(folder, embed_model=model, database=address) as index:
        at_once(lambda: asked(f'DELETE FROM "{address.rpartition("#")[2]}".vectors'))  # noqa: S608
        index.refresh()
        with index._storage.reader.reading() as view:
            assert view.snapshot.without_vectors(vectors.Vectorizer(index.settings.database, model).model) == []
        assert index.verify().ok


def test_two_embeddings_at_once_are_refused(folder, address, tmp_path, model, at_once):
    other = {"embed_model": HashedWords(model_name="other"), "database": address, "storage": tmp_path / "other"}
    first = ContextualIndex.open(folder, embed_model=model, database=address)
    at_once(lambda: ContextualIndex.open(folder, **other).refresh())
    with pytest.raises(FingerprintError, match=r"another process makes the index .* with another embedding, .*other"):
        first.refresh()
    with ContextualIndex.open(folder, **other) as index:
        assert index.verify().ok


def test_what_another_process_wrote_meanwhile_is_not_noted_over(folder, address, tmp_path, model, monkeypatch):
    with ContextualIndex.open(folder, embed_model=model, database=address) as index:
        index.refresh()
        before = index.documents()["faq.md"]
        record = writing.Writer.record

        def meanwhile(self, documents):
            monkeypatch.setattr(writing.Writer, "record", record)
            with self.storage.settings.database.writing() as transaction:
                transaction.put_documents([before._replace(sha256="of another machine")])
            record(self, {"faq.md": before._replace(stamp="1 2 3")})

        monkeypatch.setattr(writing.Writer, "record", meanwhile)
        index.refresh()
        assert index.documents()["faq.md"].sha256 == "of another machine"


def test_questions_of_many_threads_wait_for_each_other(folder, address, model):
    with ContextualIndex.open(folder, embed_model=model, database=address) as index:
        index.refresh()
        retriever = index.as_retriever()
        wanted = seen(retriever.retrieve("carrots"))
        with ThreadPoolExecutor(40) as pool:
            answers = list(pool.map(lambda _: seen(retriever.retrieve("carrots")), range(80)))
        assert answers == [wanted] * 80
