"""Keyword retrieval: faults of the stock class, and what this package does instead."""

from __future__ import annotations

import asyncio
import random

import bm25s
import chromadb
import pytest
from chromadb.errors import InternalError
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core import MockEmbedding, SummaryIndex, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import Document, IndexNode, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.chroma import ChromaVectorStore
from results import ids, pairs

from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.node_index import KeywordIndex
from llama_index_contextual.retrievers.terms import query_groups, terms_of
from llama_index_contextual.utils.errors import SettingError

# Traps of the stock class


def test_an_index_on_chroma_can_be_the_source(index):
    with pytest.raises(ValueError, match=r"max\(\) (arg|iterable argument) is (an )?empty"):
        BM25Retriever.from_defaults(docstore=index.docstore)
    assert ids(ContextualBM25Retriever.from_defaults(index=index).retrieve("carrots")) == ["dog"]


@pytest.mark.long
def test_more_nodes_than_chroma_lists_at_once_are_read(tmp_path):
    store = ChromaVectorStore(
        chroma_collection=chromadb.PersistentClient(str(tmp_path)).create_collection("many")
    )
    for start in range(0, 33_000, 3000):
        numbers = range(start, start + 3000)
        store.add(
            [
                TextNode(
                    text=f"word{number} carrots", id_=f"{number:05}", embedding=[1.0, number % 7]
                )
                for number in numbers
            ]
        )
    with pytest.raises(InternalError, match="too many SQL variables"):
        store.get_nodes(None)
    index = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(2))
    keywords = ContextualBM25Retriever.from_defaults(index=index)
    assert (len(keywords), ids(keywords.retrieve("word32999"))[0]) == (33_000, "32999")


def test_an_empty_corpus_returns_nothing():
    with pytest.raises(ValueError, match="empty"):
        BM25Retriever(nodes=[])
    assert ContextualBM25Retriever([]).retrieve("carrots") == []
    assert ContextualBM25Retriever.from_defaults(nodes=[]).retrieve("carrots") == []


@pytest.mark.parametrize("text", ["the of and", "a", "", "…"])
def test_a_corpus_without_words_returns_nothing(text):
    node = TextNode(text=text)
    with pytest.raises(ValueError, match="empty"):
        BM25Retriever(nodes=[node])
    assert ContextualBM25Retriever([node]).retrieve("the carrots") == []


def test_only_nodes_with_a_matching_term_are_returned(nodes):
    stock = BM25Retriever(nodes=nodes, similarity_top_k=3).retrieve("carrots")
    assert sorted(hit.score > 0 for hit in stock) == [False, False, True]
    assert ids(ContextualBM25Retriever(nodes, similarity_top_k=3).retrieve("carrots")) == ["dog"]


async def test_ids_and_nodes_of_an_answer_come_from_the_same_state():
    class Replaced(KeywordIndex):
        """An index that has other nodes after each read."""

        def ask(self, work):
            answer = super().ask(work)
            node_ids = [*self.state.row_of]
            self.delete(node_ids)
            self.add([TextNode(id_=f"{node_id}'", text="tea") for node_id in node_ids])
            return answer

    index = Replaced()
    index.add([TextNode(id_=node_id, text="tea") for node_id in "abc"])
    retriever = ContextualBM25Retriever.over(index)
    assert ids(retriever.retrieve("tea")) == ["a", "b", "c"]
    assert ids(await retriever.aretrieve("tea")) == ["a'", "b'", "c'"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("language", "language of each text and query is detected"),
        ("stemmer", "words are stemmed accordingly"),
        ("token_pattern", "Leave the setting out"),
        ("analyzer", "It takes callback_manager, filters, .* similarity_top_k, verbose"),
        ("similarity_topk", "It takes .* similarity_top_k"),
    ],
)
def test_unknown_settings_are_rejected_with_the_reason(tmp_path, name, reason):
    ContextualBM25Retriever([]).persist(tmp_path)
    for make in (
        ContextualBM25Retriever,
        ContextualBM25Retriever.from_defaults,
        lambda **settings: ContextualBM25Retriever.from_defaults(nodes=[], **settings),
        lambda **settings: ContextualBM25Retriever.from_persist_dir(tmp_path, **settings),
    ):
        with pytest.raises(SettingError, match=f"does not take {name}. .*{reason}"):
            make(**{name: "de"})


