"""Contexts from a language model on event loops: several, a running one, a cancelled one."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest
from fake_model import MODEL, Reply, always
from llama_index.core.llms import ChatMessage, ChatResponse, MockLLM
from llama_index.llms.openai_like import OpenAILike
from llm_runs import PAID, make_nodes, run

from llama_index_contextual.context.postprocessor import ContextualNodePostprocessor
from llama_index_contextual.utils.errors import ContextualWarning


async def test_async_contexts_are_the_same_and_do_not_block(step, fake_model):
    fake_model.reply = always(Reply(delay=0.3))
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    ticking = asyncio.create_task(tick())
    nodes = make_nodes(4)
    await step(timeout=60.0).acall(nodes)
    ticking.cancel()
    assert ticks > 10
    sync_nodes = make_nodes(4)
    step()(sync_nodes)
    assert [n.metadata for n in sync_nodes] == [n.metadata for n in nodes]


class AsyncAlone(MockLLM):
    """A model whose client has only async methods."""

    model: str = "a"

    def chat(self, *_, **__):
        raise NotImplementedError

    async def achat(self, *_, **__):
        return ChatResponse(message=ChatMessage("1: The first chunk of the book about gardens."))


async def test_a_model_with_only_async_methods():
    postprocessor = ContextualNodePostprocessor("llm", llm=AsyncAlone(), cache=False)
    for nodes in (postprocessor(make_nodes(1)), await postprocessor.acall(make_nodes(1))):
        assert nodes[0].metadata["context"].endswith("The first chunk of the book about gardens.")


def test_calls_from_several_event_loops_all_succeed(step, fake_model):
    postprocessor = step(batch_size=1)
    postprocessor(make_nodes(2))
    asyncio.run(postprocessor.acall(make_nodes(4)))
    asyncio.run(postprocessor.acall(make_nodes(6)))
    postprocessor(make_nodes(8))
    assert (
        len(fake_model.requests),
        postprocessor.usage.calls,
        postprocessor.usage.failed.total(),
    ) == (8, 8, 0)


def test_an_llm_that_was_used_on_another_event_loop_works(fake_model):
    llm = OpenAILike(
        model=MODEL, api_base=fake_model.llm.partition("@")[2], api_key="k", is_chat_model=True
    )
    asyncio.run(llm.achat([ChatMessage("Good morning.")]))
    nodes = make_nodes(1)
    run(ContextualNodePostprocessor("llm", llm=llm, cache=False), nodes)


async def test_the_pattern_context_replaces_contexts_that_the_model_left_out(step, fake_model):
    fake_model.reply = lambda request, _: Reply(status=400) if "c.md" in request.prompt else Reply()
    postprocessor = step()
    rows = []
    for asynchronous in (False, True):
        nodes = [*make_nodes(2), *make_nodes(1, "c.md"), *make_nodes(1, "b.md")]
        with pytest.warns(
            ContextualWarning, match=r"^1 of 4 chunks fell back .* gave none \(1 HTTP 400\)\."
        ):
            await postprocessor.acall(nodes) if asynchronous else postprocessor(nodes)
        rows.append([node.metadata["context_source"] for node in nodes])
    assert rows == [[PAID, PAID, "pattern", PAID]] * 2
    assert postprocessor.generator.at_query_time().name == rows[0][2]


async def test_a_cancelled_run_keeps_what_is_finished(step, fake_model):
    fake_model.reply = lambda _, number: Reply() if number < 2 else Reply(delay=60)
    task = asyncio.create_task(step(batch_size=1, timeout=60).acall(make_nodes(5)))
    await asyncio.to_thread(fake_model.wait_for, 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    fake_model.reply = always(Reply())
    before = len(fake_model.requests)
    await step(batch_size=1).acall(make_nodes(5))
    assert len(fake_model.requests) == before + 3


def test_concurrent_threads_all_get_their_contexts(step, fake_model):
    postprocessor = step(batch_size=1)
    number = 8
    start = threading.Barrier(number)
    documents = [make_nodes(3, f"{name}.md") for name in range(number)]

    def ask(nodes):
        start.wait(20)
        for _ in range(5):
            postprocessor(nodes)

    threads = [threading.Thread(target=ask, args=(nodes,), daemon=True) for nodes in documents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert all(node.metadata["context_source"] == PAID for nodes in documents for node in nodes)
    assert (
        len(fake_model.requests)
        == postprocessor.usage.calls
        == postprocessor.usage.generated
        == 3 * number
    )


async def test_a_sync_call_works_inside_a_running_loop_as_in_jupyter(step):
    run(step(), make_nodes(2))


def in_a_notebook(call):
    async def cell():
        call()

    asyncio.new_event_loop().run_until_complete(cell())


@pytest.mark.parametrize("where", [lambda call: call(), in_a_notebook])
def test_ctrl_c_ends_the_calls_of_a_synchronous_run(step, fake_model, where):
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a test run in the background ignores it
    fake_model.reply = lambda _, number: Reply(delay=0.0 if number < 2 else 0.5)

    def interrupt():
        fake_model.wait_for(3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            where(lambda: step(batch_size=1)(make_nodes(9)))
    finally:
        signal.signal(signal.SIGINT, before)
    time.sleep(1.2)
    assert len(fake_model.requests) == 3


@pytest.mark.filterwarnings("ignore::llama_index_contextual.utils.errors.ContextualWarning")
def test_calls_run_in_daemon_threads():
    daemons = []

    class Recording(MockLLM):
        def chat(self, messages, **_):
            daemons.append(threading.current_thread().daemon)
            return super().chat(messages)

    ContextualNodePostprocessor("llm", llm=Recording(), cache=False)(make_nodes(2))
    assert daemons
    assert all(daemons)
