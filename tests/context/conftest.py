"""The step that the tests of contexts from a language model run."""

from __future__ import annotations

import pytest

from llama_index_contextual.context import Patience
from llama_index_contextual.postprocessor import ContextualNodePostprocessor

pytest.register_assert_rewrite("llm_runs")  # so that its assertions show their values, as those of test modules do

FAST = {"attempts": 2, "chunk_timeout": 60.0, "reading_rate": 1e6}


@pytest.fixture
def step(fake_model, tmp_path):
    """Callable: a postprocessor that asks the fake model, with a cache in a file."""

    def make(**options):
        patience = {**FAST, **{name: options.pop(name) for name in Patience.__slots__ if name in options}}
        given = {"llm": fake_model.llm, "cache": tmp_path / "contexts.sqlite", "num_workers": 1, "patience": patience}
        options = {**given, **options}
        return ContextualNodePostprocessor("llm", **options)

    return make
