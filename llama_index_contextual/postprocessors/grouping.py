"""A postprocessor that limits how many nodes of each document are returned."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from llama_index.core.bridge.pydantic import Field
from llama_index.core.callbacks import CallbackManager
from llama_index.core.postprocessor.types import BaseNodePostprocessor

from llama_index_contextual.postprocessors.hits import checked_hits
from llama_index_contextual.utils.errors import Checked

if TYPE_CHECKING:
    from llama_index.core.schema import NodeWithScore, QueryBundle


class GroupingPostprocessor(Checked, BaseNodePostprocessor):
    """Keep at most ``group_size`` nodes of each document, or of each value of a metadata field.

    Contexts make the chunks of a document more similar to each other, so they are more often
    retrieved together. This helps if the answer is spread over several chunks of a document. It
    hurts if the question asks for documents.

    Pass the whole candidate pool, best first, before it is cut to top-k. Nodes of further documents
    then move up. A node without a document, or without the field, is a group of its own. Scores and
    order are unchanged.

    Args:
        group_size: The number of nodes to keep per group.
        group_by: The metadata key to group by. None groups by document.
        callback_manager: LlamaIndex's callback manager.
        **fields: Fields of a subclass.

    Raises:
        SettingError: A setting is unknown or invalid.

    Examples:
        >>> from llama_index.core.schema import NodeWithScore, TextNode
        >>> chunks = [("a1", "a.md", 0.9), ("a2", "a.md", 0.8), ("b1", "b.md", 0.7)]
        >>> pool = [
        ...     NodeWithScore(node=TextNode(id_=name, metadata={"path": path}), score=score)
        ...     for name, path, score in chunks
        ... ]
        >>> grouping = GroupingPostprocessor(group_by="path")
        >>> [hit.node.node_id for hit in grouping.postprocess_nodes(pool)]
        ['a1', 'b1']
    """

    group_size: int = Field(default=1, ge=1)
    group_by: str | None = None

    def __init__(
        self,
        group_size: int = 1,
        group_by: str | None = None,
        *,
        callback_manager: CallbackManager | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(
            group_size=group_size,
            group_by=group_by,
            callback_manager=callback_manager or CallbackManager([]),
            **fields,
        )

    def _postprocess_nodes(
        self,
        nodes: list[NodeWithScore],
        _: QueryBundle | None = None,
    ) -> list[NodeWithScore]:
        counts: Counter[str] = Counter()
        hits = []
        for hit in checked_hits(nodes):
            key = self.group_by
            value = hit.node.ref_doc_id if key is None else hit.node.metadata.get(key)
            group = repr(value)  # a list is not hashable
            counts[group] += 1
            if value is None or counts[group] <= self.group_size:
                hits.append(hit)
        return hits
