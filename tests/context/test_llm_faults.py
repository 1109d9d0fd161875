"""Failures of model servers, and what happens to the chunks."""

from __future__ import annotations

import pytest
from fake_model import MODEL, Reply, always, good_but
from llama_index.llms.openai_like import OpenAILike
from llm_runs import PAID, count_by_source, make_nodes, run

from llama_index_contextual.context.postprocessor import ContextualNodePostprocessor
from llama_index_contextual.utils.errors import ContextError

WAITING = {
    "429 with Retry-After": Reply(status=429, headers={"Retry-After": "0"}),
    "429 without": Reply(status=429),
    "500": Reply(status=500),
    "503 while loading": Reply(status=503, body='{"error": {"message": "Loading model"}}'),
    "truncated JSON": Reply(cut=40),
    "JSON that ends early": Reply(body='{"id": "1", "choices": [{"mess'),
}


@pytest.mark.parametrize("fault", WAITING.values(), ids=WAITING)
def test_a_temporary_fault_is_retried(step, fake_model, fault):
    fake_model.reply = good_but(fault)
    postprocessor = step()
    run(postprocessor, make_nodes(3))
    assert len(fake_model.requests) == 2
    assert postprocessor.usage.calls == 2


LASTING = {
    **{name: (fault, 2) for name, fault in WAITING.items()},
    "400": (Reply(status=400), 1),
    "401": (Reply(status=401), 1),
    "404": (Reply(status=404), 1),
    "Retry-After an hour": (Reply(status=429, headers={"Retry-After": "3600"}), 1),
    "hang": (Reply(delay=60), 1),
    "slow first byte": (Reply(delay=20), 1),
    "empty": (
        Reply(text=""),
        1 + 2,
    ),  # a batch that leaves chunks out is followed by one question for each
    "thoughts without an end": (Reply(text="<think>Well, let me see, the first chunk"), 1 + 2),
    "unnumbered": (Reply(text="These chunks are about paragraphs."), 1),
}


@pytest.mark.parametrize(("fault", "calls"), LASTING.values(), ids=LASTING)
@pytest.mark.long
def test_a_lasting_fault_causes_a_fallback_and_the_next_run_asks_again(
    step, fake_model, fault, calls
):
    fake_model.reply = always(fault)
    nodes = make_nodes(2)
    if (
        fault.text == "These chunks are about paragraphs."
    ):  # asked one by one, it is an ordinary answer
        run(step(), nodes)
        return
    impatient = {"timeout": 0.3} if fault.delay else {}
    counts = run(step(**impatient), nodes, falls_back=2)
    assert counts == {"pattern": 2}
    assert len(fake_model.requests) == calls
    fake_model.reply = always(Reply())
    run(step(), nodes)  # upgraded


def test_a_call_that_takes_too_long_is_cancelled(step, fake_model):
    fake_model.reply = always(Reply(delay=60))
    run(step(timeout=0.3), make_nodes(2), falls_back=2)
    assert fake_model.requests[0].hung_up.wait(10)


NUMBERINGS = {
    "from zero": "0: Explains one thing to readers.\n1: Explains two things to readers.",
    "one twice": "1: Explains one thing to readers.\n1: Explains two things to readers.",
    "one too many": (
        "1: Explains one thing here.\n2: Explains two things here.\n3: Explains three things here."
    ),
    "one missing": "1: Explains one thing to readers.",
}


@pytest.mark.parametrize("text", NUMBERINGS.values(), ids=NUMBERINGS)
def test_wrong_numbering_in_a_batch_is_asked_again_one_by_one(step, fake_model, text):
    fake_model.reply = good_but(Reply(text=text))
    nodes = make_nodes(2)
    run(step(), nodes)
    good = 1 if text.startswith("1: Explains one thing to readers.") and text.count(":") == 1 else 0
    assert [request.numbers for request in fake_model.requests] == [[1, 2]] + [[1]] * (2 - good)


def test_a_client_that_retries_by_itself_is_called_once(fake_model, tmp_path):
    llm = OpenAILike(
        model=MODEL,
        api_base=fake_model.llm.partition("@")[2],
        api_key="k",
        is_chat_model=True,
        max_retries=1,
    )
    fake_model.reply = always(Reply(status=500))
    run(ContextualNodePostprocessor("llm", llm=llm, cache=False), make_nodes(1), falls_back=1)
    assert len(fake_model.requests) == 1 + 1


@pytest.mark.long
def test_without_a_server_only_a_few_calls_are_made(step, fake_model):
    fake_model.stop()
    nodes = make_nodes(50)
    postprocessor = step()
    run(postprocessor, nodes, falls_back=50)
    assert postprocessor.usage.calls <= 6
    assert "no connection (start the server" in str(postprocessor.usage.failed)
    with pytest.raises(
        ContextError, match=r"no fallback \(.*no connection .*\)\. The other contexts are kept"
    ):
        step(fallback=None)(make_nodes(50))


def test_a_dead_server_is_not_asked_for_each_file_of_an_index(step, fake_model):
    fake_model.reply = always(Reply(status=503))
    postprocessor = step()
    for number in range(5):
        run(postprocessor, make_nodes(1, f"{number}.md"), falls_back=1)
    assert len(fake_model.requests) == 3 * 2


def test_a_server_that_dies_in_mid_run_costs_a_few_calls(step, fake_model, monkeypatch):
    monkeypatch.setattr("llama_index_contextual.context.calls.ATTEMPTS", 1)
    fake_model.reply = lambda _, number: Reply() if number < 2 else Reply(status=500)
    nodes = make_nodes(100)
    postprocessor = step()
    run(postprocessor, nodes, falls_back=84)
    assert len(fake_model.requests) == 2 + 3  # the breaker's threshold
    fake_model.reply = always(Reply())
    fake_model.requests.clear()
    run(step(), nodes)
    assert sum(len(request.numbers) for request in fake_model.requests) == 84


def test_a_server_that_disappears_in_mid_run_causes_fallbacks(step, fake_model):
    def reply(_, number):
        if number == 1:
            fake_model.closing.set()
            fake_model.socket.close()
            return Reply(cut=0)
        return Reply()

    fake_model.reply = reply
    run(step(), make_nodes(40), falls_back=32)


def test_without_fallback_a_failure_is_an_error(step, fake_model):
    fake_model.reply = lambda _, number: Reply() if number == 0 else Reply(status=400)
    nodes = make_nodes(10)
    with pytest.raises(ContextError, match="2 of 10 chunks"):
        step(fallback=None)(nodes)
    assert count_by_source(nodes) == {PAID: 8, "": 2}
