"""LlamaIndex adapters of memory: a retriever, and a block for ``Memory``."""

from itertools import groupby
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.llms import ChatMessage, MessageRole
from llama_index.core.memory import BaseMemoryBlock
from llama_index.core.schema import NodeRelationship, NodeWithScore, QueryBundle, TextNode

from llama_index_contextual.memory.context import MemoryContext
from llama_index_contextual.memory.digest import MemoryEntry, quoted
from llama_index_contextual.utils.errors import Checked, SettingError

_BLOCK_NAME = "prior_context"
_BLOCK_DESCRIPTION = "What the user's notes say about the last message."
_NODE_KEYS = ("citation", "path", "date", "start_line", "end_line", "header_path")
_KEPT_TURNS = 8


class MemoryContextRetriever(BaseRetriever):
    """A retriever that returns the hits of the digest, and nothing for small talk.

    The text of each node is a quotation. Its metadata are ``citation``, ``path``, ``header_path``,
    ``date``, ``start_line`` and ``end_line``, as far as they are known.

    Args:
        memory: The memory to ask.

    Raises:
        SettingError: ``memory`` is not a MemoryContext.
    """

    def __init__(self, memory: MemoryContext) -> None:
        super().__init__()
        self._memory = _checked(memory, "memory")

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [_node(entry) for entry in self._memory.get(query_bundle.query_str).entries]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        digest = await self._memory.aget(query_bundle.query_str)
        return [_node(entry) for entry in digest.entries]


def _checked(memory: MemoryContext, name: str) -> MemoryContext:
    """Return the memory, or raise a SettingError if it is an object of another class."""
    if not isinstance(memory, MemoryContext):
        raise SettingError(
            f"`{name}` must be a MemoryContext (got {type(memory).__name__}). "
            "Pass MemoryContext(index) or MemoryContext(retriever)."
        )
    return memory


def _node(entry: MemoryEntry) -> NodeWithScore:
    fields = entry.to_dict()
    metadata = {key: fields[key] for key in _NODE_KEYS if fields[key] not in {None, ""}}
    node = TextNode(
        id_=entry.id,
        text=quoted(entry.snippet),
        metadata=metadata,
        excluded_embed_metadata_keys=list(metadata),
        excluded_llm_metadata_keys=[key for key in metadata if key != "citation"],
    )
    source = entry.node.source_node
    if source is not None:
        node.relationships[NodeRelationship.SOURCE] = source.model_copy(update={"metadata": {}})
    return NodeWithScore(node=node, score=entry.score)


class MemoryContextBlock(Checked, BaseMemoryBlock[str]):
    """A block for LlamaIndex's ``Memory`` that adds the digest for the user's last message.

    ::

        block = MemoryContextBlock(context=context)
        memory = Memory.from_defaults(session_id="jc", memory_blocks=[block])
        await agent.run("does JC like ginger?", memory=memory)

    Args:
        context: The memory to ask.
        name: The name of the block, and of the tag that LlamaIndex puts around its text.
        description: The description of the block.
        priority: The order in which LlamaIndex drops blocks if the chat exceeds its token limit. A
            block of priority 0 is always kept.
        **fields: Fields of a subclass.

    Raises:
        SettingError: ``context`` is not a MemoryContext, or a field is unknown.
    """

    name: str = _BLOCK_NAME
    description: str | None = _BLOCK_DESCRIPTION
    priority: int = 1
    _context: MemoryContext = PrivateAttr()
    # An agent asks again after each tool call of a turn, so the texts of the last turns are kept,
    # by session, number of turns and message.
    _shown: dict[tuple[str, int, str], str] = PrivateAttr(default_factory=dict)

    def __init__(
        self,
        context: MemoryContext,
        *,
        name: str = _BLOCK_NAME,
        description: str | None = _BLOCK_DESCRIPTION,
        priority: int = 1,
        **fields: Any,
    ) -> None:
        super().__init__(name=name, description=description, priority=priority, **fields)
        self._context = _checked(context, "context")

    async def _aget(
        self,
        messages: list[ChatMessage] | None = None,
        session_id: str = "",
        **_: Any,
    ) -> str:
        user_messages = [message for message in messages or () if message.role == MessageRole.USER]
        texts = [str(message.content or "") for message in user_messages]
        # LlamaIndex passes the current message twice: in the history and as the input.
        turns = [text for text, _ in groupby(texts)] or [""]
        turn = (session_id, len(turns), turns[-1])
        if turn not in self._shown:
            digest = await self._context.aget(turns[-1])
            last_turns = list(self._shown.items())[1 - _KEPT_TURNS :]
            self._shown = dict(last_turns)
            self._shown[turn] = digest.markdown if digest.entries else ""
        return self._shown[turn]

    async def _aput(self, messages: list[ChatMessage]) -> None:
        """Store nothing, because the notes are the memory."""
