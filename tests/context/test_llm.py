"""Contexts from a language model, and everything that servers do instead of answering."""

from __future__ import annotations

import asyncio
import json
import pickle

import pytest
from fake_model import MODEL, Reply
from llama_index.core import Document, Settings
from llama_index.core.base.llms.types import CachePoint
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms import ChatMessage, MockLLM
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.llms.openai_like import OpenAILike

from llama_index_contextual.context import (
    FallbackContextGenerator,
    LLMContextGenerator,
    Prices,
    resolve_generator,
)
from llama_index_contextual.errors import ContextError, ContextualWarning, SettingError, StorageError
from llama_index_contextual.postprocessor import ContextualNodePostprocessor
from llama_index_contextual.postprocessor.contextual import count_by_source

PAID = f"llm:{MODEL}"
FAST = {"attempts": 2, "chunk_timeout": 60.0, "reading_rate": 1e6, "num_workers": 1}


def make_nodes(count: int, document: str = "book.md") -> list[TextNode]:
    """Chunks of one document that tile it."""
    nodes, start = [], 0
    for number in range(count):
        text = f"Paragraph {number} of {document} tells something. " * 3
        nodes.append(
            TextNode(
                text=text,
                id_=f"{document}#{number}",
                start_char_idx=start,
                end_char_idx=start + len(text),
                metadata={"path": document, "header_path": f"Part {number // 4}"},
                relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=document)},
            )
        )
        start += len(text)
    return nodes


@pytest.fixture
def step(fake_model, tmp_path):
    """Callable: a postprocessor that asks the fake model, with a cache in a file."""

    def make(**options):
        options = {"llm": fake_model.llm, "cache": tmp_path / "contexts.sqlite", **FAST, **options}
        return ContextualNodePostprocessor("llm", **options)

    return make


def run(step, nodes, *, falls_back=0):
    """Run a step; expect its one warning exactly when chunks fall back."""
    if falls_back:
        with pytest.warns(
            ContextualWarning, match=rf"^{falls_back} of \d+ chunks have no context from {PAID}"
        ) as caught:
            step(nodes)
        assert sum(issubclass(warning.category, ContextualWarning) for warning in caught) == 1
    else:
        step(nodes)
    for node in nodes:
        assert node.metadata["context"]
    counts = count_by_source(nodes)
    assert counts.get(PAID, 0) == len(nodes) - falls_back
    assert counts.total() == len(nodes)
    return counts


def test_several_chunks_a_call_document_first(step, fake_model):
    nodes = make_nodes(20)
    run(step(), nodes)
    assert [request.numbers for request in fake_model.requests] == [[*range(1, 9)], [*range(1, 9)], [1, 2, 3, 4]]
    document = "".join(node.text for node in nodes)
    shared = {request.prompt.partition(document)[0] for request in fake_model.requests}
    assert len(shared) == 1  # what a server's prefix cache can keep
    assert nodes[9].metadata["context"] == "Explains matter 2 of this very treatise."
    assert fake_model.requests[0].body["max_tokens"] == 800


def test_first_call_alone_then_the_rest_at_once(step, fake_model):
    busy = []

    def reply(_, number):
        busy.append(fake_model.busy)
        return Reply(delay=0.15)

    fake_model.reply = reply
    run(step(num_workers=4, batch_size=1, chunk_timeout=60.0), make_nodes(5))
    assert busy[0] == busy[1] == 1  # the second starts after the first has ended
    assert fake_model.most_busy == 4


def test_second_run_asks_nothing(step, fake_model):
    first, again = make_nodes(10), make_nodes(10)
    run(step(), first)
    asked = len(fake_model.requests)
    run(step(), again)
    assert len(fake_model.requests) == asked
    assert [n.metadata for n in first] == [n.metadata for n in again]


def test_one_edited_chunk_is_one_call(step, fake_model):
    run(step(), make_nodes(10))
    edited = make_nodes(10)
    edited[4].text = edited[4].text.replace("something.", "another th.")
    fake_model.requests.clear()
    run(step(), edited)
    [request] = fake_model.requests
    assert len(request.chunks) == 1
    assert "another th" in request.chunks[0]


