"""Learned fusion: what it considers, how it explains itself, and what all modes have in common."""

from __future__ import annotations

from datetime import date
from itertools import pairwise

import numpy as np
import pytest
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever
from results import Fixed, pairs

from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.bm25_index import TermScores, idf
from llama_index_contextual.retrievers.chunk_info import ChunkInfoIndex
from llama_index_contextual.retrievers.features import FEATURES
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.node_index import KeywordIndex, lexical_text
from llama_index_contextual.retrievers.rankings import (
    KeywordData,
    KeywordMember,
    Ranking,
    ScoreTable,
    query_and_candidates,
    read_candidates,
    score_candidates,
    trust_in,
)
from llama_index_contextual.retrievers.terms import query_groups, terms_of
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever

QUESTION = "budget of the house"


@pytest.fixture
def retrievers(index, embedding):
    keyword = ContextualBM25Retriever.from_defaults(index=index)
    return ContextualVectorRetriever(index, embed_model=embedding), keyword


@pytest.fixture
def learned(retrievers):
    return ContextualFusionRetriever(retrievers, mode="learned", similarity_top_k=6)


def reads_of(ids, nearness):
    """Return index data of chunks without descriptions, for a query whose words have idf 8."""
    terms = TermScores((("x",),), (1,), (8.0,), *np.zeros((2, len(ids), 1)))
    unknown = ChunkInfoIndex().read(range(len(ids)))
    return KeywordData("k", terms, np.array(nearness), unknown, {})


def nothing_known(ids):
    return read_candidates("q", None, ids, frozenset(ids))


def ranking(name, scores, weight=0.5, **more):
    """Return the ranking of a retriever with these scores, best first."""
    values = np.array([*scores.values()])
    return Ranking(name, 0, weight, [*scores], values, len(scores), **more)


def scored(rankings, keyword_data=None):
    """Return the table of rankings scored by all features."""
    table = ScoreTable(rankings)
    keyword_data = keyword_data or nothing_known(table.node_ids)
    today = date(2026, 4, 10)
    query, candidates = query_and_candidates(
        "q", today, rankings, table, keyword_data, frozenset(table.node_ids)
    )
    score_candidates(query, candidates, table, FEATURES)
    return table


def plain_nearness(index, nodes, question):
    """Return the nearness of each node, computed directly from its definition."""
    groups = list(dict.fromkeys(query_groups(question)))
    idfs = [
        idf(len(index.state.bm25), len(term.places))
        for term in index.state.bm25.query_terms(groups)
    ]
    rarity = [min(a, b) for a, b in pairwise(idfs)]
    shares = []
    for node in nodes:
        terms = terms_of(lexical_text(node))
        places = [[place for place, term in enumerate(terms) if term in group] for group in groups]
        total = 0.0
        for left, right, weight in zip(places, places[1:], rarity, strict=False):
            distance = min((abs(a - b) for a in left for b in right), default=99)
            total += weight / distance if 0 < distance <= 8 else 0.0
        shares.append(total / sum(rarity))
    return shares


@pytest.mark.parametrize(
    "question", ["the budget of the house", "kitchen tiles budget", "JC's dog loves long walks"]
)
def test_nearness_follows_its_formula(nodes, question):
    index = KeywordIndex()
    index.add(nodes[:2])
    index.add(nodes[2:])
    index.delete(["cat"])
    left = [node for node in nodes if node.node_id != "cat"]
    _, got, _ = index.state.describe(query_groups(question), [node.node_id for node in left])
    assert got.tolist() == pytest.approx(plain_nearness(index, left, question))
    assert max(got) > 0


def test_the_nearness_of_unknown_nodes_or_a_single_word_is_zero(nodes):
    index = KeywordIndex()
    index.add(nodes)
    groups = query_groups
    assert index.state.describe(groups("budget house"), ["nobody", "meeting"])[1].tolist()[0] == 0
    assert index.state.describe(groups("budget"), ["budget"])[1].tolist() == [0]
    assert index.state.describe(groups("budget house"), [])[1].tolist() == []


def test_nearness_does_not_cross_from_one_document_to_the_next():
    index = KeywordIndex()
    index.add([TextNode(id_="a", text="white kite"), TextNode(id_="b", text="flies home")])
    groups = query_groups("kite flies")
    assert index.state.describe(groups, ["a", "b"])[1].tolist() == [0, 0]


