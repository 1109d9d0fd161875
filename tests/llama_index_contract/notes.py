"""The notes that the retrievers of this folder search, and what a user notices of hits."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from hashed_words import HashedWords
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import MetadataMode, NodeRelationship, RelatedNodeInfo, TextNode

if TYPE_CHECKING:
    from llama_index.core.schema import NodeWithScore

EMBEDDING = HashedWords()
TEXTS = {
    "dog": "Cookie the dog loves carrots and long walks",
    "cat": "The cat sleeps all day on the warm sofa",
    "gateway": "The gateway waits for 60 seconds before it gives up",
    "budget": "The budget for the kitchen is 12000 euros",
    "freeze": "The freeze starts on 14 December and carrots are off",
    "meeting": "We met the architects and agreed on the budget",
}
TEAMS = ["net", "web", "net", "ops", "network", "web"]


def notes() -> list[TextNode]:
    """Return six nodes of two documents with metadata of every type; "budget" has no owner."""
    nodes = []
    for number, (name, text) in enumerate(TEXTS.items()):
        metadata: dict[str, Any] = {
            "team": TEAMS[number],
            "n": number,
            "done": number % 2 == 0,
            "tags": ["a", name],
        }
        if name != "budget":
            metadata["owner"] = f"{name}@example.org"
        node = TextNode(
            id_=name, text=text, metadata=metadata, excluded_embed_metadata_keys=[*metadata]
        )
        node.relationships = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"doc{number % 2}")}
        nodes.append(node)
    return nodes


@cache
def index() -> VectorStoreIndex:
    """Return an index of the notes on ``SimpleVectorStore``, LlamaIndex's default."""
    return VectorStoreIndex(notes(), embed_model=EMBEDDING)


def ids(hits: list[NodeWithScore]) -> list[str]:
    """Return the ids of hits, in order."""
    return [hit.node.node_id for hit in hits]


def names(hits: list[NodeWithScore]) -> list[str]:
    """Return the ids of hits, sorted."""
    return sorted(ids(hits))


def seen(hits: list[NodeWithScore]) -> list[tuple[object, ...]]:
    """Return what a user notices of hits: id, score, the three views, hash and class."""
    modes = (MetadataMode.NONE, MetadataMode.EMBED, MetadataMode.LLM)
    return [
        (
            hit.node.node_id,
            None if hit.score is None else round(hit.score, 6),
            *(hit.node.get_content(mode) for mode in modes),
            hit.node.hash,
            type(hit.node).__name__,
        )
        for hit in hits
    ]