def test_every_setting_of_the_class_can_be_given_to_from_defaults(nodes):
    settings = {
        "similarity_top_k": 3,
        "filters": MetadataFilters(filters=[MetadataFilter(key="n", value=0)]),
        "callback_manager": CallbackManager(),
        "object_map": {"a": 1},
        "verbose": True,
    }
    made = ContextualBM25Retriever.from_defaults(nodes=nodes, **settings)
    assert (made.similarity_top_k, made.filters) == (3, settings["filters"])
    assert made.callback_manager is settings["callback_manager"]
    assert (made.object_map, made._verbose) == ({"a": 1}, True)
    pointer = IndexNode(index_id="i", text="everything", obj=nodes[0])
    assert ContextualBM25Retriever.from_defaults(nodes=[], objects=[pointer]).object_map == {
        "i": nodes[0]
    }


WORK = MetadataFilters(filters=[MetadataFilter(key="tags", value="work")])


@pytest.mark.parametrize("filters", [None, WORK])
@pytest.mark.parametrize("query", ["zzzz kangaroo", "Hello World!", "?!", "the of and"])
def test_a_query_without_a_match_returns_nothing(nodes, query, filters):
    retriever = ContextualBM25Retriever(nodes, filters=filters)
    assert retriever.retrieve(query) == []
    assert asyncio.run(retriever.aretrieve(query)) == []


@pytest.mark.parametrize("mode", ["reciprocal_rerank", "relative_score", "simple"])
def test_nodes_without_a_match_are_not_hits_in_a_fusion(nodes, mode):
    settings = {"mode": mode, "num_queries": 1, "similarity_top_k": 6}
    keyword = ContextualBM25Retriever(nodes)
    assert ContextualFusionRetriever([keyword, keyword], **settings).retrieve("kangaroo") == []
    stock = QueryFusionRetriever([keyword], llm=MockLLM(), use_async=False, **settings)
    assert stock.retrieve("kangaroo") == []


@pytest.mark.parametrize("query", ["", "   "])
def test_an_empty_query_selects_by_filters_alone(nodes, query):
    assert ContextualBM25Retriever(nodes).retrieve(query) == []
    retriever = ContextualBM25Retriever(nodes, filters=WORK, similarity_top_k=3)
    assert pairs(retriever.retrieve(query)) == [("code", 0.0), ("config", 0.0), ("meeting", 0.0)]


def test_top_k_can_exceed_the_corpus_and_change_later(nodes):
    ours = ContextualBM25Retriever(nodes, similarity_top_k=1000)
    assert set(ids(ours.retrieve("budget of the house"))) == {"meeting", "budget"}
    stock = BM25Retriever(nodes=nodes, similarity_top_k=2)
    stock.similarity_top_k = 1000
    with pytest.raises(ValueError, match="k of 1000"):
        stock.retrieve("budget")


def test_identifiers_are_found_by_their_parts(nodes):
    stock = BM25Retriever(nodes=nodes, similarity_top_k=1)
    assert [hit.score for hit in stock.retrieve("max")] == [0.0]
    ours = ContextualBM25Retriever(nodes, similarity_top_k=1)
    assert ids(ours.retrieve("max")) == ["config"]
    assert ids(ours.retrieve("get the name of a user")) == ["code"]


def test_the_language_of_a_query_is_used():
    nodes = [
        TextNode(id_="es", text="Las organizaciones crecen"),
        TextNode(id_="en", text="Dogs bark"),
    ]
    assert ids(ContextualBM25Retriever(nodes).retrieve("¿Cuál es la organización?")) == ["es"]


# Promises


def test_nodes_equal_those_of_the_vector_store(index):
    from_chroma = {
        hit.node.node_id: hit.node
        for hit in index.as_retriever(similarity_top_k=6).retrieve("budget")
    }
    for hit in ContextualBM25Retriever.from_defaults(index=index).retrieve(
        "budget dog cat name max house"
    ):
        assert hit.node.hash == from_chroma[hit.node.node_id].hash
        assert hit.node.to_dict() == from_chroma[hit.node.node_id].to_dict()


def test_a_caller_can_change_the_returned_nodes(nodes):
    retriever = ContextualBM25Retriever(nodes)
    retriever.retrieve("carrots")[0].node.metadata["path"] = "changed"
    assert retriever.retrieve("carrots")[0].node.metadata["path"] == "notes/dog.md"


def test_indexing_changes_no_node(nodes):
    before = [node.to_json() for node in nodes]
    ContextualBM25Retriever(nodes).retrieve("carrots")
    assert [node.to_json() for node in nodes] == before


