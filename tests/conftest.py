"""Shared fixtures: where the real documents are, and a warning-free world."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# CI repeats the same examples, so that a red run means a change; at home every run looks elsewhere. No example has a
# time limit, which a busy machine would miss.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("home", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "home")

pytest_plugins = [
    "servers",
    "qdrant_stand_in",
    "fake_model",
    "command_line",
]  # llama_server, ollama_server …; fake_model; run


def data_root() -> Path:
    """The folder of real documents and questions, which is not part of the project."""
    given = os.environ.get("LLAMA_INDEX_CONTEXTUAL_DATA")
    return Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def data():
    """Callable: ``data("kubernetes-docs")`` gives that folder, or skips the test with a message."""

    def find(name: str) -> Path:
        folder = data_root() / name
        if not folder.is_dir():
            pytest.skip(f"data set {name!r} is absent: {folder} (set LLAMA_INDEX_CONTEXTUAL_DATA)")
        return folder

    return find
