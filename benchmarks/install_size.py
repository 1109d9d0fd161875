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

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
ROWS = ("", "local", "mcp", "serve", "local,documents", "chroma")
CLIENT = "chromadb-client"  # for Chroma's server, in place of the extra
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
    base: list[Distribution] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, extras in enumerate((*ROWS, CLIENT)):
            requirements = (str(ROOT), CLIENT) if extras == CLIENT else (f"{ROOT}[{extras}]" if extras else str(ROOT),)
            packages = installed(Path(folder, str(number)), *requirements)
            base = base or packages
            name = f"with `{extras}`" if extras == CLIENT else f"`[{extras}]`" if extras else "the base"
            print(f"| {name} | {len(packages)} | {sum(map(megabytes, packages)):.0f} |", flush=True)
            if extras == "chroma":
                everything = packages
        for title, packages in (("the base", base), ("`[chroma]`", everything)):
            print(f"\n| largest of {title} | MB | needed by |\n|---|---|---|")
            for package in sorted(packages, key=megabytes, reverse=True)[:SHOWN]:
                print(f"| {package.name} | {megabytes(package):.0f} | {needed_by(package, packages)} |")


if __name__ == "__main__":
    main()
