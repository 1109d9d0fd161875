"""``ContextualIndex.vector_store`` where a vector store of LlamaIndex stood, beside stock ones."""

import asyncio
import copy
import pickle
from itertools import count

import chromadb
import pytest
from hashed_words import HashedWords
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.schema import MetadataMode, TextNode
from llama_index.core.vector_stores import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    SimpleVectorStore,
    VectorStoreQuery,
)
from llama_index.vector_stores.chroma import ChromaVectorStore

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.errors import CopyError, FingerprintError, SettingError

TEXTS = {
    "dog": "Cookie the dog loves carrots and long walks",
    "cat": "The cat sleeps all day on the warm sofa",
    "gateway": "The gateway waits for 60 seconds before it gives up",
    "budget": "The budget for the kitchen is 12000 euros",
    "freeze": "The freeze starts on 14 December and carrots are off",
    "meeting": "We met the architects and agreed on the budget",
}
TEAMS = ["net", "web", "net", "ops", "network", "web"]
EMBEDDING = HashedWords(model_name="hashed")
QUESTION = "when does the carrots freeze start"
MODES = ["default", "sparse", "text_search", "hybrid", "semantic_hybrid"]
_COLLECTIONS = count()


def documents():
    """Six documents, and a seventh of several chunks."""
    found = []
    for number, (name, text) in enumerate(TEXTS.items()):
        metadata = {"team": TEAMS[number], "n": number}
        if name != "budget":
            metadata["owner"] = f"{name}@example.org"
        found.append(Document(text=text, id_=name, metadata=metadata))
    found.append(Document(text="# One\n\n" + "carrots " * 300 + "\n\n# Two\n\n" + "parsnips " * 300, id_="long"))
    return found


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    with ContextualIndex.open(tmp_path_factory.mktemp("notes"), embed_model=EMBEDDING) as index:
        index.refresh(documents())
        yield index


@pytest.fixture
def own(tmp_path):
    """An index of the test's own, which it may change."""
    with ContextualIndex.open(tmp_path, embed_model=EMBEDDING) as index:
        index.refresh(documents())
        yield index


def stock_of(index, store):
    """LlamaIndex's index over a store of its own, with the same nodes and vectors."""
    nodes = [node.model_copy() for node in index.nodes()]
    for node in nodes:
        node.embedding = EMBEDDING.get_text_embedding(node.get_content(metadata_mode=MetadataMode.EMBED))
    store.add(nodes)
    return store


@pytest.fixture(scope="module")
def chroma(index):
    client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
    collection = client.create_collection(f"contract{next(_COLLECTIONS)}", metadata={"hnsw:space": "cosine"})
    store = stock_of(index, ChromaVectorStore(chroma_collection=collection))
    return VectorStoreIndex.from_vector_store(store, embed_model=EMBEDDING)


@pytest.fixture(scope="module")
def ours(index):
    return VectorStoreIndex.from_vector_store(index.vector_store, embed_model=EMBEDDING)


def where(*filters, condition=FilterCondition.AND):
    made = [
        one if isinstance(one, MetadataFilters) else MetadataFilter(key=one[0], operator=one[1], value=one[2])
        for one in filters
    ]
    return MetadataFilters(filters=made, condition=condition)


FILTERS = {
    "==": where(("team", "==", "net")),
    "!=": where(("team", "!=", "net")),
    ">": where(("n", ">", 2)),
    "<=": where(("n", "<=", 2)),
    "in": where(("team", "in", ["web", "ops"])),
    "and": where(("team", "==", "net"), ("n", ">", 0)),
    "or": where(("team", "==", "ops"), ("n", "==", 0), condition=FilterCondition.OR),
}


@pytest.mark.parametrize("name", FILTERS)
def test_nodes_scores_and_filters_are_those_of_a_stock_store(ours, chroma, name):
    answers = [
        {
            hit.node.node_id: hit.node.text
            for hit in one.as_retriever(similarity_top_k=20, filters=FILTERS[name]).retrieve(QUESTION)
        }
        for one in (chroma, ours)
    ]
    if name == "!=":  # Chroma leaves out nodes without the key
        missing = {key for key in answers[1] if key not in answers[0]}
        answers[1] = {key: text for key, text in answers[1].items() if key not in missing}
    assert answers[0] == answers[1] != {}


