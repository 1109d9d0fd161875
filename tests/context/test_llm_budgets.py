"""The limits, estimates and usage counts of runs with a language model."""

from __future__ import annotations

import pytest
from fake_model import Reply, always
from llama_index.llms.openai_like import OpenAILike
from llm_runs import make_nodes, run

from llama_index_contextual.context.documents import group_by_document
from llama_index_contextual.context.prompts import count_tokens


def test_a_run_stops_at_max_calls_and_a_later_run_continues(step, fake_model):
    nodes = make_nodes(30)
    run(step(max_calls=2), nodes, falls_back=14)
    assert len(fake_model.requests) == 2
    run(step(), nodes)
    assert len(fake_model.requests) == 4


def test_max_calls_limits_concurrent_calls(step, fake_model):
    fake_model.reply = always(Reply(delay=0.2))
    run(step(max_calls=3, num_workers=4, batch_size=1, timeout=60.0), make_nodes(12), falls_back=9)
    assert len(fake_model.requests) == 3


def test_max_calls_includes_retries(step, fake_model, monkeypatch):
    monkeypatch.setattr("llama_index_contextual.context.calls.ATTEMPTS", 3)
    fake_model.reply = always(Reply(status=429, headers={"Retry-After": "0"}))
    postprocessor = step(max_calls=1)
    run(postprocessor, make_nodes(1), falls_back=1)
    assert (len(fake_model.requests), postprocessor.usage.calls) == (1, 1)
    assert postprocessor.usage.failed == {"max_calls=1 reached": 1}
    postprocessor = step(max_calls=2)
    run(postprocessor, make_nodes(1, "other.md"), falls_back=1)
    assert (len(fake_model.requests), postprocessor.usage.calls) == (3, 2)


def test_an_estimate_matches_the_run(step, fake_model):
    nodes = make_nodes(20)
    postprocessor = step()
    before = postprocessor.estimate(nodes)
    assert (before.chunks, before.from_cache, before.calls) == (20, 0, 3)
    assert before.tokens.prompt > before.tokens.cached > 0
    assert fake_model.requests == []
    run(postprocessor, nodes)
    assert len(fake_model.requests) == before.calls
    assert postprocessor.estimate(make_nodes(20)).calls == 0
    assert postprocessor.estimate(make_nodes(20)).from_cache == 20


def test_usage_counts_tokens_like_the_server(step, fake_model):
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 60},
    }
    fake_model.reply = always(Reply(usage=usage))
    postprocessor = step()
    run(postprocessor, make_nodes(10))
    assert (
        postprocessor.usage.tokens.prompt,
        postprocessor.usage.tokens.cached,
        postprocessor.usage.tokens.completion,
    ) == (
        200,
        120,
        14,
    )
    assert postprocessor.usage.tokens + postprocessor.usage.tokens == (400, 240, 28)
    assert postprocessor.usage.generated == 10


def test_progress_counts_chunks_across_documents(step):
    seen = []
    generator = step(batch_size=4).generator
    groups = group_by_document([*make_nodes(6), *make_nodes(2, "other.md")])
    generator.generate_all(groups, seen.append)
    assert [progress.done for progress in seen] == [0, 4, 6, 8]
    assert {progress.total for progress in seen} == {8}
    generator.generate_all(groups, seen.append)
    assert seen[-1].done == 8


def counted(request, _):
    """Return a server that counts tokens like LlamaIndex and writes usual contexts."""
    about = (
        "situates the paragraph in the book by telling which part of the whole it belongs to "
        "and who speaks of it"
    )
    text = "\n".join(
        f"{n}: Matter {chr(64 + n)} {about}, besides what readers know already."
        for n in request.numbers
    )
    usage = {"prompt_tokens": count_tokens(request.prompt), "completion_tokens": count_tokens(text)}
    return Reply(text=text, usage=usage)


@pytest.mark.parametrize(
    "options", [{}, {"context_window": 2000}], ids=["whole documents", "a small window"]
)
def test_an_estimate_agrees_with_the_run_that_follows(step, fake_model, options):
    fake_model.reply = counted
    nodes = [*make_nodes(30), *make_nodes(5, "other.md"), *make_nodes(1, "third.md")]
    postprocessor = step(**options)
    planned = postprocessor.estimate(nodes)
    run(postprocessor, nodes)
    used = postprocessor.usage
    assert used.calls == pytest.approx(planned.calls, rel=0.1)
    assert used.tokens.prompt == pytest.approx(planned.tokens.prompt, rel=0.1)
    taken, foreseen = (
        tokens.prompt + tokens.completion for tokens in (used.tokens, planned.tokens)
    )
    assert taken == pytest.approx(foreseen, rel=0.1)


def test_an_estimate_writes_nothing(step, fake_model, tmp_path):
    step(cache=tmp_path / "new" / "contexts.sqlite").estimate(make_nodes(3))
    assert list(tmp_path.rglob("*")) == []
    assert (fake_model.requests, fake_model.probes) == ([], 0)


def test_an_estimate_distinguishes_local_servers(step):
    there = step(
        llm=OpenAILike(model="far", api_base="https://example.org/v1", api_key="k")
    ).estimate(make_nodes(3))
    here = step().estimate(make_nodes(3))
    assert (here.local, there.local) == (True, False)
