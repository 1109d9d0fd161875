"""What the documentation says is what the code does."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from llama_index_contextual.memory import MemorySettings
from llama_index_contextual.memory.digest import HEADER, NOTHING

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs" / "memory.md").read_text("utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \| (?:`([^|]+)`|see [^|]+) \|", DOC, re.MULTILINE))


def test_every_setting_is_documented_and_no_other():
    assert set(ROWS) == {field.name for field in fields(MemorySettings)}


@pytest.mark.parametrize("name", [name for name, value in ROWS.items() if value])
def test_documented_defaults_are_the_defaults(name):
    assert eval(ROWS[name]) == getattr(MemorySettings(), name)  # noqa: S307  a literal of our own documentation


def test_configuration_blocks_are_json():
    blocks = re.findall(r"```json\n(.*?)```", DOC, re.DOTALL)
    assert len(blocks) == 2
    assert json.loads(blocks[0])["mcpServers"]["notes"]["args"][0] == "mcp"
    assert json.loads(blocks[1])["hooks"]["UserPromptSubmit"]


def test_the_turn_start_instruction_shows_what_the_tool_answers():
    text = (ROOT / "examples" / "agent-instructions.md").read_text("utf-8")
    assert HEADER in text
    assert NOTHING in text
    assert {"memory_context", "memory_search"} <= set(re.findall(r"`(\w+)`", text))
