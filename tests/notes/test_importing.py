"""Transcripts that agents keep become dated notes."""

import json
import re
import subprocess
import sys
import time
import zipfile
from datetime import datetime, timezone
from pathlib import Path

import pytest
from growth import FACTOR, grows_too_fast

from llama_index_contextual.app.index import ContextualIndex
from llama_index_contextual.app.notes import import_transcripts
from llama_index_contextual.app.notes.importing import _Page
from llama_index_contextual.app.notes.transcripts import Session
from llama_index_contextual.chunking.blocks import outline
from llama_index_contextual.errors import SettingError, StorageError

NOW = datetime(2026, 4, 9, 10, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def _time_zone(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def lines(*items):
    return "".join(json.dumps(item) + "\n" for item in items)


def said(kind, content, time, **more):
    return {"type": kind, "message": {"role": kind, "content": content}, "timestamp": time, "sessionId": "4f35", **more}


CLAUDE_CODE = [
    {"type": "file-history-snapshot", "snapshot": {}},
    said("user", "<command-name>/clear</command-name>", "2026-04-09T09:59:00Z"),
    said("user", "a secret aside", "2026-04-09T09:59:30Z", isMeta=True),
    said("user", "Fix the login bug<system-reminder>Brief!</system-reminder>", "2026-04-09T10:03:00.1Z", cwd="/src"),
    said("assistant", [{"type": "thinking", "thinking": "Hm"}], "2026-04-09T10:03:10Z"),
    said("assistant", [{"type": "text", "text": "I look at it."}], "2026-04-09T10:03:11Z"),
    said("assistant", [{"type": "tool_use", "name": "Bash", "input": {"command": "ls"}}], "2026-04-09T10:03:12Z"),
    said("user", [{"type": "tool_result", "content": "auth.py"}], "2026-04-09T10:03:13Z"),
    said("assistant", [{"type": "text", "text": "# Done\nThe cookie had expired."}], "2026-04-09T10:04:00Z"),
    said("user", [{"type": "text", "text": "Thanks"}, {"type": "image", "source": {}}], "2026-04-10T08:00:00Z"),
    said("assistant", [{"type": "text", "text": "of a helper"}], "2026-04-10T08:00:01Z", isSidechain=True),
    {"type": "summary", "summary": "Login bug"},
]  # fmt: skip
CODEX = [
    {"timestamp": "2026-04-09T10:00:00Z", "type": "session_meta", "payload": {"id": "019a", "cwd": "/src/app"}},
    {"timestamp": "2026-04-09T10:00:01Z", "type": "response_item", "payload": {"type": "message", "role": "developer",
     "content": [{"type": "input_text", "text": "rules"}]}},
    {"timestamp": "2026-04-09T10:00:01Z", "type": "response_item", "payload": {"type": "message", "role": "user",
     "content": [{"type": "input_text", "text": "<environment_context>x</environment_context>"}]}},
    {"timestamp": "2026-04-09T10:00:02Z", "type": "response_item", "payload": {"type": "message", "role": "user",
     "content": [{"type": "input_text", "text": "what is 2+2?"}]}},
    {"timestamp": "2026-04-09T10:00:02Z", "type": "event_msg", "payload": {"type": "user_message", "message": "2+2?"}},
    {"timestamp": "2026-04-09T10:00:03Z", "type": "response_item", "payload": {"type": "reasoning", "summary": []}},
    {"timestamp": "2026-04-09T10:00:04Z", "type": "response_item", "payload": {"type": "function_call_output"}},
    {"timestamp": "2026-04-09T10:00:05Z", "type": "response_item", "payload": {"type": "message", "role": "assistant",
     "content": [{"type": "output_text", "text": "4"}]}},
]  # fmt: skip
CODEX_ONCE = [
    {"id": "019b", "timestamp": "2026-04-09T10:00:00Z", "instructions": None},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "what is 2+2?"}]},
    {"record_type": "state"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "4"}]},
]


def gpt_node(role, parent, time, *parts, **more):
    content = {"content_type": more.pop("content_type", "text"), "parts": list(parts)}
    message = {"author": {"role": role}, "create_time": time, "content": content, **more}
    return {"message": message, "parent": parent}


