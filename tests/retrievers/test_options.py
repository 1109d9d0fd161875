"""What ``**settings`` take is typed, so that mypy sees a misspelt one; the types name what the constructors take."""

from __future__ import annotations

import inspect

import pytest

from llama_index_contextual import ContextualBM25Retriever, ContextualFusionRetriever
from llama_index_contextual.retrievers.search import FusionOptions, KeywordSettings, NewSettings, RetrieverSettings


@pytest.mark.parametrize(
    ("typed", "cls", "elsewhere"),
    [
        (NewSettings, ContextualBM25Retriever, {"nodes"}),
        (FusionOptions, ContextualFusionRetriever, {"retrievers", "similarity_top_k"}),
    ],
)
def test_every_setting_is_typed_and_no_other_is(typed, cls, elsewhere):
    assert set(typed.__annotations__) == set(inspect.signature(cls).parameters) - elsewhere


def test_settings_of_an_index_that_is_there_are_fewer():
    assert set(NewSettings.__annotations__) - set(KeywordSettings.__annotations__) == {"analyzer", "language"}
    assert set(KeywordSettings.__annotations__) - set(RetrieverSettings.__annotations__) == {"k1", "b"}
