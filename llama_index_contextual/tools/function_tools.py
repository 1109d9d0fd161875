"""`contextual_tools`: the tools for LlamaIndex agents, over any kind of index."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core import SummaryIndex, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.base import BaseIndex
from llama_index.core.schema import BaseNode
from llama_index.core.tools import FunctionTool, ToolMetadata

from llama_index_contextual.memory.context import MemoryContext
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.index_members import IndexMembers
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever
from llama_index_contextual.tools.definitions import TOOLS, NoteTools, Tool
from llama_index_contextual.tools.notes import NodeNotes
from llama_index_contextual.utils.errors import ContextualWarning, SettingError

if TYPE_CHECKING:
    from llama_index_contextual.tools.answer import Answer

_NEEDS_TEXTS = (
    "The tools grep, list and read are left out, because they need the texts of the nodes: "
    "{reason} Pass the nodes with the retriever: contextual_tools([retriever, nodes])."
)


def contextual_tools(source: Any) -> list[FunctionTool]:
    """Return the tools for an agent, with ``memory_context`` if any document has a date.

    ::

        agent = FunctionAgent(tools=contextual_tools(index), llm=llm)

    ``retrieve`` finds the best passages. ``grep`` finds exact text, such as an error code or every
    mention of a name. Answers have at most 2,500 characters unless a call asks for more.
    ``ToolOutput.raw_output.data`` contains scores and citations. The MCP server offers the same
    tools.

    Args:
        source: A ``ContextualIndex``, any LlamaIndex index, a retriever, a list of nodes, or a list
            of a retriever and the nodes that it searches. If the nodes are neither passed nor
            listed by the store, ``retrieve`` is the only tool and a ``ContextualWarning`` says so.
            For a ``MemoryContext``, the tools are ``memory_context`` and ``retrieve``.

    Raises:
        SettingError: The source is none of these.
    """
    if isinstance(source, MemoryContext):
        tools = NoteTools(NodeNotes(list), source, has_texts=False)
    else:
        tools = _tools_over(source)
    definitions = [tool for tool in TOOLS if tools.has_texts or not tool.needs_texts]
    if not (isinstance(source, MemoryContext) or tools.notes.are_dated):
        definitions = [tool for tool in definitions if tool.name != "memory_context"]
    return [_function_tool(definition, tools) for definition in definitions]


def _function_tool(definition: Tool, tools: NoteTools) -> FunctionTool:
    """Return a tool in the form that LlamaIndex agents accept."""

    def call(**arguments: Any) -> Answer:
        return definition.call(tools, arguments)

    async def acall(**arguments: Any) -> Answer:
        return await asyncio.to_thread(call, **arguments)

    metadata = ToolMetadata(
        name=definition.name, description=definition.description, fn_schema=definition.arguments
    )
    return FunctionTool(call, metadata, async_fn=acall)


class _Parts(NamedTuple):
    """The retrievers and the nodes in a list."""

    retrievers: list[BaseRetriever]
    nodes: list[BaseNode]


def _tools_over(source: Any) -> NoteTools:
    """Return the functions of the tools over a source.

    Raises:
        SettingError: The source is not one that :func:`contextual_tools` accepts.
    """
    if isinstance(source, BaseIndex):
        return _over_index(source)
    if hasattr(source, "notes") and hasattr(source, "freshness"):  # a ContextualIndex

        def freshness() -> str:
            return str(source.freshness())

        return NoteTools(source.notes, MemoryContext(source), freshness=freshness)
    parts = _parts_of(source if isinstance(source, Sequence) else [source])
    nodes = parts.nodes
    if not parts.retrievers:
        parts.retrievers.append(ContextualBM25Retriever.from_defaults(nodes=nodes))
    if not nodes:
        _warn_of_missing_texts("only a retriever was given.")
    memory = _memory_of(parts.retrievers)
    return NoteTools(NodeNotes(lambda: nodes), memory, has_texts=bool(nodes))


def _parts_of(source: Iterable[Any]) -> _Parts:
    """Return the retrievers and nodes in a list and in the lists that it contains.

    Raises:
        SettingError: The list is empty, or an item is something else.
    """
    parts = _Parts([], [])
    for item in source:
        if isinstance(item, BaseRetriever):
            parts.retrievers.append(item)
        elif isinstance(item, BaseNode):
            parts.nodes.append(item)
        elif isinstance(item, Sequence) and not isinstance(item, str):
            inner = _parts_of(item)
            parts.retrievers.extend(inner.retrievers)
            parts.nodes.extend(inner.nodes)
        else:
            raise SettingError(
                "`source` must be a ContextualIndex, a LlamaIndex index, a retriever or a list of "
                f"a retriever and nodes (got {type(item).__name__})."
            )
    if not parts.retrievers and not parts.nodes:
        raise SettingError("`source` is an empty list. Pass a retriever, nodes or both.")
    return parts


def _over_index(index: BaseIndex[Any]) -> NoteTools:
    """Return the functions of the tools over a LlamaIndex index.

    Each call of a tool reads the current nodes of the index.
    """
    members = IndexMembers(index)
    is_vector_index = isinstance(index, VectorStoreIndex)
    try:
        has_texts = bool(members.nodes()) or not is_vector_index
        reason = "the index contains no nodes with text."
    except SettingError as error:
        has_texts = False
        reason = str(error)
    if not has_texts:
        _warn_of_missing_texts(reason)
    retrievers: list[BaseRetriever] = []
    if is_vector_index:
        retrievers.append(ContextualVectorRetriever(index))
    elif not isinstance(index, SummaryIndex):  # its retriever returns every node
        retrievers.append(index.as_retriever())
    if has_texts:
        retrievers.append(ContextualBM25Retriever.from_defaults(index=index))
    notes = NodeNotes(members.nodes if has_texts else list)
    return NoteTools(notes, _memory_of(retrievers), has_texts=has_texts)


def _memory_of(retrievers: Sequence[BaseRetriever]) -> MemoryContext:
    """Return the memory over the retrievers, which are fused if there are several."""
    [first, *further] = retrievers
    return MemoryContext(ContextualFusionRetriever([*retrievers]) if further else first)


def _warn_of_missing_texts(reason: str) -> None:
    warnings.warn(_NEEDS_TEXTS.format(reason=reason), ContextualWarning, stacklevel=4)