CHATGPT = [
    {
        "conversation_id": "c1", "title": "Ginger", "create_time": 1775728800.0, "current_node": "e",
        "mapping": {
            "root": {"message": None, "parent": None},
            "sys": gpt_node("system", "root", None, "", metadata={"is_visually_hidden_from_conversation": True}),
            "a": gpt_node("user", "sys", 1775728860.5, {"content_type": "image_asset_pointer"}, "Is this ginger?",
                          content_type="multimodal_text"),
            "b": gpt_node("assistant", "a", 1775728870.0, "An answer that was asked for again."),
            "c": gpt_node("assistant", "a", 1775728880.0, content_type="thoughts"),
            "d": gpt_node("assistant", "c", 1775728890.0, "search()", recipient="web"),
            "e": gpt_node("assistant", "d", 1775728900.0, "Yes \ue200cite\ue202turn0\ue201it is.", recipient="all"),
        },
    },
    {"conversation_id": "c2", "title": "", "mapping": {}, "current_node": None},
]  # fmt: skip
CLAUDE = [
    {"uuid": "u1", "name": "Ginger", "created_at": "2026-04-09T10:00:00.000000+00:00", "chat_messages": [
        {"sender": "human", "created_at": "2026-04-09T10:01:00Z", "text": "old",
         "attachments": [{"extracted_content": "file"}], "content": [{"type": "text", "text": "Is this ginger?"}]},
        {"sender": "assistant", "created_at": "2026-04-09T10:01:40Z", "text": "Yes it is.", "content": [
            {"type": "thinking", "thinking": "Hm"}, {"type": "tool_use"}, {"type": "text", "text": "Yes it is."}]},
    ]},
]  # fmt: skip

SHORT = "# {title}\n\n## 2026-04-09\n\n**User** 10:{asked}: {question}\n\n**Assistant** 10:{answered}: {answer}\n"
GINGER = SHORT.format(title="Ginger", asked="01", question="Is this ginger?", answered="01", answer="Yes it is.")
SUM = SHORT.format(title="what is 2+2?", asked="00", question="what is 2+2?", answered="00", answer="4")
FILES = {
    "claude-code": (lines(*CLAUDE_CODE), (
        "# Login bug\n\n## 2026-04-09\n\n**User** 10:03: Fix the login bug\n\n**Assistant** 10:03: I look at it.\n\n"
        "**Done**\nThe cookie had expired.\n\n## 2026-04-10\n\n**User** 08:00: Thanks\n"
    )),
    "codex": (lines(*CODEX), SUM),
    "codex once": (lines(*CODEX_ONCE), SUM),
    "chatgpt": (json.dumps(CHATGPT), GINGER),
    "claude": (json.dumps(CLAUDE), GINGER),
}  # fmt: skip


def content_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.md")}


@pytest.mark.parametrize("name", FILES)
def test_a_transcript_becomes_a_dated_note_of_what_was_said_and_again_changes_nothing(name, notes, tmp_path):
    text, expected = FILES[name]
    format = name.split()[0]  # noqa: A001
    file = tmp_path / "transcript"
    file.write_text(text, "utf-8")
    report = import_transcripts(notes, format, file)
    [path] = report.created
    assert path.startswith(f"sessions/2026-04-09-{format}-")
    head, _, body = (notes / path).read_text("utf-8").partition("\n---\n\n")
    assert body == expected
    assert f"source: {format}" in head
    assert "date: 2026-04-09" in head
    assert not report.damaged
    before = content_of(notes)
    again = import_transcripts(notes, format, file)
    assert (again.unchanged, again.messages, again.created) == (1, 0, [])
    assert content_of(notes) == before
    assert not (notes / ".contextual" / "backups").exists()


def test_a_longer_session_is_continued_and_what_people_wrote_into_its_note_stays(notes, tmp_path):
    file, whole = tmp_path / "4f35.jsonl", tmp_path / "whole"
    whole.mkdir()
    for count in range(4, len(CLAUDE_CODE) + 1):
        file.write_text(lines(*CLAUDE_CODE[:count]), "utf-8")
        import_transcripts(notes, "claude-code", file)
    import_transcripts(whole, "claude-code", file)
    [parts], [once] = content_of(notes).values(), content_of(whole).values()
    assert parts.partition(b"\n## ")[2] == once.partition(b"\n## ")[2]

    [path] = notes.rglob("*.md")
    (notes / "work").mkdir()
    path = path.rename(notes / "work" / path.name)
    path.write_text(
        path.read_text("utf-8").replace("The cookie had expired.", "The cookie had *not* expired."), "utf-8"
    )
    more = said("assistant", [{"type": "text", "text": "You are welcome."}], "2026-04-10T08:01:00Z")
    file.write_text(lines(*CLAUDE_CODE, more), "utf-8")
    report = import_transcripts(notes, "claude-code", file)
    assert report.extended == [f"work/{path.name}"]
    text = path.read_text("utf-8")
    assert "had *not* expired." in text
    assert text.endswith("**User** 08:00: Thanks\n\n**Assistant** 08:01: You are welcome.\n")

    file.write_text(lines(*CLAUDE_CODE), "utf-8")  # an older copy
    assert import_transcripts(notes, "claude-code", file).unchanged == 1
    path.write_text("My own words.\n")
    assert import_transcripts(notes, "claude-code", file).left == [f"work/{path.name}"]
    assert path.read_text() == "My own words.\n"


