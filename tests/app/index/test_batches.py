"""Documents are prepared, embedded and written in batches.

Finished batches survive a failure or Ctrl-C.
"""

import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.index import refresh
from llama_index_contextual.utils.errors import EmbeddingError

PAGES = 12


class Hooked(BaseEmbedding):
    """An embedding that calls a function before each batch."""

    before: object = None

    def _get_text_embedding(self, text):
        return (
            [0.0, 0.0]
            if any(f"Page {number}\n" in text for number in (60, 66))
            else [1.0, float(len(text))]
        )

    def _get_text_embeddings(self, texts):
        self.before(texts)
        return super()._get_text_embeddings(texts)

    def _get_query_embedding(self, query):
        return [1.0, float(len(query))]

    async def _aget_query_embedding(self, query):
        return self._get_query_embedding(query)


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """A folder whose pages are written in batches of two."""
    monkeypatch.setattr(refresh, "BATCH_CHUNKS", 2)
    for number in range(PAGES):
        (tmp_path / f"page{number:02}.md").write_text(
            f"# Page {number}\n\nTea of day {number}.\n", "utf-8"
        )
    return tmp_path


def opened(folder, before):
    return ContextualIndex.open(folder, embed_model=Hooked(model_name="hooked", before=before))


@pytest.mark.parametrize(
    "end", [OSError("gone"), KeyboardInterrupt()], ids=["failed", "interrupted"]
)
def test_what_was_written_before_the_embedding_ended_stays_and_the_next_refresh_goes_on(pages, end):
    calls = []

    def before(texts):
        calls.append(texts)
        if len(calls) > 2:
            raise end

    with opened(pages, before) as index:
        with pytest.raises((EmbeddingError, KeyboardInterrupt)):
            index.refresh()
        status = index.status()
        assert (status.chunks, len(status.pending.added)) == (4, PAGES - 4)
        calls.clear()
        index.settings.embedding.before = lambda _: None
        report = index.refresh()
        assert (report.chunks, report.embedded) == (PAGES, PAGES - 4)
        assert index.status(check=True).ok


def test_a_large_folder_can_be_searched_soon(tmp_path, monkeypatch):
    for number in range(300):
        (tmp_path / f"page{number:03}.md").write_text(
            f"# Page {number}\n\nTea of day {number}.\n", "utf-8"
        )
    sizes, prepared = [], refresh.Refresh._prepared

    def counting(self, group):
        sizes.append(sum(len(nodes) for *_, nodes in group))
        return prepared(self, group)

    monkeypatch.setattr(refresh.Refresh, "_prepared", counting)
    with opened(tmp_path, lambda _: None) as index:
        index.refresh()
    assert sizes == [16, 32, 64, 128, 60]


def test_files_and_texts_that_cannot_be_used_are_reported_in_the_order_of_the_files(pages):
    for number in (1, 5, 9):
        (pages / f"page{number:02}.md").write_bytes(b"\x00\x01\x02")
    for number in (0, 6):
        (pages / f"page{number:02}.md").write_text(
            f"# Page {60 + number}\n\nTea of day {number}.\n", "utf-8"
        )
    with opened(pages, lambda _: None) as index:
        report = index.refresh()
        assert [problem.path for problem in report.failed] == [
            f"page{n:02}.md" for n in (0, 1, 5, 6, 9)
        ]
        assert (report.chunks, report.embedded, len(report.added)) == (
            PAGES - 5,
            PAGES - 3,
            PAGES - 5,
        )
        assert len(index.nodes()) == PAGES - 5
