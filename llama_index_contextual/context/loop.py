"""An event loop in a thread of its own: one loop for all of a generator's calls, from wherever they come."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from concurrent.futures import Future

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for synchronous callers, Jupyter's included, and for those of any event loop.

    One loop for all of them, because HTTP clients keep connections that belong to the loop that opened them, and fail
    or hang on another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._cleanups: list[Callable[[], Awaitable[None]]] = []

    def before_close(self, cleanup: Callable[[], Awaitable[None]]) -> None:
        """Have something done on the loop before it ends: connections must be closed where they were opened."""
        self._cleanups.append(cleanup)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine's result; when the wait is interrupted, it is cancelled."""
        future = self._submitted(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def arun(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Do the same without blocking the caller's event loop."""
        return await asyncio.wrap_future(self._submitted(coroutine))

    def close(self) -> None:
        """End the thread, and cancel what it is doing; the next call starts another."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None and self._process == os.getpid():
                loop.call_soon_threadsafe(loop.stop)

    def _submitted(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        # Under the lock, so that a call is begun before the loop is told to stop, which then cancels it, or on the next
        # loop: given to a loop that has stopped, it would never end.
        with self._lock:
            return asyncio.run_coroutine_threadsafe(coroutine, self._started())

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._process != os.getpid():  # a forked child has the loop but not the thread
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_serve, args=(loop, self._cleanups), name="contexts", daemon=True)
            thread.start()
            self._loop, self._process = loop, os.getpid()
            weakref.finalize(self, _stop, loop).atexit = False
        return self._loop


def _serve(loop: asyncio.AbstractEventLoop, cleanups: list[Callable[[], Awaitable[None]]]) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    running = asyncio.all_tasks(loop)
    for task in running:  # their callers would wait for ever
        task.cancel()
    loop.run_until_complete(asyncio.gather(*running, return_exceptions=True))
    loop.run_until_complete(asyncio.gather(*(cleanup() for cleanup in cleanups), return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    if loop.is_running():
        loop.call_soon_threadsafe(loop.stop)