def test_the_order_of_words_survives_merging_and_saving(nodes, tmp_path):
    retriever = ContextualBM25Retriever()
    for node in nodes:
        retriever.add([node])  # merges parts in between
    names = [node.node_id for node in nodes]
    before = read_candidates(
        QUESTION, KeywordMember("k", retriever), names, frozenset(names)
    ).nearness.tolist()
    retriever.persist(tmp_path)
    after = ContextualBM25Retriever.from_persist_dir(tmp_path)
    after.delete(["cat"])
    after.add([nodes[1]])
    after = read_candidates(
        QUESTION, KeywordMember("k", after), names, frozenset(names)
    ).nearness.tolist()
    assert after == before == plain(nodes, names)


def plain(nodes, names):
    index = KeywordIndex()
    index.add(nodes)
    return index.state.describe(query_groups("budget of the house"), names)[1].tolist()


def test_words_next_to_each_other_win(embedding):
    texts = {
        "together": "the red kite flies",
        "apart": f"the red {'house wall garden ' * 4} kite flies",
    }
    keyword = ContextualBM25Retriever(
        [TextNode(id_=name, text=text) for name, text in texts.items()]
    )
    same = Fixed({"together": 0.5, "apart": 0.5})
    hits = ContextualFusionRetriever([same, keyword], mode="learned").explain("red kite").hits
    assert hits[0].node_id == "together"
    earned = {part.name: part.credit for part in hits[0].credits}
    assert earned["nearness"] > 0
    assert "nearness" not in {part.name for part in hits[1].credits}


DIARY = {
    "2026-03-02": "Tests failed in the shed.",
    "2026-03-09": "Tests passed.",
    "2026-05-01": "Tests failed.",
}


@pytest.mark.parametrize(
    ("question", "best"),
    [
        ("what did the tests do on 2026-03-09?", "2026-03-09"),
        ("what did the tests do on 1 May 2026?", "2026-05-01"),
        ("¿qué hicieron los tests el 9 de marzo de 2026?", "2026-03-09"),
        ("tests in March 2026 in the shed", "2026-03-02"),
    ],
)
def test_a_named_day_counts(question, best):
    nodes = [TextNode(id_=day, text=text, metadata={"date": day}) for day, text in DIARY.items()]
    for node in nodes:
        node.excluded_embed_metadata_keys = [
            "date"
        ]  # the value of the date matters, and not its words
    keyword = ContextualBM25Retriever(nodes)
    same = Fixed(dict.fromkeys(DIARY, 0.5))
    hits = (
        ContextualFusionRetriever([same, keyword], mode="learned", min_score=0)
        .explain(question)
        .hits
    )
    assert hits[0].node_id == best
    assert "date" in {part.name for part in hits[0].credits}


@pytest.mark.parametrize("day", ["2022-11-15", "15.11.2022", "11/15/2022", "15 November 2022"])
def test_the_note_from_a_day_comes_before_notes_that_link_to_other_days(day):
    contexts = {"on": "Tuesday, 15 November 2022"}
    texts = {
        "on": "Views hide tables.",
        "after": "Assertions. [[2022-11-17]]",
        "week": "Views of [[2022-11-22]]",
    }
    days = {"on": "2022-11-15", "after": "2022-11-17", "week": "2022-11-22"}
    nodes = [
        TextNode(
            id_=name, text=text, metadata={"context": contexts.get(name, ""), "date": days[name]}
        )
        for name, text in texts.items()
    ]
    for node in nodes:
        node.excluded_embed_metadata_keys = ["date"]
    same = Fixed(dict.fromkeys(texts, 0.3))
    fusion = ContextualFusionRetriever(
        [same, ContextualBM25Retriever(nodes)], mode="learned", min_score=0
    )
    best = fusion.explain(f"what did we do on {day}").hits[0]
    assert best.node_id == "on"
    match = next(part for part in best.credits if part.name == "match")
    assert match.value > 0.4, "its words are found, in whatever form the question has them"


def test_the_credits_add_up_to_the_log_odds(learned):
    explanation = learned.explain("what is the budget of the kitchen?")
    for hit in explanation:
        raw = sum(part.credit for part in hit.credits)
        assert hit.fused == pytest.approx(
            raw / sum(part.credit for part in explanation.hits[0].credits)
        )
        assert (
            hit.score == hit.relevance == pytest.approx(hit.fused * explanation.hits[0].relevance)
        )
    assert "match +" in str(explanation)


