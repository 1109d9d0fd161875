"""The plug-in never imports the application, and no files import one another in a circle.

Imports for type checkers count too: a reader follows them like all others.
"""

from __future__ import annotations

import ast
import importlib
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "llama_index_contextual"
NAME = PACKAGE.name


def modules() -> dict[str, Path]:
    file_of = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = [NAME, *path.relative_to(PACKAGE).with_suffix("").parts]
        if parts[-1] == "__init__" and len(parts) > 2:
            parts.pop()
        file_of[".".join(parts)] = path
    return file_of


def imports(path: Path, known: set[str]) -> set[str]:
    """Return the modules of this package that a file imports."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == NAME:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                imported.add(inner if inner in known else str(node.module))
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names if alias.name.split(".")[0] == NAME}
    return {name if name in known else f"{NAME}.__init__" for name in imported}


MODULES = modules()
IMPORTS = {name: imports(path, set(MODULES)) for name, path in MODULES.items()}


def is_of_the_application(module: str) -> bool:
    return module.startswith((f"{NAME}.app", f"{NAME}.__main__"))


@pytest.mark.parametrize("module", [name for name in MODULES if not is_of_the_application(name)])
def test_the_plug_in_never_imports_the_application(module):
    assert not [target for target in sorted(IMPORTS[module]) if is_of_the_application(target)]


def test_no_files_import_one_another_in_a_circle():
    graph = {name: targets - {name, f"{NAME}.__init__"} for name, targets in IMPORTS.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"circle of imports: {' -> '.join(error.args[1])}")


def test_no_name_of_a_package_hides_one_of_its_files():
    plug_in = [
        name
        for name in MODULES
        if not is_of_the_application(name) and not name.endswith("__init__")
    ]
    loaded = {name: importlib.import_module(name) for name in plug_in}
    assert len(loaded) > 40
    for name, module in loaded.items():
        package, _, file = name.rpartition(".")
        assert getattr(importlib.import_module(package), file) is module


def test_the_page_on_design_names_existing_files():
    page = (PACKAGE.parent / "docs" / "concepts" / "design.md").read_text("utf-8")
    walks = page.partition("## From a document")[2].partition("## Files on disk")[0]
    files = set(re.findall(r"`((?:app/)?[a-z_]+/[a-z_]+)(?::\w+)?`", walks))
    assert len(files) > 10
    assert not [name for name in files if not (PACKAGE / f"{name}.py").is_file()]
    assert len(page.split()) <= 1_700, "two pages"
