"""Change a module in one place at a time, and count how many of the changes its tests notice.

    python benchmarks/mutations.py MODULE.py... --tests TEST.py... --sample 30

It swaps comparisons, changes constants, drops operands and statements, and negates conditions. A
change that no test notices is printed with its line. Messages, annotations and decorators stay.

It works in a copy of the tree. The tests run once with a trace of the lines that each of them
reaches. Then each change is tried with the tests that reach its line, the fastest first, in a
process that is forked after all libraries are imported. So it needs Linux or macOS.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import FrameType

ROOT: Final = Path(__file__).resolve().parents[1]
NOT_SHARED: Final = "lancedb"  # a library that can block after a fork
SLOW: Final = "not (kill or server or process or long)"
MAX_SECONDS: Final = 90  # that the tests of a change may run: a loop without an end is noticed
MAX_TEST_SECONDS: Final = 30.0  # of the tests that are chosen for a change
MAX_TEXT: Final = 40  # characters of a text that is changed; longer ones are messages
COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.Pow: ast.Mult,
}
NodeT = TypeVar("NodeT", bound=ast.AST)


class Mutation(NamedTuple):
    """A change: the line of the module, and what is changed there."""

    line: int
    what: str


class Mutator(ast.NodeTransformer):
    """Lists the possible changes of a syntax tree, and makes one of them.

    Attributes:
        chosen: The number of the change to make; None makes none.
        mutations: The changes that were met so far.
    """

    def __init__(self, chosen: int | None = None) -> None:
        self.chosen = chosen
        self.mutations: list[Mutation] = []

    def _offer(self, node: NodeT, what: str, changed: ast.AST) -> Any:
        """Return the node, or what it is changed to if this change is the chosen one."""
        is_chosen = len(self.mutations) == self.chosen
        self.mutations.append(Mutation(getattr(node, "lineno", 0), what))
        return ast.copy_location(changed, node) if is_chosen else node

    def _with(self, node: NodeT, **values: Any) -> NodeT:
        """Return a copy of a node with other values."""
        changed = copy.copy(node)
        for name, value in values.items():
            setattr(changed, name, value)
        return changed

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """Change the body and the defaults of a function."""
        node.args.defaults = [self.visit(default) for default in node.args.defaults]
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        """Change the body and the defaults of a function."""
        return self.visit_FunctionDef(node)  # type: ignore[arg-type]  # it has the same fields

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        """Change the body of a class."""
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Change the value of a variable, and not its type."""
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Raise(self, node: ast.Raise) -> Any:
        """Leave errors and their messages as they are."""
        return node

    def visit_Compare(self, node: ast.Compare) -> Any:
        """Swap each comparison."""
        self.generic_visit(node)
        for place, operator in enumerate(node.ops):
            swapped = COMPARISONS[type(operator)]
            ops = [*node.ops[:place], swapped(), *node.ops[place + 1 :]]
            what = f"{type(operator).__name__} to {swapped.__name__}"
            node = self._offer(node, what, self._with(node, ops=ops))
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """Swap ``and`` and ``or``, and drop each operand."""
        self.generic_visit(node)
        values = node.values
        operator = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        result = self._offer(node, "and and or swapped", self._with(node, op=operator))
        for place in range(len(values)):
            remaining = [*values[:place], *values[place + 1 :]]
            dropped = remaining[0]
            if len(remaining) > 1:
                dropped = self._with(node, values=remaining)
            result = self._offer(result, f"operand {place} dropped", dropped)
        return result

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        """Drop ``not``."""
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return self._offer(node, "not dropped", node.operand)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        """Swap an operator."""
        self.generic_visit(node)
        swapped = OPERATORS.get(type(node.op))
        if swapped is None:
            return node
        what = f"{type(node.op).__name__} to {swapped.__name__}"
        return self._offer(node, what, self._with(node, op=swapped()))

    def visit_keyword(self, node: ast.keyword) -> Any:
        """Leave ``strict=True`` of ``zip``, which states what holds anyway."""
        return node if node.arg == "strict" else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> Any:
        """Change a number, a truth value or a short text."""
        value = node.value
        changed: object
        if isinstance(value, bool):
            changed = not value
        elif isinstance(value, int):
            changed = value + 1
        elif isinstance(value, float):
            changed = 1.5 * value + 0.1
        elif isinstance(value, str) and len(value) <= MAX_TEXT:
            changed = value[:-1] or f"{value}¤"
        else:
            return node
        what = f"{value!r} to {changed!r}"
        return self._offer(node, what, self._with(node, value=changed))

    def visit_Expr(self, node: ast.Expr) -> Any:
        """Drop a statement that calls something; a docstring stays."""
        if not isinstance(node.value, ast.Call | ast.Await):
            return node
        self.generic_visit(node)
        return self._offer(node, "statement dropped", ast.Pass())

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        """Drop an assignment such as ``+=``."""
        self.generic_visit(node)
        return self._offer(node, "statement dropped", ast.Pass())

    def visit_Return(self, node: ast.Return) -> Any:
        """Return nothing."""
        if node.value is None or ast.unparse(node.value) == "None":
            return node
        self.generic_visit(node)
        return self._offer(node, "returns None", ast.Return(ast.Constant(None)))

    def visit_If(self, node: ast.If) -> Any:
        """Negate a condition."""
        is_for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        if is_for_types:
            return node
        self.generic_visit(node)
        negated = self._with(node, test=ast.UnaryOp(ast.Not(), node.test))
        return self._offer(node, "condition negated", negated)


