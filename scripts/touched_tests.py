"""Print the test files to run after a change.

Run ``python scripts/touched_tests.py [COMMIT]``; the default is ``HEAD``.

They are the test files that changed since the commit, and those that import a changed module of the
package. For a module that no test imports, they are the tests of its folder.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "llama_index_contextual"


def changed(commit: str) -> list[Path]:
    """Return the files that differ from a commit or are untracked, without deleted ones."""
    commands = (
        ["git", "diff", "--name-only", commit],
        ["git", "ls-files", "--others", "--exclude-standard"],
    )
    output = [
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603
        for command in commands
    ]
    return [path for name in "".join(output).splitlines() if (path := ROOT / name).is_file()]


def tests_of(module: Path) -> set[Path]:
    """Return the test files of a module of the package."""
    name = ".".join(module.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    parent, _, own = name.rpartition(".")
    imports = re.compile(
        rf"^ *(from|import) {re.escape(name)}\b|^ *from {re.escape(parent)} import .*\b{own}\b",
        re.MULTILINE,
    )
    every = sorted((ROOT / "tests").rglob("test_*.py"))
    by_import = {test for test in every if imports.search(test.read_text("utf-8"))}
    return by_import or {
        test for test in every if test.is_relative_to(ROOT / "tests" / name.split(".")[1])
    }


def main() -> None:
    """Print them, a line each."""
    tests: set[Path] = set()
    for path in changed(sys.argv[1] if len(sys.argv) > 1 else "HEAD"):
        if path.is_relative_to(ROOT / PACKAGE) and path.suffix == ".py":
            tests |= tests_of(path)
        elif (
            path.is_relative_to(ROOT / "tests")
            and path.name.startswith("test_")
            and path.suffix == ".py"
        ):
            tests.add(path)
    print("\n".join(str(path.relative_to(ROOT)) for path in sorted(tests)))  # noqa: T201


if __name__ == "__main__":
    main()
