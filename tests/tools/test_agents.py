"""LlamaIndex's agents use the tools, driven by a scripted model, over any kind of source."""

import json
import warnings

import pytest
from llama_index.core import Document, MockEmbedding, StorageContext, SummaryIndex, VectorStoreIndex
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage, LLMMetadata, MessageRole
from llama_index.core.llms import ChatResponse, CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.llms.openai_like import OpenAILike

from llama_index_contextual import (
    ContextualBM25Retriever,
    HeadingAwareMarkdownNodeParser,
    contextual_tools,
)
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.utils.errors import ContextualWarning, SettingError

CALLS = [("grep", {"pattern": "E4042"}), ("read", {"path": "runbook.md#L5-L6"})]
ANSWER = "Restart the worker [runbook.md#L5-L6]."


class ScriptedFunctions(FunctionCallingLLM):
    """A model that calls the tools of :data:`CALLS` in turn and then answers."""

    @property
    def metadata(self):
        return LLMMetadata(is_function_calling_model=True)

    def _prepare_chat_with_tools(self, tools, user_msg=None, chat_history=None, **_):
        return {"messages": chat_history or [ChatMessage(role="user", content=str(user_msg))]}

    def get_tool_calls_from_response(self, response, error_on_no_tool_call=True, **_):
        return response.message.additional_kwargs.get("tool_calls", [])

    def chat(self, messages, **_):
        done = sum(message.role == MessageRole.TOOL for message in messages)
        message = ChatMessage(role="assistant", content=ANSWER)
        if done < len(CALLS):
            name, arguments = CALLS[done]
            call = ToolSelection(tool_id=str(done), tool_name=name, tool_kwargs=arguments)
            message = ChatMessage(role="assistant", additional_kwargs={"tool_calls": [call]})
        return ChatResponse(message=message)

    async def achat(self, messages, **_):
        return self.chat(messages)

    async def astream_chat(self, messages, **_):
        async def parts():
            yield self.chat(messages)

        return parts()

    def _not_used(self, *_, **__):
        raise NotImplementedError

    complete = stream_complete = stream_chat = _not_used
    acomplete = astream_complete = _not_used


class ScriptedText(CustomLLM):
    """A model that writes the same calls in the form of a ReAct agent."""

    @property
    def metadata(self):
        return LLMMetadata()

    @llm_chat_callback()
    async def astream_chat(self, messages, **_):
        done = sum("Observation:" in str(message.content) for message in messages[1:])
        text = f"Thought: I can answer.\nAnswer: {ANSWER}"
        if done < len(CALLS):
            name, arguments = CALLS[done]
            text = f"Thought: I need a tool.\nAction: {name}\nAction Input: {arguments}"

        async def parts():
            yield ChatResponse(message=ChatMessage(role="assistant", content=text), delta=text)

        return parts()

    @llm_completion_callback()
    def complete(self, *_, **__):
        raise NotImplementedError

    stream_complete = complete


async def run(agent):
    """Return the answer of an agent and the results of its tools, by name."""
    handler = agent.run("what helps against E4042?")
    results = {
        event.tool_name: event.tool_output
        async for event in handler.stream_events()
        if isinstance(event, ToolCallResult)
    }
    return str(await handler), results


@pytest.mark.parametrize("kind", ["function", "react", "workflow"])
async def test_an_agent_greps_for_a_code_and_reads_the_citation(index, kind):
    tools = contextual_tools(index)
    if kind == "react":
        agent = ReActAgent(tools=tools, llm=ScriptedText(), streaming=True)
    else:
        agent = FunctionAgent(name="notes", description="d", tools=tools, llm=ScriptedFunctions())
    if kind == "workflow":
        agent = AgentWorkflow(agents=[agent], root_agent="notes")
    answer, results = await run(agent)
    assert answer == ANSWER
    assert not any(output.is_error for output in results.values()), results
    assert "[runbook.md#L5] Runbook > Errors" in results["grep"].content
    assert results["read"].content.startswith("E4042 means that the queue is full.\nRestart")


def by_name(source):
    return {tool.metadata.name: tool for tool in contextual_tools(source)}


def test_a_folder_has_all_tools_and_memory_context_needs_dates(index, tmp_path):
    assert [*by_name(index)] == ["memory_context", "retrieve", "grep", "read", "list"]
    (tmp_path / "undated").mkdir()
    (tmp_path / "undated" / "a.md").write_text("Text.\n", "utf-8")
    with ContextualIndex.open(tmp_path / "undated", embed_model="none") as undated:
        undated.refresh()
        assert [*by_name(undated)] == ["retrieve", "grep", "read", "list"]


def test_null_means_that_an_argument_is_not_given(index):
    tools = by_name(index)
    assert "E4042" in str(tools["grep"](pattern="E4042", path=None, where="", max_results=None))
    assert "Restart" in str(tools["retrieve"](query="queue is full", since=None, queries=None))


def test_answers_contain_scores_as_data(index):
    output = by_name(index)["retrieve"](query="queue")
    [hit, *_] = output.raw_output.data["hits"]
    assert hit["citation"].startswith("runbook.md")
    assert 0 < hit["score"] <= 1


def test_the_digest_is_json_if_a_call_requests_it(index):
    output = by_name(index)["memory_context"](message="what helps against E4042?", format="json")
    digest = json.loads(str(output))
    assert digest["applicable"]
    assert digest["queries"]
    assert digest["entries"][0]["citation"].startswith("runbook.md")


