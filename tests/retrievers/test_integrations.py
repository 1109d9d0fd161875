"""Our retrievers in applications of LlamaIndex: engines, routers, agents, indexes that change."""

from __future__ import annotations

import pytest
from llama_index.core import (
    PropertyGraphIndex,
    SimpleDirectoryReader,
    StorageContext,
    VectorStoreIndex,
)
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.indices.property_graph import ImplicitPathExtractor
from llama_index.core.llms import MockLLM
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.postprocessor import LLMRerank, SimilarityPostprocessor
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import (
    CitationQueryEngine,
    RetrieverQueryEngine,
    RouterQueryEngine,
)
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import Document, IndexNode, MetadataMode, NodeWithScore
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.tools import QueryEngineTool, RetrieverTool
from results import ids

from llama_index_contextual import ContextualNodePostprocessor, HeadingAwareMarkdownNodeParser
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever


@pytest.fixture
def hybrid(index, embedding):
    keyword = ContextualBM25Retriever.from_defaults(index=index)
    vector = ContextualVectorRetriever(index, embed_model=embedding)
    return ContextualFusionRetriever([vector, keyword], similarity_top_k=3)


@pytest.fixture
def synthesizer():
    return get_response_synthesizer(llm=MockLLM(), streaming=False)


# Engines


def test_a_query_engine_answers_from_the_hits(hybrid):
    response = RetrieverQueryEngine.from_args(hybrid, llm=MockLLM()).query("the dog Cookie")
    assert "loves carrots" in str(response)
    assert ids(response.source_nodes) == ids(hybrid.retrieve("the dog Cookie"))


async def test_a_query_engine_answers_asynchronously(hybrid):
    response = await RetrieverQueryEngine.from_args(hybrid, llm=MockLLM()).aquery("the dog Cookie")
    assert ids(response.source_nodes) == ids(hybrid.retrieve("the dog Cookie"))


def test_a_query_engine_streams(hybrid):
    response = RetrieverQueryEngine.from_args(hybrid, llm=MockLLM(), streaming=True).query(
        "the dog Cookie"
    )
    assert "loves carrots" in "".join(response.response_gen)


def test_a_citation_engine_numbers_our_sources(hybrid):
    engine = CitationQueryEngine.from_args(None, llm=MockLLM(), retriever=hybrid)
    response = engine.query("the dog Cookie")
    assert response.source_nodes[0].node.get_content().startswith("Source 1:")
    assert "loves carrots" in response.source_nodes[0].node.get_content()


def test_a_router_sends_queries_to_our_retriever(hybrid, synthesizer):
    class First(MockLLM):
        """A selector that chooses the first tool."""

        def predict(self, prompt, **kwargs):
            return '[{"choice": 1, "reason": "only one"}]'

    tool = QueryEngineTool.from_defaults(
        RetrieverQueryEngine(hybrid, synthesizer), name="notes", description="Notes."
    )
    router = RouterQueryEngine(
        LLMSingleSelector.from_defaults(llm=First()), [tool], summarizer=None, llm=MockLLM()
    )
    assert "loves carrots" in str(router.query("the dog Cookie"))


async def test_the_tool_of_an_agent_uses_our_retriever(hybrid):
    tool = RetrieverTool.from_defaults(hybrid, name="notes", description="Notes.")
    assert "loves carrots" in (await tool.acall("the dog Cookie")).content
    agent = FunctionAgent(tools=[tool], llm=MockFunctionCallingLLM(max_tokens=8))
    assert [agent_tool.metadata.name for agent_tool in await agent.get_tools()] == ["notes"]


# After our retrievers


def test_a_reranker_sees_the_context_and_decides_the_order(index, embedding, nodes):
    seen = {}

    class Reversing(BaseNodePostprocessor):
        def _postprocess_nodes(self, nodes, query_bundle=None):
            seen.update(
                {
                    hit.node.node_id: hit.node.get_content(metadata_mode=MetadataMode.EMBED)
                    for hit in nodes
                }
            )
            return [NodeWithScore(node=hit.node, score=float(i)) for i, hit in enumerate(nodes)][
                ::-1
            ]

    for node in nodes:
        node.metadata["context"] = f"Document: {node.node_id}"
    keyword = ContextualBM25Retriever(nodes)
    hybrid = ContextualFusionRetriever([keyword], similarity_top_k=3)
    engine = RetrieverQueryEngine.from_args(
        hybrid, llm=MockLLM(), node_postprocessors=[Reversing()]
    )
    answered = ids(engine.query("budget of the house").source_nodes)
    assert answered == ids(hybrid.retrieve("budget of the house"))[::-1]
    assert all(f"Document: {name}" in text for name, text in seen.items())


