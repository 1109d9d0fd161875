"""Fixtures for the tests of retrievers: real Chroma, and an embedding that needs no model."""

from __future__ import annotations

import uuid

import chromadb
import pytest
from hashed_words import HashedWords
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.vector_stores.chroma import ChromaVectorStore

TEXTS = {
    "dog": "JC's dog Cookie loves carrots and long walks",
    "cat": "The cat sleeps all day on the warm sofa",
    "code": "def getUserName(user): return user.name",
    "config": "Set max_results to limit how many results the server returns",
    "meeting": "We met the architects and agreed on the budget of the house",
    "budget": "The budget for the kitchen is 12,000 euros, tiles included",
}


@pytest.fixture(scope="session")
def embedding():
    return HashedWords()


@pytest.fixture
def nodes():
    """Return six small nodes with flat metadata; "config" and "code" have no date."""
    dated = {"dog": 9, "cat": 10, "meeting": 11, "budget": 12}
    nodes = []
    for number, (name, text) in enumerate(TEXTS.items()):
        metadata = {
            "path": f"notes/{name}.md",
            "n": number,
            "tags": "animal,home" if number < 2 else "work",
        }
        if name in dated:
            metadata["date_ts"] = 1775692800 + 86400 * (dated[name] - 9)
        hidden = list(metadata)
        nodes.append(
            TextNode(
                id_=name,
                text=text,
                metadata=metadata,
                excluded_embed_metadata_keys=hidden,
                excluded_llm_metadata_keys=hidden,
            )
        )
    return nodes


@pytest.fixture
def collection():
    """Return an empty collection in memory that is not shared with other tests."""
    client = chromadb.EphemeralClient()
    name = f"t{uuid.uuid4().hex}"
    yield client.create_collection(name)
    client.delete_collection(name)


@pytest.fixture
def store(collection):
    return ChromaVectorStore(chroma_collection=collection)


@pytest.fixture
def index(store, nodes, embedding):
    """Return a VectorStoreIndex on Chroma that contains the nodes."""
    context = StorageContext.from_defaults(vector_store=store)
    return VectorStoreIndex(nodes, storage_context=context, embed_model=embedding)
