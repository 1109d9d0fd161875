"""The retrievers and postprocessors that an index makes for a question."""

import pytest
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import (
    LLMRerank,
    SimilarityPostprocessor,
    StructuredLLMRerank,
)
from llama_index.core.postprocessor.rankGPT_rerank import RankGPTRerank
from llama_index.core.vector_stores import FilterOperator, MetadataFilter, MetadataFilters

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualVectorRetriever,
    RecencyPostprocessor,
    RerankWithContext,
)
from llama_index_contextual.utils.errors import SettingError

MEMORY = MetadataFilters(
    filters=[MetadataFilter(key="path", value="memory/", operator=FilterOperator.CONTAINS)]
)


@pytest.fixture
def index(opened, model):
    return opened(embed_model=model)


def half_lives(index, **options):
    return [step.half_life_days for step in index.as_retriever(**options).node_postprocessors]


def test_the_vector_retriever_comes_before_the_keyword_retriever(index, opened):
    kinds = [type(retriever) for retriever in index.as_retriever().retrievers]
    assert kinds == [ContextualVectorRetriever, ContextualBM25Retriever]
    [keywords] = opened(embed_model="none").as_retriever().retrievers
    assert isinstance(keywords, ContextualBM25Retriever)


def test_a_filter_applies_to_each_retriever(index):
    index.refresh()
    for retriever in index.as_retriever(filters=MEMORY).retrievers:
        paths = {hit.metadata["path"] for hit in retriever.retrieve("Cookie is slow on Friday")}
        assert paths == {"memory/2026-01-28.md", "memory/2026-04-09.md"}


def test_newer_notes_come_first_only_on_request(index):
    assert half_lives(index) == []
    assert half_lives(index, recency=False) == []
    assert half_lives(index, recency=7) == [7]
    [default] = half_lives(index, recency=True)
    assert default == index.settings.configuration["retrieval.half_life_days"]


def test_the_configuration_can_let_newer_notes_come_first(opened, model):
    config = {"retrieval.recency": True, "retrieval.half_life_days": 14}
    index = opened(embed_model=model, config=config)
    assert half_lives(index) == [14]
    assert half_lives(index, recency=False) == []
    assert half_lives(index, recency=True) == [14]
    assert half_lives(index, recency=3) == [3]


@pytest.mark.parametrize("half_life", [0, -1, "a week"])
def test_a_half_life_is_a_positive_number(index, half_life):
    with pytest.raises(SettingError, match="`recency` must be"):
        index.as_retriever(recency=half_life)


@pytest.mark.parametrize("kind", [LLMRerank, StructuredLLMRerank, RankGPTRerank])
def test_a_reranker_that_reads_only_texts_is_shown_contexts(index, kind):
    class Model(MockLLM):
        @property
        def metadata(self):
            return super().metadata.model_copy(update={"is_function_calling_model": True})

    reranker = kind(llm=Model())
    [step] = index.as_retriever(rerank=reranker).node_postprocessors
    assert isinstance(step, RerankWithContext)
    assert step.reranker is reranker


def test_any_other_reranker_is_used_as_it_is_after_recency(index):
    reranker = SimilarityPostprocessor(similarity_cutoff=0.5)
    recency, step = index.as_retriever(rerank=reranker, recency=7).node_postprocessors
    assert isinstance(recency, RecencyPostprocessor)
    assert step is reranker


def test_a_reranker_is_a_postprocessor(index):
    with pytest.raises(SettingError, match=r"`rerank` must be a LlamaIndex node postprocessor"):
        index.as_retriever(rerank="colbert")


def test_postprocessors_that_are_passed_replace_those_of_the_configuration(opened, model):
    index = opened(embed_model=model, config={"retrieval.recency": True})
    assert index.as_retriever(node_postprocessors=[]).node_postprocessors == []


def test_ten_chunks_are_returned_unless_another_number_is_set(index, opened, model):
    assert index.as_retriever().similarity_top_k == 10
    assert index.as_retriever(3).similarity_top_k == 3
    configured = opened(embed_model=model, config={"retrieval.top_k": 4})
    assert configured.as_retriever().similarity_top_k == 4
    assert configured.as_retriever(3).similarity_top_k == 3


def test_as_many_candidates_are_ranked_as_chunks_are_returned(index):
    assert index.as_retriever(5000).candidate_pool == 5000
    assert index.as_retriever(5).candidate_pool == index.as_retriever().candidate_pool > 10


def test_the_configuration_can_set_the_lowest_score(opened, model):
    assert opened(embed_model=model).as_retriever().min_score == 0
    index = opened(embed_model=model, config={"retrieval.min_score": 0.25})
    assert index.as_retriever().min_score == 0.25
    assert index.as_retriever(min_score=0.5).min_score == 0.5


def test_keywords_alone_are_ranked_by_the_learned_features_unless_ranks_are_chosen(opened):
    index = opened(embed_model="none")
    assert index.as_retriever().mode == "learned"
    assert index.as_retriever(rrf_k=30).mode == "reciprocal_rerank"


def test_nested_questions_read_the_same_moment(index, folder):
    index.refresh()
    with index._reader.snapshot() as view:
        (folder / "new.md").write_text("# New\n\nA zebra.\n", "utf-8")
        index.refresh()
        with index._reader.snapshot() as nested:
            assert nested is view
    with index._reader.snapshot() as later:
        assert later is not view
        assert len(later.snapshot.rows()) == 5


def test_nodes_and_texts_are_read_in_any_order(index):
    index.refresh()
    with index._reader.snapshot() as view:
        rows = view.snapshot.rows()
        texts = view.texts(rows)
        assert view.texts(rows[::-1]) == texts[::-1]
        ids = view.ids_of(rows.tolist())
        assert view.rows_of([ids[2], "unknown", ids[0]]) == {ids[2]: rows[2], ids[0]: rows[0]}
        assert set(view.nodes([ids[1], "unknown"])) == {ids[1]}
