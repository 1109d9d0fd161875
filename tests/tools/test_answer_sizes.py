"""Answers stay short whatever the notes look like, say what to call next, and repeat no text."""

import json
import re

import pytest

from llama_index_contextual import contextual_tools
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.tools.definitions import TOOLS
from llama_index_contextual.utils.errors import ContextualError

DEEP = "/".join(f"{level}-{'folder' * 8}" for level in range(12))


def long_paths():
    text = "# Pump\n\nThe pump {} is red.\n\nSame line."
    return {f"{DEEP}/{'note' * 40}{number}.md": text.format(number) for number in range(12)}


def lines_without_spaces():
    text = "# Pump\n\npump{}" + "abcdefghij" * 900 + "\n"
    return {f"{number}.md": text.format(number) * 3 for number in range(5)}


def thousands_of_hits():
    notes = {}
    for number in range(120):
        lines = [f"- the pump {number}.{line} is red\n" for line in range(40)]
        notes[f"{number % 4}/{number}.md"] = "# Pump\n\n" + "".join(lines)
    return notes


def chinese_and_japanese():
    text = "这台水泵每天早上都会检查一次。ポンプは赤い。" * 90
    return {f"日記/{number}.md": f"# 水泵 pump {number}\n\n{text}" for number in range(30)}


def nothing():
    return {}


SHAPES = [long_paths, lines_without_spaces, thousands_of_hits, chinese_and_japanese, nothing]


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.__name__)
def tools(request, tmp_path):
    for path, text in request.param().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        index.shape = request.param
        yield index, {tool.metadata.name: tool for tool in contextual_tools(index)}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("retrieve", {"query": "pump"}),
        ("retrieve", {"query": "水泵"}),
        ("grep", {"pattern": "pump"}),
        ("grep", {"pattern": "泵"}),
        ("read", {"path": ""}),
        ("list", {}),
    ],
)
def test_an_answer_is_short_says_what_comes_next_and_repeats_no_text(tools, name, arguments):
    index, by_name = tools
    if name == "read":
        if not index.files():
            pytest.skip("there is no note to read")
        arguments = {"path": index.files()[0]}
    output = by_name[name](**arguments)
    text = str(output)
    data = output.raw_output.data
    assert text
    assert len(text) <= 2500
    is_cut = {
        "retrieve": lambda: data["left_out"] > 0 and len(data["hits"]) < 5,
        "grep": lambda: len(data["hits"]) < data["lines"] and "(also" not in text,
        "read": lambda: data["to_line"] < data["total_lines"] or " …\n" in text,
        "list": lambda: text.count(".md") < data["total"],
    }[name]()
    if is_cut:
        assert re.search(r"Next: \w+ with|read with lines=1", text.splitlines()[-1]), text[-300:]
    quoted = [line for line in text.splitlines() if "pump" in line and len(line) < 200]
    assert len(quoted) == len(set(quoted))
    for hit in data.get("hits", []):  # every citation leads to what was quoted
        assert str(by_name["read"](path=hit["citation"]))


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_the_answer_for_an_empty_folder_is_a_sentence(tmp_path, tool):
    arguments = {"memory_context": {"message": "what is the pump's number?"},
                 "retrieve": {"query": "pump"}, "grep": {"pattern": "pump"},
                 "read": {"path": "a.md"}, "list": {}}[tool.name]  # fmt: skip
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        by_name = {tool.metadata.name: tool for tool in contextual_tools(index)}
        if tool.name == "memory_context":
            assert tool.name not in by_name
        elif tool.name == "read":
            with pytest.raises(
                ContextualError, match=r"There is no note 'a\.md'\. Index the folder"
            ):
                by_name[tool.name](**arguments)
        else:
            assert 0 < len(str(by_name[tool.name](**arguments))) < 200


def test_all_descriptions_together_are_short():
    described = [tool.description + json.dumps(tool.arguments.schema_without_titles())
                 for tool in TOOLS]  # fmt: skip
    assert sum(map(len, described)) <= 6000
    assert all(tool.title and tool.description for tool in TOOLS)


def test_more_hits_are_shown_if_more_are_requested(tmp_path):
    for number in range(60):
        text = f"# Pump {number}\n\nThe pump {number} has a valve of {number} mm.\n"
        (tmp_path / f"pump{number}.md").write_text(text, "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        retrieve = contextual_tools(index)[0]
        shown = {}
        for most in (3, 5, 10, 50):
            output = retrieve(query="pump valve", max_results=most, per_file=0)
            shown[most] = len(output.raw_output.data["hits"])
            assert len(str(output)) <= 2500
            next_call = str(output).splitlines()[-1]
            assert f"max_results={min(2 * most, 12)}" in next_call or most == 50
        assert shown == {3: 3, 5: 5, 10: 10, 50: 12}
        assert "(Next: retrieve with path= or other words, or read a citation; " in next_call


@pytest.mark.parametrize("form", ["markdown", "json"])
def test_a_digest_is_short_in_both_formats_and_says_what_comes_next(tmp_path, form):
    for day in range(1, 9):
        facts = " ".join(f'The "pump" {day}.{fact} has a valve.' for fact in range(40))
        (tmp_path / f"2026-04-0{day}.md").write_text(f"# Pumps of day {day}\n\n{facts}\n", "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        digest = contextual_tools(index)[0](message="which pump has a valve?", format=form)
        assert len(str(digest)) <= 2500
        assert len(digest.raw_output.data["hits"]) == (3 if form == "json" else 4)
        if form == "json":
            assert json.loads(str(digest))["notes"][-1].startswith("Next: retrieve with")
            assert str(digest).endswith('1 more hit."]}')


def test_a_digest_can_be_configured_to_be_longer(tmp_path):
    for day in range(1, 9):
        facts = " ".join(f"The pump {day}.{fact} has a valve." for fact in range(80))
        (tmp_path / f"2026-04-0{day}.md").write_text(f"# Pumps of day {day}\n\n{facts}\n", "utf-8")
    settings = {"memory.max_tokens": 1200, "memory.max_results": 9}
    with ContextualIndex.open(tmp_path, embed_model="none", config=settings) as index:
        index.refresh()
        digest = contextual_tools(index)[0](message="which pump has a valve?")
        assert 2500 < len(str(digest)) <= 4800


def test_places_of_equal_texts_take_little_space_in_an_answer(tmp_path):
    for copy in range(4):
        for number in range(12):
            path = tmp_path / f"{copy}-{'archive' * 20}" / f"{'pump' * 30}{number}.md"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"# Pump {number}\n\nThe pump {number} has a valve.\n", "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        retrieve = contextual_tools(index)[0]
        answer = str(retrieve(query="pump valve", max_results=12, per_file=0))
        assert len(answer) <= 2500
        assert "Next: retrieve" in answer


def test_notes_with_more_lines_are_named_in_full(tmp_path):
    for number in range(9):
        name = f"{'pump' * 9}{number}.md"
        (tmp_path / name).write_text(f"the pump {number} a\nthe pump {number} b\n" * 9, "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        answer = str(contextual_tools(index)[1](pattern="the pump", per_file=1))
        [named] = re.findall(r"more in 9 notes: (.*)\. Next: grep with path=", answer)
        *names, dots = named.split(", ")
        assert dots == "…"
        assert {name.rpartition(" ")[0] for name in names} <= {*index.files()}
        assert names
