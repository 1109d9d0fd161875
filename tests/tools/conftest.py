"""Notes for the tools: some with an error code, some dated, one with front matter."""

import pytest

from llama_index_contextual.app import ContextualIndex

NOTES = {
    "runbook.md": "# Runbook\n\n## Errors\n\nE4042 means that the queue is full.\nRestart the worker.\n",  # noqa: E501
    "daily/2026-04-09.md": "# Thursday\n\n- saw E4042 at noon\n- Marta Ruiz called\n",
    "daily/2026-04-10.md": "# Friday\n\n- Marta Ruiz moved to Valencia\n- fixed e4042\n",
    "people/marta.md": "---\nstatus: open\ntags: [people/team]\ncode: RX-7\n---\n# Marta Ruiz\n\nPilot.\n",  # noqa: E501
}


@pytest.fixture
def folder(tmp_path):
    notes = tmp_path / "notes"
    for path, text in NOTES.items():
        (notes / path).parent.mkdir(parents=True, exist_ok=True)
        (notes / path).write_text(text, "utf-8")
    return notes


@pytest.fixture
def index(folder):
    with ContextualIndex.open(folder, embed_model="none") as opened:
        opened.refresh()
        yield opened
