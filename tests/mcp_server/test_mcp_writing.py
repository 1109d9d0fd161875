"""The MCP tools that write: they add to the note of the day, and correct notes."""

import json
import os
import subprocess
import sys
from datetime import date, datetime

import pytest
from mcp_clients import READING, mcp, text_of, wait_for

from llama_index_contextual.app import mcp_server
from llama_index_contextual.app.folder.walk import FileRules
from llama_index_contextual.app.index import BackgroundRefresh, ContextualIndex, background
from llama_index_contextual.app.notes import Notes, writing
from llama_index_contextual.app.notes import folder as of_folder
from llama_index_contextual.errors import LockedError, SettingError, StorageError
from llama_index_contextual.memory import MemoryContext

NOW = datetime(2026, 4, 10, 8, 5).astimezone()


async def test_what_is_added_stands_in_the_note_of_the_day(folder, index):
    today = datetime.now().astimezone().date().isoformat()
    note = folder / "memory" / f"{today}.md"
    async with mcp.Client(mcp_server.build_server(index, allow_write=True)) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == READING | {
            "memory_add",
            "memory_edit",
            "memory",
        }
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
        assert "is a link, which nothing is written through" in result.content[0].text
    assert (tmp_path / "outside.md").read_text("utf-8") == "outside\n"


async def test_an_agent_corrects_notes_where_it_may(folder, index):
    edit = {"path": "MEMORY.md", "old_text": "blue", "new_text": "green"}
    view = {"command": "view", "path": "/memories/MEMORY.md"}
    async with mcp.Client(mcp_server.build_server(index)) as client:
        for tool, arguments in [("memory_edit", edit), ("memory", view)]:
            assert (await client.call_tool(tool, arguments)).is_error  # there is no such tool
    async with mcp.Client(mcp_server.build_server(index, allow_write=True)) as client:
        assert await text_of(client, "memory_edit", **edit) == "Edited MEMORY.md, line 3."
        assert "     3\tColor preference: green" in await text_of(client, "memory", **view)
        await text_of(
            client, "memory", command="insert", path="/memories/MEMORY.md", insert_line=3, insert_text="Tea: yes"
        )
        await text_of(client, "memory", command="rename", old_path="/memories/MEMORY.md", new_path="/memories/facts.md")
        assert (folder / "facts.md").read_text("utf-8") == "# Facts\n\nColor preference: green\nTea: yes\n"
        assert "green" in await wait_for(client, "color preference", "facts.md")
        for tool, arguments in [
            ("memory_edit", {**edit, "path": ".secret.md", "old_text": "hidden"}),
            ("memory", {"command": "create", "path": "/memories/../x.md", "file_text": "x"}),
            ("memory", {"command": "delete", "path": "/memories/link.md"}),
        ]:
            assert (await client.call_tool(tool, arguments)).is_error
    assert (folder.parent / "outside.md").exists()


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
    assert of_folder.day_note(paths, date(2026, 4, 10)) == expected


def adding(folder, **options):
    index = ContextualIndex.open(folder, **options)
    return Notes(index, MemoryContext(index), BackgroundRefresh(index, "never"))


HELD = {
    "text": (b"# Friday\n\n- Tea\n", {}, "utf-8", ""),
    "no line end": (b"# Friday", {}, "utf-8", ""),
    "a NUL byte": (b"# Friday\n\n\x00\n", {}, "utf-8", "binary"),
    "Windows-1252": ("# Für heute\n".encode("cp1252"), {}, "cp1252", ""),
    "UTF-16": ("\ufeff# Friday\n".encode("utf-16-be"), {}, "utf-16-be", ""),
    "larger than the limit": (b"# Friday\n" * 200, {"max_bytes": 1000}, "utf-8", "max_bytes=1,000"),
    "excluded": (b"# Friday\n", {"exclude": ("memory/",)}, "utf-8", "left out by the rules"),
    "of another kind": (b"# Friday\n", {"include": ("*.txt",)}, "utf-8", "left out by the rules"),
    "empty": (b"", {}, "utf-8", ""),
}


