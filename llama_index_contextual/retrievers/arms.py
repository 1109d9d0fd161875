"""Asking several retrievers at once, in threads or on an event loop, with a time limit for each."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from llama_index_contextual.retrievers.arm_settings import is_keyword
from llama_index_contextual.retrievers.candidates import Candidate, CandidateRetriever

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.schema import NodeWithScore, QueryBundle


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One query for one arm.

    Args:
        arm: Number of the arm.
        query: Number of the query.
        retriever: The arm.
        bundle: The arm's own copy of the query: LlamaIndex's retrievers write the embedding into it.
    """

    arm: int
    query: int
    retriever: BaseRetriever
    bundle: QueryBundle


Answer = list[Candidate] | Exception


def ask(questions: Sequence[Question], pool: int, timeout: float | None) -> list[Answer]:
    """Ask all at once and wait; an arm that fails or is late gives its exception, in order of the questions.

    Without a time limit the caller's own thread does what one thread can do best: see :func:`_together`.
    """
    own = _together(questions) if timeout is None else []
    running = {question: _start([question], pool) for question in questions if question not in own}
    done = {question: _attempt(question, pool) for question in own}
    deadline = None if timeout is None else time.monotonic() + timeout
    return [done[one] if one in done else _result(running[one], deadline) for one in questions]


async def ask_async(questions: Sequence[Question], pool: int, timeout: float | None) -> list[Answer]:
    """The same on an event loop, which goes on meanwhile."""
    own = _together([one for one in questions if _blocks(one.retriever)]) if timeout is None else []
    group = _start(own, pool) if own else None
    apart = [question for question in questions if question not in own]
    tasks = [asyncio.wait_for(_ask_one_async(question, pool), timeout) for question in apart]
    answers = [_as_answer(answer) for answer in await asyncio.gather(*tasks, return_exceptions=True)]
    found = dict(zip(apart, answers, strict=True))
    if group is not None:
        together: list[Answer] = await asyncio.wrap_future(group)
        found |= dict(zip(own, together, strict=True))
    return [found[question] for question in questions]


def _together(questions: Sequence[Question]) -> list[Question]:
    """What one thread does one after the other: the keyword arms, and the last of the others.

    Keyword arms compute for about a millisecond, and Python runs one thread at a time: a thread more would win nothing,
    and on a busy machine each change of threads costs several milliseconds.
    """
    quick = [question for question in questions if is_keyword(question.retriever)]
    others = [question for question in questions if question not in quick]
    return quick + others[-1:]


def _start(questions: Sequence[Question], pool: int) -> Future[list[Answer]]:
    """Ask in a thread of its own, which does not outlive the interpreter.

    In an executor, a hanging arm would starve later callers and keep the event loop and the process from ending.
    """
    future: Future[list[Answer]] = Future()
    context = contextvars.copy_context()  # LlamaIndex's spans and callbacks live in context variables

    def answer() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result([context.run(_attempt, question, pool) for question in questions])
        except BaseException as error:  # noqa: BLE001  SystemExit in an arm must not leave its caller waiting
            future.set_exception(error)

    threading.Thread(target=answer, daemon=True).start()
    return future


def _attempt(question: Question, pool: int) -> Answer:
    try:
        return _ask_one(question, pool)
    except Exception as error:  # noqa: BLE001  whatever an arm raises, the others' answers stand
        return error


def _result(future: Future[list[Answer]], deadline: float | None) -> Answer:
    try:
        return future.result(None if deadline is None else max(0.0, deadline - time.monotonic()))[0]
    except Exception as error:  # noqa: BLE001  a TimeoutError, of which Python 3.10 has three kinds
        return error


def _as_answer(answer: Any) -> Answer:
    if isinstance(answer, BaseException) and not isinstance(answer, Exception):
        raise answer
    return answer  # type: ignore[no-any-return]


def _ask_one(question: Question, pool: int) -> list[Candidate]:
    retriever = question.retriever
    if isinstance(retriever, CandidateRetriever):
        return retriever.candidates(question.bundle, pool)
    return _plain(retriever.retrieve(question.bundle), pool)


async def _ask_one_async(question: Question, pool: int) -> Answer:
    if _blocks(question.retriever):
        return (await asyncio.wrap_future(_start([question], pool)))[0]
    return _plain(await question.retriever.aretrieve(question.bundle), pool)


def _blocks(retriever: BaseRetriever) -> bool:
    """Whether a retriever would compute on the event loop: ours, LlamaIndex's default, and any on Chroma."""
    if isinstance(retriever, CandidateRetriever):
        return True
    if type(retriever)._aretrieve is BaseRetriever._aretrieve:  # noqa: SLF001  it says which one would run
        return True
    store = getattr(retriever, "_vector_store", None)
    return isinstance(store, BasePydanticVectorStore) and type(store).aquery is BasePydanticVectorStore.aquery


def _plain(found: Sequence[NodeWithScore], pool: int) -> list[Candidate]:
    ordered = sorted(found, key=lambda one: -(one.score or 0.0))[:pool]
    return [Candidate(one.node.node_id, one.score, one.node) for one in ordered]
