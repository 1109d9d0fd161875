"""Threads that keep LlamaIndex's tracing context."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


def in_thread(action: Callable[..., _T], *arguments: object) -> Future[_T]:
    """Call a function in a new daemon thread, and return the future of its result.

    An executor is not used, because a call that hangs would block later calls and keep the event
    loop and the process from ending.
    """
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()  # from here on nobody can cancel it
    # LlamaIndex's spans and callbacks live in context variables.
    context = contextvars.copy_context()

    def call() -> None:
        try:
            future.set_result(context.run(action, *arguments))
        except BaseException as error:  # noqa: BLE001  SystemExit must not leave the caller waiting
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future
