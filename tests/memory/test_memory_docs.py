"""The documentation for agents says what the code does."""

import json
import re
from pathlib import Path

import yaml

from llama_index_contextual.memory.digest import HEADER, NOTHING
from llama_index_contextual.tools.definitions import TOOLS

ROOT = Path(__file__).resolve().parents[2]
AGENTS = (ROOT / "docs" / "guides" / "agents.md").read_text("utf-8")


def test_the_configurations_for_mcp_clients_start_the_server_and_the_hook():
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", AGENTS, re.DOTALL)]
    servers, hooks = blocks
    assert servers["mcpServers"]["notes"]["args"][0] == "mcp"
    [prompt] = hooks["hooks"]["UserPromptSubmit"]
    assert prompt["hooks"][0]["command"].startswith("llama-index-contextual context ")


def test_the_skill_names_the_tools_that_exist():
    text = (ROOT / "examples" / "notes-memory" / "SKILL.md").read_text("utf-8")
    _, head, body = text.split("---\n", 2)
    assert yaml.safe_load(head)["name"] == "notes-memory"
    assert len(yaml.safe_load(head)["description"]) < 1024
    tools = {tool.name for tool in TOOLS}
    assert tools == {name for name in tools if f"`{name}`" in body}


def test_the_instruction_for_the_start_of_a_turn_shows_what_the_tool_returns():
    text = (ROOT / "examples" / "agent-instructions.md").read_text("utf-8")
    assert HEADER in text
    assert NOTHING in text
    assert {tool.name for tool in TOOLS} <= set(re.findall(r"`(\w+)`", text))
