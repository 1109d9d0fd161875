"""Tell LlamaIndex's instrumentation how long each step takes and what it does, also from threads of our own.

Each step is a span, and a :class:`StepEvent` at its end. LlamaIndex itself tells of a retriever's ``retrieve()``, of
each batch that an embedding makes and of each call of a language model; its spans lie inside of ours and around them.
Nothing of a text, a vector or a question is recorded here, unless the message of an error quotes it.
"""

from __future__ import annotations

import contextvars
import inspect
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.span import active_span_id

_T = TypeVar("_T")

_dispatcher: Final = get_dispatcher("llama_index_contextual")
_TAKES_ANY: Final = inspect.signature(lambda **facts: facts)


class StepEvent(BaseEvent):
    """A step has ended.

    Attributes:
        step: ``"refresh"``, ``"context"``, ``"embed"``, ``"store"``, ``"arm"`` or ``"fusion"``.
        seconds: How long it took.
        facts: Its numbers and names, such as ``{"rows": 64, "embedded": 12}``; see the recipe in the documentation.
        error: Class and message of what ended it; empty where it succeeded.
    """

    step: str
    seconds: float
    facts: dict[str, str | int | float]
    error: str = ""

    @classmethod
    def class_name(cls) -> str:
        """The event's name."""
        return "StepEvent"


@contextmanager
def step(name: str, /, **facts: str | float) -> Iterator[dict[str, Any]]:
    """Open a span for a step, and send its :class:`StepEvent` when it ends; yield its facts, to be added to.

    Args:
        name: As :class:`StepEvent` lists them; the span is called ``contextual.NAME``.
        **facts: What is known when it begins.
    """
    span: dict[str, Any] = {
        "id_": f"contextual.{name}-{uuid.uuid4()}",
        "bound_args": _TAKES_ANY.bind(**facts),
    }
    _dispatcher.span_enter(**span, parent_id=active_span_id.get())
    token, began, reason = active_span_id.set(span["id_"]), time.monotonic(), ""
    try:
        yield facts
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        _dispatcher.span_drop(**span, err=error)
        raise
    else:
        _dispatcher.span_exit(**span, result=facts)
    finally:
        seconds = time.monotonic() - began
        _dispatcher.event(StepEvent(step=name, seconds=seconds, facts=facts, error=reason))
        active_span_id.reset(token)


def in_thread(action: Callable[..., _T], *arguments: object) -> Future[_T]:
    """Call a function in a new daemon thread, and return the future of what it returns or raises.

    In an executor, a call that hangs would starve later callers, and keep the event loop and the process from ending.
    """
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()  # from here on nobody can cancel it
    context = (
        contextvars.copy_context()
    )  # LlamaIndex's spans and callbacks live in context variables

    def call() -> None:
        try:
            future.set_result(context.run(action, *arguments))
        except BaseException as error:  # noqa: BLE001  SystemExit in there must not leave its caller waiting
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future
