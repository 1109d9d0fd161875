"""Answers that are no contexts: refused by reason, counted, made storable, and not asked for for ever."""

from __future__ import annotations

import pytest
from fake_model import Reply, always
from llama_index.core.prompts import PromptTemplate
from llm_runs import make_nodes, run

JUNK = {
    "1: <one or two sentences about chunk 1>": "copy of the prompt",
    "1: Explains one thing.\n2: Explains another thing.\n3: Explains a third.": "malformed",
    "1:1:1:1:1:1:1:1:1:1:1:1": "repetition",
    "1: the crew and the crew and the crew and the crew and the crew and the crew and the crew": "repetition",
    "1: Paragraph 0 of book.md tells something.": "copy of the chunk",
    "1: Explains the default value, which is 873 seconds.": "invented",
    "1: Explains what happened on January 12, 1999.": "invented",
}


@pytest.mark.parametrize(("text", "reason"), JUNK.items())
def test_junk_is_refused_and_counted_by_reason(step, fake_model, text, reason):
    fake_model.reply = always(Reply(text=text))
    one = step()
    run(one, make_nodes(1), falls_back=1)
    assert one.usage.failed == {reason: 1}


def test_half_a_character_is_made_storable(step, fake_model):
    fake_model.reply = always(Reply(text="1: Explains the ship \ud83d of this treatise."))
    nodes = make_nodes(1)
    run(step(), nodes)
    assert nodes[0].metadata["context"].encode().endswith("the ship \ufffd of this treatise.".encode())


def test_half_a_character_in_an_old_cache_is_made_storable_too(step, tmp_path):
    one = step()
    run(one, make_nodes(1))
    store = one.generator.cache.store
    for key in store.get_all("contexts"):
        store.put(key, {"text": "Explains the ship \ud83d."}, "contexts")
    nodes = make_nodes(1)
    run(step(), nodes)
    assert nodes[0].metadata["context"].encode().endswith("the ship \ufffd.".encode())


def refused_thrice(step, fake_model):
    fake_model.reply = always(Reply(text="1: n/a"))
    for _ in range(3):
        run(step(), make_nodes(1), falls_back=1)
    assert len(fake_model.requests) == 3


def test_a_chunk_that_was_refused_three_times_is_left_alone(step, fake_model):
    refused_thrice(step, fake_model)
    one = step()
    run(one, make_nodes(1), falls_back=1)
    assert len(fake_model.requests) == 3
    assert one.usage.failed == {"empty, 3 times": 1}
    assert one.estimate(make_nodes(1)).calls == 0


@pytest.mark.parametrize("change", ["text", "prompt"])
def test_it_is_asked_about_again_where_that_may_help(step, fake_model, change):
    refused_thrice(step, fake_model)
    fake_model.reply = always(Reply())
    nodes = make_nodes(1)
    options = {}
    if change == "text":
        nodes[0].text += "More."
    else:
        options = {"prompt": PromptTemplate("{document}{chunks}")}
    run(step(**options), nodes)
    assert len(fake_model.requests) == 4


def test_a_server_that_is_down_is_not_the_fault_of_a_chunk(step, fake_model, monkeypatch):
    monkeypatch.setattr("llama_index_contextual.context.run.ATTEMPTS", 1)
    fake_model.reply = always(Reply(status=500))
    for _ in range(4):
        run(step(), make_nodes(1), falls_back=1)
    fake_model.reply = always(Reply())
    run(step(), make_nodes(1))


def test_a_run_that_only_left_chunks_alone_is_final(step, fake_model):
    refused_thrice(step, fake_model)
    before = step().generator.state()
    run(step(), make_nodes(1), falls_back=1)
    assert step().generator.state() == before
