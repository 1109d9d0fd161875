"""A postprocessor that keeps a few nodes of each document."""

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

    Contexts make the chunks of one document more alike, so more of them are found together. That is
    right where an answer is spread over a document's chunks, and wrong where the question asks for
    documents.

    Give it the whole candidate pool, best first and before the cut to top-k, so that others move
    up. A node without a document, or without the field, is a group of its own. Scores and order
    stay as they are.

    Args:
        group_size: How many nodes of a group are kept.
        group_by: A metadata key; None groups by the document of a node.
        callback_manager: LlamaIndex's callback manager.
        **fields: The fields of a subclass.

    Raises:
        SettingError: A setting is unknown or cannot work.

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
        self, nodes: list[NodeWithScore], _: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        counts: Counter[str] = Counter()
        hits = []
        for hit in checked_hits(nodes):
            key = self.group_by
            value = hit.node.ref_doc_id if key is None else hit.node.metadata.get(key)
            group = repr(value)  # a list cannot be counted
            counts[group] += 1
            if value is None or counts[group] <= self.group_size:
                hits.append(hit)
        return hits
