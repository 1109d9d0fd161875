"""Agents correct notes: a passage of one note, and the six commands of Anthropic's memory tool."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from anthropic.lib.tools import BetaAbstractMemoryTool
from anthropic.lib.tools._beta_builtin_memory_tool import BetaLocalFilesystemMemoryTool

from llama_index_contextual.app.folder.walk import FileRules
from llama_index_contextual.app.index import BackgroundRefresh, ContextualIndex
from llama_index_contextual.app.notes import MemoryCommands, Notes
from llama_index_contextual.errors import ContextualError, DocumentError, SettingError
from llama_index_contextual.memory import MemoryContext


class Memory(MemoryCommands, BetaAbstractMemoryTool):
    """The tool of Anthropic's SDK over a folder of notes."""


FACTS = "# Facts\n\nColor preference: blue\nTea: ginger\n"


@pytest.fixture
def folder(tmp_path):
    notes = tmp_path / "memories"
    (notes / "people").mkdir(parents=True)
    (notes / "facts.md").write_text(FACTS, "utf-8")
    (notes / "people" / "ana.md").write_text("Ana likes tea.\nAna likes tea.\n", "utf-8")
    (notes / ".hidden.md").write_text("hidden\n", "utf-8")
    (notes / "key.pem").write_text("a key\n", "utf-8")
    (notes / "private.md").write_text("private\n", "utf-8")
    (notes / ".gitignore").write_text("private.md\n", "utf-8")
    (tmp_path / "outside.md").write_text("outside\n", "utf-8")
    (notes / "link.md").symlink_to(tmp_path / "outside.md")
    (notes / "away").symlink_to(tmp_path)
    return notes


@pytest.fixture
def memory(folder):
    return Memory(folder)


def content_of(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".contextual" not in path.parts
    }


def backups_of(folder):
    return {
        path.relative_to(folder / ".contextual" / "backups").as_posix().partition("/")[2]: path.read_text("utf-8")
        for path in (folder / ".contextual" / "backups").rglob("*.md")
    }


SAME = [
    {"command": "view", "path": "/memories/facts.md"},
    {"command": "view", "path": "/memories/facts.md", "view_range": [2, 3]},
    {"command": "view", "path": "/memories/facts.md", "view_range": [3, -1]},
    {"command": "view", "path": "/memories/none.md"},
    {"command": "view", "path": "/memory/facts.md"},
    {"command": "create", "path": "/memories/people/jc.md", "file_text": "JC moved to Lima."},
    {"command": "create", "path": "/memories/new/folder/jc.md", "file_text": "Ñandú\n"},
    {"command": "create", "path": "/memories/facts.md", "file_text": "x"},
    {"command": "str_replace", "path": "/memories/facts.md", "old_str": "blue", "new_str": "green"},
    {"command": "str_replace", "path": "/memories/facts.md", "old_str": "blue\nTea", "new_str": "red\n\nTea"},
    {"command": "str_replace", "path": "/memories/facts.md", "old_str": "pink", "new_str": "green"},
    {"command": "str_replace", "path": "/memories/people/ana.md", "old_str": "tea", "new_str": "cake"},
    {"command": "str_replace", "path": "/memories/people", "old_str": "tea", "new_str": "cake"},
    {"command": "str_replace", "path": "/memories/none.md", "old_str": "tea", "new_str": "cake"},
    {"command": "insert", "path": "/memories/facts.md", "insert_line": 0, "insert_text": "first"},
    {"command": "insert", "path": "/memories/facts.md", "insert_line": 4, "insert_text": "last\n"},
    {"command": "insert", "path": "/memories/facts.md", "insert_line": 5, "insert_text": "too far"},
    {"command": "insert", "path": "/memories/none.md", "insert_line": 0, "insert_text": "x"},
    {"command": "delete", "path": "/memories/facts.md"},
    {"command": "delete", "path": "/memories/people"},
    {"command": "delete", "path": "/memories"},
    {"command": "delete", "path": "/memories/none.md"},
    {"command": "rename", "old_path": "/memories/facts.md", "new_path": "/memories/deep/er/facts.md"},
    {"command": "rename", "old_path": "/memories/people", "new_path": "/memories/friends"},
    {"command": "rename", "old_path": "/memories/facts.md", "new_path": "/memories/people/ana.md"},
    {"command": "rename", "old_path": "/memories/none.md", "new_path": "/memories/some.md"},
]


