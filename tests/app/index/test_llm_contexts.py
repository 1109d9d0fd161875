"""LLM contexts of an index are generated once, and again only for chunks that got a fallback."""

from __future__ import annotations

import warnings

import pytest
from fake_model import Reply

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.utils.errors import ContextualWarning


@pytest.fixture
def llm(fake_model):
    return {"context": "llm", "llm": fake_model.llm}


def test_a_second_refresh_requests_no_context(opened, fake_model, llm):
    index = opened(**llm)
    report = index.refresh()
    assert report.context_sources == {"llm:fake+pattern": report.chunks}
    asked = len(fake_model.requests)
    assert asked > 0
    assert index.refresh().embedded == 0
    assert len(fake_model.requests) == asked


def test_contexts_that_fell_back_are_upgraded_when_the_model_is_back(
    folder, embedding, fake_model, llm
):
    fake_model.reply = lambda *_: Reply(status=400)
    with ContextualIndex.open(folder, embed_model=embedding, **llm) as index:
        with pytest.warns(ContextualWarning):
            report = index.refresh()
        assert "llm:fake+pattern" not in report.context_sources
        assert sum(report.context_sources.values()) == report.chunks
    fake_model.reply = lambda *_: Reply()
    with ContextualIndex.open(folder, embed_model=embedding, **llm) as index:
        report = index.refresh()
        assert report.context_sources == {"llm:fake+pattern": report.chunks}
        assert report.embedded == report.chunks, "another context is another embedded text"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert index.refresh().outdated == []


NOTE = (
    "---\ntitle: The harbour log of Bergen\n---\n\n# Log\n\nIt rained.\n\n## Ships\n\nThe "
    "Aurora left.\n"
)


def test_contexts_are_made_from_the_files_and_not_from_their_chunks(
    tmp_path, embedding, fake_model, llm
):
    (tmp_path / "log.md").write_text(NOTE, "utf-8")
    with ContextualIndex.open(tmp_path, embed_model=embedding, **llm) as index:
        index.refresh()
    assert NOTE.strip() in fake_model.requests[0].prompt


def test_an_estimate_finds_what_a_refresh_has_kept(tmp_path, embedding, llm):
    (tmp_path / "log.md").write_text(NOTE, "utf-8")
    with ContextualIndex.open(tmp_path, embed_model=embedding, **llm) as index:
        report = index.refresh()
        assert (index.estimate().from_cache, index.estimate().calls) == (report.chunks, 0)
