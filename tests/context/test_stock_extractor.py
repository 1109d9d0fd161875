"""LlamaIndex's DocumentContextExtractor and our generator in the same situations."""

from __future__ import annotations

import pytest
from fake_model import MODEL, Reply
from llama_index.core.extractors import DocumentContextExtractor
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import Document, MetadataMode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.llms.openai_like import OpenAILike
from llm_runs import count_by_source

from llama_index_contextual.context.postprocessor import ContextualNodePostprocessor
from llama_index_contextual.utils.errors import ContextualWarning

TEXT = " ".join(f"Sentence {number} of the harbour log tells of ships." for number in range(60))


@pytest.fixture
def document():
    return Document(text=TEXT, id_="log.md", metadata={"path": "log.md"})


@pytest.fixture
def splitter():
    return SentenceSplitter(chunk_size=64, chunk_overlap=0, id_func=lambda i, _: f"log.md#{i}")


@pytest.fixture
def stock(fake_model):
    """Return a function that creates LlamaIndex's extractor with the fake model."""

    def make(docstore, **options):
        llm = OpenAILike(
            model=MODEL,
            api_base=fake_model.llm.partition("@")[2],
            api_key="k",
            is_chat_model=True,
            max_retries=0,
        )
        return DocumentContextExtractor(docstore=docstore, llm=llm, num_workers=1, **options)

    return make


@pytest.fixture
def ours(fake_model, tmp_path, monkeypatch):
    """Return a function that creates our step with the fake model."""
    monkeypatch.setattr("llama_index_contextual.context.calls.ATTEMPTS", 1)

    def make(**options):
        return ContextualNodePostprocessor(
            "llm",
            **{
                "llm": fake_model.model,
                "cache": tmp_path / "c.sqlite",
                "num_workers": 1,
                **options,
            },
        )

    return make


def store_of(document):
    docstore = SimpleDocumentStore()
    docstore.add_documents([document])
    return docstore


def test_calls_and_characters(document, splitter, stock, ours, fake_model):
    nodes = splitter([document])
    stock(store_of(document))(nodes)
    theirs = [len(request.body["messages"][0]["content"]) for request in fake_model.requests]
    assert len(theirs) == len(nodes) >= 10  # one call per chunk, each with the whole document
    fake_model.requests.clear()
    ours()(splitter([document]))
    assert len(fake_model.requests) == -(-len(nodes) // 8)
    assert sum(len(request.prompt) for request in fake_model.requests) < len(nodes) * len(TEXT) / 3


def test_a_failure_is_final_there_and_an_upgrade_here(document, splitter, stock, ours, fake_model):
    fake_model.reply = lambda *_: Reply(status=500)
    pipeline = IngestionPipeline(transformations=[splitter, stock(store_of(document))])
    assert not any("context" in node.metadata for node in pipeline.run(documents=[document]))
    fake_model.reply = lambda *_: Reply()
    fake_model.requests.clear()
    assert not any("context" in node.metadata for node in pipeline.run(documents=[document]))
    assert fake_model.requests == []  # the pipeline has cached the failure

    fake_model.reply = lambda *_: Reply(status=500)
    pipeline = IngestionPipeline(transformations=[splitter, ours()])
    with pytest.warns(ContextualWarning, match="fell back"):
        assert all(node.metadata["context"] for node in pipeline.run(documents=[document]))
    fake_model.reply = lambda *_: Reply()
    assert set(count_by_source(pipeline.run(documents=[document]))) == {f"llm:{MODEL}+pattern"}


def test_thoughts_are_stored_there_and_cut_here(document, splitter, stock, ours, fake_model):
    fake_model.reply = lambda *_: Reply(text="<think>Hm.</think>About ships of the harbour.")
    nodes = splitter([document])[:1]
    stock(store_of(document))(nodes)
    assert nodes[0].metadata["context"].startswith("<think>")
    nodes = splitter([document])[:1]
    ours()(nodes)
    assert nodes[0].metadata["context"] == "Document: log.md\nAbout ships of the harbour."


def test_a_shared_docstore_is_stale_there_and_noticed_here(
    document, splitter, stock, ours, fake_model
):
    docstore = store_of(document)
    edited = Document(
        text=TEXT.replace("ships", "whales"), id_="log.md", metadata={"path": "log.md"}
    )

    def run(step):
        fake_model.requests.clear()
        strategy = DocstoreStrategy.DUPLICATES_ONLY
        pipeline = IngestionPipeline(
            transformations=[splitter, step], docstore=docstore, docstore_strategy=strategy
        )
        pipeline.run(documents=[edited])
        docstore.delete_document("log.md", raise_error=False)
        docstore.add_documents([document])
        return fake_model.requests[0].body["messages"][0]["content"]

    shown = run(stock(docstore))
    assert "tells of ships" in str(shown)
    shown = run(ours(docstore=docstore))
    assert "tells of whales" in shown.partition("</document>")[0]
    assert "tells of ships" not in shown


def test_the_context_is_in_the_prompt_there_and_hidden_here(
    document, splitter, stock, ours, fake_model
):
    fake_model.reply = lambda *_: Reply(text="About ships of the harbour.")
    nodes = splitter([document])[:1]
    stock(store_of(document))(nodes)
    assert "context:" in nodes[0].get_content(MetadataMode.LLM)
    nodes = splitter([document])[:1]
    ours()(nodes)
    assert "context:" not in nodes[0].get_content(MetadataMode.LLM)
    assert (
        nodes[0]
        .get_content(MetadataMode.EMBED)
        .startswith("context: Document: log.md\nAbout ships")
    )


def test_no_llm_is_an_assertion_there_and_settings_llm_here(monkeypatch, document):
    from llama_index.core import Settings

    monkeypatch.setattr(Settings, "_llm", MockLLM())
    with pytest.raises(AssertionError):
        DocumentContextExtractor(docstore=store_of(document))
    assert ContextualNodePostprocessor("llm", cache=False).generator.source.startswith(
        "llm:MockLLM#"
    )


def test_an_oversized_document_is_sent_whole_there_and_never_here(
    document, splitter, stock, ours, fake_model
):
    nodes = splitter([document])[:1]
    stock(store_of(document), max_context_length=50)(nodes)
    assert TEXT in str(fake_model.requests[0].body["messages"])
    fake_model.requests.clear()
    llm = fake_model.model()
    llm.context_window = 700
    ours(documents=[document], llm=llm)(nodes)
    assert TEXT not in str(fake_model.requests[0].body["messages"])
