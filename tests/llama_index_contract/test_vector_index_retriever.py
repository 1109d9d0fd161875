"""``ContextualVectorRetriever`` in place of ``VectorIndexRetriever``, on the default store."""

from __future__ import annotations

import asyncio
import copy
import pickle

from llama_index.core import VectorStoreIndex
from llama_index.core.retrievers import VectorIndexRetriever
from llama_index.core.schema import ImageNode, IndexNode, QueryBundle, TextNode
from notes import EMBEDDING, ids, index, names, seen
from side_by_side import comparison, refusal

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


compared = comparison(as_retriever, ContextualVectorRetriever)


@compared()
def test_hits_have_ids_scores_views_and_hashes(make):
    return seen(make(index(), similarity_top_k=3).retrieve(QUESTION))


@compared()
def test_similarity_top_k_may_exceed_the_corpus(make):
    return ids(make(index(), similarity_top_k=99).retrieve(QUESTION))


@compared(stock=2, ours=6, differs="vector-top-k")
def test_without_similarity_top_k_there_are_some_hits(make):
    return len(make(index()).retrieve(QUESTION))


@compared()
def test_similarity_top_k_can_be_changed_later(make):
    return ids((r := make(index()), setattr(r, "similarity_top_k", 1), r.retrieve(QUESTION))[2])


@compared()
def test_async_gives_the_same(make):
    return seen(asyncio.run(make(index(), similarity_top_k=3).aretrieve(QUESTION)))


@compared(gives=["cat"])
def test_a_bundle_with_a_vector_is_not_embedded_again(make):
    return ids(
        make(index(), similarity_top_k=1).retrieve(
            QueryBundle("", embedding=EMBEDDING.get_query_embedding("cat sofa"))
        )
    )


@compared()
def test_a_bundle_with_several_strings_asks_for_their_mean(make):
    return seen(
        make(index(), similarity_top_k=2).retrieve(
            QueryBundle("x", custom_embedding_strs=["cat", "dog"])
        )
    )


@compared(gives=["cat", "dog"])
def test_node_ids_are_the_only_ones(make):
    return names(
        make(index(), node_ids=["dog", "cat", "gone"], similarity_top_k=5).retrieve(QUESTION)
    )


@compared(gives=[])
def test_no_node_ids_give_no_nodes(make):
    return make(index(), node_ids=[]).retrieve(QUESTION)


@compared(
    stock=["budget", "cat", "dog", "freeze", "gateway", "meeting"],
    ours=["dog", "freeze", "gateway"],
    differs="vector-doc-ids",
)
def test_doc_ids_are_the_only_documents(make):
    return names(make(index(), doc_ids=["doc0"], similarity_top_k=9).retrieve(QUESTION))


@compared()
def test_mmr_spreads_the_hits(make):
    return seen(
        make(
            index(),
            vector_store_query_mode="mmr",
            similarity_top_k=4,
            vector_store_kwargs={"mmr_threshold": 0.2},
        ).retrieve(QUESTION)
    )


@compared(gives="ValueError")
def test_a_mode_that_the_store_does_not_know_is_refused(make):
    return refusal(lambda: make(index(), vector_store_query_mode="hybrid").retrieve(QUESTION))


@compared(gives=[])
def test_an_empty_index_answers_nothing(make):
    return make(VectorStoreIndex([], embed_model=EMBEDDING)).retrieve(QUESTION)


@compared()
def test_an_indexnode_is_followed_to_its_node(make):
    return names(make(kinds(), similarity_top_k=3).retrieve("chapter"))


@compared()
def test_images_stay_images(make):
    return images(make(kinds(), similarity_top_k=3).retrieve("chapter"))


@compared(gives=["target"])
def test_an_object_that_is_a_node_takes_the_place_of_its_indexnode(make):
    return ids(make(objects(TextNode(id_="target", text="x"))).retrieve("chapter"))


@compared(gives=["inside"])
def test_an_object_that_is_a_retriever_is_asked(make):
    return ids(make(objects(inner().as_retriever())).retrieve("chapter"))


@compared(gives=["inside"])
def test_an_object_that_is_a_retriever_is_asked_async_too(make):
    return ids(asyncio.run(make(objects(inner().as_retriever())).aretrieve("chapter")))


@compared(gives=["mapped"])
def test_a_custom_object_map_is_used(make):
    return ids(
        make(objects(None), object_map={"one": TextNode(id_="mapped", text="y")}).retrieve(
            "chapter"
        )
    )


@compared()
def test_the_callback_manager_given_is_its_own(make):
    return make(index(), callback_manager=None).callback_manager is not None


@compared()
def test_a_copy_gives_the_same(make):
    return seen(copy.copy(make(index(), similarity_top_k=3)).retrieve(QUESTION))


@compared()
def test_a_deep_copy_gives_the_same(make):
    return seen(copy.deepcopy(make(index(), similarity_top_k=3)).retrieve(QUESTION))


@compared()
def test_it_can_be_pickled_over_a_store_in_memory(make):
    return seen(
        pickle.loads(pickle.dumps(make(index(), similarity_top_k=3))).retrieve(QUESTION)  # noqa: S301
    )
