"""Reuse of paid contexts: which changes cause new calls and which do not."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from fake_model import Reply, always
from llama_index.core import Document
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.ingestion.pipeline import get_transformation_hash
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo
from llama_index.core.storage.kvstore import SimpleKVStore
from llm_runs import PAID, count_by_source, make_nodes, run

from llama_index_contextual.context.answers import MAX_CHARS
from llama_index_contextual.utils import sqlite_file
from llama_index_contextual.utils.errors import ContextualWarning, StorageError


def test_a_second_run_sends_no_request(step, fake_model):
    first, second = make_nodes(10), make_nodes(10)
    run(step(), first)
    asked = len(fake_model.requests)
    run(step(), second)
    assert len(fake_model.requests) == asked
    assert [n.metadata for n in first] == [n.metadata for n in second]


def test_no_file_is_opened_before_a_run(step, tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_file.sqlite3, "connect", None)
    assert step().to_dict()["generator"]["state"] == ""
    assert get_transformation_hash(make_nodes(2), step())


def test_a_database_of_another_program_is_never_set_aside(step, tmp_path):
    file = tmp_path / "contexts.sqlite"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StorageError, match="unexpected"):
        step()(make_nodes(2))
    assert [path.name for path in tmp_path.iterdir()] == ["contexts.sqlite"]


def test_one_edited_chunk_is_one_call(step, fake_model):
    run(step(), make_nodes(10))
    edited = make_nodes(10)
    edited[4].text = edited[4].text.replace("something.", "another th.")
    fake_model.requests.clear()
    run(step(), edited)
    [request] = fake_model.requests
    assert len(request.chunks) == 1
    assert "another th" in request.chunks[0]


def test_renaming_costs_nothing(step, fake_model):
    run(step(), make_nodes(4))
    fake_model.requests.clear()
    renamed = make_nodes(4)
    for node in renamed:
        node.metadata["path"] = "renamed.md"
    run(step(), renamed)
    assert not fake_model.requests


def test_the_same_chunk_in_another_document_gets_its_own_context(step, fake_model):
    nodes, other_nodes = make_nodes(2), make_nodes(3)
    for node in other_nodes:
        node.metadata["path"] = "other.md"
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id="other.md")
    run(step(), nodes)
    run(step(), other_nodes)
    assert [len(request.chunks) for request in fake_model.requests] == [2, 3]


def test_another_prompt_or_model_sends_new_requests(step, fake_model):
    nodes = make_nodes(3)
    run(step(), nodes)
    other = step(prompt=PromptTemplate("{document}\nSituate each of:\n{chunks}"))
    run(other, nodes)  # contexts of another version are outdated
    assert len(fake_model.requests) == 2
    assert "Situate each of:" in fake_model.requests[1].prompt
    assert other.fingerprint != step().fingerprint


def test_a_pipeline_cache_does_not_treat_a_fallback_as_final(step, fake_model):
    document = Document(text="Words about things. " * 40, id_="a.md", metadata={"path": "a.md"})
    parser = SentenceSplitter(chunk_size=40, chunk_overlap=0, id_func=lambda i, _: f"a#{i}")
    pipeline = IngestionPipeline(transformations=[parser, step()], disable_cache=False)
    fake_model.reply = always(Reply(status=400))
    with pytest.warns(ContextualWarning):
        fallen = pipeline.run(documents=[document])
    assert set(count_by_source(fallen)) == {"pattern"}
    fake_model.reply = always(Reply())
    assert set(count_by_source(pipeline.run(documents=[document]))) == {PAID}
    asked = len(fake_model.requests)
    assert set(count_by_source(pipeline.run(documents=[document]))) == {PAID}
    assert len(fake_model.requests) == asked


def test_a_pipeline_cache_does_not_treat_a_fallback_as_final_without_our_cache(step, fake_model):
    document = Document(text="Words about things. " * 4, id_="a.md", metadata={"path": "a.md"})
    parser = SentenceSplitter(id_func=lambda i, _: f"a#{i}")
    pipeline = IngestionPipeline(transformations=[parser, step(cache=False)])
    fake_model.reply = always(Reply(status=400))
    with pytest.warns(ContextualWarning):
        pipeline.run(documents=[document])
    fake_model.reply = always(Reply())
    assert set(count_by_source(pipeline.run(documents=[document]))) == {PAID}
    pipeline.run(documents=[document])
    assert len(fake_model.requests) == 2


def test_any_key_value_store_can_be_the_cache(step, fake_model):
    store = SimpleKVStore()
    run(step(cache=store), make_nodes(3))
    run(step(cache=store), make_nodes(3))
    assert len(fake_model.requests) == 1


def test_a_cache_that_cannot_be_used_is_an_error_before_money_is_spent(step, fake_model, tmp_path):
    (tmp_path / "broken.sqlite").write_text("no database " * 100)
    with pytest.raises(StorageError, match="Use another file"):
        step(cache=tmp_path / "broken.sqlite")(make_nodes(1))
    assert not fake_model.requests


@pytest.mark.parametrize(
    "stored",
    ["The harbour. " * 500_000, "A\0B", "A\ud800B", "A\x1b[31mB", "A\nB", "A\x9bB", "A\u2028B"],
    ids=["long", "NUL", "surrogate", "escape", "lines", "C1", "separator"],
)
def test_a_context_from_a_cache_is_cleaned_like_an_answer(step, stored):
    store = SimpleKVStore()
    postprocessor = step(cache=store)
    nodes = make_nodes(1)
    run(postprocessor, nodes)
    for key in store.get_all("contexts"):
        store.put(key, {"text": stored, "reason": stored}, "contexts")
    nodes = make_nodes(1)
    run(postprocessor, nodes)
    *_, context = nodes[0].metadata["context"].splitlines()
    context.encode()
    assert len(context) <= MAX_CHARS
    assert context.isprintable()
    assert len(nodes[0].metadata["context"].split("\n")) == 2, "path, and the sentence"


def test_with_new_document_ids_only_edited_chunks_are_paid_for(step, fake_model):
    run(step(), make_nodes(4))
    fake_model.requests.clear()
    loaded_again = make_nodes(4)
    loaded_again[0].text = loaded_again[0].text.replace("something.", "another th.")
    for node in loaded_again:
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id="a new id")
    run(step(), loaded_again)
    [request] = fake_model.requests
    assert len(request.chunks) == 1


def test_the_same_chunk_below_another_heading_gets_its_own_context(step, fake_model):
    run(step(), make_nodes(2))
    moved = make_nodes(2)
    moved[1].metadata["header_path"] = "Another part"
    fake_model.requests.clear()
    run(step(), moved)
    [request] = fake_model.requests
    assert len(request.chunks) == 1
