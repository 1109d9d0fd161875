"""The loop that a generator's calls share: closed by one thread while another begins a call, and left alone."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import pickle
import threading
import time

import pytest
from llama_index.core.llms import MockLLM

from llama_index_contextual.context import models as model_room
from llama_index_contextual.context.models import Connection

LLM = MockLLM()


async def nothing():
    await asyncio.sleep(0)
    return 1


def call(model):
    future = model.start(nothing)
    try:
        return future.result()
    finally:
        future.cancel()


@pytest.fixture
def threads():
    """Callable: the threads of loops that have begun since the test did."""
    before = set(threading.enumerate())
    return lambda: [one for one in threading.enumerate() if one.name == "contexts" and one not in before]


def wait_until(condition):
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_a_call_that_begins_while_the_loop_is_closed_ends(monkeypatch):
    """The loop stops between the moment when a caller is given it and the moment when it is given the call."""
    model = Connection(LLM)
    assert call(model) == 1
    begin = asyncio.run_coroutine_threadsafe

    def late(*arguments):
        closing = threading.Thread(target=model.close)
        closing.start()
        closing.join(0.2)  # for as long as the loop must not be closed
        time.sleep(0.2)
        return begin(*arguments)

    ended = []

    def calling():
        try:
            ended.append(call(model))
        except BaseException as error:  # noqa: BLE001  whatever ends it
            ended.append(type(error))

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", late)
    caller = threading.Thread(target=calling, daemon=True)
    caller.start()
    caller.join(10)
    assert ended in ([1], [concurrent.futures.CancelledError])


def test_closing_and_calling_at_once_leaves_no_caller_waiting(threads):
    model, end, done = Connection(LLM), time.monotonic() + 2, []

    def calling():
        while time.monotonic() < end:
            with contextlib.suppress(concurrent.futures.CancelledError):
                assert call(model) == 1
            done.append(1)

    callers = [threading.Thread(target=calling, daemon=True) for _ in range(4)]
    for caller in callers:
        caller.start()
    while time.monotonic() < end:
        model.close()
        time.sleep(0.0005)
    for caller in callers:
        caller.join(10)
    assert not any(caller.is_alive() for caller in callers)
    assert done
    model.close()
    wait_until(lambda: not threads())


async def test_a_caller_on_a_loop_gets_its_result_and_cancels_what_it_no_longer_wants():
    model, began, cancelled = Connection(LLM), threading.Event(), threading.Event()

    async def long():
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    assert await asyncio.wrap_future(model.start(nothing)) == 1
    task = asyncio.ensure_future(asyncio.wrap_future(model.start(long)))
    assert await asyncio.to_thread(began.wait, 10)
    task.cancel()
    assert await asyncio.to_thread(cancelled.wait, 10)
    model.close()


def test_the_connections_are_closed_on_the_loop_that_opened_them_after_what_runs_there_is_cancelled(monkeypatch):
    events, began, closed = [], threading.Event(), threading.Event()

    async def long():
        events.append(asyncio.get_running_loop())
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            events.append("cancelled")

    async def close_client(*_, **__):
        events.append(asyncio.get_running_loop())
        closed.set()

    monkeypatch.setattr(model_room, "close_client", close_client)
    model = Connection(LLM)
    future = model.start(long)
    assert began.wait(10)
    model.close()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(10)
    assert closed.wait(10)
    first, cancelled, last = events
    assert first is last
    assert cancelled == "cancelled"
    assert call(model) == 1, "the next call starts another loop"
    model.close()


def test_a_connection_that_nobody_holds_any_more_ends_its_thread(threads):
    model = Connection(LLM)
    assert call(model) == 1
    assert threads()
    del model
    gc.collect()
    wait_until(lambda: not threads())


def test_a_copy_has_a_loop_of_its_own(threads):
    model = Connection(LLM)
    assert call(model) == 1
    twin = pickle.loads(pickle.dumps(model))  # noqa: S301
    assert call(twin) == 1
    assert len(threads()) == 2
    twin.close()
    assert call(model) == 1
    model.close()


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_forked_child_starts_a_thread_of_its_own():
    model = Connection(LLM)
    assert call(model) == 1
    child = os.fork()
    if child == 0:
        os._exit(0 if call(model) == 1 else 1)
    end = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, 9)
    assert ended == (child, 0)
    assert call(model) == 1
    model.close()
