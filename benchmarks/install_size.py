"""What `pip install` brings: megabytes and packages by extras. It needs PyPI.

Each row is an environment of its own, without pip. A package's megabytes are those of its files, with what Python
compiles of them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from datetime import datetime, timezone
from importlib.metadata import Distribution, distributions
from pathlib import Path
from platform import machine, python_version, system

import tomllib

ROOT = Path(__file__).resolve().parents[1]
LLAMA_INDEX = "the four LlamaIndex packages"
ROWS = ("", "local", "app,local", "app,local,documents", "local,chroma", "app,local,documents,chroma,llm")


def installed(folder: Path, *requirements: str) -> list[Distribution]:
    """Install into a new environment, and return what is there."""
    venv.create(folder, with_pip=False)
    command = [sys.executable, "-m", "pip", "--python", str(folder), "install", "--quiet", *requirements]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)  # noqa: S603
    [packages] = folder.glob("lib/*/site-packages")
    return list(distributions(path=[str(packages)]))


def megabytes(package: Distribution) -> float:
    """Return what the files of a package take."""
    files = {Path(str(package.locate_file(file))).resolve() for file in package.files or ()}
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def main() -> None:
    """Print the tables."""
    today = datetime.now(timezone.utc).date()
    print(f"{today}, {system()} {machine()}, CPython {python_version()}\n")
    print("| installed | packages | MB |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
        first = [need for need in declared if need.startswith("llama-index-")]
        rows = {LLAMA_INDEX: first} | {
            f"`[{row}]`" if row else "the base": [f"{ROOT}[{row}]" if row else str(ROOT)] for row in ROWS
        }
        for number, (name, requirements) in enumerate(rows.items()):
            found = installed(Path(folder, str(number)), *requirements)
            print(f"| {name} | {len(found)} | {sum(map(megabytes, found)):.0f} |", flush=True)


if __name__ == "__main__":
    main()
