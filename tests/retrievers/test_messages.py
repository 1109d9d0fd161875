"""The ranking of sessions for a message: their scores, their age, and the order of chunks."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import pytest
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from tables import ranked

from llama_index_contextual.retrievers.base import Candidate
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.bm25_index import TermScores
from llama_index_contextual.retrievers.chunk_info import (
    ChunkInfoIndex,
    InfoCollector,
    describe_chunk,
)
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.rankings import (
    KeywordMember,
    Ranking,
    rank_candidates,
    shipped_weights,
)
from llama_index_contextual.retrievers.sessions import (
    FEATURES,
    Session,
    SessionScore,
    fuse_sessions,
    interleaved_totals,
    recency_of,
    score_sessions,
    sentences_of,
    sessions_of,
)
from llama_index_contextual.retrievers.vector import ContextualVectorRetriever

NOW = date(2026, 4, 10)


def ranking(name, scores, weight, query=0, *, is_keyword=False, model=None):
    ids, values = rank_candidates([Candidate(*pair) for pair in scores.items()])
    return Ranking(name, query, weight, ids, values, len(ids), is_keyword, model)


def known_chunks(metadata_of_chunks):
    """Return the descriptions of chunks with these metadata."""
    chunks = InfoCollector()
    for metadata in metadata_of_chunks:
        chunks.add("", describe_chunk(metadata, ""))
    rows = range(len(metadata_of_chunks))
    return ChunkInfoIndex().with_chunks(rows, chunks).read(rows)


class Known(ContextualBM25Retriever):
    """A retriever that knows the path and day of each node. Words of the query have idf 10."""

    def __init__(self, metadata):
        super().__init__([])
        self.metadata = metadata
        self.reader = self

    def ask(self, work):
        return work(self)

    def named_chunks(self, store, text, rows=None):
        return {}

    def describe(self, groups, ids, with_nearness):
        terms = TermScores((("x",),), (1,), (10.0,), *np.zeros((2, len(ids), 1)))
        known = known_chunks([self.metadata[node_id] for node_id in ids])
        return terms, np.zeros(len(ids)), known


def fused(vector, keyword, sessions, ages, **more):
    model = more.pop("model", None)
    rankings = [
        ranking("vector", vector, 0.4, model=model),
        ranking("keyword", keyword, 0.6, is_keyword=True),
    ]
    for number, answer in enumerate(more.pop("sentences", []), start=1):
        rankings.append(ranking("vector", answer, 0.4, number, model=model))
    metadata = {}
    for node_id, session in sessions.items():
        age = ages[session]
        day = None if age is None else str(NOW - timedelta(days=age))
        metadata[node_id] = {"path": f"{session}.md", "date": day}
    message = more.pop("message", "q")
    keywords = KeywordMember("keyword", Known(metadata))
    table, _ = fuse_sessions(message, rankings, keywords, NOW, **more)
    return ranked(table)


def test_several_matching_chunks_raise_a_session():
    vector = {"a1": 0.6, "b1": 0.6, "a2": 0.5, "c1": 0.1, "c2": 0.1}
    sessions = {node_id: node_id[0] for node_id in vector}
    first, second, *_ = hits = fused(vector, {}, sessions, dict.fromkeys("abc", 3))
    assert (first.node_id, second.node_id) == ("a1", "b1")
    assert [hit.node_id for hit in hits].index("a2") > 1  # after the best of another session
    credits_of = {hit.node_id: {part.name: part.credit for part in hit.credits} for hit in hits}
    assert credits_of["a1"]["session vector"] > credits_of["b1"]["session vector"]


def test_the_first_hits_are_from_different_sessions():
    by_id = {
        hit.node_id: hit
        for hit in fused(
            {"a1": 0.9, "a2": 0.8, "a3": 0.1}, {}, dict.fromkeys(["a1", "a2", "a3"], "a"), {"a": 0}
        )
    }
    assert by_id["a2"].raw == pytest.approx(by_id["a1"].raw / 10)
    assert by_id["a3"].raw == pytest.approx(by_id["a1"].raw / 20)
    vector = {f"{session}{place}": 0.9 - 0.1 * place for session in "abcd" for place in range(1, 4)}
    order = [
        hit.node_id
        for hit in fused(
            vector,
            {},
            {node_id: node_id[0] for node_id in vector},
            {"a": 0, "b": 1, "c": 2, "d": 3},
        )
    ]
    assert order == [f"{session}{place}" for place in range(1, 4) for session in "abcd"]


def test_the_newer_of_equal_sessions_wins_and_an_undated_one_is_between():
    vector = {"new": 0.5, "old": 0.5, "none": 0.5}
    ages = {"new": 1, "old": 90, "none": None}
    hits = fused(vector, {}, {name: name for name in vector}, ages)
    assert [hit.node_id for hit in hits] == ["new", "none", "old"]
    age = [next(part.credit for part in hit.credits if part.name == "age") for hit in hits]
    assert age == sorted(age, reverse=True)
    assert age[1] == pytest.approx((age[0] + age[2]) / 2), "the middle of those that have one"


def test_the_oldest_session_of_all_is_not_taken_for_an_undated_one():
    vector = {"new": 0.5, "old": 0.5, "none": 0.5}
    ages = {"new": 1, "old": 4000, "none": None}
    hits = fused(vector, {}, {name: name for name in vector}, ages, half_life_days=1)
    assert [hit.node_id for hit in hits] == ["new", "none", "old"]


def test_a_candidate_that_nothing_speaks_for_still_has_a_score_above_zero():
    vector = dict.fromkeys("abcdefghijkl", 0.9) | {"z": 0.1}
    hits = fused(vector, {}, {name: name for name in vector}, dict.fromkeys(vector))
    assert hits[-1].raw == 0 < hits[-1].score


def test_a_session_has_the_mean_of_its_three_best_chunks_and_its_best_sentence():
    chunks = [[3.0, 6.0, 0.9], [3.0, 6.0, 0.3], [3.0, 6.0, 0.3], [0.0, 0.0, 0.0], [3.0, 6.0, 0.3]]
    sessions = [Session(name, None) for name in "aaaab"]
    scores = score_sessions(np.array(chunks), sessions, dict.fromkeys(sessions))
    by_text = [scores[Session(name, None)].by_text for name in "ab"]
    assert by_text == [pytest.approx([3.0, 6.0, 0.9]), pytest.approx([1.0, 2.0, 0.3])]


def test_chunks_without_a_path_are_sessions_of_their_own():
    chunks = known_chunks([{"header_path": "Tea"}] * 2)
    first, second = sessions_of(["a", "b"], chunks)
    assert first != second


def credit_of(name, hits):
    """Return what a feature adds to the first hit."""
    return next(part.credit for part in hits[0].credits if part.name == name)


def test_a_sentence_counts_by_what_it_is_above_the_last_candidate_in_six_deviations():
    weight = shipped_weights("messages")["sentence"]
    same = {name: name for name in "ab"}
    scores = {"a": 0.8, "b": 0.2}  # the deviation is 0.3
    keywords = {"a": 9.0, "b": 1.0}  # their deviation does not matter
    whole = fused(scores, keywords, same, dict.fromkeys("ab", 3))
    assert credit_of("sentence", whole) == pytest.approx(weight * 0.6 / 1.8)
    for above in (0.2, 0.9):
        sentences = [{"a": 0.1 + above, "b": 0.1}]
        hits = fused(scores, keywords, same, dict.fromkeys("ab", 3), sentences=sentences)
        assert credit_of("sentence", hits) == pytest.approx(weight * above / 1.8)


def test_a_third_of_what_one_chunk_holds_of_the_message_counts_for_its_session():
    hits = fused({"a": 0.6}, {"a": 5.0}, {"a": "a"}, {"a": 3})
    weight = shipped_weights("messages")["session keyword"]
    assert credit_of("session keyword", hits) == pytest.approx(weight * 0.5 / 3)


def test_a_sentence_that_the_english_model_cannot_read_counts_a_fifth():
    same = {name: name for name in "ab"}
    credits_of_sentence = [
        credit_of(
            "sentence",
            fused(
                {"a": 0.8, "b": 0.2},
                {},
                same,
                dict.fromkeys("ab", 3),
                sentences=[{"a": 0.9, "b": 0.1}],
                message="体調が良くなりました",
                model=model,
            ),
        )
        for model in ("all-minilm", "another")
    ]
    assert credits_of_sentence[0] == pytest.approx(0.2 * credits_of_sentence[1])


def test_words_count_less_if_hardly_any_matches_beside_multilingual_vectors():
    hits = fused({"a": 0.6}, {"a": 1.0}, {"a": "a"}, {"a": 3}, model="multilingual-e5")
    weight = shipped_weights("messages")["session keyword"]
    trust = 0.4  # a tenth of the message matches, and a fourth would give full trust
    assert credit_of("session keyword", hits) == pytest.approx(weight * trust * 0.1 / 3)


def test_a_sentence_finds_no_candidates_of_its_own():
    same = {name: name for name in "abc"}
    ages = dict.fromkeys("abc", 3)
    hits = fused({"a": 0.6, "b": 0.2}, {}, same, ages, sentences=[{"c": 0.9, "a": 0.1}])
    assert {hit.node_id for hit in hits} == {"a", "b"}


def test_a_session_counts_a_fourth_as_new_after_thirty_days_by_default():
    hits = fused({"a": 0.6}, {}, {"a": "a"}, {"a": 30})
    assert credit_of("age", hits) == pytest.approx(shipped_weights("messages")["age"] / 4)


def test_what_a_turn_adds_is_a_credit_and_no_score_is_below_zero():
    ages = {"today": 0, "yesterday": 1, "last week": 7, "last year": 365}
    vector = {"today": 0.7, "yesterday": 0.6, "last week": 0.5, "last year": 0.69}
    hits = fused(vector, {}, {name: name for name in vector}, ages)
    assert any(credit.name == "turn" for hit in hits for credit in hit.credits)
    for hit in hits:
        assert sum(credit.credit for credit in hit.credits) == pytest.approx(hit.raw)
        assert hit.score > 0


def test_the_best_sentence_counts_in_addition_to_the_whole_message():
    vector = {"a": 0.3, "b": 0.3, "c": 0.1}
    same = {name: name for name in vector}
    [first, *_] = fused(
        vector,
        {},
        same,
        dict.fromkeys(vector, 3),
        sentences=[{"b": 0.8, "a": 0.2}, {"a": 0.1, "b": 0.1}],
    )
    assert first.node_id == "b"


def test_credits_add_up_to_the_log_odds_and_scores_are_shares_of_the_best():
    hits = fused(
        {"a": 0.6, "b": 0.3},
        {"b": 4.0, "c": 1.0},
        {name: name for name in "abc"},
        dict.fromkeys("abc", 10),
    )
    assert hits[0].score == 1
    for hit in hits:
        assert sum(credit.credit for credit in hit.credits) == pytest.approx(hit.raw)
        assert hit.score == pytest.approx(hit.raw / hits[0].raw)


def test_the_shipped_model_has_a_positive_weight_for_every_feature():
    assert set(shipped_weights("messages")) == set(FEATURES)
    assert all(weight >= 0 for weight in shipped_weights("messages").values())


def test_sessions_are_days_of_a_note_else_sections():
    nodes = [
        TextNode(id_="day", text="x", metadata={"path": "memory/2026-04-05.md"}),
        TextNode(
            id_="heading",
            text="x",
            metadata={"path": "log.md", "date": "2026-04-09", "header_path": "Log/9 April"},
        ),
        TextNode(
            id_="heading2",
            text="x",
            metadata={"path": "log.md", "date": "2026-04-09", "header_path": "Log/Tea"},
        ),
        TextNode(id_="section", text="x", metadata={"path": "people.md", "header_path": "Marta"}),
        TextNode(id_="section2", text="x", metadata={"path": "people.md", "header_path": "JC"}),
        TextNode(id_="later", text="x", metadata={"path": "memory/2026-05-01.md"}),
        TextNode(id_="bare", text="x"),
    ]
    ids = [node.node_id for node in nodes]
    chunks = known_chunks([node.metadata for node in nodes])
    session_of = dict(zip(ids, sessions_of(ids, chunks), strict=True))
    assert session_of["heading"] == session_of["heading2"]
    assert len(set(session_of.values())) == 6
    new = {node_id: recency_of(session, NOW, 10) for node_id, session in session_of.items()}
    days = {"day": 5, "heading": 1, "heading2": 1, "later": 21}
    assert new == {
        node_id: 0.25 ** (days[node_id] / 10) if node_id in days else None for node_id in session_of
    }
    for session in session_of.values():
        assert recency_of(session, NOW, 10, evergreen=["*"]) is None


def test_a_message_is_split_if_it_has_several_sentences():
    assert sentences_of("does JC like ginger?") == []
    message = "Hi! The ginger tea really helps.\nI sleep better than last week. Many thanks."
    assert sentences_of(message) == [
        "The ginger tea really helps.",
        "I sleep better than last week.",
    ]
    assert sentences_of("Tea helps me.\nSo do long walks.")[0] == "Tea helps me."
    many = [f"The {'very ' * number}first sentence ends." for number in range(9)]
    assert sentences_of(" ".join(many)) == many[3:], "the six longest"


def test_a_retriever_for_messages_finds_the_session_and_says_why(embedding, index):
    keyword = ContextualBM25Retriever.from_defaults(index=index)
    retrievers = [ContextualVectorRetriever(index, embed_model=embedding), keyword]
    retriever = ContextualFusionRetriever(retrievers, mode="message", similarity_top_k=3)
    message = (
        "I am back from my holidays. The kitchen of the new house needs tiles, and the "
        "budget is small."
    )
    explanation = retriever.explain(message)
    assert explanation.queries[0] == message
    assert len(explanation.queries) == 3
    assert [hit.node.node_id for hit in explanation.nodes] == [
        hit.node.node_id for hit in retriever.retrieve(message)
    ]
    shown = str(explanation)
    assert all(name in shown for name in ("session vector +", "session keyword +", "sentence +"))
    assert "+0.00" not in shown


def test_a_question_is_not_split_into_sentences(index):
    fusion = ContextualFusionRetriever([ContextualBM25Retriever.from_defaults(index=index)])
    question = "The kitchen of the new house needs tiles. What is the budget for them?"
    assert fusion.explain(question).queries == (question,)


def test_a_message_only_finds_nodes_that_match_the_filters(embedding, index):
    keyword = ContextualBM25Retriever.from_defaults(index=index)
    retrievers = [ContextualVectorRetriever(index, embed_model=embedding), keyword]
    only = MetadataFilters(filters=[MetadataFilter(key="n", value=3, operator=">=")])
    dog = "The dog Cookie loves carrots, Cookie the dog loves long walks. "
    message = f"{dog} The budget of the house is small. How many results does the server return?"
    fusion = ContextualFusionRetriever(
        retrievers, mode="message", similarity_top_k=1, candidate_pool=1
    )
    assert fusion.retrieve(message)[0].node.node_id == "dog"
    hits = fusion.with_filters(only).retrieve(message)
    assert {hit.node.node_id for hit in hits} < {"config", "meeting", "budget"}


def test_every_third_session_is_the_best_remaining_one_by_text():
    text_and_age = {
        "today": (2.0, 3.0),
        "yesterday": (1.0, 3.5),
        "last week": (1.5, 2.5),
        "last year": (2.9, 0.1),
    }
    scores = {
        Session(name, None): SessionScore([0], [text], age)
        for name, (text, age) in text_and_age.items()
    }
    totals = interleaved_totals(scores)
    assert [(session.path, total) for session, total in totals.items()] == [
        ("today", 5.0),
        ("yesterday", 4.5),
        ("last year", 4.0),
        ("last week", 3.0),
    ]


def test_sessions_from_later_days_are_not_chosen_by_text():
    ages = {"today": 0, "yesterday": 1, "last week": 7, "last year": 365}
    vector = {"today": 0.7, "yesterday": 0.6, "last week": 0.5, "last year": 0.69}
    later = {f"in {days} days": -days for days in range(20, 40)}
    every = vector | dict.fromkeys(later, 0.695)
    hits = fused(every, {}, {name: name for name in every}, ages | later)
    assert [hit.node_id for hit in hits if hit.node_id in vector] == [
        "today",
        "yesterday",
        "last year",
        "last week",
    ]
