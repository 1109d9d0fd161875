"""Write the table of docs/concepts/ranking.md from the features and their weights."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Final

from llama_index_contextual.retrievers.features import FEATURES, RANK_FEATURES
from llama_index_contextual.retrievers.learned import shipped_weights

PAGE: Final = Path(__file__).parents[1] / "docs" / "concepts" / "ranking.md"
_HEADING: Final = "## Features\n"


def page() -> str:
    """Return the page with the table made anew; the text above it stays."""
    text = PAGE.read_text("utf-8").partition(_HEADING)[0]
    weights = shipped_weights("ranking")
    lines = [_HEADING, "`scripts/ranking_page.py` writes this table.\n"]
    lines.append("| Feature | Weight | Meaning |\n|---|---|---|")
    for feature in (*FEATURES, *RANK_FEATURES):
        meaning = (inspect.getdoc(feature) or "").partition("\n")[0]
        lines.append(f"| {feature.name} | {weights.get(feature.name, 0.0):.2f} | {meaning} |")
    return text + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