class Reached:
    """A plug-in of pytest that records which lines each test reaches, and how long it takes.

    Args:
        files: The modules that are traced.

    Attributes:
        lines: The files and lines that each test reaches.
        seconds: How long each test takes.
        failed: The tests that fail without a change.
        libraries: The modules that the tests import from outside of the project.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self.files = frozenset(map(str, files))
        self.lines: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()
        self.libraries: list[str] = []
        self._current: set[tuple[str, int]] = set()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        file = frame.f_code.co_filename
        if file not in self.files:
            return None
        if event == "line":
            self._current.add((file, frame.f_lineno))
        return self._trace

    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        """Begin to trace a test."""
        self._current = self.lines[item.nodeid]
        sys.settrace(self._trace)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record how long a test took, and whether it failed."""
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Record which libraries were imported."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and not Path(file).is_relative_to(Path.cwd()):
                self.libraries.append(name)

    def tests_of(self, file: Path, lines: range) -> list[str]:
        """Return the fastest tests that reach some lines, as many as take little time."""
        tests = [
            test
            for test, reached in self.lines.items()
            if test not in self.failed and any((str(file), line) in reached for line in lines)
        ]
        tests.sort(key=self.seconds.__getitem__)
        totals = accumulate(self.seconds[test] for test in tests)
        return [
            test for test, total in zip(tests, totals, strict=True) if total <= MAX_TEST_SECONDS
        ]


def run_tests(arguments: Sequence[str], plugin: Reached | None = None) -> int:
    """Run pytest in a forked process and return its exit code; 1 if it takes too long."""
    with tempfile.NamedTemporaryFile() as record:
        process = os.fork()
        if process == 0:
            os.setsid()
            # The traced run compiles the tests and the unchanged modules for all others.
            sys.dont_write_bytecode = plugin is None
            output = os.open(os.devnull, os.O_WRONLY)
            os.dup2(output, 1)
            os.dup2(output, 2)
            plugins = [] if plugin is None else [plugin]
            options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", SLOW]
            code = int(pytest.main([*options, *arguments], plugins=plugins))
            if plugin is not None:
                sys.settrace(None)
                values = (
                    dict(plugin.lines),
                    dict(plugin.seconds),
                    plugin.failed,
                    plugin.libraries,
                )
                Path(record.name).write_bytes(pickle.dumps(values))
            os._exit(code)
        deadline = None if plugin is not None else time.monotonic() + MAX_SECONDS
        ended, status = os.waitpid(process, os.WNOHANG)
        while not ended:
            time.sleep(0.02)
            if deadline is not None and time.monotonic() > deadline:
                os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)
                return 1
            ended, status = os.waitpid(process, os.WNOHANG)
        if plugin is not None:
            values = pickle.loads(Path(record.name).read_bytes())  # noqa: S301
            lines, seconds, plugin.failed, plugin.libraries = values
            plugin.lines.update(lines)
            plugin.seconds.update(seconds)
    return os.waitstatus_to_exitcode(status)


def statement_lines(tree: ast.Module, line: int) -> range:
    """Return the lines of the simple statement at a line, or else the line."""
    for node in ast.walk(tree):
        is_compound = hasattr(node, "body") or isinstance(node, ast.Match)
        if isinstance(node, ast.stmt) and not is_compound:
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if line in lines:
                return lines
    return range(line, line + 1)


def try_mutations(file: Path, reached: Reached, sample: int, seed: int) -> str:
    """Try changes of a module, print those that no test notices, and return a row of the table."""
    text = file.read_text("utf-8")
    tree = ast.parse(text)
    listing = Mutator()
    listing.visit(copy.deepcopy(tree))
    numbers = [
        number
        for number, mutation in enumerate(listing.mutations)
        if reached.tests_of(file, statement_lines(tree, mutation.line))
    ]
    chosen = sorted(random.Random(seed).sample(numbers, min(sample, len(numbers))))  # noqa: S311
    noticed = 0
    for number in chosen:
        mutation = listing.mutations[number]
        changed = Mutator(number).visit(copy.deepcopy(tree))
        file.write_text(ast.unparse(ast.fix_missing_locations(changed)), "utf-8")
        tests = reached.tests_of(file, statement_lines(tree, mutation.line))
        if run_tests(["-x", *tests]):
            noticed += 1
        else:
            line = text.splitlines()[mutation.line - 1].strip()
            print(f"not noticed: {file.name}:{mutation.line}: {mutation.what}: {line}")
    file.write_text(text, "utf-8")
    return f"| `{file.name}` | {len(listing.mutations)} | {len(chosen)} | {noticed} |"


def main() -> None:
    """Try changes of some modules and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="+", help="modules to change, relative to the project")
    parser.add_argument("--tests", nargs="+", required=True, help="their tests")
    parser.add_argument("--sample", type=int, default=30, help="changes to try in each module")
    parser.add_argument("--seed", type=int, default=7, help="of the choice of changes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        left_out = shutil.ignore_patterns(".*", "__pycache__", "site")
        shutil.copytree(ROOT, project, ignore=left_out)
        os.chdir(project)
        sys.path[:] = [str(project), *(path for path in sys.path if path != str(ROOT))]
        os.environ |= {"PYTHONPATH": str(project), "CI": "1"}  # CI: hypothesis repeats its examples
        os.environ.setdefault("LLAMA_INDEX_CONTEXTUAL_DATA", str(ROOT.parent / "shared" / "data"))
        files = [project / module for module in options.modules]
        reached = Reached(files)
        run_tests(options.tests, reached)
        for name in reached.libraries:
            if not name.startswith(NOT_SHARED):
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        rows = [try_mutations(file, reached, options.sample, options.seed) for file in files]
    print("| module | possible changes | tried | noticed |\n|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
