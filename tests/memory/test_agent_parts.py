"""Memory in LlamaIndex: a retriever, a block of `Memory`, a tool, and an agent that uses them."""

import json

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import ChatMessage, MockLLM
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import Memory
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import (
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    RelatedNodeInfo,
    TextNode,
)

from llama_index_contextual import MemoryContext, contextual_tools
from llama_index_contextual.memory import MemoryContextBlock, MemoryContextRetriever
from llama_index_contextual.memory.digest import HEADER, NOTHING
from llama_index_contextual.utils.errors import SettingError


@pytest.fixture(scope="module")
def context(retriever):
    return MemoryContext(retriever)


async def test_the_retriever_returns_snippets_with_citations(context):
    retriever = MemoryContextRetriever(context)
    [first, *_] = retriever.retrieve("what does JC's dog love?")
    quoted = first.node.get_content().splitlines()
    assert "  > - JC's dog Cookie loves carrots. He stole three from the pan." in quoted
    assert first.node.metadata["citation"].startswith("memory/2026-04-09.md#L")
    assert first.node.get_content(MetadataMode.LLM).startswith("citation: memory/2026-04-09.md#L")
    hits = await retriever.aretrieve("what does JC's dog love?")
    assert hits[0].node.text == first.node.text
    assert retriever.retrieve("hola") == []


class SilentRetriever(BaseRetriever):
    """A retriever without results."""

    def _retrieve(self, query_bundle):
        return []


def test_the_retriever_s_nodes_keep_their_source_and_their_headings(context):
    hits = MemoryContextRetriever(context).retrieve("does JC like ginger?")
    entries = context.get("does JC like ginger?").entries
    assert hits
    assert [hit.node.ref_doc_id for hit in hits] == [entry.node.ref_doc_id for entry in entries]
    assert all(hit.node.ref_doc_id for hit in hits)
    assert [hit.node.metadata.get("header_path", "") for hit in hits] == [
        entry.header_path for entry in entries
    ]
    assert any(entry.header_path for entry in entries)


def test_the_retriever_serves_a_query_engine(context):
    engine = RetrieverQueryEngine.from_args(MemoryContextRetriever(context), llm=MockLLM())
    assert "Cookie loves carrots" in str(engine.query("what does JC's dog love?"))


async def test_the_tool_answers_with_the_digest(context):
    [tool, retrieve] = contextual_tools(context)
    assert (tool.metadata.name, retrieve.metadata.name) == ("memory_context", "retrieve")
    assert "Cookie loves carrots" in retrieve.call(query="carrots").content
    assert tool.call(message="does JC like ginger?").content.startswith(HEADER)
    assert (await tool.acall(message="thanks!")).content == NOTHING
    parameters = tool.metadata.get_parameters_dict()
    about = parameters["properties"]["message"]
    assert (about["type"], about["description"]) == ("string", "The user's message, as written.")
    assert parameters["required"] == ["message"]


async def test_the_tool_returns_json_with_entries_queries_and_applicable(context):
    [tool, _] = contextual_tools(context)
    message = "what does JC's dog love?"
    data = json.loads(tool.call(message=message, format="json").content)
    assert data["applicable"] is True
    assert data["queries"] == [message]
    assert data["entries"][0]["path"] == "memory/2026-04-09.md"
    assert json.loads((await tool.acall(message=message, format="json")).content) == data
    thanks = json.loads(tool.call(message="thanks!", format="json").content)
    assert (thanks["applicable"], thanks["entries"], thanks["queries"]) == (False, [], [])


class Listener:
    """A model that records its input, answers "noted" and calls no tool."""

    def __init__(self):
        self.prompts = []

    def __call__(self, messages, **_):
        self.prompts.append("\n".join(str(message.content) for message in messages))
        return ChatMessage(role="assistant", content="noted")


def agent_that_listens():
    listener = Listener()
    return listener, FunctionAgent(
        llm=MockFunctionCallingLLM(response_generator=listener), tools=[], system_prompt="Be kind."
    )


