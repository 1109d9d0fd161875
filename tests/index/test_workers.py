"""Ingestion on Ray: the nodes of a local run, whatever the number of workers, and nothing lost or paid twice."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pytest
from command_line import run_process
from llama_index.core import SimpleDirectoryReader
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.schema import Document

from llama_index_contextual import HeadingAwareMarkdownNodeParser
from llama_index_contextual.app.distributed import ray_workers
from llama_index_contextual.app.distributed.ray_workers import LocalWorkers, RayWorkers
from llama_index_contextual.app.index import ContextualIndex, jobs, refresh, vectors
from llama_index_contextual.app.settings.embeddings import model_id
from llama_index_contextual.context import ChunkContext, ContextGenerator
from llama_index_contextual.errors import ContextualWarning, EmbeddingError, MissingExtraError, SettingError

pytestmark = pytest.mark.server

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
PAGES = 24


class Counted(BaseEmbedding):
    """Writes down each text that it embeds. It ends its process at the first sight of one text, once."""

    log: str
    deadly: str = ""
    failing: str = ""

    def _get_text_embeddings(self, texts):
        died = Path(self.log) / "died"
        if self.deadly and any(self.deadly in text for text in texts) and not died.exists():
            died.touch()
            os._exit(1)
        if self.failing and any(self.failing in text for text in texts) and not died.exists():
            died.touch()
            raise OSError("the model is away")
        with (Path(self.log) / str(os.getpid())).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(text) + "\n" for text in texts)
        return [[byte / 255 + 0.01 for byte in hashlib.sha256(text.encode()).digest()[:8]] for text in texts]

    def _get_text_embedding(self, text):
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query):
        return [1.0] * 8

    async def _aget_query_embedding(self, query):
        return self._get_query_embedding(query)


class Poisoned(HeadingAwareMarkdownNodeParser):
    """Ends its process over one page, each time."""

    def get_nodes_from_documents(self, documents, show_progress=False, **kwargs):
        if any("Poison" in document.text for document in documents):
            os._exit(1)
        return super().get_nodes_from_documents(documents, show_progress, **kwargs)


class DyingLLMWorker(jobs.LLMWorker):
    """Ends its process when it is first told to ask, once."""

    def _die_once(self, died):
        if not died.exists():
            died.touch()
            os._exit(1)

    async def do(self, request):
        if request[0] == "send":
            self._die_once(Path(os.environ["ASKER_DIED"]))
        return await super().do(request)


@pytest.fixture
def pages(tmp_path):
    folder = tmp_path / "pages"
    folder.mkdir()
    for number in range(PAGES):
        text = f"# Page {number}\n\nTea of day {number}.\n\n## Notes\n\n" + f"The kettle sings at {number}. " * 90
        (folder / f"page{number:02}.md").write_text(text, "utf-8")
    (folder / "kettle.py").write_text('def boil(water):\n    """Boil water for tea."""\n    return water\n', "utf-8")
    return folder


def held(index):
    """Everything that the database has: ids, texts, metadata, and the vectors of the texts."""
    nodes = {node.node_id: (node.text, node.metadata, node.relationships) for node in index.nodes()}
    model = model_id(index.settings.embedding)
    pages = index._storage.reader.ask(lambda view: list(view.snapshot.vectors(model)))
    return nodes, sorted(map(tuple, chain.from_iterable(page.tolist() for _, page in pages)))


def embedded(log):
    """The texts that were embedded; a worker may be stopped in the middle of a line, which is of a text in hand."""
    lines = [line for file in Path(log).glob("[0-9]*") for line in file.read_text("utf-8").splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def test_ids_texts_metadata_and_vectors_are_those_of_a_local_run(pages, tmp_path, embedding, on_ray, monkeypatch):
    monkeypatch.setattr(refresh, "BATCH_CHUNKS", 20)
    monkeypatch.setattr(vectors, "BATCH_TEXTS", 8)
    (pages / "broken.md").write_bytes(b"\x00\x01")
    reports, found = [], []
    for name, workers in {"here": None, "one": on_ray, "two": RayWorkers(parse=2, embed=2)}.items():
        settings = {"embed_model": embedding, "context": "pattern", "storage": tmp_path / name}
        with ContextualIndex.open(pages, **settings) as index:
            report = index.refresh(workers=workers)
            assert index.verify().ok
            reports.append((report.added, report.chunks, report.embedded, [one.path for one in report.failed]))
            found.append(held(index))
    assert reports[0][3] == ["broken.md"]
    assert len(found[0][0]) > PAGES
    assert reports[1:] == [reports[0]] * 2
    assert found[1:] == [found[0]] * 2


def test_a_worker_that_dies_is_replaced_and_no_text_is_lost(pages, tmp_path, on_ray, monkeypatch):
    monkeypatch.setattr(vectors, "BATCH_TEXTS", 4)
    log = tmp_path / "log"
    log.mkdir()
    model = Counted(model_name="counted", log=str(log), deadly="day 7.")
    with ContextualIndex.open(pages, embed_model=model) as index:
        report = index.refresh(workers=RayWorkers(parse=1, embed=2))
        assert (log / "died").exists()
        assert index.verify().ok
        found = held(index)
    texts = embedded(log)
    assert len(set(texts)) == report.embedded == report.chunks
    assert len(texts) - len(set(texts)) <= 4, "at most the piece whose answer was on its way when its worker died"
    with ContextualIndex.open(pages, storage=tmp_path / "here", embed_model=model) as index:  # it dies once
        index.refresh()
        assert held(index) == found


def test_a_page_over_which_workers_die_is_reported_and_the_others_are_indexed(pages, tmp_path, on_ray):
    (pages / "page03.md").write_text("# Poison\n", "utf-8")
    with ContextualIndex.open(pages, embed_model="none", node_parser=Poisoned()) as index:
        report = index.refresh(workers=on_ray)
        [problem] = report.failed
        assert problem.path == "page03.md"
        assert "ended 3 workers" in problem.reason
        assert len(report.added) == PAGES - 1
        assert index.verify().ok


def test_what_was_embedded_before_the_model_failed_is_kept(pages, tmp_path, on_ray, monkeypatch):
    monkeypatch.setattr(refresh, "BATCH_CHUNKS", 10)
    monkeypatch.setattr(vectors, "BATCH_TEXTS", 4)
    log = tmp_path / "log"
    log.mkdir()
    model = Counted(model_name="counted", log=str(log), failing="day 17.")
    with ContextualIndex.open(pages, embed_model=model) as index:
        with pytest.raises(EmbeddingError, match="the model is away"):
            index.refresh(workers=on_ray)
        assert index.status().chunks > 0
        report = index.refresh(workers=on_ray)
        assert index.verify().ok
    texts = embedded(log)
    assert len(set(texts)) == report.chunks
    assert len(texts) - len(set(texts)) <= 8, "at most what was under way, and not yet in the cache, is paid again"


def test_a_model_is_asked_as_often_as_from_here_though_a_worker_dies_before_it_asks(
    pages, tmp_path, fake_model, on_ray, monkeypatch
):
    monkeypatch.setattr(jobs, "LLMWorker", DyingLLMWorker)
    asked, found = [], []
    for name, workers in {"here": None, "ray": RayWorkers(parse=1, contexts=2, embed=1)}.items():
        before = len(fake_model.requests)
        settings = {"context": "llm", "llm": fake_model.llm, "chunk_timeout": 20}
        with ContextualIndex.open(pages, embed_model="none", storage=tmp_path / name, **settings) as index:
            report = index.refresh(workers=workers)
            assert report.context_sources == {"llm:fake+pattern": report.chunks}
            asked.append(len(fake_model.requests) - before)
            found.append({node.node_id: node.metadata["context_source"] for node in index.nodes()})
            assert index.settings.pipeline.contexts.usage.calls == asked[-1]
            index.refresh(workers=workers)
            assert len(fake_model.requests) - before == asked[-1]
    assert Path(os.environ["ASKER_DIED"]).exists()
    assert found[0] == found[1]
    assert asked[0] == asked[1]


class Lent:
    """Workers that are this process, until they are given back."""

    def __init__(self, index):
        self.here = LocalWorkers(index.settings.pipeline.parse, self.embed)
        self.model, self.gone = index.settings.embedding, False

    def embed(self, lists):
        assert not self.gone, "the workers have ended"
        return enumerate(vectors.embed_texts(self.model, texts) for texts in lists)

    @contextmanager
    def started(self, _):
        self.gone = False
        yield self.here
        self.gone = True


def test_what_is_embedded_after_the_workers_have_ended_is_embedded_here(pages, embedding):
    with ContextualIndex.open(pages, embed_model="none") as index:
        index.refresh()
        index.refresh([Document(text="By hand.", id_="hand")])
    with ContextualIndex.open(pages, embed_model=embedding, reindex="all") as index:
        index.refresh(workers=Lent(index))
        assert index.verify().ok
        assert "hand" in {node.ref_doc_id for node in index.nodes()}


def test_the_warnings_of_workers_are_heard_here(tmp_path, embedding, on_ray):
    (tmp_path / "tea.md").write_text("# Tea\n\n" + f"{'tea' * 50} " * 4, "utf-8")
    index = ContextualIndex.open(tmp_path, embed_model=embedding)
    with pytest.warns(ContextualWarning, match="a script that the local model does not know"):
        index.refresh(workers=on_ray)


def test_each_machine_with_a_cpu_asks_its_own_model():
    def node(name, cpus, alive=True):
        return {"NodeID": name, "Alive": alive, "Resources": {"CPU": cpus} if cpus else {"memory": 1.0}}

    nodes = [node("head", 0), node("one", 2.0), node("gone", 2.0, alive=False), node("two", 1.0)]
    assert ray_workers._machines(nodes) == ["one", "two"]
    assert ray_workers._machines([node("head", 0), node("gone", 2.0, alive=False)]) == ["head"]


def test_a_limit_of_calls_holds_for_all_workers_together(pages, fake_model, on_ray):
    settings = {"context": "llm", "llm": fake_model.llm, "max_calls": 5}
    with ContextualIndex.open(pages, embed_model="none", **settings) as index, pytest.warns(ContextualWarning):
        index.refresh(workers=RayWorkers(parse=1, contexts=2))
    assert len(fake_model.requests) == 5


def test_the_documents_of_any_reader_come_as_an_iterator(pages, tmp_path, embedding, on_ray):
    def documents():
        for group in SimpleDirectoryReader(str(pages), required_exts=[".md"]).iter_data():
            yield from group

    found = []
    for name, workers in {"here": None, "ray": on_ray}.items():
        with ContextualIndex.open(pages, embed_model=embedding, storage=tmp_path / name) as index:
            report = index.refresh(documents(), workers=workers)
            assert len(report.added) == PAGES
            found.append(held(index))
    assert found[0] == found[1]


def test_ray_is_left_alone_where_nothing_is_to_do(pages, monkeypatch):
    with ContextualIndex.open(pages, embed_model="none") as index:
        index.refresh()
        monkeypatch.setattr(RayWorkers, "started", lambda *_: pytest.fail("workers were started"))
        assert index.refresh(workers="ray").added == []


class Own(ContextGenerator):
    name, version, free = "own", "1", True

    def generate(self, nodes, document):
        return [ChunkContext("Own.", self.name, version=self.version) for _ in nodes]


@pytest.mark.parametrize(
    ("named", "settings"),
    [
        ("node_parser", {"node_parser": HeadingAwareMarkdownNodeParser(id_func=lambda *_: "x")}),
        ("context", {"context": Own()}),
        ("llm", {"context": "llm", "llm": MockLLM()}),
    ],
)
def test_a_part_that_a_worker_cannot_make_is_named(pages, named, settings):
    with ContextualIndex.open(pages, embed_model="none", **settings) as index:
        with pytest.raises(SettingError, match=f"workers: {named} .*Cure"):
            index.refresh(workers="ray")
        assert not index.exists


def test_an_address_where_no_cluster_is_and_a_word_that_names_none(pages, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with ContextualIndex.open(pages, embed_model="none") as index:
        for where in (address, f"ray://{address}", "nonsense"):
            with pytest.raises(SettingError, match=f"no Ray cluster can be used at '{where}'.*Cure"):
                index.refresh(workers=f"ray:{where}")
        with pytest.raises(SettingError, match=r"workers='dask' is not known.*Cure"):
            index.refresh(workers="dask")
        assert not index.exists
        assert index.refresh().chunks


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (RayWorkers(embed=9), r"embed = 9 .* takes 1 CPU, and Ray has 4\. Cure: embed = 4,"),
        (RayWorkers(embed=3, embed_options={"num_cpus": 2}), r"embed = 3 .* takes 2 CPU, .* Cure: embed = 2,"),
        (RayWorkers(embed_options={"num_gpus": 1}), r"embed = 3 .* takes 1 GPU, and Ray has 0\. Cure: more machines"),
    ],
)
def test_more_processes_than_there_is_room_for_are_refused_before_one_starts(
    pages, embedding, on_ray, monkeypatch, wanted, said
):
    monkeypatch.setattr(ray_workers, "RayPool", lambda *_: pytest.fail("a worker was started"))
    with ContextualIndex.open(pages, embed_model=embedding) as index:
        with pytest.raises(SettingError, match=said):
            index.refresh(workers=wanted)
        assert not index.exists


def test_workers_of_another_version_are_refused(pages, on_ray, monkeypatch):
    monkeypatch.setattr("llama_index_contextual.__version__", "9.9")
    index = ContextualIndex.open(pages, embed_model="none")
    with pytest.raises(SettingError, match=r"workers have llama-index-contextual .* has 9\.9.*Cure"):
        index.refresh(workers=on_ray)


def test_without_the_extra_the_message_names_it(pages, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    index = ContextualIndex.open(pages, embed_model="none")
    with pytest.raises(MissingExtraError, match=r"ray is not installed.*llama-index-contextual\[ray\]"):
        index.refresh(workers="ray")


TWO_AT_ONCE = """
import sys, threading
from llama_index_contextual.app.distributed import ray_workers
from llama_index_contextual.app.index import ContextualIndex

