"""A first refresh that fails leaves no index.

An empty index would answer questions and keep the settings that failed.
"""

import pytest
from llama_index.core import Document, MockEmbedding
from storage import storage_of

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.index import refresh
from llama_index_contextual.utils.errors import EmbeddingError, SettingError, StorageError


class Down(MockEmbedding):
    """A model whose server does not run."""

    def _get_text_embeddings(self, texts):
        raise ConnectionError("refused")


def broken():
    yield Document(text="one", id_="one")
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("notes", SettingError, r"str is not a list of documents. Call refresh\(\["),
        ("", SettingError, "str is not a list of documents"),
        ([Document(text="x", id_="x"), "y"], SettingError, "str is not a list of documents"),
        (Document(text="x", id_="x"), SettingError, "Document is not a list of documents"),
        (3, SettingError, "int is not a list of documents"),
        (broken(), ZeroDivisionError, None),
    ],
)
def test_a_source_that_cannot_be_indexed_makes_nothing(opened, folder, source, error, message):
    with pytest.raises(error, match=message):
        opened().refresh(source)
    assert not storage_of(folder).exists()


def test_a_model_that_is_away_makes_no_index_of_its_own(opened, folder):
    index = opened(embed_model=Down(7, model_name="down"))
    with pytest.raises(EmbeddingError, match="refused"):
        index.refresh()
    assert not index.exists
    assert not {"chroma", "manifest.json", "generation"} & {
        path.name for path in storage_of(folder).iterdir()
    }
    with pytest.raises(StorageError, match="there is no index"):
        index.as_retriever().retrieve("Cookie")
    other = opened()  # would be an index of another model's vectors, and ask for reindex='all'
    assert len(other.refresh().added) == 4
    assert other.status(check=True).ok


def test_what_a_first_refresh_finished_is_kept_when_it_fails_later(folder, monkeypatch):
    class Falling(MockEmbedding):
        calls: int = 0

        def _get_text_embeddings(self, texts):
            self.calls += 1
            if self.calls > 1:
                raise ConnectionError("refused")
            return [[float(len(text)), 1.0] for text in texts]

    monkeypatch.setattr(refresh, "BATCH_CHUNKS", 1)
    with ContextualIndex.open(folder, embed_model=Falling(2, model_name="falling")) as index:
        with pytest.raises(EmbeddingError, match="refused"):
            index.refresh()
        assert index.exists
        assert index.status().chunks > 0


def test_a_first_refresh_that_is_interrupted_at_once_leaves_nothing(opened, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    index = opened()
    with monkeypatch.context() as patch:
        patch.setattr(refresh.Refresh, "_write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            index.refresh()
    assert not index.exists
    assert len(index.refresh().added) == 4


def test_an_empty_file_that_a_kill_left_is_no_index_and_no_damage(folder):
    storage_of(folder).mkdir()
    (storage_of(folder) / "index.sqlite3").touch()
    with ContextualIndex.open(folder, embed_model="none") as index:
        assert not index.exists
        with pytest.raises(StorageError, match="there is no index"):
            index.as_retriever().retrieve("carrots")
        index.refresh()
        assert index.status(check=True).ok
    assert not list(storage_of(folder).glob("*.damaged"))
