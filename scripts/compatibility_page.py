"""Write the differences from LlamaIndex's classes into docs/reference/compatibility.md."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
ROOM = ROOT / "tests" / "llama_index_contract"
HEADING = "## In place of a class of LlamaIndex\n"
PREFACE = """
Our classes run beside LlamaIndex's in the tests (`tests/llama_index_contract`): the same calls, and nodes, views, ids
and hits are compared. This is what differs on purpose. `scripts/compatibility_page.py` makes this section.
"""


def page() -> str:
    """Return the page with the section made anew; what stands above it stays."""
    above = PAGE.read_text("utf-8").partition(HEADING)[0]
    lines = [HEADING + PREFACE]
    for pair, rows in runpy.run_path(str(ROOM / "differences.py"))["DIFFERENCES"].items():
        stock, ours = (
            ", ".join(f"`{name}`" for name in side.split(", ")) for side in pair.split(" → ")
        )
        lines += [f"### {ours} for {stock}\n", "| LlamaIndex's | ours | because |\n|---|---|---|"]
        lines += [f"| {row.stock} | {row.ours} | {row.because} |" for row in rows]
        lines.append("")
    return f"{above.rstrip()}\n\n" + "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
