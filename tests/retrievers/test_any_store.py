"""Filters, document ids and node ids mean the same on every vector store."""

from __future__ import annotations

import uuid

import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import (
    ImageNode,
    IndexNode,
    NodeRelationship,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    FilterCondition,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQueryMode,
)
from llama_index.vector_stores.chroma import ChromaVectorStore
from llama_index.vector_stores.lancedb import LanceDBVectorStore
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import QdrantClient

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualVectorRetriever,
)
from llama_index_contextual.retrievers.filters import metadata_match
from llama_index_contextual.utils.errors import ContextualWarning, SettingError, StorageError

STORES = ["simple", "chroma", "qdrant", "lance"]
TEAMS = ["net", "web", "net", "network", "ops", "web", "o'ps", "net"]
QUESTION = "alpha"


def key(name):
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))  # Qdrant accepts no other ids


def notes():
    """Return eight notes of two documents, in which later notes repeat "alpha" more often."""
    nodes = []
    for number, team in enumerate(TEAMS):
        source = RelatedNodeInfo(node_id=f"doc{number % 2}")
        metadata = {
            "team": team,
            "n": number,
            "half": number / 2,
            "done": number % 2 == 0,
            "tags": f"{team},all",
        }
        words = " ".join(["alpha"] * (1 + number) + [team])
        node = TextNode(
            id_=key(str(number)),
            text=words,
            metadata=metadata,
            excluded_embed_metadata_keys=[*metadata],
        )
        node.relationships = {NodeRelationship.SOURCE: source}
        nodes.append(node)
    return nodes


def index_on(kind, folder, embedding, nodes):
    if kind == "simple":
        store = SimpleVectorStore()
    elif kind == "chroma":
        store = ChromaVectorStore.from_params("notes", persist_dir=str(folder / "chroma"))
    elif kind == "qdrant":
        store = QdrantVectorStore("notes", client=QdrantClient(":memory:"))
    else:
        store = LanceDBVectorStore(uri=str(folder / "lance"))
    context = StorageContext.from_defaults(vector_store=store)
    return VectorStoreIndex(nodes, storage_context=context, embed_model=embedding)


@pytest.fixture(scope="module")
def on(tmp_path_factory, embedding):
    """Return the index on a store of some kind, made once."""
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = index_on(kind, tmp_path_factory.mktemp(kind), embedding, notes())
        return made[kind]

    return get


def filter_on(name, operator, value=None):
    return MetadataFilter(key=name, operator=operator, value=value)


def all_of(*filters):
    return MetadataFilters(filters=list(filters))


def none_of(*filters):
    return MetadataFilters(filters=list(filters), condition=FilterCondition.NOT)


def any_of(*filters):
    return MetadataFilters(filters=list(filters), condition=FilterCondition.OR)