def test_a_session_whose_messages_were_changed_replaces_the_note_with_a_backup(notes, tmp_path):
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps(CHATGPT), "utf-8")
    [path] = import_transcripts(notes, "chatgpt", file).created
    before = (notes / path).read_bytes()
    file.write_text(json.dumps([{**CHATGPT[0], "current_node": "b"}]), "utf-8")
    assert import_transcripts(notes, "chatgpt", file).replaced == [path]
    assert "asked for again" in (notes / path).read_text("utf-8")
    [backup] = (notes / ".contextual" / "backups").rglob("*.md")
    assert backup.read_bytes() == before


SECRETS = {
    "sk-" + "proj-" + "Ab3" * 12: "[redacted API key]",
    "ghp_" + "a1B2" * 9: "[redacted token]",
    "AKIA" + "IOSFODNN7EXAMPLE": "[redacted API key]",
    "AIza" + "Sy0" * 11 + "ab": "[redacted API key]",
    "eyJ" + "hbGciOiJI" * 2 + ".eyJ" + "zdWIiOiIx" * 2 + "." + "c2ln" * 5: "[redacted token]",
    "Authorization: Bearer " + "abc123" * 4: "Authorization: Bearer [redacted token]",
    "postgresql://ana:s3cret/pw@db.example/x".replace("/pw", ""): "postgresql://ana:[redacted password]@db.example/x",
    'password = "correct-horse"': 'password = "[redacted]"',
    "export DB_PASSWORD=correcthorse": "export DB_PASSWORD=[redacted]",
    "app.config['SECRET_KEY'] = 'abcd'": "app.config['SECRET_KEY'] = '[redacted]'",
    '{"api_key": "0f9e8d7c"}': '{"api_key": "[redacted]"}',
    "token: x7Kp22Lm": "token: [redacted]",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nafter": "[redacted private key]\nafter",
}
HARMLESS = [
    "The password: please ask Ana.", "token = get_token()", "password=os.environ['PW']", "See https://example.org:8080/a@b.",
    "-----BEGIN CERTIFICATE-----\nMIIE", "a basic understanding-of-things", "sk-learn is a library", "max_tokens: 4096",
]  # fmt: skip


def test_secrets_are_taken_out_and_counted_and_other_words_stay(notes, tmp_path):
    file = tmp_path / "session.jsonl"
    for number, (secret, shown) in enumerate(SECRETS.items()):
        text = f"before {secret}\n\nand behind"
        file.write_text(lines(said("user", text, "2026-04-09T10:00:00Z", sessionId=f"s{number}")), "utf-8")
        report = import_transcripts(notes, "claude-code", file)
        note = (notes / report.created[0]).read_text("utf-8")
        assert report.secrets == 1, secret
        assert f"**User** 10:00: before {shown}\n\nand behind\n" in note
        assert secret not in note
    long = "x " * 25 + next(iter(SECRETS)) * 3
    file.write_text(lines(said("user", long, "2026-04-09T10:00:00Z", sessionId="long")), "utf-8")
    assert "sk-" not in (notes / import_transcripts(notes, "claude-code", file).created[0]).read_text("utf-8")
    file.write_text(lines(*(said("user", text, "2026-04-09T10:00:00Z") for text in HARMLESS)), "utf-8")
    report = import_transcripts(notes, "claude-code", file)
    assert report.secrets == 0
    assert all(text in (notes / report.created[0]).read_text("utf-8") for text in HARMLESS)


def test_what_was_said_cannot_change_the_form_of_a_note(notes, tmp_path):
    texts = ["# A heading\nText\n=====\nmore", "```python\n# no heading\nopen", "<!-- hidden\n<script>",
             "---\ntitle: no\n---", "x\n---", "bell\x07\x1b[31m red\r\nline \ud800"]  # fmt: skip
    file = tmp_path / "session.jsonl"
    items = [
        said("user" if number % 2 else "assistant", text, "2026-04-09T10:00:00Z") for number, text in enumerate(texts)
    ]
    file.write_text(lines(*items, said("user", "the end", "2026-04-10T10:00:00Z")), "utf-8")
    [path] = import_transcripts(notes, "claude-code", file).created
    text = (notes / path).read_text("utf-8")
    kinds = outline(text.partition("\n---\n")[2]).kinds
    assert kinds.count("heading") == 3  # the title and two days
    assert "html" not in kinds
    assert "\x1b" not in text
    with ContextualIndex.open(notes, embed_model="none") as index:
        index.refresh()
        [hit] = index.as_retriever(similarity_top_k=1).retrieve("the end")
        assert hit.node.metadata["date"] == "2026-04-10"