folder, started = sys.argv[1], threading.Barrier(2)
one_has_ended, start = threading.Event(), ray_workers._Pools.start

def both_start(team, wanted):
    start(team, wanted)
    started.wait(120)
    if threading.current_thread().name == "two":
        assert one_has_ended.wait(120)

def refresh(name):
    with ContextualIndex.open(folder, storage=f"{folder}/.{name}", embed_model="none") as index:
        print(index.refresh(workers=ray_workers.RayWorkers(parse=1)).chunks, flush=True)
    one_has_ended.set()

ray_workers._Pools.start = both_start
threads = [threading.Thread(target=refresh, args=(name,), name=name) for name in ("one", "two")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not ray_workers.load_ray().is_initialized()
"""


def test_of_two_refreshes_at_once_the_first_to_end_leaves_ray_to_the_other(pages):
    environment = {**os.environ, "RAY_ADDRESS": "", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-c", TWO_AT_ONCE, str(pages)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split()
    assert first == second


def test_the_command_line_starts_ray_itself(pages, trusted):
    (pages / "contextual.toml").write_text("[ray]\nparse = 1\nembed = 1\n", "utf-8")
    trusted(pages)
    done = run_process("index", pages, "--embed-model", "none", "--workers", "ray", "--json", RAY_ADDRESS="")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["added"]) == PAGES
