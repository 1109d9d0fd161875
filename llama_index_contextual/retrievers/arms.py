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

from llama_index_contextual.retrievers.candidates import Candidate, CandidateRetriever

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.schema import NodeWithScore, QueryBundle


@dataclass(frozen=True, slots=True)
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
    """Ask all at once and wait; an arm that fails or is late gives its exception, in order of the questions."""
    running = [_start(question, pool) for question in questions[:-1]]
    own = questions[-1:] if timeout is None else ()
    running += [_start(question, pool) for question in questions[len(running) : len(questions) - len(own)]]
    last = [_attempt(question, pool) for question in own]  # without a limit, the caller's thread does the last itself
    deadline = None if timeout is None else time.monotonic() + timeout
    return [_result(future, deadline) for future in running] + last


async def ask_async(questions: Sequence[Question], pool: int, timeout: float | None) -> list[Answer]:
    """The same on an event loop, which goes on meanwhile."""
    tasks = [asyncio.wait_for(_ask_one_async(question, pool), timeout) for question in questions]
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    return [_as_answer(answer) for answer in answers]


def _start(question: Question, pool: int) -> Future[Answer]:
    """Ask in a thread of its own, which does not outlive the interpreter.

    In an executor, a hanging arm would starve later callers and keep the event loop and the process from ending.
    """
    future: Future[Answer] = Future()
    context = contextvars.copy_context()  # LlamaIndex's spans and callbacks live in context variables

    def answer() -> None:
        future.set_running_or_notify_cancel()
        future.set_result(context.run(_attempt, question, pool))

    threading.Thread(target=answer, daemon=True).start()
    return future


def _attempt(question: Question, pool: int) -> Answer:
    try:
        return _ask_one(question, pool)
    except Exception as error:  # noqa: BLE001  whatever an arm raises, the others' answers stand
        return error


def _result(future: Future[Answer], deadline: float | None) -> Answer:
    try:
        return future.result(None if deadline is None else max(0.0, deadline - time.monotonic()))
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
    retriever = question.retriever
    if isinstance(retriever, CandidateRetriever) or _blocks(retriever):
        return await asyncio.wrap_future(_start(question, pool))
    return _plain(await retriever.aretrieve(question.bundle), pool)


def _blocks(retriever: BaseRetriever) -> bool:
    """Whether a retriever's asynchronous call is the synchronous one: LlamaIndex's default, and Chroma's."""
    if type(retriever)._aretrieve is BaseRetriever._aretrieve:  # noqa: SLF001  it says which one would run
        return True
    store = getattr(retriever, "_vector_store", None)
    return isinstance(store, BasePydanticVectorStore) and type(store).aquery is BasePydanticVectorStore.aquery


def _plain(found: Sequence[NodeWithScore], pool: int) -> list[Candidate]:
    ordered = sorted(found, key=lambda one: -(one.score or 0.0))[:pool]
    return [Candidate(one.node.node_id, one.score, one.node) for one in ordered]
