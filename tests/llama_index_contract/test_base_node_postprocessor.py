"""``ContextualNodePostprocessor`` in ``node_postprocessors``, beside a stock postprocessor without
effect.
"""

from __future__ import annotations

import asyncio
import pickle

from llama_index.core import VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import MetadataReplacementPostProcessor, SimilarityPostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle, TextNode
from side_by_side import comparison, refusal

from llama_index_contextual import ContextualNodePostprocessor


class Stock:
    """A postprocessor that replaces nothing, since no node has such a key."""

    def __call__(self):
        return MetadataReplacementPostProcessor(target_metadata_key="absent")

    def read(self, data):
        return MetadataReplacementPostProcessor.from_dict(data)


class Ours:
    def __call__(self):
        return ContextualNodePostprocessor()

    def read(self, data):
        return ContextualNodePostprocessor.from_dict(data)


def nodes():
    made = [
        TextNode(text=f"Text {n}.", id_=str(n), metadata={"path": f"note {n}.md", "n": n})
        for n in range(3)
    ]
    return [*made, IndexNode(text="A table.", id_="table", index_id="table-1")]


def given():
    return [
        NodeWithScore(node=node, score=score)
        for node, score in zip(nodes(), (0.9, None, 0.5, 0.1), strict=True)
    ]


def plain(hits):
    return [
        (hit.node.node_id, hit.score, hit.node.get_content(), type(hit.node).__name__)
        for hit in hits
    ]


def engine(make, **options):
    index = VectorStoreIndex(nodes()[:3], embed_model=MockEmbedding(4))
    steps = [make(), SimilarityPostprocessor(similarity_cutoff=0.0)]
    return RetrieverQueryEngine.from_args(
        index.as_retriever(similarity_top_k=3), llm=MockLLM(), node_postprocessors=steps, **options
    )


def sources(response):
    return sorted((hit.node_id, hit.score) for hit in response.source_nodes)


compared = comparison(Stock(), Ours())


@compared()
def test_nodes_and_scores_stay_in_their_order(make):
    return plain(make().postprocess_nodes(given(), query_str="x"))


@compared()
def test_a_query_bundle_works_too(make):
    return plain(make().postprocess_nodes(given(), QueryBundle("x")))


@compared()
def test_no_question_is_needed(make):
    return plain(make().postprocess_nodes(given()))


@compared()
def test_async_gives_the_same(make):
    return plain(asyncio.run(make().apostprocess_nodes(given(), query_str="x")))


@compared(gives=[])
def test_nothing_in_nothing_out(make):
    return make().postprocess_nodes([], query_str="x")


@compared(gives=True)
def test_the_input_is_not_changed(make):
    hits = given()
    before = [hit.to_dict() for hit in hits]
    make().postprocess_nodes(hits, query_str="x")
    return [hit.to_dict() for hit in hits] == before


@compared()
def test_two_forms_of_a_question_are_refused(make):
    return refusal(lambda: make().postprocess_nodes(given(), QueryBundle("x"), query_str="x"))


@compared()
def test_a_query_engine_cites_the_same_nodes(make):
    return sources(engine(make).query("x"))


@compared()
def test_an_asynchronous_query_engine_cites_the_same_nodes(make):
    return sources(asyncio.run(engine(make).aquery("x")))


@compared()
def test_a_streaming_query_engine_cites_the_same_nodes(make):
    return sources(engine(make, streaming=True).query("x"))


@compared()
def test_the_prompts_are_listed_with_those_of_the_engine(make):
    return sorted(engine(make).get_prompts())


@compared()
def test_the_class_name_is_in_the_dictionary(make):
    return make().to_dict()["class_name"] == make().class_name()


@compared()
def test_it_can_be_restored_from_a_dictionary(make):
    return make.read(make().to_dict()).to_dict() == make().to_dict()


@compared()
def test_it_can_be_unpickled(make):
    return pickle.loads(pickle.dumps(make())).to_dict() == make().to_dict()  # noqa: S301


@compared(
    stock="path: note 0.md\nn: 0\n\nText 0.",
    ours="n: 0\ncontext: Document: note 0.md\n\nText 0.",
    differs="postprocessor-embed",
)
def test_what_a_reranker_reads_of_a_node(make):
    return make().postprocess_nodes(given())[0].node.get_content(metadata_mode="embed")
