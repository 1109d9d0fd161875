"""What mkdocs does to a page at the end: docstrings name things in Sphinx's way, which stays as plain code here."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>~?(?:[\w.]+\.)?(\w+)</code>")


def on_page_content(html: str, **_: Any) -> str:
    """Turn ``:class:`Name``` into ``Name``."""
    return _ROLE.sub(r"<code>\1</code>", html)
