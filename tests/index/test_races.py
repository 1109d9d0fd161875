"""What two threads of one process may do to an index at the same moment, and what a write leaves that fails halfway."""

import pickle
import shutil
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import chromadb
import pytest
from llama_index.core import MockEmbedding
from llama_index.core.schema import QueryBundle, TextNode
from llama_index_contextual.index.chroma import ChromaStore
from llama_index_contextual.index.manifest import Manifest, load_manifest, save_manifest

from llama_index_contextual import tokens
from llama_index_contextual.errors import ContextualError, StorageError
from llama_index_contextual.index import BackgroundRefresh, ContextualIndex
from llama_index_contextual.retrievers import ContextualBM25Retriever
from llama_index_contextual.retrievers.chroma import nearest

ZEBRA = "# New\n\nA zebra crossed the road.\n"


class Down(MockEmbedding):
    """A model that is away, and takes a moment to say so."""

    def _get_text_embeddings(self, texts):
        time.sleep(0.02)
        raise OSError("the model is away")


def slow_embedding():
    """An embedding, the event that it is asked, and the one that lets it answer."""
    asked, go = threading.Event(), threading.Event()

    class Slow(MockEmbedding):
        def _get_text_embeddings(self, texts):
            asked.set()
            assert go.wait(30)
            return super()._get_text_embeddings(texts)

    return Slow(embed_dim=8), asked, go


def found_by_keywords(index, query):
    arm = next(arm for arm in index.as_retriever().retrievers if isinstance(arm, ContextualBM25Retriever))
    return [hit.node.metadata["path"] for hit in arm.retrieve(query)]


def test_a_write_that_fails_halfway_leaves_no_hole_in_the_keyword_index(opened, folder, monkeypatch):
    """The nodes are in Chroma when its delete fails; the next refresh finds nothing new in them."""
    index = opened(embed_model=MockEmbedding(embed_dim=8))
    index.refresh()
    assert found_by_keywords(index, "carrots")
    (folder / "new.md").write_text(ZEBRA, "utf-8")
    (folder / "faq.md").write_text("# FAQ\n\nIt is fast now.\n", "utf-8")

    def full(*_):
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(ChromaStore, "delete", full)
        with pytest.raises(StorageError, match="the disk is full"):
            index.refresh()
    index.refresh()
    assert found_by_keywords(index, "zebra") == ["new.md"]
    assert index.verify().ok, str(index.verify())
    index.close()
    assert found_by_keywords(opened(embed_model=MockEmbedding(embed_dim=8)), "zebra") == ["new.md"]


def test_indexing_all_mends_a_keyword_index_with_a_hole(opened):
    model = MockEmbedding(embed_dim=8)
    index = opened(embed_model=model)
    index.refresh()
    assert found_by_keywords(index, "carrots")
    keywords = index._storage.reader.keywords
    keywords.index.delete(keywords.index.selected_ids()[:1])
    shutil.rmtree(index.storage / "bm25")
    keywords.save(None, keywords._stamp)
    index.close()
    with opened(embed_model=model) as index:
        index.refresh()
        assert "lacks 1 chunk" in str(index.verify())
    with opened(embed_model=model, reindex="all") as index:
        index.refresh()
        assert index.verify().ok, str(index.verify())
    assert opened(embed_model=model).verify().ok


def test_a_store_that_a_question_opened_is_not_taken_for_the_writers(opened, folder):
    """After close() a question opens another client of Chroma, which does not see what the writer goes on writing."""
    slow, started, go = slow_embedding()
    go.set()
    index = opened(embed_model=slow)
    index.refresh()
    (folder / "new.md").write_text(ZEBRA, "utf-8")
    started.clear()
    go.clear()
    with ThreadPoolExecutor(1) as pool:
        refreshed = pool.submit(index.refresh)
        assert started.wait(30)
        index.close()
        index.as_retriever().retrieve("carrots")
        go.set()
        refreshed.result(60)
    vectors = index.as_retriever().retrievers[0]
    assert len(vectors.candidates(QueryBundle("zebra"), 100)) == index.verify().chunks
    assert index.verify().ok, str(index.verify())


def test_a_manifest_is_never_that_of_another_index(tmp_path):
    """Paths are compared in Python, where another thread may load its own in between."""
    own, other = tmp_path / "own.json", tmp_path / "other.json"
    save_manifest(other, Manifest("other"))
    meeting = [False]

    class Interrupted(type(Path())):
        def __eq__(self, path):
            if meeting[0]:
                meeting[0] = False
                assert load_manifest(other).collection == "other"
            return super().__eq__(path)

        __hash__ = Path.__hash__

    save_manifest(own, Manifest("own"))
    meeting[0] = True
    assert load_manifest(Interrupted(own)).collection == "own"
    assert not meeting[0]


