"""Shared fixtures: the folder of real documents, and separate settings for the tests."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import tomlkit
from hypothesis import settings
from platformdirs import user_data_path

# CI repeats the same examples, so that a failure means a change; local runs try new examples.
# No example has a time limit, which a busy machine would miss.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("home", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "home")

LONGEST_NAME = 60

_USERS_INDEXES = user_data_path("llama-index-contextual", appauthor=False) / "indexes"

# The tests and the processes that they start have their own settings. Those of the user who runs
# them have no effect.
for variable in (
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "LLAMA_INDEX_CACHE_DIR",
    "LLAMA_INDEX_CONTEXTUAL_STORAGE",
):
    os.environ[variable] = tempfile.mkdtemp(prefix="contextual-user-")
    atexit.register(shutil.rmtree, os.environ[variable], ignore_errors=True)

pytest_plugins = [
    "servers",
    "fake_model",
    "command_line",
]  # llama_server, ollama_server …; fake_model; run


def data_root() -> Path:
    """Return the folder of real documents and questions, which is not part of the project."""
    given = os.environ.get("LLAMA_INDEX_CONTEXTUAL_DATA")
    return Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def data():
    """Return a function: ``data("kubernetes-docs")`` gives that folder, or skips the test."""

    def find(name: str) -> Path:
        folder = data_root() / name
        if not folder.is_dir():
            pytest.skip(f"data set {name!r} is absent: {folder} (set LLAMA_INDEX_CONTEXTUAL_DATA)")
        return folder

    return find


@pytest.fixture(autouse=True)
def content_cache():
    """Begin each test without vectors, contexts and conversions of earlier ones.

    Return the file.
    """
    file = Path(os.environ["LLAMA_INDEX_CONTEXTUAL_STORAGE"]) / "content.sqlite3"
    for part in file.parent.glob(f"{file.name}*"):
        part.unlink()
    return file


def pytest_make_parametrize_id(val):
    """Name a long text by its beginning.

    Pytest hands the name of the test to each process that the test starts, and Linux starts none
    with a variable of more than 128 KiB.
    """
    if isinstance(val, str) and len(val) > LONGEST_NAME:
        return f"{val[:LONGEST_NAME]}..."
    if isinstance(val, bytes) and len(val) > LONGEST_NAME:
        return f"{val[:LONGEST_NAME].decode('latin-1')}..."
    return None


def _indexes_of_user() -> dict[Path, int]:
    """Return when each index in the user's own data directory was last written."""
    files = _USERS_INDEXES.glob("*/settings.json")
    return {file: file.stat().st_mtime_ns for file in files}


@pytest.fixture(autouse=True, scope="session")
def users_indexes(tmp_path_factory):
    """Fail if a test, or a process that it started, stored an index for the user who runs the
    tests.
    """
    before = _indexes_of_user()
    yield
    temporary = str(tmp_path_factory.getbasetemp())
    written = [
        file
        for file, time in _indexes_of_user().items()
        if before.get(file) != time and temporary in file.read_text("utf-8")
    ]
    assert not written, "start processes with LLAMA_INDEX_CONTEXTUAL_STORAGE of the tests"


@pytest.fixture
def users_own():
    """Return a function that moves the settings of a folder into the user's own file.

    They become the table of that folder.
    """
    from llama_index_contextual.app.settings.loading import USER_FILE, user_folder

    own = user_folder() / USER_FILE

    def move(folder: Path) -> Path:
        file = folder / "contextual.toml"
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(
            tomlkit.dumps({"folders": {str(folder): tomlkit.parse(file.read_text("utf-8"))}}),
            "utf-8",
        )
        file.unlink()
        return folder

    yield move
    own.unlink(missing_ok=True)
