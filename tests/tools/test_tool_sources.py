"""The tools over LlamaIndex indexes, stores, retrievers and nodes."""

import pytest
from llama_index.core import (
    Document,
    DocumentSummaryIndex,
    MockEmbedding,
    PropertyGraphIndex,
    SimpleKeywordTableIndex,
    StorageContext,
    SummaryIndex,
    TreeIndex,
    VectorStoreIndex,
)
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import TextNode

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    HeadingAwareMarkdownNodeParser,
    contextual_tools,
)
from llama_index_contextual.utils.errors import ContextualWarning, SettingError

PUMPS = "# Pumps\n\nIntro.\n\n## Faults\n\nE4042: the queue is full.\n"
BOATS = "# Boats\n\nLuna is red. It sails well.\n"
DOCUMENTS = [
    Document(text=PUMPS, id_="p", metadata={"file_path": "/srv/pumps.md"}),
    Document(text=BOATS, id_="b", metadata={"file_path": "/srv/boats.md"}),
]
EMBEDDING = MockEmbedding(embed_dim=4)


def by_name(source):
    return {tool.metadata.name: tool for tool in contextual_tools(source)}


def over_store(nodes, store):
    storage = StorageContext.from_defaults(vector_store=store)
    return VectorStoreIndex(nodes, storage_context=storage, embed_model=EMBEDDING)


def chroma(nodes, tmp_path):
    chromadb = pytest.importorskip("chromadb")
    from llama_index.vector_stores.chroma import ChromaVectorStore

    collection = chromadb.PersistentClient(str(tmp_path)).create_collection("notes")
    return over_store(nodes, ChromaVectorStore(chroma_collection=collection))


def qdrant(nodes, tmp_path):
    client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
    from llama_index.vector_stores.qdrant import QdrantVectorStore

    return over_store(nodes, QdrantVectorStore("notes", client=client))


def lancedb(nodes, tmp_path):
    pytest.importorskip("lancedb")
    from llama_index.vector_stores.lancedb import LanceDBVectorStore

    return over_store(nodes, LanceDBVectorStore(uri=str(tmp_path)))


def retriever_and_nodes(nodes, tmp_path):
    return [VectorStoreIndex(nodes, embed_model=EMBEDDING).as_retriever(), nodes]


def fusion_and_nodes(nodes, tmp_path):
    keywords = ContextualBM25Retriever.from_defaults(nodes=nodes)
    return (ContextualFusionRetriever([keywords]), nodes)