def test_renaming_costs_nothing_and_reuse_document_pays_for_edits(step, fake_model):
    run(step(), make_nodes(4))
    fake_model.requests.clear()
    renamed = make_nodes(4)
    for node in renamed:
        node.metadata["path"] = "renamed.md"
    run(step(), renamed)
    assert not fake_model.requests
    longer = make_nodes(5)
    run(step(reuse="document"), longer)
    assert [len(request.chunks) for request in fake_model.requests] == [5]


def test_the_same_chunk_in_another_document_gets_its_own_context(step, fake_model):
    one, other = make_nodes(2), make_nodes(3)
    for node in other:
        node.metadata["path"] = "other.md"
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id="other.md")
    run(step(), one)
    run(step(), other)
    assert [len(request.chunks) for request in fake_model.requests] == [2, 3]


def test_another_prompt_or_model_asks_again(step, fake_model):
    nodes = make_nodes(3)
    run(step(), nodes)
    other = step(prompt=PromptTemplate("{document}\nSituate each of:\n{chunks}"))
    run(other, nodes)  # contexts of another version are outdated
    assert len(fake_model.requests) == 2
    assert "Situate each of:" in fake_model.requests[1].prompt
    assert other.fingerprint != step().fingerprint


# Faults


def good_but(first: Reply):
    """Fail once, then be well."""
    return lambda _, number: first if number == 0 else Reply()


def always(reply: Reply):
    return lambda *_: reply


WAITING = {
    "429 with Retry-After": Reply(status=429, headers={"Retry-After": "0"}),
    "429 without": Reply(status=429),
    "500": Reply(status=500),
    "503 while loading": Reply(status=503, body='{"error": {"message": "Loading model"}}'),
    "truncated JSON": Reply(cut=40),
    "JSON that ends early": Reply(body='{"id": "1", "choices": [{"mess'),
}


@pytest.mark.parametrize("fault", WAITING.values(), ids=WAITING)
def test_a_fault_that_passes_is_tried_again(step, fake_model, fault):
    fake_model.reply = good_but(fault)
    one = step()
    run(one, make_nodes(3))
    assert len(fake_model.requests) == 2
    assert (one.usage.calls, one.usage.retries) == (2, 1)


LASTING = {
    **{name: (fault, 2) for name, fault in WAITING.items()},
    "400": (Reply(status=400), 1),
    "401": (Reply(status=401), 1),
    "404": (Reply(status=404), 1),
    "Retry-After an hour": (Reply(status=429, headers={"Retry-After": "3600"}), 1),
    "hang": (Reply(delay=60), 1),
    "slow first byte": (Reply(delay=20), 1),
    "empty": (Reply(text=""), 1 + 2),  # a batch that leaves chunks out is followed by one question for each
    "thoughts without an end": (Reply(text="<think>Well, let me see, the first chunk"), 1 + 2),
    "unnumbered": (Reply(text="These chunks are about paragraphs."), 1),
    "refusal": (Reply(text="1: I'm sorry, I cannot do this.\n2: I cannot help."), 1),
    "copies": (Reply(text="1: Paragraph 0 of book.md tells something.\n2: Paragraph 1 of book.md tells something."), 1),
}


@pytest.mark.parametrize(("fault", "calls"), LASTING.values(), ids=LASTING)
def test_a_fault_that_lasts_is_a_fallback_and_the_next_run_asks_again(step, fake_model, fault, calls):
    fake_model.reply = always(fault)
    nodes = make_nodes(2)
    if fault.text == "These chunks are about paragraphs.":  # asked one by one, it is an answer like any other
        run(step(), nodes)
        return
    impatient = {"chunk_timeout": 0.3} if fault.delay else {}
    counts = run(step(**impatient), nodes, falls_back=2)
    assert counts == {"pattern": 2}
    assert len(fake_model.requests) == calls
    fake_model.reply = always(Reply())
    run(step(), nodes)  # upgraded


def test_a_call_that_takes_too_long_is_cancelled(step, fake_model):
    fake_model.reply = always(Reply(delay=60))
    run(step(chunk_timeout=0.3), make_nodes(2), falls_back=2)
    assert fake_model.requests[0].hung_up.wait(10)


