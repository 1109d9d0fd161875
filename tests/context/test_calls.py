"""Requests to a language model: their limits, attempts, pauses and token counts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from llama_index.core.base.llms.types import CachePoint
from llama_index.core.llms import ChatMessage, ChatResponse, LLMMetadata

from llama_index_contextual.context import calls
from llama_index_contextual.context.base import ContextUsage
from llama_index_contextual.context.prompts import FilledPrompt, count_tokens
from llama_index_contextual.utils import errors
from llama_index_contextual.utils.errors import ContextError

PROMPT = FilledPrompt("Read this: ", "It rained in Bergen.", " Describe it.")
ANSWER = "1: The weather in Bergen."


class StatusError(Exception):
    """An error of a client, with the HTTP status of the answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status_code = status


class Scripted:
    """A model that fails with some errors first and then answers.

    Attributes:
        requests: The messages and options of all requests.
    """

    def __init__(self, *failures, answer=ANSWER, integration="MockLLM", usage=None):
        self.failures = list(failures)
        self.requests = []
        self.integration = integration
        self.response = ChatResponse(message=ChatMessage(content=answer), raw={"usage": usage})

    def class_name(self):
        return self.integration

    def chat(self, messages, **options):
        self.requests.append((messages, options))
        if self.failures:
            raise self.failures.pop(0)
        return self.response


@pytest.fixture(autouse=True)
def _no_waiting_between_attempts(monkeypatch):
    monkeypatch.setattr(errors, "pause", lambda _: 0)


@pytest.fixture
def clock(monkeypatch):
    """Return the clock of the pauses, whose ``now`` can be set."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(calls, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def model_calls():
    return calls.ModelCalls(ContextUsage(), None)


def send(model_calls, llm, chunks=1):
    return asyncio.run(model_calls.answer(llm, PROMPT, chunks))


def fail(model_calls, status, times):
    for _ in range(times):
        with pytest.raises(ContextError, match=f"HTTP {status}"):
            send(model_calls, Scripted(*[StatusError(status)] * calls.ATTEMPTS))


@pytest.mark.parametrize(
    ("integration", "options"),
    [
        ("openai_llm", {"max_tokens": 300}),
        ("OpenAILike", {"max_tokens": 300}),
        ("Anthropic_LLM", {"max_tokens": 300}),
        ("MistralAI_LLM", {"max_tokens": 300}),
        ("Groq", {"max_tokens": 300}),
        ("TogetherLLM", {"max_tokens": 300}),
        ("OpenRouter_LLM", {"max_tokens": 300}),
        ("Ollama_llm", {}),
    ],
)
def test_an_answer_has_at_most_a_hundred_tokens_per_chunk(model_calls, integration, options):
    llm = Scripted(integration=integration)
    send(model_calls, llm, chunks=3)
    [(_, sent)] = llm.requests
    assert sent == options


@pytest.mark.parametrize(
    ("integration", "is_marked"),
    [("Anthropic_LLM", True), ("Bedrock_Converse_LLM", True), ("openai_llm", False)],
)
def test_servers_that_need_a_mark_to_cache_the_document_get_one(
    model_calls, integration, is_marked
):
    llm = Scripted(integration=integration)
    send(model_calls, llm)
    [([message], _)] = llm.requests
    assert any(isinstance(block, CachePoint) for block in message.blocks) == is_marked


@pytest.mark.parametrize(("failures", "answers"), [(2, True), (3, False)])
def test_a_busy_server_gets_three_attempts(model_calls, failures, answers):
    llm = Scripted(*[StatusError(503)] * failures)
    if answers:
        assert send(model_calls, llm) == ANSWER
    else:
        with pytest.raises(ContextError, match="HTTP 503"):
            send(model_calls, llm)
    assert len(llm.requests) == 3


def test_a_request_that_was_refused_is_not_repeated(model_calls):
    llm = Scripted(StatusError(401))
    with pytest.raises(ContextError, match="HTTP 401"):
        send(model_calls, llm)
    assert len(llm.requests) == 1


@pytest.mark.parametrize("max_calls", [0, 2])
def test_at_most_max_calls_requests_are_sent(max_calls):
    usage = ContextUsage()
    model_calls = calls.ModelCalls(usage, max_calls)
    llm = Scripted()
    for _ in range(max_calls):
        send(model_calls, llm)
    with pytest.raises(ContextError, match=f"max_calls={max_calls} reached"):
        send(model_calls, llm)
    assert len(llm.requests) == usage.calls == max_calls


def test_after_three_failures_in_a_row_requests_pause_for_thirty_seconds(model_calls, clock):
    fail(model_calls, 500, times=2)
    assert not model_calls.is_paused
    fail(model_calls, 500, times=1)
    clock.now += 29.9
    llm = Scripted()
    with pytest.raises(ContextError, match="server does not answer"):
        send(model_calls, llm)
    assert llm.requests == []
    clock.now += 0.2
    assert send(model_calls, llm) == ANSWER


def test_an_answer_ends_a_row_of_failures(model_calls):
    fail(model_calls, 500, times=2)
    send(model_calls, Scripted())
    fail(model_calls, 500, times=2)
    assert not model_calls.is_paused


def test_a_refused_prompt_does_not_pause_requests(model_calls, clock):
    fail(model_calls, 400, times=4)
    assert not model_calls.is_paused
    fail(model_calls, 500, times=3)
    clock.now += 31
    fail(model_calls, 400, times=1)
    assert not model_calls.is_paused


def test_an_answer_without_content_is_empty(model_calls):
    assert send(model_calls, Scripted(answer=None)) == ""


OPENAI = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 60},
}
ANTHROPIC = {"input_tokens": 90, "output_tokens": 5, "cache_read_input_tokens": 50}


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [(OPENAI, (100, 60, 7)), (ANTHROPIC, (90, 50, 5)), ({"prompt_tokens": 8}, (8, 0, 0))],
    ids=["OpenAI", "Anthropic", "prompt alone"],
)
@pytest.mark.parametrize("form", [dict, lambda usage: SimpleNamespace(**usage)])
def test_tokens_are_those_that_the_server_counted(model_calls, usage, tokens, form):
    send(model_calls, Scripted(usage=form(usage)))
    assert model_calls._usage.tokens == tokens


def test_tokens_that_no_server_counted_are_counted_here(model_calls):
    send(model_calls, Scripted())
    assert model_calls._usage.tokens == (PROMPT.tokens, 0, count_tokens(ANSWER))


@pytest.mark.parametrize(("reported", "used"), [(-1, 8192), (0, 8192), (1, 1), (4096, 4096)])
def test_a_window_that_no_server_reports_has_8192_tokens(reported, used):
    metadata = LLMMetadata(context_window=reported)
    assert calls.context_window(SimpleNamespace(metadata=metadata)) == used


@pytest.mark.parametrize(
    ("address", "is_local"),
    [
        ({"api_base": "http://localhost:8080/v1"}, True),
        ({"base_url": "http://127.0.0.1:11434"}, True),
        ({"base_url": "http://[::1]:11434"}, True),
        ({"api_base": "http://0.0.0.0:8000/v1"}, True),
        ({"api_base": "https://localhost.example.org/v1"}, False),
        ({}, False),
    ],
)
def test_a_model_is_local_if_its_server_is_on_this_machine(address, is_local):
    assert calls.is_local(SimpleNamespace(**address)) == is_local
