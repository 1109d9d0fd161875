"""What LlamaIndex's instrumentation is told, and that the OpenTelemetry recipe of the documentation
works.
"""

import asyncio
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from llama_index.core import MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from pydantic import PrivateAttr

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.retrievers import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualVectorRetriever,
)

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "observe.md").read_text("utf-8")


class Parents(SimpleSpanHandler):
    """The name of each span, and of the one that it lies in."""

    _parents: list = PrivateAttr(default_factory=list)

    def new_span(self, id_, bound_args, instance=None, parent_span_id=None, tags=None, **_):
        self._parents.append((name(id_), name(parent_span_id)))


def name(span_id):
    return str(span_id).partition("-")[0]


@pytest.fixture
def parents():
    """The name of each span, and of the one that it lies in."""
    root = get_dispatcher()
    before = root.span_handlers[:]
    spans = Parents()
    root.span_handlers = [*before, spans]
    yield spans._parents
    root.span_handlers = before


@pytest.fixture
def index(tmp_path):
    (tmp_path / "a.md").write_text("# Freeze\n\nThe freeze starts on 14 December.\n", "utf-8")
    (tmp_path / "b.md").write_text("# Menu\n\nCarrots.\n", "utf-8")
    with ContextualIndex.open(tmp_path) as opened:
        yield opened


def test_a_refresh_is_a_span_with_its_steps(index, parents):
    index.refresh()
    assert parents[0] == ("refresh_index", "None")
    steps = {own for own, parent in parents if parent == "refresh_index"}
    assert {"ContextualNodePostprocessor.__call__", "Refresh._write"} < steps
    assert ("Embedder.embed", "Refresh._write") in parents
    assert ("LocalEmbedding.get_text_embedding_batch", "Embedder.embed") in parents


@pytest.mark.parametrize("way", ["retrieve", "aretrieve"])
def test_a_question_is_a_span_of_its_retriever(index, parents, way):
    index.refresh()
    parents.clear()
    retriever = index.as_retriever()
    if way == "retrieve":
        retriever.retrieve("When does the freeze start?")
    else:
        asyncio.run(retriever.aretrieve("When does the freeze start?"))
    assert parents[0] == (f"ContextualFusionRetriever.{way}", "None")
    retrievers = dict(parents[1:])
    for name in ("ContextualVectorRetriever", "ContextualBM25Retriever"):
        assert retrievers[f"{name}.pools"].startswith("ContextualFusionRetriever.")


class AsyncStore(SimpleVectorStore):
    """A store with an asynchronous query of its own."""

    async def aquery(self, query, **kwargs):
        return self.query(query, **kwargs)


@pytest.mark.parametrize(
    ("store", "way", "method"),
    [
        (SimpleVectorStore, "retrieve", "candidates"),
        (SimpleVectorStore, "aretrieve", "candidates"),
        (AsyncStore, "retrieve", "candidates"),
        (AsyncStore, "aretrieve", "acandidates"),
    ],
)
def test_a_retriever_of_another_store_is_a_span(parents, store, way, method):
    vector_index = VectorStoreIndex(
        [TextNode(text="The freeze starts on 14 December.")],
        storage_context=StorageContext.from_defaults(vector_store=store()),
        embed_model=MockEmbedding(8),
    )
    retriever = ContextualFusionRetriever([ContextualVectorRetriever(vector_index)])
    parents.clear()
    if way == "retrieve":
        retriever.retrieve("freeze")
    else:
        asyncio.run(retriever.aretrieve("freeze"))
    parent = dict(parents)[f"ContextualVectorRetriever.{method}"]
    assert parent.startswith("ContextualFusionRetriever.")


@pytest.mark.server
def test_the_recipes_run(tmp_path):
    """Run in a process of its own: the recipes change LlamaIndex's dispatcher for good."""
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "page.md").write_text("# Freeze\n\nThe freeze starts on 14 December.\n", "utf-8")
    [recipe] = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    run = [sys.executable, "-c", recipe]
    done = subprocess.run(  # noqa: S603
        run, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    for span in ("refresh_index", "Embedder.embed"):
        assert f'"name": "{span}' in done.stdout
    assert '"ContextualFusionRetriever.retrieve"' in done.stdout
    assert "freeze start" not in done.stdout.lower()  # neither question nor text


@pytest.mark.parametrize(
    "method",
    [
        ContextualFusionRetriever._retrieve,
        ContextualBM25Retriever.pools,
        ContextualVectorRetriever.pools,
    ],
)
def test_a_span_of_a_question_does_not_inspect_the_method_at_each_call(method):
    assert inspect.signature(method) is inspect.signature(method)
    assert "self" in inspect.signature(method).parameters
