"""Check the hits that are passed to a postprocessor."""

from __future__ import annotations

from collections.abc import Sequence

from llama_index.core.schema import NodeWithScore

from llama_index_contextual.utils.errors import objects_of


def checked_hits(nodes: Sequence[NodeWithScore]) -> list[NodeWithScore]:
    """Return the hits as a list.

    Raises:
        SettingError: An item is not a ``NodeWithScore``.
    """
    hint = "Pass what a retriever returns, or NodeWithScore(node=…, score=…)."
    return objects_of(NodeWithScore, nodes, "nodes", "NodeWithScore objects", hint)
