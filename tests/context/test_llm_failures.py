"""Unusable answers are rejected with a reason, counted, and not asked for forever."""

from __future__ import annotations

import pytest
from fake_model import Reply, always
from llama_index.core.prompts import PromptTemplate
from llm_runs import make_nodes, run

JUNK = {
    "1: <one or two sentences about chunk 1>": "copy of the prompt",
    "1: Explains one thing.\n2: Explains another thing.\n3: Explains a third.": "empty",
    "1:1:1:1:1:1:1:1:1:1:1:1": "repetition",
    "1: the crew and the crew and the crew and the crew and the crew and the crew and "
    "the crew": "repetition",
    "1: Paragraph 0 of book.md tells something.": "copy",
    "1: Explains the default value, which is 873 seconds.": "invented",
    "1: Explains what happened on January 12, 1999.": "invented",
}


@pytest.mark.parametrize(("text", "reason"), JUNK.items())
def test_junk_is_refused_and_counted_by_reason(step, fake_model, text, reason):
    fake_model.reply = always(Reply(text=text))
    postprocessor = step()
    run(postprocessor, make_nodes(1), falls_back=1)
    assert postprocessor.usage.failed == {reason: 1}


def test_half_a_character_is_replaced(step, fake_model):
    fake_model.reply = always(Reply(text="1: Explains the ship \ud83d of this treatise."))
    nodes = make_nodes(1)
    run(step(), nodes)
    assert (
        nodes[0].metadata["context"].encode().endswith("the ship \ufffd of this treatise.".encode())
    )


def refused(step, fake_model):
    fake_model.reply = lambda request, _: Reply(
        text="\n".join(f"{number}: n/a" for number in request.numbers)
    )
    run(step(), make_nodes(2), falls_back=2)
    assert [request.numbers for request in fake_model.requests] == [[1, 2], [1], [1]], (
        "each is asked about twice"
    )
    fake_model.requests.clear()


def test_a_chunk_without_a_usable_answer_is_left_alone(step, fake_model):
    refused(step, fake_model)
    postprocessor = step()
    run(postprocessor, make_nodes(2), falls_back=2)
    assert fake_model.requests == []
    assert postprocessor.usage.failed == {"empty, as before": 2}
    assert postprocessor.estimate(make_nodes(2)).calls == 0


@pytest.mark.parametrize("change", ["text", "prompt"])
def test_it_is_asked_about_again_if_that_can_help(step, fake_model, change):
    refused(step, fake_model)
    fake_model.reply = always(Reply())
    nodes = make_nodes(2)
    options = {}
    if change == "text":
        for node in nodes:
            node.text = node.text[:-2] + "!."
    else:
        options = {"prompt": PromptTemplate("{document}{chunks}")}
    run(step(**options), nodes)
    assert len(fake_model.requests) == 1


def test_a_server_that_is_down_is_not_the_fault_of_a_chunk(step, fake_model, monkeypatch):
    monkeypatch.setattr("llama_index_contextual.context.calls.ATTEMPTS", 1)
    fake_model.reply = always(Reply(status=500))
    for _ in range(4):
        run(step(), make_nodes(1), falls_back=1)
    fake_model.reply = always(Reply())
    run(step(), make_nodes(1))


def test_a_run_that_only_left_chunks_alone_is_final(step, fake_model):
    refused(step, fake_model)
    postprocessor = step()
    run(postprocessor, make_nodes(2), falls_back=2)
    assert postprocessor.generator.state() == ""