def test_the_order_and_the_cosines_are_those_of_a_stock_store(ours, index):
    simple = stock_of(index, SimpleVectorStore())
    query = VectorStoreQuery(query_embedding=EMBEDDING.get_query_embedding(QUESTION), similarity_top_k=5)
    theirs, own = simple.query(query), index.vector_store.query(query)
    assert own.ids == theirs.ids
    assert own.similarities == pytest.approx(theirs.similarities, abs=1e-6)
    assert [node.node_id for node in own.nodes] == own.ids


OPERATORS = [
    (FilterOperator.EQ, "n", 1, {"cat"}),
    (FilterOperator.NE, "n", 1, {"dog", "gateway", "budget", "freeze", "meeting", "long"}),
    (FilterOperator.GT, "n", 3, {"freeze", "meeting"}),
    (FilterOperator.GTE, "n", 4, {"freeze", "meeting"}),
    (FilterOperator.LT, "n", 1, {"dog"}),
    (FilterOperator.LTE, "n", 0, {"dog"}),
    (FilterOperator.IN, "team", ["ops", "network"], {"budget", "freeze"}),
    (FilterOperator.NIN, "team", ["net", "web", "ops"], {"freeze", "long"}),
    (FilterOperator.TEXT_MATCH, "owner", "cat@", {"cat"}),
    (FilterOperator.IS_EMPTY, "owner", None, {"budget", "long"}),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("operator", "key", "value", "wanted"), OPERATORS, ids=[one[0].name for one in OPERATORS])
def test_every_operator_counts_in_every_mode(index, mode, operator, key, value, wanted):
    words = " ".join(TEXTS.values()) + " carrots parsnips"
    query = VectorStoreQuery(
        query_embedding=EMBEDDING.get_query_embedding(words),
        query_str=words,
        similarity_top_k=50,
        mode=mode,
        filters=where((key, operator, value)),
    )
    assert {node.ref_doc_id for node in index.vector_store.query(query).nodes} == wanted


@pytest.mark.parametrize("mode", MODES)
def test_a_retriever_of_llama_index_asks_in_every_mode(ours, mode):
    retriever = ours.as_retriever(vector_store_query_mode=mode, similarity_top_k=3)
    hits = retriever.retrieve(QUESTION)
    assert 0 < len(hits) <= 3
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert asyncio.run(retriever.aretrieve(QUESTION)) == hits
    assert "freeze" in {hit.node.ref_doc_id for hit in hits}


def asked(index, **options):
    query = {"query_embedding": EMBEDDING.get_query_embedding(QUESTION), "query_str": QUESTION, "similarity_top_k": 4}
    return index.vector_store.query(VectorStoreQuery(**{**query, **options}))


def test_alpha_is_the_share_of_the_vectors(index):
    assert asked(index, mode="hybrid", alpha=1.0).ids == asked(index).ids
    assert asked(index, mode="hybrid", alpha=0.0).ids == asked(index, mode="sparse").ids
    assert asked(index, mode="hybrid").ids == asked(index, mode="hybrid", alpha=0.4).ids
    assert asked(index, mode="hybrid").similarities[0] == 1.0
    assert len(asked(index, mode="hybrid", hybrid_top_k=2).ids) == 2
    with pytest.raises(SettingError, match=r"alpha=2.*Cure"):
        asked(index, mode="hybrid", alpha=2.0)


@pytest.mark.parametrize("mode", MODES)
def test_only_some_nodes_or_documents(index, mode):
    ids = {node.ref_doc_id: node.node_id for node in index.nodes()}
    assert set(asked(index, mode=mode, node_ids=[ids["dog"], ids["freeze"], "gone"]).ids) == {ids["dog"], ids["freeze"]}
    assert set(asked(index, mode=mode, doc_ids=["dog", "freeze", "gone"]).ids) == {ids["dog"], ids["freeze"]}
    both = asked(index, mode=mode, node_ids=[ids["dog"], ids["freeze"]], filters=where(("team", "==", "net")))
    assert both.ids == [ids["dog"]]
    assert asked(index, mode=mode, node_ids=["gone"]).ids == []
    assert asked(index, mode=mode, node_ids=[]).ids == asked(index, mode=mode).ids, "as VectorStoreIndex asks for all"


