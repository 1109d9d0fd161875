"""Take secrets out of a text: keys, tokens, passwords. What looks like one goes; a rare word too many does no harm."""

from __future__ import annotations

import re
from typing import Final

_KEY_BEGIN: Final = "-----BEGIN "
_KEY_LINE: Final = 80  # characters of its first line
_KEY_END: Final = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----")
# By their own form, as those who issue them say it.
_TOKENS: Final = {
    "API key": (
        r"sk-[A-Za-z0-9_-]{20,}",  # OpenAI, Anthropic, and others that follow them
        r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}",  # Stripe
        r"AIza[A-Za-z0-9_-]{35}",  # Google
        r"(?:AKIA|ASIA)[A-Z0-9]{16}",  # Amazon
        r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}",  # SendGrid
        r"(?:gsk|tvly|pplx|r8|fw)[_-][A-Za-z0-9]{20,}",
    ),
    "token": (
        r"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}",
        r"xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{20,}",  # Slack
        r"hf_[A-Za-z0-9]{30,}|npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{50,}|dop_v1_[a-f0-9]{64}",
        r"eyJ[A-Za-z0-9_-]{10,1000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,}",  # JSON web tokens
    ),
}
_ISSUED: Final = {
    kind: re.compile(rf"(?<![A-Za-z0-9_-])(?:{'|'.join(forms)})(?![A-Za-z0-9_-])") for kind, forms in _TOKENS.items()
}
_HEADER: Final = re.compile(
    r"(?i)\b(?P<name>(?:bearer|basic) )(?P<value>(?=[A-Z._~+/-]{0,200}[0-9])[A-Z0-9._~+/-]{16,}={0,2})"
)
_IN_URL: Final = re.compile(r"(?P<name>://[^\s:/@'\"<>]{0,100}:)(?P<value>[^\s/@'\"<>]{1,200})(?=@)")
# `password = "…"`, `"api_key": "…"`, `os.environ['TOKEN'] = '…'`, `export DB_PASSWORD=…`, `token: 8ghK…`
_NAMES: Final = ("pass", "pwd", "secret", "token", "credential", "key")  # a line without any is not searched for these
_NAMED: Final = re.compile(
    r"""(?i)(?P<name>
            (?:pass(?:word|wd|phrase)|pwd|secret|token|credentials?|(?:api|access|secret|private|auth)[_-]?key)
            ["'`\]]{0,3}[ ]{0,3}[:=][ ]{0,3})
        (?:(?P<quote>["'`])(?P<quoted>[^"'`\s]{4,200})(?P=quote)|(?P<bare>[^\s"'`,;<>(){}\[\]$]{6,200}))""",
    re.VERBOSE,
)


def redact(text: str) -> tuple[str, int]:
    """Return a text with ``[redacted token]`` and the like in place of its secrets, and how many there were."""
    text, count = _without_private_keys(text)
    for kind, expression in _ISSUED.items():
        text, more = expression.subn(f"[redacted {kind}]", text)
        count += more
    for expression, kind in ((_HEADER, "token"), (_IN_URL, "password")):
        text, more = expression.subn(rf"\g<name>[redacted {kind}]", text)
        count += more
    named = 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal named
        value = match["quoted"] or match["bare"]
        if match["bare"] and not _is_random(match["name"], value):
            return match[0]
        named += 1
        quote = match["quote"] or ""
        return f"{match['name']}{quote}[redacted]{quote}"

    if any(name in text.lower() for name in _NAMES):
        lines = text.split("\n")
        for number, line in enumerate(lines):
            if any(name in line.lower() for name in _NAMES):
                lines[number] = _NAMED.sub(replaced, line)
        text = "\n".join(lines)
    return text, count + named


def _is_random(name: str, value: str) -> bool:
    """Say whether a value without quotes is one that people make up or machines draw, and no word or expression."""
    if name.isupper() and "=" in name:
        return True  # export DB_PASSWORD=correcthorse
    return any(char.isdigit() for char in value) and any(char.isalpha() for char in value)


def _without_private_keys(text: str) -> tuple[str, int]:
    parts: list[str] = []
    done = position = count = 0
    while (start := text.find(_KEY_BEGIN, position)) >= 0:
        position = start + len(_KEY_BEGIN)
        if "PRIVATE KEY" in text[start : start + _KEY_LINE].partition("\n")[0]:
            end = _KEY_END.search(text, start)  # without an end, all that follows is of the key
            parts += [text[done:start], "[redacted private key]"]
            done = position = end.end() if end else len(text)
            count += 1
    return "".join([*parts, text[done:]]), count
