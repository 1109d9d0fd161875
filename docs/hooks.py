"""What mkdocs does at the end, to each page and to the site."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>~?(?:[\w.]+\.)?(\w+)</code>")
_FETCHED = "https://unpkg.com/iframe-worker/shim"
_log = logging.getLogger("mkdocs.hooks.site")


def on_page_content(html: str, **_: Any) -> str:
    """Turn ``:class:`Name```, as docstrings have it, into ``Name``."""
    return _ROLE.sub(r"<code>\1</code>", html)


def on_post_build(config: Any, **_: Any) -> None:
    """Take what the search needs in a folder from the site itself: the theme's pages fetch it from the network."""
    for page in Path(config.site_dir).glob("*.html"):
        text = page.read_text("utf-8")
        if _FETCHED not in text:
            _log.warning("%s does not fetch %s: see docs/offline-search.js", page.name, _FETCHED)
        page.write_text(text.replace(_FETCHED, "offline-search.js"), "utf-8")