def test_context_is_indexed_and_lexical_context_too():
    node = TextNode(
        id_="x",
        text="It failed.",
        metadata={"context": "Deployment log", "lexical_context": "kubernetes"},
    )
    node.excluded_embed_metadata_keys = ["lexical_context"]
    retriever = ContextualBM25Retriever([node])
    assert ids(retriever.retrieve("deployments")) == ids(retriever.retrieve("kubernetes")) == ["x"]


def test_scores_are_those_of_bm25s(nodes):
    peer = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
    peer.index([terms_of(node.text) for node in nodes], show_progress=False)
    for query in ("budget of the house", "getUserName", "server results max_results", "dog cat"):
        terms = dict.fromkeys(group[0] for group in query_groups(query))
        expected = peer.get_scores([*terms])
        scores = dict(pairs(ContextualBM25Retriever(nodes, similarity_top_k=6).retrieve(query)))
        assert [scores.get(node.node_id, 0.0) for node in nodes] == pytest.approx(
            expected.tolist(), rel=1e-5
        )


def test_sources_are_nodes_docstore_index_or_vector_store(index, nodes, store):
    docstore = SimpleDocumentStore()
    docstore.add_documents(nodes)
    summary = SummaryIndex(nodes)  # an index without a vector store
    sources = [
        {"nodes": nodes},
        {"docstore": docstore},
        {"index": index},
        {"vector_store": store},
        {"index": summary},
    ]
    for source in sources:
        assert ids(ContextualBM25Retriever.from_defaults(**source).retrieve("carrots")) == ["dog"]


@pytest.mark.parametrize("sources", [{}, {"nodes": [], "docstore": SimpleDocumentStore()}])
def test_exactly_one_source_is_needed(sources):
    with pytest.raises(SettingError, match="exactly one of index, nodes, docstore, vector_store"):
        ContextualBM25Retriever.from_defaults(**sources)


def test_anything_but_an_index_is_an_error():
    with pytest.raises(SettingError, match=r"`index` must be a LlamaIndex index"):
        ContextualBM25Retriever.from_defaults(index="notes")


def test_an_invalid_setting_is_an_error():
    with pytest.raises(SettingError):
        ContextualBM25Retriever([], similarity_top_k=0)


async def test_async_and_fifty_callers_get_the_same(nodes):
    retriever = ContextualBM25Retriever(nodes)
    expected = pairs(retriever.retrieve("budget"))
    answers = await asyncio.gather(*(retriever.aretrieve("budget") for _ in range(50)))
    assert all(pairs(answer) == expected for answer in answers)


def test_ties_break_by_id_and_the_top_is_a_prefix():
    nodes = [TextNode(id_=f"{i:03}", text="same words") for i in reversed(range(50))]
    retriever = ContextualBM25Retriever(nodes, similarity_top_k=20)
    assert ids(retriever.retrieve("words")) == [f"{i:03}" for i in range(20)]
    retriever.similarity_top_k = 5
    assert ids(retriever.retrieve("words")) == [f"{i:03}" for i in range(5)]


@pytest.mark.long
def test_the_best_of_thousands_equal_those_of_a_full_sort():
    rng = random.Random(7)  # noqa: S311  no secret
    words = [f"word{number}" for number in range(60)]
    many = [
        TextNode(text=" ".join(rng.choices(words, k=rng.randint(3, 40))), id_=f"{n:05d}")
        for n in range(3000)
    ]
    ours = ContextualBM25Retriever(many[:2500], similarity_top_k=len(many))
    ours.add(many[2500:])
    ours.delete([node.node_id for node in many[::7]])
    for query in ("word1 word2 word3", "word5", "word59 word58 unknown", " ".join(words)):
        ours.similarity_top_k = len(many)
        everything = pairs(ours.retrieve(query))
        for ours.similarity_top_k in (1, 10, 100):
            assert pairs(ours.retrieve(query)) == everything[: ours.similarity_top_k]


def test_evidence_names_terms_and_their_rarity(nodes):
    retriever = ContextualBM25Retriever(nodes)
    (dog,) = retriever.retrieve("the dog Cookie")
    of_dog, of_cat = retriever.term_scores("the dog Cookie", ["dog", "cat"]).evidence()
    assert {term.term for term in of_dog} == {"dog", "cooki"}
    assert of_cat == []
    assert sum(term.score for term in of_dog) == pytest.approx(dog.score)
    assert retriever.term_scores("dog zebra budget", []).frequencies == (1, 0, 2)


