"""The words of the code: docstrings name what a function returns, and names are nouns of the field."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "llama_index_contextual"
FILES = sorted(PACKAGE.rglob("*.py"))
OPENINGS = re.compile(r"Return what|Hold |Do the same|Say ")
WORDS = {"said", "told", "given", "gone", "asked"}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def names_in(node: ast.AST) -> list[str]:
    """The names that a node of a syntax tree brings in."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.arg):
        return [node.arg]
    stored = isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store)
    return [node.id if isinstance(node, ast.Name) else node.attr] if stored else []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_docstrings_and_names_are_plain(file):
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, DOCUMENTED):
            assert not OPENINGS.match(ast.get_docstring(node) or ""), ast.get_docstring(node)
        for name in names_in(node):
            parts = name.lower().strip("_").split("_")
            assert not WORDS.intersection(parts), name
            assert parts[0] != "own", name
