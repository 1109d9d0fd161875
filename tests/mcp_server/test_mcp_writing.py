"""The one MCP tool that writes: it appends to the note of the day."""

from datetime import date, datetime

import pytest
from mcp_clients import READING, mcp, text_of, wait_for

from llama_index_contextual import mcp_server, notes


async def test_what_is_added_stands_in_the_note_of_the_day(folder, index):
    today = datetime.now().astimezone().date().isoformat()
    note = folder / "memory" / f"{today}.md"
    async with mcp.Client(mcp_server.build_server(index, allow_write=True)) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == READING | {"memory_add"}
        assert await text_of(client, "memory_add", text="JC moved to Lima.\n# Really") == f"Added to memory/{today}.md."
        note.chmod(0o640)
        await text_of(client, "memory_add", text="He took Cookie\x1b[31m along.")
        lines = note.read_text("utf-8").splitlines()
        assert lines[0] == f"# {today}"
        assert [line[8:] for line in lines if line.startswith("- ")] == [
            "JC moved to Lima.",
            "He took Cookie[31m along.",
        ]
        assert "  # Really" in lines
        assert note.stat().st_mode & 0o777 == 0o640
        assert "Lima" in await wait_for(client, "JC moved to Lima", "Lima")
        for text in ("", "x" * 20_000, " \x00 "):
            assert (await client.call_tool("memory_add", {"text": text})).is_error


async def test_nothing_is_added_outside_of_the_folder(folder, index, tmp_path):
    today = datetime.now().astimezone().date().isoformat()
    (folder / "memory" / f"{today}.md").symlink_to(tmp_path / "outside.md")
    async with mcp.Client(mcp_server.build_server(index, allow_write=True)) as client:
        result = await client.call_tool("memory_add", {"text": "JC moved to Lima."})
        assert result.is_error
        assert "leads out of" in result.content[0].text
    assert (tmp_path / "outside.md").read_text("utf-8") == "outside\n"


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([], "memory/2026-04-10.md"),
        (["MEMORY.md", "people/marta.md"], "memory/2026-04-10.md"),
        (["daily/2026-04-01.md", "old/2025-01-01.md"], "daily/2026-04-10.md"),
        (["2026-04-01.md"], "2026-04-10.md"),
        (["daily/2026-04-01.md", "diary/2026-04-10.md"], "diary/2026-04-10.md"),
    ],
)
def test_the_note_of_the_day(paths, expected):
    assert notes.day_note(paths, date(2026, 4, 10)) == expected
