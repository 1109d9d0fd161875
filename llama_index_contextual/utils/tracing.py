"""LlamaIndex's spans, and threads that keep their context."""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from llama_index.core.instrumentation import get_dispatcher

_T = TypeVar("_T")
_Method = TypeVar("_Method", bound=Callable[..., Any])


def traced(method: _Method) -> _Method:
    """Return a method whose calls are spans of LlamaIndex.

    A span contains the arguments by name. The signature that this needs is stored in the method,
    because Python would otherwise inspect the method at each call.
    """
    method.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    return get_dispatcher(method.__module__).span(method)  # type: ignore[return-value]


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
