"""The command line imports what a command needs, and every name is the same as elsewhere."""

import os
import subprocess
import sys

import pytest
from command_line import ROOT

from llama_index_contextual.app.index import ContextualIndex

# Each takes a tenth of a second or more, and a question needs none of them.
NEEDLESS = {
    "chromadb",
    "nltk",
    "pandas",
    "openai",
    "mcp",
    "ray",
    "scipy.sparse.linalg",
    "requests.api",
    "banks",
    "llama_index.core.agent",
    "llama_index.core.memory.memory",
    "llama_index_contextual.context.models",
    "llama_index_contextual.app.evaluation.comparison",
    "llama_index_contextual.app.index.refresh",
    "llama_index_contextual.memory.adapters",
}


def python(code, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("imports")
    (found / "2026-01-28.md").write_text("# Morning\n\nJC's dog Cookie loves carrots.\n")
    with ContextualIndex.open(found) as index:
        index.refresh()
    return found


@pytest.mark.parametrize("command", ["search", "context"])
def test_a_question_imports_what_it_needs(folder, command):
    code = """
import sys
from llama_index_contextual.app.cli import main
try:
    main()
finally:
    print("\\n".join(sys.modules))
"""
    shown = python(code, command, "Which vegetable does Cookie love?", "-f", folder)
    assert "loves carrots" in shown
    assert NEEDLESS.isdisjoint(shown.splitlines())


def test_every_name_of_a_package_is_what_the_package_means():
    code = """
import ast, importlib, pkgutil, sys
from pathlib import Path
from llama_index_contextual.app.cli.imports import import_late
import_late()
import llama_index.core, llama_index_contextual
late = {}
for root in (llama_index.core, llama_index_contextual):
    for found in pkgutil.walk_packages(root.__path__, root.__name__ + ".", onerror=lambda name: None):
        file = Path(found.module_finder.path, found.name.rpartition(".")[2], "__init__.py")
        if found.ispkg and file.exists():
            package = importlib.import_module(found.name)
            for line in ast.parse(file.read_text("utf-8")).body:
                for alias in line.names if isinstance(line, ast.ImportFrom) else ():
                    name = alias.asname or alias.name
                    late[found.name, name] = getattr(package, name)
print(len(late))
assert llama_index.core.Settings is importlib.import_module("llama_index.core.settings").Settings
assert llama_index.core.global_handler is None
assert "." in llama_index.core.__version__
from llama_index.core import *  # has it run, as always
for (package, name), found in late.items():
    assert getattr(sys.modules[package], name) is found
assert VectorStoreIndex is late["llama_index.core.indices", "VectorStoreIndex"]
assert not hasattr(llama_index.core, "no_such_name")
"""
    assert int(python(code)) > 300


def test_a_program_of_ones_own_imports_llama_index_as_always():
    code = "import sys, llama_index_contextual.app.cli, llama_index.core as c; print('VectorStoreIndex' in vars(c))"
    assert python(code).strip() == "True"
