"""``index``.

Which files, which settings, what contexts by a language model would cost, and what fails.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from storage import storage_of

NOTES = Path(__file__).parents[3] / "examples" / "notes"


def test_storage_can_live_elsewhere(run, tmp_path):
    folder, storage = tmp_path / "notes", tmp_path / "elsewhere"
    shutil.copytree(NOTES / "docs", folder)
    assert run("index", folder, "--storage", storage).returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == ["gateway.md", "scheduler.md"]
    assert "gateway.md" in run("search", "gateway", "-f", folder, "--storage", storage).stdout


def test_a_bad_file_is_named_and_the_rest_is_indexed(run, tmp_path):
    (tmp_path / "good.md").write_text("# Good\n\nThe answer is forty-two.\n", "utf-8")
    (tmp_path / "bad.md").write_bytes(b"\x00\x01\x02\xff" * 100)
    done = run("index", tmp_path)
    assert done.returncode == 3
    assert "bad.md" in done.stderr
    assert "1 added" in done.stdout
    assert "good.md#L1-L3" in run("search", "answer", "-f", tmp_path).stdout


def test_some_of_many_unreadable_files_are_named_and_the_others_counted(run, tmp_path):
    for number in range(60):
        (tmp_path / f"bad{number:02}.md").write_bytes(b"\x00\x01\x02")
    (tmp_path / "good.md").write_text("# Good\n\nText.\n", "utf-8")
    lines = run("index", tmp_path).stderr.splitlines()
    assert len([line for line in lines if "bad" in line]) == 50
    assert "not indexed: and 10 more" in lines


def test_a_file_that_had_to_be_repaired_is_named_once_and_is_no_failure(run, tmp_path):
    (tmp_path / "old.md").write_bytes("# Café\n\nLe café ferme tôt.\n".encode("latin-1"))
    done = run("index", tmp_path)
    assert done.returncode == 0
    assert "repaired: old.md: byte 0xe9" in done.stderr
    assert "repaired" not in run("index", tmp_path).stderr


GERMAN = "# Kündigung\n\nDas Gericht hat die Kündigung der Angestellten für unwirksam erklärt, weil niemand sie kannte.\n"  # noqa: E501


def test_a_first_index_names_languages_that_the_default_embedding_does_not_read(run, tmp_path):
    (tmp_path / "urteil.md").write_text(GERMAN, "utf-8")
    (tmp_path / "note.md").write_text(
        "# Tea\n\nThe tea that we had with the others was green.\n", "utf-8"
    )
    told = run("index", tmp_path).stderr
    assert re.search(r"other languages \(German \d\d%\)\. .* index --embed-model e5", told)
    assert "embed-model" not in run("index", tmp_path).stderr, "only where an index is made"
    languages = json.loads(run("status", tmp_path, "--json").stdout)["languages"]
    assert set(languages) == {"de", "en"}
    assert re.search(r"languages +German \d\d%, English \d\d%", run("status", tmp_path).stdout)


def test_an_english_folder_is_told_nothing_of_languages(run, tmp_path):
    shutil.copytree(NOTES / "docs", tmp_path / "notes")
    assert "embed-model" not in run("index", tmp_path / "notes").stderr


def test_patterns_choose_the_files_to_index(run, tmp_path):
    for name in ("page.md", "tool.py", "draft.md"):
        (tmp_path / name).write_text("# Tea\n\nThe tea was green.\n", "utf-8")
    report = json.loads(
        run(
            "index",
            tmp_path,
            "--include",
            "*.md",
            "--include",
            "*.py",
            "--exclude",
            "draft*",
            "--json",
        ).stdout
    )
    assert report["added"] == ["page.md", "tool.py"]


def test_source_code_is_read_with_its_context(run, tmp_path):
    (tmp_path / "engine.py").write_text(
        "class Engine:\n    def search(self):\n        return 1\n", "utf-8"
    )
    assert json.loads(run("index", tmp_path, "--context", "pattern", "--json").stdout)["added"] == [
        "engine.py"
    ]
    assert "engine.py" in run("search", "where is search defined", "-f", tmp_path).stdout


def test_the_chunk_size_is_an_option(run, tmp_path):
    shutil.copy(NOTES / "docs" / "gateway.md", tmp_path)
    first = json.loads(run("index", tmp_path, "--json").stdout)
    few = first["chunks"]
    many = json.loads(run("index", tmp_path, "--chunk-size", 40, "--json").stdout)["chunks"]
    assert many > few


def test_options_of_an_index_need_not_be_repeated(run, tmp_path):
    folder = tmp_path / "notes"
    shutil.copytree(NOTES / "docs", folder)
    assert run("index", folder, "--context", "pattern").returncode == 0
    second_run = run("index", folder, "--json")
    assert json.loads(second_run.stdout)["embedded"] == 0, "still the pattern contexts"
    assert "pattern" in run("status", folder).stdout
    assert (
        json.loads(run("index", folder, "--context", "headings", "--json").stdout)["outdated"] != []
    )


def test_an_empty_folder_is_an_error_and_leaves_no_index(run, tmp_path):
    done = run("index", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "contains no files to index. Files with these endings" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("context", ["headings", "pattern", "off"])
def test_a_dry_run_says_that_contexts_without_an_llm_cost_nothing(run, tmp_path, context):
    shutil.copytree(NOTES / "docs", tmp_path / "notes")
    done = run("index", tmp_path / "notes", "--context", context, "--dry-run")
    assert done.returncode == 0
    assert f"--context {context} costs nothing" in done.stdout
    assert re.search(r"2 documents of 0\.0 MB to index, about 0\.\d min here", done.stdout)
    assert not storage_of(tmp_path / "notes").exists()
    said = json.loads(
        run("index", tmp_path / "notes", "--context", context, "--dry-run", "--json").stdout
    )
    (tmp_path / "notes" / "slides.pdf").write_bytes(b"%PDF-1.7\n" + b"x" * 999_991)
    with_slides = json.loads(
        run("index", tmp_path / "notes", "--context", context, "--dry-run", "--json").stdout
    )
    assert with_slides["bytes"] == said["bytes"] + 200_000, "most of a PDF is no text"
    (tmp_path / "notes" / "slides.pdf").unlink()
    assert (said["calls"], said["documents"]) == (0, 2)
    assert said["bytes"] == sum(path.stat().st_size for path in (NOTES / "docs").iterdir())


def test_an_index_ends_with_three_lines_of_which_the_last_is_what_to_type(run, tmp_path):
    (tmp_path / "a.md").write_text("# Morning\n\nCookie loves carrots.\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n")
    done, skipped, next_ = run("index", tmp_path).stdout.splitlines()
    assert re.fullmatch(r"1 document, 1 chunk: 1 added; 1 embedded in \d+\.\d s", done)
    assert skipped == "1 file not read: 1 png; --list-skipped names them"
    command = shlex.split(next_.removeprefix("next: "))
    assert "carrots" in run("search", "carrots", *command[3:]).stdout
    assert run("index", tmp_path).stdout.startswith(
        "1 document, 1 chunk: nothing has changed; 0 embedded in "
    )


def test_what_is_not_read_is_said_and_a_pdf_is_no_text(run, tmp_path):
    (tmp_path / "a.md").write_text("# Morning\n\nCookie loves carrots.\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n")
    (tmp_path / "song.mp3").write_bytes(b"ID3")
    note = "2 files not read: 1 mp3, 1 png"
    for command in (["index", "--dry-run"], ["index"], ["status"]):
        done = run(*command, tmp_path)
        assert done.returncode == 0
        assert f"{note}; --list-skipped names them" in done.stdout + done.stderr
    named = run("status", tmp_path, "--list-skipped").stderr
    assert "not read: picture.png\nnot read: song.mp3\n" in named
    (tmp_path / "b.md").symlink_to(tmp_path / "a.md")
    named = run("status", tmp_path, "--list-skipped").stderr
    assert "not read: b.md (a symbolic link)\n" in named
    (tmp_path / "report.pdf").write_bytes(b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\n")
    for patterns in ([], ["--include", "*.pdf", "--include", "*.md"]):
        done = run("index", tmp_path, *patterns)
        assert done.returncode == 3
        assert "not indexed: report.pdf: it is damaged or not a PDF" in done.stderr
    assert "endobj" not in run("search", "endobj", tmp_path).stdout


def test_source_files_that_are_not_read_are_named_with_what_reads_them(run, tmp_path):
    (tmp_path / "a.md").write_text("# Morning\n\nCookie loves carrots.\n")
    (tmp_path / "main.rs").write_text("fn main() {}\n")
    hint = (
        "1 file not read: 1 rs; index --context pattern reads source code; --list-skipped "
        "names them"
    )
    assert hint in run("index", tmp_path).stdout
    (tmp_path / "lib.py").write_text("def walk():\n    pass\n")
    done = run("index", tmp_path, "--context", "pattern", "--include", "*.rs", "--yes")
    assert "2 files not read: 1 md, 1 py; --list-skipped names them" in done.stdout
    (only := tmp_path / "src").mkdir()
    (only / "main.rs").write_text("fn main() {}\n")
    assert "--context pattern for source code" in run("index", only).stderr


def test_a_dry_run_on_an_index_says_what_the_refresh_will_index(run, tmp_path):
    folder = tmp_path / "notes"
    shutil.copytree(NOTES, folder)

    def said(*more):
        return json.loads(run("index", folder, "--dry-run", "--json", *more).stdout)["documents"]

    assert said() == len(json.loads(run("index", folder, "--json").stdout)["added"])
    assert said() == 0
    page = folder / "docs/gateway.md"
    page.write_text(page.read_text("utf-8") + "\n# Zebras\n\nZebras sleep standing.\n", "utf-8")
    (folder / "docs/scheduler.md").unlink()
    (folder / "copy.md").write_text("# Zebras\n\nA new page.\n", "utf-8")
    assert said() == 2
    assert said("--context", "pattern") > 2, "all is made again"


def test_a_dry_run_says_what_llm_contexts_would_cost_and_calls_nothing(run, tmp_path):
    shutil.copytree(NOTES / "docs", tmp_path / "notes")
    unreachable = "openai:gpt-4.1-mini@http://127.0.0.1:9/v1"
    arguments = [
        "index",
        tmp_path / "notes",
        "--context",
        "llm",
        "--llm",
        unreachable,
        "--dry-run",
    ]
    estimate = json.loads(run(*arguments, "--json").stdout)
    assert estimate["calls"] == 2, "a call for each page: a page has no more than eight chunks"
    assert sorted(path.name for path in (tmp_path / "notes").iterdir()) == [
        "gateway.md",
        "scheduler.md",
    ]
    shown = run(*arguments).stdout
    assert "2 calls" in shown
    assert "nothing to pay: the model is on this machine" in shown


def test_a_refresh_that_would_delete_much_names_the_option(run, tmp_path):
    shutil.copytree(NOTES, tmp_path / "notes")
    assert run("index", tmp_path / "notes").returncode == 0
    shutil.rmtree(tmp_path / "notes" / "memory")
    shutil.rmtree(tmp_path / "notes" / "docs")
    done = run("index", tmp_path / "notes")
    assert done.returncode == 1
    assert "to delete them, call refresh(confirm=True), or index --yes." in done.stderr
    assert "6 deleted" in run("index", tmp_path / "notes", "--yes").stdout


@pytest.mark.filterwarnings("ignore::llama_index_contextual.utils.errors.ContextualWarning")
def test_contexts_that_fell_back_are_not_success(run, tmp_path):
    shutil.copytree(NOTES / "docs", tmp_path / "notes")
    command = [
        "index",
        tmp_path / "notes",
        "--context",
        "llm",
        "--llm",
        "openai:m@http://127.0.0.1:9/v1",
    ]
    done = run(*command)
    assert done.returncode == 3
    assert "without a context of llm:m+pattern (" in done.stderr
    assert done.stderr.count("no connection") == 1
    assert "timeout under" not in done.stderr
    held = run("status", tmp_path / "notes")
    assert re.search(r"contexts +(\d+) pattern", held.stdout)


def test_a_missing_key_is_an_error_before_the_first_chunk(run, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    shutil.copytree(NOTES / "docs", tmp_path / "notes")
    done = run("index", tmp_path / "notes", "--context", "llm", "--llm", "openai:gpt-4.1-mini")
    assert (done.returncode, done.stdout) == (1, "")
    assert "needs a key. Set OPENAI_API_KEY" in done.stderr
    assert not (storage_of(tmp_path / "notes") / "index.sqlite3").exists()