NUMBERINGS = {
    "from zero": "0: Explains one thing to readers.\n1: Explains two things to readers.",
    "one twice": "1: Explains one thing to readers.\n1: Explains two things to readers.",
    "one too many": "1: Explains one thing here.\n2: Explains two things here.\n3: Explains three things here.",
    "one missing": "1: Explains one thing to readers.",
}


@pytest.mark.parametrize("text", NUMBERINGS.values(), ids=NUMBERINGS)
def test_wrong_numbering_in_a_batch_is_asked_again_one_by_one(step, fake_model, text):
    fake_model.reply = good_but(Reply(text=text))
    nodes = make_nodes(2)
    run(step(), nodes)
    good = 1 if text.startswith("1: Explains one thing to readers.") and text.count(":") == 1 else 0
    assert [request.numbers for request in fake_model.requests] == [[1, 2]] + [[1]] * (2 - good)


def test_a_model_that_cannot_do_batches_is_asked_one_by_one(step, fake_model):
    fake_model.reply = lambda request, _: Reply(
        text="Explains the matter in question." if request.numbers == [1] else "?"
    )
    one = step(batch_size=4)
    run(one, make_nodes(40))
    assert sum(len(request.numbers) > 1 for request in fake_model.requests) == 2
    one(make_nodes(8, "other.md"))
    assert sum(len(request.numbers) > 1 for request in fake_model.requests) == 2  # and that is not forgotten


def test_context_overflow_shows_less_of_the_document(step, fake_model):
    overflow = {"error": {"code": 400, "type": "exceed_context_size_error", "message": "too long", "n_ctx": 900}}

    def reply(request, _):
        return Reply(status=400, body=json.dumps(overflow)) if len(request.prompt) > 3000 else Reply()

    fake_model.reply = reply
    nodes = make_nodes(60)
    run(step(), nodes)
    answered = [request for request in fake_model.requests if len(request.prompt) <= 3000]
    assert all("longer than what is shown" in request.prompt for request in answered)
    for request in answered:
        document = request.prompt.partition("</document>")[0]
        assert all(chunk.strip() in document for chunk in request.chunks)  # each with its surroundings


def test_a_document_over_the_window_is_never_sent_whole(step, fake_model):
    nodes = make_nodes(200)
    run(step(context_window=1500), nodes)
    whole = "".join(node.text for node in nodes)
    assert all(whole not in request.prompt for request in fake_model.requests)
    assert all("Its outline:\nPart 0\nPart 1" in request.prompt for request in fake_model.requests)


def test_no_server_costs_no_calls(step, fake_model):
    fake_model.stop()
    nodes = make_nodes(50)
    one = step()
    run(one, nodes, falls_back=50)
    assert one.usage.calls == 0
    assert "no answer from 127.0.0.1" in str(one.usage.failed)


def test_a_server_that_dies_in_mid_run_costs_a_few_calls(step, fake_model):
    fake_model.reply = lambda _, number: Reply() if number < 2 else Reply(status=500)
    nodes = make_nodes(100)
    one = step(attempts=1)
    run(one, nodes, falls_back=84)
    assert len(fake_model.requests) == 2 + 3  # the breaker's threshold
    fake_model.reply = always(Reply())
    fake_model.requests.clear()
    run(step(), nodes)
    assert sum(len(request.numbers) for request in fake_model.requests) == 84


def test_fallback_only_uses_what_is_paid_for_and_calls_nobody(step, fake_model):
    run(step(), make_nodes(2))
    fake_model.requests.clear()
    counts = run(step(fallback_only=True), make_nodes(4), falls_back=2)
    assert counts == {PAID: 2, "pattern": 2}
    assert (fake_model.requests, fake_model.probes) == ([], 1)


def test_without_fallback_a_failure_is_an_error(step, fake_model):
    fake_model.reply = lambda _, number: Reply() if number == 0 else Reply(status=400)
    nodes = make_nodes(10)
    with pytest.raises(ContextError, match="2 of 10 chunks"):
        step(fallback=None)(nodes)
    assert count_by_source(nodes) == {PAID: 8, "": 2}


# Money


