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
from command_line import run_process

from llama_index_contextual import ContextualIndex
from llama_index_contextual.cli.common import print_text
from llama_index_contextual.errors import SettingError
from llama_index_contextual.memory import MemoryContext

ROOT = Path(__file__).parents[1]
NOTES = ROOT / "examples" / "notes"


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "notes"
    shutil.copytree(NOTES, folder)
    done = run_process("index", folder)
    assert done.returncode == 0
    assert all(line.startswith("Indexing: ") for line in done.stderr.splitlines()), "only how far it is"
    assert "7 added" in done.stdout
    return folder


def test_help_needs_no_llama_index():
    code = """
import sys
from llama_index_contextual import cli
try:
    cli.main(["index", "--help"])
finally:
    print("imported:", "llama_index.core" in sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert "imported: False" in ended.stdout, "it takes two seconds"


@pytest.mark.long
def test_a_question_that_nothing_answers_finds_nothing(run, notes):
    for question in ("asdfghjkl", "how tall is Mount Kilimanjaro"):
        done = run("search", question, "-f", notes)
        assert (done.returncode, done.stdout) == (0, "")
        assert "Nothing found" in done.stderr
        assert "below min_score=0.05" in done.stderr
        as_data = run("search", question, "-f", notes, "--json")
        assert json.loads(as_data.stdout) == []
        assert as_data.stderr == done.stderr
        shown = json.loads(run("search", question, "-f", notes, "--min-score", 0, "--json").stdout)
        assert 0 < shown[0]["score"] < 0.05
    misspelled = run("search", "when does the frezee start?", "-f", notes)
    assert misspelled.stdout == run("search", "when does the freeze start?", "-f", notes).stdout
    assert misspelled.stderr.strip() == 'searched for "freeze" instead of "frezee", which the index does not know'
    told = run("context", "when does the frezee start?", "-f", notes)
    assert 'searched for "freeze"' in told.stdout
    assert told.stderr == "", "the digest says it"
    outside = run("search", "freeze", "-f", notes, "--path", "nowhere/")
    assert outside.stderr.splitlines() == ["Nothing found.", "no chunk passes the filters: none has path ~ 'nowhere/'"]
    found = json.loads(run("search", "What is the default timeout of the gateway?", "-f", notes, "--json").stdout)
    assert 0.9 < found[0]["score"] <= 1


def test_a_hit_names_score_lines_and_headings(run, notes):
    done = run("search", "What is the default timeout of the gateway?", "--folder", notes, "--top-k", 1)
    assert done.returncode == 0
    first, heading, snippet = done.stdout.splitlines()
    assert first == "1. 0.99  docs/gateway.md#L12-L16"
    assert heading.strip() == "Gateway > Timeout"
    assert snippet.strip().startswith("The default value is 60"), "displayed without the context"


def test_on_a_terminal_the_text_of_a_hit_keeps_its_margin(run, notes, monkeypatch):
    search = ("search", "default", "timeout", "of the gateway", "-f", notes, "-k", 1)
    piped = run(*search).stdout.splitlines()
    assert len(piped) == 3, "a line each, for grep and the like"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = run(*search).stdout
    assert "\x1b]8;" in coloured, "the place is a link"
    assert "\x1b[1;33mdefault\x1b[0m" in coloured, "a matched word stands out"
    first, *shown = re.sub(r"\x1b(\[[\d;]*m|\]8;[^\x1b]*\x1b\\)", "", coloured).splitlines()
    assert first.startswith("1. ")
    assert all(not line or (line.startswith("   ") and len(line) <= 60) for line in shown)
    assert " ".join(line.strip() for line in shown[1:]).split()[:8] == piped[2].split()[:8]


def test_full_shows_the_whole_text_of_a_hit(run, notes):
    [hit] = json.loads(run("search", "default timeout of the gateway", "-f", notes, "-k", 1, "--json").stdout)
    shown = run("search", "default timeout of the gateway", "-f", notes, "-k", 1, "--full").stdout
    assert all(line.strip() in shown for line in hit["text"].splitlines())


def test_per_file_leaves_room_for_other_files(run, notes):
    def files(*more):
        hits = json.loads(run("search", "the gateway", "--folder", notes, "--json", "--top-k", 3, *more).stdout)
        return [hit["path"] for hit in hits]

    assert len(set(files())) < 3
    assert len(set(files("--per-file", 1))) == 3


def test_json_is_only_json_and_its_lines_are_right(run, notes):
    hits = json.loads(run("search", "restore drill", "--folder", notes, "--json", "--top-k", 3).stdout)
    assert len(hits) == 3
    for hit in hits:
        lines = (notes / hit["path"]).read_text("utf-8").splitlines()
        assert hit["text"].strip() == "\n".join(lines[hit["start_line"] - 1 : hit["end_line"]]).strip()


def test_get_prints_what_a_hit_cites(run, notes):
    [hit] = json.loads(run("search", "default timeout of the gateway", "-f", notes, "-k", 1, "--json").stdout)
    place = f"{hit['path']}#L{hit['start_line']}-L{hit['end_line']}"
    lines = run("get", place, "-f", notes)
    assert lines.stdout.strip() == hit["text"].strip()
    assert f"lines {hit['start_line']} to {hit['end_line']} of" in lines.stderr
    whole = run("get", "[[gateway]]", "-f", notes)
    assert (whole.stdout.rstrip(), whole.stderr) == ((notes / "docs/gateway.md").read_text().rstrip(), "")
    assert json.loads(run("get", place, "-f", notes, "--json").stdout)["text"] == hit["text"]
    assert "there is no note 'nowhere.md' that the index reads" in run("get", "nowhere.md", "-f", notes).stderr


def test_a_folder_below_finds_the_index_above_unless_it_is_another_user_s(run, notes, monkeypatch):
    monkeypatch.chdir(notes / "docs")
    hits = run("search", "default", "timeout", "of", "the", "gateway", "-k", 1)
    assert "docs/gateway.md#L" in hits.stdout
    assert f"the index of {notes}" in hits.stderr
    assert run("status").stdout.startswith(f"folder      {notes}")
    refused = run("delete", "--yes")
    assert (refused.returncode, (notes / ".contextual").is_dir()) == (1, True), "to delete one it has to be named"
    monkeypatch.setattr("llama_index_contextual.cli.common.is_strange", lambda _: True)
    assert "there is no index in" in run("status").stderr


def test_a_second_run_embeds_nothing(run, notes):
    report = json.loads(run("index", notes, "--json").stdout)
    assert (report["embedded"], report["unchanged"], report["failed"]) == (0, 7, [])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["index", "no-such-folder"], 1, "no folder"),
        (["index", ".", "--embed-model", "word2vec"], 1, "ollama:MODEL"),
        (["index", ".", "--context", "magic"], 1, "--context='magic' cannot work. Cure: input should be 'off'"),
        (["search", "x", "--folder", "."], 1, "Cure: llama-index-contextual index"),
        (
            ["index", ".", "--llm", "ollama:x"],
            1,
            "--llm: contexts are 'headings' here. Cure: add --context llm, or leave it out",
        ),
        (
            ["index", ".", "--context", "off", "--llm", "ollama:x"],
            1,
            "--llm: contexts are 'off' here. Cure: add --context llm",
        ),
        (["context", "x", "--half-life-days", "inf"], 1, "--half-life-days=inf cannot work. Cure: "),
        (["search"], 2, "Missing argument"),
        (["search", "x", "--top-k", "0"], 1, "--top-k=0 cannot work. Cure: "),
        (["index", ".", "--chunk-size", "0"], 1, "--chunk-size=0 cannot work. Cure: "),
        (["index", ".", "--chunk-size", "10", "--overlap", "20"], 1, "--overlap=20 is not in 0 to"),
        (["index", ".", "--reindex", "never"], 1, "--reindex=never is not known"),
        (["index", ".", "--storage", "."], 1, "--storage=. is the folder"),
        (["index", ".", "--context", "llm", "--max-calls", "-1"], 1, "--max-calls=-1 cannot work"),
        (["index", ".", "--prompt", "no-such-file"], 1, "no-such-file cannot be read"),
        (["index", ".", "--config", "no-such-file"], 1, "no-such-file is no file. Cure: "),
        (["search", "x", "--rerank", "magic"], 1, "there is no index"),
        (["search", "x", "--since", "someday"], 1, "--since=someday is no date"),
        (["no-such-command"], 2, "No such command"),
    ],
)
def test_errors_are_one_message_with_a_cure_and_an_exit_code(run, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("folder", ["notes", "my notes; $HOME"])
@pytest.mark.parametrize("storage", [None, "my index"])
def test_the_command_that_cures_a_missing_index_can_be_pasted(run, tmp_path, folder, storage):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "page.md").write_text("# Tea\n\nGreen.\n", "utf-8")
    stored = [] if storage is None else ["--storage", str(tmp_path / storage)]
    done = run("search", "x", "-f", tmp_path / folder, *stored)
    command = shlex.split(done.stderr.partition("Cure: ")[2])
    assert command == ["llama-index-contextual", "index", str(tmp_path / folder), *stored]
    assert run(*command[1:]).returncode == 0
    assert run("search", "x", "-f", tmp_path / folder, *stored).returncode == 0


def test_an_empty_question_is_an_error(run, notes):
    done = run("search", " ", "-f", notes)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the question is empty. Cure: " in done.stderr


def test_a_closed_pipe_is_no_error(notes):
    command = f"{sys.executable} -m llama_index_contextual search gateway -f '{notes}' | head -1"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True, env=environment)  # noqa: S602
    assert done.stdout.startswith("1. ")
    assert done.stderr == ""


@pytest.mark.long
def test_a_known_page_of_the_kubernetes_docs_is_found_with_its_lines(run, data, tmp_path):
    """On 21 of the 1,568 pages; ``benchmarks/retrieval.py`` measures the whole corpus."""
    corpus = data("kubernetes-docs") / "corpus"
    wanted = "concepts_services-networking_gateway.md"
    others = [path for path in sorted(corpus.glob("concepts_*.md")) if path.stat().st_size < 6_000]
    for path in [corpus / wanted, *others[:20]]:
        shutil.copy(path, tmp_path)
    assert run("index", tmp_path).returncode == 0
    question = "What is the role of the Infrastructure Provider in the design principles of Gateway API?"
    hit, *_ = json.loads(run("search", question, "-f", tmp_path, "--json").stdout)
    assert hit["path"] == wanted
    lines = (tmp_path / wanted).read_text("utf-8").splitlines()[hit["start_line"] - 1 : hit["end_line"]]
    assert any("Infrastructure Provider" in line for line in lines)


def test_explain_tells_why(run, notes):
    done = run("search", "restore drill", "-f", notes, "--explain", "--json", "--top-k", 2)
    explained = json.loads(done.stdout)
    assert set(explained["arms"]) == {"vector", "bm25"}
    assert len(explained["hits"]) == 2
    assert "bm25" in run("search", "restore drill", "-f", notes, "--explain").stdout


def test_preview_shows_the_chunks_of_a_page(run):
    shown = run("preview", NOTES / "docs" / "gateway.md").stdout
    assert "Gateway > Timeout" in shown
    assert "timeout: 60" in shown


def test_status_verify_and_export(run, notes, tmp_path):
    assert json.loads(run("status", notes, "--json").stdout)["documents"] == 7
    assert run("verify", notes).stdout.startswith("ok")
    out = tmp_path / "chunks.jsonl"
    assert run("export", notes, "--out", out).returncode == 0
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert len(rows) == json.loads(run("status", notes, "--json").stdout)["chunks"]


def test_context_gives_the_digest_an_agent_reads(run, notes):
    digest = run("context", "When does the deployment freeze for the audit start?", "-f", notes).stdout
    heading, *lines = digest.splitlines()
    assert heading == "## Relevant prior context"
    assert any(line.startswith("- [memory/2026-10-05.md#L") for line in lines)
    assert any(line.startswith("  > ") and "19 October" in line for line in lines)
    digest = run("context", "what did we decide about retries?", "-f", notes).stdout
    assert "Retry budget of 10 % per client" in digest, "about retries, not about deciding"
    assert run("context", "thanks!", "-f", notes).stdout.strip() == "(No relevant prior context for this message.)"


def test_context_says_when_it_is_switched_off_and_answers_small_talk_without_an_index(run, tmp_path):
    assert run("context", "does JC like ginger?", "-f", tmp_path, "--disabled").stdout.startswith(
        "(Memory is switched off"
    )
    assert run("context", "hola", "-f", tmp_path).stdout.startswith("(No relevant prior context")
    assert not list(tmp_path.iterdir())


@pytest.mark.process
def test_a_terminal_that_cannot_show_a_character_gets_its_escape_and_json_stays_json(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "canción 空.md").write_text("# Canción 空\n\nLa canción 😀 空 is sung at noon.\n", "utf-8")
    assert run_process("index", tmp_path / "notes").returncode == 0
    done = run_process("search", "noon", "-f", tmp_path / "notes", PYTHONIOENCODING="cp1252")
    assert (done.returncode, done.stderr) == (0, "")
    assert "canción \\u7a7a.md#L1-L3" in done.stdout
    done = run_process("search", "noon", "-f", tmp_path / "notes", "--json", PYTHONIOENCODING="cp1252")
    assert "canción 😀 空" in json.loads(done.stdout)[0]["text"]
    done = run_process("export", tmp_path / "notes", PYTHONIOENCODING="cp1252")
    assert json.loads(done.stdout)["document"] == "canción 空.md"


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
    assert "binary.md: it is binary, not text" in done.stderr


def test_a_file_that_cannot_be_written_is_named(run, notes, tmp_path):
    done = run("export", notes, "--out", tmp_path / "none" / "chunks.jsonl")
    assert (done.returncode, done.stdout) == (1, "")
    assert "chunks.jsonl" in done.stderr


def test_more_hits_than_the_usual_pool_can_be_asked_for(run, tmp_path):
    pages = (f"# Page {number}\n\nThe tea of day {number} was green.\n" for number in range(130))
    for number, page in enumerate(pages):
        (tmp_path / f"{number}.md").write_text(page, "utf-8")
    assert run("index", tmp_path).returncode == 0
    assert len(json.loads(run("search", "green tea", "-f", tmp_path, "--top-k", 120, "--json").stdout)) == 120
    done = run("context", "what tea was green?", "-f", tmp_path, "--max-results", 120)
    assert (done.returncode, done.stderr) == (0, "")


def paths(done):
    return [hit["path"] for hit in json.loads(done.stdout)]


def test_a_search_can_be_narrowed_by_path_tag_and_day(run, notes):
    def found(*more):
        return paths(run("search", "the gateway", "-f", notes, "--json", "--top-k", 20, *more))

    assert set(found("--path", "scheduler")) == {"docs/scheduler.md"}
    assert found("--tag", "no-such-tag") == []
    assert all(path.startswith("memory/2026-1") for path in found("--since", "2026-10-01"))
    assert found("--until", "1999-01-01") == []


def test_recency_is_an_option_of_search_and_of_the_retriever(run, tmp_path):
    text = "# Deploy\n\nThe deploy went well.\n"
    for day in ("2019-01-01", "2026-01-01"):
        (tmp_path / f"{day}.md").write_text(text, "utf-8")
    (tmp_path / "undated.md").write_text("# Lunch\n\nSoup.\n", "utf-8")
    assert run("index", tmp_path).returncode == 0
    assert paths(run("search", "deploy", "-f", tmp_path, "--json", "--recency"))[0] == "2026-01-01.md"
    scores = {hit["path"]: hit["score"] for hit in json.loads(run("search", "deploy", "-f", tmp_path, "--json").stdout)}
    with ContextualIndex.open(tmp_path) as index:
        plain, recent = (index.as_retriever(recency=recency).retrieve("deploy") for recency in (None, 30))
    assert {hit.node.metadata["path"]: hit.score for hit in plain} == pytest.approx(scores)
    assert recent[0].node.metadata["path"] == "2026-01-01.md"
    [old] = [hit.score for hit in recent if hit.node.metadata["path"] == "2019-01-01.md"]
    assert old < scores["2019-01-01.md"]


def test_the_version_is_printed(run):
    assert run("--version").stdout.startswith("llama-index-contextual 0.")


def test_preview_shows_what_is_embedded_by_the_folder_s_configuration(run, tmp_path):
    shutil.copytree(NOTES / "docs", tmp_path / "docs")
    preview = ["preview", tmp_path / "docs" / "gateway.md", "--folder", tmp_path]
    (tmp_path / "contextual.toml").write_text("[chunks]\nsize = 60\noverlap = 0\n", "utf-8")
    chunks = json.loads(run(*preview, "--context", "--json").stdout)
    assert len(chunks) > len(json.loads(run(*preview, "--chunk-size", 190, "--json").stdout))
    assert "Document: docs/gateway.md > Gateway > Timeout" in chunks[2]["embedded"]
    assert "Document: docs/gateway.md > Gateway > Timeout" in run(*preview, "--context").stdout
    assert "Document:" not in run(*preview).stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["contextual.toml", "docs"], "nothing is written"
    outside = run("preview", NOTES / "MEMORY.md", "--folder", tmp_path)
    assert (outside.returncode, outside.stdout) == (1, "")
    assert f"MEMORY.md is not in {tmp_path}. Cure: " in outside.stderr


def test_names_cannot_command_the_terminal_or_forge_lines(run, tmp_path):
    evil = "a\x1b[31m\\[/red]\n1. 9.99  forged.md\u202e"
    (tmp_path / f"{evil.replace('/', ' ')}.md").write_text("# Tea \x1b]0;title\x07 \x9b31m\n\nIt was green.\n", "utf-8")
    (tmp_path / "bad\x1b[2J\\[/x]\n.md".replace("/", " ")).write_bytes(b"\xff\xfe\x00\x01" * 50)
    for command in (
        ["index", tmp_path],
        ["search", "tea", "-f", tmp_path],
        ["search", "tea", "-f", tmp_path, "--explain"],
        ["search", "tea", "-f", tmp_path, "--json"],
        ["status", tmp_path],
        ["context", "which tea was green?", "-f", tmp_path],
    ):
        done = run(*command)
        assert done.returncode in (0, 3), done.stderr
        for char in ("\x1b", "\x07", "\x9b", "\u202e"):
            assert char not in done.stdout + done.stderr, command
        if command[0] == "search":
            assert not any(line.startswith("1. 9.99") for line in done.stdout.splitlines()), command


def test_a_port_that_another_program_has_is_named(run, notes):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("mcp", "-f", notes, "--transport", "http", "--port", port)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"--port={port} cannot be used (Address already in use). Cure: another --port" in done.stderr


def test_a_damaged_database_is_told_once(run, notes, tmp_path):
    shutil.copytree(notes, tmp_path / "notes")
    for file in (tmp_path / "notes" / ".contextual").glob("index.sqlite3*"):
        file.write_bytes(b"this is no database" * 1000)
    done = run("search", "gateway", "-f", tmp_path / "notes")
    assert done.stderr.count("is damaged") == 1
    assert run("index", tmp_path / "notes").returncode == 0
    assert run("search", "gateway", "-f", tmp_path / "notes").stderr == ""


@pytest.mark.parametrize(
    ("guess", "cure"),
    [
        (lambda: ContextualIndex("docs"), r"Cure: ContextualIndex\.open\('docs'\)"),
        (lambda: MemoryContext("notes"), r"Cure: .*MemoryContext\(ContextualIndex\.open\('notes'\)\)"),
    ],
)
def test_natural_guesses_are_told_how_it_goes(guess, cure):
    with pytest.raises(SettingError, match=cure):
        guess()


def test_hits_show_what_is_said_of_their_folders(run, tmp_path):
    shutil.copytree(NOTES / "docs", tmp_path / "docs")
    (tmp_path / "contextual.toml").write_text('[descriptions]\n"docs/" = "Manual of the shop Atlas"\n', "utf-8")
    assert run("index", tmp_path).returncode == 0
    assert "docs: Manual of the shop Atlas" in run("search", "timeout of Atlas", "-f", tmp_path, "--top-k", 1).stdout
    [hit] = json.loads(run("search", "timeout of Atlas", "-f", tmp_path, "--top-k", 1, "--json").stdout)
    assert hit["description"] == ["docs: Manual of the shop Atlas"]
    with ContextualIndex.open(tmp_path) as index:
        assert all("docs: Manual of the shop Atlas" in node.metadata["context"] for node in index.nodes())


def test_lines_are_printed_without_what_commands_a_terminal(capsys):
    print_text("a \x1b[31mred\x07 line")
    assert not {"\x1b", "\x07"} & set(capsys.readouterr().out)