def test_stock_postprocessors_work(hybrid):
    class Chooses(MockLLM):
        def predict(self, prompt, **kwargs):
            return "Doc: 2, Relevance: 9\nDoc: 1, Relevance: 3"

    for postprocessor in (
        SimilarityPostprocessor(similarity_cutoff=0.1),
        LLMRerank(llm=Chooses(), top_n=2),
    ):
        engine = RetrieverQueryEngine.from_args(
            hybrid, llm=MockLLM(), node_postprocessors=[postprocessor]
        )
        assert engine.query("the dog Cookie").source_nodes


def test_a_fusion_follows_index_nodes(index, embedding, nodes):
    pointer = IndexNode(id_="pointer", index_id="more", text="everything on zebras", obj=nodes[3])
    keyword = ContextualBM25Retriever([pointer, *nodes])
    assert ids(ContextualFusionRetriever([keyword]).retrieve("zebras")) == ["config"]


def test_a_property_graph_is_a_retriever(nodes, embedding):
    chunks = [node.model_copy(update={"embedding": None}) for node in nodes]
    graph = PropertyGraphIndex(
        chunks,
        kg_extractors=[ImplicitPathExtractor()],
        embed_model=embedding,
        embed_kg_nodes=False,
        llm=MockLLM(max_tokens=8),
        use_async=False,
    )
    question = nodes[3].text[:40]
    hits = ContextualFusionRetriever(
        [graph.as_retriever(), ContextualBM25Retriever(nodes)]
    ).retrieve(question)
    assert nodes[3].node_id in ids(hits)


# Indexes that change


@pytest.fixture
def changing(store, embedding):
    """Return a VectorStoreIndex on Chroma with our transformations and a docstore for refreshes."""
    context = StorageContext.from_defaults(vector_store=store, docstore=SimpleDocumentStore())
    return VectorStoreIndex(
        [],
        storage_context=context,
        embed_model=embedding,
        transformations=[
            HeadingAwareMarkdownNodeParser(),
            ContextualNodePostprocessor(context="headings"),
        ],
        store_nodes_override=True,
    )


def page(name, body):
    return Document(text=f"# {name}\n\n{body}\n", id_=name, metadata={"path": f"{name}.md"})


def test_insert_delete_and_refresh_reach_both_retrievers(changing, store, embedding):
    def answer(query):
        keyword = ContextualBM25Retriever.from_defaults(vector_store=store)
        vector = ContextualVectorRetriever(changing, embed_model=embedding)
        return {
            hit.node.metadata["path"]
            for hit in ContextualFusionRetriever([vector, keyword]).retrieve(query)
        }

    changing.insert(page("dog", "Cookie loves carrots."))
    changing.insert(page("cat", "The cat sleeps."))
    assert answer("carrots") == {"dog.md", "cat.md"}
    changing.delete_ref_doc("dog", delete_from_docstore=True)
    assert answer("carrots") == {"cat.md"}
    changed = changing.refresh_ref_docs(
        [page("cat", "The cat likes carrots now."), page("owl", "An owl.")]
    )
    assert changed == [True, True]
    assert answer("carrots") == {"cat.md", "owl.md"}
    keyword = ContextualBM25Retriever.from_defaults(vector_store=store)
    assert [hit.node.text for hit in keyword.retrieve("carrots")] == [
        "# cat\n\nThe cat likes carrots now."
    ]


def test_the_context_is_searched_by_both_retrievers(changing, store, embedding):
    changing.insert(page("Kubernetes", "It restarts by itself."))
    changing.insert(page("Oven", "It gets warm by itself."))
    keyword = ContextualBM25Retriever.from_defaults(vector_store=store)
    assert [hit.node.metadata["path"] for hit in keyword.retrieve("kubernetes")] == [
        "Kubernetes.md"
    ]
    best = ContextualVectorRetriever(changing, embed_model=embedding).retrieve("kubernetes")[0]
    assert best.node.metadata["path"] == "Kubernetes.md"


def test_metadata_of_the_directory_reader_work(tmp_path, changing, store, embedding):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "dog.md").write_text("# Dog\n\nCookie loves carrots.\n", "utf-8")
    documents = SimpleDirectoryReader(str(tmp_path / "notes")).load_data()
    for document in documents:
        changing.insert(document)
    keyword = ContextualBM25Retriever.from_defaults(vector_store=store)
    hybrid = ContextualFusionRetriever(
        [ContextualVectorRetriever(changing, embed_model=embedding), keyword]
    )
    (hit,) = hybrid.retrieve("carrots")
    assert hit.node.metadata["file_name"] == "dog.md"
    assert keyword.retrieve("file_path") == [], "names of keys are not words to search for"
