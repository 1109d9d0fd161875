"""Formulas as text on one line, such as 10^6, log_10 and (a+b)/2."""

from __future__ import annotations

import re

# A part of a formula that needs no parentheses.
_WHOLE = re.compile(r"[-+\u2212±]?(?:\d[\d.,]*|[^\W\d_]+)?[^\w\s()/]*|[(\[][^()[\]]*[)\]]")
_ORDINALS = frozenset(
    [
        "st",
        "nd",
        "rd",
        "th",
        "er",
        "re",
        "ère",
        "e",
        "ème",
        "o",
        "a",
        "os",
        "as",
        "tm",
        "sm",
        "®",
        "™",
    ]
)


def in_parentheses(text: str) -> str:
    """Return a part of a formula, in parentheses if it has several terms."""
    return text if _WHOLE.fullmatch(text) else f"({text})"


def superscript(text: str) -> str:
    """Return superscript as text: nd, ^6, ^(n+1)."""
    return text if text.lower() in _ORDINALS else f"^{in_parentheses(text)}"
