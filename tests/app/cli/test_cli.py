"""The command line; where processes and pipes matter, in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import NOTES, run_process
from storage import copy_indexed, storage_of

ROOT = Path(__file__).parents[3]


def test_help_needs_no_llama_index():
    code = """
import sys
from llama_index_contextual.app import cli
try:
    sys.argv[1:] = ["index", "--help"]
    cli.main()
finally:
    print("imported:", "llama_index.core" in sys.modules)
"""
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "imported: False" in ended.stdout, "it takes two seconds"


def test_the_list_of_commands_begins_with_index_and_cuts_no_line(run):
    _, commands = run("--help").stdout.split("Commands:\n")
    names = [line.split()[0] for line in commands.splitlines() if line.strip()]
    assert names == [
        "index",
        "search",
        "ask",
        "context",
        "serve",
        "mcp",
        "preview",
        "status",
        "config",
        "evaluate",
        "cache",
    ]
    assert "..." not in commands


def test_a_second_run_embeds_nothing(run, notes):
    report = json.loads(run("index", notes, "--json").stdout)
    assert (report["embedded"], report["skipped"], report["failed"]) == (0, 7, [])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["index", "no-such-folder"], 1, "no-such-folder' does not exist"),
        (
            ["status", "my notes/a.md"],
            1,
            "my notes/a.md' is not a folder",
        ),
        (
            ["search", "x", "--where", "rating"],
            1,
            "error: `where` must be KEY=VALUE",
        ),
        (
            ["search", "x", "-k", "0"],
            1,
            "error: --top-k must be greater than or equal to 1 (got 0).",
        ),
        (["index", ".", "--embed-model", "word2vec"], 1, "ollama:MODEL"),
        (["index", ".", "--context", "magic"], 1, "--context must be one of 'off'"),
        (["search", "x", "--folder", "."], 1, "Run: llama-index-contextual index"),
        (
            ["index", ".", "--llm", "ollama:x"],
            1,
            "`--llm` needs `--context llm` (the context is 'headings')",
        ),
        (
            ["index", ".", "--context", "off", "--llm", "ollama:x"],
            1,
            "`--llm` needs `--context llm` (the context is 'off')",
        ),
        (["search"], 2, "Missing argument"),
        (["search", "x", "--top-k", "0"], 1, "--top-k must be "),
        (["index", ".", "--chunk-size", "0"], 1, "--chunk-size must be "),
        (["index", ".", "--embed-model", "lokal"], 1, "--embed-model must be 'local', 'e5'"),
        (["ask", "x", "--llm", "gpt"], 1, "--llm must be 'ollama:MODEL'"),
        (
            ["index", ".", "--embed-model", "openai:m@http://me:secret@host:0/v1"],
            1,
            "not http://host:0/v1 (got 'openai:m@http://host:0/v1')",
        ),
        (["index", ".", "--chunk-size", "5"], 1, "--chunk-size must be "),
        (["index", ".", "--storage", "."], 1, "must not be the folder of the documents"),
        (["search", "x", "--since", "someday"], 1, "`since` must be a date"),
        (["status", ".", "--folder", "docs"], 2, "the folder is named twice"),
        (
            ["search", "-x", "-f", "."],
            2,
            "before a question that begins with a dash: search -- -word",
        ),
        (["search", "my notes"], 1, "Run: llama-index-contextual index"),
        (["no-such-command"], 2, "No such command"),
    ],
)
def test_an_error_is_one_message_with_a_remedy_and_an_exit_code(
    run, tmp_path, monkeypatch, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my notes").mkdir()
    (tmp_path / "my notes" / "a.md").write_text("Text.\n")
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("folder", ["notes", "my notes; $HOME"])
@pytest.mark.parametrize("storage", [None, "my index"])
def test_the_command_that_creates_a_missing_index_can_be_pasted(run, tmp_path, folder, storage):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "page.md").write_text("# Tea\n\nGreen.\n", "utf-8")
    stored = [] if storage is None else ["--storage", str(tmp_path / storage)]
    done = run("search", "x", "-f", tmp_path / folder, *stored)
    command = shlex.split(done.stderr.partition("Run: ")[2])
    assert command == ["llama-index-contextual", "index", str(tmp_path / folder), *stored]
    assert run(*command[1:]).returncode == 0
    assert run("search", "x", "-f", tmp_path / folder, *stored).returncode == 0


@pytest.mark.process
def test_a_closed_pipe_is_no_error(notes):
    command = f"{sys.executable} -m llama_index_contextual search gateway -f '{notes}' | head -1"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(  # noqa: S602
        command, shell=True, capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.startswith("1. ")
    assert done.stderr == ""


@pytest.mark.process
def test_no_command_leaves_a_log_beside_the_databases_and_a_question_changes_nothing(tmp_path):
    def ended(*words):
        line, environment = (
            [sys.executable, "-m", "llama_index_contextual", *words],
            {**os.environ, "PYTHONPATH": str(ROOT)},
        )
        done = subprocess.run(  # noqa: S603
            line, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
        )
        files = sorted(path for path in storage_of(tmp_path).iterdir() if path.is_file())
        assert (done.returncode, [path.name for path in files if "sqlite3-" in path.name]) == (
            0,
            [],
        ), done.stderr
        return {path.name: path.read_bytes() for path in files}

    (tmp_path / "plan.md").write_text("# Plan\n\nThe release moves to May.\n", "utf-8")
    ended("index", ".", "--embed-model", "none")
    (tmp_path / "more.md").write_text("# More\n\nThe freeze starts in April.\n", "utf-8")
    before = ended("index", ".")
    assert b"freeze" in before["index.sqlite3"], "a copy of this file has all documents"
    for words in (
        ["search", "release"],
        ["status"],
        ["status", "--check"],
        ["context", "the release"],
        ["config"],
    ):
        assert ended(*words) == before, words


def test_preview_shows_the_chunks_of_a_page(run):
    shown = run("preview", NOTES / "docs" / "gateway.md").stdout
    assert "Gateway > Timeout" in shown
    assert "timeout: 60" in shown


@pytest.mark.parametrize("command", [["status"], ["status", "--check"], ["config"]])
def test_a_folder_is_named_alike_in_every_command(run, notes, command):
    as_argument, as_option = run(*command, notes), run(*command, "-f", notes)
    assert (as_option.returncode, as_option.stdout) == (0, as_argument.stdout)


def test_status_and_config_take_ten_lines_and_all_of_it_on_demand(run, notes):
    for command in ("status", "config"):
        short, long = (run(command, notes, *more).stdout.splitlines() for more in ((), ("--all",)))
        assert len(short) <= 10, command
        assert len(long) >= 28, command


WITHOUT_LLAMA_INDEX = """
import sys
from llama_index_contextual.__main__ import main
try:
    main()