@pytest.mark.parametrize("command", SAME, ids=lambda one: " ".join(map(str, one.values()))[:60])
def test_a_command_answers_and_does_what_anthropics_own_tool_does(command, folder, memory, tmp_path):
    other = tmp_path / "theirs" / "memories"
    other.mkdir(parents=True)
    for path, data in content_of(folder).items():
        (other / path).parent.mkdir(parents=True, exist_ok=True)
        (other / path).write_bytes(data)
    theirs, ours = (asked(tool, command) for tool in (BetaLocalFilesystemMemoryTool(str(tmp_path / "theirs")), memory))
    assert ours == theirs
    assert content_of(folder) == content_of(other)


def asked(tool, command):
    try:
        return tool.call(command)
    except Exception as error:  # noqa: BLE001  their errors and ours are of different classes
        return f"error: {error}"


def test_a_view_of_a_folder_lists_notes_and_nothing_else(folder, memory):
    (folder / "a" / "b" / "c").mkdir(parents=True)
    (folder / "a" / "b" / "c" / "deep.md").write_text("x" * 2048)
    shown = memory.call({"command": "view", "path": "/memories"})
    assert shown.splitlines() == [
        "Here're the files and directories up to 2 levels deep in /memories, excluding hidden items and node_modules:",
        "2.1K\t/memories", "2K\t/memories/a/", "2K\t/memories/a/b/", "44B\t/memories/facts.md",
        "30B\t/memories/people/", "30B\t/memories/people/ana.md",
    ]  # fmt: skip
    assert memory.call({"command": "view", "path": "/memories/people/"}).endswith("30B\t/memories/people/ana.md")
    (folder / "empty").mkdir()
    assert Memory(folder / "empty").call({"command": "view", "path": "/memories"}).endswith(":\n0B\t/memories")


def test_a_long_view_is_cut_and_says_so(folder, memory):
    (folder / "long.md").write_text("word " * 10 + "\n" + "x" * 100_000 + "\n", "utf-8")
    for number in range(1500):
        (folder / "people" / f"a person with a long name {number}.md").touch()
    for path in ("/memories/long.md", "/memories/people"):
        shown = memory.call({"command": "view", "path": path})
        assert len(shown) < 65_000
        assert "(cut after 64,000 characters; " in shown.splitlines()[-1]


PATHS = [
    "/memories/../outside.md", "/memories/people/../../outside.md", "/memories//etc/passwd", "/memories/./facts.md",
    "/memories/.hidden.md", "/memories/.contextual/notes.lock", "/memories/.contextual/x.md", "/memories/link.md",
    "/memories/away/outside.md", "/memories/away/new.md", "/memories/away", "/memoriesx/facts.md",
    "/etc/passwd", "facts.md", "",
    "/memories/x\0.md", "/memories/\ud800.md", "/memories/" + "x" * 300 + ".md",
    "/memories/private.md", "/memories/key.pem", "/memories/contextual.toml", "/memories/run.sh", "/memories/.md",
    "/memories/facts.md/under.md", "/memories/people/.git/config", None, 3,
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS, ids=lambda one: repr(one)[:40])
def test_no_command_reaches_what_is_no_note(path, folder, memory, tmp_path):
    before, outside = content_of(folder), sorted(tmp_path.iterdir())
    commands = [
        {"command": "view", "path": path},
        {"command": "create", "path": path, "file_text": "text"},
        {"command": "str_replace", "path": path, "old_str": "o", "new_str": "x"},
        {"command": "insert", "path": path, "insert_line": 0, "insert_text": "x"},
        {"command": "delete", "path": path},
        {"command": "rename", "old_path": path, "new_path": "/memories/stolen.md"},
        {"command": "rename", "old_path": "/memories/facts.md", "new_path": path},
    ]
    for command in commands:
        with pytest.raises(ContextualError):
            memory.call(command)
    assert content_of(folder) == before
    assert sorted(tmp_path.iterdir()) == outside
    assert (tmp_path / "outside.md").read_text() == "outside\n"


def test_a_folder_that_holds_more_than_notes_is_neither_deleted_nor_moved(folder, memory):
    for name in (".hidden.md", "photo.png"):
        (folder / "people" / name).write_bytes(b"\x89PNG")
        with pytest.raises(DocumentError, match="which is no note"):
            memory.call({"command": "delete", "path": "/memories/people"})
        with pytest.raises(DocumentError, match="which is no note"):
            memory.call({"command": "rename", "old_path": "/memories/people", "new_path": "/memories/friends"})
        (folder / "people" / name).unlink()
    (folder / "people" / "out").symlink_to(folder.parent)
    with pytest.raises(DocumentError, match="which is no note"):
        memory.call({"command": "delete", "path": "/memories/people"})


WRONG = [
    {}, {"command": "clear"}, {"command": "view"}, {"command": "insert", "path": "/memories/facts.md"},
    {"command": "create", "path": "/memories/x.md", "file_text": 3},
    {"command": "view", "path": "/memories/facts.md", "view_range": ["a", 2]},
]  # fmt: skip


