"""Relevance is low where nothing answers, and high where words and vectors agree.

Irrelevant hits are dropped.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from results import ids

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.settings.local import LocalEmbedding
from llama_index_contextual.retrievers.base import Pool
from llama_index_contextual.retrievers.bm25 import ContextualBM25Retriever
from llama_index_contextual.retrievers.bm25_index import TermScores
from llama_index_contextual.retrievers.fusion import ContextualFusionRetriever
from llama_index_contextual.retrievers.rankings import (
    FeatureColumn,
    KeywordMember,
    Ranking,
    ScoreTable,
)
from llama_index_contextual.retrievers.relevance import (
    MIN_RELEVANCE,
    Evidence,
    Judgement,
    judge,
    relevance,
    relevant_scores,
)
from llama_index_contextual.retrievers.vector import E5, MINILM, ContextualVectorRetriever
from llama_index_contextual.utils.errors import SettingError

NOTES = Path(__file__).parents[2] / "examples" / "notes"
NONSENSE = [
    "asdfghjkl",
    "qwertyuiop zxcvbnm",
    "????",
    "Wie backt man einen Kirschkuchen?",
    "how tall is Mount Kilimanjaro",
]
UNIT = st.floats(0, 1)
ONLY_WORK = MetadataFilters(filters=[MetadataFilter(key="tags", value="work")])


@pytest.fixture
def retrievers(index, embedding):
    """Return retrievers with an embedding for which relevance is not calibrated."""
    keyword = ContextualBM25Retriever.from_defaults(index=index)
    return ContextualVectorRetriever(index, embed_model=embedding), keyword


@pytest.fixture
def local_retrievers(store, nodes):
    """Return retrievers over a tiny index with the local model."""
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex(nodes, storage_context=context, embed_model=LocalEmbedding())
    keyword = ContextualBM25Retriever(nodes)
    return ContextualVectorRetriever(index), keyword


@given(
    UNIT,
    UNIT,
    st.one_of(st.none(), UNIT),
    UNIT,
    st.sampled_from([MINILM, E5, ""]),
    st.floats(0, 0.5),
)
def test_it_is_a_probability_that_grows_with_each_piece_of_evidence(
    high, own, words, lead, model, more
):
    own = min(own, high)
    evidence = Evidence(high, 0.0, own, words, lead, model)
    value = relevance(evidence)
    assert 0 < value < 1
    assert relevance(evidence._replace(nearest=high + more)) >= value
    assert relevance(evidence._replace(cosine=own + more)) >= value
    assert relevance(evidence._replace(lead=lead + more)) >= value
    if words is not None:
        strict = relevance(evidence._replace(spelled=False))
        assert relevance(evidence._replace(words=0.0, spelled=False)) <= strict <= value
        assert relevance(evidence._replace(words=words + more, spelled=False)) >= strict


# Judgements


class Words:
    """A keyword retriever with a given number of ten query words in each chunk."""

    def __init__(self, **held):
        self.held = held

    def term_scores(self, text, node_ids):
        scores = [[float(word < self.held[node_id]) for word in range(10)] for node_id in node_ids]
        groups = tuple((str(word),) for word in range(10))
        values = np.array(scores).reshape(len(node_ids), 10)
        return TermScores(groups, (1,) * 10, (1.0,) * 10, values, values)


def ranking_of(name, scores, **more):
    return Ranking(name, 0, 0.5, [*scores], np.array([*scores.values()]), len(scores), **more)


def judged(rankings, best_first, *, text="the budget", subject="", words=None, named=()):
    """Return the judgement on candidates in this order; some are named by the query."""
    table = ScoreTable(rankings)
    places = [best_first.index(node_id) for node_id in table.node_ids]
    table.scores = -np.array(places, float)
    names = np.array([float(node_id in named) for node_id in table.node_ids])
    table.features.append(FeatureColumn("names", names, names))
    keywords = None if words is None else KeywordMember("k", words)
    return judge(text, subject, rankings, table, keywords, None)


def test_the_cosine_of_the_best_hit_counts_and_that_of_the_nearest():
    rankings = [ranking_of("v", {"a": 0.9, "b": 0.5, "c": 0.2}, model=MINILM)]
    evidence = judged(rankings, "bac").evidence
    assert (evidence.nearest, evidence.cosine, evidence.farthest) == (0.9, 0.5, 0.2)
    rankings.append(ranking_of("k", {"d": 7.0}, is_keyword=True))
    unranked = judged(rankings, "dabc", words=Words(d=10)).evidence
    assert unranked.cosine == 0.2, "the lowest, where the vector retriever did not return the hit"


@pytest.mark.parametrize(("hits", "lead"), [(12, 0.5), (10, 0.5), (9, 1.0), (1, 1.0)])
def test_the_lead_of_an_answer_is_its_distance_to_the_tenth_hit(hits, lead):
    scores = [10.0, *[9.0] * 8, 5.0, 4.0, 3.0][:hits]
    names = "abcdefghijkl"[:hits]
    rankings = [ranking_of("k", dict(zip(names, scores, strict=True)), is_keyword=True)]
    assert judged(rankings, names, words=Words(a=10)).evidence.lead == lead


def test_the_hit_with_most_of_the_subject_among_three_is_judged():
    cosines = {"d": 0.9, "a": 0.8, "b": 0.7, "c": 0.6}
    rankings = [ranking_of("v", cosines, model=MINILM)]
    words = Words(a=2, b=9, c=5, d=10)
    of_subject = judged(rankings, "abcd", subject="budget", words=words).evidence
    assert (of_subject.words, of_subject.cosine) == (0.9, 0.7)
    of_query = judged(rankings, "abcd", words=words).evidence
    assert (of_query.words, of_query.cosine) == (0.2, 0.8)


def test_a_query_that_is_the_name_of_the_first_hit_is_answered():
    rankings = [ranking_of("v", {"a": 0.2, "b": 0.1}, model=MINILM)]
    assert judged(rankings, "ab", named="a").relevance == 0.95
    close_rankings = [ranking_of("v", {"a": 1.0, "b": 0.1}, model=MINILM)]
    likely = judged(close_rankings, "ab").relevance
    assert judged(close_rankings, "ab", named="a").relevance == max(likely, 0.95)
    assert judged(rankings, "ab", named="b").relevance < 0.1


def test_a_multilingual_model_knows_words_that_are_not_english():
    def is_spelled(model):
        rankings = [ranking_of("v", {"a": 0.2}, model=model)]
        return judged(rankings, "a", text="Ветеринар уехал").evidence.spelled

    assert is_spelled(E5)
    assert not is_spelled(MINILM)


def test_an_english_model_reads_english_words():
    rankings = [ranking_of("v", {"a": 0.2}, model=MINILM)]
    assert judged(rankings, "a", text="The vet left").evidence.spelled


def test_the_relevance_of_a_name_is_unknown_if_no_retriever_has_one():
    assert judged([ranking_of("x", {"a": 0.2})], "a", named="a").relevance is None


def test_relevance_is_unknown_without_cosines_and_words():
    assert relevance(Evidence()) is None
    assert relevance(Evidence(words=0.8)) > relevance(Evidence(words=0.1))


@pytest.mark.parametrize(("model", "unrelated"), [(MINILM, 0.0), (E5, 0.7), ("", 0.4)])
def test_cosines_are_stretched_from_that_of_unrelated_texts_to_1(model, unrelated):
    evidence = Evidence(nearest=1.0, farthest=0.4, cosine=(1 + unrelated) / 2, model=model)
    stretched = evidence.features()
    assert (stretched["nearest"], stretched["cosine"]) == (pytest.approx(1), pytest.approx(0.5))
    unrelated_features = evidence._replace(nearest=unrelated, cosine=unrelated).features()
    assert (unrelated_features["nearest"], unrelated_features["cosine"]) == (0, 0)


def test_cosines_that_are_all_1_say_nothing():
    equal = Evidence(nearest=1.0, farthest=1.0, cosine=1.0, model="").features()
    assert (equal["nearest"], equal["cosine"]) == (0, 0)


def test_the_lead_counts_as_much_as_the_words_that_the_hit_holds():
    assert Evidence(words=0.5, lead=0.8).features()["lead"] == pytest.approx(0.4)
    assert Evidence(lead=0.8).features()["lead"] == 0


@pytest.mark.parametrize(
    ("evidence", "is_calibrated"),
    [
        (Evidence(nearest=0.5, words=0.5), True),
        (Evidence(nearest=0.5, words=0.5, model=E5), True),
        (Evidence(nearest=0.5, words=0.5, model=""), False),
        (Evidence(words=0.5), False),
        (Evidence(nearest=0.5), False),
    ],
)
def test_relevance_was_measured_for_known_cosines_together_with_words(evidence, is_calibrated):
    assert evidence.is_calibrated == is_calibrated


def test_vectors_alone_lift_only_a_question_of_which_half_the_words_are_missing():
    evidence = Evidence(nearest=0.9, cosine=0.0, words=0.499)
    assert relevance(evidence) == 0.3
    half = relevance(evidence._replace(words=0.5))
    assert half == relevance(evidence._replace(words=0.5, spelled=False))


def test_a_best_hit_without_support_by_vectors_has_a_low_relevance():
    """A list of links contained the words of a question without an answer."""
    links = Evidence(nearest=0.35, cosine=0.106, words=0.7)
    assert relevance(links._replace(cosine=0.35)) > 2 * relevance(links)
    assert relevance(links) < 0.25


def test_vectors_alone_lift_a_question_in_other_words_a_little():
    evidence = Evidence(nearest=0.9, cosine=0.0, words=0.0)
    assert relevance(evidence) == 0.3
    assert relevance(evidence._replace(spelled=False)) < MIN_RELEVANCE
    assert MIN_RELEVANCE < relevance(evidence._replace(nearest=0.3)) < relevance(evidence)


def test_an_answer_stands_out_and_a_subject_does_not(tmp_path):
    for number in range(12):
        (tmp_path / f"{number}.md").write_text(
            f"# Gateway\n\nThe gateway of site {number} has a timeout.\n", "utf-8"
        )
    (tmp_path / "3.md").write_text(
        "# Gateway\n\nThe gateway of site 3 has a retry budget.\n", "utf-8"
    )
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        retriever = index.as_retriever()
        subject, answer = (
            retriever.explain("gateway"),
            retriever.explain("retry budget of the gateway"),
        )
    assert subject.judgement.evidence.words == answer.judgement.evidence.words == 1
    assert subject.judgement.evidence.lead < 0.2
    assert 0.5 < answer.judgement.evidence.lead < 1
    assert subject.relevance < answer.relevance


@pytest.mark.parametrize(
    ("likelihood", "is_calibrated", "min_score", "expected"),
    [
        (0.9, True, "auto", "abc"),
        (0.05, True, "auto", "abc"),  # the best is relevant enough, and all others stay
        (0.04, True, "auto", ""),
        (0.04, False, "auto", "abc"),
        (0.6, True, 0.3, "ab"),
        (0.6, False, 0.3, "ab"),
        (0.6, True, 0.0, "abc"),
        (None, True, 0.9, "abc"),
    ],
)
def test_hits_that_are_not_relevant_enough_are_left_out(
    likelihood, is_calibrated, min_score, expected
):
    scores = {"a": 1.0, "b": 0.5, "c": -0.1}
    judgement = Judgement(likelihood, is_calibrated)
    relevant, note = relevant_scores(scores, min_score, judgement)
    assert "".join(relevant) == expected
    assert bool(note) == (len(relevant) < 3)


def test_a_note_says_how_many_hits_are_left_out_and_the_relevance_of_the_best_of_them():
    _, note = relevant_scores(
        {"a": 1.0, "b": 0.5, "c": 0.25}, 0.4, Judgement(0.6, is_calibrated=True)
    )
    assert note == "left out 2 hits: the best has a relevance of 0.300, below min_score=0.4"


def test_a_hit_that_is_just_relevant_enough_stays():
    relevant, _ = relevant_scores({"a": 1.0, "b": 0.5}, 0.25, Judgement(0.5, is_calibrated=True))
    assert [*relevant] == ["a", "b"]


@pytest.mark.parametrize("query", NONSENSE)
async def test_nonsense_finds_nothing_in_a_tiny_index(local_retrievers, query):
    retriever = ContextualFusionRetriever(local_retrievers, min_score="auto")
    assert retriever.retrieve(query) == await retriever.aretrieve(query) == []
    explanation = retriever.explain(query)
    assert not explanation.hits
    assert "left out 6 hits: the best has " in explanation.warnings[-1]
    assert f"below min_score={MIN_RELEVANCE:g}" in explanation.warnings[-1]
    everything = ContextualFusionRetriever(local_retrievers)
    hits = everything.retrieve(query)
    assert len(hits) == len(await everything.aretrieve(query)) == 6, (
        "an engine gets the best there is"
    )
    assert hits[0].score < MIN_RELEVANCE


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("schedlr", 'does not know "schedlr"'),
        ("zzzqq schedlr", 'the index does not know "zzzqq", "schedlr"'),
        ("fnord flurbel gnix blarg", 'the index does not know "fnord", "flurbel", "gnix"'),
        ("gateway flurbel", 'the index does not know "flurbel"'),
    ],
)
def test_words_that_the_index_does_not_know_are_named(seven_notes, query, said):
    explanation = seven_notes.explain(query)
    assert said in explanation.judgement.unknown_words
    assert explanation.judgement.unknown_words in str(explanation)
    assert explanation.to_dict()["unknown"] == explanation.judgement.unknown_words


def test_an_unknown_word_is_not_replaced_by_a_similar_one():
    retriever = ContextualBM25Retriever([TextNode(text="The crowd is diverse.", id_="a")])
    assert retriever.retrieve("where do they diverge") == []
    [hit] = retriever.retrieve("how diverse is it")
    assert hit.score
    assert hit.score > 0


def test_unknown_words_are_named_without_vectors(tmp_path):
    (tmp_path / "a.md").write_text(
        "# Base de datos\n\nLas zanahorias son para el perro.\n", "utf-8"
    )
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        retriever = index.as_retriever()
        assert not retriever.explain("zanahorias").remarks
        assert retriever.explain("zanahorias flurbel").hits
        assert retriever.explain("zanahorias flurbel").remarks == (
            'the index does not know "flurbel"',
        )
        (tmp_path / "a.md").unlink()
        index.refresh(confirm=True)
        assert retriever.explain("zanahroias").remarks == ('the index does not know "zanahroias"',)


@pytest.fixture(scope="module")
def larger_retrievers():
    texts = [
        f"Server {n} of rack {n % 7} writes its log to disk {n % 3} and restarts at {n % 24}:00"
        for n in range(300)
    ]
    nodes = [TextNode(id_=f"n{number}", text=text) for number, text in enumerate(texts)]
    index = VectorStoreIndex(nodes, embed_model=LocalEmbedding())
    return [ContextualVectorRetriever(index), ContextualBM25Retriever(nodes)]


@pytest.mark.long
@pytest.mark.parametrize("query", NONSENSE)
def test_nonsense_finds_nothing_in_a_larger_index(larger_retrievers, query):
    retriever = ContextualFusionRetriever(larger_retrievers, min_score="auto")
    assert retriever.retrieve(query) == []
    assert ContextualFusionRetriever(larger_retrievers).retrieve(query)
    assert retriever.retrieve("when does the server restart?")


@pytest.mark.parametrize("query", ["which animal is it?", "prices", "renovation costs", "hound"])
def test_a_question_in_other_words_finds_similar_notes(local_retrievers, query):
    retriever = ContextualFusionRetriever(local_retrievers, min_score="auto")
    assert not any(retriever.retrievers[1].term_scores(query, []).frequencies), (
        "the index knows no word of it"
    )
    assert retriever.retrieve(query)


def test_an_answer_is_found_and_its_score_is_its_relevance(local_retrievers):
    retriever = ContextualFusionRetriever(local_retrievers)
    for query, best in (
        ("Cookie loves carrots", "dog"),
        ("how expensive are the tiles?", "budget"),
    ):
        hits = retriever.explain(query).hits
        assert hits[0].node_id == best
        assert hits[0].score == hits[0].relevance > 0.5
        assert all(hit.score == pytest.approx(hit.relevance) for hit in hits)


def test_a_filtered_search_returns_all_matching_hits(local_retrievers):
    retriever = ContextualFusionRetriever(local_retrievers, min_score="auto")
    assert len(retriever.with_filters(ONLY_WORK).retrieve("asdfghjkl")) == 4
    assert ids(retriever.retrieve("path:notes/dog.md asdfghjkl")) == ["dog"]
    strict = ContextualFusionRetriever(local_retrievers, min_score=0.05)
    assert strict.with_filters(ONLY_WORK).retrieve("asdfghjkl") == []


def test_with_other_embeddings_auto_leaves_out_nothing(retrievers):
    assert (
        len(ContextualFusionRetriever(retrievers, min_score="auto").retrieve("asdfghjkl qwertz"))
        == 6
    )


def test_with_a_vector_retriever_alone_auto_leaves_out_nothing(local_retrievers):
    assert (
        len(
            ContextualFusionRetriever(local_retrievers[:1], min_score="auto").retrieve(
                "asdfghjkl qwertz"
            )
        )
        == 6
    )


def test_relevance_is_low_for_nonsense_with_any_embedding(retrievers):
    nonsense = ContextualFusionRetriever(retrievers).explain("asdfghjkl qwertz")
    sense = ContextualFusionRetriever(retrievers).explain("Cookie loves carrots")
    assert max(hit.relevance for hit in nonsense) < 0.05
    assert sense.hits[0].relevance > 0.5
    assert sense.to_dict()["hits"][0]["relevance"] == sense.hits[0].relevance
    assert f"{sense.hits[0].relevance:.2f}" in str(sense).splitlines()[1]


@pytest.mark.parametrize("mode", ["learned", "reciprocal_rerank"])
def test_hits_below_the_minimum_relevance_are_left_out_in_every_mode(retrievers, mode):
    everything = ContextualFusionRetriever(retrievers, mode=mode).explain("Cookie loves carrots")
    least = everything.hits[1].relevance
    kept = [hit.node_id for hit in everything if hit.relevance >= least]
    assert 2 <= len(kept) < len(everything)
    retriever = ContextualFusionRetriever(retrievers, mode=mode, min_score=least)
    assert ids(retriever.retrieve("Cookie loves carrots")) == kept
    assert (
        retriever.explain("Cookie loves carrots").hits[0].relevance == everything.hits[0].relevance
    )


def test_negative_scores_stay_if_nothing_is_left_out():
    class Below(ContextualBM25Retriever):
        def pools(self, queries, size, least):
            [(matching, _)] = super().pools(queries, size, least)
            further = [candidate._replace(score=-100.0) for candidate in matching[1:]]
            below = [matching[0], *further]
            return [Pool(below, below)]

    keyword = Below([TextNode(id_=f"n{number}", text="carrots and walks") for number in range(30)])
    hits = ContextualFusionRetriever([keyword], mode="simple", similarity_top_k=30).retrieve(
        "carrots"
    )
    assert len(hits) == 30
    assert hits[-1].score < 0


def test_one_retriever_is_enough(retrievers):
    for retriever in retrievers:
        hits = ContextualFusionRetriever([retriever]).explain("Cookie loves carrots").hits
        assert hits[0].node_id == "dog"
        assert hits[0].relevance > 0.2


def test_hits_of_unknown_relevance_stay(index):
    stock = ContextualFusionRetriever([index.as_retriever(similarity_top_k=3)], min_score=0.9)
    explanation = stock.explain("dog")
    assert len(explanation) == 3
    assert {hit.relevance for hit in explanation} == {None}


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan"), "high"])
def test_an_invalid_minimum_relevance_is_rejected(retrievers, wrong):
    with pytest.raises(SettingError, match=r"`min_score` must be .* of at least 0 and at most 1"):
        ContextualFusionRetriever(retrievers, min_score=wrong)


@pytest.fixture(scope="module")
def seven_notes(tmp_path_factory):
    """Return a retriever over the example notes with the local model and the default settings."""
    with ContextualIndex.open(NOTES, storage=tmp_path_factory.mktemp("notes")) as index:
        index.refresh()
        assert index.as_retriever().retrieve("asdfghjkl"), (
            "what an engine asks gives the best it has"
        )
        yield index.as_retriever(min_score="auto")


@pytest.mark.parametrize(
    "query",
    [
        "gateway.md",
        "2026-10-05",
        "1024",
        "tagus",
        "Conventions",
        '"blue on white"',
        "invitation tripled",
        "rotated without",
        "outside health",
        "grey directory second",
    ],
)
async def test_a_query_with_only_known_words_finds_something(seven_notes, query):
    explanation = seven_notes.explain(query)
    assert explanation.hits
    assert explanation.hits[0].terms
    assert ids(seven_notes.retrieve(query)) == [hit.node_id for hit in explanation]
    assert ids(await seven_notes.aretrieve(query)) == [hit.node_id for hit in explanation]


def test_a_word_of_the_notes_finds_something(seven_notes):
    keyword = next(
        retriever
        for retriever in seven_notes.retrievers
        if isinstance(retriever, ContextualBM25Retriever)
    )
    words = {
        word
        for path in NOTES.rglob("*.md")
        for word in re.findall(r"[\w-]+", path.read_text("utf-8").lower())
    }
    known = sorted(word for word in words if any(keyword.term_scores(word, []).frequencies))
    assert len(known) > 300
    assert not [word for word in known[::5] if not seven_notes.retrieve(word)]


@pytest.mark.parametrize("query", ["asdfghjkl", "databse", "the"])
def test_a_query_with_unknown_words_can_find_nothing(seven_notes, query):
    assert seven_notes.retrieve(query) == []
    assert f"below min_score={MIN_RELEVANCE:g}" in seven_notes.explain(query).warnings[-1]
    assert not seven_notes.explain("the").judgement.unknown_words, "a stop word is in no index"


def test_auto_keeps_all_hits_of_a_question_or_none(seven_notes):
    """The first hit of a retriever may be far down in the fusion, with a small share of the
    relevance.
    """
    explanations = {
        query: seven_notes.explain(query)
        for query in ("slowness", "what are our servers called?", "asdfghjkl")
    }
    for explanation in explanations.values():
        assert bool(explanation.hits) == (explanation.relevance >= MIN_RELEVANCE)
        assert explanation.left_out in {0, 21}
