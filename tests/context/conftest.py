"""The fixture for tests of contexts from a language model."""

from __future__ import annotations

import pytest

from llama_index_contextual.app.settings.models import NamedModel
from llama_index_contextual.context.postprocessor import ContextualNodePostprocessor

pytest.register_assert_rewrite(
    "llm_runs"
)  # so that its assertions show their values, as those of test modules do


@pytest.fixture
def step(fake_model, tmp_path, monkeypatch):
    """Return a function that creates a postprocessor with the fake model and a cache in a file."""

    monkeypatch.setattr("llama_index_contextual.context.calls.ATTEMPTS", 2)

    def make(*, timeout=60.0, context_window=8192, **options):
        llm = NamedModel(fake_model.llm, 800, timeout)()
        llm.context_window = context_window
        defaults = {"llm": llm, "cache": tmp_path / "contexts.sqlite", "num_workers": 1}
        return ContextualNodePostprocessor("llm", **{**defaults, **options})

    return make
