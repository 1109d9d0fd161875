"""A heading's title as a reader sees it: no marks, no link targets, no anchors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pyromark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_OPTIONS: Final = (
    pyromark.Options.ENABLE_HEADING_ATTRIBUTES
    | pyromark.Options.ENABLE_STRIKETHROUGH
    | pyromark.Options.ENABLE_WIKILINKS
)
_PARSER: Final = pyromark.Markdown(options=_OPTIONS)
# An ATX heading without inline markup but code and an {#id} at its end: most of them, so most need no second parse.
_PLAIN_ATX: Final = re.compile(
    r" {0,3}#{1,6}(?:[ \t]([^\\*_\[\]<>&~{}^#\r\n]*))?"
    r"(?:(?<=[ \t])(?:\{[ \t]*#[\w-]+[ \t]*\}|#+)[ \t]*)?(?:\r\n?|\n|\Z)"
)
_CODE: Final = re.compile(r"[^`]*(?:`[^`\s](?:[^`]*[^`\s])?`(?!`)[^`]*)*")  # in single backticks
_REFERENCE: Final = re.compile(r"\[([^\[\]]+)\](?:\[([^\[\]]*)\])?")
_DEFINITION: Final = re.compile(r"^ {0,3}\[([^\[\]]+)\]:", re.MULTILINE)
_SHORTCODE: Final = re.compile(r'\{\{[%<]\s*\w+\s+"([^"]*)"\s*[%>]\}\}')  # Hugo's {{% heading "whatsnext" %}}
_BLOCK_ID: Final = re.compile(r"\s\^[\w-]+$")  # Obsidian's


def heading_titles(text: str, ranges: Iterable[tuple[int, int]]) -> Iterator[str]:
    """The rendered title of each heading at ``text[start:end]``, on one line; empty for an empty heading."""
    defined: set[str] | None = None
    for start, end in ranges:
        plain = _PLAIN_ATX.match(text, start, end)
        if plain and ("`" not in plain[0] or _CODE.fullmatch(plain[1] or "")):
            yield " ".join((plain[1] or "").replace("`", "").split())
            continue
        title = _render(text[start:end].replace("\r\n", "\n").replace("\r", "\n"))
        if "[" in title:
            if defined is None:
                defined = {label.casefold() for label in _DEFINITION.findall(text)}
            title = _resolve(title, defined)
        yield _BLOCK_ID.sub("", title)


def _render(source: str) -> str:
    parts: list[str] = []
    for event in _PARSER.events(source):
        if isinstance(event, str):
            parts.append(" ")  # a line break inside a setext heading
        else:
            ((kind, value),) = event.items()
            if kind in {"Text", "Code"}:
                parts.append(str(value))
    title = " ".join("".join(parts).split())
    return _SHORTCODE.sub(r"\1", title) if "{{" in title else title


def _resolve(title: str, defined: set[str]) -> str:
    """Show the label of each reference link that the document defines elsewhere; other brackets stay."""

    def label(match: re.Match[str]) -> str:
        return match[1] if (match[2] or match[1]).casefold() in defined else match[0]

    return _REFERENCE.sub(label, title)