@pytest.mark.parametrize("command", WRONG)
def test_a_command_that_cannot_be_understood_is_a_setting_error(command, memory):
    with pytest.raises(SettingError):
        memory.call(command)


def test_what_is_replaced_or_deleted_is_kept(folder, memory):
    memory.call(SAME[8])
    assert backups_of(folder) == {"facts.md": FACTS}
    memory.call({"command": "delete", "path": "/memories/people"})
    assert backups_of(folder)["people/ana.md"] == "Ana likes tea.\nAna likes tea.\n"
    memory.call(SAME[5])
    assert (folder / ".contextual" / ".gitignore").exists()


HELD = {
    "line ends of Windows": (b"# Facts\r\n\r\nTea\r\n", "Facts\n\nTea", "Facts\n\nCake", b"# Facts\r\n\r\nCake\r\n"),
    "Windows-1252": ("Für Ana\n".encode("cp1252"), "Ana", "Zoë 漢", "Für Zoë &#28450;\n".encode("cp1252")),
    "UTF-16": ("\ufeffFür Ana\n".encode("utf-16-le"), "Ana", "漢", "\ufeffFür 漢\n".encode("utf-16-le")),
    "a mark of its order": (b"\xef\xbb\xbfTea\n", "Tea", "Cake", b"\xef\xbb\xbfCake\n"),
}  # fmt: skip


@pytest.mark.parametrize(("before", "old", "new", "after"), HELD.values(), ids=HELD)
def test_every_other_byte_of_a_note_stays(before, old, new, after, folder, memory):
    (folder / "facts.md").write_bytes(before)
    memory.call({"command": "str_replace", "path": "/memories/facts.md", "old_str": old, "new_str": new})
    assert (folder / "facts.md").read_bytes() == after
    memory.call({"command": "insert", "path": "/memories/facts.md", "insert_line": 0, "insert_text": "x"})
    marks = [mark for mark in (b"\xff\xfe", b"\xef\xbb\xbf") if before.startswith(mark)]
    assert (folder / "facts.md").read_bytes().removeprefix(*marks or [b""]).startswith(b"x")


def test_a_passage_is_replaced_where_it_is_quoted_exactly_and_stands_once(folder):
    with ContextualIndex.open(folder, embed_model="none", files=FileRules()) as index:
        index.refresh()
        notes = Notes(index, MemoryContext(index), BackgroundRefresh(index, "never"))
        assert notes.edit("facts.md", "blue\nTea", "red\nTea") == "Edited facts.md, line 3."
        assert (folder / "facts.md").read_text("utf-8") == FACTS.replace("blue", "red")
        assert backups_of(folder) == {"facts.md": FACTS}
        for path, old, error in [
            ("facts.md", "Blue", "did not appear verbatim"),
            ("people/ana.md", "tea", "in lines: 1, 2"),
            ("private.md", "private", "there is no note"),
            ("../outside.md", "outside", "there is no note"),
            ("link.md", "outside", "there is no note"),
        ]:
            with pytest.raises(DocumentError, match=error):
                notes.edit(path, old, "x")


WRITER = """
import sys
from llama_index_contextual.app.notes import MemoryCommands
memory, name, count, path = MemoryCommands(sys.argv[1]), sys.argv[2], int(sys.argv[3]), "/memories/facts.md"
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    line = f"{name} {number}"
    memory.call({"command": "insert", "path": path, "insert_line": 0, "insert_text": line})
    memory.call({"command": "str_replace", "path": path, "old_str": f"{line}\\n", "new_str": f"{line}!\\n"})
made = 0
for number in range(count):
    try:
        memory.call({"command": "create", "path": f"/memories/one-{number}.md", "file_text": name})
        made += 1
    except Exception as error:
        assert "already exists" in str(error), error
print(made)
"""


@pytest.mark.process
def test_two_processes_lose_nothing_of_each_other(folder):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", WRITER, str(folder)]
    running = [
        subprocess.Popen(  # noqa: S603
            [*command, name, "25"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for name in ("a", "b")
    ]
    for one in running:
        assert one.stdout.readline() == "ready\n"
    for one in running:
        one.stdin.write("go\n")
        one.stdin.flush()
    made = [int(one.communicate()[0]) for one in running]
    lines = (folder / "facts.md").read_text("utf-8").splitlines()
    assert sorted(line for line in lines if line.endswith("!")) == sorted(f"{n} {i}!" for n in "ab" for i in range(25))
    assert lines[-4:] == FACTS.splitlines()
    assert sum(made) == 25
