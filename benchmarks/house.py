"""How large the package is: files, lines, files that are crowded or crumbs, and imports from one room into another.

    python benchmarks/house.py [FOLDER ...]      # of the package; default: this one

A room is a folder or a file of the package. Lines of code are those without docstrings, comments and blank lines. An
import counts once for each file and each file of another room that it names; an ``__init__`` counts as a file.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from common import markdown_table

PACKAGE = Path(__file__).resolve().parents[1] / "llama_index_contextual"
CROWDED, CRUMB = 420, 100


def code_lines(source: str) -> int:
    """Lines that are neither blank nor part of a docstring or a comment of their own."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                prose.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(bool(line.strip()) and line.strip()[0] != "#" and number not in prose for number, line in lines)


def crossings(package: Path, path: Path) -> set[str]:
    """The modules of other rooms that a file names in its imports."""
    own = path.relative_to(package).parts[0].removesuffix(".py")
    named = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == package.name:
            inner = node.module.split(".")[1:]
            rooms = {inner[0]} if inner else {alias.name for alias in node.names}
            named |= {node.module if inner else f"{node.module}.{room}" for room in rooms - {own}}
    return named


def row(package: Path) -> list[object]:
    """The counts of a package."""
    files = {path: path.read_text("utf-8") for path in sorted(package.rglob("*.py"))}
    lines = {path: len(text.splitlines()) for path, text in files.items()}
    crumbs = sum(count <= CRUMB and not path.name.startswith("__") for path, count in lines.items())
    return [
        len(files),
        sum(lines.values()),
        sum(map(code_lines, files.values())),
        sum(count > CROWDED for count in lines.values()),
        crumbs,
        sum(len(crossings(package, path)) for path in files),
    ]


def main() -> None:
    """Print a row for each package."""
    head = ["files", "lines", "lines of code", f"files above {CROWDED} lines", f"files up to {CRUMB}", "crossings"]
    packages = [Path(name) / PACKAGE.name for name in sys.argv[1:]] or [PACKAGE]
    print(markdown_table(head, [row(package) for package in packages]))


if __name__ == "__main__":
    main()
