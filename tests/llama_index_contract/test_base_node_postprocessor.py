"""``ContextualNodePostprocessor`` in ``node_postprocessors``, beside one of LlamaIndex that changes nothing."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import MetadataReplacementPostProcessor, SimilarityPostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle, TextNode
from side_by_side import Case, compare, refusal

from llama_index_contextual import ContextualNodePostprocessor


class Stock:
    """Replaces nothing, since no node has such a key."""

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


def plain(found):
    return [
        (one.node.node_id, one.score, one.node.get_content(), type(one.node).__name__)
        for one in found
    ]


def untouched(make):
    hits = given()
    before = [hit.to_dict() for hit in hits]
    make().postprocess_nodes(hits, query_str="x")
    return [hit.to_dict() for hit in hits] == before


def engine(make, **options):
    index = VectorStoreIndex(nodes()[:3], embed_model=MockEmbedding(4))
    steps = [make(), SimilarityPostprocessor(similarity_cutoff=0.0)]
    return RetrieverQueryEngine.from_args(
        index.as_retriever(similarity_top_k=3), llm=MockLLM(), node_postprocessors=steps, **options
    )


def sources(response):
    return sorted((one.node_id, one.score) for one in response.source_nodes)


CASES = [
    Case(
        "nodes and scores stay, in their order",
        lambda make: plain(make().postprocess_nodes(given(), query_str="x")),
    ),
    Case(
        "a query bundle does as well",
        lambda make: plain(make().postprocess_nodes(given(), QueryBundle("x"))),
    ),
    Case("no question is needed", lambda make: plain(make().postprocess_nodes(given()))),
    Case(
        "async gives the same",
        lambda make: plain(asyncio.run(make().apostprocess_nodes(given(), query_str="x"))),
    ),
    Case(
        "nothing in, nothing out",
        lambda make: make().postprocess_nodes([], query_str="x"),
        gives=[],
    ),
    Case("what is given stays as it is", untouched, gives=True),
    Case(
        "a question said twice is refused",
        lambda make: refusal(
            lambda: make().postprocess_nodes(given(), QueryBundle("x"), query_str="x")
        ),
    ),
    Case("a query engine cites the same nodes", lambda make: sources(engine(make).query("x"))),
    Case("so it does in async", lambda make: sources(asyncio.run(engine(make).aquery("x")))),
    Case(
        "so it does when it streams", lambda make: sources(engine(make, streaming=True).query("x"))
    ),
    Case(
        "its prompts are listed with the engine's", lambda make: sorted(engine(make).get_prompts())
    ),
    Case(
        "its class's name is in its dictionary",
        lambda make: make().to_dict()["class_name"] == make().class_name(),
    ),
    Case(
        "it comes back from a dictionary",
        lambda make: make.read(make().to_dict()).to_dict() == make().to_dict(),
    ),
    Case(
        "it comes back from a pickle",
        lambda make: pickle.loads(pickle.dumps(make())).to_dict() == make().to_dict(),  # noqa: S301
    ),
    Case(
        "what a reranker reads of a node",
        lambda make: make().postprocess_nodes(given())[0].node.get_content(metadata_mode="embed"),
        stock="path: note 0.md\nn: 0\n\nText 0.",
        gives="n: 0\ncontext: Document: note 0.md\n\nText 0.",
        differs="postprocessor-embed",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_base_node_postprocessor(case):
    compare(case, Stock(), Ours())
