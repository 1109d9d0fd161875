"""What retrievers return, in short, and a retriever that returns what a test chooses."""

from __future__ import annotations

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode


def hit(name, score, **metadata):
    return NodeWithScore(node=TextNode(id_=name, text=name, metadata=metadata), score=score)


def ids(results):
    return [result.node.node_id for result in results]


def pairs(results):
    return [(result.node.node_id, result.score) for result in results]


class Fixed(BaseRetriever):
    """Return the hits that a test chooses, or raise an error.

    Args:
        hits: Nodes with scores, or scores by id.
        error: Raised in place of an answer.
    """

    def __init__(self, hits=(), error=None):
        super().__init__()
        self.hits = [hit(*item) for item in hits.items()] if isinstance(hits, dict) else hits
        self.error = error

    def _retrieve(self, query_bundle):
        if self.error:
            raise self.error
        return list(self.hits)
