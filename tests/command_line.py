"""The command line, run in a process of its own or in this one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest

from llama_index_contextual.app.cli import main

NOTES = Path(__file__).parents[1] / "examples" / "notes"

ROOT = Path(__file__).parents[1]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run_process(*arguments, **variables):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", **variables}
    command = [sys.executable, "-m", "llama_index_contextual", *map(str, arguments)]
    encoding = variables.get("PYTHONIOENCODING", "utf-8")
    return subprocess.run(  # noqa: S603
        command, capture_output=True, encoding=encoding, check=False, env=environment
    )


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command line in this process: starting Python and chromadb anew takes seconds."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["llama-index-contextual", *map(str, arguments)])
        monkeypatch.setattr(
            warnings, "showwarning", warnings.showwarning
        )  # restore what main() sets
        code = 0
        try:
            main()
        except SystemExit as done:
            code = int(done.code or 0)
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return call


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    """Return a copy of the example notes, indexed from the command line."""
    folder = tmp_path_factory.mktemp("cli") / "notes"
    shutil.copytree(NOTES, folder)
    done = run_process("index", folder)
    assert done.returncode == 0
    assert all(line.startswith("Indexing: ") for line in done.stderr.splitlines()), (
        "only how far it is"
    )
    assert "7 added" in done.stdout
    return folder