async def test_an_agent_gets_the_digest_in_each_turn(context):
    listener, agent = agent_that_listens()
    memory = Memory.from_defaults(
        session_id="jc", memory_blocks=[MemoryContextBlock(context=context)]
    )
    for message in ("does JC like ginger?", "thanks a lot!", "what does JC's dog love?"):
        await agent.run(message, memory=memory)
    ginger, thanks, dog = listener.prompts
    assert f"<prior_context>\n{HEADER}" in ginger
    assert "ginger helps him sleep" in ginger
    assert HEADER not in thanks
    assert "Cookie loves carrots" in dog


async def test_a_repeated_question_is_answered_again(context):
    listener, agent = agent_that_listens()
    memory = Memory.from_defaults(
        session_id="a", memory_blocks=[MemoryContextBlock(context=context)]
    )
    for message in ("does JC like ginger?", "ok", "so does JC like ginger tea?"):
        await agent.run(message, memory=memory)
    # The text of a block is not stored in the history.
    assert ["ginger helps him sleep" in prompt for prompt in listener.prompts] == [
        True,
        False,
        True,
    ]


async def test_a_turn_has_one_digest_however_often_it_is_requested(context, monkeypatch):
    block = MemoryContextBlock(context=context)
    asked = [ChatMessage(role="user", content="does JC like ginger?")]
    first = await block.aget(asked, session_id="s")
    assert first.startswith(HEADER)
    assert (
        await block.aget([*asked, *asked], session_id="s") == first
    )  # the history and the same message as input
    called = [
        *asked,
        ChatMessage(role="assistant", content="calling"),
        ChatMessage(role="tool", content="42"),
    ]
    assert await block.aget(called, session_id="s") == first
    assert await block.aget(asked, session_id="another") == first
    asked_for = []
    monkeypatch.setattr(context, "aget", asked_for.append)
    assert await block.aget(called, session_id="s") == first
    assert not asked_for


@pytest.mark.parametrize("kind", [MemoryContextRetriever, MemoryContextBlock])
def test_anything_but_a_memory_is_rejected(kind):
    with pytest.raises(SettingError, match=r"must be a MemoryContext \(got SilentRetriever\)"):
        kind(SilentRetriever())


def test_a_block_rejects_unknown_settings(context):
    with pytest.raises(SettingError, match="does not take remember_turns"):
        MemoryContextBlock(context=context, remember_turns=2)


async def test_an_empty_digest_adds_no_block(context):
    block = MemoryContextBlock(context=context)
    assert (
        await block.aget([ChatMessage(role="user", content="what is the capital of Mongolia")])
        == ""
    )
    assert await block.aget([]) == ""
    await block.aput([ChatMessage(role="user", content="kept in notes, not here")])


async def test_the_same_message_in_a_later_turn_is_searched_again(context, monkeypatch):
    block = MemoryContextBlock(context=context)
    searched = []

    async def aget(message):
        searched.append(message)
        return context.get(message)

    monkeypatch.setattr(context, "aget", aget)
    question = ChatMessage(role="user", content="does JC like ginger?")
    await block.aget([question])
    await block.aget([question, question])  # the history and the same message as input
    assert len(searched) == 1
    answered = ChatMessage(role="user", content="thanks, and now?")
    await block.aget([question, answered, question])
    assert len(searched) == 2


async def test_a_block_only_keeps_the_digests_of_the_last_turns(context):
    block = MemoryContextBlock(context=context)
    for turn in range(20):
        await block.aget([ChatMessage(role="user", content=f"ok {turn}")])
    assert len(block._shown) == 8


def test_the_source_of_a_quotation_has_no_metadata():
    class WithSource(BaseRetriever):
        def _retrieve(self, _query):
            source = RelatedNodeInfo(node_id="a.md", metadata={"secret": "s"})
            node = TextNode(text="Tea.", relationships={NodeRelationship.SOURCE: source})
            return [NodeWithScore(node=node, score=1.0)]

    [hit] = MemoryContextRetriever(MemoryContext(WithSource())).retrieve("when is tea?")
    assert hit.node.ref_doc_id == "a.md"
    assert hit.node.source_node.metadata == {}
