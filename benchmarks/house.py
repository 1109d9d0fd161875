"""How large the package is: files, lines of code, long files, wide constructors and dataclasses, imports across rooms.

    python benchmarks/house.py

A room is a folder or a file of the plug-in, or of the application below ``app/``. Lines of code are those without
docstrings, comments and blank lines. An import counts once for each file and each file of another room that it names.
The parameters of a constructor are those that the class adds to its LlamaIndex base.
"""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "llama_index_contextual"
# What LlamaIndex's constructors take; a class of ours passes them on.
_NAMES = """
    callback_manager object_map objects verbose include_metadata include_prev_next_rel id_func use_async
    query_gen_prompt alpha doc_ids embed_model filters hybrid_top_k llm node_ids num_queries
    retriever_weights similarity_top_k sparse_top_k vector_store_query_mode
"""
OF_LLAMA_INDEX = set(_NAMES.split())


def code_lines(source: str) -> int:
    """Number of lines that are neither blank nor a docstring or comment."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                prose.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(
        bool(line.strip()) and line.strip()[0] != "#" and number not in prose
        for number, line in lines
    )


def room_of(parts: tuple[str, ...]) -> str:
    """Name of the room of a file, from its path below the package."""
    inner = parts[:2] if parts[0] == "app" else parts[:1]
    return "/".join(inner).removesuffix(".py")


def crossings(name: str, tree: ast.Module) -> int:
    """How many modules of other rooms a file imports."""
    room, named = room_of(tuple(name.split("/"))), set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] == PACKAGE.name
        ):
            inner = tuple(node.module.split(".")[1:])
            targets = (
                [inner]
                if inner and inner != ("app",)
                else [(*inner, alias.name) for alias in node.names]
            )
            named |= {target for target in targets if room_of(target) != room}
    return len(named)


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


def main() -> None:
    """Print the counts."""
    sources = {
        path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    trees = {name: ast.parse(source) for name, source in sources.items()}
    lines = {name: code_lines(source) for name, source in sources.items()}
    plug_in = [count for name, count in lines.items() if not name.startswith(("app/", "__main__"))]
    classes = [
        (name, node)
        for name in trees
        for node in ast.walk(trees[name])
        if isinstance(node, ast.ClassDef)
    ]
    print(f"files, lines of code: {len(lines)}, {sum(lines.values()):,}")
    print(f"plug-in alone: {len(plug_in)}, {sum(plug_in):,}")
    longest = max((len(source.splitlines()), name) for name, source in sources.items())
    widest = max((parameters(node), f"{name}:{node.name}") for name, node in classes)
    fullest = max((fields(node), f"{name}:{node.name}") for name, node in classes)
    print("longest file: {} ({})".format(*longest))
    print("most parameters of a constructor: {} ({})".format(*widest))
    print("most fields of a dataclass: {} ({})".format(*fullest))
    print(f"imports across rooms: {sum(crossings(*one) for one in trees.items())}")


if __name__ == "__main__":
    main()
