"""The loop that a generator's calls share: closed by one thread while another begins a call."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time

from llama_index_contextual.context.llm.event_loop import LoopThread


async def nothing():
    await asyncio.sleep(0)
    return 1


def test_a_call_that_begins_while_the_loop_is_closed_ends(monkeypatch):
    """The loop stops between the moment when a caller is given it and the moment when it is given the call."""
    thread = LoopThread()
    assert thread.run(nothing()) == 1
    submit = asyncio.run_coroutine_threadsafe

    def late(coroutine, loop):
        closing = threading.Thread(target=thread.close)
        closing.start()
        closing.join(0.2)  # for as long as the loop must not be closed
        time.sleep(0.2)
        return submit(coroutine, loop)

    ended = []

    def call():
        try:
            ended.append(thread.run(nothing()))
        except BaseException as error:  # noqa: BLE001  whatever ends it
            ended.append(type(error))

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", late)
    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(10)
    assert ended in ([1], [concurrent.futures.CancelledError])


def test_closing_and_calling_at_once_leaves_no_caller_waiting():
    thread, end, done = LoopThread(), time.monotonic() + 2, []

    def call():
        while time.monotonic() < end:
            with contextlib.suppress(concurrent.futures.CancelledError):
                assert thread.run(nothing()) == 1
            done.append(1)

    callers = [threading.Thread(target=call, daemon=True) for _ in range(4)]
    for caller in callers:
        caller.start()
    while time.monotonic() < end:
        thread.close()
        time.sleep(0.0005)
    for caller in callers:
        caller.join(10)
    assert not any(caller.is_alive() for caller in callers)
    assert done
    thread.close()


async def test_a_caller_on_a_loop_gets_its_result_and_cancels_what_it_no_longer_wants():
    thread, began, cancelled = LoopThread(), threading.Event(), threading.Event()

    async def long():
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    assert await thread.arun(nothing()) == 1
    task = asyncio.create_task(thread.arun(long()))
    assert await asyncio.to_thread(began.wait, 10)
    task.cancel()
    assert await asyncio.to_thread(cancelled.wait, 10)
    thread.close()