def test_nodes_by_id_and_by_filters(index):
    store, every = index.vector_store, index.nodes()
    wanted = [every[2].node_id, every[0].node_id]
    assert [node.node_id for node in store.get_nodes([*wanted, "gone", wanted[0]])] == wanted
    assert {node.ref_doc_id for node in store.get_nodes(filters=FILTERS["=="])} == {"dog", "gateway"}
    assert [node.ref_doc_id for node in store.get_nodes(wanted, FILTERS["=="])] == [
        node.ref_doc_id for node in (every[2], every[0]) if node.metadata.get("team") == "net"
    ]
    assert len(store.get_nodes()) == len(every)
    assert asyncio.run(store.aget_nodes(wanted)) == store.get_nodes(wanted)


def test_documents_are_deleted_whole(own):
    store = own.vector_store
    stock = VectorStoreIndex.from_vector_store(store, embed_model=EMBEDDING)
    stock.delete_ref_doc("dog")
    store.delete("gone")
    asyncio.run(store.adelete("cat"))
    store.delete_nodes(filters=where(("team", "==", "ops")))
    asyncio.run(store.adelete_nodes([node.node_id for node in own.nodes() if node.ref_doc_id == "freeze"]))
    assert set(own.documents()) == {"gateway", "meeting", "long"}
    part = [node.node_id for node in own.nodes() if node.ref_doc_id == "long"]
    assert len(part) > 1
    with pytest.raises(SettingError, match=r"only 1 of \d+ nodes of 'long'.*Cure: delete\('long'\)"):
        store.delete_nodes([*part[:1], *[node.node_id for node in own.nodes() if node.ref_doc_id == "meeting"]])
    assert set(own.documents()) == {"gateway", "meeting", "long"}, "nothing of it was done"
    for clear in (store.clear, lambda: asyncio.run(store.aclear()), store.delete_nodes):
        with pytest.raises(SettingError, match=r"is not emptied from here\. Cure"):
            clear()
    assert own.verify().ok


def test_nodes_come_in_by_a_refresh(own):
    stock = VectorStoreIndex.from_vector_store(own.vector_store, embed_model=EMBEDDING)
    before = own.documents()
    refused = [
        lambda: stock.insert(Document(text="Another one.", id_="new")),
        lambda: stock.insert_nodes([TextNode(text="Another one.")]),
        lambda: asyncio.run(stock.ainsert(Document(text="Another one.", id_="new"))),
    ]
    for add in refused:
        with pytest.raises(SettingError, match=r"cannot be added .*Cure: index\.refresh\(\[Document"):
            add()
    assert own.documents() == before
    own.refresh([Document(text="Zebras are striped.", id_="new")])
    hits = stock.as_retriever(similarity_top_k=1, vector_store_query_mode="hybrid").retrieve("zebras")
    assert hits[0].node.ref_doc_id == "new", "what was written is seen at once"


def test_what_cannot_be_asked_names_a_cure(index, tmp_path):
    for mode in ("mmr", "svm"):
        with pytest.raises(SettingError, match=rf"mode='{mode}' is not known\. Cure: default, sparse"):
            asked(index, mode=mode)
    with pytest.raises(SettingError, match=r"no vectors\. Cure: query_embedding="):
        asked(index, query_embedding=None)
    with pytest.raises(SettingError, match=r"no words\. Cure: query_str="):
        asked(index, mode="sparse", query_str=None)
    with pytest.raises(FingerprintError, match=r"3 dimensions.*Cure"):
        asked(index, query_embedding=[1.0, 0.0, 0.0])
    with ContextualIndex.open(tmp_path, embed_model="none") as words:
        words.refresh(documents())
        with pytest.raises(SettingError, match=r"no vectors\. Cure: .*mode='sparse'"):
            asked(words)
        assert asked(words, mode="sparse", query_embedding=None).ids


def test_it_is_the_index_and_travels_with_it(index):
    store = index.vector_store
    assert store.client is index
    assert store.stores_text
    assert store.is_embedding_query
    assert store.class_name() == "ContextualVectorStore"
    assert copy.deepcopy(store).query(VectorStoreQuery(query_str="carrots", mode="sparse", similarity_top_k=1)).ids
    with pytest.raises(CopyError, match="Cure: pickle the folder's path"):
        pickle.dumps(store)


def test_a_query_engine_of_llama_index_answers_from_it(ours):
    from llama_index.core.llms import MockLLM

    answer = ours.as_query_engine(llm=MockLLM(), vector_store_query_mode="hybrid").query(QUESTION)
    assert "freeze" in {hit.node.ref_doc_id for hit in answer.source_nodes}
