"""Results from many documents: keep only the best few chunks of each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from llama_index.core.bridge.pydantic import Field
from llama_index.core.postprocessor.types import BaseNodePostprocessor

from llama_index_contextual.checks import explained, refuse_unknown, whole

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle


class GroupingPostprocessor(BaseNodePostprocessor):
    """Keep at most ``group_size`` nodes of each document, or of each value of a metadata field.

    Contexts make the chunks of one document more alike, so more of them are found together. That is right where an
    answer is spread over a document's chunks. It is wrong where the question asks for documents.

    Give it the whole candidate pool, best first and before the cut to top-k, so that others move up.
    What has no document, or not the field, is a group of its own. Scores and order stay as they are.

    Examples:
        >>> from llama_index.core.schema import NodeWithScore, TextNode
        >>> pool = [
        ...     NodeWithScore(node=TextNode(id_=name, metadata={"path": path}), score=score)
        ...     for name, path, score in [("a1", "a.md", 0.9), ("a2", "a.md", 0.8), ("b1", "b.md", 0.7)]
        ... ]
        >>> [hit.node.node_id for hit in GroupingPostprocessor(group_by="path").postprocess_nodes(pool)]
        ['a1', 'b1']
    """

    group_size: int = Field(default=1, description="How many nodes of one group are kept.")
    group_by: str | None = Field(default=None, description="A metadata key; None is the document a node was cut from.")

    def __init__(self, **settings: Any) -> None:
        refuse_unknown(type(self).__name__, set(settings) - {"class_name"}, type(self).model_fields)
        with explained():
            super().__init__(**settings)
        whole("group_size", self.group_size)

    @classmethod
    def class_name(cls) -> str:
        """Return the name in serialised pipelines."""
        return "GroupingPostprocessor"

    def _postprocess_nodes(
        self,
        nodes: list[NodeWithScore],
        query_bundle: QueryBundle | None = None,  # noqa: ARG002
    ) -> list[NodeWithScore]:
        seen = Counter[object]()
        kept = []
        for hit in nodes:
            group = self._group(hit.node)
            seen[group] += 1
            if group is None or seen[group] <= self.group_size:
                kept.append(hit)
        return kept

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return self._postprocess_nodes(nodes, query_bundle)  # microseconds a node: a thread would cost more

    def _group(self, node: BaseNode) -> str | None:
        if self.group_by is None:
            return node.ref_doc_id
        value = node.metadata.get(self.group_by)
        return None if value is None else repr(value)  # a list is a value too