def test_a_hit_that_answers_is_more_relevant_than_others(learned):
    asked = [
        learned.explain(q).hits[0].relevance
        for q in ("budget of the house", "quantum chromodynamics lattice")
    ]
    assert 0 < asked[1] < asked[0] < 1


async def test_learned_fusion_behaves_like_the_other_modes(retrievers, learned):
    question = "how many results does the server return?"
    whole = pairs(learned.retrieve(question))
    assert whole == pairs(await learned.aretrieve(question)) == pairs(learned.retrieve(question))
    assert 0 < whole[0][1] < 1
    assert [score for _, score in whole] == sorted((score for _, score in whole), reverse=True)
    assert (
        pairs(
            ContextualFusionRetriever(retrievers, mode="learned", similarity_top_k=2).retrieve(
                question
            )
        )
        == whole[:2]
    )


def test_filters_and_operators_apply_to_learned_fusion(learned):
    only = MetadataFilters(filters=[MetadataFilter(key="n", value=3, operator=">=")])
    filtered = learned.with_filters(only).explain("budget of the house")
    assert {hit.node_id for hit in filtered} <= {"config", "meeting", "budget"}
    assert not filtered.warnings
    assert [hit.node.node_id for hit in learned.retrieve("path:notes/dog.md budget")] == ["dog"]


def test_an_explanation_without_hits_names_the_filters_that_no_chunk_matches(learned):
    nowhere = MetadataFilters(filters=[MetadataFilter(key="n", value=99)])
    explanation = learned.with_filters(nowhere).explain(QUESTION)
    assert not explanation.hits
    assert explanation.warnings == ("no chunk matches the filters: none has n == 99",)


def test_a_retriever_of_other_documents_does_not_mean_that_the_keyword_index_is_behind(nodes):
    elsewhere = Fixed({"elsewhere": 0.5})
    fusion = ContextualFusionRetriever([ContextualBM25Retriever(nodes), elsewhere], mode="learned")
    assert not fusion.explain(QUESTION).warnings


def test_any_retrievers_can_be_fused(nodes, retrievers):
    stock = BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=6)
    for chosen in (
        [retrievers[0], stock],
        [Fixed({"a": 0.9, "b": 0.2}), Fixed({"b": 7.0})],
        [retrievers[0]],
        [stock, *retrievers],
    ):
        scored_ids = pairs(
            ContextualFusionRetriever(chosen, mode="learned").retrieve("budget of the house")
        )
        assert scored_ids
        assert 0 < scored_ids[0][1] <= 1
    assert ContextualFusionRetriever([Fixed()], mode="learned").retrieve("q") == []


def test_retrievers_of_one_kind_share_its_feature():
    scores = {"a": 2.0, "b": 1.0}
    alone = scored([ranking("x", scores, 0.7)])
    shared = scored([ranking("x", scores, 0.2), ranking("y", scores, 0.8)])
    assert shared.raw == pytest.approx(alone.raw)


def test_the_credits_of_a_candidate_are_its_ranks_and_features():
    rankings = [
        ranking("x", {"a": 2.0, "b": 1.0, "c": 1.0}),
        ranking("k", {"b": 3.0}, is_keyword=True),
    ]
    table = scored(rankings, reads_of(["a", "b", "c"], [0.5, 0.0, 0.0]))
    names = {node_id: [part.name for part in table.credits_of(node_id)] for node_id in "abc"}
    assert names == {
        "a": ["x", "vector", "nearness"],
        "b": ["x", "k", "vector", "keyword", "match"],
        "c": ["x", "vector"],
    }
    assert table.credits_of("a")[0].rank == 1
    assert table.credits_of("nobody") == ()


class EnglishOnly(Fixed):
    """Declare the scores as cosines of all-MiniLM-L6-v2."""

    cosines_of = "all-minilm"


@pytest.mark.parametrize(
    ("question", "low", "high"),
    [
        ("When does the gateway time out?", 1, 1),
        ("parse_http_header in src/server.rs", 1, 1),
        ("??? 42", 1, 1),
        ("gate qzxvwkjqzxvw", 0.5, 0.5),  # a fourth of its letters are known
        ("Auf welcher Rechtsgrundlage war die Kündigung wirksam?", 0.2, 0.5),
        ("グスタフ・マーラーの誕生日は？", 0.2, 0.2),
        ("Сколько стоит билет до Казани?", 0.2, 0.2),
    ],
)
def test_english_vectors_count_by_the_share_of_the_question_that_their_model_knows(
    question, low, high
):
    vector = ranking("v", {"a": 0.9}, model="all-minilm")
    assert low <= trust_in(question, [vector], nothing_known(["a"]))["v"] <= high