FILTERS = {
    "equal": (all_of(filter_on("team", "==", "net")), "027"),
    "equal to a text with a quote": (all_of(filter_on("team", "==", "o'ps")), "6"),
    "equal to what is no filter of SQL": (all_of(filter_on("team", "==", "x' OR '1'='1")), ""),
    "not equal": (all_of(filter_on("team", "!=", "net")), "13456"),
    "no team": (none_of(filter_on("team", "==", "net")), "13456"),
    "none of two": (none_of(filter_on("team", "==", "net"), filter_on("n", ">", 4)), "134"),
    "nested": (
        all_of(
            any_of(filter_on("team", "==", "net"), filter_on("n", "==", 1)),
            none_of(filter_on("n", "<", 1)),
        ),
        "127",
    ),
    "either": (any_of(filter_on("team", "==", "web"), filter_on("n", "==", 0)), "015"),
    "in": (all_of(filter_on("team", "in", ["net", "ops"])), "0247"),
    "in a text": (all_of(filter_on("team", "in", "net, ops")), "0247"),
    "not in a text": (all_of(filter_on("team", "nin", "net,ops")), "1356"),
    "not in": (all_of(filter_on("team", "nin", ["net", "ops"])), "1356"),
    "in nothing": (all_of(filter_on("team", "in", [])), ""),
    "a range": (all_of(filter_on("n", ">=", 2), filter_on("n", "<", 5)), "234"),
    "a fraction": (all_of(filter_on("half", ">", 1.5)), "4567"),
    "less than a fraction": (all_of(filter_on("n", "<", 2.5)), "012"),
    "true": (all_of(filter_on("done", "==", 1)), "0246"),
    "false": (all_of(filter_on("done", "==", 0)), "1357"),
    "not true": (all_of(filter_on("done", "!=", 1)), "1357"),
    "one of the truths": (all_of(filter_on("done", "in", [1, 5])), "0246"),
    "zero is not false": (all_of(filter_on("n", "==", 0)), "0"),
    "a part of the text": (all_of(filter_on("tags", "text_match", "net")), "0237"),
    "a part of the text in capitals": (
        all_of(filter_on("tags", "text_match_insensitive", "NET,")),
        "027",
    ),
    "holds": (all_of(filter_on("tags", "contains", "ops")), "4"),
    "holds any": (all_of(filter_on("tags", "any", ["ops", "web"])), "145"),
    "holds all": (all_of(filter_on("tags", "all", ["ops", "all"])), "4"),
    "empty": (all_of(filter_on("nowhere", "is_empty")), "01234567"),
    "a missing key": (all_of(filter_on("nowhere", "==", 1)), ""),
    "not equal to what is missing": (all_of(filter_on("nowhere", "!=", 1)), "01234567"),
    "a document": (all_of(filter_on("doc_id", "==", "doc1")), "1357"),
    "a text is no number": (all_of(filter_on("team", ">", 3)), ""),
    "nothing asked": (all_of(), "01234567"),
}


def names(hits):
    numbers = {key(str(number)): str(number) for number in range(len(TEAMS))}
    return "".join(sorted(numbers[hit.node.node_id] for hit in hits))


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("name", FILTERS)
def test_filters_mean_the_same_on_every_store(on, kind, name):
    filters, expected = FILTERS[name]
    retriever = ContextualVectorRetriever(on(kind), filters=filters, similarity_top_k=8)
    assert names(retriever.retrieve(QUESTION)) == expected
    evaluated = [
        node
        for node in notes()
        if metadata_match(filters, {"ref_doc_id": node.ref_doc_id, **node.metadata})
    ]
    assert {key(number) for number in expected} == {node.node_id for node in evaluated}


@pytest.mark.parametrize("kind", STORES)
def test_a_key_that_stores_use_for_the_document_can_be_the_nodes_own(kind, tmp_path, embedding):
    nodes = notes()
    for node in nodes[:3]:
        node.metadata["doc_id"] = "A-17"
    index = index_on(kind, tmp_path, embedding, nodes)
    for document_id, expected in (("A-17", "012"), ("doc1", "357"), ("nowhere", "")):
        filters = all_of(filter_on("doc_id", "==", document_id))
        assert (
            names(ContextualVectorRetriever(index, filters=filters).retrieve(QUESTION)) == expected
        )
        assert names(ContextualBM25Retriever(nodes, filters=filters).retrieve(QUESTION)) == expected


@pytest.mark.parametrize("kind", STORES)
def test_filters_are_applied_before_the_cut_to_top_k(on, kind):
    """The filter leaves out the two nearest nodes, and two other nodes are returned."""
    best = ContextualVectorRetriever(on(kind), similarity_top_k=8).retrieve(QUESTION)
    left_out = [hit.node.metadata["n"] for hit in best[:2]]
    filters = none_of(*(filter_on("n", "==", number) for number in left_out))
    hits = ContextualVectorRetriever(on(kind), filters=filters, similarity_top_k=2).retrieve(
        QUESTION
    )
    assert [hit.node.node_id for hit in hits] == [hit.node.node_id for hit in best[2:4]]