@pytest.mark.parametrize("tool", ["retrieve", "memory_context", "grep", "read", "list"])
def test_no_answer_is_longer_than_a_short_page(folder, index, tool):
    for number in range(40):
        lines = "\n\n".join(f"The gateway has timeout {number}.{line}." * 3 for line in range(40))
        (folder / f"2026-05-{number % 28 + 1:02}-{number}.md").write_text(f"# Gateway\n\n{lines}")
    index.refresh()
    arguments = {
        "retrieve": {"query": "gateway timeout", "max_results": 10},
        "memory_context": {"message": "what is the timeout of the gateway?"},
        "grep": {"pattern": "gateway"},
        "read": {"path": "2026-05-01-0.md"},
        "list": {},
    }
    assert len(str(by_name(index)[tool](**arguments[tool]))) <= 2500


PUMPS = "# Pumps\n\nIntro.\n\n## Faults\n\nE4042: the queue is full.\n"
BOATS = "# Boats\n\nLuna is red. It sails well.\n"
DOCUMENTS = [
    Document(text=PUMPS, id_="p", metadata={"file_path": "/srv/pumps.md"}),
    Document(text=BOATS, id_="b", metadata={"file_path": "/srv/boats.md"}),
]
PARSERS = [HeadingAwareMarkdownNodeParser(), SentenceSplitter(chunk_size=64, chunk_overlap=10)]


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("kind", ["vector", "summary", "list", "nodes"])
def test_any_index_and_a_list_of_retriever_and_nodes_work(parser, kind):
    nodes = parser.get_nodes_from_documents(DOCUMENTS)
    embedding = MockEmbedding(embed_dim=4)
    source = {
        "vector": lambda: VectorStoreIndex(nodes, embed_model=embedding),
        "summary": lambda: SummaryIndex(nodes),
        "list": lambda: [ContextualBM25Retriever.from_defaults(nodes=nodes), nodes],
        "nodes": lambda: nodes,
    }[kind]()
    tools = by_name(source)
    assert [*tools] == ["retrieve", "grep", "read", "list"]
    assert "/srv/pumps.md" in str(tools["retrieve"](query="queue full"))
    answer = tools["grep"](pattern="E4042")
    [hit] = answer.raw_output.data["hits"]
    assert "E4042: the queue is full." in str(tools["read"](path=hit["citation"]))
    assert "red" in str(tools["read"](path="boats"))
    assert "boats.md" in str(tools["list"]())


def test_the_tools_follow_changes_of_an_index(tmp_path):
    index = VectorStoreIndex.from_documents(DOCUMENTS, embed_model=MockEmbedding(embed_dim=4))
    tools = by_name(index)
    index.insert(Document(text="New: E5000.", metadata={"file_path": "/srv/new.md"}))
    assert "new.md" in str(tools["grep"](pattern="E5000"))
    index.delete_ref_doc("p", delete_from_docstore=True)
    assert "No line contains" in str(tools["grep"](pattern="E4042"))


class Unlisted(SimpleVectorStore):
    """A store that contains texts and cannot list its nodes."""

    stores_text: bool = True

    def get_nodes(self, *_, **__):
        raise NotImplementedError


def test_for_a_store_that_cannot_list_nodes_only_retrieve_remains():
    storage = StorageContext.from_defaults(vector_store=Unlisted())
    index = VectorStoreIndex(
        [TextNode(text="a")], storage_context=storage, embed_model=MockEmbedding(embed_dim=4)
    )
    with pytest.warns(ContextualWarning, match="Pass the nodes with the retriever"):
        tools = contextual_tools(index)
    assert [tool.metadata.name for tool in tools] == ["retrieve"]


@pytest.mark.parametrize("source", ["notes/", 3, None, [], ["a.md"]])
def test_an_invalid_source_is_named(source):
    with warnings.catch_warnings(), pytest.raises(SettingError, match="`source`"):
        contextual_tools(source)


# Without this grammar, a model this small writes prose. With it, the model chooses a query.
REACT_CALL = r"""
root ::= "Thought: I need a tool.\nAction: " call
call ::= "grep\nAction Input: {\"pattern\": \"" word "\"}"
word ::= [A-Za-z0-9]{1,12}
"""


@pytest.mark.server
async def test_an_agent_with_a_real_model_calls_a_tool_and_uses_its_answer(index, llama_server):
    llm = OpenAILike(
        model=llama_server.model,
        api_base=llama_server.api_base,
        api_key="none",
        is_chat_model=True,
        max_tokens=40,
        timeout=600,
        additional_kwargs={"extra_body": {"grammar": REACT_CALL}},
    )
    tools = [by_name(index)[name] for name in ("grep", "read")]  # the prompt has their schemas
    agent = ReActAgent(tools=tools, llm=llm, early_stopping_method="generate")
    handler = agent.run("Which notes mention E4042?", max_iterations=2)
    results = [
        event async for event in handler.stream_events() if isinstance(event, ToolCallResult)
    ]
    assert results
    for result in results:
        assert result.tool_name == "grep"
        assert not result.tool_output.is_error
        assert "line" in result.tool_output.content
        assert result.tool_output.raw_output.data["lines"] >= 0
    assert str(await handler)