def test_budget_of_calls_stops_cleanly_and_a_later_run_goes_on(step, fake_model):
    nodes = make_nodes(30)
    run(step(max_calls=2), nodes, falls_back=14)
    assert len(fake_model.requests) == 2
    run(step(), nodes)
    assert len(fake_model.requests) == 4


def test_budget_holds_for_concurrent_calls(step, fake_model):
    fake_model.reply = always(Reply(delay=0.2))
    run(step(max_calls=3, num_workers=4, batch_size=1, chunk_timeout=60.0), make_nodes(12), falls_back=9)
    assert len(fake_model.requests) == 3


def test_budget_of_tokens(step, fake_model):
    fake_model.reply = always(Reply(usage={"prompt_tokens": 5000, "completion_tokens": 10}))
    run(step(max_tokens=9000), make_nodes(30), falls_back=14)
    assert len(fake_model.requests) == 2


def test_estimate_says_what_the_run_then_does(step, fake_model):
    nodes = make_nodes(20)
    one = step()
    before = one.estimate(nodes, prices=Prices(prompt=1.0, completion=2.0, cached=0.1))
    assert (before.chunks, before.from_cache, before.calls) == (20, 0, 3)
    assert before.tokens.prompt > before.tokens.cached > 0
    assert before.price == pytest.approx(
        (before.tokens.prompt - before.tokens.cached + 0.1 * before.tokens.cached + 2 * before.tokens.completion) / 1e6
    )
    assert fake_model.requests == []
    run(one, nodes)
    assert len(fake_model.requests) == before.calls
    assert one.estimate(make_nodes(20)).calls == 0
    assert one.estimate(make_nodes(20)).from_cache == 20


def test_usage_counts_tokens_as_the_server_does(step, fake_model):
    usage = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 60}}
    fake_model.reply = always(Reply(usage=usage))
    one = step()
    run(one, make_nodes(10))
    assert (one.usage.tokens.prompt, one.usage.tokens.cached, one.usage.tokens.completion) == (200, 120, 14)
    assert (one.usage.chunks, one.usage.generated, one.usage.from_cache) == (10, 10, 0)


# Around it


async def test_async_says_the_same_and_does_not_block(step, fake_model):
    fake_model.reply = always(Reply(delay=0.3))
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    ticking = asyncio.create_task(tick())
    nodes = make_nodes(4)
    await step(chunk_timeout=60.0).acall(nodes)
    ticking.cancel()
    assert ticks > 10
    again = make_nodes(4)
    step()(again)
    assert [n.metadata for n in again] == [n.metadata for n in nodes]


def test_calls_from_several_event_loops_share_a_client(step, fake_model):
    one = step(batch_size=1)
    one(make_nodes(2))
    asyncio.run(one.acall(make_nodes(4)))
    asyncio.run(one.acall(make_nodes(6)))
    one(make_nodes(8))
    assert (len(fake_model.requests), one.usage.retries, one.usage.failed.total()) == (8, 0, 0)


def test_an_llm_that_was_used_on_another_event_loop(fake_model):
    llm = OpenAILike(model=MODEL, api_base=fake_model.llm.partition("@")[2], api_key="k", is_chat_model=True)
    asyncio.run(llm.achat([ChatMessage("Good morning.")]))
    nodes = make_nodes(1)
    run(ContextualNodePostprocessor("llm", llm=llm, cache=False), nodes)


def test_a_dead_server_is_not_asked_for_each_file_of_an_index(step, fake_model):
    fake_model.probe_status = 503
    one = step()
    for number in range(5):
        run(one, make_nodes(1, f"{number}.md"), falls_back=1)
    assert (fake_model.probes, fake_model.requests) == (1, [])


def test_a_server_that_is_gone_in_mid_run(step, fake_model):
    def reply(_, number):
        if number == 1:
            fake_model.closing.set()
            fake_model.socket.close()
            return Reply(cut=0)
        return Reply()

    fake_model.reply = reply
    run(step(), make_nodes(40), falls_back=32)