def test_damaged_lines_are_counted_and_named_and_the_rest_is_read(notes, tmp_path, monkeypatch):
    monkeypatch.setattr("llama_index_contextual.app.notes.transcripts._LONGEST_LINE", 400)
    file = tmp_path / "session.jsonl"
    good = said("user", "Hello", "2026-04-09T10:00:00Z")
    file.write_text(
        lines(good) + '{"type": "us\n[1]\n' + lines(said("user", "x" * 900, "")) + "\n" + lines(good), "utf-8"
    )
    report = import_transcripts(notes, "claude-code", file)
    assert report.messages == 2
    assert report.damaged == [
        f"{file}:2 (no JSON object)", f"{file}:3 (no JSON object)", f"{file}:4 (longer than 0 MB)",
    ]  # fmt: skip
    export = tmp_path / "conversations.json"
    export.write_text(json.dumps([*CLAUDE, {"uuid": "x"}])[:-1] + ', {"uuid"', "utf-8")
    report = import_transcripts(notes, "claude", export)
    assert len(report.created) == 1
    assert report.damaged[0] == f"{export}, item 2 (no conversation)"
    assert report.damaged[1].startswith(f"{export}, after item 2 (no JSON: ")


ODD = [None, 1, "text", [], {}, [None], {"content": 3}, {"role": [], "content": [{"type": "text", "text": {}}]}]


@pytest.mark.parametrize("format", ["claude-code", "codex", "chatgpt", "claude"])
def test_whatever_an_export_holds_in_place_of_what_is_expected_harms_nothing(format, notes, tmp_path):  # noqa: A002
    file = tmp_path / "transcript"
    keys = ("type", "message", "payload", "timestamp", "sessionId", "mapping", "chat_messages", "content",
            "current_node", "create_time", "created_at", "uuid", "title", "name", "sender")  # fmt: skip
    base = {
        "type": "user",
        "mapping": {"a": {"message": None, "parent": "a"}},
        "chat_messages": [{}],
        "current_node": "a",
    }
    items = [{**base, key: odd} for key in keys for odd in [*ODD, 1e300, -1, True, "a\ud800"]]
    file.write_text(lines(*items) if format in ("claude-code", "codex") else json.dumps(items), "utf-8")
    import_transcripts(notes, format, file)


def test_an_export_is_read_from_its_archive_and_a_folder_with_all_its_transcripts(notes, tmp_path):
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
        archive.writestr("conversations-001.json", json.dumps(CHATGPT))
        archive.writestr("conversations-002.json", json.dumps([{**CHATGPT[0], "conversation_id": "c3"}]))
        archive.writestr("user.json", "{}")
    assert len(import_transcripts(notes, "chatgpt", tmp_path / "export.zip").created) == 2
    for name in "ab":
        (tmp_path / "projects" / name).mkdir(parents=True)
        (tmp_path / "projects" / name / "s.jsonl").write_text(lines(said("user", "Hi", "", sessionId=name)), "utf-8")
    assert len(import_transcripts(notes, "claude-code", tmp_path / "projects").created) == 2


@pytest.mark.parametrize(
    ("format", "source", "error"),
    [
        ("gemini", "x", "format='gemini' is not known. Cure: claude-code, codex"),
        ("codex", "nowhere", "nowhere holds no transcript"),
        ("codex", '{"type": "agent-turn-complete"}', "names no transcript"),
        ("codex", '{"thread-id": "*"}', "names no transcript"),
        ("codex", '{"thread-id', "is no JSON"),
    ],
)
def test_what_cannot_be_imported_is_an_error(format, source, error, notes):  # noqa: A002
    with pytest.raises(SettingError, match=error.replace("(", r"\(")):
        import_transcripts(notes, format, source)


