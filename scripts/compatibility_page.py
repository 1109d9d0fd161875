"""Write the differences from LlamaIndex's classes into docs/reference/compatibility.md."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
TESTS = ROOT / "tests" / "llama_index_contract"
HEADING = "## Differences from LlamaIndex's classes\n"
PREFACE = """
The tests in `tests/llama_index_contract` run these classes beside those of LlamaIndex. They make the same calls, and
compare nodes, metadata views, ids and hits. The tables list every deliberate difference.
`scripts/compatibility_page.py` writes this section.
"""  # noqa: E501


def page() -> str:
    """Return the page with a new section on differences; the text above it stays."""
    above = PAGE.read_text("utf-8").partition(HEADING)[0]
    lines = [HEADING + PREFACE]
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
    return f"{above.rstrip()}\n\n" + "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
