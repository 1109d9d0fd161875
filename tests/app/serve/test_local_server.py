"""What both servers on this machine do before they serve."""

import gc

import pytest

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.serve import mcp_server, page


@pytest.mark.parametrize(
    ("module", "options"), [(mcp_server, {"transport": "http"}), (page, {})], ids=["mcp", "page"]
)
def test_collections_skip_what_was_there_before_the_first_answer(
    tmp_path, monkeypatch, module, options
):
    (tmp_path / "a.md").write_text("The pump is red.\n", "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
    frozen = []
    monkeypatch.setattr(module, "run_app", lambda *_: frozen.append(gc.get_freeze_count()))
    gc.unfreeze()
    try:
        module.serve(tmp_path, **options)
    finally:
        gc.unfreeze()
    assert frozen[0] > 50_000
