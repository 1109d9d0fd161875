"""Write the bill of materials.

Every package of an installation, with version, licence and the packages that require it.

    python benchmarks/dependencies.py           # in an environment with all extras
    python benchmarks/dependencies.py --sizes   # megabytes and packages by extras, from PyPI

A package's megabytes are those of its files, with what Python compiles of them.
"""

import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import tomllib
from common import machine, markdown_table
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "benchmarks" / "results" / "dependencies.md"
HEADING = "## Every package\n"
LICENCE = "License :: OSI Approved :: "
LONGEST = 40  # letters of a licence's name; what is longer is its text
ROWS = (
    "",
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
    name = (
        expression or ", ".join(classified) or (fields.get("License") or "").strip().split("\n")[0]
    )
    return name if 0 < len(name) <= LONGEST else "in its package"


def closure(requirements: list[str]) -> dict[str, set[str]]:
    """Return each package that the requirements bring, with the packages that require it."""
    requirers, seen = dict[str, set[str]](), set[tuple[str, str]]()
    todo = [(requirement, "this package", frozenset[str]()) for requirement in requirements]
    while todo:
        line, asker, extras = todo.pop()
        need = Requirement(line)
        name, tried = canonicalize_name(need.name), [{"extra": extra} for extra in extras | {""}]
        holds = need.marker is None or any(map(need.marker.evaluate, tried))  # on this platform
        if not holds or (line, asker) in seen or name == "llama-index-contextual":
            continue
        seen.add((line, asker))
        requirers.setdefault(name, set()).add(asker)
        todo += [
            (below, name, frozenset(need.extras)) for below in distribution(name).requires or ()
        ]
    return requirers


def table(requirers: dict[str, set[str]], names: Iterable[str]) -> str:
    """Return a Markdown table of packages."""
    rows = []
    for name in sorted(names):
        askers = sorted(requirers[name], key=lambda asker: (asker != "this package", asker))
        more = f" and {len(askers) - 2} more" if len(askers) > 2 else ""
        rows.append(
            [
                name,
                distribution(name).version,
                licence(distribution(name)),
                ", ".join(askers[:2]) + more,
            ]
        )
    return markdown_table(["package", "version", "licence", "required by"], rows)


def page() -> str:
    """Return the page with new tables; the text above them stays."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    base = closure(project["dependencies"])
    parts = [PAGE.read_text("utf-8").partition(HEADING)[0].rstrip(), HEADING.rstrip(), machine()]
    parts += [f"### The base: {len(base)}", table(base, base)]
    for extra, requirements in project["optional-dependencies"].items():
        if extra not in NO_PRODUCT:
            requirers = closure(requirements)
            more = requirers.keys() - base
            direct = {name for name, askers in requirers.items() if "this package" in askers}
            parts += [f"### `[{extra}]`: {len(more)} more", table(requirers, more | direct)]
    return "\n\n".join(parts) + "\n"


def installed(folder: Path, *requirements: str) -> list[Distribution]:
    """Return the packages of a new environment without pip, after an installation."""
    venv.create(folder, with_pip=False)
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder),
        "install",
        "--quiet",
        *requirements,
    ]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)  # noqa: S603
    [packages] = folder.glob("lib/*/site-packages")
    return list(distributions(path=[str(packages)]))


def megabytes(package: Distribution) -> float:
    """Return the size of the files of a package."""
    files = {Path(str(package.locate_file(file))).resolve() for file in package.files or ()}
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def sizes() -> None:
    """Print packages and megabytes by extras."""
    print(f"{machine()}\n\n{markdown_table(['installed', 'packages', 'MB'], [])}")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "dependencies"
    ]
    rows = {
        "the three LlamaIndex packages": [
            need for need in declared if need.startswith("llama-index-")
        ]
    }
    rows |= {
        f"`[{row}]`" if row else "the base": [f"{ROOT}[{row}]" if row else str(ROOT)]
        for row in ROWS
    }
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, requirements) in enumerate(rows.items()):
            packages = installed(Path(folder, str(number)), *requirements)
            print(f"| {name} | {len(packages)} | {sum(map(megabytes, packages)):.0f} |", flush=True)


if __name__ == "__main__":
    if "--sizes" in sys.argv:
        sizes()
    else:
        PAGE.write_text(page(), "utf-8")
