"""The calls to a language model: their chunks, the shown document, and concurrency."""

from __future__ import annotations

import json

import pytest
from fake_model import Reply
from llama_index.core.base.llms.types import CachePoint
from llama_index.core.llms import MockLLM
from llm_runs import make_nodes, run

from llama_index_contextual.context.documents import group_by_document
from llama_index_contextual.context.generators.llm import LLMContextGenerator


def test_a_call_contains_the_document_first_and_then_several_chunks(step, fake_model):
    nodes = make_nodes(20)
    run(step(), nodes)
    assert [request.numbers for request in fake_model.requests] == [
        [*range(1, 9)],
        [*range(1, 9)],
        [1, 2, 3, 4],
    ]
    document = "".join(node.text for node in nodes)
    shared = {request.prompt.partition(document)[0] for request in fake_model.requests}
    assert len(shared) == 1  # what a server's prefix cache can keep
    assert nodes[9].metadata["context"].endswith("\nExplains matter B of this very treatise.")
    assert fake_model.requests[0].body["max_tokens"] == 800


def test_the_first_call_runs_alone_and_the_others_run_concurrently(step, fake_model):
    busy = []

    def reply(_, number):
        busy.append(fake_model.busy)
        return Reply(delay=0.15)

    fake_model.reply = reply
    run(step(num_workers=4, batch_size=1, timeout=60.0), make_nodes(5))
    assert busy[0] == busy[1] == 1  # the second starts after the first has ended
    assert fake_model.most_busy == 4


def test_a_prompt_over_any_window_is_counted_with_a_hint(step, fake_model):
    overflow = {
        "error": {
            "code": 400,
            "type": "exceed_context_size_error",
            "message": "too long",
            "n_ctx": 900,
        }
    }
    fake_model.reply = lambda *_: Reply(status=400, body=json.dumps(overflow))
    postprocessor = step()
    run(postprocessor, make_nodes(2), falls_back=2)
    assert postprocessor.usage.failed == {"prompt too long (set the model's context_window)": 2}


@pytest.mark.long
def test_a_document_over_the_window_is_never_sent_whole(step, fake_model):
    nodes = make_nodes(200)
    run(step(context_window=1500), nodes)
    whole = "".join(node.text for node in nodes)
    assert all(whole not in request.prompt for request in fake_model.requests)
    assert all("Its outline:\nPart 0\nPart 1" in request.prompt for request in fake_model.requests)


def test_anthropic_gets_a_cache_point_after_the_document(monkeypatch):
    seen = []

    class Anthropic(MockLLM):
        @classmethod
        def class_name(cls):
            return "Anthropic_LLM"

        def chat(self, messages, **kwargs):
            seen.extend(messages)
            return super().chat(messages)

    generator = LLMContextGenerator(Anthropic(), cache=False, fallback=None)
    generator.generate_all([])
    [chunks] = group_by_document(make_nodes(2))
    generator.generate_all([chunks])
    document, point, question = seen[0].blocks
    assert "Paragraph 1" in document.text
    assert isinstance(point, CachePoint)
    assert '<chunk number="2"' in question.text
