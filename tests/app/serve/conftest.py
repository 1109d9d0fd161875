"""A folder of two notes, and its index: real Chroma, real BM25, the local embedding."""

import pytest

from llama_index_contextual.app import ContextualIndex


@pytest.fixture
def folder(tmp_path):
    notes = tmp_path / "notes"
    (notes / "memory").mkdir(parents=True)
    (notes / "memory" / "2026-04-09.md").write_text(
        "# Thursday\n\n- JC's dog Cookie loves carrots\n", "utf-8"
    )
    (notes / "MEMORY.md").write_text("# Facts\n\nColor preference: blue\n", "utf-8")
    (notes / ".secret.md").write_text("hidden\n", "utf-8")
    (tmp_path / "outside.md").write_text("outside\n", "utf-8")
    (notes / "link.md").symlink_to(tmp_path / "outside.md")
    return notes


@pytest.fixture
def index(folder):
    with ContextualIndex.open(folder) as opened:
        opened.refresh()
        yield opened