@pytest.mark.parametrize(("before", "rules", "codec", "told"), HELD.values(), ids=HELD)
def test_every_byte_of_a_note_stays_whatever_the_index_thinks_of_it(before, rules, codec, told, folder):
    note = folder / "memory" / "2026-04-10.md"
    note.write_bytes(before)
    said = adding(folder, files=FileRules(**rules)).add("漢字 costs 3 €", NOW)
    content = note.read_bytes()
    assert content.startswith(before)
    wanted = "&#28450;&#23383; costs 3 €" if codec == "cp1252" else "漢字 costs 3 €"
    assert content.endswith(f"\n- 08:05 {wanted}\n".encode(codec))
    assert said.startswith("Added to memory/2026-04-10.md.")
    assert told in said
    assert bool(told) == ("does not read this note" in said)


def test_a_note_that_the_index_would_not_read_is_not_made(folder):
    with pytest.raises(SettingError, match="no note that the index reads: its name is left out"):
        adding(folder, files=FileRules(exclude=("memory/",))).add("Tea", NOW)
    assert not (folder / "memory" / "2026-04-10.md").exists()


def test_a_pipe_of_that_name_is_left_alone(folder):
    os.mkfifo(folder / "memory" / "2026-04-10.md")
    with pytest.raises(StorageError, match="no regular file"):
        adding(folder).add("Tea", NOW)


def test_what_an_editor_saves_at_the_same_moment_stays(folder, monkeypatch):
    note = folder / "memory" / "2026-04-10.md"
    note.write_text("old\n")
    (folder / "memory" / ".2026-04-10.md.abcd1234").write_text("half of a note")  # of an addition that was killed
    saves = iter([b"saved in an editor\n"])
    real = writing.appended

    def slow(before, item):
        for content in saves:  # after the note was read
            note.write_bytes(content)
        return real(before, item)

    monkeypatch.setattr(of_folder, "appended", slow)
    adding(folder).add("Tea", NOW)
    assert note.read_text() == "saved in an editor\n\n- 08:05 Tea\n"
    assert [path.name for path in (folder / "memory").glob(".*")] == []


def test_who_waits_too_long_for_others_is_told(folder, monkeypatch):
    monkeypatch.setattr(writing, "_TURN_SECONDS", 0.05)
    with writing.turn(folder), pytest.raises(LockedError, match="Nothing was written"):
        adding(folder, storage=folder.parent / "elsewhere").add("Tea", NOW)


ADDER = """
import sys
from datetime import datetime
from pathlib import Path
from test_mcp_writing import adding
folder, name = Path(sys.argv[1]), sys.argv[2]
adds = adding(folder, storage=folder.parent / name)
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    adds.add(f"{name} {number}", datetime(2026, 4, 10, 8, 5).astimezone())
"""


@pytest.mark.process
@pytest.mark.parametrize("count", [25, pytest.param(250, marks=pytest.mark.long)])
def test_several_processes_lose_none_of_each_others_notes(folder, count):
    names = [f"server{number}" for number in range(4)]
    path = os.pathsep.join(sys.path)
    running = [
        subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", ADDER, str(folder), name, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        for name in names
    ]
    for one in running:
        assert one.stdout.readline() == "ready\n"
    for one in running:
        one.communicate("go\n")
    assert [one.returncode for one in running] == [0] * 4
    lines = (folder / "memory" / "2026-04-10.md").read_text("utf-8").splitlines()
    wanted = [f"- 08:05 {name} {number}" for name in names for number in range(count)]
    assert sorted(line for line in lines if line.startswith("- ")) == sorted(wanted)


async def test_a_folder_that_is_gone_for_a_while_is_named_and_not_made_again(folder, index, tmp_path, monkeypatch):
    monkeypatch.setattr(background, "_LOOK_EVERY", 0)
    create = {"command": "create", "path": "/memories/a.md", "file_text": "A"}
    calls = {
        "memory_add": {"text": "The emu eats."},
        "memory": create,
        "memory_search": {"query": "Cookie"},
        "status": {},
    }
    async with mcp.Client(mcp_server.build_server(index, refresh="auto", allow_write=True)) as client:
        await wait_for(client, "Cookie", "carrots")
        folder.rename(tmp_path / "elsewhere")
        for tool, arguments in calls.items():
            result = await client.call_tool(tool, arguments)
            assert f"{folder} is no longer there" in result.content[0].text, tool
        assert not folder.exists(), "one that is made anew would hide what the mounted one holds"
        (tmp_path / "elsewhere").rename(folder)
        assert "carrots" in await wait_for(client, "Cookie", "carrots")
        assert json.loads(await text_of(client, "status"))["freshness"]["error"] == ""
