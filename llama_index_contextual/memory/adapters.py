"""Memory as parts of LlamaIndex: a retriever, a memory block, a tool."""

from __future__ import annotations

from collections import OrderedDict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.bridge.pydantic import BaseModel, Field, PrivateAttr
from llama_index.core.llms import ChatMessage, MessageRole
from llama_index.core.memory import BaseMemoryBlock
from llama_index.core.schema import NodeRelationship, NodeWithScore, QueryBundle, RelatedNodeInfo, TextNode
from llama_index.core.tools import FunctionTool

from llama_index_contextual.memory.context import MemoryContext  # noqa: TC001  pydantic reads it
from llama_index_contextual.memory.digest import quoted
from llama_index_contextual.metadata import HEADER_PATH

if TYPE_CHECKING:
    from llama_index_contextual.memory.digest import MemoryDigest, MemoryEntry

DESCRIPTION = "What the user's notes say about a message. Call it with the user's message at the start of every turn."


class MemoryContextRetriever(BaseRetriever):
    """A retriever that answers with the hits of the digest, each a node of one quotation; none for small talk.

    Each node has the source of its chunk, and in its metadata ``citation``, ``path``, ``header_path``, ``date``,
    ``start_line`` and ``end_line`` where known.
    """

    def __init__(self, memory: MemoryContext, **settings: Any) -> None:
        super().__init__(**settings)
        self._memory = memory

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(self._memory.get(query_bundle.query_str))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(await self._memory.aget(query_bundle.query_str))


class MemoryContextBlock(BaseMemoryBlock[str]):
    """A block for LlamaIndex's ``Memory``: the digest for the user's last message, in every turn.

    ::

        memory = Memory.from_defaults(session_id="jc", memory_blocks=[MemoryContextBlock(context=context)])
        await agent.run("does JC like ginger?", memory=memory)

    A hit that was the first of a digest in one of the session's last turns is not shown again.
    """

    name: str = Field(default="prior_context", description="Name of the block, the tag that LlamaIndex puts around it.")
    description: str | None = Field(default="What the user's notes say about the last message.")
    priority: int = Field(default=1, description="Above 0: left out first where tokens are short.")
    remember_turns: int = Field(default=8, description="So many turns the first hit of a digest is not repeated.")
    _context: MemoryContext = PrivateAttr()
    _digests: OrderedDict[tuple[str, str], tuple[frozenset[str], str]] = PrivateAttr(default_factory=OrderedDict)

    def __init__(self, context: MemoryContext, **settings: Any) -> None:
        super().__init__(**settings)
        self._context = context

    async def _aget(self, messages: list[ChatMessage] | None = None, session_id: str = "", **_: Any) -> str:
        texts = [str(message.content or "") for message in messages or () if message.role == MessageRole.USER]
        # An agent hands over its current message once from the history and once more as the input.
        turns = [text for text, _ in groupby(texts)]
        text = turns[-1] if turns else ""
        turn = (session_id, f"{len(turns)}:{text}")  # an agent asks for the same turn again after each tool call
        if turn not in self._digests:
            seen = frozenset[str]().union(
                *(ids for (session, _), (ids, _) in self._digests.items() if session == session_id)
            )
            digest = await self._context.aget(text, seen=seen)
            shown = digest.markdown if digest.entries else ""
            # What stood further down was no answer then, and may be the answer to a later message.
            self._digests[turn] = frozenset(entry.id for entry in digest.entries[:1]), shown
        shown = self._digests[turn][1]
        while len(self._digests) > max(1, self.remember_turns):
            self._digests.popitem(last=False)
        if not self.remember_turns:
            self._digests.clear()
        return shown

    async def _aput(self, messages: list[ChatMessage]) -> None:
        """Keep nothing: the notes are the memory."""

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        """Drop the last hits, about four characters a token, or everything if no hit is left."""
        size = len(content)
        while tokens_to_truncate > 0 and size - len(content) < 4 * tokens_to_truncate:
            content = content[: max(0, content.rfind("\n- ["))]  # no line of a note starts so
            if not content:
                return None
        return content if "\n" in content else None


class MemoryContextInput(BaseModel):
    """Arguments of the tool, spelt out because postponed annotations hide them from ``FunctionTool``."""

    message: str = Field(description="The user's message, as written.")


def memory_tool(memory: MemoryContext, *, name: str = "memory_context") -> FunctionTool:
    """Memory as a tool that an agent calls with the user's message; it answers with the digest."""

    def memory_context(message: str) -> str:
        return memory.get(message).markdown

    async def amemory_context(message: str) -> str:
        return (await memory.aget(message)).markdown

    return FunctionTool.from_defaults(
        memory_context, name, DESCRIPTION, fn_schema=MemoryContextInput, async_fn=amemory_context
    )


def _nodes(digest: MemoryDigest) -> list[NodeWithScore]:
    return [NodeWithScore(node=_node(entry), score=entry.score) for entry in digest.entries]


def _node(entry: MemoryEntry) -> TextNode:
    metadata = {
        "citation": entry.citation,
        "path": entry.path,
        "date": entry.date,
        "start_line": entry.place.start_line,
        "end_line": entry.place.end_line,
        HEADER_PATH: entry.header_path or None,
    }
    known = {key: value for key, value in metadata.items() if value is not None}
    hidden = {"excluded_embed_metadata_keys": [*known], "excluded_llm_metadata_keys": [*known][1:]}
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=entry.place.document)} if entry.place.document else {}
    return TextNode(id_=entry.id, text=quoted(entry.snippet), metadata=known, relationships=source, **hidden)
