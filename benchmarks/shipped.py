"""The index that ships, over chunks that a benchmark has prepared: what is measured is what a user gets.

A benchmark may compare chunks and contexts that no setting makes. They go through ``ContextualIndex`` all the same, by
a parser and a generator that return them, so that the arms, their settings and the stored nodes are those of a folder.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.node_parser import NodeParser

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.context import ChunkContext, ContextGenerator
from llama_index_contextual.metadata import CONTEXT, LEXICAL_CONTEXT, has_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.context.base import SourceDocument


class Prepared(NodeParser):
    """Returns the chunks that were prepared for a document."""

    _chunks: dict[str, list[BaseNode]] = PrivateAttr(default_factory=dict)

    def prepare(self, nodes: Sequence[BaseNode]) -> None:
        """Remember copies of chunks, by their document."""
        for node in nodes:
            self._chunks.setdefault(node.ref_doc_id or "", []).append(node.model_copy(deep=True))

    def _parse_nodes(self, nodes: Sequence[BaseNode], show_progress: bool = False, **_: Any) -> list[BaseNode]:  # noqa: ARG002
        return [chunk.model_copy(deep=True) for one in nodes for chunk in self._chunks.get(one.node_id, [])]


class Given(ContextGenerator):
    """Returns the contexts that were prepared for chunks."""

    name = "given"
    version = "1"

    def __init__(self, nodes: Sequence[BaseNode]) -> None:
        self._made = {node.node_id: node.metadata for node in nodes}

    def generate(self, nodes: Sequence[BaseNode], document: SourceDocument) -> list[ChunkContext | None]:  # noqa: ARG002
        """Give what was prepared for each chunk."""
        made = [self._made[node.node_id] for node in nodes]
        return [
            ChunkContext(one.get(CONTEXT, ""), self.name, one.get(LEXICAL_CONTEXT, ""), self.version) for one in made
        ]


def shipped_index(
    nodes: Sequence[BaseNode], documents: Sequence[Document], embedding: BaseEmbedding
) -> ContextualIndex:
    """Return an index of these chunks, in a folder that is deleted with the object.

    Args:
        nodes: Chunks, with contexts or without.
        documents: Those that they were cut from.
        embedding: Of the index.
    """
    parser, contexts = Prepared(), any(has_context(node.metadata) for node in nodes)
    parser.prepare(nodes)
    folder = tempfile.TemporaryDirectory(prefix="contextual-benchmark-")
    index = ContextualIndex.open(
        folder.name, embed_model=embedding, node_parser=parser, context=Given(nodes) if contexts else "off"
    )
    index.refresh(documents, confirm=True)
    index.__dict__["_folder_of_the_benchmark"] = folder  # lives as long as the index
    return index
