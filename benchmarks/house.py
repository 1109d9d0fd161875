"""How large the package is: files, lines of code, long files, wide constructors and dataclasses, imports across rooms.

    python benchmarks/house.py [FOLDER ...]      # of the package; default: this one

A room is a folder or a file of the plug-in, or of the application below ``app/``. Lines of code are those without
docstrings, comments and blank lines. An import counts once for each file and each file of another room that it names.
The parameters of a constructor are those that the class adds to its LlamaIndex base.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parents[1] / "llama_index_contextual"
# What LlamaIndex's constructors take; a class of ours passes them on.
_NAMES = """
    callback_manager object_map objects verbose include_metadata include_prev_next_rel id_func use_async
    query_gen_prompt alpha doc_ids embed_model filters hybrid_top_k llm node_ids num_queries
    retriever_weights similarity_top_k sparse_top_k vector_store_query_mode
"""
OF_LLAMA_INDEX = set(_NAMES.split())


class Widest(NamedTuple):
    """The largest count of something, and where it is."""

    count: int
    place: str


def code_lines(source: str) -> int:
    """Number of lines that are neither blank nor a docstring or comment."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                prose.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(bool(line.strip()) and line.strip()[0] != "#" and number not in prose for number, line in lines)


def room_of(parts: tuple[str, ...]) -> str:
    """Name of the room of a file, from its path below the package."""
    inner = parts[:2] if parts[0] == "app" else parts[:1]
    return "/".join(inner).removesuffix(".py")


def crossings(package: Path, path: Path) -> set[str]:
    """Modules of other rooms that a file imports."""
    room = room_of(path.relative_to(package).parts)
    named = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == package.name:
            inner = tuple(node.module.split(".")[1:])
            targets = [inner] if inner and inner != ("app",) else [(*inner, alias.name) for alias in node.names]
            named |= {".".join(target) for target in targets if room_of(target) != room}
    return named


def parameters(node: ast.ClassDef) -> int:
    """Number of parameters of a constructor, without LlamaIndex's and without ``self``."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            named = [*item.args.posonlyargs, *item.args.args[1:], *item.args.kwonlyargs]
            return sum(one.arg not in OF_LLAMA_INDEX for one in named)
    return 0


def fields(node: ast.ClassDef) -> int:
    """Number of fields of a dataclass or NamedTuple; 0 of another class."""
    decorators = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
    plain = any(isinstance(one, ast.Name) and one.id == "dataclass" for one in decorators)
    plain = plain or any(isinstance(one, ast.Name) and one.id == "NamedTuple" for one in node.bases)
    return sum(isinstance(item, ast.AnnAssign) for item in node.body) if plain else 0


def row(package: Path) -> list[object]:
    """Counts of a package, in the order of the table's head."""
    sources = {path.relative_to(package).as_posix(): path.read_text("utf-8") for path in sorted(package.rglob("*.py"))}
    lines = {name: code_lines(source) for name, source in sources.items()}
    plug_in = [count for name, count in lines.items() if not name.startswith(("app/", "__main__"))]
    classes = [
        (name, node)
        for name, source in sources.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    ]
    longest = max(Widest(len(source.splitlines()), name) for name, source in sources.items())
    widest = max(Widest(parameters(node), f"{name}:{node.name}") for name, node in classes)
    fullest = max(Widest(fields(node), f"{name}:{node.name}") for name, node in classes)
    return [
        f"{len(lines)}, {sum(lines.values()):,}",
        f"{len(plug_in)}, {sum(plug_in):,}",
        *(f"{one.count} ({one.place})" for one in (longest, widest, fullest)),
        sum(len(crossings(package, package / name)) for name in sources),
    ]


def main() -> None:
    """Print a table with a column for each package."""
    packages = [Path(name) / PACKAGE.name for name in sys.argv[1:]] or [PACKAGE]
    head = [
        "files, lines of code",
        "plug-in alone",
        "longest file",
        "most parameters of a constructor",
        "most fields of a dataclass",
        "imports across rooms",
    ]
    for name, *counts in zip(head, *map(row, packages), strict=True):
        print(f"{name}: {'; '.join(map(str, counts))}")


if __name__ == "__main__":
    main()
