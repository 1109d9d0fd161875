import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from llama_index_contextual.app.cli import app
from llama_index_contextual.utils.errors import DocumentError, SettingError

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def evaluate(tmp_path):
    shutil.copytree(EXAMPLES / "notes", tmp_path / "notes")

    def call(*more, questions=EXAMPLES / "questions.jsonl"):
        arguments = [
            "evaluate",
            str(tmp_path / "notes"),
            "-q",
            str(questions),
            "--context",
            "headings",
            *more,
        ]
        return CliRunner().invoke(app, arguments)

    return call


@pytest.mark.long
def test_the_report_says_what_contexts_find_and_which_questions_changed(evaluate):
    done = evaluate("--top-k", "1", "--top-k", "5")
    assert done.exit_code == 0, done.output
    table = done.stdout.splitlines()
    assert table[0].split()[2:5] == ["@1", "@5", "MRR@10"]
    assert [line.split("  ")[0] for line in table[1:3]] == ["text alone", "headings"]
    # How many were gained differs by one where another onnxruntime rounds differently.
    start = next(
        n
        for n, line in enumerate(table)
        if line.startswith("headings gained ") and line.endswith(" at 1:")
    )
    assert "  What is the default timeout of the gateway?" in table[start:]
    assert "Indexing" in done.stderr
    assert "Indexing" not in done.stdout


@pytest.mark.long
def test_json_output_is_only_json(evaluate):
    data = json.loads(evaluate("--json").stdout)
    assert [row["name"] for row in data["rows"]] == ["text alone", "headings"]
    assert set(data["rows"][1]["recall"]) == {"5", "10", "20"}
    assert set(data["rows"][1]["difference"]) == {"5", "10", "20"}


def test_a_wrong_file_of_questions_is_an_error_that_names_it(evaluate, tmp_path):
    (tmp_path / "q.jsonl").write_text('{"question": "Why?"}', "utf-8")
    error = evaluate(questions=tmp_path / "q.jsonl").exception
    assert isinstance(error, DocumentError)  # main() makes one line of it
    assert "q.jsonl:1: " in str(error)


def test_questions_of_which_no_answer_is_in_the_folder_measure_nothing(evaluate, tmp_path):
    (tmp_path / "q.jsonl").write_text('{"question": "Why?", "path": "nowhere.md"}\n', "utf-8")
    error = evaluate(questions=tmp_path / "q.jsonl").exception
    assert isinstance(error, SettingError)
    assert "1 answer in no chunk: 'Why?' (nowhere.md)" in str(error)