@pytest.mark.parametrize("kind", STORES)
def test_doc_ids_and_node_ids_narrow_like_filters(on, kind):
    index = on(kind)
    assert names(ContextualVectorRetriever(index, doc_ids=["doc0"]).retrieve(QUESTION)) == "0246"
    assert (
        names(
            ContextualVectorRetriever(index, node_ids=[key("3"), key("0"), "gone"]).retrieve(
                QUESTION
            )
        )
        == "03"
    )
    retriever = ContextualVectorRetriever(index, doc_ids=["doc0"], node_ids=[key("3"), key("0")])
    assert names(retriever.retrieve(QUESTION)) == "0"
    net = retriever.with_filters(all_of(filter_on("team", "==", "web")))
    assert net.retrieve(QUESTION) == []
    assert ContextualVectorRetriever(index, node_ids=[]).retrieve(QUESTION) == []


@pytest.mark.parametrize("kind", STORES)
def test_a_fusion_over_any_store_leaks_nothing(on, kind):
    fusion = ContextualFusionRetriever(
        [ContextualVectorRetriever(on(kind)), ContextualBM25Retriever(notes())]
    )
    narrow = fusion.with_filters(none_of(filter_on("team", "in", ["net", "web"])))
    assert names(narrow.retrieve(QUESTION)) == "346"


@pytest.mark.parametrize("kind", STORES)
async def test_async_returns_the_same(on, kind):
    retriever = ContextualVectorRetriever(
        on(kind), filters=none_of(filter_on("team", "==", "net")), similarity_top_k=3
    )
    assert await retriever.aretrieve(QUESTION) == retriever.retrieve(QUESTION)


@pytest.mark.parametrize("kind", ["simple", "chroma"])
def test_mmr_results_are_those_of_the_store(on, kind):
    settings = {
        "similarity_top_k": 3,
        "vector_store_query_mode": "mmr",
        "vector_store_kwargs": {"mmr_threshold": 0.1},
    }
    ours, stock = ContextualVectorRetriever(on(kind), **settings), on(kind).as_retriever(**settings)
    assert [hit.node.node_id for hit in ours.retrieve(QUESTION)] == [
        hit.node.node_id for hit in stock.retrieve(QUESTION)
    ]
    plain = ContextualVectorRetriever(on(kind), similarity_top_k=3).retrieve(QUESTION)
    assert [hit.node.node_id for hit in ours.retrieve(QUESTION)] != [
        hit.node.node_id for hit in plain
    ]


def test_a_warning_names_a_mode_that_chroma_ignores(on):
    with pytest.warns(
        ContextualWarning,
        match="Chroma ignores vector_store_query_mode='hybrid'.* Use a Contextual",
    ):
        retriever = ContextualVectorRetriever(
            on("chroma"), vector_store_query_mode=VectorStoreQueryMode.HYBRID
        )
    assert retriever.retrieve(QUESTION) == ContextualVectorRetriever(on("chroma")).retrieve(
        QUESTION
    )
    assert retriever.keeps_scores
    with pytest.raises(SettingError, match="`vector_store_query_mode` must be one of"):
        ContextualVectorRetriever(on("chroma"), vector_store_query_mode="mrm")


def test_a_store_without_text_needs_its_index(on):
    with pytest.raises(
        SettingError, match=r"got SimpleVectorStore\)\. .* pass the VectorStoreIndex on it"
    ):
        ContextualVectorRetriever(on("simple").vector_store)


def test_a_vector_without_its_text_is_named(embedding, tmp_path):
    index = index_on("simple", tmp_path, embedding, notes())
    index.docstore.delete_document(key("3"))
    with pytest.raises(
        StorageError, match=f"found node '{key('3')}', whose text is not in the docstore"
    ):
        ContextualVectorRetriever(index).retrieve(QUESTION)


def test_a_warning_names_a_store_that_returns_no_more_hits(on, monkeypatch):
    """Some services refuse to return more than a few thousand hits."""
    query = SimpleVectorStore.query

    def refusing(self, asked, **options):
        if asked.similarity_top_k > 2:
            raise ValueError("top_k is too large")
        return query(self, asked, **options)

    monkeypatch.setattr(SimpleVectorStore, "query", refusing)
    retriever = ContextualVectorRetriever(
        on("simple"), similarity_top_k=2, filters=none_of(filter_on("team", "==", "net"))
    )
    with pytest.warns(ContextualWarning, match="SimpleVectorStore returns no more than 2 hits"):
        assert set(names(retriever.retrieve(QUESTION))) <= set("13456")


