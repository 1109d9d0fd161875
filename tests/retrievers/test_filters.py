"""Every operator and condition of filters.

The evaluator, the keyword retriever and the vector retriever agree.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual.retrievers import filters as filters_module
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.filters import (
    ItemFilter,
    WordsFilter,
    describe_filter,
    metadata_match,
    path_filter,
    suggest_names,
    tag_filter,
)
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever
from llama_index_contextual.utils.errors import SettingError

EVERYTHING = "dog cat name results budget house user server sofa"
ALL = {"dog", "cat", "code", "config", "meeting", "budget"}
APRIL_10 = 1775692800 + 86400


def filters_on(key, operator, value=None):
    return MetadataFilters(filters=[MetadataFilter(key=key, operator=operator, value=value)])


def many(condition, *filters):
    flat = [
        f.filters[0] if len(f.filters) == 1 and f.condition == FilterCondition.AND else f
        for f in filters
    ]
    return MetadataFilters(filters=flat, condition=condition)


CASES = [
    (filters_on("n", "==", 2), {"code"}),
    (filters_on("n", "==", 2.0), {"code"}),
    (filters_on("n", "==", "2"), set()),
    (filters_on("n", "!=", 2), ALL - {"code"}),
    (filters_on("n", ">", 3), {"meeting", "budget"}),
    (filters_on("n", ">=", 3.5), {"meeting", "budget"}),
    (filters_on("n", "<", 1), {"dog"}),
    (filters_on("n", "<=", 1), {"dog", "cat"}),
    (filters_on("n", "in", [0, 5]), {"dog", "budget"}),
    (filters_on("n", "nin", [0, 5]), ALL - {"dog", "budget"}),
    (filters_on("n", "in", []), set()),
    (filters_on("path", "==", "notes/dog.md"), {"dog"}),
    (filters_on("path", ">", "notes/config.md"), {"dog", "meeting"}),  # Chroma refuses $gt on text
    (filters_on("path", "text_match", "notes/c"), {"cat", "code", "config"}),
    (filters_on("path", "text_match_insensitive", "NOTES/C"), {"cat", "code", "config"}),
    (filters_on("tags", "contains", "home"), {"dog", "cat"}),
    (filters_on("tags", "any", ["home", "garden"]), {"dog", "cat"}),
    (filters_on("tags", "all", ["home", "animal"]), {"dog", "cat"}),
    (filters_on("tags", "all", ["home", "work"]), set()),
    # A missing key only matches NE, NIN and IS_EMPTY.
    (filters_on("date_ts", "is_empty"), {"code", "config"}),
    (filters_on("date_ts", "!=", 5), ALL),
    (filters_on("date_ts", "nin", [APRIL_10]), ALL - {"cat"}),
    (filters_on("date_ts", "<", 1e12), ALL - {"code", "config"}),
    (filters_on("nowhere", "is_empty"), ALL),
    (filters_on("nowhere", "==", 1), set()),
    # A date range.
    (
        many(
            "and",
            filters_on("date_ts", ">=", APRIL_10),
            filters_on("date_ts", "<", APRIL_10 + 86400),
        ),
        {"cat"},
    ),
    (
        many("or", filters_on("n", "==", 0), filters_on("path", "text_match", "budget")),
        {"dog", "budget"},
    ),
    (many("not", filters_on("n", "==", 0), filters_on("tags", "==", "work")), {"cat"}),
    (
        many(
            "and",
            many("or", filters_on("n", "==", 0), filters_on("n", "==", 1)),
            many("not", filters_on("n", "==", 1)),
        ),
        {"dog"},
    ),
    (MetadataFilters(filters=[]), ALL),
]
NAMES = [filters.model_dump_json(exclude_none=True)[:90] for filters, _ in CASES]


def ids(hits):
    return {hit.node.node_id for hit in hits}


@pytest.mark.filterwarnings("ignore:.*no chunk has 'nowhere'")
@pytest.mark.parametrize(("filters", "expected"), CASES, ids=NAMES)
def test_every_retriever_returns_the_same_nodes(filters, expected, nodes, index, embedding):
    assert {node.node_id for node in nodes if metadata_match(filters, node.metadata)} == expected
    keyword = ContextualBM25Retriever(nodes)
    assert ids(keyword.with_filters(filters).retrieve(EVERYTHING)) == expected
    assert (
        ids(
            ContextualVectorRetriever(index, embed_model=embedding, filters=filters).retrieve(
                EVERYTHING
            )
        )
        == expected
    )
    hybrid = ContextualFusionRetriever(
        [ContextualVectorRetriever(index, embed_model=embedding), keyword]
    )
    assert ids(hybrid.with_filters(filters).retrieve(EVERYTHING)) == expected


@pytest.mark.parametrize(
    "operator", ["any", "all", "contains", "text_match", "text_match_insensitive", "is_empty"]
)
def test_the_stock_chroma_adapter_rejects_them(operator, index):
    value = ["home"] if operator in {"any", "all"} else "home"
    with pytest.raises(ValueError, match="not supported"):
        index.as_retriever(filters=filters_on("tags", operator, value)).retrieve("dog")
    with pytest.raises(ValueError, match="not supported"):
        index.as_retriever(filters=many("not", filters_on("n", "==", 0))).retrieve("dog")


def test_the_stock_keyword_retriever_leaks_what_it_filters_out(nodes):
    only_dog = filters_on("n", "==", 0)
    stock = BM25Retriever(nodes=nodes, similarity_top_k=3, filters=only_dog)
    assert ids(stock.retrieve("carrots")) != {"dog"}
    assert ids(
        ContextualBM25Retriever(nodes, similarity_top_k=3, filters=only_dog).retrieve("carrots")
    ) == {"dog"}


@pytest.mark.parametrize(
    ("condition", "matching"),
    [(None, {"both"}), ("and", {"both"}), ("or", {"both", "a", "b"}), ("not", {"none"})],
)
def test_no_condition_means_and(condition, matching):
    members = [MetadataFilter(key=key, value=1) for key in "ab"]
    values = {"both": {"a": 1, "b": 1}, "a": {"a": 1}, "b": {"b": 1}, "none": {}}
    filters = MetadataFilters(filters=members)
    filters.condition = condition and FilterCondition(condition)
    nodes = [TextNode(id_=name, text="word", metadata=values[name]) for name in values]
    assert ids(ContextualBM25Retriever(nodes, filters=filters).retrieve("word")) == matching
    nested = MetadataFilters(filters=[filters])
    assert {name for name in values if metadata_match(nested, values[name])} == matching


def test_filters_without_members_match_everything():
    for condition in ("and", "or", "not"):
        assert metadata_match(MetadataFilters(filters=[], condition=condition), {})
    assert metadata_match(None, {})


def test_a_filter_is_evaluated_once_for_each_distinct_value(monkeypatch):
    asked = []
    monkeypatch.setattr(
        filters_module, "condition_of", lambda _: lambda value: asked.append(value) or value == "x"
    )
    rows = filters_module.matching_rows(
        filters_on("team", "==", "x"), np.arange(900), lambda _: ["x", "y", None] * 300, None
    )
    assert (rows.tolist(), asked) == ([*range(0, 900, 3)], ["x", "y", None])


def test_lists_in_metadata():
    nodes = [
        TextNode(id_=name, text="word", metadata={"tags": tags})
        for name, tags in (("a", ["x", "y"]), ("b", ["y"]), ("c", []))
    ]
    keyword = ContextualBM25Retriever(nodes)
    for filters, expected in (
        (filters_on("tags", "contains", "x"), {"a"}),
        (filters_on("tags", "any", ["x", "y"]), {"a", "b"}),
        (filters_on("tags", "all", ["x", "y"]), {"a"}),
        (filters_on("tags", "is_empty"), {"c"}),
    ):
        assert ids(keyword.with_filters(filters).retrieve("word")) == expected


@pytest.mark.parametrize("key", ["doc_id", "document_id", "ref_doc_id"])
def test_a_document_is_matched_by_each_key_for_its_id(key, store, embedding):
    nodes = [
        TextNode(
            id_=f"{doc}{i}",
            text="word",
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc)},
        )
        for doc in "ab"
        for i in "12"
    ]
    store.add([node.model_copy(update={"embedding": [1.0, 0.0]}) for node in nodes])
    keyword = ContextualBM25Retriever.from_defaults(vector_store=store)
    filters = filters_on(key, "==", "a")
    assert ids(keyword.with_filters(filters).retrieve("word")) == {"a1", "a2"}
    assert set(keyword.matching_ids(filters)) == {"a1", "a2"}


def test_the_context_can_be_filtered_although_it_is_not_a_column(nodes):
    nodes[0].metadata["context"] = "Document: x"
    keyword = ContextualBM25Retriever(nodes).with_filters(
        filters_on("context", "text_match", "Document")
    )
    assert keyword.matching_ids() == ["dog"]


def test_views_share_the_index_and_combine(nodes):
    base = ContextualBM25Retriever(nodes)
    home = base.with_filters(filters_on("tags", "contains", "home"))
    dog = home.with_filters(filters_on("n", "==", 0))
    assert (len(base.matching_ids()), home.matching_ids(), dog.matching_ids()) == (
        6,
        ["dog", "cat"],
        ["dog"],
    )
    base.add([TextNode(id_="new", text="a new dog", metadata={"tags": "home", "n": 0})])
    assert set(dog.matching_ids()) == {"dog", "new"}
    assert ids(dog.retrieve("dog")) == {"dog", "new"}


def test_an_invalid_filter_is_an_error(nodes):
    with pytest.raises(SettingError, match=r"operator 'in' needs a list of values .*got 3 for 'n'"):
        ContextualBM25Retriever(nodes, filters=filters_on("n", "in", 3)).retrieve("dog")


@pytest.mark.parametrize(
    "bounds",
    [(math.inf, -math.inf, math.nan), (-math.inf, math.inf), (math.nan, math.inf)],
    ids=str,
)
def test_infinite_bounds_are_distinguished(nodes, bounds):
    """In JSON all of them are null, so JSON could not distinguish their filters."""
    keyword = ContextualBM25Retriever(nodes)
    for bound in bounds:
        assert set(keyword.matching_ids(filters_on("n", "<", bound))) == (
            ALL if bound == math.inf else set()
        )


@pytest.mark.parametrize("wrong", [{"a": 1}, {}, [], MetadataFilter(key="a", value=1)], ids=str)
def test_filters_of_another_type_are_an_error(index, nodes, embedding, wrong):
    keyword = ContextualBM25Retriever(nodes)
    vector = ContextualVectorRetriever(index, embed_model=embedding)
    given = [
        *(
            retriever.with_filters
            for retriever in (keyword, vector, ContextualFusionRetriever([vector, keyword]))
        ),
        keyword.matching_ids,
        lambda filters: ContextualBM25Retriever(nodes, filters=filters),
        lambda filters: ContextualVectorRetriever(index, embed_model=embedding, filters=filters),
    ]
    for give in given:
        with pytest.raises(SettingError, match="`filters` must be MetadataFilters"):
            give(wrong)


def test_a_node_that_chroma_lost_does_not_fail_a_filtered_query(index, store, nodes, embedding):
    store.delete_nodes(["cat"])
    vector = ContextualVectorRetriever(
        index, embed_model=embedding, filters=filters_on("tags", "contains", "home")
    )
    assert ids(vector.retrieve("dog cat")) == {"dog"}


@pytest.mark.parametrize("operator", list(FilterOperator))
def test_every_operator_is_implemented(operator):
    value = ["x"] if operator.value in {"in", "nin", "any", "all"} else "x"
    assert metadata_match(filters_on("k", operator, value), {"k": "x"}) in {True, False}


def test_chroma_itself_truncates_fractions(collection, store, nodes, embedding):
    store.add(
        [
            node.model_copy(update={"embedding": embedding.get_text_embedding(node.text)})
            for node in nodes
        ]
    )
    assert "config" in collection.get(where={"n": {"$gte": 3.5}}, include=[])["ids"]  # its n is 3


# Filters on tags and items


TAGGED = {
    "front": {"tags": "Home, work/plan"},
    "text": {"inline_tags": "home"},
    "list": {"tags": "#Home/garden"},
    "longer": {"tags": "homework"},
    "none": {},
}


def names_that_match(filters, rows):
    return {name for name, values in rows.items() if metadata_match(filters, values)}


@pytest.mark.parametrize(
    ("tag", "matching"),
    [
        ("home", {"front", "text", "list"}),
        ("#HOME/", {"front", "text", "list"}),
        ("home/garden", {"list"}),
        ("work", {"front"}),
        ("plan", set()),
        ("garden", set()),
    ],
)
def test_a_tag_and_tags_below_it_are_found_in_front_matter_and_text(tag, matching):
    assert names_that_match(tag_filter(tag), TAGGED) == matching


@pytest.mark.parametrize(
    ("operator", "value", "matching"),
    [
        ("==", "ml", {"both", "upper"}),
        ("==", "ML, Art", {"both"}),
        ("!=", "ml", {"number", "missing"}),
        ("in", ["art", "music"], {"both"}),
        ("==", 7, {"number"}),
        (">", 6, {"number"}),
        ("is_empty", None, {"missing"}),
        ("text_match", "ar", {"both"}),
    ],
)
def test_a_filter_on_items_ignores_case(operator, value, matching):
    rows = {"both": "ML, Art", "upper": "ML", "number": "x, 7", "missing": None}
    values = {name: {} if text is None else {"topics": text} for name, text in rows.items()}
    part = ItemFilter(key="topics", value=value, operator=operator)
    assert names_that_match(MetadataFilters(filters=[part]), values) == matching


def test_a_text_in_place_of_a_list_means_itself_and_the_parts_between_its_commas():
    rows = {name: {"team": name} for name in ("acme", "acme-corp", "red, blue", "red", "blue")}
    assert names_that_match(filters_on("team", "in", "acme-corp"), rows) == {"acme-corp"}
    assert names_that_match(filters_on("team", "in", "red, blue"), rows) == {
        "red, blue",
        "red",
        "blue",
    }
    assert names_that_match(filters_on("team", "nin", "red, blue"), rows) == {"acme", "acme-corp"}


@pytest.mark.parametrize("operator", ["any", "all", "in", "nin"])
def test_an_operator_on_lists_needs_a_list(operator):
    with pytest.raises(SettingError, match="needs a list of values"):
        metadata_match(filters_on("k", operator, 3), {"k": 3})


def test_case_is_ignored_in_every_alphabet():
    rows = {name: {"street": name} for name in ("Hauptstraße", "HAUPTSTRASSE 3", "Weg")}
    for street in ("StraSSe", "straße"):
        filters = filters_on("street", "text_match_insensitive", street)
        assert names_that_match(filters, rows) == {"Hauptstraße", "HAUPTSTRASSE 3"}


def test_a_document_id_in_the_metadata_takes_precedence():
    row = {"doc_id": "own", "ref_doc_id": "node"}
    assert metadata_match(filters_on("doc_id", "==", "own"), row)
    assert not metadata_match(filters_on("doc_id", "==", "node"), row)


def test_a_match_of_a_store_within_a_list_is_accepted():
    filters = filters_on("tags", "==", "x")
    row = {"tags": ["x", "y"]}
    assert not metadata_match(filters, row)
    assert metadata_match(filters, row, checked=filters.filters)
    assert not metadata_match(filters, {"tags": ["y"]}, checked=filters.filters)
    assert metadata_match(filters, {"tags": "x"}, checked=filters.filters)


# Filters in messages


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        (tag_filter("sqlite"), "the tag 'sqlite'"),
        (path_filter("people/"), "a path containing 'people/'"),
        (WordsFilter(value="blue heron", operator="text_match"), "the words 'blue heron'"),
        (ItemFilter(key="status", value="open"), "status == 'open'"),
        (MetadataFilter(key="n", value=3, operator=">"), "n > 3"),
        (MetadataFilter(key="date_ts", value=APRIL_10, operator=">="), "date >= 2026-04-10"),
        (MetadataFilter(key="n", value=None, operator="is_empty"), "n is_empty"),
        (
            MetadataFilter(key="path", value="people/", operator="text_match_insensitive"),
            "path containing 'people/'",
        ),
        (many("or", filters_on("n", "==", 1), filters_on("n", "==", 2)), "(n == 1 or n == 2)"),
        (
            many("or", filters_on("status", "==", "open"), filters_on("n", "==", 2)),
            "(status == 'open' or n == 2)",
        ),
        (
            MetadataFilters(filters=filters_on("n", "==", 1).filters * 2, condition=None),
            "(n == 1 and n == 1)",
        ),
    ],
)
def test_a_filter_is_described_in_words(filters, words):
    assert describe_filter(filters) == words


PLACES = [
    {"path": "people/ann.md", "tags": "work, home", "status": "open"},
    {"path": "projects/atlas/plan.md", "tags": "work", "inline_tags": "garden", "state": "new"},
]


@pytest.mark.parametrize(
    ("part", "end"),
    [
        (tag_filter("wrok"), " (tags that exist: work, home, garden)"),
        (tag_filter("work"), ""),
        (ItemFilter(key="statsu", value="open"), " (keys that exist: status, state)"),
        (ItemFilter(key="status", value="open"), ""),
        (
            MetadataFilter(key="path", value="poeple/", operator="text_match_insensitive"),
            " (folders that exist: people, ",
        ),
        (MetadataFilter(key="path", value="people/"), ""),
        (MetadataFilter(key="date_ts", value=1.0), ""),
        (filters_on("n", "==", 1), ""),
    ],
)
def test_names_similar_to_that_of_a_filter_are_suggested(part, end):
    message = suggest_names(part, PLACES)
    assert message.startswith(end) if end.endswith(", ") else message == end


def test_similar_names_are_suggested_before_frequent_ones():
    rows = [{"tags": "home"}, {"tags": "home"}, {"tags": "work"}]
    assert suggest_names(tag_filter("wrok"), rows) == " (tags that exist: work, home)"


def test_a_message_suggests_at_most_six_names_or_says_that_there_are_none():
    assert suggest_names(tag_filter("work"), [{"path": "a.md"}]) == " (there are no tags)"
    rows = [{"tags": f"tag{number}"} for number in range(9)]
    assert suggest_names(tag_filter("tag"), rows).count("tag") == 1 + 6
