"""The README as PyPI shows it: a hook of hatchling makes its links and pictures absolute."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PROJECT: Final = "llama-index-contextual/llama-index-contextual"
_PAGES: Final = f"https://github.com/{_PROJECT}/blob/main/"
_PICTURES: Final = f"https://raw.githubusercontent.com/{_PROJECT}/main/"
_PICTURE: Final = re.compile(r'(src(?:set)?="|!\[[^\]]*\]\()(?=docs/)')
_LINK: Final = re.compile(r"(?<!!)(\[[^\]]*\]\()(?!https?:|#)")


class CustomMetadataHook(MetadataHookInterface):
    """Set the description of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README with absolute addresses."""
        readme = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": with_addresses(readme)}


def with_addresses(readme: str) -> str:
    """Return a README whose relative links and pictures lead to the repository."""
    return _LINK.sub(rf"\1{_PAGES}", _PICTURE.sub(rf"\1{_PICTURES}", readme))