def test_the_moment_before_the_first_vectors_are_written_is_waited_for():
    class Starting:
        asked, configuration_json = 0, {"hnsw": {"space": "cosine"}}

        def query(self, **options):
            self.asked += 1
            if self.asked == 1:
                raise chromadb.errors.InternalError("Error creating hnsw segment reader: Nothing found on disk")
            return {"ids": [["a"]], "distances": [[0.25]]}

    collection = Starting()
    assert [id_ for id_, _ in nearest(collection, [1.0, 0.0], 1)] == ["a"]
    assert collection.asked == 2


def test_a_first_refresh_that_fails_is_taken_back_whatever_others_ask_meanwhile(folder):
    def asked_until(done, ask):
        while not done.is_set():
            with suppress(ContextualError):  # anything else is a defect
                ask()

    for _ in range(6):
        done = threading.Event()
        with ContextualIndex.open(folder, embed_model=Down(embed_dim=8)) as index, ThreadPoolExecutor(3) as pool:
            others = [pool.submit(asked_until, done, ask) for ask in (index.manifest, lambda: index.freshness(1))]
            try:
                with pytest.raises(ContextualError, match="the model is away"):
                    index.refresh()
                time.sleep(0.02)
            finally:
                done.set()
            for other in others:
                other.result(30)
            assert not index.exists


def test_what_an_earlier_attempt_left_is_taken_back_too(folder):
    chromadb.PersistentClient(str(folder / ".contextual" / "chroma"))
    with ContextualIndex.open(folder, embed_model=Down(embed_dim=8)) as index:
        with pytest.raises(ContextualError, match="the model is away"):
            index.refresh()
        assert not index.exists


def test_a_refresh_that_is_waited_for_sees_what_changed_before_the_question(opened, folder):
    """The refresh that runs when the question comes may have read the folder before the change."""
    slow, read, go = slow_embedding()
    index = opened(embed_model=slow)
    with BackgroundRefresh(index, "wait") as keeper:
        assert read.wait(30)
        (folder / "new.md").write_text(ZEBRA, "utf-8")
        threading.Timer(0.1, go.set).start()
        assert not keeper.look()
    assert found_by_keywords(index, "zebra") == ["new.md"]


def test_a_local_qdrant_silences_no_warning_of_others():
    qdrant = pytest.importorskip("llama_index_contextual.index.qdrant", reason="the extra 'qdrant' is not installed")

    class Client:
        def count(self):
            warnings.warn("of the user's own", stacklevel=1)

    with pytest.warns(UserWarning, match="of the user's own"):
        qdrant._OneAtATime(Client()).count()


def test_qdrants_rarities_may_be_forgotten_while_they_are_read(opened):
    qdrant = pytest.importorskip("qdrant_client", reason="the extra 'qdrant' is not installed")
    index = opened(embed_model=MockEmbedding(embed_dim=8), vector_store=qdrant.QdrantClient(":memory:"))
    index.refresh()
    with index._storage.reader.reading() as view:
        search = index._storage.reader.keyword_search(view)
        frequency = search._frequency

        def forgetting(idf):
            search._frequency = frequency
            search._counted_at = 0.0
            search.keyword_query([("slow",)], 1)
            return frequency(idf)

        search._frequency = forgetting
        assert search.keyword_query([("carrot",), ("cooki",)], 1)


def test_threads_that_count_first_together_read_the_vocabulary_once(monkeypatch):
    import tiktoken

    reads, read = [], tiktoken.get_encoding
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: (reads.append(name), time.sleep(0.05), read(name))[2])
    tokens._tiktoken_cl100k.cache_clear()
    together = threading.Barrier(4)

    def counted(_):
        together.wait()
        return len(tokens.tiktoken_cl100k().encode("carrots"))

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(counted, range(4)))) == 1
    assert len(reads) == 1


def test_a_keyword_arm_is_copied_while_it_is_asked():
    nodes = [TextNode(text=f"word{number} carrots", id_=str(number)) for number in range(300)]
    arm, done = ContextualBM25Retriever.from_defaults(nodes=nodes), threading.Event()

    def ask():
        number = 0
        while not done.is_set():
            number += 1
            arm.nearness(f"word{number % 300} carrots word{number * 7 % 300}", ["1", "2"])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            asking = [pool.submit(ask) for _ in range(2)]
            try:
                for _ in range(150):
                    assert len(pickle.loads(pickle.dumps(arm)).retrieve("carrots")) > 0  # noqa: S301
            finally:
                done.set()
            for one in asking:
                one.result(30)
    finally:
        sys.setswitchinterval(interval)
