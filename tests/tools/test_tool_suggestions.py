"""Wherever hits are shown, misspelt words get suggestions and equal texts name their places."""

import json

import pytest
from click.testing import CliRunner

from llama_index_contextual import contextual_tools
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.cli import app
from llama_index_contextual.app.serve.page import PageApi
from llama_index_contextual.memory import snippets

TWIN = "# Mooring\n\nThe mooring of the harbour is numbered AB-77 and costs forty a month.\n"


@pytest.fixture
def index(tmp_path):
    (tmp_path / "Dijkstra's Algorithm.md").write_text("# Paths\n\nDijkstra finds them.\n", "utf-8")
    (tmp_path / "soup.md").write_text("# Soup\n\nCarrots and leeks.\n", "utf-8")
    for name in ("one.md", "two.md"):
        (tmp_path / name).write_text(TWIN, "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as opened:
        opened.refresh()
        yield opened


def test_existing_names_are_suggested_for_a_misspelt_word(index):
    retrieve = contextual_tools(index)[0]
    assert "Did you mean: Dijkstra's Algorithm" in str(retrieve(query="dikstra"))
    assert "Did you mean" not in str(retrieve(query="dijkstra"))
    assert "Did you mean" not in str(retrieve(query="paths", since="2031-01-01"))
    page = PageApi(index).search({"q": "dikstra"})
    assert '<button class="plain suggestion">Dijkstra&#39;s Algorithm</button>' in page["html"]
    done = CliRunner().invoke(app, ["search", "dikstra", "-f", str(index.folder)])
    assert "Did you mean: Dijkstra's Algorithm" in done.stderr


def test_equal_texts_name_their_other_places(index):
    output = contextual_tools(index)[0](query="mooring number")
    assert "is also at two.md#L1-L3" in str(output) or "is also at one.md#L1-L3" in str(output)
    assert output.raw_output.data["hits"][0]["also_at"]
    assert "also at" in PageApi(index).search({"q": "mooring number"})["html"]
    done = CliRunner().invoke(app, ["search", "mooring number", "-f", str(index.folder)])
    assert "also at" in done.stdout
    done = CliRunner().invoke(app, ["search", "mooring number", "-f", str(index.folder), "--json"])
    assert json.loads(done.stdout)[0]["also_at"]


def test_a_property_is_only_quoted_if_it_says_more_than_the_text(tmp_path):
    (tmp_path / "pumps.md").write_text(
        "---\nstatus: open\nowner: Marta\n---\n# Pumps\n\nThe valve is open all day.\n", "utf-8"
    )
    with ContextualIndex.open(tmp_path, embed_model="none") as opened:
        opened.refresh()
        retrieve = contextual_tools(opened)[0]
        assert "- [pumps.md#L5-L7] The valve" in str(retrieve(query="valve open"))
        assert "- [pumps.md#L1-L7] owner: Marta\n" in str(retrieve(query="valve of Marta"))


def test_only_hits_that_are_shown_get_quotations(tmp_path, monkeypatch):
    for number in range(40):
        (tmp_path / f"{number}.md").write_text(f"# Pump\n\nThe pump {number} is red.\n", "utf-8")
    quoted = []

    def counting(hit, *arguments):
        quoted.append(hit.path)
        return original(hit, *arguments)

    original = snippets._with_snippet
    monkeypatch.setattr(snippets, "_with_snippet", counting)
    with ContextualIndex.open(tmp_path, embed_model="none") as opened:
        opened.refresh()
        output = contextual_tools(opened)[0](query="red pump", max_results=3)
    assert len(output.raw_output.data["hits"]) == len(quoted) == 3
