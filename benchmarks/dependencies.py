"""Write the bill of materials: every package with its version, licence and dependents.

    python benchmarks/dependencies.py           # in an environment with all extras
    python benchmarks/dependencies.py --sizes   # megabytes and packages by extras, from PyPI

The size of a package is that of its files, including compiled ones.
"""

import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from typing import Any

import tomllib
from common import machine, markdown_table
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "benchmarks" / "results" / "dependencies.md"
HEADING = "## Every package\n"
LICENCE = "License :: OSI Approved :: "
MAX_LICENCE = 40  # letters of a licence's name; a longer value is its text
MAX_DEPENDENTS = 2  # that are named
THIS_PACKAGE = "this package"
# Combinations of extras whose size is measured.
EXTRAS = (
    "local",
    "app,local",
    "app,local,documents",
    "local,chroma",
    "app,local,documents,chroma,llm",
)
NO_PRODUCT = {"dev", "ray"}  # extras of tests and of a cluster


def licence(package: Distribution) -> str:
    """Return the name of a package's licence, from its metadata."""
    fields = package.metadata
    expression = fields.get("License-Expression") or ""
    classified = [
        name.removeprefix(LICENCE)
        for name in fields.get_all("Classifier") or ()
        if name.startswith(LICENCE)
    ]
    first_line = (fields.get("License") or "").strip().partition("\n")[0]
    name = expression or ", ".join(classified) or first_line
    return name if 0 < len(name) <= MAX_LICENCE else "in its package"


def closure(requirements: list[str]) -> dict[str, set[str]]:
    """Return each package that the requirements install, with the packages that require it."""
    dependents = dict[str, set[str]]()
    seen = set[tuple[str, str]]()
    queue = [(line, THIS_PACKAGE, frozenset[str]()) for line in requirements]
    while queue:
        line, dependent, extras = queue.pop()
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        is_done = (line, dependent) in seen or name == "llama-index-contextual"
        if is_done or not is_needed(requirement, extras):
            continue
        seen.add((line, dependent))
        dependents.setdefault(name, set()).add(dependent)
        inner_extras = frozenset(requirement.extras)
        queue += [(inner, name, inner_extras) for inner in distribution(name).requires or ()]
    return dependents


def is_needed(requirement: Requirement, extras: Iterable[str]) -> bool:
    """Return whether a requirement applies to this platform, with some extras."""
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def table(dependents: dict[str, set[str]], names: Iterable[str]) -> str:
    """Return a Markdown table of packages."""
    rows = []
    for name in sorted(names):
        # The packages that require it, this one first.
        ordered = sorted(dependents[name], key=lambda other: (other != THIS_PACKAGE, other))
        required_by = ", ".join(ordered[:MAX_DEPENDENTS])
        if len(ordered) > MAX_DEPENDENTS:
            required_by += f" and {len(ordered) - MAX_DEPENDENTS} more"
        package = distribution(name)
        rows.append([name, package.version, licence(package), required_by])
    return markdown_table(["package", "version", "licence", "required by"], rows)


def project_table() -> dict[str, Any]:
    """Return the table ``project`` of pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return project


def page() -> str:
    """Return the page with new tables below its present text."""
    project = project_table()
    base = closure(project["dependencies"])
    parts = [PAGE.read_text("utf-8").partition(HEADING)[0].rstrip(), HEADING.rstrip(), machine()]
    parts += [f"### The base: {len(base)}", table(base, base)]
    for extra, requirements in project["optional-dependencies"].items():
        if extra not in NO_PRODUCT:
            dependents = closure(requirements)
            more = dependents.keys() - base
            direct = {name for name, others in dependents.items() if THIS_PACKAGE in others}
            parts += [f"### `[{extra}]`: {len(more)} more", table(dependents, more | direct)]
    return "\n\n".join(parts) + "\n"


def installed(folder: Path, *requirements: str) -> list[Distribution]:
    """Return the packages of a new environment without pip, after an installation."""
    venv.create(folder, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(folder)]
    command = [*pip, "install", "--quiet", *requirements]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)  # noqa: S603
    [packages] = folder.glob("lib/*/site-packages")
    return list(distributions(path=[str(packages)]))


def megabytes(package: Distribution) -> float:
    """Return the size of the files of a package."""
    files = {Path(str(package.locate_file(file))).resolve() for file in package.files or ()}
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def sizes() -> None:
    """Print the packages and megabytes of installations with several extras."""
    print(f"{machine()}\n\n{markdown_table(['installed', 'packages', 'MB'], [])}")
    declared = project_table()["dependencies"]
    llama_index = [line for line in declared if line.startswith("llama-index-")]
    installations = {"the three LlamaIndex packages": llama_index, "the base": [str(ROOT)]}
    for extras in EXTRAS:
        installations[f"`[{extras}]`"] = [f"{ROOT}[{extras}]"]
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, requirements) in enumerate(installations.items()):
            packages = installed(Path(folder, str(number)), *requirements)
            size = sum(map(megabytes, packages))
            print(f"| {name} | {len(packages)} | {size:.0f} |", flush=True)


if __name__ == "__main__":
    if "--sizes" in sys.argv:
        sizes()
    else:
        PAGE.write_text(page(), "utf-8")
