"""``config``.

What is in force and where it comes from, the file that it writes, and the page of the
documentation.
"""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest
from click.testing import CliRunner

from llama_index_contextual.app.cli import app
from llama_index_contextual.app.settings.registry import SETTINGS

ROOT = Path(__file__).parents[3]


def run(*arguments):
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "page.md").write_text("# Page\n\nThe gateway waits 60 seconds.\n", "utf-8")
    return tmp_path


def test_every_setting_is_shown_with_its_origin(folder, monkeypatch):
    run("index", folder, "--context", "pattern")
    (folder / "contextual.toml").write_text("[memory]\nmax_results = 7\n", "utf-8")
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_CHUNKS__CHUNK_SIZE", "120")
    settings = json.loads(run("config", folder, "--json"))
    assert set(settings) == set(SETTINGS)
    assert settings["context"] == {"value": "pattern", "from": "index"}
    assert settings["chunks.chunk_size"] == {
        "value": 120,
        "from": "LLAMA_INDEX_CONTEXTUAL_CHUNKS__CHUNK_SIZE",
    }
    assert settings["chunks.chunk_overlap"] == {"value": "(a fifth of the size)", "from": "default"}
    assert settings["memory.max_results"] == {"value": 7, "from": f"{folder}/contextual.toml"}
    assert settings["retrieval.recency"] == {"value": False, "from": "default"}
    assert re.search(
        r"^chunks\.chunk_size +120 +LLAMA_INDEX", run("config", folder), flags=re.MULTILINE
    )


def test_the_page_of_the_documentation_is_up_to_date():
    page = (ROOT / "docs" / "reference" / "settings.md").read_text("utf-8")
    script = runpy.run_path(str(ROOT / "scripts" / "settings_page.py"))
    assert page == script["reference"](), "run scripts/settings_page.py"
    assert all(f"| `{key}` |" in page for key in SETTINGS)
