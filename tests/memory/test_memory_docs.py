"""What the documentation says is what the code does."""

import json
import re
from pathlib import Path

import yaml

from llama_index_contextual.memory.digest import HEADER, NOTHING

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs" / "memory.md").read_text("utf-8")


def test_configuration_blocks_are_json():
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", DOC, re.DOTALL)]
    servers = [block.get("mcpServers") or block.get("servers") for block in blocks]
    assert [one["notes"]["args"][0] for one in servers if one] == ["mcp", "mcp"]
    [prompt] = [block["hooks"] for block in blocks if "hooks" in block]
    assert prompt["UserPromptSubmit"]


def test_the_skill_names_tools_that_there_are():
    text = (ROOT / "examples" / "notes-memory" / "SKILL.md").read_text("utf-8")
    _, head, body = text.split("---\n", 2)
    assert yaml.safe_load(head)["name"] == "notes-memory"
    assert len(yaml.safe_load(head)["description"]) < 1024
    source = (ROOT / "llama_index_contextual" / "app" / "serve" / "mcp_server.py").read_text(
        "utf-8"
    )
    named = set(re.findall(r"`(memory_context|search|read|list|get|status)`", body))
    assert named == set(re.findall(r"async def _(memory_\w+|search|read|list)\(", source))


def test_the_turn_start_instruction_shows_what_the_tool_answers():
    text = (ROOT / "examples" / "agent-instructions.md").read_text("utf-8")
    assert HEADER in text
    assert NOTHING in text
    assert {"memory_context", "search"} <= set(re.findall(r"`(\w+)`", text))
