"""What the documentation says is what the code does."""

import json
import re
from pathlib import Path

from llama_index_contextual.memory.digest import HEADER, NOTHING

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs" / "memory.md").read_text("utf-8")


def test_configuration_blocks_are_json():
    blocks = re.findall(r"```json\n(.*?)```", DOC, re.DOTALL)
    assert len(blocks) == 3
    assert json.loads(blocks[0])["mcpServers"]["notes"]["args"][0] == "mcp"
    assert json.loads(blocks[1])["hooks"]["UserPromptSubmit"]
    assert "import claude-code -" in json.loads(blocks[2])["hooks"]["SessionEnd"][0]["hooks"][0]["command"]


def test_the_turn_start_instruction_shows_what_the_tool_answers():
    text = (ROOT / "examples" / "agent-instructions.md").read_text("utf-8")
    assert HEADER in text
    assert NOTHING in text
    assert {"memory_context", "memory_search"} <= set(re.findall(r"`(\w+)`", text))
