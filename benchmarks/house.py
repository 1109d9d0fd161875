"""Measure how readable the package is, in units that dense code cannot fake.

    python benchmarks/house.py

It prints counts of the source, of the plug-in and of the application, and the walk of one warm
query through the pipeline of the README: calls, files, and moves from one file to another.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import threading
import tokenize
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from common import markdown_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = ROOT / "llama_index_contextual"
LAYOUT: Final = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.COMMENT,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
VAGUE_NAMES: Final = frozenset(
    "one ones at found others rest both near wanted several again met of".split()  # noqa: SIM905
)
NOT_IMPERATIVE: Final = re.compile(
    r"^(The|A|An|What|Whether|Those|How|Of|Its|Their|No|Each|One|Every)\b"
)
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED: Final = (ast.Module, ast.ClassDef, *FUNCTIONS)


def docstring_of(node: ast.AST) -> ast.Constant | None:
    """Return the docstring of a module, class or function as a node of the syntax tree."""
    if not isinstance(node, DOCUMENTED) or not node.body:
        return None
    first = node.body[0]
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
        return None
    return first.value if isinstance(first.value.value, str) else None


def count_docstrings(tree: ast.Module, counts: Counter[str]) -> set[int]:
    """Count docstrings, remove them from the tree, and return the lines that they stood in."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        docstring = docstring_of(node)
        if docstring is None or not isinstance(node, DOCUMENTED):
            continue
        lines.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
        if isinstance(node, FUNCTIONS):
            counts["docstrings"] += 1
            counts["not imperative"] += bool(NOT_IMPERATIVE.match(str(docstring.value).strip()))
        node.body = node.body[1:] or [ast.Pass()]
    return lines


def count_tokens(source: str, docstring_lines: set[int], counts: Counter[str]) -> None:
    """Count tokens and the lines that hold them, without layout, comments and docstrings."""
    code_lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT and token.start[0] not in docstring_lines:
            counts["tokens"] += 1
            code_lines.update(range(token.start[0], token.end[0] + 1))
    counts["code lines"] += len(code_lines)


def count_syntax(tree: ast.Module, counts: Counter[str]) -> None:
    """Count the nodes of a syntax tree, and those that make code hard to read."""
    for node in ast.walk(tree):
        counts["nodes"] += 1
        counts["statements"] += isinstance(node, ast.stmt)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            counts["vague names"] += node.id in VAGUE_NAMES
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            counts["tuple assignments"] += isinstance(node.targets[0], ast.Tuple)
        if isinstance(node, ast.ImportFrom):
            counts["star imports"] += any(alias.name == "*" for alias in node.names)


def measure(paths: Iterable[Path]) -> dict[str, float]:
    """Return the figures of some files."""
    counts = Counter[str]()
    for path in paths:
        source = path.read_text("utf-8")
        tree = ast.parse(source)
        counts["files"] += 1
        count_tokens(source, count_docstrings(tree, counts), counts)
        count_syntax(tree, counts)
        if path.name == "__init__.py":
            definitions = (ast.FunctionDef, ast.ClassDef)
            counts["in __init__"] += sum(isinstance(node, definitions) for node in tree.body)
    return {
        "files": counts["files"],
        "code lines": counts["code lines"],
        "tokens": counts["tokens"],
        "tokens per code line": counts["tokens"] / counts["code lines"],
        "AST nodes per statement": counts["nodes"] / counts["statements"],
        "tuple assignments per 100 statements": 100
        * counts["tuple assignments"]
        / counts["statements"],
        "vague names": counts["vague names"],
        "docstrings that are not imperative, %": 100
        * counts["not imperative"]
        / max(1, counts["docstrings"]),
        "star imports": counts["star imports"],
        "functions and classes in `__init__` files": counts["in __init__"],
    }


class Walk:
    """The calls of functions of the package while a query is answered."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def trace(self, frame: Any, event: str, _: object) -> None:
        """Record a call; comprehensions and the like are no functions of their own."""
        code = frame.f_code
        is_named = not code.co_name.startswith("<")
        if event == "call" and is_named and code.co_filename.startswith(str(PACKAGE)):
            self.files.append(code.co_filename)

    def describe(self) -> str:
        """Return calls, files, and moves between files."""
        moves = sum(before != after for before, after in zip(["", *self.files], self.files))  # noqa: B905
        return f"{len(self.files)} calls, {len(set(self.files))} files, {moves} moves between files"


def walk() -> str:
    """Trace one warm query through the pipeline of the README."""
    from llama_index.core import SimpleDirectoryReader, VectorStoreIndex

    import llama_index_contextual as package
    from llama_index_contextual.app import LocalEmbedding

    reader = SimpleDirectoryReader(str(ROOT / "examples" / "notes"), recursive=True)
    chunks = package.HeadingAwareMarkdownNodeParser()(reader.load_data())
    nodes = package.ContextualNodePostprocessor()(chunks)
    index = VectorStoreIndex(nodes, embed_model=LocalEmbedding())
    retrievers = [package.ContextualVectorRetriever(index), package.ContextualBM25Retriever(nodes)]
    fusion = package.ContextualFusionRetriever(retrievers, similarity_top_k=3)
    fusion.retrieve("What is the default timeout of the gateway?")
    calls = Walk()
    threading.setprofile(calls.trace)
    sys.setprofile(calls.trace)
    try:
        fusion.retrieve("How long does the scheduler wait?")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls.describe()


def table(parts: dict[str, Sequence[Path]]) -> str:
    """Return the figures of some parts of the package as a table."""
    figures = {name: measure(paths) for name, paths in parts.items()}
    rows: list[list[object]] = []
    for label in next(iter(figures.values())):
        values = [f"{figures[name][label]:,.1f}".removesuffix(".0") for name in parts]
        rows.append([label, *values])
    return markdown_table(["", *parts], rows)


def main() -> None:
    """Print all figures."""
    warnings.simplefilter("ignore")
    paths = sorted(PACKAGE.rglob("*.py"))
    application = PACKAGE / "app"
    parts = {
        "all": paths,
        "plug-in": [path for path in paths if application not in path.parents],
        "application": [path for path in paths if application in path.parents],
    }
    print(table(parts))
    print(f"\none warm query: {walk()}")


if __name__ == "__main__":
    main()
