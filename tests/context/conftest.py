"""The step that the tests of contexts from a language model run."""

from __future__ import annotations

import pytest

from llama_index_contextual.retrieval import ContextualNodePostprocessor

pytest.register_assert_rewrite("llm_runs")  # so that its assertions show their values, as those of test modules do

FAST = {"attempts": 2, "chunk_timeout": 60.0}


@pytest.fixture
def step(fake_model, tmp_path, monkeypatch):
    """Callable: a postprocessor that asks the fake model, with a cache in a file."""

    monkeypatch.setattr("llama_index_contextual.context.run.READING_RATE", 1e6)

    def make(**options):
        defaults = {"llm": fake_model.llm, "cache": tmp_path / "contexts.sqlite", "num_workers": 1, **FAST}
        return ContextualNodePostprocessor("llm", **{**defaults, **options})

    return make
