"""What `pip install` brings: megabytes and packages by extras, and which packages are the largest. It needs PyPI.

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
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LLAMA_INDEX = "the four LlamaIndex packages"
ROWS = ("", "local", "app,local", "app,local,documents", "local,chroma", "app,local,documents,chroma,llm")
SHOWN = 14


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


def needed_by(package: Distribution, packages: list[Distribution]) -> str:
    """Return which of the packages ask for one, whatever their extras are."""
    name = canonicalize_name(package.name)
    return ", ".join(
        sorted(
            other.name
            for other in packages
            if any(
                canonicalize_name(need.name) == name and (need.marker is None or need.marker.evaluate({"extra": ""}))
                for need in map(Requirement, other.requires or ())
            )
        )
    )


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
        found = {}
        for number, (name, requirements) in enumerate(rows.items()):
            found[name] = installed(Path(folder, str(number)), *requirements)
            print(f"| {name} | {len(found[name])} | {sum(map(megabytes, found[name])):.0f} |", flush=True)
        known = {canonicalize_name(package.name) for package in found[LLAMA_INDEX]}
        for name in ("the base", f"`[{ROWS[-1]}]`"):
            new = [package for package in found[name] if canonicalize_name(package.name) not in known]
            print(f"\n| {name}, beyond {LLAMA_INDEX} | MB | needed by |\n|---|---|---|")
            print(f"| all {len(new)} | {sum(map(megabytes, new)):.1f} | |")
            for package in sorted(new, key=megabytes, reverse=True)[:SHOWN]:
                print(f"| {package.name} | {megabytes(package):.1f} | {needed_by(package, found[name])} |")


if __name__ == "__main__":
    main()