@pytest.mark.parametrize("kind", STORES)
def test_nodes_that_are_not_text_keep_their_type(kind, tmp_path, embedding):
    target = TextNode(id_=key("target"), text="the whole chapter")
    nodes = [
        IndexNode(id_=key("index"), text="alpha chapter", index_id="chapter", obj=target),
        ImageNode(id_=key("image"), text="alpha picture", image_path="a.png"),
        ImageNode(id_=key("bare"), image_path="b.png", metadata={"about": "alpha"}),
    ]
    index = index_on(kind, tmp_path, embedding, nodes)
    vector = ContextualVectorRetriever(index)
    for retriever in (vector, ContextualFusionRetriever([vector])):
        nodes_by_id = {hit.node.node_id: hit.node for hit in retriever.retrieve("alpha")}
        assert set(nodes_by_id) == {key("target"), key("image"), key("bare")}, (
            "the IndexNode was followed"
        )
        assert [nodes_by_id[key(name)].image_path for name in ("image", "bare")] == [
            "a.png",
            "b.png",
        ]


def test_the_objects_and_callbacks_of_an_index_are_used(embedding):
    inner = VectorStoreIndex([TextNode(id_="inner", text="alpha inside")], embed_model=embedding)
    outer = IndexNode(id_="outer", text="alpha", index_id="inner", obj=inner.as_retriever())
    index = VectorStoreIndex([], objects=[outer], embed_model=embedding)
    retriever = ContextualVectorRetriever(index)
    assert [hit.node.node_id for hit in retriever.retrieve("alpha")] == ["inner"]
    assert retriever.callback_manager is index._callback_manager
    fusion = ContextualFusionRetriever([retriever, ContextualBM25Retriever([outer])])
    assert [hit.node.node_id for hit in fusion.retrieve("alpha")] == ["inner"]


class Distances(SimpleVectorStore):
    """A store that returns distances, like FAISS with ``IndexFlatL2``: the best is the smallest."""

    def query(self, query, **kwargs):
        result = super().query(query, **kwargs)
        result.similarities = [2 - 2 * cosine for cosine in result.similarities]
        return result


@pytest.mark.parametrize("mode", ["learned", "relative_score", "reciprocal_rerank"])
@pytest.mark.parametrize("stock", [False, True])
def test_a_store_with_distances_is_fused_like_one_with_cosines(embedding, mode, stock):
    orders = []
    for store in (SimpleVectorStore(), Distances()):
        context = StorageContext.from_defaults(vector_store=store)
        index = VectorStoreIndex(notes(), storage_context=context, embed_model=embedding)
        retriever = (
            index.as_retriever(similarity_top_k=8) if stock else ContextualVectorRetriever(index)
        )
        fusion = ContextualFusionRetriever([retriever, ContextualBM25Retriever(notes())], mode=mode)
        orders.append([hit.node.node_id for hit in fusion.retrieve("the web of alpha")])
    assert orders[0] == orders[1]


class Numbered(SimpleVectorStore):
    """A store that numbers its vectors and knows no ids of nodes, like FAISS."""

    numbers: dict = {}  # noqa: RUF012  a pydantic field

    def add(self, nodes, **kwargs):
        for node_id in super().add(nodes, **kwargs):
            self.numbers[node_id] = str(len(self.numbers))
        return [*self.numbers.values()]

    def query(self, query, **kwargs):
        result = super().query(query, **kwargs)
        result.ids = [self.numbers[node_id] for node_id in result.ids]
        return result


def test_the_nodes_of_a_store_that_numbers_its_vectors_are_found(embedding):
    context = StorageContext.from_defaults(vector_store=Numbered())
    index = VectorStoreIndex(notes(), storage_context=context, embed_model=embedding)
    assert names(ContextualVectorRetriever(index).retrieve(QUESTION)) == "01234567"