def test_nothing_is_written_through_a_link(notes, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (notes / "sessions").symlink_to(tmp_path / "elsewhere")
    file = tmp_path / "session.jsonl"
    file.write_text(lines(said("user", "Hi", "")), "utf-8")
    with pytest.raises(SettingError, match="is a link"):
        import_transcripts(notes, "claude-code", file)
    (notes / "sessions").unlink()
    (notes / ".contextual").rename(tmp_path / "kept")
    (notes / ".contextual").symlink_to(tmp_path / "kept")
    with pytest.raises(SettingError, match="is a link"):
        import_transcripts(notes, "claude-code", file)
    (notes / ".contextual").unlink()
    (notes / "sessions").write_text("a file")
    with pytest.raises(StorageError, match="cannot be read or written"):
        import_transcripts(notes, "claude-code", file)


def test_the_events_of_hooks_name_the_transcript(notes, tmp_path, monkeypatch, run):
    rollout = tmp_path / "codex" / "sessions" / "2026" / "04" / "09" / "rollout-2026-04-09T10-00-00-019a-7e.jsonl"
    rollout.parent.mkdir(parents=True)
    rollout.write_text(lines(*CODEX), "utf-8")
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    done = run(
        "import", "codex", "--folder", notes, json.dumps({"type": "agent-turn-complete", "thread-id": "019a-7e"})
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 session: 1 new. 2 messages written\n"
    file = tmp_path / "4f35.jsonl"
    file.write_text(lines(*CLAUDE_CODE) + "{", "utf-8")
    event = {"hook_event_name": "SessionEnd", "transcript_path": str(file), "reason": "exit"}
    done = run("import", "claude-code", json.dumps(event), "-f", notes, "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["damaged"] == [f"{file}:{len(CLAUDE_CODE) + 1} (no JSON object)"]
    assert "not read:" in done.stderr


PROGRAM = "import sys; from llama_index_contextual.app.cli import main; sys.argv[0] = 'x'; main()"


@pytest.mark.process
def test_an_event_on_standard_input_is_read_where_the_agent_leaves_it_open(notes, tmp_path):
    file = tmp_path / "4f35.jsonl"
    file.write_text(lines(*CLAUDE_CODE), "utf-8")
    command = [sys.executable, "-c", PROGRAM, "import", "claude-code", "-", "--folder", str(notes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:  # noqa: S603
        running.stdin.write(json.dumps({"transcript_path": str(file)}).encode())
        running.stdin.flush()
        assert running.stdout.read().startswith(b"1 session: 1 new")


# Its own greatest size; what the operating system says of a child counts that of the parent, too.
MEASURED = PROGRAM.replace("import sys;", "import atexit, pathlib, sys;").replace(
    "main()", "atexit.register(lambda: print(pathlib.Path('/proc/self/status').read_text())); main()"
)


@pytest.mark.process
@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
@pytest.mark.parametrize("format", ["claude-code", "chatgpt"])
def test_a_transcript_is_read_as_a_stream(format, notes, tmp_path):  # noqa: A002
    file = tmp_path / "transcript"
    with file.open("w", encoding="utf-8") as stream:
        if format == "claude-code":
            output = [{"type": "tool_result", "content": "line of a log\n" * 5000}]
            for _ in range(700):
                stream.write(lines(said("user", output, "2026-04-09T10:00:00Z"), said("assistant", "Done. " * 500, "")))
        else:
            nodes = {str(n): gpt_node("user", str(n - 1), 1775728800.0 + n, "word " * 2000) for n in range(100)}
            item = {"title": "Long", "create_time": 1775728800.0, "current_node": "99", "mapping": nodes}
            stream.write("[" + ",\n".join(json.dumps({"id": str(n), **item}) for n in range(50)) + "]")
    assert file.stat().st_size > 45_000_000
    command = [sys.executable, "-c", MEASURED, "import", format, str(file), "--folder", str(notes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    assert " new" in done.stdout.splitlines()[0]
    assert int(re.search(r"VmHWM:\s+(\d+) kB", done.stdout)[1]) < 150 * 1024


ASIDE, KEY = "<system-reminder>x</system-reminder>", "-----BEGIN X PRIVATE KEY-----\n-----END X PRIVATE KEY-----\n"
LONG = [ASIDE, "<system-reminder>", KEY, "-----BEGIN ", "password=", "# x\n", "```\n", "x\n=\n", "a\x07", "<!--\n"]


@pytest.mark.parametrize("part", LONG, ids=repr)
def test_a_message_of_the_worst_text_takes_time_in_proportion_to_it(part):
    def work(text):
        session = Session("", NOW)
        session.add("Assistant", text, None)
        return [_Page("codex", session).edit(None) for _ in session.messages]

    short = part * (100_000 // len(part))
    assert not grows_too_fast(work, short, short * FACTOR)
