"""What LlamaIndex's instrumentation is told, and that the OpenTelemetry recipe of the documentation works."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.schema import NodeWithScore, TextNode
from pydantic import Field, PrivateAttr

from llama_index_contextual import ContextualFusionRetriever
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.utils.errors import ContextualWarning
from llama_index_contextual.utils.tracing import StepEvent

API = (Path(__file__).parents[1] / "docs" / "api.md").read_text("utf-8")


class Kept(BaseEventHandler):
    events: list = Field(default_factory=list)

    def handle(self, event, **_):
        if isinstance(event, StepEvent):
            self.events.append(event)


class Parents(SimpleSpanHandler):
    """The name of each span, and of the one that it lies in."""

    _parents: list = PrivateAttr(default_factory=list)

    def new_span(self, id_, bound_args, instance=None, parent_span_id=None, tags=None, **_):
        self._parents.append((name(id_), name(parent_span_id)))


def name(span_id):
    return str(span_id).partition("-")[0]


@pytest.fixture
def told():
    root = get_dispatcher()
    before = root.event_handlers[:], root.span_handlers[:]
    kept, spans = Kept(), Parents()
    root.event_handlers, root.span_handlers = [*before[0], kept], [*before[1], spans]
    yield kept.events, spans._parents
    root.event_handlers, root.span_handlers = before


@pytest.fixture
def index(tmp_path):
    (tmp_path / "a.md").write_text("# Freeze\n\nThe freeze starts on 14 December.\n", "utf-8")
    (tmp_path / "b.md").write_text("# Menu\n\nCarrots.\n", "utf-8")
    with ContextualIndex.open(tmp_path) as opened:
        yield opened


def test_a_refresh_tells_of_its_steps(index, told):
    events, parents = told
    index.refresh()
    (index.folder / "b.md").unlink()
    index.refresh(confirm=True)
    first = {event.step: event.facts for event in events[:4]}
    assert list(first) == ["context", "embed", "store", "refresh"]
    assert first["context"] | {"source": ""} == {"source": "", "documents": 2, "chunks": 2}
    assert first["embed"]["rows"] == first["embed"]["embedded"] == 2
    assert first["store"] == {"added": 2, "changed": 0, "deleted": 0}
    assert (
        first["refresh"]["added"],
        first["refresh"]["chunks"],
        first["refresh"]["embedded"],
    ) == (2, 2, 2)
    assert [event.facts["deleted"] for event in events[4:]] == [1]
    assert all(event.seconds >= 0 and not event.error for event in events)
    assert [pair for pair in parents if pair[0].startswith("contextual.")][:4] == [
        ("contextual.refresh", "None"),
        ("contextual.context", "contextual.refresh"),
        ("contextual.embed", "contextual.refresh"),
        ("contextual.store", "contextual.refresh"),
    ]
    assert ("LocalEmbedding.get_text_embedding_batch", "contextual.embed") in parents


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_question_tells_of_each_arm_and_of_fusion_below_the_retriever(index, told, way):
    index.refresh()
    events, parents = told
    events.clear()
    parents.clear()
    retriever = index.as_retriever()
    if way == "sync":
        retriever.retrieve("When does the freeze start?")
    else:
        asyncio.run(retriever.aretrieve("When does the freeze start?"))
    assert sorted(event.facts.get("arm", event.step) for event in events) == [
        "bm25",
        "fusion",
        "vector",
    ]
    assert all(event.facts["candidates"] >= 1 for event in events)
    ours = [parent for own, parent in parents if own.startswith("contextual.")]
    assert len(ours) == 3
    assert all(parent.startswith("ContextualFusionRetriever.") for parent in ours)


def test_an_arm_that_fails_is_told_with_its_error(told):
    class Broken(BaseRetriever):
        def _retrieve(self, query_bundle):
            raise OSError("gone")

    class Sound(BaseRetriever):
        def _retrieve(self, query_bundle):
            return [NodeWithScore(node=TextNode(text="x"), score=1.0)]

    with pytest.warns(ContextualWarning, match="gone"):
        ContextualFusionRetriever([Broken(), Sound()]).retrieve("x")
    errors = {event.facts.get("arm", event.step): event.error for event in told[0]}
    assert errors["Broken"] == "OSError: gone"
    assert errors["Sound"] == ""
    assert errors["fusion"] == ""


@pytest.mark.server
def test_the_recipes_run(tmp_path):
    """In a process of its own: they change LlamaIndex's dispatcher for good."""
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "page.md").write_text("# Freeze\n\nThe freeze starts on 14 December.\n", "utf-8")
    part = API.partition("## Watching it")[2].partition("\n## ")[0]
    handler, telemetry = re.findall(r"```python\n(.*?)```", part, flags=re.DOTALL)
    run = [sys.executable, "-c", handler + telemetry]
    done = subprocess.run(  # noqa: S603
        run, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert "refresh took" in done.stdout
    for step in ("refresh", "context", "embed", "store", "arm", "fusion"):
        assert f'"name": "contextual.{step}"' in done.stdout
    assert '"ContextualFusionRetriever.retrieve"' in done.stdout
    assert "freeze start" not in done.stdout.lower()  # neither question nor text
