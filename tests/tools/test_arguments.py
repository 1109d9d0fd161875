"""The arguments of tools: values that mean "not given", plain types, and error messages."""

import json

import pytest

from llama_index_contextual.tools.arguments import Reading, Retrieval
from llama_index_contextual.tools.definitions import TOOLS
from llama_index_contextual.utils.errors import SettingError


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
@pytest.mark.parametrize("empty", [None, ""])
def test_none_and_an_empty_text_mean_not_given(tool, empty):
    fields = tool.arguments.model_fields
    required = {name: "a" for name, field in fields.items() if field.is_required()}
    optional = {name: empty for name, field in fields.items() if not field.is_required()}
    given = tool.arguments.checked(tool.name, {**required, **optional})
    assert given == tool.arguments.checked(tool.name, required)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_the_schema_of_a_tool_has_plain_types(tool):
    schema = json.dumps(tool.arguments.schema_without_titles())
    assert "anyOf" not in schema
    assert "null" not in schema
    assert "$ref" not in schema


def test_the_schema_of_a_tool_names_what_it_needs():
    required = {tool.name: tool.arguments.schema_without_titles()["required"] for tool in TOOLS}
    assert required == {
        "memory_context": ["message"],
        "retrieve": [],
        "grep": ["pattern"],
        "read": ["path"],
        "list": [],
    }


def test_a_text_in_place_of_a_list_is_its_only_item():
    given = Retrieval.checked("retrieve", {"queries": "timeout", "where": "status=open"})
    assert given.wordings == ["timeout"]
    assert given.where == ["status=open"]


def test_an_empty_item_of_a_list_is_not_given():
    given = Retrieval.checked("retrieve", {"queries": ["timeout", None, ""], "where": [""]})
    assert (given.wordings, given.where) == (["timeout"], [])


def test_numbers_can_be_passed_as_texts():
    assert Reading.checked("read", {"path": "a.md", "from_line": "3", "lines": "5"}).lines == 5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "`read` needs `path`."),
        ({"path": ""}, "`path` of `read` must have at least 1 character (got '')."),
        ({"path": "a", "file": 1},
        "`read` has no parameter `file`. Its parameters are: path, from_line, lines."),
        ({"path": "a", "lines": 5000},
        "`lines` of `read` must be less than or equal to 2000 (got 5000)."),
        ({"path": ["a"]}, "`path` of `read` must be a valid string (got ['a'])."),
    ],
)  # fmt: skip
def test_an_invalid_argument_is_explained_in_a_sentence(values, message):
    with pytest.raises(SettingError) as caught:
        Reading.checked("read", values)
    assert str(caught.value) == message