except SystemExit as done:
    assert not done.code, done.code
assert "llama_index.core" not in sys.modules
"""


@pytest.mark.parametrize("more", [[], ["--all", "--json"]])
@pytest.mark.parametrize(
    ("command", "indexed"), [("config", True), ("config", False), ("status", True)]
)
def test_commands_without_a_model_start_without_llama_index_which_takes_a_second(
    notes, tmp_path, command, indexed, more
):
    line = [
        sys.executable,
        "-c",
        WITHOUT_LLAMA_INDEX,
        command,
        str(notes if indexed else tmp_path),
        *more,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert ("chunk_size" in done.stdout) == bool(more)


@pytest.mark.process
def test_the_shell_can_complete_commands():
    words = {
        "COMP_WORDS": "llama-index-contextual sea",
        "COMP_CWORD": "1",
    }  # what a shell's own function asks
    environment = {**os.environ, **words, "_LLAMA_INDEX_CONTEXTUAL_COMPLETE": "bash_complete"}
    command = Path(sys.executable).with_name("llama-index-contextual")
    done = subprocess.run([command], capture_output=True, text=True, check=False, env=environment)  # noqa: S603
    assert (done.returncode, done.stdout.split()) == (0, ["plain,search"])


@pytest.mark.parametrize("command", ["search", "ask", "context", "evaluate"])
def test_k_counts_hits_in_every_command(run, command):
    assert re.search(r"-k\b", run(command, "--help").stdout)


def test_status_says_what_there_is_and_whether_it_agrees(run, notes):
    assert json.loads(run("status", notes, "--json").stdout)["documents"] == 7
    assert "files, databases and caches agree" in run("status", notes, "--check").stdout


def test_context_gives_the_digest_an_agent_reads(run, notes):
    digest = run(
        "context", "When does the deployment freeze for the audit start?", "-f", notes
    ).stdout
    heading, *lines = digest.splitlines()
    assert heading == "## Relevant prior context"
    assert any(line.startswith("- [memory/2026-10-05.md#L") for line in lines)
    assert any(line.startswith("  > ") and "19 October" in line for line in lines)
    digest = run("context", "what did we decide about retries?", "-f", notes).stdout
    assert "Retry budget of 10 % per client" in digest, "about retries, not about deciding"
    thanks = run("context", "thanks!", "-f", notes)
    assert thanks.stdout.strip() == "(No relevant prior context for this message.)"
    assert "not searched: " in thanks.stderr, "it says why"


def test_context_answers_small_talk_without_an_index(run, tmp_path):
    assert run("context", "hola", "-f", tmp_path).stdout.startswith("(No relevant prior context")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("message", ["", "What is green?"])
def test_context_says_that_nothing_is_indexed_yet(run, tmp_path, message):
    (tmp_path / "a.md").write_text("Tea is green.\n", "utf-8")
    done = run("context", message, "-f", tmp_path)
    assert "note: nothing is indexed yet. Run: llama-index-contextual index" in done.stderr


def test_a_search_in_a_renamed_folder_says_that_nothing_is_embedded_again(run, tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("# Tea\n\nTea is green.\n", "utf-8")
    error = run("search", "tea", "-f", folder).stderr
    assert "only renamed" not in error, "nothing was embedded yet"
    run("index", folder)
    renamed = folder.rename(tmp_path / "journal")
    error = run("search", "tea", "-f", renamed).stderr
    assert "If the folder was only renamed, nothing is embedded or paid for again. Run: " in error
    assert "1 added; 0 embedded" in run("index", renamed).stdout


@pytest.mark.parametrize(
    ("setting", "value", "requirement"),
    [
        ("RETRIEVAL__TOP_K", "many", "a valid integer (got 'many')."),
        ("RETRIEVAL__TOP_K", "2.5", "a valid integer (got '2.5')."),
        ("RETRIEVAL__MIN_SCORE", "high", "a valid number (got 'high')."),
        ("RETRIEVAL__RECENCY", "maybe", "a valid boolean (got 'maybe')."),
        ("EMBED_MODEL", "lokal", "'local', 'e5', 'none',"),
    ],
)
def test_a_wrong_variable_is_named_with_what_it_must_be(
    run, tmp_path, monkeypatch, setting, value, requirement
):
    variable = f"LLAMA_INDEX_CONTEXTUAL_{setting}"
    monkeypatch.setenv(variable, value)
    done = run("search", "x", "-f", tmp_path)
    assert f"error: {variable} must be {requirement}" in done.stderr


@pytest.mark.process
def test_a_terminal_that_cannot_show_a_character_gets_its_escape_and_json_stays_json(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "canción 空.md").write_text(
        "# Canción 空\n\nLa canción 😀 空 is sung at noon.\n", "utf-8"
    )
    assert run_process("index", tmp_path / "notes").returncode == 0
    done = run_process("search", "noon", "-f", tmp_path / "notes", PYTHONIOENCODING="cp1252")
    assert (done.returncode, done.stderr) == (0, "")
    assert "canción \\u7a7a.md#L1-L3" in done.stdout
    done = run_process(
        "search", "noon", "-f", tmp_path / "notes", "--json", PYTHONIOENCODING="cp1252"
    )
    assert "canción 😀 空" in json.loads(done.stdout)[0]["text"]


def test_preview_as_a_page_of_a_file_named_from_another_folder(run, tmp_path, monkeypatch):
    shutil.copytree(NOTES, tmp_path / "notes")
    monkeypatch.chdir(tmp_path)
    done = run("preview", Path("notes") / "docs" / "gateway.md", "--html", "page.html")
    assert done.returncode == 0, done.stderr
    assert "The default value is 60" in (tmp_path / "page.html").read_text("utf-8")


def test_a_preview_reads_a_file_as_an_index_does(run, tmp_path):
    (tmp_path / "latin.md").write_bytes(b"The caf\xe9 opens at nine.")
    (tmp_path / "binary.md").write_bytes(b"\x00\x01\x02")
    assert "The café opens at nine." in run("preview", tmp_path / "latin.md").stdout
    done = run("preview", tmp_path / "binary.md")
    assert (done.returncode, done.stdout) == (1, "")
    assert "binary.md: it is binary" in done.stderr


def test_the_version_is_printed(run):
    assert run("--version").stdout.startswith("llama-index-contextual 0.")


def test_preview_shows_what_is_embedded_by_the_folder_s_configuration(run, tmp_path, monkeypatch):
    shutil.copytree(NOTES / "docs", tmp_path / "docs")
    preview = ["preview", tmp_path / "docs" / "gateway.md", "--folder", tmp_path]
    (tmp_path / "contextual.toml").write_text(
        "[chunks]\nchunk_size = 60\nchunk_overlap = 0\n", "utf-8"
    )
    chunks = json.loads(run(*preview, "--json").stdout)
    assert len(chunks) > len(json.loads(run(*preview, "--chunk-size", 190, "--json").stdout))
    assert "Document: docs/gateway.md > Gateway > Timeout" in chunks[2]["embedded"]
    assert "Document: docs/gateway.md > Gateway > Timeout" in run(*preview).stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["contextual.toml", "docs"], (
        "nothing is written"
    )
    assert json.loads(run("preview", preview[1], "--json").stdout)[2]["citation"].startswith(
        "gateway.md#L"
    )
    storage_of(tmp_path).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert json.loads(run("preview", preview[1], "--json").stdout) == chunks, (
        "as the index of this folder has them"
    )
    storage_of(tmp_path).rmdir()
    outside = run("preview", NOTES / "MEMORY.md", "--folder", tmp_path)
    assert (outside.returncode, outside.stdout) == (1, "")
    assert f"MEMORY.md is not in {tmp_path}. Name a file " in outside.stderr


UNSEEN = ("\x1b", "\x07", "\x7f", "\x9b", "\u202e", "\u200b", "\ufeff", "\U000e0041")


@pytest.mark.filterwarnings("always::llama_index_contextual.utils.errors.ContextualWarning")
def test_no_command_prints_what_commands_the_terminal_or_forges_lines(run, tmp_path):
    evil = "a\x1b[31m[/red]\nerror: forged\n1. 9.99  forged.md" + "".join(UNSEEN)
    title = f"Tea \x1b]0;title\x07 \x9b31m {''.join(UNSEEN)}"
    text = (
        '---\ntitle: "Tea {}"\n---\n# {}\n\nIt was green{}.\n'.format(
            "".join(UNSEEN[3:]), title, "".join(UNSEEN)
        )
        + "Mild. " * 200
    )
    (tmp_path / f"{evil.replace('/', ' ')}.md").write_text(text, "utf-8")
    (tmp_path / "bad\x1b[2J[/x]\nerror: forged\n\u200b.md".replace("/", " ")).write_bytes(
        b"\xff\xfe\x00\x01" * 50
    )
    (tmp_path / "contextual.toml").write_text(
        '[descriptions]\n"a\\nerror: forged" = "b"\n', "utf-8"
    )
    gone = tmp_path / f"gone{evil.replace('/', ' ')}"
    (tmp_path / "q.jsonl").write_text(
        json.dumps({"question": f"tea{''.join(UNSEEN)}", "text": "It was green"}), "utf-8"
    )
    [note] = tmp_path.glob("a*.md")
    for command in (
        ["index", tmp_path],
        ["search", "tea", "-f", tmp_path],
        ["search", "tea", "-f", tmp_path, "--explain"],
        ["search", "tea", "-f", tmp_path, "--json"],
        ["status", tmp_path],
        ["status", tmp_path, "--check"],
        ["config", tmp_path],
        ["preview", note],
        ["preview", note, "--json"],
        ["preview", gone],
        ["status", gone],
        ["status", tmp_path, note],
        ["mcp", gone],
        ["serve", gone],
        ["context", "which tea was green?", "-f", tmp_path],
        ["context", "which tea was green?", "-f", tmp_path, "--json"],
        ["ask", "tea?", "-f", tmp_path, "--llm", "openai:m@http://127.0.0.1:9/v1"],
        ["evaluate", tmp_path, "-q", tmp_path / "q.jsonl", "--context", "headings"],
    ):
        done = run(*command)
        is_error = command[0] == "ask" or gone in command or command == ["status", tmp_path, note]
        assert done.returncode in ((1, 2) if is_error else (0, 3)), done.stderr
        for char in UNSEEN:
            assert char not in done.stdout + done.stderr, (command, char)
        lines = (done.stdout + done.stderr).splitlines()
        assert not any(line.startswith(("1. 9.99", "error: forged")) for line in lines), command


def test_a_port_that_another_program_has_is_named(run, notes):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("mcp", notes, "--transport", "http", "--port", port)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        f"`port` {port} cannot be used at 127.0.0.1 (Address already in use). Choose another port."
        in done.stderr
    )


def test_a_damaged_database_is_told_once(run, notes, tmp_path):
    copy_indexed(notes, tmp_path / "notes")
    for file in storage_of(tmp_path / "notes").glob("index.sqlite3*"):
        file.write_bytes(b"this is no database" * 1000)
    done = run("search", "gateway", "-f", tmp_path / "notes")
    assert done.stderr.count("is damaged") == 1
    assert run("index", tmp_path / "notes").returncode == 0
    assert run("search", "gateway", "-f", tmp_path / "notes").stderr == ""


def test_a_pipe_or_a_device_that_is_named_is_an_error_at_once(run, tmp_path):
    (tmp_path / "a.md").write_text("# A\n\nText.\n", "utf-8")
    os.mkfifo(tmp_path / "pipe.md")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with (tmp_path / "huge.jsonl").open("wb") as file:
        file.truncate(800_000_000)
    for hint, *command in (
        ("Name a file", "preview", tmp_path / "pipe.md"),
        ("Name a file", "preview", "/dev/zero"),
        ("Write UTF-8", "evaluate", tmp_path, "-q", tmp_path / "pipe.jsonl"),
        ("Write UTF-8", "evaluate", tmp_path, "-q", tmp_path / "huge.jsonl"),
    ):
        done = run(*command)
        assert done.returncode == 1, command
        assert hint in done.stderr, command
    (tmp_path / "ring").symlink_to(tmp_path / "ring")
    for link in ("ring", "ring/below"):
        place = tmp_path / link
        for command in (
            ["index", place],
            ["search", "x", "--storage", place],
            ["preview", place],
            ["status", place],
        ):
            done = run(*command)
            assert done.returncode == 1, command
            assert done.stderr.startswith("error: "), command
    for place in ("/dev/zero", "nowhere"):
        (tmp_path / "contextual.toml").unlink(missing_ok=True)
        (tmp_path / "contextual.toml").symlink_to(place)
        done = run("index", tmp_path, "--embed-model", "none")
        assert done.returncode == 1
        assert re.search(
            r"contextual\.toml: it (cannot be read|is not a regular file)", done.stderr
        )


@pytest.mark.parametrize(("command", "most"), [("index", 12), ("search", 14)])
def test_the_commands_that_everybody_uses_have_few_options(run, command, most):
    options = re.findall(r"^  (?:-\w, )?(--[\w-]+)", run(command, "--help").stdout, re.MULTILINE)
    assert len(set(options) - {"--help"}) <= most, options


@pytest.mark.process
def test_a_pipe_that_is_closed_after_the_first_line_is_no_error(tmp_path):
    (tmp_path / "long.md").write_text("# Long\n\n" + "word " * 40_000, "utf-8")
    command = [sys.executable, "-m", "llama_index_contextual", "preview", str(tmp_path / "long.md")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:  # noqa: S603
        assert process.stdout.readline().endswith(b" tokens\n")
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (0, b"")