def test_evidence_names_the_most_important_term_first(nodes):
    [evidence] = ContextualBM25Retriever(nodes).term_scores("budget house", ["meeting"]).evidence()
    assert [term.term for term in evidence] == ["hous", "budget"]
    assert evidence[0].score > evidence[1].score


def test_index_nodes_lead_to_their_objects(nodes):
    pointer = IndexNode(index_id="i", id_="pointer", text="everything about carrots", obj=nodes[0])
    assert ids(ContextualBM25Retriever([pointer]).retrieve("carrots")) == ["dog"]


# Changing in place


def test_added_deleted_and_updated_nodes_take_effect_at_once(nodes):
    retriever = ContextualBM25Retriever(nodes)
    retriever.add([TextNode(id_="new", text="carrots everywhere")])
    assert set(ids(retriever.retrieve("carrots"))) == {"dog", "new"}
    assert retriever.delete(["new", "never there"]) == 1
    assert ids(retriever.retrieve("carrots")) == ["dog"]
    retriever.add([TextNode(id_="dog", text="a parrot")])
    assert retriever.matching_ids() == ["cat", "code", "config", "meeting", "budget", "dog"]
    assert retriever.retrieve("carrots") == []
    assert ids(retriever.retrieve("parrot")) == ["dog"]
    assert len(retriever) == 6


WORDS = st.lists(
    st.sampled_from(["budget", "dog", "cat", "house", "name", "zebra", "parrot", "getUserName"]),
    max_size=6,
)
EDITS = st.lists(
    st.tuples(st.sampled_from(["add", "delete"]), st.integers(0, 12), WORDS), max_size=40
)


@given(EDITS)
@settings(deadline=None)
def test_scores_after_any_edits_equal_those_of_a_rebuild(edits):
    edited, truth = ContextualBM25Retriever([]), {}
    for action, number, words in edits:
        if action == "add":
            truth.pop(str(number), None)
            truth[str(number)] = TextNode(id_=str(number), text=" ".join(words))
            edited.add([truth[str(number)]])
        else:
            truth.pop(str(number), None)
            edited.delete([str(number)])
    rebuilt = ContextualBM25Retriever(list(truth.values()))
    assert len(edited) == len(truth)
    for query in ("budget", "dog house zebra", "user name parrot cat"):
        assert pairs(edited.retrieve(query)) == pairs(rebuilt.retrieve(query))


def test_mostly_deleted_parts_are_compacted(nodes):
    retriever = ContextualBM25Retriever(nodes)
    retriever.delete(["dog", "cat"])
    assert [len(live) for _, live in retriever.index.state.bm25.parts] == [6]
    retriever.delete(["code", "config"])
    assert [len(live) for _, live in retriever.index.state.bm25.parts] == [2]


def test_an_index_is_read_from_its_store_even_if_its_docstore_holds_whole_documents(index, nodes):
    index.docstore.add_documents([Document(id_="page", text="carrots " * 100)])
    assert ids(ContextualBM25Retriever.from_defaults(index=index).retrieve("carrots")) == ["dog"]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("index", r"list of LlamaIndex nodes .got VectorStoreIndex.*index="),
        ("store", r"list of LlamaIndex nodes .got ChromaVectorStore.*vector_store="),
        ("docstore", r"list of LlamaIndex nodes .got SimpleDocumentStore.*docstore="),
        ("text", r"list of LlamaIndex nodes .got str"),
        ("texts", r"list of LlamaIndex nodes .got str"),
        ("node", r"list of LlamaIndex nodes .got TextNode"),
        ("number", r"list of LlamaIndex nodes .got int"),
    ],
)
def test_anything_but_a_list_of_nodes_is_rejected_with_a_hint(index, store, nodes, kind, message):
    given = {
        "index": index,
        "store": store,
        "docstore": SimpleDocumentStore(),
        "text": "carrots",
        "texts": ["carrots"],
    }
    with pytest.raises(SettingError, match=message):
        ContextualBM25Retriever({**given, "node": nodes[0], "number": 7}[kind])


def test_nodes_of_equal_text_are_hits_of_their_own():
    """llama-index-core before 0.14.19 returned only one of them, because their hashes are equal."""
    nodes = [TextNode(id_=name, text="the same text") for name in "abc"]
    hits = ContextualBM25Retriever(nodes).retrieve("same text")
    assert [hit.node.node_id for hit in hits] == ["a", "b", "c"]
