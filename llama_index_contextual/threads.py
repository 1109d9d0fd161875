"""Work in a thread of its own, which does not outlive the interpreter."""

from __future__ import annotations

import contextvars
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


def in_thread(action: Callable[..., _T], *arguments: object) -> Future[_T]:
    """Call a function in a new daemon thread, and return the future of what it returns or raises.

    In an executor, a call that hangs would starve later callers, and keep the event loop and the process from ending.
    """
    future: Future[_T] = Future()
    context = contextvars.copy_context()  # LlamaIndex's spans and callbacks live in context variables

    def call() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(context.run(action, *arguments))
        except BaseException as error:  # noqa: BLE001  SystemExit in there must not leave its caller waiting
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future