def test_events_tell_what_happens(step):
    seen = []

    class Handler(BaseEventHandler):
        @classmethod
        def class_name(cls):
            return "Handler"

        def handle(self, event, **_):
            if event.class_name().startswith("Context"):
                seen.append(event)

    root = get_dispatcher()
    handler = Handler()
    root.add_event_handler(handler)
    try:
        run(step(), make_nodes(10))
    finally:
        root.event_handlers.remove(handler)
    assert [event.class_name() for event in seen] == [
        "ContextRunStartEvent", "ContextCallEvent", "ContextCallEvent", "ContextRunEndEvent",
    ]  # fmt: skip
    assert (seen[0].chunks, seen[1].accepted, seen[1].prompt_tokens, seen[3].generated) == (10, 8, 100, 10)


async def test_a_cancelled_run_cancels_its_request_and_keeps_what_is_finished(step, fake_model):
    fake_model.reply = lambda _, number: Reply() if number < 2 else Reply(delay=60)
    task = asyncio.create_task(step(batch_size=1, chunk_timeout=60).acall(make_nodes(5)))
    await asyncio.to_thread(fake_model.wait_for, 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    fake_model.reply = always(Reply())
    before = len(fake_model.requests)
    await step(batch_size=1).acall(make_nodes(5))
    assert len(fake_model.requests) == before + 3


async def test_sync_call_inside_a_running_loop_as_in_jupyter(step):
    run(step(), make_nodes(2))


def test_pipeline_cache_does_not_take_a_fallback_for_final(step, fake_model):
    document = Document(text="Words about things. " * 40, id_="a.md", metadata={"path": "a.md"})
    from llama_index.core.node_parser import SentenceSplitter

    parser = SentenceSplitter(chunk_size=40, chunk_overlap=0, id_func=lambda i, _: f"a#{i}")
    pipeline = IngestionPipeline(transformations=[parser, step()], disable_cache=False)
    fake_model.reply = always(Reply(status=400))
    with pytest.warns(ContextualWarning):
        fallen = pipeline.run(documents=[document])
    assert set(count_by_source(fallen)) == {"pattern"}
    fake_model.reply = always(Reply())
    assert set(count_by_source(pipeline.run(documents=[document]))) == {PAID}
    asked = len(fake_model.requests)
    assert set(count_by_source(pipeline.run(documents=[document]))) == {PAID}
    assert len(fake_model.requests) == asked


def test_any_key_value_store_will_do(step, fake_model):
    store = SimpleKVStore()
    run(step(cache=store), make_nodes(3))
    run(step(cache=store), make_nodes(3))
    assert len(fake_model.requests) == 1


def test_a_cache_that_cannot_be_used_is_an_error_before_money_is_spent(step, fake_model, tmp_path):
    (tmp_path / "broken.sqlite").write_text("no database " * 100)
    with pytest.raises(StorageError, match="Cure: name another file"):
        step(cache=tmp_path / "broken.sqlite")(make_nodes(1))
    assert not fake_model.requests


def test_a_key_is_nowhere_to_be_read(step, fake_model, tmp_path, caplog):
    caplog.set_level("DEBUG")
    key = "sk-very-secret"
    one = step(api_key=key)
    run(one, make_nodes(2))
    assert fake_model.requests[0].headers["Authorization"] == f"Bearer {key}"
    one.close()
    for place in (repr(one), str(one), repr(one.generator), one.to_json(), one.fingerprint, caplog.text):
        assert key not in place
    assert all(key.encode() not in file.read_bytes() for file in tmp_path.iterdir())
    given = OpenAILike(model="m", api_base="http://127.0.0.1:1/v1", api_key=key)
    assert key not in ContextualNodePostprocessor("llm", llm=given, cache=False).to_json()


def test_pickled_it_works_on_and_leaves_the_original_whole(fake_model, tmp_path):
    llm = OpenAILike(
        model=MODEL, api_base=fake_model.llm.partition("@")[2], api_key="k", is_chat_model=True, max_retries=0
    )
    one = ContextualNodePostprocessor("llm", llm=llm, cache=tmp_path / "c.sqlite")
    run(one, make_nodes(2))
    copy = pickle.loads(pickle.dumps(one))  # noqa: S301
    run(copy, make_nodes(2))
    run(one, make_nodes(3))
    assert copy.fingerprint == one.fingerprint
    assert len(fake_model.requests) == 2


def test_round_trip_through_a_dict(step):
    one = step(batch_size=3)
    copy = ContextualNodePostprocessor.from_dict(one.to_dict())
    assert copy.to_dict() == one.to_dict()
    assert copy.generator.first.batch_size == 3


def test_an_llm_object_is_not_written_down():
    one = ContextualNodePostprocessor("llm", llm=MockLLM(), cache=False)
    with pytest.raises(SettingError, match="Cure: pass it again"):
        ContextualNodePostprocessor.from_dict(one.to_dict())


def test_prompts_can_be_read_and_changed_the_way_of_llamaindex(step):
    generator = step().generator.first
    before = generator.version
    assert "<document>" in generator.get_prompts()["context_prompt"].format(document="", chunks="", count=1)
    generator.update_prompts({"context_prompt": PromptTemplate("{document} {chunks}")})
    assert generator.version != before
    with pytest.raises(SettingError, match="in this order"):
        generator.update_prompts({"context_prompt": PromptTemplate("{chunks} {document}")})


def test_settings_llm_is_taken_where_it_is_set_and_openai_never_guessed(monkeypatch):
    monkeypatch.setattr(Settings, "_llm", None)
    assert LLMContextGenerator(cache=False).name == "llm:qwen3:0.6b"
    monkeypatch.setattr(Settings, "_llm", MockLLM())
    assert LLMContextGenerator(cache=False).name == "llm:MockLLM"


def test_client_that_tries_again_by_itself_is_asked_once(fake_model, tmp_path):
    llm = OpenAILike(
        model=MODEL, api_base=fake_model.llm.partition("@")[2], api_key="k", is_chat_model=True, max_retries=1
    )
    fake_model.reply = always(Reply(status=500))
    run(ContextualNodePostprocessor("llm", llm=llm, cache=False, attempts=5), make_nodes(1), falls_back=1)
    assert len(fake_model.requests) == 1 + 1


def test_cache_point_after_the_document_for_anthropic(monkeypatch):
    seen = []

    class Anthropic(MockLLM):
        @classmethod
        def class_name(cls):
            return "Anthropic_LLM"

        def chat(self, messages, **kwargs):
            seen.extend(messages)
            return super().chat(messages)

    generator = LLMContextGenerator(Anthropic(), cache=False)
    ContextualNodePostprocessor(generator=FallbackContextGenerator([generator, resolve_generator("headings")]))
    generator.generate_all([])
    from llama_index_contextual.context.documents import group_by_document

    [(chunks, _)] = group_by_document(make_nodes(2))
    generator.generate_all([chunks])
    document, point, question = seen[0].blocks
    assert "Paragraph 1" in document.text
    assert isinstance(point, CachePoint)
    assert '<chunk number="2"' in question.text


WRONG = [
    ({"llm": "qwen3"}, "names no model"),
    ({"llm": "ollama:"}, "names no model"),
    ({"llm": 3}, "no LlamaIndex LLM"),
    ({"batch_size": 0}, "batch_size=0 cannot work"),
    ({"chunk_timeout": -1.0}, "chunk_timeout=-1.0"),
    ({"reuse": "never"}, "reuse='never'"),
    ({"cache": 3}, "cache=3"),
    ({"prompt": PromptTemplate("{chunks}")}, "must hold {document}"),
    ({"fallback": "guess"}, "fallback='guess'"),
    ({"colour": 1}, "does not take colour"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_setting_is_named_with_its_cure(options, message):
    with pytest.raises(SettingError, match=message) as caught:
        resolve_generator("llm", **options)
    assert "Cure:" in str(caught.value)


def test_progress_counts_chunks_across_documents(step):
    seen = []
    generator = step(batch_size=4).generator
    from llama_index_contextual.context.documents import group_by_document

    groups = [chunks for chunks, _ in group_by_document([*make_nodes(6), *make_nodes(2, "other.md")])]
    generator.generate_all(groups, seen.append)
    assert [progress.done for progress in seen] == [0, 4, 6, 8]
    assert {progress.total for progress in seen} == {8}
    generator.generate_all(groups, seen.append)
    assert (seen[-1].done, seen[-1].cached) == (8, 8)
