"""Write docs/settings.md from the declarations of the configuration."""

from pathlib import Path

from llama_index_contextual.cli.settings import reference

if __name__ == "__main__":
    (Path(__file__).parents[1] / "docs" / "settings.md").write_text(reference(), "utf-8")