def test_if_the_english_model_knows_no_word_keywords_decide():
    texts = {
        "right": "京都の紅葉は十一月が見頃",
        "wrong": "大阪の祭りは七月",
        "other": "北海道の冬",
    }
    keyword = ContextualBM25Retriever(
        [TextNode(id_=name, text=text) for name, text in texts.items()]
    )
    hits = {"wrong": 0.9, "other": 0.5, "right": 0.1}
    earned = []
    for retriever in (Fixed, EnglishOnly):
        explained = (
            ContextualFusionRetriever([retriever(hits), keyword], mode="learned")
            .explain("紅葉の見頃は")
            .hits
        )
        assert explained[0].node_id == "right"
        parts = [(hit.node_id, part) for hit in explained for part in hit.credits]
        earned.append({name: part.credit for name, part in parts if part.name == "vector"})
    assert earned[1] == pytest.approx({name: 0.2 * credit for name, credit in earned[0].items()})


@pytest.mark.parametrize(
    ("best", "vectors", "keywords"),
    [(0.0, 1.8, 0.0), (1.0, 1.3, 0.5), (2.0, 0.8, 1.0), (8.0, 0.8, 1.0)],
)
def test_multilingual_vectors_count_more_if_no_word_matches(best, vectors, keywords):
    words = reads_of(["a"], [0.0])
    keyword = ranking("k", {"a": best}, is_keyword=True)
    vector = ranking("v", {"a": 0.9}, model="multilingual-e5")
    trust = trust_in("¿Cuándo?", [keyword, vector], words)
    assert trust == pytest.approx({"v": vectors, "k": keywords})
    assert trust_in("¿Cuándo?", [keyword], words) == {}
    assert trust_in("¿Cuándo?", [keyword, vector], nothing_known(["a"])) == {}


def test_cosines_only_come_from_the_vector_retriever():
    vector = ranking("v", {"a": 0.9, "b": 0.5, "c": 0.1})
    keyword = ranking("k", {"c": 3.0, "b": 2.0, "a": 1.0}, is_keyword=True)
    for rankings in ([vector, keyword], [keyword, vector]):
        table = ScoreTable(rankings)
        keyword_data = nothing_known(table.node_ids)
        _, candidates = query_and_candidates(
            "q", date(2026, 4, 10), rankings, table, keyword_data, frozenset("abc")
        )
        assert candidates.cosines[0] > candidates.cosines[1] > candidates.cosines[2]


def test_match_is_the_share_of_the_query_that_a_chunk_contains():
    table = scored(
        [ranking("k", {"a": 6.0, "b": 2.0}, is_keyword=True)], reads_of(["a", "b"], [0.0, 0.0])
    )
    values = {
        node_id: part.value
        for node_id in "ab"
        for part in table.credits_of(node_id)
        if part.name == "match"
    }
    assert values == pytest.approx({"a": 0.75, "b": 0.25})


def test_it_is_the_default_for_the_retrievers_that_it_was_trained_for(nodes, retrievers):
    stock = BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=6)
    assert ContextualFusionRetriever(retrievers).mode == "learned"
    for chosen, given in (
        (retrievers, {"retriever_weights": [1, 1]}),
        (retrievers, {"rrf_k": 60}),
        ([retrievers[0], stock], {}),
        (retrievers[1:], {}),
        ([Fixed(), Fixed()], {}),
    ):
        assert ContextualFusionRetriever(chosen, **given).mode == "reciprocal_rerank"


@pytest.mark.parametrize(
    ("log_odds", "scores"),
    [([4.0, 2.0, -3.0], [1.0, 0.5, 1e-6]), ([0.0, 0.0, 0.0], [1.0] * 3), ([-1.0] * 3, [1.0] * 3)],
)
def test_a_score_is_a_share_of_the_best_and_above_0(log_odds, scores):
    rankings = [ranking("x", {"a": 3.0, "b": 2.0, "c": 1.0})]
    table = ScoreTable(rankings)
    keyword_data = nothing_known(table.node_ids)
    query, candidates = query_and_candidates(
        "q", date(2026, 4, 10), rankings, table, keyword_data, frozenset("abc")
    )
    candidates.scores = np.array(log_odds)
    score_candidates(query, candidates, table, [])
    assert table.scores == pytest.approx(scores)
