"""An index over a small folder, with the real embedding and real BM25."""

import pytest
from hashed_words import HashedWords

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.settings.local import LocalEmbedding


@pytest.fixture(scope="session")
def embedding():
    """The local embedding, loaded once."""
    return LocalEmbedding(threads=1)


@pytest.fixture
def folder(tmp_path):
    """A folder with two pages and two dated notes."""
    files = {
        "guide.md": "# Guide\n\nInstall: run the installer.\n\nPinning: pin a version in lock.toml.\n",  # noqa: E501
        "faq.md": "# FAQ\n\nWhy is it slow? Because the cache is cold.\n",
        "memory/2026-01-28.md": "# Morning\n\nJC's dog Cookie loves carrots.\n",
        "memory/2026-04-09.md": "# Evening\n\nThe release moved to Friday.\n",
    }
    for path, text in files.items():
        file = tmp_path / "docs" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return tmp_path / "docs"


@pytest.fixture
def opened(folder, embedding):
    """Return a function that opens the index of ``folder`` (or another folder) with some settings.

    All indexes are closed at the end.
    """
    indexes = []

    def open_index(where=folder, **settings):
        index = ContextualIndex.open(where, **{"embed_model": embedding, **settings})
        indexes.append(index)
        return index

    yield open_index
    for index in indexes:
        index.close()


@pytest.fixture
def model():
    """An embedding that needs no model: words by their hashes."""
    return HashedWords(model_name="hashed")


@pytest.fixture
def index(opened):
    """Return the index of ``folder`` without an embedding, up to date."""
    opened_index = opened(embed_model="none")
    opened_index.refresh()
    return opened_index
