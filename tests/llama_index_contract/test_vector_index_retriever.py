"""``ContextualVectorRetriever`` where ``VectorIndexRetriever`` stood, on LlamaIndex's default store."""

from __future__ import annotations

import asyncio
import copy
import pickle

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.retrievers import VectorIndexRetriever
from llama_index.core.schema import ImageNode, IndexNode, QueryBundle, TextNode
from notes import EMBEDDING, ids, index, names, seen
from side_by_side import Case, compare, refusal

from llama_index_contextual import ContextualVectorRetriever


def as_retriever(index, **settings):
    """Make the stock class as ``VectorStoreIndex.as_retriever`` does."""
    return VectorIndexRetriever(index, **{"object_map": index._object_map} | settings)


QUESTION = "when does the carrots freeze start"


def inner():
    return VectorStoreIndex(
        [TextNode(id_="inside", text="the whole chapter")], embed_model=EMBEDDING
    )


def kinds():
    nodes = [
        IndexNode(
            id_="link",
            text="chapter one",
            index_id="one",
            obj=TextNode(id_="chapter", text="the chapter"),
        ),
        ImageNode(id_="picture", text="chapter picture", image_path="a.png"),
        ImageNode(id_="bare", image_path="b.png"),
    ]
    return VectorStoreIndex(nodes, embed_model=EMBEDDING)


def objects(obj):
    return VectorStoreIndex(
        [], objects=[IndexNode(text="chapter", index_id="one", obj=obj)], embed_model=EMBEDDING
    )


def images(hits):
    return sorted((hit.node.node_id, getattr(hit.node, "image_path", "")) for hit in hits)


CASES = [
    Case(
        "hits have ids, scores, views and hashes",
        lambda make: seen(make(index(), similarity_top_k=3).retrieve(QUESTION)),
    ),
    Case(
        "similarity_top_k may exceed the corpus",
        lambda make: ids(make(index(), similarity_top_k=99).retrieve(QUESTION)),
    ),
    Case(
        "without similarity_top_k there are some hits",
        lambda make: len(make(index()).retrieve(QUESTION)),
        stock=2,
        gives=6,
        differs="vector-top-k",
    ),
    Case(
        "similarity_top_k can be changed later",
        lambda make: ids(
            (r := make(index()), setattr(r, "similarity_top_k", 1), r.retrieve(QUESTION))[2]
        ),
    ),
    Case(
        "async gives the same",
        lambda make: seen(asyncio.run(make(index(), similarity_top_k=3).aretrieve(QUESTION))),
    ),
    Case(
        "a bundle with a vector is not embedded again",
        lambda make: ids(
            make(index(), similarity_top_k=1).retrieve(
                QueryBundle("", embedding=EMBEDDING.get_query_embedding("cat sofa"))
            )
        ),
        gives=["cat"],
    ),
    Case(
        "a bundle with several strings asks for their mean",
        lambda make: seen(
            make(index(), similarity_top_k=2).retrieve(
                QueryBundle("x", custom_embedding_strs=["cat", "dog"])
            )
        ),
    ),
    Case(
        "node_ids are the only ones",
        lambda make: names(
            make(index(), node_ids=["dog", "cat", "gone"], similarity_top_k=5).retrieve(QUESTION)
        ),
        gives=["cat", "dog"],
    ),
    Case(
        "no node_ids give no nodes",
        lambda make: make(index(), node_ids=[]).retrieve(QUESTION),
        gives=[],
    ),
    Case(
        "doc_ids are the only documents",
        lambda make: names(make(index(), doc_ids=["doc0"], similarity_top_k=9).retrieve(QUESTION)),
        stock=["budget", "cat", "dog", "freeze", "gateway", "meeting"],
        gives=["dog", "freeze", "gateway"],
        differs="vector-doc-ids",
    ),
    Case(
        "mmr spreads the hits",
        lambda make: seen(
            make(
                index(),
                vector_store_query_mode="mmr",
                similarity_top_k=4,
                vector_store_kwargs={"mmr_threshold": 0.2},
            ).retrieve(QUESTION)
        ),
    ),
    Case(
        "a mode that the store does not know is refused",
        lambda make: refusal(
            lambda: make(index(), vector_store_query_mode="hybrid").retrieve(QUESTION)
        ),
        gives="ValueError",
    ),
    Case(
        "an empty index answers nothing",
        lambda make: make(VectorStoreIndex([], embed_model=EMBEDDING)).retrieve(QUESTION),
        gives=[],
    ),
    Case(
        "an IndexNode is followed to its node",
        lambda make: names(make(kinds(), similarity_top_k=3).retrieve("chapter")),
    ),
    Case(
        "images stay images",
        lambda make: images(make(kinds(), similarity_top_k=3).retrieve("chapter")),
    ),
    Case(
        "an object that is a node takes the place of its IndexNode",
        lambda make: ids(make(objects(TextNode(id_="target", text="x"))).retrieve("chapter")),
        gives=["target"],
    ),
    Case(
        "an object that is a retriever is asked",
        lambda make: ids(make(objects(inner().as_retriever())).retrieve("chapter")),
        gives=["inside"],
    ),
    Case(
        "an object that is a retriever is asked, async, too",
        lambda make: ids(asyncio.run(make(objects(inner().as_retriever())).aretrieve("chapter"))),
        gives=["inside"],
    ),
    Case(
        "an object_map of one's own counts",
        lambda make: ids(
            make(objects(None), object_map={"one": TextNode(id_="mapped", text="y")}).retrieve(
                "chapter"
            )
        ),
        gives=["mapped"],
    ),
    Case(
        "the callback manager given is its own",
        lambda make: make(index(), callback_manager=None).callback_manager is not None,
    ),
    Case(
        "a copy gives the same",
        lambda make: seen(copy.copy(make(index(), similarity_top_k=3)).retrieve(QUESTION)),
    ),
    Case(
        "a deep copy gives the same",
        lambda make: seen(copy.deepcopy(make(index(), similarity_top_k=3)).retrieve(QUESTION)),
    ),
    Case(
        "it can be pickled over a store in memory",
        lambda make: seen(
            pickle.loads(pickle.dumps(make(index(), similarity_top_k=3))).retrieve(QUESTION)  # noqa: S301
        ),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_vector_index_retriever(case):
    compare(case, as_retriever, ContextualVectorRetriever)