SOURCES = {
    "simple store": lambda nodes, _: VectorStoreIndex(nodes, embed_model=EMBEDDING),
    "chroma": chroma,
    "qdrant": qdrant,
    "lancedb": lancedb,
    "summary index": lambda nodes, _: SummaryIndex(nodes),
    "keyword table": lambda nodes, _: SimpleKeywordTableIndex(nodes, llm=MockLLM()),
    "tree": lambda nodes, _: TreeIndex(nodes, llm=MockLLM()),
    "document summaries": lambda nodes, _: DocumentSummaryIndex(
        nodes=nodes, llm=MockLLM(), embed_model=EMBEDDING
    ),
    "property graph": lambda nodes, _: PropertyGraphIndex(
        nodes, kg_extractors=[], llm=MockLLM(), embed_model=EMBEDDING
    ),
    "retriever and nodes": retriever_and_nodes,
    "fusion and nodes": fusion_and_nodes,
    "nodes": lambda nodes, _: nodes,
    "documents": lambda *_: DOCUMENTS,
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_every_source_has_four_tools_that_find_the_same(make, tmp_path, monkeypatch):
    monkeypatch.setattr("llama_index.core.Settings._llm", MockLLM())
    nodes = HeadingAwareMarkdownNodeParser().get_nodes_from_documents(DOCUMENTS)
    tools = by_name(make(nodes, tmp_path))
    assert [*tools] == ["retrieve", "grep", "read", "list"]
    assert "the queue is full" in str(tools["retrieve"](query="queue full"))
    [hit, *_] = tools["grep"](pattern="E4042").raw_output.data["hits"]
    assert "E4042: the queue is full." in str(tools["read"](path=hit["citation"]))
    assert "Luna is red" in str(tools["read"](path="boats"))
    assert str(tools["list"]()).startswith("/srv/boats.md\n/srv/pumps.md\n")


def test_without_texts_only_retrieve_remains_and_a_warning_says_so():
    index = VectorStoreIndex.from_documents(DOCUMENTS, embed_model=EMBEDDING)
    for node_id in [*index.docstore.docs]:
        index.docstore.delete_document(node_id)
    sources = {
        "only a retriever was given": index.as_retriever(),
        "cannot list its nodes": index,
    }
    for reason, source in sources.items():
        with pytest.warns(ContextualWarning, match=reason):
            assert [*by_name(source)] == ["retrieve"]


def test_a_source_that_cannot_be_searched_is_named():
    engine = VectorStoreIndex.from_documents(DOCUMENTS, embed_model=EMBEDDING).as_chat_engine(
        llm=MockLLM()
    )
    with pytest.raises(SettingError, match=r"`source` must be .* a LlamaIndex index"):
        contextual_tools(engine)


def test_pages_are_read_in_the_order_of_their_numbers():
    pages = [
        TextNode(text=f"Text of page {page}.", metadata={"file_path": "a.pdf", "page_label": page})
        for page in ("10", "2", "1", "9")
    ]
    tools = by_name(pages)
    whole = str(tools["read"](path="a.pdf"))
    assert whole.split("\n\n") == [f"Text of page {page}." for page in (1, 2, 9, 10)]
    assert str(tools["read"](path="a.pdf#page=9")) == "Text of page 9."
    hits = tools["grep"](pattern="text of").raw_output.data["hits"]
    assert [hit["citation"] for hit in hits] == [f"a.pdf#page={page}" for page in (1, 2, 9)]


@pytest.mark.parametrize(
    "parser",
    [
        HeadingAwareMarkdownNodeParser(chunk_size=60, min_chunk_size=10),
        SentenceSplitter(chunk_size=60, chunk_overlap=20),
    ],
)
def test_a_line_that_was_split_is_read_in_full(parser):
    sentences = [f"The pump {number} feeds the tank {number}." for number in range(60)]
    document = Document(text=f"# Pumps\n\n{' '.join(sentences)}\n", metadata={"path": "a.md"})
    nodes = parser.get_nodes_from_documents([document])
    assert len(nodes) > 3
    text = " ".join(str(by_name(nodes)["read"](path="a.md", lines=100)).split())
    for sentence in sentences:
        assert text.count(sentence) == 1, sentence


def test_a_title_that_is_not_in_the_text_is_cited_by_the_path():
    node = TextNode(text="It is red.", metadata={"path": "a.html", "title": "The big pump"})
    tools = by_name([node])
    [hit] = tools["grep"](pattern="big pump").raw_output.data["hits"]
    assert hit["citation"] == "a.html"
    assert str(tools["read"](path=hit["citation"])) == "It is red."


@pytest.mark.parametrize("kind", [DocumentSummaryIndex, TreeIndex])
def test_summaries_of_a_model_are_not_documents(kind, monkeypatch):
    monkeypatch.setattr("llama_index.core.Settings._llm", MockLLM())
    monkeypatch.setattr("llama_index.core.Settings._embed_model", EMBEDDING)
    documents = [
        Document(
            text=f"Boat {number} is red.", id_=f"b{number}", metadata={"path": f"b{number}.md"}
        )
        for number in range(12)
    ]
    index = kind.from_documents(documents)
    assert len(index.docstore.docs) > len(documents)
    tools = by_name(index)
    assert str(tools["list"]()).splitlines() == sorted(f"b{number}.md" for number in range(12))
    assert str(tools["read"](path="b3.md")) == "Boat 3 is red."
    assert tools["grep"](pattern="Boat 3 is red").raw_output.data["lines"] == 1


@pytest.mark.parametrize("lines", [1, 2, 5])
def test_cited_front_matter_of_nodes_can_be_read(lines):
    properties = [f"key{number}: value {number}" for number in range(lines)]
    text = "\n".join(["---", *properties, "---", "# Pumps", "", "They are red.", ""])
    document = Document(text=text, metadata={"path": "a.md"})
    tools = by_name(HeadingAwareMarkdownNodeParser().get_nodes_from_documents([document]))
    [hit] = tools["grep"](pattern=f"value {lines - 1}").raw_output.data["hits"]
    assert hit["citation"] == f"a.md#L1-L{lines + 2}"
    assert f"value {lines - 1}" in str(tools["read"](path=hit["citation"]))
    assert str(tools["read"](path=f"a.md#L{lines + 5}")).startswith("They are red.")


def test_properties_above_the_second_line_share_the_first():
    values = {"path": "a.md", "start_line": 2, "front_matter": "status: open; owner: Marta"}
    tools = by_name([TextNode(text="They are red.", metadata=values)])
    assert str(tools["read"](path="a.md")) == "status: open; owner: Marta\nThey are red."
